#!/usr/bin/env bash
# Boots Linux in QEMU, without KVM, from an overlay that the program serves by vhost-user and by
# NBD: the guest writes a file, and the overlay is checked after its end.
#
#     scripts/boot.sh PROGRAM
set -euo pipefail

program=$(realpath "$1")
kernel=$(find /boot -name 'vmlinuz-*-cloud-amd64' | sort -V | tail -n 1)
modules=/lib/modules/${kernel#/boot/vmlinuz-}
dir=$(mktemp -d -p /dev/shm extant-boot-XXXXXX)
server=0
cleanup() {
    [ "$server" = 0 ] || kill "$server" || true
    rm -rf "$dir"
}
trap cleanup EXIT
cd "$dir"

# The first program of the guest, with the modules of its disk in their order.
mkdir -p ram/bin ram/disk ram/proc ram/dev ram/modules
cp /bin/busybox ram/bin/
for module in virtio_pci virtio_blk; do
    sed -n "s|^[^:]*/$module\.ko: *||p" "$modules/modules.dep" | tr ' ' '\n' | tac
    sed -n "s|^\([^:]*/$module\.ko\):.*|\1|p" "$modules/modules.dep"
done | awk 'NF && !seen[$0]++' >ram/modules/order.full
number=10
while read -r module; do
    cp "$modules/$module" "ram/modules/$number.ko"
    number=$((number + 1))
done <ram/modules/order.full
cat >ram/init <<'INIT'
#!/bin/busybox sh
bin=/bin/busybox
$bin mount -t proc none /proc
$bin mount -t devtmpfs none /dev
for module in /modules/*.ko; do $bin insmod "$module"; done
if $bin mount -t ext4 /dev/vda /disk && [ "$($bin cat /disk/file)" = content ]; then
    echo "of the guest" >/disk/new && $bin umount /disk && echo "disk: written"
fi
$bin poweroff -f
INIT
chmod +x ram/init
(cd ram && find . | cpio --quiet -o -H newc | gzip -1) >ram.gz

mkdir top
echo content >top/file
"$program" --quiet build base.img top --free 32M
base=$(sha256sum base.img)

# Boots the guest from the served overlay, and checks that.
boot() { # command, arguments of QEMU
    "$program" --quiet overlay create "$1.qcow2" --backing base.img
    "$program" --quiet "$1" "$1.qcow2" --format qcow2 --backing base.img --socket "$1.sock" &
    server=$!
    while [ ! -S "$1.sock" ]; do sleep 0.05; done
    timeout 300 qemu-system-x86_64 -accel tcg -machine q35 -m 256M -smp 2 -nodefaults \
        -display none -no-reboot -serial "file:$1.log" -kernel "$kernel" -initrd ram.gz \
        -append "console=ttyS0 panic=-1 quiet" "${@:2}"
    kill "$server"
    wait "$server"
    server=0
    grep -q "disk: written" "$1.log" || {
        cat "$1.log"
        echo "boot: the guest has not written through $1" >&2
        exit 1
    }
    qemu-img check -q -f qcow2 "$1.qcow2"
    "$program" --quiet overlay flatten "$1.qcow2" "$1.img" --backing base.img
    e2fsck -fn "$1.img" >"$1.fsck" 2>&1 || {
        cat "$1.fsck"
        exit 1
    }
    [ "$("$program" --quiet cat "$1.img" /new)" = "of the guest" ]
    [ "$(sha256sum base.img)" = "$base" ]
    echo "boot: $1: booted, written, clean"
}

boot serve-vhost \
    -object memory-backend-memfd,id=memory,size=256M,share=on -numa node,memdev=memory \
    -chardev socket,id=disk,path=serve-vhost.sock -device vhost-user-blk-pci,chardev=disk
boot serve-nbd \
    -blockdev driver=nbd,node-name=disk,server.type=unix,server.path=serve-nbd.sock \
    -device virtio-blk-pci,drive=disk
