#!/usr/bin/env bash
# Tries the packages that `make deb` and `make static` built in DIRECTORY:
#
#     scripts/packages.sh DIRECTORY
#
# - manual pages under mandoc, completions under zsh and fish, the package under lintian;
# - the package in a new Debian system (debootstrap): installed, used, removed;
# - the static program alone in an empty root directory.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(realpath "${1:?packages.sh DIRECTORY}")
deb=$(ls -t "$packages"/extant_*.deb | head -n 1)
work=$(mktemp -d "${TMPDIR:-/var/tmp}/extant-packages.XXXXXX")
chmod 755 "$work"
system=$work/system

clean_up() {
    for dir in mnt dev/fuse dev/null proc; do
        for root in "$system" "$work/empty"; do
            ! mountpoint -q "$root/$dir" || umount --lazy "$root/$dir"
        done
    done
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

say() { printf '\n== %s\n' "$*"; }

say "files of $deb"
dpkg-deb -x "$deb" "$work/files"
share=$work/files/usr/share
# Pages have no dates, so that builds are reproducible; clap_mangen adds a line break beside spaces.
find "$share/man" -type f -name '*.gz' | while read -r page; do
    zcat "$page" >"$work/page"
    grep -q '^\.so ' "$work/page" || mandoc -T lint -W warning "$work/page" | grep -v -E ' date|skipping paragraph macro' >"$work/lint" || true
    [ ! -s "$work/lint" ] || { echo "$page"; cat "$work/lint"; exit 1; }
done
bash -n "$share/bash-completion/completions/extant"
zsh -n "$share/zsh/vendor-completions/_extant"
fish --no-execute "$share/fish/vendor_completions.d/extant.fish"
# The last tag is about uploads to Debian.
lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$deb"

# The program in a root directory: makes an image, fills it, lists it, mounts it, copies out of it.
trial=$(cat <<'END'
set -eux
cd /work
extant mkfs -q disk.img 64M
extant put disk.img source /
extant ls disk.img / | grep file
extant get disk.img /file copy
END
)
prepare() { # root directory
    mkdir -p "$1/work/source" "$1/mnt" "$1/proc" "$1/dev"
    echo content >"$1/work/source/file"
    mount -t proc proc "$1/proc"
    for device in null fuse; do
        [ -e "$1/dev/$device" ] || : >"$1/dev/$device"
        mount --bind "/dev/$device" "$1/dev/$device"
    done
}

say "the package in a new Debian system"
debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$system" >"$work/debootstrap.log" ||
    { tail "$work/debootstrap.log"; exit 1; }
cp "$deb" "$system/extant.deb"
(cd "$system" && find . -xdev ! -path './var/*' | sort) >"$work/before"
prepare "$system"
chroot "$system" sh -c 'apt-get install -y -qq --no-install-recommends /extant.deb' >/dev/null
chroot "$system" sh -c "$trial"
chroot "$system" sh -euxc 'cd /work; mount -t fuse.extant /work/disk.img /mnt; cmp /mnt/file source/file
    echo more >/mnt/more; umount /mnt; extant cat disk.img /more; rm -r /work'
chroot "$system" dpkg --purge extant >/dev/null
umount "$system/dev/fuse" "$system/dev/null" "$system/proc"
rm "$system/dev/fuse"
(cd "$system" && find . -xdev ! -path './var/*' | sort) >"$work/after"
diff "$work/before" "$work/after"

say "the static program in an empty root directory"
empty=$work/empty
mkdir "$empty"
install -D "$packages/extant-static" "$empty/usr/bin/extant"
prepare "$empty"
run() { chroot "$empty" /usr/bin/extant "$@"; }
run mkfs -q /work/disk.img 64M
run put /work/disk.img /work/source /
run ls /work/disk.img / | grep file
run get /work/disk.img /file /work/copy
cmp "$empty/work/copy" "$empty/work/source/file"
run mount /work/disk.img /mnt
cmp "$empty/mnt/file" "$empty/work/source/file"
umount "$empty/mnt"
run info --wait /work/disk.img >/dev/null
e2fsck -fn "$empty/work/disk.img"
ls -l "$deb" "$packages/extant-static"
