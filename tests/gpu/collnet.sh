#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stock NCCL with collNet over embedded reducers, and over two processes of `gantry reducer`: 2, 3 and 4 ranks, all types and
# reductions, 4 B to 256 MiB and odd sizes; all runs have the same bits. Without the variable NCCL connects no collNet. Then
# NCCL's API in place of it, over the same two processes. RANKS: other numbers of ranks.
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
status=0
run_ranks() { # NAME RANKS [SETTING...]
	local name=$1 ranks=$2
	shift 2
	python3 "$here/nccl_run.py" --ranks "$ranks" --program collnet_rank.py --log "$scratch/$name" \
		--env NCCL_DEBUG=INFO --env NCCL_DEBUG_SUBSYS=INIT,NET,COLL "${@/#/--env=}" >"$scratch/$name.out" || status=1
	grep -h '"wrong": [1-9]' "$scratch/$name.out" && status=1
}
stock=("NCCL_NET_PLUGIN=$BUILD_DIR/lib/libnccl-net-gantry.so" NCCL_NET=gantry)
with=("${stock[@]}" NCCL_COLLNET_ENABLE=1 NCCL_ALGO=allreduce:CollNetChain)
reducers=()
list=
for port in 18761 18762; do
	GANTRY_IFNAME=lo "$BUILD_DIR/gantry" reducer --listen 127.0.0.1:$port --json >"$scratch/reducer.$port" 2>&1 &
	reducers+=($!)
	list+=${list:+,}127.0.0.1:$port
	for _ in $(seq 100); do ! grep -q listening "$scratch/reducer.$port" || break; sleep 0.1; done
done
for ranks in ${RANKS:-2 3 4}; do
	for again in 1 2 3; do
		[ $again -lt 3 ] || with+=("GANTRY_REDUCERS=$list") # embedded twice, then by processes
		run_ranks "on$ranks.$again" "$ranks" "${with[@]}"
		[ $again -lt 3 ] || unset 'with[-1]'
		grep -qhi "Connected CollNet" "$scratch/on$ranks.$again".nccl.0 || { echo "NCCL connected no collNet"; status=1; }
		[ $status = 0 ] || tail -n 25 "$scratch/on$ranks.$again".0 "$scratch/on$ranks.$again".nccl.0
	done
	run_ranks "dropin$ranks" "$ranks" "LD_PRELOAD=$BUILD_DIR/lib/libnccl.so.2" "GANTRY_REDUCERS=$list" GANTRY_LOG=info \
		NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollNetChain
	grep -qh "collnet: one rank of each of $ranks hosts sends to reducers" "$scratch/dropin$ranks".* ||
		{ echo "the drop-in did not use the reducers"; status=1; }
	[ $status = 0 ] || tail -n 25 "$scratch/dropin$ranks".0 "$scratch/dropin$ranks".out
	digests=$(grep -hoE '"digest": "[0-9a-f]+"' "$scratch/on$ranks".[123].out | sort -u | wc -l)
	[ "$digests" = 1 ] || { echo "$digests different results of the same sums"; status=1; }
	echo "{\"test\": \"collnet\", \"ranks\": $ranks, \"digests\": $digests, \"ok\": $((status == 0))}"
done
for port in 18761 18762; do
	grep -q '"ranks": *[1-9]' "$scratch/reducer.$port" || { echo "the reducer on port $port had no job"; status=1; }
done
kill "${reducers[@]}"
wait "${reducers[@]}"
run_ranks off 2 "${stock[@]}"
! grep -qhi "Connected CollNet" "$scratch"/off.nccl.0 || { echo "collNet without its variable"; status=1; }
exit $status
