/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HIP runtime as a driver for device/cuda: opened at run time, and functions around the calls that differ.
 *
 * Contexts. HIP has a current device per thread and no contexts to speak of. A context is here the device's number and
 * one, as a pointer; to make it current is hipSetDevice. There always is a current device.
 *
 * Memory. What the device allocates is fine-grained: a kernel that runs sees what the copy engine, a peer or the CPU
 * writes meanwhile, which plain hipMalloc memory (cached until the kernel ends) does not promise. Connections consist of
 * nothing else.
 *
 * Errors. HIP keeps the last error of a thread for hipGetLastError, "not ready" and "not a pointer of mine" included.
 * What is an answer and no error here is taken back (forget_error), so that a program that checks after its own launch does
 * not find it; not the elapsed time of an event that is not over.
 *
 * HDP. Between PCIe and the memory of an AMD GPU lies the host data path, a cache: what a NIC or the CPU has written
 * through it is in memory only after a store to the register that hipDeviceAttributeHdpMemFlushCntl names. The store is
 * posted; a kernel that is notified by a later store of this CPU to host memory reads that through PCIe, and the answer
 * to a read does not pass a posted write. Where there is no such register (memory that is coherent with the CPU) nothing
 * is to be flushed.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "device/cuda/gpu.h"
#include "device/hip/runtime.h"

enum { HIP_DEVICES_AT_ONE = 1, HIP_VERSION_MAJOR = 10000000, HIP_TYPES_OF_CUDA = 6, HIP5_HOST = 0, HIP5_DEVICE = 1 };

static struct gantry_hip_api hip;
static struct gantry_cuda_api api;
static int types_of_cuda; /* hipMemoryType counts as CUDA's does, since HIP 6; constant once loaded */

static void *address_of(cu_ptr p)
{
	return (void *)(uintptr_t)p;
}

/* The runtime's last error is not one. */
static unsigned forget_error(unsigned e)
{
	if (e != CUE_SUCCESS)
		hip.get_last_error();
	return e;
}

static unsigned get_error_name(unsigned error, const char **ret_text)
{
	*ret_text = hip.get_error_name(error);
	return CUE_SUCCESS;
}

static unsigned get_error_string(unsigned error, const char **ret_text)
{
	*ret_text = hip.get_error_string(error);
	return CUE_SUCCESS;
}

/* One space of addresses is what HIP is on 64-bit Linux; its attribute is CUDA's alone. */
static unsigned device_get_attribute(int *ret_value, unsigned attribute, cu_device device)
{
	switch (attribute) {
	case CUV_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
		*ret_value = 1;
		return CUE_SUCCESS;
	case CUV_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: /* ROCm exports them by calls of HSA, which are not used */
		*ret_value = 0;
		return CUE_SUCCESS;
	case CUV_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return forget_error(
			hip.device_get_attribute(ret_value, HIPV_DeviceAttributeMultiprocessorCount, device));
	case CUV_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
		return forget_error(
			hip.device_get_attribute(ret_value, HIPV_DeviceAttributeCanUseStreamWaitValue, device));
	}
	return CUE_INVALID_VALUE;
}

static cu_context context_of(cu_device device)
{
	return (cu_context)(uintptr_t)(device + HIP_DEVICES_AT_ONE);
}

static cu_device device_of(cu_context ctx)
{
	return (cu_device)(uintptr_t)ctx - HIP_DEVICES_AT_ONE;
}

static unsigned primary_ctx_retain(cu_context *ret_ctx, cu_device device)
{
	*ret_ctx = context_of(device);
	return CUE_SUCCESS;
}

static unsigned primary_ctx_release(cu_device device)
{
	(void)device;
	return CUE_SUCCESS;
}

static unsigned ctx_get_current(cu_context *ret_ctx)
{
	int device = 0;
	unsigned e = hip.get_device(&device);

	*ret_ctx = context_of(device);
	return e;
}

static unsigned ctx_set_current(cu_context ctx)
{
	return hip.set_device(device_of(ctx));
}

static unsigned ctx_enable_peer_access(cu_context peer, unsigned flags)
{
	unsigned e = hip.device_enable_peer_access(device_of(peer), flags);

	return e == CUE_PEER_ACCESS_ALREADY_ENABLED ? forget_error(e) : e;
}

static unsigned mem_alloc(cu_ptr *ret_ptr, size_t size)
{
	void *p = NULL;
	unsigned e = hip.malloc_with_flags(&p, size, HIPV_DeviceMallocFinegrained);

	if (e == CUE_SUCCESS)
		*ret_ptr = (uintptr_t)p;
	return e;
}

