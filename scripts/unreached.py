#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists what no product reaches: unreached.py [--why NAME] [ROOT]

The products are the libraries and the plugin. Reached is what their exported names (src/**/*.map) and constructors lead to,
by name: functions, macros and tables of src, operations of devices (device/ops.def) that some code calls, kernels
(kernels.def) that some code launches, parameters (base/params.def) that some code reads. What of src only the tool
reaches (its main, and the functions that it puts before libc's) is in scripts/tool_only.txt, with the reason for which it
is in src. Whatever else is left is printed, and entries of that list that are none, and the exit status is 1.

The sources are read as text (the tokenizer of house.py): every branch of an #if counts, for both devices. A name counts
for the file's own static function of that name, else for all that have external linkage. Members (`x->name`, `.name =`)
are no references. Where the preprocessor pastes names together, all that fit the pattern are reached. So a name that
is used for something else may hide a function here; what is printed is never reached. Headers in include/ are for
programs: what they define counts as reached; so are those in src/abi/, which are as NCCL has them.
"""
import argparse
import bisect
import os
import re
import sys

from house import NOT_NAMES, function_name

ROOM = ("src", "tools")
ALLOWED = "scripts/tool_only.txt"
BEFORE_LIBC = "tools/common/count_calls.c"  # functions with libc's names, for the libraries that the tool loads
# Macros that others look at: of the C library, of compilers, of our own headers under several names.
LOOKED_AT = re.compile(r"^_(GNU_SOURCE|FORTIFY_SOURCE)$")
TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<pre>^[ \t]*\#(?:\\\n|/\*.*?\*/|[^\n])*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>(?<!\w)[A-Za-z_]\w*)|(?P<op>->|[{}()\[\];,=.])""",
    re.S | re.M,
)
CALLED = re.compile(r"\b[A-Z][A-Z0-9_]+\(([^()]*)")  # a macro, by its looks, and what it is given
PASTED = re.compile(r"(\w+(?:\s*##\s*\w+)+)")
DEFINE = re.compile(r"\s*#\s*define\s+(\w+)(\(([^)]*)\))?(.*)", re.S)
WORD = re.compile(r"(?:(->|\.)\s*)?\b([A-Za-z_]\w*)")
STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)


# What only the tests' build has.
FOR_TESTS = re.compile(r"^#ifdef EMU_FOR_TESTS\n(?:(?!#endif|#else|#if).*\n)*", re.M)


class Thing:
    """Something that can be reached: kind, name, where it is, and the names that it leads to."""

    def __init__(self, kind, name, path, line, static=False):
        self.kind, self.name, self.path, self.line, self.static = kind, name, path, line, static
        self.names, self.patterns = set(), []
        self.reached = None  # by which other one


def names_in(code):
    """Names in a list of (kind, text, line) that are no members."""
    found = set()
    for i, (kind, s, _) in enumerate(code):
        if kind == "word" and (i == 0 or code[i - 1][1] not in ("->", ".")):
            found.add(s)
    return found


def words_in(text):
    return {m.group(2) for m in WORD.finditer(STRINGS.sub(" ", text)) if not m.group(1)}


def read_tokens(text):
    """Code and preprocessor lines of a file as (kind, text, line), and for each { the index of its }."""
    code, pre, ends, opened = [], [], {}, []
    lines = [m.start() for m in re.finditer("\n", text)]
    for m in TOKEN.finditer(text):
        kind, s = m.lastgroup, m.group()
        if kind == "comment":
            continue
        line = bisect.bisect_left(lines, m.start()) + 1
        if kind == "pre":
            pre.append((kind, s, line))
            continue
        if s == "{":
            opened.append(len(code))
        elif s == "}" and opened:
            ends[opened.pop()] = len(code)
        code.append((kind, s, line))
    return code, pre, ends


def is_function(head):
    """Whether these tokens, which stand before a {, are a function's. Behind its parameters come at most annotations."""
    return bool(head) and (head[-1][1] == ")" or is_macro(head[-1][1])) and function_name(head)


def is_macro(name):
    return name.upper() == name


def of_tool(path):
    return path.startswith("tools" + os.sep)


