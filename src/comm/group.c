/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of calls, which belong to a thread, as in NCCL. At the end of a group its communicators are connected, then each of
 * them enqueues its calls: on one stream, which joins those that were named, and in turns if there are very many.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm_coll.h"
#include "comm/launches.h"

/* ---- enqueueing ---- */

/* Transfers keep their order, and what they change places with is done or in any order. */
static void move_forward(struct comm_call *calls, size_t to, size_t from)
{
	struct comm_call call = calls[to];

	if (to == from)
		return;
	calls[to] = calls[from];
	calls[from] = call;
}

/* The calls of one communicator in a group, in their order, while they are enqueued. */
struct part {
	struct comm_call *calls;	      /* borrowed; all on streams[0], once it has begun */
	size_t n, at;			      /* at: collectives before it are enqueued */
	struct gantry_stream **streams, *one; /* each once; &one, or owned */
	size_t nstreams;
	int begun, over;
	gantry_result r;
};

static gantry_result add_stream(struct part *p, struct gantry_stream *s)
{
	struct gantry_stream **grown;

	for (size_t i = 0; i < p->nstreams; i++)
		if (p->streams[i] == s)
			return GANTRY_OK;
	grown = realloc(p->nstreams == 1 ? NULL : p->streams, (p->nstreams + 1) * sizeof(*grown));
	if (!grown)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a group of %zu streams", p->nstreams + 1);
	grown[0] = p->one;
	grown[p->nstreams++] = s;
	p->streams = grown;
	return GANTRY_OK;
}

/* The streams of its calls; most groups have one. */
static gantry_result find_streams(struct part *p)
{
	p->one = p->calls[0].stream;
	p->streams = &p->one;
	p->nstreams = 1;
	for (size_t i = 1; i < p->n; i++)
		if (p->calls[i].stream != p->calls[i - 1].stream)
			TRY_NOW(add_stream(p, p->calls[i].stream));
	return GANTRY_OK;
}

/*
 * Several streams: the first one waits for the others and does all the work, then the others wait for it (NCCL's rule). A
 * wait is for what the event stood for at that moment, so one event is enough.
 */
static gantry_result join_streams(struct gantry_comm *comm, const struct part *p)
{
	struct comm_launches *l = comm->launches;
	struct gantry_device *d = comm->device;

	if (p->nstreams > 1 && !l->join)
		TRY_NOW(d->ops->event_create(d, &l->join));
	for (size_t i = 1; i < p->nstreams; i++) {
		TRY_NOW(d->ops->event_record(d, l->join, p->streams[i]));
		TRY_NOW(d->ops->stream_wait(d, p->streams[0], l->join));
	}
	for (size_t i = 0; i < p->n; i++)
		p->calls[i].stream = p->streams[0];
	return GANTRY_OK;
}

static gantry_result release_streams(struct gantry_comm *comm, const struct part *p)
{
	struct gantry_device *d = comm->device;

	if (p->nstreams > 1)
		TRY_NOW(d->ops->event_record(d, comm->launches->join, p->streams[0]));
	for (size_t i = 1; i < p->nstreams; i++)
		TRY_NOW(d->ops->stream_wait(d, p->streams[i], comm->launches->join));
	return GANTRY_OK;
}

void comm_enqueue_failed(struct gantry_comm *comm, gantry_result r)
{
	if (r != GANTRY_OK && r != GANTRY_ERR_USAGE && r != GANTRY_ERR_SIZE)
		comm_fail(comm, r, comm->rank, gantry_last_error());
}

/* What follows the collectives: transfers, and waits for signals. */
static gantry_result enqueue_rest(struct gantry_comm *comm, struct part *p)
{
	size_t transfers = 0;

	for (size_t i = 0; i < p->n; i++)
		if (p->calls[i].kind == COMM_IS_TRANSFER)
			move_forward(p->calls, transfers++, i);
	if (transfers)
		TRY_NOW(comm_enqueue_transfers(comm, p->calls, transfers));
	if (comm->onesided)
		TRY_NOW(comm_onesided_enqueue(comm, p->calls + transfers, p->n - transfers, COMM_IS_WAIT));
	return release_streams(comm, p);
}

