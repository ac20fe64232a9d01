/* SPDX-License-Identifier: Apache-2.0 */
/* runtime.h's declarations against AMD's own header, where the build found one: numbers, and every prototype. */
#include "test.h"

#if GANTRY_HAVE_HIP_H

#define __HIP_PLATFORM_AMD__ 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wundef"
#include <hip/hip_runtime_api.h>
#pragma GCC diagnostic pop
/* HIP's tags for handles. */
#define CUstream_st ihipStream_t
#define CUevent_st ihipEvent_t
#define CUmod_st ihipModule_t
#define CUfunc_st ihipModuleSymbol_t
#define CUgraph_st ihipGraph
#define CUgraphNode_st hipGraphNode
#define CUuserObject_st hipUserObject
#define cu_ipc_handle hipIpcMemHandle_st
#define hip_pointer_attributes hipPointerAttribute_t
#include "device/hip/runtime.h"

#define SAME_NUMBER(name, number) _Static_assert((unsigned)HIPV_##name == (unsigned)hip##name, "hip" #name);
GANTRY_HIP_CONSTANTS(SAME_NUMBER)
#define SAME_ERROR(ours, theirs) _Static_assert((int)CUE_##ours == (int)hipError##theirs, "hipError" #theirs);
SAME_ERROR(INVALID_VALUE, InvalidValue)
SAME_ERROR(OUT_OF_MEMORY, OutOfMemory)
SAME_ERROR(NOT_INITIALIZED, NotInitialized)
SAME_ERROR(DEINITIALIZED, Deinitialized)
SAME_ERROR(NO_DEVICE, NoDevice)
SAME_ERROR(INVALID_DEVICE, InvalidDevice)
SAME_ERROR(INVALID_IMAGE, InvalidImage)
SAME_ERROR(NO_BINARY_FOR_GPU, NoBinaryForGpu)
SAME_ERROR(PEER_ACCESS_UNSUPPORTED, PeerAccessUnsupported)
SAME_ERROR(INVALID_PTX, InvalidKernelFile)
SAME_ERROR(NOT_READY, NotReady)
SAME_ERROR(LAUNCH_OUT_OF_RESOURCES, LaunchOutOfResources)
SAME_ERROR(PEER_ACCESS_ALREADY_ENABLED, PeerAccessAlreadyEnabled)
SAME_ERROR(HOST_MEMORY_ALREADY_REGISTERED, HostMemoryAlreadyRegistered)
SAME_ERROR(NOT_SUPPORTED, NotSupported)
SAME_ERROR(STREAM_CAPTURE_INVALIDATED, StreamCaptureInvalidated)
/* Flags that go through under CUDA's names. */
#define SAME_FLAG(ours, theirs) _Static_assert((int)CUV_##ours == (int)theirs, #theirs);
SAME_FLAG(MEMHOSTALLOC_PORTABLE, hipHostMallocPortable)
SAME_FLAG(MEMHOSTALLOC_DEVICEMAP, hipHostMallocMapped)
SAME_FLAG(MEMHOSTREGISTER_PORTABLE, hipHostRegisterPortable)
SAME_FLAG(MEMHOSTREGISTER_DEVICEMAP, hipHostRegisterMapped)
SAME_FLAG(STREAM_NON_BLOCKING, hipStreamNonBlocking)
SAME_FLAG(STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed)
SAME_FLAG(STREAM_CAPTURE_STATUS_NONE, hipStreamCaptureStatusNone)
SAME_FLAG(STREAM_CAPTURE_STATUS_ACTIVE, hipStreamCaptureStatusActive)
SAME_FLAG(EVENT_DEFAULT, hipEventDefault)
/* Since HIP 6, kinds of memory count as CUDA's. */
#if HIP_VERSION_MAJOR >= 6
SAME_FLAG(MEMORYTYPE_HOST, hipMemoryTypeHost)
SAME_FLAG(MEMORYTYPE_DEVICE, hipMemoryTypeDevice)
#else
_Static_assert(hipMemoryTypeHost == 0 && hipMemoryTypeDevice == 1, "HIP5_HOST and HIP5_DEVICE of hip_driver.c");
#endif
_Static_assert(sizeof(hipIpcMemHandle_t) == 64, "driver.h has 64 bytes of its own");
_Static_assert(sizeof(hipPointerAttribute_t) == 32 && offsetof(hipPointerAttribute_t, device) == 4 &&
		       offsetof(hipPointerAttribute_t, devicePointer) == 8 &&
		       offsetof(hipPointerAttribute_t, isManaged) == 24,
	       "struct hip_pointer_attributes of runtime.h");

#pragma GCC diagnostic error "-Wincompatible-pointer-types"
/* Never called, nothing linked: an assignment of incompatible pointers is an error of the compiler. */
__attribute__((unused)) static void prototypes(struct gantry_cuda_api *api, struct gantry_hip_api *hip)
{
#define SAME_CALL(field, symbol) (void)sizeof(api->field = symbol);
#define SAME_OWN(field, symbol, result, params) (void)sizeof(hip->field = symbol);
	GANTRY_HIP_SAME(SAME_CALL)
	GANTRY_HIP_CALLS(SAME_OWN)
	GANTRY_HIP_OPTIONAL(SAME_OWN)
#if HIP_VERSION_MAJOR >= 7 /* 6.0 to 6.3 have no hipEventRecordWithFlags */
	GANTRY_HIP_SAME_OPTIONAL(SAME_CALL)
#endif
}

int main(void)
{
	printf("runtime.h agrees with hip_runtime_api.h of HIP %d.%d\n", HIP_VERSION_MAJOR, HIP_VERSION_MINOR);
	return 0;
}

#else

int main(void)
{
	SKIP("the build found no hip/hip_runtime_api.h");
}

#endif
