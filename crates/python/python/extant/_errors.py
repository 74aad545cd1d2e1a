"""Errors: each is an :class:`Error`, and the exception that Python has for its number."""

from __future__ import annotations

import errno
from typing import Optional, Tuple, Type

from . import _bytes


class Error(OSError):
    """An error of a file system, or of a function on images.

    ``errno`` is the number that Linux has for it, ``strerror`` the cause, with the call and the
    object, and ``filename`` the path that the call was given, if it was given one.
    """

    #: The kind, such as ``"not_found"``, ``"aborted"`` (an earlier error stopped all changes),
    #: ``"foreign"`` (no ext4), ``"unsupported"`` or ``"unmounted"``.
    kind: str = "other"
    #: The number of the inode that the call was about, or that is damaged.
    inode: Optional[int] = None

    def __str__(self) -> str:
        # The cause names the object already.
        return f"[Errno {self.errno}] {self.strerror}"


class NotFound(Error, FileNotFoundError):
    """No entry of that name."""


class AlreadyExists(Error, FileExistsError):
    """The name exists already."""


class NotADirectory(Error, NotADirectoryError):
    """The inode is no directory."""


class IsADirectory(Error, IsADirectoryError):
    """The inode is a directory."""


class PermissionDenied(Error, PermissionError):
    """Flags of the inode forbid the change, or the file was not opened for it."""


class Interrupted(Error, InterruptedError):
    """The call was interrupted."""


class Corrupt(Error):
    """A structure in the image is damaged. Coordinates that do not apply are ``None``."""

    #: The damaged structure.
    what: Optional[str] = None
    #: The block of the device, in blocks of the file system.
    block: Optional[int] = None
    #: The group.
    group: Optional[int] = None
    #: The name of the field.
    field: Optional[str] = None
    #: The value in the image.
    found: Optional[int] = None
    #: The value that would be right, or its bound.
    expected: Optional[int] = None


_CLASSES = {
    errno.ENOENT: NotFound,
    errno.EEXIST: AlreadyExists,
    errno.ENOTDIR: NotADirectory,
    errno.EISDIR: IsADirectory,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EINTR: Interrupted,
}

#: Structure, block, group, field, found and expected value.
_Damage = Tuple[
    str, Optional[int], Optional[int], Optional[str], Optional[int], Optional[int]
]


def make_error(
    number: int,
    message: str,
    path: Optional[bytes],
    kind: str,
    inode: Optional[int],
    damage: Optional[_Damage],
) -> Error:
    """Makes the exception of a failure below."""
    cls: Type[Error] = Corrupt if kind == "corrupt" else _CLASSES.get(number, Error)
    if path is None:
        error = cls(number, message)
    else:
        error = cls(number, message, _bytes.decode(path))
    error.kind = kind
    error.inode = inode
    if damage is not None and isinstance(error, Corrupt):
        error.what, error.block, error.group, error.field, error.found, error.expected = damage
    return error
