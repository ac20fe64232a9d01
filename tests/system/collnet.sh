#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# All-reduce through reducers: ranks of hosts of their own, and hosts of several ranks and of different sizes; all types and
# operations, odd sizes, in place and not; results that are the same bits on all ranks and in all runs; two hops, which the
# trace shows. What cannot go that way goes another one, right, and the reason is in the log and in --explain.
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_SECRET
export GANTRY_LOG=warn
no_leaks
tested=("$gantry" perf)

# right ALGORITHM ARGUMENT...: `perf all_reduce` ($op) with these is right and goes by that.
op=all_reduce
right() {
	local algo=$1
	shift
	timeout 100 "$gantry" perf $op "$@" --check-only --json --timeout 90s >"$tmp/out" 2>"$tmp/err" || die "$op $*: exit status $?"
	like out '^\{"wrong_elements": 0, .*"ok": true'
	grep '"bytes"' "$tmp/out" >"$tmp/rows" || die "no rows"
	! grep -qvE "\"algo\": \"$algo\"" "$tmp/rows" || die "$op $*: not all by $algo"
	echo "ok: $op $*: $(wc -l <"$tmp/rows") rows ($SECONDS s)"
}
numbers=${GANTRY_SANITIZED:+3} # which take many times as long
for n in ${numbers:-2 3 4}; do
	right collnet --ranks $n --hosts $n --algo collnet -b 1000 -e 1000 -d all -o all
	right collnet --ranks $n --hosts $n --transport collnet -b 3 -e 400k -f 50 --odd -d int8
done
right collnet --ranks 5 --hosts 2 --transport collnet -b 1000 -e 1000 -d half,float,uint64 -o all
right collnet --ranks 5 --hosts 3 --algo collnet -b 8 -e 3M -f 37 -o avg
right collnet --ranks 3 --hosts 3 --algo collnet -b 100k -e 100k -d half,bfloat16,float,double -o sum,prod,avg,mulsum -c bits
right collnet --ranks 4 --hosts 2 --algo collnet -b 100k -e 100k -d half,float -o sum,avg -c bits
grep -q '"transport": "[a-z0-9+]*collnet' "$tmp/rows" || die "the transport is not named"
GANTRY_PTR=0 right collnet --ranks 2 --hosts 2 --algo collnet -b 1M -e 1M
# Reductions of which one rank has the result, or each a part.
for op in reduce reduce_scatter; do
	for n in ${numbers:-2 3 4}; do
		right collnet --ranks $n --hosts $n --algo collnet -b 1000 -e 1000 -d all -o all
	done
	right collnet --ranks 3 --hosts 3 --transport collnet -b 30 -e 400k -f 50 --odd -d int8
	right collnet --ranks 5 --hosts 2 --transport collnet -b 1000 -e 1000 -d half,float,uint64 -o all
	right collnet --ranks 5 --hosts 3 --algo collnet -b 64 -e 3M -f 37 -o avg
	right collnet --ranks 4 --hosts 2 --algo collnet -b 100k -e 100k -d half,float -o sum,avg,mulsum -c bits
	GANTRY_PTR=0 right collnet --ranks 2 --hosts 2 --algo collnet -b 1M -e 1M
done
op=reduce
for root in 0 1 2 3 4; do # which is the first of its host or not
	right collnet --ranks 5 --hosts 2 --algo collnet -r $root -b 64 -e 1M -f 37
done
op=all_reduce
lacks err WARN

# Several channels, each with connections of its own.
device="$BUILD_DIR/fixtures/libnccl-net-device.so"
export GANTRY_SPLIT_MIN=4096
for op in all_reduce reduce reduce_scatter; do
	right collnet --ranks 3 --hosts 3 --algo collnet --channels 3 -b 64 -e 3M -f 37
	GANTRY_TEST_MAX_COLL=10000 GANTRY_NET_PLUGIN=$device right collnet --ranks 4 --hosts 2 --algo collnet --channels 4 -b 64 -e 1M -f 61
