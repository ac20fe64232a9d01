/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/ends.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/log.h"

int gantry_ends_same_process(const struct gantry_peer_info *a, const struct gantry_peer_info *b)
{
	return a->host == b->host && a->process == b->process;
}

int gantry_ends_see_each_other(const struct gantry_peer_info *a, const struct gantry_peer_info *b)
{
	return gantry_ends_same_process(a, b) || (a->host == b->host && a->pid_ns == b->pid_ns && a->user == b->user);
}

int gantry_ends_keep_lines(const struct gantry_connector *c)
{
	return gantry_traits(c->device)->ll128_host && gantry_traits_of_kind(c->peer->device_kind)->ll128_host;
}

uint64_t gantry_rings_round_step(uint64_t step)
{
	return (step + GANTRY_ENDS_PAGE - 1) / GANTRY_ENDS_PAGE * GANTRY_ENDS_PAGE;
}

int gantry_rings_step_is_good(uint64_t step)
{
	return step && step <= GANTRY_ENDS_STEP_MAX && step % GANTRY_ENDS_PAGE == 0;
}

void gantry_rings_layout(uint64_t simple_step, int ll, int ll128, struct gantry_rings *ret_rings)
{
	struct gantry_rings g = {.size = GANTRY_ENDS_PAGE};

	ASSERT(simple_step <= GANTRY_ENDS_STEP_MAX);
	g.step_bytes[GANTRY_PROTO_SIMPLE] = (uint32_t)simple_step;
	g.at[GANTRY_PROTO_SIMPLE] = g.size;
	g.size += GANTRY_STEPS * simple_step;
	if (ll) {
		g.step_bytes[GANTRY_PROTO_LL] = GANTRY_ENDS_LL_STEP;
		g.at[GANTRY_PROTO_LL] = g.size;
		g.size += GANTRY_STEPS * gantry_ll_bytes(GANTRY_ENDS_LL_STEP);
	}
	if (ll128) {
		g.step_bytes[GANTRY_PROTO_LL128] = GANTRY_ENDS_LL128_STEP;
		g.at[GANTRY_PROTO_LL128] = g.size;
		g.size += GANTRY_STEPS * gantry_ll128_bytes(GANTRY_ENDS_LL128_STEP);
	}
	*ret_rings = g;
}

void gantry_end_fill_words(struct gantry_connector *c, struct gantry_fifo *fifo, uint32_t flags)
{
	c->conn.head = &fifo->head;
	c->conn.tail = &fifo->tail;
	c->conn.slots = fifo->slots;
	c->conn.state = c->state;
	c->conn.flags = flags | (c->send ? GANTRY_CONN_SEND : 0);
}

void gantry_end_fill_proxied(struct gantry_connector *c, struct gantry_fifo *fifo)
{
	gantry_end_fill_words(c, fifo, GANTRY_CONN_PROXIED);
	c->conn.offers = fifo->offers;
	c->conn.eventcount = c->proxy_eventcount;
	c->peer_notifies = 1;
}

int gantry_ends_proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	(void)me;
	(void)peer;
	return GANTRY_TRANSPORT_PROXIED_SEND | GANTRY_TRANSPORT_PROXIED_RECV;
}

void gantry_rings_fill(struct gantry_conn *conn, const struct gantry_rings *rings, char *base, int without_lines)
{
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		int there = rings->at[p] && (p == GANTRY_PROTO_SIMPLE || !without_lines);

		conn->buffs[p] = there ? base + rings->at[p] : NULL;
		conn->step_bytes[p] = there ? rings->step_bytes[p] : 0;
	}
}

gantry_result gantry_sharing_make(struct gantry_sharing *s, const struct gantry_connector *c, size_t size,
				  struct gantry_share_address *ret_address)
{
	void *memory = NULL;

	ASSERT(!s->words && !s->made);
	TRY_NOW(gantry_share_create(size, &memory, ret_address));
	s->words = memory;
	s->made = 1;
	if (gantry_ends_same_process(c->me, c->peer))
		gantry_share_close_file(memory);
	else
		TRY_NOW(gantry_share_offer(&s->offer, memory, c->peer->user, ret_address));
	return GANTRY_OK;
}

/* The maker may be freed before it is ready: so nothing holds an end that is not ready. */
static gantry_result find_ready(const struct gantry_share_address *address, struct gantry_end_words **ret_words)
{
	gantry_result r = GANTRY_OK;
	struct gantry_end_words *words;
	void *memory = NULL;

	TRY(gantry_share_find(address->id, &memory));
	words = memory;
	if (load_acquire(&words->ready)) {
		*ret_words = words;
	} else {
		gantry_share_put(memory, false);
		r = GANTRY_AGAIN;
	}
out:
	return r;
}

