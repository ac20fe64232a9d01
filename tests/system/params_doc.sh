#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/params.md and man/gantry-params.7 are what `gantry doctor --params-markdown` and `--params-man` print, and every
# parameter of params.def is in them. To mend them: make docs
. "$(dirname "$0")/lib.sh"

[ -x "$gantry" ] || die "$gantry was not built"
# By another way than the table's own: the names as they stand in params.def.
names=$(sed -nE 's/^P_[A-Z]+\([a-z_0-9]+, "([A-Z_0-9]+)".*/\1/p' "$SOURCE_DIR/src/base/params.def")
[ -n "$names" ] || die "no names found in params.def"

# compare OPTION PAGE BEFORE AFTER: a parameter's heading is its name between BEFORE and AFTER, and nothing else is one.
compare() {
	local page=$SOURCE_DIR/$2
	"$gantry" doctor "$1" >"$tmp/now" || die "gantry doctor $1 exits with $?"
	diff -u "$page" "$tmp/now" || die "$2 is out of date; see the top of this script"
	# The page is about defaults: it does not depend on what is set, and it tells no secret.
	GANTRY_LANES=3 GANTRY_SECRET=hunter2 "$gantry" doctor "$1" >"$tmp/set" ||
		die "gantry doctor $1 with parameters set exits with $?"
	diff -u "$page" "$tmp/set" || die "$2 depends on the environment"
	diff -u <(sed "s/.*/$3&$4/" <<<"$names") <(grep "^$3[A-Z_0-9]*$4\$" "$page") || die "$2 has other parameters than params.def"
	echo "$2 has all $(wc -l <<<"$names") parameters"
}
compare --params-markdown docs/params.md '## `' '`'
compare --params-man man/gantry-params.7 '.B ' ''
