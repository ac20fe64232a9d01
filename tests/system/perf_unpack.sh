#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `gantry perf unpack` on the host device: every shape and kind is right, rows have all their fields, and wrong usage is
# told apart. Times are not looked at.
. "$(dirname "$0")/lib.sh"

"$gantry" perf unpack --check-only --json -e 1M --blocks 1,2,3 >"$tmp/check" || die "--check-only exits with $?"
grep -q '"wrong": 0}' "$tmp/check" || die "no row is right"
! grep '"wrong": [1-9]' "$tmp/check" || die "wrong bytes"
for shape in aligned mtu1500 even1500 mtu9000 even9000 odd random bytes; do
	n=$(grep -c "\"kind\": \"unpack\", \"shape\": \"$shape\"" "$tmp/check")
	[ "$n" = 3 ] || die "$n rows of shape $shape, expected 3"
done
[ "$(grep -c '"kind": "reduce"' "$tmp/check")" = 12 ] || die "not 12 rows of reductions"
[ "$(grep -c '"kind": "ring"' "$tmp/check")" = 3 ] || die "not 3 rows of the ring"

# With times: each field is a number.
"$gantry" perf unpack --json -e 256k --shape aligned --blocks 1 --repeats 1 --seed 7 >"$tmp/rows" || die "exits with $?"
want() { # kind, fields...
	local kind=$1 field
	shift
	for field; do
		grep "\"kind\": \"$kind\"" "$tmp/rows" | grep -q "\"$field\": [0-9]" || die "kind $kind has no number $field"
	done
}
want unpack blocks lanes bytes frags gbs seed_gbs copy_gbs ratio_seed ratio_copy wrong
want reduce fused_gbs two_step_gbs ratio_two_step wrong
want ring us_per_job launch_us jobs_per_s ratio_launch wrong
head -n 1 "$tmp/rows" | grep -q '"commit": .*"device_name"' || die "the first line does not describe the run"

# The whole device: as many blocks as it takes, and right.
"$gantry" perf unpack --check-only --json --kind unpack --shape odd -e 256k --blocks all,2 >"$tmp/all" || die "--blocks all exits with $?"
blocks=$(grep -o '"blocks": [0-9]*' "$tmp/all" | tr '\n' ' ')
case $blocks in
'"blocks": '[1-9]*' "blocks": 2 ') ;;
*) die "--blocks all,2 has $blocks" ;;
esac
[ "$blocks" != '"blocks": 2 "blocks": 2 ' ] || die "the whole host has two blocks"
[ "$(grep -c '"wrong": 0}' "$tmp/all")" = 2 ] || die "--blocks all is not right"

# Pages in mapped memory: as right, and the first line says so.
"$gantry" perf unpack --check-only --json --pages mapped --shape random -e 256k --blocks 2 >"$tmp/mapped" || die "--pages mapped exits with $?"
head -n 1 "$tmp/mapped" | grep -q '"pages": "mapped"' || die "the first line does not say where the pages are"
grep -q '"wrong": 0}' "$tmp/mapped" && ! grep '"wrong": [1-9]' "$tmp/mapped" || die "--pages mapped is not right"

"$gantry" perf unpack --shape nothing 2>"$tmp/err"
[ $? = 2 ] || die "an unknown shape is no wrong usage"
"$gantry" perf unpack --kind ring --shape odd 2>"$tmp/err"
[ $? = 2 ] || die "a ring with another shape is no wrong usage"
"$gantry" perf unpack --blocks 0 2>"$tmp/err"
[ $? = 2 ] && grep -q -- "--blocks 0" "$tmp/err" || die "no blocks at all is not refused with a reason"
echo "all shapes and kinds are right"
