#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NVIDIA's alltoall_perf with kernels that put and signal (-D 3, in windows: -R 2): on stock NCCL over the plugin, where each rank counts as a host of
# its own (NCCL_HOSTID), and on Gantry's libnccl.so.2; 2 and 4 ranks on one GPU, every element checked.
# NCCL_TESTS is the folder of nccl-tests' source (2.19.6 or newer), which is not part of this project; NCCL_HOME the folder with NCCL's include and
# lib, 2.28.7 to 2.29.3 (PyTorch's wheel, if it is not set).
. "$(dirname "$0")/lib_gpu.sh"
need_nvcc
need_nccl
[ -n "${NCCL_TESTS:-}" ] || skip "NCCL_TESTS does not name a folder with the source of nccl-tests"
command -v mpicc >/dev/null || skip "no mpicc here"
home=${NCCL_HOME:-$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)}
[ -e "$home/include/nccl_device.h" ] || skip "no nccl_device.h in ${home:-NCCL_HOME}/include"
start_mps

# The wheel has libnccl.so.2 alone, and the linker asks for libnccl.so.
mkdir -p "$scratch/nccl/lib"
ln -s "$home/include" "$scratch/nccl/include"
ln -s "$home/lib/libnccl.so.2" "$scratch/nccl/lib/libnccl.so.2"
ln -s libnccl.so.2 "$scratch/nccl/lib/libnccl.so"
mpi=$(mpicc --showme:incdirs 2>/dev/null | cut -d' ' -f1)
build=$BUILD_DIR/nccl-tests-gin
export NVCC_APPEND_FLAGS=-DNCCL_GIN_GDAKI_ENABLE=0 # the headers of the other backend are not there
make -s -j 16 -C "$NCCL_TESTS/src" BUILDDIR="$build" MPI=1 MPI_HOME="${mpi%/include*}" CUDA_HOME=/usr/local/cuda NCCL_HOME="$scratch/nccl" \
	NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90 \
	"$build/alltoall_perf" >"$BUILD_DIR/nccl-tests-gin.log" 2>&1 ||
	{ tail -n 20 "$BUILD_DIR/nccl-tests-gin.log"; exit 1; }

export NCCL_TESTS_DEVICE=0 NCCL_SOCKET_IFNAME=lo GANTRY_IFNAME=lo CUDA_MODULE_LOADING=EAGER
failed=0
# judge NAME RANKS COMMAND...
judge() {
	local log=$BUILD_DIR/gin-$1-$2.log name=$1 n=$2 rc rows bad
	shift 2
	timeout 150 mpirun --allow-run-as-root --oversubscribe -n "$n" "$@" "$build/alltoall_perf" -b 8 -e 64M -f 8 -n 5 -w 1 -D 3 -R 2 -c 1 >"$log" 2>&1
	rc=$?
	rows=$(grep -c '^ *[0-9]' "$log")
	bad=$(sed -n 's/.*Out of bounds values *: *\([0-9]*\).*/\1/p' "$log")
	echo "rc $rc rows $rows wrong ${bad:-?}: alltoall_perf -D 3, $name, $n ranks"
	[ $rc = 0 ] && [ "$rows" -gt 0 ] && [ "$bad" = 0 ] && return
	failed=1
	grep -i 'WARN\|ERROR\|fail' "$log" | head -n 12 # mpirun's own words fill the end
	tail -n 12 "$log"
}
for n in 2 4; do
	# shellcheck disable=SC2016 # for each rank's shell
	judge plugin $n env "LD_LIBRARY_PATH=$scratch/nccl/lib:$LD_LIBRARY_PATH" "NCCL_NET_PLUGIN=$BUILD_DIR/lib/libnccl-net-gantry.so" \
		bash -c 'NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK exec "$@"' --
	judge drop-in $n "$BUILD_DIR/gantry" run --
done
exit $failed
