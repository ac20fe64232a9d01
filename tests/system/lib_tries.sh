# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the tests in which a peer counts as dead after GANTRY_TIMEOUT. That must be short, or the tests take minutes;
# but on a loaded machine a process that is well may not run for longer than that. So a case that fails is tried again
# with longer deadlines, and more time to notice: what does not hold with any of them is wrong.

deadlines=${DEADLINES:-2 8 25} # seconds

# with_deadlines COMMAND...: the command, which may be a function, with GANTRY_TIMEOUT and half of it as GANTRY_STALL;
# succeeds if it does so once.
with_deadlines()
{
	local deadline late=1000
	for deadline in $deadlines; do
		export GANTRY_TIMEOUT=${deadline}s GANTRY_STALL=$((deadline * 500))ms LATE_MS=$late
		"$@" && return
		late=5000
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

# ranks_at_work TOOL: until `gantry perf`, or the timeout command above it, has two ranks and both have used a second of
# CPU: then they are beyond their beginnings. Their pids are in $ranks, in the order of their ranks.
ranks_at_work() { await two_at_work "$1"; }
two_at_work()
{
	local top=$1 child pid
	kill -0 "$top" 2>/dev/null || return 1
	child=$(ps -o pid=,comm= --ppid "$top" | awk '$2 == "gantry" { print $1; exit }')
	[ "$(ps -o comm= -p "$top")" != timeout ] || top=${child:-$top}
	ranks=$(ps -o pid=,stat= --ppid "$top" | awk '$2 !~ /^Z/ { print $1 }' | sort -n | xargs)
	[ "$(wc -w <<<"$ranks")" = 2 ] || return 1
	[ $((${ranks#* } - ${ranks% *})) -lt 10000 ] || ranks="${ranks#* } ${ranks% *}" # pids began anew between the two
	for pid in $ranks; do
		[ "$(awk '{ sub(/.*\) /, ""); print ($12 + $13 >= 100) }' "/proc/$pid/stat" 2>/dev/null)" = 1 ] || return 1
	done
}

# all_gone PID...: none of the processes lives; zombies do not.
all_gone()
{
	local pid
	for pid; do
		case $(ps -o stat= -p "$pid") in '' | Z*) ;; *) return 1 ;; esac
	done
}

# check_rules REPORT EXPECTED ARGUMENT...: `gantry check ARGUMENT... --json`, the report to a file; rules that do not pass
# are tried twice more, alone: some have limits of time, and others on this machine can only make it more. The number of
# those that pass is in $passed; fails if that is not EXPECTED.
check_rules()
{
	local report=$1 expected=$2 rule status=0 _
	shift 2
	"$BUILD_DIR/gantry" check "$@" --json >"$report" || status=$?
	passed=$(grep -c '"verdict": "pass"' "$report")
	[ "$passed" -lt "$expected" ] || return $status
	for rule in $(sed -n 's/^{"rule": "\([^"]*\)".*"verdict": "fail".*/\1/p' "$report" | sort -u); do
		grep "^{\"rule\": \"$rule\"" "$report"
		for _ in 1 2; do
			"$BUILD_DIR/gantry" check "$@" --rule "$rule" --json && passed=$((passed + 1)) && break
		done
	done
	[ "$passed" -eq "$expected" ]
}
