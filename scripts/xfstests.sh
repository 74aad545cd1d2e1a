#!/usr/bin/env bash
# xfstests (fstests), the suite of the kernel's file systems, against Extant: as type `fuse`, as
# type `ext4` with Extant behind its mount helpers, or against the kernel's own ext4, to compare
# with. docs/testing.md says how to get and build the suite.
#
#     scripts/xfstests.sh SUITE [OPTION…] [TEST…]      SUITE: its built tree; TEST: as its program `check` takes them; -g generic/quick
#         --as ext4|fuse|kernel     ext4 if not told
#         --tools original|extant   the programs named mke2fs, e2fsck and so on: those of the machine if not told
#         --options OPTIONS         further options of all mounts, as -o takes them
#         --mkfs OPTIONS            further options of mke2fs for all file systems of the run, such as '-O orphan_file'
#         --program PROGRAM         the program extant; cargo's release/extant if not told
#         --results DIR             where results go; a new directory in the temporary one if not told
#         --limit SECONDS           a test that takes longer is killed, and counts as hung; 600 if not told
#         --scratch SIZE            length of the scratch device, as truncate(1) takes it; 8G if not told
#         --images DIR              where images are, on a disk and not below /tmp; /var/tmp if not told
#         --expected FILE           results of an earlier run (of the kernel, say: its results.txt) to compare with
#     scripts/xfstests.sh --page DIR…                  prints docs/xfstests.md from the results of runs
#     scripts/xfstests.sh --tools-page ORIGINAL EXTANT prints docs/xfstests-tools.md from the results of two runs, as by scripts/xfstests-tools.sh
#
# Nothing of the system is changed: helpers, users and mounts are in namespaces that end with the
# run. But some tests turn swapping on, for all of the machine, onto a file of theirs. With images
# in memory that waits for itself for ever, on whatever file system. Ends with 1 if a test failed or
# hung; with FILE, if one did that passes there.
set -euo pipefail

usage() { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2; exit 2; }
die() { echo "xfstests: $*" >&2; exit 1; }

# The part inside the namespaces
# ----------------------------------------------------------------------------------------------------

# Lays a copy of a directory over it, made of links to its entries: additions are seen here only.
# A program that removes a file by mistake does not reach the directory itself.
shadow_directory() { # directory, where the copy and the original go
    mkdir -p "$2/own" "$2/original"
    mount --bind "$1" "$2/original"
    mount -o remount,bind,ro "$2/original"
    cp -rs "$2/original/." "$2/own/"
    mount --bind "$2/own" "$1"
}

shadow_file() { # file, lines to add
    cp "$1" "$work/$(basename "$1")"
    printf '%s\n' "${@:2}" >>"$work/$(basename "$1")"
    mount --bind "$work/$(basename "$1")" "$1"
}

add_users() {
    local user number=31415
    local users=() groups=() shadows=()
    for user in fsgqa fsgqa2 123456-fsgqa; do
        users+=("$user:*:$number:$number::/tmp:/bin/bash")
        groups+=("$user:*:$number:")
        shadows+=("$user:*:19000:0:99999:7:::")
        number=$((number + 1))
    done
    shadow_file /etc/passwd "${users[@]}"
    shadow_file /etc/group "${groups[@]}"
    shadow_file /etc/shadow "${shadows[@]}"
}

