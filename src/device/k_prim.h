/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives that collectives are made of: send, recv, copySend, recvCopySend, recvReduceSend, recvReduceCopy and
 * recvReduceCopySend, over nrecv connections that bring data and nsend that take it away. They block: all lanes of the
 * block call them together, lane 0 waits, in the order of the peers. Every source is reduced with the others (one alone
 * is copied), the local input first; every destination, the local output first, gets the result.
 *
 * How data lies on the steps of a connection. Both ends and the proxies between them follow these rules:
 *
 *   operation   begins, on each of its connections, at base = conn->step rounded up to a multiple of chunk_steps. Its
 *               steps follow each other from there without gaps; at its end conn->step is the next one. Steps that
 *               were left out below base carry nothing. Nobody stores head for them; the producer counts them as
 *               consumed as soon as head is where the operation before ended (without that, an operation whose slices
 *               fill the ring would wait for ever). An operation that moves nothing on a connection leaves no trace
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
 * All connections of an operation have the same step_bytes.
 *
 * Order, Simple. Lane 0: acquire of every source's slot and of every destination's head or offer. Barrier (dev_share).
 * All: read, reduce, write. Barrier. Lane 0: release of the slots of what is sent, then of the heads of what is
 * consumed. LL and LL128: see below.
 *
 * An abort, or an error, ends the operation at the slice it is seen in; all later calls do nothing and answer the same.
 * The connections are of no use then.
 */
#ifndef GANTRY_DEVICE_K_PRIM_H
#define GANTRY_DEVICE_K_PRIM_H

#include "device/dev.h"
#include "device/k_conn.h"
#include "device/k_reduce.h"

enum { GANTRY_PRIM_PEERS = 8 };
/* What a primitive has a part in: its own input and output, data from peers and to peers. */
enum { PRIM_IN = 1, PRIM_OUT = 2, PRIM_RECV = 4, PRIM_SEND = 8 };
enum gantry_prim_kind {
	GANTRY_PRIM_SEND = PRIM_IN | PRIM_SEND,
	GANTRY_PRIM_RECV = PRIM_RECV | PRIM_OUT,
	GANTRY_PRIM_COPY_SEND = PRIM_IN | PRIM_OUT | PRIM_SEND,
	GANTRY_PRIM_RECV_COPY_SEND = PRIM_RECV | PRIM_OUT | PRIM_SEND,
	GANTRY_PRIM_RECV_REDUCE_SEND = PRIM_IN | PRIM_RECV | PRIM_SEND,
	GANTRY_PRIM_RECV_REDUCE_COPY = PRIM_IN | PRIM_RECV | PRIM_OUT,
	GANTRY_PRIM_RECV_REDUCE_COPY_SEND = PRIM_IN | PRIM_RECV | PRIM_OUT | PRIM_SEND,
};

/* Each lane has its own, all with the same values, but for `modes`, which is lane 0's. */
struct dev_prims {
	struct gantry_conn *const *recv, *const *send; /* borrowed arrays */
	uint32_t nrecv, nsend;
	uint32_t proto, type, op;
	uint32_t elem;	       /* bytes of an element */
	uint32_t slice_steps;  /* 1 for LL and LL128 */
	uint32_t error;	       /* gantry_result: the first one */
	uint64_t slice, chunk; /* elements at most */
	uint64_t scalar;
	const char *input;
	char *output;
	uint64_t received, sent; /* steps, of this operation, on each connection */
	uint64_t recv_base[GANTRY_PRIM_PEERS], send_base[GANTRY_PRIM_PEERS];
	uint32_t modes; /* of the slice's sources, two bits each; 0 for LL and LL128 */
};

/* What a call works on: a slice. */
struct prim_slice {
	uint32_t what; /* enum gantry_prim_kind */
	uint32_t last;
	const char *in;
	char *out;
	uint64_t count, bytes;
};

DEV uint64_t prim_recv_step(const struct dev_prims *p, uint32_t i)
{
	return p->recv_base[i] + p->received;
}
DEV uint64_t prim_send_step(const struct dev_prims *p, uint32_t i)
{
	return p->send_base[i] + p->sent;
}

DEV void prim_show(struct gantry_conn *c, uint64_t step, uint32_t phase)
{
	dev_store_relaxed(&c->state->step, step);
	dev_store_relaxed32(&c->state->phase, phase);
}

