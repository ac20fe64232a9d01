#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Each deliberately broken plugin fails by its own rule; the sound one that they are made of passes every rule.
set -u
. "$SOURCE_DIR/tests/system/lib_tries.sh"
gantry=$BUILD_DIR/gantry
plugins=$BUILD_DIR/broken
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0
timeouts="6 60" # a rule that waits for ever for the plugin takes as long; the second is for a loaded machine
versions="8 11"
if [ -n "${GANTRY_SANITIZED:-}" ]; then
	timeouts="12 60"
	versions=8
fi

fail() {
	echo "FAIL: $*"
	failures=$((failures + 1))
}

# Rules with a verdict ($2) in the report $1, one line each; a report is JSON lines.
rules_with() {
	sed -n "s/^{\"rule\": \"\([^\"]*\)\".*\"verdict\": \"$2\".*/\1/p" "$1" | sort -u
}

# plugin, the rule that must catch it
expect() {
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

expect tags grouped-tags
expect blocks nonblocking
expect sizes test-sizes
expect leaks leaks
expect death peer-death
expect order ordering
expect overrun size-mismatch
expect requests in-flight
expect crash zero-bytes

rules=$("$gantry" check --list | wc -l)
for v in $versions; do
	check_rules "$tmp/none" "$rules" "$plugins/libnccl-net-broken_none.so" --version "$v" --timeout 60 ||
		fail "the sound plugin fails at v$v: $(cat "$tmp/none")"
	echo "the sound plugin: $passed of $rules rules pass at v$v"
done

# What is not a plugin, and wrong usage.
"$gantry" check /nonexistent/libnccl-net-x.so >"$tmp/out" 2>&1
rc=$?
[ $rc -eq 2 ] || fail "a library that is not there: exit status $rc, expected 2"
"$gantry" check --rule nonsense x >"$tmp/out" 2>&1
rc=$?
[ $rc -eq 2 ] || fail "an unknown rule: exit status $rc, expected 2"
"$gantry" check --list | grep -q '^grouped-tags ' || fail "--list does not name grouped-tags"

[ $failures -eq 0 ] && echo "ok"
exit $((failures > 0))
