/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer's part of a job against ranks that the script plays, over a network that the script plays too.
 *
 *   byte 0   how many ranks, and whether one of them is in this process
 *   then operations, each a byte modulo OPS and its arguments (enum op below)
 *
 * What must hold:
 *  - Counters keep the order that group.h states. Whatever is sent is a message: RESULT in the order of pieces, or FAILED.
 *  - Ranks that keep to the protocol have no error, and all of them get the results that all have sent the pieces of.
 *  - Nothing outside of buffers is read or written (with the sanitizers).
 *
 * wrap: gantry_net_tcp gantry_net_tcp_peer
 */
#include <stdbool.h>

#include "gantry/types.h"
#include "reducer/group.h"
#include "script.h"
#include "test.h"

enum { RANKS = 3, REQUESTS = 64, QUEUE = 32, STEPS = 400, DRAIN = 100 };
enum op {
	OP_PIECE,    /* rank: its next piece, as all ranks cut it */
	OP_LIE,	     /* rank, place, value: the same with another byte */
	OP_BYTES,    /* rank, how many, which: any message */
	OP_PROGRESS, /* how often */
	OP_LATER,    /* the network takes no requests, or no longer */
	OP_HELD,     /* rank: its results are not taken, or are again */
	OP_GONE,     /* rank, how: its connections end */
	OP_END,	     /* the process ends */
	OPS
};

struct message {
	size_t size;
	uint8_t *bytes; /* owned: a block of its size */
};

struct request {
	int used, sends, done, got;
	int rank;
	uint8_t *data;
	size_t size;
	gantry_result error;
};

static struct {
	struct script in;
	struct reducer_group *g;
	struct net_mesh_end ends[RANKS];
	int ranks, later, crooked;
	struct request requests[REQUESTS];
	struct {
		struct message arriving[QUEUE];
		struct request *posted[REQUESTS];
		uint32_t here, taken, nposted, filled; /* messages, receives */
		uint64_t pieces, results;
		int held;
		gantry_result gone;
	} rank[RANKS];
} run;

struct gantry_net *__wrap_gantry_net_tcp(void);
const char *__wrap_gantry_net_tcp_peer(const void *comm);

/* ---- the network ---- */

static int rank_of(const void *comm)
{
	return (int)((const struct net_mesh_end *)comm - run.ends);
}

static struct request *take_request(int rank, int sends, void *data, size_t size)
{
	for (int i = 0; i < REQUESTS && !run.later; i++)
		if (!run.requests[i].used) {
			run.requests[i] =
				(struct request){.used = 1, .sends = sends, .rank = rank, .data = data, .size = size};
			return &run.requests[i];
		}
	return NULL;
}

static void deliver(int k)
{
	while (run.rank[k].filled < run.rank[k].nposted && run.rank[k].taken < run.rank[k].here) {
		struct request *q = run.rank[k].posted[run.rank[k].filled++ % REQUESTS];
		struct message *m = &run.rank[k].arriving[run.rank[k].taken++ % QUEUE];

		q->done = 1;
		q->got = (int)m->size;
		if (m->size > q->size)
			q->error = GANTRY_ERR_SIZE;
		else if (m->size)
			memcpy(q->data, m->bytes, m->size);
		free(m->bytes);
	}
}

static gantry_result fake_irecv(struct gantry_net *net, void *comm, int n, void **data, const size_t *sizes,
				const int *tags, void **mrs, void **request)
{
	int k = rank_of(comm);

	MUST(n == 1 && tags[0] == REDUCER_TAG_DATA);
	if (run.rank[k].gone != GANTRY_OK)
		return run.rank[k].gone;
	*request = take_request(k, 0, data[0], sizes[0]);
	if (*request)
		run.rank[k].posted[run.rank[k].nposted++ % REQUESTS] = *request;
	deliver(k);
	return GANTRY_OK;
}

