#!/bin/sh
# Builds pgtare_NN as RPM for the major versions that are named, from this checkout.
#
#   packaging/rpm/build.sh OUTPUT MAJOR...
#
# On an RPM system with PGDG's repository: dnf install rpm-build gcc make postgresql17-devel.
# On Debian, which has no RPM of a server, its own server is taken: the package shows that the spec
# builds, and is of no other use.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 OUTPUT MAJOR..." >&2; exit 2; }
mkdir -p "$1"
output=$(realpath "$1")
shift
root=$(realpath "$(dirname "$0")/../..")
version=$(sed -n 's/^#define PGTARE_VERSION "\(.*\)"$/\1/p' "$root/server/common/version.h")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/SOURCES"
tar -C "$root" -czf "$work/SOURCES/pgtare-$version.tar.gz" --transform "s,^,pgtare-$version/," \
	--exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=pgtare-modules.json --exclude=.built-for \
	server README.md CHANGELOG.md LICENSE
for major in "$@"; do
	set -- --define "_topdir $work" --define "pgmajorversion $major"
	if [ -x "/usr/lib/postgresql/$major/bin/pg_config" ]; then
		set -- "$@" --nodeps --define "pginstdir /usr/lib/postgresql/$major"
	fi
	rpmbuild -bb --quiet "$@" "$root/packaging/rpm/pgtare.spec"
done
find "$work/RPMS" -name '*.rpm' -exec mv {} "$output" \;
ls "$output"/*.rpm
