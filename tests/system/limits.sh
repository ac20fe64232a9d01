#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# docs/limits.md says what the code has: each constant of its tables is defined in src or include with the value that
# stands there, wherever it is defined more than once.
. "$(dirname "$0")/lib.sh"
need python3
python3 - "$SOURCE_DIR" <<'PYTHON'
import glob, re, sys

root = sys.argv[1]
units = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
code = "\n".join(open(f, encoding="utf-8", errors="replace").read()
                 for pattern in ("src/**/*.[ch]", "include/gantry/*.h") for f in glob.glob(f"{root}/{pattern}", recursive=True))
code = re.sub(r"/\*.*?\*/", " ", code, flags=re.S)

def values(name):
    """Of all definitions; names within a definition are looked up in turn."""
    found = re.findall(rf"\b{name} = ([^,}};]+)|^#define {name} (.+)$", code, re.M)
    for enum, macro in found:
        text = re.sub(r"\b([A-Z][A-Z0-9_]*)\b", lambda m: str(values(m.group(1)).copy().pop()), (enum or macro).strip())
        text = re.sub(r"(?<=\d)[uUlL]+\b", "", text)
        if not re.fullmatch(r"[\d\sx()<>*+/-]+", text):
            raise SystemExit(f"FAILED: {name} is {enum or macro}, which this test cannot compute")
        yield_set.setdefault(name, set()).add(int(eval(text)))
    return yield_set.get(name, set())

yield_set = {}
rows = re.findall(r"^\| `(\w+)` \| (\d+)(?: (\w+))? \|", open(f"{root}/docs/limits.md", encoding="utf-8").read(), re.M)
if len(rows) < 25:
    raise SystemExit(f"FAILED: only {len(rows)} rows in docs/limits.md")
bad = [f"{name} is {sorted(values(name)) or 'nowhere'}, docs/limits.md says {number} {unit}".rstrip()
       for name, number, unit in rows if values(name) != {int(number) * units[unit]}]
if bad:
    raise SystemExit("FAILED: " + "\nFAILED: ".join(bad))
print(f"ok: {len(rows)} limits")
PYTHON
