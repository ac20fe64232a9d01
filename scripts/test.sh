#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The suite, stage by stage; the first stage that fails ends it.
#
#   scripts/test.sh [STAGE...]     none named: plain; `all`: all of them
#
# ONLY=REGEX in the environment: only tests whose names match, and a stage in which none does fails.
#
# plain   gcc, every test that is not labelled slow
# slow    the rest of them: what waits for deadlines and peers, and repeats with a secret
# clang   everything built by clang with warnings as errors and thread-safety analysis; unit tests of what compilers differ in
# asan    AddressSanitizer, LeakSanitizer and UBSan: all but the labels gpu and slow, and a few long ones
# tsan    ThreadSanitizer: the same tests, but those of one thread, repeats with a secret, lying peers, and windows of processes
# fuzz    every fuzz target for FUZZ_SECONDS seconds (default 2)
#
# A test that cannot run here exits with 77 and says why; the reasons are listed after each stage.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/tsan.supp}

# What is built to be checked and not to be measured does not compile the kernels for GPUs again.
FAST=(-DGANTRY_CUDA=OFF -DGANTRY_HIP=OFF)

# run_tests DIR CTEST-OPTION...
run_tests()
{
	local dir=$1
	shift
	ctest_in "$dir" --output-on-failure -j "$TEST_JOBS" "${VERBOSE[@]}" ${ONLY:+-R "$ONLY"} "$@"
}

# A stage is prepared (configured and built), then run. While one runs, those after it are prepared in the background,
# with CPU time that nothing else wants: many tests wait for clocks and peers, and leave the CPUs to that.

prepare_plain() { build "${BUILD:-build}" tests -DGANTRY_WERROR=ON; }
stage_plain() { run_tests "${BUILD:-build}" -LE slow; }

prepare_slow() { prepare_plain; }
# First what may run beside each other; then one at a time what measures or waits for clocks, beside builds that are idle.
stage_slow()
{
	run_tests "${BUILD:-build}" -L slow -L beside || return 1
	run_tests "${BUILD:-build}" -L slow -LE beside
}

prepare_clang()
{
	if [ -z "$CLANG" ]; then
		echo "skipped: there is no clang here"
		return 77
	fi
	COMPILER=$CLANG build build-clang tests -DGANTRY_WERROR=ON -DGANTRY_CHECKS=ON "${FAST[@]}"
}
stage_clang()
{
	echo "left out: system tests and gpu, and what waits for peers more than it computes; asan and tsan check its invariants"
	run_tests build-clang -LE 'system|gpu' -E '_(scripted|with_secret)$|^test_(comm|ctl|gin|meet|resume|rma|rx|setup|tool|unpack)_|^test_(rma|rx|resume|gin)$'
}

# prepare_sanitized NAME SANITIZERS
prepare_sanitized()
{
	local why
	if ! why=$(can_build "$GCC" "-fsanitize=$2"); then
		echo "skipped: $GCC -fsanitize=$2 does not work here: $why"
		return 77
	fi
	build "build-$1" tests -DGANTRY_WERROR=ON -DGANTRY_SANITIZE="$2" "${FAST[@]}"
}

# They read sources and documents: the plain stage has run them.
READERS='^system_(house|unreached|doc_pairs|doc_quotes|params_doc|thread_safety|bench_verdict|plugin_exports|nccl_exports)$'
# Long ones of which a sanitizer would see little that is new: unit tests do the same in one process, or they are about rates.
SEEN='|^system_(collnet|hip|perf_between)$|^test_(rail_rate|tool_stall_live)$'

prepare_asan() { prepare_sanitized asan address,undefined; }
stage_asan()
{
	if [ "$(uname -m)" = aarch64 ]; then
		# There LeakSanitizer walks a table of the whole address space: four seconds at the exit of every
		# process. Unit tests pay that; system tests start too many processes, some against the clock.
		# Those that keep no objects need not either, nor those whose twin without a secret does.
		run_tests build-asan -LE 'gpu|slow|system' -E "$NO_LEAKS" || return 1
		echo "leaks are not looked for in system tests, in tests of plain functions, in repeats and in some of each family on aarch64"
		ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 run_tests build-asan -LE 'gpu|slow|system' -R "$NO_LEAKS" || return 1
		ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 run_tests build-asan -L system -LE 'gpu|slow' -E "$READERS$SEEN|system_(lifecycle|mismatch)\$"
	else
		run_tests build-asan -LE 'gpu|slow' -E "$READERS$SEEN"
	fi
}

