#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Communicators made from others when ranks die. Four processes exchange messages; one is killed, rank 0 with the hub or
# another one; the others shrink the communicator and go on, twice, and compute right. A rank that dies while it is
# awaited in a split, a shrink or a grow gives all others an error that names it, within their deadline.
# Catches: a shrink that needs the dead hub, ranks that meet somewhere else than the others, calls that wait for the dead,
# descriptors and threads of communicators that failed half-way.
. "$(dirname "$0")/lib.sh"
driver=$BUILD_DIR/drivers/comm_life
export GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_IFNAME=lo
n=0

try_once()
{
	n=$((n + 1))
	mkdir -p "$tmp/$n"
	# Where the deadline of connecting is not what ends it, it is so long that it shows. A hub at which ranks were missed
	# stays as long.
	local -x GANTRY_CONNECT_TIMEOUT=100s
	[ "$1" != meet ] || GANTRY_CONNECT_TIMEOUT=$((15 + ${GANTRY_TIMEOUT%s}))s
	[ "$1" != orphans ] || GANTRY_CONNECT_TIMEOUT=3s
	# Looking for leaks costs seconds per process.
	[ "$*" = "shrink 0 net" ] || local -x ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
	timeout 280 "$driver" "$@" "$tmp/$n" 2>"$tmp/err" || { echo "$* (exit status $?)"; cat "$tmp/err"; return 1; }
}

run() { with_deadlines try_once "$@" || fail "$*"; }

for transport in shm net; do
	run shrink 0 $transport
	run shrink 2 $transport
done
run nonblock 0 net
run nonblock 3 shm
run revoke 0 shm
run revoke 1 net
run split 2 shm
run split 0 shm
run meet 0 shm # serves the new one, and has the old one's hub
run meet 1 shm
run orphans 1 shm # serves the new one
run orphans 2 shm
run grow 2 shm
exit $failed
