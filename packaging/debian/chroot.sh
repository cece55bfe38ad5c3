# What the scripts that use chroots share. They set: suite.

chroots=${PGTARE_CHROOTS:-/var/lib/pgtare-chroots}
# the mirrors that this system uses
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | head -n 1)
security=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian-Security' | head -n 1)
# experimental is no whole system
case $suite in
experimental) base=sid ;;
*) base=$suite ;;
esac

# in_chroot CHROOT COMMAND...
in_chroot() {
	where=$1
	shift
	chroot "$where" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
		DEBIAN_FRONTEND=noninteractive "$@"
}

# install CHROOT PACKAGE...
install() {
	where=$1
	shift
	in_chroot "$where" apt-get install -y -qq --no-install-recommends "$@" >"$where/install.log" 2>&1 ||
		{ tail -n 5 "$where/install.log" >&2; exit 1; }
}

# closed CHROOT: what `fresh` has mounted is no longer
closed() {
	for place in dev/shm sys proc; do
		! mountpoint -q "$1/$place" || umount "$1/$place"
	done
}

# fresh CHROOT: a copy of the suite's smallest system, with what programs expect to be mounted; the
# caller closes it
fresh() {
	closed "$1"
	if [ ! -e "$chroots/$base-base/complete" ]; then
		rm -rf "$chroots/$base-base"
		mkdir -p "$chroots"
		debootstrap --variant=minbase "$base" "$chroots/$base-base" "$mirror"
		touch "$chroots/$base-base/complete"
	fi
	rm -rf --one-file-system "$1"
	cp -a --reflink=auto "$chroots/$base-base" "$1"
	mkdir -p "$1/dev/shm"
	mount -t proc proc "$1/proc"
	mount -t sysfs -o ro sysfs "$1/sys"
	mount -t tmpfs tmpfs "$1/dev/shm"
	if [ "$suite" = experimental ]; then
		echo "deb $mirror experimental main" >>"$1/etc/apt/sources.list"
	elif [ "$suite" != sid ] && [ -n "$security" ]; then
		echo "deb $security $suite-security main" >>"$1/etc/apt/sources.list"
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

# of PACKAGE: the package as the suite has it
of() { [ "$suite" = experimental ] && echo "$1/experimental" || echo "$1"; }
