#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# also with: GANTRY_SECRET=alpha
# `gantry perf net` and `perf rx` between two hosts, which are two network namespaces here: --listen on one, its address on
# the other. Both print the same figures and no wrong byte, by IPv4, IPv6 and a port of one's own; and what goes wrong is
# one clear line on each side, in time: a missing peer, a busy port, another secret, another operation, a peer that dies.
. "$(dirname "$0")/lib.sh"
a=gantry-pa-$$
b=gantry-pb-$$
clean_environment GANTRY_SECRET
[ -n "${GANTRY_SECRET:-}" ] || unset GANTRY_SECRET
no_leaks

need_netns exec
netns "$a" "$b" || die "namespaces"
ip -n "$a" link add wire0 type veth peer name wire0 netns "$b" || die "veth"
have6=1
for n in "$a" "$b"; do
	[ "$n" = "$a" ] && host=1 || host=2
	ip -n "$n" addr add "10.79.0.$host/24" dev wire0 && ip -n "$n" link set wire0 up || die "wire0"
	ip -n "$n" addr add "fd79::$host/64" dev wire0 nodad 2>/dev/null || have6=0
done
# The kernel takes a moment to notice that both ends are up.
up() { ip netns exec "$b" ip -br link show wire0 | grep -q ' UP '; }
await up || die "the wire never came up"

# listen NAME ARGUMENT...: `gantry perf ARGUMENT... --listen` on the first host, once its port is open; the pid is in $pid.
listen() {
	local name=$1
	shift
	rm -f "$tmp/$name.err" # of the last one, which said the same
	ip netns exec "$a" timeout 280 "$gantry" perf "$@" --listen >"$tmp/$name.out" 2>"$tmp/$name.err" &
	pid=$!
	await grep -qs "waiting for a client" "$tmp/$name.err" || die "it does not listen"
}
# client NAME ARGUMENT...: `gantry perf ARGUMENT...` on the second host; its exit status.
client() {
	local name=$1
	shift
	ip netns exec "$b" timeout 280 "$gantry" perf "$@" >"$tmp/$name.out" 2>"$tmp/$name.err"
}
# one_error NAME: a line about what it waits for, and a single one about the failure.
one_error() { [ "$(grep -vcE 'waiting for a client|connecting to|a client came (with|and was refused)' "$tmp/$1.err")" = 1 ] || die "$1: not one line"; }

# pair ROWS OPERATION LISTENER-ARGUMENTS CLIENT-ARGUMENTS: equal rows on both sides, as tables and as JSON, nothing wrong.
pair() {
	local rows=$1 op=$2 format
	for format in "" --json; do
		listen l "$op" $3 $format
		client c "$op" $4 $format || die "$op: the client's exit status is $?"
		wait $pid || die "$op: the listener's exit status is $?"
		for side in l c; do
			grep -v '^#' "$tmp/$side.out" | grep -E '^ |"bytes"' |
				sed -E 's/"(machine|peer|command|commit)": "[^"]*",? ?//g' >"$tmp/$side.rows"
		done
		has l.out 10.79.0.2
		has c.out 10.79.0.1
		[ "$(wc -l <"$tmp/l.rows")" = "$rows" ] || die "$op: expected $rows rows"
		cmp -s "$tmp/l.rows" "$tmp/c.rows" || die "$op: the two sides differ"
		[ -z "$format" ] || [ "$(grep -c '"wrong": 0[,}]' "$tmp/c.rows")" = "$rows" ] || die "$op: wrong bytes"
	done
	echo "ok: perf $op $4"
}
few="-n 16 --repeats 1"
pair 3 net "" "10.79.0.1 -b 1 -e 64k -f 256 --depth 5 --lanes 2 --raw $few"
pair 1 rx "" "10.79.0.1 -e 3000001 --repeats 2"
pair 1 rx "--port 4711" "10.79.0.1:4711 --pieces 100 --piece-bytes 999 --repeats 1"

# The other family: what the client names is what is used.
if [ $have6 = 1 ]; then
	listen l net --port 4712
	client c net "[fd79::1]:4712" -b 4k -e 4k $few --raw || die "IPv6: exit status $?"
	wait $pid || die "IPv6: the listener's exit status is $?"
	has l.out "fd79::2"
	echo "ok: IPv6"
