#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the tree of layers from the table in tests/system/layers.sh: layers.py [--write | --check] [ROOT]

A layer stands on the first one of its list, and includes that one and what it includes; `also` and `not` name what differs.
Without an option the tree is printed. --write puts it into the pages that show it, between the two lines that mark its
place; --check fails if a page shows another one.
"""
import os
import re
import sys

import made

PAGES = ("README.md", "docs/architecture.md")
BEGIN, END = "<!-- layers: scripts/layers.py --write -->\n```\n", "```\n<!-- end of layers -->\n"
WHERE = {"include": "include/gantry", "face": "src/*.c", "tools": "tools"}


def read_table(root):
    with open(os.path.join(root, "tests/system/layers.sh"), encoding="utf-8") as f:
        rows = re.findall(r'^\t\[([\w/]+)\]="([^"]*)" +# (.*)$', f.read(), re.M)
    if len(rows) < 10:
        sys.exit("no table of layers found in tests/system/layers.sh")
    return {name: below.split() for name, below, _ in rows}, {name: text for name, _, text in rows}


def draw(below, texts):
    lines = []

    def branch(name, indent, tail, inherited):
        also = sorted(set(below[name]) - inherited)
        but = sorted(inherited - set(below[name]))
        notes = [f"also {', '.join(also)}"] * bool(also) + [f"not {', '.join(but)}"] * bool(but)
        path = WHERE.get(name, "src/" + name)
        lines.append(f"{indent + path:<30}{texts[name]}" + (f" ({'; '.join(notes)})" if notes else ""))
        children = [c for c in below if below[c] and below[c][0] == name]
        for i, child in enumerate(children):
            last = i == len(children) - 1
            branch(child, tail + ("└─ " if last else "├─ "), tail + ("   " if last else "│  "), {name, *below[name]})

    for name in (n for n in below if not below[n]):
        branch(name, "", "", set())
    return "\n".join(lines) + "\n"


def parts(root):
    tree = draw(*read_table(root))
    return [("the tree of layers", page, BEGIN, END, tree) for page in PAGES]


if __name__ == "__main__":
    sys.exit(made.run(__doc__, parts, "shows another tree than the table in tests/system/layers.sh"))
