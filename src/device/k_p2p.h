/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped sends and receives: block b carries out xfers[first[b]] .. xfers[first[b + 1] - 1], all of them at the same
 * time, a step of one, a step of the next. It never waits for one of them while another could move, and that is what
 * makes a group free of deadlock in whatever order its connections are listed, here and at the peers. All transfers of
 * one connection belong to one block and stand in their order.
 *
 * Lane 0 thinks, all lanes carry. Lane 0 goes round the transfers and does what is a matter of words (posts, offers,
 * completions) by itself. When one has bytes to move it makes a job of the step and shares it with the other lanes;
 * the others know nothing but jobs. When a whole round moved nothing lane 0 waits, with the block's one eventcount for
 * all its connections, while the others stand at the barrier of dev_share. With one lane the sharing compiles to
 * nothing.
 *
 *   lane 0   pick: try, try, ... wait, try  | share |  carry  | all | done: publish, count | pick ...
 *   others                                  | share |  carry  | all |                      | share
 *
 * A transfer's states:
 *
 *   NEW     until the connection's `turn` has come to it: those before it have begun all their steps (and, if they
 *           receive into offered buffers and this one copies, have ended: head moves step by step)
 *   RUN     steps begin: copied (send), copied out (receive), posted or offered (PTR). With the last one `turn` goes on
 *   DRAIN   PTR only: waits for the consumer's head (send) or for the producer's slots (receive)
 *   OVER
 *
 * An empty transfer is one empty step of Simple; so both ends count alike.
 *
 * The kernel's fields of a transfer, more exactly than in work.h:
 *   phase   stage, and above it the enum gantry_kernel_phase that the connection's state shows
 *   ended   receive, LL and LL128: first line of the step that was not there yet (only where one lane reads alone)
 *           receive, PTR: bytes that arrived
 *   last    send, PTR: the last step posted; receive, PTR: the next step to arrive
 *
 * Order. Send: all lanes' copies, the barrier in dev_all, dev_publish (release) of the slot by lane 0. Receive:
 * dev_load (acquire) of the slot by lane 0, the barrier in dev_share, the copies, the barrier in dev_all, dev_store
 * (release) of head. Lines of LL need none of it; their barrier is for dev_notify and for head.
 */
#ifndef GANTRY_DEVICE_K_P2P_H
#define GANTRY_DEVICE_K_P2P_H

#include "device/k_conn.h"
#include "device/k_gather.h"
#include "device/work.h"

enum { P2P_NEW = 0, P2P_RUN, P2P_DRAIN, P2P_OVER, P2P_STAGE = 255, P2P_STALE = 128 };
enum { P2P_COPY, P2P_UNPACK, P2P_LL_PUT, P2P_LL_GET, P2P_LL128_PUT, P2P_LL128_GET, P2P_END, P2P_ABORT };
enum { P2P_NOTHING, P2P_MOVED, P2P_JOB }; /* what a try came to */

/* Steps of LL up to this many bytes are done by lane 0 alone: faster than telling the others. */
#define P2P_ALONE (4 * GANTRY_LL_DATA)

/* A step's bytes to be moved by all lanes. */
struct p2p_job {
	uint64_t kind;
	uint64_t step;
	uint64_t bytes;
	uint64_t
		at; /* LL, LL128: line to begin with; after a get, the first that was not there. UNPACK: gantry_result */
	char *to;
	const char *from; /* UNPACK: with the list's number, as k_gather.h has it */
	uint64_t mode;
	struct gantry_conn *conn; /* UNPACK */
};

/* Lane 0's view of the block's transfers. */
struct p2p_run {
	struct gantry_xfer *xfers;
	uint32_t *result;
	uint32_t from, to;     /* those outside are over */
	uint32_t at;	       /* next to try */
	uint32_t idle;	       /* tries in a row that came to nothing */
	uint32_t waited;       /* dev_wait was called since something moved */
	int proxied;	       /* all transfers are the proxy's to move on */
	uint32_t error;	       /* of those that are over, the first one's */
	int quiet;	       /* connections know when to notify */
	uint32_t tried, phase; /* the last one that was tried, and what it waited for before */
	struct gantry_xfer *x; /* the job's */
	struct gantry_xfer_time *times;
	struct dev_wait wait;
};

