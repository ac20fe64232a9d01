#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rank that lacks something of its own (its plugin, descriptors) says so, and all other ranks hear that it is about that
# rank and why.
# Catches: an own error that is reported as about the peer of the moment, "rank 1 has left" without the reason, ranks without
# a connection to it, or that come late, that hear nothing.
. "$(dirname "$0")/lib.sh"
no_leaks
unset GANTRY_NET_PLUGIN GANTRY_TRANSPORT
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error}

try()
{
	rm -f "$tmp/id"
	echo "-- $*"
	timeout 200 "$BUILD_DIR/drivers/comm_own" "$@" "$tmp" 2>"$tmp/err" || { fail "$*"; cat "$tmp/err"; }
}

try plugin 1 net
try plugin 0 net # whose process has the bootstrap root
for transport in net shm p2p; do
	try nofile 1 $transport
done
try late 1 net
exit $failed
