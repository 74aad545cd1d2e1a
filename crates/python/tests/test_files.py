"""Files: modes, buffers, text, positions, and durability."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import random

import pytest
from conftest import judge, kernel, mke2fs

import extant


def test_modes_do_what_those_of_open_do(fs: extant.FileSystem, tmp_path: pathlib.Path) -> None:
    """The same calls on files of the host are the model."""
    for at, mode in enumerate(["r", "w", "a", "x", "r+", "w+", "a+", "x+"]):
        for there in [True, False]:
            host, name = tmp_path / f"{at}{there}", f"/{at}{there}"
            if there:
                host.write_bytes(b"0123456789")
                fs.write_bytes(name, b"0123456789")
            results = []
            for open_file in (lambda m: open(host, m), lambda m: fs.open(name, m)):
                seen: list = []
                try:
                    with open_file(mode + "b") as file:
                        seen += [file.readable(), file.writable(), file.seekable(), file.tell()]
                        for step in (
                            lambda: file.read(3),
                            lambda: file.seek(2),
                            lambda: file.write(b"xyz"),
                            lambda: file.tell(),
                            lambda: file.seek(0),
                            lambda: file.read(),
                            lambda: file.truncate(4),
                            lambda: file.seek(-1, io.SEEK_END),
                            lambda: file.write(b"end"),
                        ):
                            try:
                                seen.append(step())
                            except OSError as error:
                                seen.append(type(error))
                except OSError as error:
                    seen.append((error.errno, isinstance(error, (FileExistsError, FileNotFoundError))))
                results.append(seen)
            assert results[0] == results[1], (mode, there)
            assert host.exists() == fs.exists(name), (mode, there)
            if host.exists():
                assert host.read_bytes() == fs.read_bytes(name), (mode, there)


def test_wrong_modes_are_refused_before_anything_is_done(fs: extant.FileSystem) -> None:
    for mode in ["", "b", "rw", "rbt", "r++", "z", "Ub", "br "]:
        with pytest.raises(ValueError):
            fs.open("/new", mode)
    for wrong in [dict(mode="r", buffering=0), dict(mode="rb", encoding="utf-8")]:
        with pytest.raises(ValueError):
            fs.write_bytes("/old", b"")
            fs.open("/old", **wrong)
    assert not fs.exists("/new")


def test_random_reads_and_writes_leave_what_a_model_has(
    fs: extant.FileSystem, image: pathlib.Path
) -> None:
    rng, model = random.Random(7), io.BytesIO()
    with fs.open("/f", "w+b", buffering=5000) as file:
        for _ in range(2000):
            kind = rng.randrange(6)
            if kind == 0:
                data = rng.randbytes(rng.choice([1, 100, 4096, 70000]))
                assert file.write(data) == model.write(data)
            elif kind == 1:
                size = rng.choice([0, 1, 100, 10000])
                assert file.read(size) == model.read(size)
            elif kind == 2:
                at = rng.randrange(200_000)
                assert file.seek(at) == model.seek(at)
            elif kind == 3:
                size = rng.randrange(200_000)
                # BytesIO does not grow; it pads at the next write behind the end.
                if size <= len(model.getvalue()):
                    assert file.truncate(size) == model.truncate(size)
            elif kind == 4:
                assert file.tell() == model.tell()
            else:
                buffer, other = bytearray(3000), bytearray(3000)
                assert file.readinto(buffer) == model.readinto(other)
                assert buffer == other
    assert fs.read_bytes("/f") == model.getvalue()
    fs.unmount()
    with kernel(image) as mount:
        assert (mount / "f").read_bytes() == model.getvalue()


def test_text_is_utf_8_and_lines_are_those_of_open(fs: extant.FileSystem) -> None:
    with fs.open("/t", "w", newline="\r\n") as file:
        print("größer", "zwei", sep="\n", file=file)
    assert fs.read_bytes("/t") == "größer\r\nzwei\r\n".encode()
    with fs.open("/t", "rt") as file:
        assert isinstance(file, io.TextIOWrapper) and file.mode == "rt" and file.name == "/t"
        assert list(file) == ["größer\n", "zwei\n"]
    with fs.open("/t", "r", encoding="latin-1", newline="") as file:
        assert file.readline() == "gröÃ\x9fer\r\n".replace("ö", "Ã¶")


def test_raw_files_take_all_buffers_and_offsets(fs: extant.FileSystem) -> None:
    with fs.open("/f", "w+b", 0) as raw:
        assert isinstance(raw, io.RawIOBase)
        assert raw.write(memoryview(b"abcdef")[1:]) == 5
        assert raw.write(bytearray(b"gh")) == 2
        array = __import__("array").array("I", [1, 2])
        assert raw.write(array) == 8
        assert raw.seek(0) == 0
        into = memoryview(bytearray(3))
        assert raw.readinto(into) == 3 and bytes(into) == b"bcd"
        assert raw.read(2) == b"ef" and raw.readall() == b"gh" + array.tobytes()
        assert raw.readall() == b"" and raw.read(10) == b"" and raw.read(0) == b""
        with pytest.raises(ValueError):
            raw.seek(-1)
        with pytest.raises(ValueError):
            raw.truncate(-1)
        assert raw.truncate(4) == 4 and raw.tell() == 15
        assert raw.read() == b""
        with pytest.raises(io.UnsupportedOperation):
            raw.fileno()
    with pytest.raises(ValueError):
        raw.read(1)
    raw.close()


def test_an_unlinked_file_stays_until_it_is_closed(fs: extant.FileSystem) -> None:
    free = fs.usage().free
    file = fs.open("/f", "w+b")
    file.write(b"x" * (4 << 20))
    file.flush()
    fs.unlink("/f")
    file.seek(0)
    assert file.read(4) == b"xxxx" and not fs.exists("/f")
    file.close()
    fs.sync()
    assert fs.usage().free == free


def test_content_is_durable_after_fsync(tmp_path: pathlib.Path) -> None:
    """A copy of the image while it is open is the state of a power cut."""
    image = mke2fs(tmp_path / "disk.img")
    with extant.open(image, commit_interval=3600.0) as fs:
        fs.path("/a/b").mkdir(parents=True)
        with fs.open("/a/b/f", "w") as file:
            file.write("kept")
            fs.fsync(file)
            copy = tmp_path / "copy.img"
            copy.write_bytes(image.read_bytes())
    with extant.open(copy) as fs:
        assert fs.recovery.transactions > 0 and fs.recovery.was_in_use
        assert fs.read_bytes("/a/b/f") == b"kept"
    judge(image)
    judge(copy)


def test_buffers_reach_the_image_at_the_unmount(image: pathlib.Path) -> None:
    with extant.open(image) as fs:
        file = fs.open("/f", "w")
        file.write("in a buffer")
    assert file.closed
    with kernel(image) as mount:
        assert (mount / "f").read_text() == "in a buffer"


def test_a_read_only_file_system_refuses_changes(image: pathlib.Path) -> None:
    with extant.open(image) as fs:
        fs.write_bytes("/f", b"old")
    before = image.read_bytes()
    with extant.open(image, read_only=True) as fs, extant.open(image, read_only=True) as other:
        assert fs.read_bytes("/f") == other.read_bytes("/f") == b"old"
        for change in (lambda: fs.open("/f", "r+b"), lambda: fs.write_bytes("/g", b"")):
            with pytest.raises(extant.Error) as caught:
                change()
            assert caught.value.errno == errno.EROFS
    assert image.read_bytes() == before


def test_large_files_are_read_and_written_at_once(fs: extant.FileSystem) -> None:
    data = os.urandom(9 << 20)
    assert fs.write_bytes("/big", data) == len(data)
    assert fs.read_bytes("/big") == data
    with fs.open("/big") as file:
        assert file.read() == data
    fs.truncate("/big", 1 << 40)
    with fs.open("/big") as file:
        assert file.seek(-3, io.SEEK_END) == (1 << 40) - 3
        assert file.read() == b"\0\0\0"
