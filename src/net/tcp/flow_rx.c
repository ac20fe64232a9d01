/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving on a lane whose payload lands in device memory. flow.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/tcp/flow.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "net/tcp/network.h"
#include "net/tcp/tcp_unpack.h"

enum { IDLE_PACES = 200 };

static const struct tcp_receive_ops receive_flow;

/* ---- life ---- */

const char *tcp_lane_nic(const struct tcp_lane *lane)
{
	const struct gantry_nic_list *nics = tcp_network.nics;
	int dev = lane->link->session.dev;

	for (int i = 0; nics && i < nics->count; i++)
		for (int k = 0; k < nics->nics[i].naddrs; k++)
			if (gantry_addr_same_host(&nics->nics[i].addrs[k], &lane->local))
				return nics->nics[i].name;
	return nics && dev < tcp_network.ndevs ? tcp_network.devs[dev].nic->name : "lo";
}

/* UNCHECKED: no other thread has a reference to the lane yet. */
gantry_result tcp_flow_attach(struct tcp_lane *lane) UNCHECKED
{
	gantry_result r = GANTRY_OK;
	struct devmem_part *part;
	struct tcp_flow *f = calloc(1, sizeof(*f));

	ASSERT(!lane->flow);
	if (!f)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a lane");
	f->linear = malloc(FLOW_LINEAR);
	f->control = malloc(DEVMEM_CONTROL_SIZE);
	f->chunks = malloc(FLOW_CHUNKS * sizeof(*f->chunks));
	f->room = FLOW_CHUNKS;
	if (!f->linear || !f->control || !f->chunks)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a lane");
	TRY(devmem_pool_part(lane->link->devmem->pool, tcp_lane_nic(lane), &part));
	TRY(part->binding->ops->attach(part->binding, lane->io.fd, &f->flow));
	f->part = part;
	devmem_tokens_init(&f->tokens, f->flow);
	lane->flow = f;
	lane->rx.ops = &receive_flow;
	f = NULL;
out:
	if (f) {
		free(f->linear);
		free(f->control);
		free(f->chunks);
		free(f);
	}
	return r;
}

/* UNCHECKED: no other thread has a reference to the lane any more. */
void tcp_flow_free(struct tcp_lane *lane) UNCHECKED
{
	struct tcp_flow *f = lane->flow;

	if (!f)
		return;
	devmem_tokens_free(&f->tokens);
	f->part->binding->ops->detach(f->flow); /* what is still out is free with it */
	free(f->linear);
	free(f->control);
	free(f->chunks);
	free(f);
	lane->flow = NULL;
	lane->rx.ops = &tcp_receive_inline;
}

/* ---- what was described ---- */

static int grow_chunks(struct tcp_flow *f) REQUIRES(link_mu)
{
	struct tcp_chunk *chunks = malloc(2ul * f->room * sizeof(*chunks));

	ASSERT(f->n == f->room);
	if (!chunks)
		return -1;
	for (uint32_t i = 0; i < f->n; i++)
		chunks[i] = f->chunks[(f->head + i) % f->room];
	free(f->chunks);
	f->chunks = chunks;
	f->head = 0;
	f->room *= 2;
	return 0;
}

int tcp_flow_describe(struct tcp_link *l, const struct wire_piece *f)
{
	struct tcp_flow *flow = f->lane < (uint32_t)l->nlanes ? l->lanes[f->lane].flow : NULL;
	struct tcp_chunk c = {.piece = *f, .left = f->length};

	ASSERT_HELD(&l->mu);
	if (!flow) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
				     "received a descriptor for lane %u, which carries headers in band", f->lane);
		return -1;
	}
	c.buffer = l->rx.closed ? NULL : tcp_match_buffer(l, f->tag, f->index, &c.recv);
	if (!c.buffer && !l->rx.closed) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
				     "lane %u: descriptor for message %u of tag %u, but its receive is not posted",
				     f->lane, f->index, f->tag);
		return -1;
	}
	if (tcp_match_begin(l, f, c.recv, c.buffer))
		return -1;
	if (flow->n == flow->room && (flow->room >= FLOW_CHUNKS_MAX || grow_chunks(flow))) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_LIMIT,
				     "lane %u: received descriptors for %u pieces, but none of the pieces", f->lane,
				     flow->n);
		return -1;
	}
	flow->chunks[(flow->head + flow->n++) % flow->room] = c;
	store_relaxed(&l->lanes[f->lane].rx.next_poll, 0);
	l->rx.described++;
	store_relaxed(&l->rx.bulk_hint, 1);
	return 0;
}

void tcp_flow_forget(struct tcp_lane *lane)
{
	struct tcp_flow *f = lane->flow;

	for (uint32_t i = 0; f && i < f->n; i++)
		f->chunks[(f->head + i) % f->room].buffer = NULL;
}

/* ---- what has come ---- */

static void note_plain(struct tcp_lane *lane, const struct devmem_frag *frag)
{
	struct tcp_flow *f = lane->flow;
	struct tcp_link *l = lane->link;

	f->plain_bytes += frag->len;
	if (f->flow->binding->ops->kind != GANTRY_NET_UNPACK_KERNEL || exchange_relaxed(&l->devmem->warned_plain, 1))
		return;
	LOG_WARN(DATA, "%s: lane %d: data came through host memory: flow not steered to a queue with device memory",
		 l->session.peer, lane->index);
}