static unsigned mem_free(cu_ptr ptr)
{
	return hip.free(address_of(ptr));
}

/* Coherent whatever HIP_HOST_COHERENT says: FIFOs are made of it. */
static unsigned mem_host_alloc(void **ret_ptr, size_t size, unsigned flags)
{
	return hip.host_malloc(ret_ptr, size, flags | HIPV_HostMallocCoherent);
}

static unsigned mem_host_get_device_pointer(cu_ptr *ret_ptr, void *host, unsigned flags)
{
	void *p = NULL;
	unsigned e = hip.host_get_device_pointer(&p, host, flags);

	if (e == CUE_SUCCESS)
		*ret_ptr = (uintptr_t)p;
	return forget_error(e);
}

static unsigned memset_d32_async(cu_ptr dst, unsigned value, size_t n, cu_stream stream)
{
	return hip.memset_d32_async(address_of(dst), (int)value, n, stream);
}

static unsigned memset_d8_async(cu_ptr dst, unsigned char value, size_t n, cu_stream stream)
{
	return hip.memset_d8_async(address_of(dst), value, n, stream);
}

static unsigned memcpy_async(cu_ptr dst, cu_ptr src, size_t size, cu_stream stream)
{
	return hip.memcpy_async(address_of(dst), address_of(src), size, HIPV_MemcpyDefault, stream);
}

/* Both ends are pointers that say themselves where they lead (cuda_stream.c). */
static unsigned memcpy_2d_async(const struct cu_copy_2d *c, cu_stream stream)
{
	return hip.memcpy_2d_async(address_of(c->dst), c->dst_pitch, address_of(c->src), c->src_pitch, c->width,
				   c->height, HIPV_MemcpyDefault, stream);
}

/* What CUDA has a name for each of. Memory that HIP does not know is no error: everything is 0, as with CUDA. */
struct found {
	unsigned type, managed, exportable;
	int device;
	uint64_t device_ptr, base, size;
};

static unsigned look_up(void *ptr, struct found *ret)
{
	struct hip_pointer_attributes a;
	unsigned e, host = types_of_cuda ? (unsigned)CUV_MEMORYTYPE_HOST : (unsigned)HIP5_HOST,
		    device = types_of_cuda ? (unsigned)CUV_MEMORYTYPE_DEVICE : (unsigned)HIP5_DEVICE;
	void *base = NULL;

	memset(ret, 0, sizeof(*ret));
	memset(&a, 0, sizeof(a));
	a.type = ~0u;
	e = hip.pointer_get_attributes(&a, ptr);
	if (e != CUE_SUCCESS) {
		forget_error(e);
		return e == CUE_INVALID_VALUE ? CUE_SUCCESS : e;
	}
	if (a.type != host && a.type != device && !a.managed)
		return CUE_SUCCESS; /* not registered (HIP 6 answers so), or an array; managed memory has a type of its own there */
	ret->type = a.type == device ? CUV_MEMORYTYPE_DEVICE : CUV_MEMORYTYPE_HOST;
	ret->device = a.device;
	ret->managed = a.managed != 0;
	ret->exportable = a.type == device && !a.managed;
	ret->device_ptr = (uintptr_t)a.device_ptr;
	if (forget_error(hip.mem_get_address_range(&base, &ret->size, ptr)) == CUE_SUCCESS)
		ret->base = (uintptr_t)base;
	else
		ret->size = 0;
	return CUE_SUCCESS;
}

static unsigned pointer_get_attributes(unsigned n, unsigned *attributes, void **ret_values, cu_ptr ptr)
{
	struct found f;
	unsigned e = look_up(address_of(ptr), &f);

	for (unsigned i = 0; i < n && e == CUE_SUCCESS; i++) {
		switch (attributes[i]) {
		case CUV_POINTER_ATTRIBUTE_MEMORY_TYPE:
			memcpy(ret_values[i], &f.type, sizeof(f.type));
			break;
		case CUV_POINTER_ATTRIBUTE_IS_MANAGED:
			memcpy(ret_values[i], &f.managed, sizeof(f.managed));
			break;
		case CUV_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
			memcpy(ret_values[i], &f.exportable, sizeof(f.exportable));
			break;
		case CUV_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
			memcpy(ret_values[i], &f.device, sizeof(f.device));
			break;
		case CUV_POINTER_ATTRIBUTE_DEVICE_POINTER:
			memcpy(ret_values[i], &f.device_ptr, sizeof(f.device_ptr));
			break;
		case CUV_POINTER_ATTRIBUTE_RANGE_START_ADDR:
			memcpy(ret_values[i], &f.base, sizeof(f.base));
			break;
		case CUV_POINTER_ATTRIBUTE_RANGE_SIZE:
			memcpy(ret_values[i], &f.size, sizeof(f.size));
			break;
		default:
			e = CUE_INVALID_VALUE;
		}
	}
	return e;
}

