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
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/bytes.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/text.h"
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
	struct cuda_was was = cuda_here(g);
	cu_ptr p = 0;

	ENTER(g, was);
	CU(g->api->mem_alloc(&p, size), "allocate %s on gpu %d", SIZE_TEXT(size), dev->index);
	CU(g->api->memset_d8_async(p, 0, size, g->side), "clear %zu bytes on gpu %d", size, dev->index);
	CU(gantry_cuda_wait(g, g->side), "wait for a stream of gpu %d", dev->index);
	*ret_ptr = pointer_of(p);
	p = 0;
out:
	if (p)
		g->api->mem_free(p);
	cuda_leave(g, &was);
	return r;
}

gantry_result gantry_cuda_free(struct gantry_device *dev, void *ptr)
{
	if (!ptr)
		return GANTRY_OK;
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->mem_free(cu_ptr_of(ptr)), "free %p on gpu %d", ptr, dev->index);
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
	struct cuda_was was = cuda_here(g);
	struct policy policy;
	void *host = NULL;
	cu_ptr p;
	unsigned e;

	ENTER(g, was);
	policy_prefer(&policy, dev->numa_node);
	e = g->api->mem_host_alloc(&host, size, CUV_MEMHOSTALLOC_PORTABLE | CUV_MEMHOSTALLOC_DEVICEMAP);
	policy_restore(&policy);
	CU(e, "allocate %s of pinned host memory for gpu %d", SIZE_TEXT(size), dev->index);
	CU(g->api->mem_host_get_device_pointer(&p, host, 0), "address of host memory on gpu %d", dev->index);
	memset(host, 0, size);
	*ret_host = host;
	*ret_device = pointer_of(p);
	host = NULL;
out:
	if (host)
		g->api->mem_free_host(host);
	cuda_leave(g, &was);
	return r;
}

gantry_result gantry_cuda_free_mapped(struct gantry_device *dev, void *host)
{
	if (!host)
		return GANTRY_OK;
	RETURN_CALL(cuda_gpu_of(dev), cuda_api(dev)->mem_free_host(host), "free pinned host memory %p", host);
}

/*
 * The regions passed to map_host. Registering is per process, not per GPU, and the driver refuses a second
 * registration: so there is one list for all GPUs, with counts. Memory that other code registered (NCCL, the program)
 * is used and left registered at the end.
 */
struct map {
	struct gantry_list link;
	void *host;
	size_t size;
	uint32_t refs;
	int ours;
};
MUTEX_KIND(cuda_maps_mu);
static struct cuda_maps_mu cuda_maps_mu_one;
static struct gantry_list maps = {&maps, &maps};

static struct map *map_find(const void *host)
{
	gantry_list_each_entry (m, &maps, struct map, link)
		if (m->host == host)
			return m;
	return NULL;
}

/* Registers [host, host + size), or finds that all of it is registered. */
static gantry_result map_register(struct cuda_gpu *g, struct map *m)
{
	gantry_result r = GANTRY_OK;
	cu_ptr first, last;
	unsigned e = g->api->mem_host_register(m->host, m->size,
					       CUV_MEMHOSTREGISTER_PORTABLE | CUV_MEMHOSTREGISTER_DEVICEMAP);

	m->ours = e == CUE_SUCCESS;
	if (e == CUE_HOST_MEMORY_ALREADY_REGISTERED &&
	    g->api->mem_host_get_device_pointer(&first, m->host, 0) == CUE_SUCCESS &&
	    g->api->mem_host_get_device_pointer(&last, (char *)m->host + m->size - 1, 0) == CUE_SUCCESS)
		return GANTRY_OK;
	CU(e, "map %zu bytes of host memory at %p into gpu %d", m->size, m->host, g->base.index);
out:
	return r;
}

gantry_result gantry_cuda_map_host(struct gantry_device *dev, void *host, size_t size, void **ret_device)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
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
	CU(g->api->mem_host_get_device_pointer(&p, host, 0), "address of host memory %p on gpu %d", host, dev->index);
	if (fresh)
		gantry_list_append(&maps, &fresh->link);
	fresh = NULL;
	m->refs++;
	*ret_device = pointer_of(p);
