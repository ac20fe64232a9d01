#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `gantry perf unpack` on the host device: every shape and kind is right, rows have all their fields, and wrong usage is
# told apart. Times are not looked at.
set -u
tool=${BUILD_DIR:?the folder of the build}/gantry
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$tool" perf unpack --check-only --json -e 1M --blocks 1,2,3 >"$scratch/check" || fail "--check-only exits with $?"
grep -q '"wrong": 0}' "$scratch/check" || fail "no row is right"
! grep '"wrong": [1-9]' "$scratch/check" || fail "wrong bytes"
for shape in aligned mtu1500 even1500 mtu9000 even9000 odd random bytes; do
	n=$(grep -c "\"kind\": \"unpack\", \"shape\": \"$shape\"" "$scratch/check")
	[ "$n" = 3 ] || fail "$n rows of shape $shape, expected 3"
done
[ "$(grep -c '"kind": "reduce"' "$scratch/check")" = 12 ] || fail "not 12 rows of reductions"
[ "$(grep -c '"kind": "ring"' "$scratch/check")" = 3 ] || fail "not 3 rows of the ring"

# With times: each field is a number.
"$tool" perf unpack --json -e 256k --shape aligned --blocks 1 --repeats 1 --seed 7 >"$scratch/rows" || fail "exits with $?"
want() { # kind, fields...
	local kind=$1 field
	shift
	for field; do
		grep "\"kind\": \"$kind\"" "$scratch/rows" | grep -q "\"$field\": [0-9]" || fail "kind $kind has no number $field"
	done
}
want unpack blocks lanes bytes frags gbs seed_gbs copy_gbs ratio_seed ratio_copy wrong
want reduce fused_gbs two_step_gbs ratio_two_step wrong
want ring us_per_job launch_us jobs_per_s ratio_launch wrong
head -n 1 "$scratch/rows" | grep -q '"commit": .*"device_name"' || fail "the first line does not describe the run"

# The whole device: as many blocks as it takes, and right.
"$tool" perf unpack --check-only --json --kind unpack --shape odd -e 256k --blocks all,2 >"$scratch/all" || fail "--blocks all exits with $?"
blocks=$(grep -o '"blocks": [0-9]*' "$scratch/all" | tr '\n' ' ')
case $blocks in
'"blocks": '[1-9]*' "blocks": 2 ') ;;
*) fail "--blocks all,2 has $blocks" ;;
esac
[ "$blocks" != '"blocks": 2 "blocks": 2 ' ] || fail "the whole host has two blocks"
[ "$(grep -c '"wrong": 0}' "$scratch/all")" = 2 ] || fail "--blocks all is not right"

# Pages in mapped memory: as right, and the first line says so.
"$tool" perf unpack --check-only --json --pages mapped --shape random -e 256k --blocks 2 >"$scratch/mapped" || fail "--pages mapped exits with $?"
head -n 1 "$scratch/mapped" | grep -q '"pages": "mapped"' || fail "the first line does not say where the pages are"
grep -q '"wrong": 0}' "$scratch/mapped" && ! grep '"wrong": [1-9]' "$scratch/mapped" || fail "--pages mapped is not right"

"$tool" perf unpack --shape nothing 2>"$scratch/err"
[ $? = 2 ] || fail "an unknown shape is no wrong usage"
"$tool" perf unpack --kind ring --shape odd 2>"$scratch/err"
[ $? = 2 ] || fail "a ring with another shape is no wrong usage"
"$tool" perf unpack --blocks 0 2>"$scratch/err"
[ $? = 2 ] && grep -q -- "--blocks 0" "$scratch/err" || fail "no blocks at all is not refused with a reason"
echo "all shapes and kinds are right"
