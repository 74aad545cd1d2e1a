#!/usr/bin/env bash
# The tests of xfstests that call programs of e2fsprogs, on the kernel's own ext4: once with these
# programs, and once with Extant under their names. Prints the page docs/xfstests-tools.md, which has
# the verdicts of both.
#
#     scripts/xfstests-tools.sh SUITE RESULTS [OPTION…] [TEST…]     SUITE: a built tree; RESULTS: a directory for the results of both runs;
#                                                                   options and tests as of scripts/xfstests.sh
#
# All tests of ext4/ and those of generic/ that name such a program, if none is named. Ends with 1 if
# a test that passes with e2fsprogs does not pass with Extant.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
suite=$1 results=$2
shift 2
options=(--as kernel --scratch 10G)
while [[ ${1:-} == --* ]]; do
    options+=("$1" "$2")
    shift 2
done
tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
    mapfile -t tests < <(cd "$suite/tests" && ls ext4/[0-9][0-9][0-9] &&
        grep -lE '\b(e2fsck|resize2fs|tune2fs|dumpe2fs|debugfs|mke2fs|e2image|(E2FSCK|RESIZE2FS|TUNE2FS|DUMPE2FS|DEBUGFS|E2IMAGE)_PROG)\b' generic/[0-9][0-9][0-9])
fi
mkdir -p "$results"
"$here/xfstests.sh" "$suite" "${options[@]}" --tools original --results "$results/original" "${tests[@]}" || true
code=0
"$here/xfstests.sh" "$suite" "${options[@]}" --tools extant --results "$results/extant" --expected "$results/original/results.txt" "${tests[@]}" || code=$?
"$here/xfstests.sh" --tools-page "$results/original" "$results/extant"
exit $code
