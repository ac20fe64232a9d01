#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# What the tool says when something is wrong: one failure, one line, by the command's full name, with what to do; wrong
# options and wrong parameters are exit status 2. And the lines of the log: when, where, which rank.
. "$(dirname "$0")/lib.sh"
clean_environment
no_leaks

# once STATUS PATTERN COMMAND...: exactly one line on stderr, which is like PATTERN, and nothing on stdout.
once() {
	local want=$1 pattern=$2 rc
	shift 2
	timeout 120 env "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
	rc=$?
	[ $rc = "$want" ] || die "$*: exit status $rc, expected $want"
	[ "$(wc -l <"$tmp/err")" = 1 ] || die "$*: not one line"
	grep -Eq -- "$pattern" "$tmp/err" || die "$*: no line like '$pattern'"
	[ ! -s "$tmp/out" ] || die "$*: something on stdout"
	echo "ok: $(cut -c1-150 "$tmp/err")"
}

# Options: the command by its name, the nearest option, all the words that would do, sizes as people write them.
once 2 "^gantry perf net: unknown option '--repeets', did you mean '--repeats'\?$" "$gantry" perf net --repeets 3
once 2 "^gantry perf net: unknown option '-x'; gantry perf net --help lists the options$" "$gantry" perf net -x
once 2 "^gantry perf net: --json takes no value$" "$gantry" perf net --json=surplus
once 2 "^gantry perf net: -b needs a value$" "$gantry" perf net -b
once 2 "^gantry perf fifo: unknown option '--itres', did you mean '--iters'\?$" "$gantry" perf fifo --itres 3
once 2 "^gantry perf unpack: --blocks x: not numbers from 1 to 65536, or all" "$gantry" perf unpack --blocks x
once 2 "^gantry perf unpack: --blocks 8,: " "$gantry" perf unpack --blocks 8,
once 2 "^gantry perf unpack: --shape foo: not one of .*aligned" "$gantry" perf unpack --shape foo
once 2 "^gantry perf sendrecv: -d foo: not one of int8\|.*\|float\|double\|" "$gantry" perf sendrecv -d foo
once 2 "^gantry perf sendrecv: -d flaot: not one of .*, did you mean 'float'\?$" "$gantry" perf sendrecv -d flaot
once 2 "^gantry perf sendrecv: --pattern star: not one of .*ring" "$gantry" perf sendrecv --pattern star
once 2 "^gantry perf rx: --[a-z]+ 1000T: not a size from [0-9]+k? to 64G$" "$gantry" perf rx -e 1000T
once 2 "^gantry perf sendrecv: --timeout soon: not a duration, such as " "$gantry" perf sendrecv --timeout soon
once 2 "^gantry check: unknown option '--lst', did you mean '--list'\?$" "$gantry" check --lst
once 2 "^gantry check: unknown rule 'odering', did you mean 'ordering'\?$" "$gantry" check --rule odering
once 2 "^gantry check: unknown rule 'something'; gantry check --list lists them$" "$gantry" check --rule something
once 2 "^gantry devmem-helper: unknown option '--sockt', did you mean '--socket'\?$" "$gantry" devmem-helper --sockt x

# Parameters: found before any rank is started.
for command in "perf net" "perf sendrecv" "perf rx" "perf fifo" "perf unpack" "check /nonexistent/libnccl-net-nope.so"; do
	once 2 "GANTRY_PORT_RANGE=abc is invalid: expected a port, or first-last, from 1 to 65535$" GANTRY_PORT_RANGE=abc "$gantry" $command
done
for command in "perf net" "perf sendrecv" "perf rx"; do
	once 2 "^gantry $command: no interface matches 'nosuchif'; set GANTRY_IFNAME .* to one of these" GANTRY_IFNAME=nosuchif "$gantry" $command
	once 2 "^gantry $command: (GANTRY_SECRET_FILE /nonexistent/secret: No such file|.*OpenSSL)" GANTRY_SECRET_FILE=/nonexistent/secret "$gantry" $command
