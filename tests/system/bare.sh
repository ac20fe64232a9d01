#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# `make run` as the first command on a minimal Debian: debootstrap's smallest system with make in it, and nothing else.
# Catches: a tool that is looked for before it was installed, a package that the list of scripts/setup.sh lacks.
. "$(dirname "$0")/lib.sh"
suite=bookworm
target=${BARE_TARGET:-run} # by hand: BARE_TARGET=test
limit=540
[ $target = run ] || limit=1800

[ "$(id -u)" = 0 ] || skip "debootstrap needs root"
need debootstrap apt-get # whose mirror debootstrap takes its packages from
mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | head -n 1)
[ -n "$mirror" ] || skip "apt-get names no mirror to take packages from"
[ -z "${GANTRY_SANITIZED:-}" ] || skip "there is nothing in it that a sanitizer could see"

unshare --mount --pid --fork true 2>/dev/null || skip "mount namespaces cannot be made here: $(unshare --mount --pid --fork true 2>&1)"

root=$tmp/root
if ! timeout 300 debootstrap --variant=minbase --include=make "$suite" "$root" "$mirror" >"$tmp/log" 2>&1; then
	skip "debootstrap does not work here: $(grep -m1 '^[EW]:' "$tmp/log" || tail -n 1 "$tmp/log")"
fi
echo "a minimal $suite: $(du -sm "$root" | cut -f1) MB after $SECONDS s"

# What this machine takes packages from, and by which way, is the user's business; the rest is as debootstrap made it.
rm -rf "$root/etc/apt"
cp -a /etc/apt "$root/etc/apt"
cp -aL /usr/share/keyrings/. "$root/usr/share/keyrings/"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"

# The tree as a clone would have it: what git knows or does not ignore, or all but build folders where git does not know them.
mkdir "$root/gantry"
cd "$SOURCE_DIR" || exit 1
if git ls-files >/dev/null 2>&1; then
	git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf -
else
	tar --exclude './build*' --exclude ./corpus-work -cf - .
fi | tar -C "$root/gantry" -xf -

# Namespaces of its own: its /proc goes with it, and so does whatever it leaves running.
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
	timeout -k 10 $limit unshare --mount --pid --fork bash -c '
	mount -t proc proc "$0/proc" && exec chroot "$0" make -C /gantry "$1"' "$root" "$target" >"$tmp/log" 2>&1
status=$?
cat "$tmp/log"
[ $status = 0 ] || die "make $target ended with status $status"
[ $target != run ] || grep -q 'wrong bytes: 0; OK$' "$tmp/log" || die "the closing line is not 'wrong bytes: 0; OK'"
echo "make $target as the first command: done after $SECONDS s"
