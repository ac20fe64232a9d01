#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow beside
# Every collective with every algorithm and protocol forced in turn, over every transport and over two hosts, for 1, 2, 3, 4, 5
# and 8 ranks; all types and operations; sizes from 0 to 64 MiB; in place and not; and ranks in two network namespaces.
# Results are compared with what the tool computes itself, every element of every rank, and with each other bit by bit.
. "$(dirname "$0")/lib.sh"
clean_environment GANTRY_SECRET
export GANTRY_LOG=warn
tested=("$gantry" perf)
only="--check-only --json --timeout 200s"
types=(float int8 half uint64 bfloat16 int32 f8e4m3 double uint8 f8e5m2 int64 uint32)
ops=(sum avg prod max mulsum min)
# Those that there are, but auto, and but collnet, which collnet.sh is about.
algos=$("$gantry" doctor --params-markdown | sed -n '/^## `GANTRY_ALGO`/,/allowed/ s/.*allowed `auto|\(.*\)|collnet`$/\1/p' | tr '|' ' ')
[ -n "$algos" ] || die "no algorithms"
echo "algorithms: $algos"

runs=0 total=0
# right ARGUMENT...: `perf collectives` with these computes right.
right() {
	timeout 280 "$gantry" perf "$@" $only >"$tmp/out" 2>"$tmp/err" || { fail "gantry perf $*"; cut -c 1-300 "$tmp/err" >&2; return 1; }
	grep '"bytes"' "$tmp/out" >"$tmp/rows" && ! grep -qv '"wrong": 0[,}]' "$tmp/rows" || fail "gantry perf $*: wrong rows, or none"
	grep -q '^{"wrong_elements": 0, .*"ok": true' "$tmp/out" || fail "gantry perf $*: no good end"
	runs=$((runs + 1)) total=$((total + $(wc -l <"$tmp/rows")))
}
# all_have FIELD PATTERN: in every row with bytes.
all_have() { ! grep -v '"bytes": 0,' "$tmp/rows" | grep -qvE "\"$1\": \"$2\"[,}]" || fail "rows whose $1 is not $2"; }

# forced RANKS WHERE ALGORITHM PROTOCOL: odd counts, and from run to run another type and operation.
forced() {
	local where="--transport $2" used=$2
	[ "$2" != hosts ] || where="--hosts 2" used='([a-z0-9]+\+)*net(\+[a-z0-9]+)*'
	right collectives --ranks "$1" $where --algo "$3" --proto "$4" -b 0 -e 1M -f 37 -r $((runs % $1)) \
		-d "${types[runs % 12]}" -o "${ops[runs / 2 % 6]}" || return
	all_have proto "$4"
	all_have transport "$used"
}
# One number of ranks after the other; COLL_ALL=1: all of them with everything (3 minutes).
n8=0 places=(net shm p2p hosts) turn=0 numbers=(2 5 3 4)
for algo in $algos; do
	for proto in simple ll ll128; do
		for where in "${places[@]}"; do
			some=${numbers[turn % 4]}
			[ -z "${COLL_ALL:-}" ] || some="2 3 4 5"
			for n in $some; do forced $n $where $algo $proto; done
			turn=$((turn + 1))
		done
		turn=$((turn + 1))
		[ -z "${COLL_ALL:-}" ] && [ $proto != simple ] || forced 8 "${places[n8++ % 4]}" $algo $proto
	done
	echo "ok: $algo ($SECONDS s)"
done

for algo in auto $algos; do
	right collectives --ranks 3 --algo $algo -b 1000 -e 1000 -d all -o all
	right all_reduce --ranks 4 --algo $algo -b 10k -e 10k -d half,bfloat16,f8e4m3,f8e5m2,float,double -o all -c bits
done
right collectives --ranks 1 -b 0 -e 64k -f 37 -d all -o all
right collectives --ranks 8 -b 1000 -e 1000 -d all -o sum,avg
echo "ok: all types and operations ($SECONDS s)"

right collectives --ranks 2 --transport net -b 64M -e 64M -d int8
right collectives --ranks 3 --transport shm -b 8388611 -e 8388611 -d uint8
right collectives --ranks 5 --hosts 2 -b 4194301 -e 4194301 -d int8
for algo in ${COLL_ALL:+$algos} direct2; do right all_reduce --ranks 2 --algo $algo -b 64M -e 64M -o avg; done
echo "ok: large ($SECONDS s)"
echo "$runs runs with $total rows are right"

# Two ranks in each of two network namespaces, which count as hosts.
why=$(why_no_netns exec)
if [ -n "$why" ]; then
	echo "skipped: namespaces: $why"
	exit $failed
fi
a=gantry-coll-a-$$ b=gantry-coll-b-$$
netns $a $b && ip -n $a link add eth0 type veth peer name eth0 netns $b &&
	ip -n $a addr add 10.77.0.1/24 dev eth0 && ip -n $b addr add 10.77.0.2/24 dev eth0 &&
	ip -n $a link set eth0 up && ip -n $b link set eth0 up || die "no namespaces"
for algo in auto $algos; do
	pids=
	for rank in 3 2 1 0; do
		ns=$([ $rank -lt 2 ] && echo $a || echo $b)
		RANK=$rank WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=4600 GANTRY_HOST_ID=$ns timeout 280 ip netns exec $ns \
			"$gantry" perf collectives --ifname eth0 --algo $algo -b 0 -e 1M -f 37 -d bfloat16 $only >"$tmp/$rank.out" 2>"$tmp/$rank.err" &
		pids="$pids $!"
	done
	for pid in $pids; do wait $pid || fail "a rank in a namespace, $algo: exit status $?"; done
	cp "$tmp/0.out" "$tmp/out"
	grep -q '^{"wrong_elements": 0, .*"ok": true' "$tmp/out" || fail "ranks in two namespaces, $algo: no good end"
	grep -qE '"transport": "(p2p\+net|net\+p2p)"' "$tmp/out" || fail "ranks in two namespaces, $algo: not over p2p and net"
	echo "ranks in two namespaces, $algo ($SECONDS s)"
done
exit $failed