/* Lane 0. Waits until meta, and where it matters `where`, are the step's. */
DEV uint32_t prim_wait_words(struct gantry_conn *c, const struct gantry_slot *s, uint64_t step, uint32_t phase,
			     uint64_t *meta, uint64_t *where)
{
	struct dev_wait w;
	int shown = 0;

	dev_wait_init(&w);
	for (;;) {
		*meta = dev_load(&s->meta);
		if (gantry_slot_is(*meta, step)) {
			if (gantry_slot_mode(*meta) == GANTRY_MODE_NORMAL && phase == GANTRY_KERNEL_WAIT_DATA)
				break;
			*where = dev_load(&s->where);
			if (gantry_slot_is(*where, step))
				break;
		}
		if (!shown)
			prim_show(c, step, phase);
		shown = 1;
		if (dev_wait(&w))
			return GANTRY_ERR_ABORTED;
	}
	dev_wait_done(&w);
	if (shown)
		prim_show(c, step, GANTRY_KERNEL_COPY);
	return GANTRY_OK;
}

/* Lane 0: waits for a slice of Simple from peer i. */
DEV uint32_t prim_wait_data(struct dev_prims *p, uint32_t i, uint64_t bytes, uint64_t *ret_place)
{
	struct gantry_conn *c = p->recv[i];
	uint64_t step = prim_recv_step(p, i), meta = 0, where = 0;
	uint32_t r, mode;

	r = prim_wait_words(c, &c->slots[step % GANTRY_STEPS], step, GANTRY_KERNEL_WAIT_DATA, &meta, &where);
	if (r)
		return r;
	mode = gantry_slot_mode(meta);
	if (mode >= GANTRY_MODES)
		return GANTRY_ERR_PROTOCOL;
	if (gantry_slot_size(meta) != bytes)
		return GANTRY_ERR_SIZE;
	p->modes |= mode << 2 * i;
	*ret_place = (uint64_t)(uintptr_t)k_place(c, mode, step, where);
	return GANTRY_OK;
}

/* Whether all steps of the next slice to peer i may be written. c->step is still where the operation before ended. */
DEV int prim_credit(const struct dev_prims *p, uint32_t i)
{
	struct gantry_conn *c = p->send[i];
	uint64_t end = prim_send_step(p, i) + p->slice_steps;

	return k_credit(c, end - 1) || (c->seen >= c->step && p->send_base[i] + GANTRY_STEPS >= end);
}

/* Lane 0: waits for that. */
DEV uint32_t prim_wait_credit(struct dev_prims *p, uint32_t i)
{
	struct gantry_conn *c = p->send[i];
	uint64_t step = prim_send_step(p, i);
	struct dev_wait w;

	if (prim_credit(p, i))
		return GANTRY_OK;
	prim_show(c, step, GANTRY_KERNEL_WAIT_HEAD);
	dev_wait_init(&w);
	while (!prim_credit(p, i))
		if (dev_wait(&w))
			return GANTRY_ERR_ABORTED;
	dev_wait_done(&w);
	prim_show(c, step, GANTRY_KERNEL_COPY);
	return GANTRY_OK;
}

/* Lane 0: the same for Simple, and where it goes. */
DEV uint32_t prim_wait_space(struct dev_prims *p, uint32_t i, uint64_t bytes, uint64_t *ret_place)
{
	struct gantry_conn *c = p->send[i];
	uint64_t step = prim_send_step(p, i), meta = 0, where = 0;
	uint32_t r = prim_wait_credit(p, i);

	if (r)
		return r;
	if (!(c->flags & GANTRY_CONN_OFFSET)) {
		*ret_place = (uint64_t)(uintptr_t)k_ring(c, GANTRY_PROTO_SIMPLE, step);
		return GANTRY_OK;
	}
	r = prim_wait_words(c, &c->offers[step % GANTRY_STEPS], step, GANTRY_KERNEL_WAIT_OFFER, &meta, &where);
	if (r)
		return r;
	if (gantry_slot_size(meta) && gantry_slot_size(meta) < bytes)
		return GANTRY_ERR_SIZE;
	*ret_place = (uint64_t)(uintptr_t)(c->pool + gantry_slot_place(where));
	return GANTRY_OK;
}

/*
 * Lane 0: marks that come round (k_conn.h), for all steps since the slice before, those that were left out included.
 * The slice has credit (send) or was read (recv), so none of these words is still looked at. `slot`: the first step of
 * the slice has its slot written.
 */
