#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Which interface is chosen, in network namespaces that look like machines people have: containers with a docker bridge,
# dead veths, macvlans, IPv6 only, link-local only. The expected choices are written down by hand.
. "$(dirname "$0")/lib.sh"
ns=gantry-nic-$$
peer=gantry-nicp-$$
clean_environment
export GANTRY_LOG=warn
no_leaks

need_netns exec

# A new pair of namespaces, with loopback only. No duplicate detection: addresses are usable at once.
fresh() {
	netns "$ns" "$peer" || die "cannot make network namespaces"
	for n in "$ns" "$peer"; do
		ip netns exec "$n" sh -c 'for f in all default; do
			echo 0 >/proc/sys/net/ipv6/conf/$f/accept_dad
			echo 0 >/proc/sys/net/ipv6/conf/$f/accept_ra; done' 2>/dev/null
	done
}

# make_veth NAME: NAME is here, NAMEp in the peer's namespace; both up.
make_veth() {
	ip -n "$ns" link add "$1" type veth peer name "$1p" netns "$peer" || die "veth $1"
	ip -n "$ns" link set "$1" up && ip -n "$peer" link set "$1p" up
}

# docker0 with a container's veth plugged in, so that it has a carrier and looks usable.
make_docker() {
	ip -n "$ns" link add docker0 type bridge && ip -n "$ns" addr add 172.17.0.1/16 dev docker0
	make_veth veth1a2b3c
	ip -n "$ns" link set veth1a2b3c master docker0
	ip -n "$ns" link set docker0 up
}

# A veth that nobody brought up, with an address.
make_dead() {
	ip -n "$ns" link add dead0 type veth peer name dead0p netns "$peer" && ip -n "$ns" addr add 10.9.0.2/24 dev dead0
}

# doctor [VAR=VALUE]...: JSON in $tmp/json, exit status in $rc.
doctor() {
	ip netns exec "$ns" env "$@" "$gantry" doctor --json >"$tmp/json" 2>"$tmp/err"
	rc=$?
	[ $rc -le 1 ] || die "gantry doctor $*: exit status $rc"
	[ ! -s "$tmp/err" ] || die "gantry doctor $* wrote to stderr"
}

# field SECTION NAME FIELD
field() { grep -F "\"section\": \"$1\", \"name\": \"$2\"," "$tmp/json" | sed -n "s/.*\"$3\": \"\([^\"]*\)\".*/\1/p"; }

# chooses WHAT NAMES [VAR=VALUE]...
chooses() {
	local what=$1 want=$2
	shift 2
	doctor "$@"
	local got
	got=$(field choice tcp value)
	[ "$got" = "$want" ] || { cat "$tmp/json"; die "$what ($*): chose '$got', expected '$want'"; }
	[ $rc = 0 ] || { grep '"fail"' "$tmp/json"; die "$what ($*): exit status $rc"; }
	echo "ok: $what ($*): $got"
}

# says WHAT GOT WANTED
says() { [ "$2" = "$3" ] || die "$1: got
  $2
expected
  $3"; echo "ok: $1"; }

# wait_up NAME...: until the interfaces carry, the kernel says that they run (which comes later), and their addresses are
# usable, with the link-local one that the kernel adds by itself where there is IPv6.
wait_up() {
	local name
	for name; do await is_up "$name" || die "$name never came up: $(ip -n "$ns" addr show "$name")"; done
}
is_up() {
	local said
	said=$(ip -n "$ns" addr show "$1")
	[[ $said == *LOWER_UP* && $said != *NO-CARRIER* && $said == *" state UP "* && $said != *tentative* ]] &&
		{ [ ! -e /proc/sys/net/ipv6 ] || [[ $said == *"inet6 fe80::"* ]]; }
}
lost_carrier() { ip -n "$ns" link show "$1" | grep -q NO-CARRIER; }

fresh
make_docker
make_dead
make_veth eth0
ip -n "$ns" addr add 10.0.0.2/24 dev eth0
ip -n "$ns" addr add 2001:db8::2/64 dev eth0
ip -n "$ns" addr add 10.0.0.3/24 dev eth0 label eth0:1
wait_up docker0 veth1a2b3c eth0
# veth reports 10 Gbit/s, and so no speed is assumed.
chooses "container host" eth0
says "reason" "$(field choice tcp detail)" \
	"using eth0 10.0.0.2 (10 Gbit/s); left out lo (loopback), docker0 (bridge), veth1a2b3c (port of a bridge or bond), dead0 (down)"
case $(field interfaces eth0 value) in
"10.0.0.2/24 10.0.0.3/24 2001:db8::2/64 fe80::"*) ;;
*) die "addresses of eth0: $(field interfaces eth0 value)" ;;
esac
chooses "IPv6 asked for" eth0 GANTRY_FAMILY=inet6
case $(field choice tcp detail) in
"using eth0 2001:db8::2 "*) ;;
*) die "IPv6 reason: $(field choice tcp detail)" ;;
esac
chooses "IPv6 asked for in NCCL's words" eth0 NCCL_SOCKET_FAMILY=AF_INET6
chooses "bridge asked for" docker0 GANTRY_IFNAME==docker0
chooses "prefixes" docker0,eth0 GANTRY_IFNAME=dock,eth
chooses "exclusion" docker0 GANTRY_IFNAME=^eth
chooses "NCCL's variable" lo NCCL_SOCKET_IFNAME=lo
chooses "ours wins over NCCL's" eth0 NCCL_SOCKET_IFNAME=lo GANTRY_IFNAME=eth

