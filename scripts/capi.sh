#!/usr/bin/env bash
# The library for programs in C.
#
#   scripts/capi.sh install RELEASE   puts the libraries of a build, the header and a file of pkg-config below PREFIX
#   scripts/capi.sh header            writes crates/capi/include/extant.h from the sources
#   scripts/capi.sh check             says whether it is as they are
set -euo pipefail
cd "$(dirname "$0")/.."
CBINDGEN_VERSION=0.29.4

version() { cargo metadata --no-deps --offline --format-version 1 |
    sed -n 's/.*"name":"extant-capi","version":"\([^"]*\)".*/\1/p'; }

install_all() {
    local release=$1 to=${DESTDIR:-}${PREFIX:-/usr/local} version
    version=$(version)
    install -d "$to/lib/pkgconfig" "$to/include"
    install -m 644 crates/capi/include/extant.h "$to/include/extant.h"
    install -m 755 "$release/libextant_capi.so" "$to/lib/libextant.so.$version"
    ln -sf "libextant.so.$version" "$to/lib/libextant.so.${version%%.*}"
    ln -sf "libextant.so.${version%%.*}" "$to/lib/libextant.so"
    install -m 644 "$release/libextant_capi.a" "$to/lib/libextant.a"
    sed "s|@PREFIX@|${PREFIX:-/usr/local}|; s|@VERSION@|$version|" crates/capi/extant.pc.in \
        >"$to/lib/pkgconfig/extant.pc"
}

# Writes the header to a file.
header() {
    local tools=$PWD/target/tools
    [ "$("$tools/bin/cbindgen" --version 2>/dev/null)" = "cbindgen $CBINDGEN_VERSION" ] ||
        cargo install --quiet --debug --locked --root "$tools" --target-dir "$tools/build" "cbindgen@$CBINDGEN_VERSION"
    "$tools/bin/cbindgen" --quiet --config crates/capi/cbindgen.toml --output "$1" crates/capi
}

case ${1:-} in
    install) install_all "$2" ;;
    header) header crates/capi/include/extant.h ;;
    check)
        new=$(mktemp)
        trap 'rm -f "$new"' EXIT
        header "$new"
        diff -u crates/capi/include/extant.h "$new" || { echo "capi: the header is not that of the sources: make header" >&2; exit 1; }
        ;;
    *) sed -n 's/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
