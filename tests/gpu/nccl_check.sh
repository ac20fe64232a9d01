#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stock NCCL over the plugin, no tuning variables: every collective, 2 and 4 ranks, 4 B to 256 MiB and odd sizes.
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
status=0
for ranks in 2 4; do
	max=$((ranks == 2 ? 256 << 20 : 256 << 20))
	python3 "$here/nccl_run.py" --ranks $ranks --log "$scratch/log$ranks" "${gantry_env[@]}" --env NCCL_DEBUG=INFO \
		--env NCCL_DEBUG_SUBSYS=INIT,NET -- check --max-bytes $max >"$scratch/out$ranks" || status=1
	cases=$(grep -c '"wrong": 0' "$scratch/out$ranks")
	grep -h '"wrong": [1-9]' "$scratch/out$ranks" && status=1
	# It must really have been our plugin that carried the bytes.
	grep -qh "Using network gantry" "$scratch/log$ranks".nccl.0 || { echo "NCCL did not use the plugin:"; status=1; }
	[ $status = 0 ] || tail -n 25 "$scratch/log$ranks".0 "$scratch/log$ranks".nccl.0
	echo "{\"test\": \"nccl_check\", \"ranks\": $ranks, \"cases\": $cases, \"ok\": $((status == 0))}"
done
exit $status