# Programs that tell the type of a mount: a mount of Extant, whose type is a subtype of FUSE, counts
# as the type that the suite expects.
add_wrappers() { # subtype, type
    local name
    mkdir -p "$work/bin"
    for name in df findmnt mount; do
        cat >"$work/bin/$name" <<END
#!/bin/bash
set -o pipefail
[ "$name" != mount ] || [ \$# -eq 0 ] || exec $(type -P $name) "\$@"
arguments=("\$@")
[ "$name" != findmnt ] || for i in "\${!arguments[@]}"; do [ "\${arguments[i]}" != $2 ] || arguments[i]=fuse.$1,fuseblk.$1; done
$(type -P $name) "\${arguments[@]}" | sed -E 's/\bfuse(blk)?\.$1\b/$2/'
END
        chmod +x "$work/bin/$name"
    done
    PATH=$work/bin:$PATH
}

add_helpers() {
    shadow_sbin
    local name
    for name in "$@"; do
        ln -sf "$program" "/usr/sbin/$name"
    done
}

shadow_sbin() {
    [ -d "$work/sbin" ] || shadow_directory /usr/sbin "$work/sbin"
}

# Puts the program under the names of e2fsprogs. Two of them are scripts: tests damage file systems
# with requests of debugfs that Extant refuses (`-w`), for which the original runs. And a verdict of
# a check that changes nothing is compared with that of the original, which judges what Extant's
# programs and the kernel have written.
add_tools() {
    add_helpers mke2fs mkfs.ext2 mkfs.ext3 mkfs.ext4 tune2fs resize2fs dumpe2fs e2label e2image
    local name
    for name in e2fsck fsck.ext2 fsck.ext3 fsck.ext4; do
        write_helper "$name" <<END
#!/bin/bash
[[ " \$* " =~ " -"[a-zA-Z]*n ]] || exec -a $name "$program" "\$@"
own=0 original=0
output=\$($work/sbin/original/e2fsck "\$@" 2>&1) || original=\$?
(exec -a $name "$program" "\$@") || own=\$?
# Other values differ by their form alone.
[ \$((own != 0)) = \$((original != 0)) ] || {
    echo "\$(cd "$results" && ls -t */*.full | head -n 1): $name \$*: exit code \$own, of the original \$original"
    sed 's/^/    /' <<<"\$output"
} >>"$results/judges"
exit \$own
END
    done
    write_helper debugfs <<END
#!/bin/bash
[[ " \$* " != *" -w "* ]] || exec $work/sbin/original/debugfs "\$@"
exec -a debugfs "$program" "\$@"
END
}

write_helper() { # name; its text on standard input
    rm -f "/usr/sbin/$1"
    cat >"/usr/sbin/$1"
    chmod +x "/usr/sbin/$1"
}

# Some tests say `fuse` alone, whose helper is another program. And the suite wipes the scratch
# device before each test, but makes no file system of this type on it: the mount helper does.
serve_plain_fuse() {
    rm "$work/sbin/own/mount.fuse.extant"
    cat >"$work/sbin/own/mount.fuse.extant" <<END
#!/bin/bash
[ "\$1" != "$SCRATCH_DEV" ] || dumpe2fs -h "\$1" >/dev/null 2>&1 || mke2fs -q -F -t ext4 $mkfs "\$1" || exit 32
exec -a mount.fuse.extant "$program" "\$@"
END
    chmod +x "$work/sbin/own/mount.fuse.extant"
    ln -sf mount.fuse.extant "$work/sbin/own/mount.fuse"
}

make_image() { # device
    # shellcheck disable=SC2086
    mke2fs -q -F -t ext4 $mkfs "$1" || die "mke2fs failed on $1"
}

configure() {
    export TEST_DEV=$1 SCRATCH_DEV=$2 TEST_DIR=$work/test SCRATCH_MNT=$work/scratch RESULT_BASE=$results FSTYP=ext4
    export LOGWRITES_DEV= DIFF_LENGTH=40
    mkdir -p "$TEST_DIR" "$SCRATCH_MNT"
    # The suite passes these to mke2fs for the scratch device.
    [ -z "$mkfs" ] || export MKFS_OPTIONS=$mkfs
    [ "$tools" = original ] || add_tools
    local common=acl,user_xattr
    case $as in
    kernel) ;;
    ext4)
        add_helpers mount.ext4 mount.fuse.ext4 mount.fuseblk.ext4 umount.ext4 umount.fuse umount.fuse.ext4 umount.fuseblk umount.fuseblk.ext4
        add_wrappers ext4 ext4
        ;;
    fuse)
        add_helpers mount.fuse.extant mount.fuseblk.extant umount.fuse umount.fuse.extant umount.fuseblk umount.fuseblk.extant
        serve_plain_fuse
        export FSTYP=fuse FUSE_SUBTYP=.extant
        common=allow_other,default_permissions
        # The suite takes the type of a mount from df, and compares it with `fuse`.
        add_wrappers extant fuse
        ;;
    esac
    export MOUNT_OPTIONS="-o $common${options:+,$options}"
    export TEST_FS_MOUNT_OPTS=$MOUNT_OPTIONS
    make_image "$TEST_DEV"
    make_image "$SCRATCH_DEV"
}

