"""Functions on images that are not open: creation, builds, checks."""

from __future__ import annotations

import errno
import os
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union
from uuid import UUID

from . import _bytes, _extant
from ._bytes import StrPath
from ._errors import Error
from ._filesystem import Backing, image_args
from ._types import Finding, Made


class Source(NamedTuple):
    """A source of an image whose kind is named."""

    #: ``"dir"``, ``"tar"``, ``"layer"`` (an archive with whiteouts), ``"oci"``, ``"docker"`` (an
    #: archive of ``docker save``) or ``"mtree"`` (a manifest of files).
    kind: str
    path: StrPath


#: A path, a path with its kind, or files in memory: contents by path, ``None`` for a directory.
AnySource = Union[StrPath, Source, Mapping[str, Optional[bytes]]]


def _size(size: Union[int, str]) -> int:
    """Returns a size in bytes, which may be text with k, M, G or T."""
    return _extant.parse_size(size) if isinstance(size, str) else size


def _layout(
    *,
    features: Optional[str],
    label: Union[str, bytes, None],
    preset: str,
    block_size: Optional[int],
    inodes: Optional[int],
    uuid: Union[UUID, str, None],
    seed: Optional[int],
    time: Optional[int],
    extended: Optional[str],
) -> Dict[str, Any]:
    number = UUID(uuid) if isinstance(uuid, str) else uuid
    return {
        "preset": preset,
        "features": features,
        "extended": extended,
        "label": None if label is None else _bytes.encode(label),
        "block_size": block_size,
        "inodes": inodes,
        "uuid": None if number is None else number.bytes,
        "seed": seed,
        "time": time,
    }


def _made(facts: Tuple[int, int, int, int, int, int, bytes]) -> Made:
    return Made(*facts[:6], UUID(bytes=bytes(facts[6])))


def mkfs(
    path: StrPath,
    size: Union[int, str, None] = None,
    features: Optional[str] = None,
    label: Union[str, bytes, None] = None,
    *,
    preset: str = "ext4",
    block_size: Optional[int] = None,
    inodes: Optional[int] = None,
    uuid: Union[UUID, str, None] = None,
    seed: Optional[int] = None,
    time: Optional[int] = None,
    extended: Optional[str] = None,
    format: str = "raw",
    overwrite: bool = False,
) -> Made:
    """Makes a file system in a new file, or in an existing file or disk with ``overwrite=True``.

    :param size: bytes, or text such as ``"64M"``. An existing file or disk has its own as default.
    :param features: a list as that of mke2fs(8), such as ``"^has_journal,casefold"``.
    :param preset: ``"ext4"``, ``"ext3"`` or ``"ext2"``.
    :param seed: makes all that is random a function of it, for the same bytes each time.
    :param time: the time of creation, in seconds since 1970; with a seed the default is 0.
    :param extended: a list as that of option ``-E`` of mke2fs(8).
    :param format: ``"raw"`` or ``"qcow2"``.
    :param overwrite: replaces what is there, without asking. Without it the file must be missing.
    """
    layout = _layout(
        features=features,
        label=label,
        preset=preset,
        block_size=block_size,
        inodes=inodes,
        uuid=uuid,
        seed=seed,
        time=time,
        extended=extended,
    )
    args = {
        "path": os.fsdecode(path),
        "size": None if size is None else _size(size),
        "format": format,
        "overwrite": overwrite,
    }
    return _made(_extant.mkfs(args, layout))


