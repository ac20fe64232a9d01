#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CUDA device on a real GPU; see system/drivers/device_cuda.c. With CHECK=1 once more under compute-sanitizer.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
"$BUILD_DIR/drivers/device_cuda" || exit
[ "${CHECK:-}" = 1 ] || exit 0
command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; exit 1; }
compute-sanitizer --tool memcheck --error-exitcode 1 --target-processes all "$BUILD_DIR/drivers/device_cuda" 2>&1 | tail -n 40
exit "${PIPESTATUS[0]}"
