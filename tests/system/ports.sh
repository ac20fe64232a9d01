#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ports, addresses and descriptors: one port is enough for a process, listeners bind the chosen address only, and what
# runs out says so before it does.
# Catches: a port per listener, a port per protocol, a bind to all addresses, an advertised address that is ignored for the bulk lanes, EMFILE
# in the middle of a connection, ECONNREFUSED as a fatal error, a connect that never gives up.
. "$(dirname "$0")/lib.sh"
own_network "$0"
no_leaks
driver=$BUILD_DIR/drivers/ports
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error}
port=$((20000 + $$ * 4 % 9000)) # and the next three; below the range the kernel takes outgoing ports from
at_exit() { exec 7>&- 8>&-; wait; }

# says NAME FILE PATTERN...
says()
{
	local name=$1 file=$2
	shift 2
	for pattern in "$@"; do
		grep -Eq -- "$pattern" "$file" || { fail "$name: no line like '$pattern'"; cat "$file" "$file.err"; }
	done
	echo "-- $name"
	sed 's/^/   /' "$file"
}

until_line() { await [ -s "$1" ]; }

listening() # of process $1: local address and port
{
	ss -Hltnp 2>/dev/null | grep "pid=$1," | awk '{print $4}'
}

# One port for 64 connections; the process listens nowhere else.
mkfifo "$tmp/in"
GANTRY_PORT_RANGE=$port "$driver" many 64 <"$tmp/in" >"$tmp/many" 2>"$tmp/many.err" &
many=$!
exec 7>"$tmp/in"
until_line "$tmp/many"
says "64 connections over one port" "$tmp/many" '^connected 64$'
[ "$(listening $many)" = "127.0.0.1:$port" ] || fail "listens on '$(listening $many)', expected 127.0.0.1:$port alone"

# The same range in other processes: full, then wide enough.
GANTRY_PORT_RANGE=$port "$driver" listen </dev/null >"$tmp/full" 2>"$tmp/full.err"
says "a range that is used up" "$tmp/full" "^listen ERR_LIMIT .*127.0.0.1.*port $port is in use.*GANTRY_PORT_RANGE"
GANTRY_PORT_RANGE=$port-$((port + 1)) "$driver" listen </dev/null >"$tmp/next" 2>"$tmp/next.err"
says "the next port of a range" "$tmp/next" "^listen OK 127.0.0.1:$((port + 1)) "
for bad in 0 70000 9-8 x 100-; do
	GANTRY_PORT_RANGE=$bad "$driver" listen </dev/null >"$tmp/bad" 2>"$tmp/bad.err"
	says "bad range $bad" "$tmp/bad.err" "GANTRY_PORT_RANGE=$bad is invalid: expected a port" 'gave ERR_CONFIG, expected OK$'
done
exec 7>&-
wait $many || { fail "many ended badly"; cat "$tmp/many.err"; }

# A communicator: rank 0 has the ranks' meeting point and its share of the data on the one port that it may use, or on the
# one that a relay in front of it knows. With a secret as well.
for secret in "" $(has_openssl && echo alpha); do
	for mode in own behind; do
		rm -rf "$tmp/comm.d" && mkdir "$tmp/comm.d"
		GANTRY_SECRET=$secret "$BUILD_DIR/drivers/comm_port" $mode $port "$tmp/comm.d" >"$tmp/comm" 2>"$tmp/comm.err" ||
			{ fail "comm_port $mode"; cat "$tmp/comm.err"; }
		at=$port
		[ $mode = own ] || at=$((port + 1))
		says "a communicator, a port each: $mode${secret:+, with a secret}" "$tmp/comm" \
			'^rank 0 OK' '^rank 1 OK' '^rank 2 OK' "^rank 0 listens on 127.0.0.1:$at\$"
		[ "$(grep -c 'rank 0 listens' "$tmp/comm")" = 1 ] || fail "$mode: rank 0 listens on more than one port"
		[ $mode = own ] || says "all of it through the relay" "$tmp/comm" '^relayed all$'
	done
done

# Advertised: the handle carries it; what is bound stays the NIC's address.
mkfifo "$tmp/in2"
GANTRY_ADVERTISE=198.51.100.7:4711 GANTRY_PORT_RANGE=$port "$driver" listen <"$tmp/in2" >"$tmp/adv" 2>"$tmp/adv.err" &
adv=$!
exec 8>"$tmp/in2"
until_line "$tmp/adv"
says "advertised address" "$tmp/adv" '^listen OK 198.51.100.7:4711 of 1$'
[ "$(listening $adv)" = "127.0.0.1:$port" ] || fail "listens on '$(listening $adv)', expected 127.0.0.1:$port alone"
exec 8>&-
wait $adv
GANTRY_ADVERTISE=nonsense "$driver" listen </dev/null >"$tmp/bad" 2>"$tmp/bad.err"
says "bad advertised address" "$tmp/bad.err" 'GANTRY_ADVERTISE=nonsense is invalid: expected 10.0.0.2' 'gave ERR_CONFIG, expected OK$'

# Descriptors: the connection that does not fit is refused with advice; those before it work.
"$driver" nofile 64 >"$tmp/nofile" 2>"$tmp/nofile.err" || { fail "nofile"; cat "$tmp/nofile.err"; }
says "few descriptors" "$tmp/nofile" '^self ERR_(LIMIT|REFUSED) after [1-9][0-9]*: .*file descriptors.*ulimit -n' '^transfers [1-9]'
"$driver" nofile_peer 64 >"$tmp/peer" 2>"$tmp/peer.err" || { fail "nofile_peer"; cat "$tmp/peer.err"; }
says "few descriptors on the accepting side" "$tmp/peer" \
	'^accept ERR_LIMIT after [1-9][0-9]*: .*file descriptors.*ulimit -n' \
	'^connect ERR_REFUSED after [1-9][0-9]*: .*127\.0\.0\.1.*file descriptors.*ulimit -n'

# Below the hard limit it raises the soft one.
(ulimit -Sn 64 && "$driver" many 40 </dev/null) >"$tmp/soft" 2>"$tmp/soft.err" || { fail "a soft limit of 64 files"; cat "$tmp/soft.err"; }
says "few descriptors by the soft limit" "$tmp/soft" '^connected 40$'

# Nothing listens there yet: tried again until it does, or until the deadline.
export GANTRY_PORT_RANGE=$((port + 1)) GANTRY_CONNECT_TIMEOUT=100s
"$driver" late $port 500 >"$tmp/late" 2>"$tmp/late.err" || { fail "late"; cat "$tmp/late.err"; }
says "a listener that comes late, behind a relay" "$tmp/late" \
	'^connect OK after ([5-9][0-9][0-9]|[1-9][0-9]{3,}) ms' '^transfer OK'
export GANTRY_CONNECT_TIMEOUT=1s
"$driver" late $port -1 >"$tmp/never" 2>"$tmp/never.err" || { fail "never"; cat "$tmp/never.err"; }
says "a listener that never comes" "$tmp/never" \
	"^connect ERR_UNREACHABLE after [1-9][0-9]{3,} ms: .*127.0.0.1:$port.* 1 s .*Connection refused"
exit $failed
