"""A file system of fsspec, so that pandas, pyarrow, dask and others read files of an image.

>>> import pandas
>>> pandas.read_csv("extant://data.csv::disk.img")  # doctest: +SKIP

The protocol ``extant`` is known to fsspec once the package is installed.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Dict, List, Optional

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from . import _filesystem
from ._types import StatResult


#: Open file systems by process, path and options. Instances of all threads share them, and each way
#: to write the arguments leads to the same one.
_shared: "weakref.WeakValueDictionary[str, _filesystem.FileSystem]" = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def _open_shared(path: str, options: Dict[str, Any]) -> _filesystem.FileSystem:
    key = repr((os.getpid(), os.path.realpath(path), sorted(options.items())))
    with _shared_lock:
        opened = _shared.get(key)
        if opened is None or not opened.is_mounted:
            opened = _filesystem.open(path, **options)
            # Callers of fsspec drop instances without closing them.
            opened._warns = False
            _shared[key] = opened
        return opened


class ExtantFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of an image.

    Instances for the same image and options share one open file system, which :meth:`close`, the
    last instance or the end of the program unmounts.

    :param fo: the path of the image. In a chain of URLs it is the last one.
    :param read_only: ``True`` by default. Other programs may read the image meanwhile, then.
    :param open_options: further arguments of :func:`extant.open`, such as ``format``.
    """

    protocol = "extant"
    root_marker = "/"
    # An instance in fsspec's cache would keep the image open for ever.
    cachable = False

    def __init__(
        self,
        fo: str = "",
        read_only: bool = True,
        target_protocol: Optional[str] = None,
        target_options: Optional[Dict[str, Any]] = None,
        open_options: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if target_protocol not in (None, "file", "local"):
            raise ValueError(
                f"an image is a file of this machine: {target_protocol}:// cannot hold it"
            )
        if not fo:
            raise ValueError("no image: name it by `fo`, or as in extant://FILE::IMAGE")
        #: The open file system.
        self.filesystem = _open_shared(fo, {"read_only": read_only, **(open_options or {})})

    def close(self) -> None:
        """Unmounts the image, for all instances that share it."""
        if self.filesystem.is_mounted:
            self.filesystem.unmount()

    def __enter__(self) -> ExtantFileSystem:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("extant://"):
            path = path[len("extant://") :]
        return "/" + path.strip("/")

    def _info(self, path: str, found: StatResult, link: Optional[StatResult]) -> Dict[str, Any]:
        info: Dict[str, Any] = {
            "name": path,
            "size": found.st_size,
            "type": "directory" if found.is_dir() else "file" if found.is_file() else "other",
            "created": found.st_ctime,
            "mtime": found.st_mtime,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "islink": link is not None,
        }
        if link is not None:
            info["destination"] = self.filesystem.readlink(path)
        return info

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        path = self._strip_protocol(path)
        found = self.filesystem.lstat(path)
        if not found.is_symlink():
            return self._info(path, found, None)
        try:
            return self._info(path, self.filesystem.stat(path), found)
        except FileNotFoundError:
            return self._info(path, found, found)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> List[Any]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] != "directory":
            found = [info]
        else:
            found = [self.info(entry.path) for entry in self.filesystem.scandir(path)]
            # Walks must not go down there: links of a hostile image have many ways to each place.
            for one in found:
                if one["islink"] and one["type"] == "directory":
                    one["type"] = "link"
        return found if detail else [one["name"] for one in found]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.filesystem.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.filesystem.is_dir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.filesystem.is_file(self._strip_protocol(path))

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return self.filesystem.open(path, mode if "b" in mode else mode + "b")

    def cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.filesystem.read_bytes(path)
        content: bytes = super().cat_file(path, start, end, **kwargs)
        return content

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.filesystem.open(
            self._strip_protocol(path), "xb" if mode == "create" else "wb"
        ) as file:
            file.write(value)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.filesystem.makedirs(self._parent(path), exist_ok=True)
        self.filesystem.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.filesystem.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.filesystem.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.filesystem.unlink(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        for one in self._strip_protocol([path] if isinstance(path, (str, os.PathLike)) else path):
            if self.filesystem.is_dir(one) and not self.filesystem.is_symlink(one):
                if not recursive:
                    raise IsADirectoryError(f"a directory, without recursive=True: {one}")
                self.filesystem.rmtree(one)
            else:
                self.filesystem.unlink(one)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.filesystem.is_dir(source):
            self.filesystem.makedirs(target, exist_ok=True)
            return
        with self.filesystem.open(source) as one, self.filesystem.open(target, "wb") as other:
            while True:
                piece = one.read(1 << 20)
                if not piece:
                    break
                other.write(piece)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.filesystem.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        if isinstance(path1, str) and isinstance(path2, str) and not path2.endswith("/"):
            self.mv_file(path1, path2)
        else:
            super().mv(path1, path2, recursive=recursive, **kwargs)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.filesystem.exists(path):
            self.filesystem.open(path, "wb", 0).close()
        else:
            self.filesystem.path(path).touch()

    def created(self, path: str) -> Any:
        from datetime import datetime, timezone

        found = self.filesystem.stat(self._strip_protocol(path))
        time = found.st_ctime if found.st_birthtime is None else found.st_birthtime
        return datetime.fromtimestamp(time, tz=timezone.utc)

    def modified(self, path: str) -> Any:
        from datetime import datetime, timezone

        found = self.filesystem.stat(self._strip_protocol(path))
        return datetime.fromtimestamp(found.st_mtime, tz=timezone.utc)
