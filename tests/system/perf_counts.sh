#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tool counts its system calls by functions of their names; strace counts the same run from outside. They agree,
# but for the calls that libc makes on its own behalf while connecting and loading (netlink, files).
# labels: slow
. "$(dirname "$0")/lib.sh"
clean_environment
export GANTRY_LOG=warn

[ -z "${GANTRY_SANITIZED:-}" ] || skip "nothing is counted under sanitizers"
need strace
strace -f -o "$tmp/probe" true 2>"$tmp/why" || skip "tracing is not permitted: $(head -n 1 "$tmp/why")"

calls="sendto sendmsg sendmmsg writev recvfrom recvmsg recvmmsg readv splice vmsplice tee sendfile sched_yield"

# compare ARGUMENT...: of `gantry perf net`.
compare() {
	local call inside outside slack bad=0 total=0
	strace -f -qq -o "$tmp/trace" -e "trace=$(echo $calls | tr ' ' ',')" -e signal=none \
		"$gantry" perf net "$@" --calls --json >"$tmp/out" 2>"$tmp/err" ||
		die "perf net $* under strace"
	for call in $calls; do
		# A call that another thread interrupted in the trace has a second line, "<... call resumed>".
		outside=$(grep -cE "^[0-9]+ +$call\(" "$tmp/trace")
		inside=$(sed -n "s/.*\"call\": \"$call\", \"count\": \([0-9]*\).*/\1/p" "$tmp/out" | awk '{ n += $1 } END { print n + 0 }')
		slack=$((outside / 100 + 40))
		total=$((total + inside))
		[ "$inside" = 0 ] && [ "$outside" = 0 ] && continue
		if [ $((inside - outside)) -gt $slack ] || [ $((outside - inside)) -gt $slack ]; then
			bad=1
		fi
		echo "perf net $*: $call: counted $inside, strace $outside"
	done
	[ $bad = 0 ] || die "the counts differ by more than one in a hundred"
	[ $total -gt 500 ] || die "only $total calls were counted: too few to compare"
}

compare -b 4k -e 4k -n 500 --repeats 1
compare -b 1M -e 1M -n 50 --repeats 1
compare -b 4k -e 4k -n 500 --repeats 1 --raw
# Another library, opened with dlopen: its calls come here as well.
compare -b 4k -e 1M -f 256 -n 100 --repeats 1 --plugin "$BUILD_DIR/lib/libnccl-net-gantry.so"
