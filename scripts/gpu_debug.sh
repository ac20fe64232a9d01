#!/usr/bin/env bash
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-/tmp/gpu-out}
mkdir -p "$out"
cmake -S . -B build-gpu >"$out/cmake.log" 2>&1 && cmake --build build-gpu -j 16 --target nccl-net-gantry gantry_tool >"$out/build.log" 2>&1 || { tail -n 30 "$out/build.log"; exit 1; }
export BUILD_DIR=$PWD/build-gpu SOURCE_DIR=$PWD
. tests/gpu/lib_gpu.sh
start_mps
sleep 1
echo "== socket"; timeout 40 python3 tests/gpu/nccl_run.py --timeout 30 --ranks 2 --log "$scratch/k" --env NCCL_NET=Socket -- bench --sizes 1024 --iters 20
tail -n 3 "$scratch/k.0"
echo "== gantry"
(timeout 50 python3 tests/gpu/nccl_run.py --timeout 40 --ranks 2 --log "$scratch/s" "${gantry_env[@]}" --env GANTRY_LOG=trace --env "GANTRY_LOG_FILE=$scratch/trace.%p" --env NCCL_DEBUG=INFO -- bench --sizes 1024 --iters 20) &
sleep 22
for p in $(pgrep -f nccl_rank.py); do
	echo "== $p"; head -n 30 "$scratch"/trace."$p" | cut -c1-160; echo ...; tail -n 3 "$scratch"/trace."$p" | cut -c1-160
	timeout 20 cuda-gdb -p "$p" -batch -ex "thread apply all bt 8" 2>/dev/null | grep -E "^Thread|^#" | cut -c1-140 | grep -v "libcuda\|libtorch" | head -n 60
done > "$out/state.txt" 2>&1
wait
cp "$scratch"/trace.* "$out"/ 2>/dev/null
tail -n 5 "$scratch"/s.0 "$scratch"/s.1
head -c 9000 "$out/state.txt"
