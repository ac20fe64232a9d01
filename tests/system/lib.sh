# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced by every test of this folder before anything else: folders, a place for files, how a test ends, waiting, network
# namespaces.
set -u
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
gantry=$BUILD_DIR/gantry
failed=0
namespaces=
tmp=$(mktemp -d)
at_exit() { :; } # what a test wants to be done at its end: it defines its own
trap 'at_exit; for n in $namespaces; do ip netns del "$n" 2>/dev/null; done; rm -rf --one-file-system "$tmp"' EXIT

# ---- how a test ends ----

# The test, or what is left of it, cannot be done here.
skip() { echo "skipped: $*"; exit $((failed ? 1 : 77)); }
# need COMMAND...
need() { for c; do command -v "$c" >/dev/null || skip "there is no $c"; done; }
# The test goes on, and fails at its end with `exit $failed`.
fail() { echo "FAILED: $*" >&2; failed=1; }
# The test ends. What its last command said, by the convention of `expect`, is shown.
die() {
	echo "FAILED: $*" >&2
	for f in "$tmp"/{out,err,log} "$tmp"/*.{out,err}; do [ ! -s "$f" ] || tail -n 30 "$f" >&2; done
	exit 1
}

# ---- programs and what they say ----

# Looking for leaks takes seconds per process on some machines: lifecycle.sh, comm_abort.sh and doctor.sh do it.
no_leaks() { export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"; }

# clean_environment NAME...: no parameter, no variable of NCCL or of a launcher, but those named.
clean_environment() {
	local v
	for v in $(compgen -e | grep -E '^(GANTRY_|NCCL_|OMPI_|PMI|SLURM_|MASTER_|TORCH|RANK$|WORLD_SIZE$|LOCAL_|NO_COLOR$)'); do
		[[ " GANTRY_SANITIZED $* " == *" $v "* ]] || unset "$v"
	done
}

# expect STATUS ARGUMENT...: of $tested; output in $tmp/out and $tmp/err.
tested=()
expect() {
	local want=$1 rc
	shift
	timeout 280 "${tested[@]}" "$@" >"$tmp/out" 2>"$tmp/err"
	rc=$?
	[ $rc = "$want" ] || die "${tested[*]} $*: exit status $rc, expected $want"
	echo "ok: ${tested[*]##*/}${tested:+ }$* gives $rc"
}
# has FILE TEXT, lacks FILE TEXT, like FILE PATTERN: what is in $tmp/FILE.
has() { grep -qF -- "$2" "$tmp/$1" || die "$1 lacks: $2"; }
lacks() { ! grep -qF -- "$2" "$tmp/$1" || die "$1 has: $2"; }
like() { grep -qE -- "$2" "$tmp/$1" || die "$1 has no line like: $2"; }

# check_json ROWS FIELD...: $tmp/out has a header, then ROWS objects, left in $tmp/rows, that have the fields as numbers
# (counts of calls may be null under sanitizers) and no wrong byte.
check_json() {
	local rows=$1 f
	shift
	head -n 1 "$tmp/out" >"$tmp/header"
	for f in machine command commit; do
		grep -q "^{.*\"$f\": \".*}\$" "$tmp/header" || die "the first line lacks $f"
	done
	grep '"bytes"' "$tmp/out" >"$tmp/rows"
	[ "$(wc -l <"$tmp/rows")" = "$rows" ] || die "expected $rows rows"
	for f; do
		[[ -n ${GANTRY_SANITIZED:-} && $f == *calls* ]] && continue
		[ "$(grep -cE "\"$f\": [0-9.e+-]+[,}]" "$tmp/rows")" = "$rows" ] || die "rows without a number $f"
	done
	[ "$(grep -c '"wrong": 0[,}]' "$tmp/rows")" = "$rows" ] || die "wrong bytes"
}

# has_openssl: whether the build can authenticate and encrypt; a test leaves those parts out where it cannot.
has_openssl()
{
	"$gantry" doctor --json 2>/dev/null | grep -q '"name": "openssl", "level": "ok"' && return
	echo "skipped: what needs a secret: this build has no OpenSSL" >&2
	return 1
}

# ---- deadlines ----

# In many tests a peer counts as dead after GANTRY_TIMEOUT. That must be short, or the tests take minutes; but on a loaded
# machine a process that is well may not run for longer than that. So a case that fails is tried again with longer
# deadlines, and more time to notice: what does not hold with any of them is wrong.
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

# children_of PID: those that live, in the order in which they were forked. Pids wrap around, so their own order may be another one.
children_of()
{
	ps -o pid=,stat= --ppid "$1" | awk -v parent="$1" -v most="$(cat /proc/sys/kernel/pid_max)" \
		'$2 !~ /^Z/ { print ($1 - parent + most) % most, $1 }' | sort -n | cut -d ' ' -f 2
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
	ranks=$(children_of "$top" | xargs)
	[ "$(wc -w <<<"$ranks")" = 2 ] || return 1
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
	"$gantry" check "$@" --json >"$report" || status=$?
	passed=$(grep -c '"verdict": "pass"' "$report")
	[ "$passed" -lt "$expected" ] || return $status
	for rule in $(sed -n 's/^{"rule": "\([^"]*\)".*"verdict": "fail".*/\1/p' "$report" | sort -u); do
		grep "^{\"rule\": \"$rule\"" "$report"
		for _ in 1 2; do
			"$gantry" check "$@" --rule "$rule" --json && passed=$((passed + 1)) && break
		done
	done
	[ "$passed" -eq "$expected" ]
}

# ---- networks ----

# own_network SCRIPT: starts it again in a network namespace of its own if that is permitted: ports that it names are
# then nobody else's.
own_network()
{
	[ -z "${OWN_NETWORK:-}" ] && command -v unshare >/dev/null && unshare -n ip link set lo up 2>/dev/null || return 0
	rm -rf "$tmp"
	OWN_NETWORK=1 exec unshare -n bash -c 'ip link set lo up && exec bash "$0"' "$1"
}

# netns NAME...: network namespaces anew, with loopback alone; they go when the test ends.
netns()
{
	local n
	namespaces="$namespaces $*"
	for n; do
		ip netns del "$n" 2>/dev/null
		ip netns add "$n" && ip -n "$n" link set lo up || return 1
	done
}

# why_no_netns [exec]: prints why namespaces with interfaces cannot be made here, or no program be run in them by
# `ip netns exec`; nothing where all is well.
why_no_netns()
{
	local name=gantry-probe-$$ why
	command -v ip >/dev/null || { echo "there is no ip command (package iproute2)"; return; }
	if ! why=$(ip netns add $name 2>&1); then
		echo "a network namespace cannot be made: $why"
		return
	fi
	if [ "${1:-}" = exec ] && ! why=$(ip netns exec $name true 2>&1); then
		if ! mountpoint -q /; then
			echo "/ is not a mount point (a chroot?), and 'ip netns exec' has to remount it: $why"
		else
			echo "a program cannot be run in a network namespace: $why"
		fi
	elif ! why=$(ip -n $name link add gantry0 type veth peer name gantry1 2>&1); then
		echo "a pair of veth interfaces cannot be made: $why"
	elif ! why=$(ip -n $name link add gantry2 type bridge 2>&1); then
		echo "a bridge cannot be made: $why"
	fi
	ip netns del $name
}

# need_netns [exec]: skips the test, or the rest of it, where that cannot be done.
need_netns()
{
	local why
	why=$(why_no_netns "$@")
	[ -z "$why" ] || skip "$why"
}
