#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Two processes with 256 connections between them that have nothing to do use next to no CPU.
# Catches: a thread that polls, signs of life per connection, a sleep that is short because there are many connections.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/comm_idle
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_SPLIT_MIN=65536 # so that every channel carries something
[ -z "${GANTRY_SANITIZED:-}" ] || skip "a measurement: means nothing under a sanitizer"
run()
{
	timeout 280 "$driver" $1 "$(mktemp -d -p "$tmp")" $2 $3 || fail "$* (exit status $?)"
}

# Transport, communicators, channels.
run shm 4 32
run net 4 32
run p2p 4 32
run net 64 1 # a link of its own for each
exit $failed
