#!/usr/bin/env bash
# Where cargo puts what it builds here: not always `target`, as CARGO_TARGET_DIR and cargo's own
# configuration may say otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
# Root may install a program without having cargo.
command -v cargo >/dev/null || { echo "${CARGO_TARGET_DIR:-$PWD/target}"; exit; }
cargo metadata --no-deps --offline --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
