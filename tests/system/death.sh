#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A peer that is killed, stopped or cut off gives every outstanding request one typed error that names it, within
# GANTRY_TIMEOUT + 1 s; one that lives and has nothing to say gives none.
# Catches: heartbeats sent from user threads only, a liveness clock that data keeps fresh but heartbeats do not,
# requests that are forgotten when a link fails, an error that is not kept, close that waits for the peer.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/death
export GANTRY_CONNECT_TIMEOUT=100s GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_IFNAME=lo
a=gtda$$ b=gtdb$$

# run NAME COMMAND...: one that waits for the deadline.
run()
{
	local name=$1
	shift
	echo "-- $name"
	with_deadlines "$@" || fail "$name"
}

killed()
{
	echo "-- $1"
	GANTRY_TIMEOUT=100s "$driver" kill || fail "$1"
}

(with_deadlines "$driver" alive) >"$tmp/alive" 2>&1 &
alive=$!
killed "peer killed"
run "peer stopped" "$driver" stop
wait $alive || fail "alive"
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
	netns $a $b || return 1
	ip -n $a link add v0 type veth peer name v0 netns $b || return 1
	ip -n $a addr add 10.97.0.1/24 dev v0 && ip -n $b addr add 10.97.0.2/24 dev v0 || return 1
	ip -n $a link set v0 up && ip -n $b link set v0 up || return 1
	await is_up $a && await is_up $b # the kernel takes up to a second to say so
}

need_netns

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
