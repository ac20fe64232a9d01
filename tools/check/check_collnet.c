/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules on collNet, called as NCCL 2.28 calls it (src/transport/coll_net.cc). Four ranks, two in each process, each a
 * thread of its own:
 *
 *   listen    on each rank; the handles go to all
 *   connect   one call that may wait until all ranks are there. An error, or success without a comm, makes NCCL go on
 *             without collNet, without a word. closeListen follows at once.
 *   operations  in the same order on all ranks, 8 in flight, the oldest is tested. A NULL request is tried again. `done`
 *             is 1 when test is called, the size is garbage, and nothing reads it.
 *
 * Buffers are host memory; NCCL registers them twice, for the sending and for the receiving side.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/collnet_v12.h"
#include "base/clock.h"
#include "base/log.h"
#include "check/check.h"
#include "check/check_numbers.h"

enum {
	RANKS = CHECK_RANKS,
	PER = RANKS / 2, /* ranks of a process */
	OPS = ncclMin + 1,
	OPS_MAX = 128,
	SLOT = 1 << 19, /* eight channels of 64 KiB */
	ARENA = CHECK_STEPS * 2 * (SLOT + CHECK_GUARD),
	LATE_MS = 200,
	CLOSE_MS = 1000,
	LATE_ROUNDS = 3,
	WORLDS = 2,
};

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };

/* One operation, the same on all ranks. Windows are bytes of all ranks' parts one after the other. */
struct op {
	enum kind kind;
	ncclDataType_t type;
	ncclRedOp_t red;
	size_t per_rank, offset, bytes; /* allreduce: bytes alone */
	size_t garbage;			/* bytes at its end that are not read, NaNs among them */
	int in_place;
};

struct rank {
	struct world *w;
	int rank;
	enum check_thread thread; /* its place in the status page */
	void *ctx, *listen, *comm, *mr[2];
	uint8_t *arena; /* owned: for each operation in flight what is sent and what is received */
	void *request[CHECK_STEPS];
	int posted, done;
	unsigned late_ms;
	uint64_t longest_ns; /* of its calls */
};

struct world {
	struct check_side *s;
	struct rank rank[PER];
	uint8_t handles[RANKS][GANTRY_NET_HANDLE_SIZE];
	const struct op *ops;
	int nops;
	ncclResult_t error[PER];
};

/* ---- one table for all versions ---- */

#define TABLE(s, version) ((const ncclCollNet_v##version##_t *)(s)->table)

static void must(struct check_side *s, ncclResult_t r, const char *call)
{
	if (r != ncclSuccess)
		check_fail(s, "%s gave %d, phase: %s", call, (int)r, s->me->phase);
}
static void call_left(struct rank *r, uint64_t since)
{
	uint64_t took = gantry_now_ns() - since;

	check_leave(r->w->s, r->thread, since);
	r->longest_ns = took > r->longest_ns ? took : r->longest_ns;
}
#define CALL(r, name, expr)                                                                                            \
	__extension__({                                                                                                \
		uint64_t call_since_ = check_enter((r)->w->s, (r)->thread, name);                                      \
		ncclResult_t call_r_ = (expr);                                                                         \
		call_left(r, call_since_);                                                                             \
		call_r_;                                                                                               \
	})
#define MUST(r, name, expr) must((r)->w->s, CALL(r, name, expr), name)
/* Entries that came to stand behind those of v8. */
#define MOVED(s, entry, ...) ((s)->version < 8 ? TABLE(s, 7)->entry(__VA_ARGS__) : TABLE(s, 12)->entry(__VA_ARGS__))

/* An error, and no device, are a refusal: NCCL goes on without collNet. Before v11 init comes once. */
static void coll_init(struct rank *r)
{
	struct check_side *s = r->w->s;
	ncclDebugLogger_t log = gantry_loader_logger(s->loader);
	ncclResult_t result = ncclSuccess;
	int n;

	if (s->version >= 11)
		result = CALL(r, "init", TABLE(s, 12)->init(&r->ctx, 0x636f6c6c, log));
	else if (r == r->w->rank)
		result = CALL(r, "init", TABLE(s, 7)->init(log));
	if (result != ncclSuccess)
		check_skip(s, "init gives %d: NCCL goes on without collNet", (int)result);
	memset(&n, GANTRY_NET_UNWRITTEN, sizeof(n));
	if (CALL(r, "devices", TABLE(s, 7)->devices(&n)) != ncclSuccess || n < 1)
		check_skip(s, "no device: NCCL goes on without collNet");
	s->devices = n;
}

