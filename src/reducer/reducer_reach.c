/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "reducer/reach.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "inet/dial.h"
#include "inet/settings.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

#define ANOTHER_NS 1000000000ull /* for TCP to connect, where there is another address to try */

/* A reducer that is being asked. */
struct ask {
	struct inet_dial dial;
	const struct asking *asking; /* borrowed */
	uint32_t index;
	struct gantry_addr addrs[GANTRY_ADDRS_MAX];
	int naddrs;
	int over;		  /* it has answered, or is lost */
	char why[INET_TEXT_SIZE]; /* it is lost, or the last attempt failed */
	int told;		  /* its loss is logged */
};

struct asking {
	const struct reducer_reach *reach;
	struct inet_key key;
	struct ask *asks; /* owned: one for each reducer */
};

gantry_result reducer_names_parse(const char *list, struct reducer_name **ret_names, uint32_t *ret_n)
{
	struct reducer_name *names = calloc(REDUCER_COUNT_MAX, sizeof(*names)), one;
	gantry_result r = GANTRY_OK;
	uint32_t n = 0;

	if (!names)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the names of reducers");
	while (gantry_next_entry(&list, one.text, sizeof(one.text))) {
		if (n == REDUCER_COUNT_MAX)
			FAIL(GANTRY_ERR_CONFIG, "GANTRY_REDUCERS names more than %d reducers", REDUCER_COUNT_MAX);
		names[n++] = one;
	}
	*ret_names = names;
	*ret_n = n;
	names = NULL;
out:
	free(names);
	return r;
}

/* ---- asking ---- */

static uint32_t party(const struct asking *a, uint32_t i)
{
	return a->reach->mesh->ranks + i;
}

static void lose_reducer(struct asking *a, uint32_t i, gantry_result r, const char *why)
{
	struct ask *k = &a->asks[i];

	if (why != k->why)
		snprintf(k->why, sizeof(k->why), "%s", why);
	inet_dial_poll_end(&k->dial);
	k->over = 1;
	reducer_mesh_lose(a->reach->mesh, party(a, i), r);
}

/* Each attempt at the next of its addresses. */
static bool aim_at_reducer(struct inet_dial *d, struct inet_dial_aim *ret)
{
	const struct ask *k = gantry_container(d, struct ask, dial);

	ret->to = k->addrs[d->failures % (uint32_t)k->naddrs];
	ret->patience = k->naddrs > 1 ? ANOTHER_NS : UINT64_MAX;
	return true;
}

static void fill_ask(struct inet_dial *d, struct inet_dial_hello *ret)
{
	const struct ask *k = gantry_container(d, struct ask, dial);
	const struct reducer_reach *reach = k->asking->reach;
	const struct reducer_mesh *m = reach->mesh;
	struct reducer_ask ask = {.job = m->job,
				  .comm_id = reach->comm_id,
				  .rank = m->own,
				  .ranks = m->ranks,
				  .reducer = k->index,
				  .reducers = m->count - m->ranks,
				  .to = inet_target_of(&d->to)};

	memcpy(ask.handle, reach->handle, sizeof(ask.handle));
	reducer_ask_encode(&ask, ret->payload);
	ret->size = REDUCER_ASK_SIZE;
	ret->protocol = &reducer_protocol;
	ret->key = &k->asking->key;
}

static const struct inet_dial_ops ask_ops = {.aim = aim_at_reducer, .hello = fill_ask};

static void take_answer(struct asking *a, uint32_t i)
{
	struct ask *k = &a->asks[i];
	const struct inet_handshake *h = &k->dial.shake;

	if (h->payload_size != REDUCER_ANSWER_SIZE ||
	    reducer_mesh_dial(a->reach->mesh, party(a, i), h->payload) != GANTRY_OK) {
		lose_reducer(a, i, GANTRY_ERR_PROTOCOL, "the process listening there is not a reducer");
		return;
	}
	inet_dial_poll_end(&k->dial);
	k->over = 1;
}

