#!/usr/bin/env bash
# Suites that others wrote, against the mount: pjdfstest (POSIX, system call by system call) and fsx
# (one file, random operations, each read compared), on several kinds of images. After each, e2fsck
# has nothing to say, and all programs that can read the image agree about it.
#
#     scripts/conformance.sh [PROGRAM]      the program extant; cargo's debug/extant if not told
#     EXTANT_FSX_OPERATIONS=N               operations of each fsx run
#     EXTANT_FSX_SEEDS="1 2 3"              seeds of each kind of image
#     EXTANT_SUITE_WORKERS="2 8"            so many run each suite at once, beside the runs of one
set -euo pipefail
cd "$(dirname "$0")/.."

extant=$(realpath "${1:-$(scripts/target.sh)/debug/extant}")
tools=$(realpath -m .cache/tools/bin)
expected=$(realpath tests/pjdfstest-expected.txt)
operations=${EXTANT_FSX_OPERATIONS:-1500}
seeds=${EXTANT_FSX_SEEDS:-"1 2"}
several=${EXTANT_SUITE_WORKERS:-"2 8"}

if [ "$(id -u)" -ne 0 ]; then
    echo "conformance: root is needed: pjdfstest takes on the roles of several users" >&2
    exit 1
fi
scripts/tools.sh

. scripts/mounted.sh
mkdir "$work/bin" "$work/elsewhere"

# pjdfstest's configuration: two users with groups of their own, the tests that may fail, all
# features that Linux has.
configuration() { # whether tests may remount, seconds that a test lets pass before times have to differ
    local name
    echo "[features]"
    echo "secondary_fs = \"$work/elsewhere\""
    for name in posix_fallocate rename_ctime stat_st_birthtime utime_now utimensat; do
        echo "$name = {}"
    done
    echo "[settings]"
    echo "naptime = $2"
    echo "allow_remount = $1"
    echo "expected_failures = ["
    sed -nE 's/^([a-z][a-z0-9_:]*).*/    "\1",/p' "$expected"
    echo "]"
    echo "[dummy_auth]"
    echo "entries = [[\"nobody\", \"$(id -gn nobody)\"], [\"daemon\", \"daemon\"]]"
}

# The kernel's clock for times of files moves by ticks, and a host that steals the processor delays
# them: 10 ms may pass within one. Whether all tests that failed did so for such a time alone, and
# pass when they wait for a second.
times_changed_late() {
    local late='Timestamps did not change as expected' failed
    failed=$(grep -hA1 ' FAILED$' "$work"/report* | grep -v '^--$' | paste - -)
    [ -n "$failed" ] && ! grep -vq "$late" <<<"$failed" || return 1
    configuration false 1 >"$work/pjdfstest.toml"
    # shellcheck disable=SC2046
    "$tools/pjdfstest" -c "$work/pjdfstest.toml" -p "$dir/0" $(cut -d' ' -f1 <<<"$failed" | sort -u) >"$work/report-late" 2>&1
}

run_pjdfstest() {
    start
    pjdfstest_tools
    # Tests that remount come in a run of their own: other tests leave files open for writing, and
    # then no user can remount, on the kernel's ext4 neither.
    pjdfstest "$1" 1 false
    pjdfstest "$1" 1 true erofs
    stop "$1"
}

# It remounts by calling mount, which must not look for helpers of an installed version. A file that
# was closed is busy until the server has heard of that (FUSE does not wait for it), so that the
# first attempts may fail.
pjdfstest_tools() {
    cat >"$work/bin/mount" <<END
#!/bin/sh
for attempt in 1 2 3 4 5 6 7 8 9; do
    $(command -v mount) -i "\$@" 2>/dev/null && exit 0
    sleep 0.1
done
exec $(command -v mount) -i "\$@"
END
    chmod +x "$work/bin/mount"
}

