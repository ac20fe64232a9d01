# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the tests that make network namespaces and run programs in them.

# why_no_netns [exec]: prints why namespaces with interfaces cannot be made here, or no program be run in them by
# `ip netns exec`; nothing where all is well.
why_no_netns()
{
	local name=gantry-probe-$$ why
	command -v ip >/dev/null || { echo "there is no ip command (package iproute2)"; return; }
	if ! why=$(ip netns add $name 2>&1); then
		echo "a network namespace cannot be made: $why"
		return
	fi
	if [ "${1:-}" = exec ] && ! why=$(ip netns exec $name true 2>&1); then
		if ! mountpoint -q /; then
			echo "/ is not a mount point (a chroot?), and 'ip netns exec' has to remount it: $why"
		else
			echo "a program cannot be run in a network namespace: $why"
		fi
	elif ! why=$(ip -n $name link add gantry0 type veth peer name gantry1 2>&1); then
		echo "a pair of veth interfaces cannot be made: $why"
	elif ! why=$(ip -n $name link add gantry2 type bridge 2>&1); then
		echo "a bridge cannot be made: $why"
	fi
	ip netns del $name
}

# need_netns [exec]: skips the test where that cannot be done.
need_netns()
{
	local why
	why=$(why_no_netns "$@")
	[ -z "$why" ] || { echo "skipped: $why"; exit 77; }
}
