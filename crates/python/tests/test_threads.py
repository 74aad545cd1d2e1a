"""Threads: the lock of the interpreter is released, and objects may be shared."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import signal
import threading
import time

import pytest
from conftest import judge, kernel, mke2fs, python

import extant


def test_a_waiting_call_lets_other_threads_run(fs: extant.FileSystem) -> None:
    """A write of a frozen file system waits. With the lock of the interpreter it would be for
    ever: no other thread could thaw."""
    fs.mkdir("/d")
    fs.write_bytes("/kept", b"kept")
    done = threading.Event()

    def write() -> None:
        fs.write_bytes("/d/f", b"late")
        done.set()

    with fs.freeze():
        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(1000):
            assert fs.read_bytes("/kept") == b"kept"
        assert not done.is_set()
    thread.join()
    assert done.is_set() and fs.read_bytes("/d/f") == b"late"


def test_many_threads_share_a_file_system(fs: extant.FileSystem, image: pathlib.Path) -> None:
    def work(number: int) -> int:
        home = fs.path("/", str(number % 4))
        home.mkdir(exist_ok=True)
        for at in range(50):
            path = home / f"{number}-{at}"
            with path.open("wb") as file:
                file.write(path.name.encode() * 100)
            if at % 10 == 0:
                fs.sync()
            assert path.read_bytes() == path.name.encode() * 100
            if at % 5 == 0:
                path.rename(path.with_suffix(".moved"))
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    fs.unmount()
    with kernel(image) as mount:
        names = [name for home in range(4) for name in os.listdir(mount / str(home))]
        assert len(names) == 400 and sum(name.endswith(".moved") for name in names) == 80
        assert (mount / "1" / "5-3").read_bytes() == b"5-3" * 100


def test_threads_share_the_position_of_a_raw_file(fs: extant.FileSystem) -> None:
    """Each record is read by one thread, and each is whole."""
    records = [number.to_bytes(4, "big") * 256 for number in range(4000)]
    fs.write_bytes("/f", b"".join(records))
    found = []
    with fs.open("/f", "rb", 0) as file:

        def read() -> None:
            while True:
                record = file.read(1024)
                if not record:
                    return
                found.append(record)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == records


def test_appends_of_threads_lose_nothing(fs: extant.FileSystem) -> None:
    def append(number: int) -> None:
        with fs.open("/log", "ab", 0) as file:
            for _ in range(200):
                file.write(bytes([number]) * 7)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = fs.read_bytes("/log")
    records = [content[at : at + 7] for at in range(0, len(content), 7)]
    assert sorted(records) == sorted(bytes([number]) * 7 for number in range(1, 7) for _ in range(200))


def test_a_file_is_closed_while_others_read_it(fs: extant.FileSystem) -> None:
    fs.write_bytes("/f", bytes(1 << 20))
    for _ in range(20):
        file = fs.open("/f", "rb", 0)
        ended = []

        def read() -> None:
            try:
                while True:
                    file.seek(0)
                    file.read(1 << 16)
            except ValueError:
                ended.append(True)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        file.close()
        for thread in threads:
            thread.join()
        assert len(ended) == 4


def test_an_unmount_among_working_threads_keeps_what_was_done(image: pathlib.Path) -> None:
    fs = extant.open(image)
    written = []

    def work(number: int) -> None:
        for at in range(10_000):
            try:
                fs.write_bytes(f"/{number}-{at}", b"x")
            except extant.Error as error:
                assert error.kind == "unmounted"
                return
            written.append(f"{number}-{at}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(written) < 100:
        time.sleep(0.001)
    fs.unmount()
    for thread in threads:
        thread.join()
    with kernel(image) as mount:
        assert set(written) <= set(os.listdir(mount))


def test_the_end_of_a_program_unmounts(tmp_path: pathlib.Path) -> None:
    image = mke2fs(tmp_path / "disk.img")
    text = python(
        """if True:
        import extant, sys
        fs = extant.open(sys.argv[1])
        file = fs.open("/f", "w")
        file.write("at the end")
        fs.cycle = fs  # Kept to the end.
        """,
        image,
    )
    assert text == ""
    with extant.open(image, read_only=True) as fs:
        assert not fs.recovery.was_in_use and fs.read_bytes("/f") == b"at the end"


def test_a_dropped_file_system_warns_and_unmounts(tmp_path: pathlib.Path) -> None:
    image = mke2fs(tmp_path / "disk.img")
    text = python(
        """if True:
        import extant, sys
        fs = extant.open(sys.argv[1])
        fs.write_bytes("/f", b"kept")
        del fs
        with extant.open(sys.argv[1]) as fs:
            print(fs.read_bytes("/f"), fs.recovery.was_in_use)
        # An open file keeps its file system.
        file = extant.open(sys.argv[1]).open("/f")
        print(file.read())
        del file
        """,
        image,
    )
    assert "b'kept' False\n" in text and "\nb'kept'\n" in text
    assert text.count("ResourceWarning: unmounted by accident") == 2, text


def test_a_forked_process_is_refused_and_changes_nothing(tmp_path: pathlib.Path) -> None:
    """The child has the engine's memory without its threads. It ends as a program does, with all
    objects dropped, and the parent goes on."""
    image = mke2fs(tmp_path / "disk.img")
    text = python(
        """if True:
        import errno, extant, gc, os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        fs = extant.open(sys.argv[1])
        fs.write_bytes("/f", b"of the parent")
        file = fs.open("/f", "r+b", 0)
        entries = fs.scandir("/")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (fs.sync, fs.unmount, lambda: fs.read_bytes("/f"), lambda: file.read(1),
                         lambda: file.write(b"child"), lambda: list(entries),
                         lambda: fs.write_bytes("/g", b"")):
                try:
                    call()
                except extant.Error as error:
                    assert error.errno == errno.ESTALE and "forked" in str(error), error
                    refused += 1
            del file, entries, fs
            gc.collect()
            sys.exit(10 + refused)
        status = os.waitpid(child, 0)[1]
        print(os.WEXITSTATUS(status))
        file.write(b"and")
        fs.write_bytes("/h", b"later")
        fs.unmount()
        """,
        image,
    )
    assert text == "17\n", text
    with extant.open(image, read_only=True) as fs:
        assert not fs.recovery.was_in_use
        assert sorted(fs.listdir()) == ["f", "h", "lost+found"]
        assert fs.read_bytes("/f") == b"andthe parent"
    judge(image)


def test_signals_end_a_check(tmp_path: pathlib.Path) -> None:
    """A check sees signals while it runs, and releases the image."""
    image = mke2fs(tmp_path / "disk.img", "2G")
    before = signal.getsignal(signal.SIGALRM)

    class Rung(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Rung

    signal.signal(signal.SIGALRM, ring)
    try:
        # The handler runs at once, or after the first interval if the check is longer.
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        with pytest.raises(Rung):
            while True:
                extant.check(image, threads=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with extant.open(image) as fs:
        assert fs.listdir() == ["lost+found"]
