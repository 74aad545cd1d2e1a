#!/usr/bin/env bash
# Tests that need builds of their own: the lab with other designs under the engine, and the fuzzing
# targets for half a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/programs.sh

# The program and the testkit are named since they decide over features of libraries, which the
# other tests have built.
packages=()
for package in sync space engine lab cli testkit; do packages+=(-p "extant-$package"); done
built=$(programs "${packages[@]}" --features extant-lab/designs --lib --test lab)
grep -v /crates/lab/ <<<"$built" | run_all designs
grep /crates/lab/ <<<"$built" | run_all tables works_are
scripts/fuzz.sh short
