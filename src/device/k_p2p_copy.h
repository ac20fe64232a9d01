/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers that copy: a step is a job for all lanes, between the user's buffer and the connection's ring or pool. Part
 * of k_p2p.h, which says the rest; what is here is lane 0's, before a job (send, recv, recv_lines) and after it (sent,
 * received).
 */
#ifndef GANTRY_DEVICE_K_P2P_COPY_H
#define GANTRY_DEVICE_K_P2P_COPY_H

/* Sends that copy. */
DEV uint32_t p2p_send(struct gantry_xfer *x, struct p2p_job *job)
{
	struct gantry_conn *c = x->conn;
	const struct gantry_slot *offer;
	uint64_t step = c->step, where, meta;

	if (!k_credit(c, step))
		return p2p_waits(x, step, GANTRY_KERNEL_WAIT_HEAD);
	job->bytes = p2p_step_bytes(x, x->begun);
	job->mode = GANTRY_MODE_NORMAL;
	if (x->proto == GANTRY_PROTO_SIMPLE && c->flags & GANTRY_CONN_OFFSET) {
		offer = &c->offers[step % GANTRY_STEPS];
		meta = dev_load(&offer->meta);
		where = dev_load(&offer->where);
		if (!gantry_slot_is(meta, step) || !gantry_slot_is(where, step))
			return p2p_waits(x, step, GANTRY_KERNEL_WAIT_OFFER);
		if (gantry_slot_size(meta) && gantry_slot_size(meta) < job->bytes)
			job->bytes = gantry_slot_size(meta);
		job->mode = GANTRY_MODE_OFFSET;
		job->to = c->pool + gantry_slot_place(where);
	} else {
		job->to = k_ring(c, x->proto, step);
	}
	if (x->phase >> 8)
		p2p_show(x, step, GANTRY_KERNEL_COPY);
	k_refresh_send(c, step, x->proto == GANTRY_PROTO_SIMPLE || c->flags & GANTRY_CONN_PROXIED);
	job->kind = x->proto == GANTRY_PROTO_SIMPLE ? P2P_COPY
		    : x->proto == GANTRY_PROTO_LL   ? P2P_LL_PUT
						    : P2P_LL128_PUT;
	job->step = step;
	job->from = p2p_place(x, x->begun);
	return P2P_JOB;
}

DEV void p2p_sent(struct p2p_run *r, struct gantry_xfer *x, const struct p2p_job *job)
{
	struct gantry_conn *c = x->conn;
	struct gantry_slot *slot = &c->slots[job->step % GANTRY_STEPS];
	uint64_t meta = gantry_slot_meta(job->step, (uint32_t)job->mode, job->bytes);
	uint64_t place = job->mode == GANTRY_MODE_OFFSET ? (uint64_t)(job->to - c->pool) : 0;

	if (x->proto == GANTRY_PROTO_SIMPLE) {
		dev_publish(slot, meta, gantry_slot_where(job->step, place));
		dev_store_relaxed(c->tail, job->step + 1);
	} else if (c->flags & GANTRY_CONN_PROXIED) {
		/* LL128 is for ends that see a line in order; LL's flags are looked at by the proxy itself. */
		dev_post(slot, meta, gantry_slot_where(job->step, place));
		dev_store_relaxed(c->tail, job->step + 1);
	} else {
		dev_post_count(c->tail, job->step + 1);
	}
	dev_notify(c->eventcount);
	k_count(c, x->proto, (uint32_t)job->mode, job->bytes, 1);
	c->step = job->step + 1;
	x->begun += job->bytes;
	if (x->begun < x->bytes)
		return;
	c->turn++;
	p2p_over(r, x);
}

