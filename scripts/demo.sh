#!/usr/bin/env bash
# The main job, seen from outside: an image is made, mounted, written by four programs at once,
# unmounted, and checked by e2fsck and by the kernel.
set -euo pipefail

extant=$(realpath "$1")
source_tree=${EXTANT_DEMO_TREE:-/usr/share/doc}
work=$(mktemp -d "${TMPDIR:-/tmp}/extant-demo.XXXXXX")
image=$work/disk.img
dir=$work/mnt
mkdir "$dir"

unmount() { if [ "$(id -u)" -eq 0 ]; then umount "$1"; else fusermount3 -u "$1"; fi; }

cleanup() {
    mountpoint -q "$dir" && unmount "$dir" || true
    rm -rf "$work"
}
trap cleanup EXIT

say() { printf '\n== %s\n' "$*"; }

say "making a 2 GiB ext4 file system"
"$extant" mkfs "$image" 2G
say "mounting it through FUSE"
"$extant" mount "$image" "$dir"
findmnt "$dir"

say "four writers copy $source_tree at once"
for i in 1 2 3 4; do
    mkdir "$dir/copy$i"
    tar -C "$source_tree" -cf - . | tar -C "$dir/copy$i" -xf - &
done
wait
df -h "$dir"

say "comparing each copy with its source"
for i in 1 2 3 4; do
    diff -r --no-dereference "$source_tree" "$dir/copy$i"
done
echo "all four are equal to the source"

say "unmounting; e2fsck checks"
unmount "$dir"
# umount returns before the server has written everything; until then it keeps the image.
"$extant" info --wait "$image"
e2fsck -fn "$image"

if [ "$(id -u)" -eq 0 ] && [ -e /dev/loop-control ]; then
    say "the kernel mounts the same image and compares"
    mount -o loop,ro "$image" "$dir"
    for i in 1 2 3 4; do
        diff -r --no-dereference "$source_tree" "$dir/copy$i"
    done
    umount "$dir"
    echo "the kernel sees the same"
fi
say "done"
