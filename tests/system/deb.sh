#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 1800
# The Debian package of this build: it has its dependencies, no error by lintian (where that is), and a command that runs.
. "$(dirname "$0")/lib.sh"
[ -z "${GANTRY_SANITIZED:-}" ] || skip "a build with a sanitizer is not packed"
need cpack dpkg-deb dpkg-shlibdeps file
umask 022
# installed.sh may run beside this: the records of what is installed are one per build folder.
exec 9>"$BUILD_DIR/installing.lock" && flock 9
records() { cat /dev/null "$BUILD_DIR"/installed*.txt 2>/dev/null; }
before=$(records)

cpack --config "$BUILD_DIR/CPackConfig.cmake" -B "$tmp" >"$tmp/log" 2>&1 || die "cpack gives $?"
version=$("$gantry" --version | cut -d' ' -f2)
deb=$tmp/gantry_$version-1_$(dpkg --print-architecture).deb
[ -f "$deb" ] || die "no $deb, but: $(ls "$tmp")"
dpkg-deb -f "$deb" Depends | grep -q 'libc6 (>= ' || die "it does not depend on libc6"
! ldd "$gantry" | grep -q libcrypto || dpkg-deb -f "$deb" Depends | grep -q libssl || die "it does not depend on libssl"

dpkg-deb -x "$deb" "$tmp/root" || die "it cannot be unpacked"
[ "$("$tmp/root/usr/bin/gantry" --version)" = "$("$gantry" --version)" ] || die "its command does not run"
dpkg-deb -c "$deb" | grep -q '/libgantry-emulated.so$' || die "it lacks the emulated NIC"
for page in "$SOURCE_DIR"/man/*; do
	gzip -t "$tmp/root/usr/share/man/man${page##*.}/${page##*/}.gz" || die "it has no man page ${page##*/}"
done
[ "$(records)" = "$before" ] || die "what was packed counts as installed"

if command -v lintian >/dev/null; then
	lintian --allow-root --fail-on error "$deb" >"$tmp/log" 2>&1 || die "lintian finds errors"
	echo "lintian finds no error"
else
	echo "no lintian here"
fi
echo "$(basename "$deb") is right"
