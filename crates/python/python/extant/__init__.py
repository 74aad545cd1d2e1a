"""ext4 in user space: open, create, read, write, recover. Without root, without mounts.

>>> import extant
>>> with extant.open("disk.img") as fs:  # doctest: +SKIP
...     print((fs.path("/etc") / "motd").read_text())

A :class:`FileSystem` is an open ext4 file system in an image file, in a qcow2 image or on a disk.
Its files are Python's own file objects, its :class:`Path` is like that of ``pathlib``. Calls release
the lock of the interpreter, and objects may be used by many threads.
"""

from ._errors import (
    AlreadyExists,
    Corrupt,
    Error,
    Interrupted,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
)
from ._extant import __version__
from ._filesystem import DirEntry, FileSystem, open
from ._images import Source, build, check, mkfs
from ._path import Path
from ._types import Finding, Made, Recovery, StatResult, Usage

__all__ = [
    "AlreadyExists",
    "Corrupt",
    "DirEntry",
    "Error",
    "FileSystem",
    "Finding",
    "Interrupted",
    "IsADirectory",
    "Made",
    "NotADirectory",
    "NotFound",
    "Path",
    "PermissionDenied",
    "Recovery",
    "Source",
    "StatResult",
    "Usage",
    "__version__",
    "build",
    "check",
    "mkfs",
    "open",
]
