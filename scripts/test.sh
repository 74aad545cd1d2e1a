#!/usr/bin/env bash
# All tests of the product: unit, integration over real images, mounts, conformance. A test that
# cannot run fails, and so does a program that runs for longer than EXTANT_TEST_SECONDS (1800).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/programs.sh
limit=${EXTANT_TEST_SECONDS:-1800}
work=$(mktemp -d)
workers=()

# Ends what still runs, after Ctrl-C too: background jobs of a script do not get its signal. Each
# running job is a group of processes.
finish() {
    local job
    [ ${#workers[@]} -eq 0 ] || kill "${workers[@]}" 2>/dev/null || true
    for job in "$work"/*/; do
        [ -e "$job/process" ] && [ ! -e "$job/ended" ] || continue
        kill -- "-$(cat "$job/process")" 2>/dev/null || true
        echo "test: ended early: $(cat "$job/name")" >&2
        tail -n 40 "$job/log" >&2
        unfinished "$job/log" >&2
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# Prints the tests of a program that took long and had no result yet, when the program was ended.
unfinished() { # its output
    local name
    sed -n 's/^test \(.*\) has been running for over .*/\1/p' "$1" | while read -r name; do
        grep -qF "test $name ... " "$1" || echo "test: begun, without a result: $name"
    done
}

# Downloads happen here, not within tests.
cargo fetch --locked --quiet
scripts/python.sh prepare
# One set of features for the whole workspace: scripts below find programs and examples built.
programs --workspace >"$work/all"
grep -q /crates/engine/ "$work/all" || { echo "test: no programs were built" >&2; exit 1; }

# Prints jobs, one a line: name, directory, command. Programs run in the directories of their
# packages, as with cargo.
jobs_of() { # test programs, as `programs` prints them
    local manifest program
    while IFS=$'\t' read -r manifest program; do
        printf '%s\t%s\t%q\n' "$(dirname "${manifest#"$PWD/"}") ${program##*/}" "$(dirname "$manifest")" "$program"
    done
}
others() {
    printf '%s\t%s\t%s\n' "$1" "$PWD" "$2"
}

# The longest jobs come first, so that the last ones to end are short.
first='/crates/(engine|check|cli)/.*/it-'
second='/crates/(fuse|image|lab)/.*/it-'
{
    grep -E "$first" "$work/all" | jobs_of
    # `make conformance` has more of them at once.
    others "suites of others" "rc=0; EXTANT_SUITE_WORKERS=4 scripts/conformance.sh || rc=1; scripts/suites.sh || rc=1; exit \$rc"
    others "models" "scripts/loom.sh"
    grep -E "$second" "$work/all" | jobs_of
    others "examples in documentation" "cargo test --workspace --doc"
    others "counters of contention" "cargo test -p extant-sync --features contention --lib"
    grep -vE "$first|$second" "$work/all" | jobs_of
} >"$work/jobs"

# Runs a job and prints its output as a whole, after its end.
run_job() { # its directory for notes, name, directory, command
    local notes=$1 name=$2 begin=$SECONDS code=0
    echo "$name" >"$notes/name"
    echo "     Running $name"
    # In a group of processes of its own, which `timeout` makes.
    (cd "$3" && exec timeout -k 10 "$limit" bash -c "$4") >"$notes/log" 2>&1 </dev/null &
    echo $! >"$notes/process"
    wait $! || code=$?
    touch "$notes/ended"
    {
        flock 9
        echo "       Ended $name, after $((SECONDS - begin)) s"
        cat "$notes/log"
        # The code of `timeout`, or that of a program that it had to kill.
        if [ $code -eq 124 ] || [ $code -eq 137 ]; then
            echo "test: $name was ended after $((SECONDS - begin)) s" >&2
            unfinished "$notes/log" >&2
        fi
    } 9>"$work/printing"
    return $code
}

# Takes jobs until none is left.
worker() {
    local nr=0 name directory command
    while IFS=$'\t' read -r name directory command; do
        nr=$((nr + 1))
        # Only one worker can make the directory.
        mkdir "$work/$nr" 2>/dev/null || continue
        run_job "$work/$nr" "$name" "$directory" "$command" || echo "$nr" >>"$work/failed"
    done <"$work/jobs"
}

# Three side by side, since all tests wait at times: for mounts, and for the intervals of multiple
# mount protection.
touch "$work/failed"
for _ in 1 2 3; do
    worker &
    workers+=($!)
done
wait "${workers[@]}"
workers=()
# The end of a long output says why: it repeats what the tests that failed have printed.
while read -r nr; do
    sed -n '/^failures:$/,$p' "$work/$nr/log" | head -n 200 >&2
    echo "test: failed: $(cat "$work/$nr/name")" >&2
done <"$work/failed"
[ ! -s "$work/failed" ]
