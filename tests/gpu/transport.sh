#!/usr/bin/env bash
# The transports within a host, with kernels and buffers on a real GPU: two ranks of one process, and of two.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build} GANTRY_TEST_DEVICE=cuda
nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }

# Without MPS two processes share the GPU in time slices, and kernels that wait for each other are slow.
scratch=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mpslog
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d || echo "no MPS: ranks share the GPU in time slices"
trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$scratch"' EXIT

for test in test_transport_ends test_transport_fork; do
	echo "$test"
	timeout 250 "$BUILD_DIR/tests/$test" || { echo "FAILED: $test ends with $?"; exit 1; }
done
