/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "reducer/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/net.h"
#include "reducer/sum.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

static uint32_t slot_of(uint64_t piece)
{
	return (uint32_t)(piece % REDUCER_WINDOW);
}

static uint8_t *result_of(const struct reducer_group *g, uint64_t piece)
{
	return g->results + slot_of(piece) * g->stride;
}

static size_t stride_of(uint32_t ranks)
{
	return (REDUCER_HEADER + reducer_piece_max(ranks) + 63) & ~(size_t)63;
}

size_t reducer_group_bytes(uint32_t ranks)
{
	const struct reducer_group *g = NULL;

	return sizeof(*g) + ranks * (sizeof(g->members[0]) + sizeof(*g->srcs)) +
	       (ranks + 1) * REDUCER_WINDOW * stride_of(ranks);
}

gantry_result reducer_group_create(uint32_t ranks, uint32_t own, const struct net_mesh_end *ends,
				   struct reducer_group **ret_group)
{
	gantry_result r = GANTRY_OK;
	struct reducer_group *g = calloc(1, sizeof(*g) + ranks * sizeof(g->members[0]));

	if (!g)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a job of %u ranks", ranks);
	g->ranks = ranks;
	g->own = own;
	g->piece = reducer_piece_max(ranks);
	g->stride = stride_of(ranks);
	snprintf(g->name, sizeof(g->name), "reducer");
	g->srcs = calloc(ranks, sizeof(*g->srcs));
	g->memory = aligned_alloc(64, (ranks + 1) * REDUCER_WINDOW * g->stride);
	if (!g->srcs || !g->memory)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the buffers of a job of %u ranks", ranks);
	g->results = g->memory + ranks * REDUCER_WINDOW * g->stride;
	for (uint32_t i = 0; i < ranks; i++) {
		g->members[i].end = &ends[i];
		g->members[i].buffers = g->memory + i * REDUCER_WINDOW * g->stride;
	}
	*ret_group = g;
	g = NULL;
out:
	reducer_group_destroy(g);
	return r;
}

void reducer_group_destroy(struct reducer_group *g)
{
	if (!g)
		return;
	free(g->memory);
	free(g->srcs);
	free(g);
}

/* ---- failures ---- */

static const char *const fields[] = {
	[REDUCER_WHY_SEQ] = "sequence number", [REDUCER_WHY_COLL] = "kind of collective",
	[REDUCER_WHY_TYPE] = "type",	       [REDUCER_WHY_OP] = "reduction",
	[REDUCER_WHY_TOTAL] = "size in bytes", [REDUCER_WHY_CUT] = "piece size",
	[REDUCER_WHY_GONE] = "membership",     [REDUCER_WHY_ENDED] = "state",
};

const char *reducer_failed_text(const struct reducer_failed *f, char buf[REDUCER_TEXT])
{
	if (f->why == REDUCER_WHY_GONE)
		snprintf(buf, REDUCER_TEXT, "rank %u was lost: %s", f->rank, gantry_result_text(f->result));
	else if (f->why == REDUCER_WHY_ENDED)
		snprintf(buf, REDUCER_TEXT, "the reducer is shutting down: %s", gantry_result_text(f->result));
	else
		snprintf(buf, REDUCER_TEXT, "ranks disagree in operation %llu on %s: %llu on rank %u, %llu on rank %u",
			 (unsigned long long)f->seq, fields[f->why], (unsigned long long)f->value, f->rank,
			 (unsigned long long)f->other_value, f->other);
	return buf;
}

/* A rank of another process, connected: those of a server come one after the other. */
static int is_here(const struct reducer_group *g, uint32_t rank)
{
	const struct reducer_member *m = &g->members[rank];

	return rank != g->own && m->gone == GANTRY_OK && m->end->in && m->end->out;
}

/* The first cause counts. All ranks that are there get it in place of their next result. */
static void fail_group(struct reducer_group *g, const struct reducer_failed *f)
{
	struct reducer_message m = {.kind = REDUCER_FAILED, .failed = *f};
	char text[REDUCER_TEXT];
	void *request;

	if (g->error != GANTRY_OK)
		return;
	g->failed = *f;
	g->error =
		gantry_fail(f->result, LOG_SUBSYS, __FILE__, __LINE__, "%s: %s", g->name, reducer_failed_text(f, text));
	reducer_encode(&m, g->last_words);
	for (uint32_t i = 0; i < g->ranks; i++) {
		struct reducer_member *to = &g->members[i];

		if (is_here(g, i)) /* nothing follows it: it need not be tested */
			NET(isend, to->end->out, g->last_words, sizeof(g->last_words), REDUCER_TAG_RESULT, NULL,
			    &request);
	}
}

