#!/usr/bin/env bash
# All tests: unit, integration over real images, mounts, conformance. A test that cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

cargo build --workspace --bins
cargo test --workspace
cargo test -p extant-sync --features contention
scripts/loom.sh
scripts/fuzz.sh short
scripts/conformance.sh
scripts/suites.sh