static void coll_finalize(struct rank *r)
{
	struct check_side *s = r->w->s;

	if (s->version >= 11)
		MUST(r, "finalize", TABLE(s, 12)->finalize(r->ctx));
}

struct coll_properties {
	const char *name;
	int ptr_support, speed;
	size_t max_bytes;
};

#define PROPERTIES(version)                                                                                            \
	static ncclResult_t properties_v##version(const struct check_side *s, int dev, struct coll_properties *ret)    \
	{                                                                                                              \
		ncclNetProperties_v##version##_t p;                                                                    \
		ncclResult_t r;                                                                                        \
                                                                                                                       \
		memset(&p, GANTRY_NET_UNWRITTEN, sizeof(p));                                                           \
		r = TABLE(s, version)->getProperties(dev, &p);                                                         \
		ret->name = p.name;                                                                                    \
		ret->ptr_support = p.ptrSupport;                                                                       \
		ret->speed = p.speed;                                                                                  \
		ret->max_bytes = MAX_BYTES_##version(p);                                                               \
		return r;                                                                                              \
	}
#define MAX_BYTES_6(p) NCCL_MAX_COLLNET_SIZE_BYTES
#define MAX_BYTES_7(p) NCCL_MAX_COLLNET_SIZE_BYTES
#define MAX_BYTES_8(p) NCCL_MAX_COLLNET_SIZE_BYTES
#define MAX_BYTES_9(p) (p).maxCollBytes
#define MAX_BYTES_11(p) (p).maxCollBytes
#define MAX_BYTES_12(p) (p).maxCollBytes
PROPERTIES(6)
PROPERTIES(7)
PROPERTIES(8)
PROPERTIES(9)
PROPERTIES(11)
PROPERTIES(12)

static void coll_properties(struct rank *r, int dev, struct coll_properties *ret)
{
	static ncclResult_t (*const of[])(const struct check_side *, int, struct coll_properties *) = {
		[6] = properties_v6,  [7] = properties_v7,   [8] = properties_v8,  [9] = properties_v9,
		[10] = properties_v9, [11] = properties_v11, [12] = properties_v12};

	MUST(r, "getProperties", of[r->w->s->version](r->w->s, dev, ret));
}

static void coll_listen(struct rank *r)
{
	struct check_side *s = r->w->s;
	uint8_t handle[3 * GANTRY_NET_HANDLE_SIZE];
	size_t at, rest = 2 * GANTRY_NET_HANDLE_SIZE;

	memset(handle, CHECK_POISON, sizeof(handle));
	memset(handle, 0, GANTRY_NET_HANDLE_SIZE);
	if (s->version < 11)
		MUST(r, "listen", TABLE(s, 7)->listen(0, handle, &r->listen));
	else
		MUST(r, "listen", TABLE(s, 12)->listen(r->ctx, 0, handle, &r->listen));
	at = check_untouched(handle + GANTRY_NET_HANDLE_SIZE, rest);
	if (at < rest)
		check_fail(s, "listen wrote byte %zu of a handle of %d bytes", GANTRY_NET_HANDLE_SIZE + at,
			   GANTRY_NET_HANDLE_SIZE);
	memcpy(r->w->handles[r->rank], handle, GANTRY_NET_HANDLE_SIZE);
}

static void *coll_reg(struct rank *r, void *data, size_t size)
{
	struct check_side *s = r->w->s;
	void *mr = NULL;

	if (s->version < 8)
		MUST(r, "regMr", TABLE(s, 7)->regMr(r->comm, data, (int)size, NCCL_PTR_HOST, &mr));
	else
		MUST(r, "regMr", TABLE(s, 12)->regMr(r->comm, data, size, NCCL_PTR_HOST, &mr));
	return mr;
}

