#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# Reducers that are processes of their own, with two jobs at once. A rank or reducer that is killed, stopped or told to end
# is a typed error on all ranks of its job, in time, with its name, and the other job goes on; the next job does with the
# reducers that are left. What a job waits for is in counters and stall reports.
. "$(dirname "$0")/lib.sh"
no_leaks
own_network "$0"
clean_environment
export GANTRY_IFNAME=lo GANTRY_CONNECT_TIMEOUT=20s GANTRY_STATS_DIR=$tmp/stats GANTRY_STALL_DIR=$tmp GANTRY_STALL_SIGNAL=USR2
declare -A pid_of
all_pids() { echo "${pid_of[@]}"; }
end_all()
{
	local p
	for p in $(all_pids); do
		kill -KILL "$p" 2>/dev/null
		wait "$p" 2>/dev/null
	done
	pid_of=()
}
at_exit() { end_all; }
now_ms() { awk '{ printf "%d\n", $1 * 1000 }' /proc/uptime; }

# serve NUMBER OPTION...: a reducer on port 18600 + NUMBER.
serve()
{
	local n=$1
	shift
	"$gantry" reducer --listen 127.0.0.1:$((18600 + n)) --json "$@" >"$tmp/reducer$n.out" 2>"$tmp/reducer$n.err" &
	pid_of[reducer$n]=$!
	await grep -q listening "$tmp/reducer$n.out" || die "reducer $n does not listen"
}
# job NAME RANKS BYTES COUNT [all_gather]: its ranks, with what they say in NAME.RANK.out.
job()
{
	local r
	rm -rf "$tmp/$1" "$tmp/$1".*
	mkdir "$tmp/$1"
	for ((r = 0; r < $2; r++)); do
		GANTRY_STALL_DIR= "$BUILD_DIR/drivers/reduce_job" $r "$2" "$tmp/$1" "${@:3}" >"$tmp/$1.$r.out" 2>"$tmp/$1.$r.err" &
		pid_of[$1.$r]=$!
	done
}
# said NAME RANKS PATTERN [WITHOUT]: all ranks, but one, have said so.
said()
{
	local r
	for ((r = 0; r < $2; r++)); do
		[ "$r" = "${4:-}" ] || grep -qsE "$3" "$tmp/$1.$r.out" || return 1
	done
}
# works NAME RANKS: or a rank has failed, for a machine that is too busy for the deadline.
works()
{
	await said "$1" "$2" 'works|failed' || die "job $1 neither works nor fails"
	said "$1" "$2" works || { grep -h failed "$tmp/$1".*.out; return 1; }
}
# failed_in_time NAME RANKS SINCE WITHOUT ERRORS TEXT: all ranks but one fail with one of the errors and that text, within
# the deadline and a second.
failed_in_time()
{
	local r at limit=$((${GANTRY_TIMEOUT%s} * 1000 + LATE_MS)) ok=1
	await said "$1" "$2" ' failed: ' "$4" || die "not all ranks of job $1 fail"
	for ((r = 0; r < $2; r++)); do
		[ "$r" = "$4" ] && continue
		grep -qE " failed: ($5) at [0-9]+: .*$6" "$tmp/$1.$r.out" ||
			{ cat "$tmp/$1.$r.out"; die "rank $r of job $1 does not fail with $5, $6"; }
		at=$(sed -nE 's/.* failed: .* at ([0-9]+): .*/\1/p' "$tmp/$1.$r.out")
		[ $((at - $3)) -le $limit ] || { echo "rank $r of job $1 fails after $((at - $3)) ms"; ok=; }
	done
	[ -n "$ok" ]
}
# A reducer's report names the rank that it waits for.
reported() { cat "$tmp"/stall-*.jsonl 2>/dev/null | grep -q '"peer":"rank 0 of 3 of job '; }
gone='ERR_PEER_(LOST|SILENT|CLOSED)'

