"""Names and paths as bytes, as ext4 has them.

Text is UTF-8. Bytes that are none become lone surrogates and come back as they were. The encoding
of the host plays no part, so that an image means the same everywhere.
"""

from __future__ import annotations

import os
from typing import Union

#: A path: text, bytes, or an object with ``__fspath__``, such as ``PurePosixPath``.
StrPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def encode(path: StrPath) -> bytes:
    """Returns the bytes of a path or name."""
    path = os.fspath(path)
    return path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path


def decode(path: bytes) -> str:
    """Returns the text of a path or name."""
    return path.decode("utf-8", "surrogateescape")
