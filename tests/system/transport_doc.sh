#!/bin/bash
# The quotes in docs/adding-a-transport.md are lines of tests/transport/mailbox.c, one after the other, as they stand.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
page=$SOURCE_DIR/docs/adding-a-transport.md
code=$(cat "$SOURCE_DIR/tests/transport/mailbox.c") || exit 1
quotes=0 quote= inside=0

while IFS= read -r line; do
	if [ "$line" = '```c' ]; then
		inside=1 quote=
	elif [ "$line" = '```' ] && [ $inside = 1 ]; then
		inside=0 quotes=$((quotes + 1))
		[[ $'\n'$code$'\n' == *$'\n'"$quote"* ]] || { printf 'FAILED: not in mailbox.c:\n%s' "$quote"; exit 1; }
	elif [ $inside = 1 ]; then
		quote+=$line$'\n'
	fi
done <"$page"
[ $inside = 0 ] && [ $quotes -ge 10 ] || { echo "FAILED: $quotes quotes in $page, and one not ended: $inside"; exit 1; }
echo "$quotes quotes are right"
