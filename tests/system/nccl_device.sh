#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NCCL's device API in libnccl.so.2, by threads of the CPU that do what NCCL's device code does: layouts, data of all to all, of a ring and of random
# puts, windows, groups; and the ends of kernels that wait when a rank aborts, dies, or writes what is no request.
# Catches: a bit of a request that is read elsewhere, a signal before its data, memory numbers that differ between ranks, a kernel that waits for ever.
. "$(dirname "$0")/lib.sh"
device=$BUILD_DIR/nccl/device
[ -x "$device" ] || skip "no $device"
clean_environment
no_leaks
export LD_LIBRARY_PATH=$BUILD_DIR/lib GANTRY_NCCL_DEVICE=host GANTRY_IFNAME=lo GANTRY_TIMEOUT=5s
tested=("$device")

cases="layout all_to_all ring random windows abort group_abort wrong"
expect 0 threads 1 $cases group
expect 0 threads 3 $cases
expect 0 processes 2 $cases
expect 0 processes 4 $cases
expect 0 processes 3 death
expect 0 threads 3 death
# Memory of a GPU, by copies of the driver that the tests have in place of CUDA's.
[ ! -e "$BUILD_DIR/fixtures/cuda/libcuda.so.1" ] || [ -n "${GANTRY_SANITIZED:-}" ] ||
	DEVICE_MEMORY=1 LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$BUILD_DIR/fixtures/cuda GANTRY_NCCL_DEVICE=auto \
		expect 0 threads 3 layout all_to_all ring random abort wrong
GANTRY_RESUME=on expect 0 processes 2 all_to_all random
