#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A look inside stock NCCL over the plugin: the trace of a 4-rank job adds up and is one that Perfetto takes; what the profiler
# costs at 1 KiB and 16 MiB, in rounds with and without it; a rank that is stopped is named by `gantry stall`.
. "$(dirname "$0")/lib_gpu.sh"
need_nccl
start_mps
status=0
gantry=$BUILD_DIR/gantry
rounds=${ROUNDS:-5}
say() { echo "$*"; status=1; }

# The trace. Few calls: the ring has the newest events, and a whole all-reduce must be in it at every rank.
mkdir "$scratch/trace"
python3 "$here/nccl_run.py" --ranks 4 --log "$scratch/log" "${gantry_env[@]}" --env GANTRY_TRACE="$scratch/trace" --env NCCL_DEBUG=INFO \
	--env NCCL_DEBUG_SUBSYS=INIT,NET -- bench --sizes 1024,16777216 --iters 5 >"$scratch/out" || say "the traced job failed"
[ "$(ls "$scratch/trace"/*.jsonl 2>/dev/null | wc -l)" = 4 ] || say "not four traces: $(ls "$scratch/trace")"
"$gantry" trace -o "$scratch/job.json" "$scratch/trace" || say "gantry trace"
python3 "$SOURCE_DIR/tests/chrome_trace.py" "$scratch/job.json" >"$scratch/seen" || say "the picture"
tail -n 1 "$scratch/seen"
python3 "$SOURCE_DIR/tests/nccl_trace.py" "$scratch/job.json" 4 || say "the bytes of a collective"
"$gantry" trace --summary "$scratch/trace" | head -n 40
[ -z "${OUT:-}" ] || cp "$scratch/job.json" "$OUT/" 2>/dev/null
[ $status = 0 ] || tail -n 30 "$scratch"/log*

# Its cost: medians over interleaved rounds, each its own job.
for ((i = 0; i < rounds; i++)); do
	for way in off on; do
		extra=()
		[ $way = off ] || extra=(--env "GANTRY_TRACE=$scratch/cost-%r.jsonl")
		python3 "$here/nccl_run.py" --ranks 2 --log "$scratch/cost" "${gantry_env[@]}" "${extra[@]}" -- \
			bench --sizes 1024,16777216 --label $way >>"$scratch/cost.jsonl" || say "a job of the comparison failed"
	done
done
python3 - "$scratch/cost.jsonl" <<'PY'
import json, statistics, sys
rows = [json.loads(l) for l in open(sys.argv[1]) if l.startswith("{")]
for size in sorted({r["bytes"] for r in rows}):
    t = {w: [r["time_us"] for r in rows if r["bytes"] == size and r["label"] == w] for w in ("off", "on")}
    off, on = (statistics.median(t[w]) for w in ("off", "on"))
    print(json.dumps({"test": "trace_cost", "bytes": size, "off_us": off, "on_us": on, "ratio": round(on / off, 4), "all": t}))
PY

# A rank that is stopped: the others report by themselves.
mkdir "$scratch/stall"
python3 "$here/nccl_run.py" --ranks 4 --log "$scratch/slog" "${gantry_env[@]}" --env GANTRY_STALL_DIR="$scratch/stall" \
	--env GANTRY_STALL=4s --env GANTRY_TIMEOUT=24s -- soak --count 100000000 >"$scratch/sout" 2>&1 &
run=$!
victim=
for ((i = 0; i < 600; i++)); do
	victim=$(grep -l '"rank":2,"nranks":4' "$scratch/stall"/rank-*.jsonl 2>/dev/null | head -n 1 | sed 's/.*-\([0-9]*\).jsonl/\1/')
	[ -z "$victim" ] || break
	sleep 0.1
done
[ -n "$victim" ] || say "no rank 2 in $(ls "$scratch/stall")"
sleep 8
if [ -n "$victim" ]; then
	kill -STOP "$victim"
	for ((i = 0; i < 150; i++)); do
		ls "$scratch/stall"/stall-*.jsonl >/dev/null 2>&1 && break
		sleep 0.1
	done
	sleep 1
	"$gantry" stall "$scratch/stall" | tee "$scratch/verdict"
	grep -qE "verdict \((stopped|no report).*: rank 2 of 4 \([^ ]*, pid $victim\)" "$scratch/verdict" || say "rank 2 was stopped and is not named"
	kill -KILL "$victim"
fi
kill "$run" 2>/dev/null
for file in "$scratch/stall"/rank-*.jsonl; do kill -KILL "$(sed 's/.*-\([0-9]*\).jsonl/\1/' <<<"$file")" 2>/dev/null; done
wait "$run" 2>/dev/null
echo "{\"test\": \"gpu_trace\", \"ok\": $((status == 0))}"
exit $status
