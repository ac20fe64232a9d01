#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# also with: GANTRY_SECRET=alpha
# GANTRY_TRACE in everything that moves bytes: communicators over p2p, shm and net, and processes without one: perf net
# with Gantry's network and with the plugin as NCCL loads it, and rx. Each run leaves a file per process; one picture
# is made of them, with a bar for what was sent, and nothing in it that Perfetto would drop (tests/chrome_trace.py).
. "$(dirname "$0")/lib.sh"
plugin=$BUILD_DIR/lib/libnccl-net-gantry.so
clean_environment GANTRY_SECRET
export GANTRY_LOG=warn GANTRY_IFNAME=lo

need python3 # to judge the pictures

# picture NAME ARGUMENT...: of `gantry perf`. Two files and a picture; what is in it is left in $tmp/seen.
picture() {
	local name=$1
	shift
	GANTRY_TRACE=$tmp/$name-%r.jsonl timeout 280 "$gantry" perf "$@" >"$tmp/out" 2>"$tmp/err" || die "perf $*"
	[ "$(ls "$tmp/$name"-*.jsonl | wc -l)" = 2 ] || die "perf $* left $(ls "$tmp"), not two traces"
	"$gantry" trace -o "$tmp/$name.json" "$tmp/$name"-*.jsonl 2>"$tmp/err" || die "gantry trace of $name"
	python3 "$SOURCE_DIR/tests/chrome_trace.py" "$tmp/$name.json" >"$tmp/seen" 2>"$tmp/err" || die "the picture of perf $*"
	echo "perf $*: $(tail -n 1 "$tmp/seen")"
}
# bars PROCESS LEAST TEXT: so many at least.
bars() {
	local n
	n=$(sed -n "s/^process $1: \([0-9]*\) x $3\$/\1/p" "$tmp/seen")
	[ "${n:-0}" -ge "$2" ] || { cat "$tmp/seen" >&2; die "$3: ${n:-no} bars of process $1, expected $2"; }
}

# Warm-up, measured and checked transfers: more than the 20 that are asked for.
for transport in p2p shm net; do
	picture $transport sendrecv --transport $transport -b 4k -e 256k -f 64 -n 20
	for rank in 0 1; do
		bars $((rank + 1)) 40 "send, peer $((1 - rank)), transport $transport"
		bars $((rank + 1)) 40 "recv, peer $((1 - rank)), transport $transport"
	done
done

# Collectives have tracks of their own, with what they are.
for transport in shm net; do
	picture coll-$transport all_reduce --ranks 2 --transport $transport -b 4k -e 4k -n 20 -w 1 --repeats 1 --algo ring
	"$gantry" trace --summary --json "$tmp/coll-$transport"-*.jsonl >"$tmp/summary" || die "trace --summary gives $?"
	for rank in 0 1; do
		bars $((rank + 1)) 20 "all_reduce, peer -, transport -"
		# A ring of two has one connection each way, which every call uses: as many operations as the picture has bars.
		n=$(sed -n "s/^process $((rank + 1)): \([0-9]*\) x all_reduce, peer -, transport -$/\1/p" "$tmp/seen")
		[ "$(grep -c "\"rank\": $rank, .*\"transport\": \"$transport\", \"ops\": $n," "$tmp/summary")" = 2 ] ||
			{ cat "$tmp/summary" >&2; die "trace --summary: not 2 connections of rank $rank with $n operations"; }
	done
	grep '"name":"all_reduce"' "$tmp/coll-$transport.json" |
		grep -q '"bytes":4096,"protocol":"[a-z0-9]*","type":"float","redop":"sum","algorithm":"ring"' || die "no arguments"
done

