#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# also with: GANTRY_SECRET=alpha
# GANTRY_STALL_DIR in processes without a communicator: perf net with Gantry's network, and with the plugin as NCCL loads
# it. One of the two ranks is stopped; the other reports what it waits for, and `gantry stall` names the one that was
# stopped. (tests/unit/test_rx_stall.c has the pipeline.)
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_SECRET
# Long enough for ranks that are alive on a loaded machine; the peer must not be taken for dead before.
export GANTRY_LOG=warn GANTRY_IFNAME=lo GANTRY_STALL=1s GANTRY_TIMEOUT=300s

pid= stopped=
over() {
	[ -z "$stopped" ] || kill -CONT "$stopped" 2>/dev/null
	[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null # its ranks go with it
	[ -z "$pid" ] || wait "$pid" 2>/dev/null
	pid= stopped=
}
at_exit() { over; }
# wait_for SECONDS COMMAND...: whether it becomes true in that time.
wait_for() {
	local tenths=$(($1 * 10))
	shift
	for ((; tenths > 0; tenths--)); do
		"$@" && return
		kill -0 "$pid" 2>/dev/null || die "perf has ended"
		sleep 0.1
	done
	return 1
}
# Two ranks, both with the service thread of the network: they connect, or are connected.
networked() {
	[ "$(pgrep -P "$pid" | wc -l)" = 2 ] || return
	for c in $(pgrep -P "$pid"); do grep -qs gantry-service /proc/$c/task/*/comm || return; done
}
reported() { ls "$tmp/dir"/stall-*-"$1".jsonl >/dev/null 2>&1; }
# Stops one rank until the other one reports. It may have been connecting, or checking: then nothing waits, and some
# other moment is tried.
stop_one() {
	for _ in {1..25}; do
		kill -STOP "$1"
		wait_for 4 reported "$2" && return
		kill -CONT "$1"
		sleep 0.3
	done
	die "no report of rank $2 while rank $1 was stopped"
}

# stalled ARGUMENT...: of `gantry perf net`.
stalled() {
	local other arguments="$*"
	rm -rf "$tmp/dir"
	mkdir "$tmp/dir"
	GANTRY_STALL_DIR=$tmp/dir "$gantry" perf net -b 1M -e 1M -n 100000000 "$@" >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	wait_for 100 networked || die "no two ranks"
	sleep 0.5
	set -- $(pgrep -P "$pid")
	[ $# = 2 ] || die "two ranks were running, now there are $#"
	stopped=$1 other=$2
	stop_one "$stopped" "$other"
	"$gantry" stall "$tmp/dir"/stall-*-"$other".jsonl >"$tmp/verdict" 2>&1 || die "gantry stall: $(cat "$tmp/verdict")"
	grep -q "verdict (no report, 1 of 1 reports say so): .* pid $stopped is waited for" "$tmp/verdict" ||
		die "rank $stopped was stopped, and the verdict is: $(cat "$tmp/verdict")"
	"$gantry" stall --json "$tmp/dir"/stall-*-"$other".jsonl | grep -q '"cause": "no report"' || die "gantry stall --json"
	grep -q "net has made no progress for [0-9.]* s: .* wait.* for the .*; report in $tmp/dir/stall-.*-$other.jsonl" "$tmp/err" ||
		die "no line in the log"
	echo "perf net $arguments: $(tail -n 1 "$tmp/verdict")"
	over
}
stalled
stalled --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so"
