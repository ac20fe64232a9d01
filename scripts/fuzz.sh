#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/fuzz.sh SECONDS|build: builds every tests/fuzz/fuzz_*.c with clang's libFuzzer, ASan and UBSan, and runs each
# that long on its corpus. New inputs go to corpus-work/NAME, which is kept between runs; an input that crashes is
# left in corpus-work/crash/NAME-*. `build` only builds them. Exit status: 0 fine, 77 skipped, else the target that
# failed is named.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
seconds=${1:?usage: scripts/fuzz.sh SECONDS|build}

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

if [ -z "$CLANG" ]; then
	echo "skipped: there is no clang here"
	exit 77
fi
if ! why=$(can_build "$CLANG" -fsanitize=fuzzer,address,undefined); then
	echo "skipped: clang has no libFuzzer here: $why"
	exit 77
fi
shopt -s nullglob
sources=(tests/fuzz/fuzz_*.c)
if [ ${#sources[@]} = 0 ]; then
	echo "skipped: there are no fuzz targets"
	exit 77
fi

COMPILER=$CLANG build build-fuzz fuzzers -DGANTRY_WERROR=ON -DGANTRY_FUZZ=ON -DGANTRY_SANITIZE=address,undefined -DGANTRY_CUDA=OFF -DGANTRY_HIP=OFF
[ "$seconds" != build ] || exit 0
mkdir -p corpus-work/crash
passed=0
for source in "${sources[@]}"; do
	name=$(basename "$source" .c)
	work=corpus-work/$name
	mkdir -p "$work"
	[ ! -d "tests/fuzz/corpus/$name" ] || cp -n "tests/fuzz/corpus/$name"/* "$work"/ || true
	options=(-max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1
		-artifact_prefix="corpus-work/crash/$name-")
	[ ! -f "tests/fuzz/$name.dict" ] || options+=(-dict="tests/fuzz/$name.dict")
	log=build-fuzz/$name.log
	if ! quietly "$log" "build-fuzz/tests/$name" "${options[@]}" "$work"; then
		echo "$name FAILED; its input is under corpus-work/crash/"
		exit 1
	fi
	echo "$name: $(awk '/number_of_executed_units/ { print $2 }' "$log") inputs in $seconds s," \
		"corpus $(find "$work" -type f | wc -l) files, no failure"
	passed=$((passed + 1))
done
echo "fuzz: $passed passed, 0 failed"
