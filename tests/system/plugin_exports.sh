#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plugin lives in NCCL's process: it exports its tables and not one symbol more.
. "$(dirname "$0")/lib.sh"
lib="$BUILD_DIR/lib/libnccl-net-gantry.so"
[ -f "$lib" ] || skip "no $lib"
need nm

diff <({ for table in Net CollNet; do printf "nccl${table}Plugin_v%s\n" 6 7 8 9 10 11 12; done; printf 'ncclTunerPlugin_v%s\n' 2 3 4 5 6 7; printf 'ncclProfiler_v%s\n' 1 2 3 4 5 6; printf 'ncclEnvPlugin_v%s\n' 1 2; printf 'ncclGinPlugin_v%s\n' 11 12 13; printf 'ncclRmaPlugin_v%s\n' 13 14 15 16 17; } | sort) \
	<(nm -D --defined-only "$lib" | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort) ||
	die "exports of $lib differ (< expected, > found)"
