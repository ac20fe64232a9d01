#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/pauses.sh [SEEDS [PATTERN]]: every unit test whose name matches, with random pauses in all of its threads
# (tests/pauses/pauses.c), once for each of the seeds 1 to SEEDS; PAUSES_SCALE=N has more pauses. Not part of `make test`:
# it takes minutes. Prints what failed; the output of that is in pauses.log/TEST.SEED of the build folder.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
seeds=${1:-3} pattern=${2:-.}
dir=$PWD/${BUILD:-build}

build "$dir" tests
export BUILD_DIR=$dir SOURCE_DIR=$PWD logs=$dir/pauses.log pauses=$dir/pauses.so
mkdir -p "$logs"
"$GCC" -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -fvisibility=hidden -o "$pauses" tests/pauses/pauses.c tests/lib/random.c -ldl

one()
{
	local name=${1##*/} seed=$2 status=0
	TEST_SEED=$seed LD_PRELOAD=$pauses timeout 600 "$1" >"$logs/$name.$seed" 2>&1 || status=$?
	case $status in
	0 | 77) rm "$logs/$name.$seed" ;;
	*) echo "$name FAILED with seed $seed (status $status): $(tail -n 1 "$logs/$name.$seed")" ;;
	esac
}
export -f one

tests=$(find "$dir/tests" -maxdepth 1 -type f -executable -name 'test_*' | grep -- "$pattern" | sort) ||
	{ echo "$0: no test's name has '$pattern' in it" >&2; exit 2; }
failed=$(for seed in $(seq "$seeds"); do
	for test in $tests; do printf '%s %s\n' "$test" "$seed"; done
done | xargs -P $((2 * JOBS)) -L 1 bash -c 'one "$@"' one)
echo "$(wc -w <<<"$tests") tests, $seeds seeds: $(grep -c . <<<"$failed" || true) failures"
[ -z "$failed" ] || { echo "$failed"; exit 1; }
