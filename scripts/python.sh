#!/usr/bin/env bash
# The Python package: `wheel` builds it in target/wheels, `test` runs all of its tests on the wheel,
# `prepare` installs the programs of the short form, `short LIBRARY` runs it on a built library.
# `fleet LIBRARY PROGRAM` runs the tests of clusters. `object-stores` installs a server of S3 and prints
# its Python.
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

# Lays out a package, as pip would install it, with a library that is built already, and runs pytest
# with options.
on_library() { # environment, library, options
    local python=$target/$1/bin/python library=$2 work
    shift 2
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
    PYTHONPATH=$work PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -p no:cacheprovider "$@" \
        $crate/tests
}

# Runs all tests but those with pandas and of clusters.
short() { # library
    [ -x "$target/python-short/bin/python" ] || { echo "python: run \`$0 prepare\` first" >&2; exit 1; }
    on_library python-short "$1" --without-pandas
}

# Runs the tests of clusters. Ray leaves open files to the end of the process, and has no room for a
# long TMPDIR in names of sockets.
fleet() { # library, program
    environment "$target/python-fleet" pytest 'fsspec>=2023.1' 'ray>=2.40,<2.41' kubernetes-validate
    EXTANT=$2 TMPDIR=/tmp on_library python-fleet "$1" --fleet --capture=tee-sys \
        -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
}

object_stores() {
    environment "$target/python-stores" 'moto[server]>=5,<6' >&2
    echo "$target/python-stores/bin/python"
}

case ${1:-} in
    wheel) wheel ;;
    test) suite ;;
    prepare) prepare ;;
    short) short "$2" ;;
    fleet) fleet "$2" "$3" ;;
    object-stores) object_stores ;;
    *) echo "usage: $0 wheel|test|prepare|short LIBRARY|fleet LIBRARY PROGRAM|object-stores" >&2; exit 1 ;;
esac
