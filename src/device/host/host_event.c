/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: places in streams that have a time and can be waited for.
 *
 * A record makes a mark, which the stream reaches in its turn; the event holds its newest mark. A wait for an event
 * waits for the mark that the event had at that moment, so recording it anew, even in another stream, changes nothing
 * for that wait. A mark is counted: the event, the item that reaches it and every item that waits for it have a
 * reference each. So an event may be destroyed at any time. An event that has the only reference to its mark reuses the
 * mark: no allocation.
 *
 * A mark in a stream that a failed kernel holds has that failure (hold.c): its waiters get the error.
 *
 * state: PENDING -> REACHED, or PENDING -> SLEPT_ON (by a waiter that then sleeps) -> REACHED. The thread that reaches
 * it exchanges the word and so knows whether there is a sleeper to wake.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "device/host/host.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* operations are given a device that none of them needs */

enum { PENDING, REACHED, SLEPT_ON };

struct host_mark {
	uint32_t refs;
	uint32_t state;			/* the futex word */
	uint64_t ns;			/* written before REACHED */
	struct gantry_failure *failure; /* hold.c's; a reference, or NULL */
};

MUTEX_KIND(event_mu);
struct gantry_dev_event {
	struct event_mu mu;
	struct host_mark *mark GUARDED_BY(event_mu); /* a reference; NULL: never recorded */
};

static void mark_put(struct host_mark *m)
{
	if (!m || fetch_sub_acq_rel(&m->refs, 1) != 1)
		return;
	gantry_failure_put(m->failure);
	free(m);
}

static int mark_reached(const struct host_mark *m)
{
	return load_acquire(&m->state) == REACHED;
}

void gantry_host_mark_reach(struct host_mark *m)
{
	m->ns = gantry_now_ns();
	if (exchange_acq_rel(&m->state, REACHED) == SLEPT_ON)
		gantry_futex_wake(&m->state);
	mark_put(m);
}

struct gantry_failure *gantry_host_mark_await(struct host_mark *m, int ending)
{
	struct gantry_failure *f;
	struct gantry_waiter w;

	gantry_waiter_init(&w, NULL);
	while (!(f = gantry_host_holding(&m->failure)) && !mark_reached(m)) {
		uint32_t was = PENDING;

		if (!gantry_waiter_brief(&w))
			continue;
		if ((cas_seq(&m->state, &was, SLEPT_ON) || was == SLEPT_ON) && !load_seq(&m->failure))
			gantry_futex_wait(&m->state, SLEPT_ON);
	}
	if (!f || ending)
		mark_put(m);
	return f;
}

void gantry_host_mark_held(struct gantry_stream *s, struct host_mark *m)
{
	uint32_t slept = SLEPT_ON;

	gantry_host_hold_mark(s, &m->failure);
	if (cas_seq(&m->state, &slept, PENDING))
		gantry_futex_wake(&m->state);
}

/* ---- the operations ---- */

gantry_result gantry_host_event_create(struct gantry_device *dev, struct gantry_dev_event **ret_event)
{
	struct gantry_dev_event *e = calloc(1, sizeof(*e));

	if (!e)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for an event");
	*ret_event = e;
	return GANTRY_OK;
}

/* UNCHECKED: no other thread has a reference to the event. */
gantry_result gantry_host_event_destroy(struct gantry_device *dev, struct gantry_dev_event *e) UNCHECKED
{
	if (!e)
		return GANTRY_OK;
	mark_put(e->mark);
	free(e);
	return GANTRY_OK;
}

/* A pending mark with references for the event, for an item and for the caller. */
static struct host_mark *fresh_mark(struct gantry_dev_event *e) REQUIRES(event_mu)
{
	struct host_mark *m = e->mark;

	/* One reference is the event's own: the item that reached it is through with it too. */
	if (!m || load_acquire(&m->refs) != 1) {
		m = malloc(sizeof(*m));
		if (!m)
			return NULL;
		mark_put(e->mark);
		e->mark = m;
	} else {
		gantry_failure_put(m->failure);
	}
	m->failure = NULL;
	m->ns = 0;
	m->state = PENDING;
	m->refs = 3; /* the caller's, too */
	return m;
}

gantry_result gantry_host_event_record(struct gantry_device *dev, struct gantry_dev_event *e, struct gantry_stream *s)
{
	gantry_result r = GANTRY_OK;
	struct host_item item = {.kind = HOST_ITEM_RECORD};

	/* Locked no longer than for the mark: the ring may be full, and a query must not wait for that. */
	event_mu_lock(&e->mu);
	item.mark = fresh_mark(e);
	event_mu_unlock(&e->mu);
	if (!item.mark)
		FAIL(GANTRY_ERR_NOMEM, "no memory for an event");
	r = gantry_host_enqueue(s, &item, NULL);
	gantry_host_mark_held(s, item.mark);
	if (r != GANTRY_OK)
		gantry_host_mark_reach(item.mark); /* no other thread will */
	mark_put(item.mark);
out:
	return r;
}

gantry_result gantry_host_stream_wait(struct gantry_device *dev, struct gantry_stream *s, struct gantry_dev_event *e)
{
	gantry_result r = GANTRY_OK;
	struct host_item item = {.kind = HOST_ITEM_WAIT};

	event_mu_lock(&e->mu);
	if (e->mark && (!mark_reached(e->mark) || load_seq(&e->mark->failure))) {
		item.mark = e->mark;
		fetch_add_relaxed(&item.mark->refs, 1);
	}
	event_mu_unlock(&e->mu);
	if (!item.mark)
		return GANTRY_OK;
	r = gantry_host_enqueue(s, &item, NULL);
	if (r != GANTRY_OK)
		mark_put(item.mark);
	return r;
}

gantry_result gantry_host_event_query(struct gantry_device *dev, struct gantry_dev_event *e)
{
	struct gantry_failure *f = NULL;
	gantry_result r = GANTRY_OK;

	event_mu_lock(&e->mu);
	if (e->mark) {
		f = gantry_host_holding(&e->mark->failure);
		r = mark_reached(e->mark) ? GANTRY_OK : GANTRY_AGAIN;
	}
	event_mu_unlock(&e->mu);
	if (f)
		r = gantry_failure_tell(f);
	gantry_failure_put(f);
	return r;
}

/* When the event was reached; AGAIN while it is not. */
static gantry_result event_time(struct gantry_dev_event *e, uint64_t *ret_ns)
{
	gantry_result r = GANTRY_OK;

	event_mu_lock(&e->mu);
	if (!e->mark)
		FAIL(GANTRY_ERR_USAGE, "the event was never recorded, so it has no time");
	if (mark_reached(e->mark))
		*ret_ns = e->mark->ns;
	else
		r = GANTRY_AGAIN;
out:
	event_mu_unlock(&e->mu);
	return r;
}

gantry_result gantry_host_event_elapsed(struct gantry_device *dev, struct gantry_dev_event *from,
					struct gantry_dev_event *to, double *ret_us)
{
	uint64_t begin = 0, end = 0;

	TRY_NOW(event_time(from, &begin));
	TRY_NOW(event_time(to, &end));
	*ret_us = (double)(int64_t)(end - begin) / 1000.0;
	return GANTRY_OK;
}
