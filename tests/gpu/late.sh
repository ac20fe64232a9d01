#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch on Gantry's libnccl.so.2, four ranks on one GPU, of which one makes its call LATE_S (90) seconds after the others: at
# init, at the first all-reduce of a communicator, at a new group, at the end. No rank fails, and all sums are right.
# The cases run side by side. tests/system/late.sh does the same in short on the host device, for every call.
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
sleep 1
failed=0 ranks=4 cases="init coll split destroy"
export LATE_S=${LATE_S:-90} GANTRY_LOG=warn
declare -A jobs
for case in $cases; do
	timeout $((${LATE_S%.*} + 300)) "$BUILD_DIR/gantry" run -n $ranks -- python3 "$here/late_rank.py" "$case" \
		>"$scratch/$case" 2>&1 &
	jobs[$case]=$!
done
for case in $cases; do
	wait "${jobs[$case]}"
	status=$?
	if [ $status = 0 ] && [ "$(grep -c " $case wrong 0, " "$scratch/$case")" = $ranks ]; then
		echo "ok: $case: $(grep -m 1 ' wrong 0, ' "$scratch/$case")"
	else
		failed=1
		echo "FAILED ($status): $case"
		tail -n 20 "$scratch/$case"
	fi
done
exit $failed
