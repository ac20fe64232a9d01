/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool that OFFSET steps live in: one per communicator and direction, for all channels and peers, and another one
 * when that has as many connections as it was made for.
 *
 *   | reserve 0 | reserve 1 | ... | shared                      |
 *
 * A connection has a reserve of half a ring of a collective's steps, which no other connection takes from. That is what
 * device/k_prim.h
 * lets a kernel send before it receives, so no kernel waits for space that another connection has: in a pool without
 * reserves, the pieces of one rank could all be in the hands of channel 0 and those of the other in those of channel 1,
 * each waiting for the other for ever. Slices are at most half a ring long, so a reserve without pieces has room for any.
 * Steps of send and recv are larger, and a kernel moves those of all peers at once (device/k_p2p.h): room for one is enough.
 *
 * What a connection has in flight beyond that comes from the shared part. It may take a piece as long as it has no more
 * of it than would be left (the dynamic threshold of shared-memory switches): one that is alone gets half, and those
 * that come later find something.
 *
 * Threads: connecting and closing are under pools_mu. Pieces belong to the thread that makes a round of the engine; a
 * context has one engine, because it belongs to one device.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/net_priv.h"
#include "transport/transport.h"

enum {
	POOL_LINKS = 8,	 /* of one pool, at most */
	POOL_FIRST = 3,	 /* of the first one */
	POOL_HASH = 64,	 /* peers are distinguished by their number modulo this, in the counters only */
	POOL_SHARED = 4, /* steps, unless GANTRY_NET_POOL says how much */
	RESERVE_STEPS = GANTRY_STEPS / 2,
};
_Static_assert(POOL_LINKS == 8, "gantry_transport_net_memory's comment");

MUTEX_KIND(pools_mu);
static struct pools_mu pools_mu_one;

struct net_pool {
	struct gantry_list node; /* of its context; pools_mu, as the next line */
	int links, registered, slots, used;
	int send;
	char *host, *dev; /* the same memory, for the CPU and for kernels */
	size_t reserve;
	void *mr; /* of a network whose registrations are for all connections; else each link has its own */
	/* The progress thread's. */
	struct gantry_pinned shared;
	uint32_t by_channel[NET_CHANNELS_MAX], by_peer[POOL_HASH]; /* connections that have pieces of the shared part */
	uint32_t channels, peers;				   /* how many of these are not 0 */
};

/* Of the process; written by progress threads. */
static struct gantry_net_counts counts;

void gantry_transport_net_counts(struct gantry_net_counts *ret)
{
	ret->pool_pieces = load_relaxed(&counts.pool_pieces);
	ret->pool_shared = load_relaxed(&counts.pool_shared);
	ret->pool_mixed = load_relaxed(&counts.pool_mixed);
	ret->recvs = load_relaxed(&counts.recvs);
	ret->grouped = load_relaxed(&counts.grouped);
	ret->rails = load_relaxed(&counts.rails);
}

void net_count_rails(void)
{
	fetch_add_relaxed(&counts.rails, 1);
}

void net_count_recv(int buffers)
{
	fetch_add_relaxed(&counts.recvs, 1);
	if (buffers > 1)
		fetch_add_relaxed(&counts.grouped, 1);
}

static size_t round_up(size_t n)
{
	return (n + NET_POOL_UNIT - 1) / NET_POOL_UNIT * NET_POOL_UNIT;
}

static void pool_free(struct net_context *x, struct net_pool *p)
{
	if (!p)
		return;
	net_context_free(x, p->send, p->host);
	gantry_pinned_free(&p->shared);
	free(p);
}

size_t net_pool_reserve(size_t step, size_t coll_step)
{
	size_t coll = RESERVE_STEPS * round_up(coll_step && coll_step < step ? coll_step : step);

	return coll > round_up(step) ? coll : round_up(step);
}

size_t net_pool_shared(size_t step)
{
	return round_up(gantry_params()->net_pool ? gantry_params()->net_pool : POOL_SHARED * step);
}