/* The part of an operation's window that is a rank's own. */
static size_t own_part(const struct op *o, int rank, size_t *ret_offset)
{
	size_t begin = o->per_rank * (size_t)rank, end = begin + o->per_rank;

	begin = begin < o->offset ? o->offset : begin;
	end = end > o->offset + o->bytes ? o->offset + o->bytes : end;
	*ret_offset = begin - o->offset;
	return begin < end ? end - begin : 0;
}

static ncclResult_t call_gather(struct rank *r, const struct op *o, uint8_t *send, uint8_t *recv, void **request)
{
	struct check_side *s = r->w->s;
	ncclNetSGE_v9_t part = {r->mr[1], recv, o->bytes};
	ncclNetSGE_v8_t part8 = {r->mr[1], recv, (uint32_t)o->bytes};

	if (s->version == 8)
		return TABLE(s, 8)->iallgather(r->comm, send, 1, &part8, o->per_rank, o->offset, o->bytes, r->mr[0],
					       request);
	return TABLE(s, 12)->iallgather(r->comm, send, 1, &part, o->per_rank, o->offset, o->bytes, r->mr[0], request);
}

static ncclResult_t call_scatter(struct rank *r, const struct op *o, uint8_t *send, uint8_t *recv, void **request)
{
	struct check_side *s = r->w->s;
	ncclNetSGE_v9_t part = {r->mr[0], send, o->bytes};
	ncclNetSGE_v8_t part8 = {r->mr[0], send, (uint32_t)o->bytes};

	if (s->version == 8)
		return TABLE(s, 8)->ireducescatter(r->comm, 1, &part8, recv, o->per_rank, o->offset, o->bytes, o->type,
						   o->red, r->mr[1], request);
	return TABLE(s, 12)->ireducescatter(r->comm, 1, &part, recv, o->per_rank, o->offset, o->bytes, o->type, o->red,
					    r->mr[1], request);
}

/* Bytes that a rank sends and gets, and where in the window. */
static void shape(const struct op *o, int rank, size_t *ret_send, size_t *ret_recv, size_t *ret_offset)
{
	size_t part = own_part(o, rank, ret_offset);

	*ret_send = o->kind == ALL_GATHER ? part : o->bytes;
	*ret_recv = o->kind == REDUCE_SCATTER ? part : o->bytes;
	if (o->kind == ALL_REDUCE)
		*ret_offset = 0;
}

static uint8_t *slot_of(const struct rank *r, int k, int side)
{
	return r->arena + (size_t)(k % CHECK_STEPS * 2 + side) * (SLOT + CHECK_GUARD);
}

/* Fills what operation k sends, and poisons where its result goes. */
static void prepare(struct rank *r, int k)
{
	const struct op *o = &r->w->ops[k];
	uint8_t *send = slot_of(r, k, 0), *recv = slot_of(r, k, !o->in_place);
	size_t n, out, offset;

	shape(o, r->rank, &n, &out, &offset);
	memset(recv, CHECK_POISON, SLOT + CHECK_GUARD);
	memset(send, CHECK_POISON, SLOT + CHECK_GUARD);
	if (o->kind == ALL_GATHER) /* each part is its own rank's */
		check_numbers(o->type, o->red, k, r->rank, o->offset + offset, n, send);
	else
		check_numbers(o->type, o->red, k, r->rank, o->offset, n, send);
	memset(send + n - o->garbage, 0xff, o->garbage);
}

/* 1: taken; 0: later. An error ends the rule, unless the caller waits for one. */
static int post(struct rank *r, int k, ncclResult_t *ret_result)
{
	const struct op *o = &r->w->ops[k];
	uint8_t *send = slot_of(r, k, 0), *recv = slot_of(r, k, !o->in_place);
	size_t count = o->bytes / check_type_size(o->type);
	struct check_side *s = r->w->s;
	void **request = &r->request[k % CHECK_STEPS];

	*request = NULL;
	if (o->kind == ALL_GATHER)
		*ret_result = CALL(r, "iallgather", call_gather(r, o, send, recv, request));
	else if (o->kind == REDUCE_SCATTER)
		*ret_result = CALL(r, "ireducescatter", call_scatter(r, o, send, recv, request));
	else if (s->version < 9)
		*ret_result = CALL(r, "iallreduce",
				   TABLE(s, 7)->iallreduce(r->comm, send, recv, (int)count, o->type, o->red, r->mr[0],
							   r->mr[1], request));
	else
		*ret_result = CALL(r, "iallreduce",
				   TABLE(s, 12)->iallreduce(r->comm, send, recv, count, o->type, o->red, r->mr[0],
							    r->mr[1], request));
	return *ret_result == ncclSuccess && *request;
}