gantry_result gantry_sharing_meet(struct gantry_sharing *s, const struct gantry_connector *c, size_t size,
				  const struct gantry_share_address *address)
{
	void *memory = NULL;

	ASSERT(!s->made || s->words);
	if (s->made) {
		store_release(&s->words->ready, 1);
		if (s->offer.memory)
			gantry_share_serve(&s->offer);
		if (!load_acquire(&s->words->opened))
			return GANTRY_AGAIN;
		if (s->offer.memory)
			gantry_share_close_file(s->words);
		gantry_share_withdraw(&s->offer);
		return GANTRY_OK;
	}
	if (!s->words && gantry_ends_same_process(c->me, c->peer)) {
		TRY_NOW(find_ready(address, &s->words));
	} else if (!s->words) {
		TRY_NOW(gantry_share_take(&s->taker, address, c->peer->user, size, &memory));
		s->words = memory;
	}
	if (!load_acquire(&s->words->ready))
		return GANTRY_AGAIN;
	store_release(&s->words->opened, 1);
	return GANTRY_OK;
}

void gantry_sharing_end(struct gantry_sharing *s)
{
	gantry_share_withdraw(&s->offer);
	gantry_share_taker_close(&s->taker);
	if (s->words)
		gantry_share_put(s->words, s->made);
	s->words = NULL;
}

void gantry_eventcount_describe(const struct gantry_connector *c, struct gantry_eventcount_info *ret_info)
{
	memset(ret_info, 0, sizeof(*ret_info));
	if (!c->eventcount)
		return;
	ret_info->there = 1;
	ret_info->address = (uint64_t)(uintptr_t)c->eventcount;
	if (c->eventcount_handle) {
		ret_info->exported = 1;
		ret_info->offset = c->eventcount_offset;
		memcpy(&ret_info->page, c->eventcount_handle, sizeof(ret_info->page));
	}
}

static void close_eventcount(struct gantry_remote_eventcount *d)
{
	if (d->page)
		d->host->ops->ipc_close(d->host, d->page);
	gantry_device_close(d->host);
	memset(d, 0, sizeof(*d));
}

/*
 * A kernel that notifies, or the copy engine in its place, wants the eventcount of a kernel that sleeps; a proxy polls.
 * By the handle also within a process: then the page stays as long as it is open here, even if the communicator that it
 * belongs to is destroyed while this end's kernel is about to look at the eventcount.
 */
gantry_result gantry_end_open_eventcount(struct gantry_connector *c, const struct gantry_eventcount_info *info,
					 int peer_is_proxied)
{
	gantry_result r = GANTRY_OK;
	struct gantry_end *end = c->resources;
	struct gantry_remote_eventcount *d = &end->eventcount;

	if (d->looked || !info->there || peer_is_proxied || !(c->device->sleeps || end->engine) ||
	    !gantry_ends_see_each_other(c->me, c->peer))
		return GANTRY_OK;
	if (info->exported) {
		TRY(gantry_device_host(&d->host));
		r = d->host->ops->ipc_open(d->host, &info->page, &d->page);
		if (r == GANTRY_ERR_INVALID)
			FAIL(GANTRY_ERR_PEER_LOST,
			     "rank %d's end of a connection was closed, and its eventcount with it", c->peer->rank);
		TRY(r);
		d->eventcount = (struct gantry_eventcount *)(void *)((char *)d->page + info->offset);
	} else if (gantry_ends_same_process(c->me, c->peer)) {
		d->eventcount = (struct gantry_eventcount *)(uintptr_t)info->address;
	}
	d->looked = 1;
out:
	if (r != GANTRY_OK)
		close_eventcount(d);
	return r;
}

void gantry_end_close(struct gantry_connector *c)
{
	gantry_end_proxy_free(c);
	close_eventcount(&((struct gantry_end *)c->resources)->eventcount);
}

/* Whether the peer's end, proxied or not, will wake this end's kernels: gantry_connector's peer_notifies. */
static int is_notified(const struct gantry_connector *c, int peer_is_proxied)
{
	if (!c->eventcount || !(c->peer->sleeps || peer_is_proxied))
		return 0; /* a GPU does not notify */
	return gantry_ends_same_process(c->me, c->peer) ||
	       (c->eventcount_handle && gantry_ends_see_each_other(c->me, c->peer));
}

void gantry_end_fill(struct gantry_connector *c, const struct gantry_rings *rings, char *base, int peer_is_proxied)
{
	c->conn.offers = NULL; /* neither a pool nor a producer that puts bytes into the receiver's buffer */
	gantry_rings_fill(&c->conn, rings, base, peer_is_proxied);
	c->conn.eventcount = ((struct gantry_end *)c->resources)->eventcount.eventcount;
	c->max_step = peer_is_proxied ? rings->step_bytes[GANTRY_PROTO_SIMPLE] : 0;
	c->peer_notifies = is_notified(c, peer_is_proxied);
}

void *gantry_end_get(struct gantry_connector *c, size_t size)
{
	if (!c->resources)
		c->resources = calloc(1, size);
	if (!c->resources)
		gantry_fail(GANTRY_ERR_NOMEM, LOG_SUBSYS, __FILE__, __LINE__, "no memory for a connection to rank %d",
			    c->peer->rank);
	return c->resources;
}
