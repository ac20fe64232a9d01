#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what keeps the source readable: house.py [--check] [--all] [ROOT]

Members of structs, complexity, length and names of functions, assertions, atomics written by hand, locks that are named in
comments instead of in annotations, files that call connect(2), words for people, lines per folder against the commit
that the present shape is measured by. --check fails when a bound is broken; where the goal is not reached yet, the bound
is the present value and the goal is printed beside it: lower the bound with the value. --all names every place, not only
those that break a bound. C is read by a tokenizer of its own: macros are not expanded, both branches of an #if count.

A struct's members are those at its top level: `int a, b;` are two, a named struct within it is one, and what an unnamed
struct or union holds counts as if it stood outside. Its fields, flattened, are its members with every struct that is held
by value replaced by its own fields; an array counts once. Complexity is 1 + the number of if, for, while, case, &&, ||
and ?. A function's length is that of its body, with both braces.
"""
import argparse
import collections
import os
import re
import subprocess
import sys

BASE = "0ef997f"
MEMBERS = 45
LINK_MEMBERS = 35
FIELDS = 120
COMPLEXITY = 15
LENGTH = 60
LENGTH_P99 = 40
ONE_WORD = 100
# (bound, goal): the bound is the present value where that is not the goal yet.
CONNECT_FILES = (5, 1)
PEOPLE_STRINGS = 0
PEOPLE_COMMENTS = (15, 0)
# Assertions per 1,000 lines, at least, in the layers with the most states.
ASSERTIONS = 6
ASSERTED = ("src/net/tcp", "src/ctl", "src/comm", "src/transport", "src/rx")
# Calls that the data network makes in its engines alone (src/net/tcp/io_*.c).
SOCKET_CALLS = set("send sendto sendmsg recv recvfrom recvmsg splice connect accept accept4 shutdown getsockopt setsockopt "
                   "getsockname getpeername ioctl socket dup2 dup3".split())
LINK = ("tcp_session", "tcp_link")  # whichever of them there is
# Words for people that pages and man pages use of threads, peers and programs. At 01d494f there were 303 of them.
PEOPLE = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|anybody|everybody|told|said|heard)\b", re.I)
PEOPLE_MAX = 0
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "man")

COMMENT = r"(?P<comment>/\*.*?\*/|//[^\n]*)"
TEXT = r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
COMMENT_OR_TEXT = re.compile(f"{COMMENT}|{TEXT}", re.S)
TOKEN = re.compile(
    COMMENT + r"|(?P<pre>^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*)|" + TEXT
    + r"""|(?P<word>[A-Za-z_]\w*)|(?P<op>&&|\|\||->|\.\.\.|[{}()\[\];,?:=*])|(?P<skip>\s+|.)""",
    re.S | re.M | re.X,
)
BRANCHES = {"if", "for", "while", "case", "&&", "||", "?"}
HELD = re.compile(r"(?<!no )\b(?:mu|mutex|locks?|mutexes)\b(?:[\w' ]{0,20})? held\b|\bwith \w*(?:mu|lock) held\b", re.I)
ASSERT = {"ASSERT", "ASSERT_HELD"}
# Words before a ( that do not name a function.
NOT_NAMES = {"__attribute__", "_Alignas", "_Static_assert", "aligned", "if", "for", "while", "switch", "return", "sizeof"}


def tokens(text):
    """(kind, text, line) of what the compiler sees, and the comments."""
    code, comments, line = [], [], 1
    for m in TOKEN.finditer(text):
        kind, s = m.lastgroup, m.group()
        if kind == "comment":
            comments.append((s, line))
        elif kind in ("word", "op", "text"):
            code.append((kind, s, line))
        line += s.count("\n")
    return code, comments


def literals(text):
    """(comments, strings), those of #define lines too: (text, line) each."""
    found = {"comment": [], "text": []}
    for m in COMMENT_OR_TEXT.finditer(text):
        found[m.lastgroup].append((m.group(), text.count("\n", 0, m.start()) + 1))
    return found["comment"], found["text"]


def body_end(code, start):
    """Index of the } that closes the { at start."""
    depth = 0
    for i in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i][1], 0)
        if depth == 0:
            return i
    return len(code) - 1


def members(code, start, end):
    """What stands between the braces, at top level: per member the struct that it is by value, else None.

    That struct is its name, or a list like this one if its body stands here. An unnamed one's members stand for it.
    """
    found, head, body, level = [], [], None, 0
    i = start + 1
    while i < end:
        kind, s, _ = code[i]
        if s == "{" and level == 0:
            stop = body_end(code, i)
            body, head = [] if is_enum(code, i) else members(code, i, stop), []
            i = stop
        elif s in (",", ";") and level == 0:
            if body is not None and not head:
                found += body  # unnamed
            else:
                found.append(by_value(head, body))
            head = type_of(head) if s == "," else []
            body = body if s == "," else None
        else:
            level += {"(": 1, "[": 1, ")": -1, "]": -1}.get(s, 0)
            if level == 0 and kind == "word" or s == "*":
                head.append(s)
        i += 1
    return found


