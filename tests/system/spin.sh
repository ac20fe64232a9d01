#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow idle
# time limit: 1800
# The models of the connection FIFO, of its eventcounts, of sessions and streams that outlive sockets, and of remote memory access (models/*.pml) hold in their
# whole state space, and Spin finds each bug that is planted in them, by the property that it breaks.
# Catches: a protocol that loses, repeats or overwrites steps, a wake-up that is lost, an end that does not come after
# abort, a session or a stream that loses or doubles messages with its sockets, a signal that shows before its data or is lost; and a model or a search that would not notice.
# SPIN_LONG=1: wider bounds too, which take five minutes and 3 GB.
. "$(dirname "$0")/lib.sh"
cc=${CC:-cc}
need spin "$cc"

# What must come out | model | definitions. What: "clean" is no error; otherwise the report in which the bug shows.
# SEND, RECV: a half of the chain with relaxed memory. SEND RECV SC: the chain. LIVE: with the ltl formula, under weak
# fairness. A `!` marks the searches of some size, for which an optimised build pays.
payload_a='assertion violated .*==sent\)'
payload_b='assertion violated .*==b_head\)'
data_late='assertion violated .*data\[[01]\]==round\)'
runs="
clean | fifo | SEND
clean | fifo | SEND POOL=1
clean | fifo | SEND POOL=2 !
clean | fifo | SEND PTRS=1
clean | fifo | SEND PTRS=2
clean | fifo | SEND PTRS=2 POOL=1 !
clean | fifo | SEND STEPS=3
clean | fifo | SEND STEPS=3 PTRS=1
clean | fifo | RECV
clean | fifo | RECV POOL=1
clean | fifo | RECV POOL=2 !
clean | fifo | RECV PTRS=1
clean | fifo | RECV PTRS=2 !
clean | fifo | RECV PTRS=2 POOL=1 !
clean | fifo | RECV STEPS=3 !
clean | fifo | RECV STEPS=3 POOL=2 !
clean | fifo | RECV STEPS=3 PTRS=1 !
clean | fifo | SEND RECV SC !
clean | fifo | SEND RECV SC POOL=1 !
clean | fifo | SEND RECV SC PTRS=1 !
clean | fifo | LIVE SEND
clean | fifo | LIVE SEND POOL=1
clean | fifo | LIVE SEND PTRS=1
clean | fifo | LIVE RECV
clean | fifo | LIVE RECV POOL=1
clean | fifo | LIVE RECV PTRS=1
clean | fifo | LIVE SEND RECV SC OPS=1 !
clean | fifo | LIVE SEND RECV SC OPS=1 POOL=1 !
clean | fifo | LIVE SEND RECV SC OPS=2 PTRS=1 !
clean | eventcount | !
clean | eventcount | PAIR !
clean | eventcount | LIVE ROUNDS=1 !
clean | eventcount | LIVE PAIR ROUNDS=1 !
clean | resume | FAULTS=1 EAGERS=1 !
clean | resume | FAULTS=2 LANES=2 PIECES=1 EAGERS=1 !
clean | resume | FAULTS=1 LANES=2 PIECES=1 EAGERS=2 !
clean | resume | FAULTS=1 LANES=2 PIECES=1 EAGERS=1 RESTART !
clean | resume | STREAM FAULTS=1 ATTEMPTS=1 FRAMES=2 !
clean | resume | STREAM FAULTS=1 ATTEMPTS=2 FRAMES=1 !
clean | resume | STREAM FAULTS=2 ATTEMPTS=1 FRAMES=1 !
clean | resume | STREAM FAULTS=1 ATTEMPTS=1 FRAMES=2 GONE !
clean | resume | STREAM FAULTS=2 ATTEMPTS=1 FRAMES=1 GONE !
clean | rma | !
clean | rma | HOST_WORD !
${SPIN_LONG:+
clean | resume | FAULTS=1 LANES=2 PIECES=1 EAGERS=1 RESTART SENDER_ACCEPTS !
clean | resume | FAULTS=2 EAGERS=1 !
clean | resume | FAULTS=2 EAGERS=1 SENDER_ACCEPTS !
clean | resume | FAULTS=3 LANES=2 EAGERS=1 PIECES=1 !
clean | resume | STREAM FAULTS=2 ATTEMPTS=1 FRAMES=2 !
clean | resume | STREAM FAULTS=1 ATTEMPTS=2 FRAMES=2 !
clean | resume | STREAM FAULTS=1 ATTEMPTS=1 FRAMES=3 !
clean | rma | ROUNDS=3 FAULTS=2 !
}
$payload_a | fifo | SEND BUG_RELEASE
$payload_b | fifo | RECV BUG_RELEASE
$payload_b | fifo | RECV PTRS=1 BUG_RELEASE
assertion violated .*a_published-a_head | fifo | SEND BUG_CREDIT
assertion violated .*b_published-b_head | fifo | RECV BUG_CREDIT
invalid end state | fifo | SEND BUG_ABORT
acceptance cycle | fifo | LIVE SEND BUG_ABORT
$payload_a | fifo | SEND PTRS=1 BUG_END
assertion violated .*&31\)==seen\) | fifo | SEND PTRS=1 BUG_WHERE
assertion violated 0 | fifo | RECV PTRS=2 BUG_STALE=1
assertion violated .*&31\)==seen\) | fifo | SEND PTRS=2 BUG_STALE=2
assertion violated 0 | fifo | SEND PTRS=2 POOL=1 BUG_STALE=3
$payload_b | fifo | RECV BUG_HEAD=1
assertion violated 0 | fifo | SEND PTRS=2 POOL=1 BUG_HEAD=2 !
assertion violated .*early==b_head\) | fifo | RECV BUG_ACQUIRE
invalid end state | eventcount | BUG_WAKE=1
invalid end state | eventcount | BUG_WAKE=2
invalid end state | eventcount | BUG_WAKE=3
acceptance cycle | eventcount | LIVE PAIR BUG_WAKE=1
invalid end state | eventcount | BUG_ABORT
assertion violated .*released | resume | FAULTS=1 EAGERS=1 BUG_EARLY
assertion violated .*placed | resume | FAULTS=1 EAGERS=1 BUG_REQUEUE
invalid end state | resume | FAULTS=1 EAGERS=1 BUG_COUNT
assertion violated .*placed | resume | FAULTS=1 EAGERS=1 BUG_STOP
assertion violated .*a==eg | resume | FAULTS=1 LANES=2 PIECES=1 BUG_REWIND
assertion violated .*eback | resume | FAULTS=1 LANES=2 PIECES=1 BUG_HELD
invalid end state | resume | FAULTS=2 LANES=2 PIECES=1 EAGERS=1 BUG_RETELL
invalid end state | resume | FAULTS=2 LANES=2 PIECES=1 EAGERS=1 BUG_GENERATION !
invalid end state | resume | FAULTS=2 LANES=2 PIECES=1 EAGERS=1 BUG_INSTALL !
invalid end state | resume | FAULTS=1 LANES=2 PIECES=1 EAGERS=1 RESTART BUG_SESSION
assertion violated .*==received | resume | STREAM FAULTS=1 FRAMES=2 BUG_TWICE
assertion violated .*impossible | resume | STREAM FAULTS=1 FRAMES=2 BUG_TRIM
invalid end state | resume | STREAM FAULTS=1 FRAMES=1 BUG_REWIND
invalid end state | resume | STREAM FAULTS=1 FRAMES=2 BUG_FIRST
assertion violated .*==received | resume | STREAM FAULTS=1 FRAMES=2 BUG_ANSWER
invalid end state | resume | STREAM FAULTS=1 FRAMES=1 GONE BUG_REFUSE
$data_late | rma | HOST_WORD BUG_FENCE
$data_late | rma | HOST_WORD BUG_CONTEXT
$data_late | rma | BUG_EARLY
$data_late | rma | HOST_WORD BUG_EARLY
$data_late | rma | BUG_ORDER
$data_late | rma | BUG_SLOT
$data_late | rma | BUG_DONE
assertion violated .*<=3\) | rma | BUG_KEPT
assertion violated .*<=3\) | rma | BUG_TWICE
assertion violated .*\[1\]<round | rma | BUG_TWO
invalid end state | rma | BUG_STALE
"

