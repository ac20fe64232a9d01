/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes to the place of their receive, and what is left to do when a message is whole. unpack.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <inttypes.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
#include "net/tcp/flow.h"
#include "net/tcp/unpack.h"

static int failed(struct tcp_link *l, gantry_result r, const char *what)
{
	tcp_link_fail_locked(l, 1, r, "%s", what);
	return -1;
}

/* ---- arriving ---- */

int tcp_land_begin(struct tcp_link *l, struct tcp_recv *recv, uint64_t total, int eager)
{
	struct tcp_land *land = recv->land;
	struct tcp_unpack *u = l->devmem.unpack;
	gantry_result r;

	if (!tcp_land_needed(recv))
		return 0;
	if (eager && land->place == TCP_PLACE_GATHER) {
		land->place = land->to_device ? TCP_PLACE_BOUNCE : TCP_PLACE_BUFFER;
		if (land->to_device)
			recv->slots[0].data = land->bounce;
		return 0;
	}
	/* NCCL's slices are smaller, and no table holds more. */
	if (total > u->table_max) {
		land->place = u->cpu_memory && u->cpu_pool ? TCP_PLACE_BUFFER : TCP_PLACE_DIRECT;
		return 0;
	}
	r = devmem_table_begin(&land->table, total, land->user);
	return r == GANTRY_OK ? 0 : failed(l, r, "a message could not begin in the unpack queue");
}

/* To the buffer itself, now. */
static int land_direct(struct tcp_link *l, struct tcp_land *land, const void *src, uint64_t len, uint64_t offset)
{
	struct tcp_unpack *u = l->devmem.unpack;
	gantry_result r = u->dev->ops->copy(u->dev, land->user + offset, src, len);

	return r == GANTRY_OK ? 0 : failed(l, r, "bytes could not be copied to the receive's buffer");
}

int tcp_land_host(struct tcp_link *l, struct tcp_recv *recv, struct tcp_slot *slot, const void *data, uint64_t len,
		  uint64_t offset)
{
	gantry_result r;

	if (!len)
		return 0;
	if (recv->vec.n) {
		struct tcp_vec_at at;

		tcp_vec_seek(&recv->vec, offset, &at);
		tcp_vec_put(&recv->vec, &at, data, len);
		return 0;
	}
	if (!tcp_land_needed(recv)) {
		memcpy(slot->data + offset, data, len);
		return 0;
	}
	if (recv->land->place == TCP_PLACE_DIRECT)
		return land_direct(l, recv->land, data, len, offset);
	r = devmem_table_add_host(&recv->land->table, data, len, offset);
	return r == GANTRY_OK ? 0 : failed(l, r, "bytes could not be put into the page pool");
}

int tcp_land_frag(struct tcp_lane *lane, struct tcp_recv *recv, struct tcp_slot *slot, struct devmem_frag *frag,
		  uint32_t skip, uint32_t len, uint64_t offset)
{
	struct tcp_link *l = lane->link;
	struct tcp_flow *f = lane->flow;
	const struct devmem_memory *m = &l->devmem.pool->memory;
	struct tcp_land *land = recv->land;
	uint64_t at = f->part->base + frag->offset + skip;
	gantry_result r;

	if (tcp_land_needed(recv) && land->place != TCP_PLACE_DIRECT) {
		struct devmem_piece piece = {.frag = frag,
					     .tokens = &f->tokens,
					     .base = f->part->base,
					     .linear = f->linear,
					     .skip = skip,
					     .len = len,
					     .dst_off = offset};

		r = devmem_table_add(&land->table, &piece);
		return r == GANTRY_OK ? 0 : failed(l, r, "a fragment could not be described");
	}
	if (frag->where != DEVMEM_IN_POOL)
		return tcp_land_host(l, recv, slot, f->linear + frag->offset + skip, len, offset);
	if (m->host && !tcp_land_needed(recv)) {
		memcpy(slot->data + offset, m->host + at, len);
		return 0;
	}
	r = devmem_settle(f->flow->binding);
	if (r == GANTRY_OK)
		r = l->devmem.pool->device->ops->copy(l->devmem.pool->device, slot->data + offset, m->device_ptr + at,
						      len);
	return r == GANTRY_OK ? 0 : failed(l, r, "a fragment could not be copied to the receive's buffer");
}

/* ---- whole ---- */

static gantry_result copy(struct tcp_unpack *u, void *dst, const void *src, uint64_t len)
{
	return u->dev->ops->move(u->dev, GANTRY_WAY_IN, dst, src, len);
}

void tcp_land_await(struct tcp_unpack *u)
{
	uint64_t ticket;

	if (u->dev->ops->move_ticket(u->dev, GANTRY_WAY_IN, &ticket) == GANTRY_OK)
		gantry_move_await(u->dev, GANTRY_WAY_IN, ticket);
}

