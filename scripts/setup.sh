#!/bin/sh
# Installs the tools that tests and the demonstration call and that are missing. With `packages`,
# `bench`, `boot`, `ceph` or `programs` it installs those of these targets, too.
set -eu

missing=""
need() { # command, Debian package
    command -v "$1" >/dev/null 2>&1 || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ] || missing="$missing $2"
}
need mke2fs e2fsprogs
need e2fsck e2fsprogs
need debugfs e2fsprogs
need dumpe2fs e2fsprogs
need tune2fs e2fsprogs
need e2label e2fsprogs
need resize2fs e2fsprogs
need e2freefrag e2fsprogs
need filefrag e2fsprogs
need chattr e2fsprogs
need lsattr e2fsprogs
need fusermount3 fuse3
need mount.fuse3 fuse3
need fuse2fs fuse2fs
need getfattr attr
need setfattr attr
need getfacl acl
need setfacl acl
need mount mount
need umount mount
need losetup mount
need findmnt util-linux
need fincore util-linux
need flock util-linux
need fsfreeze util-linux
need fstrim util-linux
need partx util-linux
need mkswap util-linux
need blkid util-linux
need mkfs.cramfs util-linux
need mkfs.minix util-linux
need swapon mount
need swapoff mount
need ps procps
need pgrep procps
need fio fio
need dbench dbench
need stress-ng stress-ng
need fs_mark fsmark
need postmark postmark
need bonnie++ bonnie++
need fsverity fsverity
need veritysetup cryptsetup-bin
need bsdtar libarchive-tools
need umoci umoci
need skopeo skopeo
need qemu-img qemu-utils
need qemu-io qemu-utils
need qemu-nbd qemu-utils
need nbdkit nbdkit
need nbdinfo libnbd-bin
need nbdcopy libnbd-bin
need zstd zstd
need openssl openssl
need xfs_io xfsprogs
need mkfs.xfs xfsprogs
need mkfs.btrfs btrfs-progs
need groff groff-base
need python3 python3
python3 -c 'import ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
need xz xz-utils
need bzip2 bzip2
need systemd-analyze systemd
need systemd-socket-activate systemd
need systemd-repart systemd-repart
need genimage genimage
need fakeroot fakeroot
need pseudo pseudo
need make make
need cc gcc
need c++ g++
need valgrind valgrind

if [ "${1:-}" = packages ]; then
    need debootstrap debootstrap
    need dpkg-deb dpkg
    need buildah buildah
    need lintian lintian
    need mandoc mandoc
    need zsh zsh
    need fish fish
fi

[ "${1:-}" = bench ] && need genext2fs genext2fs
if [ "${1:-}" = boot ]; then
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    need cpio cpio
    ls /boot/vmlinuz-*-cloud-amd64 >/dev/null 2>&1 || missing="$missing linux-image-cloud-amd64"
fi
if [ "${1:-}" = programs ]; then
    need git git
    need sqlite3 sqlite3
    need pgbench postgresql
    need bwrap bubblewrap
fi
if [ "${1:-}" = ceph ]; then
    need ceph-mon ceph-mon
    need ceph-mgr ceph-mgr
    need ceph-osd ceph-osd
    need ceph ceph-common
    need rbd ceph-common
    need radosgw radosgw
    need curl curl
    need nsenter util-linux
    need git git
    # qemu-nbd loads it.
    ls /usr/lib/*/qemu/block-rbd.so >/dev/null 2>&1 || missing="$missing qemu-block-extra"
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust 1.95 or later with rustup (https://rustup.rs)" >&2
    exit 1
fi
[ -z "$missing" ] && exit 0

packages=$(echo "$missing" | tr ' ' '\n' | sort -u | tr '\n' ' ')
echo "setup: installing $packages"
as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo"
$as_root apt-get update -qq
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $packages >/dev/null
