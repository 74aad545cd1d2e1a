"""Paths, directories, attributes and links."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest
from conftest import kernel

import extant


def test_names_are_bytes_on_the_disk(fs: extant.FileSystem, image: pathlib.Path) -> None:
    names = ["plain", "größer", "with space", "caf\udce9", "new\nline"]
    for name in names:
        (fs.path("/") / name).write_text(name, errors="surrogateescape")
    fs.write_bytes(b"/\xff\xfe", b"")
    fs.write_bytes(pathlib.PurePosixPath("/pure"), b"")
    names += ["\udcff\udcfe", "pure"]
    assert set(fs.listdir()) == {*names, "lost+found"}
    assert {path.name for path in fs.path().iterdir()} == {*names, "lost+found"}
    assert fs.read_bytes(b"/caf\xe9") == b"caf\xe9"
    assert bytes(fs.path(b"/caf\xe9")) == b"/caf\xe9"
    fs.unmount()
    with kernel(image) as mount:
        assert set(os.listdir(mount)) == {*names, "lost+found"}
        assert {os.fsencode(name) for name in names} < set(os.listdir(os.fsencode(mount)))


def test_paths_are_those_of_pathlib(fs: extant.FileSystem) -> None:
    path = fs.path("etc", "apt") / "sources.list.d"
    assert str(path) == "/etc/apt/sources.list.d"
    assert path == fs.path("//etc/./apt/sources.list.d") and hash(path) == hash(fs.path(str(path)))
    pure = pathlib.PurePosixPath(str(path))
    for name in ("name", "stem", "suffix", "suffixes", "parts"):
        assert getattr(path, name) == getattr(pure, name)
    assert [str(p) for p in path.parents] == [str(p) for p in pure.parents]
    assert path.parent == fs.path("/etc/apt") and fs.path().parent == fs.path("/")
    assert path.with_name("x").name == "x" and path.with_suffix(".y").suffix == ".y"
    assert path.with_stem("z").name == "z.d"
    assert path.relative_to("/etc") == pathlib.PurePosixPath("apt/sources.list.d")
    assert path.is_relative_to(fs.path("/etc")) and not path.is_relative_to("/usr")
    assert path.joinpath("/other") == fs.path("other") and path.match("apt/*.d")
    assert sorted([fs.path("b"), fs.path("a")]) == [fs.path("a"), fs.path("b")]
    # Functions for files of the host do not take it for one.
    with pytest.raises(TypeError):
        os.fspath(path)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        open(path)  # type: ignore[call-overload]


def test_a_path_of_another_file_system_is_refused(
    fs: extant.FileSystem, tmp_path: pathlib.Path
) -> None:
    extant.mkfs(tmp_path / "other.img", "8M")
    with extant.open(tmp_path / "other.img") as other:
        with pytest.raises(extant.Error, match="another file system"):
            fs.read_bytes(other.path("/f"))
        assert fs.path("/a") != other.path("/a")


def test_directories_are_made_listed_and_removed(fs: extant.FileSystem) -> None:
    home = fs.path("/home/user")
    with pytest.raises(FileNotFoundError):
        home.mkdir()
    home.mkdir(0o700, parents=True)
    assert stat.filemode(home.stat().st_mode) == "drwx------"
    assert stat.filemode(home.parent.stat().st_mode) == "drwxr-xr-x"
    home.mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        home.mkdir(parents=True)
    (home / "f").touch()
    with pytest.raises(FileExistsError):
        (home / "f").mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs(home)
    fs.makedirs(home, exist_ok=True)
    with pytest.raises(OSError, match="not empty"):
        home.rmdir()
    entries = {entry.name: entry for entry in fs.scandir(home)}
    assert entries["f"].is_file() and not entries["f"].is_dir() and not entries["f"].is_symlink()
    assert entries["f"].inode() == (home / "f").stat().st_ino and entries["f"].path == "/home/user/f"
    (home / "f").unlink()
    (home / "f").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (home / "f").unlink()
    home.rmdir()
    assert not home.exists() and home.parent.is_dir()


def test_large_directories_are_listed_once(fs: extant.FileSystem) -> None:
    for number in range(3000):
        fs.write_bytes(f"/{number}", b"")
    names = fs.listdir("/")
    assert len(names) == 3001 and set(names) == {"lost+found", *map(str, range(3000))}


def test_walks_are_those_of_os_walk(fs: extant.FileSystem, tmp_path: pathlib.Path) -> None:
    host = tmp_path / "tree"
    for path in ["a/b/c", "a/d", "e"]:
        (host / path).mkdir(parents=True)
        fs.makedirs("/tree/" + path)
    for path in ["f", "a/g", "a/b/h", "a/b/c/i"]:
        (host / path).touch()
        fs.path("/tree", path).touch()
    for path, target in [("a/link", "../e"), ("dangling", "nowhere"), ("a/up", "b/c")]:
        (host / path).symlink_to(target)
        fs.symlink(target, "/tree/" + path)

    def seen(walk, top):
        return {(str(t)[len(str(top)) :], *sorted(d), "|", *sorted(o)) for t, d, o in walk}

    for down in (True, False):
        for follow in (True, False):
            expected = seen(os.walk(host, down, followlinks=follow), host)
            found = list(fs.walk("/tree", down, followlinks=follow))
            assert seen(found, "/tree") == expected
            tops = [top for top, _, _ in found]
            assert all(
                (tops.index(top) < tops.index(below)) == down
                for top in tops
                for below in tops
                if below.startswith(top + "/")
            )
    pruned = []
    for top, dirs, _ in fs.path("/tree").walk():
        pruned.append(str(top))
        dirs[:] = [name for name in dirs if name != "b"]
    assert pruned == ["/tree", "/tree/a", "/tree/a/d", "/tree/e"] or sorted(pruned) == sorted(
        ["/tree", "/tree/a", "/tree/a/d", "/tree/e"]
    )
    with pytest.raises(FileNotFoundError):
        list(fs.walk("/missing", onerror=_raise))
    assert list(fs.walk("/missing")) == []
    # A directory below itself, by a symlink, is entered once and told.
    fs.symlink("..", "/tree/a/loop")
    errors: list = []
    walked = list(fs.walk("/tree", followlinks=True, onerror=errors.append))
    assert len(walked) < 30 and all(isinstance(error, extant.Corrupt) for error in errors)
    fs.rmtree("/tree")
    assert fs.listdir() == ["lost+found"]


def _raise(error: OSError) -> None:
    raise error


def test_globs_find_what_pathlib_finds(fs: extant.FileSystem, tmp_path: pathlib.Path) -> None:
    host = tmp_path / "tree"
    for path in ["a/b/x.py", "a/x.py", "y.py", "a/b/c/z.txt", ".hidden", "a/[q]"]:
        (host / path).parent.mkdir(parents=True, exist_ok=True)
        (host / path).touch()
        fs.path("/tree", path).parent.mkdir(parents=True, exist_ok=True)
        fs.path("/tree", path).touch()
    for pattern in ["*", "*.py", "**/*.py", "a/*", "a/*/*", "?.py", "a/b/x.py", "**/b/**/*.txt",
                    "[xy].py", "missing/*", "a/**/*", "**/**/x.py", ".*", "y.py/x"]:
        expected = {str(path.relative_to(host)) for path in host.glob(pattern)}
        found = [str(path.relative_to("/tree")) for path in fs.path("/tree").glob(pattern)]
        assert set(found) == expected and len(found) == len(expected), pattern
    assert {p.name for p in fs.path("/tree").rglob("*.txt")} == {"z.txt"}
    for bad in ["", "/a"]:
        with pytest.raises(ValueError):
            fs.path("/tree").glob(bad)


def test_attributes_are_those_that_the_kernel_sees(
    fs: extant.FileSystem, image: pathlib.Path
) -> None:
    path = fs.path("/f")
    path.write_bytes(b"12345")
    path.chmod(0o4751)
    path.chown(1000, 2000)
    path.chown(-1, 2001)
    fs.utime(path, (1_000_000_000_123_456_789, 10_000_000_000_987_654_321))
    fs.setxattr(path, "user.origin", b"else\0where")
    fs.setxattr(path, b"user.\xff", b"")
    assert sorted(fs.listxattr(path)) == ["user.origin", "user.\udcff"]
    fs.symlink("f", "/link")
    fs.chown("/link", 7, 7, follow_symlinks=False)
    path.parent.joinpath("hard").hardlink_to(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_size, found.st_nlink) == (1000, 2001, 5, 2)
    assert found.st_mtime == pytest.approx(10_000_000_000.99) and found.st_birthtime is not None
    assert found.is_file() and fs.stat("/link") == found and fs.lstat("/link").st_uid == 7
    assert fs.path("/link").readlink() == pathlib.PurePosixPath("f")
    assert fs.path("/link").samefile("/hard") and fs.path("/link").is_symlink()
    fs.unmount()
    with kernel(image) as mount:
        seen = os.stat(mount / "f")
        names = ["st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks",
                 "st_atime_ns", "st_mtime_ns", "st_ctime_ns"]
        assert [getattr(seen, name) for name in names] == [getattr(found, name) for name in names]
        assert os.getxattr(mount / "f", "user.origin") == b"else\0where"
        assert os.readlink(mount / "link") == "f" and os.lstat(mount / "link").st_uid == 7
        assert os.stat(mount / "hard").st_ino == seen.st_ino


def test_xattrs_have_modes_and_errors(fs: extant.FileSystem) -> None:
    fs.write_bytes("/f", b"")
    with pytest.raises(extant.Error) as caught:
        fs.getxattr("/f", "user.a")
    assert caught.value.errno == 61 and caught.value.filename == "/f"
    fs.setxattr("/f", "user.a", b"1", "create")
    with pytest.raises(FileExistsError):
        fs.setxattr("/f", "user.a", b"2", "create")
    fs.setxattr("/f", "user.a", b"3", "replace")
    assert fs.getxattr("/f", "user.a") == b"3"
    with pytest.raises(extant.Error, match="no mode"):
        fs.setxattr("/f", "user.a", b"3", "both")
    fs.removexattr("/f", "user.a")
    assert fs.listxattr("/f") == []


def test_renames_replace_and_touches_keep(fs: extant.FileSystem) -> None:
    fs.path("/a").write_text("a")
    fs.path("/b").write_text("b")
    assert fs.path("/a").rename("/b").read_text() == "a" and not fs.exists("/a")
    with pytest.raises(FileExistsError):
        fs.path("/b").touch(exist_ok=False)
    fs.utime("/b", (0, 0))
    fs.path("/b").touch()
    assert fs.stat("/b").st_mtime > 1e9 and fs.path("/b").read_text() == "a"
    fs.path("/c").touch(0o600)
    assert stat.S_IMODE(fs.stat("/c").st_mode) == 0o600
    fs.truncate("/b", 10)
    assert fs.read_bytes("/b") == b"a" + bytes(9)


def test_freeze_leaves_a_clean_image_to_copy(fs: extant.FileSystem, image: pathlib.Path) -> None:
    from conftest import judge

    fs.write_bytes("/f", b"frozen")
    copy = image.with_name("copy.img")
    with fs.freeze():
        copy.write_bytes(image.read_bytes())
        assert fs.read_bytes("/f") == b"frozen"
        with pytest.raises(extant.Error) as caught:
            fs.unmount()
        assert caught.value.errno == 16 and fs.is_mounted
    fs.write_bytes("/g", b"thawed")
    judge(copy)


def test_usage_counts_bytes(fs: extant.FileSystem) -> None:
    before = fs.usage()
    assert before.total == before.used + before.free and before.available <= before.free
    fs.write_bytes("/f", bytes(range(256)) * 4096)
    fs.sync()
    after = fs.usage()
    assert before.free - after.free == 1 << 20 and before.inodes_free - after.inodes_free == 1
