#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# The bounds that keep the source readable hold (scripts/house.py), and in a copy of the tree where each is broken, each is reported.
. "$(dirname "$0")/lib.sh"
need python3

python3 "$SOURCE_DIR/scripts/house.py" --check --no-lines || die "a bound is broken"

mkdir "$tmp/scripts" "$tmp/docs" && cp "$SOURCE_DIR/scripts/house.py" "$tmp/scripts/" && cp -r "$SOURCE_DIR"/{src,include,tools} "$tmp/" || exit 1
planted=()
# plant FILE LINE-OF-THE-REPORT: what standard input has, in a file of the copy
plant() {
	mkdir -p "$(dirname "$tmp/$1")" && cat >"$tmp/$1" || exit 1
	planted+=("$2")
}
struct_of() { echo "struct $1 {"; for i in $(seq "$2"); do echo "	$3 m$i[2];"; done; echo "};"; }
function_of() { echo "int $1(void)"; echo "{"; yes "	;" | head -$(($2 - 3)); echo "	return 0;"; echo "}"; }

struct_of planted 46 int | plant src/proxy/planted1.c "members of the largest struct"
{ struct_of part 40 int; struct_of whole 6 "struct part"; } | plant src/proxy/planted2.c "fields of the largest struct, flattened"
{ echo "int planted(int a)"; echo "{"; for i in $(seq 16); do echo "	if (a == $i) return $i;"; done; echo "	return 0;"; echo "}"; } |
	plant src/proxy/planted3.c "functions with a complexity over 15"
function_of planted 61 | plant src/proxy/planted4.c "functions over 60 lines"
for i in $(seq 60); do function_of "planted_$i" 41; done | plant src/proxy/planted5.c "99th percentile of functions' lines"
for i in $(seq 320); do echo "static void planted$i(void) {}"; done | plant src/proxy/planted6.c "static functions with a name of one word"
echo "int planted(int *a) { return __atomic_load_n(a, __ATOMIC_RELAXED); }" | plant src/proxy/planted7.c "raw __atomic_ outside base and device"
echo "int planted(int fd) { char c; return recv(fd, &c, 1, 0); }" | plant src/net/tcp/planted8.c "socket calls in net/tcp outside its engines"
for i in $(seq 7); do echo "int planted(int fd) { return connect(fd, 0, 0); }" | plant tools/planted9_"$i".c "files of src and tools that call connect(2)"; done
echo "/* mu held */ int planted(void);" | plant src/proxy/planted10.c 'comments "mu held" and the like'
echo "int planted;" | plant src/proxy/tcp.c "file names that src has twice"
yes "Whoever is told says so." | head -20 | plant docs/planted.md "words for people in pages and man pages"
yes '#define T "nobody said so" /* one literal, two words */' | head -50 | plant tools/planted11.c "words for people in string literals"
yes '/* Somebody who was told. */' | head -300 | plant include/planted.h "words for people in comments"
for folder in net/tcp ctl comm transport rx; do
	yes "" | head -100000 | plant "src/$folder/planted_$(basename $folder).c" "assertions per 1,000 lines in src/$folder"
done

! (cd "$tmp" && python3 scripts/house.py --check --no-lines) >"$tmp/out" 2>&1 || die "no bound is broken by $(printf '%s, ' "${planted[@]}")"
for what in "${planted[@]}"; do
	grep -F "$what" "$tmp/out" | grep -q BROKEN || { cat "$tmp/out"; die "planted, and not found: $what"; }
done
! grep BROKEN "$tmp/out" | grep -vFf <(printf '%s\n' "${planted[@]}") || die "nothing was planted for these"
echo "the bounds hold, and each is found when it is broken"
