#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# also with: GANTRY_SECRET=alpha
# `gantry perf sendrecv` over every transport, mode and protocol, ranks as processes and as threads: no wrong byte, and the
# counters say that the mode and the protocol asked for were used. Then patterns, launchers, wrong usage, ranks that die,
# and `gantry perf fifo`.
set -u
. "$SOURCE_DIR/tests/system/lib_tries.sh"
gantry=$BUILD_DIR/gantry
unset GANTRY_IFNAME GANTRY_LANES NCCL_SOCKET_IFNAME NCCL_NET_PLUGIN GANTRY_TRANSPORT GANTRY_PTR GANTRY_PTR_MIN GANTRY_PROTO \
	GANTRY_NET_BUFFERS GANTRY_CHANNELS GANTRY_NET_PLUGIN
unset OMPI_COMM_WORLD_RANK PMI_RANK SLURM_PROCID RANK
export GANTRY_LOG=warn

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
die() { echo "FAILED: $*" >&2; cat "$tmp/out" "$tmp/err" >&2; exit 1; }

# expect STATUS ARGUMENT...: of `gantry perf`; output in $tmp/out and $tmp/err.
expect() {
	local want=$1 rc
	shift
	timeout 280 "$gantry" perf "$@" >"$tmp/out" 2>"$tmp/err"
	rc=$?
	[ $rc = "$want" ] || die "perf $*: exit status $rc, expected $want"
	echo "ok: perf $* gives $rc"
}
has() { grep -qF -- "$2" "$tmp/$1" || die "std$1 lacks: $2"; }

# check_json ROWS: a header, then ROWS objects with all fields and no wrong byte.
check_json() {
	local rows=$1 f
	head -n 1 "$tmp/out" >"$tmp/header"
	for f in machine command commit; do
		grep -q "^{.*\"$f\": \".*}\$" "$tmp/header" || die "the first line lacks $f"
	done
	grep '"bytes"' "$tmp/out" >"$tmp/rows"
	[ "$(wc -l <"$tmp/rows")" = "$rows" ] || die "expected $rows rows"
	for f in bytes count time_us algbw_gbs busbw_gbs wrong ranks; do
		[ "$(grep -cE "\"$f\": [0-9.e+-]+[,}]" "$tmp/rows")" = "$rows" ] || die "rows without a number $f"
	done
	for f in type transport mode proto pattern device; do
		[ "$(grep -cE "\"$f\": \"[^\"]+\"[,}]" "$tmp/rows")" = "$rows" ] || die "rows without a word $f"
	done
	[ "$(grep -c '"wrong": 0[,}]' "$tmp/rows")" = "$rows" ] || die "wrong bytes"
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
	check_json $rows
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
	check_json $([ $largest = 1M ] && echo 8 || echo 6)
done

# Patterns and more ranks than CPUs.
expect 0 sendrecv --ranks 3 -b 0 -e 64k -f 16 --json $few
check_json 5
all_have ranks 3
expect 0 sendrecv --ranks 3 --pattern oneway -m 8 --transport net -b 1k -e 64k -f 8 --json $few # rank 2 has nobody
check_json 3
expect 0 sendrecv --ranks 4 --pattern alltoall -b 0 -e 64k -f 16 --json $few
check_json 5
all_have pattern '"alltoall"'
expect 0 sendrecv --ranks 4 --pattern alltoall --transport net --threads -b 1 -e 64k -f 64 --json -d int8 $few
check_json 3
expect 0 sendrecv --pattern pingpong --transport shm -b 8 -e 8 --baseline --json $few
check_json 1
grep -qE '"flag_us": ([0-9.e-]+|null)' "$tmp/rows" && grep -qE '"memcpy_gbs": [0-9.]+' "$tmp/rows" || die "no baselines"
for threads in "" --threads; do
	expect 0 sendrecv --ranks 100 --transport shm -b 8 -e 8 --json $few $threads
	check_json 1
	all_have ranks 100
done
expect 0 sendrecv --ranks 2 --channels 4 -b 4M -e 4M --odd --json $few # split over channels
check_json 4
expect 0 sendrecv --ranks 1 -b 1k -e 1k --json $few # to itself
check_json 1
all_have transport '"self"'
expect 0 sendrecv --ranks 2 --transport net --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so" -b 64 -e 64k -f 64 --json $few
check_json 2

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
check_json 6
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