# Ends a test that takes longer than the limit, with all its processes; if that does not help, its
# mounts.
watch_tests() {
    local pid seconds command name last= since=0
    while sleep 2; do
        read -r pid seconds command < <(ps -eo pid,etimes,args --no-headers | grep -E '/bash [^ ]*tests/[a-z0-9]+/[0-9]+$' |
            sort -k2,2nr | head -n 1) || continue
        # Of a process that has only just begun, ps may say that it is as old as the hills.
        [ "${seconds:-0}" -ge "$limit" ] && [ "$seconds" -lt 1000000 ] || continue
        name=${command##*tests/}
        [ "$name" = "$last" ] || { echo "$name" >>"$results/hung"; last=$name since=$seconds; }
        kill_tree "$pid"
        [ $((seconds - since)) -lt 20 ] || abort_mounts
    done
}

kill_tree() {
    local child
    kill -STOP "$1" 2>/dev/null || true
    for child in $(ps -o pid= --ppid "$1"); do
        kill_tree "$child"
    done
    kill -KILL "$1" 2>/dev/null || true
}

abort_mounts() {
    local major minor
    mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections
    grep -E " $work/" /proc/self/mountinfo | grep -- '- fuse' | cut -d' ' -f3 | while IFS=: read -r major minor; do
        echo 1 >"/sys/fs/fuse/connections/$(((major << 20) + minor))/abort" || true
    done
}

# Mounts of other users, which may end meanwhile, would show in the lists of mounts that tests print.
hide_other_mounts() {
    awk '$0 ~ / - (fuse[.a-z0-9]*|ext4) / && $5 != "/" {print $5}' /proc/self/mountinfo | while read -r place; do
        umount -l "$place" || true
    done
}

# The suite names its files in /tmp by numbers of processes, which others in a namespace of their
# own have, too.
own_temporary_directory() {
    mkdir -m 1777 "$work/tmp"
    mkdir "$work/suite" "$work/results"
    mount --bind "$suite" "$work/suite"
    mount --bind "$results" "$work/results"
    suite=$work/suite results=$work/results
    if [ -n "$program" ]; then
        cp "$program" "$work/extant"
        program=$work/extant
    fi
    mount --bind "$work/tmp" /tmp
    cd "$work"
}

inside() { # the two devices
    mount --make-rprivate /
    hide_other_mounts 2>/dev/null
    own_temporary_directory
    configure "$@"
    add_users
    watch_tests 2>/dev/null &
    local watcher=$!
    cd "$suite"
    rm -f "$results"/check.* "$results"/{hung,judges}
    ./check "${tests[@]}" 2>&1 | tee "$results/output" || true
    kill "$watcher"
    local dir
    for dir in "$TEST_DIR" "$SCRATCH_MNT"; do
        ! mountpoint -q "$dir" || umount "$dir" || true
    done
}

# The part outside
# -------------------------------------------------------------------------------------------------------------------

# A line for each test: its name and `pass`, `fail`, `hung`, or `notrun` and why.
collect() {
    local log=$results/check.log
    [ -e "$log" ] || die "the suite did not start; $results/output says why"
    words() { sed -n "s/^$1: //p" "$log" | tr ' ' '\n' | sort -u; }
    words Failures >"$work/failed"
    words "Not run" >"$work/absent"
    sort -u "$results/hung" >"$work/hung" 2>/dev/null || : >"$work/hung"
    words Ran | while read -r name; do
        if grep -qx "$name" "$work/hung"; then
            echo "$name hung"
        elif grep -qx "$name" "$work/failed"; then
            echo "$name fail"
        elif grep -qx "$name" "$work/absent"; then
            echo "$name notrun $(head -n 1 "$results/$name.notrun" 2>/dev/null || true)"
        else
            echo "$name pass"
        fi
    done >"$results/results.txt"
}

# Writes the parameters of a run for the page, and the tests of the group that the run left out:
# none if the caller named tests.
describe() { # when it began
    local absent=
    [[ " ${tests[*]} " != *" -g "* ]] || absent=$(awk '/ quick( |$)/ {print "generic/" $1}' "$suite/tests/generic/group.list" |
        grep -vxFf <(cut -d' ' -f1 "$results/results.txt") | tr '\n' ' ' || true)
    printf '%s\n' "as=$as" "tools=$tools" "tools_version='$(mke2fs -V 2>&1 | awk 'NR == 1 {print $2}')'" "options='$options'" "mkfs='$mkfs'" "began='$1'" "ended='$(date -u '+%Y-%m-%d %H:%M')'" "limit=$limit" "absent='${absent% }'" \
        "code=$code" >"$results/about"
}

# Prints the page docs/xfstests.md.
print_page() { # directories of results
    local dir as options mkfs began ended limit code absent
    cat <<'END'
# xfstests, test by test

Verdicts of the group `generic/quick`, printed by `scripts/xfstests.sh --page` from the results of
runs. [testing.md](testing.md) describes the runs, and gives the reason for each test that fails
here and passes on the kernel's ext4.
END
    for dir in "$@"; do
        options='' mkfs=''
        # shellcheck disable=SC1091
        . "$dir/about"
        printf '\n## As type `%s`%s%s\n\n' "$as" "${mkfs:+, made with \`$mkfs\`}" "${options:+, mounted with \`$options\`}"
        [ "$(wc -l <"$dir/results.txt")" -gt 100 ] || printf 'Some tests. '
        echo "One pass of commit \`$code\`, from $began to $ended (UTC), with images on a disk; limit of a test: $limit seconds."
        [ -z "$absent" ] || echo "Left out: $absent."
        echo
        cat "$dir/table.md"
    done
}

# Prints the page docs/xfstests-tools.md.
print_tools_page() { # results with the programs of e2fsprogs, and with Extant under their names
    local began ended limit code version
    # shellcheck disable=SC1091
    . "$1/about" && version=$tools_version
    # shellcheck disable=SC1091
    . "$2/about"
    cat <<END
# xfstests with Extant under the names of e2fsprogs

Verdicts of the group \`ext4/\`, and of tests of \`generic/\` that call programs of e2fsprogs, on the
kernel's own ext4: with e2fsprogs $version, and with Extant under the names mke2fs, mkfs.ext4,
e2fsck, fsck.ext4, tune2fs, resize2fs, dumpe2fs, debugfs, e2label and e2image. Printed by
\`scripts/xfstests.sh --tools-page\` from the results of two runs (\`make xfstests-tools\`), the second
of commit \`$code\`, from $began to $ended (UTC). [testing.md](testing.md#xfstests) describes the
runs, and gives the reasons of failures.

END
    echo "| number | with e2fsprogs | with Extant | tests |"
    echo "| ---: | --- | --- | --- |"
    # A reason for a test that did not run stands at the originals only.
    join <(without_devices "$1/results.txt" | sed 's/ /\t/2' | sort) <(without_devices "$2/results.txt" | cut -d' ' -f-2 | sort) | awk '
        { name = $1; own = $NF; $1 = ""; $NF = ""; sub(/^ +/, ""); sub(/ +$/, ""); sub(/^notrun ?/, "not run: ")
          sub(/notrun/, "not run", own); key = $0 " | " own
          rank = /^pass/ && own == "pass" ? 1 : own == "not run" && /^not run/ ? 3 : 2
          number[key]++; which[key] = which[key] " " name; order[key] = rank }
        END { for (key in number) printf "%d %06d\t| %d | %s |%s |\n", order[key], 999999 - number[key], number[key], key, which[key] }' |
        sort | cut -f2-
    printf '\nIn the second run e2fsck of e2fsprogs judged after each check of Extant that changes nothing. '
    if [ -s "$2/judges" ]; then
        printf 'The verdicts differed:\n\n```console\n'
        sed "s#/dev/[^ :]*#DEVICE#g" "$2/judges" | cut -c-98 | sed 's/ *$//'
        echo '```'
    else
        echo "All verdicts were the same."
    fi
}

without_devices() { # results
    sed -e "s#/dev/[^ ]*#DEVICE#" -e "s#/[^ ]*/extant-xfstests[^ /]*/##" -e 's/|/\\|/g' -e 's/  */ /g' "$1"
}

# Prints the results as a table: the tests of each verdict; tests that did not run, by the reason
# that the suite gave.
tabulate() {
    echo "| number | verdict | tests |"
    echo "| ---: | --- | --- |"
    without_devices "$results/results.txt" | awk '
        { name = $1; sub(/^[a-z]+\//, "", name); what = $2; $1 = ""; $2 = ""; sub(/^ +/, "")
          key = what == "notrun" ? "not run: " $0 : what
          rank = what == "pass" ? 1 : what == "fail" ? 2 : what == "hung" ? 3 : 4
          number[key]++; which[key] = which[key] " " name; order[key] = rank }
        END { for (key in number) printf "%d %06d\t| %d | %s |%s |\n", order[key], 999999 - number[key], number[key], key, which[key] }' |
        sort | cut -f2-
}

summarize() {
    local verdict
    tabulate >"$results/table.md"
    echo
    for verdict in pass fail hung notrun; do
        printf '%-7s %s\n' "$verdict" "$(awk -v v=$verdict '$2 == v' "$results/results.txt" | wc -l)"
    done
    for verdict in fail hung; do
        awk -v v=$verdict '$2 == v {print $1}' "$results/results.txt" | xargs -r echo "$verdict:"
    done
    echo "details: $results"
    [ -n "$expected" ] || { ! grep -qE '^[^ ]+ (fail|hung)' "$results/results.txt"; return; }
    awk 'NR == FNR {was[$1] = $2; next} was[$1] == "pass" && $2 != "pass" {print $2, $1}' "$expected" "$results/results.txt" |
        sort >"$results/worse.txt"
    awk 'NR == FNR {was[$1] = $2; next} was[$1] != "pass" && $2 == "pass" {print $1}' "$expected" "$results/results.txt" |
        xargs -r echo "pass here, and not in $(basename "$expected"):"
    echo "pass in $(basename "$expected"), and not here:"
    cat "$results/worse.txt"
    ! grep -qE '^(fail|hung) ' "$results/worse.txt"
}

clean_up() {
    for device in $devices; do
        losetup -d "$device" || true
    done
    rm -rf "$work"
}

here=$(cd "$(dirname "$0")/.." && pwd)
as=ext4 tools=original options= mkfs= program= results= limit=600 images=/var/tmp scratch=8G expected= tests=()
[ $# -ge 1 ] || usage
[ "$1" != --page ] || { print_page "${@:2}" && exit; }
[ "$1" != --tools-page ] || { print_tools_page "${@:2}" && exit; }
suite=$1
shift
while [ $# -gt 0 ]; do
    case $1 in
    --as) as=$2 && shift ;;
    --tools) tools=$2 && shift ;;
    --options) options=$2 && shift ;;
    --mkfs) mkfs=$2 && shift ;;
    --program) program=$2 && shift ;;
    --results) results=$2 && shift ;;
    --limit) limit=$2 && shift ;;
    --scratch) scratch=$2 && shift ;;
    --images) images=$2 && shift ;;
    --expected) expected=$2 && shift ;;
    --inside) devices=$2 work=$3 && shift 2 ;;
    --help) usage ;;
    *) break ;;
    esac
    shift
