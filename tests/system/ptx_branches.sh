#!/usr/bin/env bash
# labels: slow beside
# No branch of a kernel depends on a register that nothing has written. Warps shuffle, and a shuffle waits for all
# lanes: a branch to it that lanes take by what a register happened to hold stops the warp for good (it did, see
# docs/design/0007-unpack-kernel.md), and no compiler warns. So the PTX is asked: from the start of each kernel, and of
# each function that was not inlined, along all its ways (ptx_flow.py, which tries itself first).
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "skipped: no nvcc here"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3 here"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
"$nvcc" -std=c++17 -O3 -arch=sm_90 -ptx -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/include" -o "$tmp/k.ptx" \
	"$SOURCE_DIR/src/device/cuda/kernels.cu" >"$tmp/log" 2>&1 || {
	echo "skipped: nvcc does not compile here: $(head -1 "$tmp/log")"
	exit 77
}
kernels=$(sed -n 's/^GANTRY_KERNEL_ENUM(\([A-Z0-9_]*\), .*/\1/p' "$SOURCE_DIR/src/device/kernels.def" | tr '[:upper:]' '[:lower:]')
# shellcheck disable=SC2086 # one argument each
PYTHONDONTWRITEBYTECODE=1 python3 "$SOURCE_DIR/tests/system/ptx_flow.py" "$tmp/k.ptx" $kernels
