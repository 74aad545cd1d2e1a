#!/usr/bin/env bash
# Builds all programs and examples and prints their directory. All members are built at once, as
# `cargo test --workspace` does: for one package alone, cargo picks other features of shared
# dependencies and compiles the engine again.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --workspace --bins --examples
echo "$(scripts/target.sh)/debug"
