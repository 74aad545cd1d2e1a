"""Errors: their classes, numbers, texts, and the border of panics."""

from __future__ import annotations

import errno
import pathlib
import pickle

import pytest
from conftest import mke2fs, run

import extant
from extant import _extant


@pytest.mark.parametrize(
    "call, builtin, own, number",
    [
        (lambda fs: fs.open("/missing"), FileNotFoundError, extant.NotFound, errno.ENOENT),
        (lambda fs: fs.open("/f", "xb"), FileExistsError, extant.AlreadyExists, errno.EEXIST),
        (lambda fs: fs.stat("/f/g"), NotADirectoryError, extant.NotADirectory, errno.ENOTDIR),
        (lambda fs: fs.read_bytes("/d"), IsADirectoryError, extant.IsADirectory, errno.EISDIR),
        (lambda fs: fs.link("/d", "/e"), PermissionError, extant.PermissionDenied, errno.EPERM),
        (lambda fs: fs.unlink("/d"), IsADirectoryError, extant.IsADirectory, errno.EISDIR),
        (lambda fs: fs.stat("/" + "n" * 256), OSError, extant.Error, errno.ENAMETOOLONG),
        (lambda fs: fs.stat("/loop"), OSError, extant.Error, errno.ELOOP),
        (lambda fs: fs.readlink("/f"), OSError, extant.Error, errno.EINVAL),
        (lambda fs: fs.rename("/d", "/d/e"), OSError, extant.Error, errno.EINVAL),
    ],
)
def test_errors_are_those_of_python_and_of_the_package(
    fs: extant.FileSystem, call, builtin, own, number
) -> None:
    fs.write_bytes("/f", b"")
    fs.mkdir("/d")
    fs.symlink("loop", "/loop")
    with pytest.raises(builtin) as caught:
        call(fs)
    error = caught.value
    assert type(error) is own and isinstance(error, extant.Error)
    assert error.errno == number and error.filename.startswith("/")
    assert str(error).startswith(f"[Errno {number}] ")


def test_texts_name_call_object_and_cause(fs: extant.FileSystem) -> None:
    with pytest.raises(extant.NotFound) as caught:
        fs.read_bytes("/etc/motd")
    error = caught.value
    assert error.filename == "/etc/motd" and error.kind == "not_found"
    assert str(error) == f"[Errno 2] {error.strerror}"
    assert "/etc/motd" in error.strerror and error.strerror.endswith("no such file or directory")
    fs.write_bytes("/f", b"")
    with pytest.raises(extant.Error) as caught:
        fs.removexattr("/f", "user.none")
    assert caught.value.inode == fs.stat("/f").st_ino and caught.value.filename == "/f"


def test_errors_survive_a_pickle(fs: extant.FileSystem) -> None:
    with pytest.raises(extant.NotFound) as caught:
        fs.stat("/missing")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is extant.NotFound and str(copy) == str(caught.value)
    assert (copy.errno, copy.filename, copy.kind) == (2, "/missing", "not_found")


def test_opening_tells_the_image(tmp_path: pathlib.Path, image: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        extant.open(tmp_path / "missing.img")
    assert caught.value.filename == str(tmp_path / "missing.img")
    run("qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "disk.qcow2", "1M")
    with pytest.raises(extant.Error, match="qcow2") as caught:
        extant.open(tmp_path / "disk.qcow2", read_only=True)
    assert caught.value.kind == "foreign"
    with extant.open(image):
        with pytest.raises(extant.Error) as caught:
            extant.open(image)
        assert caught.value.errno == errno.EBUSY and caught.value.kind == "busy"
    for wrong in [dict(format="vmdk"), dict(partition=1, offset=512), dict(backing=["b.img"])]:
        with pytest.raises(extant.Error) as caught:
            extant.open(image, **wrong)
        assert caught.value.errno == errno.EINVAL, wrong
    with pytest.raises(TypeError):
        extant.open(image, memory="much")  # type: ignore[arg-type]


def test_damage_has_coordinates(tmp_path: pathlib.Path) -> None:
    image = mke2fs(tmp_path / "disk.img", "32M", "-O", "metadata_csum")
    with extant.open(image) as fs:
        fs.write_bytes("/f", b"content")
        inode = fs.stat("/f").st_ino
    run("debugfs", "-w", "-R", f"set_inode_field <{inode}> checksum 0x1234", image)
    with extant.open(image, read_only=True) as fs:
        with pytest.raises(extant.Corrupt) as caught:
            fs.read_bytes("/f")
    error = caught.value
    assert error.errno == errno.EUCLEAN and error.kind == "corrupt" and error.inode == inode
    assert error.what and isinstance(error, OSError)
    findings = extant.check(image)
    assert any(f.code == "inode-checksum" and f.inode == inode for f in findings)


def test_a_panic_is_an_error_and_no_panic_exception() -> None:
    with pytest.raises(extant.Error, match="a defect of extant: a call panicked: asked for") as caught:
        _extant._panic_in_call()
    assert caught.value.errno == errno.EIO and caught.value.kind == "panic"


def test_calls_after_the_unmount_fail(image: pathlib.Path) -> None:
    fs = extant.open(image)
    fs.write_bytes("/f", b"x")
    file, entries, path = fs.open("/f", "rb", 0), fs.scandir("/"), fs.path("/f")
    unread = fs.open("/f")
    fs.unmount()
    assert file.closed and unread.closed and not fs.is_mounted and "unmounted" in repr(fs)
    for call in (fs.sync, fs.unmount, path.read_bytes, path.stat, lambda: list(entries),
                 lambda: fs.open("/f"), lambda: fs.setxattr("/f", "user.a", b"")):
        with pytest.raises(extant.Error) as caught:
            call()
        assert caught.value.errno == errno.ESTALE and caught.value.kind == "unmounted"
    with pytest.raises(ValueError):
        file.read()


def test_a_full_image_raises_enospc_once_and_keeps_the_rest(tmp_path: pathlib.Path) -> None:
    image = mke2fs(tmp_path / "disk.img", "4M", "-O", "^has_journal", "-m", "0")
    with extant.open(image) as fs:
        fs.write_bytes("/kept", b"kept")
        with pytest.raises(extant.Error) as caught:
            with fs.open("/big", "wb") as file:
                for _ in range(100):
                    file.write(bytes(range(256)) * 256)
        assert caught.value.errno == errno.ENOSPC and caught.value.kind == "no_space"
        fs.unlink("/big")
    from conftest import judge

    judge(image)
