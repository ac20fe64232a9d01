#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `gantry check` with memory of a GPU: Gantry's own plugin receives into it through the emulated NIC, and a kernel's part
# (the lists of UNPACK) is done by copies.
set -u
. "$(dirname "$0")/lib_gpu.sh"
export GANTRY_UNPACK=emulated NCCL_PAT_ENABLE=0 GANTRY_IFNAME=${GANTRY_IFNAME:-lo}
status=0
for v in 9 12; do
	timeout 60 "$BUILD_DIR/gantry" check "$BUILD_DIR/lib/libnccl-net-gantry.so" --rule unpack --version $v --device cuda >"$scratch/out" ||
		status=1
	cat "$scratch/out"
	grep ' pass ' "$scratch/out" | grep -qv 'memory of host' || { echo "FAILED: v$v did not use a GPU"; status=1; }
done
exit $status