fi

# Client after client; on a port of its own, because its ranks end a moment after it.
listen l net --forever --port 4713
for i in 1 2; do client c net 10.79.0.1:4713 -b 64 -e 64 $few || die "--forever, client $i: exit status $?"; done
served() { [ "$(grep -c '; OK' "$tmp/l.out")" = 2 ]; } # it may be the last to print
await served || die "--forever did not serve two clients"
kill $pid
wait $pid 2>/dev/null
echo "ok: --forever"

# Another host by its name only: packets to an address of this machine pass no NIC, so pages are spliced; to another one not.
GANTRY_HOST_ID=one listen l net --port 4714
GANTRY_HOST_ID=two ip netns exec "$a" timeout 280 "$gantry" perf net 10.79.0.1:4714 -b 4M -e 4M $few --calls >"$tmp/c.out" 2>"$tmp/c.err" ||
	die "two names of a host: exit status $?"
wait $pid || die "two names of a host: the listener's exit status is $?"
counted=$(grep -c '^# rank 0: [0-9]* recv' "$tmp/c.out") # sanitizers leave no room for the counters
[ "$counted" = 0 ] || like c.out '^# rank 0: [0-9]+ vmsplice$'
GANTRY_HOST_ID=one listen l net --port 4714
GANTRY_HOST_ID=two client c net 10.79.0.1:4714 -b 4M -e 4M $few --calls || die "two hosts: exit status $?"
wait $pid || die "two hosts: the listener's exit status is $?"
! grep -q vmsplice "$tmp/c.out" || die "pages are spliced towards another host"
echo "ok: splicing where packets pass no NIC"

# A busy port: the one that was there first stays.
listen l net
ip netns exec "$a" timeout 280 "$gantry" perf rx --listen >"$tmp/busy.out" 2>"$tmp/busy.err"
[ $? = 1 ] || die "a busy port should be exit status 1"
has busy.err "port 18520 is in use"
has busy.err "--port"
one_error busy
client c net 10.79.0.1 -b 64 -e 64 $few || die "the one that was there first: exit status $?"
wait $pid || die "the one that was there first: exit status $?"
echo "ok: a busy port"

# Missing peers, while the cases after them go on: each has its deadline to wait for.
for op in net rx; do
	GANTRY_CONNECT_TIMEOUT=2s ip netns exec "$a" timeout 280 "$gantry" perf $op --listen --port "480${#op}" >"$tmp/nobody-$op.out" \
		2>"$tmp/nobody-$op.err" &
	eval "nobody_$op=$!"
	GANTRY_CONNECT_TIMEOUT=2s client none-$op $op 10.79.0.1:4999 &
	eval "none_$op=$!"
done

# Another secret: the client hears it at once; the listener says so, and waits on for one that has it.
# another_secret SECONDS: until the listener gives up. Fails if the client came too late for that.
another_secret() {
	export GANTRY_CONNECT_TIMEOUT=$1s
	listen l net
	unset GANTRY_CONNECT_TIMEOUT
	GANTRY_SECRET=wrong client c net 10.79.0.1
	[ $? = 1 ] || die "another secret should be exit status 1"
	wait $pid
	[ $? = 1 ] || die "the listener should give up with 1"
	one_error c
	one_error l
	grep -q "10.79.0.1:18520 has another GANTRY_SECRET.*set the same" "$tmp/c.err" &&
		grep -qF "a client came with another GANTRY_SECRET" "$tmp/l.err" &&
		grep -qF "no client with this GANTRY_SECRET connected within $1 s (GANTRY_CONNECT_TIMEOUT)" "$tmp/l.err"
}
if has_openssl; then
	another_secret 2 || another_secret 8 || another_secret 25 || die "another secret is not told"
	echo "ok: another secret"
fi

