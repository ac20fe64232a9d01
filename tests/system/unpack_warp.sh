#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 1800
# The unpack kernels' code for GPUs, run lane by lane on this CPU: every list is unpacked right, nothing else is read or
# written, and no warp stops because its lanes come to different shuffles (tests/warp/).
. "$(dirname "$0")/lib.sh"
compiler=$(command -v "${CXX:-c++}" || command -v g++ || command -v clang++) || skip "no C++ compiler here"
# Lanes leave by longjmp to another stack, which hardened headers take for an attack; the code's words are nvcc's.
"$compiler" -std=c++17 -O1 -U_FORTIFY_SOURCE -D__CUDACC__ -w -I"$SOURCE_DIR/tests/warp" -I"$SOURCE_DIR/src" -I"$SOURCE_DIR/tools" -I"$SOURCE_DIR/include" \
	-o "$tmp/unpack" "$SOURCE_DIR/tests/warp/unpack.cc" "$SOURCE_DIR/tests/warp/warp.cc" >"$tmp/log" 2>&1 || {
	head -n 5 "$tmp/log"
	exit 1
}
timeout 280 "$tmp/unpack"
