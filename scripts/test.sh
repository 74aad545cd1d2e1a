#!/usr/bin/env bash
# All tests: unit, integration over real images, mounts, conformance. A test that cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

# One set of features for the whole workspace: scripts below find programs and examples built.
cargo test --workspace
cargo test -p extant-sync --features contention
scripts/loom.sh
scripts/fuzz.sh short
scripts/conformance.sh
scripts/suites.sh