static void wrong(const struct rank *r, int k, const char *what, size_t at)
{
	static const char *const names[] = {"allreduce", "allgather", "reducescatter"};
	const struct op *o = &r->w->ops[k];

	check_fail(r->w->s, "rank %d, %s %d (%zu bytes, type %d, operation %d%s): byte %zu %s", r->rank, names[o->kind],
		   k, o->bytes, (int)o->type, (int)o->red, o->in_place ? ", in place" : "", at, what);
}

/* What has arrived, and what must not have been touched. */
static void compare(struct rank *r, int k)
{
	const struct op *o = &r->w->ops[k];
	uint8_t *recv = slot_of(r, k, !o->in_place), *want = check_alloc(r->w->s, 1, SLOT);
	size_t in, n, offset, at;

	shape(o, r->rank, &in, &n, &offset);
	if (o->kind == ALL_GATHER)
		for (int from = 0; from < RANKS; from++) {
			size_t part = own_part(o, from, &at);

			check_numbers(o->type, o->red, k, from, o->offset + at, part, want + at);
		}
	else
		check_numbers(o->type, o->red, k, -1, o->offset + offset, n, want);
	for (at = 0; at < n - o->garbage; at++)
		if (recv[at] != want[at])
			wrong(r, k, "is not the result", at);
	at = check_untouched(recv + n, SLOT + CHECK_GUARD - n);
	if (at < SLOT + CHECK_GUARD - n)
		wrong(r, k, "past the result was overwritten", n + at);
	if (!o->in_place) {
		check_numbers(o->type, o->red, k, r->rank, o->kind == ALL_GATHER ? o->offset + offset : o->offset,
			      in - o->garbage, want);
		for (at = 0; at < in - o->garbage; at++)
			if (slot_of(r, k, 0)[at] != want[at])
				wrong(r, k, "of what it sends was changed", at);
	}
	free(want);
}

/* Posts and tests as NCCL does, until all are done or one ends in an error, which is returned. */
static ncclResult_t run_ops(struct rank *r)
{
	struct check_side *s = r->w->s;
	ncclResult_t result = ncclSuccess;
	int prepared = r->posted;

	while (r->done < r->w->nops && result == ncclSuccess) {
		int done = 1, size = -1, moved = 0;

		for (int taken = 1; taken && r->posted < r->w->nops && r->posted - r->done < CHECK_STEPS;) {
			if (prepared == r->posted)
				prepare(r, prepared++);
			taken = post(r, r->posted, &result);
			r->posted += taken;
			moved |= taken;
		}
		if (result == ncclSuccess && r->done < r->posted) {
			result = CALL(r, "test", MOVED(s, test, r->request[r->done % CHECK_STEPS], &done, &size));
			if (result == ncclSuccess && done)
				compare(r, r->done++);
			moved |= done;
		}
		if (!check_left_ns(s))
			check_fail(s, "rank %d: operation %d of %d is not done, phase: %s", r->rank, r->done,
				   r->w->nops, s->me->phase);
		if (!moved)
			sched_yield();
	}
	return result;
}

/* ---- ranks ---- */

static void each_rank(struct world *w, void *(*fn)(void *))
{
	pthread_t thread[PER];

	for (int i = 0; i < PER; i++)
		if (pthread_create(&thread[i], NULL, fn, &w->rank[i]) != 0)
			check_fail(w->s, "cannot start a thread: %s", strerror(errno));
	for (int i = 0; i < PER; i++)
		pthread_join(thread[i], NULL);
}

