#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks whose settings differ refuse each other when they join, and each says which variable, both values and both ranks: for
# every parameter of which docs/params.md says that all ranks must agree (params_doc.sh keeps that page true).
# Catches: a parameter that is said to be compared and is not, an error without the variable's name or a value.
. "$(dirname "$0")/lib.sh"
no_leaks
clean_environment
export GANTRY_LOG=error RANK WORLD_SIZE=3 MASTER_ADDR=here

wrong() {
	fail "$*"
	cat "$tmp"/out.?
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
[ "$(wc -l <"$tmp/list")" -ge 8 ] || wrong "only these parameters must agree: $(cat "$tmp/list")"

while IFS=';' read -r name type def range; do
	a=$def
	case $type in
	choice) b=$(tr '|' '\n' <<<"$range" | grep -vx "$def" | head -n 1) ;;
	bool) b=$([ "$def" = on ] && echo off || echo on) ;;
	int) b=2 ;;
	size) b=8k ;;
	string) a=net b=shm,net ;;
	*) wrong "$name: no two values of type $type"; continue ;;
	esac
	together "$name" "$a" "$b"
	echo "-- $name: $a and $b"
	[ $status = 111 ] || wrong "$name: exit statuses $status, expected 111"
	grep -q "ERR_SETTING.*$name differs: $a on rank 0, $b on rank 1 (" "$tmp/out.0" || wrong "$name on rank 0"
	grep -q "ERR_SETTING.*$name differs: $b on rank 1, $a on rank 0 (" "$tmp/out.1" || wrong "$name on rank 1"
	grep -q "ERR_SETTING.*$name differs: $a on rank 2, $b on rank 1 (" "$tmp/out.2" || wrong "$name on rank 2"
done <"$tmp/list"

# Those on which they need not agree.
together GANTRY_PTR_MIN 16k 32k
[ $status = 000 ] || wrong "GANTRY_PTR_MIN may differ"
exit $failed
