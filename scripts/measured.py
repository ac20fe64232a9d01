#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/measured.md from the files in bench/results: measured.py [--write | --check] [ROOT]

A table stands between two lines that name it; its function below reads the file. Without an option the tables are printed.
--check fails if the page has other ones.
"""
import json
import os
import re
import sys

import made

PAGE = "docs/measured.md"


def results(root, name):
    with open(os.path.join(root, "bench/results", name), encoding="utf-8") as f:
        return f.read()


def size(n):
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= factor:
            return f"{n / factor:g} {unit}"
    return f"{n} B"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|"] + ["| " + " | ".join(r) + " |" for r in rows]) + "\n"


def net(root):
    """perf net beside a plain TCP stream of the same run."""
    rows = [json.loads(line) for line in results(root, "2026-11-15-aarch64.jsonl").splitlines()]
    return table(
        ["message", "Gantry", "bandwidth to raw TCP", "one-way latency to raw TCP", "CPU per byte to raw TCP"],
        [[size(r["bytes"]),
          f"{r['msgs_per_s'] / 1e6:.2f} M messages/s" if r["bytes"] < 4096 else f"{r['bw_gbs']:.2f} GB/s",
          f"{r['bw_gbs'] / r['raw_bw_gbs']:.2f}", f"{r['lat_us'] / r['raw_lat_us']:.2f}",
          f"{r['cpu_s_per_gb'] / r['raw_cpu_s_per_gb']:.2f}"] for r in rows if "raw_bw_gbs" in r])


def stock(root):
    """All-reduce of stock NCCL over the plugin and over its sockets, nothing set but what the column names."""
    text = results(root, "2026-11-17-h200-tune.md")
    text = text[text.index("## Later the same day, 3c98a62"):text.index("## At e32e672")]
    rows = []
    for ranks in (2, 4):
        part = text[text.index(f"{ranks} ranks; median"):]
        part = part[: part.index("```")]
        found = re.findall(r"^ *(\d+)  (socket2x2|socket|gantry) +([\d.]+) +([\d.]+) +[\d.]+ +([\d.]+) GB/s +([\d.]+)", part, re.M)
        by = {}
        for n, label, median, p99, gbs, ratio in found:
            by.setdefault(int(n), {})[label] = (float(median), p99, gbs, ratio)
        for n, r in sorted(by.items()):
            rows.append([str(ranks), size(n)] + [f"{r[x][0]:.0f}" for x in ("gantry", "socket", "socket2x2")] +
                        [r["gantry"][2], r["gantry"][3]])
    return table(["ranks", "bytes", "Gantry (us)", "Socket (us)", "Socket 2 x 2 (us)", "Gantry (GB/s bus)", "to the better Socket"], rows)


def collectives(root):
    """Collectives over TCP beside OpenMPI and gloo with their best settings."""
    rows = []
    for m in re.finditer(r"^(\w+) +(\d) net +(\d+) (B|KiB|MiB) +([\d.e+]+) +([\d.e+]+) +([\d.e+]+) +([\d.]+) \(", results(root, "2026-11-17-coll-v1.md"), re.M):
        us = [f"{float(x):.4g}" if float(x) < 1e4 else f"{float(x):.0f}" for x in m.group(5, 6, 7)]
        rows.append([m.group(1), m.group(2), f"{m.group(3)} {m.group(4)}", *us, m.group(8)])
    return table(["operation", "ranks", "bytes", "Gantry (us)", "OpenMPI (us)", "gloo (us)", "to the better peer"], rows)


TABLES = {"net": net, "stock": stock, "collectives": collectives}


def parts(root):
    return [(f"the table {name}", PAGE, f"<!-- {name}: scripts/measured.py --write -->\n", f"<!-- end of {name} -->\n", make(root))
            for name, make in TABLES.items()]


if __name__ == "__main__":
    sys.exit(made.run(__doc__, parts, "has other figures than bench/results"))
