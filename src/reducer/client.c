/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks' side. An operation is cut into pieces, which go to the reducers in turn, each in flight until its result is
 * there. Per reducer at most REDUCER_WINDOW are, and they begin and end in the same order:
 *
 *   ended <= sent <= begun <= ended + REDUCER_WINDOW
 *
 * The receive of a result is posted before its piece is sent, so results always find one.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "reducer/reducer_mesh.h"
#include "reducer/reach.h"
#include "reducer/reducer.h"
#include "reducer/sum.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum {
	SMALL = 8192,	   /* bytes of a message that is copied together rather than gathered by the network */
	SMOOTH = 64 << 10, /* see cut_of */
};

struct reducer_request {
	struct reducer_comm *comm; /* borrowed */
	int busy;
	uint8_t coll, type, op;
	uint64_t seq;
	size_t total, cut, issued; /* bytes: of it all, of a piece, in pieces that have begun */
	uint32_t pieces, left;	   /* begun, of these not ended */
	size_t per_rank, offset;   /* of the window; 0: all-reduce */
	uint32_t nsrc, ndst;
	struct iovec src[REDUCER_PARTS_MAX], dst[REDUCER_PARTS_MAX];
};

/* A piece on its way. */
struct flight {
	struct reducer_request *request;
	struct reducer_piece piece;
	void *send, *recv;
	int answered;	 /* the result is there */
	uint64_t number; /* at this process's own reducer */
	struct iovec out[1 + REDUCER_PARTS_MAX], in[1 + REDUCER_PARTS_MAX];
	uint32_t nout, nin;
	uint8_t answer[REDUCER_HEADER];
	uint8_t message[REDUCER_HEADER + SMALL]; /* the header, and what is copied together with it */
};

struct lane {
	const struct net_mesh_end *end; /* borrowed; NULL: this process's own reducer */
	uint32_t number;	       /* of the reducer, among all that were named */
	int closed;		       /* by the reducer: see lose_lane */
	int heard_out;		       /* closed, and all its messages are read */
	uint64_t begun, sent, ended;
	struct flight flights[REDUCER_WINDOW];
};

struct reducer_comm {
	uint32_t ranks, rank, nlanes;
	uint32_t named; /* reducers, with those that are not used */
	struct reducer_mesh *mesh;
	struct reducer_group *group; /* embedded; NULL: none */
	struct lane *lanes;
	uint64_t seq, issuing; /* operations: posted, those whose pieces have all begun */
	uint64_t freed;	       /* for the search of a free request */
	uint64_t closed_at;    /* ns: when a reducer was found to have closed while it owed results; 0: none has */
	gantry_result error;
	int lost; /* whose failure the error is; -1: of no rank that is known */
	char text[512];
	struct reducer_request requests[REDUCER_REQUESTS];
	struct reducer_request *queue[REDUCER_REQUESTS]; /* seq % REDUCER_REQUESTS: posted and not all issued */
};

/* ---- failures ---- */

/* The first one counts and is that of every request from then on. */
static gantry_result fail_comm(struct reducer_comm *c, gantry_result r, int lost, const char *text)
{
	if (c->error == GANTRY_OK) {
		c->error = r;
		c->lost = lost;
		snprintf(c->text, sizeof(c->text), "%s", text);
	}
	gantry_set_last_error(c->text);
	return c->error;
}

static const char *lane_name(const struct reducer_comm *c, const struct lane *l, char *buf, size_t size)
{
	snprintf(buf, size, "reducer %u of %u (%s)", l->number, c->named,
		 l->end && l->end->in ? gantry_net_tcp_peer(l->end->in) : "this process");
	return buf;
}

/* A connection failed: the network has logged it, this says whose it was. */
static gantry_result fail_lane(struct reducer_comm *c, const struct lane *l, gantry_result r)
{
	char name[256], text[512];

	if (c->error == GANTRY_OK) {
		snprintf(text, sizeof(text), "%s: %s", lane_name(c, l, name, sizeof(name)), gantry_result_text(r));
		gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__, "%s", text);
		fail_comm(c, r, c->group ? (int)(l - c->lanes) : -1, text);
	}
	return fail_comm(c, r, -1, "");
}

/* A reducer that closes has often failed itself because of another rank. That cause arrives here in a moment, from the
 * reducer or from the other rank's connection, and is more informative: wait REDUCER_GRACE_NS for it. */
