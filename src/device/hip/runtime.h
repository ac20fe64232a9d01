/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMD's HIP runtime, opened at run time, as far as it differs from the CUDA driver. HIP was made after CUDA: most calls
 * have the same parameters under another name, and errors and flags the same numbers. So this folder has no device of
 * its own. hip_driver.c fills a table of the type that device/cuda works with (driver.h there):
 *
 *   GANTRY_HIP_SAME     calls that go into that table as they are
 *   GANTRY_HIP_CALLS    calls that hip_driver.c has a function around, in our own words as in driver.h. Device addresses
 *                       are pointers here and numbers there
 *
 * tests/unit/test_hip_header.c compares all of it with AMD's header where that is found.
 */
#ifndef GANTRY_DEVICE_HIP_RUNTIME_H
#define GANTRY_DEVICE_HIP_RUNTIME_H

#include "device/cuda/driver.h"

#ifndef hip_pointer_attributes /* the comparison names AMD's structs here */
/* Its first word counts in another way since HIP 6: hip_driver.c. */
struct hip_pointer_attributes {
	unsigned type;
	int device;
	void *device_ptr, *host_ptr;
	int managed;
	unsigned flags;
};
_Static_assert(sizeof(struct hip_pointer_attributes) == 32, "test_hip_header.c has the same of AMD's");
#endif

/* X(name, number): AMD's hip<name> is HIPV_<name>. */
/* clang-format off */
#define GANTRY_HIP_CONSTANTS(X)                  \
	X(DeviceAttributeMultiprocessorCount, 63)      \
	X(DeviceAttributeHdpMemFlushCntl, 10005)       \
	X(DeviceAttributeCanUseStreamWaitValue, 10013) \
	X(HostMallocCoherent, 0x40000000)              \
	X(DeviceMallocFinegrained, 1)                  \
	X(MemcpyDefault, 4)

/* X(field of gantry_cuda_api, symbol) */
#define GANTRY_HIP_SAME(X)                                         \
	X(init, hipInit)                                           \
	X(driver_get_version, hipDriverGetVersion)                 \
	X(device_get_count, hipGetDeviceCount)                     \
	X(device_get, hipDeviceGet)                                \
	X(device_get_name, hipDeviceGetName)                       \
	X(device_get_pci_bus_id, hipDeviceGetPCIBusId)             \
	X(device_can_access_peer, hipDeviceCanAccessPeer)          \
	X(ctx_get_device, hipGetDevice)                            \
	X(mem_free_host, hipHostFree)                              \
	X(mem_host_register, hipHostRegister)                      \
	X(mem_host_unregister, hipHostUnregister)                  \
	X(stream_create, hipStreamCreateWithFlags)                 \
	X(stream_create_with_priority, hipStreamCreateWithPriority) \
	X(ctx_get_stream_priority_range, hipDeviceGetStreamPriorityRange) \
	X(stream_destroy, hipStreamDestroy)                        \
	X(stream_wait_event, hipStreamWaitEvent)                   \
	X(stream_is_capturing, hipStreamIsCapturing)               \
	X(thread_exchange_capture_mode, hipThreadExchangeStreamCaptureMode) \
	X(event_create, hipEventCreateWithFlags)                   \
	X(event_destroy, hipEventDestroy)                          \
	X(event_record, hipEventRecord)                            \
	X(event_elapsed_time, hipEventElapsedTime)                 \
	X(module_load_data, hipModuleLoadData)                     \
	X(module_unload, hipModuleUnload)                          \
	X(module_get_function, hipModuleGetFunction)               \
	X(occupancy, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor) \
	X(launch_kernel, hipModuleLaunchKernel)

/* The same, of later versions: Debian 12's 5.2 has none of them. */
#define GANTRY_HIP_SAME_OPTIONAL(X)                                \
	X(launch_host_func, hipLaunchHostFunc)                     \
	X(event_record_with_flags, hipEventRecordWithFlags)        \
	X(user_object_create, hipUserObjectCreate)                 \
	X(graph_retain_user_object, hipGraphRetainUserObject)
/* clang-format on */

