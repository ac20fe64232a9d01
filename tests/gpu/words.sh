#!/usr/bin/env bash
# The words that kernels are written in, on a real GPU; see words.cu. With CHECK=1 under compute-sanitizer, without times.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
PATH=$PATH:/usr/local/cuda/bin
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
mkdir -p "$BUILD_DIR/gpu"
nvcc -std=c++17 -O3 -arch=native -Xptxas -warn-spills -I"$SOURCE_DIR/include" -I"$SOURCE_DIR/src" -o "$BUILD_DIR/gpu/words" \
	"$SOURCE_DIR/tests/gpu/words.cu" || exit 1
[ "${CHECK:-}" = 1 ] || exec "$BUILD_DIR/gpu/words"
compute-sanitizer --tool memcheck --error-exitcode 1 "$BUILD_DIR/gpu/words" 2>&1 | tail -n 40
exit "${PIPESTATUS[0]}"