static gantry_result lose_lane(struct reducer_comm *c, struct lane *l, gantry_result r)
{
	if (r != GANTRY_ERR_PEER_CLOSED)
		return fail_lane(c, l, r);
	l->closed = 1;
	if (!c->closed_at)
		c->closed_at = gantry_now_ns();
	return GANTRY_AGAIN;
}

static gantry_result check_closed(struct reducer_comm *c)
{
	for (uint32_t i = 0; c->closed_at && i < c->nlanes; i++)
		if (c->lanes[i].closed && gantry_now_ns() - c->closed_at >= REDUCER_GRACE_NS)
			return fail_lane(c, &c->lanes[i], GANTRY_ERR_PEER_CLOSED);
	return GANTRY_OK;
}

static gantry_result fail_told(struct reducer_comm *c, const struct lane *l, const struct reducer_failed *f)
{
	char name[256], why[REDUCER_TEXT], text[512];

	snprintf(text, sizeof(text), "%s: %s", lane_name(c, l, name, sizeof(name)), reducer_failed_text(f, why));
	if (c->error == GANTRY_OK && l->end) /* our own end has reported it */
		gantry_fail(f->result, LOG_SUBSYS, __FILE__, __LINE__, "%s", text);
	return fail_comm(c, f->result, f->why == REDUCER_WHY_GONE ? (int)f->rank : -1, text);
}

/* ---- pieces ---- */

static void shape_piece(const struct reducer_request *q, struct reducer_piece *p)
{
	size_t left = q->total - q->issued, bytes = left < q->cut ? left : q->cut;

	*p = (struct reducer_piece){
		.coll = q->coll, .type = q->type, .op = q->op, .seq = q->seq, .offset = q->issued, .total = q->total};
	if (q->per_rank) {
		size_t at = q->offset + q->issued, room = q->per_rank - at % q->per_rank;

		p->owner = (uint32_t)(at / q->per_rank);
		bytes = bytes < room ? bytes : room;
	}
	p->bytes = bytes;
}

/* Where this rank's own segment begins within its own buffer, for a piece of its own. */
static size_t own_offset(const struct reducer_request *q, const struct reducer_piece *p)
{
	size_t segment = p->owner * q->per_rank, at = q->offset + p->offset;

	return at - (segment > q->offset ? segment : q->offset);
}

/* The bytes that go and those that come. */
static void place_piece(const struct reducer_comm *c, const struct reducer_request *q, struct flight *f)
{
	const struct reducer_piece *p = &f->piece;
	int own = p->coll != REDUCER_ALL_REDUCE && p->owner == c->rank;
	size_t src = p->coll == REDUCER_ALL_GATHER && own ? own_offset(q, p) : p->offset;
	size_t dst = p->coll == REDUCER_REDUCE_SCATTER && own ? own_offset(q, p) : p->offset;

	f->nout = f->nin = 1;
	f->out[0] = (struct iovec){f->message, REDUCER_HEADER};
	f->in[0] = (struct iovec){f->answer, REDUCER_HEADER};
	if (reducer_sends(p, c->rank))
		f->nout += reducer_iov_slice(q->src, q->nsrc, src, p->bytes, f->out + 1);
	if (reducer_gets(p, c->rank))
		f->nin += reducer_iov_slice(q->dst, q->ndst, dst, p->bytes, f->in + 1);
	if (p->coll == REDUCER_ALL_GATHER && own) { /* its own bytes do not come back */
		struct iovec to[REDUCER_PARTS_MAX];
		uint32_t n = reducer_iov_slice(q->dst, q->ndst, p->offset, p->bytes, to);
		const char *from = (const char *)q->src[0].iov_base + src;

		for (uint32_t i = 0; i < n; from += to[i++].iov_len)
			memmove(to[i].iov_base, from, to[i].iov_len);
	}
}

/* AGAIN: the reducer has enough. */
static gantry_result begin_piece(struct reducer_comm *c, struct reducer_request *q)
{
	struct lane *l = &c->lanes[(q->seq + q->pieces) % c->nlanes];
	struct flight *f = &l->flights[l->begun % REDUCER_WINDOW];
	gantry_result r;

	if (l->closed || l->begun >= l->ended + REDUCER_WINDOW)
		return GANTRY_AGAIN;
	f->request = q;
	f->send = f->recv = NULL;
	f->answered = 0;
	shape_piece(q, &f->piece);
	place_piece(c, q, f);
	reducer_encode(&(struct reducer_message){.kind = REDUCER_PIECE, .piece = f->piece}, f->message);
	if (!l->end) {
		f->number = c->group->members[c->rank].arrived;
		if (!reducer_group_put(c->group, &f->piece, f->out + 1, f->nout - 1, f->in + 1, f->nin - 1))
			return GANTRY_AGAIN;
		l->sent++;
	} else {
		r = NET(irecvv, l->end->in, f->in, f->nin, REDUCER_TAG_RESULT, &f->recv);
		if (r != GANTRY_OK)
			return lose_lane(c, l, r);
		if (!f->recv)
			return GANTRY_AGAIN;
	}
	l->begun++;
	q->issued += f->piece.bytes;
	q->pieces++;
	q->left++;
	return GANTRY_OK;
}

