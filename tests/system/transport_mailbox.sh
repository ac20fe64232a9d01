#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A transport outside the tree, built from the public headers alone and loaded from its library, carries every byte
# between two processes and between two threads.
# Catches: symbols that a library needs and nobody exports, a core that knows its transports by name, an interface that
# cannot be used without what src/ has.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/comm_pair
library=$BUILD_DIR/transports/libmailbox.so
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s GANTRY_TIMEOUT=100s

run()
{
	timeout 250 "$driver" mailbox "$1" "$(mktemp -d -p "$tmp")" || fail "two $1 (exit status $?)"
}

export GANTRY_TRANSPORT=mailbox
timeout 250 "$driver" mailbox threads "$tmp" >"$tmp/out" 2>&1 && fail "it went without the library"
grep -q mailbox "$tmp/out" || { fail "the error does not name the transport"; cat "$tmp/out"; }
export GANTRY_TRANSPORT_LIBS=$library
run processes
run threads
GANTRY_CHANNELS=4 GANTRY_SPLIT_MIN=65536 run threads
exit $failed
