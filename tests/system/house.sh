#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# The bounds that keep the source readable hold (scripts/house.py), and a tree in which each is broken is refused.
. "$(dirname "$0")/lib.sh"
need python3

python3 "$SOURCE_DIR/scripts/house.py" --check --no-lines || die "a bound is broken"

mkdir "$tmp/scripts" && cp "$SOURCE_DIR/scripts/house.py" "$tmp/scripts/" && cp -r "$SOURCE_DIR/src" "$tmp/" || exit 1
# must_refuse NAME LINE-OF-THE-REPORT: with src/rx/planted.c
must_refuse() {
	! (cd "$tmp" && python3 scripts/house.py --check --no-lines) >"$tmp/out" 2>&1 && grep -q "$2.*BROKEN" "$tmp/out" || die "$1 was not found"
}
{ echo "struct planted {"; for i in $(seq 46); do echo "	int m$i;"; done; echo "};"; } >"$tmp/src/rx/planted.c"
must_refuse "a struct with 46 members" "members of the largest struct"
{ echo "int planted(int a)"; echo "{"; for i in $(seq 16); do echo "	if (a == $i) return $i;"; done; echo "	return 0;"; echo "}"; } >"$tmp/src/rx/planted.c"
must_refuse "a function with 17 ways" "functions with a complexity"
echo "int planted(int *a) { return __atomic_load_n(a, __ATOMIC_RELAXED); }" >"$tmp/src/rx/planted.c"
must_refuse "a raw atomic" "raw __atomic_"
mkdir -p "$tmp/src/net/tcp" && echo "int planted(int fd) { char c; return recv(fd, &c, 1, 0); }" >"$tmp/src/net/tcp/planted.c"
must_refuse "a socket call above the engines" "socket calls in net/tcp"
rm "$tmp/src/net/tcp/planted.c"
echo "/* mu held */ int planted(void);" >"$tmp/src/rx/planted.c"
must_refuse "a rule that only a comment knows" "mu held"
rm "$tmp/src/rx/planted.c" && mkdir "$tmp/docs" && yes "Whoever is told says so." | head -20 >"$tmp/docs/planted.md"
must_refuse "a page of words for people" "words for people"
echo "the bounds hold, and each is found when it is broken"
