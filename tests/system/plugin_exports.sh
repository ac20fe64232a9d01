#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plugin lives in NCCL's process: it exports its tables and not one symbol more.
set -eu
lib="$BUILD_DIR/lib/libnccl-net-gantry.so"
[ -f "$lib" ] || { echo "skipped: no $lib"; exit 77; }
command -v nm >/dev/null || { echo "skipped: no nm"; exit 77; }

want=$(printf 'ncclNetPlugin_v%s\n' 6 7 8 9 10 11 12 | sort)
have=$(nm -D --defined-only "$lib" | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort)
if [ "$have" != "$want" ]; then
	echo "exports of $lib differ (< expected, > found):"
	diff <(echo "$want") <(echo "$have")
	exit 1
fi
