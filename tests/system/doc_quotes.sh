#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# C in the pages below is quoted from code that is built and run: each quote is lines of that file, one after the other, as
# they stand. So what people copy from a page checks its results and does not crash.
. "$(dirname "$0")/lib.sh"

# quoted PAGE FILE ATLEAST: all quotes of the page, of which there are that many or more.
quoted() {
	local code line quotes=0 quote='' inside=0
	code=$(cat "$SOURCE_DIR/$2") || exit 1
	while IFS= read -r line; do
		if [ "$line" = '```c' ]; then
			inside=1 quote=
		elif [ "$line" = '```' ] && [ $inside = 1 ]; then
			inside=0 quotes=$((quotes + 1))
			[[ $'\n'$code$'\n' == *$'\n'"$quote"* ]] || { printf 'FAILED: %s: not in %s:\n%s' "$1" "$2" "$quote"; exit 1; }
		elif [ $inside = 1 ]; then
			quote+=$line$'\n'
		fi
	done <"$SOURCE_DIR/$1"
	[ $inside = 0 ] && [ $quotes -ge "$3" ] || { echo "FAILED: $quotes quotes in $1, and one not ended: $inside"; exit 1; }
	echo "$1: $quotes quotes are right"
}
quoted docs/adding-a-transport.md tests/transport/mailbox.c 10
quoted docs/rx.md examples/rx_tensor.c 3
quoted README.md examples/sendrecv.c 1
