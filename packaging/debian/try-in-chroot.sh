#!/bin/sh
# Tries a package postgresql-MAJOR-pgtare in a new clean chroot of one of Debian's suites, without
# compiler and Python: a server with all three modules, which counts waits. As root.
#
#   packaging/debian/try-in-chroot.sh SUITE MAJOR PACKAGE
#
# If PGTARE names the command, the command weighs an instrument on that server.
set -eu
[ $# -eq 3 ] || { echo "usage: $0 SUITE MAJOR PACKAGE" >&2; exit 2; }
suite=$1 major=$2 package=$3
. "$(dirname "$0")/chroot.sh"

clean=$chroots/$suite-$major-clean
trap 'closed "$clean"' EXIT
fresh "$clean"
install "$clean" "$(of "postgresql-$major")" "$(of "postgresql-client-$major")" "$(of libpq5)"
cp "$package" "$clean/tmp/package.deb"
in_chroot "$clean" apt-get install -y --no-install-recommends /tmp/package.deb
in_chroot "$clean" sh -c '! command -v cc && ! command -v gcc && ! command -v python3'
bin=/usr/lib/postgresql/$major/bin
work=/tmp/try
data=$work/data
as_server() { in_chroot "$clean" su postgres -c "$1"; }
sql() { as_server "$bin/psql -h $work -XAtq -v ON_ERROR_STOP=1 -d postgres -c \"$1\""; }
stop() {
	as_server "$bin/pg_ctl -D $data -m immediate stop" >/dev/null 2>&1 || :
	closed "$clean"
}
trap stop EXIT

as_server "mkdir $work && $bin/initdb --no-sync --auth=trust -D $data" >/dev/null
cat >>"$clean$data/postgresql.conf" <<END
shared_preload_libraries = 'pgtare, wait_event_timing, sql_trace'
wait_event_timing.capture = 'stats'
listen_addresses = ''
unix_socket_directories = '$work'
END
as_server "$bin/pg_ctl -D $data -l $work/log -w start" >/dev/null || { cat "$clean$work/log"; exit 1; }
for module in pgtare wait_event_timing sql_trace; do sql "CREATE EXTENSION $module"; done
sql "SELECT version()"
sql "SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql'"
sql "SELECT * FROM pgtare.info()"
as_server "$bin/pgbench -h $work -i -q postgres" >/dev/null 2>&1
as_server "$bin/pgbench -h $work -n -S -c 2 -t 2000 postgres" | grep processed
waits=$(sql "SELECT sum(waits) FROM pg_stat_wait_event_timing_system WHERE wait_event = 'ClientRead'")
echo "$waits waits for clients were counted"
[ "$waits" -ge 100 ]
if [ -n "${PGTARE:-}" ]; then # from outside of the chroot
	as_server "$bin/pgbench -h $work -n -S -c 2 -R 500 -T 60 postgres" >/dev/null 2>&1 &
	"$PGTARE" weigh track_io_timing --duration 30 \
		--dsn "host=$clean$work user=postgres dbname=postgres"
	wait
fi
echo "postgresql-$major-pgtare works on $suite"
