/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU and host memory that it addresses.
 *
 * Clearing and copying go through the GPU's side stream, never through the default stream: that one waits for kernels
 * in the program's streams, which may in turn be waiting for us. cuMemFree, cuMemHostAlloc and (un)registering may
 * still wait for running kernels inside the driver: they belong to setting up and tearing down, not between post and
 * completion.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param_text.h"
#include "device/cuda/gpu.h"

static void *pointer_of(cu_ptr p)
{
	return (void *)(uintptr_t)p;
}
static cu_ptr cu_ptr_of(const void *p)
{
	return (uintptr_t)p;
}

gantry_result gantry_cuda_alloc(struct gantry_device *dev, size_t size, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	cu_ptr p = 0;

	ENTER(g, was);
	CU(cu.mem_alloc(&p, size), "allocate %s on gpu %d", SIZE_TEXT(size), dev->index);
	CU(cu.memset_d8_async(p, 0, size, g->side), "clear %zu bytes on gpu %d", size, dev->index);
	TRY(gantry_cuda_wait(g, g->side));
	*ret_ptr = pointer_of(p);
	p = 0;
out:
	if (p)
		cu.mem_free(p);
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_free(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	if (!ptr)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.mem_free(cu_ptr_of(ptr)), "free %p on gpu %d", ptr, dev->index);
out:
	cuda_leave(g, was);
	return r;
}

/* The thread's memory policy, while the driver allocates: pages come from the GPU's side of the machine if they can. */
struct policy {
	int mode; /* -1: nothing to put back */
	unsigned long nodes[16];
};

static void policy_prefer(struct policy *p, int node)
{
	unsigned long want[16] = {0};

	p->mode = -1;
	if (node < 0 || (size_t)node >= 8 * sizeof(want))
		return;
	want[(size_t)node / (8 * sizeof(*want))] = 1ul << ((size_t)node % (8 * sizeof(*want)));
	if (syscall(SYS_get_mempolicy, &p->mode, p->nodes, 8 * sizeof(p->nodes), NULL, 0ul))
		p->mode = -1; /* a kernel without NUMA, or a container that forbids it */
	else if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, want, 8 * sizeof(want)))
		p->mode = -1;
}

static void policy_restore(const struct policy *p)
{
	if (p->mode >= 0)
		syscall(SYS_set_mempolicy, p->mode, p->nodes, 8 * sizeof(p->nodes));
}

gantry_result gantry_cuda_alloc_mapped(struct gantry_device *dev, size_t size, void **ret_host, void **ret_device)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct policy policy;
	void *host = NULL;
	cu_ptr p;
	unsigned e;

	ENTER(g, was);
	policy_prefer(&policy, dev->numa_node);
	e = cu.mem_host_alloc(&host, size, CUV_MEMHOSTALLOC_PORTABLE | CUV_MEMHOSTALLOC_DEVICEMAP);
	policy_restore(&policy);
	CU(e, "allocate %s of pinned host memory for gpu %d", SIZE_TEXT(size), dev->index);
	CU(cu.mem_host_get_device_pointer(&p, host, 0), "address of host memory on gpu %d", dev->index);
	memset(host, 0, size);
	*ret_host = host;
	*ret_device = pointer_of(p);
	host = NULL;
out:
	if (host)
		cu.mem_free_host(host);
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_free_mapped(struct gantry_device *dev, void *host)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	if (!host)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.mem_free_host(host), "free pinned host memory %p", host);
out:
	cuda_leave(g, was);
	return r;
}

/*
 * What map_host was called for. Registering is a matter of the process, not of one GPU, and the driver refuses a second
 * time: so there is one list for all, with counts. Memory that somebody else registered (NCCL, the program) is used
 * and left alone at the end.
 */
struct map {
	struct gantry_list link;
	void *host;
	size_t size;
	uint32_t refs;
	int ours;
};
MUTEX_KIND(cuda_maps_mu);
static struct cuda_maps_mu cuda_maps_mu_one = MUTEX_INITIALIZER;
static struct gantry_list maps = {&maps, &maps};

static struct map *map_find(const void *host)
{
	gantry_list_each (pos, &maps) {
		struct map *m = gantry_container(pos, struct map, link);

		if (m->host == host)
			return m;
	}
	return NULL;
}

/* Registers [host, host + size), or finds that all of it is registered. */
static gantry_result map_register(struct cuda_gpu *g, struct map *m)
{
	gantry_result r = GANTRY_OK;
	cu_ptr first, last;
	unsigned e =
		cu.mem_host_register(m->host, m->size, CUV_MEMHOSTREGISTER_PORTABLE | CUV_MEMHOSTREGISTER_DEVICEMAP);

	m->ours = e == CUE_SUCCESS;
	if (e == CUE_HOST_MEMORY_ALREADY_REGISTERED &&
	    cu.mem_host_get_device_pointer(&first, m->host, 0) == CUE_SUCCESS &&
	    cu.mem_host_get_device_pointer(&last, (char *)m->host + m->size - 1, 0) == CUE_SUCCESS)
		return GANTRY_OK;
	CU(e, "map %zu bytes of host memory at %p into gpu %d", m->size, m->host, g->base.index);
out:
	return r;
}

