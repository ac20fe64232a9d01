# SPDX-License-Identifier: Apache-2.0
# Sourced by the GPU tests: skips with a reason where there is no GPU, and shares it between ranks with MPS.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE_DIR=${SOURCE_DIR:-$(cd "$here/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
python3 -c 'import torch; assert torch.distributed.is_nccl_available()' 2>/dev/null ||
	{ echo "skipped: no PyTorch with NCCL here"; exit 77; }
[ -e "$BUILD_DIR/lib/libnccl-net-gantry.so" ] || { echo "no $BUILD_DIR/libnccl-net-gantry.so: run make first"; exit 1; }

scratch=$(mktemp -d)
start_mps() {
	export CUDA_MPS_PIPE_DIRECTORY=$scratch/mps CUDA_MPS_LOG_DIRECTORY=$scratch/mpslog
	mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
	nvidia-cuda-mps-control -d || echo "warning: no MPS, ranks share the GPU in time slices"
}
stop_mps() {
	echo quit | nvidia-cuda-mps-control >/dev/null 2>&1
	# The next one that is started must not meet a server on its way out.
	for _ in $(seq 50); do pgrep -f nvidia-cuda-mps >/dev/null || break; sleep 0.1; done
	rm -rf "$scratch"
}
trap stop_mps EXIT
gantry_env=(--env NCCL_NET_PLUGIN=gantry --env NCCL_NET=gantry --env "LD_LIBRARY_PATH=$BUILD_DIR/lib:${LD_LIBRARY_PATH:-}")
