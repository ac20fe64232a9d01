/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives that collectives are made of: send, recv, copySend, recvCopySend, recvReduceSend, recvReduceCopy and
 * recvReduceCopySend, over nrecv connections that bring data and nsend that take it away. They block: all lanes of the
 * block call them together, lane 0 waits, in the order of the peers. Every source is reduced with the others (one alone
 * is copied), in this order: the local output, if a partial result is there (PRIM_ACC); the received ones, with the
 * local input among them at `in_at`, so that ranks that reduce the same sources in the order of ranks get the same
 * bits. Every destination, the local output first, gets the result.
 *
 * How data lies on the steps of a connection. Both ends and the proxies between them follow these rules:
 *
 *   operation   begins, on each of its connections, with the first slice there, at base = conn->step rounded up to a
 *               multiple of chunk_steps. Its steps follow each other from there without gaps; conn->step is always the
 *               next one. Steps that were left out below base carry nothing. Head is not stored for them; the producer
 *               counts them as consumed as soon as head is where the operation before ended (without that, an operation
 *               whose slices fill the ring would wait for ever). An operation that moves nothing on a connection leaves
 *               no trace
 *   chunk       what one call of a collective's loop moves, at most chunk_steps * step_bytes. Calls cut it into slices.
 *               Where all ranks send a chunk before they receive one, as in a ring, chunk_steps is at most STEPS / 2:
 *               the next call needs space to send before it consumes, and there would be none
 *   slice       what is published at once: slice_steps steps, that is up to slice_steps * step_bytes in whole elements.
 *               The last slice of a chunk may be shorter, but still takes all its steps. There are no empty slices: a
 *               chunk of n elements is ceil(n / elements of a slice) slices on every connection, and none if n is 0.
 *               slice_steps divides chunk_steps and that divides STEPS, so a slice lies in one piece in the ring
 *               although it may span several slots
 *   slot        the slot of the slice's FIRST step speaks for the slice: tag of that step, mode, size of the whole
 *               slice, and where it is. The slots of its other steps are not written. The same goes for offers: for
 *               OFFSET the offer of the first step is space for the whole slice (size 0: enough, as agreed)
 *   head, tail  move by slice_steps
 *   LL, LL128   a slice is one step, whatever slice_steps says; chunk_steps still sets the base. Slots are written only
 *               for a proxy, with the size of the data, not of the lines
 *
 * What a slot says must be what is expected, else both sides would drift apart: another size is GANTRY_ERR_SIZE.
 * All connections of an operation move steps of the same size, which may be less than a slot of a ring holds.
 *
 * Order, Simple. Lane 0: acquire of every source's slot and of every destination's head or offer. Barrier (dev_share).
 * All: read, reduce, write. Barrier. Lane 0: release of the slots of what is sent, then of the heads of what is
 * consumed. Input that is read where it lies is released before the copying. LL and LL128: see below.
 *
 * An abort, or an error, ends the operation at the slice it is seen in; all later calls do nothing and answer the same.
 * The connections are of no use then.
 */
#ifndef GANTRY_DEVICE_K_PRIM_H
#define GANTRY_DEVICE_K_PRIM_H

#include "device/dev.h"
#include "device/k_conn.h"
#include "device/k_gather.h"
#include "device/k_reduce.h"
#include "device/work.h"

enum { GANTRY_PRIM_PEERS = 8, PRIM_SOURCES = 2 + GANTRY_PRIM_PEERS };
/* What a primitive has a part in: its own input and output, data from peers and to peers, a partial result in output. */
enum { PRIM_IN = 1, PRIM_OUT = 2, PRIM_RECV = 4, PRIM_SEND = 8, PRIM_ACC = 16 };
enum gantry_prim_kind {
	GANTRY_PRIM_SEND = PRIM_IN | PRIM_SEND,
	GANTRY_PRIM_RECV = PRIM_RECV | PRIM_OUT,
	GANTRY_PRIM_COPY_SEND = PRIM_IN | PRIM_OUT | PRIM_SEND,
	GANTRY_PRIM_RECV_COPY_SEND = PRIM_RECV | PRIM_OUT | PRIM_SEND,
	GANTRY_PRIM_RECV_REDUCE_SEND = PRIM_IN | PRIM_RECV | PRIM_SEND,
	GANTRY_PRIM_RECV_REDUCE_COPY = PRIM_IN | PRIM_RECV | PRIM_OUT,
	GANTRY_PRIM_RECV_REDUCE_COPY_SEND = PRIM_IN | PRIM_RECV | PRIM_OUT | PRIM_SEND,
};

/* A slice that is one source, as it is: nothing is reduced, scaled or divided. */
DEV int prim_is_copy(uint32_t what, uint32_t nrecv, uint32_t op, uint32_t last)
{
	uint32_t sources = (what & PRIM_ACC ? 1 : 0) + (what & PRIM_IN ? 1 : 0) + nrecv;

	return sources == 1 && dev_red_single(op, what & PRIM_IN ? 0 : UINT32_MAX, last) == DEV_RED_NONE;
}

