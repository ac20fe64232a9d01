#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_SECRET=alpha
# The examples and `gantry perf rx`, over all paths: every byte right, the path line says why, wrong arguments and a failed
# start are named and leave no process behind, and IPv6 alone is enough.
. "$(dirname "$0")/lib.sh"
own_network "$0"
clean_environment GANTRY_SECRET
export GANTRY_IFNAME=lo GANTRY_LOG=warn

# run STATUS PROGRAM ARGUMENT...: an example, which must end with that.
run() { expect "$1" "$BUILD_DIR/examples/$2" "${@:3}"; }

# example PATH REASON: 0 wrong, and the line.
example() {
	GANTRY_RX_PATH=$1 run 0 rx_tensor 3000001
	grep -qxF "3000001 bytes over $2" "$tmp/out" || die "the path line of $1 is not: $2"
	grep -qxF "0 wrong" "$tmp/out" || die "wrong bytes over $1"
	echo "ok: $2"
}
example auto "host: the device is the host, whose memory every NIC can reach"
example host "host: requested by GANTRY_RX_PATH"
example emulated "unpack (emulated NIC): requested by GANTRY_RX_PATH"

run 0 kernel_put 3000001
for rank in 0 1; do
	has out "rank $rank: 3000001 bytes put and received by 4 kernels"
done
grep -qxF "0 wrong" "$tmp/out" || die "wrong bytes by kernels"
echo "ok: kernels that put"

for transport in p2p shm net; do
	GANTRY_TRANSPORT=$transport run 0 sendrecv 3000001
	for rank in 0 1; do
		has out "rank $rank: 3000001 bytes each way over $transport"
	done
	grep -qxF "0 wrong" "$tmp/out" || die "wrong bytes over $transport"
done
echo "ok: sendrecv"
for transport in p2p shm net; do
	GANTRY_TRANSPORT=$transport run 0 all_reduce 3000001
	for rank in 0 1; do
		has out "rank $rank: the sum of 750001 floats over $transport"
	done
	grep -qxF "0 wrong" "$tmp/out" || die "wrong sums over $transport"
done
echo "ok: all_reduce"

for program in rx_tensor sendrecv all_reduce; do
	for bytes in abc -5 0 12x '' 99999999999999999999; do
		run 2 $program "$bytes"
		has err "'$bytes' is no number of bytes above 0"
	done
	run 2 $program 5 gpu
	has err "'gpu' is no device; there are: host, cuda"
	run 2 $program 5 host 7
	has err "usage: "
	# Sanitizers end a program that asks for too much, unless they are told not to.
	ASAN_OPTIONS=${ASAN_OPTIONS:-}:allocator_may_return_null=1 TSAN_OPTIONS=${TSAN_OPTIONS:-}:allocator_may_return_null=1 \
		run 1 $program 900000000000000000
	has err "no memory for"
	GANTRY_IFNAME=nosuch run 1 $program 5
	has err "a parameter or option is wrong"
	[ ! -s "$tmp/out" ] || die "$program goes on after a failure"
done
echo "ok: wrong arguments and failed starts"

# The processes of an example that was started in a session of its own; zombies do not count.
members() { ps -o pid=,stat=,comm= -s "$1" | awk -v name="$2" '$2 !~ /^Z/ && $3 == name { print $1 }' | sort -n; }
none_left() { [ -z "$(members "$1" "$2")" ]; }
# kill_in PROGRAM WHICH: starts it, kills that one of its three processes, and leaves its status in $status and its
# session in $session. The bytes take long, but a loaded machine may take longer to look: then once more.
kill_in() {
	local victim=
	for _ in 1 2 3 4 5; do
		GANTRY_TRANSPORT=net setsid "$BUILD_DIR/examples/$1" 300000000 >"$tmp/out" 2>"$tmp/err" &
		session=$! status=0
		until victim=$(members $session "$1" | sed -n "$2p") && [ -n "$victim" ] || all_gone $session; do :; done
		[ -z "$victim" ] || kill -KILL "$victim" 2>/dev/null
		wait $session 2>/dev/null || status=$?
		[ $status = 0 ] || return
	done
	die "$1 is never there to be killed"
}
if command -v ps >/dev/null && command -v setsid >/dev/null; then
	for program in rx_tensor sendrecv; do
		kill_in $program 1
		[ $status = 137 ] || die "$program gives $status when it is killed"
		await none_left $session $program || die "$program leaves processes behind when it is killed"
		for process in 2 3; do
			kill_in $program $process
			[ $status = 1 ] || die "$program gives $status when its process $process is killed"
			has err ": ended by signal 9"
			await none_left $session $program || die "$program leaves a process behind when the other is killed"
		done
	done
	echo "ok: no process stays behind"
fi

perf() {
	timeout 280 "$gantry" perf rx --json --repeats 1 "$@" >"$tmp/out" 2>"$tmp/err" || die "perf rx $* gives $?"
	for f in bytes gbs raw_gbs ratio wrong pieces streams; do
		grep -q "\"$f\": [0-9]" "$tmp/out" || die "perf rx $*: no number for $f"
	done
	grep -q '"wrong": 0[,}]' "$tmp/out" || die "perf rx $*: wrong bytes"
	grep -q '"pcie_gbs": null' "$tmp/out" || die "perf rx $*: a bus on the host device"
	echo "ok: perf rx $*"
}
perf --path host -e 5000003
perf --path host --memory device --pieces 700 --piece-bytes 4097 --stride 5001
perf --path emulated --pieces 300 --piece-bytes 8k
grep -q '"path": "unpack (emulated NIC): requested by the program"' "$tmp/out" || die "the path is not told"
grep -q '"piece_ratio": [0-9]' "$tmp/out" || die "no piece_ratio"
expect 2 "$gantry" perf rx --pieces 3 --piece-bytes 100 --stride 50 # they overlap

# In a network of its own the IPv4 address goes last.
if [ -n "${OWN_NETWORK:-}" ]; then
	ip address del 127.0.0.1/8 dev lo || die "lo keeps its IPv4 address"
	run 0 rx_tensor 3000001
	has out "0 wrong"
	for program in sendrecv all_reduce; do
		GANTRY_TRANSPORT=net run 0 $program 3000001
		has out "0 wrong"
	done
	echo "ok: IPv6 alone"
fi
echo "the examples and the pipeline's measurement hold"
