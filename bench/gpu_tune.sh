#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU machine: what stock NCCL makes of the plugin, call by call (gpu_tune.py has the series). At most LIMIT seconds, 500 if
# not set, and a table at the end; FILE gets every call's time as JSON lines.
# usage: bench/gpu_tune.sh PART [RANKS] [ROUNDS] [FILE]
#   compare   Socket, Socket 2 x 2, Gantry as it is and with GANTRY_TUNE=off, raw TCP; OLD_PLUGIN=FILE adds a series
#   sweep     channels x protocol, nothing tuned
#   variants  VARIANTS="LABEL:NAME=VALUE,NAME=VALUE LABEL:..." beside Socket 2 x 2 and Gantry as it is; channels=N stands for that many, Simple; dropin=1: as dropin
#   unpack    GANTRY_UNPACK=emulated beside the same plugin without it
#   dropin    Gantry's libnccl.so.2 over its network beside stock NCCL over the plugin
#   train     steps of a transformer under DDP and FSDP
#   choices   algorithm, protocol and channels that NCCL takes at each size
# SIZES=LIST and ONLY=LABELS (both separated by commas) take less.
. "$(dirname "$0")/../tests/gpu/lib_gpu.sh"
need_nccl
part=${1:?a part: compare, sweep, variants, unpack, dropin, train, choices} ranks=${2:-2} rounds=${3:-5} out=${4:-/dev/null}
raw=()
if [ "$part" = compare ]; then
	cc -O2 -D_GNU_SOURCE -pthread -I "$SOURCE_DIR/tools" -o "$scratch/raw_streams" "$SOURCE_DIR"/{bench/raw_streams,tools/common/raw_tcp}.c || exit 1
	raw=(--raw "$scratch/raw_streams")
fi
start_mps
sleep 1
python3 "$SOURCE_DIR/bench/gpu_tune.py" "$part" "$BUILD_DIR/lib/libnccl-net-gantry.so" --ranks "$ranks" --rounds "$rounds" --out "$out" \
	--scratch "$scratch" --limit "${LIMIT:-500}" ${SIZES:+--sizes "$SIZES"} ${ONLY:+--only "$ONLY"} "${raw[@]}"