/*
 * User memory in the place of rings, on connections whose proxy moves registered memory (GANTRY_CONN_POINTS) or whose
 * other end reads it by itself (GANTRY_CONN_LENDS); ptr says which of input and output that is. What a step sends can be
 * read where it lies if it is a copy of the input, or has been written to the output anyway: prim_lends answers where.
 * The input comes first: it can be read before it is copied. What a step only receives can go straight to the output, if
 * a proxy writes it.
 */
DEV uint32_t prim_lends(uint32_t what, uint32_t nrecv, uint32_t op, uint32_t last, uint32_t ptr)
{
	const int copy = prim_is_copy(what, nrecv, op, last);

	if ((ptr & GANTRY_COLL_PTR_IN) && what & PRIM_IN && copy)
		return GANTRY_COLL_PTR_IN;
	if ((ptr & GANTRY_COLL_PTR_OUT) && (what & PRIM_OUT || (what & PRIM_ACC && copy)))
		return GANTRY_COLL_PTR_OUT;
	return 0;
}
DEV int prim_lands(uint32_t what, uint32_t nrecv, uint32_t op, uint32_t last, uint32_t ptr)
{
	return (ptr & GANTRY_COLL_PTR_OUT) && nrecv == 1 && what & PRIM_OUT && prim_is_copy(what, nrecv, op, last);
}

/* An operation. Each lane has its own, all with the same values, but for `modes`, which is lane 0's. */
struct dev_prims {
	uint64_t id; /* gantry_coll's */
	uint32_t proto, type, op;
	uint32_t elem;			   /* bytes of an element */
	uint32_t slice_steps, chunk_steps; /* the former is 1 for LL and LL128 */
	uint32_t error;			   /* gantry_result: the first one */
	uint64_t slice;			   /* elements at most */
	uint64_t scalar;
	uint32_t ptr;	/* gantry_coll's */
	uint32_t modes; /* of the slice's sources, two bits each; 0 for LL and LL128 */
	uint64_t at;	/* GANTRY_COLL_AT, for reports */
};

/* What a call works on: a slice. */
struct prim_slice {
	uint32_t what; /* PRIM_* */
	uint32_t last, in_at;
	uint32_t nrecv, nsend;
	struct gantry_conn *const *recv, *const *send; /* borrowed arrays */
	const uint64_t *shifts;			       /* gantry_coll's, of send; or NULL */
	const char *in;
	char *out;
	uint64_t count, bytes;
};

DEV void prim_show(const struct dev_prims *p, struct gantry_conn *c, uint64_t step, uint32_t phase)
{
	dev_store_relaxed(&c->state->step, step);
	dev_store_relaxed(&c->state->doing, GANTRY_DOING(phase, (uint32_t)p->id));
}
DEV void prim_show_wait(const struct dev_prims *p, struct gantry_conn *c, uint64_t step, uint32_t phase)
{
	dev_store_relaxed(&c->state->at, p->at);
	prim_show(p, c, step, phase);
}

/* Lane 0: the operation's first use of a connection. */
DEV void prim_open(const struct dev_prims *p, struct gantry_conn *c)
{
	if (c->coll == p->id)
		return;
	c->coll = p->id;
	c->ended = c->step;
	c->step = c->base = c->ahead = (c->step + p->chunk_steps - 1) & ~(uint64_t)(p->chunk_steps - 1);
	c->lent = 0;
}

/* Lane 0. Waits until meta, and where it matters `where`, are the step's. */
DEV uint32_t prim_wait_words(const struct dev_prims *p, struct gantry_conn *c, const struct gantry_slot *s,
			     uint32_t phase, uint64_t *meta, uint64_t *where)
{
	const uint64_t step = c->step;
	struct dev_wait w;
	int shown = 0;

	dev_wait_init(&w);
	dev_wait_proxied(&w, (c->flags & GANTRY_CONN_PROXIED) != 0);
	for (;;) {
		*meta = dev_load(&s->meta);
		if (gantry_slot_is(*meta, step)) {
			if (gantry_slot_mode(*meta) == GANTRY_MODE_NORMAL && phase == GANTRY_KERNEL_WAIT_DATA)
				break;
			*where = dev_load(&s->where);
			if (gantry_slot_is(*where, step))
				break;
		}
		if (!shown && dev_wait_is_long(&w)) {
			prim_show_wait(p, c, step, phase);
			shown = 1;
		}
		if (dev_wait(&w)) {
			k_waited(c, &w, phase);
			return GANTRY_ERR_ABORTED;
		}
	}
	dev_wait_done(&w);
	k_waited(c, &w, phase);
	if (shown)
		prim_show(p, c, step, GANTRY_KERNEL_COPY);
	return GANTRY_OK;
}

