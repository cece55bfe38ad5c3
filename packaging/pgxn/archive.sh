#!/bin/sh
# Makes the archive for PGXN: the server modules with their makefile at the top.
#
#   packaging/pgxn/archive.sh OUTPUT
set -eu
[ $# -eq 1 ] || { echo "usage: $0 OUTPUT" >&2; exit 2; }
mkdir -p "$1"
output=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
version=$(sed -n 's/^#define PGTARE_VERSION "\(.*\)"$/\1/p' "$root/server/common/version.h")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/pgtare-$version/docs"
# what builds in a checkout have left stays out
tar -C "$root/server" -c --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=clock \
	--exclude=pgtare-modules.json --exclude=.built-for . | tar -x -C "$work/pgtare-$version"
cp "$root/packaging/pgxn/META.json" "$root/README.md" "$root/LICENSE" "$work/pgtare-$version"
cp "$root/docs/wait-events.md" "$root/docs/sql-trace.md" "$work/pgtare-$version/docs"
rm -f "$output/pgtare-$version.zip"
(cd "$work" && python3 -m zipfile -c "$output/pgtare-$version.zip" "pgtare-$version")
echo "$output/pgtare-$version.zip"