done
op=all_reduce
expect 0 all_reduce --ranks 3 --hosts 3 --algo collnet --channels 3 -b 1M -e 1M --check-only --explain
like out '^# +all_reduce of 1 MiB, .*: collnet, simple, channels 3,'
unset GANTRY_SPLIT_MIN

# Asked for and not forced: the cost model may take it, and says what it costs.
GANTRY_COLLNET=1 right '[a-z0-9]*' --ranks 3 --hosts 3 -b 4k -e 4k
GANTRY_COLLNET=1 expect 0 all_reduce --ranks 3 --hosts 3 -b 4k -e 4k --check-only --explain
like out '^# +collnet +[0-9.]+\*? +- +- +0 \+ 2$'

# Without them.

right '[abd-z][a-z0-9]*' --ranks 2 --algo collnet -b 4k -e 4k
like err 'rank 0 gantry WARN comm: collnet is unavailable, using other algorithms: all ranks are on one host$'
[ "$(wc -l <"$tmp/err")" = 1 ] || die "more than one line"
expect 0 all_reduce --ranks 2 --algo collnet -b 4k -e 4k --check-only --explain
like out '^# +collnet .* not for this: all ranks are on one host$'
expect 0 all_reduce --ranks 3 --hosts 3 -b 4k -e 4k --check-only --explain
like out '^# +collnet .* not for this: not enabled \(GANTRY_COLLNET\)$'

# An all-gather goes past reducers, though they are there and asked for by every name: docs/reducer.md has the bytes.
past='[abd-z][a-z0-9]*'
op=all_gather
for n in ${numbers:-2 3 4}; do
	right "$past" --ranks $n --hosts $n --algo collnet -b 1000 -e 1000 -d all
	right "$past" --ranks $n --hosts $n --transport collnet -b 30 -e 400k -f 50 --odd -d int8
done
right "$past" --ranks 5 --hosts 2 --algo collnet -b 64 -e 3M -f 37
right "$past" --ranks 5 --hosts 3 --algo collnet --register 0 -b 64 -e 3M -f 37
GANTRY_SPLIT_MIN=4096 right "$past" --ranks 3 --hosts 3 --algo collnet --channels 3 -b 64 -e 3M -f 37
GANTRY_PTR=0 right "$past" --ranks 4 --hosts 2 --algo collnet -b 1M -e 1M
lacks err WARN
op=all_reduce
# --explain gives what no setting changes, whether there are reducers or not.
no_fewer='^# +collnet .* not for this: reducers do not lower the bytes that a host receives$'
expect 0 all_gather --ranks 3 --hosts 3 --algo collnet -b 4k -e 4k --check-only --explain
like out "$no_fewer"
expect 0 all_gather --ranks 3 --hosts 3 -b 4k -e 4k --check-only --explain
like out "$no_fewer"
expect 0 all_gather --ranks 2 --algo collnet -b 4k -e 4k --check-only --explain
like out "$no_fewer"
expect 0 broadcast --ranks 3 --hosts 3 --algo collnet -b 4k -e 4k --check-only --explain
like out '^# +collnet .* not for this: reducers do reductions only$'

# A foreign network: by its plugin's collNet table, if that wants to be used.
foreign="$BUILD_DIR/lib/libnccl-net-gantry.so"
NCCL_COLLNET_ENABLE=1 GANTRY_NET_PLUGIN=$foreign right collnet --ranks 3 --hosts 3 --algo collnet -b 3 -e 400k -f 50 --odd -d int8 -o max
NCCL_COLLNET_ENABLE=1 GANTRY_NET_PLUGIN=$foreign right collnet --ranks 4 --hosts 2 --algo collnet -b 1000 -e 1000 -d half,float,uint64 -o all
other="$BUILD_DIR/broken/libnccl-net-broken_none.so" # which has no types of 16 and 8 bits
GANTRY_NET_PLUGIN=$other right collnet --ranks 3 --hosts 3 --algo collnet -b 1000 -e 1000 -d int8,uint64,float,double -o all
GANTRY_NET_PLUGIN=$other right '[abd-z][a-z0-9]*' --ranks 3 --hosts 3 --algo collnet -b 1000 -e 1000 -d half -o sum
like err 'rank 0 gantry WARN comm: collnet: the network does not support reduction 0 of half; using another algorithm$'
GANTRY_NET_PLUGIN=$other expect 0 all_reduce --ranks 2 --hosts 2 --algo collnet -b 4k -e 4k -d half --check-only --explain
like out '^# +collnet .* not for this: the network does not support the type$'
op=all_gather # though both tables have iallgather
NCCL_COLLNET_ENABLE=1 GANTRY_NET_PLUGIN=$foreign right "$past" --ranks 3 --hosts 3 --algo collnet -b 64 -e 1M -f 61
GANTRY_NET_PLUGIN=$other right "$past" --ranks 3 --hosts 3 --algo collnet -b 64 -e 1M -f 61
lacks err WARN
op=all_reduce
# Slices are cut to what the plugin takes at once, by the least of all hosts.
for most in 100000 4097 64 15; do
	GANTRY_TEST_MAX_COLL=$most GANTRY_NET_PLUGIN=$device right collnet --ranks 3 --hosts 3 --algo collnet -b 8 -e 30k -f 61 -d double,int32 -o sum,max
