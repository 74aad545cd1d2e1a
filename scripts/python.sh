#!/usr/bin/env bash
# The Python package: `wheel` builds it in target/wheels, `test` runs all of its tests on the wheel,
# `prepare` installs the programs of the short form, `short LIBRARY` runs it on a built library.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(scripts/target.sh)
crate=crates/python
wheels=$target/wheels

# Makes an environment with packages, in a directory of the target; keeps one that has them.
environment() { # directory, packages
    local place=$1 list
    shift
    list=$(printf '%s\n' "$@")
    if [ "$(cat "$place/packages" 2>/dev/null)" != "$list" ] || ! "$place/bin/python" -c '' 2>/dev/null; then
        rm -rf "$place"
        python3 -m venv "$place"
        "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
        printf '%s\n' "$list" >"$place/packages"
    fi
}

wheel() {
    environment "$target/python-build" 'maturin>=1.9,<2'
    rm -rf "$wheels"
    "$target/python-build/bin/maturin" build --release --locked \
        --manifest-path $crate/Cargo.toml --out "$wheels" >&2
}

# Runs pytest and mypy in an environment of its own.
suite() {
    local place=$target/python-tests
    environment "$place" pytest 'fsspec>=2023.1' pandas pyarrow mypy
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall \
        --no-deps "$wheels"/extant_ext4-*.whl
    PYTHONDONTWRITEBYTECODE=1 "$place/bin/python" -m pytest -q -p no:cacheprovider $crate/tests
    "$place/bin/python" -m mypy --config-file $crate/pyproject.toml --cache-dir "$place/mypy"
}

prepare() {
    environment "$target/python-short" pytest 'fsspec>=2023.1'
}

# Runs all tests but those with pandas, on a library that is built already.
short() { # library
    local library=$1 work
    [ -x "$target/python-short/bin/python" ] || { echo "python: run \`$0 prepare\` first" >&2; exit 1; }
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    cp -r $crate/python/extant "$work/"
    cp "$library" "$work/extant/_extant.abi3.so"
    # The entry point that pip would install.
    mkdir "$work/extant_ext4-0.dist-info"
    printf '[fsspec.specs]\nextant = extant.fsspec:ExtantFileSystem\n' \
        >"$work/extant_ext4-0.dist-info/entry_points.txt"
    printf 'Metadata-Version: 2.1\nName: extant-ext4\nVersion: 0\n' \
        >"$work/extant_ext4-0.dist-info/METADATA"
    PYTHONPATH=$work PYTHONDONTWRITEBYTECODE=1 "$target/python-short/bin/python" -m pytest -q \
        -p no:cacheprovider --without-pandas $crate/tests
}

case ${1:-} in
    wheel) wheel ;;
    test) suite ;;
    prepare) prepare ;;
    short) short "$2" ;;
    *) echo "usage: $0 wheel|test|prepare|short LIBRARY" >&2; exit 1 ;;
esac