gantry_result gantry_cuda_map_host(struct gantry_device *dev, void *host, size_t size, void **ret_device)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct map *m, *fresh = NULL;
	cu_ptr p;

	cuda_maps_mu_lock(&cuda_maps_mu_one);
	if (!host || size == 0)
		FAIL(GANTRY_ERR_INVALID, "map %zu bytes of host memory at %p", size, host);
	ENTER(g, was);
	m = map_find(host);
	if (m && m->size < size)
		FAIL(GANTRY_ERR_USAGE, "map %zu bytes at %p, which is mapped with %zu", size, host, m->size);
	if (!m) {
		m = fresh = calloc(1, sizeof(*m));
		if (!m)
			FAIL(GANTRY_ERR_NOMEM, "no memory for a mapping");
		m->host = host;
		m->size = size;
		TRY(map_register(g, m));
	}
	CU(cu.mem_host_get_device_pointer(&p, host, 0), "address of host memory %p on gpu %d", host, dev->index);
	if (fresh)
		gantry_list_append(&maps, &fresh->link);
	fresh = NULL;
	m->refs++;
	*ret_device = pointer_of(p);
out:
	if (fresh && fresh->ours)
		cu.mem_host_unregister(host);
	free(fresh);
	cuda_leave(g, was);
	cuda_maps_mu_unlock(&cuda_maps_mu_one);
	return r;
}

gantry_result gantry_cuda_unmap_host(struct gantry_device *dev, void *host)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct map *m = NULL, *gone = NULL;

	if (!host)
		return GANTRY_OK;
	cuda_maps_mu_lock(&cuda_maps_mu_one);
	ENTER(g, was);
	m = map_find(host);
	if (!m)
		FAIL(GANTRY_ERR_INVALID, "unmap host memory %p, which is not mapped", host);
	if (--m->refs > 0)
		goto out;
	gantry_list_remove(&m->link);
	gone = m;
	if (m->ours)
		CU(cu.mem_host_unregister(host), "unmap host memory %p", host);
out:
	free(gone);
	cuda_leave(g, was);
	cuda_maps_mu_unlock(&cuda_maps_mu_one);
	return r;
}

struct attributes {
	unsigned type, managed, exportable;
	int ordinal;
	cu_ptr device_ptr, base;
	size_t size;
};

/* For memory that CUDA does not know everything stays 0; that is no error. */
static unsigned attributes_of(const void *ptr, struct attributes *ret)
{
	unsigned names[] = {CUV_POINTER_ATTRIBUTE_MEMORY_TYPE,
			    CUV_POINTER_ATTRIBUTE_IS_MANAGED,
			    CUV_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
			    CUV_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
			    CUV_POINTER_ATTRIBUTE_DEVICE_POINTER,
			    CUV_POINTER_ATTRIBUTE_RANGE_START_ADDR,
			    CUV_POINTER_ATTRIBUTE_RANGE_SIZE};
	void *values[] = {&ret->type,	    &ret->managed, &ret->exportable, &ret->ordinal,
			  &ret->device_ptr, &ret->base,	   &ret->size};

	memset(ret, 0, sizeof(*ret));
	return cu.pointer_get_attributes(sizeof(names) / sizeof(*names), names, values, cu_ptr_of(ptr));
}

gantry_result gantry_cuda_pointer(struct gantry_device *dev, const void *ptr, struct gantry_mem_info *ret_info)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct gantry_mem_info info = {.kind = GANTRY_MEM_PAGEABLE, .device = -1};
	cu_context was = g->ctx;
	struct attributes a;
	uint64_t peers = load_relaxed(&g->peers);

	ENTER(g, was);
	CU(attributes_of(ptr, &a), "look at pointer %p", ptr);
	if (a.type == CUV_MEMORYTYPE_DEVICE) {
		info.kind = GANTRY_MEM_DEVICE;
		info.device = a.ordinal;
		info.exportable = (a.exportable & 0xff) != 0 && (a.managed & 0xff) == 0;
	} else if (a.type == CUV_MEMORYTYPE_HOST && a.device_ptr) {
		info.kind = GANTRY_MEM_HOST;
	}
	if (info.kind != GANTRY_MEM_PAGEABLE) {
		info.base = pointer_of(a.base);
		info.size = a.base ? a.size : 0;
		if (info.device < 0 || info.device == dev->index ||
		    (info.device < CUDA_MAX_GPUS && peers >> info.device & 1))
			info.device_ptr = pointer_of(a.device_ptr);
	}
	*ret_info = info;
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_range(struct cuda_gpu *g, const void *ptr, uintptr_t *ret_base, size_t *ret_size)
{
	gantry_result r = GANTRY_OK;
	struct attributes a;

	CU(attributes_of(ptr, &a), "look at pointer %p", ptr);
	if (a.type != CUV_MEMORYTYPE_DEVICE || !a.base)
		FAIL(GANTRY_ERR_INVALID, "%p is not memory of gpu %d", ptr, g->base.index);
	*ret_base = (uintptr_t)a.base;
	*ret_size = a.size;
out:
	return r;
}

gantry_result gantry_cuda_copy(struct gantry_device *dev, void *dst, const void *src, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	if (size == 0)
		return GANTRY_OK;
	ENTER(g, was);
	CU(cu.memcpy_async(cu_ptr_of(dst), cu_ptr_of(src), size, g->side), "copy %zu bytes from %p to %p", size, src,
	   dst);
	TRY(gantry_cuda_wait(g, g->side));
out:
	cuda_leave(g, was);
	return r;
}
