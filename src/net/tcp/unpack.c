/* SPDX-License-Identifier: Apache-2.0 */
/* The unpack queue: its memory, taking and freeing slots. land.c puts bytes into it. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "net/tcp/flow.h"

static gantry_result make_memory(struct tcp_unpack *u)
{
	gantry_result r = GANTRY_OK;
	size_t size = sizeof(struct gantry_unpack_meta) + sizeof(struct gantry_unpack_handle);
	void *device = NULL;

	TRY(u->dev->ops->alloc_mapped(u->dev, size, &u->memory, &device));
	u->meta = u->memory;
	u->handle = (void *)(u->meta + 1);
	u->device_handle = (uint8_t *)device + sizeof(*u->meta);
	u->handle->meta = device;
	u->handle->bounce_buf = u->pool->memory.device_ptr;
	u->handle->head = UINT64_MAX; /* the kernel increments it before it looks */
out:
	return r;
}

gantry_result tcp_unpack_create(struct gantry_device *dev, enum devmem_kind kind, struct tcp_unpack **ret_unpack)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_params *p = gantry_params();
	struct tcp_unpack *u = calloc(1, sizeof(*u));

	if (!u)
		FAIL(GANTRY_ERR_NOMEM, "no memory for an unpack queue");
	TRY(devmem_pool_get(dev, kind, &u->pool)); /* it exists */
	u->dev = u->pool->device;
	u->cpu_memory = gantry_traits(u->dev)->cpu_reads_memory;
	u->cpu_pool = u->pool->memory.host != NULL;
	u->table_max = (uint64_t)p->unpack_max_frags * DEVMEM_LANDING_PAGE;
	if (u->table_max > GANTRY_UNPACK_MAX_SLICE)
		u->table_max = GANTRY_UNPACK_MAX_SLICE;
	TRY(make_memory(u));
	u->copies = !u->cpu_memory || !u->cpu_pool;
	for (int k = 0; k < GANTRY_UNPACK_DEPTH; k++) {
		u->slots[k].land.slot = k;
		TRY(devmem_table_init(&u->slots[k].land.table, u->pool, u->meta->mem[k], (uint32_t)p->unpack_max_frags,
				      (uint32_t)p->unpack_coalesce));
	}
	for (int k = 0; k < UNPACK_SPARE; k++)
		u->spare[k].slot = -1;
	*ret_unpack = u;
	u = NULL;
out:
	tcp_unpack_destroy(u);
	return r;
}

static void land_free(struct tcp_land *land)
{
	devmem_table_free(&land->table);
	free(land->descs);
}

void tcp_unpack_destroy(struct tcp_unpack *u)
{
	if (!u)
		return;
	for (int k = 0; u->pool && k < GANTRY_UNPACK_DEPTH; k++)
		land_free(&u->slots[k].land);
	for (int k = 0; u->pool && k < UNPACK_SPARE; k++)
		land_free(&u->spare[k]);
	if (u->memory)
		u->dev->ops->free_mapped(u->dev, u->memory);
	if (u->bounces)
		u->dev->ops->free_mapped(u->dev, u->bounces);
	devmem_pool_put(u->pool);
	free(u);
}

void tcp_unpack_describe(const struct tcp_unpack *u, struct gantry_net_device_handle *ret_handle)
{
	*ret_handle = (struct gantry_net_device_handle){
		.type = GANTRY_NET_DEVICE_UNPACK,
		.version = GANTRY_UNPACK_VERSION,
		.handle = u->device_handle,
		.size = sizeof(*u->handle),
		.needs_proxy_progress = 1,
	};
}

/* What copies of the device need; see unpack.h for why it is made here. */
static gantry_result make_bounces(struct tcp_unpack *u, size_t each)
{
	gantry_result r = GANTRY_OK;
	void *device;

	TRY(u->dev->ops->alloc_mapped(u->dev, UNPACK_SPARE * each, &u->bounces, &device));
	for (int k = 0; k < UNPACK_SPARE; k++)
		u->spare[k].bounce = (uint8_t *)u->bounces + (size_t)k * each;
out:
	return r;
}

