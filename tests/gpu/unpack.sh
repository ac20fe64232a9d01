#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The unpack kernels on a real GPU: the unit tests of the host device once more there, every shape at a larger size, and
# the rows of `gantry perf unpack` (QUICK=1: without). With CHECK=1 nothing of that, but all kernels except the ring at
# small sizes under compute-sanitizer, within a minute: a kernel that waits for its host does not get on with a tool that
# waits for the kernel.
set -u
. "$(dirname "$0")/lib_gpu.sh"
status=0
step() { # seconds, command...
	local limit=$1
	shift
	timeout "$limit" "$@" || { echo "FAILED ($?): $*"; status=1; }
}
tests=$BUILD_DIR/tests
tool=$BUILD_DIR/gantry

# What is looked for, and in what. Both kernels that unpack: with a number of blocks, and with the whole GPU. racecheck
# knows shared memory only. All at once: most of a run is one CPU's work.
sanitize() {
	local small="perf unpack --device cuda --check-only -e 256k" run log pids=() only=()
	command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; exit 1; }
	log=$scratch/log && mkdir "$log"
	# Kernels that fill and verify are left as they are, where the tool can be told so.
	compute-sanitizer --help 2>&1 | grep -q -- --kernel-name && only=(--kernel-name kns=unpack)
	for run in "memcheck --kind unpack --blocks 2,all" "memcheck --kind reduce --blocks 2,33" \
		"racecheck --kind unpack --blocks 2,all" "racecheck --kind reduce --blocks 2,33" \
		"synccheck --kind unpack --blocks 2,all" "synccheck --kind reduce --blocks 2,33"; do
		# shellcheck disable=SC2086 # words are meant
		(timeout 55 compute-sanitizer --tool ${run%% *} "${only[@]}" --error-exitcode 9 "$tool" $small ${run#* } \
			>"$log/${run// /_}" 2>&1 || { echo "FAILED ($?): $run"; tail -n 5 "$log/${run// /_}"; exit 1; }) &
		pids+=($!)
	done
	for run in "${pids[@]}"; do wait "$run" || status=1; done
	[ $status = 0 ] && grep -h "ERROR SUMMARY\|RACECHECK SUMMARY" "$log"/* | sort | uniq -c
}
if [ "${CHECK:-}" = 1 ]; then
	sanitize
	exit $status
fi
for t in test_k_unpack test_k_unpack_as test_k_gather test_unpack_ring test_unpack_ring_relay; do step 60 "$tests/$t" cuda; done
step 120 "$tool" perf unpack --device cuda --check-only -e 64M --blocks 1,8,33,all
[ "${QUICK:-}" = 1 ] || step 200 "$tool" perf unpack --device cuda --json
exit $status
