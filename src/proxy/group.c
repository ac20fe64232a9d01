/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and connections as their owners see them. The progress thread learns of a connection by its first operation
 * and of the end of a group by a message in the inbox; the lists here are for callers only, so it never waits for their
 * lock.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PROXY
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "proxy/engine.h"

enum { COMPLAIN_S = 5 };

static uint32_t last_id; /* of connections; fetch_add */

gantry_result gantry_proxy_group_create(struct gantry_proxy *p, const struct gantry_proxy_group_config *config,
					struct gantry_proxy_group **ret_group)
{
	gantry_result r = GANTRY_OK;
	struct gantry_proxy_group *g = calloc(1, sizeof(*g));

	if (!g)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a group of connections");
	g->proxy = p;
	g->config = *config;
	g->error = GANTRY_OK;
	gantry_list_init(&g->in_active);
	gantry_list_init(&g->conns);
	mutex_init(&g->mu);
	*ret_group = g;
out:
	return r;
}

/* The thread passes in microseconds. If it does not, a transport blocks in it, and the user should hear that. */
static void wait_until_gone(struct gantry_proxy *p, struct gantry_proxy_group *g)
{
	int complained = 0;

	proxy_mu_lock(&p->mu);
	while (!g->gone) {
		if (!mutex_wait_until(&p->cond, &p->mu, gantry_now_ns() + COMPLAIN_S * 1000000000ull) && !complained++)
			LOG_WARN(PROXY, "the progress thread has not answered for %d s: a transport blocks in it",
				 COMPLAIN_S);
	}
	proxy_mu_unlock(&p->mu);
}

void gantry_proxy_group_destroy(struct gantry_proxy_group *g)
{
	if (!g)
		return;
	gantry_proxy_append(g->proxy, &g->bye, &g->bye);
	wait_until_gone(g->proxy, g);

	/* Its connections live on for their owner to free. */
	group_mu_lock(&g->mu);
	gantry_list_each_safe (e, &g->conns) {
		gantry_container(e, struct conn, in_group)->pub.group = NULL;
		gantry_list_remove(e);
	}
	group_mu_unlock(&g->mu);
	mutex_destroy(&g->mu);
	free(g);
}

gantry_result gantry_proxy_group_error(const struct gantry_proxy_group *g)
{
	return (gantry_result)load_acquire(&g->error);
}

uint64_t gantry_proxy_group_pending(const struct gantry_proxy_group *g)
{
	return load_acquire(&g->pending);
}

gantry_result gantry_proxy_conn_create(struct gantry_proxy *p, struct gantry_proxy_group *g, struct gantry_connector *c,
				       struct gantry_proxy_conn **ret_conn)
{
	gantry_result r = GANTRY_OK;
	size_t size = (sizeof(struct conn) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	struct conn *conn = aligned_alloc(CACHE_LINE, size);

	if (!conn)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection's proxy half");
	memset(conn, 0, size);
	conn->pub.connector = c;
	conn->pub.proxy = p;
	conn->pub.group = g;
	conn->pub.send = c->send;
	conn->pub.id = fetch_add_relaxed(&last_id, 1) + 1;
	if (c->transport)
		conn->pub.side = c->send ? c->transport->send : c->transport->recv;
	group_mu_lock(&g->mu);
	gantry_list_append(&g->conns, &conn->in_group);
	group_mu_unlock(&g->mu);
	*ret_conn = &conn->pub;
out:
	return r;
}

void gantry_proxy_conn_destroy(struct gantry_proxy_conn *pc)
{
	if (!pc)
		return;
	if (pc->group) {
		group_mu_lock(&pc->group->mu);
		gantry_list_remove(&conn_of(pc)->in_group);
		group_mu_unlock(&pc->group->mu);
	}
	free(conn_of(pc));
}

void gantry_proxy_group_each(struct gantry_proxy_group *g, void (*fn)(void *ctx, const struct gantry_proxy_conn *pc),
			     void *ctx)
{
	group_mu_lock(&g->mu);
	gantry_list_each (e, &g->conns) {
		fn(ctx, &gantry_container(e, struct conn, in_group)->pub);
	}
	group_mu_unlock(&g->mu);
}

void gantry_proxy_conn_look(const struct gantry_proxy_conn *pc, struct gantry_proxy_conn_view *ret)
{
	const struct conn *c = conn_of(pc);
	uint64_t since = GET(pc->waits_since), now = gantry_ticks();

	ret->posted = GET(c->shown.posted);
	ret->moved = GET(c->shown.moved);
	ret->flushed = GET(c->shown.flushed);
	ret->done = GET(c->shown.done);
	ret->end = GET(c->shown.end);
	ret->op = GET(c->shown.op);
	ret->busy = GET(c->shown.busy);
	ret->bytes = GET(pc->bytes);
	ret->steps = GET(pc->steps);
	ret->ops = GET(pc->ops);
	ret->copies = GET(pc->copies);
	ret->progress_ns = GET(pc->progress_ns);
	ret->waits = since != 0;
	ret->waits_for = (enum gantry_wait_cause)GET(pc->waits_for);
	for (int i = 0; i < GANTRY_WAIT_CAUSES; i++)
		ret->wait_ticks[i] = GET(pc->wait_ticks[i]);
	if (since && now > since)
		ret->wait_ticks[ret->waits_for] += now - since;
}
