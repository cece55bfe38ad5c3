#!/bin/sh
# Prints the manifest of a package of built modules, which `pgtare module install --from` reads.
#
#   manifest.sh PG_CONFIG CC EXTENSION LIBRARY...
#
# EXTENSION: the directory of the control files and scripts, as seen from that of the libraries.
set -eu
pg_config=$1 cc=$2 extension=$3
shift 3

version=$(sed -n 's/^#define PGTARE_VERSION "\(.*\)"$/\1/p' "$(dirname "$0")/common/version.h")
major=$("$pg_config" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
architecture=$($cc -dumpmachine | sed 's/-.*//')
# the newest version of glibc of which a library uses something
libc=$(LC_ALL=C readelf --version-info "$@" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
modules=
for library in "$@"; do
	modules="$modules${modules:+, }\"$(basename "$library" .so)\""
done

cat <<END
{
  "schema": "pgtare.module.package/1",
  "version": "$version",
  "postgresql": $major,
  "architecture": "$architecture",
  "libc": "glibc ${libc#GLIBC_}",
  "extension": "$extension",
  "modules": [$modules]
}
END
