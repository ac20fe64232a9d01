#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a communicator leaves behind when it is gone (nothing), how long closing takes (nobody is waited for), and what
# it costs while nothing happens (next to nothing).
# Catches: an fd, thread, allocation or engine user that is not given back on close; a thread that polls; a close that
# joins, drains or waits for a stopped peer; two processes that disagree about whose link they share;
# messages that come before accept and are dropped.
DEADLINES="1 6 20"
. "$(dirname "$0")/lib.sh"
driver=$BUILD_DIR/drivers/lifecycle
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s
# Free blocks that malloc keeps for a thread count as used, and how many there are depends on who ran when.
export GLIBC_TUNABLES=glibc.malloc.tcache_count=0
cycles=1000
[ -n "${GANTRY_SANITIZED:-}" ] && cycles=100

run()
{
	local name=$1
	shift
	echo "-- $name"
	# Looking for leaks costs seconds per process: once is enough.
	[ "$1" = cycles ] || local -x ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
	"$driver" "$@" || fail "$name"
}

# Its limit is a time, and others on this machine can only make it more: in one of three.
close_stopped()
{
	local -x ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
	echo "-- $1"
	"$driver" close || "$driver" close || "$driver" close || fail "$1"
}

unaccepted()
{
	local -x ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 GANTRY_TIMEOUT GANTRY_STALL
	echo "-- not accepted yet"
	with_deadlines "$driver" unaccepted || fail "not accepted yet"
}

run "cycles" cycles $cycles
close_stopped "close with a stopped peer"
run "idle" idle
unaccepted
run "crossing connections" crossing 20
if has_openssl; then
	export GANTRY_SECRET=alpha
	run "cycles, with a secret" cycles $((cycles / 5))
	close_stopped "close with a stopped peer, with a secret"
	run "crossing connections, with a secret" crossing 5
	unset GANTRY_SECRET
fi
export GANTRY_HELPERS=2 GANTRY_LANES=2
run "cycles, with helpers" cycles $((cycles / 5))
close_stopped "close with a stopped peer, with helpers"
run "idle, with helpers" idle
run "crossing connections, with helpers" crossing 5
exit $failed
