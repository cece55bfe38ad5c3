#!/bin/sh
# Lays built modules out as CloudNativePG mounts them from an image: share/extension and lib.
#
#   packaging/container/extension-tree.sh MODULES PG_CONFIG OUTPUT
#
# MODULES: what `make install DESTDIR=MODULES` or `pgtare module install --destdir MODULES` made.
set -eu
[ $# -eq 3 ] || { echo "usage: $0 MODULES PG_CONFIG OUTPUT" >&2; exit 2; }
libraries=$1$("$2" --pkglibdir) extensions=$1$("$2" --sharedir)/extension output=$3

for module in pgtare wait_event_timing sql_trace; do
	install -D -m 755 -t "$output/lib" "$libraries/$module.so"
	install -D -m 644 -t "$output/share/extension" "$extensions/$module.control" \
		"$extensions/$module"--*.sql
done
