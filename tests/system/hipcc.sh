#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 3000
# hipcc, where it is installed, compiles all kernels for gfx90a without a warning, and each of them is in the result.
set -u
. "$(dirname "$0")/lib.sh"
need hipcc cmake make

cmake -S "$SOURCE_DIR" -B "$tmp/b" -DGANTRY_CUDA=OFF -DGANTRY_HIP=ON >"$tmp/log" 2>&1 || die "cmake ends with $?"
grep -q "HIP: .*hipcc, kernels for gfx90a" "$tmp/log" || skip "$(grep "HIP:" "$tmp/log")"
in_image() { # IMAGE DEF: a kernel is a symbol and, with .kd, its description
	local name
	for name in $(sed -nE 's/^KERNEL\(([a-z0-9_]+),.*/\1/p' "$2"); do
		LC_ALL=C grep -qa "gantry_$name\.kd" "$tmp/b/$1" || die "gantry_$name is not in $1"
	done
	LC_ALL=C grep -qa "amdgcn-amd-amdhsa-.*gfx90a" "$tmp/b/$1" || die "$1 is for another GPU"
}
for image in kernels bench_kernels; do
	cmake --build "$tmp/b" --target hip_$image >"$tmp/log" 2>&1 || die "hip_$image ends with $?"
	! grep -i "warning" "$tmp/log" || die "hipcc warns"
done
in_image kernels.hip "$SOURCE_DIR/src/device/kernels.def"
in_image bench_kernels.hip "$SOURCE_DIR/tools/kernels/bench.def"
echo "ok: $(du -ch "$tmp"/b/*.hip | tail -n 1 | cut -f1) of kernels for gfx90a"
