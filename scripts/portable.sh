#!/usr/bin/env bash
# Checks that the engine and all crates below it compile for other systems, without devices in
# files there. The standard library of each target is installed if rustup is there.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never RUSTFLAGS="-D warnings"

for target in x86_64-pc-windows-gnu aarch64-apple-darwin wasm32-unknown-unknown; do
    rustup target add "$target"
    cargo check --package extant --target "$target" --target-dir target/portable
done