class Tree:
    def __init__(self, root):
        self.root, self.things, self.roots, self.macros_only = root, [], [], []
        # By whether tools/ has them: a product's code, or the tool's.
        self.members, self.params_read = ({False: set(), True: set()} for _ in range(2))
        self.arguments = set()  # words that macros are given: what names are pasted of
        self.includes, self.parts = {}, {}  # by file: the headers that it names itself, and all of them
        for path in sorted(self.files()):
            with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
                text = f.read()
            if path.endswith(".map"):
                self.read_map(path, text)
            elif path.endswith(".def"):
                self.read_def(path, text)
            else:
                self.read_source(path, text)
        self.by_name = {}
        for t in self.things:
            self.by_name.setdefault(t.name, []).append(t)

    def files(self):
        for top in ROOM:
            for folder, _, names in os.walk(os.path.join(self.root, top)):
                for name in names:
                    if name.endswith((".c", ".h", ".cu", ".def", ".map")):
                        yield os.path.relpath(os.path.join(folder, name), self.root)

    def find(self, path, name):
        """The file that an include reaches."""
        for folder in (os.path.dirname(path), *ROOM):
            if os.path.exists(os.path.join(self.root, folder, name)):
                return os.path.join(folder, name)
        return name

    def reads(self, path):
        """All files that are part of this one."""
        if path not in self.parts:
            todo, seen = [path], {path}
            while todo:
                for f in self.includes.get(todo.pop(), ()):
                    if f not in seen:
                        seen.add(f)
                        todo.append(f)
            self.parts[path] = seen
        return self.parts[path]

    def root_of(self, why, path, names):
        t = Thing("root", why, path, 0)
        t.names = names
        self.roots.append(t)
        return t

    def read_map(self, path, text):
        names = re.findall(r"[\w\[\]*-]+(?=;)", STRINGS.sub(" ", text).split("local:")[0])
        t = self.root_of("exported", path, {n for n in names if re.fullmatch(r"\w+", n)})
        for n in names:
            if not re.fullmatch(r"\w+", n):
                t.patterns.append(re.compile(n.replace("*", r"\w*") + "$"))

    def read_def(self, path, text):
        """Tables of the preprocessor. Kernels and operations are things of their own; the others' names are reached."""
        line_of = lambda m: text.count("\n", 0, m.start()) + 1
        base = os.path.basename(path)
        self.arguments.update(re.findall(r"\w+", text))
        if base in ("kernels.def", "bench.def"):
            for m in re.finditer(r"^KERNEL\((\w+), (\w+)", text, re.M):
                t = Thing("kernel", "gantry_kernel_" + m.group(1), path, line_of(m))
                t.names = {"k_" + m.group(1)}
                self.things.append(t)
            self.root_of("table", path, {"KERNEL"})
        elif base == "ops.def":
            for m in re.finditer(r"^(?:KERNEL_)?OP\((\w+),", text, re.M):
                t = Thing("operation of devices", m.group(1), path, line_of(m), static=True)
                t.names = {"gantry_host_" + m.group(1), "gantry_cuda_" + m.group(1)}
                self.things.append(t)
            self.root_of("table", path, {"OP", "KERNEL_OP"})
        elif base == "params.def":
            for m in re.finditer(r'^P_\w+\((\w+), "(\w+)"', text, re.M):
                self.things.append(Thing("parameter", m.group(2), path, line_of(m), static=True))
                self.things[-1].names = {m.group(1)}
            self.root_of("parameters", path, words_in(text))
        else:
            self.root_of("table", path, words_in(text))

    def read_source(self, path, text):
        code, pre, ends = read_tokens(FOR_TESTS.sub(lambda m: "\n" * m.group().count("\n"), text))
        for _, s, line in pre:
            self.read_pre(path, s, line)
        for i, (_, s, _) in enumerate(code):
            if s == "ops" and i + 2 < len(code) and code[i + 1][1] in ("->", "."):
                self.members[of_tool(path)].add(code[i + 2][1])
        for m in CALLED.finditer(text):
            self.arguments.update(re.findall(r"\w+", m.group(1)))
        self.read_params(path, text)
        self.read_chunks(path, code, ends)

    def read_params(self, path, text):
        holders = re.findall(r"struct gantry_params \*?(\w+)", text)
        for who in [r"gantry_params\(\)"] + [re.escape(h) for h in holders]:
            self.params_read[of_tool(path)] |= set(re.findall(r"\b" + who + r"(?:->|\.)(\w+)", text))

    def read_pre(self, path, s, line):
        m = DEFINE.match(s)
        if not m:
            if not re.match(r"\s*#\s*(include|error|pragma|undef)", s):
                self.macros_only.append((path, words_in(s)))
            elif "include" in s:
                self.macros_only.append((path, set(re.findall(r"^\s*#\s*include\s+([A-Z_]+)", s))))
                self.includes.setdefault(path, set()).update(self.find(path, x) for x in re.findall(r'"(.*)"', s))
            return
        t = Thing("macro", m.group(1), path, line, static=path.endswith(".c"))
        body = STRINGS.sub(" ", m.group(4))
        own = {p.strip() for p in (m.group(3) or "").split(",")}
        t.names = words_in(body) - own
        for pasted in PASTED.findall(body):
            pieces = [p.strip() for p in pasted.split("##")]
            if pieces[0] in own or os.path.basename(path) == "kernel_set.h":
                continue
            if pieces[0] in ("gantry_host_", "gantry_cuda_", "gantry_kernel_"):
                continue  # operations and kernels: read_def
            t.patterns.append(re.compile("".join(r"(\w+)" if p in own else p for p in pieces) + "$"))
        self.things.append(t)

    def read_chunks(self, path, code, ends):
        """Definitions at file scope."""
        i, start = 0, 0
        while i < len(code):
            s = code[i][1]
            if s == "{":
                head = code[start:i]
                if len(head) == 2 and head[0][1] == "extern":  # extern "C" {
                    i += 1
                    start = i
                    continue
                end = ends.get(i, len(code) - 1)
                if is_function(head):
                    self.read_function(path, head, code[i:end])
                    start = end + 1
                i = end
            elif s == ";":
                self.read_declaration(path, code[start:i])
                start = i + 1
            i += 1
        self.read_declaration(path, code[start:])

    def read_function(self, path, head, body):
        name = function_name(head)
        words = {w for k, w, _ in head if k == "word"}
        # It runs by itself; or a macro makes its head (K(name, ...) { ... }), so it has no name here.
        if "constructor" in words or "destructor" in words or path == BEFORE_LIBC or is_macro(name):
            self.members[of_tool(path)] |= self.root_of("by itself", path, names_in(body) | names_in(head)).names
            return
        if name == "main":
            self.root_of("main", path, names_in(body))
            return
        t = Thing("function", name, path, head[0][2], static=path.endswith(".c") and "static" in words)
        t.names = names_in(body) | (names_in(head) - {name})
        self.things.append(t)

    def read_declaration(self, path, chunk):
        """Variables with values are things; of all the rest only macros are used."""
        words = [w for k, w, _ in chunk if k == "word"]
        if not words:
            return
        level, at = 0, None
        for i, (_, s, _) in enumerate(chunk):
            level += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(s, 0)
            if s == "=" and level == 0:
                at = i
                break
        if at is None:
            if is_macro(words[0]) and len(chunk) > 1 and chunk[1][1] == "(":
                self.members[of_tool(path)] |= self.root_of("by itself", path, names_in(chunk)).names
            else:
                self.macros_only.append((path, set(words)))
            return
        name, level = None, 0
        for kind, s, _ in chunk[:at]:
            level += {"(": 1, "[": 1, ")": -1, "]": -1}.get(s, 0)
            if kind == "word" and (level == 0 or chunk[:at][-1][1] == ")") and s not in NOT_NAMES:
                name = s
        t = Thing("table", name, path, chunk[0][2], static=path.endswith(".c") and "static" in words)
        t.names = names_in(chunk) - {name}
        self.things.append(t)

    # ---- reaching ----

    def resolve(self, path, name):
        found = self.by_name.get(name, [])
        found = [t for t in found if t.kind not in ("operation of devices", "parameter")]
        own = [t for t in found if t.path == path]
        shared = [t for t in found if not t.static]
        if path.endswith(".c"):
            return own or shared
        # A header's, or a table's: its includer may have it.
        if own:
            return own
        theirs = [t for t in found if t.static and (path.endswith(".def") or path in self.reads(t.path))]
        return shared + [t for t in theirs if not shared or t.kind == "macro"]

    def reach(self, allowed):
        """What nothing reaches; what only the tool does, without and with what `allowed` leads to; names of that which are none."""
        self.reach_from(False)
        products = {id(t) for t in self.things if t.reached is not None}
        named = set()
        for t in self.roots + self.things:
            if of_tool(t.path):
                named |= t.names
        calls = self.members[True] - self.members[False]
        entries = [t for t in self.things if t.name in allowed and re.match("src/", t.path) and t.reached is None]
        stale = allowed - {t.name for t in entries if t.name in named or t.name in calls or self.is_op(t)}
        self.reach_from(None, entries)
        by_list = {id(t) for t in self.things if t.reached is not None}
        self.reach_from(True)
        mine = [t for t in self.things if re.match(r"src/(?!abi/)", t.path) and id(t) not in products]
        left = [t for t in mine if t.reached is None]
        tool_only = [t for t in mine if t.reached is not None]
        return left, [t for t in tool_only if id(t) not in by_list], tool_only, stale

    def is_op(self, t):
        """A device's function of an operation that the tool alone calls."""
        m = re.match(r"gantry_(?:host|cuda)_(\w+)$", t.name)
        return bool(m) and m.group(1) in self.members[True] - self.members[False]

    def reach_from(self, tool, entries=()):
        """From roots of the tool's, or those of products; None: from these alone."""
        todo = []

        def take(t, why):
            if t.reached is None:
                t.reached = why
                todo.append(t)

        for t in entries:
            take(t, Thing("list", "", ALLOWED, 0))
        for t in self.roots:
            if of_tool(t.path) == tool:
                todo.append(t)
        for path, words in self.macros_only:
            for w in words if of_tool(path) == tool else ():
                for t in self.resolve(path, w):
                    if t.kind == "macro":
                        take(t, Thing("declaration", "", path, 0))
        for t in self.things:
            if tool is None:
                break
            if t.kind == "operation of devices" and t.name in self.members[tool]:
                take(t, Thing("call", "ops->" + t.name, t.path, 0))
            elif t.kind == "parameter" and t.names & self.params_read[tool]:
                take(t, Thing("read", "", t.path, 0))
            elif LOOKED_AT.match(t.name):
                take(t, Thing("compiler", "", t.path, 0))
        while todo:
            t = todo.pop()
            for name in t.names:
                for u in self.resolve(t.path, name):
                    take(u, t)
            for p in t.patterns:
                for name, found in self.by_name.items():
                    m = p.match(name)
                    if m and self.arguments.issuperset(m.groups()):
                        for u in found:
                            if u.kind not in ("operation of devices", "parameter", "kernel"):
                                take(u, t)


