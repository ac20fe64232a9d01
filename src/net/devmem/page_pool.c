/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: a list of the process, one for each device that fragments are brought to.
 *
 * Making, binding and ending happen under the list's lock: they are rare, may take long, and must not overlap (a NIC's
 * queue can be bound once: the old pool's binding has to be gone before the next one's is made). Landing pages have a
 * lock of their own, which is held for a few instructions.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem_rx.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "device/device.h"

MUTEX_KIND(devmem_pools_mu); /* of the list; before a pool's own */
static struct devmem_pools_mu list_mu;
static struct gantry_list pools GUARDED_BY(devmem_pools_mu) = {&pools, &pools};

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Memory of p->memory.size bytes from a page border on: dma-bufs and the NIC know only whole pages. */
static gantry_result allocate_memory(struct devmem_pool *p, uint64_t page)
{
	const struct gantry_device_ops *ops = p->device->ops;
	void *device_ptr = NULL;
	uint64_t shift;

	p->is_mapped = p->source->kind != GANTRY_NET_UNPACK_KERNEL &&
		       gantry_params()->unpack_memory == PARAM_UNPACK_MEMORY_MAPPED;
	if (p->is_mapped) {
		TRY_NOW(ops->alloc_mapped(p->device, p->memory.size + page, &p->block, &device_ptr));
	} else {
		TRY_NOW(ops->alloc(p->device, p->memory.size + page, &p->block));
		device_ptr = p->block;
	}
	shift = round_up((uintptr_t)device_ptr, page) - (uintptr_t)device_ptr;
	p->memory.device_ptr = (uint8_t *)device_ptr + shift;
	if (p->is_mapped || gantry_traits(p->device)->cpu_reads_memory)
		p->memory.host = (uint8_t *)p->block + shift;
	return GANTRY_OK;
}

/* No other thread has a reference to the pool yet. */
static gantry_result make_landing(struct devmem_pool *p) UNCHECKED
{
	const struct gantry_device_ops *ops = p->device->ops;
	void *bounce, *unused;

	p->npages = (uint32_t)((p->memory.size - p->landing_base) / DEVMEM_LANDING_PAGE);
	p->free_pages = malloc(p->npages * sizeof(*p->free_pages));
	if (!p->free_pages)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a list of %u landing pages", p->npages);
	for (uint32_t i = 0; i < p->npages; i++)
		p->free_pages[i] = p->npages - 1 - i;
	p->nfree = p->lowest = p->npages;
	if (!p->memory.host) {
		TRY_NOW(ops->alloc_mapped(p->device, p->memory.size - p->landing_base, &bounce, &unused));
		p->bounce = bounce;
	}
	return GANTRY_OK;
}

static void unbind_part(struct devmem_part *part)
{
	if (part->binding)
		part->binding->ops->unbind(part->binding);
	part->binding = NULL;
}

static void destroy_pool(struct devmem_pool *p) UNCHECKED /* no other thread has a reference any more, or yet */
{
	const struct gantry_device_ops *ops;

	if (!p)
		return;
	for (int i = 0; i < p->nparts; i++)
		unbind_part(&p->parts[i]);
	if (p->device) {
		ops = p->device->ops;
		if (p->bounce)
			ops->free_mapped(p->device, p->bounce);
		if (p->block && p->is_mapped)
			ops->free_mapped(p->device, p->block);
		else if (p->block)
			ops->free(p->device, p->block);
		gantry_device_close(p->device);
	}
	free(p->free_pages);
	free(p);
}

static gantry_result make_pool(struct gantry_device *dev, const struct devmem_source_ops *source,
			       struct devmem_pool **ret_pool)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_params *params = gantry_params();
	uint64_t page = devmem_page(&(struct devmem_memory){.page = source->page});
	uint64_t landing = round_up(params->unpack_landing, page > DEVMEM_LANDING_PAGE ? page : DEVMEM_LANDING_PAGE);
	struct devmem_pool *p = calloc(1, sizeof(*p));

	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a page pool");
	p->source = source;
	p->memory.page = source->page;
	p->part_size = round_up(params->unpack_pool, page);
	p->landing_base = p->part_size * (uint64_t)params->unpack_nics;
	p->memory.size = p->landing_base + landing;
	if (p->memory.size > UINT32_MAX)
		FAIL(GANTRY_ERR_CONFIG,
		     "GANTRY_UNPACK_POOL=%" PRIu64 " for GANTRY_UNPACK_NICS=%" PRId64
		     " with GANTRY_UNPACK_LANDING=%" PRIu64 " is a pool of %" PRIu64
		     " bytes: kernels address less than 4 GiB",
		     params->unpack_pool, params->unpack_nics, params->unpack_landing, p->memory.size);
	TRY(gantry_device_open(dev->kind, dev->index, &p->device));
	p->memory.device = p->device;
	TRY(allocate_memory(p, page));
	TRY(make_landing(p));
	p->refs = 1;
	LOG_INFO(NET, "page pool of %s: %" PRIu64 " bytes of %s memory, %s source, %u landing pages", p->device->name,
		 p->memory.size,
		 p->is_mapped	  ? "mapped"
		 : p->memory.host ? "host"
				  : "device",
		 source->name, p->npages);
	*ret_pool = p;
	p = NULL;
out:
	destroy_pool(p);
	return r;
}

gantry_result devmem_pool_get_from(struct gantry_device *dev, const struct devmem_source_ops *source,
				   struct devmem_pool **ret_pool)
{
	gantry_result r = GANTRY_OK;
	struct devmem_pool *p = NULL;

