#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# `gantry stall --ask` of jobs that run: no rank of a healthy one is to blame, whatever its ranks waited for at the moment when
# they were asked, with a communicator and without; and a rank that is stopped in the midst of its calls is the one that has
# not answered, not one that has not called, although a report of it from before is there.
. "$(dirname "$0")/lib.sh"
no_leaks
clean_environment
export GANTRY_LOG=error GANTRY_IFNAME=lo GANTRY_TIMEOUT=200s GANTRY_STALL_DIR=$tmp/dir
job=
at_exit() { [ -z "$job" ] || { kill -CONT $ranks $job; kill -KILL $ranks $job; wait $job; } 2>/dev/null; }
ranks=

# start OPERATION ARGUMENT...: a job of two ranks that goes on until it is ended; their processes in $ranks.
start() {
	rm -rf "$tmp/dir" && mkdir "$tmp/dir"
	"$gantry" perf "$@" -n 1000000000 --repeats 1 >"$tmp/job.out" 2>"$tmp/job.err" &
	job=$!
	ranks_at_work $job || die "perf $*: no ranks at work"
}
stop() {
	kill -KILL $ranks $job 2>/dev/null
	wait $job 2>/dev/null
	job=
}
# ask: the verdict in $tmp/out.
ask() { "$gantry" stall --ask --json "$tmp/dir" >"$tmp/out" 2>"$tmp/err" || die "gantry stall --ask gives $?"; }

for transport in shm net; do
	start all_reduce --ranks 2 --transport $transport -b 64k -e 64k
	for ((i = 0; i < 2; i++)); do
		ask
		like out '^\{"verdict": "nothing hangs: 2 of 2 ranks moved .*", "rank": -1, "cause": "none", .*"reports": 2'
		[ "$(wc -l <"$tmp/out")" = 1 ] || die "more than one verdict"
	done
	echo "ok: a healthy job, $transport ($SECONDS s)"

	stopped=${ranks#* } # rank 1
	kill -STOP "$stopped"
	ask
	like out "^\{\"verdict\": \"rank 1 \([^ ]*, pid $stopped\) has not answered: its process is stopped, .*; rank 0 waits for .* in all_reduce #.*\", \"rank\": 1, \"cause\": \"no report\", \"votes\": 1, \"reports\": 1"
	lacks out "has not called"
	like err '^gantry stall: 1 report older than the request does not count$'
	stop
	echo "ok: a rank that is stopped, $transport ($SECONDS s)"
done

start net -b 64k -e 64k
ask
like out '"rank": -1, "cause": "none"'
stop
echo "ok: processes without a communicator ($SECONDS s)"
