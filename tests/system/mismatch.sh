#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A send that is larger than its receive: both sides learn both sizes.
# Catches: a message cut to its buffer, bytes behind a buffer, an error on one side only, a sender that waits for ever.
set -u
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # seconds per process; lifecycle.sh looks for leaks
export GANTRY_IFNAME=lo GANTRY_LOG=${GANTRY_LOG:-error}
failed=0
for settings in "" "GANTRY_HELPERS=2 GANTRY_LANES=2" GANTRY_CRC=1 GANTRY_ZEROCOPY=off; do
	echo "-- ${settings:-defaults}"
	env $settings "$BUILD_DIR/drivers/mismatch" 2>"${TMPDIR:-/tmp}/mismatch.$$" || {
		echo "FAILED: ${settings:-defaults}"
		cat "${TMPDIR:-/tmp}/mismatch.$$"
		failed=1
	}
done
rm -f "${TMPDIR:-/tmp}/mismatch.$$"
exit $failed
