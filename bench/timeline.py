#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time line of single collectives over the network, from traces of two ranks of one host.

    GANTRY_TRACE=DIR gantry perf all_reduce --transport net ... ; bench/timeline.py DIR [--call N] [--slices]

For each slice of a message's way, from the kernel that posts it to the kernel that consumes it: how long it takes,
and when, in us from the beginning of the call. Medians are over all slices of the call in the middle of the trace
(--call takes another); --slices prints every slice. Messages of a channel are told apart by their tag, so both ranks
need Gantry's own network, and one host, since clocks are not aligned.
"""
import argparse
import collections
import glob
import json
import os
import statistics
import sys

STAGES = ["kernel filled it", "sent", "first piece left", "last piece left", "first piece came", "received", "told the kernel",
          "kernel consumed it", "space is free again"]


TAGS = 32  # tags of a link in src/transport/net_priv.h: NET_CHANNELS_MAX of each kind


class Rank:
    """One rank's events, in us."""

    def __init__(self, path):
        self.events = []
        self.conns = {}
        for line in open(path):
            row = json.loads(line)
            if row["kind"] == "trace":
                (ns0, ns1), (t0, t1) = row["ns"], row["ticks"]
                self.rank = row["rank"]
            elif row["kind"] == "conn":
                self.conns[row["conn"]] = (row["peer"], row["dir"], row["channel"])
            elif row["kind"] == "event":
                row["us"] = (ns0 + (row["ticks"] - t0) * (ns1 - ns0) / (t1 - t0)) / 1e3
                self.events.append(row)

    def calls(self):
        """{number: (begin, end)} of collectives that began and ended in the trace."""
        begin, end = {}, {}
        for e in self.events:
            if e["name"] == "collective":
                n = e["number"]
                if e["end"]:
                    end[n] = max(end.get(n, 0), e["us"])
                else:
                    begin[n] = min(begin.get(n, e["us"]), e["us"])
        return {n: (begin[n], end[n]) for n in begin if n in end}

    def between(self, name, begin, end):
        return [e for e in self.events if e["name"] == name and begin <= e["us"] <= end]


def proxied(rank, window, direction):
    """{(peer, channel): [[posted, moved, done] of each slice]} of a call."""
    slices = collections.defaultdict(dict)
    for k, name in enumerate(("proxy posted", "proxy moved", "proxy done")):
        for e in rank.between(name, *window):
            conn = rank.conns.get(e["conn"])
            if conn and conn[1] == direction:
                slices[(conn[0], conn[2], e["step"])].setdefault(k, e["us"])
    out = collections.defaultdict(list)
    for (peer, channel, _), at in sorted(slices.items()):
        if len(at) == 3:
            out[(peer, channel)].append([at[0], at[1], at[2]])
    return out


def messages(rank, window, kind):
    """{(link, channel): [[posted, first piece, last piece, done] of each message]} of a call."""
    names = {"send": ("send posted", "chunk sent", "send done"), "recv": ("recv posted", "chunk received", "recv done")}[kind]
    found = collections.defaultdict(dict)
    for k, name in enumerate(names):
        for e in rank.between(name, *window):
            at = found[(e["link"], e["tag"], e["msg"])]
            if k == 1:
                at.setdefault(1, e["us"])
                at[2] = e["us"]
            else:
                at.setdefault(k and 3, e["us"])
    out = collections.defaultdict(list)
    for (link, tag, _), at in sorted(found.items()):
        if len(at) == 4:
            out[(link, tag)].append([at[k] for k in range(4)])
    return out


def nearest(rows, at, column, used):
    """The row, not used yet, whose column is the first at or after a time."""
    best = None
    for i, row in enumerate(rows):
        if i not in used and row[column] >= at - 1 and (best is None or row[column] < rows[best][column]):
            best = i
    if best is not None:
        used.add(best)
    return best


def follow(ranks, number):
    """Every slice's times along its way, from the begin of the call on the first rank."""
    windows = {r.rank: r.calls().get(number) for r in ranks.values()}
    if not all(windows.values()):
        return None, None
    zero = min(w[0] for w in windows.values())
    span = (zero - 50, max(w[1] for w in windows.values()) + 300)
    rows = []
    for r in ranks.values():
        mine = messages(r, span, "send")
        used = collections.defaultdict(set)
        for (peer, channel), slices in proxied(r, span, "send").items():
            other = ranks[peer]
            theirs = proxied(other, span, "recv").get((r.rank, channel), [])
            sent = [m for (_, tag), ms in mine.items() if tag % TAGS == channel for m in ms]
            arrived = [m for (_, tag), ms in messages(other, span, "recv").items() if tag % TAGS == channel for m in ms]
            for i, (_, moved, done) in enumerate(slices):
                m = nearest(sent, moved, 0, used[channel])
                if m is None or i >= len(theirs):
                    continue
                got = theirs[i]
                # Of what arrived before the kernel was told: the newest.
                rx = max((a for a in arrived if a[3] <= got[1] + 1), key=lambda a: a[3], default=None)
                if rx is None:
                    continue
                s = sent[m]
                rows.append((r.rank, channel, i, [moved - zero, s[0] - zero, s[1] - zero, s[2] - zero, rx[1] - zero, rx[3] - zero,
                                                  got[1] - zero, got[2] - zero, done - zero]))
    return rows, max(w[1] for w in windows.values()) - zero


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--call", type=int, help="number of the collective")
    p.add_argument("--slices", action="store_true")
    a = p.parse_args()
    ranks = {}
    for path in glob.glob(os.path.join(a.dir, "trace-*.jsonl")):
        r = Rank(path)
        ranks[r.rank] = r
    if sorted(ranks) != [0, 1]:
        sys.exit("%s: expected traces of ranks 0 and 1, found %s" % (a.dir, ", ".join(map(str, sorted(ranks))) or "none"))
    numbers = sorted(set.intersection(*(set(r.calls()) for r in ranks.values())))
    if not numbers:
        sys.exit("%s: no collective that began and ended on all ranks" % a.dir)
    number = a.call if a.call is not None else numbers[len(numbers) // 2]
    rows, whole = follow(ranks, number)
    if not rows:
        sys.exit("call %d: nothing of it is in the traces of all ranks" % number)
    print("call %d: %.0f us, %d slices of %d ranks" % (number, whole, len(rows), len(ranks)))
    if a.slices:
        print("rank channel slice  " + "  ".join(STAGES))
        for rank, channel, i, at in sorted(rows, key=lambda row: row[3][0]):
            print("%4d %7d %5d  " % (rank, channel, i) + " ".join("%7.0f" % t for t in at))
    print("%-22s %10s %10s %10s   %s" % ("", "first at", "median at", "last at", "us after the stage before: median, p90"))
    for k, stage in enumerate(STAGES):
        at = sorted(row[3][k] for row in rows)
        took = sorted(row[3][k] - row[3][k - 1] for row in rows) if k else [0]
        print("%-22s %10.0f %10.0f %10.0f   %6.0f %6.0f" % (stage, at[0], statistics.median(at), at[-1], statistics.median(took),
                                                          took[int(len(took) * 0.9)]))


main()
