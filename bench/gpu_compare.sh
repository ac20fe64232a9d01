#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU machine: all-reduce of stock NCCL over the plugins of two builds, interleaved in one run. JSON lines, then a
# table of medians: a ratio above 1 means that NEW is faster.
# usage: bench/gpu_compare.sh OLD-BUILD NEW-BUILD [ROUNDS] [FILE]
old=$1 new=$2 rounds=${3:-5} out=${4:-/dev/stdout}
BUILD_DIR=$new
. "$(dirname "$0")/../tests/gpu/lib_gpu.sh"
need_nccl
sizes=${SIZES:-1024,1048576,16777216,134217728}
lines=$scratch/lines
set -o pipefail
start_mps
for round in $(seq "$rounds"); do
	for which in $([ $((round % 2)) = 1 ] && echo old new || echo new old); do
		plugin=$(find "${!which}" -name libnccl-net-gantry.so | head -n 1)
		python3 "$SOURCE_DIR/tests/gpu/nccl_run.py" --ranks 2 --log "$scratch/bench" --env "NCCL_NET_PLUGIN=$plugin" --env NCCL_NET=gantry -- \
			bench --label "$which" --sizes "$sizes" | tee -a "$lines" >>"$out" || { tail -n 5 "$scratch/bench.0" >&2; exit 1; }
	done
done
python3 - "$lines" <<'PY'
import json, statistics, sys
times = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    if "bytes" in r:
        times.setdefault(r["bytes"], {}).setdefault(r["label"], []).append(r["time_us"])
for size, t in sorted(times.items()):
    old, new = (statistics.median(t[w]) for w in ("old", "new"))
    print(f"{size:>12} B  old {old:10.1f} us  new {new:10.1f} us  ratio {old / new:.3f}")
PY
