#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# also with: GANTRY_SECRET=alpha
# Two hosts, which are network namespaces here, with two NICs each, none of them fast. The pipeline and a stream of small
# messages use both, as the interfaces' own counters show. Then one NIC is lost in the middle of a transfer: everything
# goes on over the other one, without an error, every byte right; and when it is back both are used again.
# Catches: a pipeline that uses one NIC of several, small messages that wait for the control lane's NIC while another is
# idle, a session that ends or stands still with one of its NICs.
. "$(dirname "$0")/lib.sh"
driver=$BUILD_DIR/drivers/two_nics
a=gantry-ta-$$
b=gantry-tb-$$
clean_environment GANTRY_SECRET
no_leaks
# They are on one kernel, and a session outlives its sockets between hosts.
export GANTRY_IFNAME=rail GANTRY_RESUME=on GANTRY_LOG=${GANTRY_LOG:-warn}

need tc
need_netns
netns "$a" "$b" || die "namespaces"
for i in 0 1; do
	ip -n "$a" link add "rail$i" type veth peer name "rail$i" netns "$b" || die "veth"
done
for n in "$a" "$b"; do
	[ "$n" = "$a" ] && host=1 || host=2
	for i in 0 1; do
		ip -n "$n" addr add "10.84.$i.$host/24" dev "rail$i" && ip -n "$n" link set "rail$i" up || die "rail$i"
		# One alone is not enough; without a limit no NIC is ever full.
		tc -n "$n" qdisc replace dev "rail$i" root tbf rate 160mbit burst 128kb latency 50ms 2>"$tmp/why" ||
			skip "cannot limit the rate of a veth: $(cat "$tmp/why")"
	done
done
all_up() { [ "$(ip -n "$1" -br link show type veth | grep -c ' UP ')" = 2 ]; }
for n in "$a" "$b"; do
	await all_up "$n" || die "the interfaces never came up"
done

# Bytes that interface $1 of the sending host has sent: /sys/class/net/*/statistics of its namespace.
sent() { ip -n "$a" -s -j link show dev "$1" | sed 's/.*"tx":{"bytes":\([0-9]*\).*/\1/'; }
running() { kill -0 "$pid" 2>/dev/null; }
# carries MIB INTERFACE...: until each of them has sent so many more, from now on.
carried() {
	local i
	running || return 0
	for i; do [ "$(sent "$i")" -ge "${from[$i]}" ] || return 1; done
}
declare -A from
carries() {
	local mib=$1 i
	shift
	for i; do from[$i]=$(($(sent "$i") + (mib << 20))); done
	await carried "$@" || die "$mode: ${*} did not carry $mib MiB more; now rail0 $(sent rail0), rail1 $(sent rail1)"
	running || { cat "$tmp/out"; die "$mode: ended early"; }
}

# begin MODE [NAME=VALUE]...: a stream. finish: its end.
begin() {
	local what=$1
	shift
	rm -f "$tmp/enough"
	env "$@" "$driver" "$what" "$a" "$b" "$tmp/enough" >"$tmp/out" 2>&1 &
	pid=$!
}
finish() {
	touch "$tmp/enough"
	wait "$pid" || { cat "$tmp/out"; die "$mode: exit status $?"; }
	cat "$tmp/out"
	echo "ok: $mode"
}

# lose MODE INTERFACE
lose() {
	mode="$1, $2 lost"
	begin "$1"
	carries 4 rail0 rail1
	ip -n "$a" link set "$2" down
	carries 8 "rail$((1 - ${2#rail}))"
	ip -n "$a" link set "$2" up
	await all_up "$a" || die "$mode: it never came up again"
	carries 4 rail0 rail1
	finish
}

# unpack NICS INTERFACE...: pages of device memory are for so many NICs.
unpack() {
	mode="pipeline, emulated NIC, GANTRY_UNPACK_NICS=$1"
	begin pipeline GANTRY_RX_PATH=emulated GANTRY_UNPACK_NICS="$1"
	shift
	carries 4 "$@"
	finish
}

unpack 1 rail0
unpack 2 rail0 rail1
lose pipeline rail0
lose pipeline rail1
lose small rail0
lose small rail1
