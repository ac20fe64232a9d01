#!/usr/bin/env bash
# Does a launch that waits for room in its queue keep other threads from copying? See full_queue.cu. Once as a process of its
# own, once as a client of MPS.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
PATH=$PATH:/usr/local/cuda/bin
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
mkdir -p "$BUILD_DIR/gpu"
nvcc -std=c++17 -O2 -arch=native -o "$BUILD_DIR/gpu/full_queue" "$SOURCE_DIR/tests/gpu/full_queue.cu" -lcuda || exit 1
timeout 30 "$BUILD_DIR/gpu/full_queue" || { echo "FAILED ($?)"; exit 1; }
. "$(dirname "$0")/lib_gpu.sh"
start_mps
echo "with MPS:"
timeout 30 "$BUILD_DIR/gpu/full_queue" || { echo "FAILED ($?)"; exit 1; }
