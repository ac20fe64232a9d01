#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ten thousand strangers at the port of a running transfer: HTTP requests, random bytes, resets, connections that close at
# once, stay silent or trickle. They change a counter and nothing else.
# Catches: a blocking accept or read of the hello, strangers without a deadline or a cap, a stranger that reaches a
# listener, descriptors that pile up, genuine peers that are locked out.
. "$(dirname "$0")/lib.sh"
no_leaks
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_CONNECT_TIMEOUT=100s GANTRY_TIMEOUT=100s
n=10000
[ -n "${GANTRY_SANITIZED:-}" ] && n=3000
for settings in "" $(has_openssl && echo GANTRY_SECRET=alpha); do
	echo "-- ${settings:-no secret}"
	env $settings "$BUILD_DIR/drivers/strangers" $n || fail "${settings:-no secret}"
done
exit $failed
