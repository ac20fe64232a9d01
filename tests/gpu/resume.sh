#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fifty connections of a job are reset while PyTorch's all-reduces run, and all sums are right: stock NCCL over the plugin, and
# NCCL's API in place of it (gantry run, over the network). Fifty more while kernels put and signal (gantry perf gin), in the clear and
# encrypted: every byte is right, and every signal counts once. RANKS: how many ranks (2); TIMES: how many resets (50).
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
sleep 1
failed=0 times=${TIMES:-50} ranks=${RANKS:-2} first=21000 last=21999
export GANTRY_RESUME=on GANTRY_PORT_RANGE=$first-$last GANTRY_IFNAME=lo GANTRY_TIMEOUT=20s
# survives NAME COMMAND...
survives()
{
	local name=$1 job pids seed=0 n=0 status
	shift
	export SUMS_UNTIL=$scratch/$name.until
	timeout 200 "$@" >"$scratch/$name" 2>"$scratch/$name.err" &
	job=$!
	for _ in $(seq 600); do [ "$(grep -c ' runs$' "$scratch/$name")" != "$ranks" ] || break; sleep 0.1; done
	pids=($(sed -nE 's/^rank [0-9]+ pid ([0-9]+) runs$/\1/p' "$scratch/$name"))
	while [ ${#pids[@]} -gt 0 ] && [ $n -lt "$times" ] && [ $seed -lt $((20 * times)) ] && kill -0 $job 2>/dev/null; do
		seed=$((seed + 1))
		"$BUILD_DIR/drivers/reset_socket" "${pids[seed % ${#pids[@]}]}" $first $last $seed >>"$scratch/$name.reset"
		status=$?
		[ $status != 77 ] || { touch "$SUMS_UNTIL"; wait $job; skip "$(tail -n 1 "$scratch/$name.reset")"; }
		[ $status != 0 ] || n=$((n + 1))
		sleep 0.05
	done
	touch "$SUMS_UNTIL"
	wait $job
	status=$?
	if [ $status = 0 ] && [ $n = "$times" ] && [ "$(grep -c ' wrong 0$' "$scratch/$name")" = "$ranks" ]; then
		echo "ok: $name: $n connections reset; $(grep -m 1 ' rounds ' "$scratch/$name")"
	else
		failed=1
		echo "FAILED ($status): $name: $n connections reset"
		tail -n 12 "$scratch/$name" "$scratch/$name.err"
	fi
}
# kernels_survive NAME VARIABLE=VALUE...: run after run, until enough connections were reset.
kernels_survive()
{
	local name=$1 seed=0 n=0 runs=0 job pids=()
	shift
	while [ $n -lt "$times" ] && [ $runs -lt 40 ]; do
		runs=$((runs + 1))
		env "$@" timeout 100 "$BUILD_DIR/gantry" perf gin --device cuda -b 8 -e 64k -f 128 -n 20000 --repeats 3 >"$scratch/$name" 2>"$scratch/$name.err" &
		job=$!
		while kill -0 $job 2>/dev/null; do
			sleep 0.05
			# shellcheck disable=SC2046 # words are meant
			pids=($(pgrep -P $(pgrep -P $job || echo 0)))
			[ ${#pids[@]} = "$ranks" ] && grep -q median "$scratch/$name" && [ $n -lt "$times" ] || continue
			seed=$((seed + 1))
			"$BUILD_DIR/drivers/reset_socket" "${pids[seed % ${#pids[@]}]}" $first $last $seed >>"$scratch/$name.reset" && n=$((n + 1))
		done
		wait $job || break
	done
	if [ $n = "$times" ] && wait $job && tail -n 1 "$scratch/$name" | grep -q 'wrong bytes: 0; OK'; then
		echo "ok: $name: $n connections reset in $runs runs of gantry perf gin"
	else
		failed=1
		echo "FAILED: $name: $n connections reset in $runs runs"
		tail -n 12 "$scratch/$name" "$scratch/$name.err"
	fi
}
[ -x "$BUILD_DIR/drivers/reset_socket" ] || { echo "no $BUILD_DIR/drivers/reset_socket: build the target tests"; exit 1; }
survives stock python3 "$here/nccl_run.py" --ranks "$ranks" --program resume_rank.py "${gantry_env[@]}"
survives dropin env GANTRY_TRANSPORT=net "$BUILD_DIR/gantry" run -n "$ranks" -- python3 "$here/resume_rank.py"
kernels_survive kernels GANTRY_ENCRYPT=off
kernels_survive kernels-encrypted GANTRY_SECRET=0123456789abcdef0123456789abcdef GANTRY_ENCRYPT=on
exit $failed