DEV void p2p_stage(struct gantry_xfer *x, uint32_t stage)
{
	x->phase = (x->phase & ~(uint32_t)P2P_STAGE) | stage;
}

/* Shows phase and step in the connection's state, once for each wait. */
DEV void p2p_show(struct gantry_xfer *x, uint64_t step, uint32_t phase)
{
	if (x->phase >> 8 == phase)
		return;
	x->phase = (x->phase & P2P_STAGE) | phase << 8;
	dev_store_relaxed(&x->conn->state->step, step);
	dev_store_relaxed(&x->conn->state->doing, GANTRY_DOING(phase, x->coll));
}
/* The next wait is for another step, so it is shown even if it is of the same kind. */
DEV void p2p_stale(struct gantry_xfer *x)
{
	x->phase |= P2P_STALE << 8;
}
DEV uint32_t p2p_waits(struct gantry_xfer *x, uint64_t step, uint32_t phase)
{
	p2p_show(x, step, phase);
	return P2P_NOTHING;
}

DEV void p2p_over(struct p2p_run *r, struct gantry_xfer *x)
{
	p2p_stage(x, P2P_OVER);
	p2p_show(x, x->conn->step, GANTRY_KERNEL_IDLE);
	if (r->times && !x->error) /* what failed has no end */
		dev_store_relaxed(&r->times[x - r->xfers].end, dev_clock());
	while (r->from < r->to && (r->xfers[r->from].phase & P2P_STAGE) == P2P_OVER)
		r->from++;
	while (r->from < r->to && (r->xfers[r->to - 1].phase & P2P_STAGE) == P2P_OVER)
		r->to--;
}

DEV uint64_t p2p_step_bytes(const struct gantry_xfer *x, uint64_t done)
{
	return x->bytes - done < x->step_bytes ? x->bytes - done : x->step_bytes;
}
/* An empty transfer may have no buffer at all. */
DEV char *p2p_place(const struct gantry_xfer *x, uint64_t done)
{
	return done ? x->buf + done : x->buf;
}

DEV void p2p_fail(struct p2p_run *r, struct gantry_xfer *x, uint32_t error, uint64_t bytes)
{
	x->error = error;
	x->error_bytes = bytes;
	if (!r->error)
		r->error = error;
	k_fail(r->result, error);
}

DEV int p2p_begin(struct p2p_run *r, struct gantry_xfer *x)
{
	struct gantry_conn *c = x->conn;

	if (c->turn != x->turn)
		return 0;
	if (!x->send && !x->ptr && c->offered)
		return 0;
	if (x->send && x->ptr)
		dev_fence();
	if (!x->bytes)
		x->proto = GANTRY_PROTO_SIMPLE;
	x->first = x->last = c->step;
	p2p_stage(x, P2P_RUN);
	if (r->times) {
		dev_store_relaxed(&r->times[x - r->xfers].step, c->step);
		dev_store_relaxed(&r->times[x - r->xfers].begin, dev_clock());
	}
	return 1;
}

/*
 * ---- transfers that copy ----
 *
 * A step is a job for all lanes, between the user's buffer and the connection's ring or pool. What is here is lane 0's,
 * before a job (send, recv, recv_lines) and after it (sent, received).
 */

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

/* A step is over. */
DEV void p2p_copied(struct p2p_run *r, struct gantry_xfer *x, const struct p2p_job *job)
{
	x->conn->step = job->step + 1;
	x->begun += job->bytes;
	if (x->begun < x->bytes)
		return;
	x->conn->turn++;
	p2p_over(r, x);
}

DEV void p2p_sent(struct p2p_run *r, struct gantry_xfer *x, const struct p2p_job *job)
{
	uint64_t place = job->mode == GANTRY_MODE_OFFSET ? (uint64_t)(job->to - x->conn->pool) : 0;

	k_publish(x->conn, x->proto, job->step, job->step + 1, (uint32_t)job->mode, place, job->bytes);
	p2p_copied(r, x, job);
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
		k_refresh_recv(c, step, 0);
		k_consume(c, GANTRY_PROTO_SIMPLE, step + 1);
		c->step = step + 1;
		c->turn++;
		p2p_over(r, x);
		return P2P_MOVED;
	}
	if (x->phase >> 8)
		p2p_show(x, step, GANTRY_KERNEL_COPY);
	job->kind = c->flags & GANTRY_CONN_UNPACK ? P2P_UNPACK : P2P_COPY;
	job->conn = c;
	job->step = step;
	job->to = p2p_place(x, x->begun);
	job->from = k_place(c, (uint32_t)job->mode, step, where);
	return P2P_JOB;
}