/* A peer that closes while nothing waits for it has simply finished. */
static void lose_member(struct reducer_group *g, uint32_t rank, gantry_result r)
{
	struct reducer_member *m = &g->members[rank];

	if (m->gone == GANTRY_OK)
		m->gone = r;
	m->sent = m->confirmed = g->reduced;
	if (r != GANTRY_ERR_PEER_CLOSED)
		fail_group(g, &(struct reducer_failed){.why = REDUCER_WHY_GONE, .result = r, .rank = rank});
}

/* A rank that has closed is missed when another has sent more than it has. It may have failed because of a third one,
 * whose loss is then seen here too: that says more, and has REDUCER_GRACE_NS to be seen. */
static void miss_gone(struct reducer_group *g)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < g->ranks; i++)
		most = g->members[i].arrived > most ? g->members[i].arrived : most;
	for (uint32_t i = 0; i < g->ranks; i++) {
		if (g->members[i].gone == GANTRY_OK || g->members[i].arrived >= most)
			continue;
		if (!g->missed_at)
			g->missed_at = gantry_now_ns();
		if (gantry_now_ns() - g->missed_at >= REDUCER_GRACE_NS)
			fail_group(g, &(struct reducer_failed){
					      .why = REDUCER_WHY_GONE, .result = g->members[i].gone, .rank = i});
	}
}

/* ---- pieces that come ---- */

static gantry_result post_recv(struct reducer_group *g, struct reducer_member *m)
{
	void *data = m->buffers + slot_of(m->posted) * g->stride, **request = &m->recvs[slot_of(m->posted)];
	size_t size = g->stride;
	int tag = REDUCER_TAG_DATA;

	*request = NULL;
	TRY_NOW(NET(irecv, m->end->in, 1, &data, &size, &tag, NULL, request));
	if (!*request)
		return GANTRY_AGAIN;
	m->posted++;
	return GANTRY_OK;
}

/* Is the message a piece that this reducer can take from that rank? */
static gantry_result take_piece(struct reducer_group *g, uint32_t rank, size_t size)
{
	struct reducer_member *m = &g->members[rank];
	const uint8_t *data = m->buffers + slot_of(m->arrived) * g->stride;
	struct reducer_message msg;

	if (reducer_decode(data, size, &msg) != GANTRY_OK || msg.kind != REDUCER_PIECE || msg.piece.bytes > g->piece ||
	    msg.piece.owner >= g->ranks ||
	    size != REDUCER_HEADER + (reducer_sends(&msg.piece, rank) ? msg.piece.bytes : 0))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "%s: rank %u (%s) sent an invalid piece", g->name, rank,
			 gantry_net_tcp_peer(m->end->in));
	m->pieces[slot_of(m->arrived)] = msg.piece;
	m->bytes[slot_of(m->arrived)] = (const char *)data + REDUCER_HEADER;
	m->arrived++;
	store_relaxed(&g->received, g->received + size - REDUCER_HEADER);
	return GANTRY_OK;
}

static uint32_t receive_from(struct reducer_group *g, uint32_t rank)
{
	struct reducer_member *m = &g->members[rank];
	gantry_result r = GANTRY_OK;
	uint32_t moved = 0;
	int done = 1, size = 0;

	while (r == GANTRY_OK && m->posted < g->reduced + REDUCER_WINDOW)
		r = post_recv(g, m);
	r = r == GANTRY_AGAIN ? GANTRY_OK : r;
	while (r == GANTRY_OK && done && m->arrived < m->posted) {
		r = NET(test, m->recvs[slot_of(m->arrived)], &done, &size);
		if (r == GANTRY_OK && done) {
			r = take_piece(g, rank, (size_t)size);
			moved++;
		}
	}
	if (r != GANTRY_OK)
		lose_member(g, rank, r);
	return moved;
}

