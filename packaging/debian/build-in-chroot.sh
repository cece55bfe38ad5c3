#!/bin/sh
# Builds postgresql-MAJOR-pgtare in a chroot of one of Debian's suites, and tries it in another
# (try-in-chroot.sh). As root.
#
#   packaging/debian/build-in-chroot.sh SUITE MAJOR OUTPUT
#
# Debian 12 (bookworm) has 15, Debian 13 (trixie) 17, sid 18, experimental 19. PGTARE_CHROOTS names
# the directory of the chroots, /var/lib/pgtare-chroots unless set; they are kept, 1 GB each.
set -eu
[ $# -eq 3 ] || { echo "usage: $0 SUITE MAJOR OUTPUT" >&2; exit 2; }
suite=$1 major=$2
mkdir -p "$3"
output=$(realpath "$3")
here=$(realpath "$(dirname "$0")")
. "$here/chroot.sh"

builder=$chroots/$suite-$major-build
trap 'closed "$builder"' EXIT
if [ ! -e "$builder/complete" ]; then
	fresh "$builder"
	# Debian 12 has pg_buildext in another package
	buildext=postgresql-common-dev
	in_chroot "$builder" apt-cache show $buildext >/dev/null 2>&1 || buildext=postgresql-server-dev-all
	install "$builder" dpkg-dev debhelper fakeroot gcc make $buildext \
		"$(of "postgresql-server-dev-$major")" "$(of libpq-dev)" "$(of libpq5)" \
		"$(of "postgresql-client-$major")"
	touch "$builder/complete"
fi
rm -rf "$builder/pgtare" "$builder/packages"
mkdir "$builder/pgtare"
tar -C "$here/../.." -c server debian docs packaging README.md CHANGELOG.md LICENSE |
	tar -x -C "$builder/pgtare"
in_chroot "$builder" /pgtare/packaging/debian/build.sh /packages "$major"
cp "$builder/packages/postgresql-$major-pgtare_"*.deb "$output"
"$here/try-in-chroot.sh" "$suite" "$major" "$builder/packages/postgresql-$major-pgtare_"*.deb
