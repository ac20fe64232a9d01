#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_SECRET=alpha
# `gantry perf net`: zero wrong bytes at even and odd sizes, the promised JSON fields, wrong usage, and ranks that die.
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_SECRET
export GANTRY_LOG=warn
tested=("$gantry" perf net)

fields="bytes bw_gbs lat_us cpu_s_per_gb syscalls_per_mib_tx syscalls_per_mib_rx calls_per_mib wrong msgs_per_s"
raw_fields="raw_bw_gbs raw_lat_us raw_cpu_s_per_gb bw_ratio lat_ratio cpu_ratio"

if [ -n "${GANTRY_SANITIZED:-}" ]; then
	few="-n 16 --repeats 1" largest=65536 rows=9
else
	few="-n 64 --repeats 2" largest=1M rows=11
fi

# Powers of four from one byte, then odd sizes, with and without the raw movers, several depths and lanes.
expect 0 -b 1 -e $largest -f 4 $few --raw --json
check_json $rows $fields $raw_fields
expect 0 -b 3 -e 200000 -f 7 $few --json
check_json 6 $fields
expect 0 -b 100001 -e 100001 $few --depth 1 --json
check_json 1 $fields
expect 0 -b 777 -e 777777 -f 31 $few --depth 32 --lanes 3 --json
check_json 3 $fields

# NCCL's pattern; odd sizes, and more requests than a window of small messages.
expect 0 -b 777 -e 777777 -f 1000 $few --channels 3 --json
check_json 2 $fields
expect 0 -b 4k -e 4k $few --channels 2 --depth 1 --json
check_json 1 $fields
grep -q '"channels": 2' "$tmp/header" || die "the header does not say how many channels there were"
expect 2 --channels 17
expect 2 --channels 2 --raw

# UNPACK that is asked for and not used is named, with the reason; the plugin refuses what the interface cannot do as wrong
# usage, not as an error of its own. No machine has devmem TCP on lo.
GANTRY_UNPACK=kernel expect 0 -b 4k -e 4k $few
like err '^gantry perf net: GANTRY_UNPACK=kernel is not used: the built-in network is measured with host memory'
GANTRY_UNPACK=kernel GANTRY_IFNAME=lo expect 1 -b 4k -e 4k $few --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so"
like err 'devmem TCP was requested but cannot be used with lo: .'
like err 'init gave ncclInvalidUsage \(5\)$'
lacks err ERR_INTERNAL

# As a plugin, by path, by its highest version.
expect 0 -b 1 -e $largest -f 16 $few --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so" --json
check_json $(((rows + 1) / 2)) $fields
grep -q '"version": 12' "$tmp/header" || die "the plugin was not used at v12"

# For people.
expect 0 -b 64 -e 4k $few --raw
has out "(GB/s)"
has out "# wrong bytes: 0; OK"
expect 0 --help

# Wrong usage is 2, a network that cannot be had is 1.
expect 2 -b 0
expect 2 -b 2k -e 1k
expect 2 --depth 33
expect 2 --lanes many
expect 2 one two
expect 2 --plugin "$tmp/none.so"
has err "none.so"
: >"$tmp/empty.so"
expect 1 --plugin "$tmp/empty.so"
has err "no usable net plugin: $tmp/empty.so"
[ "$(grep -c "^gantry perf" "$tmp/err")" = 1 ] || die "one failure, several messages"
expect 2 --ifname =nosuchif0

# A rank that dies is named, the tool fails, and nobody is left behind.
if command -v ps >/dev/null; then
	timeout 280 "$gantry" perf net -b 64 -e 64 -n 1000000000 >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	ranks_at_work $tool || die "there should be two ranks: $ranks"
	kill -9 "${ranks##* }"
	wait $tool
	[ $? = 1 ] || die "a killed rank should make it fail"
	has err "rank 1 was killed by signal 9"
	[ "$(grep -c "^gantry perf" "$tmp/err")" = 1 ] || die "more than the cause is reported"
	await all_gone $ranks || die "ranks $ranks are left"
	echo "ok: a killed rank is reported"

	"$gantry" perf net -b 64 -e 64 -n 1000000000 >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	ranks_at_work $tool || die "there should be two ranks: $ranks"
	kill -9 $tool
	wait $tool 2>/dev/null
	await all_gone $ranks || die "ranks $ranks outlive the tool"
	echo "ok: the ranks die with the tool"

	# A rank that stops: the watchdog says where both were.
	timeout 280 "$gantry" perf net -b 64 -e 64 -n 1000000000 --timeout 1s >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	# On a machine that stands still for a second the watchdog may be first; it says the same then.
	if ranks_at_work $tool; then
		kill -STOP $ranks 2>/dev/null
	fi
	wait $tool
	[ $? = 1 ] || die "a stopped rank should make it fail"
	has err "no progress for 1.0 s"
	echo "ok: a hang is reported"
else
	echo "skipped: killing ranks (there is no ps command)"
fi
