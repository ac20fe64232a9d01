#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures Gantry's communicator against what it is built on, side by side on this machine: the net transport against the
# bare network (`gantry perf net`), the shm transport against one core's memcpy and against a bare flag. Says which of
# the required ratios are met.
#
#   bench/sendrecv.sh [FILE] [ROUNDS]
#
# Every round measures everything once, so that a machine that changes its mind hits all series alike; medians over the
# rounds are judged. JSON lines are appended to FILE (bench/results/<date>-<arch>-sendrecv.jsonl), each with the series and
# the round it belongs to. The exit status is that of the measurement: a missed ratio is a finding, not a failure.
# VERDICT=strict makes it one. SIZES_NET and SIZES_SHM choose other sizes. Measurements during which other processes or the
# hypervisor had the CPUs are left out; if those are too many, nothing is judged, and the exit status is 77.
set -u
source_dir=${SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
build_dir=${BUILD_DIR:-$source_dir/build}
file=${1:-$source_dir/bench/results/$(date +%F)-$(uname -m)-sendrecv.jsonl}
rounds=${2:-5}
sizes_net=${SIZES_NET:-"1M 4M 16M 64M"}
sizes_shm=${SIZES_SHM:-"4M 16M 64M"}
mkdir -p "$(dirname "$file")"
run=$(mktemp)
trap 'rm -f "$run" "$run.one"' EXIT
status=0

# series NAME COMMAND...: its lines go to the file with name and round in front.
series() {
	local name=$1
	shift
	if ! "$build_dir/gantry" perf "$@" --json >"$run.one"; then
		echo "bench/sendrecv.sh: gantry perf $* failed" >&2
		status=1
	fi
	sed "s/^{/{\"series\": \"$name\", \"round\": $round, /" "$run.one" >>"$run"
}

echo "{\"bench\": \"sendrecv\", \"date\": \"$(date -u +%FT%TZ)\", \"rounds\": $rounds, \"load\": \"$(cut -d' ' -f 1-3 /proc/loadavg)\"}" >"$run"
for round in $(seq "$rounds"); do
	echo "round $round of $rounds" >&2
	for size in $sizes_net; do
		# Repeats of the one and of the other follow each other; the window of both is eight messages. The same kind
		# of memory too: ordinary pages, huge where there are any.
		series net net -b "$size" -e "$size" --repeats 1
		series sr_net sendrecv --ranks 2 --pattern oneway -m 8 --transport net --buffers plain -b "$size" -e "$size" --repeats 1
	done
	for size in $sizes_shm; do
		for pattern in oneway ring; do
			series "shm_$pattern" sendrecv --ranks 2 --pattern $pattern --transport shm -b "$size" -e "$size" \
				--repeats 1 --baseline
		done
	done
	series shm_latency sendrecv --ranks 2 --pattern echo --transport shm -b 8 -e 8 --repeats 3 --baseline
	series shm_calls sendrecv --ranks 2 --pattern pingpong --transport shm -b 8 -e 8 --repeats 3 --baseline
	# How often a message is copied does not depend on the machine's mood: once is enough.
	if [ "$round" = 1 ]; then
		for mode in normal offset ptr; do
			series "copies_$mode" sendrecv --ranks 2 --pattern oneway --transport net --mode $mode --proto simple \
				-b 1M -e 16M -f 16 -n 4 -w 1 --repeats 1
		done
	fi
done
cat "$run" >>"$file"
awk -f "$source_dir/bench/lib.awk" -f "$source_dir/bench/sendrecv_verdict.awk" "$run"
verdict=$?
echo "appended to $file"
[ $status = 0 ] || exit $status
[ "${VERDICT:-}" != strict ] && [ $verdict != 77 ] || exit $verdict
