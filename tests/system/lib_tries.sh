# shellcheck shell=bash
# Sourced by the tests in which a peer counts as dead after GANTRY_TIMEOUT. That must be short, or the tests take minutes;
# but on a loaded machine a process that is well may not run for longer than that. So a case that fails is tried again
# with longer deadlines: what does not hold with any of them is wrong.

deadlines=${DEADLINES:-2 8 25} # seconds

# with_deadlines COMMAND...: the command, which may be a function, with GANTRY_TIMEOUT and half of it as GANTRY_STALL;
# succeeds if it does so once.
with_deadlines()
{
	local deadline
	for deadline in $deadlines; do
		export GANTRY_TIMEOUT=${deadline}s GANTRY_STALL=$((deadline * 500))ms
		"$@" && return
		echo "failed with GANTRY_TIMEOUT=$GANTRY_TIMEOUT: $*"
	done
	deadlines=${deadlines%% *} # something is wrong: what follows need not take as long
	return 1
}

# await COMMAND...: until it succeeds, for a minute at most.
await()
{
	local end=$((SECONDS + 60))
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

# own_network SCRIPT: starts it again in a network namespace of its own if that is permitted: ports that it names are
# then nobody else's.
own_network()
{
	[ -z "${OWN_NETWORK:-}" ] && command -v unshare >/dev/null && unshare -n ip link set lo up 2>/dev/null || return 0
	OWN_NETWORK=1 exec unshare -n bash -c 'ip link set lo up && exec bash "$0"' "$1"
}
