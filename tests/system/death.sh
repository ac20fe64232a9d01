#!/bin/bash
# labels: slow
# A peer that is killed, stopped or cut off gives every outstanding request one typed error that names it, within
# GANTRY_TIMEOUT + 1 s; one that lives and has nothing to say gives none.
# Catches: heartbeats sent from user threads only, a liveness clock that data keeps fresh but heartbeats do not,
# requests that are forgotten when a link fails, an error that is not kept, close that waits for the peer.
set -u
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # seconds per process; lifecycle.sh looks for leaks
driver=$BUILD_DIR/drivers/death
export GANTRY_TIMEOUT=2s GANTRY_CONNECT_TIMEOUT=10s GANTRY_LOG=${GANTRY_LOG:-error}
failed=0

run()
{
	local name=$1
	shift
	echo "-- $name"
	"$driver" "$@" || { echo "FAILED: $name"; failed=1; }
}

export GANTRY_IFNAME=lo
"$driver" alive >"${TMPDIR:-/tmp}/death_alive.$$" 2>&1 &
alive=$!
run "peer killed" kill
run "peer stopped" stop
wait $alive || { echo "FAILED: alive"; failed=1; }
echo "-- peer idle for three deadlines"
cat "${TMPDIR:-/tmp}/death_alive.$$"
rm -f "${TMPDIR:-/tmp}/death_alive.$$"
GANTRY_HELPERS=2 GANTRY_LANES=2 run "peer killed, with helpers" kill
GANTRY_HELPERS=2 GANTRY_LANES=2 run "peer stopped, with helpers" stop

a=gtda$$ b=gtdb$$
cleanup()
{
	ip netns del $a 2>/dev/null
	ip netns del $b 2>/dev/null
}
trap cleanup EXIT
export GANTRY_IFNAME=v0

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
	for ((i = 0; i < 50; i++)); do # the kernel takes up to a second to say so
		ip -n $a -br link show v0 | grep -q ' UP ' && ip -n $b -br link show v0 | grep -q ' UP ' && return 0
		sleep 0.1
	done
}

if ! join 2>"${TMPDIR:-/tmp}/death_ns.$$"; then
	echo "skipped: network namespaces are not permitted here: $(tail -1 "${TMPDIR:-/tmp}/death_ns.$$")"
	rm -f "${TMPDIR:-/tmp}/death_ns.$$"
	[ $failed = 0 ] && exit 77
	exit 1
fi
rm -f "${TMPDIR:-/tmp}/death_ns.$$"
run "link down" command $a $b "ip -n $a link set v0 down"
join
run "blackhole route" command $a $b "ip -n $a route add blackhole 10.97.0.2/32"
join
GANTRY_BIND_DEVICE=0 run "blackhole route, sockets not bound to a device" command $a $b \
	"ip -n $a route add blackhole 10.97.0.2/32"
join
lost="lladdr 02:00:00:00:00:99 dev v0 nud permanent" # nobody's: what is sent there is lost
run "packets of one side are lost" command $a $b "ip -n $a neigh replace 10.97.0.2 $lost"
join
run "packets of both sides are lost" command $a $b \
	"ip -n $a neigh replace 10.97.0.2 $lost && ip -n $b neigh replace 10.97.0.1 $lost"
exit $failed
