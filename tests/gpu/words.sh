#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The words that kernels are written in, on a real GPU; see words.cu. With CHECK=1 under compute-sanitizer, without times.
set -u
. "$(dirname "$0")/lib_gpu.sh"
need_nvcc
nvcc -std=c++17 -O3 -arch=native -Xptxas -warn-spills -I"$SOURCE_DIR/include" -I"$SOURCE_DIR/src" -o "$BUILD_DIR/gpu/words" \
	"$SOURCE_DIR/tests/gpu/words.cu" || exit 1
[ "${CHECK:-}" = 1 ] || exec "$BUILD_DIR/gpu/words"
compute-sanitizer --tool memcheck --error-exitcode 1 "$BUILD_DIR/gpu/words" 2>&1 | tail -n 40
exit "${PIPESTATUS[0]}"
