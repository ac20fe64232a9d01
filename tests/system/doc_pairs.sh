#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016 # back-quotes are the pages'
# labels: beside
# What the pages say of where things are is true (doc_names.py has the rules): files, functions and variables that they name
# exist, functions are in the file that is named with them, links lead somewhere, in the installed pages too, the tree of layers
# is that of layers.sh, and measured.md has the figures of bench/results.
# A page with one falsehood of each kind is refused, with the place and, for a function, where it is.
. "$(dirname "$0")/lib.sh"
need python3
check() { python3 "$SOURCE_DIR/tests/system/doc_names.py" "$SOURCE_DIR" "$@"; }

check || die "a page names what is not there"
python3 "$SOURCE_DIR/scripts/layers.py" --check "$SOURCE_DIR" || die "a page shows another tree of layers"
python3 "$SOURCE_DIR/scripts/measured.py" --check "$SOURCE_DIR" || die "docs/measured.md has other figures than bench/results"

no=NEVER # put together here: this script is a source file too, and what it names would exist
cat >"$tmp/page.md" <<END
# A page
\`gantry_result_name\` (\`pool.c\`)
\`gantry_result_name\` in \`nowhere.c\`
\`tcp_link_$no\` and GANTRY_$no
[link](nowhere.md), [anchor](#nowhere), [this](#a-page)
\`src/nowhere/\`
\`gantry nowhere\`, \`gantry perf nowhere\`, \`gantry perf net --nowhere\`, \`make nowhere\`, \`make test\`
END
check "$tmp/page.md" >"$tmp/out" && die "a page of falsehoods passes"
for line in ':2: `gantry_result_name` is not defined in pool.c; it is in .*log\.' ':3: there is no file nowhere.c' \
	":4: .tcp_link_$no. is in no source file" ":4: GANTRY_$no is in no source file" ':5: the link to nowhere.md is dead' \
	':5: .* has no heading #nowhere' ':6: there is no folder src/nowhere/' ':7: there is no command gantry nowhere' \
	':7: there is no gantry perf nowhere' ':7: gantry perf has no option --nowhere' ':7: there is no target make nowhere'; do
	grep -q "$line" "$tmp/out" || { cat "$tmp/out"; die "not found, or named wrongly: $line"; }
done
grep -qE '#a-page|make test' "$tmp/out" && die "what is there is not found"

# What is not installed is a dead link there, and a record without a line in the index is found.
records=$tmp/tree/docs/design none=0002
mkdir -p "$records" "$tmp/tree/cmake" "$tmp/tree/src"
cp "$SOURCE_DIR/cmake/install.cmake" "$tmp/tree/cmake/"
echo "/* docs/design/$none */" >"$tmp/tree/src/a.c"
printf '# Index\n| [0001](0001-one.md) | a question |\n' >"$records/README.md"
echo '[source](../../src/a.c)' >"$records/0001-one.md"
echo 'text' >"$records/0003-three.md"
python3 "$SOURCE_DIR/tests/system/doc_names.py" "$tmp/tree" >"$tmp/out" && die "a tree of falsehoods passes"
for line in '0001-one.md:1: the link to ../../src/a.c is dead where the pages are installed' 'src/a.c:1: there is no design record 0002' \
	'README.md:1: 0003-three.md does not have one line'; do
	grep -qF "$line" "$tmp/out" || { cat "$tmp/out"; die "not found: $line"; }
done
grep -qF '3 of them wrong' "$tmp/out" || { cat "$tmp/out"; die "more is found than is there"; }

# Another table is another tree.
mkdir -p "$tmp/rule/tests/system" "$tmp/rule/docs"
cp "$SOURCE_DIR/README.md" "$tmp/rule/" && cp "$SOURCE_DIR/docs/architecture.md" "$tmp/rule/docs/"
sed 's/^\t\[rx\]="net\/tcp /\t[rx]="net\/tcp proxy /' "$SOURCE_DIR/tests/system/layers.sh" >"$tmp/rule/tests/system/layers.sh"
! python3 "$SOURCE_DIR/scripts/layers.py" --check "$tmp/rule" 2>"$tmp/out" && grep -q '^README.md shows another tree' "$tmp/out" ||
	die "a tree of layers that is out of date passes"
echo "every falsehood is found"
