#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Two interfaces on one subnet in each of two network namespaces, as in machines with several NICs on one switch: each
# device carries its own traffic, in both directions, and fused they share it. With IPv4, with IPv6 only, with link-local
# addresses only, and with IPv4 as the kernel comes, where either interface answers for the other's address ("flux": then
# connections must at least work). Each case runs twice: as one host, and with both sides believing to be two.
. "$(dirname "$0")/lib.sh"
driver=$BUILD_DIR/drivers/rails
a=gantry-ba-$$
b=gantry-bb-$$
sw=gantry-bs-$$
clean_environment GANTRY_LOG
export GANTRY_CONNECT_TIMEOUT=100s GANTRY_TIMEOUT=100s
no_leaks

need_netns exec
printf '%s\n' first second >"$tmp/hosts"

# fresh KIND: both namespaces anew, eth0 and eth1 each, all four on one bridge in a third.
fresh() {
	netns "$a" "$b" "$sw" || exit 1
	ip -n "$sw" link add br0 type bridge
	ip -n "$sw" link set br0 up
	for n in "$a" "$b"; do
		[ "$n" = "$a" ] && host=1 || host=2
		ip netns exec "$n" sh -c 'echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
			echo 0 >/proc/sys/net/ipv6/conf/default/accept_ra' 2>/dev/null
		# What several NICs on one subnet always need: an address is answered for by its own interface only.
		[ "$1" = flux ] || ip netns exec "$n" sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
			echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce' || skip "cannot set arp_ignore"
		for i in 0 1; do
			ip -n "$n" link add "eth$i" type veth peer name "p$host$i" netns "$sw" 2>"$tmp/why" ||
				skip "cannot make a veth: $(cat "$tmp/why")"
			ip -n "$sw" link set "p$host$i" master br0 up
			case $1 in
			v4 | flux) ip netns exec "$n" sh -c "echo 1 >/proc/sys/net/ipv6/conf/eth$i/disable_ipv6" 2>/dev/null
				ip -n "$n" addr add "10.78.0.$host$i/24" dev "eth$i" ;;
			v6) ip -n "$n" addr add "fd78::$host$i/64" dev "eth$i" nodad ;;
			esac
			ip -n "$n" link set "eth$i" up
		done
	done
	for n in "$a" "$b"; do
		await both_up "$n" "$1" || fail "$n: its interfaces never came up"
	done
}
# both_up NAMESPACE KIND: they carry, and have the addresses that the kernel makes.
both_up() {
	[ "$(ip -n "$1" -br link show type veth | grep -c ' UP ')" = 2 ] && case $2 in
	v4 | flux) ;;
	*) [ "$(ip -n "$1" -6 addr show scope link | grep 'inet6 fe80' | grep -vc tentative)" -ge 2 ] ;;
	esac
}

# field SIDE DEVICE: a counter of the last run.
field() { sed "s/.*\"$1\": {[^}]*\"$2\": \([0-9]*\).*/\1/" "$tmp/line"; }

# stream CASE DEVICES ARGS...: moves messages; 1 if that failed.
stream() {
	local what=$1 devices=$2
	shift 2
	timeout 280 "$driver" --size 1048576 --seconds 300ms --warmup 100ms --count eth0+eth1 "$@" "$a" "$b" "$devices" >"$tmp/line" 2>"$tmp/err"
	rc=$?
	# Not allowed to look like another host: nothing to say about this case.
	[ $rc -ne 77 ] || { echo "$what: not tested, $(tail -1 "$tmp/err")"; return 1; }
	if [ $rc -ne 0 ]; then
		tail -5 "$tmp/err" >&2
		fail "$what: no traffic"
		return 1
	fi
	echo "$what: $(cat "$tmp/line")"
	grep -q '"wrong": 0,' "$tmp/line" || fail "$what: wrong bytes"
}

# share CASE SIDE DEVICE LOW HIGH: percent of both interfaces' bytes that DEVICE carried; says so and fails if it is not
# between these.
share() {
	local e0 e1 mine percent
	e0=$(field "$2" eth0)
	e1=$(field "$2" eth1)
	mine=$(field "$2" "$3")
	percent=$((mine * 100 / (e0 + e1 + 1)))
	[ $percent -ge "$4" ] && [ $percent -le "$5" ] ||
		{ echo "$1: $2 of $3 is $percent % of the traffic, expected $4 to $5"; return 1; }
}

# fused CASE ARGS...: both interfaces carry about the same; in one of a few runs, because on a busy machine one of them
# may be served before the other for a while.
fused() {
	local what=$1 even side
	shift
	for _ in 1 2 3 4 5; do
		stream "$what" eth0+eth1 "$@" || return
		[ $kind != flux ] || return
		even=1
		for side in tx_side_tx rx_side_rx; do share "$what" $side eth0 30 70 || even=0; done
		[ $even = 0 ] || return
	done
	fail "$what: the interfaces never share the traffic"
}

# Fused, both interfaces are needed only if one of them is not enough.
limit() {
	for n in "$a" "$b"; do
		for i in 0 1; do
			ip netns exec "$n" tc qdisc add dev "eth$i" root tbf rate 400mbit burst 128kb latency 20ms 2>"$tmp/why" || return 1
		done
	done
}

for kind in v4 v6 local flux; do
	fresh $kind
	for host in one two; do
		foreign=
		[ $host = one ] || foreign="--foreign $tmp/hosts"
		for dev in eth0 eth1; do
			what="$kind, as $host, $dev"
			stream "$what" $dev $foreign || continue
			[ $kind != flux ] || continue
			for side in tx_side_tx rx_side_rx rx_side_tx; do share "$what" $side $dev 97 100 || fail "$what"; done
		done
	done
	limit || { echo "fused devices not tested, cannot limit a rate: $(cat "$tmp/why")"; continue; }
	for host in one two; do
		foreign=
		[ $host = one ] || foreign="--foreign $tmp/hosts"
		# shellcheck disable=SC2086 # two words, or none
		fused "$kind, as $host, fused" $foreign
	done
done
exit $failed
