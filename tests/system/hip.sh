#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: beside
# The HIP device over the fake runtime, which runs kernels on CPU threads: memory, streams and kernels, the unpack kernels, the
# transports within a host, and communicators of two processes over each transport, every byte checked.
set -u
. "$(dirname "$0")/lib.sh"
fake=$BUILD_DIR/fixtures/hip
[ -e "$fake/libamdhip64.so.5" ] || skip "there is no fake HIP runtime at $fake"

run() { # command...
	timeout 280 "$@" >"$tmp/out" 2>&1 || die "$* ends with $?"
	! grep -q "the fake HIP runtime:" "$tmp/out" || die "$*: a call was wrong"
}

run "$BUILD_DIR/drivers/device_cuda" hip
echo "ok: memory, streams, kernels, other processes"
for test in test_k_unpack test_k_gather; do
	run "$BUILD_DIR/tests/$test" hip
done
echo "ok: kernels that unpack and gather"
for test in test_transport_ends test_transport_fork; do
	GANTRY_TEST_DEVICE=hip run "$BUILD_DIR/tests/$test"
done
echo "ok: transports within a host"

export LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# What a network has written to the memory of a GPU is flushed by a store to its register; nothing is where it went to host memory.
plugin=$BUILD_DIR/fixtures/libnccl-net-device.so
for gdr in on off; do
	GANTRY_NET_GDR=$gdr GANTRY_TEST_PTR_SUPPORT=3 FAKE_HIP_SAY=1 run "$BUILD_DIR/drivers/perf_hip" sendrecv --device hip \
		--transport net --plugin "$plugin" --proto simple -b 64k -e 1M -f 16 -n 2 -w 1
	has out "# wrong bytes: 0; OK"
	if [ $gdr = on ]; then
		like out "GPU memory: registered [1-9][0-9]* times, flushed [1-9][0-9]* times"
		has out "GPU 0's writes were flushed"
	else
		has out "GPU 0's writes were not flushed"
	fi
done
echo "ok: writes of a network to GPU memory"

for transport in net shm p2p; do
	run "$BUILD_DIR/drivers/perf_hip" sendrecv --device hip --transport $transport -b 1 -e 300k -f 67 -n 2 -w 1
	run "$BUILD_DIR/drivers/perf_hip" all_reduce --device hip --transport $transport -b 4 -e 1M -f 64 -n 2 -w 1
	grep -q 'Fake HIP' "$tmp/out" || die "the device is not named: $(cat "$tmp/out")"
	echo "ok: communicators over $transport"
done
