/* SPDX-License-Identifier: Apache-2.0 */
/* Life and failure of a link. link.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/link.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/param.h"
#include "net/devmem_rx.h"
#include "net/tcp/flow.h"
#include "net/tcp/stage.h"
#include "net/tcp/tcp_unpack.h"
#include "net/tcp/txmem.h"

uint32_t tcp_large_receives;

/* Everything of a lane that needs no memory. UNCHECKED: no other thread has a reference to the link yet. */
static void init_lane(struct tcp_link *l, int i) UNCHECKED
{
	struct tcp_lane *lane = &l->lanes[i];

	lane->io = (struct tcp_io){.ops = tcp_io_engine, .fd = -1};
	lane->tx.pipe[0] = lane->tx.pipe[1] = -1;
	lane->index = i;
	lane->link = l;
	lane->rx.ops = &tcp_receive_inline;
	/* A bulk lane reads ahead just the next header: everything else goes straight to its place. */
	lane->rx.room = i == 0 ? LINK_READAHEAD : WIRE_FRAME_SIZE;
}

/* The link and the objects that every link owns. NULL: no memory. UNCHECKED, as init_lane. */
static struct tcp_link *make_link(int nlanes) UNCHECKED
{
	struct tcp_link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->lanes = calloc((size_t)nlanes, sizeof(*l->lanes));
	l->devmem = calloc(1, sizeof(*l->devmem));
	l->control = calloc(1, sizeof(*l->control));
	l->spread = calloc(1, sizeof(*l->spread));
	if (!l->lanes || !l->devmem || !l->control || !l->spread) {
		free(l->spread);
		free(l->control);
		free(l->devmem);
		free(l->lanes);
		free(l);
		return NULL;
	}
	gantry_list_init(&l->node);
	gantry_list_init(&l->tx.eager);
	gantry_list_init(&l->tx.bulk);
	gantry_list_init(&l->tx.unacked);
	gantry_list_init(&l->devmem->copying_out);
	gantry_list_init(&l->devmem->txmems);
	gantry_list_init(&l->devmem->copying_in);
	gantry_list_init(&l->rx.posted);
	gantry_list_init(&l->rx.unexpected);
	l->nlanes = nlanes;
	for (int i = 0; i < nlanes; i++)
		init_lane(l, i);
	return l;
}

/* UNCHECKED, as init_lane. */
gantry_result tcp_link_create(int nlanes, struct tcp_link **ret_link) UNCHECKED
{
	gantry_result r = GANTRY_OK;
	struct tcp_link *l = make_link(nlanes);

	if (!l)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a link of %d lanes", nlanes);
	TRY(gantry_random_bytes(&l->session.cover_key, sizeof(l->session.cover_key)));
	for (int i = 0; i < nlanes; i++) {
		l->lanes[i].rx.buf = malloc(l->lanes[i].rx.room);
		if (!l->lanes[i].rx.buf)
			FAIL(GANTRY_ERR_NOMEM, "no memory for a lane");
	}
	*ret_link = l;
	l = NULL;
out:
	tcp_link_free(l);
	return r;
}

/* UNCHECKED: no other thread has a reference to the link any more. */
void tcp_link_free(struct tcp_link *l) UNCHECKED
{
	if (!l)
		return;
	link_mu_lock(&l->mu);
	tcp_txmem_close(l);
	tcp_unpack_detach(l);
	tcp_stage_close(l);
	link_mu_unlock(&l->mu);
	tcp_stage_put(l->devmem->staging_left);
	for (int i = 0; i < l->nlanes; i++) {
		struct tcp_lane *lane = &l->lanes[i];

		tcp_flow_free(lane);
		tcp_lane_unseal(lane);
		lane->io.ops->close(&lane->io);
		for (int k = 0; k < 2; k++)
			if (lane->tx.pipe[k] >= 0)
				close(lane->tx.pipe[k]);
		free(lane->rx.buf);
		free(lane->rx.bounce);
		free(lane->rx.nowhere);
	}
	gantry_list_each_safe (pos, &l->rx.unexpected) {
		free(gantry_container(pos, struct tcp_unexpected, node));
	}
	tcp_resume_free(l);
	free(l->lanes);
	free(l->tx.tags.items);
	free(l->rx.tags.items);
	free(l->control->orphan);
	free(l->control);
	free(l->spread);
	free(l->tx.coalesce.buffers[0]);
	free(l->tx.coalesce.buffers[1]);
	gantry_pool_free(l->sends);
	gantry_pool_free(l->recvs);
	devmem_pool_put(l->devmem->pool);
	devmem_pool_put(l->devmem->pool_left);
	free(l->devmem);
	free(l->entry);
	free(l);
}

