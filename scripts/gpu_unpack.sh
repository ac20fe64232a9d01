#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU machine: builds, then tries UNPACK: copies, kernels, stock NCCL over the emulated NIC, the pipeline. Each part
# has a time limit of its own, so that one that hangs does not cost the others their turn. Output to $OUT if set.
#
#   scripts/gpu_unpack.sh [PART...]
#   parts: device kernels reduce ring sanitize bench check2 check4 shapes soak settings queue rx pieces example
#   none named: device kernels reduce bench check2 rx
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-/tmp/gpu-out}
mkdir -p "$out"
cmake -S . -B build-gpu -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGANTRY_CUDA_ARCHS="${ARCHS:-90}" >"$out/cmake.log" 2>&1 &&
	cmake --build build-gpu -j 16 --target tests >"$out/build.log" 2>&1 || { tail -n 30 "$out/build.log" "$out/cmake.log"; exit 1; }
export BUILD_DIR=$PWD/build-gpu SOURCE_DIR=$PWD OUT=$out
tool=build-gpu/gantry
[ $# -gt 0 ] || set -- device kernels reduce bench check2 rx

# rows NAME LIMIT COMMAND...: all of its JSON lines to a file, the telling fields to the screen.
rows()
{
	local name=$1 limit=$2
	shift 2
	timeout "$limit" "$@" >"$out/$name.jsonl" 2>"$out/$name.err" || { echo "$name: rc $?"; tail -n 8 "$out/$name.err"; }
	python3 - "$out/$name.jsonl" <<'PY'
import json, sys
fields = ("kind", "shape", "blocks", "lanes", "gbs", "seed_gbs", "copy_gbs", "ratio_seed", "ratio_copy", "ratio_two_step", "path", "raw_gbs", "pcie_gbs", "ratio",
          "piece_ratio", "us", "us_per_job", "launch_us", "wrong")
for line in open(sys.argv[1]):
    if not line.startswith("{") or '"wrong"' not in line: # the first and the last object
        continue
    r = json.loads(line)
    print(" ".join("%s %s" % (k, "%.3g" % r[k] if isinstance(r[k], float) else r[k]) for k in fields if r.get(k) is not None))
PY
}

# nccl PART LIMIT: a part of tests/gpu/nccl_unpack.sh.
nccl()
{
	timeout "$2" bash tests/gpu/nccl_unpack.sh "$1" 2>&1 | grep -v '"wrong": 0\|"label"' | cut -c1-240 | tail -n "${LINES_OF_LOG:-12}"
}

for part in "$@"; do
	echo "== $part: $(date +%T)"
	case $part in
	device) timeout 60 bash tests/gpu/device.sh 2>&1 | tail -n 8 ;;
	kernels) rows kernels 60 $tool perf unpack --device cuda --json --kind unpack ;;
	reduce) rows reduce 60 $tool perf unpack --device cuda --json --kind reduce ;;
	ring) rows ring 40 $tool perf unpack --device cuda --json --kind ring ;;
	sanitize) CHECK=1 timeout 80 bash tests/gpu/unpack.sh 2>&1 | tail -n 40 ;;
	bench) ROUNDS=${ROUNDS:-3} nccl bench 120 ;;
	check2 | check4) LIMIT=110 RANKS=${part#check} nccl check 120 ;;
	shapes) LIMIT=40 nccl shapes 150 ;;
	soak) LIMIT=${LIMIT:-120} nccl soak 130 ;;
	settings) nccl settings 150 ;;
	queue) timeout 80 bash tests/gpu/full_queue.sh 2>&1 | tail -n 4 ;;
	rx) for path in host emulated; do rows "rx_$path" 40 $tool perf rx --device cuda --json --path $path -e 1G; done ;;
	pieces) for path in host emulated; do rows "pieces_$path" 60 $tool perf rx --device cuda --json --path $path --pieces 100000 --piece-bytes 8192; done ;;
	example)
		for path in emulated host; do
			for device in cuda host; do
				GANTRY_RX_PATH=$path timeout 60 build-gpu/examples/rx_tensor $((1 << 30)) $device 2>&1 | tail -n 3
			done
		done
		;;
	*) echo "there is no part $part"; exit 2 ;;
	esac
done