/* slots: connections that it has reserves for. */
static gantry_result pool_create(const struct net_link *l, int slots, size_t step, size_t reserve,
				 struct net_pool **ret_pool)
{
	gantry_result r = GANTRY_OK;
	size_t shared = net_pool_shared(step), size;
	struct net_pool *p = calloc(1, sizeof(*p));

	if (!p)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a pool");
	p->send = l->send;
	p->slots = slots;
	p->reserve = reserve;
	size = (size_t)slots * p->reserve + shared;
	TRY(net_context_alloc(l->context, l->send, size, &p->host, &p->dev));
	gantry_pinned_init(&p->shared, l->device, NET_POOL_UNIT);
	TRY(gantry_pinned_add(&p->shared, p->host + size - shared, p->dev + size - shared, shared,
			      2 * GANTRY_STEPS * (uint32_t)slots + 1));
	LOG_DEBUG(COMM, "rank %d has a pool of %s for %s", l->me, SIZE_TEXT(size),
		  COUNT_TEXT(slots, p->send ? "sending connection" : "receiving connection"));
	*ret_pool = p;
	p = NULL;
out:
	pool_free(l->context, p);
	return r;
}

/*
 * One with reserves for the link's channels. Of many ranks the first pool is for the two or three peers of a ring or a tree, later
 * ones for POOL_LINKS, or as many as are left.
 */
static gantry_result find_pool(struct net_link *l, int nranks, size_t step, size_t reserve) REQUIRES(pools_mu)
{
	int each = l->shared ? l->nchannels : l->channels; /* without sharing each channel has a link of its own */
	int links = nranks - 1, served = 0, most;

	ASSERT_HELD(&pools_mu_one);
	gantry_list_each_entry (p, &l->context->pools, struct net_pool, node) {
		if (p->send == l->send)
			served += p->slots / each;
		if (p->send == l->send && p->slots - p->used >= l->nchannels)
			l->pool = p;
	}
	if (!l->pool) {
		if (served < nranks - 1) /* ranks that share the process share the pools */
			links -= served;
		most = served || nranks - 1 <= POOL_LINKS ? POOL_LINKS : POOL_FIRST;
		links = links < most ? links : most;
		TRY_NOW(pool_create(l, each * (links > 1 ? links : 1), step, reserve, &l->pool));
		gantry_list_append(&l->context->pools, &l->pool->node);
	}
	ASSERT(l->pool->used + l->nchannels <= l->pool->slots);
	l->pool_slot = l->pool->used;
	l->pool->used += l->nchannels;
	l->pool->links++;
	return GANTRY_OK;
}

/* With the link's connection, or once for all. */
static gantry_result register_pool(struct net_link *l) REQUIRES(pools_mu)
{
	struct net_pool *p = l->pool;
	int global = l->context->props.reg_is_global;
	size_t size = (size_t)p->slots * p->reserve + p->shared.memory;

	ASSERT_HELD(&pools_mu_one);
	l->pool_mr = global ? p->mr : NULL;
	if (!l->pool_mr)
		TRY_NOW(net_link_register(l, p->host, size, net_context_memory(l->context, l->send), &l->pool_mr));
	p->registered++;
	if (global)
		p->mr = l->pool_mr;
	return net_unpack_registered(l, l->pool_mr);
}

gantry_result net_pool_join(struct net_conn *nc, int nranks, size_t step, size_t coll_step)
{
	gantry_result r = GANTRY_OK;
	struct net_link *l = nc->link;
	struct net_pool *p;
	size_t from;

	ASSERT(!nc->pool_dev);
	pools_mu_lock(&pools_mu_one);
	if (!l->pool)
		TRY(find_pool(l, nranks, step, net_pool_reserve(step, coll_step)));
	if (!l->pool_mr)
		TRY(register_pool(l));
	p = l->pool;
	from = (size_t)(l->pool_slot + (l->shared ? nc->channel : 0)) * p->reserve;
	gantry_pinned_init(&nc->reserve, l->device, NET_POOL_UNIT);
	TRY(gantry_pinned_add(&nc->reserve, p->host + from, p->dev + from, p->reserve, 2 * GANTRY_STEPS + 1));
	nc->pool_dev = p->dev;
out:
	pools_mu_unlock(&pools_mu_one);
	return r;
}

