#!/usr/bin/env bash
# Models of the lock-free parts: every interleaving with at most LOOM_MAX_PREEMPTIONS switches that
# no thread asked for.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}"

# Compiling takes longer than running.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" cargo test --release -p extant-sync --lib --target-dir target/loom -- models