def type_of(head):
    """Of a declaration's words those that the next declarator after a comma shares."""
    at = [i for i, w in enumerate(head) if w in ("struct", "union")]
    return head[at[0]:at[0] + 2] if at else ["type"]


def by_value(head, body):
    """The struct that a declaration of these words gives its member, as in members()."""
    if "*" in head:
        return None
    if body is not None:
        return body
    named = type_of(head)
    return named[1] if len(named) == 2 else None


def flattened(held, mine, everywhere):
    """How many fields these members are. mine: structs of the same file, by name; everywhere: of all files."""
    n = 0
    for m in held:
        inner = m if isinstance(m, list) else mine.get(m, everywhere.get(m)) if m else None
        n += flattened(inner, mine, everywhere) if inner else 1
    return n


def is_enum(code, brace):
    j = brace - 1
    while j >= 0 and code[j][1] not in (";", "{", "}"):
        if code[j][1] == "enum":
            return True
        if code[j][1] in ("struct", "union"):
            return False
        j -= 1
    return False


def struct_name(code, brace):
    """'struct x' if this { opens the body of a struct or union, else None."""
    j, level, name = brace - 1, 0, ""
    while j >= 0:
        kind, s, _ = code[j]
        if s == ")":
            level += 1
        elif s == "(":
            level -= 1
        elif level == 0 and s in ("struct", "union"):
            return s + " " + (name or "(unnamed)")
        elif level == 0 and kind == "word":
            name = name or s
        elif level == 0:
            return None
        j -= 1
    return None


def function_name(head):
    """The name if these tokens, which stand before a { at top level, declare a function."""
    level = 0
    for i, (kind, s, _) in enumerate(head):
        if level == 0 and s == "=":
            return None
        if level == 0 and kind == "word" and s not in NOT_NAMES and i + 1 < len(head) and head[i + 1][1] == "(":
            return s
        level += {"(": 1, ")": -1, "{": 1, "}": -1}.get(s, 0)
    return None


Function = collections.namedtuple("Function", "complexity length name static path line")


class File:
    def __init__(self, root, path):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        self.lines = text.count("\n")
        self.code, self.comments = tokens(text)
        self.structs, self.functions = [], []
        self.read_structs()
        self.read_functions()
        self.atomics = [line for kind, s, line in self.code if kind == "word" and s.startswith("__atomic_")]
        self.atomics += [
            text.count("\n", 0, m.start()) + 1
            for m in re.finditer(r"^[ \t]*#[ \t]*define(?:\\\n|[^\n])*?__atomic_", text, re.M)
        ]
        self.sockets = [
            (s, line) for (_, before, _), (kind, s, line), (_, after, _) in zip(self.code, self.code[1:], self.code[2:])
            if kind == "word" and s in SOCKET_CALLS and after == "(" and before in ("(", ")", ";", "{", "}", "=", "&&", "||", "?", ":", ",", "return")
        ]
        self.assertions = sum(s in ASSERT for _, s, _ in self.code)
        comments, strings = literals(text)
        self.people_comments = [(path, line, s) for s, line in comments for _ in PEOPLE.findall(s)]
        self.people_strings = [(path, line, s) for s, line in strings for _ in PEOPLE.findall(s)]
        self.held = [(line, " ".join(s.split())) for s, line in self.comments if HELD.search(" ".join(s.split()))]

    def read_structs(self):
        for i, (_, s, line) in enumerate(self.code):
            if s == "{":
                name = struct_name(self.code, i)
                if name:
                    self.structs.append((name, line, members(self.code, i, body_end(self.code, i))))

    def read_functions(self):
        i, start = 0, 0
        while i < len(self.code):
            s = self.code[i][1]
            if s == "{":
                head = self.code[start:i]
                if len(head) == 2 and head[0][1] == "extern":  # extern "C" {
                    i += 1
                    start = i
                    continue
                end = body_end(self.code, i)
                name = None if struct_name(self.code, i) else function_name(head)
                if name:
                    branches = sum(1 for _, t, _ in self.code[i:end] if t in BRANCHES)
                    length = self.code[end][2] - self.code[i][2] + 1
                    static = any(t == "static" for _, t, _ in head)
                    self.functions.append(Function(1 + branches, length, name, static, self.path, self.code[i][2]))
                i = end
                start = i + 1 if name else start
            elif s in (";", "}"):
                start = i + 1
            i += 1


