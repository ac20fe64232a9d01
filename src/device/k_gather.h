/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of Simple that a network received as fragments on its pages (GANTRY_CONN_UNPACK), for the kernel to gather. They
 * are published as OFFSET: space of the pool, which is the buffer that the receive was posted with, and in the lower
 * bits of the place, which is a multiple of more than that, the number of the step's list. What the list does not name
 * is in the buffer.
 *
 * So a kernel reads the fragments where it would have read the buffer, if the list has all of the step; else it gathers
 * them in the buffer first. When head has passed the step the proxy gives list and pages back to the network.
 *
 * Lists come from a network, possibly not Gantry's own: an impossible number or range is GANTRY_ERR_PROTOCOL. The user
 * of a list does not know where the pages end.
 */
#ifndef GANTRY_DEVICE_K_GATHER_H
#define GANTRY_DEVICE_K_GATHER_H

#include "device/k_conn.h"
#include "device/k_unpack_sum.h"

DEV char *k_gather_buffer(uint64_t place)
{
	return (char *)(uintptr_t)(place & ~(uint64_t)(GANTRY_UNPACK_DEPTH - 1));
}

/* block: the step's list. *ret_listed: how many of its bytes are on pages; the others are in the buffer. */
DEV uint32_t k_gather_list(const struct gantry_conn *c, uint64_t place, uint64_t bytes, struct dev_frags *ret_f,
			   uint64_t *ret_listed)
{
	const uint32_t at = (uint32_t)place % GANTRY_UNPACK_DEPTH;
	uint64_t sum = 0;

	ret_f->descs = c->lists->mem[at];
	ret_f->n = dev_unpack_count(&c->lists->cnt[at], 0);
	ret_f->bounce = c->pages;
	ret_f->dst = k_gather_buffer(place);
	ret_f->gather = 0;
	*ret_listed = 0;
	if (ret_f->n > GANTRY_UNPACK_MAX_DESCS)
		return GANTRY_ERR_PROTOCOL;
	for (uint64_t i = dev_lane(); i < ret_f->n; i += dev_lanes()) {
		struct gantry_unpack_desc d = ret_f->descs[i];

		sum += d.dst_off <= bytes && d.len <= bytes - d.dst_off ? d.len : bytes + 1;
	}
	*ret_listed = dev_sum(sum);
	return *ret_listed <= bytes ? GANTRY_OK : GANTRY_ERR_PROTOCOL;
}

/* Lane 0: a list was taken. */
DEV void k_gathered(struct gantry_conn *c, uint64_t place, uint64_t listed, int reduced)
{
	/* The next one, but for those of receives that are no steps. */
	c->list += (place - c->list) % GANTRY_UNPACK_DEPTH;
	dev_store_relaxed(c->list_head, c->list);
	if (!listed)
		return;
	c->shown.unpacked++;
	c->shown.reduced += reduced != 0;
#ifndef DEV_NEAR
	dev_store_relaxed(&c->state->counts.unpacked, c->shown.unpacked);
	dev_store_relaxed(&c->state->counts.reduced, c->shown.reduced);
#endif
}

/* block: one copy of the code for all callers. Ends without a barrier. */
DEV_BIG void k_gather_to(const struct dev_frags *list, char *dst)
{
	struct dev_frags f = *list;

	f.dst = dst;
	dev_unpack_beside(&f);
}

/* block: a whole step to `to`. Ends without a barrier. */
DEV uint32_t k_gather(struct gantry_conn *c, uint64_t place, uint64_t bytes, char *to)
{
	struct dev_frags f;
	uint64_t listed;
	uint32_t r = k_gather_list(c, place, bytes, &f, &listed);

	if (dev_lane() == 0)
		k_gathered(c, place, r ? 0 : listed, 0);
	if (r)
		return r;
	k_gather_to(&f, listed == bytes ? to : f.dst);
	if (listed < bytes) {
		dev_barrier();
		dev_copy(to, f.dst, bytes);
	}
	return GANTRY_OK;
}

/* block: a whole step, all of it on pages, reduced with another source into `dst`. Ends without a barrier. */
DEV_BIG void k_gather_reduce(const struct dev_frags *f, const struct dev_reduction *r, uint32_t input_at)
{
	struct dev_unpack_sum s;

	s.f = *f;
	s.f.dst = r->dsts[0];
	s.input = (uintptr_t)r->srcs[input_at];
	s.input_at = input_at;
	s.premul = r->premul;
	s.type = r->type;
	s.elem = dev_type_bytes(r->type);
	s.op = r->op;
	s.last = r->last;
	s.scalar = r->scalar;
	dev_unpack_reduce_beside(&s);
}

#endif
