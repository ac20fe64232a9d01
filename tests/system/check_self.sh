#!/bin/bash
# labels: slow
# Gantry's own plugin passes every rule at every version.
set -u
versions="6 7 8 9 10 11 12"
timeout=10
if [ -n "${GANTRY_SANITIZED:-}" ]; then
	versions="8 12"
	timeout=40
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failures=0

for v in $versions; do
	# Loopback: the rules are about the interface, not about this machine's network.
	GANTRY_IFNAME=${GANTRY_IFNAME:-lo} "$BUILD_DIR/gantry" check "$BUILD_DIR/libnccl-net-gantry.so" \
		--version "$v" --timeout "$timeout" --json >"$out"
	rc=$?
	grep -v '"verdict": "pass"' "$out"
	passed=$(grep -c '"verdict": "pass"' "$out")
	rules=$("$BUILD_DIR/gantry" check --list | wc -l)
	echo "v$v: $passed of $rules rules pass, exit status $rc"
	[ $rc -eq 0 ] && [ "$passed" -eq "$rules" ] || failures=$((failures + 1))
done
exit $((failures > 0))