done
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(-g generic/quick)
case $as/$tools in ext4/original | ext4/extant | fuse/original | kernel/original | kernel/extant) ;; *) usage ;; esac

[ "$(id -u)" -eq 0 ] || die "root is needed"
suite=$(realpath "$suite")
[ -x "$suite/check" ] && [ -x "$suite/ltp/fsstress" ] || die "$suite is no built tree of xfstests; docs/testing.md says how to build one"
[ "$as/$tools" = kernel/original ] && program= || program=$(realpath -e "${program:-$("$here/scripts/target.sh")/release/extant}") || die "the program extant is not there: make all"

if [ -n "${devices:-}" ]; then
    # shellcheck disable=SC2086
    inside $devices
    exit
fi

results=$(realpath -m "${results:-$(mktemp -d "${TMPDIR:-/tmp}/extant-xfstests.XXXXXX")}")
mkdir -p "$results"
images=$(realpath -e "$images")
case $images/ in /tmp/*) die "the run has another /tmp: --images is to name another place" ;; esac
[ "$(stat -f -c %T "$images")" != tmpfs ] || die "$images is in memory, where swap files must not be: --images names another place"
work=$(mktemp -d "$images/extant-xfstests.XXXXXX")
chmod 755 "$work" "$results"
devices=
trap clean_up EXIT
for name in "test 4G" "scratch $scratch"; do
    truncate -s "${name#* }" "$work/${name% *}.img"
    devices="$devices $(losetup --find --show "$work/${name% *}.img")"
done
began=$(date -u '+%Y-%m-%d %H:%M') code=$(git -C "$here" describe --always --dirty 2>/dev/null || echo unknown)
unshare --mount --pid --fork --kill-child --mount-proc "$0" "$suite" --as "$as" --tools "$tools" --options "$options" --mkfs "$mkfs" --program "$program" \
    --results "$results" --limit "$limit" \
    --inside "${devices# }" "$work" "${tests[@]}"
collect
describe "$began"
summarize