out:
	if (fresh && fresh->ours)
		g->api->mem_host_unregister(host);
	free(fresh);
	cuda_leave(g, &was);
	cuda_maps_mu_unlock(&cuda_maps_mu_one);
	return r;
}

gantry_result gantry_cuda_unmap_host(struct gantry_device *dev, void *host)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
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
		CU(g->api->mem_host_unregister(host), "unmap host memory %p", host);
out:
	free(gone);
	cuda_leave(g, &was);
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
static unsigned attributes_of(const struct cuda_gpu *g, const void *ptr, struct attributes *ret)
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
	return g->api->pointer_get_attributes(sizeof(names) / sizeof(*names), names, values, cu_ptr_of(ptr));
}

gantry_result gantry_cuda_pointer(struct gantry_device *dev, const void *ptr, struct gantry_mem_info *ret_info)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct gantry_mem_info info = {.kind = GANTRY_MEM_PAGEABLE, .device = -1};
	struct cuda_was was = cuda_here(g);
	struct attributes a;
	uint64_t peers = load_relaxed(&g->peers);

	ENTER(g, was);
	CU(attributes_of(g, ptr, &a), "look at pointer %p", ptr);
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
	cuda_leave(g, &was);
	return r;
}

/* The allocation that a pointer of the device lies in. */
static gantry_result range_of(struct cuda_gpu *g, const void *ptr, uintptr_t *ret_base, size_t *ret_size)
{
	gantry_result r = GANTRY_OK;
	struct attributes a;

	CU(attributes_of(g, ptr, &a), "look at pointer %p", ptr);
	if (a.type != CUV_MEMORYTYPE_DEVICE || !a.base)
		FAIL(GANTRY_ERR_INVALID, "%p is not memory of gpu %d", ptr, g->base.index);
	*ret_base = (uintptr_t)a.base;
	*ret_size = a.size;
out:
	return r;
}

static unsigned copy_now(struct cuda_gpu *g, void *dst, const void *src, size_t size)
{
	unsigned e = g->api->memcpy_async(cu_ptr_of(dst), cu_ptr_of(src), size, g->side);

	return e == CUE_SUCCESS ? gantry_cuda_wait(g, g->side) : e;
}

gantry_result gantry_cuda_copy(struct gantry_device *dev, void *dst, const void *src, size_t size)
{
	struct cuda_gpu *g = cuda_gpu_of(dev);

	if (size == 0)
		return GANTRY_OK;
	RETURN_CALL(g, copy_now(g, dst, src, size), "copy %zu bytes from %p to %p", size, src, dst);
}

/* ---- memory across borders: other GPUs of this process, other processes, other drivers ---- */

/*
 * A handle names a whole allocation and a place in it:
 *
 *   bytes 0..63   the driver's handle of the allocation
 *   process       the exporter (base/identity.h). A process cannot open its own handle in CUDA; here it gets its
 *                 own pointer back
 *   base, size    the allocation in the exporter
 *   offset        of the exported pointer
 *
 * The driver maps an allocation as a whole and once per context; `ipcs` counts the opens of each.
 */
struct wire_handle {
	struct cu_ipc_handle native;
	uint64_t process;
	uint64_t base;
	uint64_t size;
	uint64_t offset;
};
_Static_assert(sizeof(struct wire_handle) == GANTRY_IPC_HANDLE_SIZE, "fills a gantry_ipc_handle");

struct ipc {
	struct gantry_list link;
	struct wire_handle of; /* the allocation, as its owner knows it; its offset is the first opener's */
	uintptr_t mapped;      /* here */
	uint32_t refs;
	int own; /* memory of this very process: nothing was mapped */
};

static void encode(const struct wire_handle *h, struct gantry_ipc_handle *ret)
{
	uint8_t *p = ret->bytes + sizeof(h->native);

	memcpy(ret->bytes, &h->native, sizeof(h->native));
	put64(p, h->process);
	put64(p + 8, h->base);
	put64(p + 16, h->size);
	put64(p + 24, h->offset);
}

