#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `gantry perf` shows: the same header, units and closing line for all operations, heads before anything is measured,
# one message for a failure, and a warning when others had the CPUs.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn
tested=("$gantry" perf)
hogs=
at_exit() { kill $hogs 2>/dev/null; }

few="-n 2 -w 1 --repeats 3"
# same OP UNIT FIGURE ARGUMENT...: a table and JSON lines; FIGURE has min, median and max.
same() {
	local op=$1 unit=$2 figure=$3
	shift 3
	expect 0 "$op" "$@"
	[ "$(head -n 1 "$tmp/out")" = "# gantry perf $op $*" ] || die "perf $op: the first line is not the command"
	like out "^# host: $(uname -n); machine: $(uname -m), .*Linux $(uname -r)"
	like out "[#;] commit: [0-9a-z]+"
	like out "[#;] repeats: [0-9]"
	like out "^#.* min  median     max"
	like out "^#.*$unit"
	[ "$(grep -vc '^#' "$tmp/out")" -ge 1 ] || die "perf $op: no rows"
	awk '/median/ { heads = 1 } !/^#/ && !heads { bad = 1 } END { exit bad }' "$tmp/out" || die "perf $op: rows before the heads"
	[ "$(tail -n 1 "$tmp/out")" = "# wrong bytes: 0; OK" ] || die "perf $op: another closing line"
	[ ! -s "$tmp/err" ] || die "perf $op: something on stderr"

	expect 0 "$op" "$@" --json
	head -n 1 "$tmp/out" | grep -q "^{\"op\": \"$op\", \"command\": \"gantry perf $op .*\"host\": .*\"machine\": .*\"cpus\": [0-9]*, \"date\": .*\"commit\": .*}\$" ||
		die "perf $op: the first object"
	sed '1d;$d' "$tmp/out" >"$tmp/rows"
	# min <= median <= max, and all of them numbers.
	awk -v f="$figure" '
		function field(key) { return match($0, "\"" key "\": [0-9.e+-]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : -1 }
		index($0, "\"" f "\":") { n++; if (!(field(f "_min") > 0 && field(f "_min") <= field(f) && field(f) <= field(f "_max"))) bad = 1 }
		END { exit bad || !n }' "$tmp/rows" || die "perf $op: no order in $figure"
	tail -n 1 "$tmp/out" | grep -qE '^{"wrong_bytes": 0, "ok": true, "cpus": [0-9]+, "other_cpus": ([0-9.e-]+|null), "steal_cpus": ([0-9.e-]+|null), "warning": (null|".*")}$' ||
		die "perf $op: the last object"
	echo "ok: perf $op"
}
same net "\(GB/s\)" bw_gbs -b 64 -e 1k -f 16 $few
same sendrecv "\(GB/s\)" time_us -b 8 -e 1k -f 16 $few
same gin "\(GB/s\)" lat_us -b 8 -e 1k -f 16 $few
same fifo "\(us\)" rtt_us -n 100 --repeats 3
same rx "\(GB/s\)" gbs -e 64k --repeats 3
same unpack "\(GB/s\)" gbs --kind unpack --shape odd --blocks 1 -e 64k --repeats 3
expect 0 net -b 64 -e 64 -c 0 $few
[ "$(tail -n 1 "$tmp/out")" = "# wrong bytes: not checked; OK" ] || die "net -c 0: another closing line"

# The heads are there while the first row takes for ever.
has_heads() { grep -q 'median' "$tmp/out"; }
for op in "net -b 64 -e 64" "sendrecv -b 8 -e 8 --transport shm"; do
	: >"$tmp/out"
	timeout 280 "$gantry" perf $op -n 1000000000 -w 1 >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	await has_heads || die "perf $op: no heads before the first row"
	grep -qv '^#' "$tmp/out" && die "perf $op: is there a row already?"
	kill $tool
	wait $tool 2>/dev/null
done
echo "ok: heads before the first row"

# Wrong bytes: how many, in which size, where. A plugin damages byte 100.
damage=$BUILD_DIR/broken/libnccl-net-broken_bytes.so
for op in net "sendrecv --transport net --proto simple"; do
	expect 1 $op --plugin "$damage" -b 64 -e 4k -f 64 $few
	like err "^gantry perf ${op%% *}: [0-9]+ wrong bytes, the first at offset 100 of a message of 4 KiB .*rank 1"
	[ "$(grep -c . "$tmp/err")" = 1 ] || die "perf $op: more than one message"
	tail -n 1 "$tmp/out" | grep -qE "^# wrong bytes: [1-9][0-9]*; FAILED$" || die "perf $op: another closing line"
	expect 1 $op --plugin "$damage" -b 64 -e 4k -f 64 $few --json
	tail -n 1 "$tmp/out" | grep -qE '^{"wrong_bytes": [1-9][0-9]*, "ok": false, ' || die "perf $op: the last object"
done
echo "ok: wrong bytes are located"

# What does not fit is said before anything is allocated; what fails before the header has no closing line.
for op in "net -b 1024G -e 1024G" "sendrecv -b 1024G -e 1024G -d int8" "sendrecv -b 1024G -e 1024G --ranks 1" "rx -e 64G --pieces 60000000 --piece-bytes 1M"; do
	expect 1 $op
	[ ! -s "$tmp/out" ] || die "perf $op prints more than the error"
	[ "$(grep -c . "$tmp/err")" = 1 ] || die "perf $op: more than one message"
	like err "^gantry perf ${op%% *}: the buffers of (1 rank|2 ranks) take [0-9.]+ [TP]iB, and this machine has [0-9.]+ [A-Z]iB available: choose a smaller -e\$"
done
echo "ok: what does not fit"

# A rank that dies is the one message; what the other makes of it is not. perf_net.sh and sendrecv.sh have the others.
if command -v ps >/dev/null; then
	timeout 280 "$gantry" perf rx -e 64M --repeats 101 >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	ranks_at_work $tool || die "there should be two ranks: $ranks"
	kill -9 "${ranks##* }"
	wait $tool
	[ $? = 1 ] || die "a killed rank should make it fail"
	[ "$(grep "^gantry perf" "$tmp/err")" = "gantry perf rx: rank 1 was killed by signal 9, Killed (transfers, 64 MiB)" ] || die "another message"
	[ "$(tail -n 1 "$tmp/out")" = "# wrong bytes: 0; FAILED" ] || die "another closing line"
	await all_gone $ranks || die "ranks $ranks are left"
	echo "ok: a killed rank is the message"
fi

# On one CPU two hogs leave a measurement half of it at most. With that alone a quota of this container is no hindrance.
cpu=$(awk '/^Cpus_allowed_list/ { sub(/[-,].*/, "", $2); print $2 }' /proc/self/status)
for _ in 1 2; do
	taskset -c "$cpu" bash -c 'while :; do :; done' &
	hogs="$hogs $!"
done
taskset -c "$cpu" timeout 280 "$gantry" perf net -b 64 -e 64 --repeats 1 >"$tmp/out" 2>"$tmp/err" || die "perf net beside hogs" # about 0.2 s
like out "^# other processes used [0-9.]+ (and the hypervisor took [0-9.]+ )?of 1 CPU during the measurement: these figures are unreliable \\(the machine is busy\\)$"
[ "$(tail -n 1 "$tmp/out")" = "# wrong bytes: 0; OK" ] || die "another closing line"
kill $hogs
hogs=
echo "ok: a warning when others have the CPUs"
