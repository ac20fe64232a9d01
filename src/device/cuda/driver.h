/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, opened at run time: one binary runs with and without a GPU, and no CUDA header is needed to build.
 *
 * The table of calls is also what the rest of this folder knows of a GPU: for AMD's, device/hip/hip_driver.c fills one
 * with the calls of the HIP runtime.
 *
 * The declarations below are the driver's binary interface in our own words: names without "cu", enums as `unsigned`,
 * and only what is used. tests/unit/test_cuda_header.c compares each of them with NVIDIA's cuda.h where that is found.
 *
 * Loading also initialises the driver (cuInit). A process that has done so must not fork and use CUDA in the child:
 * programs that fork ranks do it before they ask for GPUs, even for their number.
 */
#ifndef GANTRY_DEVICE_CUDA_DRIVER_H
#define GANTRY_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

/* The driver's handles: NVIDIA's tags, so that pointers to functions can be compared with cuda.h. */
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphNode_st *cu_graph_node;
typedef struct CUgraphEdgeData_st cu_graph_edge;
typedef struct CUuserObject_st *cu_user_object;
typedef unsigned long long cu_ptr;
typedef int cu_device;

#ifndef cu_copy_2d /* as below */
/* CUDA_MEMCPY2D: what of it is used has a name of ours. */
struct cu_copy_2d {
	size_t src_x, src_y;
	unsigned src_type;
	const void *src_host;
	cu_ptr src;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	unsigned dst_type;
	void *dst_host;
	cu_ptr dst;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height;
};
_Static_assert(sizeof(struct cu_copy_2d) == 128 && offsetof(struct cu_copy_2d, src) == 32 &&
		       offsetof(struct cu_copy_2d, src_pitch) == 48 && offsetof(struct cu_copy_2d, dst_type) == 72 &&
		       offsetof(struct cu_copy_2d, dst) == 88 && offsetof(struct cu_copy_2d, dst_pitch) == 104,
	       "test_cuda_header.c has the same of NVIDIA's");
#endif
#ifndef cu_mem_op /* as below */
/* CUstreamBatchMemOpParams, of which only stores are used. */
union cu_mem_op {
	struct {
		unsigned type;
		cu_ptr at;
		uint64_t value;
		unsigned flags;
		cu_ptr alias;
	} store;
	uint64_t words[6];
};
_Static_assert(sizeof(union cu_mem_op) == 48 && offsetof(union cu_mem_op, store.at) == 8 &&
		       offsetof(union cu_mem_op, store.value) == 16 && offsetof(union cu_mem_op, store.flags) == 24,
	       "test_cuda_header.c has the same of NVIDIA's");
#endif
#ifndef cu_ipc_handle /* the comparison names NVIDIA's struct here */
struct cu_ipc_handle {
	char bytes[64];
};
#endif

/* X(name, number): NVIDIA's CUDA_ERROR_<name> is CUE_<name> here, and its CU_<name> is CUV_<name>. */
/* clang-format off */
#define GANTRY_CUDA_ERRORS(X)                  \
	X(INVALID_VALUE, 1)                    \
	X(OUT_OF_MEMORY, 2)                    \
	X(NOT_INITIALIZED, 3)                  \
	X(DEINITIALIZED, 4)                    \
	X(STUB_LIBRARY, 34)                    \
	X(NO_DEVICE, 100)                      \
	X(INVALID_DEVICE, 101)                 \
	X(INVALID_IMAGE, 200)                  \
	X(NO_BINARY_FOR_GPU, 209)              \
	X(PEER_ACCESS_UNSUPPORTED, 217)        \
	X(INVALID_PTX, 218)                    \
	X(JIT_COMPILER_NOT_FOUND, 221)         \
	X(UNSUPPORTED_PTX_VERSION, 222)        \
	X(NOT_READY, 600)                      \
	X(LAUNCH_OUT_OF_RESOURCES, 701)        \
	X(PEER_ACCESS_ALREADY_ENABLED, 704)    \
	X(HOST_MEMORY_ALREADY_REGISTERED, 712) \
	X(NOT_PERMITTED, 800)                  \
	X(NOT_SUPPORTED, 801)                  \
	X(SYSTEM_DRIVER_MISMATCH, 803)         \
	X(COMPAT_NOT_SUPPORTED_ON_DEVICE, 804) \
	X(STREAM_CAPTURE_INVALIDATED, 901)

