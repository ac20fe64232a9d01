#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures the TCP network against plain TCP on this machine and says which of the required ratios are met.
#
#   bench/run.sh [FILE] [OPTION of `gantry perf net`]...
#
# JSON lines are appended to FILE (bench/results/<date>-<arch>.jsonl); the table goes to the terminal. The exit status
# is that of the measurement: a missed ratio is a finding, not a failure. VERDICT=strict makes it one. A run during which
# other processes or the hypervisor had the CPUs is not judged: it says so, and the exit status is 77.
set -u
source_dir=${SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
build_dir=${BUILD_DIR:-$source_dir/build}
file=$source_dir/bench/results/$(date +%F)-$(uname -m).jsonl
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
	file=$1
	shift
fi
mkdir -p "$(dirname "$file")"
run=$(mktemp)
trap 'rm -f "$run"' EXIT

"$build_dir/gantry" perf net --raw -b 64 -e 64M -f 4 --json "$@" >"$run"
status=$?
cat "$run"
cat "$run" >>"$file"
awk -f "$source_dir/bench/lib.awk" -f "$source_dir/bench/verdict.awk" "$run"
verdict=$?
echo "appended to $file"
[ $status = 0 ] || exit $status
[ "${VERDICT:-}" != strict ] && [ $verdict != 77 ] || exit $verdict
