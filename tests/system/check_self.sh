#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Gantry's own plugin passes every rule at every version.
. "$(dirname "$0")/lib.sh"
versions="6 7 8 9 10 11 12"
[ -z "${GANTRY_SANITIZED:-}" ] || versions="8 12"
out=$tmp/out
export GANTRY_IFNAME=${GANTRY_IFNAME:-lo} # the rules are about the interface, not about this machine's network

rules=$("$gantry" check --list | wc -l)
for v in $versions; do
	skipped=1 # vdevice: there is one device; and what comes with later versions, contexts and the profiler
	[ "$v" -ge 11 ] || skipped=2
	[ "$v" -ge 10 ] || skipped=3
	# Only a rule that hangs takes so long.
	check_rules "$out" $((rules - skipped)) "$BUILD_DIR/lib/libnccl-net-gantry.so" --version "$v" --timeout 60 || failed=1
	grep -v '"verdict": "pass"' "$out"
	echo "v$v: $passed of $rules rules pass"
done
exit $failed
