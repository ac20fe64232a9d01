#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A late call is not a dead peer. One of four ranks makes a call long after all deadlines have passed since the others made
# theirs: no rank fails, and all results are right. A rank that is dead or stopped instead is named within GANTRY_TIMEOUT.
# NCCL's API on the host device, and so the communicator below it: nccl/late.c has the cases.
# Catches: a deadline that runs from a rank's own call, in joining, exchanges at the hub and between ranks, connecting, and the
# end of a communicator; a wait without a deadline that does not notice a death.
. "$(dirname "$0")/lib.sh"
clean_environment
no_leaks
export LD_LIBRARY_PATH=$BUILD_DIR/lib GANTRY_NCCL_DEVICE=host GANTRY_IFNAME=lo GANTRY_LOG=error
at_once=6 # they mostly sleep

# try_once NAME=VALUE... CASE HOW [RANK]
try_once()
{
	local deadline=${GANTRY_TIMEOUT%s} late=0.3
	[[ " $* " != *" late "* ]] || late=$((3 * deadline))
	env GANTRY_CONNECT_TIMEOUT="$GANTRY_TIMEOUT" LATE_S=$late LIMIT_S=$((deadline + LATE_MS / 1000)) \
		"${settings[@]}" timeout 280 "$BUILD_DIR/nccl/late" "$@" 2>"$tmp/$n.err" ||
		{ echo "${settings[*]} $*: exit status $?"; tail -n 5 "$tmp/$n.err"; return 1; }
}

# run [NAME=VALUE...] CASE HOW [RANK]: in the background.
n=0
run()
{
	local settings=() status
	while [[ $1 == *=* ]]; do settings+=("$1"); shift; done
	n=$((n + 1))
	while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
	{
		with_deadlines try_once "$@" >"$tmp/$n.out"
		status=$?
		[ $status = 0 ] && echo "ok: ${settings[*]} $*" || { cat "$tmp/$n.out"; : >"$tmp/failed"; }
	} &
}

run init late
run init late 0 # whose process has the hub
run GANTRY_EXCHANGE_RANKS=2 init late 1
for algo in ring direct direct2 tree pat; do run GANTRY_ALGO=$algo coll late; done
run GANTRY_ALGO=hier HOSTS=2 coll late
run GANTRY_ALGO=tree GANTRY_TRANSPORT=net coll late 0
run GANTRY_ALGO=collnet HOSTS=4 coll late
run GANTRY_ALGO=collnet HOSTS=4 init late
run sendrecv late
run GANTRY_TRANSPORT=net sendrecv late
run split late
run split late 0 # which serves one half
run GANTRY_EXCHANGE_RANKS=2 split late 3
run shrink late
run shrink late 0 # which serves the new one
run grow late
run grow late 3 # the newcomer
run window late
run GANTRY_TRANSPORT=net window late
run finalize late
run destroy late
run destroy late 0
for how in dead stopped; do
	run coll $how
	run GANTRY_TRANSPORT=net coll $how 0
	for call in sendrecv split shrink grow window finalize destroy; do run $call $how; done
	run GANTRY_EXCHANGE_RANKS=2 split $how
done
wait
[ ! -e "$tmp/failed" ] || failed=1
exit $failed
