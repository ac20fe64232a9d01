#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A short campaign of scripts/chaos.py with a fixed seed: connections survive faults, or end on both sides with an error
# that names the peer, in time. The campaign itself sees what it is for: a bit that is flipped while nobody checks, and a
# planted bug. It leaves no namespace and no process behind, also when it is interrupted.
# Catches: errors without a name, hangs, wrong bytes, descriptors that stay after a reset, a campaign that sees nothing.
. "$(dirname "$0")/lib.sh"
clean_environment
no_leaks
need python3 ip tc ss
need_netns exec
campaign() { timeout 100 python3 "$SOURCE_DIR/scripts/chaos.py" --build "$BUILD_DIR" --seed 51 "$@" >"$tmp/out" 2>&1; }

# On a loaded machine a process that is well may not run for longer than the deadline.
few() { campaign --deadline "$1" --seconds 60 --count 4 --only reset-all,kill-sockets,reorder,enobufs; }
stray=/dev/shm/gantry-chaos-$((1 << 30))-stray # of a campaign that was killed: no process has this id
[ ! -d /dev/shm ] || mkdir -p "$stray"
few 2 || { cat "$tmp/out"; few 8; } || die "the campaign found something"
cat "$tmp/out"
like out '^[0-9]+ faults in [0-9]+ s, 0 wrong; repeat with SEED=51$'
lacks out WRONG:
[ ! -d "$stray" ] || die "what a killed campaign has left stays"

# Nothing stands in another's column.
python3 "$SOURCE_DIR/scripts/chaos.py" --list >"$tmp/out"
like out '^nic-flap +error or survive +survive +an interface is removed'

# Exit status 1, and why.
GANTRY_CRC=0 campaign --count 1 --only flip --load net && die "a flipped bit is not seen"
like out 'WRONG: wrong bytes, .* wrong bytes, the first at'
CHAOS_PLANT=20 campaign --count 1 --only reorder --load net && die "a planted bug is not seen"
like out 'WRONG: .*do not cover it exactly once'

# Connections that resume: a reset and a damaged piece are survived; but not with a bug in what goes again, a piece too few.
export GANTRY_RESUME=on
resets() { campaign --deadline 2 --count 2 --only reset-all,flip --load net; }
resets || { cat "$tmp/out"; resets; } || die "a session does not outlive its sockets"
like out 'flip +rail[0-3]: survived'
steady() { campaign --deadline 2 --steady --rate 20 --count 1 --only link-down; }
steady || { cat "$tmp/out"; steady; } || die "a rail that is lost slows the others down"
like out 'link-down +rail[0-3].*: survived'
CHAOS_PLANT_RESUME=1 campaign --deadline 2 --count 1 --only reset-all --load net && die "a bug in resume is not seen"
like out 'WRONG: '

python3 "$SOURCE_DIR/scripts/chaos.py" --build "$BUILD_DIR" --seed 51 --seconds 60 --only enobufs --load net >"$tmp/out" 2>&1 &
pid=$!
await grep -q survived "$tmp/out" || die "nothing happens"
pids=$(pgrep -P "$pid")
for _ in 1 2 3 4 5 6 7 8; do # who is impatient says it again while it cleans up
	kill -TERM $pid 2>/dev/null
	sleep 0.03
done
wait $pid && die "an interrupted campaign should not succeed"
! ip netns list | grep "^gchaos-$pid-" || die "namespaces are left behind"
# shellcheck disable=SC2086 # one argument for each
all_gone $pids || die "processes are left behind"
! ls -d /dev/shm/gantry-chaos-"$pid"-* /sys/fs/cgroup/memory/gchaos-"$pid" 2>/dev/null || die "files are left behind"
exit $failed