done
once 2 '^gantry perf sendrecv: unknown transport "foo" .*; available: auto p2p shm net' GANTRY_TRANSPORT=foo "$gantry" perf sendrecv
once 2 '^gantry perf sendrecv: unknown transport "smh" .*; available: auto p2p shm net' "$gantry" perf sendrecv --transport net,smh
once 2 '^gantry perf net: plugin /nonexistent/p.so: No such file or directory$' "$gantry" perf net --plugin /nonexistent/p.so
for op in net sendrecv; do
	once 2 "^gantry perf $op: no usable net plugin: libnccl-net-nosuch.so: cannot open " "$gantry" perf $op --plugin nosuch
done

# A machine that cannot: not wrong usage.
if "$gantry" doctor --json | grep '"section": "gpu"' | grep -q 'no CUDA driver'; then
	for op in fifo unpack; do
		once 1 "^gantry perf $op: ERR_UNSUPPORTED: gpu 0: no CUDA driver" "$gantry" perf $op --device cuda
	done
fi

# The log: time, host, process, rank where it is known, level and subsystem; no source lines for those who do not debug
# Gantry. Which interface is used is said once by each process.
host=$(uname -n)
when='20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z'
transfer() { timeout 120 env "$@" "$gantry" perf sendrecv --transport net -b 8 -e 8 -n 1 -w 1 --repeats 1 >"$tmp/out" 2>"$tmp/err" || die "$*: a transfer failed"; }
transfer GANTRY_LOG=info
! grep -vE "^$when $host:[0-9]+ (rank [01] )?gantry (WARN|INFO) [a-z]+: " "$tmp/err" || die "a line is not right"
for rank in 0 1; do
	grep -q " rank $rank gantry INFO comm: rank $rank of 2 in communicator" "$tmp/err" || die "no line of rank $rank"
done
! grep -E ' [a-z_]+\.[ch]:[0-9]+' "$tmp/err" || die "source lines at level info"
grep -qF ' base: using lo' "$tmp/err" || die "no line about the interface"
[ -z "$(grep -F ' base: using lo' "$tmp/err" | cut -d' ' -f2 | sort | uniq -d)" ] || die "a process names its interface twice"
! grep -E '[ :]1 (ranks|channels|devices|lanes|CPUs|events|messages)\b' "$tmp/err" || die "one of several"
echo "ok: $(grep -c . "$tmp/err") lines of the log at level info"
transfer GANTRY_LOG=debug
grep -qE "^$when $host:[0-9]+ rank 0 gantry INFO comm comm\.c:[0-9]+: " "$tmp/err" || die "no source lines at level debug"
# Failures that a tool prints itself are in a log file all the same.
env GANTRY_IFNAME=nosuchif GANTRY_LOG_FILE="$tmp/log" "$gantry" perf net >"$tmp/out" 2>"$tmp/err"
[ "$(wc -l <"$tmp/err")" = 1 ] || die "not one line on stderr beside a log file"
grep -qE "^$when $host:[0-9]+ gantry ERROR net: no interface matches 'nosuchif'" "$tmp/log" || die "the log file lacks the failure"
# A communicator that ends because of what this process has just logged does not log it again. That another rank has left
# is news, and may come first.
rm "$tmp/log"
env GANTRY_NET_DEVICE=7 GANTRY_LOG_FILE="$tmp/log" "$gantry" perf sendrecv --transport net -b 8 -e 8 >"$tmp/out" 2>"$tmp/err"
grep -q 'gantry ERROR comm: GANTRY_NET_DEVICE=7: network gantry has 1 device, numbered from 0$' "$tmp/log" || die "no device 7, and no line"
[ -z "$(grep -F 'GANTRY_NET_DEVICE=7' "$tmp/log" | grep -vE 'failed and left: |left because ' | cut -d' ' -f2 | sort | uniq -d)" ] || die "a process logs its failure twice" "$(cat "$tmp/log")"
exit 0