def build(
    output: StrPath,
    *sources: AnySource,
    size: Union[int, str] = "exact",
    free: Union[int, str] = 0,
    inodes_free: int = 0,
    features: Optional[str] = None,
    label: Union[str, bytes, None] = None,
    block_size: Optional[int] = None,
    inodes: Optional[int] = None,
    uuid: Union[UUID, str, None] = None,
    seed: Optional[int] = None,
    time: Optional[int] = None,
    extended: Optional[str] = None,
    owner: Optional[Tuple[int, int]] = None,
    exclude: Iterable[Union[str, bytes]] = (),
    one_file_system: bool = False,
    sparse: bool = False,
    image: Optional[str] = None,
    platform: Optional[str] = None,
    threads: int = 0,
    overwrite: bool = False,
) -> Made:
    """Builds an image of directories, archives, container images and files in memory.

    A source is a path, a :class:`Source` with the kind of a path, or a mapping of paths in the image
    to contents (``None`` for a directory). Later sources are laid over earlier ones. The same
    sources give the same bytes. The file appears when it is complete.

    :param size: bytes, or text such as ``"1G"``; ``"exact"`` is the smallest size for the content
        and ``free``.
    :param free: free space in bytes, as text such as ``"10M"``, or in percent such as ``"10%"``.
    :param inodes_free: free inodes at least.
    :param seed: seed of UUID and hash seed; the default comes from names, attributes and sizes.
    :param time: the time of creation and the latest time of files, in seconds since 1970. The
        default is 0 for the creation, and no limit for files.
    :param owner: owner and group of all files.
    :param exclude: patterns with ``*`` and ``?``: of a name, or of a whole path if it has a ``/``.
    :param one_file_system: leaves directories empty that are on other file systems.
    :param sparse: makes holes of zeroes; reads all content once more.
    :param image: name or digest of the container image, where a source has several.
    :param platform: its platform, such as ``"linux/arm64"``.
    :param threads: threads that copy content; 0 for one for each processor.
    :param overwrite: replaces an existing file.
    """
    layout = _layout(
        features=features,
        label=label,
        preset="ext4",
        block_size=block_size,
        inodes=inodes,
        uuid=uuid,
        seed=seed,
        time=time,
        extended=extended,
    )
    percent = isinstance(free, str) and free.endswith("%")
    args = {
        "output": os.fsdecode(output),
        "sources": [_source(source) for source in sources],
        "size": None if size == "exact" else _size(size),
        "free": 0 if percent else _size(free),
        "free_percent": float(str(free)[:-1]) if percent else None,
        "inodes_free": inodes_free,
        "owner": owner,
        "exclude": [_bytes.encode(pattern) for pattern in exclude],
        "one_file_system": one_file_system,
        "sparse": sparse,
        "image": image,
        "platform": platform,
        "threads": threads,
        "overwrite": overwrite,
    }
    return _made(_extant.build(args, layout))


def _source(source: AnySource) -> Tuple[str, str, List[Tuple[bytes, Optional[bytes]]]]:
    if isinstance(source, Mapping):
        files = [
            (_bytes.encode(path).strip(b"/"), None if content is None else bytes(content))
            for path, content in source.items()
        ]
        return "files", "", files
    if isinstance(source, Source):
        return source.kind, os.fsdecode(source.path), []
    path = os.fsdecode(source)
    return _kind(path), path, []


def _kind(path: str) -> str:
    """Finds the kind of a source."""
    if os.path.isdir(path):
        return "oci" if os.path.isfile(os.path.join(path, "oci-layout")) else "dir"
    if os.path.isfile(path):
        with open(path, "rb") as file:
            start = file.read(1082)
        if start.startswith(b"#mtree"):
            return "mtree"
        if start[1080:] == b"\x53\xef" and start[257:262] != b"ustar":
            message = f"build of {path}: an image is a source for the program `extant build` only"
            raise Error(errno.EOPNOTSUPP, message, path)
    return "archive"


def check(
    path: StrPath,
    *,
    format: str = "raw",
    backing: Iterable[Backing] = (),
    partition: Optional[int] = None,
    offset: Optional[int] = None,
    journal: Optional[StrPath] = None,
    as_is: bool = False,
    threads: int = 0,
    wait: bool = False,
) -> List[Finding]:
    """Checks a file system without changing it, and returns all findings.

    The image must not be open for writing. Its journal is replayed in memory first.

    :param journal: the device of an external journal.
    :param as_is: checks the image as it is, without the changes in its journal.
    :param threads: number of threads; 0 for one for each processor.
    """
    args = image_args(
        path, format=format, backing=backing, partition=partition, offset=offset, wait=wait
    )
    log = None if journal is None else image_args(journal, wait=wait)
    found = _extant.check(args, log, as_is, threads or os.cpu_count() or 1)
    return [Finding(*names, *place[:4], place[4], *values) for names, place, values in found]