/*
 * Receives of LL and LL128: reading a line shows whether it has arrived. Where there is nothing else to do, or one lane
 * does it, the job itself is the check; else lane 0 checks the step's last line before it involves the others.
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

	k_refresh_recv(c, job->step, 0);
	k_consume(c, x->proto, job->step + 1);
	if (job->kind != P2P_COPY)
		x->ended = 0;
	if (job->kind == P2P_UNPACK && job->at)
		p2p_fail(r, x, (uint32_t)job->at, x->begun + job->bytes);
	k_count(c, x->proto, (uint32_t)job->mode, job->bytes, 1);
	p2p_copied(r, x, job);
}

/*
 * ---- transfers that copy nothing ----
 *
 * The user's buffer is posted (send) or offered (receive) and the other end moves the bytes. Lane 0 does all of it.
 */

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
		k_refresh_recv(c, x->last, 1);
		k_consume(c, GANTRY_PROTO_SIMPLE, x->last + 1);
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

/* ---- the round ---- */

DEV uint32_t p2p_try(struct p2p_run *r, struct gantry_xfer *x, struct p2p_job *job)
{
	if ((x->phase & P2P_STAGE) == P2P_OVER || ((x->phase & P2P_STAGE) == P2P_NEW && !p2p_begin(r, x)))
		return P2P_NOTHING;
	if (x->ptr)
		return x->send ? p2p_send_ptr(r, x) : p2p_recv_ptr(r, x);
	if (x->send)
		return p2p_send(x, job);
	return x->proto == GANTRY_PROTO_SIMPLE ? p2p_recv(r, x, job) : p2p_recv_lines(r, x, job);
}

/* One lane's part of a job; whether it is done. */
DEV int p2p_carry(struct p2p_job *job, uint32_t lane, uint32_t lanes)
{
	switch (job->kind) {
	case P2P_LL_PUT:
		k_ll_put(job->to, job->from, job->bytes, job->step, lane, lanes);
		return 1;
	case P2P_LL_GET:
		job->at = k_ll_get(job->to, job->from, job->bytes, job->step, job->at, lane, lanes);
		return job->at * GANTRY_LL_DATA >= job->bytes;
	case P2P_LL128_PUT:
		k_ll128_put(job->to, job->from, job->bytes, job->step, lane, lanes);
		return 1;
	case P2P_LL128_GET:
		job->at = k_ll128_get(job->to, job->from, job->bytes, job->step, job->at, lane, lanes);
		return job->at * GANTRY_LL128_DATA >= job->bytes;
	case P2P_UNPACK:
		job->at = k_gather(job->conn, (uint64_t)(uintptr_t)job->from, job->bytes, job->to);
		return 1;
	default:
		if (job->bytes)
			dev_copy(job->to, job->from, job->bytes);
		return 1;
	}
}

/*
 * Before a sleep. If all that is left is to see buffers come back or fill, only the last step of each connection need
 * wake this block; the proxy saves a wake-up for each of the others, and this thread its turn on a CPU that the proxy
 * could use. Transfers of a connection stand in their order, so the last one's word stays.
 */
DEV void p2p_quiet(struct p2p_run *r, int quiet)
{
	uint32_t i;

	for (i = r->from; i < r->to && quiet; i++)
		quiet = (r->xfers[i].phase & P2P_STAGE) == P2P_OVER ||
			((r->xfers[i].phase & P2P_STAGE) == P2P_DRAIN && r->xfers[i].ptr);
	if (!quiet && !r->quiet)
		return;
	r->quiet = quiet;
	for (i = r->from; i < r->to; i++) {
		struct gantry_xfer *x = &r->xfers[i];
		uint64_t left = x->step_bytes ? (x->bytes - x->ended + x->step_bytes - 1) / x->step_bytes : 1;

		if ((x->phase & P2P_STAGE) != P2P_OVER)
			dev_store_relaxed(&x->conn->state->wake, !quiet ? 0 : x->last + (x->send ? 1 : left));
	}
}