# The second line: others of the same family look for leaks.
NO_LEAKS='test_(abi|clock|crc32c|cuda_.*|event|hmac|log|result|types|wire|plugin_tables|param_text|k_.*|fifo_stress|devmem_(errors|frags|detect)'\
'|tool_.*|resume_.*|ctl_(bruck|exchange|join|strangers|.*_planted)|link_(ahead|crc|match|split)|tcp_(cases|fork|threads)|transport_.*|unpack_(e2e|launch|ring.*)'\
'|comm_small|encrypt|relay|rx_strangers|seal_wiped)$|_replay|_with_secret$|_scripted$'

prepare_tsan() { prepare_sanitized tsan thread; }
stage_tsan()
{
	# Windows of processes are filled, announced to the peers, and then written by the progress thread: an order that goes
	# through other processes, which ThreadSanitizer cannot see. test_window has those of one process.
	# Lying peers are after memory, which is asan's; their threads, and those of test_comm_average, are other tests' too.
	echo "left out: tests of one thread, repeats with a secret and others whose threads are the same, windows of processes (system_put)"
	run_tests build-tsan -LE 'gpu|slow' -E "$READERS$SEEN"'|test_(abi|coll_plan|comm_average|[a-z]+_liar|crc32c|devmem_random|hmac|param_text|result|tool_trace|types|wire)$|_with_secret$|_scripted$|_replay$|^system_(put|lifecycle|mismatch|perf_gin|perf_net|ports|sendrecv)$'
}

prepare_fuzz() { scripts/fuzz.sh build; }
stage_fuzz() { scripts/fuzz.sh "${FUZZ_SECONDS:-2}"; }

all=(plain slow clang asan tsan fuzz)
[ $# -gt 0 ] || set -- plain
[ "$*" != all ] || set -- "${all[@]}"
for stage in "$@"; do
	if ! declare -F "stage_$stage" >/dev/null; then
		echo "$0: there is no stage '$stage'; there are: ${all[*]}, and all" >&2
		exit 2
	fi
done
case "$*" in
plain) echo "the plain stage: about 6 minutes on two cores, 300 MB under build/; as root, since tests make network namespaces" ;;
"${all[*]}") echo "all stages: 40 to 55 minutes on two cores, 1 GB under build*/; as root, since tests make network namespaces" ;;
esac

work=$(mktemp -d)
background=
# It may have ended by itself: that must not become this script's status.
trap '[ -z "$background" ] || kill -- -"$background" 2>/dev/null || :; rm -rf "$work"' EXIT

# prepare_rest STAGE...: one after the other; the outcome of each is in $work/STAGE.
prepare_rest()
{
	local stage status
	chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 "$BASHPID" >/dev/null || true
	for stage in "$@"; do
		status=0
		"prepare_$stage" >"$work/$stage.log" 2>&1 || status=$?
		echo $status >"$work/$stage.part" && mv "$work/$stage.part" "$work/$stage"
	done
}

# ready STAGE: waits for its preparation, or does it.
ready()
{
	if [ -z "$background" ]; then
		"prepare_$1"
		return
	fi
	while [ ! -f "$work/$1" ] && kill -0 "$background" 2>/dev/null; do
		sleep 0.5
	done
	cat "$work/$1.log"
	return "$(cat "$work/$1" 2>/dev/null || echo 1)"
}

summary=
ran=$*
for stage in "$@"; do
	header "stage $stage"
	start=$SECONDS
	status=0
	ready "$stage" || status=$?
	shift
	if [ -z "$background" ] && [ $# -gt 0 ]; then
		set -m # a process group of its own, so that it can be ended with what it started
		prepare_rest "$@" </dev/null >/dev/null 2>&1 &
		background=$!
		set +m
	fi
	[ $status != 0 ] || "stage_$stage" || status=$?
	took=$((SECONDS - start))
	case $status in
	0) summary+="$stage: passed in $took s"$'\n' ;;
	77) summary+="$stage: skipped"$'\n' ;;
	*)
		header "stage $stage FAILED after $took s; the stages after it were not run"
		exit 1
		;;
	esac
done
header "summary"
printf '%s' "$summary"
if [ "$ran" = plain ]; then
	echo "This was the plain stage. There is more: make test STAGES=all (${all[*]}), make fuzz, make bench, make gpu-test."
fi
