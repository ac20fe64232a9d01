#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One-sided puts between processes: every byte, over each transport, into memory that can be mapped and memory that cannot,
# which then goes over the network whatever connects the ranks; and what is said where that is forbidden. A rank that is
# killed is named to those that wait for its signal.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn
no_leaks
tested=("$gantry" perf put)
only="--check-only --json --timeout 200s"
largest=$([ -n "${GANTRY_SANITIZED:-}" ] && echo 256k || echo 1M)

right() {
	check_json "$1" bytes count wrong_elements ranks
	like out '^\{"wrong_elements": 0, .*"ok": true'
}
for t in net shm p2p; do
	for n in 2 3; do
		expect 0 --ranks $n --transport $t -b 0 -e $largest -f 64 --odd $only
		right "$(grep -c '"bytes"' "$tmp/out")"
		has rows "\"transport\": \"$t\""
	done
done
like rows '"mode": "none"' # by kernels: no step of a connection
expect 0 --ranks 3 --buffers plain -b 1 -e $largest -f 64 -d int8 $only
right "$(grep -c '"bytes"' "$tmp/out")"
like rows '"mode": "[a-z+]*ptr'
like rows '"mode": "[a-z+]*normal'
expect 0 --ranks 4 --hosts 2 -b 1000 -e 1000 -d int8 $only
right 1
expect 0 --ranks 1 -b 1000 -e 1000 -d int8 $only
right 1
expect 1 --ranks 2 --transport shm --buffers plain -b 8 -e 8
has err "excludes net"
GANTRY_NET_STEP=16k GANTRY_PTR=off expect 0 --ranks 2 --transport net -b 200k -e 200k $only
right 1

# The parent watches its ranks and would end them itself: what they say is in the log.
for t in net p2p; do
	GANTRY_TIMEOUT=3s "$gantry" perf put --timeout 30s --ranks 3 --transport $t -b 64 -e 64 -n 100000000 --repeats 101 \
		>"$tmp/out" 2>"$tmp/err" &
	pid=$!
	for _ in $(seq 100); do
		[ "$(pgrep -P $pid | wc -l)" = 3 ] && break
		sleep 0.05
	done
	sleep 1
	kill -9 "$(children_of $pid | sed -n 2p)" || die "there is no second rank"
	wait $pid && die "a rank was killed, and all is well"
	like err 'rank 1'
	echo "ok: a rank killed over $t"
done
exit $failed
