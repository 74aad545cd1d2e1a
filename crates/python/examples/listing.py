"""Prints all files of an image, as `ls -lR`, and changes nothing: listing.py IMAGE."""

import stat
import sys
import time

import extant


def main(image: str) -> None:
    with extant.open(image, read_only=True) as fs:
        for top, dirs, others in fs.path().walk():
            print(f"{top}:")
            for name in sorted(dirs + others):
                found = (top / name).lstat()
                when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(found.st_mtime))
                owner = f"{found.st_uid}:{found.st_gid}"
                print(f"{stat.filemode(found.st_mode)} {owner:>11} {found.st_size:>12} {when} {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
