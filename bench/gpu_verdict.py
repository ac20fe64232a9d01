# SPDX-License-Identifier: Apache-2.0
"""Medians per series and size of a bench/gpu.sh file, and their ratios to NCCL's own Socket. usage: gpu_verdict.py FILE"""
import collections
import json
import statistics
import sys

rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
times = collections.defaultdict(list)
raw = collections.defaultdict(list)
for r in rows:
    if "time_us" in r:
        times[r["label"], r["bytes"]].append(r["time_us"])
    elif r.get("label") == "raw":
        raw[r["streams_per_direction"]].append(r["gbs_per_direction"])
med = {k: statistics.median(v) for k, v in times.items()}
for n in sorted(raw):
    print("raw TCP, %d streams per direction: %.2f GB/s" % (n, statistics.median(raw[n])))
labels = sorted({k[0] for k in med})
print("%12s" % "bytes" + "".join("%16s us%9s" % (l, "GB/s") for l in labels) + "   to socket  to 2x2")
for size in sorted({k[1] for k in med}):
    line = "%12d" % size
    for l in labels:
        t = med.get((l, size))
        line += "%19s%9s" % (("%.1f" % t, "%.2f" % (size / t / 1e3)) if t else ("-", "-"))
    for l in [l for l in labels if l.startswith("gantry")]:
        for base in ("socket", "socket2x2"):
            a, b = med.get((base, size)), med.get((l, size))
            line += "  %6.2f" % (a / b) if a and b else "       -"
    print(line)
