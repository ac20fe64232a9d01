#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An all-reduce through reducers against a ring, over NICs of a limited rate: ranks and reducers in network namespaces of
# their own, on one switch, each with RATE in each direction.
#
#   bench/reducer_rates.sh [FILE]       as root; RATE=200 (Mbit/s) RANKS=4 REDUCERS=4 BYTES=16777216 COUNT=5 MTU=9000
#
# One JSON line, appended to FILE if it is given: times (the best of COUNT operations), bus bandwidths, what the arithmetic says, and
# the bytes that a rank sends and receives per byte of the message. collnet: `gantry perf all_reduce --transport collnet` with
# reducers; calls: the calls of src/reducer/reducer.h, as stock NCCL makes them; ring: `gantry perf all_reduce` over the same NICs. Bytes
# are those of the ranks' interfaces, headers and acknowledgements included, segmentation by the interface (GSO) off where there is an
# ethtool. Fails (exit status 1) if the communicator's bus bandwidth through reducers is not 1.4 times the ring's, or more than 1.05
# times the message is on the wire in a direction; 77: namespaces or limits cannot be made here.
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
. "$SOURCE_DIR/tests/system/lib.sh"
file=${1:-}
rate=${RATE:-200} n=${RANKS:-4} k=${REDUCERS:-4} bytes=${BYTES:-16777216} count=${COUNT:-5} mtu=${MTU:-9000}
need ip tc
need_netns exec
clean_environment
prefix=gr$$
pids=()
at_exit() { [ ${#pids[@]} = 0 ] || kill -KILL "${pids[@]}" 2>/dev/null; wait; }

# Everything that is named "rX" or "xX" is a host: address 10.77.0.1 and so on.
hosts=()
for ((i = 0; i < n; i++)); do hosts+=("r$i"); done
for ((i = 0; i < k; i++)); do hosts+=("x$i"); done
address_of() { local i; for i in "${!hosts[@]}"; do [ "${hosts[i]}" != "$1" ] || echo 10.77.0.$((i + 1)); done; }
at() { ip netns exec "$prefix$1" "${@:2}"; }

netns "$prefix" || skip "namespaces cannot be made"
ip -n "$prefix" link add sw type bridge && ip -n "$prefix" link set sw up mtu "$mtu" || skip "no bridge"
limit() { tc -n "$1" qdisc add dev "$2" root tbf rate "${rate}mbit" burst 256kb limit 1mb; }
for h in "${hosts[@]}"; do
	netns "$prefix$h" || skip "namespaces cannot be made"
	ip -n "$prefix" link add "$h" mtu "$mtu" type veth peer name eth0 netns "$prefix$h" mtu "$mtu" || skip "no veth"
	ip -n "$prefix" link set "$h" master sw up
	ip -n "$prefix$h" addr add "$(address_of "$h")/24" dev eth0
	ip -n "$prefix$h" link set eth0 up
	limit "$prefix" "$h" && limit "$prefix$h" eth0 || skip "no limit: tc has no tbf here"
	! command -v ethtool >/dev/null || at "$h" ethtool -K eth0 gso off tso off gro off >/dev/null 2>&1
done

# bytes_of DIRECTION: of all ranks' interfaces.
bytes_of()
{
	local h sum=0
	for h in "${hosts[@]:0:n}"; do sum=$((sum + $(at "$h" cat "/sys/class/net/eth0/statistics/${1}_bytes"))); done
	echo $sum
}

export GANTRY_IFNAME=eth0 GANTRY_STATS_DIR=off
list=
for h in "${hosts[@]:n}"; do
	at "$h" "$gantry" reducer --json >"$tmp/$h.out" 2>"$tmp/$h.err" &
	pids+=($!)
	list+=${list:+,}$(address_of "$h")
done
for h in "${hosts[@]:n}"; do await grep -q listening "$tmp/$h.out" || die "the reducer on $h does not listen"; done

# measure NAME COMMAND...: COMMAND on every rank, by its number; then ${NAME}_tx and ${NAME}_rx are the bytes of one rank and one
# of its $count and $warm operations.
measure()
{
	local name=$1 jobs=() i p tx rx
	shift
	tx=$(bytes_of tx) rx=$(bytes_of rx)
	for ((i = 0; i < n; i++)); do
		"$@" $i >"$tmp/$name$i.out" 2>"$tmp/$name$i.err" &
		jobs+=($!)
	done
	for p in "${jobs[@]}"; do wait "$p" || { cat "$tmp/$name"*.err >&2; die "$name: a rank fails"; }; done
	eval "${name}_tx=$((($(bytes_of tx) - tx) / n / (count + warm))) ${name}_rx=$((($(bytes_of rx) - rx) / n / (count + warm)))"
}
calls() { GANTRY_REDUCERS=$list at "r$1" "$BUILD_DIR/drivers/reduce_job" "$1" "$n" "$tmp/job" "$bytes" "$count"; }
# perf TRANSPORT RANK: results are not checked, which would be one more operation; tests/system/collnet_reducers.sh does that.
perf()
{
	RANK=$2 LOCAL_RANK=0 WORLD_SIZE=$n LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 GANTRY_HOST_ID=h$2 \
		at "r$2" "$gantry" perf all_reduce --device host --transport "$1" -b "$bytes" -e "$bytes" -n "$count" -w $warm --repeats 1 -c 0 --in-place no --json
}
ring() { GANTRY_ALGO=ring perf net "$1"; }
collnet() { GANTRY_REDUCERS=$list perf collnet "$1"; }
# best NAME: of the calls that `gantry perf` timed.
best() { sed -nE 's/.*"bytes".*"time_us_min": ([0-9.e+]+).*/\1/p' "$tmp/${1}0.out" | head -n 1; }

mkdir "$tmp/job"
warm=0
measure calls calls
us=$(sed -nE 's/.* best ([0-9]+) us.*/\1/p' "$tmp"/calls*.out | sort -n | tail -n 1)
warm=1
measure collnet collnet
collnet_us=$(best collnet)
measure ring ring
ring_us=$(best ring)
[ -n "$us" ] && [ -n "$collnet_us" ] && [ -n "$ring_us" ] || die "no time was said"
grep -q '"algo": "collnet"' "$tmp/collnet0.out" || die "the communicator did not use its reducers"
kill -TERM "${pids[@]}"
wait "${pids[@]}"
pids=()

awk -v calls_us="$us" -v collnet_us="$collnet_us" -v ring_us="$ring_us" -v n="$n" -v k="$k" -v m="$bytes" -v rate="$rate" -v mtu="$mtu" \
	-v calls_tx="$calls_tx" -v calls_rx="$calls_rx" -v tx="$collnet_tx" -v rx="$collnet_rx" 'BEGIN {
	wire = m * 8 / rate                     # us: the message over one NIC
	ring = 2 * (n - 1) / n
	many = n / k > 1 ? n / k : 1
	printf "{\"bench\": \"reducer_rates\", \"ranks\": %d, \"reducers\": %d, \"bytes\": %d, \"mbit_per_s\": %d, \"mtu\": %d, ", n, k, m, rate, mtu
	printf "\"collnet_us\": %d, \"calls_us\": %d, \"reducers_us_arithmetic\": %d, \"ring_us\": %d, \"ring_us_arithmetic\": %d, ", collnet_us, calls_us, wire * many, ring_us, wire * ring
	printf "\"collnet_busbw_MB_s\": %.1f, \"ring_busbw_MB_s\": %.1f, ", m * ring / collnet_us, m * ring / ring_us
	printf "\"collnet_ratio\": %.2f, \"calls_ratio\": %.2f, ", ring_us / collnet_us, ring_us / calls_us
	printf "\"collnet_sent\": %.4f, \"collnet_received\": %.4f, \"calls_sent\": %.4f, \"calls_received\": %.4f}\n", tx / m, rx / m, calls_tx / m, calls_rx / m
	exit !(ring_us / collnet_us >= 1.4 && tx / m <= 1.05 && rx / m <= 1.05)
}' >"$tmp/row"
status=$?
cat "$tmp/row"
[ -z "$file" ] || cat "$tmp/row" >>"$file"
[ $status = 0 ] || echo "FAILED: below 1.4 times the ring's bus bandwidth, or more than 1.05 times the message on the wire" >&2
exit $status
