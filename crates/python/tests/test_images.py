"""Images: creation, builds, checks, partitions and qcow2."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import stat
import struct
import tarfile
import uuid

import pytest
from conftest import judge, kernel, mke2fs, run

import extant


def test_mkfs_makes_what_it_tells(tmp_path: pathlib.Path) -> None:
    image, number = tmp_path / "disk.img", uuid.uuid4()
    made = extant.mkfs(image, "64M", "^has_journal", "root", uuid=number, block_size=4096)
    assert (made.bytes, made.block_size, made.uuid) == (64 << 20, 4096, number)
    assert image.stat().st_size == 64 << 20
    text = run("dumpe2fs", "-h", image)
    assert "has_journal" not in text and str(number) in text
    assert f"Free blocks:              {made.free_blocks}\n" in text
    assert "Filesystem volume name:   root\n" in text
    judge(image)
    with pytest.raises(FileExistsError):
        extant.mkfs(image, "64M")
    before = image.read_bytes()
    extant.mkfs(image, overwrite=True, preset="ext2")
    assert image.read_bytes() != before and image.stat().st_size == 64 << 20
    judge(image)
    twins = [tmp_path / "a.img", tmp_path / "b.img"]
    for twin in twins:
        extant.mkfs(twin, 8 << 20, seed=7)
    assert twins[0].read_bytes() == twins[1].read_bytes()


def test_failed_creations_leave_no_file(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "disk.img"
    for wrong in [
        dict(size="8M", features="no_such_feature"),
        dict(size=1000),
        dict(size="many"),
        dict(),
        dict(size="8M", format="vmdk"),
        dict(size="8M", preset="xfs"),
    ]:
        with pytest.raises(extant.Error) as caught:
            extant.mkfs(image, **wrong)
        assert caught.value.errno == errno.EINVAL, wrong
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError) as caught:
        extant.mkfs(tmp_path / "missing" / "disk.img", "8M")
    assert caught.value.filename == str(tmp_path / "missing" / "disk.img")


def test_disk_images_and_overlays_are_opened_by_named_files(tmp_path: pathlib.Path) -> None:
    base, overlay, plain = (tmp_path / name for name in ("base.qcow2", "overlay.qcow2", "d.img"))
    extant.mkfs(base, "64M", format="qcow2")
    assert base.stat().st_size < 8 << 20
    with extant.open(base, format="qcow2") as fs:
        fs.write_bytes("/base", b"below")
    run("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", overlay)
    with extant.open(overlay, format="qcow2", backing=[(base, "qcow2")]) as fs:
        assert fs.read_bytes("/base") == b"below"
        fs.write_bytes("/over", b"above")
    run("qemu-img", "check", "-q", overlay)
    with pytest.raises(extant.Error):
        extant.open(overlay, format="qcow2")
    assert extant.check(overlay, format="qcow2", backing=[(base, "qcow2")]) == []
    run("qemu-img", "convert", "-O", "raw", overlay, plain)
    judge(plain)
    with kernel(plain) as mount:
        assert (mount / "over").read_bytes() == b"above"
    with extant.open(base, format="qcow2", read_only=True) as fs:
        assert not fs.exists("/over")


def test_places_in_a_disk_are_opened(tmp_path: pathlib.Path) -> None:
    part, disk = mke2fs(tmp_path / "part.img", "16M"), tmp_path / "disk.img"
    disk.write_bytes(bytes(1 << 20) + part.read_bytes() + bytes(1 << 20))
    with extant.open(disk, offset=1 << 20) as fs:
        fs.write_bytes("/f", b"inside")
    with disk.open("r+b") as file:
        # The first entry of a partition table: type 83, first sector, number of sectors.
        file.seek(446)
        file.write(struct.pack("<4x B 3x II", 0x83, 2048, (16 << 20) // 512))
        file.seek(510)
        file.write(b"\x55\xaa")
    with extant.open(disk, partition=1, read_only=True) as fs:
        assert fs.read_bytes("/f") == b"inside"
    assert extant.check(disk, partition=1) == []
    part.write_bytes(disk.read_bytes()[1 << 20 : 17 << 20])
    judge(part)


def test_builds_hold_directories_archives_and_files(tmp_path: pathlib.Path) -> None:
    tree, image = tmp_path / "tree", tmp_path / "disk.img"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "tool").write_bytes(os.urandom(100_000))
    (tree / "bin" / "tool").chmod(0o4755)
    (tree / "bin" / "link").symlink_to("tool")
    (tree / "skip.o").touch()
    os.utime(tree / "bin" / "tool", (2_000_000_000, 2_000_000_000))
    with tarfile.open(tmp_path / "more.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("etc/motd")
        member.size, member.uid, member.mode = 6, 1000, 0o600
        archive.addfile(member, io.BytesIO(b"hello\n"))
    made = extant.build(
        image,
        tree,
        tmp_path / "more.tar.gz",
        {"etc/hostname": b"box\n", "/var/empty": None},
        free="1M",
        inodes_free=10,
        label="built",
        exclude=["*.o"],
        time=1_700_000_000,
    )
    assert made.bytes == image.stat().st_size and made.free_inodes >= 10
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(image.stat().st_mode) == 0o666 & ~umask
    judge(image)
    with kernel(image) as mount:
        assert (mount / "bin/tool").read_bytes() == (tree / "bin/tool").read_bytes()
        found = (mount / "bin/tool").stat()
        assert stat.S_IMODE(found.st_mode) == 0o4755 and found.st_mtime == 1_700_000_000
        assert os.readlink(mount / "bin/link") == "tool" and not (mount / "skip.o").exists()
        assert (mount / "etc/motd").read_bytes() == b"hello\n"
        assert (mount / "etc/motd").stat().st_uid == 1000
        assert (mount / "etc/hostname").read_bytes() == b"box\n"
        assert os.listdir(mount / "var/empty") == []
    again = tmp_path / "again.img"
    sources = (tree, extant.Source("tar", tmp_path / "more.tar.gz"))
    for threads in (1, 4):
        extant.build(again, *sources, owner=(5, 6), threads=threads, overwrite=True)
        content = again.read_bytes()
    extant.build(tmp_path / "third.img", *sources, owner=(5, 6))
    assert (tmp_path / "third.img").read_bytes() == content
    with extant.open(again, read_only=True) as fs:
        assert (fs.stat("/bin/tool").st_uid, fs.stat("/etc/motd").st_gid) == (5, 6)
    judge(again)


def test_builds_replace_only_when_asked_and_only_when_complete(tmp_path: pathlib.Path) -> None:
    image = tmp_path / "disk.img"
    extant.build(image, {"a": b"1"})
    first = image.read_bytes()
    with pytest.raises(FileExistsError):
        extant.build(image, {"a": b"2"})
    for wrong, number in [
        (lambda: extant.build(image, tmp_path / "missing", overwrite=True), errno.ENOENT),
        (lambda: extant.build(image, {"a/../b": b""}, overwrite=True), errno.EINVAL),
        (lambda: extant.build(image, {"a": b"x" * (1 << 20)}, size="300k", overwrite=True), errno.ENOSPC),
        (lambda: extant.build(image, extant.Source("zip", "x"), overwrite=True), errno.EINVAL),
        (lambda: extant.build(tmp_path / "n.img", image), errno.EOPNOTSUPP),
        (lambda: extant.build(image, {"a": b""}, platform="x", overwrite=True), errno.EINVAL),
    ]:
        with pytest.raises(extant.Error) as caught:
            wrong()
        assert caught.value.errno == number, caught.value
    assert image.read_bytes() == first and os.listdir(tmp_path) == ["disk.img"]
    # An image in use is not replaced.
    with extant.open(image) as fs:
        with pytest.raises(extant.Error) as caught:
            extant.build(image, {"a": b"2"}, overwrite=True)
        assert caught.value.errno == errno.EBUSY
        assert fs.read_bytes("/a") == b"1"
    # An output within a source is no part of itself.
    extant.build(tmp_path / "self.img", tmp_path)
    with extant.open(tmp_path / "self.img", read_only=True) as fs:
        assert sorted(fs.listdir()) == ["disk.img", "lost+found"]


def test_container_images_are_sources(tmp_path: pathlib.Path) -> None:
    bundle, layout = tmp_path / "bundle", tmp_path / "oci"
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:latest")
    run("umoci", "unpack", "--image", f"{layout}:latest", bundle)
    (bundle / "rootfs" / "bin").mkdir()
    (bundle / "rootfs" / "bin" / "sh").write_bytes(b"#!")
    run("umoci", "repack", "--image", f"{layout}:latest", bundle)
    image = tmp_path / "disk.img"
    extant.build(image, layout, size="8M")
    assert image.stat().st_size == 8 << 20
    with extant.open(image, read_only=True) as fs:
        assert fs.read_bytes("/bin/sh") == b"#!"
    judge(image)


def test_checks_find_what_e2fsck_finds(tmp_path: pathlib.Path) -> None:
    image = mke2fs(tmp_path / "disk.img")
    assert extant.check(image) == [] == extant.check(image, threads=1, as_is=True)
    run("debugfs", "-w", "-R", "set_super_value free_blocks_count 5", image)
    run("debugfs", "-w", "-R", "clri <2>", image)
    findings = extant.check(image)
    damages = [finding for finding in findings if finding.is_damage]
    assert damages and all(str(finding) for finding in findings)
    root = next(finding for finding in findings if finding.inode == 2)
    assert root.severity in ("damage", "fatal") and root.repair
    before = image.read_bytes()
    assert extant.check(image) == findings and image.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        extant.check(tmp_path / "missing.img")
    clean = mke2fs(tmp_path / "clean.img")
    with extant.open(clean):
        with pytest.raises(extant.Error) as caught:
            extant.check(clean)
        assert caught.value.errno == errno.EBUSY


def test_recovery_is_told(tmp_path: pathlib.Path) -> None:
    image, torn = mke2fs(tmp_path / "disk.img"), tmp_path / "torn.img"
    with extant.open(image) as fs:
        assert fs.recovery == extant.Recovery(0, 0, 0, 0, 0, False, False, None, None)
        fs.write_bytes("/f", b"x")
        fs.sync()
        torn.write_bytes(image.read_bytes())
    before = torn.read_bytes()
    with extant.open(torn, read_only=True) as fs:
        assert fs.recovery.in_memory and fs.recovery.transactions > 0
        assert fs.read_bytes("/f") == b"x"
    with extant.open(torn, recover=False) as fs:
        assert not fs.exists("/f")
    assert torn.read_bytes() == before
    assert any(f.code == "journal-replayed" for f in extant.check(torn))
    with extant.open(torn) as fs:
        assert fs.recovery.was_in_use and not fs.recovery.in_memory
    judge(torn)