static void *connect_rank(void *arg)
{
	struct rank *r = arg;
	struct check_side *s = r->w->s;
	void *handles[RANKS];

	for (int i = 0; i < RANKS; i++)
		handles[i] = r->w->handles[i];
	check_sleep_ms(r->late_ms);
	MUST(r, "connect", TABLE(s, 7)->connect(handles, RANKS, r->rank, r->listen, &r->comm));
	if (!r->comm)
		check_fail(s, "connect of rank %d succeeded without a comm: NCCL goes on without collNet", r->rank);
	MUST(r, "closeListen", MOVED(s, closeListen, r->listen));
	r->arena = check_alloc(s, 1, ARENA);
	for (int i = 0; i < 2; i++)
		r->mr[i] = coll_reg(r, r->arena, ARENA);
	return NULL;
}

static void world_init(struct check_side *s, struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->s = s;
	for (int i = 0; i < PER; i++) {
		w->rank[i].w = w;
		w->rank[i].rank = s->role * PER + i;
		w->rank[i].thread = (enum check_thread)i;
		coll_init(&w->rank[i]);
	}
}

/* late_ms: of the last rank. */
static void world_connect(struct world *w, unsigned late_ms)
{
	struct check_side *s = w->s;
	size_t part = PER * (size_t)GANTRY_NET_HANDLE_SIZE;

	for (int i = 0; i < PER; i++)
		coll_listen(&w->rank[i]);
	check_tell(s, w->handles[s->role * PER], part);
	check_hear(s, w->handles[!s->role * PER], part);
	w->rank[PER - 1].late_ms = s->role ? late_ms : 0;
	check_phase(s, "connecting %d ranks", RANKS);
	each_rank(w, connect_rank);
	check_meet(s);
}

static void world_open(struct check_side *s, struct world *w, unsigned late_ms)
{
	world_init(s, w);
	world_connect(w, late_ms);
}

static void *run_rank(void *arg)
{
	struct rank *r = arg;

	check_sleep_ms(r->late_ms);
	must(r->w->s, run_ops(r), "an operation");
	return NULL;
}

static void world_run(struct world *w, const struct op *ops, int n)
{
	w->ops = ops;
	w->nops = n;
	for (int i = 0; i < PER; i++)
		w->rank[i].longest_ns = 0, w->rank[i].posted = w->rank[i].done = 0;
	each_rank(w, run_rank);
	check_meet(w->s);
}

static void dereg(struct rank *r)
{
	for (int i = 0; i < 2; i++)
		MUST(r, "deregMr", TABLE(r->w->s, 7)->deregMr(r->comm, r->mr[i]));
}

static void close_rank(struct rank *r)
{
	uint64_t since = gantry_now_ns(), took;

	dereg(r);
	MUST(r, "closeColl", MOVED(r->w->s, closeColl, r->comm));
	took = gantry_now_ns() - since;
	if (took > CLOSE_MS * (uint64_t)r->w->s->stretch * CHECK_MS)
		check_late(r->w->s, "closeColl took %.1f s, phase: %s", (double)took / 1e9, r->w->s->me->phase);
}

static void world_close(struct world *w)
{
	check_phase(w->s, "closing");
	for (int i = 0; i < PER; i++) {
		close_rank(&w->rank[i]);
		free(w->rank[i].arena);
		coll_finalize(&w->rank[i]);
	}
}

/* ---- rules ---- */

static int supported(struct rank *r, int type, int red)
{
	int yes = 0;

	MUST(r, "reduceSupport", TABLE(r->w->s, 7)->reduceSupport((ncclDataType_t)type, (ncclRedOp_t)red, &yes));
	return yes != 0;
}

/* A type and an operation that are to be had, floats before others. */
static void choose(struct world *w, struct op *o)
{
	static const ncclDataType_t order[] = {ncclFloat32, ncclInt32, ncclFloat16, ncclInt64, ncclFloat64};

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		if (supported(&w->rank[0], (int)order[i], ncclSum)) {
			o->type = order[i];
			o->red = ncclSum;
			return;
		}
	check_skip(w->s, "reduceSupport: no sum of the usual types");
}

/* The same allreduce n times. */
static void same_ops(struct world *w, struct op *ops, int n)
{
	ops[0] = (struct op){.kind = ALL_REDUCE, .bytes = SLOT / 4};
	choose(w, &ops[0]);
	for (int i = 1; i < n; i++)
		ops[i] = ops[0];
}