static void ask_failed(struct asking *a, uint32_t i)
{
	struct ask *k = &a->asks[i];

	if (k->dial.cause == INET_DIAL_REFUSED || k->dial.cause == INET_DIAL_OWN) {
		lose_reducer(a, i, k->dial.cause == INET_DIAL_OWN ? GANTRY_ERR_SYSTEM : k->dial.shake.error,
			     k->dial.text);
		return;
	}
	snprintf(k->why, sizeof(k->why), "%s", k->dial.text);
	inet_dial_poll_start(&k->dial, inet_dial_retry_at(&k->dial));
}

static void step_ask(struct asking *a, uint32_t i)
{
	switch (inet_dial_poll(&a->asks[i].dial)) {
	case INET_DONE:
		take_answer(a, i);
		return;
	case INET_FAILED:
		ask_failed(a, i);
		return;
	default:
		return;
	}
}

static void step_asks(struct asking *a)
{
	const struct reducer_mesh *m = a->reach->mesh;

	for (uint32_t i = 0; i < m->count - m->ranks; i++) {
		struct ask *k = &a->asks[i];

		step_ask(a, i);
		if (m->dials[party(a, i)].lost == GANTRY_OK || k->told)
			continue;
		LOG_WARN(NET, "rank %u goes on without reducer %u of %u (%s): %s", m->own, i, m->count - m->ranks,
			 a->reach->names[i].text, k->why[0] ? k->why : gantry_last_error());
		k->told = 1;
	}
}

static gantry_result start_asking(const struct reducer_reach *reach, struct asking *a)
{
	struct reducer_mesh *m = reach->mesh;
	char why[256];

	*a = (struct asking){.reach = reach};
	TRY_NOW(inet_secret_key(&a->key));
	a->asks = calloc(m->count - m->ranks, sizeof(*a->asks));
	if (!a->asks)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for reaching reducers");
	for (uint32_t i = 0; i < m->count - m->ranks; i++) {
		struct ask *k = &a->asks[i];

		inet_dial_init(&k->dial, &ask_ops);
		k->asking = a;
		k->index = i;
		m->dials[party(a, i)].wanted = m->dials[party(a, i)].optional = 1;
		if (gantry_addr_resolve(reach->names[i].text, REDUCER_PORT, k->addrs, &k->naddrs, why, sizeof(why)) < 0)
			lose_reducer(a, i, GANTRY_ERR_UNREACHABLE, why);
		else
			inet_dial_poll_start(&k->dial, 0);
	}
	return GANTRY_OK;
}

static void stop_asking(struct asking *a)
{
	const struct reducer_mesh *m = a->reach->mesh;

	for (uint32_t i = 0; a->asks && i < m->count - m->ranks; i++)
		inet_dial_poll_end(&a->asks[i].dial);
	free(a->asks);
}

/* Their time is over. */
static void lose_late(struct asking *a)
{
	const struct reducer_mesh *m = a->reach->mesh;
	char why[INET_TEXT_SIZE];

	for (uint32_t i = 0; i < m->count - m->ranks; i++) {
		struct ask *k = &a->asks[i];

		if (reducer_mesh_has(m, party(a, i), party(a, i) + 1))
			continue;
		if (k->over)
			snprintf(why, sizeof(why), "it answered, but the connection did not come up in time");
		else if (k->why[0])
			snprintf(why, sizeof(why), "no answer in time, after %u attempts: %.200s", k->dial.failures,
				 k->why);
		else
			snprintf(why, sizeof(why), "no answer in time: it is stopped, overloaded or out of reach");
		lose_reducer(a, i, k->why[0] ? GANTRY_ERR_UNREACHABLE : GANTRY_ERR_TIMEOUT, why);
	}
	step_asks(a);
}

/* Between two looks. False: the communicator has ended meanwhile. */
static bool nap(const struct reducer_mesh *m)
{
	const struct timespec t = {.tv_nsec = 200000};

	nanosleep(&t, NULL);
	return !m->stop || !load_seq(m->stop);
}

