#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# System calls of collectives between two ranks over TCP: what leaves a rank, and in how many calls. Calls that find a
# socket empty depend on the load and do not count. A run with more calls, less one with fewer, is what the calls cost.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn

need strace
no_leaks # LeakSanitizer cannot look for them in a traced process
strace -f -o "$tmp/probe" true 2>"$tmp/why" || skip "tracing is not permitted: $(head -n 1 "$tmp/why")"

# trace SIZE ITERATIONS [COLLECTIVE]: the calls that moved something
trace() {
	strace -f -qq -o "$tmp/trace" -e trace=sendto,sendmsg,splice,vmsplice -e signal=none "$gantry" perf "${3:-all_reduce}" --ranks 2 \
		--transport net --buffers plain --in-place no -c 0 -w 1 --repeats 1 -b "$1" -e "$1" -n "$2" --json >"$tmp/out" 2>"$tmp/err" ||
		die "perf ${3:-all_reduce} -b $1 -n $2 under strace"
	grep -v ' = -1 ' "$tmp/trace" >"$tmp/calls.$2"
}
# per_call NAME FEW MANY: of a rank and call, in hundredths
per_call() {
	echo $((($(grep -cE "^[0-9]+ +($1)\(" "$tmp/calls.$3") - $(grep -cE "^[0-9]+ +($1)\(" "$tmp/calls.$2")) * 100 / ($3 - $2) / 2))
}
# within NAME COUNT LEAST MOST, in hundredths
within() {
	echo "$1: $2 hundredths of a call per collective and rank"
	[ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || fail "$1: $2 hundredths, expected $3 to $4"
}

# 8 B: one send. (Heartbeats are seldom, traced or not.)
trace 8 100
trace 8 600
within "8 B, send" "$(per_call 'sendto|sendmsg' 100 600)" 95 115

# 1 MiB, all_gather: each rank's half in a slice, at once and copied: no request, no credit, no acknowledgement, but now
# and then a report of what was consumed. 4 MiB, all_reduce: more than the window, in eight slices, and reports for six of
# them. With helpers, large messages are theirs.
export GANTRY_HELPERS=0
trace 1M 10 all_gather
trace 1M 110 all_gather
within "1 MiB all_gather, send" "$(per_call 'sendto|sendmsg' 10 110)" 100 230
within "1 MiB all_gather, vmsplice" "$(per_call vmsplice 10 110)" 0 0
trace 4M 5
trace 4M 25
within "4 MiB all_reduce, send" "$(per_call 'sendto|sendmsg' 5 25)" 800 2600
within "4 MiB all_reduce, vmsplice" "$(per_call vmsplice 5 25)" 0 0
unset GANTRY_HELPERS

# 16 MiB: every slice of 512 KiB goes without a copy, in one vmsplice and one splice as a rule; at most two control
# messages for each, credits and acknowledgements.
trace 16M 2
trace 16M 12
within "16 MiB, vmsplice" "$(per_call vmsplice 2 12)" 3200 3500
within "16 MiB, splice" "$(per_call splice 2 12)" 3200 6500
within "16 MiB, send" "$(per_call 'sendto|sendmsg' 2 12)" 1 7500
exit $failed
