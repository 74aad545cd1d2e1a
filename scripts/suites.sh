#!/usr/bin/env bash
# Load generators that others wrote, through the mount: fio with verification, dbench, the
# file-system class of stress-ng, fs_mark, postmark, bonnie++, and fsstress where a built tree of
# xfstests is given. Each with 1, 2 and 8 workers, on an image of its own, which all programs that
# can read it have to find fine afterwards.
#
#     scripts/suites.sh [PROGRAM]       the program extant; cargo's debug/extant if not told
#     EXTANT_SUITE_SECONDS=N            about how long each run takes, 1 if not told
#     EXTANT_SUITE_WORKERS="1 2 8"
#     EXTANT_SUITES="fio dbench …"      which ones
#     XFSTESTS=DIR                      where fsstress is (docs/testing.md)
set -euo pipefail
cd "$(dirname "$0")/.."

extant=$(realpath "${1:-$(scripts/target.sh)/debug/extant}")
PATH=$PATH:/usr/sbin:/sbin
seconds=${EXTANT_SUITE_SECONDS:-1}
workers=${EXTANT_SUITE_WORKERS:-"1 2 8"}
suites=${EXTANT_SUITES:-"fio dbench stress_ng fs_mark postmark bonnie${XFSTESTS:+ fsstress}"}

if [ "$(id -u)" -ne 0 ]; then
    echo "suites: root is needed: the suites create devices and files of other users" >&2
    exit 1
fi
# shellcheck source=scripts/mounted.sh
. scripts/mounted.sh

# Random writes in blocks of many sizes, some of them past the page cache, some synced; then all is
# read and compared.
fio() { # workers
    local direct
    for direct in 0 1; do
        command fio --name="direct$direct" --directory="$dir" --rw=randrw --rwmixread=30 --bsrange=4k-64k --size=$((seconds * 4))m \
            --numjobs="$1" --direct=$direct --ioengine=$([ $direct = 1 ] && echo libaio || echo psync) --iodepth=4 --fsync=64 \
            --fallocate=none --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --group_reporting
    done
}

dbench() { command dbench -D "$dir" -t "$seconds" -c /usr/share/dbench/client.txt "$1"; }

# All stressors of the class at once, that many of each. Left out: stressors that do not use the file
# system below the temporary directory, mount others, or take 128 MiB each, and fcntl, whose workers
# share a directory that the first to end removes: one that begins late finds none, on the kernel's
# ext4 as well.
stress_ng() {
    command stress-ng --class filesystem --all "$1" --timeout "${seconds}s" --temp-path "$dir" --verify --metrics-brief --oomable \
        --exclude fcntl,copy-file,bind-mount,binderfs,eventfd,ioprio,procfs,fanotify,dup,open,io --hdd-bytes 4m --fallocate-bytes 8m --iomix-bytes 4m \
        --revio-bytes 4m --seek-size 4m --readahead-bytes 4m --sync-file-bytes 4m
}

fs_mark() {
    command fs_mark -d "$dir" -t "$1" -n $((seconds * 100)) -s 6000 -S 1 -D 10 -L 2 -l "$work/fs_mark.log" -v
}

# Each worker is a program of its own, in a directory of its own.
postmark() {
    local i jobs=()
    for ((i = 0; i < $1; i++)); do
        mkdir "$dir/$i"
        printf '%s\n' "set location $dir/$i" "set number $((seconds * 300))" "set transactions $((seconds * 1000))" "set size 200 20000" \
            "set subdirectories 10" "set seed $i" run quit | command postmark &
        jobs+=($!)
    done
    wait_for "${jobs[@]}"
}

bonnie() {
    local i jobs=()
    for ((i = 0; i < $1; i++)); do
        mkdir "$dir/$i"
        command bonnie++ -d "$dir/$i" -u root -q -f -r 1 -s $((seconds * 4)) -n 0 &
        jobs+=($!)
    done
    wait_for "${jobs[@]}"
}

fsstress() {
    "$XFSTESTS/ltp/fsstress" -d "$dir" -p "$1" -n $((seconds * 500)) -l 1 -s "$1"
}

run() { # suite, workers
    local begin=$SECONDS
    truncate -s 1G "$image"
    mke2fs -q -F -t ext4 "$image"
    start
    "$1" "$2" >"$work/report" 2>&1 || {
        grep -E 'fail:|error:' "$work/report" || true
        tail -n 60 "$work/report"
        fail "$1 with $2 workers"
    }
    stop "$1 with $2 workers"
    echo "$1 with $2 workers: $((SECONDS - begin)) s"
}

for suite in $suites; do
    for count in $workers; do
        run "$suite" "$count"
    done
done

[ "$failures" -eq 0 ] || { echo "suites: $failures failures" >&2; exit 1; }
say "suites: passed"
