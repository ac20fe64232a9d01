#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A send that is larger than its receive: both sides learn both sizes.
# Catches: a message cut to its buffer, bytes behind a buffer, an error on one side only, a sender that waits for ever.
. "$(dirname "$0")/lib.sh"
no_leaks
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error}
for settings in "" "GANTRY_HELPERS=2 GANTRY_LANES=2" GANTRY_CRC=1 GANTRY_ZEROCOPY=off; do
	echo "-- ${settings:-defaults}"
	env $settings "$BUILD_DIR/drivers/mismatch" 2>"$tmp/err" || { fail "${settings:-defaults}"; cat "$tmp/err"; }
done
exit $failed
