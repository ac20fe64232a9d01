#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_SECRET=alpha
# `gantry perf sendrecv` over every transport, mode and protocol, ranks as processes and as threads: no wrong byte, and the
# counters say that the mode and the protocol asked for were used. Then patterns, launchers, wrong usage, ranks that die,
# and `gantry perf fifo`.
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_SECRET
export GANTRY_LOG=warn
tested=("$gantry" perf)

# check_rows ROWS: a header, then ROWS objects with all fields and no wrong byte.
check_rows() {
	local f
	check_json "$1" bytes count time_us algbw_gbs busbw_gbs wrong ranks
	for f in type transport mode proto pattern device; do
		[ "$(grep -cE "\"$f\": \"[^\"]+\"[,}]" "$tmp/rows")" = "$1" ] || die "rows without a word $f"
	done
	grep -v '"bytes": 0,' "$tmp/rows" >"$tmp/full" # messages of nothing go their own way
}
# all_have FIELD VALUE: in every row with bytes.
all_have() { ! grep -qvE "\"$1\": $2[,}]" "$tmp/full" || die "rows whose $1 is not $2"; }

if [ -n "${GANTRY_SANITIZED:-}" ]; then
	few="-n 2 -w 1 --repeats 1" largest=32k rows=25
else
	few="-n 4 -w 1 --repeats 1" largest=1M rows=29
fi
few="$few --timeout 200s"

# one TRANSPORT MODE PROTO EXPECTED-MODE COPIES-SEND COPIES-RECV ARGUMENT...
one() {
	local transport=$1 mode=$2 proto=$3 used=$4 send=$5 recv=$6
	shift 6
	expect 0 sendrecv --ranks 2 --transport "$transport" --mode "$mode" --proto "$proto" -b 0 -e $largest -f 8 --odd --json \
		$few "$@"
	check_rows $rows
	all_have transport "\"$transport\""
	all_have mode "\"$used\""
	all_have proto "\"$proto\""
	all_have copies_send "$send"
	all_have copies_recv "$recv"
}

for threads in "" --threads; do
	for t in net shm p2p; do
		for p in simple ll ll128; do
			one $t normal $p normal 1 1 $threads
		done
	done
	one net offset simple offset 1 1 $threads
	one net ptr simple ptr 0 0 $threads # nobody copies: the network takes it from the buffer
	one shm ptr simple ptr 0 1 $threads # the receiver copies, from the sender's buffer
	one p2p ptr simple ptr 0 1 $threads
	# As it is chosen, small to large: all of them in one run, several messages per group.
	expect 0 sendrecv --ranks 2 -b 0 -e $largest -f 8 -m 3 --json $few $threads
	check_rows $([ $largest = 1M ] && echo 8 || echo 6)
done

# Patterns and more ranks than CPUs.
expect 0 sendrecv --ranks 3 -b 0 -e 64k -f 16 --json $few
check_rows 5
all_have ranks 3
expect 0 sendrecv --ranks 3 --pattern oneway -m 8 --transport net -b 1k -e 64k -f 8 --json $few # rank 2 has nobody
check_rows 3
expect 0 sendrecv --ranks 4 --pattern alltoall -b 0 -e 64k -f 16 --json $few
check_rows 5
all_have pattern '"alltoall"'
expect 0 sendrecv --ranks 4 --pattern alltoall --transport net --threads -b 1 -e 64k -f 64 --json -d int8 $few
check_rows 3
expect 0 sendrecv --pattern pingpong --transport shm -b 8 -e 8 --baseline --json $few
check_rows 1
grep -qE '"flag_us": ([0-9.e-]+|null)' "$tmp/rows" && grep -qE '"memcpy_gbs": [0-9.]+' "$tmp/rows" || die "no baselines"
for threads in "" --threads; do
	expect 0 sendrecv --ranks 100 --transport shm -b 8 -e 8 --json $few $threads
	check_rows 1
	all_have ranks 100