doctor GANTRY_IFNAME=ib
[ $rc = 1 ] || die "a pattern that matches nothing: exit status $rc"
# The kernel makes up the link-local addresses; they are masked.
says "a pattern that matches nothing" "$(field choice tcp detail | sed 's/fe80::[0-9a-f:]*/fe80::X/g')" \
	"no interface matches 'ib'; set GANTRY_IFNAME (or NCCL_SOCKET_IFNAME) to one of these, or unset it for automatic choice: lo 127.0.0.1 ::1, docker0 172.17.0.1 fe80::X%docker0, veth1a2b3c fe80::X%veth1a2b3c, dead0 10.9.0.2 (down), eth0 10.0.0.2 10.0.0.3 2001:db8::2 fe80::X%eth0"
doctor GANTRY_IFNAME==dead0
[ $rc = 1 ] || die "an interface that is down: exit status $rc"
case $(field choice tcp detail) in
"no interface matching '=dead0' is usable; "*"dead0 10.9.0.2 (down)"*) echo "ok: an interface that is down" ;;
*) die "an interface that is down: $(field choice tcp detail)" ;;
esac

# Two interfaces on one subnet: both, with a warning for each setting that spoils it.
if ip -n "$ns" link add mv0 link eth0 type macvlan mode bridge 2>/dev/null; then
	ip -n "$ns" addr add 10.0.0.9/24 dev mv0 && ip -n "$ns" link set mv0 up
	wait_up mv0
	ip netns exec "$ns" sh -c 'for f in all eth0 mv0; do
		echo 0 >/proc/sys/net/ipv4/conf/$f/rp_filter
		echo 1 >/proc/sys/net/ipv4/conf/$f/arp_ignore
		echo 2 >/proc/sys/net/ipv4/conf/$f/arp_announce; done'
	chooses "macvlan beside its parent" eth0,mv0
	says "no warning" "$(grep '"section": "subnets"' "$tmp/json" | grep -c '"warn"')" 0
	ip netns exec "$ns" sh -c 'echo 1 >/proc/sys/net/ipv4/conf/mv0/rp_filter
		echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore; echo 0 >/proc/sys/net/ipv4/conf/eth0/arp_ignore'
	doctor
	says "strict rp_filter" "$(field subnets "rp_filter mv0" level)$(field subnets "rp_filter eth0" level)" warn
	says "ARP flux" "$(field subnets "arp_ignore eth0" level)$(field subnets "arp_ignore mv0" level)" warn
	ip -n "$ns" link del mv0
else
	echo "skipped a part: no macvlan here"
fi

# The cable is pulled at the other end: what is left is the bridge.
ip -n "$peer" link set eth0p down
await lost_carrier eth0 || die "eth0 keeps its carrier"
chooses "no carrier" docker0
says "no carrier is the reason" "$(field interfaces eth0 detail | cut -d';' -f1)" "left out (no carrier)"
chooses "no carrier, but asked for" eth0 GANTRY_IFNAME==eth0

fresh
chooses "loopback only" lo

fresh
ip -n "$ns" link set lo down
doctor
[ $rc = 1 ] || die "nothing is up: exit status $rc"
case $(field choice tcp detail) in
"no interface is usable; bring one of these up and give it an address: lo "*"(down)") echo "ok: nothing is up" ;;
*) die "nothing is up: $(field choice tcp detail)" ;;
esac

if [ -e /proc/sys/net/ipv6 ]; then
	fresh
	make_veth eth0
	ip -n "$ns" addr add 2001:db8::2/64 dev eth0
	wait_up eth0
	chooses "IPv6 only" eth0
	says "IPv6 only, reason" "$(field choice tcp detail)" "using eth0 2001:db8::2 (10 Gbit/s); left out lo (loopback)"
	doctor GANTRY_IFNAME=eth GANTRY_FAMILY=inet
	case $rc$(field choice tcp detail) in
	"1no interface matching 'eth' is usable with IPv4; "*"GANTRY_FAMILY=auto"*) echo "ok: IPv4 asked for where there is none" ;;
	*) die "IPv4 asked for where there is none: $rc $(field choice tcp detail)" ;;
	esac

	fresh
	make_docker
	make_veth eth0
	wait_up eth0 docker0 veth1a2b3c
	chooses "link-local only" eth0
	case $(field choice tcp detail) in
	"using eth0 fe80::"*"%eth0 (10 Gbit/s, only a link-local address); left out lo (loopback), docker0 (bridge), "*) ;;
	*) die "link-local reason: $(field choice tcp detail)" ;;
	esac
else
	echo "skipped a part: no IPv6 here"
fi
exit 0
