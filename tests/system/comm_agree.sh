#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks whose settings differ refuse each other when they join, and each says which variable, both values and both ranks: for
# every parameter of which docs/params.md says that all ranks must agree (params_doc.sh keeps that page true).
# Catches: a parameter that is said to be compared and is not, an error without the variable's name or a value.
set -u
gantry=$BUILD_DIR/gantry
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # seconds per process; lifecycle.sh looks for leaks
for name in $(env | sed -n 's/^\(GANTRY_[A-Z0-9_]*\)=.*/\1/p'); do
	[ "$name" = GANTRY_SANITIZED ] || unset "$name"
done
export GANTRY_LOG=error RANK WORLD_SIZE=3 MASTER_ADDR=here
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

fail() {
	echo "FAILED: $*"
	cat "$tmp"/out.?
	failed=1
}

# together NAME VALUE-OF-RANKS-0-AND-2 VALUE-OF-RANK-1: exit statuses in $status.
together() {
	status=
	rm -f "$tmp/id"
	for RANK in 2 1 0; do
		env "$1=$([ $RANK = 1 ] && echo "$3" || echo "$2")" timeout 200 "$gantry" perf sendrecv --id-file "$tmp/id" \
			--ifname lo -b 8 -e 8 -n 1 -w 1 --repeats 1 >"$tmp/out.$RANK" 2>&1 &
		eval "pid$RANK=$!"
	done
	for pid in $pid0 $pid1 $pid2; do
		wait $pid
		status+=$?
	done
}

# name|type|default|allowed of those parameters.
awk '/^## /{gsub(/[#` ]/, ""); name = $0}
	/, default /{line = $0; type = $0; sub(/,.*/, "", type)
		def = line; sub(/.*default /, "", def); sub(/,.*/, "", def); gsub(/`/, "", def)
		range = ""; if (line ~ /allowed/) { range = line; sub(/.*allowed `/, "", range); sub(/`.*/, "", range) } }
	/All ranks must agree\./{print name ";" type ";" def ";" range}' "$SOURCE_DIR/docs/params.md" >"$tmp/list"
[ "$(wc -l <"$tmp/list")" -ge 8 ] || fail "only these parameters must agree: $(cat "$tmp/list")"

while IFS=';' read -r name type def range; do
	a=$def
	case $type in
	choice) b=$(tr '|' '\n' <<<"$range" | grep -vx "$def" | head -n 1) ;;
	int) b=2 ;;
	size) b=8k ;;
	string) a=net b=shm,net ;;
	*) fail "$name: no two values of type $type"; continue ;;
	esac
	together "$name" "$a" "$b"
	echo "-- $name: $a and $b"
	[ $status = 111 ] || fail "$name: exit statuses $status, expected 111"
	grep -q "ERR_SETTING.*$name differs: $a on rank 0, $b on rank 1 (" "$tmp/out.0" || fail "$name on rank 0"
	grep -q "ERR_SETTING.*$name differs: $b on rank 1, $a on rank 0 (" "$tmp/out.1" || fail "$name on rank 1"
	grep -q "ERR_SETTING.*$name differs: $a on rank 2, $b on rank 1 (" "$tmp/out.2" || fail "$name on rank 2"
done <"$tmp/list"

# Those on which they need not agree.
together GANTRY_PTR_MIN 16k 32k
[ $status = 000 ] || fail "GANTRY_PTR_MIN may differ"
exit $failed