done
# One machine plays two hosts: ranks 0 and 1, and 2 and 3, share memory, the others do not.
expect 0 sendrecv --ranks 4 --hosts 2 --pattern alltoall -b 8 -e 64k -f 64 --json $few
check_rows 3
all_have transport '"self\+p2p\+net"'
expect 2 sendrecv --ranks 2 --hosts 3
expect 2 sendrecv --hosts 2 --threads
expect 0 sendrecv --ranks 2 --channels 4 -b 4M -e 4M --odd --json $few # split over channels
check_rows 4
expect 0 sendrecv --ranks 1 -b 1k -e 1k --json $few # to itself
check_rows 1
all_have transport '"self"'
expect 0 sendrecv --ranks 2 --transport net --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so" -b 64 -e 64k -f 64 --json $few
check_rows 2

# For people.
expect 0 sendrecv -b 64 -e 4k -f 8 $few
has out "(GB/s)"
has out "# wrong bytes: 0; OK"
expect 0 sendrecv --help

# Started by somebody else: rank and size from the environment, the id in a file.
for rank in 2 1 0; do
	RANK=$rank WORLD_SIZE=3 MASTER_ADDR=here timeout 280 "$gantry" perf sendrecv --id-file "$tmp/id" --ifname lo -b 0 -e 32k -f 8 \
		--json $few >"$tmp/out.$rank" 2>"$tmp/err.$rank" &
	eval "pid$rank=$!"
done
wait $pid0 && wait $pid1 && wait $pid2 || { cat "$tmp"/err.*; die "ranks of a launcher"; }
cp "$tmp/out.0" "$tmp/out"
check_rows 6
[ ! -s "$tmp/out.1" ] || die "rank 1 prints too"
[ ! -e "$tmp/id" ] || die "the id file is left"
echo "ok: ranks of a launcher"
RANK=0 WORLD_SIZE=2 MASTER_ADDR=here expect 2 sendrecv
has err "--id-file"

# Wrong usage is 2, a transport or a device that cannot be had is 1.
expect 2 sendrecv -b 2k -e 1k
expect 2 sendrecv --pattern star
expect 2 sendrecv --ranks 1025
expect 2 sendrecv surplus
expect 2 sendrecv --transport nosuch -b 8 -e 8 $few
has err "nosuch"
expect 2 sendrecv --transport net --ifname =nosuchif0 -b 8 -e 8 $few

# A rank that dies or stands still is named.
# interrupt SIGNAL ARGUMENT...: starts it, sends the signal to rank 1 when both are at work, and waits for the end.
interrupt() {
	local signal=$1 tool
	shift
	timeout 280 "$gantry" perf sendrecv -b 8 -e 16 -f 2 -n 1000000000 -w 1 "$@" >"$tmp/out" 2>"$tmp/err" &
	tool=$!
	ranks_at_work $tool || { echo "there should be two ranks: $ranks"; kill $tool; wait $tool; return 1; }
	kill -"$signal" "${ranks##* }"
	wait $tool
	[ $? = 1 ] || die "signal $signal to a rank should make it fail"
	await all_gone $ranks || die "ranks $ranks are left"
}
# stand_still TIME: whether it is rank 1 that is named then.
stand_still() {
	interrupt STOP --transport shm --timeout "$1s" && grep -qF "no progress for $1.0 s: rank 1" "$tmp/err" &&
		grep -qF "does not answer" "$tmp/err" && grep -qF "rank 0 after" "$tmp/err"
}
if command -v ps >/dev/null; then
	interrupt KILL --transport net || die "no ranks to kill"
	has err "rank 1 was killed by signal 9"
	[ "$(grep -c "^gantry perf" "$tmp/err")" = 1 ] || die "more than the cause is reported"
	# On a loaded machine ranks that are well may stand still for some time, too.
	stand_still 2 || stand_still 10 || stand_still 30 || die "rank 1 stands still, and another one is named"
	echo "ok: ranks that die or stand still are named"
else
	echo "skipped: killing ranks (there is no ps command)"
fi

expect 0 fifo -n 300 --repeats 2 --json
for f in rtt_us bare_rtt_us rtt_ratio ops_per_s; do
	grep -qE "\"$f\": [0-9.e+]+[,}]" "$tmp/out" || die "perf fifo: no $f"
done
for f in device machine commit; do
	grep -qE "\"$f\": \"[^\"]+\"" "$tmp/out" || die "perf fifo: no $f"
done
expect 0 fifo -n 100 --repeats 1
has out "round trip"
expect 2 fifo --device tpu
