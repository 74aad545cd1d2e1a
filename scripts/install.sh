#!/usr/bin/env bash
# Installs PROGRAM with its helpers, manual pages, completions and units of systemd, or removes them:
#
#     scripts/install.sh install PROGRAM
#     scripts/install.sh uninstall
#
# PREFIX is the place of the installed files, DESTDIR a directory that stands for the root. mount(8)
# looks for helpers in /sbin alone; another PREFIX than /usr and /usr/local keeps its helpers below
# itself, for users without privileges. HELPERDIR names another place.
set -euo pipefail

prefix=${PREFIX:-/usr/local}
destdir=${DESTDIR:-}
case $prefix in
    /usr | /usr/local) helperdir=${HELPERDIR:-/sbin} ;;
    *) helperdir=${HELPERDIR:-$prefix/sbin} ;;
esac
zshdir=${ZSHDIR:-$prefix/share/zsh/site-functions}
unitdir=${UNITDIR:-$prefix/lib/systemd/system}
bindir=$prefix/bin
mandir=$prefix/share/man
top=$(cd "$(dirname "$0")/.." && pwd)

# The names that crates/cli/src/helper.rs knows, for the types `extant` and `fuse.extant` and for
# block devices (`fuseblk.extant`). umount(8) of a directory runs `umount.fuse` for any FUSE mount:
# mounts of other servers are unmounted as without it.
helpers="mount.extant mount.fuse.extant mount.fuseblk.extant umount.fuse.extant umount.fuse mkfs.extant"

units="extant@.service extant-serve.socket extant-serve@.service"

# A link within one top-level directory is relative, others are absolute: /sbin may be a link.
link_target() {
    local first_of_bin=${bindir#/} first_of_helpers=${helperdir#/}
    if [ "${first_of_bin%%/*}" = "${first_of_helpers%%/*}" ]; then
        realpath --no-symlinks --canonicalize-missing --relative-to="$helperdir" "$bindir/extant"
    else
        echo "$bindir/extant"
    fi
}

# Whether a helper may be replaced and removed: it is absent, or a link to this program.
is_ours() { # name
    local helper=$destdir$helperdir/$1
    [ ! -e "$helper" ] && [ ! -L "$helper" ] || [ "$(readlink "$helper")" = "$(link_target)" ]
}

install_all() { # program
    local program=$1 target
    target=$(link_target)
    install -d "$destdir$bindir" "$destdir$helperdir" "$destdir$unitdir"
    install -m 755 "$program" "$destdir$bindir/extant"
    for name in $helpers; do
        if is_ours "$name"; then
            ln -sfn "$target" "$destdir$helperdir/$name"
        else
            echo "install.sh: $destdir$helperdir/$name belongs to another program and stays" >&2
        fi
    done
    pages=$(mktemp -d "${TMPDIR:-/tmp}/extant-pages.XXXXXX")
    trap 'rm -rf "$pages"' EXIT
    "$program" --quiet pages "$pages"
    (cd "$pages/share" && find man bash-completion fish -type f) | while read -r page; do
        install -D -m 644 "$pages/share/$page" "$destdir$prefix/share/$page"
    done
    install -D -m 644 "$pages/share/zsh/site-functions/_extant" "$destdir$zshdir/_extant"
    for unit in $units; do
        sed "s|@BINDIR@|$bindir|g" "$top/dist/$unit" >"$pages/$unit"
        install -m 644 "$pages/$unit" "$destdir$unitdir/$unit"
    done
}

uninstall_all() {
    rm -f "$destdir$bindir/extant"
    for name in $helpers; do
        ! is_ours "$name" || rm -f "$destdir$helperdir/$name"
        rm -f "$destdir$mandir/man8/$name.8"
    done
    rm -f "$destdir$mandir/man1/extant.1" "$destdir$mandir"/man1/extant-*.1
    rm -f "$destdir$prefix/share/bash-completion/completions/extant" "$destdir$zshdir/_extant" \
        "$destdir$prefix/share/fish/vendor_completions.d/extant.fish"
    for unit in $units; do
        rm -f "$destdir$unitdir/$unit"
    done
}

case ${1:-} in
    install) install_all "${2:?install.sh install PROGRAM}" ;;
    uninstall) uninstall_all ;;
    *)
        echo "usage: $0 install PROGRAM | uninstall" >&2
        exit 2
        ;;
esac
