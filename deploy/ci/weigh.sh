#!/bin/sh
# Whether the settings in settings.conf cost more than 3 %: fails only if that is shown.
# DSN: the connection string of a database with your tables.
set -eu
rm -f cost.md

# The lines of settings.conf as name=value: without comments, and with '=' where it was left out.
name='[[:alpha:]_][[:alnum:]_.]*'
value="'([^']|'')*'|[^'#,[:space:]]+"
line="[[:space:]]*($name)[[:space:]]*[=[:space:]][[:space:]]*($value)[[:space:]]*(#.*)?"
settings=$(sed -E "/^[[:space:]]*(#|\$)/d; s/^$line\$/\\1=\\2/" settings.conf | paste -s -d , -)

status=0
pgtare weigh --arm "change: $settings" --dsn "$DSN" --script cost.sql \
  --at-most 3% --duration "${DURATION:-5m}" --summary cost.md || status=$?
test ! -f cost.md || cat cost.md
case $status in
  0) ;;
  11) echo "warning: not decided in the time given" ;;
  *) exit "$status" ;;
esac
