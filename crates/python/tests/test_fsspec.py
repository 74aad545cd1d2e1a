"""The file system of fsspec."""

from __future__ import annotations

import pathlib
import pickle

import fsspec
import pytest
from conftest import judge, mke2fs, python

import extant
from extant.fsspec import ExtantFileSystem


@pytest.fixture
def filled(tmp_path: pathlib.Path) -> pathlib.Path:
    image = mke2fs(tmp_path / "disk.img")
    with extant.open(image) as fs:
        fs.makedirs("/data/deep")
        fs.write_bytes("/data/a.csv", b"x,y\n1,2\n3,4\n")
        fs.write_bytes("/data/deep/b.csv", b"x,y\n5,6\n")
        fs.symlink("a.csv", "/data/link.csv")
        fs.symlink("nowhere", "/data/dangling")
    return image


def test_urls_lead_to_files_of_an_image(filled: pathlib.Path) -> None:
    with fsspec.open(f"extant://data/a.csv::{filled}") as file:
        assert file.read() == b"x,y\n1,2\n3,4\n"
    with fsspec.open("extant:///data/link.csv", "r", fo=str(filled)) as file:
        assert file.readline() == "x,y\n"
    files = fsspec.open_files(f"extant://data/**/*.csv::file://{filled}", "rt")
    assert sorted(file.path for file in files) == ["/data/a.csv", "/data/deep/b.csv", "/data/link.csv"]
    with pytest.raises(FileNotFoundError):
        with fsspec.open(f"extant://data/missing::{filled}"):
            pass
    with pytest.raises(ValueError, match="this machine"):
        fsspec.open(f"extant://a::memory://{filled}").open()
    ExtantFileSystem(str(filled)).close()


def test_the_tree_is_listed_and_described(filled: pathlib.Path) -> None:
    fs = fsspec.filesystem("extant", fo=str(filled))
    assert isinstance(fs, ExtantFileSystem)
    # However the arguments are written, there is one open file system.
    assert fs.filesystem is ExtantFileSystem(str(filled)).filesystem
    assert sorted(fs.ls("/data", detail=False)) == [
        "/data/a.csv", "/data/dangling", "/data/deep", "/data/link.csv"]
    assert sorted(fs.find("data")) == [
        "/data/a.csv", "/data/dangling", "/data/deep/b.csv", "/data/link.csv"]
    info = fs.info("data/a.csv")
    assert (info["name"], info["size"], info["type"]) == ("/data/a.csv", 12, "file")
    assert fs.info("/data/link.csv")["destination"] == "a.csv"
    assert fs.info("/data/dangling")["type"] == "other" and not fs.exists("/data/dangling")
    assert fs.isdir("/data") and fs.isfile("/data/a.csv") and not fs.isfile("/data")
    assert fs.cat_file("/data/a.csv", 4, 8) == b"1,2\n" and fs.head("/data/a.csv", 3) == b"x,y"
    assert fs.cat(["/data/a.csv"]) == {"/data/a.csv": b"x,y\n1,2\n3,4\n"}
    assert fs.du("/data") == 12 + 8 + 12 + 7 and fs.modified("/data/a.csv").year >= 2025
    assert fs.created("/data/a.csv") <= fs.modified("/data/a.csv")
    with pytest.raises(OSError) as caught:
        fs.pipe_file("/new", b"")
    assert caught.value.errno == 30
    # Another process opens the image anew.
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.cat_file("/data/a.csv") == fs.cat_file("/data/a.csv")
    fs.close()
    assert ExtantFileSystem(str(filled)).filesystem is not fs.filesystem
    # Instances that are gone keep nothing open.
    del fs, copy
    extant.open(filled).unmount()


def test_walks_do_not_follow_symlinks(filled: pathlib.Path) -> None:
    """Two links up in each of a few directories have more ways than a walk could ever go."""
    with extant.open(filled) as fs:
        for name in ("one", "two", "three"):
            fs.symlink("..", f"/data/deep/{name}")
    with ExtantFileSystem(str(filled)) as files:
        assert len(files.find("/")) == 4 + 3
        assert files.isdir("/data/deep/one") and "/data/deep/one/a.csv" in files.ls(
            "/data/deep/one", detail=False)


def test_changes_reach_the_image(filled: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with ExtantFileSystem(str(filled), read_only=False) as fs:
        fs.pipe({"/out/x": b"1"} if fs.mkdir("/out") is None else {})
        with fs.open("/out/text", "w") as file:
            file.write("größe")
        fs.cp_file("/data/a.csv", "/out/copy")
        fs.mv("/out/x", "/out/y")
        fs.makedirs("/deep/er", exist_ok=True)
        fs.touch("/deep/er/t")
        fs.touch("/out/copy", truncate=False)
        fs.rm("/data/deep", recursive=True)
        fs.rm_file("/data/link.csv")
        with pytest.raises(IsADirectoryError):
            fs.rm("/data")
        (tmp_path / "up").write_bytes(b"put")
        fs.put_file(str(tmp_path / "up"), "/out/put")
        fs.get("/out", str(tmp_path / "got"), recursive=True)
    assert (tmp_path / "got" / "text").read_text(encoding="utf-8") == "größe"
    with extant.open(filled, read_only=True) as fs:
        assert sorted(str(path) for path in fs.path().rglob("*") if path.is_file()) == [
            "/data/a.csv", "/deep/er/t", "/out/copy", "/out/put", "/out/text", "/out/y"]
        assert fs.read_bytes("/out/copy") == b"x,y\n1,2\n3,4\n"
    judge(filled)


def test_a_chain_opens_the_image_for_its_time(filled: pathlib.Path) -> None:
    text = python(
        """if True:
        import fsspec, sys
        with fsspec.open(f"extant://data/a.csv::{sys.argv[1]}", "rt") as file:
            print(file.read(), end="")
        del file
        import extant
        with extant.open(sys.argv[1]) as fs:
            print(fs.recovery.was_in_use)
        """,
        filled,
    )
    assert text == "x,y\n1,2\n3,4\nFalse\n"
