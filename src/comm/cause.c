/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose fault it is. One rank dies, its peers notice and are destroyed, and the peers of those find their connections
 * closed by ranks that did nothing wrong, often before the news of the death has come to them. So a connection that a
 * living rank has closed is a symptom, and the control plane is asked for the cause:
 *
 *   rank 1                          rank 3                           rank 2
 *     |<---- closes connections ----- | notices, is destroyed <------- dies
 *     | a symptom: wait               |
 *     |<-- "because of 2", goodbye -- |    by the control plane, if it does not know by itself that 2 is gone
 *     | fails, because of 2
 *
 * An error of this rank's own (a plugin that cannot be loaded, no descriptors) is about this rank, whichever peer it
 * was connecting to; all other ranks are notified, also those that have no connection to it. So they are of an error
 * that concerns no rank at all: a reducer that died, which only one rank of each host is connected to.
 *
 * The wait ends with the news of a loss, with the reason that a rank tells, with the closing rank's goodbye without one
 * (it has left: that is the cause then), or after a moment.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"

/* Less than the second that an error may take on top of GANTRY_TIMEOUT. */
static const uint64_t patience_ns = 800000000;
enum { LOOK_US = 1000 };
static const uint64_t why_tag = 2ull << 32; /* peer.c has those of 1 << 32 */

/* What a rank that leaves because of another one, of itself or of no rank (-1), says to others. Ranks of different byte
 * order do not meet. */
struct why {
	int32_t result, rank, teller;
	char text[244];
};

/* The symptom, and the search for its cause. */
struct comm_cause {
	int looking GUARDED_BY(comm_mu); /* a thread is looking for the cause of the symptom below */
	int waits;			 /* atomic: the watchdog does, until */
	uint64_t until;			 /* ns */
	int stop;			 /* atomic */
	int of_ctl;			 /* atomic: the error is the control plane's news */
	gantry_result result;		 /* the symptom */
	int rank;
	char text[COMM_ERROR_TEXT];
};

gantry_result comm_cause_make(struct gantry_comm *comm)
{
	ASSERT(!comm->cause);
	comm->cause = calloc(1, sizeof(*comm->cause));
	if (!comm->cause)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a communicator");
	return GANTRY_OK;
}

void comm_cause_free(struct gantry_comm *comm)
{
	free(comm->cause);
	comm->cause = NULL;
}

int comm_error_about(const struct gantry_comm *comm, gantry_result r, int peer)
{
	/* What is missing or wrong here. All else is a peer's doing, or something between the two. */
	int own = r == GANTRY_ERR_SYSTEM || r == GANTRY_ERR_NOMEM || r == GANTRY_ERR_INVALID || r == GANTRY_ERR_USAGE ||
		  r == GANTRY_ERR_CONFIG || r == GANTRY_ERR_UNSUPPORTED || r == GANTRY_ERR_LIMIT ||
		  r == GANTRY_ERR_INTERNAL || r == GANTRY_ERR_DEVICE;

	return own ? comm->rank : peer;
}

static int is_symptom(const struct gantry_comm *comm, gantry_result r, int rank)
{
	return comm->ctl && rank < comm->nranks && rank != comm->rank &&
	       (r == GANTRY_ERR_PEER_CLOSED || r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_REFUSED);
}

/* Its first error is known, or not needed any more. */
static int is_over(struct gantry_comm *comm)
{
	return load_acquire(&comm->error_seen) || load_acquire(&comm->cause->stop);
}

static void fail_with(struct gantry_comm *comm, gantry_result received, struct why *why, gantry_result r, int rank,
		      const char *text)
{
	char found[2 * COMM_ERROR_TEXT]; /* comm_fail cuts it */

	if (received != GANTRY_OK || why->result <= GANTRY_AGAIN || why->result >= GANTRY_RESULT_COUNT || why->rank < -1 ||
	    why->rank >= comm->nranks) {
		comm_fail(comm, r, rank, text);
		return;
	}
	why->text[sizeof(why->text) - 1] = 0;
	if (why->rank == why->teller)
		snprintf(found, sizeof(found), "rank %d failed and left: %s", why->rank, why->text);
	else if (why->rank < 0)
		snprintf(found, sizeof(found), "rank %d left because of an error: %s", why->teller, why->text);
	else
		snprintf(found, sizeof(found), "rank %d left because rank %d failed: %s", why->teller, why->rank,
			 why->text);
	comm_fail(comm, (gantry_result)why->result, why->rank, found);
}

