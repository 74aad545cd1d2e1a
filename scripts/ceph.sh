#!/usr/bin/env bash
# Images in Ceph: those of RBD through qemu-nbd, with OSDs that are killed, hosts that are lost and
# fenced, snapshots and clones; and chunks in a RADOS gateway. The cluster has one node
# (ceph-cluster.sh).
#
#     scripts/ceph.sh PROGRAM
#
# Needs root and 3 GB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "$1")
guide=$PWD/docs/guide.md

work=$(mktemp -d)
declare -A hosts=()
began=$EPOCHREALTIME step='' step_began=$EPOCHREALTIME
steps=() times=()

say() { echo "ceph: $*"; }
fail() {
    echo "ceph: $*" >&2
    exit 1
}
since() { awk -v begin="$1" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.1f", end - begin }'; }
record() { # text, seconds
    steps+=("$1")
    times+=("$2")
}
# Ends the step before, prints its result, and begins another one.
begin() { # text, or nothing
    if [ -n "$step" ]; then
        say "passed: $step ($(since "$step_began") s)"
        record "$step" "$(since "$step_began")"
    fi
    step=$1 step_began=$EPOCHREALTIME
}

# shellcheck source=scripts/ceph-cluster.sh
. scripts/ceph-cluster.sh

# Ends all that runs, and shows what the daemons said if a step failed.
cleanup() {
    local status=$? name
    for name in "${!hosts[@]}"; do lose "$name"; done
    end_cluster
    if [ "$status" != 0 ]; then
        [ -z "$step" ] || echo "ceph: failed: $step ($(since "$step_began") s)" >&2
        find "$work" -maxdepth 1 \( -name '*.out' -o -name '*.said' \) -size +0 -exec tail -v -n 5 {} + >&2
    fi
    rm -rf "$work"
}
trap cleanup EXIT

# A host: processes, mounts, a name and a /run of its own, all of which end at once. Its first process
# reaps those that have ended.
begin_host() { # name
    unshare --pid --mount --uts --fork --kill-child --mount-proc sh -c "
        hostname $1; mount -t tmpfs tmpfs /run; mkdir -p $work/$1; touch $work/$1.up
        while :; do sleep 1000 & wait; done" 2>"$work/$1.said" &
    local outer=$!
    disown
    until [ -e "$work/$1.up" ]; do sleep 0.05; done
    rm "$work/$1.up"
    hosts[$1]=$(pgrep -P "$outer")
}
on() { # host, command
    nsenter --target "${hosts[$1]}" --pid --mount --uts -- "${@:2}"
}
extant() { # host, arguments of the program
    on "$1" "$program" --quiet "${@:2}"
}
lose() { # host
    end_process "${hosts[$1]}"
    unset "hosts[$1]"
    rm -f "$work/$1".*.sock
}
signal_host() { # host, signal
    local pids
    pids=$(pgrep --ns "${hosts[$1]}" --nslist pid)
    # shellcheck disable=SC2086
    kill "-$2" $pids
}

# Serves an image by qemu-nbd on a host, as the user of this pool. A cache of librbd would answer
# writes before the cluster has them, and a host that was fenced could take a sync for done.
serve() { # host, image, options
    on "$1" qemu-nbd --persistent --shared=0 --fork --socket="$work/$1.${2##*/}.sock" \
        --pid-file="$work/$1.${2##*/}.pid" --format=raw --cache=none --discard=unmap \
        "${@:3}" "rbd:$2:id=extant" 2>>"$work/$1.qemu.said"
}
end_server() { # host, image, signal
    local pid
    pid=$(cat "$work/$1.${2##*/}.pid")
    on "$1" sh -c "kill -$3 $pid; while [ -e /proc/$pid ]; do sleep 0.05; done"
    rm -f "$work/$1.${2##*/}.sock"
}
address() { # host, image
    echo "nbd+unix:///?socket=$work/$1.${2##*/}.sock${parameters:-}"
}
mount_on() { # host, image, options
    on "$1" "$program" mount "${@:3}" "$(address "$1" "$2")" "$work/$1" 2>>"$work/$1.mount.said"
}

# Writes files into a directory until the file END is there, with a line `DIGEST  PATH` in RECORD for
# each one after its fsync. Prints the longest time of a file.
cat >"$work/writer.py" <<'END'
import hashlib, os, sys, time
top, place, record, end = sys.argv[1:]
os.makedirs(f"{top}/{place}", exist_ok=True)
longest = number = 0
with open(record, "a", buffering=1) as lines:
    while not os.path.exists(end):
        data = os.urandom(1 + int.from_bytes(os.urandom(2), "little") * 2)
        begin = time.monotonic()
        path = f"{place}/{number}"
        try:
            with open(f"{top}/{path}", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            sys.exit(f"{error} after {time.monotonic() - begin:.1f} s")
        longest = max(longest, time.monotonic() - begin)
        lines.write(f"{hashlib.sha256(data).hexdigest()}  {path}\n")
        number += 1
        time.sleep(0.02)
print(f"{longest:.1f}")
END
begin_writer() { # host, directory in the mount
    rm -f "$work/end"
    {
        on "$1" python3 "$work/writer.py" "$work/$1" "$2" "$work/$2.record" "$work/end" || exit
    } >"$work/$2.longest" 2>"$work/$2.said" &
    writer=$!
    until [ -s "$work/$2.record" ]; do
        [ -e "/proc/$writer" ] || fail "no file was written: $(cat "$work/$2.said")"
        sleep 0.1
    done
}
end_writer() { # directory
    touch "$work/end"
    wait "$writer" || fail "a file was not written: $(cat "$work/$1.said")"
}
synced() { wc -l <"$work/$1.record"; } # directory
# Fails unless everything that was synced is there.
verify() { # host, directory
    on "$1" sh -c "cd $work/$1 && sha256sum --quiet -c $work/$2.record" ||
        fail "synced files of $2 are lost"
}

# Fails unless the image is clean for check and, as the file that Ceph exports, for e2fsck.
judge() { # host, image, options of rbd's image
    extant "$1" check "$(address "$1" "$2")"
    rbd export --no-progress "$2" "$work/export"
    e2fsck -fn "$work/export" >"$work/fsck" 2>&1 || fail "$(cat "$work/fsck")"
    rm "$work/export"
}
digest() { extant "$1" hash "$(address "$1" "$2")"; } # host, image
export_digest() { rbd export --no-progress "$1" - | sha256sum; } # image

# The client that holds the lock of an image: its name, address and the lock's name.
owner() { # image
    rbd lock ls --format json "$1" | python3 -c '
import json, sys
for lock in json.load(sys.stdin): print(lock["locker"], lock["address"], lock["id"])'
}
# Ends the rights of the client that holds the lock of an image.
fence() { # image
    local client at name
    read -r client at name <<<"$(owner "$1")"
    [ -n "$name" ] || fail "$1 has no lock: $(rbd lock ls "$1")"
    ceph osd blocklist add "$at" 2>/dev/null
    rbd lock rm "$1" "$name" "$client"
}

begin "a cluster of a monitor, a manager and three OSDs"
begin_cluster
for name in first second third; do begin_host $name; done

begin "an image is built and checked"
git -c safe.directory='*' archive HEAD 2>/dev/null >"$work/source.tar" || tar -cf "$work/source.tar" crates docs scripts
mkdir "$work/tree" "$work/source"
tar -C "$work/source" -xf "$work/source.tar"
cp -r docs "$work/tree"
rbd create --size 2G rbd/disk
serve first rbd/disk
extant first build -F "$(address first disk)" "$work/tree" --size 2G
judge first rbd/disk

begin "an OSD is killed under a load, and comes back"
mount_on first disk
begin_writer first killed
on first tar -C "$work/first" -xf "$work/source.tar" &
tar=$!
before=$(synced killed)
kill_daemon osd.0
down=$EPOCHREALTIME
until_true "the monitor misses an OSD" up 2
say "an OSD was missed after $(since "$down") s"
on first cp -r "$work/source/crates" "$work/first/copy"
wait $tar
[ "$(synced killed)" -gt "$before" ] || fail "nothing was synced without the OSD"
begin_osd 0
until_true "the OSD comes back" up 3
until_true "the pool becomes clean again" clean
end_writer killed
record "  longest write and fsync of a file" "$(cat "$work/killed.longest")"
on first diff -r "$work/source/crates" "$work/first/copy"
extant first umount "$work/first"
judge first rbd/disk
mount_on first disk -o ro
verify first killed
on first diff -r "$work/source/crates" "$work/first/crates"
extant first umount "$work/first"

begin "all OSDs hang for 20 s"
mount_on first disk
begin_writer first hung
for name in "${!daemons[@]}"; do [[ $name != osd.* ]] || kill -STOP "${daemons[$name]}"; done
sleep 20
for name in "${!daemons[@]}"; do [[ $name != osd.* ]] || kill -CONT "${daemons[$name]}"; done
sleep 5
end_writer hung
record "  longest write and fsync of a file" "$(cat "$work/hung.longest")"

begin "qemu-nbd is killed under a load, and started again"
begin_writer first again
sleep 2
end_server first disk KILL
before=$(synced again)
serve first rbd/disk
end_writer again
[ "$(synced again)" -gt "$before" ] || fail "nothing was synced with the new server"
record "  longest write and fsync of a file" "$(cat "$work/again.longest")"
extant first umount "$work/first"
judge first rbd/disk
mount_on first disk -o ro
for name in killed hung again; do verify first $name; done
extant first umount "$work/first"

begin "too few OSDs for longer than the timeout: writes fail, and nothing that was synced is lost"
parameters='&timeout=5' mount_on first disk
begin_writer first timeout
kill_daemon osd.1
kill_daemon osd.2
! wait "$writer" || fail "files were written by one OSD"
say "a sync failed: $(cat "$work/timeout.said")"
! on first touch "$work/first/new" 2>/dev/null || fail "a mount without its disk was written"
begin_osd 1
begin_osd 2
until_true "the OSDs come back" up 3
until_true "the pool becomes clean again" clean
! extant first umount "$work/first" 2>"$work/errors" || fail "no message about lost writes"
say "its end: $(tr '\n' ' ' <"$work/errors")"
end_server first disk TERM
serve first rbd/disk
mount_on first disk
verify first timeout
extant first umount "$work/first"
judge first rbd/disk

begin "another host is refused by multi-mount protection"
rbd create --size 512M rbd/shared
serve first rbd/shared
extant first mkfs -O mmp "$(address first shared)"
mount_on first shared
begin_writer first lost
serve second rbd/shared
! mount_on second shared || fail "two hosts mounted one image"
grep -q 'in use on first (device' "$work/second.mount.said" || fail "no cause: $(cat "$work/second.mount.said")"
say "its message: $(tail -n 1 "$work/second.mount.said")"

begin "a lost host is fenced, and another one takes over"
sleep 3
lose first
fence rbd/shared
mount_on second shared
verify second lost
[ "$(synced lost)" -gt 20 ] || fail "only $(synced lost) files were synced"

begin "a host that hangs is fenced, another one takes over, and later writes of the first one fail"
begin_writer second frozen
sleep 2
signal_host second STOP
fence rbd/shared
serve third rbd/shared
mount_on third shared
verify third frozen
echo third >"$work/text"
on third cp "$work/text" "$work/third/text"
thawed=$EPOCHREALTIME
signal_host second CONT
! wait "$writer" || fail "the host that was fenced goes on writing"
say "the other host noticed after $(since "$thawed") s: $(cat "$work/frozen.said")"
verify third lost
verify third frozen
extant third umount "$work/third"
judge third rbd/shared
lose second
begin_host second
begin_host first

begin "a host that is lost without an operator: the lock is broken by Ceph"
mount_on third shared
begin_writer third alone
sleep 1
lose third
serve first rbd/shared
lost=$EPOCHREALTIME
mount_on first shared
record "  until the other host has mounted" "$(since "$lost")"
verify first alone
extant first umount "$work/first"
judge first rbd/shared

begin "a clone is mounted, and its parent stays as it is"
rbd snap create --no-progress rbd/disk@base
rbd snap protect rbd/disk@base
rbd clone rbd/disk@base rbd/fork
serve second rbd/disk@base --read-only
serve first rbd/fork
base=$(digest second disk@base)
bytes=$(export_digest rbd/disk@base)
[ "$(digest first fork)" = "$base" ] || fail "a new clone differs from its parent"
mount_on first fork
begin_writer first live
on first rm -r "$work/first/docs"
sleep 2
cp "$work/live.record" "$work/snapshot.record"
rbd snap create --no-progress rbd/fork@live
sleep 1
end_writer live
extant first umount "$work/first"
judge first rbd/fork
[ "$(digest first fork)" != "$base" ] || fail "the clone did not change"
[ "$(digest second disk@base)" = "$base" ] || fail "the parent's tree changed"
[ "$(export_digest rbd/disk@base)" = "$bytes" ] || fail "the parent's bytes changed"

begin "a snapshot of a mount has everything that was synced before it"
rbd snap protect rbd/fork@live
rbd clone rbd/fork@live rbd/second
serve second rbd/second
mount_on second second
verify second snapshot
extant second umount "$work/second"
judge second rbd/second

begin "blocks that are not used are given back to the pool"
used() { rbd du --format json rbd/second 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["images"][-1]["used_size"])'; }
rbd flatten --no-progress rbd/second
before=$(used)
extant second rm -r "$(address second second)" /copy /crates
extant second trim "$(address second second)"
say "$before bytes before, $(used) after"
[ "$(used)" -lt "$before" ] || fail "nothing was given back"
judge second rbd/second

begin "the recipe of the guide"
mkdir "$work/guide"
awk '/^## /{ own = $0 == "## Use an image of Ceph RBD" } /^```/{ code = own && $0 == "```bash"; next } code' \
    "$guide" >"$work/recipe.sh"
[ -s "$work/recipe.sh" ] || fail "the guide has no recipe"
ln -s "$program" "$work/guide/extant"
on first bash -euxc "cd $work/guide; PATH=$work/guide:\$PATH; . $work/recipe.sh" >"$work/recipe.said" 2>&1 ||
    fail "$(cat "$work/recipe.said")"
[ "$(tail -n 1 "$work/recipe.said")" = two ] || fail "the fork did not change: $(cat "$work/recipe.said")"

begin "chunks in a RADOS gateway"
gateway=$(free_port)
ceph auth get-or-create client.rgw.a mon 'allow rw' osd 'allow rwx' >"$work/client.rgw.a.keyring"
begin_gateway() {
    begin_daemon rgw radosgw -f -n client.rgw.a --rgw-frontends "beast endpoint=127.0.0.1:$gateway"
    until_true "the gateway starts" curl -s -o /dev/null "http://127.0.0.1:$gateway/"
}
begin_gateway
radosgw-admin user create --uid extant --display-name extant --access-key first \
    --secret-key secret-of-the-test >/dev/null
export AWS_ENDPOINT_URL=http://127.0.0.1:$gateway AWS_ALLOW_HTTP=true AWS_REGION=default
export AWS_ACCESS_KEY_ID=first AWS_SECRET_ACCESS_KEY=secret-of-the-test AWS_EC2_METADATA_DISABLED=true
# curl signs no content, which the gateway demands of signatures of version 4.
date=$(LC_ALL=C date -u '+%a, %d %b %Y %H:%M:%S GMT')
signature=$(printf 'PUT\n\n\n%s\n/bucket' "$date" |
    openssl dgst -sha1 -hmac "$AWS_SECRET_ACCESS_KEY" -binary | base64)
curl -s -S -f -X PUT -H "Date: $date" -H "Authorization: AWS $AWS_ACCESS_KEY_ID:$signature" \
    "$AWS_ENDPOINT_URL/bucket" || fail "no bucket is made"
at=s3://bucket/dir/image
here() { "$program" --quiet "$@"; }
head -c 200M /dev/urandom >"$work/tree/large"
here build "$work/image" "$work/tree" --free 16M
whole=$(here hash "$work/image")
pushed=$EPOCHREALTIME
here push "$work/image" "$at"
record "  push of 200 MiB" "$(since "$pushed")"
! here push "$work/image" "$at" 2>"$work/errors" || fail "an image was replaced without --force"
grep -q -- '--force replaces it' "$work/errors" || fail "no remedy: $(cat "$work/errors")"
pulled=$EPOCHREALTIME
here pull "$at" "$work/copy"
record "  pull of 200 MiB" "$(since "$pulled")"
[ "$(here hash "$work/copy")" = "$whole" ] || fail "another tree came back"
e2fsck -fn "$work/copy" >"$work/fsck" 2>&1 || fail "$(cat "$work/fsck")"
[ "$(here hash "$at")" = "$whole" ] || fail "another tree was read"
extant first mount "$at" "$work/first"
on first cmp "$work/first/large" "$work/tree/large"
extant first umount "$work/first"
! AWS_SECRET_ACCESS_KEY=wrong-secret here info "$at" 2>"$work/errors" || fail "a wrong secret was accepted"
grep -q 'check the credentials' "$work/errors" || fail "no remedy: $(cat "$work/errors")"

begin "a push goes on after its gateway was killed"
head -c 200M /dev/urandom >"$work/tree/large"
here build -F "$work/image" "$work/tree" --free 16M
objects() { radosgw-admin bucket stats --bucket bucket | python3 -c 'import json, sys; print(json.load(sys.stdin)["usage"]["rgw.main"]["num_objects"])'; }
before=$(objects)
here push --chunk 64 "$work/image" s3://bucket/other/image 2>"$work/push.said" &
push=$!
until [ "$(objects)" -gt $((before + 50)) ]; do [ -e /proc/$push ] || fail "the push ended before"; done
kill_daemon rgw
! here info s3://bucket/other/image"?timeout=1" 2>"$work/errors" || fail "a gateway that is gone was read"
say "its message: $(cat "$work/errors")"
sleep 3
begin_gateway
if wait $push; then
    say "the same push went on"
else
    say "its push ended, and another one goes on: $(cat "$work/push.said")"
    rest=$("$program" --json push --chunk 64 "$work/image" s3://bucket/other/image)
    python3 -c 'import json, sys; told = json.load(sys.stdin); sys.exit(told["sent_chunks"] >= told["chunks"])' \
        <<<"$rest" || fail "it began again: $rest"
fi
[ "$(here hash s3://bucket/other/image)" = "$(here hash "$work/image")" ] || fail "another tree was stored"

begin ""
say "passed in $(since "$began") s"
for ((i = 0; i < ${#steps[@]}; i++)); do printf '%7s s  %s\n' "${times[i]}" "${steps[i]}"; done
