#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks texts in Prometheus' exposition format (version 0.0.4) by its rules.

usage: prometheus.py [--self-test] FILE...

Several files are looks at one process, the oldest first: counters may only grow from one to the next.

Prints how many metrics and samples the last one has, and exits with 0; or names what is wrong, with its line, and 1.
"""
import re
import sys

METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
VALUE = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|Inf|NaN)\Z")
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")


class Wrong(Exception):
    pass


def need(condition, text):
    if not condition:
        raise Wrong(text)


def read_labels(text, at):
    """Behind the brace; returns the labels and where the text goes on."""
    labels = {}
    while text[at : at + 1] != "}":
        name = LABEL.match(text, at)
        need(name, "no name of a label at column %d" % at)
        need(text[name.end() : name.end() + 2] == '="', "no =\" behind label %s" % name.group())
        need(not name.group().startswith("__"), "label %s is reserved" % name.group())
        need(name.group() not in labels, "label %s stands twice" % name.group())
        at, value = name.end() + 2, ""
        while True:
            need(at < len(text), "the value of %s does not end" % name.group())
            if text[at] == '"':
                break
            if text[at] == "\\":
                need(text[at + 1 : at + 2] in ("\\", '"', "n"), "\\%s is no escape" % text[at + 1 : at + 2])
                value += text[at : at + 2]
                at += 2
            else:
                value += text[at]
                at += 1
        labels[name.group()] = value
        at += 1
        need(text[at : at + 1] in (",", "}"), "neither comma nor brace behind label %s" % name.group())
        at += text[at] == ","
    return labels, at + 1


class Text:
    def __init__(self):
        self.kind, self.help, self.samples, self.over, self.now = {}, set(), {}, set(), None

    def enter(self, metric):
        """All lines of a metric stand together."""
        if metric != self.now:
            need(metric not in self.over, "%s stands in two places" % metric)
            self.over.add(self.now)
            self.now = metric

    def comment(self, line):
        word = line.split(" ", 3)
        if len(word) < 3 or word[1] not in ("HELP", "TYPE"):
            return
        need(METRIC.fullmatch(word[2]), "'%s' is no name of a metric" % word[2])
        self.enter(word[2])
        if word[1] == "HELP":
            need(word[2] not in self.help, "a second HELP")
            need(not re.search(r"\\(?![\\n])", word[3] if len(word) > 3 else ""), "a backslash in HELP")
            self.help.add(word[2])
            return
        need(word[2] not in self.kind, "a second TYPE")
        need(len(word) == 4 and word[3] in TYPES, "no known type")
        self.kind[word[2]] = word[3]
        need(word[3] != "counter" or word[2].endswith("_total"), "a counter whose name does not end in _total")

    def sample(self, line):
        name, labels = METRIC.match(line), {}
        need(name, "no name of a metric")
        at = name.end()
        if line[at : at + 1] == "{":
            labels, at = read_labels(line, at + 1)
        need(line[at : at + 1] == " " and VALUE.match(line[at + 1 :]), "no value")
        self.enter(name.group())
        need(name.group() in self.kind and name.group() in self.help, "a sample without HELP and TYPE before it")
        key = (name.group(), tuple(sorted(labels.items())))
        need(key not in self.samples, "the same sample twice")
        self.samples[key] = float(line[at + 1 :])
        need(self.kind[name.group()] != "counter" or self.samples[key] >= 0, "a counter below 0")


def read(data, where):
    text = Text()
    need(data.endswith("\n"), "%s: the last line does not end" % where)
    for number, line in enumerate(data[:-1].split("\n"), 1):
        try:
            if line.startswith("#"):
                text.comment(line)
            elif line:
                text.sample(line)
        except Wrong as e:
            raise Wrong("%s:%d: %s: %s" % (where, number, e, line[:120])) from None
    need(text.samples, "%s: no sample" % where)
    return text


def compare(old, new, where):
    for key, value in new.samples.items():
        if new.kind[key[0]] == "counter" and key in old.samples:
            need(value >= old.samples[key], "%s: %s went from %s to %s" % (where, key, old.samples[key], value))


HEAD = "# HELP a_total x\n# TYPE a_total counter\n"
BAD = [
    "a_total 1\n",  # neither HELP nor TYPE
    HEAD + "a_total 1",  # does not end
    HEAD + "a_total\n",
    HEAD + "a_total one\n",
    HEAD + "a_total -1\n",
    HEAD + 'a_total{b="1",b="2"} 1\n',
    HEAD + 'a_total{b="1} 1\n',
    HEAD + 'a_total{b="\\q"} 1\n',
    HEAD + 'a_total{0b="1"} 1\n',
    HEAD + 'a_total{b="1"c="2"} 1\n',
    HEAD + 'a_total{b="1"} 1\na_total{b="1"} 2\n',
    HEAD + HEAD + "a_total 1\n",
    "# HELP a x\n# TYPE a counter\na 1\n",
    HEAD + "a_total 1\n# HELP b x\n# TYPE b gauge\nb 1\na_total{c=\"1\"} 1\n",
    HEAD + "0a 1\n",
]


def self_test():
    read(HEAD + 'a_total{b="\\\\\\"\\n",c="{}"} 1.5e3\n\n# a comment\n', "good")
    for i, bad in enumerate(BAD):
        try:
            read(bad, "bad %d" % i)
        except Wrong:
            continue
        raise Wrong("the checker takes %r" % bad)
    one, two = (read(HEAD + "a_total %d\n" % n, "two looks") for n in (2, 1))
    try:
        compare(one, two, "two looks")
    except Wrong:
        return
    raise Wrong("the checker takes a counter that shrinks")


def main(args):
    old = None
    try:
        if args and args[0] == "--self-test":
            self_test()
            args = args[1:]
        for path in args:
            with open(path, encoding="utf-8", newline="") as f:
                new = read(f.read(), path)
            if old:
                compare(old, new, path)
            old = new
    except Wrong as e:
        print(e, file=sys.stderr)
        return 1
    if old:
        print("%d metrics, %d samples" % (len(old.kind), len(old.samples)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
