#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# GANTRY_TRACE in a job of stock NCCL, whose calls drivers/nccl_job.c makes without a GPU: four ranks leave a file each;
# the picture of them is one that Perfetto takes (tests/chrome_trace.py), and in it the bytes of a collective add up:
# proxy steps, messages, chunks on lanes, at all ranks (tests/nccl_trace.py). Large messages, and small ones.
# Catches: a version of the profiler table that loses events, chunks that are counted twice, handles that mix up steps.
. "$(dirname "$0")/lib.sh"
clean_environment
need python3
export BUILD_DIR GANTRY_LOG=warn GANTRY_IFNAME=lo

# job NAME STEPS BYTES: two channels, three collectives.
job() {
	mkdir "$tmp/$1"
	GANTRY_TRACE=$tmp/$1 timeout 100 "$BUILD_DIR/drivers/nccl_job" 4 2 3 "$2" "$3" >"$tmp/out" 2>"$tmp/err" ||
		die "the job failed: $(cat "$tmp/err")"
	[ "$(ls "$tmp/$1"/trace-*.jsonl | wc -l)" = 4 ] || die "not four traces: $(ls "$tmp/$1")"
	"$gantry" trace -o "$tmp/$1.json" "$tmp/$1" 2>"$tmp/err" || die "gantry trace: $(cat "$tmp/err")"
	python3 "$SOURCE_DIR/tests/chrome_trace.py" "$tmp/$1.json" >"$tmp/seen" || die "the picture"
	python3 "$SOURCE_DIR/tests/nccl_trace.py" "$tmp/$1.json" 4 $((2 * $2 * $3)) || die "the bytes of $1"
	grep -q '"name":"rank 3 of 4, NCCL.s communicator 000000001234abcd' "$tmp/$1.json" || die "no process is named by its rank"
	grep -q 'AllReduce' "$tmp/seen" || die "no bar of a collective"
	# Every step is there from its beginning: the first ones of each collective, channel and direction.
	for file in "$tmp/$1"/trace-*.jsonl; do
		n=$(grep -c '"name":"nccl step".*"step":0,.*"state":"kernel"' "$file")
		[ "$n" = 12 ] || die "$file: $n of 12 first steps wait for the kernel"
	done
	"$gantry" trace --summary "$tmp/$1" >"$tmp/summary" || die "--summary"
	grep -qE "^ +0  send to +1 +1 +$((3 * $2)) +$((3 * $2 * $3)) " "$tmp/summary" ||
		die "the summary lacks rank 0's sends: $(cat "$tmp/summary")"
}
NCCL_JOB_PROFILER=5 job large 6 524288
job small 6 1000
# Copy engines' collectives, which v6 has: calls in the order of all, with their bytes and without operations.
NCCL_JOB_COPIES=2 job copies 6 1000
for file in "$tmp"/copies/trace-*.jsonl; do
	[ "$(grep '"name":"nccl call"' "$file" | grep -c '"collective":"AllGather')" = 2 ] || die "$file: not two all-gathers"
	grep '"collective":"AllGather' "$file" | grep -q '"number":2,"bytes":2002,' || die "$file: the second one: $(grep AllGather "$file")"
done

# Off: no file, and nothing recorded (the driver checks that NCCL gets a mask of 0 by making no profiler calls then).
timeout 100 "$BUILD_DIR/drivers/nccl_job" 2 1 2 4 4096 >"$tmp/out" 2>"$tmp/err" || die "the job without a trace"

# Its timed form, for bench/nccl_pattern.py: over a plugin by path.
timeout 100 "$BUILD_DIR/drivers/nccl_job" 3 2 5 8 70000 time "$BUILD_DIR/lib/libnccl-net-gantry.so" >"$tmp/out" 2>"$tmp/err" ||
	die "the timed job: $(cat "$tmp/err")"
grep -qE '^[0-9.]+ us, 90% ' "$tmp/out" || die "the timed job said: $(cat "$tmp/out")"
