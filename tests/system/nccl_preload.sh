#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# A preloaded libnccl.so.2 changes nothing for programs that use no NCCL: the same output and exit status, no other library
# mapped, no thread, no system calls but those that map the file. What is counted is the same on a busy machine.
# Catches: a library that is needed instead of opened, a constructor or an end of the process that does something.
. "$(dirname "$0")/lib.sh"
lib=$BUILD_DIR/lib/libnccl.so.2
[ -f "$lib" ] || skip "no $lib"
[ -z "${GANTRY_SANITIZED:-}" ] || skip "a library with sanitizers is preloaded into programs with sanitizers only"
clean_environment
# Variables of ours are nobody's business before the first call.
export GANTRY_LOG=trace GANTRY_NONSENSE=1 NCCL_DEBUG=TRACE NCCL_NONSENSE=1

programs=(
	"bash -c 'echo out; echo err >&2; (exit 7) || sort --version | head -n 1; exit 3'"
	"python3 -c 'import os, subprocess, threading; print(os.getppid() > 0, threading.active_count()); subprocess.run([\"true\"]); os.fork() or os._exit(0)'"
	"git --version"
	"ls /"
)
for p in "${programs[@]}"; do
	command -v "${p%% *}" >/dev/null || { echo "no ${p%% *} here"; continue; }
	bash -c "$p" >"$tmp/plain.out" 2>"$tmp/plain.err"
	plain=$?
	LD_PRELOAD=$lib bash -c "$p" >"$tmp/with.out" 2>"$tmp/with.err"
	with=$?
	[ $plain = $with ] || fail "$p: exit status $with, not $plain"
	cmp -s "$tmp/plain.out" "$tmp/with.out" && cmp -s "$tmp/plain.err" "$tmp/with.err" || fail "$p: other output"
	echo "ok: output of $p"
done

# Files that a process has mapped, and its threads.
for p in bash python3; do
	command -v $p >/dev/null || continue
	if [ $p = bash ]; then
		run=(bash -c 'mapfile -t m </proc/self/maps; printf "%s\n" "${m[@]}"; t=(/proc/self/task/*); echo "threads ${#t[@]}"')
	else
		run=(python3 -c 'import os; print(open("/proc/self/maps").read(), end=""); print("threads", len(os.listdir("/proc/self/task")))')
	fi
	"${run[@]}" | sed -nE 's,.* (/.*),\1,p; /^threads/p' | sort -u >"$tmp/plain"
	LD_PRELOAD=$lib "${run[@]}" | sed -nE 's,.* (/.*),\1,p; /^threads/p' | sort -u >"$tmp/with"
	grep -q "^threads 1$" "$tmp/with" || fail "$p: $(grep threads "$tmp/with")"
	diff "$tmp/plain" "$tmp/with" | sed -n 's/^[<>] //p' >"$tmp/more"
	[ "$(xargs <"$tmp/more")" = "$(realpath "$lib")" ] || fail "$p has mapped more or less: $(xargs <"$tmp/more")"
	echo "ok: what $p has mapped"
done

command -v strace >/dev/null || skip "no strace to count system calls with"
# calls PRELOAD: system calls of a program that does nothing, sorted, without arguments.
calls() { strace -f -o "$tmp/trace" ${1:+-E LD_PRELOAD=$1} "$(command -v true)" && sed -E 's/^([0-9]+ +)?//; s/\(.*//' "$tmp/trace" | sort | uniq -c; }
calls "" >"$tmp/plain" || skip "strace does not work here"
calls "$lib" >"$tmp/with"
more=$(($(awk '{ n += $1 } END { print n }' "$tmp/with") - $(awk '{ n += $1 } END { print n }' "$tmp/plain")))
[ $more -ge 3 ] && [ $more -le 14 ] || fail "$more system calls more"
# Only such as the dynamic linker makes for a file, and what atfork handlers or exit need is none.
diff <(awk '{ print $2 }' "$tmp/plain") <(awk '{ print $2 }' "$tmp/with") | sed -n 's/^> //p' | grep -vxE 'openat|read|pread64|fstat|newfstatat|mmap|mprotect|munmap|close|brk' >"$tmp/other"
[ ! -s "$tmp/other" ] || fail "system calls of another kind: $(xargs <"$tmp/other")"
echo "ok: $more system calls more"
exit $failed
