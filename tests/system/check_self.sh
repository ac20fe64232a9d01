#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Gantry's own plugin passes every rule at every version.
. "$(dirname "$0")/lib.sh"
versions="6 7 8 9 10 11 12"
[ -z "${GANTRY_SANITIZED:-}" ] || versions="8 12"
out=$tmp/out
export GANTRY_IFNAME=${GANTRY_IFNAME:-lo} # the rules are about the interface, not about this machine's network

rules=$("$gantry" check --list --table net | wc -l)
plugin=$BUILD_DIR/lib/libnccl-net-gantry.so
for v in $versions; do
	skipped=3 # vdevice: there is one device; GPU memory, unpack; and the profiler, which comes with v10
	[ "$v" -ge 10 ] || skipped=4
	# The oldest and the newest with a peer as late and a message as large as by default. Only a rule that hangs takes a minute.
	extent="--late 300ms --large 64M"
	[ "$v" -gt 6 ] && [ "$v" -lt 12 ] || extent=
	check_rules "$out" $((rules - skipped)) "$plugin" --table net --version "$v" --timeout 60 $extent || failed=1
	grep -v '"verdict": "pass"' "$out"
	echo "v$v: $passed of $rules rules pass"
done

# collNet, which it has only where NCCL wants it: the oldest version, without two operations, and the newest.
for v in 6 12; do
	n=$(($("$gantry" check --list --table collnet | wc -l) - (v < 8 ? 2 : 0)))
	NCCL_COLLNET_ENABLE=1 check_rules "$out" $n "$plugin" --table collnet --version $v --timeout 60 || failed=1
	echo "collnet v$v: $passed of $n rules pass"
done

# GIN and RMA. Before v13 there are no gets, before v12 no contexts.
for t in "gin 11 3" "gin 12 2" "gin 13 0" "rma 13 0" "rma 14 0" "rma 15 0" "rma 16 0" "rma 17 0"; do
	read -r table v skipped <<<"$t"
	[ -z "${GANTRY_SANITIZED:-}" ] || [[ "$t" == "gin 12"* || "$t" == "rma 17"* ]] || continue
	n=$(($("$gantry" check --list --table "$table" | wc -l) - skipped))
	GANTRY_GIN=on GANTRY_CONNECT_TIMEOUT=5s check_rules "$out" $n "$plugin" --table "$table" --version "$v" --timeout 60 || failed=1
	grep '"verdict": "fail"' "$out"
	echo "$table v$v: $passed of $n rules pass"
done
# Where the tables refuse, the rules are skipped with the reason.
GANTRY_GIN=off "$gantry" check "$plugin" --rule gin-put | grep -q 'skip.*init gives' || fail "GANTRY_GIN=off"

# The tuner at v2 to v7, the profiler at v1 to v6. With a trace it wants events; without one it must want none.
mkdir "$tmp/trace"
export GANTRY_TRACE=$tmp/trace
for t in "tuner 6" "profiler 6"; do
	n=$(($("$gantry" check --list --table "${t% *}" | wc -l) * ${t#* }))
	check_rules "$out" $n "$plugin" --table "${t% *}" --timeout 60 || failed=1
	grep -v '"verdict": "pass"' "$out"
	echo "${t% *}: $passed of $n rules pass"
done
unset GANTRY_TRACE
"$gantry" check "$plugin" --rule profiler-events --version 5 | grep -q 'skip.*the mask is 0' || fail "a mask without a trace"
exit $failed