static void rule_table(struct check_side *s)
{
	static const struct {
		const char *name;
		int at, at_v8;
		int since;
	} entries[] = {{"devices", 2, 2, 6},	 {"getProperties", 3, 3, 6}, {"listen", 4, 4, 6},
		       {"connect", 5, 5, 6},	 {"reduceSupport", 6, 6, 6}, {"regMr", 7, 7, 6},
		       {"deregMr", 9, 9, 6},	 {"iallreduce", 10, 10, 6},  {"test", 12, 14, 6},
		       {"closeColl", 13, 15, 6}, {"closeListen", 14, 16, 6}, {"finalize", 18, 18, 11}};
	const void *const *t = s->table;
	struct world w;

	if (!t[1])
		check_fail(s, "init is NULL, and NCCL calls it without looking");
	world_init(s, &w); /* which may fill the table */
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
		if (entries[i].since <= s->version && !t[s->version < 8 ? entries[i].at : entries[i].at_v8])
			check_fail(s, "%s is NULL, and NCCL calls it without looking", entries[i].name);
	for (int i = 0; i < PER; i++)
		coll_finalize(&w.rank[i]);
	check_note(s, "%s is named \"%s\"", s->symbol, t[0] ? (const char *)t[0] : "");
}

/* NCCL finds the device of a NIC by its name and number, as the network has them. */
static void rule_properties(struct check_side *s)
{
	struct world w;
	int net_devices = s->devices;

	world_init(s, &w);
	if (s->net && s->devices > net_devices)
		check_fail(s, "%d devices, and the network has %d: NCCL would use one that it does not have",
			   s->devices, net_devices);
	for (int dev = 0; dev < s->devices; dev++) {
		struct coll_properties p = {0};
		struct gantry_net_properties net = {0};

		coll_properties(&w.rank[0], dev, &p);
		if (check_unwritten(&p.name, sizeof(p.name)) || !p.name || check_unwritten(&p.speed, sizeof(p.speed)))
			check_fail(s, "device %d: getProperties wrote no name or no speed", dev);
		if (!(p.ptr_support & NCCL_PTR_HOST))
			check_fail(s, "device %d: ptrSupport is 0x%x, without host memory", dev, p.ptr_support);
		if (!p.max_bytes || p.max_bytes > NCCL_MAX_NET_SIZE_BYTES)
			check_fail(s, "device %d: maxCollBytes is %zu, not 1 to 2^40", dev, p.max_bytes);
		if (!s->net)
			continue;
		CHECK_MUST(s, CHECK_SERVICE, "getProperties", s->net->ops->get_properties(s->net, dev, &net));
		if (strcmp(net.name, p.name) != 0)
			check_fail(s, "device %d is \"%.60s\", and of the network \"%.60s\": NCCL finds no NIC", dev,
				   p.name, net.name);
	}
	for (int i = 0; i < PER; i++)
		coll_finalize(&w.rank[i]);
	check_note(s, "%d device%s, named as the network's", s->devices, s->devices == 1 ? "" : "s");
	s->devices = net_devices;
}

static void rule_connect(struct check_side *s)
{
	struct op o = {.kind = ALL_REDUCE, .bytes = 4096};
	static struct world w[WORLDS];

	/* Two communicators at once, the first with a rank that is late. */
	for (int i = 0; i < WORLDS; i++) {
		if (i && s->version < 11) { /* init came already */
			w[i] = w[0];
			for (int k = 0; k < PER; k++)
				w[i].rank[k].w = &w[i];
			world_connect(&w[i], 0);
		} else {
			world_open(s, &w[i], i ? 0 : LATE_MS);
		}
	}
	choose(&w[0], &o);
	for (int i = 0; i < WORLDS; i++) {
		check_phase(s, "communicator %d of %d", i, WORLDS);
		world_run(&w[i], &o, 1);
	}
	for (int i = 0; i < WORLDS; i++)
		world_close(&w[i]);
	check_note(s, "%d communicators of %d ranks, one rank %d ms late", WORLDS, RANKS, LATE_MS);
}

