#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NVIDIA's nccl-tests on Gantry's libnccl.so.2, 2 and 4 ranks on one GPU, all types and operations, every element checked.
# NCCL_TESTS is the folder of its source, which is not part of this project; NCCL_TESTS_SIZES its sizes.
. "$(dirname "$0")/lib_gpu.sh"
need_nvcc
[ -n "${NCCL_TESTS:-}" ] || skip "NCCL_TESTS does not name a folder with the source of nccl-tests"
command -v mpicc >/dev/null || skip "no mpicc here"
start_mps
export NCCL_TESTS_DEVICE=0
mpi=$(mpicc --showme:incdirs 2>/dev/null | cut -d' ' -f1)
make -s -j 16 -C "$NCCL_TESTS/src" BUILDDIR="$BUILD_DIR/nccl-tests" MPI=1 MPI_HOME="${mpi%/include*}" CUDA_HOME=/usr/local/cuda \
	NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90 DSO=1 ${NCCL_HOME:+NCCL_HOME=$NCCL_HOME} >"$BUILD_DIR/nccl-tests.log" 2>&1 ||
	{ tail -n 20 "$BUILD_DIR/nccl-tests.log"; exit 1; }
failed=0
for n in 2 4; do
	for what in all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv gather scatter; do
		log=$BUILD_DIR/nccl-tests-$what-$n.log
		LD_LIBRARY_PATH=$BUILD_DIR/nccl-tests/verifiable:$LD_LIBRARY_PATH timeout 100 mpirun --allow-run-as-root --oversubscribe -n $n \
			"$BUILD_DIR/gantry" run -- "$BUILD_DIR/nccl-tests/${what}_perf" ${NCCL_TESTS_SIZES:--b 8 -e 8M -f 32} -n 2 -w 1 -c 1 -d all -o all >"$log" 2>&1
		rc=$?
		rows=$(grep -c '^ *[0-9]' "$log")
		bad=$(sed -n 's/.*Out of bounds values *: *\([0-9]*\).*/\1/p' "$log")
		echo "rc $rc rows $rows wrong ${bad:-?}: ${what}_perf, $n ranks"
		[ $rc = 0 ] && [ "$rows" -gt 0 ] && [ "$bad" = 0 ] || { failed=1; tail -n 12 "$log"; }
	done
done
exit $failed