def why(tree, name):
    for t in tree.by_name.get(name, []):
        chain, u = [], t
        while u and len(chain) < 40:
            chain.append(f"{u.kind} {u.name} ({u.path}:{u.line})")
            u = u.reached
        print("\n    from ".join(chain))


def in_order(things):
    return sorted(things, key=lambda t: (t.kind, t.path, t.line))


def read_allowed(path):
    """Names of a file: those of a line end at its colon, behind which is the reason; # begins a comment."""
    if not os.path.exists(path):
        return set()
    names = set()
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            head, colon, reason = line.partition(":")
            if not colon or not reason.strip():
                sys.exit(f"{path}:{number}: a line is `name...: reason`")
            names |= set(head.split())
    return names


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--why", metavar="NAME", help="by which way it is reached")
    p.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    args = p.parse_args()
    tree = Tree(args.root)
    if not tree.things or not tree.roots:
        sys.exit(f"no sources under {args.root}")
    left, not_listed, tool_only, stale = tree.reach(read_allowed(os.path.join(args.root, ALLOWED)))
    if args.why:
        why(tree, args.why)
        return 0
    lines = [f"{t.path}:{t.line}: {t.kind} {t.name}: no product reaches it" for t in in_order(left)]
    lines += [
        f"{t.path}:{t.line}: {t.kind} {t.name}: only the tool reaches it, and {ALLOWED} does not say why it is in src"
        for t in in_order(not_listed)
    ]
    lines += [f"{ALLOWED}: {n}: not something that only the tool reaches" for n in sorted(stale)]
    print("".join(x + "\n" for x in lines), end="")
    kinds = {}
    for t in tree.things:
        kinds[t.kind] = kinds.get(t.kind, 0) + 1
    print(
        ", ".join(f"{n} of kind {k}" for k, n in sorted(kinds.items()))
        + f"; {len(left)} not reached, {len(tool_only)} by the tool alone",
        file=sys.stderr,
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