	devmem_pools_mu_lock(&list_mu);
	gantry_list_each_entry (e, &pools, struct devmem_pool, link)
		if (e->device == dev)
			p = e;
	if (p && p->source->kind != source->kind)
		FAIL(GANTRY_ERR_CONFIG,
		     "%s already has a page pool for the %s source, so it cannot have one for the %s source", dev->name,
		     p->source->name, source->name);
	if (p) {
		p->refs++;
	} else {
		TRY(make_pool(dev, source, &p));
		gantry_list_append(&pools, &p->link);
	}
	*ret_pool = p;
out:
	devmem_pools_mu_unlock(&list_mu);
	return r;
}

gantry_result devmem_pool_get(struct gantry_device *dev, enum gantry_net_unpack kind, struct devmem_pool **ret_pool)
{
	const struct devmem_source_ops *source = NULL;

	TRY_NOW(devmem_source_get(kind, &source));
	return devmem_pool_get_from(dev, source, ret_pool);
}

/* What the source says of every part, for a line of the log. */
static void describe_parts(const struct devmem_pool *p, char *text, size_t len)
{
	size_t n = 0;

	text[0] = 0;
	for (int i = 0; i < p->nparts && n + 3 < len; i++) {
		n += (size_t)snprintf(text + n, len - n, "; ");
		p->source->describe(p->parts[i].binding, text + n, len - n);
		n += strlen(text + n);
	}
}

/* One line, at the end: is everything back? */
static void say_whole(struct devmem_pool *p) REQUIRES(devmem_pools_mu)
{
	char text[512];
	uint64_t abandoned = 0;
	uint32_t out;

	describe_parts(p, text, sizeof(text));
	for (int i = 0; i < p->nparts; i++)
		abandoned += load_relaxed(&p->parts[i].binding->abandoned);
	devmem_pool_mu_lock(&p->mu);
	out = p->npages - p->nfree;
	LOG_INFO(NET,
		 "page pool of %s ends: %s: %u of %u landing pages are out, %" PRIu64
		 " fragments were never given back; most landing pages at a time %u, refused %" PRIu64 " times%s",
		 p->device->name, out || abandoned ? "the pool is INCOMPLETE" : "the pool is complete", out, p->npages,
		 abandoned, p->npages - p->lowest, p->refused, text);
	devmem_pool_mu_unlock(&p->mu);
}

gantry_result devmem_settle(const struct devmem_binding *b)
{
	struct gantry_device *dev = b->memory.device;
	uint64_t fence;

	if (!b->late)
		return GANTRY_OK;
	TRY_NOW(dev->ops->queue_fence(dev, GANTRY_COPY_IN, &fence));
	return gantry_fence_await(dev, GANTRY_COPY_IN, fence);
}

void devmem_pool_put(struct devmem_pool *p)
{
	if (!p)
		return;
	devmem_pools_mu_lock(&list_mu);
	if (--p->refs == 0) {
		gantry_list_remove(&p->link);
		say_whole(p);
		destroy_pool(p);
	}
	devmem_pools_mu_unlock(&list_mu);
}

static gantry_result bind_part(struct devmem_pool *p, const char *nic) REQUIRES(devmem_pools_mu)
{
	struct devmem_part *part = &p->parts[p->nparts];
	struct devmem_memory view = p->memory;

	if (p->nparts == DEVMEM_POOL_PARTS || p->parts_end + p->part_size > p->landing_base)
		FAIL_NOW(GANTRY_ERR_LIMIT,
			 "the page pool of %s has no room for %s beside %d other NIC(s): raise GANTRY_UNPACK_NICS",
			 p->device->name, nic, p->nparts);
	*part = (struct devmem_part){.base = p->parts_end, .size = p->part_size};
	snprintf(part->nic, sizeof(part->nic), "%s", nic);
	if (view.host)
		view.host += part->base;
	view.device_ptr += part->base;
	view.size = part->size;
	TRY_NOW(p->source->bind(&view, nic, &part->binding));
	p->parts_end += p->part_size;
	p->nparts++;
	LOG_INFO(NET, "page pool of %s: bytes %" PRIu64 " to %" PRIu64 " are bound to %s, dma-buf %u", p->device->name,
		 part->base, part->base + part->size, nic, part->binding->dmabuf_id);
	return GANTRY_OK;
}

gantry_result devmem_pool_part(struct devmem_pool *p, const char *nic, struct devmem_part **ret_part)
{
	gantry_result r = GANTRY_OK;
	int i;

	devmem_pools_mu_lock(&list_mu);
	if (!nic[0] || strlen(nic) >= sizeof(p->parts[0].nic))
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an interface name", nic);
	for (i = 0; i < p->nparts && strcmp(p->parts[i].nic, nic) != 0; i++)
		;
	if (i == p->nparts)
		TRY(bind_part(p, nic));
	*ret_part = &p->parts[i];
out:
	devmem_pools_mu_unlock(&list_mu);
	return r;
}

int devmem_pool_take(struct devmem_pool *p, uint32_t n, uint32_t *ret_pages)
{
	int got = -1;

	devmem_pool_mu_lock(&p->mu);
	if (n <= p->nfree) {
		for (uint32_t i = 0; i < n; i++)
			ret_pages[i] = p->free_pages[--p->nfree];
		if (p->nfree < p->lowest)
			p->lowest = p->nfree;
		got = 0;
	} else {
		p->refused++;
	}
	devmem_pool_mu_unlock(&p->mu);
	return got;
}

void devmem_pool_give(struct devmem_pool *p, const uint32_t *pages, uint32_t n)
{
	devmem_pool_mu_lock(&p->mu);
	/* Backwards: so the next take has them in the same order, neighbours where they were. */
	for (uint32_t i = n; i > 0 && p->nfree < p->npages; i--)
		p->free_pages[p->nfree++] = pages[i - 1];
	devmem_pool_mu_unlock(&p->mu);
}