static void rule_support(struct check_side *s)
{
	static const size_t counts[] = {1, 300};
	struct op ops[CHECK_TYPES * OPS * 2];
	struct world w;
	int n = 0;

	world_open(s, &w, 0);
	for (int type = 0; type < CHECK_TYPES; type++)
		for (int red = 0; red < OPS; red++)
			for (int i = 0; i < 2 && supported(&w.rank[0], type, red); i++)
				ops[n++] = (struct op){.kind = ALL_REDUCE,
						       .type = (ncclDataType_t)type,
						       .red = (ncclRedOp_t)red,
						       .bytes = check_type_size((ncclDataType_t)type) * counts[i]};
	check_phase(s, "each type and operation that reduceSupport names");
	world_run(&w, ops, n);
	world_close(&w);
	check_note(s, "%d of %d types and operations, and each reduces right", n / 2, CHECK_TYPES * OPS);
}

static void rule_allreduce(struct check_side *s)
{
	struct op ops[OPS_MAX];
	struct world w;
	int n = 0;

	world_open(s, &w, 0);
	for (size_t bytes = 8; bytes <= SLOT; bytes *= 4)
		for (int i = 0; i < 4; i++) {
			ops[n] = (struct op){.kind = ALL_REDUCE, .bytes = bytes, .in_place = i == 2};
			choose(&w, &ops[n]);
			ops[n].garbage = i == 3 && bytes > 64 ? 16 : 0; /* the end of a chunk that is not full */
			ops[n].bytes -= i == 1 ? check_type_size(ops[n].type) : 0;
			n++;
		}
	check_phase(s, "%d allreduces", n);
	world_run(&w, ops, n);
	world_close(&w);
	check_note(s, "%d allreduces of %d ranks up to %d KiB, some in place, some with garbage at the end", n, RANKS,
		   SLOT >> 10);
}

/* Windows that are all, end within ranks, are one rank's, or lie within one. */
static int windows(struct world *w, enum kind kind, struct op ops[OPS_MAX])
{
	static const size_t per[] = {64, 4000, 65536};
	struct op o = {.kind = kind};
	int n = 0;

	choose(w, &o);
	for (size_t i = 0; i < sizeof(per) / sizeof(per[0]); i++) {
		const size_t at[][2] = {
			{0, RANKS * per[i]},	 {per[i] / 2, per[i]}, {per[i], per[i]}, {3 * per[i] + 16, 16}, {0, 16},
			{per[i] / 2, 2 * per[i]}};

		for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
			ops[n] = o;
			ops[n].per_rank = per[i];
			ops[n].offset = at[k][0];
			ops[n++].bytes = at[k][1];
		}
	}
	return n;
}

static void windowed(struct check_side *s, enum kind kind, int entry, const char *name)
{
	struct op ops[OPS_MAX];
	struct world w;
	int n;

	if (s->version < 8)
		check_skip(s, "no %s before v8", name);
	if (!((const void *const *)s->table)[entry])
		check_skip(s, "%s is NULL: NCCL does without", name);
	world_open(s, &w, 0);
	n = windows(&w, kind, ops);
	check_phase(s, "%d of %s", n, name);
	world_run(&w, ops, n);
	world_close(&w);
	check_note(s, "%d windows of %s, some across ranks", n, name);
}

static void rule_allgather(struct check_side *s)
{
	windowed(s, ALL_GATHER, 11, "iallgather");
}

static void rule_reducescatter(struct check_side *s)
{
	windowed(s, REDUCE_SCATTER, 12, "ireducescatter");
}

/* A call that takes as long as the rank is late may be the scheduler's once, but not each time. */
static void rule_late(struct check_side *s)
{
	struct op ops[CHECK_STEPS * 2];
	int waited[PER] = {0};
	struct world w;

	world_open(s, &w, 0);
	same_ops(&w, ops, CHECK_STEPS * 2);
	w.rank[PER - 1].late_ms = s->role ? LATE_MS : 0;
	check_phase(s, "one rank posts %d ms late", LATE_MS);
	for (int round = 0; round < LATE_ROUNDS; round++) {
		world_run(&w, ops, CHECK_STEPS * 2);
		for (int i = 0; i < PER; i++)
			waited[i] += w.rank[i].longest_ns > LATE_MS * (uint64_t)CHECK_MS / 2;
	}
	for (int i = 0; i < PER; i++)
		if (waited[i] == LATE_ROUNDS)
			check_late(s,
				   "calls of rank %d take up to %.0f ms when another is %d ms late: they wait for it",
				   w.rank[i].rank, (double)w.rank[i].longest_ns / CHECK_MS, LATE_MS);
	world_close(&w);
	check_note(s, "a rank %d ms late: no error, and no call waits for it", LATE_MS);
}

