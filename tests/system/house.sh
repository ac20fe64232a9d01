#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# The bounds that keep the source readable hold (scripts/house.py), and a tree in which each is broken is refused.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

python3 "$SOURCE_DIR/scripts/house.py" --check --no-lines || { echo "FAILED: a bound is broken"; exit 1; }

mkdir "$scratch/scripts" && cp "$SOURCE_DIR/scripts/house.py" "$scratch/scripts/" && cp -r "$SOURCE_DIR/src" "$scratch/" || exit 1
# must_refuse NAME LINE-OF-THE-REPORT: with src/rx/planted.c
must_refuse() {
	if (cd "$scratch" && python3 scripts/house.py --check --no-lines) >"$scratch/said" 2>&1 || ! grep -q "$2.*BROKEN" "$scratch/said"; then
		echo "FAILED: $1 was not found:"
		cat "$scratch/said"
		exit 1
	fi
}
{ echo "struct planted {"; for i in $(seq 46); do echo "	int m$i;"; done; echo "};"; } >"$scratch/src/rx/planted.c"
must_refuse "a struct with 46 members" "members of the largest struct"
{ echo "int planted(int a)"; echo "{"; for i in $(seq 16); do echo "	if (a == $i) return $i;"; done; echo "	return 0;"; echo "}"; } >"$scratch/src/rx/planted.c"
must_refuse "a function with 17 ways" "functions with a complexity"
echo "int planted(int *a) { return __atomic_load_n(a, __ATOMIC_RELAXED); }" >"$scratch/src/rx/planted.c"
must_refuse "a raw atomic" "raw __atomic_"
echo "/* mu held */ int planted(void);" >"$scratch/src/rx/planted.c"
must_refuse "a rule that only a comment knows" "mu held"
echo "the bounds hold, and each is found when it is broken"
