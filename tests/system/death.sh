#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# also with: GANTRY_SECRET=alpha
# A peer that is killed, stopped or cut off gives every outstanding request one typed error that names it, within
# GANTRY_TIMEOUT + 1 s; one that lives and has nothing to say gives none.
# Catches: heartbeats sent from user threads only, a liveness clock that data keeps fresh but heartbeats do not,
# requests that are forgotten when a link fails, an error that is not kept, close that waits for the peer.
set -u
. "$SOURCE_DIR/tests/system/lib_tries.sh"
. "$SOURCE_DIR/tests/system/lib_netns.sh"
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # seconds per process; lifecycle.sh looks for leaks
driver=$BUILD_DIR/drivers/death
export GANTRY_CONNECT_TIMEOUT=100s GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_IFNAME=lo
failed=0 a=gtda$$ b=gtdb$$
tmp=$(mktemp -d)

cleanup()
{
	ip netns del $a 2>/dev/null
	ip netns del $b 2>/dev/null
}
trap 'cleanup; rm -rf "$tmp"' EXIT

# run NAME COMMAND...: one that waits for the deadline.
run()
{
	local name=$1
	shift
	echo "-- $name"
	with_deadlines "$@" || { echo "FAILED: $name"; failed=1; }
}

killed()
{
	echo "-- $1"
	GANTRY_TIMEOUT=100s "$driver" kill || { echo "FAILED: $1"; failed=1; }
}

(with_deadlines "$driver" alive) >"$tmp/alive" 2>&1 &
alive=$!
killed "peer killed"
run "peer stopped" "$driver" stop
wait $alive || { echo "FAILED: alive"; failed=1; }
echo "-- peer idle for three deadlines"
cat "$tmp/alive"
export GANTRY_HELPERS=2 GANTRY_LANES=2
killed "peer killed, with helpers"
run "peer stopped, with helpers" "$driver" stop
unset GANTRY_HELPERS GANTRY_LANES
export GANTRY_IFNAME=v0

is_up() { ip -n "$1" -br link show v0 | grep -q ' UP '; }

# Two namespaces and a wire between them.
join()
{
	cleanup
	ip netns add $a && ip netns add $b || return 1
	ip -n $a link add v0 type veth peer name v0 netns $b || return 1
	ip -n $a addr add 10.97.0.1/24 dev v0 && ip -n $b addr add 10.97.0.2/24 dev v0 || return 1
	for ns in $a $b; do
		ip -n $ns link set lo up && ip -n $ns link set v0 up || return 1
	done
	await is_up $a && await is_up $b # the kernel takes up to a second to say so
}

why=$(why_no_netns)
if [ -n "$why" ]; then
	echo "skipped: unplugging; $why"
	[ $failed = 0 ] && exit 77
	exit 1
fi

# cut COMMAND: what it does to the wire ends the connections.
cut() { join && "$driver" command $a $b "$1"; }

run "link down" cut "ip -n $a link set v0 down"
run "blackhole route" cut "ip -n $a route add blackhole 10.97.0.2/32"
export GANTRY_BIND_DEVICE=0
run "blackhole route, sockets not bound to a device" cut "ip -n $a route add blackhole 10.97.0.2/32"
unset GANTRY_BIND_DEVICE
lost="lladdr 02:00:00:00:00:99 dev v0 nud permanent" # nobody's: what is sent there is lost
# Its own kernel gives up a quarter of the deadline too late, which shows only if that is long.
deadlines="6 16" run "packets of one side are lost" cut "ip -n $a neigh replace 10.97.0.2 $lost"
run "packets of both sides are lost" cut \
	"ip -n $a neigh replace 10.97.0.2 $lost && ip -n $b neigh replace 10.97.0.1 $lost"
exit $failed
