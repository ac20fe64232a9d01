#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Four ranks that exchange messages; one of them is killed, stopped or cut off. All others get a typed error that names it
# within GANTRY_TIMEOUT + 1 s, their streams are free, their communicators are gone half of it later, and the reports they
# leave behind name the right rank and cause. A second communicator in the same processes does not notice. A rank that
# lives and makes no call is no error: the reports name it.
# Catches: kernels or calls that wait for the dead, errors that blame whoever left first because of them, a report that
# is not written because the communicator is destroyed at once, one communicator's end in another one's way.
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/comm_ranks
export GANTRY_CONNECT_TIMEOUT=100s GANTRY_LOG=${GANTRY_LOG:-error} GANTRY_IFNAME=lo
ns=gtr$$
n=0

# try_once CAUSE REPORTS CASE VICTIM TRANSPORT [NETNS COMMAND]: what must come out, and the driver's arguments. CAUSE: may
# be a pattern.
try_once()
{
	local cause=$1 reports=$2 verdict files bad=0
	shift 2
	[ $# -lt 4 ] || join || { echo "the namespaces cannot be made again"; return 1; }
	n=$((n + 1))
	mkdir -p "$tmp/$n/stall"
	echo "-- $1 rank $2, $3"
	GANTRY_STALL_DIR=$tmp/$n/stall timeout 280 "$driver" "$1" "$2" "$3" "$tmp/$n" "${@:4}" 2>"$tmp/err" ||
		{ echo "$* (exit status $?)"; cat "$tmp/err"; bad=1; }
	files=$(find "$tmp/$n/stall" -name 'stall-*.jsonl' | wc -l)
	[ "$files" = "$reports" ] ||
		{ echo "$*: $files reports, expected $reports"; ls "$tmp/$n/stall"; bad=1; }
	verdict=$("$gantry" stall "$tmp/$n/stall" --json) || { echo "gantry stall: exit status $?"; bad=1; }
	echo "$verdict"
	[[ $verdict == *"\"rank\": $2, \"cause\": \""$cause"\","* && $verdict != *$'\n'* ]] ||
		{ echo "$*: expected one verdict: rank $2, $cause"; bad=1; }
	return $bad
}

run() { with_deadlines try_once "$@" || fail "${*:3}"; }

for transport in shm net p2p; do
	run died 3 kill 2 $transport
	run died 3 kill 0 $transport
	run stopped 3 stop 2 $transport
	run stopped 3 stop 0 $transport
done
run "*" 3 abort 2 net # it says goodbye, and no more
run "missing call" 3 missing 2 shm
run "missing call" 3 missing 1 net
run "missing call" 3 missing_first 2 p2p

# A namespace for each rank, and one with a bridge between them.
join()
{
	netns ${ns}{b,0,1,2,3} && ip -n ${ns}b link add br0 type bridge && ip -n ${ns}b link set br0 up || return 1
	for i in 0 1 2 3; do
		ip -n $ns$i link add v0 type veth peer name p$i netns ${ns}b &&
			ip -n ${ns}b link set p$i master br0 && ip -n ${ns}b link set p$i up &&
			ip -n $ns$i addr add 10.98.0.$((i + 1))/24 dev v0 && ip -n $ns$i link set v0 up || return 1
	done
	await all_up # the kernel takes up to a second to notice
}
all_up() { [ "$(ip -n ${ns}b -br link show master br0 | grep -c ' UP ')" = 4 ]; }

need_netns
export GANTRY_IFNAME=v0
run unreachable 4 command 2 net $ns "ip -n ${ns}b link set p2 down"
run unreachable 4 command 0 net $ns "ip -n ${ns}0 link set v0 down"
exit $failed