/* Lane 0: waits for a slice of Simple from source i. */
DEV uint32_t prim_wait_data(struct dev_prims *p, const struct prim_slice *s, uint32_t i, uint64_t *ret_place)
{
	struct gantry_conn *c = s->recv[i];
	uint64_t meta = 0, where = 0;
	uint32_t r, mode;

	prim_open(p, c);
	r = prim_wait_words(p, c, &c->slots[c->step % GANTRY_STEPS], GANTRY_KERNEL_WAIT_DATA, &meta, &where);
	if (r)
		return r;
	mode = gantry_slot_mode(meta);
	if (mode >= GANTRY_MODES)
		return GANTRY_ERR_PROTOCOL;
	if (gantry_slot_size(meta) != s->bytes)
		return GANTRY_ERR_SIZE;
	p->modes |= mode << 2 * i;
	*ret_place = (uint64_t)(uintptr_t)k_place(c, mode, c->step, where);
	return GANTRY_OK;
}

/* Whether all steps of the next slice may be written. Steps that were left out count as consumed with those before. */
DEV int prim_credit(const struct dev_prims *p, struct gantry_conn *c)
{
	uint64_t end = c->step + p->slice_steps;

	return k_credit(c, end - 1) || (c->seen >= c->ended && c->base + GANTRY_STEPS >= end);
}

/* Lane 0: waits for that. */
DEV uint32_t prim_wait_credit(struct dev_prims *p, struct gantry_conn *c)
{
	struct dev_wait w;
	int shown = 0;

	prim_open(p, c);
	if (prim_credit(p, c))
		return GANTRY_OK;
	dev_wait_init(&w);
	dev_wait_proxied(&w, (c->flags & GANTRY_CONN_PROXIED) != 0);
	while (!prim_credit(p, c)) {
		if (!shown && dev_wait_is_long(&w)) {
			prim_show_wait(p, c, c->step, GANTRY_KERNEL_WAIT_HEAD);
			shown = 1;
		}
		if (dev_wait(&w)) {
			k_waited(c, &w, GANTRY_KERNEL_WAIT_HEAD);
			return GANTRY_ERR_ABORTED;
		}
	}
	dev_wait_done(&w);
	k_waited(c, &w, GANTRY_KERNEL_WAIT_HEAD);
	if (shown)
		prim_show(p, c, c->step, GANTRY_KERNEL_COPY);
	return GANTRY_OK;
}

/* Which user memory destination i can read: as prim_lends. */
DEV uint32_t prim_lent_from(const struct dev_prims *p, const struct prim_slice *s, uint32_t i)
{
	uint32_t ptr = p->ptr;

	if (!(s->send[i]->flags & (GANTRY_CONN_POINTS | GANTRY_CONN_LENDS)))
		return 0;
	if (s->shifts && s->shifts[2 * i] == GANTRY_COLL_KEPT)
		ptr &= ~(uint32_t)GANTRY_COLL_PTR_IN;
	if (s->shifts && s->shifts[2 * i + 1] == GANTRY_COLL_KEPT)
		ptr &= ~(uint32_t)GANTRY_COLL_PTR_OUT;
	return prim_lends(s->what, s->nrecv, p->op, s->last, ptr);
}

/* Where destination i reads what is sent, as it addresses it; 0: it gets a copy. */
DEV uint64_t prim_lent_at(const struct dev_prims *p, const struct prim_slice *s, uint32_t i)
{
	uint32_t from = prim_lent_from(p, s, i);
	int out = from == GANTRY_COLL_PTR_OUT;

	if (!from)
		return 0;
	return (uint64_t)(uintptr_t)(out ? s->out : s->in) + (s->shifts ? s->shifts[2 * i + (uint32_t)out] : 0);
}

/* Whether all destinations read the input: they may begin before it is copied to the output. */
DEV int prim_lends_input(const struct dev_prims *p, const struct prim_slice *s)
{
	uint32_t n = 0;

	while (n < s->nsend && prim_lent_from(p, s, n) == GANTRY_COLL_PTR_IN)
		n++;
	return n && n == s->nsend;
}

/* Lane 0: the same for Simple, and where it goes; 0: it stays where it is, and the consumer reads it there. */
DEV uint32_t prim_wait_space(struct dev_prims *p, const struct prim_slice *s, uint32_t i, uint64_t *ret_place)
{
	struct gantry_conn *c = s->send[i];
	uint64_t meta = 0, where = 0;
	uint32_t r = prim_wait_credit(p, c);

	*ret_place = 0;
	if (r || prim_lent_at(p, s, i))
		return r;
	if (!(c->flags & GANTRY_CONN_OFFSET)) {
		*ret_place = (uint64_t)(uintptr_t)k_ring(c, GANTRY_PROTO_SIMPLE, c->step);
		return GANTRY_OK;
	}
	r = prim_wait_words(p, c, &c->offers[c->step % GANTRY_STEPS], GANTRY_KERNEL_WAIT_OFFER, &meta, &where);
	if (r)
		return r;
	if (gantry_slot_size(meta) && gantry_slot_size(meta) < s->bytes)
		return GANTRY_ERR_SIZE;
	*ret_place = (uint64_t)(uintptr_t)(c->pool + gantry_slot_place(where));
	return GANTRY_OK;
}

