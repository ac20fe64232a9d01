/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a transport's proxy_progress says to the kernel's end of its connection and hears from it: the words and orders
 * of gantry/fifo.h, seen from the CPU. Everything that a kernel waits for is stored first and accounted for afterwards.
 *
 * None of these advances posted, moved, flushed or done of the connection: that is the transport's. (Only done of a
 * sending end follows gantry_proxy_done by itself, at the end of the pass.) Bytes and steps are counted here: of a
 * sending end when they are published to the kernel as done, of a receiving end when they are published as arrived.
 *
 * Marks come round: a tag has 16 bits, and a slot or an offer that was not written for 65,536 steps looks written for
 * the step that the kernel waits for. Gaps, the later steps of a slice, and offers of steps that need none are such
 * words. So eight steps in a row out of 32,768 write theirs in any case, as device/k_conn.h does it for the kernel's
 * words.
 */
#include <string.h>

#include "base/api.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "device/dev.h"
#include "proxy/proxy.h"

static struct gantry_slot *slot_of(struct gantry_slot *slots, uint64_t step)
{
	return &slots[step % GANTRY_STEPS];
}

#define REFRESH 0x7ff8ull /* steps with all these bits */

/*
 * Before step `to` is published (recv) or steps below it are published as done (send), which happens in order. By then
 * the words' former steps are consumed, or there would have been no room. An offer may already be for the next lap: it
 * stays.
 */
static void refresh_slots(struct gantry_proxy_conn *pc, uint64_t to)
{
	struct gantry_slot *words = pc->send ? pc->fifo->offers : pc->fifo->slots;

	if (pc->marked + GANTRY_STEPS < to)
		pc->marked = to - GANTRY_STEPS;
	for (; pc->marked < to; pc->marked++) {
		struct gantry_slot *w = slot_of(words, pc->marked);
		uint64_t s = pc->marked, meta;

		if ((s & REFRESH) != REFRESH)
			continue;
		meta = dev_load_relaxed(&w->meta);
		if (!gantry_slot_is(meta, s) && !gantry_slot_is(meta, s + GANTRY_STEPS))
			dev_publish(w, gantry_slot_meta(s, GANTRY_MODE_NORMAL, 0), gantry_slot_where(s, 0));
	}
}

static uint32_t slice_of(const struct gantry_proxy_op *op)
{
	return op && op->slice_steps ? op->slice_steps : 1;
}

void gantry_proxy_step_event(struct gantry_proxy_conn *pc, int kind, uint64_t step, const struct gantry_proxy_op *op,
			     uint32_t mode, uint64_t bytes)
{
	uint64_t proto = op ? op->proto : 0;

	gantry_event_put((enum gantry_event_kind)kind, pc->id, step,
			 GANTRY_EV_BYTES(bytes) | proto << 56 | (uint64_t)mode << 60);
}

int gantry_proxy_posted(struct gantry_proxy_conn *pc, uint64_t step, uint32_t *ret_mode, uint64_t *ret_size,
			uint64_t *ret_place)
{
	struct gantry_slot *s = slot_of(pc->fifo->slots, step);
	uint64_t meta = dev_load(&s->meta), where = 0;
	uint32_t mode;

	if (!gantry_slot_is(meta, step))
		return 0;
	mode = gantry_slot_mode(meta);
	if (mode != GANTRY_MODE_NORMAL) {
		/* A GPU stores the two words in no order: this one may still be on its way. */
		where = dev_load(&s->where);
		if (!gantry_slot_is(where, step))
			return 0;
	}
	*ret_mode = mode;
	*ret_size = gantry_slot_size(meta);
	*ret_place = gantry_slot_place(where);
	if (step >= pc->seen) {
		pc->seen = step + 1;
		gantry_proxy_step_event(pc, GANTRY_EV_PROXY_MOVE, step, gantry_proxy_op_of(pc, step), mode, *ret_size);
	}
	return 1;
}

/* Steps below `reached` are done or here. A sleeping kernel may have announced that it waits for later ones. */
static void ring_kernel(struct gantry_proxy_conn *pc, uint64_t reached)
{
	struct gantry_eventcount *eventcount = pc->kernel_eventcount;
	struct gantry_conn_state *state = pc->connector ? pc->connector->state : NULL;

	if (!eventcount || !load_seq(&eventcount->waiting))
		return;
	/* Written before `waiting`, so this is the word of that sleep or of a later one, which looks before it sleeps.
	 */
	if (!state || reached >= dev_load_relaxed(&state->wake))
		gantry_eventcount_wake(eventcount);
}

void gantry_proxy_offer(struct gantry_proxy_conn *pc, uint64_t step, uint64_t offset, uint64_t size)
{
	dev_publish(slot_of(pc->fifo->offers, step), gantry_slot_meta(step, GANTRY_MODE_OFFSET, size),
		    gantry_slot_where(step, offset));
	dev_notify(pc->kernel_eventcount);
}

void gantry_proxy_tell_head(struct gantry_proxy_conn *pc, uint64_t step)
{
	pc->told = step;
	dev_store(&pc->fifo->head, step);
	ring_kernel(pc, step);
}

