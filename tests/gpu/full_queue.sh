#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does a launch that waits for room in its queue keep other threads from copying? See full_queue.cu. Once as a process of its
# own, once as a client of MPS.
set -u
. "$(dirname "$0")/lib_gpu.sh"
need_nvcc
nvcc -std=c++17 -O2 -arch=native -o "$BUILD_DIR/gpu/full_queue" "$SOURCE_DIR/tests/gpu/full_queue.cu" -lcuda || exit 1
timeout 30 "$BUILD_DIR/gpu/full_queue" || { echo "FAILED ($?)"; exit 1; }
start_mps
echo "with MPS:"
timeout 30 "$BUILD_DIR/gpu/full_queue" || { echo "FAILED ($?)"; exit 1; }
