# What scripts share that run programs over a mount; sourced. It needs $extant, the program; it gives $work, an empty directory, $image, the
# image, $dir, where it is mounted, and counts $failures.

# Small file systems have another default.
mount_options=delalloc
failures=0
work=$(mktemp -d "${TMPDIR:-/tmp}/extant-mounted.XXXXXX")
dir=$work/mnt
image=$work/disk.img
mkdir "$dir"
# Other users have to get through.
chmod 755 "$work"
server=

clean_up() {
    mountpoint -q "$dir" && umount --lazy "$dir"
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$work"
}
trap clean_up EXIT

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    failures=$((failures + 1))
}

# Waits for jobs; fails if one of them did.
wait_for() {
    local job failed=0
    for job in "$@"; do
        wait "$job" || failed=1
    done
    return $failed
}

start() {
    "$extant" mount --foreground -o "$mount_options" "$image" "$dir" 2>"$work/log" &
    server=$!
    until mountpoint -q "$dir"; do
        kill -0 "$server" || { cat "$work/log" >&2; exit 1; }
        sleep 0.05
    done
}

# Unmounts, waits until the server has written everything, and reads what it and e2fsck have to say.
stop() { # what ran
    umount "$dir"
    wait "$server" || fail "$1: the server ended with an error"
    server=
    [ ! -s "$work/log" ] || { cat "$work/log"; fail "$1: the server complained"; }
    e2fsck -fn "$image" >"$work/verdict" 2>&1 || fail "$1: e2fsck ended with $?"
    if grep -vE '^(e2fsck |Pass [1-5]|[^ ]+: [0-9]+/[0-9]+ files )' "$work/verdict"; then
        fail "$1: e2fsck's report above is not clean"
    fi
    rm -f "$image"
}
