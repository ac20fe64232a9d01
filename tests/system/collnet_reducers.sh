#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# A communicator whose reducers are processes of their own: results are right, a reducer that nobody reaches is left out,
# without any other algorithms are used and the log says why, and one that dies is an error that names it on all ranks, in
# time, also on those that another rank of their host sends for. GANTRY_REDUCERS alone has the cost model consider them.
. "$(dirname "$0")/lib.sh"
no_leaks
own_network "$0"
clean_environment
export GANTRY_IFNAME=lo GANTRY_LOG=warn GANTRY_CONNECT_TIMEOUT=20s
pids=
at_exit() { for p in $pids; do { kill -KILL "$p" && wait "$p"; } 2>/dev/null; done; }
now_ms() { awk '{ printf "%d\n", $1 * 1000 }' /proc/uptime; }
op=all_reduce

# serve NUMBER: a reducer on port 18600 + NUMBER; its process in $served.
serve() {
	"$gantry" reducer --listen 127.0.0.1:$((18600 + $1)) --json >"$tmp/reducer$1.out" 2>"$tmp/reducer$1.err" &
	served=$! pids="$pids $!"
	await grep -q listening "$tmp/reducer$1.out" || die "reducer $1 does not listen"
}
# right ALGORITHM ARGUMENT...: an all-reduce ($op) is right and goes by that.
right() {
	local algo=$1
	shift
	timeout 100 "$gantry" perf $op --ranks 3 --hosts 3 --transport collnet "$@" --check-only --json >"$tmp/out" 2>"$tmp/err" || die "$*: exit status $?"
	like out '^\{"wrong_elements": 0, .*"ok": true'
	! grep '"bytes"' "$tmp/out" | grep -qvE "\"algo\": \"$algo\"" || die "$*: not by $algo"
	echo "ok: $op $* by $algo ($SECONDS s)"
}
serve 0
serve 1
export GANTRY_REDUCERS=127.0.0.1:18600,127.0.0.1:18601
right collnet -b 8 -e 1M -f 40 -d half,float -o sum,avg -c bits
lacks err WARN
for i in 0 1; do grep -q '"ranks": *3' "$tmp/reducer$i.out" || die "reducer $i has had no job of three ranks: $(cat "$tmp/reducer$i.out")"; done
begun() { grep -c '"event": "begun"' "$tmp/reducer0.out"; }
# An all-gather goes past them: ranks connect, and no piece comes.
before=$(begun)
op=all_gather
right '[abd-z][a-z0-9]*' -b 64 -e 1M -f 40 -d half,float
lacks err WARN
op=all_reduce
await eval '[ "$(begun)" -gt "$before" ]' || die "all_gather: the reducers have no job"
job=$(grep '"event": "begun"' "$tmp/reducer0.out" | tail -n +$((before + 1)) | sed -nE '1s/.*"job": "([0-9a-f]+)".*/\1/p')
ended() { grep "\"event\": \"ended\", \"job\": \"$job\"" "$tmp/reducer0.out"; }
await ended >/dev/null || die "all_gather: job $job does not end"
ended | grep -q '"pieces": 0, "received_bytes": 0, "sent_bytes": 0,' || die "all_gather: $(ended)"
echo "ok: all_gather: $(ended)"
# The list alone offers them to the cost model: it has an estimate, and the reducers have a job.
before=$(begun)
"$gantry" perf all_reduce --ranks 3 --hosts 3 -b 1M -e 1M -n 1 -w 0 --repeats 1 --explain >"$tmp/out" 2>"$tmp/err" || die "GANTRY_REDUCERS alone: exit status $?"
like out '^# +collnet +[0-9.]+'
await eval '[ "$(begun)" -gt "$before" ]' || die "GANTRY_REDUCERS alone: the reducers have no job"
echo "ok: GANTRY_REDUCERS alone"
GANTRY_CONNECT_TIMEOUT=2s GANTRY_REDUCERS=$GANTRY_REDUCERS,127.0.0.1:18609 right collnet -b 1k -e 100k -f 100
like err 'WARN net: rank [0-2]: 2 of 3 reducers are used: reducer 2 '
GANTRY_REDUCERS=127.0.0.1:18600,127.1:18600 right collnet -b 1k -e 1k
like err 'goes on without reducer [01] of 2 .*: GANTRY_REDUCERS must be the same on all ranks and name each reducer once'
GANTRY_CONNECT_TIMEOUT=2s GANTRY_REDUCERS=127.0.0.1:18609 right '[abd-z][a-z0-9]*' -b 1k -e 1k
like err 'rank 0 gantry WARN comm: collnet is unavailable, using other algorithms: rank [0-2]: none of the 1 reducers of GANTRY_REDUCERS serves all ranks: .*: Connection refused \(nothing is listening there yet\)$'

# A reducer is killed in the midst of it. Ranks as a launcher starts them: each says what it was told.
dies() {
	local begun ended late=0 jobs= p i
	serve 2
	for i in 3 2 1 0; do
		RANK=$i WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=4610 GANTRY_HOST_ID=h$((i / 2)) GANTRY_REDUCERS=127.0.0.1:18600,127.0.0.1:18602 \
			timeout 100 "$gantry" perf all_reduce --transport collnet -b 4k -e 4k -n 1000000 --repeats 1 --in-place no >"$tmp/$i.out" 2>"$tmp/$i.err" &
		jobs="$jobs $!"
	done
	await grep -q '"ranks": *2' "$tmp/reducer2.out" || die "no job at the reducer"
	sleep 0.3
	begun=$(now_ms)
	{ kill -KILL $served && wait $served; } 2>/dev/null
	for p in $jobs; do
		! wait $p || die "the death of a reducer is no error"
	done
	ended=$(now_ms)
	for i in 0 1 2 3; do
		grep -qE "rank $i failed .*: ERR_PEER_[A-Z]+: .*reducer 1 of 2 \(127.0.0.1:[0-9]+ " "$tmp/$i.err" || { cat "$tmp/$i.err"; late=1; }
	done
	echo "a reducer that is killed: all ranks ended after $((ended - begun)) ms"
	[ $late = 0 ] && [ $((ended - begun)) -le $((${GANTRY_TIMEOUT%s} * 1000 + LATE_MS)) ]
}
with_deadlines dies || fail "the death of a reducer"
right collnet -b 1k -e 1k
exit $failed
