"""Files of an image as Python's own file objects."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any, List, Optional, Union

if TYPE_CHECKING:
    from . import _extant
    from ._filesystem import FileSystem

#: Bytes of a buffer. A call below costs more than a copy of this size.
BUFFER_SIZE = 64 << 10


class RawFile(io.RawIOBase):
    """An open file without a buffer. Each call reads or writes the file at once.

    Threads may share it: each call has the position for itself.
    """

    name: Union[str, bytes]
    mode: str

    def __init__(
        self, fs: FileSystem, file: _extant.File, name: Union[str, bytes], mode: str
    ) -> None:
        # The file system stays mounted as long as the file is open.
        self._fs = fs
        self._file = file
        self._readable = "r" in mode or "+" in mode
        self._writable = "r" not in mode or "+" in mode
        self.name = name
        self.mode = mode

    def __repr__(self) -> str:
        return f"<extant.RawFile name={self.name!r} mode={self.mode!r}>"

    def readable(self) -> bool:
        self._check_open()
        return self._readable

    def writable(self) -> bool:
        self._check_open()
        return self._writable

    def seekable(self) -> bool:
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check(self, allowed: bool, what: str) -> None:
        self._check_open()
        if not allowed:
            raise io.UnsupportedOperation(f"not {what}")

    def read(self, size: Optional[int] = -1) -> bytes:
        self._check(self._readable, "readable")
        if size is None or size < 0:
            return self.readall()
        return self._file.read(size)

    def readall(self) -> bytes:
        self._check(self._readable, "readable")
        parts: List[bytes] = []
        # The file may grow meanwhile.
        while True:
            part = self._file.read(-1)
            if not part:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            parts.append(part)

    def readinto(self, buffer: Any) -> int:
        self._check(self._readable, "readable")
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self._check(self._writable, "writable")
        if not isinstance(data, (bytes, bytearray)):
            data = bytes(memoryview(data).cast("B"))
        return self._file.write(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        self._check_open()
        return self._file.tell()

    def truncate(self, size: Optional[int] = None) -> int:
        self._check(self._writable, "writable")
        if size is None:
            size = self._file.tell()
        if size < 0:
            raise ValueError(f"negative size: {size}")
        self._file.truncate(size)
        return size

    def sync(self, data_only: bool = False) -> None:
        """Makes content and attributes durable, or content alone."""
        self._check_open()
        self._file.sync(data_only)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()


def flags_of(mode: str) -> str:
    """Returns the flags of ``Volume.open`` for a mode of ``open``."""
    kinds = [letter for letter in mode if letter in "rwax"]
    if (
        set(mode) - set("rwaxbt+")
        or len(mode) != len(set(mode))
        or len(kinds) != 1
        or ("b" in mode and "t" in mode)
    ):
        raise ValueError(f"invalid mode: {mode!r}")
    flags = {"r": "", "w": "wtc", "a": "wac", "x": "wx"}[kinds[0]]
    return flags + "w" if "+" in mode else flags


def wrap(
    raw: RawFile,
    buffering: int,
    encoding: Optional[str],
    errors: Optional[str],
    newline: Optional[str],
) -> IO[Any]:
    """Puts the buffers and the decoder around a file that ``open`` puts there."""
    mode = raw.mode
    if "b" in mode:
        if encoding is not None or errors is not None or newline is not None:
            raise ValueError("binary mode takes no encoding, errors or newline argument")
        if buffering == 0:
            return raw  # type: ignore[return-value]
    elif buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    size = BUFFER_SIZE if buffering in (-1, 1) else buffering
    if size < 1:
        raise ValueError("invalid buffering size")
    buffer: Any
    if "+" in mode:
        buffer = io.BufferedRandom(raw, size)
    elif "r" in mode:
        buffer = io.BufferedReader(raw, size)
    else:
        buffer = io.BufferedWriter(raw, size)
    if "b" in mode:
        return buffer  # type: ignore[no-any-return]
    # UTF-8 on each host, as names are.
    text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


def raw_of(file: Any) -> RawFile:
    """Returns the file below buffers and decoder."""
    while not isinstance(file, RawFile):
        below = getattr(file, "buffer", None) or getattr(file, "raw", None)
        if below is None:
            raise TypeError(f"not a file of an image: {file!r}")
        file = below
    return file
