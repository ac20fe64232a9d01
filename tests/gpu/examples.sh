#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/kernel_put.cu as its first comment says: two processes on one GPU, whose kernels put to each other. Each compares every byte.
set -u
. "$(dirname "$0")/lib_gpu.sh"
need_nvcc
nvcc -O2 -arch=native -I"$SOURCE_DIR/include" -o "$BUILD_DIR/gpu/kernel_put" "$SOURCE_DIR/examples/kernel_put.cu" -L"$BUILD_DIR/lib" -lgantry || exit 1
export LD_LIBRARY_PATH=$BUILD_DIR/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} GANTRY_IFNAME=lo
start_mps
timeout 60 "$BUILD_DIR/gpu/kernel_put" 0 "$scratch/id" &
timeout 60 "$BUILD_DIR/gpu/kernel_put" 1 "$scratch/id"
second=$?
wait $!
first=$?
[ $first = 0 ] && [ $second = 0 ] || { echo "FAILED: kernel_put ends with $first and $second"; exit 1; }