gantry_result tcp_unpack_attach(struct tcp_link *l, struct tcp_unpack *u)
{
	gantry_result r = GANTRY_OK;

	if (u->copies && !u->bounces)
		r = make_bounces(u, (l->session.eager_max + 4095u) & ~4095u);
	if (r != GANTRY_OK)
		return r;
	pthread_mutex_lock(&l->mu);
	for (int i = 0; i < l->nlanes; i++) {
		struct tcp_lane *lane = &l->lanes[i];

		if (lane->flow || lane->rx.land)
			continue;
		lane->rx.land = malloc(LINK_LAND);
		if (!lane->rx.land)
			FAIL(GANTRY_ERR_NOMEM, "no memory for a lane");
	}
	l->devmem.unpack = u;
out:
	pthread_mutex_unlock(&l->mu);
	return r;
}

void tcp_unpack_flush(struct tcp_link *l)
{
	for (int i = 1; i < l->nlanes; i++) {
		gantry_result r = l->lanes[i].flow ? devmem_tokens_flush(&l->lanes[i].flow->tokens) : GANTRY_OK;

		if (r != GANTRY_OK && !tcp_link_failed(l))
			LOG_ERROR(NET, "%s: lane %d: fragments could not be given back", l->session.peer, i);
	}
}

/* What it holds goes back. */
static gantry_result land_release(struct tcp_land *land)
{
	gantry_result r = devmem_table_release(&land->table);

	land->busy = land->copying = land->landing = 0;
	return r;
}

static void report(const struct tcp_link *l, const struct tcp_unpack *u)
{
	uint64_t frags = 0, tokens = 0, landed = 0;

	for (int i = 1; i < l->nlanes; i++) {
		const struct tcp_flow *f = l->lanes[i].flow;

		frags += f ? f->frags : 0;
		tokens += f ? load_relaxed(&f->tokens.returned) : 0;
	}
	for (int k = 0; k < GANTRY_UNPACK_DEPTH; k++)
		landed += u->slots[k].land.table.landed_bytes;
	for (int k = 0; k < UNPACK_SPARE; k++)
		landed += u->spare[k].table.landed_bytes;
	LOG_INFO(NET,
		 "UNPACK: %" PRIu64 " messages, %" PRIu64 " descriptors, %" PRIu64 " fragments, %" PRIu64
		 " bytes landed, %" PRIu64 " tokens returned, starved %" PRIu64
		 " times; on average %.1f us from whole to done, %.1f from done to consumed (%s)",
		 u->messages, u->descs, frags, landed, tokens, u->starved,
		 gantry_us_of_ticks(u->landing_ticks) / (double)(u->messages ? u->messages : 1),
		 gantry_us_of_ticks(u->holding_ticks) / (double)(u->consumed ? u->consumed : 1), l->session.peer);
}

void tcp_unpack_detach(struct tcp_link *l)
{
	struct tcp_unpack *u = l->devmem.unpack;

	if (!u)
		return;
	/* Pages and buffers that copies refer to are not given away before those are over. */
	if (u->copies && l->devmem.copying_in_n)
		tcp_land_await(u);
	for (int k = 0; k < GANTRY_UNPACK_DEPTH; k++)
		land_release(&u->slots[k].land);
	for (int k = 0; k < UNPACK_SPARE; k++)
		if (u->spare[k].descs)
			land_release(&u->spare[k]);
	tcp_unpack_flush(l);
	gantry_list_init(&l->devmem.copying_in);
	store_relaxed(&l->devmem.copying_in_n, 0);
	report(l, u);
	l->devmem.unpack = NULL;
}

/* ---- requests ---- */

/* Written by one thread, read by those that log. */
static void count(uint32_t *n, int change)
{
	store_relaxed(n, *n + (uint32_t)change);
}

static enum tcp_place place_of(const struct tcp_link *l, int device, int optional)
{
	const struct tcp_unpack *u = l->devmem.unpack;

	if (device && !optional)
		return TCP_PLACE_TABLE;
	return (l->session.device_rx && !u->cpu_pool) || (device && !u->cpu_memory) ? TCP_PLACE_GATHER
										    : TCP_PLACE_BUFFER;
}

/* A table of its own for a receive that takes no slot; kept for the next one. */
static gantry_result need_table(struct tcp_unpack *u, struct tcp_land *land)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_params *p = gantry_params();
	uint32_t max = (uint32_t)p->unpack_max_frags;

	if (land->descs)
		return GANTRY_OK;
	land->descs = calloc(max, sizeof(*land->descs));
	if (!land->descs)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %u descriptors", max);
	r = devmem_table_init(&land->table, u->pool, land->descs, max, (uint32_t)p->unpack_coalesce);
	if (r != GANTRY_OK) {
		free(land->descs);
		land->descs = NULL;
	}
out:
	return r;
}

