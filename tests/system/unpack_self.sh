#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Gantry's own plugin with the emulated NIC passes every rule as device type UNPACK, and perf moves every byte over it.
. "$(dirname "$0")/lib.sh"
versions="9 12"
largest=4M
if [ -n "${GANTRY_SANITIZED:-}" ]; then
	versions="12"
	largest=256k
fi
out=$tmp/out
export GANTRY_UNPACK=emulated NCCL_PAT_ENABLE=0 GANTRY_IFNAME=${GANTRY_IFNAME:-lo}

rules=$("$gantry" check --list --table net | wc -l)
for v in $versions; do
	# All but grouped receives (two rules), registrations of users and flushes of GPU memory, which this device type does
	# not have, vdevice, and what comes with later versions. Only a rule that hangs takes a minute.
	skipped=5
	[ "$v" -ge 11 ] || skipped=6
	[ "$v" -ge 10 ] || skipped=7
	check_rules "$out" $((rules - skipped)) "$BUILD_DIR/lib/libnccl-net-gantry.so" --table net --version "$v" \
		--device host --timeout 60 || failed=1
	grep -v '"verdict": "pass"' "$out"
	echo "v$v: $passed of $rules rules pass"
	grep -q 'maxRecvs 1, ptrSupport 0x3' "$out" || { echo "v$v: the properties are not those of UNPACK"; failed=1; }
done
"$gantry" perf net --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so" -b 1000 -e $largest -f 16 -n 200 --repeats 1 \
	--depth 16 --timeout 200s >"$out" 2>&1
rc=$?
tail -8 "$out"
[ $rc -eq 0 ] && grep -q 'wrong bytes: 0; OK' "$out" || failed=1
exit $failed
