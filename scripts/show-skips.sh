#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/show-skips.sh FILE: what a ctest run left out, each with its reason; FILE is its --output-junit.
# A test that cannot run prints "skipped: reason" and exits with 77; one that leaves out only a part prints the same
# line and goes on.
set -euo pipefail
[ -f "$1" ] || exit 0
awk '
	function text(s) {
		gsub(/&lt;/, "<", s); gsub(/&gt;/, ">", s); gsub(/&quot;/, "\"", s); gsub(/&apos;/, "\047", s)
		gsub(/&amp;/, "\\&", s)
		return s
	}
	/<testcase / {
		name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name)
		whole = /status="notrun"/; reasons = 0
	}
	{ sub(/^[ \t]*<system-out>/, "") }
	/^skipped: / { line[n++] = "  " name (whole ? ": " : ", in part: ") text(substr($0, 10)); reasons++ }
	/<\/testcase>/ && whole && !reasons { line[n++] = "  " name ": no reason given" }
	END {
		if (n)
			print "Left out here:"
		for (i = 0; i < n; i++)
			print line[i]
	}
' "$1"
