#!/usr/bin/env bash
# The whole suite, stage by stage; the first stage that fails ends it.
#
#   scripts/test.sh [STAGE...]     stages: plain clang asan tsan fuzz; none named: all of them
#
# plain   gcc, every test
# clang   everything built by clang with warnings as errors, unit tests
# asan    AddressSanitizer, LeakSanitizer and UBSan: all but the labels gpu and slow
# tsan    ThreadSanitizer: the same tests
# fuzz    every fuzz target for FUZZ_SECONDS seconds (default 3)
#
# A test that cannot run here exits with 77 and says why; the reasons are listed after each stage.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/tsan.supp}

# What is built to be checked and not to be measured: quick to compile, and without the kernels for GPUs.
FAST=(-DGANTRY_CUDA=OFF "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG")

# run_tests DIR CTEST-OPTION...
run_tests()
{
	local dir=$1
	shift
	ctest_in "$dir" --output-on-failure -j "$TEST_JOBS" "${VERBOSE[@]}" "$@"
}

stage_plain()
{
	build "${BUILD:-build}" all -DCMAKE_C_COMPILER="$GCC" || return 1
	run_tests "${BUILD:-build}"
}

stage_clang()
{
	if [ -z "$CLANG" ]; then
		echo "skipped: there is no clang here"
		return 77
	fi
	build build-clang all -DCMAKE_C_COMPILER="$CLANG" -DGANTRY_WERROR=ON -DGANTRY_CUDA=OFF || return 1
	run_tests build-clang -LE 'system|gpu'
}

# sanitized NAME SANITIZERS
sanitized()
{
	local why
	if ! why=$(can_build "$GCC" "-fsanitize=$2"); then
		echo "skipped: $GCC -fsanitize=$2 does not work here: $why"
		return 77
	fi
	# Sanitizers see nothing of the GPU's kernels: no need to compile those again.
	build "build-$1" all -DCMAKE_C_COMPILER="$GCC" -DGANTRY_SANITIZE="$2" "${FAST[@]}" || return 1
	if [ "$1" = asan ] && [ "$(uname -m)" = aarch64 ]; then
		# There LeakSanitizer walks a table of the whole address space: four seconds at the exit of every
		# process. Unit tests pay that; system tests start too many processes, some against the clock.
		# Those that keep no objects need not either.
		run_tests "build-$1" -LE 'gpu|slow|system' -E "$NO_LEAKS" || return 1
		echo "leaks are not looked for in system tests and in tests of plain functions on aarch64"
		ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 run_tests "build-$1" -LE 'gpu|slow|system' -R "$NO_LEAKS" || return 1
		ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 run_tests "build-$1" -L system -LE 'gpu|slow'
	else
		run_tests "build-$1" -LE 'gpu|slow'
	fi
}

NO_LEAKS='test_(abi|clock|crc32c|cuda_.*|event|hmac|log|result|types|wire|plugin_tables|param_text|tool_pattern|k_.*|fifo_stress)$|_replay'
stage_asan() { sanitized asan address,undefined; }
stage_tsan() { sanitized tsan thread; }
stage_fuzz() { scripts/fuzz.sh "${FUZZ_SECONDS:-3}"; }

[ $# -gt 0 ] || set -- plain clang asan tsan fuzz
for stage in "$@"; do
	if ! declare -F "stage_$stage" >/dev/null; then
		echo "$0: there is no stage '$stage'; there are: plain clang asan tsan fuzz" >&2
		exit 2
	fi
done

summary=
for stage in "$@"; do
	header "stage $stage"
	start=$SECONDS
	status=0
	"stage_$stage" || status=$?
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