/*
 * Lane 0: marks that come round (k_conn.h), for all steps since the slice before, those that were left out included.
 * The slice has credit (send) or was read (recv), so none of these words is still looked at. `slot`: the first step of
 * the slice has its slot written.
 */
DEV void prim_refresh_send(const struct dev_prims *p, const struct gantry_conn *c, int slot)
{
	uint64_t s = c->step == c->base ? c->ended : c->step;

	for (; s < c->step + p->slice_steps; s++)
		k_refresh_send(c, s, slot && s == c->step);
}
DEV void prim_refresh_recv(const struct dev_prims *p, const struct gantry_conn *c)
{
	uint64_t s = c->step == c->base ? c->ended : c->step;

	for (; s < c->step + p->slice_steps; s++)
		k_refresh_recv(c, s, 0);
}

/* Lane 0: the slice is where it belongs. What others wait for comes first. places: of Simple. */
DEV void prim_publish(struct dev_prims *p, const struct prim_slice *s, const uint64_t *places)
{
	const int simple = p->proto == GANTRY_PROTO_SIMPLE;
	const uint64_t *to = simple ? places + s->nrecv : places;

	for (uint32_t i = 0; i < s->nsend; i++) {
		struct gantry_conn *c = s->send[i];
		uint32_t mode = GANTRY_MODE_NORMAL;
		uint64_t at = 0;

		if (simple && !to[i]) {
			mode = GANTRY_MODE_PTR;
			at = prim_lent_at(p, s, i);
			c->lent = c->step + p->slice_steps;
		} else if (simple && c->flags & GANTRY_CONN_OFFSET) {
			mode = GANTRY_MODE_OFFSET;
			at = to[i] - (uint64_t)(uintptr_t)c->pool;
		}
		if (simple)
			prim_refresh_send(p, c, 1);
		k_publish(c, p->proto, c->step, c->step + p->slice_steps, mode, at, s->bytes);
		c->step += p->slice_steps;
	}
	for (uint32_t i = 0; i < s->nrecv; i++) {
		struct gantry_conn *c = s->recv[i];
		uint32_t mode = p->modes >> 2 * i & 3;

		prim_refresh_recv(p, c);
		k_consume(c, p->proto, c->step + p->slice_steps);
		k_count(c, p->proto, mode, s->bytes, mode != GANTRY_MODE_PTR || !(c->flags & GANTRY_CONN_PROXIED));
		c->step += p->slice_steps;
	}
}

/* Sources: the partial result, and where the local input stands among all of them. */
DEV uint32_t prim_sources(const struct prim_slice *s)
{
	return (s->what & PRIM_ACC ? 1 : 0) + (s->what & PRIM_IN ? 1 : 0) + s->nrecv;
}
DEV uint32_t prim_input_at(const struct prim_slice *s)
{
	return s->what & PRIM_IN ? (s->what & PRIM_ACC ? 1 : 0) + s->in_at : DEV_PREMUL_NONE;
}

/*
 * ---- LL and LL128 ----
 *
 * Every lane works on lines of its own: it takes a line from each source, reduces, and stores a line to each
 * destination and the bytes to the output. Nothing is written before all sources of that line are there, so a lane that
 * found one missing starts again with the same line. When all lanes have tried and some have lines left, lane 0 waits
 * (and sees an abort) and all try again.
 *
 * Order. A line validates itself, without any fence. Lane 0 has credit for the step before any lane writes a line; head
 * moves after a barrier that all lanes reached with their lines read.
 *
 * LL128: the lanes of a group call dev_ll128_get and _put with the same line, but each with a line's worth of memory of
 * its own, of which it uses the words that it moves itself: lane i of a group of `width` moves words i * 16 / width and
 * following, and no other lane does.
 */

/* Lines of LL that a lane does at a time: neighbours on the host, where loops over them are vectorised; on a GPU the
 * neighbouring line is the neighbouring lane's. */
#if defined(__CUDACC__) || defined(__HIPCC__)
enum { PRIM_LL_BATCH = 1 };
#else
enum { PRIM_LL_BATCH = 64 };
#endif

