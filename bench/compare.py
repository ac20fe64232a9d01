#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of Gantry on this machine, interleaved in one run.

    bench/compare.py OLD NEW [--rounds N] [--only SERIES] [--json FILE]

OLD and NEW are build folders (each with its `gantry`). Every round runs every series once with each build, one after the
other, and begins with the other build than the round before; a pair gives a ratio, and the median of the ratios is
shown with its quartiles. A ratio above 1 means that NEW is better: more bytes per second, less time, fewer calls. The exit
status is 1 if a median is below --least (default 0.97).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

NET = ["perf", "net", "--repeats", "3"]
SENDRECV = ["perf", "sendrecv", "--ranks", "2", "--repeats", "3"]
ALL_REDUCE = ["perf", "all_reduce", "--ranks", "2", "--repeats", "3"]


def sizes(prefix, size):
    return prefix + ["-b", size, "-e", size]


# name: command, and what is taken from its last line with the keys: "+" more is better, "-" less is better.
SERIES = {
    "net 64 B": (sizes(NET, "64"), {"msgs_per_s": "+", "lat_us": "-", "calls_per_mib": "-"}),
    "net 4 KiB": (sizes(NET, "4k"), {"bw_gbs": "+", "lat_us": "-", "calls_per_mib": "-"}),
    "net 16 KiB": (sizes(NET, "16k"), {"bw_gbs": "+", "lat_us": "-", "calls_per_mib": "-"}),
    "net 64 KiB": (sizes(NET, "64k"), {"bw_gbs": "+", "lat_us": "-", "calls_per_mib": "-"}),
    "net 1 MiB": (sizes(NET, "1M"), {"bw_gbs": "+", "lat_us": "-", "calls_per_mib": "-"}),
    "net 16 MiB": (sizes(NET, "16M"), {"bw_gbs": "+", "calls_per_mib": "-"}),
    "sendrecv shm 8 B": (sizes(SENDRECV + ["--transport", "shm", "--pattern", "pingpong"], "8"), {"time_us": "-"}),
    "sendrecv shm 1 MiB": (sizes(SENDRECV + ["--transport", "shm", "--pattern", "oneway"], "1M"), {"algbw_gbs": "+"}),
    "sendrecv net 8 B": (sizes(SENDRECV + ["--transport", "net", "--pattern", "pingpong"], "8"), {"time_us": "-"}),
    "sendrecv net 1 MiB": (sizes(SENDRECV + ["--transport", "net", "--pattern", "oneway"], "1M"), {"algbw_gbs": "+"}),
    "sendrecv net 16 MiB": (sizes(SENDRECV + ["--transport", "net", "--pattern", "oneway"], "16M"), {"algbw_gbs": "+"}),
    "fifo": (["perf", "fifo", "--repeats", "3"], {"rtt_us": "-", "ops_per_s": "+"}),
}
for transport in ("net", "shm"):
    for name, size in (("8 B", "8"), ("64 KiB", "64k"), ("1 MiB", "1M"), ("16 MiB", "16M")):
        SERIES[f"all_reduce {transport} {name}"] = (sizes(ALL_REDUCE + ["--transport", transport], size), {"time_us": "-"})


def measure(build, command, keys):
    done = subprocess.run([os.path.join(build, "gantry")] + command + ["--json"], capture_output=True, text=True, timeout=300)
    for line in reversed(done.stdout.splitlines()):
        values = json.loads(line)
        if all(k in values for k in keys):
            return {k: values[k] for k in keys}
    sys.exit(f"{build}/gantry {' '.join(command)}: no result\n{done.stdout}{done.stderr}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old")
    p.add_argument("new")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", help="series whose name has this text in it")
    p.add_argument("--least", type=float, default=0.97)
    p.add_argument("--json", help="append every figure to this file, as JSON lines")
    a = p.parse_args()
    chosen = {n: s for n, s in SERIES.items() if not a.only or a.only in n}
    ratios, figures = {}, {}
    for round_ in range(a.rounds):
        print(f"round {round_ + 1} of {a.rounds}", file=sys.stderr)
        for name, (command, keys) in chosen.items():
            got = {}
            for which in ("old", "new") if round_ % 2 == 0 else ("new", "old"):
                got[which] = measure(a.old if which == "old" else a.new, command, keys)
            if a.json:
                with open(a.json, "a") as f:
                    f.write(json.dumps({"series": name, "round": round_, **got}) + "\n")
            for k, better in keys.items():
                o, n = got["old"][k], got["new"][k]
                if not o or not n:
                    continue
                ratios.setdefault((name, k), []).append(n / o if better == "+" else o / n)
                figures.setdefault((name, k), []).append((o, n))
    worse = 0
    print(f"{'series':22}{'figure':16}{'old':>12}{'new':>12}{'ratio':>8}   quartiles")
    for (name, k), r in ratios.items():
        old, new = (statistics.median(x) for x in zip(*figures[name, k]))
        q = statistics.quantiles(r, n=4) if len(r) > 1 else [r[0]] * 3
        median = statistics.median(r)
        worse |= median < a.least
        print(f"{name:22}{k:16}{old:12.5g}{new:12.5g}{median:8.3f}   {q[0]:.3f} {q[2]:.3f}{'  below' if median < a.least else ''}")
    return worse


if __name__ == "__main__":
    sys.exit(main())