static gantry_result send_piece(struct reducer_comm *c, struct lane *l, struct flight *f)
{
	size_t size = REDUCER_HEADER;
	gantry_result r;

	if (f->nout > 1 && f->piece.bytes > SMALL) {
		r = NET(isendv, l->end->out, f->out, f->nout, REDUCER_TAG_DATA, &f->send);
	} else {
		for (uint32_t i = 1; i < f->nout; size += f->out[i++].iov_len)
			memcpy(f->message + size, f->out[i].iov_base, f->out[i].iov_len);
		r = NET(isend, l->end->out, f->message, size, REDUCER_TAG_DATA, NULL, &f->send);
	}
	if (r != GANTRY_OK)
		return lose_lane(c, l, r);
	return f->send ? GANTRY_OK : GANTRY_AGAIN;
}

static gantry_result check_answer(struct reducer_comm *c, struct lane *l, struct flight *f, size_t size)
{
	const struct reducer_piece *a = &f->piece;
	struct reducer_message m;
	gantry_result r = reducer_decode(f->answer, size, &m);

	if (r == GANTRY_OK && m.kind == REDUCER_FAILED && m.failed.rank < c->ranks && m.failed.other < c->ranks)
		return fail_told(c, l, &m.failed);
	if (r != GANTRY_OK || m.kind != REDUCER_RESULT || m.piece.seq != a->seq || m.piece.offset != a->offset ||
	    m.piece.bytes != a->bytes || m.piece.type != a->type || m.piece.op != a->op || m.piece.coll != a->coll ||
	    size != REDUCER_HEADER + (reducer_gets(a, c->rank) ? a->bytes : 0))
		return fail_lane(c, l, GANTRY_ERR_PROTOCOL);
	f->answered = 1;
	return GANTRY_OK;
}

/* OK: it has ended. The send is tested while the result is not there: else nothing would move it. */
static gantry_result end_piece(struct reducer_comm *c, struct lane *l, struct flight *f)
{
	int done = 0, size = 0;
	gantry_result r;

	if (!l->end)
		return c->group->retired > f->number ? GANTRY_OK : GANTRY_AGAIN;
	if (f->send) {
		r = NET(test, f->send, &done, NULL);
		if (r != GANTRY_OK)
			return lose_lane(c, l, r);
		if (done)
			f->send = NULL;
	}
	if (!f->answered) {
		r = NET(test, f->recv, &done, &size);
		if (r != GANTRY_OK)
			return lose_lane(c, l, r);
		if (!done)
			return GANTRY_AGAIN;
		TRY_NOW(check_answer(c, l, f, (size_t)size));
	}
	return f->send ? GANTRY_AGAIN : GANTRY_OK;
}

/* The reducer has closed. It may have sent the reason, in place of a result that is here already. */
static gantry_result hear_last_words(struct reducer_comm *c, struct lane *l)
{
	for (uint64_t i = l->ended; i < l->begun && !l->heard_out; i++) {
		struct flight *f = &l->flights[i % REDUCER_WINDOW];
		int done = 0, size = 0;

		if (f->answered || !f->recv)
			continue;
		if (NET(test, f->recv, &done, &size) != GANTRY_OK)
			l->heard_out = 1;
		else if (!done)
			break;
		else
			TRY_NOW(check_answer(c, l, f, (size_t)size));
	}
	return GANTRY_OK;
}

