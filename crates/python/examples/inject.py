"""Copies a directory of this machine into an image, with modes: inject.py IMAGE DIRECTORY."""

import os
import pathlib
import sys

import extant


def main(image: str, source: str) -> None:
    with extant.open(image) as fs:
        for host in sorted(pathlib.Path(source).rglob("*")):
            inside = fs.path(host.relative_to(source))
            if host.is_symlink():
                inside.symlink_to(os.readlink(host))
            elif host.is_dir():
                inside.mkdir(exist_ok=True)
            else:
                inside.write_bytes(host.read_bytes())
                inside.chmod(host.stat().st_mode)
            print(inside)
        fs.sync()


if __name__ == "__main__":
    main(*sys.argv[1:])
