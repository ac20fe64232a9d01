/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that copy nothing: the user's buffer is posted (send) or offered (receive) and somebody else moves the
 * bytes. Part of k_p2p.h, which says the rest; all of it is lane 0's.
 */
#ifndef GANTRY_DEVICE_K_P2P_PTR_H
#define GANTRY_DEVICE_K_P2P_PTR_H

/* Posts as many steps as there is credit for. The buffer is the consumer's until head has passed the last of them. */
DEV uint32_t p2p_send_ptr(struct p2p_run *r, struct gantry_xfer *x)
{
	struct gantry_conn *c = x->conn;
	uint64_t step = c->step, size;

	if ((x->phase & P2P_STAGE) == P2P_DRAIN) {
		if (dev_load(c->head) <= x->last)
			return p2p_waits(x, x->last, GANTRY_KERNEL_WAIT_DONE);
		p2p_over(r, x);
		return P2P_MOVED;
	}
	if (!k_credit(c, step))
		return p2p_waits(x, step, GANTRY_KERNEL_WAIT_HEAD);
	do {
		size = p2p_step_bytes(x, x->begun);
		k_refresh_send(c, step, 1);
		dev_post(&c->slots[step % GANTRY_STEPS], gantry_slot_meta(step, GANTRY_MODE_PTR, size),
			 gantry_slot_where(step, x->place + x->begun));
		k_count(c, GANTRY_PROTO_SIMPLE, GANTRY_MODE_PTR, size, 0);
		x->begun += size;
		x->last = step++;
	} while (x->begun < x->bytes && c->seen + GANTRY_STEPS > step);
	dev_store_relaxed(c->tail, step);
	dev_notify(c->eventcount);
	c->step = step;
	p2p_stale(x);
	if (x->begun == x->bytes) {
		c->turn++;
		p2p_stage(x, P2P_DRAIN);
	}
	return P2P_MOVED;
}

/* Steps that arrived, in order. */
DEV uint32_t p2p_arrived(struct p2p_run *r, struct gantry_xfer *x)
{
	struct gantry_conn *c = x->conn;
	uint64_t meta, size, want;
	uint32_t did = P2P_NOTHING;

	while (x->ended < x->begun || (!x->bytes && (x->phase & P2P_STAGE) == P2P_DRAIN)) {
		if (c->step - c->offered != x->last)
			return did; /* transfers before this one are still on their way */
		meta = dev_load(&c->slots[x->last % GANTRY_STEPS].meta);
		if (!gantry_slot_is(meta, x->last))
			return did == P2P_NOTHING ? p2p_waits(x, x->last, GANTRY_KERNEL_WAIT_DATA) : did;
		did = P2P_MOVED;
		p2p_stale(x);
		size = gantry_slot_size(meta);
		want = p2p_step_bytes(x, x->ended);
		p2p_consume(c, x->last, 1);
		k_count(c, GANTRY_PROTO_SIMPLE, GANTRY_MODE_PTR, size, 0);
		x->last++;
		c->offered--;
		x->ended += size;
		if (size != want) {
			p2p_fail(r, x, GANTRY_ERR_SIZE, x->ended);
			if ((x->phase & P2P_STAGE) == P2P_RUN)
				c->turn++;
		}
		if (x->error || x->ended == x->bytes) {
			p2p_over(r, x);
			break;
		}
	}
	return did;
}

/* Offers the buffer step by step, at most STEPS ahead of what has arrived. */
DEV uint32_t p2p_recv_ptr(struct p2p_run *r, struct gantry_xfer *x)
{
	struct gantry_conn *c = x->conn;
	uint64_t step = c->step, size;
	uint32_t did = p2p_arrived(r, x);

	if ((x->phase & P2P_STAGE) != P2P_RUN || c->offered == GANTRY_STEPS)
		return did;
	do {
		size = p2p_step_bytes(x, x->begun);
		dev_post(&c->offers[step % GANTRY_STEPS], gantry_slot_meta(step, GANTRY_MODE_PTR, size),
			 gantry_slot_where(step, x->place + x->begun));
		x->begun += size;
		step++;
		c->offered++;
	} while (x->begun < x->bytes && c->offered < GANTRY_STEPS);
	dev_notify(c->eventcount);
	c->step = step;
	if (x->begun == x->bytes) {
		c->turn++;
		p2p_stage(x, P2P_DRAIN);
	}
	return P2P_MOVED;
}

#endif
