#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# Our libraries can be opened at run time: what is thread-local in them fits into the few hundred bytes that the dynamic
# linker keeps for that (base/thread.h), and dlopen does it.
# Catches: a thread-local buffer, with which dlopen says "cannot allocate memory in static TLS block".
. "$(dirname "$0")/lib.sh"
need readelf
[ -z "${GANTRY_SANITIZED:-}" ] || skip "a library with sanitizers is opened by programs with sanitizers only"

for lib in "$BUILD_DIR"/lib/lib*.so "$BUILD_DIR"/lib/lib*.so.[0-9]; do
	[ -f "$lib" ] || continue
	size=$(readelf -lW "$lib" | awk '$1 == "TLS" { print $6 }')
	[ $((size)) -le 512 ] || fail "${lib##*/} has $((size)) thread-local bytes"
	! command -v python3 >/dev/null || python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$lib" ||
		fail "${lib##*/} cannot be opened"
	echo "${lib##*/}: $((size)) thread-local bytes"
done
exit $failed
