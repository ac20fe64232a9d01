/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primitives over LL and LL128. Part of k_prim.h.
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
#ifndef GANTRY_DEVICE_K_PRIM_LINES_H
#define GANTRY_DEVICE_K_PRIM_LINES_H

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

/* Lane 0: all lines are there. On the host the stores here stand between the lines and the ring of the bell. */
DEV void prim_lines_end(struct dev_prims *p, const struct prim_slice *s)
{
	for (uint32_t i = 0; s->what & PRIM_SEND && i < p->nsend; i++) {
		struct gantry_conn *c = p->send[i];
		uint64_t step = prim_send_step(p, i);

		if (c->flags & GANTRY_CONN_PROXIED)
			dev_post(&c->slots[step % GANTRY_STEPS], gantry_slot_meta(step, GANTRY_MODE_NORMAL, s->bytes),
				 gantry_slot_where(step, 0));
		dev_post_count(c->tail, step + 1);
		dev_notify(c->eventcount);
		k_count(c, p->proto, GANTRY_MODE_NORMAL, s->bytes, 1);
	}
	for (uint32_t i = 0; s->what & PRIM_RECV && i < p->nrecv; i++) {
		struct gantry_conn *c = p->recv[i];

		prim_refresh_recv(p, i);
		dev_post_count(c->head, prim_recv_step(p, i) + 1);
		dev_notify(c->eventcount);
		k_count(c, p->proto, GANTRY_MODE_NORMAL, s->bytes, 1);
	}
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
		prim_lines_end(p, s);
	}
	return GANTRY_OK;
}

#endif
