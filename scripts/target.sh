#!/usr/bin/env bash
# Prints the target directory of cargo: CARGO_TARGET_DIR and cargo's own configuration may name
# another one than `target`.
set -euo pipefail
cd "$(dirname "$0")/.."
# Root may install a program without having cargo.
command -v cargo >/dev/null || { echo "${CARGO_TARGET_DIR:-$PWD/target}"; exit; }
cargo metadata --no-deps --offline --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