/* The slices from c->told to below `step`, their sizes read from the slots. At most STEPS of them are ever open. */
struct slices {
	uint32_t n;
	uint64_t steps, bytes;
	struct {
		uint64_t step, meta;
		const struct gantry_proxy_op *op;
	} at[GANTRY_STEPS];
};

static void find_slices(struct gantry_proxy_conn *pc, uint64_t step, struct slices *ret)
{
	uint64_t s = pc->told;

	ret->n = 0;
	ret->steps = ret->bytes = 0;
	s = step - s > GANTRY_STEPS ? step - GANTRY_STEPS : s;
	while (s < step) {
		const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, s);
		uint64_t meta = dev_load_relaxed(&slot_of(pc->fifo->slots, s)->meta);

		if (op && gantry_slot_is(meta, s)) {
			ret->at[ret->n].step = s;
			ret->at[ret->n].meta = meta;
			ret->at[ret->n++].op = op;
			ret->steps += slice_of(op);
			ret->bytes += gantry_slot_size(meta);
		}
		s += slice_of(op);
	}
}

static void put_done(struct gantry_proxy_conn *pc, const struct slices *found)
{
	for (uint32_t i = 0; i < found->n; i++)
		gantry_proxy_step_event(pc, GANTRY_EV_PROXY_DONE, found->at[i].step, found->at[i].op,
					gantry_slot_mode(found->at[i].meta), gantry_slot_size(found->at[i].meta));
}

void gantry_proxy_done(struct gantry_proxy_conn *pc, uint64_t step)
{
	struct slices found;

	if (step <= pc->told)
		return;
	find_slices(pc, step, &found); /* before the kernel may write them again */
	refresh_slots(pc, step);
	gantry_proxy_tell_head(pc, step);
	ADD(pc->steps, found.steps);
	ADD(pc->bytes, found.bytes);
	put_done(pc, &found);
}

int gantry_proxy_offered(struct gantry_proxy_conn *pc, uint64_t step, uint64_t *ret_size, uint64_t *ret_place)
{
	uint32_t mode;

	return gantry_proxy_offered_as(pc, step, &mode, ret_size, ret_place);
}

int gantry_proxy_offered_as(struct gantry_proxy_conn *pc, uint64_t step, uint32_t *ret_mode, uint64_t *ret_size,
			    uint64_t *ret_place)
{
	struct gantry_slot *s = slot_of(pc->fifo->offers, step);
	uint64_t meta = dev_load(&s->meta), where;

	if (!gantry_slot_is(meta, step))
		return 0;
	where = dev_load(&s->where);
	if (!gantry_slot_is(where, step))
		return 0;
	*ret_mode = gantry_slot_mode(meta);
	*ret_size = gantry_slot_size(meta);
	*ret_place = gantry_slot_place(where);
	return 1;
}

void gantry_proxy_publish(struct gantry_proxy_conn *pc, uint64_t step, uint32_t mode, uint64_t size, uint64_t place)
{
	const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, step);
	uint32_t steps = slice_of(op);

	refresh_slots(pc, step);
	dev_publish(slot_of(pc->fifo->slots, step), gantry_slot_meta(step, mode, size), gantry_slot_where(step, place));
	ring_kernel(pc, step + steps);
	dev_store_relaxed(&pc->fifo->tail, step + steps);
	ADD(pc->steps, steps);
	ADD(pc->bytes, size);
	gantry_proxy_step_event(pc, GANTRY_EV_PROXY_MOVE, step, op, mode, size);
}

uint64_t gantry_proxy_consumed(struct gantry_proxy_conn *pc)
{
	uint64_t head = dev_load(&pc->fifo->head);
	struct slices found;

	if (head > pc->told) {
		find_slices(pc, head, &found);
		pc->told = head;
		put_done(pc, &found);
	}
	return head;
}

uint64_t gantry_proxy_step_bytes(const struct gantry_proxy_op *op, uint64_t step)
{
	uint64_t most = op->step_bytes * slice_of(op), before = (step - op->base) * op->step_bytes;

	if (!op->exact)
		return most;
	if (before >= op->bytes)
		return 0;
	return op->bytes - before < most ? op->bytes - before : most;
}

struct gantry_proxy_op *gantry_proxy_op_of(struct gantry_proxy_conn *pc, uint64_t step)
{
	struct gantry_proxy_op *op = pc->current && step >= pc->current->base ? pc->current : pc->first;

	while (op && step >= op->base + op->nsteps)
		op = op->next;
	return op && step >= op->base ? op : NULL;
}

void gantry_proxy_waits_end(struct gantry_proxy_conn *pc)
{
	uint64_t since = GET(pc->waits_since); /* after an error a caller that does without the proxy may still wait */

	if (!since)
		return;
	ADD(pc->wait_ticks[GET(pc->waits_for)], gantry_ticks() - since);
	PUT(pc->waits_since, 0);
}

void gantry_proxy_waits(struct gantry_proxy_conn *pc, enum gantry_wait_cause cause)
{
	if ((unsigned)cause >= GANTRY_WAIT_CAUSES || (GET(pc->waits_since) && GET(pc->waits_for) == (int)cause))
		return;
	gantry_proxy_waits_end(pc);
	PUT(pc->waits_for, (int)cause);
	PUT(pc->waits_since, gantry_ticks() | 1); /* 0 is "does not wait" */
}

