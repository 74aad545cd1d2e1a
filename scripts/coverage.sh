#!/usr/bin/env bash
# Error arms of maps (crates/engine/src/extent) that the fault campaigns never take: each `?` and
# each `Err(` whose count is zero. The build has a target directory of its own. COVERAGE_TESTS
# chooses the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never CARGO_TARGET_DIR=${COVERAGE_DIR:-$PWD/target/coverage}
tests=${COVERAGE_TESTS:-deep:: devices:: devices_die file:: halfway:: scarce:: extents:: mutants_of hostile::}
command -v jq >/dev/null || { echo "coverage: jq is missing: install the package jq" >&2; exit 1; }
tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
[ -x "$tools/llvm-cov" ] || rustup component add llvm-tools

# Build scripts count, too.
export LLVM_PROFILE_FILE=$CARGO_TARGET_DIR/build-%m.profraw
binary=$(RUSTFLAGS="-C instrument-coverage" cargo test -p extant-engine --test it --no-run --message-format=json |
    jq -r 'select(.target.name? == "it") | .executable // empty' | tail -n 1)
counts=$CARGO_TARGET_DIR/counts
rm -rf "$counts"
# A test that fails has taken arms, too.
failed=0
# shellcheck disable=SC2086
(cd crates/engine && LLVM_PROFILE_FILE="$counts/%p-%m.profraw" "$binary" $tests) || failed=$?
"$tools/llvm-profdata" merge -sparse "$counts"/*.profraw -o "$counts/all"

# A region of code has the sum of the counts of its instantiations.
"$tools/llvm-cov" export -instr-profile="$counts/all" "$binary" |
    jq -r '[.data[].functions[] | select(.filenames[0] | contains("/engine/src/extent/"))]
           | if length == 0 then error("coverage: no code of maps was counted") else . end
           | [.[] | .filenames[0] as $file | .regions[]
            | select(.[7] == 0) | {key: "\($file)\t\(.[0:4] | map(tostring) | join("\t"))", count: .[4]}]
           | group_by(.key)[] | select(map(.count) | add == 0) | .[0].key' |
    sort -t "$(printf '\t')" -k1,1 -k2,2n -k3,3n |
    awk -F '\t' '
        $1 != file { file = $1; n = 0; delete text; while ((getline line < file) > 0) text[++n] = line; close(file) }
        { code = $2 == $4 ? substr(text[$2], $3, $5 - $3) : text[$2] }
        code == "?" || code ~ /Err\(|Corrupt::/ { sub(/.*\/src\//, "", $1); print $1 ":" $2 ":" $3 ": " text[$2] }'
exit "$failed"