DEV void p2p_waited_one(struct p2p_run *r, uint32_t i, uint32_t phase)
{
	phase = phase >> 8 & ~(uint32_t)P2P_STALE;
	if (phase && phase <= GANTRY_KERNEL_WAITS)
		k_waited(r->xfers[i].conn, &r->wait, phase);
}
/* The wait is over: the one that has moved, which may be over, and the others count what they have waited for. */
DEV void p2p_waited(struct p2p_run *r)
{
	p2p_waited_one(r, r->tried, r->phase);
	for (uint32_t i = r->from; i < r->to; i++)
		if (i != r->tried)
			p2p_waited_one(r, i, r->xfers[i].phase);
}

DEV void p2p_moved(struct p2p_run *r, int moved)
{
	if (!moved) {
		r->idle++;
		return;
	}
	r->idle = 0;
	if (r->waited) {
		dev_wait_done(&r->wait);
		if (r->wait.began)
			p2p_waited(r);
		dev_wait_init(&r->wait);
		dev_wait_proxied(&r->wait, r->proxied);
		r->waited = 0;
	}
}

/* After a job. Lines that are not all there are no error: one lane goes on where it stopped, several start again. */
DEV void p2p_done(struct p2p_run *r, const struct p2p_job *job, int all, uint32_t lanes)
{
	struct gantry_xfer *x = r->x;
	int moved = 1;

	if (!all) {
		moved = lanes == 1 && x->ended != job->at;
		if (lanes == 1)
			x->ended = job->at;
		p2p_waits(x, job->step, GANTRY_KERNEL_WAIT_DATA);
	} else if (x->send) {
		p2p_sent(r, x, job);
	} else {
		p2p_received(r, x, job);
	}
	p2p_moved(r, moved);
}

/* Lane 0: the next job, or P2P_END, or P2P_ABORT. */
DEV void p2p_pick(struct p2p_run *r, struct p2p_job *job)
{
	struct gantry_xfer *x;
	uint32_t did;

	while (r->from < r->to) {
		if (r->idle >= r->to - r->from) {
			r->idle = 0;
			if (DEV_SLEEPS && !r->waited)
				p2p_quiet(r, r->proxied);
			r->waited = 1;
			if (dev_wait(&r->wait)) {
				job->kind = P2P_ABORT;
				return;
			}
		}
		if (r->at < r->from || r->at >= r->to)
			r->at = r->from;
		r->tried = r->at;
		x = &r->xfers[r->at++];
		r->phase = x->phase;
		did = p2p_try(r, x, job);
		if (did != P2P_JOB) {
			p2p_moved(r, did == P2P_MOVED);
			continue;
		}
		r->x = x;
		if (dev_lanes() == 1 || x->proto != GANTRY_PROTO_LL || job->bytes > P2P_ALONE)
			return;
		did = (uint32_t)p2p_carry(job, 0, 1);
		p2p_done(r, job, (int)did, 1);
	}
	job->kind = P2P_END;
}

/* A launch's transfers of a connection stand in their order. Whether it is the proxy's to move on. */
DEV int p2p_take(struct gantry_xfer *x)
{
	x->turn = x->conn->given++;
	x->begun = x->ended = 0;
	x->phase = P2P_NEW;
	x->error = GANTRY_OK;
	x->error_bytes = 0;
	return (x->conn->flags & GANTRY_CONN_PROXIED) != 0;
}

