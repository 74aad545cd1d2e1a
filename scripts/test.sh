#!/usr/bin/env bash
# All tests: unit, integration over real images, mounts, conformance. A test that cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never
# Many tests wait for devices and mounts: one thread more than there are processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}
# A tree without incremental builds compiles everything once, which is quicker without them.
[ -d "$(scripts/target.sh)/debug/incremental" ] || export CARGO_INCREMENTAL=0

# One set of features for the whole workspace: scripts below find programs and examples built.
cargo test --workspace
cargo test -p extant-sync --features contention
scripts/loom.sh
scripts/fuzz.sh short
scripts/conformance.sh
scripts/suites.sh
