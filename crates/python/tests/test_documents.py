"""The examples of the pages and of `examples` run, in their order, each page in a directory."""

from __future__ import annotations

import contextlib
import pathlib
import re
import runpy
from typing import Callable

import pytest
from conftest import judge, local_cluster, mke2fs, run

import extant

CRATE = pathlib.Path(__file__).parent.parent
PAGES = [CRATE / "README.md", CRATE.parent.parent / "docs" / "python.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_pages_run(
    page: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    is_left_out: Callable[[str], bool],
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 2
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    names: dict = {"__name__": "example"}
    for number, block in enumerate(blocks, 1):
        if is_left_out(block):
            continue
        code = compile(block, f"{page.name}, example {number}", "exec")
        with local_cluster() if "extant.ray" in block else contextlib.nullcontext():
            exec(code, names)
    for image in tmp_path.glob("*.img"):
        judge(image)


def prepare(folder: pathlib.Path) -> None:
    """Makes the files that the examples begin with."""
    image = mke2fs(folder / "disk.img", "64M")
    with extant.open(image) as fs:
        for path in ("/etc", "/home/user", "/var/log"):
            fs.makedirs(path)
        fs.write_bytes("/etc/motd", b"hello\n")
        fs.write_bytes("/data.csv", b"x,y\n1,2\n")
    for path in ("rootfs/bin", "rootfs/etc"):
        (folder / path).mkdir(parents=True)
    (folder / "rootfs/bin/tool").write_bytes(b"#!/bin/sh\n")
    run("tar", "-C", folder / "rootfs", "-czf", folder / "packages.tar.gz", "bin")
    extant.mkfs(folder / "base.qcow2", "64M", format="qcow2")
    run("qemu-img", "create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2",
        "overlay.qcow2", cwd=folder)


def test_examples_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    image = mke2fs(tmp_path / "disk.img", "64M")
    with extant.open(image) as fs:
        fs.write_bytes("/etc-hosts", b"127.0.0.1 localhost\n")
        fs.makedirs("/home/user")
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc/hostname").write_text("box\n")
    called = set()
    for name, words in [
        ("inject.py", [image, tree]),
        ("listing.py", [image]),
        ("many_threads.py", [image, "4"]),
    ]:
        called.add(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [name, *map(str, words)])
            runpy.run_path(str(CRATE / "examples" / name), run_name="__main__")
        assert capsys.readouterr().out, name
    assert called == {path.name for path in (CRATE / "examples").iterdir()}
    with extant.open(image, read_only=True) as fs:
        assert fs.read_bytes("/etc/hostname") == b"box\n"
    judge(image)
