#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what keeps the source readable: house.py [--check] [--all] [ROOT]

Members of structs, complexity of functions, atomics written by hand, locks that are named in comments instead of in
annotations, words for people in the pages, lines per folder against the commit that the present shape is measured by. --check fails when a bound is
broken; --all names every place, not only those that break a bound. `src` is read by a tokenizer of its own: macros are
not expanded, both branches of an #if count.

A struct's members are those at its top level: `int a, b;` are two, a named struct within it is one, and what an unnamed
struct or union holds counts as if it stood outside. Complexity is 1 + the number of if, for, while, case, &&, || and ?.
"""
import argparse
import os
import re
import subprocess
import sys

BASE = "0ef997f"
MEMBERS = 45
LINK_MEMBERS = 35
COMPLEXITY = 15
# Calls that the data network makes in its engines alone (src/net/tcp/io_*.c).
SOCKET_CALLS = set("send sendto sendmsg recv recvfrom recvmsg splice connect accept accept4 shutdown getsockopt setsockopt "
                   "getsockname getpeername ioctl socket dup2 dup3".split())
LINK = ("tcp_session", "tcp_link")  # whichever of them there is
# Words for people that pages and man pages use of threads, peers and programs. At 01d494f there were 303 of them.
PEOPLE = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|anybody|everybody|told|said|heard)\b", re.I)
PEOPLE_MAX = 1
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "man")

TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<pre>^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<op>&&|\|\||->|\.\.\.|[{}()\[\];,?:=*])|(?P<skip>\s+|.)""",
    re.S | re.M | re.X,
)
BRANCHES = {"if", "for", "while", "case", "&&", "||", "?"}
HELD = re.compile(r"(?<!no )\b(?:mu|mutex|locks?|mutexes)\b(?:[\w' ]{0,20})? held\b|\bwith \w*(?:mu|lock) held\b", re.I)
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


def body_end(code, start):
    """Index of the } that closes the { at start."""
    depth = 0
    for i in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i][1], 0)
        if depth == 0:
            return i
    return len(code) - 1


def members(code, start, end):
    """How many members stand between the braces, at top level."""
    n, i, level, seen = 0, start + 1, 0, False
    nested = None  # end of a struct's body in this declaration
    inner = 0
    declarator = False  # something was named since the nested body
    while i < end:
        s = code[i][1]
        if s == "{" and level == 0:
            nested = body_end(code, i)
            inner = 0 if is_enum(code, i) else members(code, i, nested)
            declarator = False
            i = nested + 1
            continue
        level += {"(": 1, "[": 1, ")": -1, "]": -1}.get(s, 0)
        if level == 0 and s == ",":
            n += 1
            seen = False
        elif level == 0 and s == ";":
            n += inner if nested is not None and not declarator else int(seen or declarator)
            nested, inner, seen, declarator = None, 0, False, False
        elif code[i][0] == "word":
            seen = True
            declarator = True
        i += 1
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
        level += {"(": 1, ")": -1}.get(s, 0)
    return None


class File:
    def __init__(self, root, path):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
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
            line for (_, before, _), (kind, s, line), (_, after, _) in zip(self.code, self.code[1:], self.code[2:])
            if kind == "word" and s in SOCKET_CALLS and after == "(" and before in ("(", ")", ";", "{", "}", "=", "&&", "||", "?", ":", ",", "return")
        ]
        self.held = [(line, " ".join(s.split())) for s, line in self.comments if HELD.search(" ".join(s.split()))]

    def read_structs(self):
        for i, (_, s, line) in enumerate(self.code):
            if s == "{":
                name = struct_name(self.code, i)
                if name:
                    self.structs.append((members(self.code, i, body_end(self.code, i)), name, self.path, line))

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
                    self.functions.append((1 + branches, name, self.path, self.code[i][2]))
                i = end
                start = i + 1 if name else start
            elif s in (";", "}"):
                start = i + 1
            i += 1


def source_files(root):
    for folder, dirs, names in os.walk(os.path.join(root, "src")):
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

    def line(self, what, value, bound, places):
        bad = value > bound
        self.broken += bad
        print(f"{what:<46}{value:>7}   at most {bound}{'   BROKEN' if bad else ''}")
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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="exit status 1 when a bound is broken")
    p.add_argument("--all", action="store_true", help="name places that are within the bounds too")
    p.add_argument("--no-lines", action="store_true", help="leave out the lines per folder")
    p.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    args = p.parse_args()
    files = [File(args.root, path) for path in source_files(args.root)]
    if not files:
        sys.exit(f"no sources under {args.root}/src")

    structs = sorted((s for f in files for s in f.structs), reverse=True)
    functions = sorted((fn for f in files for fn in f.functions), reverse=True)
    links = [s for s in structs if s[1].split()[1] in LINK]
    atomics = [(f.path, line) for f in files if not re.match(r"src/(base|device)/", f.path) for line in f.atomics]
    sockets = [(f.path, line) for f in files if re.match(r"src/net/tcp/(?!io_)", f.path) for line in f.sockets]
    held = [(f.path, line, text) for f in files for line, text in f.held]

    def show(items, bound):
        many = [x for x in items if x[0] > bound] or items[:1]
        return [f"{n:>4}  {name} ({path}:{line})" for n, name, path, line in (items[:20] if args.all else many)]

    v = Verdict()
    v.line("members of the largest struct", structs[0][0] if structs else 0, MEMBERS, show(structs, MEMBERS))
    if links:
        v.line(f"members of {links[0][1]}", links[0][0], LINK_MEMBERS, [])
    above = [f for f in functions if f[0] > COMPLEXITY]
    v.line(f"functions with a complexity over {COMPLEXITY}", len(above), 0, show(functions, COMPLEXITY))
    v.line("raw __atomic_ outside base and device", len(atomics), 0,
           [f"{p}:{n}" for p, n in atomics] if args.all else sorted({p for p, _ in atomics}))
    v.line("socket calls in net/tcp outside its engines", len(sockets), 0, [f"{p}:{n}" for p, n in sockets])
    v.line('comments "mu held" and the like', len(held), 0,
           [f"{p}:{n}: {t[:100]}" for p, n, t in held] if args.all else sorted({p for p, _, _ in held}))
    words = people(args.root)
    v.line("words for people in pages and man pages", len(words), PEOPLE_MAX,
           [f"{p}:{n}: {t[:100]}" for p, n, t in words] if args.all or len(words) > PEOPLE_MAX else sorted({p for p, _, _ in words}))
    print(f"\n{len(functions)} functions, {len(structs)} structs and unions, {len(files)} files")
    if not args.no_lines:
        print_lines(args.root)
    if v.broken:
        print(f"\n{v.broken} bound{'s' if v.broken > 1 else ''} broken")
    return 1 if args.check and v.broken else 0


if __name__ == "__main__":
    sys.exit(main())