# Remote memory: a bar for each request, a mark for each signal where it was added; none of either is missing.
picture gin gin --transport net -b 8 -e 64k -f 64 -n 20 --repeats 1
for rank in 0 1; do
	n=$(awk -v who="process $((rank + 1)):" -v peer="$((1 - rank))," 'index($0, who) == 1 && / signal, peer / && index($0, " peer " peer) { n += $3 } END { print n + 0 }' "$tmp/seen")
	[ "$n" -ge 20 ] && [ "$(grep -c "\"signal added\",.*\"peer\":$rank" "$tmp/gin-$((1 - rank)).jsonl")" = "$n" ] ||
		{ cat "$tmp/seen" >&2; die "rank $rank: $n signals sent, and not as many added at the other rank"; }
	bars $((rank + 1)) 20 "put, peer $((1 - rank)), transport -"
done
grep -q '"name":"remote memory 1, requests to rank 1"' "$tmp/gin.json" || die "remote memory has no row"

# Without ranks: processes are numbered from 2^20 + 1 on, in the order of their files. Small messages have bars too.
without_ranks() {
	local name=$1 most
	picture "$@"
	most=$(grep -c 'send message' "$tmp/seen")
	[ "$most" = 2 ] || die "messages of $most processes in the picture of $name, expected 2"
	grep -q '"name":"link [0-9]*, send to 127.0.0.1:[0-9]* (' "$tmp/$name.json" || die "$name: no track names its peer"
	"$gantry" trace --summary "$tmp/$name"-*.jsonl >"$tmp/summary" || die "$name: trace --summary gives $?"
	grep -q 'no communicator, 1 links' "$tmp/summary" || { cat "$tmp/summary" >&2; die "$name: no summary"; }
}
without_ranks own net -b 1k -e 1M -f 1024 -n 20 --repeats 1
without_ranks plugin net -b 1k -e 1M -f 1024 -n 20 --repeats 1 --plugin "$plugin"
without_ranks rx rx -e 4M --repeats 1

# Clocks of ranks and of processes without are not the same: no picture of both.
"$gantry" trace -o "$tmp/both.json" "$tmp"/p2p-0.jsonl "$tmp"/rx-*.jsonl 2>"$tmp/err"
[ $? = 1 ] && grep -q 'different clocks' "$tmp/err" || die "ranks and other processes in one picture"

# What a foreign plugin records by itself is a row beside its connection: every message begins and ends once.
other=$BUILD_DIR/fixtures/libnccl-net-device.so
GANTRY_TEST_EVENTS=1 GANTRY_TRACE=$tmp/events-%r.jsonl timeout 280 "$gantry" perf sendrecv --transport net --plugin "$other" --channels 2 \
	-b 64k -e 1M -f 4 -n 5 -w 1 --repeats 1 >"$tmp/out" 2>"$tmp/err" || die "events of a plugin: perf gives $?"
begun=$(grep -h '"plugin event".*"bytes":[1-9][0-9]*,"step":[0-9]*,"end":0,"update":0' "$tmp"/events-?.jsonl | wc -l)
over=$(grep -h '"plugin event".*"end":1,"update":0' "$tmp"/events-?.jsonl | wc -l)
[ "$begun" -ge 40 ] && [ "$begun" = "$over" ] || die "events of a plugin: $begun begin and $over end"
"$gantry" trace -o "$tmp/events.json" "$tmp"/events-?.jsonl || die "events of a plugin: trace gives $?"
python3 "$SOURCE_DIR/tests/chrome_trace.py" "$tmp/events.json" >"$tmp/seen" || { cat "$tmp/seen" >&2; die "events of a plugin"; }
grep -q "^process 1: $((begun / 2)) x plugin event" "$tmp/seen" || { cat "$tmp/seen" >&2; die "not all events of a plugin are bars"; }
grep -q '"name":"send to rank 1, channel [01] (plugin)"' "$tmp/events.json" || die "events of a plugin have no row"

# A network that is not Gantry's says that it has no part in it.
GANTRY_TRACE=$tmp/foreign-%r.jsonl timeout 280 "$gantry" perf net -b 1k -e 1k -n 5 --repeats 1 \
	--plugin "$BUILD_DIR/broken/libnccl-net-broken_none.so" >"$tmp/out" 2>"$tmp/err" || die "perf net with a foreign plugin"
grep -q 'does not record its connections' "$tmp/err" || die "a foreign plugin and GANTRY_TRACE: no line about it"