def source_files(root, top):
    for folder, dirs, names in os.walk(os.path.join(root, top)):
        dirs.sort()
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cu", ".def")):
                yield os.path.relpath(os.path.join(folder, name), root)


def page_files(root):
    for top in PAGES:
        if os.path.isfile(os.path.join(root, top)):
            yield top
        for folder, dirs, names in os.walk(os.path.join(root, top)):
            dirs.sort()
            for name in sorted(names):
                if name.endswith(".md") or top == "man":
                    yield os.path.relpath(os.path.join(folder, name), root)


def people(root):
    """(page, line, text) for each such word. What stands between ``` is code, or what a program prints."""
    found = []
    for path in page_files(root):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = re.sub(r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), f.read(), flags=re.S | re.M)
        for m in PEOPLE.finditer(text):
            line = text[text.rfind("\n", 0, m.start()) + 1:]
            found.append((path, text.count("\n", 0, m.start()) + 1, line.split("\n", 1)[0]))
    return found


def room(path):
    """The folder that a file is counted under; None: it is not counted. Recorded data is no code."""
    parts = path.split("/")
    if parts[0] not in ("src", "tools", "tests", "include") or not re.search(r"\.(c|h|cu|cc|def|sh|py|html|js)$", path):
        return None
    if path.startswith("tests/api/"):
        return None
    if parts[0] != "src":
        return parts[0]
    return "/".join(parts[: 3 if parts[1] == "net" and len(parts) > 3 else 2]) if len(parts) > 2 else "src"


def lines_now(root):
    count = {}
    for top in ("src", "tools", "tests", "include"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), root)
                if room(path):
                    with open(os.path.join(root, path), "rb") as f:
                        count[room(path)] = count.get(room(path), 0) + f.read().count(b"\n")
    return count


