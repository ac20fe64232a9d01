#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# A communicator between two hosts, which are two network namespaces here, uses all interfaces that lead from one to the
# other, and no other: not one that only one of them has, nor one whose address both have.
. "$(dirname "$0")/lib.sh"
a=gantry-ca-$$
b=gantry-cb-$$
clean_environment
no_leaks

need tc
need_netns exec
netns "$a" "$b" || die "namespaces"
for i in 0 1; do
	ip -n "$a" link add "rail$i" type veth peer name "rail$i" netns "$b" || die "veth"
done
for n in "$a" "$b"; do
	[ "$n" = "$a" ] && host=1 || host=2
	for i in 0 1; do
		ip -n "$n" addr add "10.81.$i.$host/24" dev "rail$i" && ip -n "$n" link set "rail$i" up || die "rail$i"
		# One rail alone is not enough; without a limit the first one may take all there is.
		ip netns exec "$n" tc qdisc replace dev "rail$i" root tbf rate 400mbit burst 128kb latency 20ms 2>"$tmp/why" ||
			skip "cannot limit the rate of a veth: $(cat "$tmp/why")"
	done
	# Each with a peer that leads nowhere.
	ip -n "$n" link add own type veth peer name own-end && ip -n "$n" addr add "10.82.$host.1/24" dev own || die "own"
	ip -n "$n" link add same type veth peer name same-end && ip -n "$n" addr add 10.83.0.1/24 dev same || die "same"
	for i in own own-end same same-end; do
		ip -n "$n" link set "$i" up || die "$i"
	done
done
all_up() { [ "$(ip -n "$1" -br link show type veth | grep -c ' UP ')" = 6 ]; }
for n in "$a" "$b"; do
	await all_up "$n" || die "the interfaces never came up"
done

sent() { ip netns exec "$a" cat "/sys/class/net/$1/statistics/tx_bytes"; }
# move NAME=VALUE...: 32 messages of 4 MiB there and back; how many MiB went over each of the two rails is in $moved.
move() {
	local before0 before1 rank pids=
	before0=$(sent rail0) before1=$(sent rail1)
	rm -f "$tmp/id"
	for rank in 1 0; do
		[ $rank = 0 ] && n=$a || n=$b
		env "$@" RANK=$rank WORLD_SIZE=2 MASTER_ADDR=10.81.0.1 ip netns exec "$n" timeout 100 "$gantry" perf sendrecv \
			--id-file "$tmp/id" --transport net -b 4M -e 4M -n 30 -w 2 --repeats 1 >"$tmp/out.$rank" 2>&1 &
		pids="$pids $!"
	done
	wait $pids || { cat "$tmp"/out.?; die "$*: exit status $?"; }
	grep -q "wrong bytes: 0; OK" "$tmp/out.0" || { cat "$tmp/out.0"; die "$*: wrong bytes"; }
	moved=($((($(sent rail0) - before0) >> 20)) $((($(sent rail1) - before1) >> 20)))
	echo "-- $*: ${moved[*]} MiB"
}

move GANTRY_NET_RAILS=0
[ "${moved[0]}" -gt 20 ] && [ "${moved[1]}" -gt 20 ] || { cat "$tmp"/out.?; die "one of the rails is not used"; }
move GANTRY_NET_RAILS=1
[ "${moved[0]}" -lt 2 ] || [ "${moved[1]}" -lt 2 ] || die "both rails are used"

# Interfaces are listed in the order in which they came: on the second host rail0 is the last one from here on.
ip -n "$b" link set rail0 netns "$a" name moved && ip -n "$a" link set moved netns "$b" name rail0 &&
	ip -n "$b" addr add 10.81.0.2/24 dev rail0 && ip -n "$b" link set rail0 up || die "rail0 cannot be moved"
await all_up "$b" || die "rail0 never came up again"
move GANTRY_NET_RAILS=0
[ "${moved[0]}" -gt 20 ] && [ "${moved[1]}" -gt 20 ] || { cat "$tmp"/out.?; die "one of the rails is not used"; }
