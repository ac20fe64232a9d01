/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns: which messages a rank sends and receives in one iteration.
 *
 *   ring      to the next rank, from the previous one, in one group (nccl-tests' sendrecv)
 *   oneway    even ranks send, the odd rank after each receives
 *   pingpong  the same pairs, there and back: two groups, one after the other
 *   echo      the same pairs; timed without calls, between kernels that stay: sr_echo
 *   alltoall  to and from every rank, oneself included, in one group (nccl-tests' alltoall)
 *
 * -m repeats each message within its group.
 *
 * What messages carry. A message's bytes follow from its number, which is made of the round, both ranks and its place
 * in the group, and from its size: see perf_util.h. Before each round receive buffers are poisoned and guards stand in
 * front of each message and behind it.
 *
 *        page                                            even address
 *   ... |                                 front guard 64 | message ... | back guard 64 |
 *                                                  --> shifted by the skew: 0, 1 or 3 bytes
 *
 * On a GPU kernels fill and compare; on the host the tool does it itself, so that the kernels are not their own judge.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/comm.h"
#include "device/work.h"
#include "kernels/bench.h"
#include "perf_sendrecv.h"
#include "perf_util.h"

#define GUARD_SEQ 0x6775617264000000u
#define POISON_SEQ 0x706f69736f6e0000u
#define ROUNDS_ALL_BELOW ((uint64_t)16 << 20)
enum { BLOCKS = 16 };

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
	int n = rk->nranks, me = rk->rank, even = me % 2 == 0, other = even ? me + 1 : me - 1;

	rk->msgs = calloc(2 * (size_t)n * (size_t)rk->opts->inflight, sizeof(*rk->msgs));
	if (!rk->msgs)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a list of messages");
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
	return GANTRY_OK;
}

/* Messages that follow one another in the time of an iteration: those of a group count as one after the other, as in
 * nccl-tests; a round trip is two. */
double sr_messages(const struct sr_opts *o)
{
	return (double)o->inflight * (o->pattern == SR_PINGPONG || o->pattern == SR_ECHO ? 2 : 1);
}

static char *place_of(const struct sr_rank *rk, const struct sr_msg *m)
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
		char *at = place_of(rk, m);

		r = m->send ? gantry_send(at, count, type, m->peer, rk->comm, rk->stream)
			    : gantry_recv(at, count, type, m->peer, rk->comm, rk->stream);
	}
	end = gantry_group_end(); /* in any case: a group that stays open would swallow all that follows */
	perf_progress(&rk->me->state);
	return r == GANTRY_OK ? end : r;
}

gantry_result sr_enqueue(struct sr_rank *rk, uint64_t bytes)
{
	for (int g = 0; g < rk->ngroups; g++)
		TRY_NOW(enqueue_group(rk, g, bytes));
	return GANTRY_OK;
}

gantry_result sr_finish(struct sr_rank *rk)
{
	gantry_result r = gantry_stream_sync(rk->dev, rk->stream), error;

	perf_progress(&rk->me->state);
	/* Kernels that were aborted leave their stream in order. */
	error = gantry_comm_error(rk->comm, NULL, NULL, 0);
	return error == GANTRY_OK ? r : error;
}

/* ---- echo ---- */

static uint32_t proto_of(const struct gantry_conn *conn, uint64_t bytes)
{
	const struct gantry_params *p = gantry_params();

	if (p->proto)
		return (uint32_t)p->proto - 1;
	return bytes <= p->ll_max && conn->buffs[GANTRY_PROTO_LL] ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE;
}

/*
 * --pattern echo: a message to and fro between two kernels that stay, as a flag goes to and fro between two threads. It
 * shows what the steps of a connection cost without the calls and launches around them (--pattern pingpong has those).
 * Checked like pingpong, whose messages it has; timed by one launch for all iterations.
 */
