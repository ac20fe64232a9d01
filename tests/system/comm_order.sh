#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Four ranks, dealt out to two hosts in turns, and to the NUMA nodes of each in reverse, on a machine that hwloc is told
# of: all of them find the order in which ranks of a host, and within it of a node, are neighbours, and compute right.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_IFNAME=lo HWLOC_SYNTHETIC="node:2 pu:1"
no_leaks
need taskset
taskset -c 0 true 2>/dev/null && taskset -c 1 true 2>/dev/null || skip "needs CPUs 0 and 1"

# run OP ALGORITHM
run() {
	local rank pids=
	rm -f "$tmp/id"
	for rank in 3 2 1 0; do
		GANTRY_HOST_ID=host$((rank % 2)) RANK=$rank WORLD_SIZE=4 MASTER_ADDR=here timeout 100 taskset -c $((1 - rank / 2)) \
			"$gantry" perf "$1" --id-file "$tmp/id" --algo "$2" -b 8 -e 300k -f 200 -n 2 -w 1 --repeats 1 --explain \
			>"$tmp/out.$rank" 2>&1 &
		pids="$pids $!"
	done
	wait $pids || { cat "$tmp"/out.?; die "$1 by $2: exit status $?"; }
	cp "$tmp/out.0" "$tmp/out"
	has out "wrong elements: 0; OK"
}

"$gantry" doctor | grep -q "hwloc *yes" || skip "built without hwloc"
run all_gather ring
like out "ranks by place: [^:]*: 2 \| 0; [^:]*: 3 \| 1"
run reduce_scatter hier
run all_reduce tree
run broadcast pat