static void hear_result(int k, const uint8_t *data, size_t size)
{
	struct reducer_message m;

	MUST(reducer_decode(data, size, &m) == GANTRY_OK);
	MUST(m.kind == REDUCER_RESULT || m.kind == REDUCER_FAILED);
	if (m.kind == REDUCER_FAILED) {
		MUST(run.crooked && m.failed.rank < (uint32_t)run.ranks && m.failed.other < (uint32_t)run.ranks);
	} else {
		MUST(size == REDUCER_HEADER + (reducer_gets(&m.piece, (uint32_t)k) ? m.piece.bytes : 0));
		MUST(run.crooked || m.piece.seq == run.rank[k].results);
		run.rank[k].results++;
	}
}

static gantry_result fake_isend(struct gantry_net *net, void *comm, void *data, size_t size, int tag, void *mr,
				void **ret_request)
{
	int k = rank_of(comm);

	MUST(tag == REDUCER_TAG_RESULT);
	if (run.rank[k].gone != GANTRY_OK)
		return run.rank[k].gone;
	*ret_request = take_request(k, 1, data, size);
	if (*ret_request)
		hear_result(k, data, size);
	return GANTRY_OK;
}

static gantry_result fake_test(struct gantry_net *net, void *request, int *ret_done, int *sizes)
{
	struct request *q = request;
	gantry_result r = q->error;

	MUST(q->used);
	if (r == GANTRY_OK && !q->done && run.rank[q->rank].gone != GANTRY_OK)
		r = run.rank[q->rank].gone;
	*ret_done = q->sends ? !run.rank[q->rank].held : q->done;
	if (sizes)
		*sizes = q->got;
	q->used = r == GANTRY_OK && !*ret_done;
	return r;
}

struct gantry_net *__wrap_gantry_net_tcp(void)
{
	static const struct gantry_net_ops ops = {.isend = fake_isend, .irecv = fake_irecv, .test = fake_test};
	static struct gantry_net net = {.ops = &ops};

	return &net;
}

const char *__wrap_gantry_net_tcp_peer(const void *comm)
{
	return "a rank";
}

/* ---- the ranks ---- */

/* The n-th piece, as all ranks cut it. */
static struct reducer_piece piece_at(uint64_t n)
{
	return (struct reducer_piece){.coll = (uint8_t)(n % REDUCER_COLLS),
				      .type = GANTRY_TYPE_INT32,
				      .op = GANTRY_OP_SUM,
				      .owner = (uint32_t)(n % (uint64_t)run.ranks),
				      .seq = n,
				      .bytes = 4 * (1 + n % 16),
				      .total = 64};
}

static void arrive(int k, const uint8_t *bytes, size_t size)
{
	if (run.rank[k].here - run.rank[k].taken == QUEUE)
		return;
	run.rank[k].arriving[run.rank[k].here++ % QUEUE] = (struct message){size, script_copy(bytes, size, 0)};
	deliver(k);
}

static void send_piece(int k, int at, int value)
{
	struct reducer_message m = {.kind = REDUCER_PIECE, .piece = piece_at(run.rank[k].pieces)};
	uint8_t out[REDUCER_HEADER + 64] = {0};

	if (run.rank[k].here - run.rank[k].taken == QUEUE)
		return;
	run.rank[k].pieces++;
	reducer_encode(&m, out);
	if (at >= 0)
		out[at] = (uint8_t)value;
	arrive(k, out, REDUCER_HEADER + (reducer_sends(&m.piece, (uint32_t)k) ? m.piece.bytes : 0));
}

/* The rank in this process. What it has to say it says with a call, as long as there is no error. */
static void put_own(int k)
{
	static int32_t from[16], to[16];
	struct reducer_piece p = piece_at(run.rank[k].pieces);
	const struct iovec src = {from, p.bytes}, dst = {to, p.bytes};

	if (run.g->error == GANTRY_OK)
		run.rank[k].pieces += (uint64_t)reducer_group_put(run.g, &p, &src, reducer_sends(&p, (uint32_t)k) != 0,
								  &dst, reducer_gets(&p, (uint32_t)k) != 0);
}

