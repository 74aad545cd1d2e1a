#!/usr/bin/env bash
# All tests: unit, integration over real images, mounts, conformance. A test that cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never
# Many tests wait for devices, mounts and other programs: twice as many threads as processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
# A tree without incremental builds compiles everything once, which is quicker without them, in few
# units and without tables of lines.
[ -d "$(scripts/target.sh)/debug/incremental" ] ||
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=4 CARGO_PROFILE_DEV_DEBUG=0

# Downloads happen here, not within tests.
cargo fetch --locked --quiet
# One set of features for the whole workspace: scripts below find programs and examples built.
cargo test --workspace
cargo test -p extant-sync --features contention
scripts/loom.sh
scripts/fuzz.sh short
scripts/conformance.sh
scripts/suites.sh