void net_pool_deregister(struct net_link *l)
{
	int last;

	if (!l->pool_mr)
		return;
	pools_mu_lock(&pools_mu_one);
	ASSERT(l->pool->registered > 0);
	last = --l->pool->registered == 0;
	if (last)
		l->pool->mr = NULL;
	pools_mu_unlock(&pools_mu_one);
	if (last || !l->context->props.reg_is_global)
		l->context->net->ops->dereg_mr(l->context->net, l->comm, l->pool_mr);
	l->pool_mr = NULL;
}

void net_pool_leave(struct net_link *l)
{
	int last;

	if (!l->pool)
		return;
	pools_mu_lock(&pools_mu_one);
	ASSERT(l->pool->links > 0 && !l->pool_mr);
	last = --l->pool->links == 0;
	if (last)
		gantry_list_remove(&l->pool->node);
	pools_mu_unlock(&pools_mu_one);
	if (last)
		pool_free(l->context, l->pool);
	l->pool = NULL;
}

/* ---- pieces ---- */

static void add_user(uint32_t *users, uint32_t *kinds)
{
	*kinds += (*users)++ == 0;
}
static void remove_user(uint32_t *users, uint32_t *kinds)
{
	ASSERT(*users && *kinds);
	*kinds -= --*users == 0;
}

static struct gantry_piece *take_shared(struct net_conn *nc, uint64_t size)
{
	struct net_pool *p = nc->link->pool;
	struct gantry_piece *piece = NULL;

	ASSERT(p->shared.taken <= p->shared.memory);
	if (nc->held + size <= p->shared.memory - p->shared.taken)
		piece = gantry_pinned_take(&p->shared, size);
	if (!piece)
		return NULL;
	if (!nc->held) {
		add_user(&p->by_channel[nc->channel], &p->channels);
		add_user(&p->by_peer[nc->link->peer % POOL_HASH], &p->peers);
	}
	nc->held += piece->size;
	fetch_add_relaxed(&counts.pool_shared, 1);
	if (p->channels > 1 && p->peers > 1)
		fetch_add_relaxed(&counts.pool_mixed, 1);
	return piece;
}

gantry_result net_pool_take(struct net_conn *nc, uint64_t size, struct net_step *s)
{
	struct net_pool *p = nc->link->pool;

	ASSERT(!s->piece);
	if (size > p->reserve)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "slice of %s is too large: at most %s can be in flight with rank %d",
			 SIZE_TEXT(size), SIZE_TEXT(p->reserve), nc->link->peer);
	s->shared = false;
	s->piece = gantry_pinned_take(&nc->reserve, size);
	if (!s->piece) {
		s->piece = take_shared(nc, size);
		s->shared = true;
	}
	if (!s->piece)
		return GANTRY_AGAIN;
	s->data = (char *)s->piece->host;
	s->place = (uint64_t)(s->data - p->host);
	s->mr = nc->link->pool_mr;
	s->mode = GANTRY_MODE_OFFSET;
	fetch_add_relaxed(&counts.pool_pieces, 1);
	return GANTRY_OK;
}

void net_pool_give(struct net_conn *nc, struct net_step *s)
{
	struct net_pool *p = nc->link->pool;

	if (s->piece && s->shared) {
		ASSERT(nc->held >= s->piece->size);
		nc->held -= s->piece->size;
		if (!nc->held) {
			remove_user(&p->by_channel[nc->channel], &p->channels);
			remove_user(&p->by_peer[nc->link->peer % POOL_HASH], &p->peers);
		}
		gantry_pinned_give(&p->shared, s->piece);
	} else {
		gantry_pinned_give(&nc->reserve, s->piece);
	}
	s->piece = NULL;
}
