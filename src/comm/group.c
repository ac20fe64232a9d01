/* SPDX-License-Identifier: Apache-2.0 */
/* gantry_send, gantry_recv, and groups of them. A group belongs to a thread, as in NCCL. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"

/* The calls of this thread's open group. The array is kept from group to group and ends with its thread. */
static _Thread_local struct {
	struct comm_call *calls;
	size_t n, capacity;
	int depth;
	gantry_result error; /* of a call within the group: the whole group fails */
} group;

static const uint8_t type_bytes[GANTRY_TYPE_COUNT] = {
#define TYPE_BYTES(name, number, bytes, text) [number] = bytes,
	GANTRY_TYPES(TYPE_BYTES)
#undef TYPE_BYTES
};

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

static gantry_result grow(void)
{
	gantry_result r = GANTRY_OK;
	size_t capacity = group.capacity ? group.capacity * 2 : 64;
	struct comm_call *calls = realloc(group.calls, capacity * sizeof(*calls));

	if (!calls)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a group of %zu calls", capacity);
	group.calls = calls;
	group.capacity = capacity;
	pthread_once(&key_once, make_key);
	if (has_key)
		pthread_setspecific(key, &key);
out:
	return r;
}

/* The calls of one communicator in their order; few communicators per group, so the search is short. */
static gantry_result enqueue_all(struct comm_call *calls, size_t n)
{
	gantry_result r = GANTRY_OK, one;
	struct comm_call *part;
	int same = 1;

	for (size_t i = 1; i < n; i++)
		same &= calls[i].comm == calls[0].comm;
	if (same)
		return comm_enqueue(calls[0].comm, calls, n);
	part = malloc(n * sizeof(*part));
	if (!part)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a group of %zu calls", n);
	for (size_t i = 0; i < n; i++) {
		struct gantry_comm *comm = calls[i].comm;
		size_t m = 0;

		for (size_t k = i; comm && k < n; k++) {
			if (calls[k].comm != comm)
				continue;
			part[m++] = calls[k];
			calls[k].comm = NULL; /* taken */
		}
		one = comm ? comm_enqueue(comm, part, m) : GANTRY_OK;
		r = r == GANTRY_OK ? one : r;
	}
	free(part);
out:
	return r;
}

gantry_result gantry_group_start(void)
{
	group.depth++;
	return GANTRY_OK;
}

gantry_result gantry_group_end(void)
{
	gantry_result r = GANTRY_OK;
	size_t n = group.n;

	if (!group.depth)
		FAIL(GANTRY_ERR_USAGE, "gantry_group_end without gantry_group_start");
	if (--group.depth)
		return GANTRY_OK;
	group.n = 0;
	r = group.error;
	group.error = GANTRY_OK;
	if (r != GANTRY_OK || !n)
		return r;
	TRY(comm_connect(group.calls, n));
	TRY(enqueue_all(group.calls, n));
out:
	return r;
}

static gantry_result add(const struct comm_call *call)
{
	gantry_result r = GANTRY_OK;

	if (group.n == group.capacity)
		TRY(grow());
	group.calls[group.n++] = *call;
out:
	return r;
}

static gantry_result transfer(char *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			      struct gantry_stream *stream, int send)
{
	gantry_result r = GANTRY_OK, end;
	const char *what = send ? "gantry_send" : "gantry_recv";
	struct comm_call call = {.comm = comm, .stream = stream, .buf = buf, .peer = peer, .send = send};

	group.depth++;
	if (!comm || !stream)
		FAIL(GANTRY_ERR_INVALID, "%s: no communicator or no stream", what);
	if ((unsigned)type >= GANTRY_TYPE_COUNT)
		FAIL(GANTRY_ERR_INVALID, "%s: there is no type %d", what, (int)type);
	if (peer < 0 || peer >= comm->nranks)
		FAIL(GANTRY_ERR_INVALID, "%s: peer %d of %s", what, peer, COUNT_TEXT(comm->nranks, "rank"));
	if (count && !buf)
		FAIL(GANTRY_ERR_INVALID, "%s: %zu elements at NULL", what, count);
	if (count > GANTRY_SLOT_SIZE / type_bytes[type])
		FAIL(GANTRY_ERR_INVALID, "%s: %zu elements are too many", what, count);
	TRY(comm_check(comm));
	call.bytes = (uint64_t)count * type_bytes[type];
	TRY(add(&call));
out:
	if (r != GANTRY_OK && group.error == GANTRY_OK)
		group.error = r;
	end = gantry_group_end();
	return r == GANTRY_OK ? end : r;
}

gantry_result gantry_send(const void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			  struct gantry_stream *stream)
{
	return transfer((char *)(uintptr_t)buf, count, type, peer, comm, stream, 1);
}

gantry_result gantry_recv(void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			  struct gantry_stream *stream)
{
	return transfer(buf, count, type, peer, comm, stream, 0);
}