/* All transfers of a block; lane 0: the first error. */
DEV uint32_t p2p_group(struct gantry_xfer *xfers, struct gantry_xfer_time *times, uint32_t n, uint32_t *result)
{
	struct p2p_run r;
	struct p2p_job job = {0}; /* all of it is shared, and not every kind has a use for all of it */
	int all;

	if (dev_lane() == 0) {
		r.xfers = xfers;
		r.times = times;
		r.result = result;
		r.x = xfers;
		r.from = r.at = r.idle = r.waited = r.tried = r.phase = 0;
		r.quiet = 0;
		r.error = GANTRY_OK;
		r.to = n;
		r.proxied = 1;
		for (uint32_t i = 0; i < n; i++)
			r.proxied &= p2p_take(&xfers[i]);
		dev_wait_init(&r.wait);
		dev_wait_proxied(&r.wait, r.proxied);
	}
	for (;;) {
		if (dev_lane() == 0)
			p2p_pick(&r, &job);
		dev_share(&job, sizeof(job));
		if (job.kind >= P2P_END)
			break;
		all = dev_all(p2p_carry(&job, dev_lane(), dev_lanes()));
		if (dev_lane() == 0)
			p2p_done(&r, &job, all, dev_lanes());
	}
	if (dev_lane() == 0 && r.waited)
		dev_wait_done(&r.wait);
	for (uint32_t i = 0; DEV_SLEEPS && dev_lane() == 0 && r.quiet && i < n; i++)
		dev_store_relaxed(&xfers[i].conn->state->wake, 0);
	if (job.kind == P2P_ABORT)
		return GANTRY_ERR_ABORTED;
	return dev_lane() == 0 ? r.error : GANTRY_OK;
}

/*
 * ---- near ----
 *
 * Transfers and connections brought near. On a GPU every acquire empties the L1 cache, so each look at a field in
 * device memory takes a trip to L2, and lane 0 looks at a few dozen for each step. A block with few transfers copies
 * them, and the connections they are on, into shared memory, and back at the end what belongs to kernels. Where
 * DEV_NEAR is not defined (the host, whose caches do that by themselves) nothing of this exists.
 */
#ifdef DEV_NEAR

enum { P2P_NEAR = 8 };

struct p2p_near {
	struct gantry_xfer xfers[P2P_NEAR];
	struct gantry_conn conns[P2P_NEAR];
	struct gantry_conn *home[P2P_NEAR]; /* of conns */
	uint32_t nconns;
};

DEV struct gantry_xfer *p2p_fetch(struct p2p_near *near, const struct gantry_xfer *xfers, uint32_t n)
{
	uint32_t i, k;

	k_words(near->xfers, xfers, n * sizeof(*xfers));
	dev_barrier();
	if (dev_lane() == 0) {
		near->nconns = 0;
		for (i = 0; i < n; i++) {
			for (k = 0; k < near->nconns && near->home[k] != near->xfers[i].conn; k++)
				;
			if (k == near->nconns)
				near->home[near->nconns++] = near->xfers[i].conn;
			near->xfers[i].conn = &near->conns[k];
		}
	}
	dev_barrier();
	for (k = 0; k < near->nconns; k++)
		k_words(&near->conns[k], near->home[k], sizeof(near->conns[k]));
	dev_barrier();
	return near->xfers;
}

DEV void p2p_return(struct p2p_near *near, struct gantry_xfer *xfers, uint32_t n)
{
	uint32_t i;

	if (dev_lane() == 0)
		for (i = 0; i < n; i++)
			near->xfers[i].conn = near->home[near->xfers[i].conn - near->conns];
	dev_barrier();
	k_words(xfers, near->xfers, n * sizeof(*xfers));
	for (i = 0; i < near->nconns; i++)
		k_conn_return(near->home[i], &near->conns[i]);
	dev_barrier();
}

#endif

DEV void k_p2p(const struct gantry_p2p_args *a)
{
	struct gantry_xfer *home = a->xfers + a->first[dev_block()], *xfers = home;
	uint32_t n = a->first[dev_block() + 1] - a->first[dev_block()], error, aborted = 0;
#ifdef DEV_NEAR
	DEV_SHARED struct p2p_near near;

#endif
	k_begin(&a->end);
	if (a->after && k_after(a->after, a->after_value)) {
		aborted = 1;
		n = 0; /* nothing is begun */
	}
#ifdef DEV_NEAR
	if (DEV_NEAR && n <= P2P_NEAR)
		xfers = p2p_fetch(&near, home, n);
#endif
	error = p2p_group(xfers, a->times ? a->times + a->first[dev_block()] : NULL, n, a->result);
	for (uint32_t i = dev_lane(); i < n; i += dev_lanes())
		k_show_counts(xfers[i].conn, 0, 1);
#ifdef DEV_NEAR
	if (xfers != home)
		p2p_return(&near, home, n);
#endif
	if (dev_lane() != 0)
		return;
	if (aborted || error)
		k_end_failed(a->result, aborted ? GANTRY_ERR_ABORTED : error);
	dev_leave();
	k_end(&a->end);
}

#endif
