#!/bin/sh
# Builds postgresql-MAJOR-pgtare in a new chroot of one of Debian's suites, and tries the package in
# another clean one: a server with all three modules, which counts, traces and weighs. As root.
#
#   packaging/debian/build-in-chroot.sh SUITE MAJOR OUTPUT
#
# Debian 13 (trixie) has 17, sid 18, experimental 19. PGTARE_CHROOTS names the directory of the
# chroots, /var/lib/pgtare-chroots unless set; they are kept, half a GB each.
set -eu
[ $# -eq 3 ] || { echo "usage: $0 SUITE MAJOR OUTPUT" >&2; exit 2; }
suite=$1 major=$2
mkdir -p "$3"
output=$(realpath "$3")
root=$(realpath "$(dirname "$0")/../..")
chroots=${PGTARE_CHROOTS:-/var/lib/pgtare-chroots}
# the mirror that this system uses
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | head -n 1)
case $suite in
experimental) base=sid ;;
*) base=$suite ;;
esac
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

# in_chroot CHROOT COMMAND...
in_chroot() {
	where=$1
	shift
	chroot "$where" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive "$@"
}

install() {
	where=$1
	shift
	in_chroot "$where" apt-get install -y -qq --no-install-recommends "$@" >"$where/install.log" 2>&1 ||
		{ tail -n 5 "$where/install.log" >&2; exit 1; }
}

# a copy of the suite's smallest system
fresh() {
	if [ ! -e "$chroots/$base-base/complete" ]; then
		rm -rf "$chroots/$base-base"
		mkdir -p "$chroots"
		debootstrap --variant=minbase "$base" "$chroots/$base-base" "$mirror"
		touch "$chroots/$base-base/complete"
	fi
	rm -rf "$1"
	cp -a --reflink=auto "$chroots/$base-base" "$1"
	if [ "$suite" = experimental ]; then
		echo "deb $mirror experimental main" >>"$1/etc/apt/sources.list"
	fi
	# nothing is started while packages are installed, and no cluster is made
	printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
	chmod 755 "$1/usr/sbin/policy-rc.d"
	mkdir -p "$1/etc/postgresql-common/createcluster.d"
	echo 'create_main_cluster = false' >"$1/etc/postgresql-common/createcluster.d/none.conf"
	in_chroot "$1" apt-get -qq -o Acquire::Check-Valid-Until=false update
	# PostgreSQL's packages ask for it while they are installed
	install "$1" perl
}

of() { [ "$suite" = experimental ] && echo "$1/experimental" || echo "$1"; }

builder=$chroots/$suite-$major-build
if [ ! -e "$builder/complete" ]; then
	fresh "$builder"
	install "$builder" dpkg-dev debhelper fakeroot gcc make postgresql-common-dev \
		"$(of "postgresql-server-dev-$major")" "$(of libpq-dev)" "$(of libpq5)" \
		"$(of "postgresql-client-$major")"
	touch "$builder/complete"
fi
rm -rf "$builder/pgtare" "$builder/packages"
mkdir "$builder/pgtare"
tar -C "$root" -c server debian docs packaging README.md CHANGELOG.md LICENSE |
	tar -x -C "$builder/pgtare"
in_chroot "$builder" /pgtare/packaging/debian/build.sh /packages "$major"
cp "$builder/packages/postgresql-$major-pgtare_"*.deb "$output"

clean=$chroots/$suite-$major-clean
fresh "$clean"
cp "$builder/packages/postgresql-$major-pgtare_"*.deb "$clean/tmp"
install "$clean" "$(of "postgresql-$major")" "$(of "postgresql-client-$major")" "$(of libpq5)"
in_chroot "$clean" sh -c 'apt-get install -y --no-install-recommends /tmp/postgresql-*-pgtare_*.deb'
in_chroot "$clean" sh -c '! command -v cc && ! command -v gcc && ! command -v python3'
mount -t proc proc "$clean/proc"
mount -t sysfs -o ro sysfs "$clean/sys"
mount -t tmpfs tmpfs "$clean/dev/shm"
bin=/usr/lib/postgresql/$major/bin
work=/tmp/try
data=$work/data
as_server() { in_chroot "$clean" su postgres -c "$1"; }
sql() { as_server "$bin/psql -h $work -XAtq -v ON_ERROR_STOP=1 -d postgres -c \"$1\""; }
stop() {
	as_server "$bin/pg_ctl -D $data -m immediate stop" >/dev/null 2>&1 || :
	umount "$clean/dev/shm" "$clean/sys" "$clean/proc"
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
if [ -n "${PGTARE:-}" ]; then # the command, which weighs from outside of the chroot
	as_server "$bin/pgbench -h $work -n -S -c 2 -R 500 -T 60 postgres" >/dev/null 2>&1 &
	"$PGTARE" weigh track_io_timing --duration 30 --dsn "host=$clean$work user=postgres dbname=postgres"
	wait
fi
echo "postgresql-$major-pgtare works on $suite"
