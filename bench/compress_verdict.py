#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables from a file of bench/compress.sh: compress_verdict.py FILE

Computed from ratio and CPU seconds per GB of plain data, C to compress and E to expand; TCP's own CPU time is left out, in favour of
compression. A GB takes T = 8 / RATE seconds on a link. One way, with a core at each end, it takes max(C, T / ratio, E) compressed; both
ways at once, as in a ring, with n cores at each end, max((C + E) / n, T / ratio). The gain is T divided by that. Break-even are the
cores per end from which on both ways at once are faster than plain; full, those from which on the gain is the ratio. Where several ways
compress, each cell has the best one's, among those with a ratio of 1.05 at least. "least": with the least CPU time of all rounds in
place of the median, as on a quiet machine.
"""
import collections
import json
import statistics
import sys

RATES = (1, 10, 25)
SMALLER = 1.05  # from this ratio on a way counts
WHAT = ("grad", "layer", "partial", "hidden", "back")
SHOWN = ("plain+lz4", "plain+zstd1", "bytes+lz4", "bytes+zstd-5", "bytes+zstd-1", "bytes+zstd1", "bits+lz4", "bits+zstd1",
         "bytes+huff", "exponent+huff", "exponent+zstd1")


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for r in rows:
        print("| " + " | ".join(str(c) for c in r) + " |")
    print()


def gain(row, rate, cores, end="s_per_gb"):
    t, c, e = 8 / rate, row["compress_" + end], row["expand_" + end]
    return t / max(c, t / row["ratio"], e) if cores == 1 else t / max((c + e) / cores, t / row["ratio"])


def cores(row, rate, end="s_per_gb"):
    return (row["compress_" + end] + row["expand_" + end]) * rate / 8


def best(rows, rate, n, end="s_per_gb"):
    return max((gain(r, rate, n, end) for r in rows if r["ratio"] >= SMALLER), default=0)


def span(values, form="%.2f"):
    low, high = form % min(values), form % max(values)
    return low if low == high else f"{low}–{high}"


def main():
    lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
    head = [r for r in lines if "bench" in r][-1]
    ways, bounds, sent = collections.defaultdict(list), {}, collections.defaultdict(list)
    for r in lines:
        if "gbit_per_s" in r:
            sent[r["data"], r["gbit_per_s"], r["way"]].append(r)
        elif "way" in r:
            ways[r["data"]].append(r)
        elif "data" in r:
            bounds[r["data"]] = r
    coded = {d: [w for w in r if not w["way"].endswith("+copy")] for d, r in ways.items()}
    print(f"{head['machine']}, commit {head['commit']}, lz4 {head['lz4']}, zstd {head['zstd']}, load {head['load']}\n")
    for kind in ("bf16", "f16", "f32"):
        print(f"Ratios, {kind}: of the way that compresses best, and the bounds of an order-0 coder of exponents, and of all byte planes\n")
        rows = []
        for d in sorted(d for d in ways if d.endswith("." + kind)):
            top, b = max(coded[d], key=lambda w: w["ratio"]), bounds[d]
            of = {w["way"]: w["ratio"] for w in ways[d]}
            rows.append([d.rsplit(".", 1)[0], "%.2f" % b["exponent_bits"], "%.2f" % b["bound_exponent"], "%.2f" % b["bound_planes"],
                         "%.2f %s" % (top["ratio"], top["way"])] + ["%.2f" % of[w] for w in ("plain+lz4", "plain+zstd1", "bytes+lz4", "bits+lz4", "exponent+huff")])
        table(["data", "bits per exponent", "exponents", "planes", "best way", "plain+lz4", "plain+zstd1", "bytes+lz4", "bits+lz4", "exponent+huff"], rows)
    print("CPU seconds per GB of plain data and ratio: medians over all data but hidden, least to most of the data in brackets\n")
    rows = []
    for way in SHOWN + ("plain+copy", "bytes+copy", "bits+copy"):
        for kind in ("bf16", "f32"):
            of = [w for d in ways for w in ways[d] if d.endswith("." + kind) and "-hidden" not in d and w["way"] == way]
            cell = [way, kind]
            for key in ("compress_s_per_gb", "expand_s_per_gb", "ratio"):
                values = [w[key] for w in of]
                cell.append("%.2f (%s)" % (statistics.median(values), span(values)))
            rows.append(cell)
    table(["way", "type", "compress", "expand", "ratio"], rows)
    print("Computed: gain and cores, lowest and highest of the data sets\n")
    rows = []
    for kind in ("bf16", "f16", "f32"):
        for what in WHAT:
            of = [coded[d] for d in coded if d.endswith(f"-{what}.{kind}")]
            row = [f"{what} {kind}"]
            for n, end in ((1, "s_per_gb"), (1, "least"), (2, "s_per_gb")):
                row += [span([best(r, rate, n, end) for r in of]) for rate in RATES]
            row += [span([min((cores(w, rate) for w in r if w["ratio"] >= SMALLER), default=float("inf")) for r in of], "%.1f") for rate in RATES]
            rows.append(row)
    table(["data"] + [f"{how}, {r}" for how in ("one way, 1 core", "the same, least", "both ways, 2 cores") for r in RATES]
          + [f"break-even, {r}" for r in RATES], rows)
    print("Computed: exponent+huff alone; cores per end, both ways at once, to break even and for the full ratio\n")
    rows = []
    for kind in ("bf16", "f16", "f32"):
        of = [w for d in coded if d.endswith("." + kind) and "-hidden" not in d for w in coded[d] if w["way"] == "exponent+huff"]
        row = [kind, span([w["ratio"] for w in of])]
        for rate in RATES:
            row += [span([gain(w, rate, 1) for w in of]), span([cores(w, rate) for w in of], "%.1f"), span([cores(w, rate) * w["ratio"] for w in of], "%.1f")]
        rows.append(row)
    table(["type", "ratio"] + [f"{x}, {r}" for r in RATES for x in ("gain one way, 1 core", "break-even", "full")], rows)
    print("Transfers: medians; least and most in brackets\n")
    rows = []
    for (d, rate, way), of in sent.items():
        gb = of[0]["bytes"] / 1e9
        times = [r["seconds"] / gb for r in of]
        plain = statistics.median(r["seconds"] / gb for r in sent[d, rate, "none"])
        cpu = statistics.median((r["sender_cpu_s"] + r["receiver_cpu_s"]) / gb for r in of)
        rows.append([rate, d, way, len(of), "%.2f (%s)" % (statistics.median(times), span(times)), "%.2f" % (plain / statistics.median(times)),
                     "%.2f" % (of[0]["bytes"] / of[0]["wire_bytes"]), "%.2f" % cpu])
    table(["Gbit/s", "data", "way", "runs", "s/GB", "gain", "ratio on the wire", "CPU s/GB, both ends"], rows)


main()