static gantry_result stopped(const struct reducer_mesh *m)
{
	char missing[128];

	FAIL_NOW(GANTRY_ERR_ABORTED, "reducers: aborted while there was no connection with %s",
		 reducer_mesh_missing(m, missing, sizeof(missing)));
}

static gantry_result ask_all(struct asking *a)
{
	struct reducer_mesh *m = a->reach->mesh;
	uint64_t now = gantry_now_ns(), left = a->reach->deadline > now ? a->reach->deadline - now : 0;
	uint64_t until = now + (left / 2 < REDUCER_PATIENCE_NS ? left / 2 : REDUCER_PATIENCE_NS);

	for (;;) {
		gantry_result r;

		step_asks(a);
		r = reducer_mesh_step(m);
		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			return r;
		step_asks(a); /* logs what was lost, with the reason */
		if (reducer_mesh_has(m, m->ranks, m->count))
			return GANTRY_OK;
		if (gantry_now_ns() >= until)
			break;
		if (!nap(m))
			return stopped(m);
	}
	lose_late(a);
	return GANTRY_OK;
}

gantry_result reducer_wait_for(struct reducer_mesh *m, uint64_t deadline)
{
	gantry_result r;
	char missing[128];

	while ((r = reducer_mesh_step(m)) == GANTRY_AGAIN) {
		if (gantry_now_ns() >= deadline)
			FAIL_NOW(GANTRY_ERR_TIMEOUT,
				 "reducers: no connection in time with %s (has every rank NCCL_COLLNET_ENABLE=1, and "
				 "the same GANTRY_REDUCERS?)",
				 reducer_mesh_missing(m, missing, sizeof(missing)));
		if (!nap(m))
			return stopped(m);
	}
	return r;
}

/* ---- agreeing ---- */

static int is_reached(const struct reducer_reached *r, uint32_t i)
{
	return r->reached[i / 8] >> i % 8 & 1;
}

static void own_reached(const struct reducer_mesh *m, struct reducer_reached *ret)
{
	*ret = (struct reducer_reached){.lost = REDUCER_NO_RANK, .by = m->own};
	for (uint32_t i = m->count - m->ranks; i-- > 0;) {
		if (m->dials[m->ranks + i].lost == GANTRY_OK)
			ret->reached[i / 8] |= (uint8_t)(1u << i % 8);
		else
			ret->lost = i;
	}
}

/* Merges a rank's report into what all ranks reach. */
static void join_reached(struct reducer_reached *all, const struct reducer_reached *one, uint32_t rank)
{
	for (size_t i = 0; i < sizeof(all->reached); i++)
		all->reached[i] &= one->reached[i];
	if (one->lost < all->lost) {
		all->lost = one->lost;
		all->by = rank;
	}
}

/* Blocks until the request is done. */
static gantry_result finish(const struct reducer_mesh *m, uint32_t rank, void *request, uint64_t deadline,
			    int *ret_size)
{
	int done = 0;

	for (;;) {
		gantry_result r = NET(test, request, &done, ret_size);

		if (r != GANTRY_OK)
			FAIL_NOW(r, "reducers: rank %u left before all ranks agreed: %s", rank, gantry_result_text(r));
		if (done)
			return GANTRY_OK;
		if (gantry_now_ns() >= deadline)
			FAIL_NOW(GANTRY_ERR_TIMEOUT,
				 "reducers: rank %u did not report in time which reducers it reaches", rank);
		if (!nap(m))
			FAIL_NOW(GANTRY_ERR_ABORTED,
				 "reducers: aborted before rank %u reported which reducers it reaches", rank);
	}
}

static gantry_result say_reached(struct reducer_mesh *m, uint32_t rank, uint64_t deadline,
				 const struct reducer_reached *r)
{
	void *request = NULL;

	reducer_encode(&(struct reducer_message){.kind = REDUCER_REACHED, .reached = *r}, m->said);
	TRY_NOW(NET(isend, m->ends[rank].out, m->said, sizeof(m->said), REDUCER_TAG_DATA, NULL, &request));
	if (!request)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a new connection does not accept a message");
	return finish(m, rank, request, deadline, NULL);
}

