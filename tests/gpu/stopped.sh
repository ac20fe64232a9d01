#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One of several ranks on a GPU is stopped (SIGSTOP) while all-reduces run on NCCL's API in place of NCCL (gantry run): streams of
# the others do not complete, ncclCommGetAsyncError names the rank within the deadline, ncclCommAbort ends the streams within a
# second, and a communicator of the ranks that are left reduces rightly. Over each transport. RANKS: how many (4).
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
sleep 1
failed=0 ranks=${RANKS:-4} stopped=2
export GANTRY_TIMEOUT=5s GANTRY_IFNAME=lo STOPPED=$stopped DEADLINE=5
# stop_one TRANSPORT
stop_one()
{
	local out=$scratch/$1 job pid=
	export DIR=$scratch/dir.$1
	mkdir -p "$DIR"
	GANTRY_TRANSPORT=$1 timeout 200 "$BUILD_DIR/gantry" run -n "$ranks" -- python3 "$here/stopped_rank.py" >"$out" 2>"$out.err" &
	job=$!
	for _ in $(seq 900); do
		[ "$(grep -c ' runs$' "$out")" != "$ranks" ] || break
		kill -0 $job 2>/dev/null || break
		sleep 0.1
	done
	pid=$(sed -nE "s/^.*rank $stopped pid ([0-9]+) runs\$/\\1/p" "$out")
	if [ -n "$pid" ]; then
		kill -STOP "$pid"
		echo "$1: rank $stopped (pid $pid) is stopped"
		for _ in $(seq 900); do
			[ "$(ls "$DIR" | grep -c '^done\.')" != $((ranks - 1)) ] || break
			grep -q FAILED "$out" && break
			kill -0 $job 2>/dev/null || break
			sleep 0.1
		done
		sleep 0.5
		kill -KILL "$pid" 2>/dev/null
	else
		kill $job 2>/dev/null
	fi
	wait $job # what it returns is about the rank that was killed
	if [ "$(grep -c ' wrong 0$' "$out")" = $((ranks - 1)) ] && ! grep -q FAILED "$out"; then
		grep -E 'rank 0 (error|stream|abort|ok)' "$out" | sed "s/^/ok: $1: /"
	else
		failed=1
		echo "FAILED: $1"
		tail -n 30 "$out" "$out.err"
	fi
}
for transport in p2p shm net; do stop_one $transport; done
exit $failed
