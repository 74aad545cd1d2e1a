"""`extant.ray` on three machines of a cluster, each a set of processes of this machine."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import pathlib
import random
import resource
import shutil
import signal
import threading
import time
from typing import Any, Dict, Iterator, List

import pytest
from conftest import connected, judge, mke2fs, prepare_ray, run

import extant
import extant.ray

check = functools.partial(extant.check, threads=1)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of one machine, which runs no tasks, to which tests add others."""
    prepare_ray()
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    with connected(address=made.address):
        yield made
    made.shutdown()


def add_nodes(cluster: Any, count: int) -> List[Any]:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(count)]
    cluster.wait_for_nodes()
    return nodes


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> List[str]:
    """Images of which two in three have a damage, each another one."""
    folder = tmp_path_factory.mktemp("images")
    template = mke2fs(folder / "template.img", "8M")
    made = []
    for number in range(48):
        image = folder / f"{number}.img"
        shutil.copyfile(template, image)
        if number % 3 == 1:
            run("debugfs", "-w", "-R", f"set_super_value free_blocks_count {number}", image)
        if number % 3 == 2:
            run("debugfs", "-w", "-R", f"set_inode_field <2> links_count {number + 9}", image)
        made.append(str(image))
    return made


def machine() -> str:
    """Returns the machine of the cluster on which it runs."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else "-"


class Witness:
    """A function that tells of its attempts in a file, so that they can be killed."""

    def __init__(self, notes: pathlib.Path, function: Any, seconds: float) -> None:
        self.notes, self.function, self.seconds = str(notes), function, seconds

    def __call__(self, image: str) -> Any:
        self._note("begin", image)
        time.sleep(self.seconds)
        result = self.function(image)
        self._note("end", image)
        return result

    def _note(self, *words: str) -> None:
        line = " ".join((*words, str(os.getpid()), machine()))
        file = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (line + "\n").encode())
        os.close(file)

    def lines(self) -> List[List[str]]:
        notes = pathlib.Path(self.notes)
        return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []

    def attempts(self) -> Dict[str, int]:
        return collections.Counter(words[1] for words in self.lines() if words[0] == "begin")

    @contextlib.contextmanager
    def killing(self, count: int) -> Iterator[None]:
        """Kills workers in the middle of an image meanwhile, one after the other."""
        stopped, killed = threading.Event(), set()

        def kill() -> None:
            while len(killed) < count and not stopped.wait(0.3):
                at_work = {words[2]: words[0] == "begin" for words in self.lines()}
                for process in [one for one, works in at_work.items() if works]:
                    if process not in killed and os.path.exists(f"/proc/{process}"):
                        os.kill(int(process), signal.SIGKILL)
                        killed.add(process)
                        break

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            yield
        finally:
            stopped.set()
            killer.join()
        assert len(killed) == count


def test_each_image_has_one_result_while_workers_and_machines_die(
    cluster: Any, images: List[str], tmp_path: pathlib.Path
) -> None:
    expected = [check(image) for image in images]
    assert len({str(findings) for findings in expected}) > 30
    nodes = add_nodes(cluster, 3)
    witness = Witness(tmp_path / "notes", check, 0.2)
    results = []
    with witness.killing(3):
        for number, findings in enumerate(extant.ray.map(images, witness, in_flight=16)):
            results.append(findings)
            if number == 28:
                cluster.remove_node(nodes[0], allow_graceful=False)  # SIGKILL of its processes
    assert results == expected
    attempts = witness.attempts()
    assert set(attempts) == set(images) and sum(attempts.values()) > len(images)
    machines = {words[3] for words in witness.lines()}
    assert len(machines) == 3
    print(f"{len(images)} images, {sum(attempts.values())} attempts on {len(machines)} machines")


def test_builds_are_repeated_whole(cluster: Any, tmp_path: pathlib.Path) -> None:
    add_nodes(cluster, 3)
    content = random.Random(7).randbytes(4 << 20)

    def build(output: str) -> str:
        name = os.path.basename(output)
        made = extant.build(output, {name: content}, threads=1, overwrite=True)
        return str(made.uuid)

    plain, other = tmp_path / "plain", tmp_path / "other"
    plain.mkdir()
    other.mkdir()
    names = [f"{number}.img" for number in range(18)]
    expected = [build(str(plain / name)) for name in names]
    witness = Witness(tmp_path / "notes", build, 0.3)
    with witness.killing(2):
        results = list(extant.ray.map([str(other / name) for name in names], witness))
    assert results == expected and sum(witness.attempts().values()) > len(names)
    for name in names:
        assert (other / name).read_bytes() == (plain / name).read_bytes()
    judge(other / names[-1])


def test_ten_thousand_images_need_no_memory(cluster: Any, images: List[str]) -> None:
    """The driver keeps neither tasks nor results of images that are done."""
    add_nodes(cluster, 3)

    def answer(number: int) -> bytes:
        return number.to_bytes(4, "big") * 4096

    def run_through(count: int) -> float:
        begin = time.monotonic()
        for number, result in enumerate(extant.ray.map(range(count), answer)):
            assert result[:4] == number.to_bytes(4, "big")
        return time.monotonic() - begin

    run_through(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = run_through(10_000)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"10,000 tasks of 16 KiB in {seconds:.1f} s; memory grew by {grown:.1f} MiB")
    # The results alone have 156 MiB.
    assert grown < 64


def test_more_machines_take_less_time(cluster: Any, images: List[str]) -> None:
    """Tasks that wait show the growth beyond the processors of this machine."""

    def wait(image: str) -> str:
        time.sleep(0.2)
        check(image)
        return machine()

    def seconds(machines: int) -> float:
        while len(set(extant.ray.map(images[: 4 * machines], wait))) < machines:
            pass  # workers are being started
        begin = time.monotonic()
        assert len(set(extant.ray.map(images, wait))) == machines
        return time.monotonic() - begin

    add_nodes(cluster, 1)
    one = seconds(1)
    add_nodes(cluster, 2)
    three = seconds(3)
    print(f"{len(images)} images: {one:.1f} s on one machine, {three:.1f} s on three")
    assert three < one / 2
