#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks a trace in Chrome's JSON format against what Perfetto's importer does with it.

usage: chrome_trace.py FILE

Perfetto reads such a file without a word and leaves out what it cannot place; only its table of statistics tells. Each
rule here is one of those losses. Times are turned into nanoseconds in both ways that versions of Perfetto do it, by
cutting off and by rounding, and the bars of each track are stacked as it stacks them.

Prints what it has seen, one line per process and kind of bar, and exits with 0; or names what is wrong, and 1.
"""
import collections
import json
import sys

DEPTH_MAX = 512  # slices on top of each other on one track
UINT32_MAX = (1 << 32) - 1
wrong = []


def complain(event, text):
    wrong.append("%s: %s" % (text, json.dumps(event)[:200]))


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def cut_off(us):
    return int(us * 1000.0)


def rounded(us):
    return us * 1000 if isinstance(us, int) or us == int(us) else int(us * 1000.0 + 0.5)


def check_fields(e):
    """Whether it may be looked at further."""
    if not isinstance(e, dict) or e.get("ph") not in ("M", "X", "i", "s", "t", "f"):
        complain(e, "an event of a kind that gantry trace does not write")
        return False
    for key in ("pid", "tid"):
        if not isinstance(e.get(key), int) or isinstance(e[key], bool) or not 0 < e[key] <= UINT32_MAX:
            complain(e, "%s is not a number from 1 to 2^32 - 1; 0 is the idle process" % key)
            return False
    if not isinstance(e.get("name"), str) or not e["name"]:
        complain(e, "an event without a name")
        return False
    if e["ph"] == "M":
        if e["name"] not in ("process_name", "thread_name") or not e.get("args", {}).get("name"):
            complain(e, "metadata that names nothing")
        return True
    if not number(e.get("ts")) or e["ts"] < 0:
        complain(e, "no time, or one before the trace")
        return False
    if e["ph"] == "X" and (not number(e.get("dur")) or e["dur"] < 0):
        complain(e, "a bar without a duration, or a negative one")
        return False
    if e["ph"] == "i" and e.get("s") not in ("t", "p", "g"):
        complain(e, "an instant of no scope")
    for key in ("ts", "dur"):
        if key in e and cut_off(e[key]) != rounded(e[key]):
            complain(e, "%s is another nanosecond if it is cut off than if it is rounded" % key)
    return True


def check_names(events):
    processes, threads, owner = collections.Counter(), collections.Counter(), {}
    for e in events:
        if e["ph"] == "M":
            names = processes if e["name"] == "process_name" else threads
            names[e["pid"] if e["name"] == "process_name" else (e["pid"], e["tid"])] += 1
    for names in (processes, threads):
        for which, n in names.items():
            if n != 1:
                wrong.append("%s is named %d times" % (which, n))
    for e in events:
        pid, tid = e["pid"], e["tid"]
        if pid not in processes:
            complain(e, "its process has no name")
        if e["ph"] != "M" and (pid, tid) not in threads:
            complain(e, "its track has no name")
        if owner.setdefault(tid, pid) != pid:
            complain(e, "its track has the number of one of process %d" % owner[tid])
        if tid != pid and tid in processes:
            complain(e, "its track has the number of another process")


def check_stacks(events, to_ns, how):
    """As the importer does: in the order of time, and of the file where that is the same."""
    stacks, flows = collections.defaultdict(list), collections.defaultdict(list)
    in_order = sorted((e for e in events if e["ph"] != "M"), key=lambda e: to_ns(e["ts"]))
    for e in in_order:
        stack, ts = stacks[e["tid"]], to_ns(e["ts"])
        if e["ph"] in ("s", "t", "f"):
            while stack and stack[-1][1] < ts:
                stack.pop()
            if "id" not in e or not stack:
                complain(e, "%s: a flow without a number, or with no bar around it" % how)
            else:
                flows[(e.get("cat"), e["name"], str(e["id"]))].append(e["ph"])
            continue
        end = ts + (to_ns(e["dur"]) if e["ph"] == "X" else 0)
        while stack and (stack[-1][1] < ts or (stack[-1][1] == ts and not stack[-1][0] == stack[-1][1] == end)):
            stack.pop()
        if stack and ts < stack[-1][1] < end:
            complain(e, "%s: overlaps the bar before it on its track by %d ns" % (how, stack[-1][1] - ts))
            continue
        if len(stack) >= DEPTH_MAX:
            complain(e, "%s: more than %d on top of each other" % (how, DEPTH_MAX))
            continue
        stack.append((ts, end))
    for which, phases in flows.items():
        if phases.count("s") != 1 or not phases.count("f"):
            wrong.append("%s: flow %s has %s, not one beginning and an end" % (how, which, phases))


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        picture = json.load(f)
    if not isinstance(picture, dict) or not isinstance(picture.get("traceEvents"), list):
        sys.exit("%s: no list of traceEvents" % sys.argv[1])
    if "displayTimeUnit" in picture:
        wrong.append("displayTimeUnit: some versions take all times for another unit then")
    events = [e for e in picture["traceEvents"] if check_fields(e)]
    check_names(events)
    check_stacks(events, cut_off, "cut off")
    check_stacks(events, rounded, "rounded")
    for text in wrong[:20]:
        print("%s: %s" % (sys.argv[1], text), file=sys.stderr)
    if wrong:
        sys.exit("%s: %d things wrong" % (sys.argv[1], len(wrong)))
    bars = collections.Counter()
    for e in events:
        if e["ph"] == "X":
            args = e.get("args", {})
            bars[(e["pid"], e["name"], args.get("peer", "-"), args.get("transport", "-"))] += 1
    for (pid, name, peer, transport), n in sorted(bars.items(), key=str):
        print("process %d: %d x %s, peer %s, transport %s" % (pid, n, name, peer, transport))
    print("%d events, %d bars, nothing wrong" % (len(events), sum(bars.values())))


if __name__ == "__main__":
    main()
