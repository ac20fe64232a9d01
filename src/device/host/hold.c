/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that a failed kernel holds (device/failure.h), and marks of events that such a stream does not reach.
 *
 * The runner holds its stream behind the item that failed and marks the records that are queued there; a record that is
 * queued later is marked by its caller. Both are sequentially consistent, `held` against `tail`, so none is missed. A stream
 * that comes to a wait for a marked event is held by the same failure. When the failure has ended, the runner goes on where
 * it stopped; a wait that began before that still gets the error (last_end).
 *
 * One lock for all of it: it is taken only when something has failed.
 */
#include <stddef.h>

#include "base/atomic.h"
#include "device/host/host.h"

MUTEX_KIND(hold_mu);
static struct hold_mu mu;

/* The hold is over: what waits that began before it return. */
static void note_end(struct gantry_stream *s, const struct gantry_failure *f) REQUIRES(hold_mu)
{
	uint64_t ended = load_acquire(&f->ended);

	if (ended <= load_relaxed(&s->last_end.ended))
		return;
	s->last_end.result = gantry_failure_tell(f);
	store_seq(&s->last_end.ended, ended);
}

int gantry_host_hold(struct gantry_stream *s, struct gantry_failure *f)
{
	struct gantry_failure *drop = f;
	int held;

	hold_mu_lock(&mu);
	if (!gantry_failure_holds(f)) {
		note_end(s, f);
	} else if (!s->held) {
		store_seq(&s->held, f);
		drop = NULL;
	}
	held = s->held != NULL;
	hold_mu_unlock(&mu);
	gantry_failure_put(drop);
	return held;
}

int gantry_host_held(struct gantry_stream *s)
{
	struct gantry_failure *drop = NULL;
	int held;

	if (!load_seq(&s->held) || load_seq(&s->ending))
		return 0;
	hold_mu_lock(&mu);
	if (s->held && !gantry_failure_holds(s->held)) {
		drop = s->held;
		note_end(s, drop);
		store_seq(&s->held, NULL);
	}
	held = s->held != NULL;
	hold_mu_unlock(&mu);
	gantry_failure_put(drop);
	return held;
}

gantry_result gantry_host_hold_result(struct gantry_stream *s, uint64_t since)
{
	gantry_result r = GANTRY_OK;

	if (!load_seq(&s->held) && load_seq(&s->last_end.ended) <= since)
		return GANTRY_OK;
	hold_mu_lock(&mu);
	if (s->held && (gantry_failure_holds(s->held) || load_acquire(&s->held->ended) > since))
		r = gantry_failure_tell(s->held);
	else if (s->last_end.ended > since)
		r = s->last_end.result;
	hold_mu_unlock(&mu);
	return r;
}

void gantry_host_hold_release(struct gantry_stream *s)
{
	gantry_failure_put(s->held);
	s->held = NULL;
}

/* ---- marks ---- */

void gantry_host_hold_mark(struct gantry_stream *s, struct gantry_failure **at)
{
	struct gantry_failure *drop = NULL;

	if (!load_seq(&s->held))
		return;
	hold_mu_lock(&mu);
	if (gantry_failure_holds(s->held) && !gantry_failure_holds(*at)) {
		drop = *at;
		store_seq(at, gantry_failure_ref(s->held));
	}
	hold_mu_unlock(&mu);
	gantry_failure_put(drop);
}

struct gantry_failure *gantry_host_holding(struct gantry_failure **at)
{
	struct gantry_failure *f = NULL;

	if (!load_seq(at))
		return NULL;
	hold_mu_lock(&mu);
	if (gantry_failure_holds(*at))
		f = gantry_failure_ref(*at);
	hold_mu_unlock(&mu);
	return f;
}