#define GANTRY_CUDA_CONSTANTS(X)                                \
	X(DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)            \
	X(DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)              \
	X(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)        \
	X(DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110) \
	X(DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 117) \
	X(DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 118) \
	X(DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122)  \
	X(DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)              \
	X(GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, 100)           \
	X(FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST, 1)          \
	X(FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, 0)   \
	X(FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, 100)           \
	X(POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                     \
	X(POINTER_ATTRIBUTE_DEVICE_POINTER, 3)                  \
	X(POINTER_ATTRIBUTE_IS_MANAGED, 8)                      \
	X(POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                  \
	X(POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)     \
	X(POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)               \
	X(POINTER_ATTRIBUTE_RANGE_SIZE, 12)                     \
	X(MEMORYTYPE_HOST, 1)                                   \
	X(MEMORYTYPE_DEVICE, 2)                                 \
	X(MEMORYTYPE_UNIFIED, 4)                                \
	X(MEMHOSTALLOC_PORTABLE, 1)                             \
	X(MEMHOSTALLOC_DEVICEMAP, 2)                            \
	X(MEMHOSTREGISTER_PORTABLE, 1)                          \
	X(MEMHOSTREGISTER_DEVICEMAP, 2)                         \
	X(STREAM_NON_BLOCKING, 1)                               \
	X(STREAM_CAPTURE_MODE_RELAXED, 2)                       \
	X(STREAM_CAPTURE_STATUS_NONE, 0)                        \
	X(STREAM_CAPTURE_STATUS_ACTIVE, 1)                      \
	X(USER_OBJECT_NO_DESTRUCTOR_SYNC, 1)                    \
	X(GRAPH_USER_OBJECT_MOVE, 1)                            \
	X(EVENT_WAIT_EXTERNAL, 1)                               \
	X(EVENT_RECORD_EXTERNAL, 1)                             \
	X(EVENT_DEFAULT, 0)                                     \
	X(IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                   \
	X(STREAM_MEM_OP_WRITE_VALUE_64, 5)                      \
	X(MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1)

/* A number that cuda.h has only since 12.8. */
#define GANTRY_CUDA_NEW_CONSTANTS(X) X(12080, MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, 1)

/*
 * X(field, symbol, parameters): the functions. The symbols of the library carry the versions that cuda.h hides behind
 * macros. All of the first list must be there; the second is NULL in older drivers.
 */
#define GANTRY_CUDA_CALLS(X)                                                                                           \
	X(get_error_name, cuGetErrorName, (unsigned error, const char **ret_text))                                     \
	X(get_error_string, cuGetErrorString, (unsigned error, const char **ret_text))                                 \
	X(init, cuInit, (unsigned flags))                                                                              \
	X(driver_get_version, cuDriverGetVersion, (int *ret_version))                                                  \
	X(device_get_count, cuDeviceGetCount, (int *ret_count))                                                        \
	X(device_get, cuDeviceGet, (cu_device *ret_device, int index))                                                 \
	X(device_get_name, cuDeviceGetName, (char *name, int len, cu_device device))                                   \
	X(device_get_attribute, cuDeviceGetAttribute, (int *ret_value, unsigned attribute, cu_device device))          \
	X(device_get_pci_bus_id, cuDeviceGetPCIBusId, (char *id, int len, cu_device device))                           \
	X(device_can_access_peer, cuDeviceCanAccessPeer, (int *ret_can, cu_device device, cu_device peer))             \
	X(primary_ctx_retain, cuDevicePrimaryCtxRetain, (cu_context *ret_ctx, cu_device device))                       \
	X(primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                                       \
	X(ctx_get_current, cuCtxGetCurrent, (cu_context *ret_ctx))                                                     \
	X(ctx_set_current, cuCtxSetCurrent, (cu_context ctx))                                                          \
	X(ctx_get_device, cuCtxGetDevice, (cu_device *ret_device))                                                     \
	X(ctx_enable_peer_access, cuCtxEnablePeerAccess, (cu_context peer, unsigned flags))                            \
	X(mem_alloc, cuMemAlloc_v2, (cu_ptr *ret_ptr, size_t size))                                                    \
	X(mem_free, cuMemFree_v2, (cu_ptr ptr))                                                                        \
	X(mem_host_alloc, cuMemHostAlloc, (void **ret_ptr, size_t size, unsigned flags))                               \
	X(mem_free_host, cuMemFreeHost, (void *ptr))                                                                   \
	X(mem_host_register, cuMemHostRegister_v2, (void *ptr, size_t size, unsigned flags))                           \
	X(mem_host_unregister, cuMemHostUnregister, (void *ptr))                                                       \
	X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2, (cu_ptr *ret_ptr, void *host, unsigned flags))    \
	X(memset_d32_async, cuMemsetD32Async, (cu_ptr dst, unsigned value, size_t n, cu_stream stream))                \
	X(memset_d8_async, cuMemsetD8Async, (cu_ptr dst, unsigned char value, size_t n, cu_stream stream))             \
	X(memcpy_async, cuMemcpyAsync, (cu_ptr dst, cu_ptr src, size_t size, cu_stream stream))                        \
	X(memcpy_2d_async, cuMemcpy2DAsync_v2, (const struct cu_copy_2d *copy, cu_stream stream))                      \
	X(pointer_get_attributes, cuPointerGetAttributes,                                                              \
	  (unsigned n, unsigned *attributes, void **ret_values, cu_ptr ptr))                                           \
	X(stream_create, cuStreamCreate, (cu_stream *ret_stream, unsigned flags))                                      \
	X(stream_create_with_priority, cuStreamCreateWithPriority,                                                     \
	  (cu_stream *ret_stream, unsigned flags, int priority))                                                       \
	X(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, (int *ret_least, int *ret_greatest))             \
	X(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                                                      \
	X(stream_query, cuStreamQuery, (cu_stream stream))                                                             \
	X(stream_wait_event, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))                    \
	X(stream_is_capturing, cuStreamIsCapturing, (cu_stream stream, unsigned *ret_status))                          \
	X(thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (unsigned *mode))                           \
	X(launch_host_func, cuLaunchHostFunc, (cu_stream stream, void (*fn)(void *ctx), void *ctx))                    \
	X(event_create, cuEventCreate, (cu_event *ret_event, unsigned flags))                                          \
	X(event_destroy, cuEventDestroy_v2, (cu_event event))                                                          \
	X(event_record, cuEventRecord, (cu_event event, cu_stream stream))                                             \
	X(event_query, cuEventQuery, (cu_event event))                                                                 \
	X(event_elapsed_time, cuEventElapsedTime, (float *ret_ms, cu_event from, cu_event to))                         \
	X(module_load_data, cuModuleLoadData, (cu_module *ret_module, const void *image))                              \
	X(module_unload, cuModuleUnload, (cu_module module))                                                           \
	X(module_get_function, cuModuleGetFunction, (cu_function *ret_function, cu_module module, const char *name))   \
	X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                      \
	  (int *ret_blocks, cu_function function, int lanes, size_t shared))                                           \
	X(launch_kernel, cuLaunchKernel,                                                                               \
	  (cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,         \
	   unsigned shared, cu_stream stream, void **params, void **extra))                                            \
	X(ipc_get_mem_handle, cuIpcGetMemHandle, (struct cu_ipc_handle *ret_handle, cu_ptr ptr))                       \
	X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2,                                                                  \
	  (cu_ptr *ret_ptr, struct cu_ipc_handle handle, unsigned flags))                                              \
	X(ipc_close_mem_handle, cuIpcCloseMemHandle, (cu_ptr ptr))

#define GANTRY_CUDA_OPTIONAL(X)                                                                                        \
	/* 11.3 */                                                                                                     \
	X(flush_gpu_direct_rdma_writes, cuFlushGPUDirectRDMAWrites, (unsigned target, unsigned scope))                 \
	/* 11.7 */                                                                                                     \
	X(stream_write_value32, cuStreamWriteValue32_v2,                                                               \
	  (cu_stream stream, cu_ptr ptr, unsigned value, unsigned flags))                                              \
	X(stream_write_value64, cuStreamWriteValue64_v2,                                                               \
	  (cu_stream stream, cu_ptr ptr, uint64_t value, unsigned flags))                                              \
	X(stream_batch_mem_op, cuStreamBatchMemOp_v2,                                                                  \
	  (cu_stream stream, unsigned n, union cu_mem_op *ops, unsigned flags))                                        \
	X(mem_get_handle_for_address_range, cuMemGetHandleForAddressRange,                                             \
	  (void *ret_handle, cu_ptr ptr, size_t size, unsigned type, unsigned long long flags))                        \
	/* 12.0 */                                                                                                     \
	X(stream_get_id, cuStreamGetId, (cu_stream stream, unsigned long long *ret_id))                                \
	/* 12.3, the last of them */                                                                                   \
	X(event_record_with_flags, cuEventRecordWithFlags, (cu_event event, cu_stream stream, unsigned flags))         \
	X(user_object_create, cuUserObjectCreate,                                                                      \
	  (cu_user_object *ret_object, void *ctx, void (*gone)(void *ctx), unsigned count, unsigned flags))            \
	X(graph_retain_user_object, cuGraphRetainUserObject,                                                           \
	  (cu_graph graph, cu_user_object object, unsigned count, unsigned flags))                                     \
	X(stream_get_capture_info, cuStreamGetCaptureInfo_v3,                                                          \
	  (cu_stream stream, unsigned *ret_status, uint64_t *ret_id, cu_graph *ret_graph,                              \
	   const cu_graph_node **ret_nodes, const cu_graph_edge **ret_edges, size_t *ret_n))                           \
	/* 12.4 */                                                                                                     \
	X(func_get_param_info, cuFuncGetParamInfo,                                                                     \
	  (cu_function function, size_t index, size_t *ret_offset, size_t *ret_size))
/* clang-format on */

enum gantry_cuda_error {
	CUE_SUCCESS = 0,
#define GANTRY_CUDA_ERROR(name, number) CUE_##name = (number),
	GANTRY_CUDA_ERRORS(GANTRY_CUDA_ERROR)
#undef GANTRY_CUDA_ERROR
};
enum gantry_cuda_constant {
#define GANTRY_CUDA_CONSTANT(name, number) CUV_##name = (number),
	GANTRY_CUDA_CONSTANTS(GANTRY_CUDA_CONSTANT)
#undef GANTRY_CUDA_CONSTANT
#define GANTRY_CUDA_CONSTANT(since, name, number) CUV_##name = (number),
		GANTRY_CUDA_NEW_CONSTANTS(GANTRY_CUDA_CONSTANT)
#undef GANTRY_CUDA_CONSTANT
};

struct gantry_cuda_api {
#define GANTRY_CUDA_FIELD(field, symbol, params) unsigned(*field) params;
	GANTRY_CUDA_CALLS(GANTRY_CUDA_FIELD) GANTRY_CUDA_OPTIONAL(GANTRY_CUDA_FIELD)
#undef GANTRY_CUDA_FIELD
};

/* Written once, when the driver is loaded (cuda_driver.c); read-only after that. */
extern struct gantry_cuda_api cu;

/* "out of memory (CUDA_ERROR_OUT_OF_MEMORY)" */
const char *gantry_cuda_text(const struct gantry_cuda_api *api, unsigned error, char *buf, size_t len);
/* Logs "<what>: <text of the error>" as gantry_fail does. */
gantry_result gantry_cuda_fail(const struct gantry_cuda_api *api, unsigned error, const char *file, int line,
			       const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Like TRY, for a call of a driver; in functions with a GPU `g`: CU(g->api->mem_free(p), "free %p", p). */
#define CU_OF(api, call, ...)                                                                                          \
	do {                                                                                                           \
		unsigned cu_error = (call);                                                                            \
		if (cu_error != CUE_SUCCESS) {                                                                         \
			r = gantry_cuda_fail((api), cu_error, __FILE__, __LINE__, __VA_ARGS__);                        \
			goto out;                                                                                      \
		}                                                                                                      \
	} while (0)
#define CU(call, ...) CU_OF(g->api, call, __VA_ARGS__)

#endif