static gantry_result part_begin(struct gantry_comm *comm, struct part *p)
{
	p->begun = 1;
	comm_memory_reap(comm);
	TRY_NOW(join_streams(comm, p));
	return comm->onesided ? comm_onesided_enqueue(comm, p->calls, p->n, COMM_IS_PUT) : GANTRY_OK;
}

/* Puts, collectives in order, then transfers, and waits for signals; no more than `most` collectives at once. */
static void enqueue(struct part *p, size_t most)
{
	struct gantry_comm *comm = p->calls[0].comm;
	gantry_result r = GANTRY_OK;

	TRY(comm_check(comm));
	if (!p->begun)
		TRY(part_begin(comm, p));
	for (; p->at < p->n && most; p->at++) {
		if (p->calls[p->at].kind != COMM_IS_COLL)
			continue;
		TRY(comm_coll_enqueue(comm, &p->calls[p->at].coll, p->calls[p->at].stream));
		most--;
	}
	if (p->at < p->n)
		return; /* later */
	TRY(enqueue_rest(comm, p));
out:
	p->over = 1;
	p->r = r;
	comm_enqueue_failed(comm, r);
}

static int share_stream(const struct part *a, const struct part *b)
{
	for (size_t i = 0; i < a->nstreams; i++)
		for (size_t k = 0; k < b->nstreams; k++)
			if (a->streams[i] == b->streams[k])
				return 1;
	return 0;
}

/*
 * Collectives that a communicator enqueues before it is the next one's turn. Its first ones may wait for what another
 * communicator of the group has still to enqueue: the same collective of another rank, or one that other ranks enqueue first.
 * What is waited for when all argument memory is in use, or a stream is full (for half of it), must be of turns before.
 */
enum { TURN = COMM_WORKS / 4 };

/* Communicators that share a stream stay one after the other: on a stream what comes first must end first, and other ranks
 * may have called them in groups of their own. */
static int has_turn(const struct part *parts, size_t i, size_t most)
{
	if (parts[i].over)
		return 0;
	for (size_t k = 0; most != SIZE_MAX && k < i; k++)
		if (!parts[k].over && share_stream(&parts[k], &parts[i]))
			return 0;
	return 1;
}

/* All of a group with one communicator, which most have. */
static void enqueue_one(struct part *p)
{
	p->calls[0].comm->launches->in_turns = false;
	p->r = find_streams(p);
	if (p->r == GANTRY_OK)
		enqueue(p, SIZE_MAX);
}

/* Of several communicators. */
static gantry_result enqueue_parts(struct part *parts, size_t n)
{
	size_t most = SIZE_MAX, left = n;

	for (size_t i = 0; i < n; i++) {
		TRY_NOW(find_streams(&parts[i]));
		most = parts[i].n > TURN ? TURN : most;
		parts[i].calls[0].comm->launches->in_turns = true;
	}
	while (left) {
		for (size_t i = 0; i < n; i++) {
			if (!has_turn(parts, i, most))
				continue;
			enqueue(&parts[i], most);
			left -= (size_t)parts[i].over;
		}
	}
	for (size_t i = 0; i < n; i++)
		TRY_NOW(parts[i].r);
	return GANTRY_OK;
}

/* ---- a thread's group ---- */

/* The calls of this thread's open group. The array is kept from group to group and ends with its thread. */
static _Thread_local struct {
	struct comm_call *calls;
	size_t n, capacity;
	int depth;
	gantry_result error; /* of a call within the group: the whole group fails */
} group;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its only use is to be destroyed when a thread ends */
static int has_key;

static void thread_ends(void *arg)
{
	(void)arg;
	free(group.calls);
	group.calls = NULL;
	group.n = group.capacity = 0;
}

static void make_key(void)
{
	has_key = !pthread_key_create(&key, thread_ends);
}

/* If the library is unloaded, threads must not come back to thread_ends. */
__attribute__((destructor)) static void delete_key(void)
{
	if (has_key)
		pthread_key_delete(key);
}

