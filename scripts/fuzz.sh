#!/usr/bin/env bash
# Fuzzing that watches which code its inputs reach: each target of fuzz/ for so many seconds, or for
# ever in turns of ten minutes.
#
#   scripts/fuzz.sh build quick|sanitized         makes the targets: with the default toolchain, in little time; or with AddressSanitizer,
#                                                 by a nightly one (`rustup toolchain install nightly --profile minimal`)
#   scripts/fuzz.sh seeds                         makes inputs to begin with
#   scripts/fuzz.sh run quick|sanitized SECONDS TARGET...
#                                                 runs them one after the other, and adds their figures to the file FIGURES
#   scripts/fuzz.sh short                         all of it, for half a minute: part of `make test-builds`
#
# Inputs that reach something new are kept in target/fuzz/corpus, those that break something in
# target/fuzz/found; FUZZ_TO is another folder than target/fuzz. FUZZ_BINARIES is the prefix of
# the programs' names, if `build` has not made them.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never
host=$(rustc -vV | sed -n 's/^host: //p')
to=${FUZZ_TO:-target/fuzz}

# Options of the compiler for libFuzzer: a counter for each edge, a table of them, and operands of
# comparisons.
edges="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"

# The exit code of an interrupted libFuzzer.
INTERRUPTED=72

build() {
    local toolchain=() profile=quick
    if [ "$1" = sanitized ]; then
        toolchain=("+${NIGHTLY:-nightly}")
        edges="$edges -Zsanitizer=address"
        profile=release
    fi
    RUSTFLAGS=$(echo $edges) cargo "${toolchain[@]}" build --profile $profile --manifest-path fuzz/Cargo.toml \
        --target "$host" --target-dir "target/fuzz/$1"
}

seeds() { "$(scripts/built.sh)/examples/seeds" "$to/corpus"; }

# One target: at most 512 bytes of choices, a block, an archive, or a disk image; 1,500 MiB, of which no single request takes
# 512; 300 s of waiting count as a hang (seconds of a clock, since a machine may be busy with
# something else).
run() {
    local binaries=$1 seconds=$2 target=$3 longest=512 log
    case $target in parsers) longest=4200 ;; archive | qcow2) longest=20000 ;; esac
    mkdir -p "$to/corpus/$target" "$to/found/$target"
    log=$(mktemp)
    local failed=0 same=()
    # Which inputs count as new depends on addresses.
    [ -z "${FUZZ_SEED:-}" ] || ! setarch -R true 2> /dev/null || same=(setarch -R)
    TIMEFORMAT='%R %U %S'
    { time "${same[@]}" "$binaries$target" -max_total_time="$seconds" -runs="${FUZZ_RUNS:--1}" -max_len="$longest" \
        -timeout=300 -rss_limit_mb=1500 -malloc_limit_mb=512 -print_final_stats=1 -reload=0 -seed="${FUZZ_SEED:-0}" -artifact_prefix="$to/found/$target/" \
        "$to/corpus/$target" "fuzz/regressions/$target" > "$log" 2>&1 || [ $? -eq $INTERRUPTED ] || failed=1; } 2> "$log.time"
    local inputs edges took cpu
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    # A target with threads waits for them, so its hours by the clock are not those of a processor.
    read -r took cpu < <(awk '{ printf "%d %d\n", $1, $2 + $3 }' "$log.time")
    [ $failed -eq 0 ] || tail -n 60 "$log"
    rm -f "$log" "$log.time"
    echo "fuzzing $target: ${inputs:-0} inputs, ${took:-0} s, ${cpu:-0} s of a processor, ${edges:-0} edges reached, $failed failures"
    if [ -n "${FIGURES:-}" ]; then
        printf 'fuzzing %s\t0\tinputs=%s\tseconds=%s\tprocessor seconds=%s\tmost edges=%s\tfailures=%s\n' \
            "$target" "${inputs:-0}" "${took:-0}" "${cpu:-0}" "${edges:-0}" "$failed" >> "$FIGURES"
    fi
    return $failed
}

all() {
    local kind=$1 seconds=$2 profile=quick
    shift 2
    [ "$kind" = quick ] || profile=release
    for target in "$@"; do run "${FUZZ_BINARIES:-target/fuzz/$kind/$host/$profile/}" "$seconds" "$target"; done
}

case ${1:-} in
    build) build "$2" ;;
    seeds) seeds ;;
    run) all "${@:2}" ;;
    short)
        build quick
        to=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d)
        # The same inputs each time, and as many of them unless a machine is slow, so that all
        # machines find the same. Elsewhere each run has its own. Inputs that break something stay.
        export FUZZ_SEED=1 E2FSPROGS_FAKE_TIME=1750000000
        seeds
        # The targets run beside each other, since each has one busy thread.
        for turn in "300000 20 parsers" "12000 20 journal" "500 30 image" "3000 20 archive" "20000 20 qcow2"; do
            read -r runs seconds target <<< "$turn"
            FUZZ_RUNS=$runs all quick "$seconds" "$target" &
        done
        for job in $(jobs -p); do wait "$job"; done
        rm -rf "$to"
        ;;
    *) sed -n 's/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
