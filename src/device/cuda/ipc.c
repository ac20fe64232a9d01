/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory across borders: other GPUs of this process, other processes, and other drivers (dma-buf).
 *
 * A handle names a whole allocation and a place in it:
 *
 *   bytes 0..63   the driver's handle of the allocation
 *   process       who exported it (base/identity.h). A process cannot open its own handle in CUDA; here it gets its
 *                 own pointer back
 *   base, size    the allocation in the exporter
 *   offset        of the exported pointer
 *
 * The driver maps an allocation as a whole and once per context; `ipcs` counts the opens of each.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/bytes.h"
#include "base/identity.h"
#include "base/log.h"
#include "device/cuda/gpu.h"

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
	struct cu_ipc_handle native;
	uint64_t process, remote, size; /* the allocation, as its owner knows it */
	uintptr_t mapped;		/* here */
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
	cu_context was = g->ctx;
	int can = 0;
	unsigned e;

	if (other->kind != GANTRY_DEVICE_CUDA || g->device == peer->device) {
		*ret_can = other->kind == GANTRY_DEVICE_CUDA;
		return GANTRY_OK;
	}
	ENTER(g, was);
	CU(cu.device_can_access_peer(&can, g->device, peer->device), "peer access of gpu %d to gpu %d", dev->index,
	   other->index);
	if (can) {
		e = cu.ctx_enable_peer_access(peer->ctx, 0);
		if (e != CUE_PEER_ACCESS_ALREADY_ENABLED)
			CU(e, "enable access of gpu %d to memory of gpu %d", dev->index, other->index);
		if (other->index < CUDA_MAX_GPUS)
			fetch_or_relaxed(&g->peers, 1ull << other->index);
	}
	*ret_can = can;
out:
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_ipc_export(struct gantry_device *dev, void *base, size_t size,
				     struct gantry_ipc_handle *ret_handle)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct wire_handle h;
	uintptr_t start;
	size_t all;

	memset(&h, 0, sizeof(h));
	ENTER(g, was);
	TRY(gantry_cuda_range(g, base, &start, &all));
	if (size > all || (uintptr_t)base - start > all - size)
		FAIL(GANTRY_ERR_INVALID, "export of %zu bytes at %p: the allocation is %zu bytes at %p", size, base,
		     all, (void *)start);
	CU(cu.ipc_get_mem_handle(&h.native, start), "export %zu bytes at %p of gpu %d (memory from cuMemAlloc can be)",
	   size, base, dev->index);
	h.process = gantry_process_id();
	h.base = start;
	h.size = all;
	h.offset = (uintptr_t)base - start;
	encode(&h, ret_handle);
out:
	cuda_leave(g, was);
	return r;
}

static struct ipc *ipc_find(struct cuda_gpu *g, const struct wire_handle *h)
{
	gantry_list_each (pos, &g->ipcs) {
		struct ipc *i = gantry_container(pos, struct ipc, link);

		/* The native handle too: the owner may have freed the memory and got the same address again. */
		if (i->process == h->process && i->remote == h->base && i->size == h->size &&
		    memcmp(&i->native, &h->native, sizeof(h->native)) == 0)
			return i;
	}
	return NULL;
}

