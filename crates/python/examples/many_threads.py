"""Hashes all files of an image with many threads, which read at the same time: many_threads.py
IMAGE THREADS."""

import concurrent.futures
import hashlib
import sys
from typing import Tuple

import extant


def digest(path: extant.Path) -> Tuple[str, str]:
    sum = hashlib.sha256()
    with path.open("rb") as file:
        while True:
            piece = file.read(1 << 20)
            if not piece:
                return sum.hexdigest(), str(path)
            sum.update(piece)


def main(image: str, threads: str) -> None:
    with extant.open(image, read_only=True) as fs:
        files = [path for path in fs.path().rglob("*") if path.is_file() and not path.is_symlink()]
        with concurrent.futures.ThreadPoolExecutor(int(threads)) as pool:
            for line in pool.map(digest, files):
                print(*line)


if __name__ == "__main__":
    main(*sys.argv[1:])
