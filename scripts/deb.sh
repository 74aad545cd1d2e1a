#!/usr/bin/env bash
# Builds a Debian package of PROGRAM:
#
#     scripts/deb.sh PROGRAM DIRECTORY
#
# The package goes to DIRECTORY; its path is printed. The same program and the same commit give the
# same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(realpath "${1:?deb.sh PROGRAM DIRECTORY}")
out=$(realpath -m "${2:?deb.sh PROGRAM DIRECTORY}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)-1
arch=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

work=$(mktemp -d "${TMPDIR:-/tmp}/extant-deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
# mktemp keeps other users out; in the package everybody may read.
umask 022
root=$work/root
mkdir -p "$root"
PREFIX=/usr HELPERDIR=/usr/sbin ZSHDIR=/usr/share/zsh/vendor-completions DESTDIR=$root \
    scripts/install.sh install "$program"

doc=$root/usr/share/doc/extant
install -d "$doc"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: Extant"
    echo "Source: $(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)"
    echo
    echo "Files: *"
    echo "Copyright: $(sed -n 's/^Copyright (c) //p' LICENSE-MIT)"
    echo "License: Expat or Apache-2.0"
    echo
    echo "License: Expat"
    sed -e '1,/^Copyright/d' -e '/./!d' -e 's/^/ /' LICENSE-MIT
    echo
    echo "License: Apache-2.0"
    echo " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0."
} >"$doc/copyright"
cp README.md docs/guide.md docs/cli.md "$doc"
{
    echo "extant ($version) unstable; urgency=medium"
    echo
    echo "  * See https://github.com/extant-fs/extant/blob/main/CHANGELOG.md."
    echo
    echo " -- Extant <team@extant.dev>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.Debian.gz"
gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
find "$root/usr/share/man" -type f -exec gzip -9n {} +

# Libraries that the program is linked to; none for a static one.
mkdir -p "$work/debian"
printf 'Source: extant\n\nPackage: extant\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$root/usr/bin/extant" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')

install -d "$root/DEBIAN"
{
    echo "Package: extant"
    echo "Version: $version"
    echo "Architecture: $arch"
    echo "Maintainer: Extant <team@extant.dev>"
    echo "Installed-Size: $(du -k -s --apparent-size "$root" | cut -f1)"
    [ -z "$depends" ] || echo "Depends: $depends"
    echo "Recommends: fuse3"
    echo "Suggests: e2fsprogs"
    echo "Section: admin"
    echo "Priority: optional"
    echo "Homepage: $(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)"
    cat <<'END'
Description: ext4 file systems in user space
 Extant makes, opens, recovers, reads, changes and mounts ext4 file systems
 without root and without a mount of the kernel. Images go back and forth
 between it, Linux and e2fsprogs.
 .
 This package has the program extant, and helpers with which mount(8) mounts
 images and disks through FUSE by the type fuse.extant.
END
} >"$root/DEBIAN/control"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
package=$out/extant_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