void gantry_proxy_conn_look(const struct gantry_proxy_conn *pc, struct gantry_proxy_conn_view *ret)
{
	uint64_t since = GET(pc->waits_since), now = gantry_ticks();

	ret->posted = GET(pc->shown.posted);
	ret->moved = GET(pc->shown.moved);
	ret->flushed = GET(pc->shown.flushed);
	ret->done = GET(pc->shown.done);
	ret->end = GET(pc->shown.end);
	ret->op = GET(pc->shown.op);
	ret->busy = GET(pc->shown.busy);
	ret->bytes = GET(pc->bytes);
	ret->steps = GET(pc->steps);
	ret->ops = GET(pc->ops);
	ret->copies = GET(pc->copies);
	ret->progress_ns = GET(pc->progress_ns);
	ret->waits = since != 0;
	ret->waits_for = (enum gantry_wait_cause)GET(pc->waits_for);
	for (int i = 0; i < GANTRY_WAIT_CAUSES; i++)
		ret->wait_ticks[i] = GET(pc->wait_ticks[i]);
	if (since && now > since)
		ret->wait_ticks[ret->waits_for] += now - since;
}

/*
 * What transports outside the tree ask of an end, and hand in: they do not know the structs. In this file because it is
 * always linked where transports are.
 */

const struct gantry_peer_info *gantry_connector_me(const struct gantry_connector *c)
{
	return c->me;
}

const struct gantry_peer_info *gantry_connector_peer(const struct gantry_connector *c)
{
	return c->peer;
}

struct gantry_device *gantry_connector_device(const struct gantry_connector *c)
{
	return c->device;
}

uint64_t gantry_connector_comm_id(const struct gantry_connector *c)
{
	return c->comm_id;
}

int gantry_connector_sends(const struct gantry_connector *c)
{
	return c->send;
}

int gantry_connector_channel(const struct gantry_connector *c, int *ret_nchannels)
{
	if (ret_nchannels)
		*ret_nchannels = c->nchannels;
	return c->channel;
}

struct gantry_eventcount *gantry_connector_eventcount(const struct gantry_connector *c)
{
	return c->eventcount;
}

struct gantry_eventcount *gantry_connector_proxy_eventcount(const struct gantry_connector *c)
{
	return c->proxy_eventcount;
}

void gantry_connector_set_resources(struct gantry_connector *c, void *resources)
{
	c->resources = resources;
	if (c->proxy)
		c->proxy->resources = resources;
}

void *gantry_connector_resources(const struct gantry_connector *c)
{
	return c->resources;
}

void gantry_connector_set_fifo(struct gantry_connector *c, struct gantry_fifo *fifo)
{
	c->proxy->fifo = fifo;
	c->proxy->kernel_eventcount = c->eventcount;
}

gantry_result gantry_connector_fill(struct gantry_connector *c, const struct gantry_kernel_end *end)
{
	struct gantry_kernel_end own;

	TRY_NOW(STRUCT_TAKE(&own, end, gantry_kernel_end));
	c->conn.head = own.head;
	c->conn.tail = own.tail;
	c->conn.slots = own.slots;
	c->conn.offers = own.offers;
	c->conn.pool = own.pool;
	c->conn.eventcount = own.eventcount;
	c->conn.state = c->state;
	memcpy(c->conn.buffs, own.buffs, sizeof(own.buffs));
	memcpy(c->conn.step_bytes, own.step_bytes, sizeof(own.step_bytes));
	c->conn.flags = (c->proxy ? GANTRY_CONN_PROXIED : 0) | (own.pool ? GANTRY_CONN_OFFSET : 0) |
			(c->send ? GANTRY_CONN_SEND : 0);
	c->max_step = own.max_step;
	c->peer_notifies = own.peer_notifies;
	c->sharing = own.sharing;
	return GANTRY_OK;
}

void *gantry_proxy_resources(const struct gantry_proxy_conn *pc)
{
	return pc->resources;
}

uint64_t gantry_proxy_steps(const struct gantry_proxy_conn *pc, enum gantry_proxy_count which)
{
	const uint64_t counts[] = {pc->posted, pc->moved, pc->flushed, pc->done};

	return counts[which & 3];
}

void gantry_proxy_advance(struct gantry_proxy_conn *pc, enum gantry_proxy_count which, uint64_t to)
{
	uint64_t *counts[] = {&pc->posted, &pc->moved, &pc->flushed, &pc->done};

	for (int i = 0; i <= (int)(which & 3); i++)
		if (*counts[i] < to)
			*counts[i] = to;
}

uint32_t gantry_proxy_op_slice(const struct gantry_proxy_op *op)
{
	return op->slice_steps;
}

enum gantry_proto gantry_proxy_op_proto(const struct gantry_proxy_op *op)
{
	return (enum gantry_proto)op->proto;
}

int gantry_proxy_op_ptr(const struct gantry_proxy_op *op)
{
	return op->ptr;
}
