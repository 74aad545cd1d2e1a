"""Paths in an open file system, like those of ``pathlib``."""

from __future__ import annotations

import errno
import fnmatch
import stat
import time
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Iterator, List, Optional, Tuple, Union

from . import _bytes
from ._bytes import StrPath
from ._types import StatResult

if TYPE_CHECKING:
    from ._filesystem import FileSystem


class Path:
    """A path in an open file system, made by :meth:`FileSystem.path`.

    It begins at the root directory; ``..`` stays in it. It is no ``os.PathLike``, so that a
    function for files of the host does not take it for one.
    """

    __slots__ = ("_fs", "_path")

    def __init__(self, fs: FileSystem, *parts: Union[StrPath, Path]) -> None:
        self._fs = fs
        texts = [str(p) if isinstance(p, Path) else _decoded(p) for p in parts]
        joined = str(PurePosixPath("/", *texts))
        # Two leading slashes would be kept.
        self._path = PurePosixPath("/" + joined.lstrip("/"))

    def _new(self, path: PurePosixPath) -> Path:
        return Path(self._fs, str(path))

    @property
    def filesystem(self) -> FileSystem:
        """The file system of the path."""
        return self._fs

    def __str__(self) -> str:
        return str(self._path)

    def __bytes__(self) -> bytes:
        return _bytes.encode(str(self._path))

    def __repr__(self) -> str:
        return f"<extant.Path {str(self._path)!r} in {self._fs.image!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._fs is other._fs and self._path == other._path

    def __hash__(self) -> int:
        return hash((id(self._fs), self._path))

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._path < other._path

    def __truediv__(self, part: Union[StrPath, Path]) -> Path:
        return Path(self._fs, self, part)

    def joinpath(self, *parts: StrPath) -> Path:
        """Returns the path with parts behind it. An absolute part replaces those before it."""
        return Path(self._fs, self, *parts)

    @property
    def parts(self) -> Tuple[str, ...]:
        """The parts, the root first."""
        return self._path.parts

    @property
    def parent(self) -> Path:
        """The path without its last part."""
        return self._new(self._path.parent)

    @property
    def parents(self) -> List[Path]:
        """The parent, the parent of that, and so on."""
        return [self._new(path) for path in self._path.parents]

    @property
    def name(self) -> str:
        """The last part."""
        return self._path.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._path.stem

    @property
    def suffix(self) -> str:
        """The end of the last part, from its last dot on."""
        return self._path.suffix

    @property
    def suffixes(self) -> List[str]:
        """All suffixes of the last part."""
        return self._path.suffixes

    def with_name(self, name: str) -> Path:
        """Returns the path with another last part."""
        return self._new(self._path.with_name(name))

    def with_stem(self, stem: str) -> Path:
        """Returns the path with another last part of the same suffix."""
        return self._new(self._path.with_stem(stem))

    def with_suffix(self, suffix: str) -> Path:
        """Returns the path with another suffix."""
        return self._new(self._path.with_suffix(suffix))

    def relative_to(self, other: Union[str, Path]) -> PurePosixPath:
        """Returns the parts behind another path."""
        return self._path.relative_to(str(other))

    def is_relative_to(self, other: Union[str, Path]) -> bool:
        """Returns whether another path is the beginning of this one."""
        try:
            self.relative_to(other)
        except ValueError:
            return False
        return True

    def match(self, pattern: str) -> bool:
        """Returns whether the path matches a pattern, as ``PurePath.match`` does."""
        return self._path.match(pattern)

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Opens the file, as :meth:`FileSystem.open`; the default mode is ``"r"``."""
        return self._fs.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """Reads the whole file."""
        return self._fs.read_bytes(self)

    def read_text(self, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
        """Reads the whole file as text, UTF-8 by default."""
        with self.open("r", encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_bytes(self, data: Any) -> int:
        """Writes the whole file, which is created or replaced."""
        return self._fs.write_bytes(self, data)

    def write_text(
        self,
        data: str,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> int:
        """Writes the whole file as text, UTF-8 by default."""
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(data)

    def stat(self, *, follow_symlinks: bool = True) -> StatResult:
        """Returns the attributes of the inode."""
        return self._fs.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> StatResult:
        """Returns the attributes of the inode; a symlink is not followed."""
        return self._fs.lstat(self)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether the path leads to an inode."""
        return self._fs.exists(self, follow_symlinks=follow_symlinks)

    def is_dir(self) -> bool:
        """Returns whether the path leads to a directory."""
        return self._fs.is_dir(self)

    def is_file(self) -> bool:
        """Returns whether the path leads to a regular file."""
        return self._fs.is_file(self)

    def is_symlink(self) -> bool:
        """Returns whether the path is a symlink."""
        return self._fs.is_symlink(self)

    def samefile(self, other: Union[StrPath, Path]) -> bool:
        """Returns whether another path leads to the same inode."""
        return self.stat().st_ino == self._fs.stat(other).st_ino

    def iterdir(self) -> Iterator[Path]:
        """Iterates over the entries of the directory, without ``.`` and ``..``."""
        return (self / entry.name for entry in self._fs.scandir(self))

    def walk(
        self, top_down: bool = True, on_error: Any = None, follow_symlinks: bool = False
    ) -> Iterator[Tuple[Path, List[str], List[str]]]:
        """Walks the tree, as :meth:`FileSystem.walk`."""
        for top, dirs, others in self._fs.walk(self, top_down, on_error, follow_symlinks):
            yield Path(self._fs, top), dirs, others

    def glob(self, pattern: str) -> Iterator[Path]:
        """Iterates over the paths below that match a pattern.

        ``**`` stands for any number of directories; at the end it also stands for all that is in
        them. Symlinks are not followed by it.
        """
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"no relative pattern: {pattern!r}")
        parts = tuple(p for at, p in enumerate(parts) if p != "**" or parts[at - 1 : at] != ("**",))
        found = self._select(parts)
        if parts.count("**") < 2:
            return found
        # Two ways may lead to the same path.
        return iter(dict.fromkeys(found))

    def rglob(self, pattern: str) -> Iterator[Path]:
        """Iterates over the paths that match a pattern in any directory below."""
        return self.glob(f"**/{pattern}")

    def _select(self, parts: Tuple[str, ...]) -> Iterator[Path]:
        if not parts:
            yield self
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            for top, dirs, others in self.walk(on_error=_raise_unless_gone):
                if rest:
                    yield from top._select(rest)
                    continue
                if top == self:
                    yield top
                yield from (top / name for name in dirs + others)
        elif any(letter in part for letter in "*?["):
            for entry in self._fs.scandir(self):
                if fnmatch.fnmatchcase(entry.name, part) and (not rest or entry.is_dir()):
                    yield from (self / entry.name)._select(rest)
        else:
            below = self / part
            if below.is_dir() if rest else below.exists(follow_symlinks=False):
                yield from below._select(rest)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Creates the directory, as ``pathlib.Path.mkdir`` does. It belongs to root."""
        try:
            self._fs.mkdir(self, mode)
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self._fs.makedirs(self.parent, exist_ok=True)
            self.mkdir(mode, parents=False, exist_ok=exist_ok)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the name of an inode that is no directory."""
        try:
            self._fs.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Removes the directory, which must be empty."""
        self._fs.rmdir(self)

    def rename(self, target: Union[StrPath, Path]) -> Path:
        """Moves the entry; an inode that had the new name loses it. Returns the new path."""
        new = target if isinstance(target, Path) else Path(self._fs, target)
        self._fs.rename(self, new)
        return new

    #: As :meth:`rename`.
    replace = rename

    def symlink_to(self, target: Union[StrPath, Path]) -> None:
        """Makes this path a symlink to ``target``."""
        self._fs.symlink(target, self)

    def hardlink_to(self, target: Union[StrPath, Path]) -> None:
        """Makes this path a further name of the inode at ``target``."""
        self._fs.link(target, self)

    def readlink(self) -> PurePosixPath:
        """Returns the target of the symlink, which may be relative."""
        return PurePosixPath(self._fs.readlink(self))

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits (07777)."""
        self._fs.chmod(self, mode, follow_symlinks=follow_symlinks)

    def chown(self, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group; -1 keeps one."""
        self._fs.chown(self, uid, gid, follow_symlinks=follow_symlinks)

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Creates the file, or sets its times to now."""
        try:
            self._fs.open(self, "xb", 0).close()
        except FileExistsError:
            if not exist_ok:
                raise
            now = time.time_ns()
            self._fs.utime(self, (now, now))
        else:
            if stat.S_IMODE(mode) != 0o644:
                self.chmod(mode)


def _decoded(path: StrPath) -> str:
    return _bytes.decode(_bytes.encode(path))


def _raise_unless_gone(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error
