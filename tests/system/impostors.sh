#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ten thousand connections that know everything but the secret: sniffed cookies, replayed hellos and proofs, every kind of message
# in every state. They change a counter and nothing else.
# Catches: a link, a promise or an error of accept for who has not proved itself; memory or CPU time that strangers can spend;
# a proof that can be said again; genuine peers that are locked out.
. "$(dirname "$0")/lib.sh"
no_leaks
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s GANTRY_TIMEOUT=100s
n=10000
[ -n "${GANTRY_SANITIZED:-}" ] && n=3000
GANTRY_SECRET=alpha "$BUILD_DIR/drivers/impostors" $n