# Encryption on one side only: the same, and nobody is sent to look at the secret, which fits.
# half_encrypted SECONDS LISTENER'S CLIENT'S TEXT
half_encrypted() {
	export GANTRY_CONNECT_TIMEOUT=$1s GANTRY_SECRET=${GANTRY_SECRET:-beta}
	GANTRY_ENCRYPT=$2 listen l net
	unset GANTRY_CONNECT_TIMEOUT
	GANTRY_ENCRYPT=$3 client c net 10.79.0.1
	[ $? = 1 ] || die "encryption on one side should be exit status 1"
	wait $pid
	[ $? = 1 ] || die "the listener should give up with 1"
	one_error c
	one_error l
	! grep -q "another GANTRY_SECRET" "$tmp/c.err" "$tmp/l.err" && grep -qF "10.79.0.1:18520: $4" "$tmp/c.err" &&
		grep -qF "a client came and was refused: $4" "$tmp/l.err" &&
		grep -qF "no matching client connected within $1 s (GANTRY_CONNECT_TIMEOUT); refused one: $4" "$tmp/l.err"
}
if has_openssl && "$gantry" doctor | grep -q 'ok *encryption'; then
	for case in "require off listener client" "off require client listener"; do
		read -r l c with without <<<"$case"
		text="GANTRY_ENCRYPT=require on the $with, but the $without does not encrypt: set the same on both sides"
		(half_encrypted 2 $l $c "$text" || half_encrypted 8 $l $c "$text" || half_encrypted 25 $l $c "$text") ||
			die "encryption on one side is not told"
	done
	echo "ok: encryption on one side"
fi
for op in net rx; do
	eval "wait \$nobody_$op"
	[ $? = 1 ] || die "perf $op without a client should be exit status 1"
	has nobody-$op.err "no client came within 2 s (GANTRY_CONNECT_TIMEOUT)"
	has nobody-$op.err "run gantry perf $op 10.79.0.1:480${#op}"
	one_error nobody-$op
	eval "wait \$none_$op"
	[ $? = 1 ] || die "perf $op without a listener should be exit status 1"
	has none-$op.err "connecting to 10.79.0.1:4999"
	has none-$op.err "no listener at 10.79.0.1:4999 within 2 s (GANTRY_CONNECT_TIMEOUT): Connection refused"
	has none-$op.err "run gantry perf $op --listen --port 4999 there"
	one_error none-$op
done
echo "ok: missing peers"

# Another operation, and a peer that dies.
listen l rx
client c net 10.79.0.1 && die "net with rx went well"
wait $pid && die "rx with net went well"
has c.err "run the same on both"
has l.err "run the same on both"
one_error c
one_error l
listen l net
ip netns exec "$b" "$gantry" perf net 10.79.0.1 -b 64 -e 64 -n 1000000000 >"$tmp/c.out" 2>"$tmp/c.err" &
other=$!
met() { grep -q . "$tmp/l.out" || ! kill -0 $pid 2>/dev/null || [ "$(ip netns exec "$b" ss -Htn state established dst 10.79.0.1 2>/dev/null | wc -l)" -ge 2 ]; }
command -v ss >/dev/null && await met
kill -9 $other
wait $other 2>/dev/null
wait $pid
[ $? = 1 ] || die "a client that dies should make the listener fail"
echo "ok: another operation, a peer that dies"

# Ranks of a launcher on both hosts.
torch="WORLD_SIZE=2 MASTER_ADDR=10.79.0.1 MASTER_PORT=4600"
few="-b 0 -e 4k -f 64 -n 2 -w 1 --repeats 1"
ip netns exec "$a" env $torch RANK=0 timeout 280 "$gantry" perf sendrecv $few >"$tmp/l.out" 2>"$tmp/l.err" &
pid=$!
ip netns exec "$b" env $torch RANK=1 timeout 280 "$gantry" perf sendrecv $few >"$tmp/c.out" 2>"$tmp/c.err" || die "rank 1: exit status $?"
wait $pid || die "rank 0: exit status $?"
has l.out "# wrong bytes: 0; OK"
echo "ok: torchrun's variables on both"

# Wrong usage.
for args in "--listen 10.0.0.1" "--listen -b 4k" "--forever" "--port 5" "10.0.0.1:70000" "one two"; do
	expect 2 "$gantry" perf net $args
done
for args in "--listen 10.0.0.1" "--listen -e 4k" "--forever" "[::1" "one two"; do
	expect 2 "$gantry" perf rx $args
done
