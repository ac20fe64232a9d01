#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Ranks that are killed, stopped or cut off during collectives: all of them, at random, over random transports, algorithms
# and protocols, blocking and not. The others get a typed error that names the rank within GANTRY_TIMEOUT + 1 s, the reports
# that they leave behind name it as well, they shrink the communicator, reduce right, and nothing is left behind.
# COLL_FAULTS=N: so many in a row instead of a few (200 take 10 minutes). COLL_FAULTS_SEED=S: from that one on.
# Catches: kernels, proxies or calls that wait for the dead, errors that blame whoever left first, a shrink that needs the
# dead, descriptors, threads and segments of communicators that failed in the midst of something.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/coll_faults
clean_environment GANTRY_SECRET
export GANTRY_CONNECT_TIMEOUT=100s GANTRY_LOG=error
ns=gcf$$
faults=${COLL_FAULTS:-8} seed=${COLL_FAULTS_SEED:-$RANDOM}
n=0 again=0
[ -n "${COLL_FAULTS:-}" ] || deadlines=${DEADLINES:-1 8 25}

# A namespace for each rank, and one with a bridge between them.
join()
{
	netns ${ns}{b,0,1,2,3,4} && ip -n ${ns}b link add br0 type bridge && ip -n ${ns}b link set br0 up || return 1
	for i in 0 1 2 3 4; do
		ip -n $ns$i link add v0 type veth peer name p$i netns ${ns}b &&
			ip -n ${ns}b link set p$i master br0 && ip -n ${ns}b link set p$i up &&
			ip -n $ns$i addr add 10.99.0.$((i + 1))/24 dev v0 && ip -n $ns$i link set v0 up || return 1
	done
	await all_up
}
all_up() { [ "$(ip -n ${ns}b -br link show master br0 | grep -c ' UP ')" = 5 ]; }
# What the last case has cut off.
mend()
{
	! all_up || return 0
	for i in 0 1 2 3 4; do ip -n ${ns}b link set p$i up; done
	await all_up # the kernel takes up to a second to notice
}

try_once()
{
	local verdict victim call=
	n=$((n + 1))
	[ -z "$cables" ] || mend || { echo "the cables cannot be put back"; return 1; }
	mkdir -p "$tmp/$n/stall"
	GANTRY_STALL_DIR=$tmp/$n/stall timeout 280 "$driver" "$1" "$tmp/$n" $cables >"$tmp/out" 2>"$tmp/err" ||
		{ echo "seed $1 (exit status $?)"; cat "$tmp/out" "$tmp/err"; again=$((again + 1)); return 1; }
	victim=$(sed -n 's/.*"victim": \([0-9]*\),.*/\1/p' "$tmp/out")
	verdict=$("$gantry" stall "$tmp/$n/stall" --json 2>"$tmp/err") || { echo "gantry stall: exit status $?"; cat "$tmp/err"; return 1; }
	echo "seed $1: $(cat "$tmp/out")"
	# Where all wait for all, it says in which call.
	[[ $(cat "$tmp/out") != *'"stop"'*'"call": "'@(all_*|reduce_scatter|barrier)'", "bytes"'*'"rounds": '[36]* ]] ||
		call="$(sed 's/.*"call": "\([a-z_]*\)".*/\1/' "$tmp/out") #"
	[[ $verdict == *"$call"*"\"rank\": $victim, "* && $verdict != *$'\n'* ]] ||
		{ echo "expected one verdict about rank $victim, with $call: $verdict"; again=$((again + 1)); return 1; }
	rm -r "${tmp:?}/$n"
}

cables=
[ -n "$(why_no_netns)" ] || { cables=$ns && join; } || fail "the namespaces cannot be made"
[ -n "$cables" ] || echo "no rank is cut off: $(why_no_netns)"
segments=$(ls /dev/shm)
for ((k = 0; k < faults; k++)); do
	with_deadlines try_once $((seed + k)) || fail "seed $((seed + k))"
done
[ "$(ls /dev/shm)" = "$segments" ] || { fail "segments left in /dev/shm"; ls -l /dev/shm; }
echo "$faults faults from seed $seed on, $again tried again, $SECONDS s"
exit $failed
