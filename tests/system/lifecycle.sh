#!/bin/bash
# What a communicator leaves behind when it is gone (nothing), how long closing takes (nobody is waited for), and what
# it costs while nothing happens (next to nothing).
# Catches: an fd, thread, allocation or engine user that is not given back on close; a thread that polls; a close that
# joins, drains or waits for a stopped peer; two processes that disagree about whose link they share;
# messages that come before accept and are dropped.
set -u
driver=$BUILD_DIR/drivers/lifecycle
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=20s
cycles=1000
[ -n "${GANTRY_SANITIZED:-}" ] && cycles=100
failed=0

run()
{
	local name=$1
	shift
	echo "-- $name"
	# Looking for leaks costs seconds per process: once is enough.
	[ "$1" = cycles ] || local -x ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
	"$driver" "$@" || { echo "FAILED: $name"; failed=1; }
}

run "cycles" cycles $cycles
run "close with a stopped peer" close
run "idle" idle
GANTRY_TIMEOUT=1s run "not accepted yet" unaccepted
run "crossing connections" crossing 20
GANTRY_SECRET=alpha run "cycles, with a secret" cycles $((cycles / 5))
export GANTRY_HELPERS=2 GANTRY_LANES=2
run "cycles, with helpers" cycles $((cycles / 5))
run "close with a stopped peer, with helpers" close
run "idle, with helpers" idle
run "crossing connections, with helpers" crossing 5
exit $failed
