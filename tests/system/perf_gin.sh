#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_RESUME=on
# `gantry perf gin` on the host device: kernels of two and of four ranks put and signal, every byte is right, and rows have all their
# fields. What makes no sense is wrong usage. A rank that is killed ends the kernels that wait for it, and is named.
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_RESUME
export GANTRY_LOG=warn
no_leaks
tested=("$gantry" perf gin)
few="-n 20 -w 2 --repeats 1 --timeout 200s --json"

# right ROWS: all of them, with times.
right() {
	check_json "$1" bytes lat_us lat_us_min lat_us_max bw_gbs bw_gbs_min bw_gbs_max puts_per_s wrong ranks contexts
	[ "$(grep -c '"device": "host"' "$tmp/rows")" = "$1" ] || die "rows without a device"
	like out '^\{"wrong_bytes": 0, "ok": true'
}
# From 8 B to 4 MiB.
for n in 2 4; do
	expect 0 --ranks $n -b 8 -e 4M -f 8 $few
	right 7
	has rows "\"ranks\": $n,"
done
head -n 1 "$tmp/out" | grep -q '"op": "gin".*"contexts": 1, "depth": 64' || die "the first line does not describe the run"
# Nothing at all, a byte, odd sizes around what fits into a head; several contexts, of which each waits for room.
expect 0 -b 0 -e 16k -f 16384 --odd --contexts 3 --depth 2 $few
right 9
expect 0 --threads -b 8 -e 64k -f 8192 $few
right 2
GANTRY_CRC=on expect 0 -b 100k -e 100k $few
right 1
expect 0 -b 8 -e 8 -c 0 -n 20 --repeats 1
[ "$(tail -n 1 "$tmp/out")" = "# wrong bytes: not checked; OK" ] || die "-c 0: another closing line"

# Ranks that were started one by one.
launch() {
	local r
	for r in 1 0; do
		RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 timeout 280 "$gantry" perf gin --ifname lo \
			--id-file "$tmp/id" "$@" >"$tmp/$r.out" 2>"$tmp/$r.err" &
		ids[r]=$!
	done
}
launch -b 8 -e 64k -f 8192 $few
for r in 0 1; do wait "${ids[r]}" || die "started as rank $r: exit status $?"; done
cp "$tmp/0.out" "$tmp/out"
right 2
[ ! -s "$tmp/1.out" ] || die "rank 1 prints too"

expect 2 --ranks 3
like err '^gantry perf gin: ranks work in pairs, so their number is even, not 3$'
expect 2 --depth 48
like err '^gantry perf gin: --depth 48 is not a power of two$'
expect 2 --contexts 65
expect 1 -b 4G -e 4G --contexts 64
like err '^gantry perf gin: the buffers of 2 ranks take .*choose a smaller -e$'
[ ! -s "$tmp/out" ] || die "more than the error is printed"

# killed RANKS PHASE-ARGUMENTS...: the second rank of RANKS is killed while kernels wait, and the tool ends soon, with its name.
killed() {
	local n=$1 tool pid began
	shift
	GANTRY_TIMEOUT=10s "$gantry" perf gin --ranks "$n" --timeout 200s --repeats 101 "$@" >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	has_ranks() { [ "$(pgrep -P $tool | wc -l)" = "$n" ] && grep -q 'median' "$tmp/out"; }
	await has_ranks || die "there are not $n ranks"
	sleep 1
	pid=$(children_of $tool | sed -n 2p)
	began=$SECONDS
	kill -9 "$pid"
	wait $tool && die "a rank was killed, and all is well"
	[ $((SECONDS - began)) -lt 60 ] || die "it took $((SECONDS - began)) s to notice that a rank was killed"
	like err '^gantry perf gin: rank 1 was killed by signal 9'
	tail -n 1 "$tmp/out" | grep -q 'FAILED$' || die "another closing line"
	echo "ok: a rank of $n killed"
}
killed 2 -b 8 -e 8 -n 60000
killed 2 -b 1M -e 1M -n 60000
killed 4 -b 8 -e 8 -n 60000

# The same of ranks that were started one by one: the tool of rank 0 knows no more than its communicator.
export GANTRY_TIMEOUT=10s
launch -b 8 -e 8 -n 60000 --repeats 101
at_work() { grep -q 'median' "$tmp/0.out"; }
await at_work || die "ranks that were started one by one do not begin"
sleep 1
tool=$(pgrep -P "${ids[1]}") # below timeout; the rank is its child
kill -9 "$(pgrep -P "$tool")"
wait "${ids[0]}" && die "a rank was killed, and all is well"
wait "${ids[1]}" && die "a rank was killed, and its tool ends well"
cp "$tmp/0.err" "$tmp/err"
like err '^gantry perf gin: rank 0 failed \(.*\): ERR_PEER_LOST: rank 1 '
cp "$tmp/1.err" "$tmp/err"
like err '^gantry perf gin: rank 1 was killed by signal 9'
echo "ok: a rank killed that was started by itself"