DEV void prim_refresh_send(const struct dev_prims *p, uint32_t i, int slot)
{
	const struct gantry_conn *c = p->send[i];
	uint64_t first = prim_send_step(p, i), s = p->sent ? first : c->step;

	for (; s < first + p->slice_steps; s++)
		k_refresh_send(c, s, slot && s == first);
}
DEV void prim_refresh_recv(const struct dev_prims *p, uint32_t i)
{
	const struct gantry_conn *c = p->recv[i];
	uint64_t first = prim_recv_step(p, i), s = p->received ? first : c->step;

	for (; s < first + p->slice_steps; s++)
		k_refresh_recv(c, s, 0);
}

/* Lane 0: the slice is where it belongs. What others wait for comes first. places: of Simple. */
DEV void prim_publish(struct dev_prims *p, const struct prim_slice *s, const uint64_t *places)
{
	const int simple = p->proto == GANTRY_PROTO_SIMPLE;
	const uint64_t *to = simple && s->what & PRIM_RECV ? places + p->nrecv : places;

	for (uint32_t i = 0; s->what & PRIM_SEND && i < p->nsend; i++) {
		struct gantry_conn *c = p->send[i];
		uint64_t step = prim_send_step(p, i), at = 0;
		uint32_t mode = GANTRY_MODE_NORMAL;

		if (simple && c->flags & GANTRY_CONN_OFFSET) {
			mode = GANTRY_MODE_OFFSET;
			at = to[i] - (uint64_t)(uintptr_t)c->pool;
		}
		if (simple)
			prim_refresh_send(p, i, 1);
		k_publish(c, p->proto, step, step + p->slice_steps, mode, at, s->bytes);
	}
	for (uint32_t i = 0; s->what & PRIM_RECV && i < p->nrecv; i++) {
		prim_refresh_recv(p, i);
		k_consume(p->recv[i], p->proto, prim_recv_step(p, i) + p->slice_steps);
		k_count(p->recv[i], p->proto, p->modes >> 2 * i & 3, s->bytes, 1);
	}
}

/*
 * ---- LL and LL128 ----
 *
 * Every lane works on lines of its own: it takes a line from each source, reduces, and stores a line to each
 * destination and the bytes to the output. Nothing is written before all sources of that line are there, so a lane that
 * found one missing starts again with the same line. When all lanes have tried and some have lines left, lane 0 waits
 * (and sees an abort) and all try again.
 *
 * Order. A line vouches for itself, no fence anywhere. Lane 0 has credit for the step before anybody writes a line;
 * head moves after a barrier that all lanes reached with their lines read.
 *
 * LL128: the lanes of a group call dev_ll128_get and _put with the same line, but each with a line's worth of memory of
 * its own, of which it uses the words that it moves itself: lane i of a group of `width` moves words i * 16 / width and
 * following, and nobody else does.
 */

/* Lines of LL that a lane does at a time: neighbours on the host, where loops over them are vectorised; on a GPU the
 * neighbouring line is the neighbouring lane's. */
#ifdef __CUDACC__
enum { PRIM_LL_BATCH = 1 };
#else
enum { PRIM_LL_BATCH = 64 };
#endif

DEV uint32_t prim_sources(const struct dev_prims *p, const struct prim_slice *s)
{
	return (s->what & PRIM_IN ? 1 : 0) + (s->what & PRIM_RECV ? p->nrecv : 0);
}

