#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Four processes joined by the control plane. One that is killed is known to all others at once, one that is stopped
# within GANTRY_TIMEOUT + 1 s, each by its rank and the right cause, also if it is the hub's; one that comes back does
# not crash and blames nobody. Processes that merely get little of a CPU, nap, or leave are not lost.
# Catches: signs of life from users' threads, a hub that is a single point of silence, one's own absence blamed on
# others, descriptors that live on in forked children, a last word that is lost when a process exits.
DEADLINES="1 5 20"
. "$(dirname "$0")/lib.sh"
no_leaks
driver=$BUILD_DIR/drivers/ctl_death
export GANTRY_IFNAME=lo GANTRY_CONNECT_TIMEOUT=100s GANTRY_LOG=${GANTRY_LOG:-error}

run()
{
	echo "-- $*"
	with_deadlines timeout 280 "$driver" "$@" || fail "$*"
}

# Of an end the kernel tells: the deadline is so far away that whoever waits for it is found out.
at_once()
{
	echo "-- $*"
	GANTRY_TIMEOUT=60s timeout 280 "$driver" "$@" || fail "$*"
}

at_once kill 2
at_once kill 0
run stop 2
run stop 0
run nap 1
run nap 0
run nap_all
run hogs
run leave
at_once quit
# ThreadSanitizer ends children of a process with threads that start threads of their own.
[ "${GANTRY_SANITIZED:-}" = thread ] || at_once parent
exit $failed
