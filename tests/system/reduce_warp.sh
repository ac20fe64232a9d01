#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 1800
# Reductions by the code for GPUs, run lane by lane on this CPU, make the same bits as the host's code (tests/warp/).
. "$(dirname "$0")/lib.sh"
compiler=$(command -v "${CXX:-c++}" || command -v g++ || command -v clang++) || skip "no C++ compiler here"
include=(-I"$SOURCE_DIR/src" -I"$SOURCE_DIR/tools" -I"$SOURCE_DIR/include")
{
	"${CC:-cc}" -std=gnu11 -O2 "${include[@]}" -c -o "$tmp/host.o" "$SOURCE_DIR/tests/warp/reduce_host.c" &&
		# As in unpack_warp.sh; a GPU's additions and multiplications are never fused.
		"$compiler" -std=c++17 -O1 -ffp-contract=off -U_FORTIFY_SOURCE -D__CUDACC__ -w -I"$SOURCE_DIR/tests/warp" "${include[@]}" \
			-o "$tmp/reduce" "$SOURCE_DIR/tests/warp/reduce.cc" "$SOURCE_DIR/tests/warp/warp.cc" "$tmp/host.o"
} >"$tmp/log" 2>&1 || {
	head -n 5 "$tmp/log"
	exit 1
}
timeout 280 "$tmp/reduce"