gantry_result gantry_cuda_ipc_open(struct gantry_device *dev, const struct gantry_ipc_handle *handle, void **ret_ptr)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
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
		i->native = h.native;
		i->process = h.process;
		i->remote = h.base;
		i->size = h.size;
		i->own = h.process == gantry_process_id();
		i->mapped = (uintptr_t)h.base;
		if (!i->own) {
			CU(cu.ipc_open_mem_handle(&p, h.native, CUV_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
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
	cuda_leave(g, was);
	cuda_gpu_mu_unlock(&g->lock);
	return r;
}

gantry_result gantry_cuda_ipc_close(struct gantry_device *dev, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	struct ipc *found = NULL, *gone = NULL;

	if (!ptr)
		return GANTRY_OK;
	cuda_gpu_mu_lock(&g->lock);
	gantry_list_each (pos, &g->ipcs) {
		struct ipc *i = gantry_container(pos, struct ipc, link);

		if ((uintptr_t)ptr >= i->mapped && (uintptr_t)ptr - i->mapped < i->size)
			found = i;
	}
	if (!found)
		FAIL(GANTRY_ERR_INVALID, "close %p, which was not opened from a handle", ptr);
	if (--found->refs > 0)
		goto out;
	gantry_list_remove(&found->link);
	gone = found;
	if (!gone->own) {
		ENTER(g, was);
		CU(cu.ipc_close_mem_handle(gone->mapped), "unmap memory of another process from gpu %d", dev->index);
	}
out:
	free(gone);
	cuda_leave(g, was);
	cuda_gpu_mu_unlock(&g->lock);
	return r;
}

void gantry_cuda_ipc_close_all(struct cuda_gpu *g)
{
	gantry_list_each_safe (pos, &g->ipcs) {
		struct ipc *i = gantry_container(pos, struct ipc, link);

		gantry_list_remove(&i->link);
		if (!i->own)
			cu.ipc_close_mem_handle(i->mapped);
		free(i);
	}
}

gantry_result gantry_cuda_dmabuf_export(struct gantry_device *dev, void *ptr, size_t size, int *ret_fd,
					uint64_t *ret_offset)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)ptr & ~(page - 1), base;
	size_t whole = ((uintptr_t)ptr + size - from + page - 1) & ~(page - 1), all;
	int can = 0, fd = -1;
	unsigned e;

	ENTER(g, was);
	CU(cu.device_get_attribute(&can, CUV_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, g->device), "dma-buf of gpu %d",
	   dev->index);
	if (!can || !cu.mem_get_handle_for_address_range)
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d cannot export dma-bufs: %s", dev->index,
		     can ? "the driver is older than CUDA 11.7"
			 : "the driver or its kernel module does not support it");
	TRY(gantry_cuda_range(g, ptr, &base, &all));
	if (size == 0 || size > all || (uintptr_t)ptr - base > all - size)
		FAIL(GANTRY_ERR_INVALID, "dma-buf of %zu bytes at %p: the allocation is %zu bytes at %p", size, ptr,
		     all, (void *)base);
	/*
	 * The driver takes whole pages of the host's size. An allocation's last page belongs to it as a whole. First
	 * a mapping through BAR1, which a GPU that is coherent with the CPU (GH200, GB200) needs for other PCIe
	 * devices; all others answer NOT_SUPPORTED, drivers before 12.8 INVALID_VALUE, and map that way anyhow.
	 */
	e = cu.mem_get_handle_for_address_range(&fd, from, whole, CUV_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
						CUV_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE);
	if (e == CUE_NOT_SUPPORTED || e == CUE_INVALID_VALUE)
		e = cu.mem_get_handle_for_address_range(&fd, from, whole, CUV_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	CU(e, "export a dma-buf of %zu bytes at %p of gpu %d", whole, (void *)from, dev->index);
	if (fcntl(fd, F_SETFD, FD_CLOEXEC))
		FAIL(GANTRY_ERR_SYSTEM, "close-on-exec of a dma-buf: %s", strerror(errno));
	*ret_fd = fd;
	*ret_offset = (uintptr_t)ptr - from;
	fd = -1;
out:
	if (fd >= 0)
		close(fd);
	cuda_leave(g, was);
	return r;
}

gantry_result gantry_cuda_flush_remote_writes(struct gantry_device *dev)
{
	gantry_result r = GANTRY_OK;
	struct cuda_gpu *g = cuda_gpu_of(dev);
	cu_context was = g->ctx;

	if (g->writes_ordering >= CUV_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
		return GANTRY_OK;
	if (!cu.flush_gpu_direct_rdma_writes || !(g->flush_options & CUV_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
		FAIL(GANTRY_ERR_UNSUPPORTED, "gpu %d does not order writes of other devices and cannot flush them",
		     dev->index);
	ENTER(g, was);
	CU(cu.flush_gpu_direct_rdma_writes(CUV_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
					   CUV_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
	   "flush remote writes to gpu %d", dev->index);
out:
	cuda_leave(g, was);
	return r;
}
