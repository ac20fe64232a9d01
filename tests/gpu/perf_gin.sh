#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `gantry perf gin` on a real GPU: every byte, with one context and with several, between two ranks and four; then its figures beside those of
# `gantry perf net --raw` of the same run, and what they should be:
#
#   one way, 8 B and 4 KiB      at most bare TCP's latency + 14 us
#   bandwidth, 1 and 16 MiB     at least 0.9 of perf net's
#   8 B puts                    at least 500,000 a second and peer
#
# Wrong bytes and errors fail it; with AIMS=1 a figure that is missed does too. JSON lines of all runs are printed.
set -u
. "$(dirname "$0")/lib_gpu.sh"
tool=$BUILD_DIR/gantry
start_mps # two kernels that wait for each other share the GPU
status=0

# run NAME ARGUMENT...: the lines are printed and kept in $scratch/NAME, behind those of earlier runs of that name.
run() {
	local name=$1
	shift
	timeout 100 "$tool" perf "$@" --json >"$scratch/lines" || { echo "FAILED ($?): gantry perf $*"; status=1; }
	cat "$scratch/lines"
	grep '"bytes"' "$scratch/lines" >>"$scratch/$name"
}
few="-n 200 -w 20 --repeats 1"
# shellcheck disable=SC2086 # words are meant
{
	run checked gin --device cuda -b 0 -e 4M -f 8 --odd $few
	run checked gin --device cuda --contexts 3 --depth 4 -b 1 -e 256k -f 64 $few
	run checked gin --device cuda --ranks 4 -b 8 -e 1M -f 8 $few
}
[ $status = 0 ] || exit 1

for size in 8 4k 1M 16M; do
	run net net --raw -b $size -e $size
	run gin gin --device cuda -b $size -e $size
	run net net --raw -b $size -e $size
	run gin gin --device cuda -b $size -e $size
done
run contexts gin --device cuda --contexts 4 -b 8 -e 8
python3 - "$scratch" <<-'END' || [ "${AIMS:-}" != 1 ] || status=1
	import json, sys

	def rows(name):
	    return [json.loads(line) for line in open(sys.argv[1] + "/" + name)]

	def median(name, size, key):
	    values = sorted(r[key] for r in rows(name) if r["bytes"] == size)
	    return sum(values[(len(values) - 1) // 2:len(values) // 2 + 1]) / (2 - len(values) % 2)

	missed = 0
	def aim(what, value, least, most):
	    global missed
	    met = (least is None or value >= least) and (most is None or value <= most)
	    missed += not met
	    print("%-42s %10.1f  %s %.1f: %s" % (what, value, "at least" if most is None else "at most",
	                                        least if most is None else most, "met" if met else "MISSED"))

	for size in 8, 4096:
	    raw = median("net", size, "raw_lat_us")
	    aim("one way, %d B (us; bare TCP %.1f)" % (size, raw), median("gin", size, "lat_us"), None, raw + 14)
	for size in 1 << 20, 1 << 24:
	    net = 100 * median("net", size, "bw_gbs")
	    aim("bandwidth, %d MiB (%% of perf net)" % (size >> 20), 10000 * median("gin", size, "bw_gbs") / net, 90, None)
	aim("8 B puts per second, 1 context", median("gin", 8, "puts_per_s"), 500000, None)
	aim("8 B puts per second, 4 contexts", median("contexts", 8, "puts_per_s"), 500000, None)
	sys.exit(missed > 0)
END
exit $status
