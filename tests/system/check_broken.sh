#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Each deliberately broken plugin fails by its own rule; the sound one that they are made of passes every rule.
. "$(dirname "$0")/lib.sh"
plugins=$BUILD_DIR/broken
timeouts="6 60" # a rule that waits for ever for the plugin takes as long; the second is for a loaded machine
versions="8 11"
if [ -n "${GANTRY_SANITIZED:-}" ]; then
	timeouts="12 60"
	versions=8
fi

# Rules with a verdict ($2) in the report $1, one line each; a report is JSON lines.
rules_with() {
	sed -n "s/^{\"rule\": \"\([^\"]*\)\".*\"verdict\": \"$2\".*/\1/p" "$1" | sort -u
}

# catches PLUGIN RULE: the rule that must catch it.
catches() {
	local so=$plugins/libnccl-net-broken_$1.so out=$tmp/$1.json rc timeout

	for timeout in $timeouts; do
		"$gantry" check "$so" --version 8 --timeout "$timeout" --json >"$out" 2>"$tmp/$1.err"
		rc=$?
		echo "broken_$1: fails: $(rules_with "$out" fail | tr '\n' ' ')"
		[ $rc -eq 1 ] || fail "broken_$1: exit status $rc, expected 1"
		grep -v '^{"rule": .*}$' "$out" && fail "broken_$1: lines that are not reports"
		rules_with "$out" fail >"$tmp/failed"
		grep -qx "$2" "$tmp/failed" || fail "broken_$1: rule $2 did not fail"
		[ "$(rules_with "$out" pass | wc -l)" -ge 12 ] && return
	done
	fail "broken_$1: fewer than 12 rules pass"
}

catches tags grouped-tags
catches blocks nonblocking
catches sizes test-sizes
catches leaks leaks
catches death peer-death
catches order ordering
catches overrun size-mismatch
catches requests in-flight
catches crash zero-bytes

rules=$("$gantry" check --list | wc -l)
for v in $versions; do
	check_rules "$tmp/none" "$rules" "$plugins/libnccl-net-broken_none.so" --version "$v" --timeout 60 ||
		fail "the sound plugin fails at v$v: $(cat "$tmp/none")"
	echo "the sound plugin: $passed of $rules rules pass at v$v"
done

# What is not a plugin, and wrong usage.
expect 2 "$gantry" check /nonexistent/libnccl-net-x.so
expect 2 "$gantry" check --rule nonsense x
"$gantry" check --list | grep -q '^grouped-tags ' || fail "--list does not name grouped-tags"

[ $failed = 0 ] && echo "ok"
exit $failed
