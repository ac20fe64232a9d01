#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 3600
# The README's two commands, in its order, on a minimal Debian: debootstrap's smallest system with make in it, and nothing
# else. `make run` configures a build without OpenSSL, hwloc and libmnl; `make test` installs them and tests the same checkout:
# builds all of it, and runs the system tests that look for something which such a machine might lack. The others run in the plain stage.
# Catches: a tool that is looked for before it was installed, a package that the list of scripts/setup.sh lacks, a build that
# stays without what was installed later, a test that fails or gives no reason for being skipped on such a machine.
. "$(dirname "$0")/lib.sh"
suite=bookworm

[ "$(id -u)" = 0 ] || skip "debootstrap needs root"
need debootstrap apt-get # whose mirror debootstrap takes its packages from
mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | head -n 1)
[ -n "$mirror" ] || skip "apt-get names no mirror to take packages from"
[ -z "${GANTRY_SANITIZED:-}" ] || skip "there is nothing in it that a sanitizer could see"

unshare --mount --pid --fork true 2>/dev/null || skip "mount namespaces cannot be made here: $(unshare --mount --pid --fork true 2>&1)"

root=$tmp/root
timeout 900 debootstrap --variant=minbase --include=make "$suite" "$root" "$mirror" >"$tmp/log" 2>&1
status=$?
[ $status != 124 ] || die "debootstrap is not done after $SECONDS s"
if [ $status != 0 ]; then
	skip "debootstrap does not work here: $(grep -m1 '^[EW]:' "$tmp/log" || tail -n 1 "$tmp/log")"
fi
echo "a minimal $suite: $(du -sm "$root" | cut -f1) MB after $SECONDS s"

# What this machine takes packages from, and by which way, is the user's business; the rest is as debootstrap made it.
rm -rf "$root/etc/apt"
cp -a /etc/apt "$root/etc/apt"
cp -aL /usr/share/keyrings/. "$root/usr/share/keyrings/"
cp -L /etc/resolv.conf "$root/etc/"
grep -v localhost /etc/hosts >"$root/etc/hosts" # names of this machine's network, and no localhost: tests have addresses

# The tree as a clone would have it: what git knows or does not ignore, or all but build folders where git does not know them.
mkdir "$root/gantry"
cd "$SOURCE_DIR" || exit 1
if git ls-files >/dev/null 2>&1; then
	git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf -
else
	tar --exclude './build*' --exclude ./corpus-work -cf - .
fi | tar -C "$root/gantry" -xf -

# make_there LIMIT ARGUMENT...: make with them there, its output in $tmp/log. In namespaces of its own: its /proc goes with it, and so
# does whatever it leaves running.
make_there()
{
	local limit=$1 status=0
	shift
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
		timeout -k 10 "$limit" unshare --mount --pid --fork bash -c '
		mount -t proc proc "$0/proc" && mount -t sysfs sys "$0/sys" && mkdir -p "$0/dev/shm" && mount -t tmpfs tmpfs "$0/dev/shm" &&
		exec chroot "$0" make -C /gantry "$@"' "$root" "$@" >"$tmp/log" 2>&1 || status=$?
	cat "$tmp/log"
	[ $status = 0 ] || die "make $* ended with status $status"
	echo "make $*: done after $SECONDS s"
}
doctor() { chroot "$root" /gantry/build/gantry doctor --json; }

make_there 900 run
like log 'wrong bytes: 0; OK$'
like log '^-- OpenSSL: not found' # else the second command has nothing to find

# Building may wait for CPU time that nothing else wants; tests have deadlines.
chrt --other --pid 0 $$ 2>/dev/null
looking=$(grep -lE '(^|[^_[:alnum:]])(need|skip) ' "$SOURCE_DIR"/tests/system/*.sh | sed -n 's|.*/\([^/]*\)\.sh$|\1|p' | grep -v '^lib$')
make_there 2700 test "ONLY=^system_($(paste -sd '|' - <<<"$looking"))\$\$"
like log 'tests passed, 0 tests failed out of [1-9]'
lacks log 'no reason given'
lacks log 'no OpenSSL'
doctor >"$tmp/out"
for part in openssl hwloc libmnl; do
	like out "\"name\": \"$part\", \"level\": \"ok\""
done
echo "both commands: done after $SECONDS s"