static ssize_t fill_flow(struct tcp_lane *lane, bool *ret_drained) REQUIRES(lane_rx_mu)
{
	struct tcp_flow *f = lane->flow;
	const struct devmem_binding *b = f->flow->binding;
	struct iovec iov = {f->linear, FLOW_LINEAR};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = f->control, .msg_controllen = DEVMEM_CONTROL_SIZE};
	ssize_t n = b->ops->receive(f->flow, &msg, MSG_DONTWAIT);
	uint32_t tokens[DEVMEM_LIST_MAX], ntokens = 0;
	gantry_result r;

	(void)ret_drained; /* how much there was to read is not known */
	if (n <= 0)
		return n;
	store_relaxed(&lane->rx.bytes, lane->rx.bytes + (uint64_t)n);
	f->at = f->skip = 0;
	r = devmem_parse(&msg, n, b, FLOW_LINEAR, &f->list);
	for (uint32_t i = 0; r == GANTRY_OK && i < f->list.n; i++) {
		if (f->list.frags[i].where == DEVMEM_IN_POOL)
			tokens[ntokens++] = f->list.frags[i].token;
		else if (f->list.frags[i].where == DEVMEM_PLAIN)
			note_plain(lane, &f->list.frags[i]);
	}
	if (r == GANTRY_OK)
		r = devmem_tokens_take(&f->tokens, tokens, ntokens);
	if (r != GANTRY_OK) { /* what it brought is free when the flow is */
		f->list.n = 0;
		tcp_link_fail(lane->link, 1, r, "lane %d: %s", lane->index, gantry_last_error());
		return n;
	}
	f->frags += f->list.n;
	return n;
}

/* The first described piece has come whole. */
static int end_chunk(struct tcp_lane *lane) REQUIRES(link_mu)
{
	struct tcp_flow *f = lane->flow;
	struct tcp_chunk *c = &f->chunks[f->head];

	ASSERT(f->n && !c->left && lane->link->rx.described);
	f->head = (f->head + 1) % f->room;
	f->n--;
	lane->link->rx.described--;
	gantry_event_put(GANTRY_EV_CHUNK_RX, lane->link->session.id, GANTRY_EV_MSG(c->piece.tag, c->piece.index),
			 GANTRY_EV_ON_LANE(c->piece.length, lane->index));
	return c->buffer ? tcp_match_end(lane->link, &c->piece, c->recv, c->buffer) : 0;
}

/* What has come, to the pieces that were described; what waits for its descriptor leaves the lane stalled. */
static int attribute_flow(struct tcp_lane *lane, bool force) REQUIRES(lane_rx_mu, link_mu)
{
	struct tcp_flow *f = lane->flow;
	uint32_t dropped = f->ndropped;
	int rc = 0;

	(void)force;
	store_relaxed(&lane->rx.stalled, false);
	while (f->at < f->list.n && rc == 0) {
		struct devmem_frag *frag = &f->list.frags[f->at];
		struct tcp_chunk *c = &f->chunks[f->head];
		uint32_t len = frag->len - f->skip;

		ASSERT(f->skip <= frag->len && dropped < DEVMEM_LIST_MAX);
		if (!f->n) {
			store_relaxed(&lane->rx.stalled, true);
			break;
		}
		if (len > c->left)
			len = c->left;
		if (c->buffer)
			rc = tcp_unpack_frag(lane, c->recv, c->buffer, frag, f->skip, len,
					     c->piece.offset + c->piece.length - c->left);
		f->skip += len;
		c->left -= len;
		if (f->skip == frag->len) {
			if (frag->where == DEVMEM_IN_POOL && frag->token)
				f->dropped[dropped++] = frag->token;
			f->at++;
			f->skip = 0;
		}
		if (!c->left && rc == 0)
			rc = end_chunk(lane);
	}
	f->ndropped = dropped;
	return rc;
}

/* The lane's own use of what was attributed ends; where the socket is empty, everything goes back now. */
static void drop_flow(struct tcp_lane *lane, bool drained) REQUIRES(lane_rx_mu)
{
	struct tcp_flow *f = lane->flow;
	gantry_result r = devmem_tokens_drop(&f->tokens, f->dropped, f->ndropped);

	f->ndropped = 0;
	if (r == GANTRY_OK && drained)
		r = devmem_tokens_flush(&f->tokens);
	if (r != GANTRY_OK)
		tcp_link_fail(lane->link, 1, r, "lane %d: %s", lane->index, gantry_last_error());
}

static bool has_more_flow(const struct tcp_lane *lane) REQUIRES(link_mu)
{
	return lane->flow->n != 0;
}

/* A socket of whose payload nothing is described is looked at only to see whether it has ended: a descriptor makes it
 * due. That is under link_mu, so it is not missed. */
static void rest_flow(struct tcp_lane *lane) REQUIRES(lane_rx_mu)
{
	struct tcp_link *l = lane->link;
	uint64_t next = gantry_ticks() + l->session.pace_ticks;

	link_mu_lock(&l->mu);
	if (!lane->flow->n)
		next += IDLE_PACES * l->session.pace_ticks;
	store_relaxed(&lane->rx.next_poll, next);
	link_mu_unlock(&l->mu);
}

/* It does not read through the lane's engine, so nothing is ever in flight there. */
static void cancelled_flow(struct tcp_lane *lane, size_t n)
{
	(void)lane;
	ASSERT(!n);
}

static const struct tcp_receive_ops receive_flow = {
	.fill = fill_flow,
	.cancelled = cancelled_flow,
	.digest = attribute_flow,
	.settle = drop_flow,
	.has_more = has_more_flow,
	.rest = rest_flow,
	.waits_for_control = true,
};
