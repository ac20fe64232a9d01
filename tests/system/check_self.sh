#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# also with: GANTRY_SECRET=alpha
# Gantry's own plugin passes every rule at every version.
set -u
. "$SOURCE_DIR/tests/system/lib_tries.sh"
versions="6 7 8 9 10 11 12"
[ -z "${GANTRY_SANITIZED:-}" ] || versions="8 12"
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failures=0
export GANTRY_IFNAME=${GANTRY_IFNAME:-lo} # the rules are about the interface, not about this machine's network

rules=$("$BUILD_DIR/gantry" check --list | wc -l)
for v in $versions; do
	# Only a rule that hangs takes so long.
	check_rules "$out" "$rules" "$BUILD_DIR/lib/libnccl-net-gantry.so" --version "$v" --timeout 60 || failures=$((failures + 1))
	grep -v '"verdict": "pass"' "$out"
	echo "v$v: $passed of $rules rules pass"
done
exit $((failures > 0))