def lines_then(root):
    """The same of BASE; None where there is no such history (a tarball, a shallow clone)."""
    args = ["git", "-C", root, "grep", "-c", "", BASE, "--", "src", "tools", "tests", "include"]
    try:
        out = subprocess.run(args, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    count = {}
    for line in out.splitlines():
        path, n = line.split(":", 1)[1].rsplit(":", 1)
        if room(path):
            count[room(path)] = count.get(room(path), 0) + int(n)
    return count


class Verdict:
    def __init__(self):
        self.broken = 0

    def line(self, what, value, bound, places, least=False):
        """bound: a number, or (bound, goal). least: the value must be at least that, not at most."""
        bound, goal = bound if isinstance(bound, tuple) else (bound, bound)
        bad = value < bound if least else value > bound
        self.broken += bad
        print(f"{what:<46}{value:>7}   at {'least' if least else 'most'} {bound}{f' (goal {goal})' if goal != bound else ''}"
              f"{'   BROKEN' if bad else ''}")
        for place in places:
            print("    " + place)


def sum_of(count, *tops):
    return sum(n for r, n in count.items() if r.split("/")[0] in tops)


def print_lines(root):
    """For the reader: features come and go, so there is no bound."""
    now, then = lines_now(root), lines_then(root)
    print(f"\n{'lines':<20}{'now':>8}" + (f"{BASE:>10}{'change':>9}" if then else f"   (no {BASE} here to compare with)"))
    for name, a, b in [(n, now.get(n, 0), (then or {}).get(n, 0)) for n in sorted(set(now) | set(then or {}))] + [
        ("src, all", sum_of(now, "src"), sum_of(then or {}, "src")),
        ("tools and tests", sum_of(now, "tools", "tests"), sum_of(then or {}, "tools", "tests")),
    ]:
        print(f"{name:<20}{a:>8}" + (f"{b:>10}{a - b:>+9}" if then else ""))


def show(items, bound, everything):
    """Places of (number, name, path, line): those above the bound, or the first of all."""
    many = [x for x in items if x[0] > bound] or items[:1]
    return [f"{n:>4}  {name} ({path}:{line})" for n, name, path, line in (items[:20] if everything else many)]


def check_structs(v, files, everything):
    count, fields = [], []
    everywhere = {name.split()[1]: held for f in files for name, _, held in f.structs}
    for f in files:
        mine = {name.split()[1]: held for name, _, held in f.structs}
        for name, line, held in f.structs:
            count.append((len(held), name, f.path, line))
            fields.append((flattened(held, mine, everywhere), name, f.path, line))
    count.sort(reverse=True)
    fields.sort(reverse=True)
    links = [s for s in count if s[1].split()[1] in LINK]
    v.line("members of the largest struct", count[0][0] if count else 0, MEMBERS, show(count, MEMBERS, everything))
    if links:
        v.line(f"members of {links[0][1]}", links[0][0], LINK_MEMBERS, [])
    v.line("fields of the largest struct, flattened", fields[0][0] if fields else 0, FIELDS, show(fields, FIELDS, everything))
    return count


def check_functions(v, files, everything):
    functions = [fn for f in files for fn in f.functions]
    complexity = sorted(((fn.complexity, fn.name, fn.path, fn.line) for fn in functions), reverse=True)
    lengths = sorted(((fn.length, fn.name, fn.path, fn.line) for fn in functions), reverse=True)
    one_word = [fn for fn in functions if fn.static and "_" not in fn.name and not fn.name.isupper()]
    v.line(f"functions with a complexity over {COMPLEXITY}", sum(c[0] > COMPLEXITY for c in complexity), 0,
           show(complexity, COMPLEXITY, everything))
    v.line(f"functions over {LENGTH} lines", sum(n[0] > LENGTH for n in lengths), 0, show(lengths, LENGTH, everything))
    v.line("99th percentile of functions' lines", lengths[len(lengths) // 100][0] if lengths else 0, LENGTH_P99, [])
    v.line("static functions with a name of one word", len(one_word), ONE_WORD,
           [f"{fn.path}:{fn.line}: {fn.name}" for fn in one_word] if everything else [])
    return functions


def check_assertions(v, files):
    for folder in ASSERTED:
        of = [f for f in files if os.path.dirname(f.path) == folder]
        if of:
            rate = 1000 * sum(f.assertions for f in of) / sum(f.lines for f in of)
            v.line(f"assertions per 1,000 lines in {folder}", round(rate, 1), ASSERTIONS, [], least=True)


def check_calls(v, files, others, everything):
    paths = collections.defaultdict(list)
    for f in files:
        paths[os.path.basename(f.path)].append(f.path)
    doubled = [" ".join(p) for p in paths.values() if len(p) > 1]
    atomics = [(f.path, line) for f in files if not re.match(r"src/(base|device)/", f.path) for line in f.atomics]
    sockets = [(f.path, line) for f in files if re.match(r"src/net/tcp/(?!io_)", f.path) for _, line in f.sockets]
    connect = sorted({f.path for f in files + others for call, _ in f.sockets if call == "connect"})
    held = [(f.path, line, text) for f in files for line, text in f.held]
    v.line("file names that src has twice", len(doubled), 0, doubled)
    v.line("raw __atomic_ outside base and device", len(atomics), 0,
           [f"{p}:{n}" for p, n in atomics] if everything else sorted({p for p, _ in atomics}))
    v.line("socket calls in net/tcp outside its engines", len(sockets), 0, [f"{p}:{n}" for p, n in sockets])
    v.line("files of src and tools that call connect(2)", len(connect), CONNECT_FILES, connect)
    v.line('comments "mu held" and the like', len(held), 0,
           [f"{p}:{n}: {t[:100]}" for p, n, t in held] if everything else sorted({p for p, _, _ in held}))


def check_words(v, root, files, everything):
    pages = people(root)
    strings = [w for f in files for w in f.people_strings]
    comments = [w for f in files for w in f.people_comments]
    for where, words, bound, name_files in (("pages and man pages", pages, PEOPLE_MAX, True),
                                            ("string literals", strings, PEOPLE_STRINGS, False),
                                            ("comments", comments, PEOPLE_COMMENTS, False)):
        places = sorted({p for p, _, _ in words}) if name_files else []
        v.line(f"words for people in {where}", len(words), bound,
               [f"{p}:{n}: {' '.join(t.split())[:100]}" for p, n, t in words] if everything else places)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="exit status 1 when a bound is broken")
    p.add_argument("--all", action="store_true", help="name places that are within the bounds too")
    p.add_argument("--no-lines", action="store_true", help="leave out the lines per folder")
    p.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    args = p.parse_args()
    files = [File(args.root, path) for path in source_files(args.root, "src")]
    if not files:
        sys.exit(f"no sources under {args.root}/src")
    others = [File(args.root, path) for top in ("include", "tools") for path in source_files(args.root, top)]
    v = Verdict()
    structs = check_structs(v, files, args.all)
    functions = check_functions(v, files, args.all)
    check_assertions(v, files)
    check_calls(v, files, others, args.all)
    check_words(v, args.root, files + others, args.all)
    print(f"\n{len(functions)} functions, {len(structs)} structs and unions, {len(files)} files")
    if not args.no_lines:
        print_lines(args.root)
    if v.broken:
        print(f"\n{v.broken} bound{'s' if v.broken > 1 else ''} broken")
    return 1 if args.check and v.broken else 0


if __name__ == "__main__":
    sys.exit(main())
