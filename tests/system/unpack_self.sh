#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Gantry's own plugin with the emulated NIC passes every rule as device type UNPACK, and perf moves every byte over it.
set -u
. "$SOURCE_DIR/tests/system/lib_tries.sh"
versions="9 12"
largest=4M
if [ -n "${GANTRY_SANITIZED:-}" ]; then
	versions="12"
	largest=256k
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failures=0
export GANTRY_UNPACK=emulated NCCL_PAT_ENABLE=0 GANTRY_IFNAME=${GANTRY_IFNAME:-lo}

rules=$("$BUILD_DIR/gantry" check --list | wc -l)
for v in $versions; do
	# All but grouped receives, which this device type does not have. Only a rule that hangs takes a minute.
	check_rules "$out" $((rules - 1)) "$BUILD_DIR/lib/libnccl-net-gantry.so" --version "$v" --timeout 60 ||
		failures=$((failures + 1))
	grep -v '"verdict": "pass"' "$out"
	echo "v$v: $passed of $rules rules pass"
	grep -q 'maxRecvs 1, ptrSupport 0x3' "$out" || { echo "v$v: the properties are not those of UNPACK"; failures=$((failures + 1)); }
done
"$BUILD_DIR/gantry" perf net --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so" -b 1000 -e $largest -f 16 -n 200 --repeats 1 \
	--depth 16 --timeout 200s >"$out" 2>&1
rc=$?
tail -8 "$out"
[ $rc -eq 0 ] && grep -q 'wrong bytes: 0; OK' "$out" || failures=$((failures + 1))
exit $((failures > 0))
