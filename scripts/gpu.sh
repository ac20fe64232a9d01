#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# For a machine with a GPU: builds with what is there (gcc, CMake, make; nothing is installed) into build-gpu and runs
# the tests that need one, which are all of tests/gpu/*.sh.
#
#   scripts/gpu.sh [NAME...]       only tests/gpu/NAME.sh
#
# The scripts print JSON lines, or write files under $OUT. OUT is build-gpu/out unless it is set; the lines that were
# printed are gathered in $OUT/gpu.jsonl, and the whole log is $OUT/gpu.log.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export OUT=${OUT:-$PWD/build-gpu/out}
mkdir -p "$OUT"

header "build"
build build-gpu tests
if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
else
	echo "no nvidia-smi here: expect the tests to skip themselves"
fi

header "tests that need a GPU"
only=()
[ $# = 0 ] || only=(-R "^gpu_($(IFS='|' && echo "$*"))\$")
status=0
ctest_in build-gpu -L gpu --verbose "${only[@]}" || status=$?
log=build-gpu/Testing/Temporary/LastTest.log
if [ -f "$log" ]; then
	cp "$log" "$OUT/gpu.log"
	grep '^{.*}$' "$log" >"$OUT/gpu.jsonl" || true
	echo "$(wc -l <"$OUT/gpu.jsonl") JSON lines in $OUT/gpu.jsonl"
fi
exit $status