/* Words [from, to) of all sources, `apart` words from one source to the next, reduced into those of the first. */
DEV void prim_reduce_words(const struct dev_prims *p, const struct prim_slice *s, uint64_t *words, uint32_t apart,
			   uint32_t from, uint32_t to)
{
	const char *srcs[PRIM_SOURCES];
	char *dst = (char *)(words + from);
	struct dev_reduction r;

	r.premul = prim_input_at(s);
	r.nsrc = prim_sources(s);
	if (r.nsrc == 1 && dev_red_single(p->op, r.premul, s->last) == DEV_RED_NONE)
		return;
	for (uint32_t k = 0; k < r.nsrc; k++)
		srcs[k] = (const char *)(words + k * apart + from);
	r.srcs = srcs;
	r.dsts = &dst;
	r.ndst = 1;
	r.type = p->type;
	r.op = p->op;
	r.scalar = p->scalar;
	r.last = s->last;
	dev_words_reduce(&r, to - from);
}

/* Words [from, to) of a line, or of a batch of them, whose data is at p and has n bytes. */
DEV void prim_gather(uint64_t *words, const char *p, uint64_t n, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		words[i] = 8 * i < n ? dev_gather8(p + 8 * i, k_ll_part(n, 8 * i, 8)) : 0;
}
DEV void prim_scatter(char *p, const uint64_t *words, uint64_t n, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to && 8 * i < n; i++)
		dev_scatter8(p + 8 * i, words[i], k_ll_part(n, 8 * i, 8));
}

/* Where source k is in this rank's own memory, or NULL: it is received, *ret_recv says by which connection. */
DEV const char *prim_local(const struct prim_slice *s, uint32_t k, uint32_t *ret_recv)
{
	uint32_t acc = s->what & PRIM_ACC ? 1 : 0, at = prim_input_at(s);

	*ret_recv = k - acc - (at < k);
	return k < acc ? s->out : k == at ? s->in : NULL;
}

/* m lines of LL from line i on, of source k; 0: one is not there yet. */
DEV int prim_ll_get(const struct prim_slice *s, uint32_t k, uint64_t i, uint32_t m, uint64_t *words, uint32_t *tries)
{
	uint32_t r;
	const char *local = prim_local(s, k, &r), *line;
	uint64_t step;

	if (local) {
		prim_gather(words, local + i * GANTRY_LL_DATA, s->bytes - i * GANTRY_LL_DATA, 0, m);
		return 1;
	}
	step = s->recv[r]->step;
	line = k_ring(s->recv[r], GANTRY_PROTO_LL, step) + i * GANTRY_LL_LINE;
	for (uint32_t j = 0; j < m; j++, line += GANTRY_LL_LINE)
		while (!dev_ll_load((const uint64_t *)line, gantry_ll_flag(step), &words[j]))
			if (--*tries == 0)
				return 0;
	return 1;
}

/* One lane's lines from batch *at on; whether it has done them all. */
DEV int prim_ll(const struct dev_prims *p, const struct prim_slice *s, uint64_t *at)
{
	const uint64_t lines = gantry_ll_bytes(s->bytes) / GANTRY_LL_LINE;
	uint64_t words[PRIM_SOURCES * PRIM_LL_BATCH], i;
	uint32_t tries = DEV_TRIES, m;

	for (; *at * PRIM_LL_BATCH < lines; *at += dev_lanes()) {
		i = *at * PRIM_LL_BATCH;
		m = lines - i < PRIM_LL_BATCH ? (uint32_t)(lines - i) : PRIM_LL_BATCH;
		for (uint32_t k = 0; k < prim_sources(s); k++)
			if (!prim_ll_get(s, k, i, m, words + k * PRIM_LL_BATCH, &tries))
				return 0;
		prim_reduce_words(p, s, words, PRIM_LL_BATCH, 0, m);
		for (uint32_t r = 0; r < s->nsend; r++) {
			uint64_t step = s->send[r]->step;
			char *line = k_ring(s->send[r], GANTRY_PROTO_LL, step) + i * GANTRY_LL_LINE;

			for (uint32_t j = 0; j < m; j++, line += GANTRY_LL_LINE)
				dev_ll_store((uint64_t *)line, words[j], gantry_ll_flag(step));
		}
		if (s->what & PRIM_OUT)
			prim_scatter(s->out + i * GANTRY_LL_DATA, words, s->bytes - i * GANTRY_LL_DATA, 0, m);
	}
	return 1;
}

/* Words [from, to) of line i of LL128, of source k; 0: it is not there yet. */
DEV int prim_ll128_get(const struct prim_slice *s, uint32_t k, uint64_t i, uint64_t *words, uint32_t from, uint32_t to,
		       uint32_t *tries)
{
	uint32_t r, n = k_ll_part(s->bytes, i * GANTRY_LL128_DATA, GANTRY_LL128_DATA);
	const char *local = prim_local(s, k, &r), *line;
	uint64_t step;

	if (local) {
		prim_gather(words, local + i * GANTRY_LL128_DATA, n, from, to);
		return 1;
	}
	step = s->recv[r]->step;
	line = k_ring(s->recv[r], GANTRY_PROTO_LL128, step) + i * GANTRY_LL128_LINE;
	for (uint32_t j = from; j < to; j++)
		words[j] = 0; /* what a short line does not have */
	while (!dev_ll128_get((const uint64_t *)line, (char *)words, n, gantry_ll128_flag(step)))
		if (--*tries == 0)
			return 0;
	return 1;
}

