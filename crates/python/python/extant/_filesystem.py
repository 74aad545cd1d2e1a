"""An open file system, and its calls by path."""

from __future__ import annotations

import atexit
import errno
import os
import posixpath
import stat
import sys
import threading
import warnings
import weakref
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Type, Union

from . import _bytes, _extant, _files
from ._bytes import StrPath
from ._errors import AlreadyExists, Corrupt, Error
from ._path import Path
from ._types import Recovery, StatResult, Usage

#: A path in an image.
ImagePath = Union[StrPath, Path]
#: A backing file of an overlay: a path, or a path and its format. The default is ``"qcow2"`` where
#: more backing files follow, else ``"raw"``.
Backing = Union[StrPath, Tuple[StrPath, str]]

_mounted: "weakref.WeakSet[FileSystem]" = weakref.WeakSet()


def image_args(
    path: StrPath,
    *,
    format: str = "raw",
    backing: Iterable[Backing] = (),
    partition: Optional[int] = None,
    offset: Optional[int] = None,
    wait: bool = False,
) -> Dict[str, Any]:
    """Returns an image as the functions below take it."""
    files: List[Tuple[str, str]] = []
    named = list(backing)
    for at, one in enumerate(named):
        if isinstance(one, tuple):
            files.append((os.fsdecode(one[0]), one[1]))
        else:
            files.append((os.fsdecode(one), "qcow2" if at + 1 < len(named) else "raw"))
    return {
        "path": os.fsdecode(path),
        "format": format,
        "backing": files,
        "partition": partition,
        "offset": offset,
        "wait": wait,
    }


def open(
    path: StrPath,
    *,
    read_only: bool = False,
    recover: bool = True,
    format: str = "raw",
    backing: Iterable[Backing] = (),
    memory: Optional[int] = None,
    partition: Optional[int] = None,
    offset: Optional[int] = None,
    lenient: bool = False,
    wait: bool = False,
    commit_interval: Optional[float] = None,
    direct_io: bool = False,
    discard: bool = False,
) -> FileSystem:
    """Opens the ext4 file system in an image file or on a disk.

    :param read_only: changes nothing on the device: a journal that needs replay is replayed in
        memory.
    :param recover: ``False`` ignores the journal, and changes nothing. The tree may be torn.
    :param format: ``"raw"`` or ``"qcow2"``. A format is never guessed.
    :param backing: the backing file of an overlay, then the one of that, and so on. Names in the
        headers of images are never opened.
    :param memory: bytes that all caches together may take; at least 64 MiB. The default is a
        quarter of the memory that the process may use.
    :param partition: the number of the partition with the file system.
    :param offset: the place of the file system in the file, in bytes.
    :param lenient: skips a damaged journal when opening for reading only.
    :param wait: waits for another program to release the image, instead of failing.
    :param commit_interval: seconds for which a change may stay in memory only; 5 by default.
    :param direct_io: bypasses the page cache of the host for the image file.
    :param discard: discards freed space on the device.
    :raises Error: with ``EBUSY`` while another program, or this one, has the image open.
    """
    args = image_args(
        path, format=format, backing=backing, partition=partition, offset=offset, wait=wait
    )
    options = {
        "read_only": read_only,
        "recover": recover,
        "lenient": lenient,
        "memory": memory,
        "commit_interval": commit_interval,
        "direct_io": direct_io,
        "discard": discard,
    }
    return FileSystem(_extant.open_volume(args, options), args["path"])


class DirEntry:
    """An entry of a directory, as ``os.DirEntry``."""

    __slots__ = ("name", "path", "_fs", "_inode", "_type")

    def __init__(self, fs: FileSystem, directory: str, name: str, inode: int, type: int) -> None:
        #: The name.
        self.name = name
        #: The path, which begins with that of the directory.
        self.path = posixpath.join(directory, name)
        self._fs = fs
        self._inode = inode
        self._type = type

    def __repr__(self) -> str:
        return f"<extant.DirEntry {self.name!r}>"

    def inode(self) -> int:
        """Returns the number of the inode."""
        return self._inode

    def _is(self, type: int, follow_symlinks: bool) -> bool:
        # Old directories keep no types.
        if self._type == 0 or (follow_symlinks and self._type == stat.S_IFLNK):
            try:
                found = self._fs.stat(self.path, follow_symlinks=follow_symlinks)
            except FileNotFoundError:
                return False
            return stat.S_IFMT(found.st_mode) == type
        return self._type == type

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether this is a directory."""
        return self._is(stat.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether this is a regular file."""
        return self._is(stat.S_IFREG, follow_symlinks)

    def is_symlink(self) -> bool:
        """Returns whether this is a symlink."""
        return self._is(stat.S_IFLNK, False)

    def stat(self, *, follow_symlinks: bool = True) -> StatResult:
        """Returns the attributes of the inode."""
        return self._fs.stat(self.path, follow_symlinks=follow_symlinks)


