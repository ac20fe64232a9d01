#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a GPU machine: builds, then tries the CUDA device, the FIFO and the communicator. Output to $OUT if set.
#
#   scripts/gpu_comm.sh [PART...]     parts: unit device transport fifo sendrecv coll unpack unpackcomm; none named: device fifo sendrecv
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-/tmp/gpu-out}
mkdir -p "$out"
cmake -S . -B build-gpu -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$out/cmake.log" 2>&1 && cmake --build build-gpu -j 16 --target tests >"$out/build.log" 2>&1 ||
	{ tail -n 30 "$out/build.log" "$out/cmake.log"; exit 1; }
export BUILD_DIR=$PWD/build-gpu SOURCE_DIR=$PWD
tool=build-gpu/gantry
[ $# -gt 0 ] || set -- device fifo sendrecv

# measure LOG OP ARGUMENT...: one line per combination: what ran, how many sizes, wrong bytes or elements, which modes and
# protocols the counters saw.
measure()
{
	local log=$out/$1 one
	one=$(mktemp)
	shift
	timeout 100 "$tool" perf "$@" --device cuda --json --timeout 10s >"$one" 2>"$one.err"
	local rc=$?
	cat "$one" >>"$log"
	python3 - "$rc" "$one" "$*" <<'PY'
import json, sys
rows = [json.loads(l) for l in open(sys.argv[2]) if '"bytes"' in l]
wrong = sum(r.get("wrong", 0) for r in rows)
modes = sorted({m for r in rows for m in r["mode"].split("+")} | {p for r in rows for p in r["proto"].split("+")})
best = max([r["busbw_gbs"] for r in rows if r["busbw_gbs"]] or [0])
least = min([r["time_us"] for r in rows if r["time_us"]] or [0])
print(f"rc {sys.argv[1]} sizes {len(rows):3} wrong {wrong} best {best:.2f} GB/s least {least:.1f} us {','.join(modes)}: {sys.argv[3]}")
PY
	[ $rc = 0 ] || tail -n 5 "$one.err"
	rm -f "$one" "$one.err"
}
sendrecv() { measure sendrecv.jsonl sendrecv "$@"; }
# Three at a time: what three runs of four ranks launch fits on the GPU at once. More could wait for each other for ever.
coll()
{
	while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
	measure coll.jsonl "$@" &
}

for part in "$@"; do
	echo "== $part: $(date +%T)"
	case $part in
	unit) ctest --test-dir build-gpu -LE 'system|gpu' -j 8 2>&1 | tail -n 25 ;;
	device) for t in device words; do bash tests/gpu/$t.sh 2>&1 | tail -n 15; echo "$t: rc ${PIPESTATUS[0]}"; done ;;
	unpack) bash tests/gpu/unpack.sh 2>&1 | tee "$out/unpack.log" | tail -n 60; grep '^{' "$out/unpack.log" >"$out/unpack.jsonl" ;;
	transport) bash tests/gpu/transport.sh 2>&1 | tail -n 15 ;;
	fifo) for i in 1 2 3; do timeout 60 "$tool" perf fifo --device cuda --json | tee -a "$out/fifo.jsonl" | grep rtt_us | cut -c1-200; done ;;
	sendrecv)
		rm -f "$out/sendrecv.jsonl"
		. tests/gpu/lib_gpu.sh
		need_nccl
		start_mps
		sleep 1
		for who in "" --threads; do
			# Threads share a context: they need no MPS, and an MPS that a failure has hurt does not hurt them.
			[ -z "$who" ] || { stop_mps; unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; sleep 1; }
			for t in p2p shm net; do
				sendrecv --transport $t $who -b 0 -e 256M -f 16 --repeats 3
				sendrecv --transport $t $who -b 1 -e 1M -f 32 --odd --repeats 2 --mode normal
				sendrecv --transport $t $who -b 8 -e 64k -f 8 --repeats 2 --proto ll
			done
			sendrecv --transport p2p $who -b 8 -e 64k -f 8 --repeats 2 --proto ll128
			sendrecv --transport net $who -b 64k -e 4M -f 8 --repeats 2 --mode offset
		done
		sendrecv --transport p2p --threads -b 64k -e 4M -f 8 --repeats 2 --mode ptr
		sendrecv --ranks 4 --threads --transport net -b 64k -e 1M -f 4 --pattern alltoall --repeats 2
		sendrecv --transport p2p --threads --pattern echo -b 8 -e 64 -f 8 --repeats 3
		;;
	coll)
		rm -f "$out/coll.jsonl"
		. tests/gpu/lib_gpu.sh
		need_nccl
		start_mps
		sleep 1
		algos=$("$tool" doctor --params-markdown | sed -n '/^## `GANTRY_ALGO`/,/allowed/ s/.*allowed `\(.*\)`$/\1/p' | tr '|' ' ')
		for n in 2 4; do
			for where in "--transport p2p" "--transport shm" "--transport net" "--hosts 2"; do
				coll collectives --ranks $n $where -b 0 -e 64M -f 37 --check-only
				for proto in simple ll ll128; do
					for algo in $algos; do
						coll collectives --ranks $n $where --proto $proto --algo $algo -b 0 -e 1M -f 37 --check-only
					done
				done
			done
			coll collectives --ranks $n -b 1000 -e 1000 -d all -o all -r -1 --check-only
			coll all_reduce --ranks $n -b 100k -e 100k -d half,bfloat16,f8e4m3,f8e5m2,float,double -o all -c bits --check-only
		done
		wait
		for t in p2p net; do
			measure coll.jsonl all_reduce --ranks 2 --transport $t -b 1k -e 128M -f 8 -c 0
		done
		;;
	unpackcomm) # fragments gathered by the communicator's kernels; then all-reduce by turns with and without
		rm -f "$out"/unpackcomm*.jsonl
		. tests/gpu/lib_gpu.sh
		start_mps
		sleep 1
		export GANTRY_IFNAME=lo
		for shape in pages odd random; do
			for memory in mapped device; do
				echo "GANTRY_EMU_SHAPE=$shape GANTRY_UNPACK_MEMORY=$memory"
				export GANTRY_UNPACK=emulated GANTRY_EMU_SHAPE=$shape GANTRY_UNPACK_MEMORY=$memory
				measure unpackcomm.jsonl all_reduce --ranks 2 --transport net -b 4 -e 64M -f 37 --check-only
				measure unpackcomm.jsonl all_reduce --ranks 3 --algo ring --transport net -b 1M -e 1M -d all -o all --check-only
				measure unpackcomm.jsonl collectives --ranks 3 --transport net -b 64 -e 4M -f 37 --check-only
				measure unpackcomm.jsonl sendrecv --transport net -b 8 -e 64M -f 37 --odd --repeats 2
			done
		done
		unset GANTRY_EMU_SHAPE GANTRY_UNPACK_MEMORY
		for i in 1 2 3; do
			for unpack in off emulated; do
				echo "GANTRY_UNPACK=$unpack"
				export GANTRY_UNPACK=$unpack
				for size in 1M 16M 128M; do
					measure unpackcomm-$unpack.jsonl all_reduce --ranks 2 --transport net -b $size -e $size -c 0
				done
			done
		done
		;;
	esac
done