static void decode(const struct gantry_ipc_handle *handle, struct wire_handle *h)
{
	const uint8_t *p = handle->bytes + sizeof(h->native);

	memcpy(&h->native, handle->bytes, sizeof(h->native));
	h->process = get64(p);
	h->base = get64(p + 8);
	h->size = get64(p + 16);
	h->offset = get64(p + 24);
}

gantry_result gantry_cuda_peer_access(struct gantry_device *dev, struct gantry_device *other, int *ret_can)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev), *peer = cuda_gpu_of(other);
	struct cuda_was was = cuda_here(g);
	int can = 0;
	unsigned e;

	if (other->kind != dev->kind || g->device == peer->device) {
		*ret_can = other->kind == dev->kind;
		return GANTRY_OK;
	}
	ENTER(g, was);
	CU(g->api->device_can_access_peer(&can, g->device, peer->device), "peer access of gpu %d to gpu %d", dev->index,
	   other->index);
	if (can) {
		e = g->api->ctx_enable_peer_access(peer->ctx, 0);
		if (e != CUE_PEER_ACCESS_ALREADY_ENABLED)
			CU(e, "enable access of gpu %d to memory of gpu %d", dev->index, other->index);
		if (other->index < CUDA_MAX_GPUS)
			fetch_or_relaxed(&g->peers, 1ull << other->index);
	}
	*ret_can = can;
out:
	cuda_leave(g, &was);
	return r;
}

gantry_result gantry_cuda_ipc_export(struct gantry_device *dev, void *base, size_t size,
				     struct gantry_ipc_handle *ret_handle)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	struct wire_handle h;
	uintptr_t start;
	size_t all;

	memset(&h, 0, sizeof(h));
	ENTER(g, was);
	TRY(range_of(g, base, &start, &all));
	if (size > all || (uintptr_t)base - start > all - size)
		FAIL(GANTRY_ERR_INVALID, "export of %zu bytes at %p: the allocation is %zu bytes at %p", size, base,
		     all, (void *)start);
	CU(g->api->ipc_get_mem_handle(&h.native, start),
	   "export %zu bytes at %p of gpu %d (memory from cuMemAlloc or hipMalloc can be)", size, base, dev->index);
	h.process = gantry_process_id();
	h.base = start;
	h.size = all;
	h.offset = (uintptr_t)base - start;
	encode(&h, ret_handle);
out:
	cuda_leave(g, &was);
	return r;
}

static struct ipc *ipc_find(struct cuda_gpu *g, const struct wire_handle *h)
{
	gantry_list_each_entry (i, &g->ipcs, struct ipc, link) {
		/* The native handle too: the owner may have freed the memory and got the same address again. */
		if (memcmp(&i->of, h, offsetof(struct wire_handle, offset)) == 0)
			return i;
	}
	return NULL;
}

