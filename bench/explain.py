#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well the cost model knows this machine: its estimates beside measurements, with built-in and with measured figures.

    bench/explain.py GANTRY [--device host|cuda] [--ops LIST] [--ranks LIST] [--transports LIST] [-b BYTES] [-e BYTES]
                     [-f FACTOR] [--rounds N] [--factor F] [--json FILE]

Every cell runs once for each value of GANTRY_MODEL, in turns. A cell's figure is the median of its rounds; the ratio is the measured time
over the estimate. At the end stands how many cells are within the factor (1.5), and the worst ones.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

MODELS = ("builtin", "measured")


def measure(a, op, ranks, transport, model):
    command = [a.gantry, "perf", op, "--ranks", str(ranks), "--transport", transport, "--device", a.device, "-b", str(a.b), "-e", str(a.e),
               "-f", str(a.f), "--in-place", "no", "--timing", "call", "-c", "0", "--repeats", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "GANTRY_MODEL": model})
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode:
        sys.exit("%s: %s" % (" ".join(command), done.stderr.strip()))
    return {r["bytes"]: (r["estimated_us"], r["time_us"], r["algo"]) for r in rows if r.get("bytes") and r.get("time_us") and r.get("estimated_us")}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gantry")
    p.add_argument("--device", default="host")
    p.add_argument("--ops", default="all_reduce,all_gather,reduce_scatter,broadcast")
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--transports", default="net,shm")
    p.add_argument("-b", type=int, default=8)
    p.add_argument("-e", type=int, default=16 << 20)
    p.add_argument("-f", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--factor", type=float, default=1.5)
    p.add_argument("--json")
    a = p.parse_args()
    cells = {}
    for op in a.ops.split(","):
        for transport in a.transports.split(","):
            for ranks in a.ranks.split(","):
                for _ in range(a.rounds):
                    for model in MODELS:
                        for size, row in measure(a, op, ranks, transport, model).items():
                            cells.setdefault((op, transport, int(ranks), size), {}).setdefault(model, []).append(row)
    within = dict.fromkeys(MODELS, 0)
    worst = {m: [] for m in MODELS}
    print("%-15s %-4s ranks %9s   %s" % ("", "", "bytes", "   ".join("%-8s: estimated, measured us, ratio" % m for m in MODELS)))
    for (op, transport, ranks, size), models in cells.items():
        text = "%-15s %-4s %5d %9d" % (op, transport, ranks, size)
        for m in MODELS:
            estimated, took = (statistics.median(r[i] for r in models[m]) for i in (0, 1))
            ratio = took / estimated
            within[m] += 1 / a.factor <= ratio <= a.factor
            worst[m].append((max(ratio, 1 / ratio), "%s %s %d ranks %d B: %.2f (%s)" % (op, transport, ranks, size, ratio, models[m][0][2])))
            text += "   %10.4g %10.4g %6.2f      " % (estimated, took, ratio)
            if a.json:
                with open(a.json, "a") as f:
                    f.write(json.dumps({"bench": "explain", "device": a.device, "op": op, "transport": transport, "ranks": ranks, "bytes": size,
                                        "model": m, "estimated_us": estimated, "time_us": took, "algo": models[m][0][2]}) + "\n")
        print(text)
    for m in MODELS:
        print("%s: %d of %d within %.2f; worst: %s" % (m, within[m], len(cells), a.factor, "; ".join(t for _, t in sorted(worst[m], reverse=True)[:3])))


main()
