#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NCCL's device API on Gantry's libnccl.so.2: kernels compiled with the headers of the installed NCCL (PyTorch's wheel, or NCCL_HOME) put, signal, wait
# and meet, with 2 and 4 ranks on one GPU, and every word is compared (device_api.cu). Then ncclCommAbort with kernels that wait.
# Only headers of 2.28.7 to 2.29.3 have the layouts that Gantry knows.
set -u
. "$(dirname "$0")/lib_gpu.sh"
need_nvcc
home=${NCCL_HOME:-$(python3 -c 'import nvidia.nccl, os; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)}
for include in ${home:+"$home/include"} /usr/local/cuda/include /usr/include; do
	[ -e "$include/nccl_device.h" ] && break
done
[ -e "$include/nccl_device.h" ] || skip "no nccl_device.h here: NCCL_HOME names the folder above include"
version=$(sed -n 's/^#define NCCL_VERSION_CODE *\([0-9]*\).*/\1/p' "$include/nccl.h")
[ "${version:-0}" -ge 22807 ] && [ "$version" -le 22903 ] || skip "headers of NCCL $version; 22807 to 22903 have the layouts that Gantry knows"
program=$BUILD_DIR/gpu/device_api
nvcc -std=c++17 -O2 -arch=native -DNCCL_GIN_GDAKI_ENABLE=0 -I"$include" -o "$program" "$SOURCE_DIR/tests/gpu/device_api.cu" \
	-L"$BUILD_DIR/lib" -l:libnccl.so.2 || exit 1
failed=0
for n in 2 4; do
	CUDA_MODULE_LOADING=EAGER GANTRY_IFNAME=lo LD_LIBRARY_PATH=$BUILD_DIR/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
		timeout 120 "$program" $n || { echo "FAILED ($?): $n ranks, headers $version"; failed=1; }
done
exit $failed
