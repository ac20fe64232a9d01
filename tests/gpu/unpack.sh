#!/usr/bin/env bash
# The unpack kernels on a real GPU: the unit tests of the host device once more there, every shape at a larger size, and
# the rows of `gantry perf unpack` (QUICK=1: without). With CHECK=1 the same checks under compute-sanitizer, but for the
# ring: a kernel that waits for its host does not get on with a tool that waits for the kernel.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
PATH=$PATH:/usr/local/cuda/bin
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
status=0
step() { # seconds, command...
	local limit=$1
	shift
	timeout "$limit" "$@" || { echo "FAILED ($?): $*"; status=1; }
}
tests=$BUILD_DIR/tests
tool=$BUILD_DIR/gantry
for t in test_k_unpack test_k_unpack_reduce test_unpack_ring; do step 60 "$tests/$t" cuda; done
step 120 "$tool" perf unpack --device cuda --check-only -e 64M --blocks 1,8,33,all
if [ "${CHECK:-}" = 1 ]; then
	command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; exit 1; }
	memcheck=(compute-sanitizer --tool memcheck --error-exitcode 1)
	step 120 "${memcheck[@]}" "$tests/test_k_unpack" cuda
	step 60 "${memcheck[@]}" "$tests/test_k_unpack_reduce" cuda
	for kind in unpack reduce; do
		step 120 "${memcheck[@]}" "$tool" perf unpack --device cuda --check-only -e 1M --blocks 2,33 --kind $kind
	done
fi
[ "${QUICK:-}" = 1 ] || step 200 "$tool" perf unpack --device cuda --json
exit $status
