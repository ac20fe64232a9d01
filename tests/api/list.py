#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What binaries and wires know of the public headers, as lines of text.

  list.py INCLUDE [LIBRARY]     prints it: layouts, enumerators, macros, prototypes; of a library its exported symbols
  list.py --keeps OLD NEW       fails unless whoever was built for the list OLD can use NEW: everything is still there,
                                only structs with struct_size have grown, at their end

The compiler (CC, else cc) expands the headers and computes sizes and offsets; this script only finds the names.
"""
import os
import re
import subprocess
import sys
import tempfile

CC = (os.environ.get("CC") or "cc").split()


def run(*args, **kwargs):
    return subprocess.run(args, check=True, capture_output=True, text=True, **kwargs).stdout


def expanded(include, headers):
    """The headers' own lines, comments and macros gone."""
    text, mine = [], False
    source = "".join(f'#include "gantry/{h}"\n' for h in headers)
    for line in run(*CC, "-E", f"-I{include}", "-x", "c", "-std=c11", "-", input=source).splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            mine = "/gantry/" in marker.group(1)
        elif mine:
            text.append(line)
    return "\n".join(text)


def split(text, at):
    """At top level of parentheses and braces."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(c, 0)
        if c == at and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p.strip() for p in parts + [part] if p.strip()]


def members(body):
    names = []
    for declaration in split(body, ";"):
        for declarator in split(declaration, ","):
            pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", declarator)
            names.append(pointer.group(1) if pointer else re.search(r"(\w+)\s*(?:\[.*)?$", declarator, re.S).group(1))
    return names


def parameter(text):
    """Without its name."""
    text = " ".join(text.split())
    bare = re.sub(r"\b\w+$", "", text).strip()
    return bare if bare and bare not in ("struct", "enum", "const", "unsigned") and not re.fullmatch(r"(struct|enum) \w+", text) else text


def functions(text):
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)\)", "", text)  # visibility("default"): one more parenthesis
    for m in re.finditer(r"^([\w *]+?)\b(gantry_\w+)\s*\(([^{};]*)\)\s*;", text, re.M):
        kind = " ".join(m.group(1).split())
        if kind and not re.match("static|typedef|return", kind):
            args = ", ".join(parameter(p) for p in split(m.group(3), ","))
            yield f"function {kind} {m.group(2)}({args})"
    for m in re.finditer(r"^\s+([\w *]+?)\s*\(\*(\w+)\)\(([^;]*)\);", text, re.M):
        args = ", ".join(parameter(p) for p in split(m.group(3), ","))
        yield f"callback {m.group(1)} (*{m.group(2)})({args})"


def macros(include, headers):
    for h in headers:
        with open(os.path.join(include, "gantry", h), encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", " ", f.read().replace("\\\n", " "), flags=re.S)
        for m in re.finditer(r"^#define (GANTRY_\w+(?:\([^)]*\))?)[ \t]*(.*)$", text, re.M):
            name, value = m.group(1), " ".join(m.group(2).split())
            # Guards; the version itself; what the enums say already; helpers of the headers.
            if value and not re.match(r"GANTRY_(\w+_H$|VERSION|API_VERSION|API$|FN$|\w+_ENUM\(|(RESULTS|TYPES|OPS)\(|STRUCT_INIT)", name):
                yield f"macro {name} {value}"


def computed(include, headers, lines):
    with tempfile.TemporaryDirectory() as tmp:
        source = os.path.join(tmp, "list.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write("#include <stddef.h>\n#include <stdio.h>\n" + "".join(f'#include "gantry/{h}"\n' for h in headers))
            f.write("#define SIZE(t, m) sizeof(((t *)0)->m)\nint main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
        run(*CC, "-std=c11", f"-I{include}", "-o", os.path.join(tmp, "list"), source)
        return run(os.path.join(tmp, "list")).splitlines()


def api_list(include, library):
    headers = sorted(os.listdir(os.path.join(include, "gantry")))
    text = expanded(include, headers)
    ask = ['printf("GANTRY_API_VERSION %d\\n", GANTRY_API_VERSION);']
    for m in re.finditer(r"\bstruct (\w+)\s*\{([^{}]*)\}\s*;", text):
        name = "struct " + m.group(1)
        ask.append(f'printf("{name} size %zu\\n", sizeof({name}));')
        for x in members(m.group(2)):
            ask.append(f'printf("{name}.{x} at %zu size %zu\\n", offsetof({name}, {x}), SIZE({name}, {x}));')
    for m in re.finditer(r"\benum\b\s*\w*\s*\{([^{}]*)\}", text):
        for x in split(m.group(1), ","):
            name = x.split("=")[0].strip()
            ask.append(f'printf("enumerator {name} = %lld\\n", (long long){name});')
    lines = computed(include, headers, ask)
    lines[1:] = sorted(set(lines[1:]) | set(functions(text)) | set(macros(include, headers)))
    if library:
        for line in run("nm", "-D", "--defined-only", library).splitlines():
            if re.search(r" [A-Z] gantry_", line):
                lines.append("symbol " + line.split()[-1])
    return lines


def keeps(old, new):
    """What of the old list does not hold any more."""
    have, lost = set(new), []
    grows = {m.group(1) for m in (re.match(r"(struct \w+)\.struct_size at 0 ", line) for line in old) if m}
    sizes = {m.group(1): int(m.group(2)) for m in (re.match(r"(struct \w+) size (\d+)$", line) for line in new) if m}
    for line in old[1:]:
        size = re.match(r"(struct \w+) size (\d+)$", line)
        if size and size.group(1) in grows and sizes.get(size.group(1), 0) >= int(size.group(2)):
            continue
        if re.match(r"enumerator \w+_(COUNT|CAUSES) ", line):
            continue
        if line not in have:
            lost.append(line)
    return lost


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read().splitlines()


if __name__ == "__main__":
    if sys.argv[1] == "--keeps":
        gone = keeps(read(sys.argv[2]), read(sys.argv[3]))
        print("\n".join(gone))
        sys.exit(1 if gone else 0)
    print("\n".join(api_list(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)))