static unsigned stream_query(cu_stream stream)
{
	unsigned e = hip.stream_query(stream);

	return e == CUE_NOT_READY ? forget_error(e) : e;
}

static unsigned event_query(cu_event event)
{
	unsigned e = hip.event_query(event);

	return e == CUE_NOT_READY ? forget_error(e) : e;
}

static unsigned stream_write_value32(cu_stream stream, cu_ptr ptr, unsigned value, unsigned flags)
{
	unsigned e = hip.stream_write_value32(stream, address_of(ptr), value, flags);

	return e == CUE_NOT_SUPPORTED ? forget_error(e) : e;
}

static unsigned stream_write_value64(cu_stream stream, cu_ptr ptr, uint64_t value, unsigned flags)
{
	return hip.stream_write_value64(stream, address_of(ptr), value, flags);
}

static unsigned ipc_get_mem_handle(struct cu_ipc_handle *ret_handle, cu_ptr ptr)
{
	return hip.ipc_get_mem_handle(ret_handle, address_of(ptr));
}

/* The only flag there is has the number 0 in some versions and 1 in others, which refuse each other's. */
static unsigned ipc_open_mem_handle(cu_ptr *ret_ptr, struct cu_ipc_handle handle, unsigned flags)
{
	void *p = NULL;
	unsigned e = hip.ipc_open_mem_handle(&p, handle, flags);

	if (e == CUE_INVALID_VALUE && flags)
		e = hip.ipc_open_mem_handle(&p, handle, 0);
	if (e == CUE_SUCCESS)
		*ret_ptr = (uintptr_t)p;
	return e;
}

static unsigned ipc_close_mem_handle(cu_ptr ptr)
{
	return hip.ipc_close_mem_handle(address_of(ptr));
}

/* CUDA's has the edges as well, which cuda_graph.c does not ask for. */
static unsigned stream_get_capture_info(cu_stream stream, unsigned *ret_status, uint64_t *ret_id, cu_graph *ret_graph,
					const cu_graph_node **ret_nodes, const cu_graph_edge **ret_edges, size_t *ret_n)
{
	unsigned long long id = 0;
	unsigned e = hip.stream_get_capture_info(stream, ret_status, &id, ret_graph, ret_nodes, ret_n);

	(void)ret_edges;
	*ret_id = id;
	return e;
}

static unsigned no_host_func(cu_stream stream, void (*fn)(void *ctx), void *ctx)
{
	(void)stream, (void)fn, (void)ctx;
	return CUE_NOT_SUPPORTED;
}

static void fill_table(void)
{
	api.get_error_name = get_error_name;
	api.get_error_string = get_error_string;
	api.device_get_attribute = device_get_attribute;
	api.primary_ctx_retain = primary_ctx_retain;
	api.primary_ctx_release = primary_ctx_release;
	api.ctx_get_current = ctx_get_current;
	api.ctx_set_current = ctx_set_current;
	api.ctx_enable_peer_access = ctx_enable_peer_access;
	api.mem_alloc = mem_alloc;
	api.mem_free = mem_free;
	api.mem_host_alloc = mem_host_alloc;
	api.mem_host_get_device_pointer = mem_host_get_device_pointer;
	api.memset_d32_async = memset_d32_async;
	api.memset_d8_async = memset_d8_async;
	api.memcpy_async = memcpy_async;
	api.memcpy_2d_async = memcpy_2d_async;
	api.pointer_get_attributes = pointer_get_attributes;
	api.stream_query = stream_query;
	api.event_query = event_query;
	api.stream_write_value32 = stream_write_value32;
	api.stream_write_value64 = stream_write_value64;
	api.ipc_get_mem_handle = ipc_get_mem_handle;
	api.ipc_open_mem_handle = ipc_open_mem_handle;
	api.ipc_close_mem_handle = ipc_close_mem_handle;
	/* As with CUDA's: whether graphs can be had is asked of one of their calls. */
	if (hip.stream_get_capture_info && api.launch_host_func && api.event_record_with_flags &&
	    api.user_object_create && api.graph_retain_user_object)
		api.stream_get_capture_info = stream_get_capture_info;
	if (!api.launch_host_func)
		api.launch_host_func = no_host_func;
}

