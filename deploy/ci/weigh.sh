#!/bin/sh
# Whether the settings in settings.conf cost more than 3 %: fails only if that is shown.
# DSN: the connection string of a database with your tables.
set -eu
settings=$(grep -v '^[[:space:]]*\(#\|$\)' settings.conf | paste -s -d ,)
status=0
pgtare weigh --arm "change: $settings" --dsn "$DSN" --script cost.sql \
  --at-most 3% --duration "${DURATION:-5m}" --summary cost.md || status=$?
cat cost.md
case $status in
  0) ;;
  11) echo "warning: not decided in the time given" ;;
  *) exit "$status" ;;
esac