done
GANTRY_TEST_MAX_COLL=100000 GANTRY_NET_PLUGIN=$device right collnet --ranks 4 --hosts 2 --algo collnet -b 3M -e 3M
for op in reduce reduce_scatter; do
	GANTRY_TEST_MAX_COLL=100000 GANTRY_NET_PLUGIN=$device right collnet --ranks 4 --hosts 2 --algo collnet -b 64 -e 3M -f 61 -d double,int32 -o sum,max
done
op=all_reduce
for rank in 1 0; do
	GANTRY_TEST_MAX_COLL=$((5000 << rank)) GANTRY_NET_PLUGIN=$device GANTRY_HOST_ID=$rank RANK=$rank WORLD_SIZE=2 MASTER_ADDR=here timeout 100 \
		"$gantry" perf all_reduce --id-file "$tmp/cut.id" --algo collnet -b 100k -e 100k --check-only --json >"$tmp/out.$rank" 2>&1 &
	eval "pid$rank=$!"
done
wait $pid0 && wait $pid1 && grep -q '"algo": "collnet"' "$tmp/out.0" || { cat "$tmp"/out.?; die "hosts with different maxCollBytes"; }
GANTRY_TEST_MAX_COLL=7 GANTRY_NET_PLUGIN=$device right '[abd-z][a-z0-9]*' --ranks 2 --hosts 2 --algo collnet -b 4k -e 4k
like err 'maxCollBytes of collNet is 7'

GANTRY_NET_PLUGIN=$foreign expect 0 all_reduce --ranks 2 --hosts 2 --algo collnet -b 4k -e 4k --check-only --explain
like out '^# +collnet .* not for this: rank 0: gantry \(v12\): collNet init gave '
like err 'WARN comm: collnet is unavailable, using other algorithms: rank 0: gantry \(v12\): collNet init gave '

# A rank sends its 4 KiB, behind a header, to a reducer and gets as much back: two of three ranks, the third is the reducer.
GANTRY_TRACE=$tmp/%r.jsonl expect 0 all_reduce --ranks 3 --hosts 3 --transport collnet -b 4k -e 4k -n 3 -w 0 --repeats 1 --in-place no -c 0
calls=$(grep -c '"name":"collective".*"bytes":4096,.*"algo":"collnet".*"end":1' "$tmp/0.jsonl")
[ "$calls" -ge 3 ] || die "$calls calls in the trace"
for tag in 0 1; do # to reducers, and from them
	n=$(cat "$tmp"/?.jsonl | grep -c "\"name\":\"send posted\".*\"bytes\":4160,\"tag\":$tag")
	[ "$n" = $((2 * calls)) ] || die "$n messages with tag $tag in $calls calls, expected two for each"
done
[ "$(cat "$tmp"/?.jsonl | grep '"name":"send posted"' | grep -vc '"bytes":\(4160\|64\),')" = 0 ] || die "other messages"
echo "ok: two hops: $n messages of 4 KiB to reducers and as many from them in $calls calls of 3 ranks"
exit $failed
