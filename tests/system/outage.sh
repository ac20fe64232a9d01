#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The network between two hosts is out for 0.9 of GANTRY_TIMEOUT, twice: everything goes on afterwards, whatever was on
# its way at that time. It is out for 1.5 of it: a typed error, in time.
# Catches: TCP's back-off that goes on longer than what is left of the deadline, heartbeats so seldom that the gap between
# two makes the outage longer than it is, a kernel that gives up a connection before we do, a control plane with other
# rules than the network.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/outage
export GANTRY_CONNECT_TIMEOUT=100s GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_IFNAME=v0
a=gtoa$$ b=gtob$$ m=gtom$$

# A namespace for each host and one with a bridge between them: the hosts' own interfaces stay up.
join()
{
	netns $a $b $m && ip -n $m link add br0 type bridge && ip -n $m link set br0 up || return 1
	local i=0 ns
	for ns in $a $b; do
		i=$((i + 1))
		ip -n $ns link add v0 type veth peer name p$i netns $m &&
			ip -n $m link set p$i master br0 && ip -n $m link set p$i up &&
			ip -n $ns addr add 10.96.0.$i/24 dev v0 && ip -n $ns link set v0 up || return 1
	done
	await both_up
}
both_up() { [ "$(ip -n $m -br link show master br0 | grep -c ' UP ')" = 2 ]; }

need_netns

# try_once EXPECT TENTHS TIMES: an outage of so many tenths of the deadline.
try_once()
{
	local ms=$((${GANTRY_TIMEOUT%s} * 100 * $2))
	join || return 1
	rm -rf "$tmp/ids" && mkdir "$tmp/ids"
	timeout 280 "$driver" "$1" $a $b $m "$tmp/ids" $ms "$3"
}

deadlines=${DEADLINES:-5 10 25}
for case in "survive 9 2" "die 15 1"; do
	echo "-- $case"
	# shellcheck disable=SC2086
	with_deadlines try_once $case || fail "$case"
done
exit $failed