/* Receives of Simple that copy: mode, size and place are what the slot says. */
DEV uint32_t p2p_recv(struct p2p_run *r, struct gantry_xfer *x, struct p2p_job *job)
{
	struct gantry_conn *c = x->conn;
	uint64_t step = c->step, where = 0, meta;
	const struct gantry_slot *slot = &c->slots[step % GANTRY_STEPS];

	meta = dev_load(&slot->meta);
	if (!gantry_slot_is(meta, step))
		return p2p_waits(x, step, GANTRY_KERNEL_WAIT_DATA);
	job->mode = gantry_slot_mode(meta);
	job->bytes = gantry_slot_size(meta);
	if (job->mode != GANTRY_MODE_NORMAL) {
		where = dev_load(&slot->where);
		if (!gantry_slot_is(where, step))
			return p2p_waits(x, step, GANTRY_KERNEL_WAIT_DATA);
	}
	if (job->bytes > x->bytes - x->begun || job->mode >= GANTRY_MODES) {
		p2p_fail(r, x, job->mode < GANTRY_MODES ? GANTRY_ERR_SIZE : GANTRY_ERR_PROTOCOL, x->begun + job->bytes);
		p2p_consume(c, step, 0);
		c->step = step + 1;
		c->turn++;
		p2p_over(r, x);
		return P2P_MOVED;
	}
	if (x->phase >> 8)
		p2p_show(x, step, GANTRY_KERNEL_COPY);
	job->kind = P2P_COPY;
	job->step = step;
	job->to = p2p_place(x, x->begun);
	if (job->mode == GANTRY_MODE_NORMAL)
		job->from = k_ring(c, GANTRY_PROTO_SIMPLE, step);
	else if (job->mode == GANTRY_MODE_OFFSET)
		job->from = c->pool + gantry_slot_place(where);
	else
		job->from = (const char *)(uintptr_t)gantry_slot_place(where);
	return P2P_JOB;
}

/*
 * Receives of LL and LL128: whoever reads a line sees whether it is there. Where there is nothing else to do, or one
 * lane does it, the job itself is the look; else lane 0 looks at the step's last line before it bothers the others.
 */
DEV uint32_t p2p_recv_lines(struct p2p_run *r, struct gantry_xfer *x, struct p2p_job *job)
{
	struct gantry_conn *c = x->conn;
	uint64_t step = c->step, last, word;
	int there = 1;

	job->bytes = p2p_step_bytes(x, x->begun);
	job->from = k_ring(c, x->proto, step);
	job->kind = x->proto == GANTRY_PROTO_LL ? P2P_LL_GET : P2P_LL128_GET;
	if (dev_lanes() > 1 && r->to - r->from > 1 && (x->proto != GANTRY_PROTO_LL || job->bytes > P2P_ALONE)) {
		if (x->proto == GANTRY_PROTO_LL) {
			last = gantry_ll_bytes(job->bytes) - GANTRY_LL_LINE;
			there = dev_ll_load((const uint64_t *)(job->from + last), gantry_ll_flag(step), &word);
		} else {
			last = gantry_ll128_bytes(job->bytes) - 8;
			there = dev_load((const uint64_t *)(job->from + last)) == gantry_ll128_flag(step);
		}
	}
	if (!there)
		return p2p_waits(x, step, GANTRY_KERNEL_WAIT_DATA);
	job->mode = GANTRY_MODE_NORMAL;
	job->step = step;
	job->at = x->ended;
	job->to = p2p_place(x, x->begun);
	return P2P_JOB;
}

/* All of a step has been copied out. */
DEV void p2p_received(struct p2p_run *r, struct gantry_xfer *x, const struct p2p_job *job)
{
	struct gantry_conn *c = x->conn;

	if (job->kind == P2P_COPY) {
		p2p_consume(c, job->step, 0);
	} else {
		k_refresh_recv(c, job->step, 0);
		dev_post_count(c->head, job->step + 1);
		dev_notify(c->eventcount);
		x->ended = 0;
	}
	k_count(c, x->proto, (uint32_t)job->mode, job->bytes, 1);
	c->step = job->step + 1;
	x->begun += job->bytes;
	if (x->begun < x->bytes)
		return;
	c->turn++;
	p2p_over(r, x);
}

#endif
