#!/usr/bin/env bash
# Undefined behavior and data races: Miri interprets the tests of unsafe code in `sync`,
# ThreadSanitizer watches threads of the engine. Both need a toolchain:
# `rustup toolchain install nightly --component miri,rust-src`.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never
toolchain=+${NIGHTLY:-nightly}
host=$(rustc -vV | sed -n 's/^host: //p')

miri() {
    # The clock and random numbers of the machine. Addresses of parking_lot's queues come from
    # words; crossbeam's epochs are right under Tree Borrows only, and their remaining memory at the
    # end is no leak.
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-ignore-leaks" PROPTEST_CASES=2 \
        cargo "$toolchain" miri test -p extant-sync --lib --target-dir target/miri -- "$@"
}

tsan() {
    # The standard library is built anew, so that its locks are seen; the sanitizer does not know
    # barriers, for which crossbeam has something else where it is told.
    TSAN_OPTIONS="halt_on_error=1" RUSTFLAGS="-Zsanitizer=thread --cfg crossbeam_sanitize_thread" \
        cargo "$toolchain" test -Zbuild-std --target "$host" --target-dir target/tsan -p extant-engine --test it -- "$@"
}

case ${1:-all} in
    miri | all) miri arcs table lockref list_lru cache epoch slots swap seqcell frames ;;&
    tsan | all) tsan order:: races:: ;;
esac