run()
{
	local t
	end_all
	rm -f "$tmp"/stall-* "$tmp"/reducer*
	export GANTRY_REDUCERS=127.0.0.1:18601,127.0.0.1:18602
	serve 1
	serve 2

	# Two jobs at once; a rank of one is killed.
	job B 2 300000 0
	works B 2 || return 1
	job A 3 1000000 0
	works A 3 || return 1
	said A 3 'opened: 2 of 2 reducers' || die "job A does not use both reducers"
	t=$(now_ms)
	kill -KILL "${pid_of[A.1]}"
	failed_in_time A 3 "$t" 1 "$gone" 'reducer [01] of 2 \(127.0.0.1:.*: rank 1 was lost' || return 1

	# A rank is stopped; until that is an error, reports and counters name it.
	job C 3 1000000 0
	works C 3 || return 1
	t=$(now_ms)
	kill -STOP "${pid_of[C.0]}"
	await reported || return 1
	"$gantry" stall "$tmp" >"$tmp/stall.out"
	grep -q "^verdict .* pid ${pid_of[C.0]} is waited for" "$tmp/stall.out" || { cat "$tmp/stall.out"; return 1; }
	kill -USR2 "${pid_of[reducer1]}"
	await grep -qE 'reducer(: | \()report requested' "$tmp/reducer1.err" || die "a reducer does not answer the signal"
	failed_in_time C 3 "$t" 0 "$gone" 'reducer [01] of 2 \(127.0.0.1:.*: rank 0 was lost' || return 1
	kill -KILL "${pid_of[C.0]}"

	# The other job has gone on meanwhile. A reducer is told to end: that is not its fault either.
	! grep -hs failed "$tmp"/B.*.out || return 1
	"$gantry" top --once -i 50ms >"$tmp/top.out"
	grep -qE '^  job [0-9a-f]{8} +2 ranks ' "$tmp/top.out" || { cat "$tmp/top.out"; die "gantry top does not show job B"; }
	t=$(now_ms)
	kill -TERM "${pid_of[reducer2]}"
	failed_in_time B 2 "$t" none ERR_PEER_CLOSED 'reducer 1 of 2 \(127.0.0.1:.*: the reducer is shutting down' || return 1
	wait "${pid_of[reducer2]}" || die "a reducer that is told to end gives $?"

	# The next job does with the one that is left, until that is killed.
	GANTRY_CONNECT_TIMEOUT=$GANTRY_TIMEOUT job D 2 100000 0
	works D 2 || return 1
	said D 2 'opened: 1 of 2 reducers' || { cat "$tmp"/D.*.err; return 1; }
	grep -q 'goes on without reducer 1 of 2 (127.0.0.1:18602): .*Connection refused' "$tmp/D.0.err" || die "D: no reason"
	t=$(now_ms)
	kill -KILL "${pid_of[reducer1]}"
	failed_in_time D 2 "$t" none "$gone" 'reducer 0 of 2 \(127.0.0.1:' || return 1

	# A reducer is stopped; then there is none.
	export GANTRY_REDUCERS=127.0.0.1:18603
	serve 3
	job E 2 100000 0
	works E 2 || return 1
	t=$(now_ms)
	kill -STOP "${pid_of[reducer3]}"
	failed_in_time E 2 "$t" none "$gone" 'reducer 0 of 1 \(127.0.0.1:' || return 1
	t=$(now_ms)
	GANTRY_CONNECT_TIMEOUT=$GANTRY_TIMEOUT job F 2 100000 1
	failed_in_time F 2 "$t" none ERR_UNREACHABLE 'none of the 1 reducers .*\(127.0.0.1:18603\)' || return 1
}
with_deadlines run || fail "no deadline holds"
echo "ok: ranks and reducers that die"

# An all-gather: reducers receive each part once and send it to all other ranks, each reducer its share. A rank receives as
# many bytes as without them, which is why the communicator does not gather this way (docs/reducer.md).
end_all
export GANTRY_REDUCERS=127.0.0.1:18605,127.0.0.1:18606
serve 5
serve 6
job A 4 1048576 5 all_gather
await said A 4 'done: 5 operations' || die "no all-gather: $(cat "$tmp"/A.?.out)"
for i in 5 6; do
	await grep -q '"event": "ended"' "$tmp/reducer$i.out" || die "the end is not told"
	grep '"event": "ended"' "$tmp/reducer$i.out" | grep -q "\"received_bytes\": $((5 * 1048576 / 2)), \"sent_bytes\": $((5 * 3 * 1048576 / 2))," ||
		die "bytes of an all-gather: $(cat "$tmp/reducer$i.out")"
done
echo "ok: an all-gather"

# No memory for a job: its ranks are told why.
end_all
export GANTRY_REDUCERS=127.0.0.1:18604
serve 4 --memory 4M
job A 4 1000 1
await said A 4 'failed: ERR_UNREACHABLE' || die "a job beyond the memory is served"
grep -q 'needs 5.0 MiB here, but of 4 MiB (--memory)' "$tmp/A.0.out" || die "A: no reason: $(cat "$tmp/A.0.out")"
job A 2 1000 5
await said A 2 'done: 5 operations' || die "a job within the memory is not served"
grep -q '"event": "refused"' "$tmp/reducer4.out" || die "the refusal is not told"
await grep -q '"event": "ended".*"pieces": 5,' "$tmp/reducer4.out" || die "the end is not told"
echo "ok: memory"

# With a secret, with encryption, and with another secret.
for settings in GANTRY_SECRET=alpha "GANTRY_SECRET=alpha GANTRY_ENCRYPT=require"; do
	has_openssl || break
	end_all
	export $settings
	serve 4
	job A 3 300000 5
	await said A 3 'done: 5 operations' || die "no job with $settings"
	GANTRY_SECRET=beta job B 2 1000 1
	await said B 2 'failed: ERR_UNREACHABLE' || die "another secret is served"
	grep -q 'goes on without reducer 0 of 1 (127.0.0.1:18604): .*GANTRY_SECRET' "$tmp/B.0.err" || die "B: no reason"
done
echo "ok: secrets"

# Addresses that cannot be one are wrong usage; one that is not here is a failure.
tested=("$gantry" reducer --listen)
for at in 127.0.0.1:99999 127.0.0.1:abc :18604 127.0.0.1,127.0.0.2; do expect 2 $at; done
expect 1 192.0.2.1
like err 'listen on 192.0.2.1:[0-9]+: .*this machine has no such address$'
exit $failed
