# SPDX-License-Identifier: Apache-2.0
# Sourced by the GPU tests: skips with a reason where there is no GPU, or no nvcc or PyTorch where those are needed, and
# shares it between ranks with MPS.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE_DIR=${SOURCE_DIR:-$(cd "$here/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
PATH=$PATH:/usr/local/cuda/bin
skip() { echo "skipped: $*"; exit 77; }
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || skip "no NVIDIA GPU here"
need_nvcc() { command -v nvcc >/dev/null || skip "no nvcc here"; mkdir -p "$BUILD_DIR/gpu"; }
need_nccl() {
	python3 -c 'import torch; assert torch.distributed.is_nccl_available()' 2>/dev/null || skip "no PyTorch with NCCL here"
	[ -e "$BUILD_DIR/lib/libnccl-net-gantry.so" ] || { echo "no $BUILD_DIR/libnccl-net-gantry.so: run make first"; exit 1; }
}

scratch=$(mktemp -d)
mps=
start_mps() {
	mps=started
	export CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mpslog
	mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
	nvidia-cuda-mps-control -d || echo "warning: no MPS, ranks share the GPU in time slices"
}
stop_mps() {
	[ -n "$mps" ] || { rm -rf "$scratch"; return; }
	echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
	# The next one that is started must not meet a server on its way out.
	for _ in $(seq 50); do pgrep -f nvidia-cuda-mps >/dev/null || break; sleep 0.1; done
	rm -rf "$scratch"
}
trap stop_mps EXIT
# By its path: in the folder of the plugin there is a libnccl.so.2 of ours, which must not be found in place of NCCL's.
gantry_env=(--env "NCCL_NET_PLUGIN=$BUILD_DIR/lib/libnccl-net-gantry.so" --env NCCL_NET=gantry)
