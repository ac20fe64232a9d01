#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU machine: builds, checks stock NCCL over the plugin, and compares settings. Scratch output to $OUT if set.
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-/tmp/gpu-out}
mkdir -p "$out"
cmake -S . -B build-gpu -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$out/cmake.log" 2>&1 && cmake --build build-gpu -j 16 --target tests >"$out/build.log" 2>&1 ||
	{ tail -n 30 "$out/build.log"; exit 1; }
export BUILD_DIR=$PWD/build-gpu SOURCE_DIR=$PWD
for part in "$@"; do
	echo "== $part: $(date +%T)"
	case $part in
	unit) ctest --test-dir build-gpu -LE 'system|gpu' -j 8 2>&1 | tail -n 15 ;;
	check) bash tests/gpu/nccl_check.sh 2>&1 | tail -n 40 ;;
	bench) rm -f "$out/bench.jsonl"; bash bench/gpu.sh "$out/bench.jsonl" "${ROUNDS:-2}" 2>&1 | tail -n 20 ;;
	perf) build-gpu/gantry perf net --raw -b 64 -e 64M -f 4 --repeats 3 2>&1 | tail -n 16 ;;
	perf2) taskset -c 2,3 build-gpu/gantry perf net --raw -b 64 -e 64M -f 4 --repeats 3 2>&1 | tail -n 13 ;;
	settings)
		. tests/gpu/lib_gpu.sh
		need_nccl
		start_mps
		sleep 1
		IFS="|" read -ra list <<<"${SETTINGS:-GANTRY_LANES=2 GANTRY_HELPERS=3}"
		for s in "${list[@]}"; do
			env=()
			for e in $s; do env+=(--env "$e"); done
			python3 tests/gpu/nccl_run.py --ranks 2 --log "$scratch/s" "${gantry_env[@]}" "${env[@]}" -- bench --label "$s" \
				--sizes ${SIZES:-1024,65536,1048576,16777216,134217728} 2>&1 | tee -a "$out/settings.jsonl" |
				python3 -c 'import sys, json; print([(r["bytes"], r["time_us"], r["busbw_gbs"]) for r in map(json.loads, sys.stdin)])' || tail -n 5 "$scratch/s.0"
			echo "   $s"
		done ;;
	esac
done
