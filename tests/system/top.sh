#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# Counters of running processes: the text of their sockets by Prometheus' rules, `gantry top` in its forms, and what is
# left when a process is stopped or killed.
. "$(dirname "$0")/lib.sh"
need python3
clean_environment
no_leaks
export GANTRY_IFNAME=lo GANTRY_STATS_DIR=$tmp/s
tested=("$gantry")

pid=
over() {
	[ -z "$pid" ] || kill -KILL "$pid" $(pgrep -P "$pid") 2>/dev/null
	[ -z "$pid" ] || wait "$pid" 2>/dev/null
	pid=
}
at_exit() { over; }
# start COUNT ARGUMENT...: a command of the tool, until COUNT processes show their counters.
start() {
	local count=$1 n
	shift
	"$gantry" "$@" >"$tmp/job.out" 2>"$tmp/job.err" &
	pid=$!
	for ((n = 0; n < 300; n++)); do
		[ "$(ls "$tmp/s" 2>/dev/null | wc -l)" = "$count" ] && "$gantry" top --once -i 50ms | grep -q "$ready" && return
		kill -0 "$pid" 2>/dev/null || die "$* has ended"
		sleep 0.1
	done
	die "$* does not show its counters"
}
# get SOCKET FILE: the body of the answer.
get() {
	python3 - "$1" >"$2" <<'END' || die "$1 does not answer"
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
s.connect(sys.argv[1])
s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
data = b""
while chunk := s.recv(1 << 16):
    data += chunk
head, body = data.split(b"\r\n\r\n", 1)
assert head.startswith(b"HTTP/1.0 200 OK\r\n") and b"Content-Length: %d\r\n" % len(body) in head + b"\r\n", head
sys.stdout.buffer.write(body)
END
}
check() { python3 "$SOURCE_DIR/tests/prometheus.py" "$@" >"$tmp/out" 2>"$tmp/err" || die "the text breaks the format"; }

check --self-test

# Nobody: one line.
expect 1 top --once
has out "no process shows its counters in $tmp/s"

# A communicator of two ranks, looked at twice while it moves data.
ready='comm .* rank 1, net'
start 2 perf all_reduce --ranks 2 --transport net -b 256K -e 256K -n 200000
for s in "$tmp"/s/*.sock; do
	get "$s" "$tmp/1"
	get "$s" "$tmp/2"
	check "$tmp/1" "$tmp/2"
	for metric in gantry_lane_sent_bytes_total gantry_comm_bytes_total gantry_comm_wait_seconds_total; do
		grep -q "^$metric{" "$tmp/2" || die "no $metric"
	done
done
expect 0 top --once -i 200ms
like out '^pid [0-9]+  gantry rank 0  gantry '
like out '^  comm [0-9a-f]+/0 +rank 1, net .* [MG]B/s +[0-9.]+ [MG]B/s '
like out '^  link [0-9]+ +127\.0\.0\.1:.* [MG]B/s +[0-9.]+ [MG]B/s '
lacks out $'\033'
expect 0 top --once --json --lanes -i 200ms
python3 - "$tmp/out" <<'END' || die "--json"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
kinds = [r["kind"] for r in rows]
assert kinds.count("process") == 2 and {"link", "lane", "comm"} <= set(kinds), kinds
links = [r for r in rows if r["kind"] == "link"]
assert all(r["sent_per_s"] > 1e6 and r["received_per_s"] > 1e6 and r["lanes"] >= 2 for r in links), links
for link in links:
    lanes = [r for r in rows if r["kind"] == "lane" and r["pid"] == link["pid"] and r["id"].split(".")[0] == link["id"]]
    assert len(lanes) == link["lanes"] and sum(r["sent_bytes"] for r in lanes) == link["sent_bytes"], (link, lanes)
END

# One that is stopped is named, and holds up nothing.
victim=$(pgrep -P "$pid" | head -1)
kill -STOP "$victim"
expect 0 top --once -i 50ms
has out "pid $victim does not answer"
kill -CONT "$victim"

# Killed: their sockets stay, are nobody's, and go when the next process starts.
over
[ "$(ls "$tmp/s" | wc -l)" = 2 ] || die "sockets of killed processes"
expect 1 top --once
ready='link [0-9]'
dead=$(ls "$tmp/s")
start 2 perf net -b 1M -e 1M -n 200000
for f in $dead; do [ ! -e "$tmp/s/$f" ] || die "$f is still there"; done
over

rm -rf "$tmp/s"
GANTRY_STATS_DIR=off expect 0 perf net -b 1K -e 1K -n 10
[ ! -e "$tmp/s" ] || die "a folder despite GANTRY_STATS_DIR=off"
GANTRY_STATS_DIR=off expect 2 top --once
exit $failed