int reducer_group_put(struct reducer_group *g, const struct reducer_piece *p, const struct iovec *src, uint32_t nsrc,
		      const struct iovec *dst, uint32_t ndst)
{
	struct reducer_member *m = &g->members[g->own];
	const uint32_t slot = slot_of(m->arrived);
	uint8_t *to = m->buffers + slot * g->stride;

	/* Not before the result of the piece that had this slot is with all ranks: `owns` is its. */
	if (m->arrived >= g->retired + REDUCER_WINDOW)
		return 0;
	m->pieces[slot] = *p;
	m->bytes[slot] = nsrc == 1 ? src[0].iov_base : (const char *)to;
	for (uint32_t i = 0; nsrc > 1 && i < nsrc; i++) {
		memcpy(to, src[i].iov_base, src[i].iov_len);
		to += src[i].iov_len;
	}
	memcpy(g->owns[slot].dst, dst, ndst * sizeof(*dst));
	g->owns[slot].ndst = ndst;
	m->arrived++;
	m->posted++;
	return 1;
}

/* ---- reduction ---- */

/* Do two ranks mean the same? */
static int same_piece(const struct reducer_piece *a, const struct reducer_piece *b, struct reducer_failed *f)
{
	const struct {
		uint8_t why;
		uint64_t a, b;
	} pairs[] = {
		{REDUCER_WHY_SEQ, a->seq, b->seq},	 {REDUCER_WHY_COLL, a->coll, b->coll},
		{REDUCER_WHY_TYPE, a->type, b->type},	 {REDUCER_WHY_OP, a->op, b->op},
		{REDUCER_WHY_TOTAL, a->total, b->total}, {REDUCER_WHY_CUT, a->owner, b->owner},
		{REDUCER_WHY_CUT, a->offset, b->offset}, {REDUCER_WHY_CUT, a->bytes, b->bytes},
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		if (pairs[i].a == pairs[i].b)
			continue;
		f->why = pairs[i].why;
		f->value = pairs[i].a;
		f->other_value = pairs[i].b;
		f->seq = a->seq;
		return 0;
	}
	return 1;
}

static int piece_is_complete(struct reducer_group *g)
{
	const uint32_t slot = slot_of(g->reduced);

	if (g->reduced >= g->retired + REDUCER_WINDOW)
		return 0;
	for (uint32_t i = 0; i < g->ranks; i++)
		if (g->members[i].arrived <= g->reduced)
			return 0;
	for (uint32_t i = 1; i < g->ranks; i++) {
		struct reducer_failed f = {.result = GANTRY_ERR_USAGE, .other = i};

		if (same_piece(&g->members[0].pieces[slot], &g->members[i].pieces[slot], &f))
			continue;
		fail_group(g, &f);
		return 0;
	}
	return 1;
}

/* The own rank's result, out of the buffer that the others are sent. */
static void scatter_own(struct reducer_group *g, const char *from)
{
	const struct reducer_own *own = &g->owns[slot_of(g->reduced)];

	for (uint32_t i = 0; i < own->ndst; i++) {
		memcpy(own->dst[i].iov_base, from, own->dst[i].iov_len);
		from += own->dst[i].iov_len;
	}
}

static void reduce_piece(struct reducer_group *g)
{
	const uint32_t slot = slot_of(g->reduced);
	const struct reducer_piece *p = &g->members[0].pieces[slot];
	struct reducer_message m = {.kind = REDUCER_RESULT, .piece = *p};
	uint8_t *result = result_of(g, g->reduced);
	uint32_t n = 0;

	for (uint32_t i = 0; i < g->ranks; i++)
		if (reducer_sends(p, i))
			g->srcs[n++] = g->members[i].bytes[slot];
	g->done[slot] = *p;
	reducer_encode(&m, result);
	reducer_sum(p->type, p->op, g->srcs, n, (char *)result + REDUCER_HEADER, p->bytes);
	if (g->own != REDUCER_NO_RANK) {
		if (reducer_gets(p, g->own))
			scatter_own(g, (const char *)result + REDUCER_HEADER);
		g->members[g->own].sent = g->members[g->own].confirmed = g->reduced + 1;
	}
	g->reduced++;
}

/* ---- results that go ---- */

static gantry_result send_result(struct reducer_group *g, uint32_t rank)
{
	struct reducer_member *m = &g->members[rank];
	const struct reducer_piece *p = &g->done[slot_of(m->sent)];
	void **request = &m->sends[slot_of(m->sent)];
	size_t size = REDUCER_HEADER + (reducer_gets(p, rank) ? p->bytes : 0);

	*request = NULL;
	TRY_NOW(NET(isend, m->end->out, result_of(g, m->sent), size, REDUCER_TAG_RESULT, NULL, request));
	if (!*request)
		return GANTRY_AGAIN;
	m->sent++;
	store_relaxed(&g->sent, g->sent + size - REDUCER_HEADER);
	return GANTRY_OK;
}

