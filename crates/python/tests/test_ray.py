"""`extant.ray` on a cluster of this process alone; test_cluster.py has several machines."""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import pathlib
import signal
import sys
import time
from typing import Any, Iterator, List

import pytest
from conftest import judge, local_cluster, mke2fs, run

import extant
import extant.ray

check = functools.partial(extant.check, threads=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: run `make fleet`, which installs it")
    with local_cluster():
        yield


def test_without_ray_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install extant-ext4\[ray\]"):
        extant.ray.map(["a.img"], extant.check)


def test_wrong_arguments_are_refused() -> None:
    for wrong, kind in [
        (dict(errors="ignore"), ValueError),
        (dict(in_flight=0), ValueError),
        (dict(retries=-1), ValueError),
        (dict(max_retries=2), TypeError),
    ]:
        with pytest.raises(kind):
            extant.ray.map([], extant.check, **wrong)


def test_results_are_those_of_a_loop(cluster: None, tmp_path: pathlib.Path) -> None:
    images = [mke2fs(tmp_path / f"{n}.img", "8M") for n in range(4)]
    run("debugfs", "-w", "-R", "clri <2>", images[2])
    expected = [check(image) for image in images]
    assert [bool(findings) for findings in expected] == [False, False, True, False]
    assert list(extant.ray.map(images, check)) == expected
    assert list(extant.ray.map([], check)) == []
    outputs = [str(tmp_path / f"built-{n}.img") for n in range(3)]
    sizes = [one.bytes for one in extant.ray.map(outputs, lambda path: extant.build(path, {"a": b""}))]
    for output, size in zip(outputs, sizes):
        assert os.stat(output).st_size == size
        judge(pathlib.Path(output))


def test_errors_are_raised_or_returned(cluster: None, tmp_path: pathlib.Path) -> None:
    good, missing = mke2fs(tmp_path / "good.img", "8M"), str(tmp_path / "missing.img")
    (tmp_path / "text").write_bytes(bytes(1 << 20))
    images = [str(good), missing, str(tmp_path / "text"), str(good)]

    def names(path: str) -> List[str]:
        with extant.open(path, read_only=True) as fs:
            return fs.listdir()

    first, absent, damaged, last = extant.ray.map(images, names, errors="return")
    assert first == last == ["lost+found"]
    assert isinstance(absent, extant.NotFound) and absent.filename == missing
    assert "in names" in str(absent.__cause__)
    assert isinstance(damaged, extant.Corrupt)
    with pytest.raises(extant.Corrupt) as caught:
        names(images[2])
    assert vars(caught.value) == vars(damaged) and str(caught.value) == str(damaged)
    results = extant.ray.map(images, names)
    assert next(results) == first
    with pytest.raises(FileNotFoundError):
        next(results)
    assert list(results) == []


class Awkward(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__("awkward")


def test_values_that_cannot_be_sent_are_errors(cluster: None) -> None:
    def fail(number: int) -> Any:
        if number == 0:
            raise Awkward(1, 2)
        return (line for line in "x")

    awkward, generator = extant.ray.map([0, 1], fail, errors="return")
    assert isinstance(awkward, RuntimeError) and str(awkward) == "Awkward: awkward"
    assert isinstance(generator, TypeError) and "generator" in str(generator)


def test_few_images_are_taken_at_a_time(cluster: None) -> None:
    taken = 0

    def images() -> Iterator[int]:
        nonlocal taken
        for taken in range(1, 301):
            yield taken

    results = extant.ray.map(images(), lambda n: n * n, in_flight=8)
    assert taken == 0
    for number in range(1, 301):
        assert next(results) == number * number
        assert taken <= number + 8
    assert next(results, None) is None


def test_the_end_of_the_iterator_cancels_tasks(cluster: None, tmp_path: pathlib.Path) -> None:
    def mark(number: int) -> int:
        (tmp_path / str(number)).touch()
        time.sleep(0 if number == 0 else 0.2)
        return number

    results = extant.ray.map(range(50), mark)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    time.sleep(0.5)
    begun = len(list(tmp_path.iterdir()))
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == begun < 10


def test_tasks_of_killed_workers_run_again(cluster: None, tmp_path: pathlib.Path) -> None:
    image = str(mke2fs(tmp_path / "disk.img", "8M"))

    def die(deaths: int) -> List[extant.Finding]:
        with open(tmp_path / f"attempts-{deaths}", "a+b") as attempts:
            attempts.write(b".")
            attempts.flush()
            if attempts.tell() <= deaths:
                os.kill(os.getpid(), signal.SIGKILL)
        return check(image)

    assert list(extant.ray.map([0, 1, 2], die, retries=2)) == [[], [], []]
    assert (tmp_path / "attempts-2").stat().st_size == 3
    before, lost, after = extant.ray.map([0, 9, 0], die, retries=1, errors="return")
    assert (before, after) == ([], []) and (tmp_path / "attempts-9").stat().st_size == 2
    assert isinstance(lost, extant.ray.TaskLost) and isinstance(lost, extant.Error)
    assert (lost.errno, lost.kind, lost.filename) == (errno.EIO, "lost", 9)
    assert "map of 9: no result: " in str(lost)
