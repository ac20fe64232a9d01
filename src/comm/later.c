/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of non-blocking communicators that would wait: the first transfers between two ranks connect them, which takes
 * the other rank's call. A thread does that and then enqueues; until it is done gantry_comm_error returns GANTRY_AGAIN
 * for all communicators of the group, and they take no other call (life.running). The thread belongs to the first
 * communicator, which joins it; the others wait for their `running`.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "comm/comm.h"

struct later {
	struct gantry_comm **comms; /* owned: each once */
	struct comm_call *calls;    /* owned */
	size_t n, ncomms;
};

static void later_free(struct later *l)
{
	if (l) {
		free(l->comms);
		free(l->calls);
	}
	free(l);
}

static void *later_main(void *arg)
{
	struct later *l = arg;
	gantry_result r = comm_group_run(l->calls, l->n);

	for (size_t i = 0; i < l->ncomms; i++) {
		if (r != GANTRY_OK)
			comm_fail(l->comms[i], r, -1, gantry_last_error());
		ASSERT(load_relaxed(&l->comms[i]->life.running));
		store_release(&l->comms[i]->life.running, 0); /* from here on it may be freed */
	}
	later_free(l);
	return NULL;
}

static gantry_result later_make(const struct comm_call *calls, size_t n, struct later **ret_later)
{
	gantry_result r = GANTRY_OK;
	struct later *l = calloc(1, sizeof(*l));

	if (l) {
		l->comms = calloc(n, sizeof(*l->comms));
		l->calls = malloc(n * sizeof(*l->calls));
	}
	if (!l || !l->comms || !l->calls)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a group of %zu calls", n);
	memcpy(l->calls, calls, n * sizeof(*calls));
	l->n = n;
	for (size_t i = 0; i < n; i++) {
		size_t k = 0;

		while (k < l->ncomms && l->comms[k] != calls[i].comm)
			k++;
		l->comms[k] = calls[i].comm;
		l->ncomms += k == l->ncomms;
	}
	*ret_later = l;
	l = NULL;
out:
	later_free(l);
	return r;
}

int comm_group_is_later(const struct comm_call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!calls[i].comm->life.nonblocking)
			return 0;
	return !comm_connected(calls, n);
}

gantry_result comm_group_later(const struct comm_call *calls, size_t n)
{
	struct later *l = NULL;
	struct comm_life *life;
	gantry_result r;

	TRY_NOW(later_make(calls, n, &l));
	for (size_t i = 0; i < l->ncomms; i++) {
		comm_life_wait(l->comms[i]); /* a thread that has ended */
		store_release(&l->comms[i]->life.running, 1);
	}
	life = &l->comms[0]->life;
	r = gantry_thread_start("gantry-later", later_main, l, &life->thread);
	if (r == GANTRY_OK) {
		ASSERT(!life->has_thread);
		life->has_thread = 1;
		return GANTRY_AGAIN;
	}
	for (size_t i = 0; i < l->ncomms; i++)
		store_release(&l->comms[i]->life.running, 0);
	later_free(l);
	return r;
}
