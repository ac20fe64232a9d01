#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Single all-reduces of Gantry's own engine on a GPU with several settings, interleaved in one run.

    bench/gpu_engine.py GANTRY [--ranks N] [--transport T] [--rounds N] [--sizes LIST] LABEL:NAME=VALUE,NAME=VALUE ...

GANTRY is the program, or LABEL=FILE for several builds. A word without settings ("default:") is the build as it is; an option
of perf is given as NAME=VALUE in lower case (algo=direct2). Medians of single calls, of all rounds; ranks share GPU 0.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


def measure(program, a, size, settings):
    env, options = dict(os.environ), []
    for name, value in settings:
        if name.islower():
            options += ["--" + name, value]
        else:
            env[name] = value
    command = [program, "perf", "all_reduce", "--device", "cuda", "--ranks", str(a.ranks), "--transport", a.transport, "-b", size,
               "-e", size, "--timing", "call", "--repeats", "3", "--in-place", "no", "--json"] + options
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        if "time_us" in row:
            return row["time_us"], row["bytes"]
    print("%s: %s" % (" ".join(command), done.stderr.strip()[-300:]), file=sys.stderr)
    return None, 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("programs")
    p.add_argument("series", nargs="+")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--transport", default="net")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--sizes", default="64k,256k,1M,4M,16M,64M")
    a = p.parse_args()
    programs = dict(w.split("=", 1) if "=" in w else ("", w) for w in a.programs.split(","))
    series = {}
    for word in a.series:
        label, _, rest = word.partition(":")
        for name, program in programs.items():
            series[(name + " " + label).strip()] = (program, [s.split("=", 1) for s in rest.split(",") if s])
    print("%d ranks over %s, median us (GB/s bus) of %d rounds" % (a.ranks, a.transport, a.rounds))
    print("%-28s" % "" + "".join("%18s" % s for s in a.sizes.split(",")))
    times, bus = {}, {}
    for k in range(a.rounds):
        for label in list(series)[k % len(series):] + list(series)[:k % len(series)]:
            for size in a.sizes.split(","):
                us, n = measure(series[label][0], a, size, series[label][1])
                if us:
                    times.setdefault((label, size), []).append(us)
                    bus[size] = n * 2 * (a.ranks - 1) / a.ranks
    for label in series:
        line = "%-28s" % label
        for size in a.sizes.split(","):
            t = times.get((label, size))
            m = statistics.median(t) if t else 0
            line += "%18s" % ("%.0f (%.1f)" % (m, bus[size] / m / 1e3) if t else "-")
        print(line, flush=True)


main()
