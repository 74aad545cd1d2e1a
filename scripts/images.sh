#!/usr/bin/env bash
# Brings the images of e2fsprogs' own tests into a folder, from Debian's source package; the
# machine's lists stay as they are.
set -euo pipefail
mkdir -p "$1"
cd "$1"
test -z "$(find . -name 'image*.gz' -print -quit)" || exit 0
mkdir -p apt/lists/partial apt/cache/archives/partial
. /etc/os-release
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME main" \
    > apt/sources.list
own=(-o "Dir::Etc::sourcelist=$PWD/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$PWD/apt/lists" -o "Dir::Cache=$PWD/apt/cache")
apt-get -q "${own[@]}" update
apt-get -q "${own[@]}" source --download-only e2fsprogs
tar xzf e2fsprogs_*.orig.tar.gz --wildcards '*/tests/*/image*.gz'
rm -r apt
