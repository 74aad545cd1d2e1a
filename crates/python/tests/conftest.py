"""Images by mke2fs, and the judges: e2fsck and the kernel's mount."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
from typing import Callable, Iterator

import pytest

import extant

os.environ["PATH"] += ":/sbin:/usr/sbin"

#: Programs of tests that run alone must find the package, too.
PACKAGE = pathlib.Path(extant.__file__).parent.parent


def run(*words: object, **options: object) -> str:
    """Runs a program, which must succeed, and returns its output."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def python(code: str, *words: object, **options: object) -> str:
    """Runs a program in Python, and returns its output."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONWARNINGS": "default"}
    return run(sys.executable, "-c", code, *words, env=environment, **options)


def mke2fs(path: pathlib.Path, size: str = "32M", *options: str) -> pathlib.Path:
    """Makes a file system as mke2fs does."""
    run("mke2fs", "-q", "-F", "-t", "ext4", *options, path, size)
    return path


def judge(path: pathlib.Path) -> None:
    """Has e2fsck find nothing to say about an image."""
    text = run("e2fsck", "-f", "-n", path)
    lines = [line for line in text.splitlines() if not line.startswith("e2fsck ")]
    passes = [line for line in lines if line.startswith("Pass ")]
    others = [line for line in lines if not line.startswith("Pass ")]
    assert len(passes) == 5 and len(others) == 1 and " files (" in others[0], text


@contextlib.contextmanager
def kernel(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Mounts an image by the kernel, for reading; needs root."""
    mount = path.parent / (path.name + ".mount")
    mount.mkdir()
    run("mount", "-o", "loop,ro", path, mount)
    try:
        yield mount
    finally:
        run("umount", mount)


def prepare_ray() -> None:
    """Has workers of Ray find the package, and the tests, as this process does."""
    paths = os.pathsep.join([str(PACKAGE), os.path.dirname(__file__)])
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=paths)


@contextlib.contextmanager
def connected(**options: object) -> Iterator[None]:
    """Starts a cluster of Ray, or joins one."""
    prepare_ray()
    import ray

    ray.init(log_to_driver=False, configure_logging=False, **options)
    try:
        yield
    finally:
        ray.shutdown()


def local_cluster() -> "contextlib.AbstractContextManager[None]":
    """Starts a cluster of Ray with two workers."""
    return connected(address="local", num_cpus=2, include_dashboard=False)


@pytest.fixture
def image(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty file system, which e2fsck judges at the end."""
    path = mke2fs(tmp_path / "disk.img")
    yield path
    judge(path)


@pytest.fixture
def fs(image: pathlib.Path) -> Iterator[extant.FileSystem]:
    """An open file system, which e2fsck judges at the end."""
    with extant.open(image) as opened:
        yield opened


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-pandas", action="store_true", help="leave out tests with pandas")
    parser.addoption("--fleet", action="store_true", help="run only tests of clusters, and pages")


#: Tests that `make fleet` runs: those of clusters, and all that Ray has a part in.
FLEET = {"test_cluster.py", "test_kubernetes.py", "test_ray.py", "test_documents.py"}


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> "bool | None":
    name = collection_path.name
    if config.getoption("--fleet"):
        return True if name.startswith("test_") and name not in FLEET else None
    without = config.getoption("--without-pandas") and name == "test_pandas.py"
    return True if without or name in ("test_cluster.py", "test_kubernetes.py") else None


@pytest.fixture
def is_left_out(request: pytest.FixtureRequest) -> Callable[[str], bool]:
    """Tells whether an example needs a package that this run does not have."""
    fleet = request.config.getoption("--fleet")
    without_pandas = fleet or request.config.getoption("--without-pandas")
    return lambda text: ("pandas" in text and without_pandas) or ("extant.ray" in text and not fleet)
