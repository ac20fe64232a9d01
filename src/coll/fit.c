/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's figures from connections that were timed: coll.h. Factors, not figures: a trial of a few bytes says how much
 * faster or slower than built in a hop and a message are, one of many bytes the same of bytes. Additions keep their figure.
 * All of it from what the ranks have exchanged, and in integers, so all ranks have the same.
 *
 * Where ranks share cores, small calls take as long as the scheduler lets each wait for its turn, which a circle of messages
 * does not show: latencies stay as they are built in.
 */
#include "base/log.h"
#include "coll/coll.h"
#include "device/k_prim.h"

/* Places of a host, as `host` counts them. */
static int place_in_host(const struct coll_topo *t, int rank)
{
	int place = 0;

	for (int i = 0; i < rank; i++)
		place += t->host[i] == t->host[rank];
	return place;
}

/* The rank at a place of a host; -1: it has none there. */
static int rank_in_host(const struct coll_topo *t, int host, int place)
{
	for (int i = 0; i < t->nranks; i++)
		if (t->host[i] == host && !place--)
			return i;
	return -1;
}

static int count_in_host(const struct coll_topo *t, int host)
{
	int n = 0;

	for (int i = 0; i < t->nranks; i++)
		n += t->host[i] == host;
	return n;
}

bool coll_trial_circle(const struct coll_topo *topo, bool remote, int *ret_next, int *ret_prev)
{
	int host = topo->host[topo->rank], place = place_in_host(topo, topo->rank), size = count_in_host(topo, host);

	if (!remote) {
		*ret_next = rank_in_host(topo, host, (place + 1) % size);
		*ret_prev = rank_in_host(topo, host, (place + size - 1) % size);
		return size > 1;
	}
	for (int h = 0; h < topo->nhosts; h++)
		if (rank_in_host(topo, h, place) < 0)
			return false;
	*ret_next = rank_in_host(topo, (host + 1) % topo->nhosts, place);
	*ret_prev = rank_in_host(topo, (host + topo->nhosts - 1) % topo->nhosts, place);
	return topo->nhosts > 1;
}

gantry_result coll_trial_plan(const struct coll_topo *topo, int next, int prev, struct coll_plan **ret_plan)
{
	struct coll_builder b;

	TRY_NOW(coll_builder_begin(&b, topo));
	coll_add_one(&b, GANTRY_PRIM_SEND, 0, -1, next, 0);
	coll_add_one(&b, GANTRY_PRIM_RECV, 0, prev, -1, 0);
	return coll_builder_end(&b, ret_plan);
}

static struct coll_amounts amounts_of(const struct coll_trial *t)
{
	return (struct coll_amounts){
		.parts = 1, .moved = {t->remote ? 0 : 2, t->remote ? 2 : 0}, .hops = {!t->remote, t->remote}};
}

void coll_trial_choose(const struct coll_model *m, const struct coll_trial *t, struct coll_choice *ret_choice)
{
	const struct coll_amounts a = amounts_of(t);

	*ret_choice = (struct coll_choice){.algo = COLL_RING, .proto = t->proto};
	coll_choose_sizes(m, &a, t->bytes, ret_choice);
}

uint64_t coll_trial_cost(const struct coll_model *m, const struct coll_trial *t)
{
	const struct coll_amounts a = amounts_of(t);
	struct coll_choice c;

	coll_trial_choose(m, t, &c);
	return coll_cost_of(m, &a, t->bytes, &c);
}

/* 1024ths; no more than 64 times faster or slower, whatever was measured. */
enum { UNIT = 1024, FACTOR_LEAST = UNIT / 64, FACTOR_MOST = UNIT * 64 };
static uint64_t factor_of(uint64_t measured, uint64_t estimated)
{
	uint64_t f = estimated ? measured / 16 * UNIT / (estimated / 16 + 1) : UNIT;

	return f < FACTOR_LEAST ? FACTOR_LEAST : f > FACTOR_MOST ? FACTOR_MOST : f;
}

static uint32_t scale(uint32_t figure, uint64_t factor)
{
	uint64_t v = (figure * factor + UNIT / 2) / UNIT;

	return v ? (uint32_t)v : 1;
}

/* The fastest of all says how long a call itself takes: what comes with hops is more than nothing. */
static void fit_begin(struct coll_model *m, const struct coll_trials *trials, int n)
{
	uint64_t least = FACTOR_MOST;

	for (int i = 0; i < n; i++) {
		const struct coll_trial *t = &trials[i].few;
		uint64_t f = t->ns ? factor_of(1000 * t->ns, coll_trial_cost(m, t)) : FACTOR_MOST;

		least = f < least ? f : least;
	}
	if (least < FACTOR_MOST)
		m->begin = scale(m->begin, least);
}

static uint64_t above(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static void fit_latency(struct coll_model *m, struct coll_cost *c, const struct coll_trial *few)
{
	const struct coll_cost before = *c;
	uint64_t whole = coll_trial_cost(m, few), rest, factor;

	c->hop = c->message = 0;
	rest = coll_trial_cost(m, few);
	factor = factor_of(above(1000 * few->ns, rest), above(whole, rest));
	c->hop = scale(before.hop, factor);
	c->message = scale(before.message, factor);
}

static void fit_bytes(struct coll_model *m, struct coll_cost *c, const struct coll_trial *many)
{
	const struct coll_cost before = *c;
	uint64_t whole = coll_trial_cost(m, many), rest, factor;

	c->move = 0;
	c->wire = before.wire != 0; /* with one, messages count for each channel */
	rest = coll_trial_cost(m, many);
	factor = factor_of(above(1000 * many->ns, rest), above(whole, rest));
	c->move = scale(before.move, factor);
	c->wire = before.wire ? scale(before.wire, factor) : 0;
}

/* Time that the other figures do not explain is charged to the bytes beyond COLL_WARM. */
static void fit_cold(struct coll_model *m, struct coll_cost *c, const struct coll_trial *most)
{
	uint64_t warm = coll_trial_cost(m, most), missing = above(1000 * most->ns, warm), cold;

	c->cold = UNIT;
	cold = missing / ((coll_trial_cost(m, most) - warm) / UNIT + 1);
	c->cold = cold < FACTOR_MOST ? (uint32_t)cold : FACTOR_MOST;
}

void coll_fit(struct coll_model *m, const struct coll_trials *trials, int n)
{
	bool crowded = m->limits.crowd > COLL_CROWD;

	if (!crowded)
		fit_begin(m, trials, n);
	for (int i = 0; i < n; i++) {
		const struct coll_trials *t = &trials[i];
		struct coll_cost *c = &m->cost[t->few.remote][t->few.proto];

		c->cold = 0;
		for (int pass = 0; pass < 2; pass++) { /* few bytes are some, and many take some messages */
			if (t->few.ns && !crowded)
				fit_latency(m, c, &t->few);
			if (t->many.ns)
				fit_bytes(m, c, &t->many);
		}
		if (t->most.ns)
			fit_cold(m, c, &t->most);
	}
	m->fitted = true;
}