gantry_result tcp_link_open_tx(struct tcp_link *l)
{
	for (int i = 0; i < 2; i++) {
		l->tx.coalesce.buffers[i] = malloc(LINK_COALESCE);
		if (!l->tx.coalesce.buffers[i])
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a staging buffer");
	}
	return gantry_pool_create(sizeof(struct tcp_send), LINK_SENDS, &l->sends);
}

gantry_result tcp_link_open_rx(struct tcp_link *l)
{
	return gantry_pool_create(sizeof(struct tcp_recv), LINK_RECVS, &l->recvs);
}

struct tcp_tag *tcp_tag_find(struct tcp_tags *tags, uint32_t tag)
{
	ASSERT(tags->count <= tags->room);
	for (int i = 0; i < tags->count; i++) {
		if (tags->items[i].tag == tag) {
			tags->last = i;
			return &tags->items[i];
		}
	}
	if (tags->count == LINK_TAGS)
		return NULL;
	if (tags->count == tags->room) {
		int room = tags->room ? 2 * tags->room : 8;
		struct tcp_tag *items = realloc(tags->items, (size_t)room * sizeof(*items));

		if (!items)
			return NULL;
		tags->items = items;
		tags->room = room;
	}
	tags->last = tags->count++;
	tags->items[tags->last] = (struct tcp_tag){.tag = tag};
	return &tags->items[tags->last];
}

gantry_result tcp_link_status(struct tcp_link *l, const struct tcp_end *end)
{
	if (tcp_link_failed(l)) {
		gantry_set_last_error(l->end.text);
		return load_relaxed(&l->end.error);
	}
	if (load_acquire(&end->over)) {
		gantry_set_last_error(end->text);
		return GANTRY_ERR_PEER_CLOSED;
	}
	return GANTRY_OK;
}

/* The peer has closed one direction. */
static void end_direction(struct tcp_link *l, struct tcp_end *end, const char *why) REQUIRES(link_mu)
{
	ASSERT_HELD(&l->mu);
	if (end->over)
		return;
	snprintf(end->text, sizeof(end->text), "%s: %s", l->session.peer, why);
	store_release(&end->over, 1);
	LOG_INFO(NET, "%s", end->text);
}

void tcp_link_end_rx(struct tcp_link *l, const char *why)
{
	link_mu_lock(&l->mu);
	end_direction(l, &l->rx.end, why);
	link_mu_unlock(&l->mu);
}

/* Whether requests wait for what the link carries. */
static bool is_missed(const struct tcp_link *l) REQUIRES(link_mu)
{
	return (!gantry_list_empty(&l->rx.posted) && !load_relaxed(&l->standing_receives)) ||
	       !gantry_list_empty(&l->devmem->copying_in) || !gantry_list_empty(&l->tx.eager) ||
	       !gantry_list_empty(&l->tx.bulk) || !gantry_list_empty(&l->tx.unacked) ||
	       (l->resume && !gantry_list_empty(&l->resume->held)) || !gantry_list_empty(&l->devmem->copying_out);
}

static void fail_v(struct tcp_link *l, int tell, gantry_result r, const char *fmt, va_list ap) REQUIRES(link_mu)
{
	char cause[256];

	ASSERT_HELD(&l->mu);
	if (tcp_link_failed(l))
		return;
	vsnprintf(cause, sizeof(cause), fmt, ap);
	l->end.error = r;
	snprintf(l->end.text, sizeof(l->end.text), "%s: %s", l->session.peer, cause);
	l->end.tell = tell;
	store_release(&l->end.failed, 1);
	store_relaxed(&l->tx.pending, 1);
	gantry_event_put(GANTRY_EV_LINK_DOWN, l->session.id, (uint64_t)r, 0);
	/* The departure of a peer that no request waits for is not an error. */
	if (is_missed(l) || r != GANTRY_ERR_PEER_CLOSED)
		gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s (%s)", l->end.text, gantry_result_name(r));
	else
		LOG_DEBUG(NET, "%s (%s)", l->end.text, gantry_result_name(r));
}

void tcp_link_fail_locked(struct tcp_link *l, int tell, gantry_result r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fail_v(l, tell, r, fmt, ap);
	va_end(ap);
}

void tcp_link_fail(struct tcp_link *l, int tell, gantry_result r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	link_mu_lock(&l->mu);
	fail_v(l, tell, r, fmt, ap);
	link_mu_unlock(&l->mu);
	va_end(ap);
}

/*
 * When a peer dies or closes, its lanes end one after the other, and what it had sent before is still to be read from
 * them. So the first end only starts a clock; the link fails when the last lane has ended, or after LINK_END_GRACE_NS
 * if only some have: then a lane broke by itself.
 */
