#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/test_only.sh [BUILD]: external functions and variables of src that nothing in the product uses.
#
#   tests FILE NAME (own N) TEST...   only these tests use it from outside its file
#   none  FILE NAME (own N)           nothing uses it from outside its file: static, or superfluous
#
# N lines of its own file name it besides the definition: with none it is there for the tests alone. BUILD (default
# build) must hold the objects of the target tests; nm over them tells who defines and who uses. What the version
# scripts export is used by definition.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# undefined or defined names of objects: "NAME OBJECT" a line
names() { xargs -r -a "$1" nm -A "$2" 2>/dev/null | awk '{ o = $1; sub(/:.*/, "", o); print $NF, o }'; }

find "$build" -name '*.o' ! -path "*/tests/*" ! -path '*example_*' >"$work/product"
find "$build/tests" -name '*.o' >"$work/tests"
grep '/src/' "$work/product" >"$work/src" || { echo "$build holds no objects of src: build the target tests first" >&2; exit 2; }
[ -s "$work/tests" ] || { echo "$build holds no objects of tests: build the target tests first" >&2; exit 2; }

xargs -a "$work/src" nm -A -g --defined-only | awk '{ o = $1; sub(/:.*/, "", o); print $NF, o }' | sort -u >"$work/defined"
names "$work/product" -u | sort -u >"$work/used"
names "$work/tests" -u | sort -u >"$work/tested"
sed -n 's/^[[:space:]]*\([A-Za-z_][A-Za-z0-9_*]*\);.*/\1/p' src/*.map src/*/*.map >"$work/exported"
sed -nE 's/^(KERNEL_)?OP\(([a-z_]+),.*/gantry_*_\2/p' src/device/ops.def >>"$work/exported" # entries of tables

awk -v work="$work" '
	FILENAME == work "/exported" { exported[$1]; next }
	FILENAME == work "/used" { used[$1]; next }
	FILENAME == work "/tested" {
		t = $2; sub(/.*\//, "", t); sub(/\.c\.o$/, "", t)
		tested[$1] = tested[$1] " " t; next
	}
	{
		for (e in exported) {
			p = e; gsub(/\*/, ".*", p)
			if ($1 ~ "^" p "$")
				next
		}
		if ($1 in used || $1 ~ /^__odr_asan|^_sanitizer|^\.L/)
			next
		f = $2; sub(/.*\/src\//, "src/", f); sub(/\.o$/, "", f)
		print (($1 in tested) ? "tests" : "none"), f, $1, tested[$1]
	}' "$work/exported" "$work/used" "$work/tested" "$work/defined" |
	while read -r kind file name who; do
		if [ "$kind" = none ]; then # a test may compile the file itself
			who=$(grep -rlw --include='*.c' --include='*.h' "$name" tests | xargs -r -n1 basename | tr '\n' ' ' || true)
			[ -z "$who" ] || kind=tests
		fi
		own=$(sed -e 's@/\*.*\*/@@' -e '/^[[:space:]]*\/\?\*/d' "$file" 2>/dev/null | grep -cw "$name" || true)
		printf '%-5s %s %s (own %d)%s\n' "$kind" "$file" "$name" $((own - 1)) "${who:+ $(echo "$who" | tr ' ' '\n' | sort -u | tr '\n' ' ')}"
	done | sort -k1,1r -k2,3