static uint32_t send_to(struct reducer_group *g, uint32_t rank)
{
	struct reducer_member *m = &g->members[rank];
	gantry_result r = GANTRY_OK;
	uint32_t moved = 0;
	int done = 1;

	while (r == GANTRY_OK && m->sent < g->reduced) {
		r = send_result(g, rank);
		moved += r == GANTRY_OK;
	}
	r = r == GANTRY_AGAIN ? GANTRY_OK : r;
	while (r == GANTRY_OK && done && m->confirmed < m->sent) {
		r = NET(test, m->sends[slot_of(m->confirmed)], &done, NULL);
		if (r == GANTRY_OK && done) {
			m->confirmed++;
			moved++;
		}
	}
	if (r != GANTRY_OK)
		lose_member(g, rank, r);
	return moved;
}

static void retire_pieces(struct reducer_group *g)
{
	uint64_t least = g->reduced;

	for (uint32_t i = 0; i < g->ranks; i++)
		if (g->members[i].gone == GANTRY_OK && g->members[i].confirmed < least)
			least = g->members[i].confirmed;
	g->retired = least;
}

/* After a failure: has the rank closed? What it still sends is dropped, so much of it at a time: other jobs have their turn. */
static void await_close(struct reducer_group *g, struct reducer_member *m)
{
	gantry_result r = GANTRY_OK;
	int done = 1;

	for (int n = 0; r == GANTRY_OK && done && n < REDUCER_WINDOW; n++) {
		if (m->arrived == m->posted)
			r = post_recv(g, m);
		if (r == GANTRY_OK)
			r = NET(test, m->recvs[slot_of(m->arrived)], &done, NULL);
		m->arrived += r == GANTRY_OK && done;
	}
	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		m->gone = r;
}

uint32_t reducer_group_progress(struct reducer_group *g)
{
	uint32_t moved = 0;

	for (uint32_t i = 0; i < g->ranks && g->error != GANTRY_OK; i++)
		if (is_here(g, i))
			await_close(g, &g->members[i]);

	for (uint32_t i = 0; i < g->ranks && g->error == GANTRY_OK; i++)
		if (is_here(g, i))
			moved += receive_from(g, i);
	if (g->error == GANTRY_OK)
		miss_gone(g);
	if (g->error == GANTRY_OK && piece_is_complete(g)) {
		reduce_piece(g);
		moved++;
	}
	for (uint32_t i = 0; i < g->ranks && g->error == GANTRY_OK; i++)
		if (is_here(g, i))
			moved += send_to(g, i);
	if (g->error == GANTRY_OK)
		retire_pieces(g);
	return moved;
}

enum reducer_wait reducer_group_waits(const struct reducer_group *g, uint32_t *ret_rank)
{
	int full = g->reduced >= g->retired + REDUCER_WINDOW, begun = 0;
	uint32_t rank = REDUCER_NO_RANK;

	for (uint32_t i = 0; i < g->ranks; i++) {
		const struct reducer_member *m = &g->members[i];

		begun |= m->arrived > g->reduced;
		if (rank == REDUCER_NO_RANK && (full ? m->confirmed <= g->retired : m->arrived <= g->reduced))
			rank = i;
	}
	*ret_rank = rank;
	if (rank == REDUCER_NO_RANK || (!full && !begun))
		return REDUCER_WAIT_NONE;
	return full ? REDUCER_WAIT_RESULT : REDUCER_WAIT_RANK;
}

int reducer_group_is_over(const struct reducer_group *g)
{
	for (uint32_t i = 0; i < g->ranks; i++)
		if (g->members[i].gone == GANTRY_OK)
			return 0;
	return 1;
}

void reducer_group_end(struct reducer_group *g)
{
	fail_group(g, &(struct reducer_failed){.why = REDUCER_WHY_ENDED, .result = GANTRY_ERR_PEER_CLOSED});
}

uint32_t reducer_iov_slice(const struct iovec *all, uint32_t nall, size_t at, size_t n, struct iovec *ret)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < nall && n; i++) {
		size_t len = all[i].iov_len;

		if (at >= len) {
			at -= len;
			continue;
		}
		len = len - at < n ? len - at : n;
		ret[k++] = (struct iovec){(char *)all[i].iov_base + at, len};
		at = 0;
		n -= len;
	}
	return k;
}
