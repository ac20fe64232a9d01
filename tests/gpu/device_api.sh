#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NCCL's device API: kernels compiled with the headers of the installed NCCL (PyTorch's wheel, or NCCL_HOME) put, signal, wait and meet, with up to
# 8 ranks on one GPU, and every word is compared (device_api.cu): on Gantry's libnccl.so.2, where ncclCommAbort and the loss of a stopped rank end
# kernels that wait, and on stock NCCL over the plugin. Only headers of 2.28.7 to 2.29.3 have the layouts that Gantry knows.
# CHECK=1: two ranks on the drop-in under each tool of compute-sanitizer instead, as threads: processes of it do not share a GPU.
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
	-L"$BUILD_DIR/lib" -l:libnccl.so.2 -lpthread || exit 1
failed=0
export CUDA_MODULE_LOADING=EAGER GANTRY_IFNAME=lo NCCL_SOCKET_IFNAME=lo
# try LIBRARIES ARGUMENT...
try() {
	local libraries=$1
	shift
	LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 120 "$program" "$@" || { echo "FAILED ($?): $*, headers $version"; failed=1; }
}
if [ "${CHECK:-}" = 1 ]; then
	for tool in memcheck racecheck synccheck initcheck; do
		LD_LIBRARY_PATH=$BUILD_DIR/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 100 compute-sanitizer --tool $tool --error-exitcode 1 \
			"$program" 2 threads few >"$scratch/$tool" 2>&1 || { echo "FAILED ($?): $tool"; failed=1; }
		grep '0 wrong words\|SUMMARY' "$scratch/$tool" | sed "s/^/$tool: /"
	done
	exit $failed
fi
for n in 2 4 8; do try "$BUILD_DIR/lib" $n threads; done
start_mps
for n in 2 4 8; do try "$BUILD_DIR/lib" $n processes; done
if [ -e "$home/lib/libnccl.so.2" ]; then
	for n in 2 3 4; do NCCL_NET_PLUGIN=$BUILD_DIR/lib/libnccl-net-gantry.so try "$home/lib" $n processes stock; done
else
	echo "no libnccl.so.2 of NVIDIA's in ${home:-NCCL_HOME}/lib: not tried on stock NCCL"
fi
GANTRY_TIMEOUT=5s try "$BUILD_DIR/lib" 3 processes stopped # last: it kills a process, after which MPS takes nobody for a while
exit $failed
