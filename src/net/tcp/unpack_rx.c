/* SPDX-License-Identifier: Apache-2.0 */
/* The sink of receives of an unpack queue: bytes to their place, and what is left to do when a message is whole. tcp_unpack.h
 * has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <inttypes.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
#include "net/tcp/flow.h"
#include "net/tcp/tcp_unpack.h"

static int fail_link(struct tcp_link *l, gantry_result r, const char *what) REQUIRES(link_mu)
{
	tcp_link_fail_locked(l, 1, r, "%s", what);
	return -1;
}

/* ---- arriving ---- */

/* Do its bytes go through the table, wherever they are? Else the CPU may write them to the buffer's data. */
static bool is_described(const struct tcp_recv *recv)
{
	const struct tcp_unpack_recv *u = recv->unpack;

	return u && u->place != TCP_PLACE_BUFFER && u->place != TCP_PLACE_BOUNCE;
}

static int begin_message(struct tcp_link *l, struct tcp_recv *recv, uint64_t total, bool eager) REQUIRES(link_mu)
{
	struct tcp_unpack_recv *ur = recv->unpack;
	struct tcp_unpack *u = l->devmem->unpack;
	gantry_result r;

	ASSERT_HELD(&l->mu);
	if (!is_described(recv))
		return 0;
	if (eager && ur->place == TCP_PLACE_GATHER && ur->to_device && total > u->bounce_size)
		return fail_link(l, GANTRY_ERR_PROTOCOL, "an eager message is larger than agreed (GANTRY_EAGER_MAX)");
	if (eager && ur->place == TCP_PLACE_GATHER) {
		ur->place = ur->to_device ? TCP_PLACE_BOUNCE : TCP_PLACE_BUFFER;
		if (ur->to_device)
			recv->buffers[0].data = ur->bounce;
		return 0;
	}
	/* NCCL's slices are smaller, and no table holds more. */
	if (total > u->table_max) {
		ur->place = u->cpu_memory && u->cpu_pool ? TCP_PLACE_BUFFER : TCP_PLACE_DIRECT;
		return 0;
	}
	r = devmem_table_begin(&ur->table, total, ur->user);
	return r == GANTRY_OK ? 0 : fail_link(l, r, "a message could not begin in the unpack queue");
}

/* To the buffer itself, now. */
static int copy_direct(struct tcp_link *l, struct tcp_unpack_recv *ur, const void *src, uint64_t len, uint64_t offset)
	REQUIRES(link_mu)
{
	struct tcp_unpack *u = l->devmem->unpack;
	gantry_result r = u->dev->ops->copy(u->dev, ur->user + offset, src, len);

	return r == GANTRY_OK ? 0 : fail_link(l, r, "bytes could not be copied to the receive's buffer");
}

static int write_bytes(struct tcp_link *l, struct tcp_recv *recv, const void *data, uint64_t len, uint64_t offset)
	REQUIRES(link_mu)
{
	gantry_result r;

	if (!len)
		return 0;
	if (!is_described(recv)) {
		tcp_recv_write(recv, &recv->buffers[0], data, len, offset);
		return 0;
	}
	if (recv->unpack->place == TCP_PLACE_DIRECT)
		return copy_direct(l, recv->unpack, data, len, offset);
	r = devmem_table_add_host(&recv->unpack->table, data, len, offset);
	return r == GANTRY_OK ? 0 : fail_link(l, r, "bytes could not be put into the page pool");
}

/* ---- a lane's payload: by way of its bounce buffer ---- */

static void list_bounce(struct tcp_lane_rx *rx, struct tcp_span *span) REQUIRES(lane_rx_mu)
{
	span->bytes = rx->left < LINK_BOUNCE ? rx->left : LINK_BOUNCE;
	span->iov[0] = (struct iovec){rx->bounce, span->bytes};
	span->n = 1;
}

static void advance_bounce(struct tcp_lane_rx *rx, uint64_t n) REQUIRES(lane_rx_mu)
{
	ASSERT(!rx->bounced && n <= LINK_BOUNCE && n <= rx->left);
	rx->bounced = (uint32_t)n; /* and from there by put_bounce */
}

