#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up one collective of a stock NCCL job in a picture of `gantry trace`.

usage: nccl_trace.py FILE RANKS [BYTES]

A collective that all ranks have whole is chosen, the last one. Every rank must have steps of the proxy for it in both
directions; what its send steps carried, what the messages behind them carried, and what lanes carried of those messages
must be the same number of bytes, per rank; all ranks together must have received what was sent. BYTES: what each rank
must have sent.
"""
import collections
import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    ranks, want = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None
    calls, causes = collections.defaultdict(set), collections.Counter()
    parts = collections.defaultdict(lambda: collections.defaultdict(int))
    chunks = collections.defaultdict(int)
    names = {}
    for e in events:
        a = e.get("args", {})
        if e["ph"] == "M" and e["name"] == "thread_name":
            names[(e["pid"], e["tid"])] = a["name"]
        elif e["ph"] == "i" and e["name"] in ("chunk sent", "chunk received"):
            chunks[(e["pid"], e["name"], a["link"], a["tag"], a["msg"])] += a["bytes"]
    for e in events:
        a = e.get("args", {})
        if e["ph"] != "X":
            continue
        track = names[(e["pid"], e["tid"])]
        if track.startswith("NCCL collectives"):
            calls[(a["nccl"], a["number"])].add(e["pid"])
        elif e["name"] in ("send step", "recv step"):
            parts[(a["nccl"], a["number"])][(e["pid"], e["name"])] += a["bytes"]
        elif e["name"] in ("send message", "receive message") and "number" in a:
            parts[(a["nccl"], a["number"])][(e["pid"], e["name"])] += a["bytes"]
            lane = "chunk sent" if e["name"] == "send message" else "chunk received"
            parts[(a["nccl"], a["number"])][(e["pid"], lane)] += chunks[(e["pid"], lane, a["link"], a["tag"], a["msg"])]
        elif e["name"] in ("kernel", "room", "peer", "network", "flush"):
            causes[e["name"]] += e["dur"]
    whole = sorted(n for n, pids in calls.items() if len(pids) == ranks)
    if not whole:
        sys.exit("no collective that all %d ranks have: %s" % (ranks, dict(calls)))
    chosen = whole[-1]
    for pid in calls[chosen]:
        sent = {k: parts[chosen][(pid, k)] for k in ("send step", "send message", "chunk sent")}
        got = {k: parts[chosen][(pid, k)] for k in ("recv step", "chunk received")}
        if len(set(sent.values())) != 1 or not sent["send step"] or (want is not None and sent["send step"] != want):
            sys.exit("process %d, collective %s: %s do not add up (%s expected)" % (pid, chosen, sent, want))
        if len(set(got.values())) != 1:
            sys.exit("process %d, collective %s: %s do not add up" % (pid, chosen, got))
    total = {k: sum(parts[chosen][(p, k)] for p in calls[chosen]) for k in ("send step", "recv step")}
    if total["send step"] != total["recv step"]:
        sys.exit("collective %s: %s" % (chosen, total))
    if not causes["network"] and not causes["peer"]:
        sys.exit("no step waits for anything: %s" % dict(causes))
    print("collective %d of %d: %d ranks sent %d bytes on lanes; waits in us: %s"
          % (chosen[1], len(whole), ranks, total["send step"], {k: round(v) for k, v in sorted(causes.items())}))


if __name__ == "__main__":
    main()