# Several workers run all of it at once, each in a directory of its own.
pjdfstest() { # label, workers, whether tests may remount, patterns of names
    local label=$1 i jobs=()
    configuration "$3" 0.01 >"$work/pjdfstest.toml"
    for ((i = 0; i < $2; i++)); do
        mkdir -p -m 755 "$dir/$i"
        PATH=$work/bin:$PATH NO_COLOR=1 "$tools/pjdfstest" -c "$work/pjdfstest.toml" -p "$dir/$i" "${@:4}" >"$work/report$i" 2>&1 &
        jobs+=($!)
    done
    wait_for "${jobs[@]}" || times_changed_late || fail "$label, $2 workers"
    # Equal lines of several are printed once.
    cat "$work"/report* | grep -vE '(::erofs.* skipped| ok| failed as expected)$|Remounts .* are not allowed|^\s*$' | awk '!seen[$0]++' || true
    rm "$work"/report*
}

# Two mixes: everything, in small and odd pieces; and large aligned ones that change the size often
# (without posix_fallocate: fsx then asks for lengths of zero, which POSIX forbids).
mix() {
    case $1 in
    odd) echo -e "flen = 300000\n[opsize]\nmax = 20000\n[weights]\ntruncate = 3\npunch_hole = 5\nposix_fallocate = 2" ;;
    large) echo -e "flen = 4194304\n[opsize]\nmax = 262144\nalign = 4096\n[weights]\ntruncate = 10\npunch_hole = 10" ;;
    esac
    printf '%s\n' "close_open = 2" "read = 10" "write = 10" "mapread = 5" "mapwrite = 8" "invalidate = 1" "fsync = 1" "fdatasync = 1" \
        "sendfile = 2" "posix_fadvise = 2" "copy_file_range = 5"
}

run_fsx() {
    local kind seed
    start
    for kind in odd large; do
        mix $kind >"$work/fsx.toml"
        for seed in $seeds; do
            "$tools/fsx" -q -f "$work/fsx.toml" -N "$operations" -S "$seed" -P "$work" "$dir/$kind-$seed" >"$work/report" 2>&1 || {
                tail -n 40 "$work/report"
                fail "$1: fsx, $kind operations, seed $seed"
            }
        done
    done
    stop "$1"
}

# Several at once, each with a file of its own.
run_fsx_together() { # label, workers
    local i jobs=()
    start
    mix odd >"$work/fsx.toml"
    for ((i = 0; i < $2; i++)); do
        "$tools/fsx" -q -f "$work/fsx.toml" -N "$operations" -S "$((100 + i))" -P "$work" "$dir/$i" >"$work/report$i" 2>&1 &
        jobs+=($!)
    done
    wait_for "${jobs[@]}" || {
        tail -n 40 "$work"/report*
        fail "$1"
    }
    stop "$1"
}

make_image() { # options of mke2fs
    truncate -s 256M "$image"
    mke2fs -q -F "$@" "$image"
}

say "pjdfstest on an image of extant mkfs"
"$extant" mkfs --quiet -F "$image" 256M
run_pjdfstest "pjdfstest"
for workers in $several; do
    mount_options=$([ "$workers" = 2 ] && echo nodelalloc || echo delalloc)
    say "pjdfstest, $workers workers, $mount_options"
    "$extant" mkfs --quiet -F "$image" 256M
    start
    pjdfstest "pjdfstest" "$workers" false
    stop "pjdfstest, $workers workers"
done
mount_options=delalloc

say "fsx: $operations operations for each of two mixes and the seeds $seeds"
for options in "-t ext4" "-t ext2 -b 1024" "-t ext4 -O bigalloc -C 65536" "-t ext4 -O inline_data -I 512" "-t ext4 -b 65536"; do
    echo "mke2fs $options"
    # shellcheck disable=SC2086
    make_image $options 2>"$work/report" || { cat "$work/report"; exit 1; }
    run_fsx "fsx on mke2fs $options"
done
for workers in $several; do
    mount_options=$([ "$workers" = 2 ] && echo nodelalloc || echo delalloc)
    echo "mke2fs -t ext4, $workers workers, $mount_options"
    make_image -t ext4
    run_fsx_together "fsx, $workers workers" "$workers"
done

[ "$failures" -eq 0 ] || { echo "conformance: $failures failures" >&2; exit 1; }
say "conformance: passed"
