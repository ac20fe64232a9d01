#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Man pages render without a warning, name themselves rightly and refer to pages that exist; what they document is what
# there is: every public function, every event of traces, every field of stall reports.
. "$(dirname "$0")/lib.sh"
cd "$SOURCE_DIR/man" || exit 1
# The words of a page, without the escapes of roff.
plain() { sed -E 's/\\f[A-Z]//g; s/\\\(dq/"/g; s/\\-/-/g; s/^\.[A-Z]+ //; s/"//g' "$@"; }

for page in *; do
	name=${page%.*}
	[ "$(sed -nE 's/\\-/-/g; s/^\.TH ([^ ]+) ([^ ]+) .*/\L\1.\2/p' "$page")" = "$page" ] || die "$page has another name in its .TH"
	sed -n '/^\.SH NAME/{n;p;q}' "$page" | sed 's/\\-/-/g' | grep -q "^$name - " || die "$page has another name under NAME"
	while read -r other; do
		[ -f "$other" ] || die "$page refers to $other, which is not there"
	done < <(sed -nE 's/\\-/-/g; s/^\.BR (gantry[a-z-]*) \(([0-9])\).*/\1.\2/p' "$page")
done
echo "ok: names and references"

# Functions: those of the map are in a synopsis, and only those. gantry_transport_init_v1 is the library's that is loaded.
map=$(sed -nE 's/^\t\t(gantry_[a-z_]+);$/\1/p' ../src/gantry.map | sort)
pages=$(sed -n '/^\.SH SYNOPSIS/,/^\.SH DESCRIPTION/p' ./*.3 | plain | grep -oE '\bgantry_[a-z_]+\(' | tr -d '(' | sort -u)
diff <(echo "$map") <(echo "$pages") || die "public functions (<) and those of the man pages (>) differ"
echo "ok: $(wc -l <<<"$map") functions"

# The pipeline's structs: the page shows each with all of its fields, and every value of its enums; and it says that memory has to be
# registered, without which every transfer is refused.
header=../include/gantry/rx.h
structs=$(sed -nE 's/^((struct|enum) gantry_rx_[a-z]+) \{.*/\1/p' $header)
[ "$(wc -l <<<"$structs")" -ge 5 ] || die "no structs found in rx.h"
# members STRUCT FILE: the words between its braces that a ; or , or } follows, and those before a value.
members() { awk -v begin="$1 {" 'index($0, begin) == 1 { on = 1 } on { print } on && /};/ { exit }' "$2" | sed -E 's,/\*[^*]*\*/,,g; s,^[^{]*\{,,' | tr '\n\t' '  ' | sed -E 's,/\*[^*]*\*/,,g; s, = [0-9]+,,g' | grep -oE '[A-Za-z_]+ *[;,}]' | tr -d ' ;,}' | sort; }
while read -r struct; do
	diff <(members "$struct" $header) <(members "$struct" gantry-rx.3) || die "members of $struct in rx.h (<) and in gantry-rx.3 (>) differ"
	[ "$(members "$struct" $header | wc -l)" -ge 3 ] || die "no members of $struct found"
done <<<"$structs"
plain gantry-rx.3 | tr '\n' ' ' | grep -qF "must lie in memory that was registered with gantry_rx_register " || die "gantry-rx.3 does not say that memory is registered"
echo "ok: structs of the pipeline"

events=$(sed -nE 's/^\tX\([A-Z_]+, +"([a-z ]+)", +"([a-z]*)", +"([a-z]*)", +"([a-z]*)"\).*/\1 (\2, \3, \4)/p' ../src/base/event.h |
	sed -E 's/(, )+\)/)/' | grep -v '^none ')
[ "$(wc -l <<<"$events")" -ge 10 ] || die "no events found in event.h"
while read -r event; do
	plain gantry-trace.5 | grep -qxF "$event" || die "gantry-trace.5 does not have the event: $event"
done <<<"$events"
fields=$(grep -oE 'json_[a-z]+\(&?j, "[a-z_]+"' ../src/comm/report.c | grep -oE '[a-z_]+"' | tr -d '"' | sort -u)
[ "$(wc -l <<<"$fields")" -ge 30 ] || die "no fields found in report.c"
for field in $fields; do
	grep '^\.BR\? ' gantry-stall.5 | plain | grep -qw "$field" || die "gantry-stall.5 does not have the field $field"
done
echo "ok: events and fields"

command -v groff >/dev/null || skip "no groff to render the pages with"
for page in *; do
	said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
	[ -z "$said" ] || die "$page does not render: $said"
	if command -v man >/dev/null; then
		said=$(MANWIDTH=80 man --warnings -l "$page" 2>&1 >/dev/null)
		[ -z "$said" ] || die "man warns of $page: $said"
	fi
done
pages=(*)
echo "ok: ${#pages[@]} pages render without a warning"