static int put_bounce(struct tcp_lane *lane, const uint8_t *data, uint32_t n) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_lane_rx *rx = &lane->rx;
	const struct wire_piece *f = &rx->frame.piece;
	uint64_t offset = f->offset + f->length - rx->left;

	ASSERT(n <= rx->left);
	rx->left -= n;
	return write_bytes(lane->link, rx->recv, data, n, offset);
}

static const struct tcp_target_ops target_bounce = {
	.posted = true,
	.list = list_bounce,
	.advance = advance_bounce,
	.put = put_bounce,
	.end = tcp_end_posted,
};

static const struct tcp_target_ops *choose_target(const struct tcp_recv *recv)
{
	return is_described(recv) ? &target_bounce : NULL;
}

/* ---- a flow's fragments ---- */

int tcp_unpack_frag(struct tcp_lane *lane, struct tcp_recv *recv, struct tcp_buffer *buffer, struct devmem_frag *frag,
		    uint32_t skip, uint32_t len, uint64_t offset)
{
	struct tcp_link *l = lane->link;
	struct tcp_flow *f = lane->flow;
	const struct devmem_memory *m = &l->devmem->pool->memory;
	struct tcp_unpack_recv *ur = recv->unpack;
	uint64_t at = f->part->base + frag->offset + skip;
	gantry_result r;

	if (is_described(recv) && ur->place != TCP_PLACE_DIRECT) {
		struct devmem_piece piece = {.frag = frag,
					     .tokens = &f->tokens,
					     .base = f->part->base,
					     .linear = f->linear,
					     .skip = skip,
					     .len = len,
					     .dst_off = offset};

		r = devmem_table_add(&ur->table, &piece);
		return r == GANTRY_OK ? 0 : fail_link(l, r, "a fragment could not be described");
	}
	if (frag->where != DEVMEM_IN_POOL)
		return write_bytes(l, recv, f->linear + frag->offset + skip, len, offset);
	if (m->host && !is_described(recv)) {
		memcpy(buffer->data + offset, m->host + at, len);
		return 0;
	}
	r = devmem_settle(f->flow->binding);
	if (r == GANTRY_OK)
		r = l->devmem->pool->device->ops->copy(l->devmem->pool->device, buffer->data + offset,
						       m->device_ptr + at, len);
	return r == GANTRY_OK ? 0 : fail_link(l, r, "a fragment could not be copied to the receive's buffer");
}

/* ---- whole ---- */

static gantry_result queue_copy_in(struct tcp_unpack *u, void *dst, const void *src, uint64_t len)
{
	return u->dev->ops->queue_copy(u->dev, GANTRY_COPY_IN, dst, src, len);
}

void tcp_unpack_await(struct tcp_unpack *u)
{
	uint64_t fence;

	if (u->dev->ops->queue_fence(u->dev, GANTRY_COPY_IN, &fence) == GANTRY_OK)
		gantry_fence_await(u->dev, GANTRY_COPY_IN, fence);
}

/* Begins what is left to copy. */
static gantry_result begin_copies(struct tcp_unpack *u, struct tcp_recv *recv)
{
	struct tcp_unpack_recv *ur = recv->unpack;

	ASSERT(!ur->copying);
	if (ur->place == TCP_PLACE_BOUNCE)
		TRY_NOW(queue_copy_in(u, ur->user, ur->bounce, recv->buffers[0].total));
	for (uint32_t i = 0; ur->place == TCP_PLACE_GATHER && i < ur->table.n; i++) {
		const struct gantry_unpack_desc *d = &ur->table.descs[i];

		TRY_NOW(queue_copy_in(u, ur->user + d->dst_off, u->pool->memory.device_ptr + d->src_off, d->len));
	}
	TRY_NOW(u->dev->ops->queue_fence(u->dev, GANTRY_COPY_IN, &ur->fence));
	ur->copying = 1;
	return GANTRY_OK;
}