static gantry_result take_slot(struct tcp_unpack *u, enum tcp_place place, struct tcp_recv **ret_recv)
{
	struct tcp_unpack_slot *slot = &u->slots[u->posted % GANTRY_UNPACK_DEPTH];

	*ret_recv = NULL;
	if (slot->land.busy)
		return GANTRY_OK;
	slot->land.place = place;
	slot->land.busy = 1;
	slot->recv.land = &slot->land;
	u->posted++;
	count(&u->busy, 1);
	*ret_recv = &slot->recv;
	return GANTRY_OK;
}

static gantry_result take_spare(struct tcp_link *l, enum tcp_place place, struct tcp_recv **ret_recv)
{
	gantry_result r = GANTRY_OK;
	struct tcp_unpack *u = l->devmem.unpack;
	struct tcp_recv *recv;
	struct tcp_land *land = NULL;

	*ret_recv = NULL;
	for (int k = 0; !land && k < UNPACK_SPARE && place != TCP_PLACE_BUFFER; k++)
		land = u->spare[k].busy ? NULL : &u->spare[k];
	if (!land && place != TCP_PLACE_BUFFER)
		return GANTRY_OK;
	if (place == TCP_PLACE_GATHER)
		TRY(need_table(u, land));
	recv = gantry_pool_get(&l->rx.recvs);
	if (!recv)
		return GANTRY_OK;
	if (land) {
		land->place = place;
		land->busy = 1;
	}
	recv->land = land;
	recv->vec.n = 0;
	*ret_recv = recv;
out:
	return r;
}

gantry_result tcp_unpack_take(struct tcp_link *l, void *data, int device, int optional, struct tcp_recv **ret_recv)
{
	gantry_result r = GANTRY_OK;
	enum tcp_place place = place_of(l, device, optional);

	TRY(optional ? take_spare(l, place, ret_recv) : take_slot(l->devmem.unpack, place, ret_recv));
	if (*ret_recv && (*ret_recv)->land) {
		(*ret_recv)->land->user = data;
		(*ret_recv)->land->to_device = device && !l->devmem.unpack->cpu_memory;
		(*ret_recv)->land->copying = 0;
	}
out:
	return r;
}

void tcp_unpack_untake(struct tcp_link *l, struct tcp_recv *recv)
{
	struct tcp_unpack *u = l->devmem.unpack;

	recv->head.state = TCP_FREE;
	if (recv->land && recv->land->table.pool)
		land_release(recv->land);
	if (recv->land)
		recv->land->busy = 0;
	if (recv->land && recv->land->slot >= 0) {
		u->posted--;
		count(&u->busy, -1);
	} else {
		gantry_pool_put(&l->rx.recvs, recv);
	}
}

void tcp_unpack_tested(struct tcp_link *l, struct tcp_recv *recv)
{
	struct tcp_land *land = recv->land;

	if (land->slot >= 0) {
		recv->head.state = TCP_HELD;
		count(&l->devmem.unpack->held, 1);
		return;
	}
	if (land->place == TCP_PLACE_GATHER && land_release(land) != GANTRY_OK)
		LOG_ERROR(NET, "%s: fragments of a receive could not be given back", l->session.peer);
	land->busy = 0;
	recv->head.state = TCP_FREE;
	gantry_pool_put(&l->rx.recvs, recv);
}

gantry_result tcp_unpack_consumed(struct tcp_link *l, struct tcp_request *req)
{
	gantry_result r = GANTRY_OK;
	struct tcp_unpack *u = l->devmem.unpack;
	struct tcp_unpack_slot *slot = NULL;

	for (int k = 0; u && !slot && k < GANTRY_UNPACK_DEPTH; k++)
		slot = &u->slots[k].recv.head == req ? &u->slots[k] : NULL;
	if (!slot) /* LL, LL128, or no queue at all: test has recycled it */
		return GANTRY_OK;
	if (load_acquire(&req->state) != TCP_HELD)
		FAIL(GANTRY_ERR_USAGE, "irecvConsumed of a receive of which test has not said that it is done");
	req->state = TCP_FREE;
	count(&u->busy, -1);
	count(&u->held, -1);
	u->consumed++;
	u->holding_ticks += gantry_ticks() - slot->land.since;
	/* Nobody else has the slot: its table needs no lock. */
	r = land_release(&slot->land);
	if (u->busy == 0) /* maybe for long: nothing is kept back */
		tcp_unpack_flush(l);
out:
	return r;
}
