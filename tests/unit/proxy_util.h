/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the progress engine: a transport whose progress is scripted, and what goes with it. */
#ifndef GANTRY_TESTS_PROXY_UTIL_H
#define GANTRY_TESTS_PROXY_UTIL_H

#include "base/eventcount.h"
#include "device/device.h"
#include "proxy/proxy.h"
#include "test.h"

enum { MAX_SEEN = 8192 };

/*
 * A scripted connection. Its progress moves slices as long as they stay below `gate`, at most `per_pass` of them in one
 * call, and writes down the operations as it meets them.
 */
struct fake {
	struct gantry_connector connector;
	struct gantry_peer_info peer;
	struct gantry_proxy_conn *pc;
	uint64_t gate;	   /* steps below may move; atomic */
	uint64_t fail_at;  /* that step ends with an error; atomic */
	uint64_t calls;	   /* of progress; atomic */
	uint32_t per_pass; /* 0: no limit */
	int silent;	   /* moves, but does not say so */
	int waits;	   /* a cause, or -1 */
	/* Written by the progress thread, read when nothing is pending. */
	uint32_t nseen;
	uint32_t seen[MAX_SEEN];  /* ids of operations, in the order they began */
	uint64_t bases[MAX_SEEN]; /* their first steps */
};

static inline gantry_result fake_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct fake *f = pc->resources;
	uint64_t gate = __atomic_load_n(&f->gate, __ATOMIC_SEQ_CST);
	struct gantry_proxy_op *op;
	uint32_t n = 0;

	__atomic_fetch_add(&f->calls, 1, __ATOMIC_RELAXED);
	while (pc->done < gate && (op = gantry_proxy_op_of(pc, pc->done)) && (!f->per_pass || n++ < f->per_pass)) {
		if (pc->done >= __atomic_load_n(&f->fail_at, __ATOMIC_RELAXED))
			return gantry_fail(GANTRY_ERR_PEER_LOST, GANTRY_SUBSYS_PROXY, __FILE__, __LINE__,
					   "rank %d hung up", f->peer.rank);
		if (pc->done == op->base) {
			f->bases[f->nseen % MAX_SEEN] = op->base;
			f->seen[f->nseen++ % MAX_SEEN] = op->id;
		}
		pc->posted += op->slice_steps;
		pc->moved = pc->posted;
		if (!pc->send)
			pc->flushed = pc->posted;
		pc->done = pc->posted;
		*ret_worked = !f->silent;
	}
	if (!*ret_worked && f->waits >= 0)
		gantry_proxy_waits(pc, (enum gantry_wait_cause)f->waits);
	return GANTRY_OK;
}

static const struct gantry_transport_side fake_side __attribute__((unused)) = {.proxy_progress = fake_progress};

static inline void fake_make(struct gantry_proxy *p, struct gantry_proxy_group *g, struct fake *f, int send, int peer)
{
	memset(f, 0, sizeof(*f));
	f->gate = f->fail_at = UINT64_MAX;
	f->waits = -1;
	f->peer.rank = peer;
	f->connector.send = send;
	f->connector.peer = &f->peer;
	CHECK_OK(gantry_proxy_conn_create(p, g, &f->connector, &f->pc));
	f->pc->side = &fake_side;
	f->pc->resources = f;
}

/* What on_error was told. Written by the progress thread, read under `mu`. */
struct heard {
	pthread_mutex_t mu;
	int times, peer;
	gantry_result why;
	char text[256];
};

static inline void heard_error(void *ctx, gantry_result r, int peer, const char *text)
{
	struct heard *h = ctx;

	pthread_mutex_lock(&h->mu);
	h->times++;
	h->peer = peer;
	h->why = r;
	snprintf(h->text, sizeof(h->text), "%s", text);
	pthread_mutex_unlock(&h->mu);
}

static inline struct gantry_proxy_group *make_group(struct gantry_proxy *p, struct heard *h, const uint32_t *abort_flag)
{
	struct gantry_proxy_group_config config = {.abort = abort_flag, .on_error = h ? heard_error : NULL, .ctx = h};
	struct gantry_proxy_group *g;

	if (h) {
		memset(h, 0, sizeof(*h));
		pthread_mutex_init(&h->mu, NULL);
	}
	CHECK_OK(gantry_proxy_group_create(p, &config, &g));
	return g;
}

/* n operations of nsteps each, ids counting from `id`. */
static inline void append(struct gantry_proxy *p, struct fake *f, uint32_t n, uint64_t nsteps, uint32_t slice,
			  uint32_t chunk, uint32_t id)
{
	struct gantry_proxy_op *first, *last = NULL;

	CHECK_OK(gantry_proxy_ops_get(p, n, &first));
	for (struct gantry_proxy_op *op = first; op; op = op->next) {
		op->conn = f->pc;
		op->nsteps = nsteps;
		op->slice_steps = slice;
		op->chunk_steps = chunk;
		op->step_bytes = 10;
		op->bytes = nsteps * 10;
		op->id = id++;
		last = op;
	}
	gantry_proxy_append(p, first, last);
}

/* Until nothing is pending; a minute at most. */
static inline void drain(struct gantry_proxy_group *g)
{
	WAIT_WHILE (gantry_proxy_group_pending(g))
		usleep(50);
}

/* Until it has announced itself and passes no more; there are no operations. */
static inline void wait_for_sleep(struct gantry_proxy *p)
{
	uint64_t until = until_hang();
	struct gantry_proxy_stats before, after;

	do {
		CHECK(gantry_now_ns() < until);
		gantry_proxy_get_stats(p, &before);
		usleep(500);
		gantry_proxy_get_stats(p, &after);
	} while (!__atomic_load_n(&gantry_proxy_eventcount(p)->waiting, __ATOMIC_SEQ_CST) ||
		 before.passes != after.passes);
}

#endif
