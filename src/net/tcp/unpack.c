/* SPDX-License-Identifier: Apache-2.0 */
/* The unpack queue: its memory, taking and freeing slots. unpack_rx.c puts bytes into it. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/tcp_unpack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "net/tcp/flow.h"
#include "net/tcp/network.h"

static gantry_result make_memory(struct tcp_unpack *u)
{
	size_t size = sizeof(struct gantry_unpack_meta) + sizeof(struct gantry_unpack_handle);
	void *device = NULL;

	TRY_NOW(u->dev->ops->alloc_mapped(u->dev, size, &u->memory, &device));
	u->meta = u->memory;
	u->handle = (void *)(u->meta + 1);
	u->device_handle = (uint8_t *)device + sizeof(*u->meta);
	u->handle->meta = device;
	u->handle->bounce_buf = u->pool->memory.device_ptr;
	u->handle->head = UINT64_MAX; /* the kernel increments it before it looks */
	return GANTRY_OK;
}

gantry_result tcp_unpack_create(struct gantry_device *dev, enum gantry_net_unpack kind, struct tcp_unpack **ret_unpack)
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
		u->slots[k].side.slot = k;
		TRY(devmem_table_init(&u->slots[k].side.table, u->pool, u->meta->mem[k], (uint32_t)p->unpack_max_frags,
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

static void free_recv(struct tcp_unpack_recv *ur)
{
	devmem_table_free(&ur->table);
	free(ur->descs);
}

void tcp_unpack_destroy(struct tcp_unpack *u)
{
	if (!u)
		return;
	for (int k = 0; u->pool && k < GANTRY_UNPACK_DEPTH; k++)
		free_recv(&u->slots[k].side);
	for (int k = 0; u->pool && k < UNPACK_SPARE; k++)
		free_recv(&u->spare[k]);
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

/* What copies of the device need; see tcp_unpack.h for why it is made here. */
static gantry_result make_bounces(struct tcp_unpack *u, size_t each)
{
	void *device;

	TRY_NOW(u->dev->ops->alloc_mapped(u->dev, UNPACK_SPARE * each, &u->bounces, &device));
	u->bounce_size = each;
	for (int k = 0; k < UNPACK_SPARE; k++)
		u->spare[k].bounce = (uint8_t *)u->bounces + (size_t)k * each;
	return GANTRY_OK;
}

/* UNCHECKED: the bounce buffers are for receives, of which none is posted yet. */
gantry_result tcp_unpack_attach(struct tcp_link *l, struct tcp_unpack *u) UNCHECKED
{
	gantry_result r = GANTRY_OK;

	if (u->copies && !u->bounces)
		r = make_bounces(u, (l->session.eager_max + 4095u) & ~4095u);
	if (r != GANTRY_OK)
		return r;
	link_mu_lock(&l->mu);
	ASSERT(!l->devmem->unpack || l->devmem->unpack == u);
	for (int i = 0; i < l->nlanes; i++) {
		struct tcp_lane *lane = &l->lanes[i];

		if (lane->flow || lane->rx.bounce)
			continue;
		lane->rx.bounce = malloc(LINK_BOUNCE);
		if (!lane->rx.bounce)
			FAIL(GANTRY_ERR_NOMEM, "no memory for a lane");
	}
	l->devmem->unpack = u;
out:
	link_mu_unlock(&l->mu);
	return r;
}

void tcp_unpack_flush(struct tcp_link *l)
{
	for (int i = 1; i < l->nlanes; i++) {
		gantry_result r = l->lanes[i].flow ? devmem_tokens_flush(&l->lanes[i].flow->tokens) : GANTRY_OK;

		if (r != GANTRY_OK && !tcp_link_failed(l))
			LOG_ERROR(NET, "%s: lane %d: fragments could not be returned", l->session.peer, i);
	}
}

/* What it holds goes back. */
static gantry_result release_recv(struct tcp_unpack_recv *ur)
{
	gantry_result r = devmem_table_release(&ur->table);

	ur->busy = ur->copying = ur->finishing = false;
	return r;
}

static void report_unpack(const struct tcp_link *l, const struct tcp_unpack *u)
{
	uint64_t frags = 0, tokens = 0, landed = 0;

	for (int i = 1; i < l->nlanes; i++) {
		const struct tcp_flow *f = l->lanes[i].flow;

		frags += f ? f->frags : 0;
		tokens += f ? load_relaxed(&f->tokens.returned) : 0;
	}
	for (int k = 0; k < GANTRY_UNPACK_DEPTH; k++)
		landed += u->slots[k].side.table.landed_bytes;
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
	struct tcp_unpack *u = l->devmem->unpack;

	ASSERT_HELD(&l->mu);
	if (!u)
		return;
	/* Pages and buffers that copies refer to are not given away before those are over. */
	if (u->copies && l->devmem->copying_in_n)
		tcp_unpack_await(u);
	for (int k = 0; k < GANTRY_UNPACK_DEPTH; k++)
		release_recv(&u->slots[k].side);
	for (int k = 0; k < UNPACK_SPARE; k++)
		if (u->spare[k].descs)
			release_recv(&u->spare[k]);
	tcp_unpack_flush(l);
	gantry_list_init(&l->devmem->copying_in);
	store_relaxed(&l->devmem->copying_in_n, 0);
	report_unpack(l, u);
	l->devmem->unpack = NULL;
}

/* ---- requests ---- */

/* Written by one thread, read by those that log. */
static void add_count(uint32_t *n, int change)
{
	ASSERT(change > 0 || *n);
	store_relaxed(n, *n + (uint32_t)change);
}

static enum tcp_place place_of(const struct tcp_link *l, bool device, bool optional)
{
	const struct tcp_unpack *u = l->devmem->unpack;

	if (device && !optional)
		return TCP_PLACE_TABLE;
	return (l->session.device_rx && !u->cpu_pool) || (device && !u->cpu_memory) ? TCP_PLACE_GATHER
										    : TCP_PLACE_BUFFER;
}

/* A table of its own for a receive that takes no slot; kept for the next one. */
static gantry_result need_table(struct tcp_unpack *u, struct tcp_unpack_recv *ur)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_params *p = gantry_params();
	uint32_t max = (uint32_t)p->unpack_max_frags;

	if (ur->descs)
		return GANTRY_OK;
	ur->descs = calloc(max, sizeof(*ur->descs));
	if (!ur->descs)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %u descriptors", max);
	r = devmem_table_init(&ur->table, u->pool, ur->descs, max, (uint32_t)p->unpack_coalesce);
	if (r != GANTRY_OK) {
		free(ur->descs);
		ur->descs = NULL;
	}
out:
	return r;
}

static gantry_result take_slot(struct tcp_unpack *u, enum tcp_place place, struct tcp_recv **ret_recv)
{
	struct tcp_unpack_slot *slot = &u->slots[u->posted % GANTRY_UNPACK_DEPTH];

	*ret_recv = NULL;
	if (slot->side.busy)
		return GANTRY_OK;
	ASSERT(slot->recv.head.state == TCP_FREE);
	slot->side.place = place;
	slot->side.busy = true;
	slot->recv.unpack = &slot->side;
	slot->recv.sink = &tcp_sink_unpack;
	u->posted++;
	add_count(&u->busy, 1);
	*ret_recv = &slot->recv;
	return GANTRY_OK;
}

static gantry_result take_spare(struct tcp_link *l, enum tcp_place place, struct tcp_recv **ret_recv)
{
	struct tcp_unpack *u = l->devmem->unpack;
	struct tcp_recv *recv;
	struct tcp_unpack_recv *ur = NULL;

	*ret_recv = NULL;
	for (int k = 0; !ur && k < UNPACK_SPARE && place != TCP_PLACE_BUFFER; k++)
		ur = u->spare[k].busy ? NULL : &u->spare[k];
	if (!ur && place != TCP_PLACE_BUFFER)
		return GANTRY_OK;
	if (place == TCP_PLACE_GATHER)
		TRY_NOW(need_table(u, ur));
	recv = tcp_recv_take(l);
	if (!recv)
		return GANTRY_OK;
	if (ur) {
		ur->place = place;
		ur->busy = true;
		recv->sink = &tcp_sink_unpack;
		recv->unpack = ur;
	}
	*ret_recv = recv;
	return GANTRY_OK;
}

/* A request with its place; *ret_recv NULL: none is free now. */
static gantry_result take_recv(struct tcp_link *l, void *data, bool device, bool optional, struct tcp_recv **ret_recv)
{
	enum tcp_place place = place_of(l, device, optional);

	TRY_NOW(optional ? take_spare(l, place, ret_recv) : take_slot(l->devmem->unpack, place, ret_recv));
	if (*ret_recv && (*ret_recv)->unpack) {
		(*ret_recv)->unpack->user = data;
		(*ret_recv)->unpack->to_device = device && !l->devmem->unpack->cpu_memory;
		(*ret_recv)->unpack->copying = false;
	}
	return GANTRY_OK;
}

/* It was not posted after all. */
static void give_back(struct tcp_link *l, struct tcp_recv *recv)
{
	struct tcp_unpack *u = l->devmem->unpack;
	struct tcp_unpack_recv *ur = recv->unpack;

	if (ur->table.pool)
		release_recv(ur);
	ur->busy = false;
	if (ur->slot >= 0) {
		u->posted--;
		add_count(&u->busy, -1);
	} else {
		gantry_pool_put(l->recvs, recv);
	}
}

void tcp_unpack_release(struct tcp_link *l, struct tcp_recv *recv, bool tested)
{
	struct tcp_unpack_recv *ur = recv->unpack;

	ASSERT(recv->head.state == TCP_FREE && ur->busy);
	if (!tested) {
		give_back(l, recv);
	} else if (ur->slot >= 0) { /* its user's until irecv_consumed */
		recv->head.state = TCP_UNCONSUMED;
		add_count(&l->devmem->unpack->unconsumed, 1);
	} else {
		if (ur->place == TCP_PLACE_GATHER && release_recv(ur) != GANTRY_OK)
			LOG_ERROR(NET, "%s: fragments of a receive could not be returned", l->session.peer);
		ur->busy = false;
		gantry_pool_put(l->recvs, recv);
	}
}

gantry_result tcp_link_irecv_unpack(struct tcp_link *l, void *data, size_t size, int tag, bool device, bool optional,
				    void **ret_request)
{
	struct tcp_recv *recv;
	gantry_result r = take_recv(l, data, device, optional, &recv);

	return r == GANTRY_OK ? tcp_recv_post(l, recv, 1, &data, &size, &tag, ret_request) : r;
}

gantry_result tcp_unpack_consumed(struct tcp_link *l, struct tcp_request *req)
{
	gantry_result r = GANTRY_OK;
	struct tcp_unpack *u = l->devmem->unpack;
	struct tcp_unpack_slot *slot = NULL;

	for (int k = 0; u && !slot && k < GANTRY_UNPACK_DEPTH; k++)
		slot = &u->slots[k].recv.head == req ? &u->slots[k] : NULL;
	if (!slot) /* LL, LL128, or no queue at all: test has recycled it */
		return GANTRY_OK;
	if (load_acquire(&req->state) != TCP_UNCONSUMED)
		FAIL(GANTRY_ERR_USAGE, "irecvConsumed before test reported the receive as done");
	ASSERT(slot->side.busy);
	req->state = TCP_FREE;
	add_count(&u->busy, -1);
	add_count(&u->unconsumed, -1);
	u->consumed++;
	u->holding_ticks += gantry_ticks() - slot->side.since;
	/* No other thread has the slot: its table needs no lock. */
	r = release_recv(&slot->side);
	if (u->busy == 0) /* maybe for long: nothing is kept back */
		tcp_unpack_flush(l);
out:
	return r;
}

/* ---- where messages are ---- */

static gantry_result device_of(struct gantry_device *wanted, struct gantry_device **ret_dev)
{
	return wanted ? gantry_device_open(wanted->kind, wanted->index, ret_dev) : gantry_device_current(ret_dev);
}

gantry_result tcp_rx_memory_resolve(const struct gantry_net_config *config, struct tcp_context *ctx)
{
	const bool asked = config->unpack == GANTRY_NET_UNPACK_KERNEL;
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = NULL;
	enum gantry_net_unpack kind = GANTRY_NET_UNPACK_OFF;

	ctx->unpack = GANTRY_NET_UNPACK_OFF;
	snprintf(ctx->why, sizeof(ctx->why), "not requested");
	if (config->unpack == GANTRY_NET_UNPACK_OFF)
		return GANTRY_OK;
	TRY(device_of(config->device, &dev));
	/* One answer for all NICs: NCCL asks only the first device for its type. A caller that asks for devmem TCP has chosen
	 * NICs that have it; lanes by others are refused when they are attached. */
	for (int i = 0; i < tcp_network.nics->count; i++) {
		ctx->why[0] = 0;
		r = devmem_choose((enum gantry_net_unpack)config->unpack, tcp_network.nics->nics[i].name, dev, &kind,
				  ctx->why);
		if (asked && r != GANTRY_OK && i + 1 < tcp_network.nics->count)
			continue;
		TRY(r);
		if (asked || kind != GANTRY_NET_UNPACK_KERNEL)
			break;
	}
	if (ctx->why[0])
		LOG_INFO(NET, "GANTRY_UNPACK=auto: messages go through host memory, no devmem TCP: %s", ctx->why);
	else if (kind == GANTRY_NET_UNPACK_OFF)
		snprintf(ctx->why, sizeof(ctx->why), "GANTRY_UNPACK=off");
	ctx->unpack = (int)kind;
out:
	gantry_device_close(dev);
	return r;
}

int gantry_net_tcp_unpack(const void *ctx, char *text, size_t len)
{
	const struct tcp_context *c = ctx;
	const struct gantry_params *p = gantry_params();

	if (c->unpack == GANTRY_NET_UNPACK_EMULATED)
		snprintf(text, len, "emulated NIC (memory %s, shape %s, seed %lld)",
			 param_unpack_memory_words[p->unpack_memory], param_emu_shape_words[p->emu_shape],
			 (long long)p->emu_seed);
	else if (c->unpack == GANTRY_NET_UNPACK_KERNEL)
		snprintf(text, len, "devmem TCP of the kernel");
	else
		snprintf(text, len, "off: %s", c->why);
	return c->unpack;
}

gantry_result tcp_rx_memory_open(const struct tcp_context *ctx, struct tcp_rx_memory *ret_memory)
{
	gantry_result r = GANTRY_OK;
	struct tcp_rx_memory h = {.kind = GANTRY_NET_UNPACK_OFF};

	if (ctx->unpack != GANTRY_NET_UNPACK_OFF) {
		h.kind = (enum gantry_net_unpack)ctx->unpack;
		TRY(device_of(ctx->device, &h.device));
		TRY(devmem_pool_get(h.device, h.kind, &h.pool));
	}
	*ret_memory = h;
	h = (struct tcp_rx_memory){.kind = GANTRY_NET_UNPACK_OFF};
out:
	tcp_rx_memory_close(&h);
	return r;
}

struct tcp_rx_memory tcp_rx_memory_take(struct tcp_rx_memory *h)
{
	struct tcp_rx_memory taken = *h;

	*h = (struct tcp_rx_memory){.kind = GANTRY_NET_UNPACK_OFF};
	return taken;
}

void tcp_rx_memory_close(struct tcp_rx_memory *h)
{
	devmem_pool_put(h->pool);
	gantry_device_close(h->device);
	*h = (struct tcp_rx_memory){.kind = GANTRY_NET_UNPACK_OFF};
}

enum wire_unpack tcp_rx_memory_says(const struct tcp_rx_memory *h)
{
	return h->kind == GANTRY_NET_UNPACK_EMULATED ? WIRE_UNPACK_YES
	       : h->kind == GANTRY_NET_UNPACK_KERNEL ? WIRE_UNPACK_BETWEEN_HOSTS
						     : WIRE_UNPACK_NO;
}
