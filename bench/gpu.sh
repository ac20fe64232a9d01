#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU machine: all-reduce through stock NCCL over Gantry and over NCCL's own Socket (default, and 2 threads x 2
# sockets, its best setting), interleaved in one run, with raw TCP as the limit. JSON lines on stdout or in a file.
# usage: bench/gpu.sh [FILE] [ROUNDS]; EXTRA="NAME=VALUE ..." adds settings to a fourth series "gantry+"
. "$(dirname "$0")/../tests/gpu/lib_gpu.sh"
need_nccl
out=${1:-/dev/stdout}
rounds=${2:-3}
sizes=${SIZES:-1024,65536,1048576,16777216,134217728}
series() { # label, ranks, env...
	local label=$1 ranks=$2
	shift 2
	python3 "$SOURCE_DIR/tests/gpu/nccl_run.py" --ranks "$ranks" --log "$scratch/bench" "$@" -- bench --label "$label" --sizes "$sizes" >>"$out" ||
		{ echo "{\"label\": \"$label\", \"error\": \"failed\"}" >>"$out"; tail -n 5 "$scratch/bench.0" >&2; }
}
start_mps
cc -O2 -D_GNU_SOURCE -pthread -I "$SOURCE_DIR/tools" -o "$scratch/raw_streams" "$SOURCE_DIR"/{bench/raw_streams,tools/common/raw_tcp}.c || exit 1
commit=$(git -C "$SOURCE_DIR" rev-parse --short=12 HEAD 2>/dev/null || sed -n 's/.*(\(.*\)).*/\1/p' <<<"$("$BUILD_DIR/gantry" --version)")
echo "{\"machine\": \"$(uname -m), $(nproc) CPUs, $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)\", \"nccl\": \"$(python3 -c 'import torch; print(".".join(map(str, torch.cuda.nccl.version())))')\", \"command\": \"bench/gpu.sh\", \"commit\": \"$commit\"}" >>"$out"
for _ in $(seq "$rounds"); do
	for streams in 1 4; do "$scratch/raw_streams" $streams 1 >>"$out"; done
	series gantry 2 "${gantry_env[@]}"
	extra=()
	for e in ${EXTRA:-}; do extra+=(--env "$e"); done
	[ -z "${EXTRA:-}" ] || series gantry+ 2 "${gantry_env[@]}" "${extra[@]}"
	series socket 2 --env NCCL_NET=Socket
	series socket2x2 2 --env NCCL_NET=Socket --env NCCL_SOCKET_NTHREADS=2 --env NCCL_NSOCKS_PERTHREAD=2
done
python3 "$SOURCE_DIR/bench/gpu_verdict.py" "$out"