/* The same for LL128; *at is a line. Lanes beyond the last whole group have none. */
DEV int prim_ll128(const struct dev_prims *p, const struct prim_slice *s, uint64_t *at)
{
	const uint32_t width = dev_ll128_width(), groups = dev_lanes() / width, group = dev_lane() / width;
	const uint32_t each = 16 / width, from = dev_lane() % width * each, to = from + each < 15 ? from + each : 15;
	uint64_t words[PRIM_SOURCES * 16];
	uint32_t tries = DEV_TRIES, n;

	for (; group < groups && *at * GANTRY_LL128_DATA < s->bytes; *at += groups) {
		n = k_ll_part(s->bytes, *at * GANTRY_LL128_DATA, GANTRY_LL128_DATA);
		for (uint32_t k = 0; k < prim_sources(s); k++)
			if (!prim_ll128_get(s, k, *at, words + k * 16, from, to, &tries))
				return 0;
		prim_reduce_words(p, s, words, 16, from, to);
		for (uint32_t r = 0; r < s->nsend; r++) {
			uint64_t step = s->send[r]->step;
			char *line = k_ring(s->send[r], GANTRY_PROTO_LL128, step) + *at * GANTRY_LL128_LINE;

			dev_ll128_put((uint64_t *)line, (const char *)words, n, gantry_ll128_flag(step));
		}
		if (s->what & PRIM_OUT)
			prim_scatter(s->out + *at * GANTRY_LL128_DATA, words, n, from, to);
	}
	return 1;
}

/* Lane 0: credit of all destinations, and the marks that must be there before the step's lines. */
DEV uint32_t prim_lines_begin(struct dev_prims *p, const struct prim_slice *s)
{
	uint32_t r = GANTRY_OK;

	p->modes = 0;
	for (uint32_t i = 0; i < s->nrecv; i++)
		prim_open(p, s->recv[i]);
	for (uint32_t i = 0; i < s->nsend && !r; i++) {
		r = prim_wait_credit(p, s->send[i]);
		if (!r)
			prim_refresh_send(p, s->send[i], (s->send[i]->flags & GANTRY_CONN_PROXIED) != 0);
	}
	return r;
}

/* Lane 0's wait for lines that are late. Whose they are is not known; the first peer shows it. */
struct prim_late {
	struct dev_wait wait;
	int late, shown;
};

DEV void prim_lines_show(const struct dev_prims *p, const struct prim_slice *s, uint32_t phase)
{
	if (s->nrecv)
		prim_show_wait(p, s->recv[0], s->recv[0]->step, phase);
}

/* Lane 0: once more; whether it was aborted. */
DEV int prim_lines_wait(const struct dev_prims *p, const struct prim_slice *s, struct prim_late *l)
{
	if (!l->late) {
		dev_wait_init(&l->wait);
		dev_wait_proxied(&l->wait, s->nrecv && s->recv[0]->flags & GANTRY_CONN_PROXIED);
		l->late = 1;
	}
	if (!l->shown && dev_wait_is_long(&l->wait)) {
		prim_lines_show(p, s, GANTRY_KERNEL_WAIT_DATA);
		l->shown = 1;
	}
	return dev_wait(&l->wait);
}

DEV void prim_lines_done(const struct dev_prims *p, const struct prim_slice *s, struct prim_late *l)
{
	if (!l->late)
		return;
	dev_wait_done(&l->wait);
	if (s->nrecv)
		k_waited(s->recv[0], &l->wait, GANTRY_KERNEL_WAIT_DATA);
	if (l->shown)
		prim_lines_show(p, s, GANTRY_KERNEL_COPY);
}

DEV uint32_t prim_lines(struct dev_prims *p, const struct prim_slice *s)
{
	uint64_t at = p->proto == GANTRY_PROTO_LL ? dev_lane() : dev_lane() / dev_ll128_width();
	uint64_t error = 0;
	struct prim_late late;

	late.late = late.shown = 0;
	if (dev_lane() == 0)
		error = prim_lines_begin(p, s);
	error = dev_bcast(error);
	while (!error && !dev_all(p->proto == GANTRY_PROTO_LL ? prim_ll(p, s, &at) : prim_ll128(p, s, &at))) {
		if (dev_lane() == 0)
			error = prim_lines_wait(p, s, &late) ? GANTRY_ERR_ABORTED : GANTRY_OK;
		error = dev_bcast(error);
	}
	if (dev_lane() == 0 && !error) {
		prim_lines_done(p, s, &late);
		prim_publish(p, s, NULL);
	}
	return (uint32_t)error;
}