/* AGAIN: not yet. */
static gantry_result settle_recv(struct tcp_unpack *u, struct tcp_recv *recv)
{
	gantry_result r = GANTRY_OK;
	struct tcp_unpack_recv *ur = recv->unpack;

	/* What GATHER copies on is in the pool when its copies begin: they are in one queue with those to the pool. */
	if (ur->place == TCP_PLACE_TABLE) {
		r = devmem_table_ready(&ur->table);
		if (r != GANTRY_OK)
			return r;
	}
	/* What a NIC has written to the device's memory must be there before a kernel is notified to read it. */
	if (is_described(recv) && u->pool->source->kind == GANTRY_NET_UNPACK_KERNEL && !ur->copying)
		TRY(u->dev->ops->flush_remote_writes(u->dev));
	if (ur->place == TCP_PLACE_BOUNCE || ur->place == TCP_PLACE_GATHER) {
		if (!ur->copying && recv->buffers[0].total)
			TRY(begin_copies(u, recv));
		if (ur->copying)
			r = u->dev->ops->fence_reached(u->dev, GANTRY_COPY_IN, ur->fence);
	}
out:
	return r;
}

/* Bytes of this message found no landing page. */
static void note_starved(struct tcp_link *l)
{
	static struct gantry_ratelimit limit;
	struct tcp_unpack *u = l->devmem->unpack;
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
		nfree, u->pool->npages, l->session.peer, load_relaxed(&u->busy), load_relaxed(&u->unconsumed),
		u->starved);
}

static void publish_recv(struct tcp_link *l, struct tcp_recv *recv)
{
	struct tcp_unpack *u = l->devmem->unpack;
	const struct tcp_unpack_recv *ur = recv->unpack;
	uint64_t n = ur->place == TCP_PLACE_TABLE ? ur->table.n : 0;

	ASSERT(load_relaxed(&recv->head.state) == TCP_PENDING && !ur->finishing);
	u->messages++;
	u->descs += n;
	u->landing_ticks += gantry_ticks() - recv->unpack->since;
	recv->unpack->since = gantry_ticks();
	if (ur->table.went_direct)
		note_starved(l);
	if (ur->slot >= 0)
		store_release(&u->meta->cnt[ur->slot], n);
	tcp_request_done(&recv->head);
}

/* It is over, well or not. */
static bool finish_recv(struct tcp_link *l, struct tcp_recv *recv) REQUIRES(link_mu)
{
	gantry_result r = settle_recv(l->devmem->unpack, recv);

	if (r == GANTRY_AGAIN)
		return false;
	if (r == GANTRY_OK)
		publish_recv(l, recv);
	else
		fail_link(l, r, "the bytes of a receive could not be copied to its buffer");
	return true;
}

static void complete_message(struct tcp_link *l, struct tcp_recv *recv) REQUIRES(link_mu)
{
	ASSERT_HELD(&l->mu);
	ASSERT(!recv->unpack->finishing);
	recv->unpack->since = gantry_ticks();
	if (finish_recv(l, recv))
		return;
	recv->unpack->finishing = true;
	gantry_list_append(&l->devmem->copying_in, &recv->head.node);
	store_relaxed(&l->devmem->copying_in_n, l->devmem->copying_in_n + 1);
}

static bool is_finishing(const struct tcp_recv *recv) REQUIRES(link_mu)
{
	return recv->unpack && recv->unpack->finishing;
}

const struct tcp_sink_ops tcp_sink_unpack = {
	.begin = begin_message,
	.target = choose_target,
	.write = write_bytes,
	.complete = complete_message,
	.is_copying = is_finishing,
	.release = tcp_unpack_release,
};

void tcp_unpack_progress(struct tcp_link *l)
{
	if (!load_relaxed(&l->devmem->copying_in_n))
		return;
	link_mu_lock(&l->mu);
	for (uint32_t n = l->devmem->copying_in_n; n; n--) {
		struct tcp_recv *recv = gantry_container(l->devmem->copying_in.next, struct tcp_recv, head.node);

		ASSERT(recv->unpack->finishing);
		/* One that is over may be posted again at once: it leaves the list before. */
		gantry_list_remove(&recv->head.node);
		recv->unpack->finishing = false;
		if (finish_recv(l, recv)) {
			store_relaxed(&l->devmem->copying_in_n, l->devmem->copying_in_n - 1);
		} else {
			recv->unpack->finishing = true;
			gantry_list_append(&l->devmem->copying_in, &recv->head.node);
		}
	}
	link_mu_unlock(&l->mu);
}
