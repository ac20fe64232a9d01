#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2016 # back-quotes are the pages'
# labels: beside
# What docs/architecture.md says of where things are is true: every file that it names exists, and every function that it
# names with a file, as in `name` (`file.c`) or `name` in `file.c`, is defined there. A failure says where it is.
. "$(dirname "$0")/lib.sh"
self=$(realpath "$0")
cd "$SOURCE_DIR" || exit 1
page=${1:-docs/architecture.md} # another page, to see the test itself fail
find src tools include cmake tests/lib tests/system bench scripts -type f | grep -E '\.(c|h|cu|def|map|cmake|sh)$' >"$tmp/files"

# files NAME: those that a page may call by that name: the end of their path.
files() { grep -E "(^|/)${1//./\\.}\$" "$tmp/files"; }

# defines NAME FILE...: the files that define it: a line that begins with its type, a macro, or a table of functions.
defines()
{
	local name=$1
	shift
	grep -lE "^(#define +$name\b|[A-Za-z_][^;=]*[ *]$name\(|[A-Za-z_].*[ *]$name(\[[^]]*\])* = |(struct|enum|union) $name \{|[[:space:]].*\(\*$name\)\(|[A-Z_]+\($name\b)" "$@"
}

false_at() { fail "$page:$1: $2"; }

npairs=0
while IFS=: read -r line pair; do
	name=$(sed -E 's/^`([A-Za-z_0-9]+).*/\1/' <<<"$pair")
	file=$(sed -E 's/.*`([A-Za-z_0-9./]+)$/\1/' <<<"$pair")
	npairs=$((npairs + 1))
	mapfile -t there < <(files "$file")
	[ ${#there[@]} -gt 0 ] || { false_at "$line" "there is no file $file, where \`$name\` should be"; continue; }
	if ! defines "$name" "${there[@]}" >/dev/null; then
		mapfile -t all < <(grep -E '^(src|tools|include)/.*\.[ch]u?$' "$tmp/files")
		where=$(defines "$name" "${all[@]}" | tr '\n' ' ')
		false_at "$line" "\`$name\` is not defined in $file; it is in ${where:-no file of src, tools or include}"
	fi
done < <(grep -noE '`[A-Za-z_0-9]+(\(\))?` (\(|in )`[A-Za-z_0-9./]+\.[ch]u?' "$page")

nfiles=0
while IFS=: read -r line file; do
	nfiles=$((nfiles + 1))
	files "$file" >/dev/null || false_at "$line" "there is no file $file"
done < <(grep -noE '[A-Za-z_0-9][A-Za-z_0-9./-]*\.(c|h|cu|def)\b' "$page" | sort -u)

[ "$page" != docs/architecture.md ] || [ $npairs -ge 20 ] || false_at 1 "only $npairs functions with their files: is the page written otherwise now?"
# Falsehoods are found, and the message says where the function is.
if [ $# = 0 ]; then
	printf '`gantry_result_name` (`pool.c`)\n`gantry_result_name` in `nowhere.c`\n' >"$tmp/page.md"
	bash "$self" "$tmp/page.md" &>"$tmp/out" && false_at 1 "a page with two falsehoods passes"
	grep -q ':1: `gantry_result_name` is not defined in pool.c; it is in .*log\.' "$tmp/out" &&
		grep -q ':2: there is no file nowhere.c' "$tmp/out" || { cat "$tmp/out"; false_at 1 "the messages are wrong"; }
fi
[ $failed = 0 ] && echo "$page: $npairs functions are where it says, and $nfiles files exist"
exit $failed
