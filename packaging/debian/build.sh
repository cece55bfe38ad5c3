#!/bin/sh
# Builds postgresql-NN-pgtare for the major versions that are named, with this system's
# postgresql-server-dev-NN, in a copy of the sources. It needs neither root nor Python.
#
#   packaging/debian/build.sh OUTPUT MAJOR...
#
# Debian: apt-get install debhelper fakeroot postgresql-server-dev-all
set -eu
[ $# -ge 2 ] || { echo "usage: $0 OUTPUT MAJOR..." >&2; exit 2; }
output=$1
shift
for major in "$@"; do
	[ -x "/usr/lib/postgresql/$major/bin/pg_config" ] || {
		echo "$0: install postgresql-server-dev-$major first" >&2
		exit 2
	}
done
mkdir -p "$output"
output=$(realpath "$output")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/pgtare"
cd "$(dirname "$0")/../.."
# what is built or edited elsewhere in a checkout stays out of the package
tar -c --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=pgtare-modules.json --exclude=.built-for \
	server debian docs/install.md docs/operations.md README.md CHANGELOG.md LICENSE |
	tar -x -C "$work/pgtare"
cd "$work/pgtare"
PG_SUPPORTED_VERSIONS="$*"
export PG_SUPPORTED_VERSIONS
pg_buildext updatecontrol
# not -all, whose packages are of every version
dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
mv ../*.deb "$output"
ls "$output"/postgresql-*-pgtare_*.deb
