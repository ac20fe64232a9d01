#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 1800
# No branch of a kernel depends on a register that nothing has written. Warps shuffle, and a shuffle waits for all
# lanes: a branch to it that lanes take by what a register happened to hold stops the warp for good (it did, see
# docs/design/0007-unpack-kernel.md), and no compiler warns. So the PTX is asked: from the start of each kernel, and of
# each function that was not inlined, along all its ways (ptx_flow.py, which tries itself first).
. "$(dirname "$0")/lib.sh"
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || skip "no nvcc here"
need python3
check() { # SOURCE DEF
	"$nvcc" -std=c++17 -O3 -arch=sm_90 -ptx -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/tools" -I"$SOURCE_DIR/include" -o "$tmp/k.ptx" \
		-x cu "$SOURCE_DIR/$1" >"$tmp/log" 2>&1 || skip "nvcc does not compile here: $(head -1 "$tmp/log")"
	# shellcheck disable=SC2046 # one argument each
	PYTHONDONTWRITEBYTECODE=1 python3 "$SOURCE_DIR/tests/system/ptx_flow.py" "$tmp/k.ptx" \
		$(sed -n 's/^KERNEL(\([a-z0-9_]*\), .*/\1/p' "$SOURCE_DIR/$2") || exit 1
}
check src/device/kernels.c src/device/kernels.def
check tools/kernels/bench.c tools/kernels/bench.def