static gantry_result find_calls(void *lib, const char *name, char *why, size_t len)
{
	const char *missing = NULL;

	/* The detour over memcpy: ISO C has no cast from an object pointer to a function pointer. */
#define FIND(place, symbol)                                                                                            \
	{                                                                                                              \
		void *p = dlsym(lib, #symbol);                                                                         \
		memcpy(&(place), &p, sizeof(p));                                                                       \
		if (!p && !missing)                                                                                    \
			missing = #symbol;                                                                             \
	}
#define FIND_SAME(field, symbol) FIND(api.field, symbol)
#define FIND_CALL(field, symbol, result, params) FIND(hip.field, symbol)
	GANTRY_HIP_SAME_OPTIONAL(FIND_SAME)
	GANTRY_HIP_OPTIONAL(FIND_CALL)
	missing = NULL;
	GANTRY_HIP_SAME(FIND_SAME)
	GANTRY_HIP_CALLS(FIND_CALL)
#undef FIND_CALL
#undef FIND_SAME
#undef FIND
	if (!missing)
		return GANTRY_OK;
	snprintf(why, len, "the HIP runtime is too old: %s has no %s", name, missing);
	return GANTRY_ERR_UNSUPPORTED;
}

/* That of the program, if it has one: two would not know each other's memory. Else the newest. */
static void *open_runtime(const char **ret_name)
{
	static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
					    "libamdhip64.so"};
	static const int modes[] = {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL};

	for (size_t m = 0; m < sizeof(modes) / sizeof(*modes); m++) {
		for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
			void *lib = dlopen(names[i], modes[m]);

			*ret_name = names[i];
			if (lib)
				return lib;
		}
	}
	return NULL;
}

static gantry_result load_runtime(char *why, size_t len)
{
	const char *name;
	char text[128];
	int version = 0;
	unsigned e;
	void *lib = open_runtime(&name);

	if (!lib) {
		const char *reason = dlerror();

		snprintf(why, len, "no HIP runtime: %s", reason ? reason : "libamdhip64.so cannot be loaded");
		return GANTRY_ERR_UNSUPPORTED;
	}
	/* Never closed, as CUDA's: it has threads and exit handlers of its own. */
	if (find_calls(lib, name, why, len) != GANTRY_OK)
		return GANTRY_ERR_UNSUPPORTED;
	fill_table();
	e = api.init(0);
	if (e == CUE_SUCCESS)
		e = hip.runtime_get_version(&version);
	types_of_cuda = version / HIP_VERSION_MAJOR >= HIP_TYPES_OF_CUDA;
	if (e == CUE_SUCCESS)
		return GANTRY_OK;
	forget_error(e);
	snprintf(why, len, "the HIP runtime (%s) failed to initialise: %s", name,
		 gantry_cuda_text(&api, e, text, sizeof(text)));
	return GANTRY_ERR_UNSUPPORTED;
}

/* The attribute is a pointer, and HIP writes all of it to where an int is asked for. */
static void describe_gpu(struct cuda_gpu *g)
{
	union {
		int value;
		uint32_t *flush;
	} reg = {.flush = NULL};

	if (forget_error(hip.device_get_attribute(&reg.value, HIPV_DeviceAttributeHdpMemFlushCntl, g->device)) ==
	    CUE_SUCCESS)
		g->hdp_flush = reg.flush;
	g->base.ll128_local = 0; /* nothing promises that 128 bytes are seen whole */
	g->base.flushes = g->hdp_flush != NULL;
}

static gantry_result flush_hdp(struct cuda_gpu *g)
{
	if (g->hdp_flush)
		store_release(g->hdp_flush, 1);
	return GANTRY_OK;
}

static const unsigned char *image_of(const struct gantry_kernel_set *set)
{
	return set->hip_image;
}

const struct cuda_driver gantry_driver_hip = {
	.kind = GANTRY_DEVICE_HIP,
	.name = "HIP",
	.compiler = "hipcc",
	.api = &api,
	.load = load_runtime,
	.describe = describe_gpu,
	.flush = flush_hdp,
	.image = image_of,
};

gantry_result gantry_device_hip(int index, struct gantry_device **ret_dev)
{
	return gantry_cuda_open(&gantry_driver_hip, index, ret_dev);
}

int gantry_device_hip_count(char *why, size_t len)
{
	return gantry_cuda_count(&gantry_driver_hip, why, len);
}
