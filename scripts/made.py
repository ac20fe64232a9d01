# SPDX-License-Identifier: Apache-2.0
"""Parts of pages that a script makes: they stand between two lines that mark their place. Used by layers.py and measured.py."""
import argparse
import os
import sys


def run(doc, parts, differs):
    """The script's main. parts(root): (name, page, begin, end, text) of each part. Without an option the texts are printed;
    --write puts them into their pages, --check ends with `differs` about the first page that has others."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", action="store_true")
    p.add_argument("--check", action="store_true")
    p.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    args = p.parse_args()
    if not args.write and not args.check:
        for name, made in {name: made for name, _, _, _, made in parts(args.root)}.items():
            print(f"{name}:\n{made}")
        return 0
    for name, page, begin, end, made in parts(args.root):
        path = os.path.join(args.root, page)
        with open(path, encoding="utf-8") as f:
            old = f.read()
        if begin not in old or end not in old:
            sys.exit(f"{page} has no place for {name}")
        new = old[: old.index(begin) + len(begin)] + made + old[old.index(end):]
        if args.check and new != old:
            sys.exit(f"{page} {differs}: scripts/{os.path.basename(sys.argv[0])} --write")
        if args.write and new != old:
            with open(path, "w", encoding="utf-8") as f:
                f.write(new)
    return 0
