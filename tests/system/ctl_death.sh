#!/bin/bash
# labels: slow
# Four processes joined by the control plane. One that is killed is known to all others at once, one that is stopped
# within GANTRY_TIMEOUT + 1 s, each by its rank and the right cause, also if it is the hub's; one that comes back does
# not crash and blames nobody. Processes that merely get little of a CPU, nap, or leave are not lost.
# Catches: signs of life from users' threads, a hub that is a single point of silence, one's own absence blamed on
# others, descriptors that live on in forked children, a last word that is lost when a process exits.
set -u
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 # seconds per process; the unit tests look for leaks
driver=$BUILD_DIR/drivers/ctl_death
export GANTRY_IFNAME=lo GANTRY_TIMEOUT=1s GANTRY_CONNECT_TIMEOUT=20s GANTRY_LOG=${GANTRY_LOG:-error}
failed=0

run()
{
	echo "-- $*"
	timeout 60 "$driver" "$@" || { echo "FAILED: $*"; failed=1; }
}

run kill 2
run kill 0
run stop 2
run stop 0
run nap 1
run nap 0
run nap_all
run hogs
run leave
run quit
# ThreadSanitizer ends children of a process with threads that start threads of their own.
[ "${GANTRY_SANITIZED:-}" = thread ] || run parent
exit $failed