static void *dying_rank(void *arg)
{
	struct rank *r = arg;

	r->w->error[r->rank % PER] = run_ops(r);
	return NULL;
}

/* A's ranks have operations in flight when B's are killed. */
static void rule_death(struct check_side *s)
{
	struct op ops[CHECK_STEPS];
	struct world w;
	pid_t pid = getpid();
	uint64_t since;

	world_open(s, &w, 0);
	same_ops(&w, ops, CHECK_STEPS);
	world_run(&w, ops, 2);
	if (s->role == 1) {
		check_tell(s, &pid, sizeof(pid));
		check_phase(s, "waiting to be killed");
		for (;;)
			pause();
	}
	check_hear(s, &pid, sizeof(pid));
	w.ops = ops;
	w.nops = CHECK_STEPS;
	for (int i = 0; i < PER; i++)
		w.rank[i].posted = w.rank[i].done = 0;
	s->shared->expect_death = 1;
	check_phase(s, "operations whose other ranks are dead");
	kill(pid, SIGKILL);
	since = gantry_now_ns();
	each_rank(&w, dying_rank); /* what is reported done has a wrong result */
	for (int i = 0; i < PER; i++)
		if (w.error[i] == ncclSuccess)
			check_fail(s, "rank %d: %d operations done without the others", i, CHECK_STEPS);
	check_note(s, "errors %d and %d, %.0f ms after the other ranks' death", (int)w.error[0], (int)w.error[1],
		   (double)(gantry_now_ns() - since) / CHECK_MS);
	world_close(&w);
}

/* Abort: the buffers are the user's again when closeColl returns. */
static void rule_close(struct check_side *s)
{
	struct op ops[CHECK_STEPS];
	struct world w;
	ncclResult_t result;

	world_open(s, &w, 0);
	same_ops(&w, ops, CHECK_STEPS);
	w.ops = ops;
	w.nops = CHECK_STEPS;
	for (int i = 0; i < PER - s->role; i++) /* one rank posts nothing */
		for (int k = 0; k < CHECK_STEPS; k++) {
			prepare(&w.rank[i], k);
			post(&w.rank[i], k, &result);
			must(s, result, "iallreduce");
		}
	check_meet(s);
	check_phase(s, "closing with %d operations in flight", CHECK_STEPS);
	for (int i = 0; i < PER; i++) {
		size_t at;

		close_rank(&w.rank[i]);
		memset(w.rank[i].arena, CHECK_POISON, ARENA);
		check_sleep_ms(30);
		at = check_untouched(w.rank[i].arena, ARENA);
		if (at < ARENA)
			check_fail(s, "byte %zu of a buffer was written after closeColl had returned", at);
		coll_finalize(&w.rank[i]);
	}
	check_meet(s);
	check_note(s, "closed with operations in flight");
}

const struct check_rule check_rules_collnet[] = {
	{"collnet-table", "after init no entry is NULL that NCCL calls without looking", rule_table, CHECK_ALONE, 0},
	{"collnet-properties", "devices are named as the network's and have a limit", rule_properties, CHECK_ALONE, 0},
	{"collnet-connect", "ranks connect, though one is late, in several communicators at once", rule_connect, 0, 0},
	{"collnet-support", "every type and operation that reduceSupport names is reduced right", rule_support, 0, 0},
	{"collnet-allreduce", "results are right and stay in their place, 8 operations in flight", rule_allreduce, 0,
	 0},
	{"collnet-allgather", "windows of iallgather, across ranks and within them", rule_allgather, 0, 0},
	{"collnet-reducescatter", "windows of ireducescatter, across ranks and within them", rule_reducescatter, 0, 0},
	{"collnet-late", "a rank that posts late is no error, and no call waits for it", rule_late, 0, 2000},
	{"collnet-death", "when ranks are killed, the operations of the others end in an error", rule_death, 0, 0},
	{"collnet-close", "closing with operations in flight returns within a second", rule_close, 0, 3000},
	{0},
};
