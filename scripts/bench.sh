#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures and judges: `gantry perf net` against plain TCP on loopback and, where there is a GPU, stock NCCL over Gantry
# against NCCL's own sockets. JSON lines, headed by machine, command and commit, go to FOLDER (default: build/bench); those
# worth keeping are copied to bench/results/ by hand. What other processes or the hypervisor have disturbed is not judged,
# and said so: that is no failure.
#
#   scripts/bench.sh [FOLDER]
set -euo pipefail
. "$(dirname "$0")/lib.sh"
BUILD_DIR=$(cd "${BUILD:-build}" && pwd)
SOURCE_DIR=$PWD
export BUILD_DIR SOURCE_DIR
out=${1:-$BUILD_DIR/bench}
mkdir -p "$out"

# part COMMAND...: 77 is no failure: it has said why it did not run, or was not judged.
part() {
	local status=0
	"$@" || status=$?
	[ $status = 77 ] || [ $status = 0 ] || exit $status
}

header "perf net"
part bash bench/run.sh "$out/perf-net.jsonl"
header "stock NCCL"
part bash bench/gpu.sh "$out/gpu.jsonl"