/* Begins what is left to copy. */
static gantry_result begin_copies(struct tcp_unpack *u, struct tcp_recv *recv)
{
	gantry_result r = GANTRY_OK;
	struct tcp_land *land = recv->land;

	if (land->place == TCP_PLACE_BOUNCE)
		TRY(copy(u, land->user, land->bounce, recv->slots[0].total));
	for (uint32_t i = 0; land->place == TCP_PLACE_GATHER && i < land->table.n; i++) {
		const struct gantry_unpack_desc *d = &land->table.descs[i];

		TRY(copy(u, land->user + d->dst_off, u->pool->memory.device_ptr + d->src_off, d->len));
	}
	TRY(u->dev->ops->move_ticket(u->dev, GANTRY_WAY_IN, &land->ticket));
	land->copying = 1;
out:
	return r;
}

/* AGAIN: not yet. */
static gantry_result settle(struct tcp_unpack *u, struct tcp_recv *recv)
{
	gantry_result r = GANTRY_OK;
	struct tcp_land *land = recv->land;

	/* What GATHER copies on is in the pool when its copies begin: they are in one queue with those to the pool. */
	if (land->place == TCP_PLACE_TABLE) {
		r = devmem_table_ready(&land->table);
		if (r != GANTRY_OK)
			return r;
	}
	/* What a NIC has written to the device's memory must be there before anybody is told to read it. */
	if (tcp_land_needed(recv) && u->pool->source->kind == DEVMEM_KERNEL && !land->copying)
		TRY(u->dev->ops->flush_remote_writes(u->dev));
	if (land->place == TCP_PLACE_BOUNCE || land->place == TCP_PLACE_GATHER) {
		if (!land->copying && recv->slots[0].total)
			TRY(begin_copies(u, recv));
		if (land->copying)
			r = u->dev->ops->moved(u->dev, GANTRY_WAY_IN, land->ticket);
	}
out:
	return r;
}

/* Bytes of this message found no landing page. */
static void starved(struct tcp_link *l)
{
	static struct gantry_ratelimit limit;
	struct tcp_unpack *u = l->devmem.unpack;
	uint32_t more, nfree;

	u->starved++;
	if (!gantry_ratelimit_pass(&limit, &more))
		return;
	devmem_pool_mu_lock(&u->pool->mu);
	nfree = u->pool->nfree;
	devmem_pool_mu_unlock(&u->pool->mu);
	LOG_WARN(
		DATA,
		"UNPACK: no landing page is free for what came through host memory: %u of %u are free now; this "
		"connection (%s) has %u receives posted, of which %u wait to be consumed. Such bytes are copied one by "
		"one, which is slow (%" PRIu64 " messages so far): raise GANTRY_UNPACK_LANDING",
		nfree, u->pool->npages, l->session.peer, load_relaxed(&u->busy), load_relaxed(&u->held), u->starved);
}

static void publish(struct tcp_link *l, struct tcp_recv *recv)
{
	struct tcp_unpack *u = l->devmem.unpack;
	const struct tcp_land *land = recv->land;
	uint64_t n = land->place == TCP_PLACE_TABLE ? land->table.n : 0;

	u->messages++;
	u->descs += n;
	u->landing_ticks += gantry_ticks() - recv->land->since;
	recv->land->since = gantry_ticks();
	if (land->table.went_direct)
		starved(l);
	if (land->slot >= 0)
		store_release(&u->meta->cnt[land->slot], n);
	tcp_request_done(&recv->head);
}

/* 1: it is over, well or not. */
static int finish(struct tcp_link *l, struct tcp_recv *recv)
{
	gantry_result r = settle(l->devmem.unpack, recv);

	if (r == GANTRY_AGAIN)
		return 0;
	if (r == GANTRY_OK)
		publish(l, recv);
	else
		failed(l, r, "the bytes of a receive could not be copied to its buffer");
	return 1;
}

void tcp_land_complete(struct tcp_link *l, struct tcp_recv *recv)
{
	recv->land->since = gantry_ticks();
	if (finish(l, recv))
		return;
	recv->land->landing = 1;
	gantry_list_append(&l->devmem.copying_in, &recv->head.node);
	store_relaxed(&l->devmem.copying_in_n, l->devmem.copying_in_n + 1);
}

void tcp_land_progress(struct tcp_link *l)
{
	if (!load_relaxed(&l->devmem.copying_in_n))
		return;
	pthread_mutex_lock(&l->mu);
	for (uint32_t n = l->devmem.copying_in_n; n; n--) {
		struct tcp_recv *recv = gantry_container(l->devmem.copying_in.next, struct tcp_recv, head.node);

		/* One that is over may be posted again at once: it leaves the list before. */
		gantry_list_remove(&recv->head.node);
		recv->land->landing = 0;
		if (finish(l, recv)) {
			store_relaxed(&l->devmem.copying_in_n, l->devmem.copying_in_n - 1);
		} else {
			recv->land->landing = 1;
			gantry_list_append(&l->devmem.copying_in, &recv->head.node);
		}
	}
	pthread_mutex_unlock(&l->mu);
}