void comm_suspect(struct gantry_comm *comm, gantry_result r, int rank, const char *text)
{
	struct comm_cause *c = comm->cause;
	int first = 0;

	if (!is_symptom(comm, r, rank)) {
		comm_fail(comm, r, rank, text);
		return;
	}
	comm_mu_lock(&comm->mu);
	/* The first symptom is the nearest to the cause, and the reason is logged once. */
	if (!is_over(comm) && !c->looking) {
		ASSERT(!load_relaxed(&c->waits));
		c->looking = first = 1;
		c->result = r;
		c->rank = rank;
		snprintf(c->text, sizeof(c->text), "%s", text ? text : "");
		c->until = gantry_now_ns() + patience_ns;
		store_release(&c->waits, 1);
	}
	comm_mu_unlock(&comm->mu);
	if (first)
		comm_watch_cause();
}

void comm_fail_for_cause(struct gantry_comm *comm, gantry_result r, int rank, const char *text)
{
	uint64_t until = gantry_now_ns() + 2 * patience_ns;

	comm_suspect(comm, r, rank, text);
	while (!is_over(comm) && gantry_now_ns() < until)
		usleep(LOOK_US);
	comm_fail(comm, r, rank, text); /* does nothing if the cause was found */
}

int comm_cause_waits(const struct gantry_comm *comm)
{
	return load_acquire(&comm->cause->waits);
}

uint64_t comm_cause_look(struct gantry_comm *comm)
{
	struct comm_cause *c = comm->cause;
	gantry_result r = GANTRY_AGAIN;
	struct why why;

	if (!comm_cause_waits(comm))
		return 0;
	/* Whichever rank reports it: the hub may go, with what this rank waits for, before the suspected rank sends
	 * anything. */
	if (!is_over(comm))
		r = gantry_ctl_try_recv_any(comm->ctl, why_tag, &why, sizeof(why));
	if (r == GANTRY_AGAIN && !is_over(comm) && c->rank >= 0)
		r = gantry_ctl_try_recv(comm->ctl, c->rank, why_tag, &why, sizeof(why));
	if (r == GANTRY_AGAIN && !is_over(comm) && gantry_now_ns() < c->until)
		return c->until;
	if (exchange_acq_rel(&c->waits, 0))
		fail_with(comm, r, &why, c->result, c->rank, c->text);
	return 0;
}

void comm_cause_from_ctl(struct gantry_comm *comm)
{
	if (!load_acquire(&comm->error_seen))
		store_relaxed(&comm->cause->of_ctl, 1);
}

void comm_cause_end(struct gantry_comm *comm)
{
	struct comm_cause *c = comm->cause;

	if (!c)
		return;
	comm_mu_lock(&comm->mu);
	store_release(&c->stop, 1);
	comm_mu_unlock(&comm->mu);
	if (exchange_acq_rel(&c->waits, 0))
		comm_fail(comm, c->result, c->rank, c->text);
}

void comm_cause_tell(struct gantry_comm *comm)
{
	struct why why = {0};

	comm_mu_lock(&comm->mu);
	why.result = (int32_t)comm->error.result;
	why.rank = comm->error.rank;
	why.teller = comm->rank;
	snprintf(why.text, sizeof(why.text), "%.*s", (int)sizeof(why.text) - 1, comm->error.text);
	comm_mu_unlock(&comm->mu);
	/* The control plane has reported its own findings to the other ranks at the same time as to us. */
	if (why.result == GANTRY_OK || why.result == GANTRY_ERR_ABORTED || load_relaxed(&comm->cause->of_ctl) ||
	    !comm->peers)
		return;
	for (int i = 0; i < comm->nranks; i++) {
		int knows_us =
			why.rank == comm->rank || why.rank < 0 || comm->peers[i].conns[0] || comm->peers[i].conns[1];

		if (i != comm->rank && i != why.rank && knows_us)
			gantry_ctl_send(comm->ctl, i, why_tag, &why, sizeof(why));
	}
}
