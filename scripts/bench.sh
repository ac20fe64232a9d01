#!/usr/bin/env bash
# Measures and judges: `gantry perf net` against plain TCP on loopback and, where there is a GPU, stock NCCL over Gantry
# against NCCL's own sockets. JSON lines, headed by machine, command and commit, go to FOLDER (default: build/bench); those
# worth keeping are copied to bench/results/ by hand.
#
#   scripts/bench.sh [FOLDER]
set -euo pipefail
. "$(dirname "$0")/lib.sh"
BUILD_DIR=$(cd "${BUILD:-build}" && pwd)
SOURCE_DIR=$PWD
export BUILD_DIR SOURCE_DIR
out=${1:-$BUILD_DIR/bench}
mkdir -p "$out"

header "perf net"
bash bench/run.sh "$out/perf-net.jsonl"
header "stock NCCL"
status=0
bash bench/gpu.sh "$out/gpu.jsonl" || status=$?
[ $status = 77 ] || [ $status = 0 ] || exit $status # 77: it has said why it did not run
