/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h's declarations against NVIDIA's own header, where the build found one: numbers, and every prototype. */
#include "test.h"

#if GANTRY_HAVE_CUDA_H

#include <cuda.h>
#define cu_ipc_handle CUipcMemHandle_st
#define cu_copy_2d CUDA_MEMCPY2D_st
#define cu_mem_op CUstreamBatchMemOpParams_union
#include "device/cuda/driver.h"

#define SAME_ERROR(name, number) _Static_assert((int)CUE_##name == (int)CUDA_ERROR_##name, "CUDA_ERROR_" #name);
#define SAME_NUMBER(name, number) _Static_assert((int)CUV_##name == (int)CU_##name, "CU_" #name);
GANTRY_CUDA_ERRORS(SAME_ERROR)
GANTRY_CUDA_CONSTANTS(SAME_NUMBER)
#if CUDA_VERSION >= 13000
#define SAME_NEW_NUMBER(since, name, number) SAME_NUMBER(name, number)
GANTRY_CUDA_NEW_CONSTANTS(SAME_NEW_NUMBER)
#endif
_Static_assert(sizeof(cu_ptr) == sizeof(CUdeviceptr) && sizeof(cu_device) == sizeof(CUdevice), "plain types");
_Static_assert(sizeof(struct cu_ipc_handle) == 64, "driver.h has 64 bytes of its own");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && offsetof(CUDA_MEMCPY2D, srcMemoryType) == 16 &&
		       offsetof(CUDA_MEMCPY2D, srcDevice) == 32 && offsetof(CUDA_MEMCPY2D, srcPitch) == 48 &&
		       offsetof(CUDA_MEMCPY2D, dstMemoryType) == 72 && offsetof(CUDA_MEMCPY2D, dstDevice) == 88 &&
		       offsetof(CUDA_MEMCPY2D, dstPitch) == 104 && offsetof(CUDA_MEMCPY2D, WidthInBytes) == 112 &&
		       offsetof(CUDA_MEMCPY2D, Height) == 120,
	       "struct cu_copy_2d of driver.h");
_Static_assert(sizeof(CUstreamBatchMemOpParams) == 48 && offsetof(CUstreamBatchMemOpParams, writeValue.address) == 8 &&
		       offsetof(CUstreamBatchMemOpParams, writeValue.value64) == 16 &&
		       offsetof(CUstreamBatchMemOpParams, writeValue.flags) == 24,
	       "union cu_mem_op of driver.h");

#pragma GCC diagnostic error "-Wincompatible-pointer-types"
/* Never called, nothing linked: an assignment of incompatible pointers is an error of the compiler. */
__attribute__((unused)) static void prototypes(struct gantry_cuda_api *api)
{
#define SAME_CALL(field, symbol, params) (void)sizeof(api->field = symbol);
	GANTRY_CUDA_CALLS(SAME_CALL)
	GANTRY_CUDA_OPTIONAL(SAME_CALL)
}

int main(void)
{
	printf("driver.h agrees with cuda.h of CUDA %d.%d\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
	return 0;
}

#else

int main(void)
{
	SKIP("the build found no cuda.h");
}

#endif
