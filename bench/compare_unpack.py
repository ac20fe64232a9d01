#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On a GPU machine: `perf unpack` of two builds, interleaved in one run.

    bench/compare_unpack.py OLD NEW [ROUNDS] [FILE]

A line per row of the table with the median of the ratios; above 1 means that NEW is faster. FILE gets every row as JSON
lines. The exit status is 1 if a median is below 0.97.
"""
import json
import os
import statistics
import subprocess
import sys

FIGURES = {"gbs": 1, "bw_gbs": 1, "us_per_job": -1}  # more is better, or less


def rows(build):
    done = subprocess.run([os.path.join(build, "gantry"), "perf", "unpack", "--device", "cuda", "--json"], capture_output=True, text=True,
                          timeout=300)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        for figure in FIGURES:
            if "kind" in row and isinstance(row.get(figure), (int, float)):
                yield tuple(str(row.get(k, "")) for k in ("kind", "shape", "blocks", "lanes", "bytes")) + (figure,), row[figure]


def main():
    old, new = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    ratios = {}
    for k in range(rounds):
        got = {}
        for build in (old, new) if k % 2 == 0 else (new, old):
            got[build] = dict(rows(build))
            if len(sys.argv) > 4:
                with open(sys.argv[4], "a") as f:
                    for key, value in got[build].items():
                        f.write(json.dumps({"which": "old" if build == old else "new", "round": k, "row": key, "value": value}) + "\n")
        for key in got[old].keys() & got[new].keys():
            ratio = got[new][key] / got[old][key]
            ratios.setdefault(key, []).append(ratio if FIGURES[key[-1]] > 0 else 1 / ratio)
    if not ratios:
        sys.exit("no row that both builds have")
    worst = 2
    for key, r in sorted(ratios.items()):
        worst = min(worst, statistics.median(r))
        print(f"{' '.join(key):60} {statistics.median(r):.3f}{'  below' if statistics.median(r) < 0.97 else ''}")
    return worst < 0.97


if __name__ == "__main__":
    sys.exit(main())
