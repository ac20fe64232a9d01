/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all versions of NCCL's net interface share: result codes, the logger,
 * constants, data types and the device handle. nccl_api.h has what its own API
 * adds.
 *
 * This folder describes a foreign binary interface. Names, order and layout
 * are NCCL's, so its typedef names are kept too; everything else is ours. Each
 * header net_vN.h and collnet_vN.h holds what version N changed and takes the
 * rest from the version before. The asserts freeze what a 64-bit build of NCCL
 * was measured to use: when one fails, the header is wrong, never the number.
 */
#ifndef GANTRY_ABI_NCCL_TYPES_H
#define GANTRY_ABI_NCCL_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define NCCL_ABI_ASSERT(cond, why) static_assert(cond, why)
#else
#define NCCL_ABI_ASSERT(cond, why) _Static_assert(cond, why)
#endif
#define NCCL_ABI_SIZE(type, bytes)                                                                                     \
	NCCL_ABI_ASSERT(sizeof(type) == (bytes), "NCCL is compiled with another size of " #type)
#define NCCL_ABI_OFFSET(type, field, bytes)                                                                            \
	NCCL_ABI_ASSERT(offsetof(type, field) == (bytes), "NCCL is compiled with another place of " #field " in"       \
							  " " #type)

NCCL_ABI_ASSERT(sizeof(void *) == 8, "NCCL exists for 64-bit systems only");

typedef enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
	ncclTimeout = 8, /* since 2.30 */
} ncclResult_t;
NCCL_ABI_SIZE(ncclResult_t, 4);

typedef enum {
	NCCL_LOG_NONE = 0,
	NCCL_LOG_VERSION = 1,
	NCCL_LOG_WARN = 2,
	NCCL_LOG_INFO = 3,
	NCCL_LOG_ABORT = 4,
	NCCL_LOG_TRACE = 5,
} ncclDebugLogLevel;

/* Subsystem flags of the logger; NCCL_DEBUG_SUBSYS picks among them, for warnings too. */
#define NCCL_INIT 0x1ul
#define NCCL_NET 0x10ul
#define NCCL_ENV 0x80ul
#define NCCL_ALL (~0ul)

typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
				  const char *fmt, ...);

/* Records an event of the plugin's own with NCCL's profiler; handed to init from v10 on. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void **event, int type, void *phandle, int64_t plugin_id,
					       void *ext_data);

typedef enum {
	ncclInt8 = 0,
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9,
	ncclFloat8e4m3 = 10,
	ncclFloat8e5m2 = 11,
} ncclDataType_t;
NCCL_ABI_SIZE(ncclDataType_t, 4);

typedef enum {
	ncclSum = 0,
	ncclProd = 1,
	ncclMax = 2,
	ncclMin = 3,
	ncclAvg = 4,
	/* Operators made at run time have numbers up to here. */
	ncclMaxRedOp = 0x7fffffff,
} ncclRedOp_t;
NCCL_ABI_SIZE(ncclRedOp_t, 4);

#define NCCL_NET_HANDLE_MAXSIZE 128
#define NCCL_NET_MAX_REQUESTS 32
#define NCCL_NET_MAX_REQUESTS_V6 8
#define NCCL_MAX_NET_SIZE_BYTES ((size_t)1 << 40)
#define NCCL_MAX_NET_SIZE_BYTES_V8 ((size_t)1 << 30) /* what sizes of type int allow for */
#define NCCL_MAX_COLLNET_SIZE_BYTES ((size_t)1 << 29)
#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4
/* *request on entry to irecv, from v9 on: LL or LL128 data, whose arrival the kernel sees by itself. */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION 0x1
#define NCCL_NET_MAX_DEVS_PER_NIC_V9 4
#define NCCL_NET_MAX_DEVS_PER_NIC_V12 8
#define NCCL_NET_TRAFFIC_CLASS_UNDEF (-1)
#define NCCL_NET_ATTR_UNDEF (-1)
#define NCCL_NET_ID_UNDEF (-1)

typedef enum {
	NCCL_NET_DEVICE_HOST = 0,
	NCCL_NET_DEVICE_UNPACK = 1,
	NCCL_NET_DEVICE_GIN_PROXY = 2,
	NCCL_NET_DEVICE_GIN_GDAKI = 3,
} ncclNetDeviceType;
NCCL_ABI_SIZE(ncclNetDeviceType, 4);
#define NCCL_NET_DEVICE_INVALID_VERSION 0x0
#define NCCL_NET_DEVICE_UNPACK_VERSION 0x7

#endif