static gantry_result grow_group(void)
{
	size_t capacity = group.capacity ? group.capacity * 2 : 64;
	struct comm_call *calls = realloc(group.calls, capacity * sizeof(*calls));

	if (!calls)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a group of %zu calls", capacity);
	group.calls = calls;
	group.capacity = capacity;
	pthread_once(&key_once, make_key);
	if (has_key)
		pthread_setspecific(key, &key);
	return GANTRY_OK;
}

static void parts_free(struct part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (parts[i].nstreams > 1)
			free(parts[i].streams);
}

/* The calls of each communicator in their order; few communicators per group, so the search is short. */
static gantry_result enqueue_all(struct comm_call *calls, size_t n)
{
	gantry_result r = GANTRY_OK;
	struct part one = {.calls = calls, .n = n}, *parts = NULL;
	struct comm_call *sorted = NULL;
	size_t nparts = 0, at = 0;
	int same = 1;

	for (size_t i = 1; i < n; i++)
		same &= calls[i].comm == calls[0].comm;
	if (same) {
		enqueue_one(&one);
		parts_free(&one, 1);
		return one.r;
	}
	sorted = malloc(n * sizeof(*sorted));
	parts = calloc(n, sizeof(*parts));
	if (!sorted || !parts)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a group of %zu calls", n);
	for (size_t i = 0; i < n; i++) {
		struct gantry_comm *comm = calls[i].comm;
		struct part *p = &parts[nparts];

		for (size_t k = i; comm && k < n; k++) {
			if (calls[k].comm != comm)
				continue;
			p->calls = p->calls ? p->calls : &sorted[at];
			sorted[at++] = calls[k];
			p->n++;
			calls[k].comm = NULL; /* taken */
		}
		nparts += comm != NULL;
	}
	r = enqueue_parts(parts, nparts);
out:
	if (parts)
		parts_free(parts, nparts);
	free(parts);
	free(sorted);
	return r;
}

/* The connections that the group needs. Most groups have none that is not made. */
static gantry_result connect_all(const struct comm_call *calls, size_t n)
{
	gantry_result r = GANTRY_OK;
	struct comm_need *needs = NULL;
	size_t total = 0, at = 0;

	for (size_t i = 0; i < n; i++)
		total += comm_needs(&calls[i], NULL);
	if (!total)
		return GANTRY_OK;
	needs = malloc(total * sizeof(*needs));
	if (!needs)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %zu connections", total);
	for (size_t i = 0; i < n; i++)
		at += comm_needs(&calls[i], needs + at);
	TRY(comm_connect(needs, total));
out:
	free(needs);
	return r;
}

gantry_result comm_group_run(struct comm_call *calls, size_t n)
{
	TRY_NOW(connect_all(calls, n));
	return enqueue_all(calls, n);
}

static gantry_result run_or_later(struct comm_call *calls, size_t n)
{
	return comm_group_is_later(calls, n) ? comm_group_later(calls, n) : comm_group_run(calls, n);
}

gantry_result gantry_group_start(void)
{
	group.depth++;
	return GANTRY_OK;
}

gantry_result gantry_group_end(void)
{
	size_t n = group.n;

	if (!group.depth)
		FAIL_NOW(GANTRY_ERR_USAGE, "gantry_group_end without gantry_group_start");
	if (group.depth > 1) {
		group.depth--;
		return GANTRY_OK;
	}
	TRY_NOW(comm_group_drop());
	return n ? run_or_later(group.calls, n) : GANTRY_OK;
}

int comm_group_depth(void)
{
	return group.depth;
}

gantry_result comm_group_error(void)
{
	return group.error;
}

gantry_result comm_group_fail(gantry_result r)
{
	if (group.depth && r != GANTRY_OK && r != GANTRY_AGAIN && group.error == GANTRY_OK)
		group.error = r;
	return r;
}

gantry_result comm_group_drop(void)
{
	gantry_result r = group.error;

	group.depth = 0;
	group.n = 0;
	group.error = GANTRY_OK;
	return r;
}

gantry_result comm_group_add(gantry_result r, struct comm_call *call)
{
	if (r == GANTRY_OK && !group.depth)
		return run_or_later(call, 1);
	if (r == GANTRY_OK && group.n == group.capacity)
		r = grow_group();
	if (r == GANTRY_OK)
		group.calls[group.n++] = *call;
	return comm_group_fail(r);
}