/* The peer's report. Reports are received one after the other, which takes as long as the slowest. */
static gantry_result hear_reached(struct reducer_mesh *m, uint32_t rank, uint64_t deadline, struct reducer_reached *ret)
{
	void *request = NULL, *data = m->heard;
	size_t room = sizeof(m->heard);
	int tag = REDUCER_TAG_DATA, size = 0;
	struct reducer_message msg;

	TRY_NOW(NET(irecv, m->ends[rank].in, 1, &data, &room, &tag, NULL, &request));
	if (!request)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a new connection does not accept a receive");
	TRY_NOW(finish(m, rank, request, deadline, &size));
	if (reducer_decode(m->heard, (size_t)size, &msg) != GANTRY_OK || msg.kind != REDUCER_REACHED)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "reducers: rank %u did not report which reducers it reaches", rank);
	*ret = msg.reached;
	return GANTRY_OK;
}

static gantry_result agree(struct reducer_mesh *m, uint64_t deadline, struct reducer_reached *ret)
{
	struct reducer_reached one;

	own_reached(m, ret);
	if (m->own) {
		TRY_NOW(say_reached(m, 0, deadline, ret));
		return hear_reached(m, 0, deadline, ret);
	}
	for (uint32_t i = 1; i < m->ranks; i++) {
		TRY_NOW(hear_reached(m, i, deadline, &one));
		join_reached(ret, &one, i);
	}
	for (uint32_t i = 1; i < m->ranks; i++)
		TRY_NOW(say_reached(m, i, deadline, ret));
	return GANTRY_OK;
}

/* Rank 0 has this rank's report: it cannot keep one that this rank has lost. */
static gantry_result check_common(const struct reducer_mesh *m, const struct reducer_reached *all)
{
	for (uint32_t i = 0; i < m->count - m->ranks; i++)
		if (is_reached(all, i) && m->dials[m->ranks + i].lost != GANTRY_OK)
			FAIL_NOW(GANTRY_ERR_PROTOCOL, "reducers: rank 0 keeps reducer %u, which rank %u does not reach",
				 i, m->own);
	return GANTRY_OK;
}

/* Those that not all ranks have are left out; says which, and why. */
static gantry_result keep_common(const struct asking *a, const struct reducer_reached *all)
{
	struct reducer_mesh *m = a->reach->mesh;
	const uint32_t n = m->count - m->ranks;
	uint32_t left = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (is_reached(all, i))
			left++;
		else
			reducer_mesh_lose(m, m->ranks + i, GANTRY_ERR_UNREACHABLE);
	}
	if (left == n)
		return GANTRY_OK;
	if (!left)
		FAIL_NOW(GANTRY_ERR_UNREACHABLE,
			 "none of the %u reducers of GANTRY_REDUCERS serves all ranks: reducer %u (%s) does not serve "
			 "rank %u%s%s",
			 n, all->lost, all->lost < n ? a->reach->names[all->lost].text : "?", all->by,
			 all->by == m->own && all->lost < n ? ": " : "",
			 all->by == m->own && all->lost < n ? a->asks[all->lost].why : "");
	LOG_WARN(NET, "rank %u: %u of %u reducers are used: reducer %u (%s) does not serve rank %u", m->own, left, n,
		 all->lost, all->lost < n ? a->reach->names[all->lost].text : "?", all->by);
	return GANTRY_OK;
}

gantry_result reducer_reach(const struct reducer_reach *reach)
{
	gantry_result r = GANTRY_OK;
	struct reducer_reached all;
	struct asking a;

	TRY(start_asking(reach, &a));
	TRY(ask_all(&a));
	TRY(reducer_wait_for(reach->mesh, reach->deadline));
	TRY(agree(reach->mesh, reach->deadline, &all));
	TRY(check_common(reach->mesh, &all));
	TRY(keep_common(&a, &all));
out:
	stop_asking(&a);
	return r;
}