# run FOLDER WHAT MODEL DEFINITIONS: a line on stdout; fails if something else came out.
run()
{
	local folder=$1 what=$2 model=$3 words=$4 name optimise=-O0 build=-DSAFETY search='' states found bad=''
	local -a defines=()
	[ "${words%!}" = "$words" ] || optimise=-O1
	words=${words%!}
	name="$model $words"
	for word in $words; do
		defines+=("-D$word")
		[ "$word" != LIVE ] || { build=-DNFAIR=3 search='-a -f'; }
	done
	mkdir "$folder" && cd "$folder" || return 1
	# Searches are exhaustive unless BITSTATE or HC is asked for; at most 900 MB each (3900 if long), two at a time.
	# shellcheck disable=SC2086 # options are words
	spin "-P$cc -E -x c" -a "${defines[@]}" "$SOURCE_DIR/models/$model.pml" >spin.out 2>&1 &&
		"$cc" $optimise -w $build ${SPIN_LONG:+-DCOLLAPSE} -DMEMLIM=${SPIN_LONG:+3}900 -o pan pan.c >cc.out 2>&1 &&
		./pan $search -m20000 -w22 >pan.out 2>&1 || bad="Spin, the compiler or the search failed"
	states=$(sed -nE 's/^ *([0-9]+) states, stored.*/\1/p' pan.out)
	found=$(grep -m1 '^pan:1: ' pan.out | sed 's/^pan:1: //')
	printf '%-46s %9s states, %s%s\n' "$name" "${states:-?}" "$(grep -o 'errors: [0-9]*' pan.out)" \
		"${found:+: $found}"
	if [ -z "$bad" ]; then
		grep -q '^Full statespace search' pan.out || bad="not a full search"
		if [ "$what" != clean ]; then
			grep -q 'errors: [1-9]' pan.out && grep -Eq -- "$what" <<<"$found" || bad="expected: $what"
		elif ! grep -q 'errors: 0$' pan.out; then
			bad="an error in a clean model"
		elif grep -Eq 'Search not completed|max search depth too small|out of memory' pan.out; then
			bad="the search was cut short"
		fi
		if [ "$build" = -DSAFETY ]; then
			grep -Eq 'invalid end states[[:space:]]*\+' pan.out
		else
			grep -Eq 'acceptance +cycles[[:space:]]*\+ \(fairness enabled\)' pan.out
		fi && grep -Eq 'assertion violations[[:space:]]*\+' pan.out || bad="the search left properties out"
	fi
	[ -z "$bad" ] && return
	echo "FAILED: $name: $bad"
	cat spin.out cc.out pan.out 2>/dev/null | head -n 40
	return 1
}

jobs=0 n=0
while IFS='|' read -r what model words; do
	[ -n "$what" ] || continue
	read -r what <<<"$what" # without the blanks around it; a pattern is taken as it is
	read -r model <<<"$model"
	read -r words <<<"$words"
	if [ $jobs -ge 2 ]; then
		wait -n || failed=1
		jobs=$((jobs - 1))
	fi
	n=$((n + 1))
	(run "$tmp/$n" "$what" "$model" "$words" >"$tmp/$n.line" 2>&1; rc=$?; cat "$tmp/$n.line"; exit $rc) &
	jobs=$((jobs + 1))
done <<<"$runs"
while [ $jobs -gt 0 ]; do
	wait -n || failed=1
	jobs=$((jobs - 1))
done
echo "$n searches, $([ $failed = 0 ] && echo "all as expected" || echo "some FAILED")"
exit $failed
