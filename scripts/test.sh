#!/usr/bin/env bash
# All tests: unit, integration over real images, mounts, conformance. A test that cannot run fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never
# Many tests wait for devices, mounts and other programs: more threads than processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}
# A tree without incremental builds compiles everything once, which is quicker without them, in few
# units and without tables of lines.
[ -d "$(scripts/target.sh)/debug/incremental" ] ||
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=4 CARGO_PROFILE_DEV_DEBUG=0
work=$(mktemp -d)
halves=()
# Ends what still runs, after Ctrl-C too: background jobs of a script do not get its signal.
finish() {
    for half in "${halves[@]}"; do kill -- "-$half" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# Builds the test programs that options of cargo choose; prints the manifest of the package and the
# path of each.
programs() {
    cargo test "$@" --no-run --message-format=json-render-diagnostics |
        sed -n 's/.*"manifest_path":"\([^"]*\)".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1\t\2/p'
}

# Runs such programs one after the other, each in the directory of its package, as cargo does, or
# those of their tests that are named.
run_all() {
    local manifest program failed=0
    while IFS=$'\t' read -r manifest program; do
        echo "     Running ${program##*/}"
        (cd "$(dirname "$manifest")" && "$program" "$@" </dev/null) || failed=1
    done
    return $failed
}

# Downloads happen here, not within tests.
cargo fetch --locked --quiet
scripts/python.sh prepare
# One set of features for the whole workspace: scripts below find programs and examples built.
programs --workspace >"$work/all"
grep -q /crates/engine/ "$work/all" || { echo "test: no programs were built" >&2; exit 1; }

# Other designs under the engine. The program and the testkit are named since they decide over
# features of libraries, which are built already.
designs() {
    local package packages=()
    for package in sync space engine lab cli testkit; do packages+=(-p "extant-$package"); done
    programs "${packages[@]}" --features extant-lab/designs --lib --test lab >"$work/designs"
    grep -v /crates/lab/ "$work/designs" | run_all designs
    grep /crates/lab/ "$work/designs" | run_all tables works_are
}

# Two halves of about the same length, side by side, since all tests wait at times.
engine() {
    grep /crates/engine/ "$work/all" | run_all
    cargo test --workspace --doc
    cargo test -p extant-sync --features contention
    designs
    scripts/loom.sh
    scripts/fuzz.sh short
}
others() {
    grep -v /crates/engine/ "$work/all" | run_all
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
wait "$others" || failed+=("all but the engine's")
wait "$engine" || failed+=("the engine's and those behind them")
halves=()
cat "$work/log"
for half in "${failed[@]}"; do echo "test: a test failed among $half" >&2; done
[ ${#failed[@]} -eq 0 ]
