/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A direction of a link is stalled when it has requests and none of its counters has moved for GANTRY_STALL. The
 * service thread looks; heartbeats are not among the counters, so a peer that lives and does not send is a stall too.
 * It is told once, until something moves.
 */
#include "net/tcp/stall.h"

#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/stall.h"
#include "net/tcp/engine.h"

static struct {
	uint64_t looked;		 /* ns */
	struct gantry_stall_wait *waits; /* owned; between a look that found something and tcp_stall_tell */
	size_t n, room;
} stall;

/* One direction at a moment. */
struct look {
	uint32_t requests;
	uint64_t sum; /* changes whenever something moves */
	uint64_t tag, bytes;
	const char *waits_for;
};

static uint32_t count(const struct gantry_list *list)
{
	uint32_t n = 0;

	gantry_list_each (pos, list)
		n++;
	return n;
}

static void see_send(struct look *k, const struct gantry_list *list, const char *waits_for)
{
	const struct tcp_send *s;

	if (gantry_list_empty(list))
		return;
	s = gantry_container(list->next, struct tcp_send, head.node);
	if (!k->requests) {
		k->tag = s->tag;
		k->bytes = s->size;
		k->waits_for = waits_for;
	}
	k->requests += count(list);
}

/* The first bulk message may go only when the peer has posted its receive. */
static const char *bulk_waits(struct tcp_link *l) REQUIRES(link_mu)
{
	const struct tcp_send *s = gantry_container(l->tx.bulk.next, struct tcp_send, head.node);
	const struct tcp_tag *t = gantry_list_empty(&l->tx.bulk) ? NULL : tcp_tag_of(&l->tx.tags, s->tag);

	return t && (int32_t)(t->credit - s->index) <= 0 ? "peer" : "socket";
}

static void look_tx(struct tcp_link *l, struct look *k) REQUIRES(link_mu)
{
	see_send(k, &l->tx.unacked, "peer");
	see_send(k, &l->tx.bulk, bulk_waits(l));
	see_send(k, &l->tx.eager, l->tx.window_blocked ? "peer" : "socket");
	see_send(k, &l->devmem.copying_out, "flush");
	k->sum = k->requests + l->tx.next_seq + l->tx.peer_done + l->tx.bulk_sent + l->tx.eager_out +
		 l->tx.peer_consumed;
	for (int i = 1; i < l->nlanes; i++)
		k->sum += load_relaxed(&l->lanes[i].tx.given);
}

static void look_rx(struct tcp_link *l, struct look *k) REQUIRES(link_mu)
{
	const struct tcp_recv *r = gantry_container(l->rx.posted.next, struct tcp_recv, head.node);

	k->requests = count(&l->rx.posted);
	k->sum = k->requests + l->rx.done + l->rx.consumed + l->rx.bulk_received + l->rx.unexpected_bytes;
	for (int i = 0; i < l->rx.tags.count; i++)
		k->sum += l->rx.tags.items[i].posted;
	for (int i = 1; i < l->nlanes; i++)
		k->sum += load_relaxed(&l->lanes[i].rx.bytes);
	k->waits_for = "peer";
	if (k->requests) {
		k->tag = r->buffers[0].tag;
		k->bytes = r->buffers[0].size;
	}
}

static void add_wait(const struct tcp_link *l, int send, const struct look *k, uint64_t wait_ns)
{
	struct gantry_stall_wait *grown = stall.waits;

	if (stall.n == stall.room) {
		grown = realloc(stall.waits, (stall.room + 16) * sizeof(*grown));
		if (!grown)
			return;
		stall.waits = grown;
		stall.room += 16;
	}
	stall.waits[stall.n] = (struct gantry_stall_wait){.waits_for = k->waits_for,
							  .send = send,
							  .requests = k->requests,
							  .tag = k->tag,
							  .bytes = k->bytes,
							  .wait_ns = wait_ns};
	memcpy(stall.waits[stall.n++].peer, l->session.peer, sizeof(l->session.peer));
}

/* 1: it has become a stall. */
static int look_at(struct tcp_link *l, int send, uint64_t now)
{
	struct tcp_stall *s = &l->stall[send];
	struct look k = {0};
	int fresh = 0;

	link_mu_lock(&l->mu);
	if (send)
		look_tx(l, &k);
	else
		look_rx(l, &k);
	link_mu_unlock(&l->mu);
	if (!k.requests || k.sum != s->sum || !s->since) {
		*s = (struct tcp_stall){.sum = k.sum, .since = now};
		return 0;
	}
	if (now - s->since >= gantry_stall_after() && !s->told)
		fresh = s->told = 1;
	add_wait(l, send, &k, now - s->since);
	return fresh;
}

int tcp_stall_tick(uint64_t now_ns)
{
	int fresh = 0;

	if (!gantry_stall_after() || now_ns - stall.looked < gantry_stall_interval())
		return 0;
	stall.looked = now_ns;
	stall.n = 0;
	gantry_list_each_entry (l, &tcp_engine.links, struct tcp_link, node) {
		if (!l->up || tcp_link_failed(l) || !load_relaxed(&l->watched))
			continue;
		fresh |= look_at(l, 0, now_ns);
		fresh |= look_at(l, 1, now_ns);
	}
	return fresh;
}

void tcp_stall_tell(void)
{
	gantry_stall_tell("net", stall.waits, stall.n);
	free(stall.waits);
	stall.waits = NULL;
	stall.n = stall.room = 0;
}
