/*
 * Patterns: which messages a rank sends and receives in one iteration.
 *
 *   ring      to the next rank, from the previous one, in one group (nccl-tests' sendrecv)
 *   oneway    even ranks send, the odd rank after each receives
 *   pingpong  the same pairs, there and back: two groups, one after the other
 *   echo      the same pairs; timed without calls, between kernels that stay: perf_sendrecv_echo.c
 *   alltoall  to and from every rank, oneself included, in one group (nccl-tests' alltoall)
 *
 * -m repeats each message within its group.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <stdlib.h>

#include "base/log.h"
#include "perf_sendrecv.h"

static void add(struct sr_rank *rk, int send, int peer)
{
	for (int i = 0; i < rk->opts->inflight; i++)
		rk->msgs[rk->nmsgs++] =
			(struct sr_msg){.send = send, .peer = peer, .buf = rk->nbufs[send]++, .number = i};
}

/* What is added from here on is in another group. */
static void next_group(struct sr_rank *rk)
{
	rk->first[++rk->ngroups] = rk->nmsgs;
}

gantry_result sr_plan(struct sr_rank *rk)
{
	gantry_result r = GANTRY_OK;
	int n = rk->nranks, me = rk->rank, even = me % 2 == 0, other = even ? me + 1 : me - 1;

	rk->msgs = calloc(2 * (size_t)n * (size_t)rk->opts->inflight, sizeof(*rk->msgs));
	if (!rk->msgs)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of messages");
	switch ((enum sr_pattern)rk->opts->pattern) {
	case SR_RING:
		add(rk, 1, (me + 1) % n);
		add(rk, 0, (me + n - 1) % n);
		break;
	case SR_ONEWAY:
		if (other < n)
			add(rk, even, other);
		break;
	case SR_PINGPONG:
	case SR_ECHO:
		if (other < n)
			add(rk, even, other);
		next_group(rk);
		if (other < n)
			add(rk, !even, other);
		break;
	case SR_ALLTOALL:
		for (int k = 0; k < n; k++) {
			add(rk, 1, (me + k) % n);
			add(rk, 0, (me + n - k) % n);
		}
		break;
	}
	next_group(rk);
out:
	return r;
}

/* Messages that follow one another in the time of an iteration: those of a group count as one after the other, as in
 * nccl-tests; a round trip is two. */
double sr_messages(const struct sr_opts *o)
{
	return (double)o->inflight * (o->pattern == SR_PINGPONG || o->pattern == SR_ECHO ? 2 : 1);
}

char *sr_place(const struct sr_rank *rk, const struct sr_msg *m)
{
	return rk->memory[m->send] + rk->stride * (size_t)m->buf + SR_FRONT + m->skew;
}

static gantry_result enqueue_group(struct sr_rank *rk, int g, uint64_t bytes)
{
	gantry_result r = GANTRY_OK, end;
	enum gantry_type type = (enum gantry_type)rk->opts->type;
	size_t count = bytes / rk->type_bytes;

	gantry_group_start();
	for (int i = rk->first[g]; i < rk->first[g + 1] && r == GANTRY_OK; i++) {
		const struct sr_msg *m = &rk->msgs[i];
		char *at = sr_place(rk, m);

		r = m->send ? gantry_send(at, count, type, m->peer, rk->comm, rk->stream)
			    : gantry_recv(at, count, type, m->peer, rk->comm, rk->stream);
	}
	end = gantry_group_end(); /* in any case: a group that stays open would swallow all that follows */
	sr_progress(rk);
	return r == GANTRY_OK ? end : r;
}

gantry_result sr_enqueue(struct sr_rank *rk, uint64_t bytes)
{
	gantry_result r = GANTRY_OK;

	for (int g = 0; g < rk->ngroups; g++)
		TRY(enqueue_group(rk, g, bytes));
out:
	return r;
}

gantry_result sr_finish(struct sr_rank *rk)
{
	gantry_result r = gantry_stream_sync(rk->dev, rk->stream), error;

	sr_progress(rk);
	/* Kernels that were aborted leave their stream in order. */
	error = gantry_comm_error(rk->comm, NULL, NULL, 0);
	return error == GANTRY_OK ? r : error;
}
