#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# Nothing is built for collectives that they do not take: every mode, protocol and algorithm, slices and chunks of several steps,
# UNPACK, a pool that channels and peers share, grouped receives, a link per channel, rails of two NICs. The product's own counters say so (`mode`, `proto`, `algo`
# and `paths` in the rows of `gantry perf --json`, and the report of a communicator), and the results are right.
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn
no_leaks

# took FIELD WORD ARGUMENT...: a collective that is run with these takes that.
took() {
	local field=$1 word=$2
	shift 2
	timeout 100 env "$@" --check-only --json >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; die "$*: exit status $?"; }
	like out '^\{"wrong_elements": 0, .*"ok": true'
	like out "\"$field\": \"([a-z0-9]+\+)*$word(\+[a-z0-9]+)*\""
	echo "ok: $field $word"
}
all_reduce="$gantry perf all_reduce --ranks 3"

for proto in simple ll ll128; do
	took proto $proto $all_reduce --transport shm --proto $proto -b 100k -e 100k
done
took mode normal $all_reduce --transport shm --buffers plain --proto simple -b 100k -e 100k
took mode ptr $all_reduce --transport net --proto simple -b 300k -e 300k
for t in shm p2p; do # between kernels; and of threads, where memory is not registered
	took mode ptr $all_reduce --transport $t --proto simple -b 600k -e 600k
	took mode ptr $all_reduce --transport $t --proto simple -b 600k -e 600k --threads --buffers plain --register 0
done
took mode offset $all_reduce --transport net --proto simple -b 300k -e 300k
for mode in unpack reduce; do # fragments gathered by the receiving kernel, and read straight into a reduction
	took mode $mode GANTRY_UNPACK=emulated GANTRY_UNPACK_POOL=16M GANTRY_UNPACK_LANDING=8M $all_reduce --algo ring --transport net -b 100k -e 100k
done
for algo in ring direct direct2 tree pat; do
	took algo $algo $all_reduce --algo $algo -b 10k -e 10k
done
took algo hier "$gantry" perf all_reduce --ranks 4 --hosts 2 --algo hier -b 10k -e 10k
took algo collnet $all_reduce --hosts 3 --algo collnet -b 10k -e 10k
took mode ptr $all_reduce --hosts 3 --transport collnet -b 300k -e 300k
took paths slices GANTRY_COLL_STEP=32k $all_reduce --transport shm --proto simple -b 4M -e 4M
took paths caller $all_reduce --transport net -b 8 -e 8
took paths chunks $all_reduce --transport shm --proto simple -b 4M -e 4M
several="GANTRY_PTR=0 GANTRY_NET_STEP=64k GANTRY_SPLIT_MIN=64k $gantry perf all_to_all --ranks 3 --channels 3 --transport net"
took paths mixed $several -b 6M -e 6M
took paths grouped $several -b 6M -e 6M
took paths mixed GANTRY_NET_MAX_RECVS=1 $several -b 6M -e 6M
like out '"paths": "[a-z+]*"'
! grep -q grouped "$tmp/out" || die "receives are grouped though GANTRY_NET_MAX_RECVS is 1"
took paths mixed GANTRY_NET_LINKS=channel $several -b 6M -e 6M
like out '"paths": "[a-z+]*"'
! grep -q grouped "$tmp/out" || die "channels with links of their own have no receives in common"
took algo ring GANTRY_NET_LINKS=channel GANTRY_PTR=0 GANTRY_SPLIT_MIN=64k $all_reduce --channels 4 --algo ring --transport net -b 4M -e 4M

need_netns exec
n=gantry-paths-$$
netns $n || die "namespace"
for i in 0 1; do
	ip -n $n link add "rail$i" type veth peer name "end$i" && ip -n $n addr add "10.84.$i.1/24" dev "rail$i" &&
		ip -n $n link set "rail$i" up && ip -n $n link set "end$i" up || die "rail$i"
done
all_up() { [ "$(ip -n $n -br link show type veth | grep -c ' UP ')" = 4 ]; }
await all_up || die "the interfaces never came up"
took paths rails ip netns exec $n "$gantry" perf all_reduce --ifname rail --transport net -b 1M -e 1M
