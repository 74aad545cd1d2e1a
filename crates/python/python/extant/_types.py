"""Values that calls return."""

from __future__ import annotations

import stat
from typing import NamedTuple, Optional
from uuid import UUID


class StatResult(NamedTuple):
    """Attributes of an inode, all of one moment, with the names that ``os.stat_result`` has."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    #: Length in bytes.
    st_size: int
    #: Space that the inode takes, in blocks of 512 bytes.
    st_blocks: int
    st_blksize: int
    #: Device number of a device file.
    st_rdev: int
    #: Flags as chattr(1) has them, such as 0x10 for immutable.
    st_flags: int
    #: The generation: number and generation together are never given to another inode.
    st_gen: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    #: Time of creation; ``None`` where inodes of 128 bytes do not keep it.
    st_birthtime_ns: Optional[int]

    @property
    def st_dev(self) -> int:
        """The number of the device: 0, as an image has none."""
        return 0

    @property
    def st_atime(self) -> float:
        """Time of the last access, in seconds."""
        return self.st_atime_ns / 1e9

    @property
    def st_mtime(self) -> float:
        """Time of the last change of content, in seconds."""
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        """Time of the last change of the inode, in seconds."""
        return self.st_ctime_ns / 1e9

    @property
    def st_birthtime(self) -> Optional[float]:
        """Time of creation, in seconds."""
        return None if self.st_birthtime_ns is None else self.st_birthtime_ns / 1e9

    def is_dir(self) -> bool:
        """Returns whether this is a directory."""
        return stat.S_ISDIR(self.st_mode)

    def is_file(self) -> bool:
        """Returns whether this is a regular file."""
        return stat.S_ISREG(self.st_mode)

    def is_symlink(self) -> bool:
        """Returns whether this is a symlink."""
        return stat.S_ISLNK(self.st_mode)


class Usage(NamedTuple):
    """Space and inodes of a file system; space in bytes."""

    total: int
    used: int
    #: Free for root.
    free: int
    #: Free for all users.
    available: int
    inodes: int
    inodes_free: int
    block_size: int


class Recovery(NamedTuple):
    """The work of recovery when a file system was opened."""

    #: Transactions of the journal that were replayed.
    transactions: int
    #: Blocks that they brought to their places.
    blocks: int
    #: Orphan inodes that were freed.
    orphans_freed: int
    #: Orphan inodes that were cut to their length.
    orphans_truncated: int
    #: Orphan records that named no valid inode.
    orphans_invalid: int
    #: The file system had not been unmounted.
    was_in_use: bool
    #: The device has not changed: its journal is replayed for this opening only.
    in_memory: bool
    #: The reason for which a damaged journal was skipped (``lenient=True``).
    skipped: Optional[str]
    #: The reason for which the file system can be read only, though changes were asked for.
    read_only: Optional[str]


class Made(NamedTuple):
    """A file system that was made."""

    #: Bytes of the file system.
    bytes: int
    block_size: int
    blocks: int
    free_blocks: int
    inodes: int
    free_inodes: int
    uuid: UUID


class Finding(NamedTuple):
    """A defect that a check found. Coordinates and values that do not apply are ``None``."""

    #: The kind, a stable name such as ``"inode-checksum"``.
    code: str
    #: ``"note"``, ``"damage"``, or ``"fatal"`` for damage that prevents further checks.
    severity: str
    #: The repair that ``extant repair`` plans, such as ``"recount"``.
    repair: str
    #: All of it as one line.
    text: str
    inode: Optional[int]
    group: Optional[int]
    #: The block of the device, in blocks of the file system.
    block: Optional[int]
    #: The block of the file, counted from its start.
    file_block: Optional[int]
    field: Optional[str]
    #: The value in the image.
    found: Optional[int]
    #: The value that would be right, or its bound.
    expected: Optional[int]

    @property
    def is_damage(self) -> bool:
        """Whether this is damage, and no note."""
        return self.severity != "note"

    def __str__(self) -> str:
        return self.text