gantry_result sr_echo(struct sr_rank *rk, uint64_t bytes, uint64_t n)
{
	struct gantry_comm *comm = rk->comm;
	int peer = rk->rank ^ 1, channel;
	const struct comm_conn *send, *recv;
	struct gantry_echo_args args = {.bytes = bytes, .n = n, .first = rk->rank % 2 == 0, .result = comm->result_dev};
	struct gantry_launch l = {.kernel = &gantry_kernel_echo,
				  .blocks = 1,
				  .args = &args,
				  .args_size = sizeof(args),
				  .abort = comm->abort_dev,
				  .eventcounts = NULL};

	if (peer >= rk->nranks)
		return GANTRY_OK;
	channel = (rk->rank + peer) % comm->nchannels;
	send = &comm->peers[peer].send[channel];
	recv = &comm->peers[peer].recv[channel];
	if ((send->c.conn.flags | recv->c.conn.flags) & GANTRY_CONN_PROXIED)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "--pattern echo needs kernels that reach each other (p2p or shm), not %s",
			 send->c.transport->name);
	args.send = send->dev;
	args.recv = recv->dev;
	args.proto = proto_of(&send->c.conn, bytes);
	args.input = rk->memory[1] + SR_FRONT;
	args.output = rk->memory[0] + SR_FRONT;
	l.eventcounts = comm->all_notify && comm->eventcounts ? &comm->eventcounts[channel]
							      : NULL; /* block 0 sleeps at the channel's */
	return rk->dev->ops->launch(rk->dev, rk->stream, &l);
}

/* ---- what messages carry ---- */

static gantry_result launch(struct sr_rank *rk, const struct gantry_kernel *kernel, const void *args, size_t size)
{
	const struct gantry_launch l = {.kernel = kernel, .blocks = BLOCKS, .args = args, .args_size = size};

	return rk->dev->ops->launch(rk->dev, rk->stream, &l);
}

static gantry_result fill(struct sr_rank *rk, char *p, uint64_t bytes, uint64_t seq)
{
	const struct gantry_fill_args args = {.dst = p, .bytes = bytes, .seq = seq};

	if (!bytes)
		return GANTRY_OK;
	if (rk->dev->kind == GANTRY_DEVICE_CUDA)
		return launch(rk, &gantry_kernel_fill, &args, sizeof(args));
	perf_fill(p, bytes, seq);
	return GANTRY_OK;
}

/* Adds to *wrong_host, at the latest when the stream is through. */
static gantry_result verify(struct sr_rank *rk, const char *p, uint64_t bytes, uint64_t seq)
{
	const struct gantry_verify_args args = {.src = p, .bytes = bytes, .seq = seq, .wrong = rk->wrong_dev};

	if (!bytes)
		return GANTRY_OK;
	if (rk->dev->kind == GANTRY_DEVICE_CUDA)
		return launch(rk, &gantry_kernel_verify, &args, sizeof(args));
	*rk->wrong_host += perf_check(p, bytes, seq);
	return GANTRY_OK;
}

static uint64_t seq_of(const struct sr_rank *rk, const struct sr_msg *m)
{
	uint64_t n = (uint64_t)rk->nranks, from = (uint64_t)(m->send ? rk->rank : m->peer),
		 to = (uint64_t)(m->send ? m->peer : rk->rank);

	return ((rk->round * n + from) * n + to) * SR_INFLIGHT_MAX + (uint64_t)m->number;
}

/* Another one at every place: bytes copied beyond the end of a message must not look like the guard that they hit. */
static uint64_t guard_seq(const struct sr_rank *rk, const struct sr_msg *m, int back)
{
	return GUARD_SEQ + (((uint64_t)rk->rank * 2 + (uint64_t)m->send) * 2 + (uint64_t)back) + rk->round * 4096;
}

static gantry_result prepare(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	char *at = place_of(rk, m);

	TRY_NOW(fill(rk, at - SR_GUARD, SR_GUARD, guard_seq(rk, m, 0)));
	TRY_NOW(fill(rk, at, bytes, m->send ? seq_of(rk, m) : POISON_SEQ + rk->round));
	TRY_NOW(fill(rk, at + bytes, SR_GUARD, guard_seq(rk, m, 1)));
	perf_progress(&rk->me->state);
	return GANTRY_OK;
}