/* X(field, symbol, result, parameters) */
#define GANTRY_HIP_CALLS(X)                                                                                            \
	X(get_error_name, hipGetErrorName, const char *, (unsigned error))                                             \
	X(get_error_string, hipGetErrorString, const char *, (unsigned error))                                         \
	X(get_last_error, hipGetLastError, unsigned, (void))                                                           \
	X(runtime_get_version, hipRuntimeGetVersion, unsigned, (int *ret_version))                                     \
	X(device_get_attribute, hipDeviceGetAttribute, unsigned, (int *ret_value, unsigned attribute, int device))     \
	X(get_device, hipGetDevice, unsigned, (int *ret_device))                                                       \
	X(set_device, hipSetDevice, unsigned, (int device))                                                            \
	X(device_enable_peer_access, hipDeviceEnablePeerAccess, unsigned, (int peer, unsigned flags))                  \
	X(malloc_with_flags, hipExtMallocWithFlags, unsigned, (void **ret_ptr, size_t size, unsigned flags))           \
	X(free, hipFree, unsigned, (void *ptr))                                                                        \
	X(host_malloc, hipHostMalloc, unsigned, (void **ret_ptr, size_t size, unsigned flags))                         \
	X(host_get_device_pointer, hipHostGetDevicePointer, unsigned, (void **ret_ptr, void *host, unsigned flags))    \
	X(memset_d32_async, hipMemsetD32Async, unsigned, (void *dst, int value, size_t n, cu_stream stream))           \
	X(memset_d8_async, hipMemsetD8Async, unsigned, (void *dst, unsigned char value, size_t n, cu_stream stream))   \
	X(memcpy_async, hipMemcpyAsync, unsigned,                                                                      \
	  (void *dst, const void *src, size_t size, unsigned kind, cu_stream stream))                                  \
	X(memcpy_2d_async, hipMemcpy2DAsync, unsigned,                                                                 \
	  (void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, unsigned kind, \
	   cu_stream stream))                                                                                          \
	X(pointer_get_attributes, hipPointerGetAttributes, unsigned,                                                   \
	  (struct hip_pointer_attributes * ret, const void *ptr))                                                      \
	X(mem_get_address_range, hipMemGetAddressRange, unsigned, (void **ret_base, size_t *ret_size, void *ptr))      \
	X(stream_query, hipStreamQuery, unsigned, (cu_stream stream))                                                  \
	X(event_query, hipEventQuery, unsigned, (cu_event event))                                                      \
	X(stream_write_value32, hipStreamWriteValue32, unsigned,                                                       \
	  (cu_stream stream, void *ptr, uint32_t value, unsigned flags))                                               \
	X(stream_write_value64, hipStreamWriteValue64, unsigned,                                                       \
	  (cu_stream stream, void *ptr, uint64_t value, unsigned flags))                                               \
	X(ipc_get_mem_handle, hipIpcGetMemHandle, unsigned, (struct cu_ipc_handle * ret_handle, void *ptr))            \
	X(ipc_open_mem_handle, hipIpcOpenMemHandle, unsigned,                                                          \
	  (void **ret_ptr, struct cu_ipc_handle handle, unsigned flags))                                               \
	X(ipc_close_mem_handle, hipIpcCloseMemHandle, unsigned, (void *ptr))

#define GANTRY_HIP_OPTIONAL(X)                                                                                         \
	X(stream_get_capture_info, hipStreamGetCaptureInfo_v2, unsigned,                                               \
	  (cu_stream stream, unsigned *ret_status, unsigned long long *ret_id, cu_graph *ret_graph,                    \
	   const cu_graph_node **ret_nodes, size_t *ret_n))

enum gantry_hip_constant {
#define GANTRY_HIP_CONSTANT(name, number) HIPV_##name = (number),
	GANTRY_HIP_CONSTANTS(GANTRY_HIP_CONSTANT)
#undef GANTRY_HIP_CONSTANT
};

struct gantry_hip_api {
#define GANTRY_HIP_FIELD(field, symbol, result, params) result(*field) params;
	GANTRY_HIP_CALLS(GANTRY_HIP_FIELD) GANTRY_HIP_OPTIONAL(GANTRY_HIP_FIELD)
#undef GANTRY_HIP_FIELD
};

#endif
