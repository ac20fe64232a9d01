#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The transports within a host, with kernels and buffers on a real GPU: two ranks of one process, and of two.
set -u
. "$(dirname "$0")/lib_gpu.sh"
export BUILD_DIR GANTRY_TEST_DEVICE=cuda
start_mps # without it two processes share the GPU in time slices, and kernels that wait for each other are slow

for test in test_transport_ends test_transport_fork; do
	echo "$test"
	timeout 250 "$BUILD_DIR/tests/$test" || { echo "FAILED: $test ends with $?"; exit 1; }
done

# A trace of kernels that move the bytes by themselves: a bar for each transfer, on the clock of the CPU. What a rank
# sends it has begun after its call (the mark "transfer"), and it has not taken seconds.
for transport in p2p shm; do
	echo "trace over $transport"
	GANTRY_TRACE=$scratch/$transport-%r.jsonl timeout 200 "$BUILD_DIR/gantry" perf sendrecv --device cuda \
		--transport $transport -b 4k -e 1M -f 16 -n 20 >"$scratch/out" || { cat "$scratch/out"; exit 1; }
	"$BUILD_DIR/gantry" trace -o "$scratch/$transport.json" "$scratch/$transport"-*.jsonl || exit 1
	python3 "$SOURCE_DIR/tests/chrome_trace.py" "$scratch/$transport.json" || exit 1
	python3 - "$scratch/$transport.json" <<-'END' || exit 1
		import json, sys
		events = json.load(open(sys.argv[1]))["traceEvents"]
		called = {(e["tid"], e["args"]["op"]): e["ts"] for e in events if e["name"] == "transfer"}
		bars = [e for e in events if e["ph"] == "X" and e["name"] in ("send", "recv")]
		waits = sorted(e["args"]["posted_us"] - called[(e["tid"], e["args"]["op"])] for e in bars)
		print("%d bars; from call to begin %.1f, %.1f, %.1f us (least, median, most)" %
		      (len(bars), waits[0], waits[len(waits) // 2], waits[-1]))
		assert len(bars) > 100 and waits[0] > -1 and waits[-1] < 1e6
		assert all(e["dur"] < 1e6 and "cut" not in e["args"] and "open" not in e["args"] for e in bars)
	END
done