void tcp_link_ending(struct tcp_lane *lane, int e)
{
	struct tcp_link *l = lane->link;

	if (l->resume && tcp_resume_broken(lane, e))
		return;
	link_mu_lock(&l->mu);
	if (!load_relaxed(&l->end.ending)) { /* lanes that still deliver push it without mu */
		l->end.ending_errno = e;
		l->end.ending_lane = lane->index;
		l->end.ending_since = gantry_ticks();
		store_release(&l->end.ending, gantry_ticks() | 1);
	}
	link_mu_unlock(&l->mu);
}

static int is_unreachable(int e)
{
	return e == ETIMEDOUT || e == EHOSTUNREACH || e == ENETUNREACH || e == EHOSTDOWN || e == ENETDOWN;
}

/* A peer that receives nothing from us gives us up with a reset; its kernel has received nothing from us either
 * (alive.c). */
static bool given_up(const struct tcp_link *l) REQUIRES(link_mu)
{
	return l->end.ending_errno == ECONNRESET && load_relaxed(&l->last.unanswered);
}

/* Lanes whose connection stands in both directions: a process that died has none. */
static int living_lanes(const struct tcp_link *l)
{
	int n = 0;

	for (int i = 0; i < l->nlanes; i++) {
		struct tcp_io_info info;

		n += l->lanes[i].io.ops->info(&l->lanes[i].io, &info) && info.established;
	}
	return n;
}

/* One lane has ended and others live, so the process does: something between the hosts, or its kernel, ended the lane.
 */
static void fail_lane(struct tcp_link *l, int living) REQUIRES(link_mu)
{
	char why[64] = "it was closed without a goodbye message";

	if (l->end.ending_errno)
		snprintf(why, sizeof(why), "%s", strerror(l->end.ending_errno));
	tcp_link_fail_locked(l, 1, GANTRY_ERR_PEER_LOST,
			     "lane %d: %s; %d of the other %d lanes still work, so the peer is alive and something "
			     "between the hosts ended this lane",
			     l->end.ending_lane, why, living, l->nlanes - 1);
}

void tcp_link_check_ending(struct tcp_link *l)
{
	int all = 1, goodbye, living;

	if (tcp_link_failed(l))
		return;
	for (int i = 0; i < l->nlanes; i++)
		all &= load_acquire(&l->lanes[i].rx.eof);
	if (!all &&
	    (int64_t)(gantry_ticks() - load_relaxed(&l->end.ending)) < (int64_t)gantry_ticks_of_ns(LINK_END_GRACE_NS))
		return;
	living = all ? 0 : living_lanes(l);
	link_mu_lock(&l->mu);
	goodbye = l->rx.peer_closed || l->tx.peer_closed;
	if (goodbye)
		tcp_link_fail_locked(l, 0, GANTRY_ERR_PEER_CLOSED, "the peer closed the connection");
	else if (is_unreachable(l->end.ending_errno)) /* the same cause as silence, seen by TCP first */
		tcp_link_fail_locked(l, 0, GANTRY_ERR_PEER_SILENT, "lane %d: %s: the peer is stopped or unreachable",
				     l->end.ending_lane, strerror(l->end.ending_errno));
	else if (given_up(l))
		tcp_link_fail_locked(l, 0, GANTRY_ERR_PEER_SILENT,
				     "lane %d: %s: the peer received nothing from us; our packets are being lost",
				     l->end.ending_lane, strerror(l->end.ending_errno));
	else if (living)
		fail_lane(l, living);
	else if (l->end.ending_errno)
		tcp_link_fail_locked(l, 0, GANTRY_ERR_PEER_LOST, "lane %d: %s", l->end.ending_lane,
				     strerror(l->end.ending_errno));
	else
		tcp_link_fail_locked(
			l, 0, GANTRY_ERR_PEER_LOST,
			"the peer ended the connection without a goodbye message: its process probably died");
	link_mu_unlock(&l->mu);
}

/* Everything the peer had sent before it closed has been taken. */
static bool peer_said_all(const struct tcp_link *l) REQUIRES(link_mu)
{
	return l->rx.peer_closed && l->rx.bulk_received >= l->rx.peer_bulk_sent;
}

void tcp_link_check_peer_closed(struct tcp_link *l)
{
	if (peer_said_all(l))
		end_direction(l, &l->rx.end, "the peer closed its sending side");
	if (l->tx.peer_closed)
		end_direction(l, &l->tx.end, "the peer closed its receiving side");
}

void tcp_link_hang_up(struct tcp_link *l)
{
	int now = 0;

	link_mu_lock(&l->mu);
	if (peer_said_all(l) && !l->tx.wanted && !l->end.hung_up && control_mu_trylock(&l->control_mu)) {
		now = l->control->iov_at == l->control->iov_n && (!l->tx.coalesce.bytes || tcp_link_failed(l)) &&
		      !l->end.tell && !l->tx.tell_close && !l->rx.tell_close;
		l->end.hung_up = now;
		control_mu_unlock(&l->control_mu);
	}
	link_mu_unlock(&l->mu);
	for (int i = 0; now && i < l->nlanes; i++)
		l->lanes[i].io.ops->shut(&l->lanes[i].io);
}

