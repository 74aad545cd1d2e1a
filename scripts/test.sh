#!/usr/bin/env bash
# All tests of the product: unit, integration over real images, mounts, conformance. A test that
# cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/programs.sh
work=$(mktemp -d)
halves=()
# Ends what still runs, after Ctrl-C too: background jobs of a script do not get its signal.
finish() {
    for half in "${halves[@]}"; do kill -- "-$half" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# Downloads happen here, not within tests.
cargo fetch --locked --quiet
scripts/python.sh prepare
# One set of features for the whole workspace: scripts below find programs and examples built.
programs --workspace >"$work/all"
grep -q /crates/engine/ "$work/all" || { echo "test: no programs were built" >&2; exit 1; }

# Two halves of about the same length, side by side, since all tests wait at times.
first='/crates/(engine|check)/'
engine() {
    grep -E "$first" "$work/all" | run_all
    cargo test --workspace --doc
    cargo test -p extant-sync --features contention --lib
    scripts/loom.sh
}
others() {
    grep -vE "$first" "$work/all" | run_all
    scripts/conformance.sh
    scripts/suites.sh
}
# Groups of processes of their own, which can be ended as a whole.
set -m
(engine) >"$work/log" 2>&1 </dev/null &
engine=$!
(others) </dev/null &
others=$!
halves=("$engine" "$others")
failed=()
wait "$others" || failed+=("those of mounts, programs and other crates")
wait "$engine" || failed+=("those of the engine and extant-check, and models")
halves=()
cat "$work/log"
for half in "${failed[@]}"; do echo "test: a test failed among $half" >&2; done
[ ${#failed[@]} -eq 0 ]
