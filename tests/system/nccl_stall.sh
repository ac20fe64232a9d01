#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# GANTRY_STALL_DIR in a job of stock NCCL, whose calls drivers/nccl_job.c makes without a GPU. A rank that is stopped, and
# one that does not make its call, are named by `gantry stall`, with the cause: after the deadline, on a signal and on request.
. "$(dirname "$0")/lib.sh"
clean_environment
# A peer that is not heard of for an eighth of GANTRY_TIMEOUT is silent.
export BUILD_DIR GANTRY_LOG=error GANTRY_IFNAME=lo GANTRY_TIMEOUT=12s GANTRY_STALL=2s GANTRY_STALL_SIGNAL=USR2

pid=
at_exit() { [ -z "$pid" ] || { kill -KILL "$pid"; wait "$pid"; } 2>/dev/null; }
# start stop|idle: rank 2 of 4.
start() {
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	GANTRY_STALL_DIR=$tmp/dir "$BUILD_DIR/drivers/nccl_job" 4 1 3 16 65536 "$1" 2 >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	for ((i = 0; i < 100; i++)); do
		[ "$(ls "$tmp/dir"/rank-*.jsonl 2>/dev/null | wc -l)" = 4 ] && return
		sleep 0.1
	done
	die "no files of ranks: $(ls "$tmp/dir") $(cat "$tmp/err")"
}
stop() {
	kill -KILL "$pid"
	wait "$pid" 2>/dev/null
	pid=
}
reports() { ls "$tmp/dir"/stall-*.jsonl 2>/dev/null | wc -l; }
# verdict PATTERN [OPTION]
verdict() {
	"$gantry" stall ${2-} "$tmp/dir" >"$tmp/verdict" 2>&1 || die "gantry stall ${2-}: $(cat "$tmp/verdict")"
	grep -qE "$1" "$tmp/verdict" || die "not '$1': $(cat "$tmp/verdict")"
	grep -h verdict "$tmp/verdict"
}

# The deadline: both neighbours report by themselves; the rank is silent.
start stop
odd=$(grep -l '"rank":2,' "$tmp/dir"/rank-*.jsonl | sed 's/.*-\([0-9]*\).jsonl/\1/')
for ((i = 0; i < 60 && $(reports) < 2; i++)); do sleep 0.1; done
verdict "verdict \(stopped.*rank 2 of 4 \([^ ]*, pid $odd\) gave no sign of life .*rank [13] of 4 .* on the link with .*in AllReduce #3 \("
"$gantry" stall --json "$tmp/dir" | grep -q '"rank": 2, "cause": "stopped".*"comm": "000000001234abcd", "nranks": 4' ||
	die "--json: $("$gantry" stall --json "$tmp/dir")"
stop

# On request: all that live report, and rank 2 has called less.
start idle
sleep 0.5
verdict "verdict \(missing call.*rank 2 of 4 .* has called 2 collectives .* its call of AllReduce #3 \(1 MiB Float32, RING, simple\) is missing" --ask
[ "$(reports)" = 4 ] || die "$(reports) reports of 4 ranks"
# On a signal.
rm "$tmp/dir"/stall-*.jsonl
for file in "$tmp/dir"/rank-*.jsonl; do kill -USR2 "$(sed 's/.*-\([0-9]*\).jsonl/\1/' <<<"$file")"; done
for ((i = 0; i < 50 && $(reports) < 4; i++)); do sleep 0.1; done
[ "$(reports)" = 4 ] || die "$(reports) reports of 4 ranks after a signal"
verdict "verdict \(missing call.*rank 2 of 4 "
stop