/*
 * The rest of a half-sent batch refers to buffers that go back to the user now. If the other direction lives on, the
 * bytes must still go out, or the stream would lose its framing: keep a copy of them.
 */
static void adopt_batch(struct tcp_link *l) REQUIRES(control_mu)
{
	size_t size = 0, at = 0;
	uint8_t *copy;

	ASSERT_HELD(&l->control_mu);
	ASSERT(l->control->iov_at <= l->control->iov_n);
	for (int i = l->control->iov_at; i < l->control->iov_n; i++)
		size += l->control->iov[i].iov_len;
	l->control->batch_n = 0;
	if (!size)
		return;
	copy = malloc(size);
	if (!copy) {
		tcp_link_fail(l, 0, GANTRY_ERR_NOMEM, "no memory to close one direction in the middle of a message");
		l->control->iov_at = l->control->iov_n = 0;
		return;
	}
	for (int i = l->control->iov_at; i < l->control->iov_n; i++) {
		memcpy(copy + at, l->control->iov[i].iov_base, l->control->iov[i].iov_len);
		at += l->control->iov[i].iov_len;
	}
	free(l->control->orphan);
	l->control->orphan = copy;
	l->control->iov[0] = (struct iovec){copy, size};
	l->control->iov_at = 0;
	l->control->iov_n = 1;
}

/* UNCHECKED: takes the locks of all lanes together. */
void tcp_link_close_tx(struct tcp_link *l) UNCHECKED
{
	for (int i = 1; i < l->nlanes; i++)
		lane_tx_mu_lock(&l->lanes[i].tx.lock);
	control_mu_lock(&l->control_mu);
	tcp_control_advance(l->control, l->lanes[0].io.ops->cancel_send(&l->lanes[0].io));
	adopt_batch(l);
	for (int i = 1; i < l->nlanes; i++)
		tcp_lane_tx_abandon(&l->lanes[i]);
	link_mu_lock(&l->mu);
	gantry_list_init(&l->tx.eager);
	gantry_list_init(&l->tx.bulk);
	store_relaxed(&l->tx.bulk_bytes, 0);
	gantry_list_init(&l->tx.unacked);
	if (l->resume)
		tcp_resume_abandon(l);
	tcp_txmem_close(l);
	tcp_stage_close(l);
	l->tx.coalesce.newest = NULL; /* what is staged still goes out: it was reported done */
	store_relaxed(&l->tx.bulk_pending, 0);
	/* The pool stays until the link is freed: the kernel may still refer to headers in it. */
	l->tx.wanted = 0;
	l->tx.closed = true;
	tcp_resume_closed(l);
	l->tx.tell_close = 1;
	store_relaxed(&l->tx.pending, 1);
	link_mu_unlock(&l->mu);
	control_mu_unlock(&l->control_mu);
	for (int i = 1; i < l->nlanes; i++)
		lane_tx_mu_unlock(&l->lanes[i].tx.lock);
	tcp_control_flush(l);
}

/* UNCHECKED, as close_tx. */
void tcp_link_close_rx(struct tcp_link *l) UNCHECKED
{
	for (int i = 0; i < l->nlanes; i++) {
		struct tcp_lane_rx *rx = &l->lanes[i].rx;

		lane_rx_mu_lock(&rx->lock);
		tcp_lane_rx_cancel(&l->lanes[i]);
		/* The rest of this piece has no place to go any more. */
		if (rx->state == TCP_RX_PAYLOAD && rx->target->posted) {
			rx->target = &tcp_target_nowhere;
			rx->dst = NULL;
			ASSERT(!rx->bounced); /* it is emptied before the lock is let go of */
		}
	}
	link_mu_lock(&l->mu);
	for (int i = 0; i < l->nlanes; i++)
		tcp_flow_forget(&l->lanes[i]);
	tcp_unpack_detach(l);
	gantry_list_init(&l->rx.posted);
	store_relaxed(&l->rx.small_posted, 0);
	fetch_sub_relaxed(&tcp_large_receives, l->rx.large_posted);
	store_relaxed(&l->rx.large_posted, 0);
	l->rx.closed = 1;
	tcp_resume_closed(l);
	l->rx.ack_now = l->rx.done != l->rx.done_told || l->rx.unreported; /* before the goodbye, not after it */
	l->rx.tell_close = 1;
	store_relaxed(&l->tx.pending, 1);
	link_mu_unlock(&l->mu);
	for (int i = 0; i < l->nlanes; i++)
		lane_rx_mu_unlock(&l->lanes[i].rx.lock);
	tcp_control_flush(l);
}