/* ---- Simple ---- */

/* Whether source k of a slice with these places is a list of fragments; k_gather.h. */
DEV int prim_listed(const struct prim_slice *s, uint32_t k, uint32_t *ret_recv)
{
	return !prim_local(s, k, ret_recv) && s->recv[*ret_recv]->flags & GANTRY_CONN_UNPACK;
}

/* block: the slice's only received source, all of it on pages, to all destinations: read once, where it is. */
DEV void prim_unpack_into(const struct dev_frags *f, const struct dev_reduction *r, uint32_t k, uint64_t bytes)
{
	if (r->nsrc == 1)
		k_gather_to(f, r->dsts[0]);
	else
		k_gather_reduce(f, r, 1 - k);
	if (r->ndst > 1)
		dev_barrier();
	for (uint32_t j = 1; j < r->ndst; j++)
		dev_copy(r->dsts[j], r->dsts[0], bytes);
}

/*
 * block: dev_reduce_copy for a slice with sources on pages. One such source, alone or with another, is not stored by
 * itself. Several are, in their buffers, as NCCL's kernels do with each.
 */
DEV uint32_t prim_unpack(const struct prim_slice *s, const uint64_t *places, const struct dev_reduction *r,
			 const char **srcs)
{
	const int single = r->nsrc == 1 && dev_red_single(r->op, r->premul, r->last) == DEV_RED_NONE;
	struct dev_frags f;
	uint64_t listed;
	uint32_t i, error;

	for (uint32_t k = 0; k < r->nsrc; k++) {
		int direct;

		if (!prim_listed(s, k, &i))
			continue;
		error = k_gather_list(s->recv[i], places[i], s->bytes, &f, &listed);
		if (error)
			return error;
		direct = s->nrecv == 1 && r->ndst && (single || r->nsrc == 2) && listed == s->bytes;
		if (dev_lane() == 0)
			k_gathered(s->recv[i], places[i], listed, direct && !single);
		if (direct) {
			prim_unpack_into(&f, r, k, s->bytes);
			return GANTRY_OK;
		}
		k_gather_to(&f, f.dst);
		srcs[k] = f.dst;
	}
	if (s->nrecv)
		dev_barrier();
	dev_reduce_copy(r, s->count);
	return GANTRY_OK;
}

/* Lane 0: the places of all sources and destinations that are not local, sources first. */
DEV uint32_t prim_wait_all(struct dev_prims *p, const struct prim_slice *s, uint64_t *ret_places)
{
	uint32_t r = GANTRY_OK, n = 0;

	p->modes = 0;
	for (uint32_t i = 0; i < s->nrecv && !r; i++)
		r = prim_wait_data(p, s, i, &ret_places[n++]);
	for (uint32_t i = 0; i < s->nsend && !r; i++)
		r = prim_wait_space(p, s, i, &ret_places[n++]);
	return r;
}

/* Sources and destinations of a slice, and what becomes of them. places: prim_wait_all's. */
DEV void prim_list(const struct dev_prims *p, const struct prim_slice *s, const uint64_t *places, const char **srcs,
		   char **dsts, struct dev_reduction *r)
{
	uint32_t nsrc = prim_sources(s), ndst = 0, i;

	for (uint32_t k = 0; k < nsrc; k++) {
		srcs[k] = prim_local(s, k, &i);
		if (!srcs[k])
			srcs[k] = (const char *)(uintptr_t)places[i];
	}
	if (s->what & PRIM_OUT)
		dsts[ndst++] = s->out;
	for (uint32_t k = 0; k < s->nsend; k++)
		if (places[s->nrecv + k])
			dsts[ndst++] = (char *)(uintptr_t)places[s->nrecv + k];
	r->srcs = srcs;
	r->dsts = dsts;
	r->nsrc = nsrc;
	r->ndst = ndst;
	r->type = p->type;
	r->op = p->op;
	r->scalar = p->scalar;
	r->premul = prim_input_at(s);
	r->last = s->last;
}

/* unpack, a constant: sources may be lists. */
DEV uint32_t prim_simple(struct dev_prims *p, const struct prim_slice *s, int unpack)
{
	uint64_t box[1 + 2 * GANTRY_PRIM_PEERS]; /* error, places */
	const char *srcs[PRIM_SOURCES];
	char *dsts[1 + GANTRY_PRIM_PEERS];
	uint32_t n = 1 + s->nrecv + s->nsend;
	struct dev_reduction r;
	int early;

	box[0] = GANTRY_OK; /* no compiler sees that the loop below overwrites it */
	if (dev_lane() == 0)
		box[0] = prim_wait_all(p, s, box + 1);
	for (uint32_t k = 0; k < n; k += 8)
		dev_share(box + k, n - k < 8 ? 8 * (n - k) : 64);
	if (box[0])
		return (uint32_t)box[0];
	prim_list(p, s, box + 1, srcs, dsts, &r);
	early = dev_lane() == 0 && prim_lends_input(p, s);
	if (early)
		prim_publish(p, s, box + 1);
	if (unpack)
		box[0] = prim_unpack(s, box + 1, &r, srcs);
	else
		dev_reduce_copy(&r, s->count);
	if (unpack && box[0])
		return (uint32_t)box[0];
	dev_barrier();
	if (dev_lane() == 0 && !early)
		prim_publish(p, s, box + 1);
	return GANTRY_OK;
}