class FileSystem:
    """An open file system, made by :func:`open`.

    A ``with`` statement unmounts it at its end. Without one, :meth:`unmount` does, or the end of
    the program; a file system that is dropped before warns with ``ResourceWarning``.

    Paths are text, bytes, path objects such as ``PurePosixPath``, or :class:`Path` objects of this
    file system. They begin at the root directory, with or without a slash. Permission bits are not
    checked: the caller has the rights of root.

    All methods may be called by many threads. A forked process must open the image anew: there,
    each call fails with ``ESTALE``.
    """

    def __init__(self, volume: _extant.Volume, image: str) -> None:
        self._volume = volume
        self._image = image
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_mounted = True
        self._warns = True
        self._files: "weakref.WeakSet[Any]" = weakref.WeakSet()
        _mounted.add(self)

    def __repr__(self) -> str:
        state = "" if self._is_mounted else " (unmounted)"
        return f"<extant.FileSystem {self._image!r}{state}>"

    def __enter__(self) -> FileSystem:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._is_mounted and self._pid == os.getpid():
            self.unmount()

    def __del__(self) -> None:
        # Without the attributes, the opening failed.
        if getattr(self, "_is_mounted", False) and self._pid == os.getpid():
            if self._warns:
                warnings.warn(f"unmounted by accident: {self!r}", ResourceWarning, stacklevel=2)
            self.unmount()

    @property
    def image(self) -> str:
        """The path of the image."""
        return self._image

    @property
    def is_mounted(self) -> bool:
        """Whether the file system is still open."""
        return self._is_mounted

    def unmount(self) -> None:
        """Closes all files, writes all changes, marks the file system clean, and releases the image.

        Calls fail with ``ESTALE`` from then on. The first error is raised; the image is released
        all the same, unless the error is ``EBUSY``, while the file system is frozen.
        """
        if self._pid != os.getpid():
            # This fails, before a file is closed.
            self._volume.unmount()
        with self._lock:
            files = list(self._files)
        failed: Optional[BaseException] = None
        for file in files:
            try:
                file.close()
            except Exception as error:
                failed = failed or error
        try:
            self._volume.unmount()
        except Error as error:
            if error.errno == errno.EBUSY:
                raise
            self._is_mounted = False
            raise failed or error
        self._is_mounted = False
        if failed is not None:
            raise failed

    def sync(self) -> None:
        """Makes all changes durable that were made before the call.

        Content in buffers of open files is not among them: flush these before, or call
        :meth:`fsync`.
        """
        self._volume.sync()

    def fsync(self, file: IO[Any], *, data_only: bool = False) -> None:
        """Flushes the buffers of an open file, and makes its content durable, and the names that
        lead to it. ``data_only`` leaves out attributes such as times."""
        file.flush()
        _files.raw_of(file).sync(data_only)

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Makes all changes durable, marks the file system clean, and lets no byte of the device
        change until the ``with`` statement ends: the time to copy the image.

        Calls that change something wait meanwhile, and so do readers of the directory that a
        waiting call changes. The thread that froze must make no such call: it would wait for
        itself.
        """
        frozen = self._volume.freeze()
        try:
            yield
        finally:
            frozen.thaw()

    def usage(self) -> Usage:
        """Returns space and inodes: all, used, free, and available to users other than root."""
        size, blocks, free, available, inodes, inodes_free = self._volume.usage()
        sizes = (blocks * size, (blocks - free) * size, free * size, available * size)
        return Usage(*sizes, inodes, inodes_free, size)

    @property
    def recovery(self) -> Recovery:
        """The work of recovery when this file system was opened."""
        return Recovery(*self._volume.recovery())

    def path(self, *parts: StrPath) -> Path:
        """Returns a path in this file system, from its root."""
        return Path(self, *parts)

    def _encode(self, path: ImagePath) -> bytes:
        if isinstance(path, Path):
            if path.filesystem is not self:
                message = f"{path!r} belongs to another file system"
                raise Error(errno.EXDEV, message, str(path))
            return _bytes.encode(str(path))
        return _bytes.encode(path)

    def _decode(self, path: ImagePath) -> str:
        return _bytes.decode(self._encode(path))

    def open(
        self,
        path: ImagePath,
        mode: str = "rb",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Opens a file, as the function ``open`` does: with the same modes, buffers and classes.

        The default mode is ``"rb"``. Text is UTF-8 by default. New files belong to root, with
        permissions 0644.
        """
        flags = _files.flags_of(mode)
        if "b" not in mode and "t" not in mode:
            mode += "t"
        encoded = self._encode(path)
        name = path if isinstance(path, (str, bytes)) else _bytes.decode(encoded)
        raw = _files.RawFile(self, self._volume.open(encoded, flags), name, mode)
        try:
            file = _files.wrap(raw, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise
        with self._lock:
            self._files.add(file)
        return file

    def read_bytes(self, path: ImagePath) -> bytes:
        """Reads a whole file."""
        return self._volume.read(self._encode(path))

    def write_bytes(self, path: ImagePath, data: Any) -> int:
        """Writes a whole file: its content is replaced, or it is created. Returns the bytes."""
        if not isinstance(data, (bytes, bytearray)):
            data = bytes(memoryview(data).cast("B"))
        self._volume.write(self._encode(path), data)
        return len(data)

    def stat(self, path: ImagePath, *, follow_symlinks: bool = True) -> StatResult:
        """Returns the attributes of an inode."""
        numbers, times = self._volume.stat(self._encode(path), follow_symlinks)
        return StatResult(*numbers, *times)

    def lstat(self, path: ImagePath) -> StatResult:
        """Returns the attributes of an inode; a symlink is not followed."""
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: ImagePath, *, follow_symlinks: bool = True) -> bool:
        """Returns whether a path leads to an inode."""
        return self._mode(path, follow_symlinks) != 0

    def is_dir(self, path: ImagePath) -> bool:
        """Returns whether a path leads to a directory."""
        return stat.S_ISDIR(self._mode(path, True))

    def is_file(self, path: ImagePath) -> bool:
        """Returns whether a path leads to a regular file."""
        return stat.S_ISREG(self._mode(path, True))

    def is_symlink(self, path: ImagePath) -> bool:
        """Returns whether a path is a symlink."""
        return stat.S_ISLNK(self._mode(path, False))

    def _mode(self, path: ImagePath, follow_symlinks: bool) -> int:
        """Returns the type of an inode, 0 for none."""
        try:
            return self.stat(path, follow_symlinks=follow_symlinks).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return 0
            raise

    def scandir(self, path: ImagePath = "/") -> Iterator[DirEntry]:
        """Iterates over the entries of a directory, without ``.`` and ``..``.

        Entries that come or go meanwhile may be missed or seen; all others are seen once.
        """
        entries = self._volume.entries(self._encode(path))
        directory = self._decode(path)

        def each() -> Iterator[DirEntry]:
            while True:
                batch = entries.next_batch()
                if not batch:
                    return
                for name, inode, type in batch:
                    yield DirEntry(self, directory, _bytes.decode(name), inode, type)

        return each()

    def listdir(self, path: ImagePath = "/") -> List[str]:
        """Returns the names in a directory, without ``.`` and ``..``."""
        return [entry.name for entry in self.scandir(path)]

    def walk(
        self,
        top: ImagePath = "/",
        topdown: bool = True,
        onerror: Optional[Callable[[OSError], Any]] = None,
        followlinks: bool = False,
    ) -> Iterator[Tuple[str, List[str], List[str]]]:
        """Walks a tree, as ``os.walk``: directory, names of directories, names of other entries.

        Errors go to ``onerror``; without it they are left out. A directory that was entered before,
        in a damaged tree, or that lies in itself by followed symlinks, is such an error.
        """
        entered: Set[int] = set()
        # Directories to enter, with the inodes above them, and results that wait for those below.
        stack: List[Any] = [(self._decode(top), ())]
        while stack:
            item = stack.pop()
            if len(item) == 3:
                yield item
                continue
            path, above = item
            dirs: List[str] = []
            others: List[str] = []
            below: List[str] = []
            try:
                inode = self.stat(path).st_ino
                if inode in (above if followlinks else entered):
                    cause = f"walk of {path}: the directory was entered before"
                    error = Corrupt(errno.EUCLEAN, cause, path)
                    error.kind = "corrupt"
                    raise error
                entered.add(inode)
                for entry in self.scandir(path):
                    if not entry.is_dir():
                        others.append(entry.name)
                        continue
                    dirs.append(entry.name)
                    if not topdown and (followlinks or not entry.is_symlink()):
                        below.append(entry.name)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if topdown:
                yield path, dirs, others
                # The caller may have removed some.
                for name in dirs:
                    if followlinks or not self.is_symlink(posixpath.join(path, name)):
                        below.append(name)
            else:
                stack.append((path, dirs, others))
            inside = (*above, inode) if followlinks else ()
            stack += [(posixpath.join(path, name), inside) for name in reversed(below)]

    def mkdir(self, path: ImagePath, mode: int = 0o755) -> None:
        """Creates a directory that belongs to root."""
        self._volume.create_dir(self._encode(path))
        if mode != 0o755:
            self.chmod(path, mode)

    def makedirs(self, path: ImagePath, exist_ok: bool = False) -> None:
        """Creates a directory and the directories above it, as far as they are missing."""
        if not exist_ok and self.exists(path, follow_symlinks=False):
            name = self._decode(path)
            cause = f"makedirs of {name}: the name exists already"
            raise AlreadyExists(errno.EEXIST, cause, name)
        self._volume.create_dir_all(self._encode(path))

    def unlink(self, path: ImagePath) -> None:
        """Removes the name of an inode that is no directory."""
        self._volume.remove_file(self._encode(path))

    #: As :meth:`unlink`.
    remove = unlink

    def rmdir(self, path: ImagePath) -> None:
        """Removes an empty directory."""
        self._volume.remove_dir(self._encode(path))

    def rmtree(self, path: ImagePath) -> None:
        """Removes a directory with all that is in it. Symlinks are removed, not followed."""
        for directory, dirs, others in self.walk(path, topdown=False, onerror=_raise):
            for name in dirs:
                below = posixpath.join(directory, name)
                if self.is_symlink(below):
                    self.unlink(below)
                else:
                    self.rmdir(below)
            for name in others:
                self.unlink(posixpath.join(directory, name))
        self.rmdir(path)

    def rename(self, source: ImagePath, target: ImagePath) -> None:
        """Moves an entry, in one transaction. An inode that had the new name loses it."""
        self._volume.rename(self._encode(source), self._encode(target))

    #: As :meth:`rename`.
    replace = rename

    def symlink(self, target: ImagePath, path: ImagePath) -> None:
        """Creates a symlink at ``path`` that leads to ``target``."""
        self._volume.symlink(self._encode(target), self._encode(path))

    def link(self, original: ImagePath, path: ImagePath) -> None:
        """Adds the name ``path`` to the inode at ``original``."""
        self._volume.hard_link(self._encode(original), self._encode(path))

    def readlink(self, path: ImagePath) -> str:
        """Returns the target of a symlink."""
        return _bytes.decode(self._volume.read_link(self._encode(path)))

    def _set(self, path: ImagePath, follow_symlinks: bool, **changes: Optional[int]) -> None:
        keys = ("mode", "uid", "gid", "size", "atime", "mtime")
        attributes = {key: changes.get(key) for key in keys}
        self._volume.set_attributes(self._encode(path), follow_symlinks, attributes)

    def chmod(self, path: ImagePath, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits (07777)."""
        self._set(path, follow_symlinks, mode=stat.S_IMODE(mode))

    def chown(
        self, path: ImagePath, uid: int, gid: int, *, follow_symlinks: bool = True
    ) -> None:
        """Sets owner and group; -1 keeps one."""
        owner = None if uid == -1 else uid
        group = None if gid == -1 else gid
        self._set(path, follow_symlinks, uid=owner, gid=group)

    def truncate(self, path: ImagePath, size: int) -> None:
        """Cuts a file to a length in bytes, or lets it grow with a hole."""
        self._set(path, True, size=size)

    def utime(
        self,
        path: ImagePath,
        ns: Tuple[int, int],
        *,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of the last access and of the last change, in nanoseconds since 1970."""
        self._set(path, follow_symlinks, atime=ns[0], mtime=ns[1])

    def getxattr(
        self, path: ImagePath, name: Union[str, bytes], *, follow_symlinks: bool = True
    ) -> bytes:
        """Returns an extended attribute, whose name has its prefix, such as ``user.``."""
        encoded = _bytes.encode(name)
        return self._volume.get_xattr(self._encode(path), encoded, follow_symlinks)

    def setxattr(
        self,
        path: ImagePath,
        name: Union[str, bytes],
        value: bytes,
        mode: str = "any",
        *,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets an extended attribute. The mode ``"create"`` fails if it exists, ``"replace"`` if it
        does not."""
        attribute = (_bytes.encode(name), bytes(value))
        self._volume.set_xattr(self._encode(path), attribute, (mode, follow_symlinks))

    def listxattr(self, path: ImagePath = "/", *, follow_symlinks: bool = True) -> List[str]:
        """Returns the names of all extended attributes."""
        names = self._volume.list_xattrs(self._encode(path), follow_symlinks)
        return [_bytes.decode(name) for name in names]

    def removexattr(
        self, path: ImagePath, name: Union[str, bytes], *, follow_symlinks: bool = True
    ) -> None:
        """Removes an extended attribute."""
        encoded = _bytes.encode(name)
        self._volume.remove_xattr(self._encode(path), encoded, follow_symlinks)


def _raise(error: OSError) -> None:
    raise error


def _unmount_all() -> None:
    """Unmounts what is still open when the program ends."""
    for fs in list(_mounted):
        if fs._is_mounted and fs._pid == os.getpid():
            try:
                fs.unmount()
            except Exception:
                sys.excepthook(*sys.exc_info())


atexit.register(_unmount_all)