static gantry_result move_lane(struct reducer_comm *c, struct lane *l)
{
	gantry_result r = GANTRY_OK;

	if (l->closed)
		return hear_last_words(c, l);
	while (r == GANTRY_OK && l->sent < l->begun) {
		r = send_piece(c, l, &l->flights[l->sent % REDUCER_WINDOW]);
		l->sent += r == GANTRY_OK;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	for (r = l->closed ? GANTRY_AGAIN : GANTRY_OK; r == GANTRY_OK && l->ended < l->sent;) {
		struct flight *f = &l->flights[l->ended % REDUCER_WINDOW];

		r = end_piece(c, l, f);
		if (r == GANTRY_OK) {
			f->request->left--;
			l->ended++;
		}
	}
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

static gantry_result begin_pieces(struct reducer_comm *c)
{
	gantry_result r = GANTRY_OK;

	while (c->issuing < c->seq) {
		struct reducer_request *q = c->queue[c->issuing % REDUCER_REQUESTS];

		while (r == GANTRY_OK && q->issued < q->total)
			r = begin_piece(c, q);
		if (r != GANTRY_OK)
			break;
		c->issuing++;
	}
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

static gantry_result progress_comm(struct reducer_comm *c)
{
	if (c->error != GANTRY_OK)
		return fail_comm(c, c->error, -1, "");
	TRY_NOW(begin_pieces(c));
	if (c->group) {
		reducer_group_progress(c->group);
		if (c->group->error != GANTRY_OK)
			return fail_told(c, &c->lanes[c->rank], &c->group->failed);
	}
	for (uint32_t i = 0; i < c->nlanes; i++)
		TRY_NOW(move_lane(c, &c->lanes[i]));
	return check_closed(c);
}

/* ---- operations ---- */

/* NULL: there are too many. */
static struct reducer_request *take_request(struct reducer_comm *c)
{
	for (uint32_t i = 0; i < REDUCER_REQUESTS; i++) {
		struct reducer_request *q = &c->requests[(c->freed + i) % REDUCER_REQUESTS];

		if (q->busy)
			continue;
		c->freed += i + 1;
		*q = (struct reducer_request){.comm = c};
		return q;
	}
	return NULL;
}

/* Pieces as large as they may be, but all reducers have something to do; and while the first piece is on its way to each
 * reducer no NIC receives, while the last result comes none sends: pieces of SMOOTH are small enough for a message that
 * is not long against that. */
static size_t cut_of(const struct reducer_comm *c, size_t total)
{
	size_t max = reducer_piece_max(c->ranks), fair = (total / c->nlanes + 63) & ~(size_t)63;

	if (fair < REDUCER_PIECE_MIN)
		fair = REDUCER_PIECE_MIN;
	if (fair < 64 * max && max > SMOOTH)
		max = SMOOTH;
	return fair < max ? fair : max;
}

static gantry_result post_request(struct reducer_comm *c, struct reducer_request *q,
				  struct reducer_request **ret_request)
{
	gantry_result r;

	q->seq = c->seq;
	q->cut = cut_of(c, q->total);
	q->busy = 1;
	c->queue[c->seq++ % REDUCER_REQUESTS] = q;
	r = progress_comm(c);
	if (r == GANTRY_OK)
		*ret_request = q;
	return r;
}

static gantry_result check_reduction(uint32_t type, uint32_t op, size_t count)
{
	size_t bytes = reducer_type_bytes(type);

	if (!bytes || !reducer_op_known(op))
		FAIL_NOW(GANTRY_ERR_INVALID, "reducers do not support type %u with reduction %u", type, op);
	if (count > SIZE_MAX / 2 / bytes)
		FAIL_NOW(GANTRY_ERR_INVALID, "cannot reduce %zu elements", count);
	return GANTRY_OK;
}

gantry_result reducer_all_reduce(struct reducer_comm *c, const void *send, void *recv, size_t count, uint32_t type,
				 uint32_t op, struct reducer_request **ret_request)
{
	struct reducer_request *q;

	*ret_request = NULL;
	TRY_NOW(progress_comm(c));
	TRY_NOW(check_reduction(type, op, count));
	q = take_request(c);
	if (!q)
		return GANTRY_OK;
	q->coll = REDUCER_ALL_REDUCE;
	q->type = (uint8_t)type;
	q->op = (uint8_t)op;
	q->total = count * reducer_type_bytes(type);
	q->src[0] = (struct iovec){(void *)send, q->total};
	q->dst[0] = (struct iovec){recv, q->total};
	q->nsrc = q->ndst = 1;
	return post_request(c, q, ret_request);
}

static gantry_result check_window(const struct reducer_comm *c, const struct reducer_window *w, size_t unit)
{
	size_t bytes = 0;

	if (!w->nparts || w->nparts > REDUCER_PARTS_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "%u parts: expected 1 to %d", w->nparts, REDUCER_PARTS_MAX);
	for (uint32_t i = 0; i < w->nparts; i++)
		bytes += w->parts[i].iov_len;
	if (bytes < w->bytes || w->per_rank > SIZE_MAX / 2 / c->ranks || w->bytes > c->ranks * w->per_rank ||
	    w->offset > c->ranks * w->per_rank - w->bytes)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "a window of %zu bytes at %zu, in parts of %zu bytes together, of %zu bytes of each of %u "
			 "ranks",
			 w->bytes, w->offset, bytes, w->per_rank, c->ranks);
	if (w->bytes % unit || w->offset % unit || w->per_rank % unit)
		FAIL_NOW(GANTRY_ERR_INVALID, "a window of %zu bytes at %zu cuts elements of %zu bytes", w->bytes,
			 w->offset, unit);
	return GANTRY_OK;
}

/* How much of the window is this rank's. */
static size_t own_bytes(const struct reducer_comm *c, const struct reducer_window *w)
{
	size_t first = c->rank * w->per_rank, last = first + w->per_rank, end = w->offset + w->bytes;

	first = first > w->offset ? first : w->offset;
	last = last < end ? last : end;
	return last > first ? last - first : 0;
}

static gantry_result post_window(struct reducer_comm *c, enum reducer_coll coll, const struct reducer_window *w,
				 uint32_t type, uint32_t op, struct reducer_request **ret_request)
{
	struct iovec own = {w->own, own_bytes(c, w)};
	struct reducer_request *q = take_request(c);
	int gather = coll == REDUCER_ALL_GATHER;

	if (!q)
		return GANTRY_OK;
	q->coll = (uint8_t)coll;
	q->type = (uint8_t)type;
	q->op = (uint8_t)op;
	q->total = w->bytes;
	q->per_rank = w->per_rank;
	q->offset = w->offset;
	q->nsrc = gather ? 1 : w->nparts;
	q->ndst = gather ? w->nparts : 1;
	memcpy(gather ? q->dst : q->src, w->parts, w->nparts * sizeof(*w->parts));
	*(gather ? q->src : q->dst) = own;
	return post_request(c, q, ret_request);
}

gantry_result reducer_all_gather(struct reducer_comm *c, const struct reducer_window *w,
				 struct reducer_request **ret_request)
{
	*ret_request = NULL;
	TRY_NOW(progress_comm(c));
	TRY_NOW(check_window(c, w, 1));
	return post_window(c, REDUCER_ALL_GATHER, w, GANTRY_TYPE_UINT8, GANTRY_OP_SUM, ret_request);
}

gantry_result reducer_reduce_scatter(struct reducer_comm *c, const struct reducer_window *w, uint32_t type, uint32_t op,
				     struct reducer_request **ret_request)
{
	*ret_request = NULL;
	TRY_NOW(progress_comm(c));
	TRY_NOW(check_reduction(type, op, 0));
	TRY_NOW(check_window(c, w, reducer_type_bytes(type)));
	return post_window(c, REDUCER_REDUCE_SCATTER, w, type, op, ret_request);
}

gantry_result reducer_test(struct reducer_request *q, int *ret_done, size_t *ret_bytes)
{
	struct reducer_comm *c = q->comm;

	if (!q->busy)
		FAIL_NOW(GANTRY_ERR_USAGE, "test of something that is not a pending request");
	TRY_NOW(progress_comm(c));
	*ret_done = q->issued == q->total && !q->left && q->seq < c->issuing;
	if (*ret_done) {
		q->busy = 0;
		if (ret_bytes)
			*ret_bytes = q->total;
	}
	return GANTRY_OK;
}

/* ---- communicators ---- */

/* Handles are random enough, and those of a job are in the same order on all ranks. The list of reducers is part of it:
 * ranks whose lists differ do not find each other, which is an error with their names. */
static uint64_t job_of(const struct reducer_mesh *m, const char *reducers)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (uint32_t i = 0; i < m->ranks; i++)
		for (size_t k = 0; k < sizeof(m->dials[i].handle); k++)
			h = (h ^ m->dials[i].handle[k]) * 0x100000001b3u;
	for (; *reducers; reducers++)
		h = (h ^ (uint8_t)*reducers) * 0x100000001b3u;
	return h;
}

/* Those that this rank talks to: all others where ranks reduce for each other; else rank 0, with which it agrees on the
 * reducers. */
static int wants_rank(const struct reducer_mesh *m, uint32_t i)
{
	return i != m->own && (m->count == m->ranks || i == 0 || m->own == 0);
}

static gantry_result dial_ranks(const struct reducer_config *config, const char *reducers, struct reducer_mesh *m)
{
	for (uint32_t i = 0; i < config->ranks; i++)
		if (reducer_mesh_dial(m, i, config->handles[i]) != GANTRY_OK)
			FAIL_NOW(GANTRY_ERR_INVALID, "the handle of rank %u was not created by gantry", i);
	reducer_mesh_set_job(m, job_of(m, reducers));
	for (uint32_t i = 0; i < config->ranks; i++)
		m->dials[i].known = m->dials[i].wanted = wants_rank(m, i);
	return GANTRY_OK;
}

/* Ranks that reduce for each other. */
static gantry_result use_ranks(struct reducer_comm *c, uint64_t deadline)
{
	TRY_NOW(reducer_wait_for(c->mesh, deadline));
	TRY_NOW(reducer_group_create(c->ranks, c->rank, c->mesh->ends, &c->group));
	c->nlanes = c->named = c->ranks;
	for (uint32_t i = 0; i < c->nlanes; i++) {
		c->lanes[i].end = i == c->rank ? NULL : &c->mesh->ends[i];
		c->lanes[i].number = i;
	}
	return GANTRY_OK;
}

static gantry_result use_reducers(struct reducer_comm *c, const struct reducer_config *config,
				  const struct reducer_name *names, uint64_t deadline)
{
	TRY_NOW(reducer_reach(&(struct reducer_reach){.mesh = c->mesh,
						      .names = names,
						      .comm_id = gantry_net_tcp_comm_id(config->ctx),
						      .handle = config->handles[config->rank],
						      .deadline = deadline}));
	c->named = c->mesh->count - c->ranks;
	for (uint32_t i = 0; i < c->named; i++) {
		if (c->mesh->dials[c->ranks + i].lost != GANTRY_OK)
			continue;
		c->lanes[c->nlanes].end = &c->mesh->ends[c->ranks + i];
		c->lanes[c->nlanes++].number = i;
	}
	return GANTRY_OK;
}

const char *reducer_describe(const struct reducer_comm *c, char *buf, size_t size)
{
	if (c->group)
		snprintf(buf, size, "ranks reduce for each other");
	else
		snprintf(buf, size, "%u of %u reducers", c->nlanes, c->named);
	return buf;
}

gantry_result reducer_open(const struct reducer_config *config, struct reducer_comm **ret_comm)
{
	gantry_result r = GANTRY_OK;
	struct reducer_comm *c = calloc(1, sizeof(*c));
	const char *reducers = config->reducers ? config->reducers : gantry_params()->reducers;
	struct reducer_name *names = NULL;
	uint64_t deadline = gantry_now_ns() + config->timeout;
	uint32_t n = 0;

	if (!c)
		FAIL(GANTRY_ERR_NOMEM, "no memory for reducers");
	if (config->ranks < 1 || config->ranks > REDUCER_RANKS_MAX || config->rank >= config->ranks)
		FAIL(GANTRY_ERR_INVALID, "rank %u of %u: reducers serve 1 to %d", config->rank, config->ranks,
		     REDUCER_RANKS_MAX);
	TRY(reducer_names_parse(reducers, &names, &n));
	c->ranks = config->ranks;
	c->rank = config->rank;
	c->lanes = calloc(n ? n : c->ranks, sizeof(*c->lanes));
	if (!c->lanes)
		FAIL(GANTRY_ERR_NOMEM, "no memory for reducers");
	TRY(reducer_mesh_create(&(struct reducer_mesh_config){.ctx = config->ctx,
							      .listen = config->listen,
							      .dev = config->dev,
							      .ranks = c->ranks,
							      .reducers = n,
							      .own = c->rank,
							      .stop = config->stop},
				&c->mesh));
	TRY(dial_ranks(config, reducers, c->mesh));
	TRY(n ? use_reducers(c, config, names, deadline) : use_ranks(c, deadline));
	*ret_comm = c;
	c = NULL;
out:
	free(names);
	reducer_close(c);
	return r;
}

void reducer_close(struct reducer_comm *c)
{
	if (!c)
		return;
	reducer_mesh_destroy(c->mesh); /* first: the network has the group's buffers */
	reducer_group_destroy(c->group);
	free(c->lanes);
	free(c);
}

int reducer_lost(const struct reducer_comm *c)
{
	return c->error == GANTRY_OK ? -1 : c->lost;
}
