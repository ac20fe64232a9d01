#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stock NCCL over the plugin with UNPACK through the emulated NIC, no NCCL_PROTO: every collective, 2 and 4 ranks, 4 B to
# 256 MiB and odd sizes, in several fragment shapes; then a soak after which every page and token is back; then bus
# bandwidth beside the same plugin without UNPACK, both with the channels and threads that docs/unpack.md asks for.
#
#   nccl_unpack.sh [PART...]     parts: check shapes soak bench, none named: these; settings. SOAK=COUNT, ROUNDS=N, EXTRA
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
[ $# -gt 0 ] || set -- check shapes soak bench
start_mps
status=0
unpack_env=("${gantry_env[@]}" --env GANTRY_UNPACK=emulated --env NCCL_NET_GDR_LEVEL=SYS --env NCCL_NET_GDR_READ=0
	--env NCCL_PAT_ENABLE=0)
# As docs/unpack.md asks for; EXTRA="NAME=VALUE ..." goes to all ranks, and may take them back.
for e in CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=16 ${EXTRA:-}; do gantry_env+=(--env "$e") unpack_env+=(--env "$e"); done
log_env=(--env GANTRY_LOG=info --env NCCL_DEBUG=INFO --env NCCL_DEBUG_SUBSYS=INIT,NET)
[ -z "${OUT:-}" ] || keep=$OUT

# NCCL must have used its unpack kernel on our descriptors, and everything must be back at the end.
used()
{
	local log=$1 ranks=$2 rank
	for rank in $(seq 0 $((ranks - 1))); do
		grep -qh "NCCL_NET_DEVICE_UNPACK net plugin version 7" "$log.nccl.$rank" ||
			{ echo "rank $rank: NCCL did not take the UNPACK path"; status=1; }
		grep -qhE "UNPACK: [0-9]+ messages, [1-9][0-9]* descriptors" "$log.nccl.$rank" ||
			{ echo "rank $rank: no descriptors in the log"; status=1; }
		grep -qh "pool is complete" "$log.nccl.$rank" || { echo "rank $rank: pages or tokens are missing at the end"; status=1; }
	done
	[ $status = 0 ] || { grep -h "Error" "$log".[0-9] | tail -n 5; tail -n 5 "$log".0; grep -h "WARN\|rror\|UNPACK\|pool\| -> [1-9]" "$log".nccl.* | tail -n 40; }
	[ -z "${keep:-}" ] || grep -h "UNPACK\|pool" "$log".nccl.* >>"$keep/nccl_unpack.log"
}

# run NAME RANKS ENV... -- MODE...
run()
{
	local name=$1 ranks=$2 env=()
	shift 2
	while [ "$1" != -- ]; do env+=(--env "$1"); shift; done
	shift
	# A rank that was killed leaves an MPS that is of no use to the next ones.
	[ $status = 0 ] || { stop_mps; mkdir -p "$scratch"; start_mps; sleep 1; }
	rm -f "$scratch/$name".*
	python3 "$here/nccl_run.py" --ranks "$ranks" --log "$scratch/$name" --timeout "${LIMIT:-150}" "${unpack_env[@]}" "${log_env[@]}" \
		"${env[@]}" -- "$@" >"$scratch/$name.out" || { echo "$name: a rank failed"; status=1; }
	grep -h '"wrong": [1-9]' "$scratch/$name.out" && status=1
	used "$scratch/$name" "$ranks"
	echo "{\"test\": \"nccl_unpack\", \"name\": \"$name\", \"ranks\": $ranks, \"cases\": $(grep -c '"wrong": 0' "$scratch/$name.out"), \"ok\": $((status == 0))}"
}

for part in "$@"; do
	case $part in
	check) for ranks in ${RANKS:-2 4}; do run "check$ranks" "$ranks" -- check --max-bytes "${MAX_BYTES:-268435456}"; done ;;
	shapes)
		# Pages in GPU memory, and sends from there: what is copied by the GPU while its kernels wait.
		for shape in pages mtu1500; do
			run "shape_$shape" 2 GANTRY_EMU_SHAPE=$shape GANTRY_UNPACK_MEMORY=device NCCL_NET_GDR_READ=1 -- \
				check --max-bytes 16777228
		done
		run shape_odd 2 GANTRY_EMU_SHAPE=odd -- check --max-bytes 16777228
		run mixed 2 GANTRY_EMU_SHAPE=random GANTRY_EMU_LINEAR=200 GANTRY_EMU_PLAIN=50 -- check --max-bytes 4194308
		;;
	soak) run soak 2 -- soak --count "${SOAK:-72000}" --ahead "${AHEAD:-100}" ;;
	settings) # one line for each of SETTINGS, which are separated by semicolons
		IFS=';' read -ra all <<<"${SETTINGS:- ;NCCL_NTHREADS=512;NCCL_NTHREADS=512 NCCL_MIN_NCHANNELS=4;NCCL_NTHREADS=512 NCCL_MIN_NCHANNELS=8;NCCL_NTHREADS=512 NCCL_MIN_NCHANNELS=8 GANTRY_UNPACK_MEMORY=device}"
		for set in "${all[@]}"; do
			more=() gbs=()
			for e in $set; do more+=(--env "$e"); done
			for how in host unpack; do
				[ $how = host ] && env=("${gantry_env[@]}" --env GANTRY_UNPACK=off) || env=("${unpack_env[@]}")
				gbs+=("$(python3 "$here/nccl_run.py" --ranks 2 --timeout 40 --log "$scratch/set" "${env[@]}" "${more[@]}" -- bench --label $how \
					--sizes 134217728 --iters 40 | sed -n 's/.*busbw_gbs": \([0-9.]*\).*/\1/p')")
			done
			echo "{\"test\": \"nccl_unpack_settings\", \"settings\": \"$set\", \"host_gbs\": ${gbs[0]:-null}, \"unpack_gbs\": ${gbs[1]:-null}}"
		done
		;;
	bench)
		for _ in $(seq "${ROUNDS:-3}"); do
			for how in host unpack; do
				[ $how = host ] && env=("${gantry_env[@]}" --env GANTRY_UNPACK=off) || env=("${unpack_env[@]}")
				python3 "$here/nccl_run.py" --ranks 2 --log "$scratch/bench" "${env[@]}" --env NCCL_MIN_NCHANNELS=8 \
					--env NCCL_NTHREADS=512 -- bench --label $how --iters 40 --sizes "${SIZES:-16777216,134217728}" || status=1
			done
		done | tee "$scratch/bench.out"
		python3 - "$scratch/bench.out" <<'PY' || status=1
import json, statistics, sys
rows = [json.loads(l) for l in open(sys.argv[1]) if l.startswith("{")]
of = {}
for r in rows:
    of.setdefault((r["bytes"], r["label"]), []).append(r["busbw_gbs"])
ok = True
for size in sorted({b for b, _ in of}):
    host, unpack = (statistics.median(of[size, k]) for k in ("host", "unpack"))
    print(json.dumps({"test": "nccl_unpack_bench", "bytes": size, "host_gbs": host, "unpack_gbs": unpack, "ratio": round(unpack / host, 3)}))
    if size == 128 << 20 and unpack < 0.8 * host:
        ok = False
sys.exit(0 if ok else 1)
PY
		;;
	esac
done
exit $status
