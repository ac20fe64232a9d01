/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/ends.h"

#include <string.h>

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

void gantry_rings_fill(struct gantry_conn *conn, const struct gantry_rings *rings, char *base)
{
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		conn->buffs[p] = rings->at[p] ? base + rings->at[p] : NULL;
		conn->step_bytes[p] = rings->at[p] ? rings->step_bytes[p] : 0;
	}
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

void gantry_remote_eventcount_close(struct gantry_remote_eventcount *d)
{
	if (d->page)
		d->host->ops->ipc_close(d->host, d->page);
	gantry_device_close(d->host);
	memset(d, 0, sizeof(*d));
}

gantry_result gantry_remote_eventcount_open(struct gantry_remote_eventcount *d, const struct gantry_connector *c,
					    const struct gantry_eventcount_info *info)
{
	gantry_result r = GANTRY_OK;

	if (d->looked || !info->there || !c->device->sleeps || !gantry_ends_see_each_other(c->me, c->peer))
		return GANTRY_OK;
	if (info->exported) {
		TRY(gantry_device_host(&d->host));
		r = d->host->ops->ipc_open(d->host, &info->page, &d->page);
		if (r == GANTRY_ERR_INVALID)
			FAIL(GANTRY_ERR_PEER_LOST, "rank %d's end of a connection is gone, and its eventcount with it",
			     c->peer->rank);
		TRY(r);
		d->eventcount = (struct gantry_eventcount *)(void *)((char *)d->page + info->offset);
	} else if (gantry_ends_same_process(c->me, c->peer)) {
		d->eventcount = (struct gantry_eventcount *)(uintptr_t)info->address;
	}
	d->looked = 1;
out:
	if (r != GANTRY_OK)
		gantry_remote_eventcount_close(d);
	return r;
}

/* Whether the peer's end will wake this end's kernels: gantry_connector's peer_notifies. */
static int is_notified(const struct gantry_connector *c)
{
	if (!c->eventcount || !c->peer->sleeps)
		return 0; /* a GPU does not notify */
	return gantry_ends_same_process(c->me, c->peer) ||
	       (c->eventcount_handle && gantry_ends_see_each_other(c->me, c->peer));
}

void gantry_end_fill(struct gantry_connector *c, const struct gantry_rings *rings, char *base,
		     const struct gantry_remote_eventcount *remote)
{
	c->conn.offers = NULL; /* neither a pool nor a producer that puts bytes into the receiver's buffer */
	gantry_rings_fill(&c->conn, rings, base);
	c->conn.eventcount = remote->eventcount;
	c->max_step = 0;
	c->peer_notifies = is_notified(c);
}

int gantry_ends_unproxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	(void)me;
	(void)peer;
	return 0;
}
