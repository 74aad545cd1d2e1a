#!/usr/bin/env bash
# Suites of other projects, at fixed versions, into .cache/tools/bin. Installs missing ones; needs
# no root.
set -euo pipefail
cd "$(dirname "$0")/.."

root=.cache/tools
# How quick the suites themselves are does not matter; how long they compile does.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_TERM_COLOR=never

need() { # crate, version
    [ "$("$root/bin/$1" --version 2>/dev/null)" = "$1 $2" ] || missing+=("$1@$2")
}

missing=()
need pjdfstest 0.2.2
need fsx 0.3.2
[ ${#missing[@]} -eq 0 ] && exit 0
echo "tools: installing ${missing[*]}"
# One target directory for all, so that shared crates are compiled once.
CARGO_TARGET_DIR=$root/target cargo install --quiet --locked --force --root "$root" "${missing[@]}"
rm -rf "$root/target"
