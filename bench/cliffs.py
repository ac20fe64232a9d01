#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes at which a collective is much slower than at the sizes beside it.

    bench/cliffs.py GANTRY [--ops LIST] [--transports LIST] [--ranks N] [-b BYTES] [-e BYTES] [--factor F] [--again N]

All sizes in steps of a sixteenth of an octave. A size whose time is above F (1.5) times the larger of its two neighbours is measured
again with them, up to N (20) times, and the least time of each counts, which other processes hardly change. What stays above is
printed, and the exit status is 1.
"""
import argparse
import json
import subprocess
import sys

STEPS = 16


def measure(a, op, transport, first, last, step):
    command = [a.gantry, "perf", op, "--ranks", str(a.ranks), "--transport", transport, "-b", str(first), "-e", str(last), "-i", str(step),
               "-d", "float", "--repeats", "3", "-n", str(a.calls), "--in-place", "no", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    times = {r["bytes"]: r["time_us"] for r in rows if r.get("time_us")}
    if done.returncode or not times:
        sys.exit("%s: %s" % (" ".join(command), done.stderr.strip()))
    return times


def suspects(times, factor):
    sizes = sorted(times)
    for i in range(1, len(sizes) - 1):
        around = sizes[i - 1], sizes[i], sizes[i + 1]
        if times[around[1]] > factor * max(times[around[0]], times[around[2]]):
            yield around


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gantry")
    p.add_argument("--ops", default="all_reduce,all_gather,broadcast,reduce_scatter,all_to_all")
    p.add_argument("--transports", default="net,shm")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--calls", type=int, default=20)
    p.add_argument("-b", type=int, default=1024)
    p.add_argument("-e", type=int, default=16 << 20)
    p.add_argument("--factor", type=float, default=1.5)
    p.add_argument("--again", type=int, default=20)
    a = p.parse_args()
    found = 0
    for transport in a.transports.split(","):
        for op in a.ops.split(","):
            times, size = {}, a.b
            while size < a.e:
                times.update(measure(a, op, transport, size, 2 * size, size // STEPS))
                size *= 2
            bad = list(suspects(times, a.factor))
            for around in bad:
                least = {s: times[s] for s in around}
                for _ in range(a.again):
                    again = measure(a, op, transport, around[0], around[2], around[1] - around[0])
                    least = {s: min(least[s], again.get(s, least[s])) for s in around}
                    if not list(suspects(least, a.factor)):
                        break
                else:
                    found += 1
                    print("%s over %s: %s" % (op, transport, ", ".join("%d B %.1f us" % (s, least[s]) for s in around)), flush=True)
            print("%s over %s: %d sizes, %d looked at again" % (op, transport, len(times), len(bad)), file=sys.stderr, flush=True)
    print("%d cliffs" % found)
    return found != 0


sys.exit(main())