/* Joins source k to those before it: words [from, to) of acc and v. */
DEV void prim_join(const struct dev_prims *p, const struct prim_slice *s, uint32_t k, uint64_t *acc, const uint64_t *v,
		   uint32_t from, uint32_t to)
{
	uint32_t step = dev_red_step(p->op, k, prim_sources(p, s), s->what & PRIM_IN, s->last);

	dev_words_step(p->type, step, acc + from, acc + from, v + from, to - from, p->scalar);
}
/* When there is only one. */
DEV void prim_join_single(const struct dev_prims *p, const struct prim_slice *s, uint64_t *acc, uint32_t from,
			  uint32_t to)
{
	uint32_t step = dev_red_single(p->op, s->what & PRIM_IN, s->last);

	if (prim_sources(p, s) == 1 && step != DEV_RED_NONE)
		dev_words_step(p->type, step, acc + from, acc + from, acc + from, to - from, p->scalar);
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

/* One lane's lines from batch *at on; whether it has done them all. */
DEV int prim_ll(const struct dev_prims *p, const struct prim_slice *s, uint64_t *at)
{
	const uint64_t lines = gantry_ll_bytes(s->bytes) / GANTRY_LL_LINE;
	uint64_t acc[PRIM_LL_BATCH], v[PRIM_LL_BATCH], i, n;
	uint32_t tries = DEV_TRIES, m, k;

	for (; *at * PRIM_LL_BATCH < lines; *at += dev_lanes()) {
		i = *at * PRIM_LL_BATCH;
		m = lines - i < PRIM_LL_BATCH ? (uint32_t)(lines - i) : PRIM_LL_BATCH;
		n = s->bytes - i * GANTRY_LL_DATA;
		k = 0;
		if (s->what & PRIM_IN) {
			prim_gather(acc, s->in + i * GANTRY_LL_DATA, n, 0, m);
			k = 1;
		}
		for (uint32_t r = 0; s->what & PRIM_RECV && r < p->nrecv; r++, k++) {
			uint64_t step = prim_recv_step(p, r);
			const char *line = k_ring(p->recv[r], GANTRY_PROTO_LL, step) + i * GANTRY_LL_LINE;

			for (uint32_t j = 0; j < m; j++, line += GANTRY_LL_LINE)
				while (!dev_ll_load((const uint64_t *)line, gantry_ll_flag(step), k ? &v[j] : &acc[j]))
					if (--tries == 0)
						return 0;
			if (k)
				prim_join(p, s, k, acc, v, 0, m);
		}
		prim_join_single(p, s, acc, 0, m);
		for (uint32_t r = 0; s->what & PRIM_SEND && r < p->nsend; r++) {
			uint64_t step = prim_send_step(p, r);
			char *line = k_ring(p->send[r], GANTRY_PROTO_LL, step) + i * GANTRY_LL_LINE;

			for (uint32_t j = 0; j < m; j++, line += GANTRY_LL_LINE)
				dev_ll_store((uint64_t *)line, acc[j], gantry_ll_flag(step));
		}
		if (s->what & PRIM_OUT)
			prim_scatter(s->out + i * GANTRY_LL_DATA, acc, n, 0, m);
	}
	return 1;
}

/* The same for LL128; *at is a line. Lanes beyond the last whole group have none. */
DEV int prim_ll128(const struct dev_prims *p, const struct prim_slice *s, uint64_t *at)
{
	const uint32_t width = dev_ll128_width(), groups = dev_lanes() / width, group = dev_lane() / width;
	const uint32_t words = 16 / width, from = dev_lane() % width * words,
		       to = from + words < 15 ? from + words : 15;
	uint64_t acc[16], v[16];
	uint32_t tries = DEV_TRIES, n, k;

	for (; group < groups && *at * GANTRY_LL128_DATA < s->bytes; *at += groups) {
		n = k_ll_part(s->bytes, *at * GANTRY_LL128_DATA, GANTRY_LL128_DATA);
		k = 0;
		if (s->what & PRIM_IN) {
			prim_gather(acc, s->in + *at * GANTRY_LL128_DATA, n, from, to);
			k = 1;
		}
		for (uint32_t r = 0; s->what & PRIM_RECV && r < p->nrecv; r++, k++) {
			uint64_t step = prim_recv_step(p, r), *to_words = k ? v : acc;
			const char *line = k_ring(p->recv[r], GANTRY_PROTO_LL128, step) + *at * GANTRY_LL128_LINE;

			for (uint32_t j = from; j < to; j++)
				to_words[j] = 0; /* what a short line does not have */
			while (!dev_ll128_get((const uint64_t *)line, (char *)to_words, n, gantry_ll128_flag(step)))
				if (--tries == 0)
					return 0;
			if (k)
				prim_join(p, s, k, acc, v, from, to);
		}
		prim_join_single(p, s, acc, from, to);
		for (uint32_t r = 0; s->what & PRIM_SEND && r < p->nsend; r++) {
			uint64_t step = prim_send_step(p, r);
			char *line = k_ring(p->send[r], GANTRY_PROTO_LL128, step) + *at * GANTRY_LL128_LINE;

			dev_ll128_put((uint64_t *)line, (const char *)acc, n, gantry_ll128_flag(step));
		}
		if (s->what & PRIM_OUT)
			prim_scatter(s->out + *at * GANTRY_LL128_DATA, acc, n, from, to);
	}
	return 1;
}

/* Lane 0: credit of all destinations, and the marks that must be there before the step's lines. */
DEV uint32_t prim_lines_begin(struct dev_prims *p, const struct prim_slice *s)
{
	uint32_t r = GANTRY_OK;

	for (uint32_t i = 0; s->what & PRIM_SEND && i < p->nsend && !r; i++) {
		r = prim_wait_credit(p, i);
		if (!r)
			prim_refresh_send(p, i, (p->send[i]->flags & GANTRY_CONN_PROXIED) != 0);
	}
	return r;
}

/* Lane 0, the first time that lines are late. Whose they are is not known; the first peer shows it. */
DEV void prim_lines_late(struct dev_prims *p, struct dev_wait *w, uint32_t phase)
{
	if (phase != GANTRY_KERNEL_WAIT_DATA)
		dev_wait_done(w);
	if (p->nrecv)
		prim_show(p->recv[0], prim_recv_step(p, 0), phase);
}

DEV uint32_t prim_lines(struct dev_prims *p, const struct prim_slice *s)
{
	uint64_t at = p->proto == GANTRY_PROTO_LL ? dev_lane() : dev_lane() / dev_ll128_width();
	uint64_t error = 0;
	struct dev_wait w;
	int late = 0;

	if (dev_lane() == 0)
		error = prim_lines_begin(p, s);
	error = dev_bcast(error);
	if (error)
		return (uint32_t)error;
	while (!dev_all(p->proto == GANTRY_PROTO_LL ? prim_ll(p, s, &at) : prim_ll128(p, s, &at))) {
		if (!late)
			dev_wait_init(&w);
		if (dev_lane() == 0) {
			if (!late)
				prim_lines_late(p, &w, GANTRY_KERNEL_WAIT_DATA);
			error = dev_wait(&w) ? GANTRY_ERR_ABORTED : GANTRY_OK;
		}
		late = 1;
		error = dev_bcast(error);
		if (error)
			return (uint32_t)error;
	}
	if (dev_lane() == 0) {
		if (late)
			prim_lines_late(p, &w, GANTRY_KERNEL_COPY);
		prim_publish(p, s, NULL);
	}
	return GANTRY_OK;
}

/* ---- Simple ---- */

/* Lane 0: the places of all sources and destinations that are not local, sources first. */
DEV uint32_t prim_wait_all(struct dev_prims *p, const struct prim_slice *s, uint64_t *ret_places)
{
	uint32_t r = GANTRY_OK, n = 0;

	p->modes = 0;
	for (uint32_t i = 0; s->what & PRIM_RECV && i < p->nrecv && !r; i++)
		r = prim_wait_data(p, i, s->bytes, &ret_places[n++]);
	for (uint32_t i = 0; s->what & PRIM_SEND && i < p->nsend && !r; i++)
		r = prim_wait_space(p, i, s->bytes, &ret_places[n++]);
	return r;
}

DEV uint32_t prim_simple(struct dev_prims *p, const struct prim_slice *s)
{
	uint64_t box[1 + 2 * GANTRY_PRIM_PEERS]; /* error, places */
	const char *srcs[1 + GANTRY_PRIM_PEERS];
	char *dsts[1 + GANTRY_PRIM_PEERS];
	uint32_t nrecv = s->what & PRIM_RECV ? p->nrecv : 0, nsend = s->what & PRIM_SEND ? p->nsend : 0;
	uint32_t nsrc = 0, ndst = 0;
	struct dev_reduction r;

	box[0] = GANTRY_OK; /* no compiler sees that the loop below overwrites it */
	if (dev_lane() == 0)
		box[0] = prim_wait_all(p, s, box + 1);
	for (uint32_t i = 0; i < 1 + nrecv + nsend; i += 8)
		dev_share(box + i, 1 + nrecv + nsend - i < 8 ? 8 * (1 + nrecv + nsend - i) : 64);
	if (box[0])
		return (uint32_t)box[0];
	if (s->what & PRIM_IN)
		srcs[nsrc++] = s->in;
	for (uint32_t i = 0; i < nrecv; i++)
		srcs[nsrc++] = (const char *)(uintptr_t)box[1 + i];
	if (s->what & PRIM_OUT)
		dsts[ndst++] = s->out;
	for (uint32_t i = 0; i < nsend; i++)
		dsts[ndst++] = (char *)(uintptr_t)box[1 + nrecv + i];
	r.srcs = srcs;
	r.dsts = dsts;
	r.nsrc = nsrc;
	r.ndst = ndst;
	r.type = p->type;
	r.op = p->op;
	r.scalar = p->scalar;
	r.premul_first = s->what & PRIM_IN;
	r.last = s->last;
	dev_reduce_copy(&r, s->count);
	dev_barrier();
	if (dev_lane() == 0)
		prim_publish(p, s, box + 1);
	return GANTRY_OK;
}

/* A primitive, what: enum gantry_prim_kind. n elements from element `in` of the input to element `out` of the output. */
DEV_BIG uint32_t dev_prims_move(struct dev_prims *p, uint32_t what, uint64_t in, uint64_t out, uint64_t n,
				uint32_t last)
{
	struct prim_slice s;

	s.what = what;
	s.last = last;
	s.in = what & PRIM_IN ? p->input + in * p->elem : p->input;
	s.out = what & PRIM_OUT ? p->output + out * p->elem : p->output;
	for (; n && !p->error; n -= s.count) {
		s.count = n < p->slice ? n : p->slice;
		s.bytes = s.count * p->elem;
		p->error = p->proto == GANTRY_PROTO_SIMPLE ? prim_simple(p, &s) : prim_lines(p, &s);
		if (what & PRIM_RECV)
			p->received += p->slice_steps;
		if (what & PRIM_SEND)
			p->sent += p->slice_steps;
		s.in += what & PRIM_IN ? s.bytes : 0;
		s.out += what & PRIM_OUT ? s.bytes : 0;
	}
	return p->error;
}

/* step_bytes of a connection, and 0 if it does not have the protocol. */
DEV uint32_t prim_step_bytes(const struct gantry_conn *c, uint32_t proto)
{
	return c->buffs[proto] || (proto == GANTRY_PROTO_SIMPLE && c->pool) ? c->step_bytes[proto] : 0;
}

/* What the caller has set makes sense. */
DEV int prim_valid(const struct dev_prims *p, uint32_t chunk_steps)
{
	return p->elem && p->proto < GANTRY_PROTOS && p->nrecv <= GANTRY_PRIM_PEERS && p->nsend <= GANTRY_PRIM_PEERS &&
	       p->nrecv + p->nsend && p->slice_steps && chunk_steps && chunk_steps % p->slice_steps == 0 &&
	       GANTRY_STEPS % chunk_steps == 0;
}

/*
 * Fields that the caller has set: recv, send, nrecv, nsend, proto, type, op, scalar, input, output. chunk is how many
 * elements the caller should move per call. Answers and keeps an error if the connections cannot do it.
 */
DEV uint32_t dev_prims_init(struct dev_prims *p, uint32_t slice_steps, uint32_t chunk_steps)
{
	uint32_t bytes = 0, n;

	p->received = p->sent = p->modes = 0;
	p->slice = p->chunk = 0;
	p->elem = dev_type_bytes(p->type);
	p->slice_steps = p->proto == GANTRY_PROTO_SIMPLE ? slice_steps : 1;
	p->error = GANTRY_ERR_INVALID;
	if (!prim_valid(p, chunk_steps))
		return p->error;
	for (uint32_t i = 0; i < p->nrecv + p->nsend; i++) {
		const struct gantry_conn *c = i < p->nrecv ? p->recv[i] : p->send[i - p->nrecv];
		uint64_t base = (c->step + chunk_steps - 1) / chunk_steps * chunk_steps;

		if (i < p->nrecv)
			p->recv_base[i] = base;
		else
			p->send_base[i - p->nrecv] = base;
		n = prim_step_bytes(c, p->proto);
		if (n == 0)
			return p->error = GANTRY_ERR_UNSUPPORTED;
		if (bytes && n != bytes)
			return p->error = GANTRY_ERR_SETTING;
		bytes = n;
	}
	p->slice = (uint64_t)bytes * p->slice_steps / p->elem;
	p->chunk = p->slice * (chunk_steps / p->slice_steps);
	if (p->slice)
		p->error = GANTRY_OK;
	return p->error;
}

/* The connections may be used otherwise from here on. */
DEV void dev_prims_end(struct dev_prims *p)
{
	if (dev_lane() == 0) {
		for (uint32_t i = 0; p->received && i < p->nrecv; i++) {
			p->recv[i]->step = prim_recv_step(p, i);
			prim_show(p->recv[i], p->recv[i]->step, GANTRY_KERNEL_IDLE);
		}
		for (uint32_t i = 0; p->sent && i < p->nsend; i++) {
			p->send[i]->step = prim_send_step(p, i);
			prim_show(p->send[i], p->send[i]->step, GANTRY_KERNEL_IDLE);
		}
	}
	dev_barrier();
}

#endif
