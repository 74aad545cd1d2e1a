# Functions of scripts that run programs over a mount; sourced at the top of the tree. It needs
# $extant, the program; it gives $work, an empty directory, $image, the image, $dir, where it is
# mounted, and counts $failures.

# It judges the remaining image as tests do.
judge=$(realpath "$(scripts/built.sh)/examples/judge")

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

# Unmounts, waits until the server has written everything, reads its messages, and has the image
# judged by all programs that can read it.
stop() { # name of the run
    umount "$dir"
    wait "$server" || fail "$1: the server ended with an error"
    server=
    [ ! -s "$work/log" ] || { cat "$work/log"; fail "$1: the server complained"; }
    "$judge" "$image" || fail "$1: the image is not fine"
    rm -f "$image"
}
