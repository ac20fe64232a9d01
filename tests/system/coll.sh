#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_SECRET=alpha
# Every collective of the communicator, against results that the tool computes itself: 2, 3 and 5 ranks over each transport,
# sizes from 0 and odd ones; all types and operations; two hosts; threads; the order of sums; ranks of a launcher. And what
# `gantry perf` says of them: rows, columns, exit status. coll_all.sh forces algorithms and protocols.
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_SECRET
export GANTRY_LOG=warn
no_leaks
tested=("$gantry" perf)

if [ -n "${GANTRY_SANITIZED:-}" ]; then
	largest=4k
else
	largest=64k
fi
only="--check-only --json --timeout 200s"

# right ROWS: no element is wrong in any of them.
right() {
	check_json "$1" bytes count wrong_elements in_place_wrong_elements ranks root
	has out '"wrong_elements": 0, '
	like out '^\{"wrong_elements": 0, .*"ok": true'
}
# all_have FIELD VALUE: in every row with bytes.
all_have() { ! grep -v '"bytes": 0,' "$tmp/rows" | grep -qvE "\"$1\": $2[,}]" || die "rows whose $1 is not $2"; }

# How many there are depends on the ranks: sizes are whole elements for each.
rows() { grep -c '"bytes"' "$tmp/out"; }
for t in net shm p2p; do
	for n in 2 3 5; do
		expect 0 collectives --ranks $n --transport $t -b 0 -e $largest -f 64 --odd -r -1 $only
		right "$(rows)"
		all_have transport "\"$t\""
		for c in all_reduce reduce broadcast all_gather reduce_scatter all_to_all gather scatter barrier; do
			[ "$(grep -c "\"collective\": \"$c\"" "$tmp/rows")" -ge $([ $c = barrier ] && echo 1 || echo 4) ] || die "few rows of $c"
		done
		[ "$(grep '"collective": "scatter"' "$tmp/rows" | grep -oE '"root": [0-9]+' | sort -u | wc -l)" = $n ] || die "not every root"
	done
done
expect 0 collectives --ranks 3 -b 1000 -e 1000 -d all -o all $only
right $((3 * 6 * 12 + 5 * 12 + 1))
expect 0 collectives --ranks 1 -b 0 -e 4k -f 64 -d all -o all $only
right "$(rows)"
expect 0 collectives --ranks 4 --hosts 2 -b 0 -e $largest -f 64 $only
right "$(rows)"
like rows '"transport": "[a-z0-9+]*net'
like rows '"transport": "[a-z0-9+]*p2p'
expect 0 collectives --ranks 3 --threads -b 0 -e $largest -f 64 $only
right "$(rows)"
# Steps that the network takes from the input itself are those that are sent as they are: not what mulsum has to scale.
expect 0 all_reduce --ranks 3 --transport net --proto simple -b 200k -e 200k -d float,uint8 -o all $only
right 12
like rows '"mode": "[a-z+]*ptr'
# Floats whose sums depend on their order: all ranks have the same bits, and so has a second run.
expect 0 all_reduce --ranks 5 -b 10k -e 10k -d half,bfloat16,f8e4m3,f8e5m2,float,double -o all -c bits $only
right 36

# What is timed.
expect 0 all_reduce --ranks 2 -b 8 -e 4k -f 8 -n 10 --repeats 2 --json
check_json 4 bytes count time_us time_us_p99 algbw_gbs busbw_gbs in_place_time_us in_place_busbw_gbs wrong ranks
all_have redop '"sum"'
has header '"timing": "call"'
expect 0 broadcast --ranks 2 -b 4k -e 4k -n 10 --repeats 2 --in-place no --timing batch --json
check_json 1 time_us busbw_gbs
all_have in_place_time_us null
all_have time_us_p99 null
expect 0 reduce_scatter --ranks 2 -b 4k -e 4k -n 10 --repeats 1
has out "out-of-place"
has out "# Avg bus bandwidth    : "
has out "# wrong elements: 0; OK"
expect 0 all_gather -b 8 -e 8 -c 0 -n 1 --repeats 1
has out "N/A"
expect 0 barrier --ranks 3 --json
check_json 1 time_us time_us_p99
expect 0 all_reduce --help

# Started by somebody else: rank and size from the environment, the id in a file.
for rank in 2 1 0; do
	RANK=$rank WORLD_SIZE=3 MASTER_ADDR=here timeout 280 "$gantry" perf collectives --id-file "$tmp/id" --ifname lo -b 0 -e 4k -f 64 \
		$only >"$tmp/out.$rank" 2>"$tmp/err.$rank" &
	eval "pid$rank=$!"
done
wait $pid0 && wait $pid1 && wait $pid2 || { cat "$tmp"/err.*; die "ranks of a launcher"; }
cp "$tmp/out.0" "$tmp/out"
right "$(rows)"
[ ! -s "$tmp/out.1" ] || die "rank 1 prints too"
echo "ok: ranks of a launcher"

expect 2 all_reduce -d quad
expect 2 all_reduce -o xor
expect 2 reduce --ranks 2 -r 2
expect 2 all_reduce --algo nosuch
has err "GANTRY_ALGO"
expect 2 allreduce
has err "did you mean 'all_reduce'?"
exit $failed
