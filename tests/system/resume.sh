#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A stream between two hosts goes on, every byte checked, while the kernel kills its sockets and the network is out; when a
# process ends, its peer hears of it within GANTRY_TIMEOUT.
# Catches: a session that waits for TCP's back-off instead of dialling, one that stands still or loses bytes when its sockets
# are gone, a port that is closed with its listener, a dead peer that is waited for without end.
. "$(dirname "$0")/lib.sh"
gantry=$BUILD_DIR/gantry
need_netns exec
need ss
a=gtra$$ b=gtrb$$ m=gtrm$$
export GANTRY_RESUME=on GANTRY_IFNAME=v0 GANTRY_TIMEOUT=20s GANTRY_LOG=info

netns $a $b $m && ip -n $m link add br0 type bridge && ip -n $m link set br0 up || die "no namespaces"
i=0
for ns in $a $b; do
	i=$((i + 1))
	ip -n $ns link add v0 type veth peer name p$i netns $m && ip -n $m link set p$i master br0 &&
		ip -n $m link set p$i up && ip -n $ns addr add 10.97.0.$i/24 dev v0 && ip -n $ns link set v0 up ||
		die "no interfaces"
done

# begin MESSAGES: a stream of 1 MiB messages from a to b in the background. It is stopped as soon as it runs, and goes on with
# `kill -CONT $client`: so no machine is fast enough to be through before the faults.
begin()
{
	: >"$tmp/listen" >"$tmp/client" # what an earlier stream wrote must not pass for this one's
	ip netns exec $b "$gantry" perf net --listen --ifname v0 >"$tmp/listen" 2>&1 &
	listener=$!
	await grep -q . "$tmp/listen"
	ip netns exec $a "$gantry" perf net 10.97.0.2 --ifname v0 -b 1M -e 1M -n "$1" --repeats 1 --lanes 2 --timeout 30s \
		>"$tmp/client" 2>&1 &
	client=$!
	await grep -q 'link .* up' "$tmp/client" || { cat "$tmp/client"; die "no link"; }
	kill -STOP $client
}

# replaced: how many sockets were replaced so far; replaced_more N: more than N?
replaced() { grep -c 'is back after' "$tmp/client"; }
replaced_more() { [ "$(replaced)" -gt "$1" ]; }
# kill_sockets: the kernel ends all sockets of a towards b, the control plane's and the lanes'; fails where it cannot.
kill_sockets()
{
	[ -n "$(ip netns exec $a ss -Ht dst 10.97.0.2)" ] || { cat "$tmp/client"; die "there are no sockets to kill"; }
	[ -n "$(ip netns exec $a ss -HK dst 10.97.0.2 2>/dev/null)" ]
}

# Bytes that left a's interface; sent_since BYTES: 20 MB more than that?
sent() { ip netns exec $a cat /sys/class/net/v0/statistics/tx_bytes; }
sent_since() { [ $(($(sent) - $1)) -gt 20000000 ]; }

begin 8000
for i in 1 2 3; do
	n=$(replaced)
	if ! kill_sockets; then
		echo "this kernel does not end sockets for ss -K: only an outage is tried"
		break
	fi
	kill -CONT $client
	await replaced_more "$n" || { cat "$tmp/client"; fail "a socket that was killed was not replaced"; }
	kill -STOP $client
done
# The outage is to find lanes that carry data.
before=$(sent)
kill -CONT $client
await sent_since "$before" || { cat "$tmp/client"; fail "nothing is sent any more"; }
kill -STOP $client
n=$(replaced)
ip -n $m link set p1 down
kill -CONT $client
# TCP has sent five times in vain, the last time after 6.2 s; its next time comes 6.4 s later.
sleep 7
kill -0 $client || { cat "$tmp/client"; fail "the stream ended in an outage"; }
before=$(sent)
ip -n $m link set p1 up
SECONDS=0
await sent_since "$before" || { cat "$tmp/client"; fail "nothing is sent after an outage"; }
[ $SECONDS -lt 5 ] || { cat "$tmp/client"; fail "the stream went on $SECONDS s after the outage"; }
wait $client || { cat "$tmp/client"; fail "the stream did not survive"; }
wait $listener || { tail -n 20 "$tmp/listen"; fail "the listening side did not survive"; }
echo "sockets replaced: $n by ss -K, $(($(replaced) - n)) by the outage"

export GANTRY_TIMEOUT=4s
begin 100000
kill -CONT $client
kill -KILL $listener
SECONDS=0
wait $client && fail "a stream without a peer ended well"
[ $SECONDS -lt 7 ] || { cat "$tmp/client"; fail "a dead peer was waited for: $SECONDS s"; }
grep -E 'ERR_PEER_(LOST|SILENT)' "$tmp/client" | head -n 1 || { tail "$tmp/client"; fail "no typed error"; }
exit $failed