gantry_result gantry_cuda_ipc_open(struct gantry_device *dev, const struct gantry_ipc_handle *handle, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	struct wire_handle h;
	struct ipc *i, *fresh = NULL;
	cu_ptr p;

	decode(handle, &h);
	cuda_gpu_mu_lock(&g->lock);
	if (h.offset >= h.size)
		FAIL(GANTRY_ERR_INVALID, "open memory of another process: this is not a handle of a gpu's memory");
	ENTER(g, was);
	i = ipc_find(g, &h);
	if (!i) {
		i = fresh = calloc(1, sizeof(*i));
		if (!i)
			FAIL(GANTRY_ERR_NOMEM, "no memory for a mapping");
		i->of = h;
		i->own = h.process == gantry_process_id();
		i->mapped = (uintptr_t)h.base;
		if (!i->own) {
			CU(g->api->ipc_open_mem_handle(&p, h.native, CUV_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
			   "map %llu bytes of another process into gpu %d", (unsigned long long)h.size, dev->index);
			i->mapped = (uintptr_t)p;
		}
		gantry_list_append(&g->ipcs, &i->link);
		fresh = NULL;
	}
	i->refs++;
	*ret_ptr = (void *)(i->mapped + (uintptr_t)h.offset);
out:
	free(fresh);
	cuda_leave(g, &was);
	cuda_gpu_mu_unlock(&g->lock);
	return r;
}

gantry_result gantry_cuda_ipc_close(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	struct ipc *found = NULL, *gone = NULL;

	if (!ptr)
		return GANTRY_OK;
	cuda_gpu_mu_lock(&g->lock);
	gantry_list_each_entry (i, &g->ipcs, struct ipc, link)
		if ((uintptr_t)ptr >= i->mapped && (uintptr_t)ptr - i->mapped < i->of.size)
			found = i;
	if (!found)
		FAIL(GANTRY_ERR_INVALID, "close %p, which was not opened from a handle", ptr);
	if (--found->refs > 0)
		goto out;
	gantry_list_remove(&found->link);
	gone = found;
	if (!gone->own) {
		ENTER(g, was);
		CU(g->api->ipc_close_mem_handle(gone->mapped), "unmap memory of another process from gpu %d",
		   dev->index);
	}
out:
	free(gone);
	cuda_leave(g, &was);
	cuda_gpu_mu_unlock(&g->lock);
	return r;
}

void gantry_cuda_ipc_close_all(struct cuda_gpu *g)
{
	gantry_list_each_entry_safe (i, &g->ipcs, struct ipc, link) {
		gantry_list_remove(&i->link);
		if (!i->own)
			g->api->ipc_close_mem_handle(i->mapped);
		free(i);
	}
}

gantry_result gantry_cuda_dmabuf_export(struct gantry_device *dev, void *ptr, size_t size, int *ret_fd,
					uint64_t *ret_offset)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	struct cuda_was was = cuda_here(g);
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)ptr & ~(page - 1), base;
	size_t whole = ((uintptr_t)ptr + size - from + page - 1) & ~(page - 1), all;
	int can = 0, fd = -1;
	unsigned e;

	ENTER(g, was);
	CU(g->api->device_get_attribute(&can, CUV_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, g->device), "dma-buf of gpu %d",
	   dev->index);
	if (!can || !g->api->mem_get_handle_for_address_range)
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d cannot export dma-bufs: %s", dev->index,
		     can ? "the driver is older than CUDA 11.7"
			 : "the driver or its kernel module does not support it");
	TRY(range_of(g, ptr, &base, &all));
	if (size == 0 || size > all || (uintptr_t)ptr - base > all - size)
		FAIL(GANTRY_ERR_INVALID, "dma-buf of %zu bytes at %p: the allocation is %zu bytes at %p", size, ptr,
		     all, (void *)base);
	/*
	 * The driver takes whole pages of the host's size. An allocation's last page belongs to it as a whole. First
	 * a mapping through BAR1, which a GPU that is coherent with the CPU (GH200, GB200) needs for other PCIe
	 * devices; all others answer NOT_SUPPORTED, drivers before 12.8 INVALID_VALUE, and map that way anyhow.
	 */
	e = g->api->mem_get_handle_for_address_range(&fd, from, whole, CUV_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
						     CUV_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
	if (e == CUE_NOT_SUPPORTED || e == CUE_INVALID_VALUE)
		e = g->api->mem_get_handle_for_address_range(&fd, from, whole, CUV_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	CU(e, "export a dma-buf of %zu bytes at %p of gpu %d", whole, (void *)from, dev->index);
	if (fcntl(fd, F_SETFD, FD_CLOEXEC))
		FAIL(GANTRY_ERR_SYSTEM, "close-on-exec of a dma-buf: %s", strerror(errno));
	*ret_fd = fd;
	*ret_offset = (uintptr_t)ptr - from;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	cuda_leave(g, &was);
	return r;
}

gantry_result gantry_cuda_flush_remote_writes(struct gantry_device *dev)
{
	struct cuda_gpu *g = cuda_gpu_of(dev);

	return g->driver->flush(g);
}