/* Sent messages too: nobody may have written there. */
static gantry_result compare(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	char *at = place_of(rk, m);

	TRY_NOW(verify(rk, at - SR_GUARD, SR_GUARD, guard_seq(rk, m, 0)));
	TRY_NOW(verify(rk, at, bytes, seq_of(rk, m)));
	TRY_NOW(verify(rk, at + bytes, SR_GUARD, guard_seq(rk, m, 1)));
	perf_progress(&rk->me->state);
	return GANTRY_OK;
}

/* Says where the first wrong byte of a message or of its guards is; text stays "" if there is none. */
static gantry_result locate(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes, char *text, size_t len)
{
	gantry_result r = GANTRY_OK;
	unsigned char *copy = malloc(SR_GUARD + bytes + SR_GUARD), *at;
	char size[GANTRY_TEXT_MAX], what[128];
	uint64_t first;

	if (!copy)
		FAIL(GANTRY_ERR_NOMEM, "no memory to look for the first wrong byte");
	at = copy + SR_GUARD;
	TRY(gantry_mem_copy(rk->dev, copy, place_of(rk, m) - SR_GUARD, SR_GUARD + bytes + SR_GUARD));
	snprintf(what, sizeof(what), "a message of %s from rank %d to rank %d",
		 gantry_size_text(bytes, size, sizeof(size)), m->send ? rk->rank : m->peer,
		 m->send ? m->peer : rk->rank);
	first = perf_first_wrong(at, bytes, seq_of(rk, m));
	if (first < bytes)
		snprintf(text, len, "at offset %llu of %s%s", (unsigned long long)first, what,
			 m->send ? ", in the sender's buffer" : "");
	else if (perf_check(copy, SR_GUARD, guard_seq(rk, m, 0)))
		snprintf(text, len, "in front of %s, at rank %d", what, rk->rank);
	else if (perf_check(at + bytes, SR_GUARD, guard_seq(rk, m, 1)))
		snprintf(text, len, "behind %s, at rank %d", what, rk->rank);
out:
	free(copy);
	return r;
}

static gantry_result check_round(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s)
{
	gantry_result r = GANTRY_OK;
	static const size_t skews[] = {0, 1, SR_SKEW_MAX};

	rk->round++;
	for (int i = 0; i < rk->nmsgs; i++) {
		rk->msgs[i].skew = skews[(rk->round + (uint64_t)rk->msgs[i].number) % 3];
		TRY(prepare(rk, &rk->msgs[i], bytes));
	}
	TRY(sr_enqueue(rk, bytes));
	TRY(sr_finish(rk));
	for (int i = 0; i < rk->nmsgs; i++)
		TRY(compare(rk, &rk->msgs[i], bytes));
	TRY(sr_finish(rk));
	s->wrong = load_acquire(rk->wrong_host);
	for (int i = 0; s->wrong && !s->first_wrong[0] && i < rk->nmsgs; i++)
		TRY(locate(rk, &rk->msgs[i], bytes, s->first_wrong, sizeof(s->first_wrong)));
out:
	for (int i = 0; i < rk->nmsgs; i++)
		rk->msgs[i].skew = 0;
	return r;
}

/* Each message at each of the addresses; large ones, whose filling takes longest, at two of them at least. */
gantry_result sr_check(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s)
{
	uint64_t all = bytes * (uint64_t)rk->opts->inflight;
	int rounds = all <= ROUNDS_ALL_BELOW ? 3 : rk->opts->inflight >= 2 ? 1 : 2;

	perf_phase(&rk->me->state, "checking", bytes);
	*rk->wrong_host = 0;
	while ((rk->round + 1) % 3) /* every size begins at the even address */
		rk->round++;
	for (int i = 0; i < rounds; i++)
		TRY_NOW(check_round(rk, bytes, s));
	return GANTRY_OK;
}
