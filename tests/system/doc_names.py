#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks names and links in the documents: doc_names.py ROOT [PAGE...]

- A file in back-quotes exists: `post.c`, `src/net/net.h`, `tests/system/*.sh`. Its path may be shortened from the left.
- A name in back-quotes exists: `tcp_link_open`, `GANTRY_LANES`, `link_mu`. It is a word of some source file. So is every
  GANTRY_NAME of a page or a man page, in back-quotes or not.
- A function given with its file is defined there: `name` (`file.c`) or `name` in `file.c`.
- A link leads to a file and to a heading of it; from a page that is installed, to a file that is installed as well.
- A command exists: `gantry NAME`, `gantry perf NAME` and the options behind it, `make TARGET`, in back-quotes and in code.
- A design record that a source file or a page refers to (design/NNNN) exists.
- Every design record has one line in docs/design/README.md.

Text between ``` is looked at for commands only. Pages that record the past (CHANGELOG.md, bench/results) are checked for links only.
"""
import fnmatch
import os
import re
import sys

SOURCES = ("src", "include", "tools", "tests", "bench", "scripts", "models", "examples", "cmake", "man")
ENDINGS = r"c|h|cu|def|map|cmake|sh|py|pml|awk|supp|md|jsonl|json|svg|txt|in"
FILE = re.compile(r"(?:\.\./)*[\w{},*<>-][\w./{},*<>-]*\.(?:" + ENDINGS + ")")
NAME = re.compile(r"([A-Za-z]\w*_\w*)(?:\(.*\)|\[.*\]|=.*|\.\w+.*|->\w+.*)?", re.S)
# Names of other projects that no source file of this tree has to mention.
FOREIGN = re.compile(r"(nccl|NCCL_|cu[A-Z]|cuda|CUDA_|CMAKE_|__|MPI_|OMPI_|XDG_|LD_|MALLOC_|PYTORCH_|TORCH_)")
FOREIGN_WORDS = set("process_vm_readv copy_to_user send_zc MASTER_PORT epoll_data SSL_write ret_x".split())
# Files that a program writes: their names have a process, a rank or a host in them, or stand for any.
WRITTEN = re.compile(r"<\w+>.*\.jsonl$|^(?:job|run|train|fifo|sendrecv|gpu)\.(?:json|jsonl|py)$")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def heading_anchor(text):
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def without_code(text):
    """The text with what stands between ``` blanked, lines kept."""
    return re.sub(r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), text, flags=re.S | re.M)


def expand(name):
    """`a.[ch]`, `{a,b}.c`: all that is meant."""
    m = re.search(r"\{([^}]*)\}", name)
    return [x for part in m.group(1).split(",") for x in expand(name[: m.start()] + part + name[m.end():])] if m else [name]


class Tree:
    def __init__(self, root):
        self.root, self.files, self.folders = root, set(), set()
        for top in SOURCES + ("docs",):
            for folder, dirs, names in os.walk(os.path.join(root, top)):
                dirs[:] = [d for d in dirs if not d.startswith((".", "__"))]
                rel = os.path.relpath(folder, root)
                self.folders.add(rel)
                self.files.update(os.path.join(rel, n) for n in names)
        self.files.update(n for n in os.listdir(root) if os.path.isfile(os.path.join(root, n)))
        self.by_name = {}
        for f in self.files:
            self.by_name.setdefault(os.path.basename(f), []).append(f)
        self.text = {}
        for f in sorted(self.files):
            if f.endswith((".md", ".jsonl", ".svg")) or f.startswith(("docs/", "tests/fuzz/corpus", "tests/api/", "man/")):
                continue
            self.text[f] = read(os.path.join(root, f))
        self.words = set(re.findall(r"[A-Za-z_]\w+", "\n".join(self.text.values())))
        self.words.update(name.split(".")[0] for name in self.by_name)  # a test is called by its file

        tools = "\n".join(t for f, t in self.text.items() if f.startswith("tools/"))
        self.product = "\n".join(t for f, t in self.text.items() if f.startswith("src/"))
        self.commands = set(re.findall(r'\{"([a-z-]+)", cmd_\w+,', tools))
        self.perf = self.commands | set(re.findall(r'X\([A-Z_]+, +"(\w+)",', tools)) | {"collectives"}
        self.options = set(re.findall(r'"[a-z-]+"', tools))
        self.targets = set(re.findall(r"^([a-z-]+):", self.text.get("Makefile", ""), re.M))

    def find(self, name, page):
        """Files of the tree that a page may call by this name."""
        name = re.sub(r"^\./", "", name).replace("<file>", "*").replace("NAME", "*").replace("NNNN", "*")
        if name.startswith("../"):
            name = os.path.normpath(os.path.join(os.path.dirname(page), name))
        found = []
        for one in expand(name):
            if re.search(r"[*?[<]", one):
                one = re.sub(r"<\w+>", "*", one)
                hits = [f for f in self.files if fnmatch.fnmatch(f, one) or fnmatch.fnmatch(f, "*/" + one)]
            else:
                hits = [f for f in self.by_name.get(os.path.basename(one), []) if f == one or f.endswith("/" + one)]
            if not hits:
                return []
            found += hits
        return found

    def has_folder(self, name):
        name = name.rstrip("/")
        return any(d == name or d.endswith("/" + name) for d in self.folders)

    def defines(self, name, file):
        n = re.escape(name)
        return re.search(
            rf"^(?:#define +{n}\b|[A-Za-z_][^;=\n]*[ *]{n}\(|[A-Za-z_].*[ *]{n}(?:\[[^]]*\])* = |(?:struct|enum|union) {n} \{{"
            rf"|[ \t].*\(\*{n}\)\(|[A-Z_]+\((?:\w+, .)?{n}\b|[\t ]+[\w *]*[ *]{n}(?:\[[^]]*\])?;)", self.text.get(file, ""), re.M)


def installed(root):
    """Which files cmake/install.cmake puts beside the docs: FILES by name, DIRECTORY by prefix."""
    text = read(os.path.join(root, "cmake/install.cmake"))
    names = set()
    for kind, what in re.findall(r"install\((FILES|DIRECTORY) ([^)]*?) DESTINATION \$\{(?:CMAKE_INSTALL_DOCDIR|example_dir)\}", text):
        names.update(w.rstrip("/") + ("/" if kind == "DIRECTORY" else "") for w in what.split())
    return names


class Check:
    def __init__(self, root):
        self.root, self.tree, self.bad, self.names, self.links = root, Tree(root), [], 0, 0
        self.installed, self.anchors = installed(root), {}

    def fail(self, page, line, what):
        self.bad.append(f"{page}:{line}: {what}")

    def is_installed(self, path):
        return any(path == w or (w.endswith("/") and (path + "/").startswith(w)) for w in self.installed)

    def check_links(self, page, text):
        for m in re.finditer(r"\]\(([^)\s]+)\)", text):
            target, line = m.group(1), text.count("\n", 0, m.start()) + 1
            if re.match(r"[a-z]+:", target):
                continue
            self.links += 1
            path, _, anchor = target.partition("#")
            rel = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(self.root, rel)):
                self.fail(page, line, f"the link to {target} is dead")
            elif self.is_installed(page) and not self.is_installed(rel):
                self.fail(page, line, f"the link to {target} is dead where the pages are installed")
            elif anchor and anchor not in self.page_anchors(rel):
                self.fail(page, line, f"{rel} has no heading #{anchor}")

    def page_anchors(self, rel):
        if rel not in self.anchors:
            text = without_code(read(os.path.join(self.root, rel)))
            self.anchors[rel] = {heading_anchor(h) for h in re.findall(r"^#+ +(.*)$", text, re.M)}
        return self.anchors[rel]

    def check_span(self, page, line, span):
        if FILE.fullmatch(span):
            self.names += 1
            if not WRITTEN.search(span) and not self.tree.find(span, page):
                self.fail(page, line, f"there is no file {span}")
        elif re.fullmatch(r"docs/design/\d{4}", span):
            pass  # check_records
        elif re.fullmatch(r"(src|tests|tools|docs|include|bench|models|scripts|examples|man|cmake)/[\w/-]*", span):
            self.names += 1
            if not self.tree.has_folder(span) and not self.tree.find(span, page):
                self.fail(page, line, f"there is no folder {span}")
        else:
            m = NAME.fullmatch(span)
            if not m or span.startswith("-"):
                return
            self.names += 1
            name = m.group(1)
            if name.endswith("_") or "*" in span:
                known = any(w.startswith(name.rstrip("_") + "_") for w in self.tree.words)
            else:
                known = name in self.tree.words or name in FOREIGN_WORDS
            if not known and not FOREIGN.match(name):
                self.fail(page, line, f"`{name}` is in no source file")

    def check_pairs(self, page, text):
        for m in re.finditer(rf"`(\w+)(?:\(\))?`\s+(?:\(|in\s+)`([\w./]+\.(?:c|h|cu|def))", text):
            name, file = m.groups()
            line = text.count("\n", 0, m.start()) + 1
            there = self.tree.find(file, page)
            if there and not any(self.tree.defines(name, f) for f in there):
                where = " ".join(f for f in sorted(self.tree.text) if re.match(r"(src|tools|include)/", f) and self.tree.defines(name, f))
                self.fail(page, line, f"`{name}` is not defined in {file}; it is in {where or 'no file of src, tools or include'}")

    def check_settings(self, page):
        text = read(os.path.join(self.root, page)).replace("\\", "")
        for m in re.finditer(r"\bGANTRY_[A-Z0-9_]+\b", text):
            self.names += 1
            name = m.group()
            if name not in self.tree.words and not (name.endswith("_") and any(w.startswith(name) for w in self.tree.words)):
                self.fail(page, text.count("\n", 0, m.start()) + 1, f"{name} is in no source file")

    def check_commands(self, page):
        """At the start of a line of code or of a name in back-quotes, behind a prompt, variables, or a pipe."""
        text = read(os.path.join(self.root, page))
        for code in re.finditer(r"^```.*?^```|`[^`\n]+`", text, re.S | re.M):
            for m in re.finditer(r"(?:^`?|\| )(?:\w*\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?(gantry|make) ([a-z][\w-]*)([^\n`|#;&]*)", code.group(), re.M):
                self.names += 1
                wrong = self.wrong_command(*m.groups())
                if wrong:
                    self.fail(page, text.count("\n", 0, code.start() + m.start()) + 1, wrong)

    def wrong_command(self, program, command, rest):
        if program == "make":
            return None if command in self.tree.targets else f"there is no target make {command}"
        op = re.match(r" ([a-z][a-z_]*)", rest)
        if command not in self.tree.commands and f'"gantry {command}' not in self.tree.product:  # labels of MACs are such texts
            return f"there is no command gantry {command}"
        if command == "perf" and op and op.group(1) not in self.tree.perf:
            return f"there is no gantry perf {op.group(1)}"
        for option in re.findall(r"(?<=\s)--([a-z][a-z-]*)", rest.split(" -- ")[0]):
            if command != "run" and f'"{option}"' not in self.tree.options:
                return f"gantry {command} has no option --{option}"
        return None

    def check_page(self, page, names=True):
        text = without_code(read(os.path.join(self.root, page)))
        self.check_links(page, text)
        if names:
            for m in re.finditer(r"`([^`]+)`", text):
                self.check_span(page, text.count("\n", 0, m.start()) + 1, " ".join(m.group(1).split()))
            self.check_pairs(page, text)
            self.check_settings(page)
            self.check_commands(page)

    def check_records(self):
        records = {os.path.basename(f)[:4]: f for f in self.tree.files if re.match(r"docs/design/\d{4}", f)}
        index = read(os.path.join(self.root, "docs/design/README.md"))
        for number, f in sorted(records.items()):
            if index.count(f"\n| [{number}]({os.path.basename(f)}) |") != 1:
                self.fail("docs/design/README.md", 1, f"{os.path.basename(f)} does not have one line")
        pages = {f: read(os.path.join(self.root, f)) for f in self.tree.files if f.endswith(".md") and not f.startswith("bench/")}
        for f, text in {**self.tree.text, **pages}.items():
            for m in re.finditer(r"design/(\d{4})\b", text):
                if m.group(1) not in records:
                    self.fail(f, text.count("\n", 0, m.start()) + 1, f"there is no design record {m.group(1)}")


def main():
    root = sys.argv[1]
    check = Check(root)
    pages = sys.argv[2:]
    if pages:
        for page in pages:
            check.check_page(page)
    else:
        for page in sorted(f for f in check.tree.files if f.endswith(".md")):
            check.check_page(page, names=not page.startswith(("bench/results/", "CHANGELOG.md")))
        for page in sorted(f for f in check.tree.files if f.startswith("man/")):
            check.check_settings(page)
        check.check_records()
    for line in check.bad:
        print(line)
    print(f"{check.names} names and {check.links} links, {len(check.bad)} of them wrong")
    return 1 if check.bad else 0


if __name__ == "__main__":
    sys.exit(main())
