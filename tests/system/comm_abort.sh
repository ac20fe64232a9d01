#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Ends of a communicator that nobody waits for: aborted from another thread while a transfer waits, its stream is free
# within 100 ms and destroying it is bounded, also when nobody aborts and the peer never comes. And what communicators
# leave behind when they are gone: nothing.
# Catches: a wait of a kernel, the proxy or connecting that does not look at the abort flag, a destroy that waits for the
# peer, memory that goes while the network still refers to it, descriptors, threads and memory that are not given back.
. "$(dirname "$0")/lib.sh"
driver=$BUILD_DIR/drivers/comm_abort
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s
# Free blocks that malloc keeps for a thread count as used, and how many there are depends on who ran when.
export GLIBC_TUNABLES=glibc.malloc.tcache_count=0

run()
{
	# Looking for leaks costs seconds per process: once is enough.
	[ "$1" = cycles ] || local -x ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
	# Where nobody may be waited for, the time for that is so long that it shows.
	local -x GANTRY_TIMEOUT=100s
	[ "$1" != destroy ] || local -x GANTRY_CALL_TIMEOUT=1s
	timeout 280 "$driver" "$@" 2>"$tmp/err" || { fail "$* (exit status $?)"; cat "$tmp/err"; }
}

for transport in p2p shm net; do
	for mode in abort connect destroy flood cycles; do run $mode $transport; done
done
exit $failed
