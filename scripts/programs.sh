# Test programs of cargo, for scripts to include.

# A tree without incremental builds compiles everything once, which is quicker without them, in few
# units and without tables of lines. Cargo makes the directory even so.
export CARGO_TERM_COLOR=never
[ -n "$(ls -A "$(scripts/target.sh)/debug/incremental" 2>/dev/null)" ] ||
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=4 CARGO_PROFILE_DEV_DEBUG=0
# Many tests wait for devices, mounts, other hosts and programs: more threads than processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(nproc)))}

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