static void look(void)
{
	const struct reducer_group *g = run.g;

	MUST(g->retired <= g->reduced && g->reduced <= g->retired + REDUCER_WINDOW);
	MUST(run.crooked || g->error == GANTRY_OK);
	for (int k = 0; k < run.ranks && g->error == GANTRY_OK; k++) {
		const struct reducer_member *m = &g->members[k];

		MUST(m->gone != GANTRY_OK ||
		     (m->confirmed <= m->sent && m->sent <= g->reduced && g->reduced <= m->arrived));
		MUST(m->arrived <= m->posted && m->posted <= g->reduced + 2 * REDUCER_WINDOW);
	}
}

static void act(enum op op, int k)
{
	bool own = run.g->own == (uint32_t)k;
	uint8_t bytes[64], at, value;
	size_t n;

	switch (op) {
	case OP_PIECE:
	case OP_LIE:
		at = op == OP_LIE ? script_next(&run.in) : 0;
		value = op == OP_LIE ? script_next(&run.in) : 0;
		run.crooked |= op == OP_LIE && !own;
		if (own)
			put_own(k);
		else
			send_piece(k, op == OP_LIE ? at % REDUCER_HEADER : -1, value);
		break;
	case OP_BYTES:
		n = script_bytes(&run.in, bytes);
		run.crooked |= !own;
		if (!own)
			arrive(k, bytes, n);
		break;
	case OP_PROGRESS:
		for (int i = script_next(&run.in) % 8; i >= 0; i--)
			reducer_group_progress(run.g);
		break;
	case OP_LATER:
		run.later ^= 1;
		break;
	case OP_HELD:
		run.rank[k].held ^= 1;
		break;
	case OP_GONE:
		run.crooked |= !own;
		if (!own)
			run.rank[k].gone = script_next(&run.in) % 2 ? GANTRY_ERR_PEER_CLOSED : GANTRY_ERR_PEER_LOST;
		break;
	case OP_END:
		run.crooked = 1;
		reducer_group_end(run.g);
		break;
	case OPS:
		break;
	}
}

/* Everything that can be done is. */
static void drain(void)
{
	uint64_t least = UINT64_MAX;

	run.later = 0;
	for (int k = 0; k < run.ranks; k++)
		run.rank[k].held = 0;
	for (int i = 0; i < DRAIN; i++)
		reducer_group_progress(run.g);
	look();
	for (int k = 0; k < run.ranks; k++)
		least = run.rank[k].pieces < least ? run.rank[k].pieces : least;
	for (int k = 0; k < run.ranks && !run.crooked; k++)
		MUST(run.g->own == (uint32_t)k || run.rank[k].results == least);
	MUST(run.crooked || run.g->retired == least);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t how;

	logs_drop();
	memset(&run, 0, sizeof(run));
	run.in = (struct script){data, data + size};
	how = script_next(&run.in);
	run.ranks = 1 + how % RANKS;
	for (int k = 0; k < run.ranks; k++)
		run.ends[k] = (struct net_mesh_end){&run.ends[k], &run.ends[k]};
	MUST(reducer_group_create((uint32_t)run.ranks, how & 128 ? how / 4 % (uint32_t)run.ranks : REDUCER_NO_RANK,
				  run.ends, &run.g) == GANTRY_OK);
	for (int i = 0; i < STEPS && run.in.at < run.in.end; i++) {
		enum op op = script_next(&run.in) % OPS;

		act(op, script_next(&run.in) % run.ranks);
		look();
	}
	drain();
	for (int k = 0; k < run.ranks; k++)
		while (run.rank[k].taken < run.rank[k].here)
			free(run.rank[k].arriving[run.rank[k].taken++ % QUEUE].bytes);
	reducer_group_destroy(run.g);
	return 0;
}