/*
 * A primitive over s->count elements, at most a chunk: cuts it into slices. unpack, a constant: only Simple, and sources
 * may be lists. Kernels without do not pay for it: on a GPU, in registers.
 */
DEV uint32_t prims_move(struct dev_prims *p, struct prim_slice *s, int unpack)
{
	for (uint64_t left = s->count; left && !p->error; left -= s->count) {
		s->count = left < p->slice ? left : p->slice;
		s->bytes = s->count * p->elem;
		if (unpack)
			p->error = prim_simple(p, s, 1);
		else
			p->error = p->proto == GANTRY_PROTO_SIMPLE ? prim_simple(p, s, 0) : prim_lines(p, s);
		s->in += s->what & PRIM_IN ? s->bytes : 0;
		s->out += s->what & (PRIM_OUT | PRIM_ACC) ? s->bytes : 0;
	}
	return p->error;
}
DEV_BIG uint32_t dev_prims_move(struct dev_prims *p, struct prim_slice *s)
{
	return prims_move(p, s, 0);
}
DEV_BIG uint32_t dev_prims_move_unpack(struct dev_prims *p, struct prim_slice *s)
{
	return prims_move(p, s, 1);
}

/* Lane 0: buffers for the receives of one slice ahead of time. 0: there is no room yet. place: NULL: the proxy's own. */
DEV int prim_offer(const struct dev_prims *p, struct gantry_conn *c, const char *place, uint64_t bytes)
{
	struct gantry_slot *offer;
	uint32_t mode = place ? GANTRY_MODE_PTR : GANTRY_MODE_NORMAL;

	prim_open(p, c);
	if (c->ahead + p->slice_steps > c->step + GANTRY_STEPS)
		return 0;
	offer = &c->offers[c->ahead % GANTRY_STEPS];
	dev_post(offer, gantry_slot_meta(c->ahead, mode, bytes),
		 gantry_slot_where(c->ahead, (uint64_t)(uintptr_t)place));
	dev_notify(c->eventcount);
	c->ahead += p->slice_steps;
	return 1;
}

/* Lane 0: user memory that was lent to a consumer is no longer read. */
DEV uint32_t prim_wait_lent(struct dev_prims *p, struct gantry_conn *c)
{
	struct dev_wait w;

	if (!(c->flags & GANTRY_CONN_SEND) || c->coll != p->id || !c->lent)
		return GANTRY_OK;
	dev_wait_init(&w);
	dev_wait_proxied(&w, (c->flags & GANTRY_CONN_PROXIED) != 0);
	if (dev_load(c->head) < c->lent)
		prim_show_wait(p, c, c->lent - p->slice_steps, GANTRY_KERNEL_WAIT_DONE);
	while (dev_load(c->head) < c->lent)
		if (dev_wait(&w)) {
			k_waited(c, &w, GANTRY_KERNEL_WAIT_DONE);
			return GANTRY_ERR_ABORTED;
		}
	dev_wait_done(&w);
	k_waited(c, &w, GANTRY_KERNEL_WAIT_DONE);
	c->lent = 0;
	return GANTRY_OK;
}

/* Of a power of two. */
DEV int prim_divides(uint32_t part, uint32_t whole)
{
	return part && !(part & (part - 1)) && part <= whole;
}

/* Fields that the caller has set: id, proto, type, op, scalar, ptr. Answers and keeps an error if they make no sense. */
DEV uint32_t dev_prims_init(struct dev_prims *p, uint32_t step_bytes, uint32_t slice_steps, uint32_t chunk_steps)
{
	p->modes = 0;
	p->at = 0;
	p->elem = dev_type_bytes(p->type);
	p->slice_steps = p->proto == GANTRY_PROTO_SIMPLE ? slice_steps : 1;
	p->chunk_steps = chunk_steps;
	p->slice = 0;
	p->error = GANTRY_ERR_INVALID;
	if (!p->elem || p->proto >= GANTRY_PROTOS || !prim_divides(p->slice_steps, chunk_steps) ||
	    !prim_divides(chunk_steps, GANTRY_STEPS))
		return p->error;
	p->slice = dev_type_count(p->type, (uint64_t)step_bytes * p->slice_steps);
	if (p->slice)
		p->error = GANTRY_OK;
	return p->error;
}

#endif
