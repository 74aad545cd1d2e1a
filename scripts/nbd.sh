#!/usr/bin/env bash
# Work on a network block device with a delay of each request, beside the same work on a file and
# beside nbdcopy, which moves the bytes only:
#
#     scripts/nbd.sh PROGRAM [MILLISECONDS]
#
# Prints seconds, and ratios to the time of the transfer and of the work on the file.
set -euo pipefail

program=$1
delay=${2:-1}
dir=$(mktemp -d -p /dev/shm extant-nbd-XXXXXX)
server=0
cleanup() {
    if mountpoint -q "$dir/mnt"; then umount "$dir/mnt"; fi
    [ "$server" = 0 ] || kill "$server" || true
    rm -rf "$dir"
}
trap cleanup EXIT
mkdir "$dir/mnt" "$dir/top"

# 4000 files of 4 KiB, 400 of 64 KiB, 12 of 8 MiB.
files() { # number, KiB, directory
    mkdir "$dir/top/$3"
    local i
    for ((i = 0; i < $1; i++)); do
        head -c "$(($2 * 1024))" /dev/urandom >"$dir/top/$3/$i"
    done
}
files 4000 4 small
files 400 64 middle
files 12 8192 large
tar -C "$dir/top" -cf "$dir/top.tar" .

serve() { # arguments of nbdkit
    rm -f "$dir/socket"
    nbdkit --foreground --unix "$dir/socket" "$@" &
    server=$!
    while [ ! -S "$dir/socket" ]; do sleep 0.05; done
}
end_server() {
    kill "$server"
    wait "$server" || true
    server=0
}
uri="nbd+unix:///?socket=$dir/socket"
delayed() {
    serve --filter=delay memory 1G delay-read="${delay}ms" delay-write="${delay}ms" \
        delay-zero="${delay}ms" delay-trim="${delay}ms"
}

seconds() { # command
    local begin end
    begin=$(date +%s%N)
    "$@" >/dev/null
    end=$(date +%s%N)
    echo $(((end - begin) / 1000000))
}
row() { # name, milliseconds of the transfer, of the file, of the device
    awk -v name="$1" -v transfer="$2" -v file="$3" -v device="$4" 'BEGIN {
        printf "%-8s transfer %6.2f s, file %6.2f s, device %6.2f s: ", \
            name, transfer / 1000, file / 1000, device / 1000
        printf "%.2f of the transfer, %.2f of the file, %.2f of both\n", \
            device / transfer, device / file, device / (transfer + file)
    }'
}
untar() { # image
    "$program" --quiet mount "$1" "$dir/mnt"
    tar -C "$dir/mnt" -xf "$dir/top.tar"
    "$program" --quiet umount "$dir/mnt"
}

build() { "$program" --quiet build -F "$1" "dir:$dir/top"; }
file=$(seconds build "$dir/image")
delayed
device=$(seconds build "$uri")
transfer=$(seconds nbdcopy --flush "$dir/image" "$uri")
end_server
row build "$transfer" "$file" "$device"

read_all() { # image
    "$program" --quiet mount -o ro "$1" "$dir/mnt"
    tar -C "$dir/mnt" -cf - . | cat
    "$program" --quiet umount "$dir/mnt"
}

"$program" --quiet mkfs "$dir/disk" 1G
file=$(seconds untar "$dir/disk")
delayed
"$program" --quiet mkfs -F "$uri"
device=$(seconds untar "$uri")
row untar "$transfer" "$file" "$device"
file=$(seconds read_all "$dir/disk")
device=$(seconds read_all "$uri")
transfer=$(seconds nbdcopy "$uri" null:)
end_server
row read "$transfer" "$file" "$device"
