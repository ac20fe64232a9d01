/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass of a direction is: start the copies that can start, finish those that are done, in order.
 *
 *   send   may start    the kernel has posted the step, and the remote consumer has given its slot back
 *          is finished  remote slot published, then this kernel's head
 *   recv   may start    the remote producer has posted the step, and the staging slot (or the kernel's offer) is free
 *          is finished  remote head stored, then this kernel's slot published; done when the kernel has consumed it
 *
 * Order. The event of a copy is the acquire of its bytes; the remote slot and the kernel's slot are releases after it.
 * Steps are published in order because they are finished in order. Words are dev.h's, as in a kernel on the CPU.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/log.h"
#include "device/dev.h"
#include "transport/ends.h"

/* A step whose copy has begun. */
struct step {
	uint64_t size, place;
	uint32_t mode;
};

struct gantry_copy_engine {
	struct gantry_device *device;	     /* borrowed */
	struct gantry_fifo *fifo, *fifo_dev; /* the kernel's end: as the CPU and as the device addresses it */
	char *staging;
	uint64_t step_bytes;
	struct {
		struct gantry_fifo *fifo;
		char *ring;
		struct gantry_eventcount *eventcount; /* NULL: no thread sleeps there */
		int takes_pointers;
	} remote;
	/* The progress thread's. */
	struct gantry_stream *stream;
	struct gantry_dev_event *events[GANTRY_STEPS];
	struct step steps[GANTRY_STEPS];
	uint64_t told; /* recv: remote head */
};

static void engine_free(struct gantry_copy_engine *e)
{
	if (!e)
		return;
	if (e->stream) /* first: copies that are under way use all the rest */
		e->device->ops->stream_destroy(e->device, e->stream);
	for (int i = 0; i < GANTRY_STEPS; i++)
		if (e->events[i])
			e->device->ops->event_destroy(e->device, e->events[i]);
	e->device->ops->free(e->device, e->staging);
	if (e->fifo)
		e->device->ops->free_mapped(e->device, e->fifo);
	free(e);
}

gantry_result gantry_end_proxy_setup(struct gantry_connector *c, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct gantry_end *end = gantry_end_get(c, size);
	struct gantry_copy_engine *e = NULL;
	void *host = NULL, *dev = NULL;

	if (!end)
		return GANTRY_ERR_NOMEM;
	ASSERT(c->proxy && !end->engine);
	e = calloc(1, sizeof(*e));
	if (!e)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	e->device = c->device;
	TRY(c->device->ops->alloc_mapped(c->device, sizeof(struct gantry_fifo), &host, &dev));
	e->fifo = host;
	e->fifo_dev = dev;
	c->proxy->resources = end->engine = e;
	c->proxy->fifo = e->fifo;
	c->proxy->kernel_eventcount = c->eventcount;
	e = NULL;
out:
	engine_free(e);
	return r;
}

gantry_result gantry_end_proxy_fill(struct gantry_connector *c, uint64_t step_bytes, struct gantry_fifo *remote,
				    char *ring, int takes_pointers)
{
	struct gantry_end *end = c->resources;
	struct gantry_copy_engine *e = end->engine;
	void *staging = NULL;

	ASSERT(e && !e->staging && gantry_rings_step_is_good(step_bytes));
	TRY_NOW(c->device->ops->alloc(c->device, GANTRY_STEPS * step_bytes, &staging));
	e->staging = staging;
	e->step_bytes = step_bytes;
	e->remote.fifo = remote;
	e->remote.ring = ring;
	e->remote.eventcount = end->eventcount.eventcount;
	e->remote.takes_pointers = takes_pointers;
	gantry_end_fill_words(c, e->fifo_dev, GANTRY_CONN_PROXIED);
	c->conn.offers = c->send ? NULL : e->fifo_dev->offers;
	c->conn.buffs[GANTRY_PROTO_SIMPLE] = e->staging;
	c->conn.step_bytes[GANTRY_PROTO_SIMPLE] = (uint32_t)step_bytes;
	c->conn.eventcount = c->proxy_eventcount;
	c->max_step = step_bytes;
	c->peer_notifies = c->eventcount != NULL;
	c->sharing = GANTRY_SHARES_ADDRESSES; /* "the other end" of this kernel is a proxy of its own process */
	return GANTRY_OK;
}

gantry_result gantry_end_proxy_connect(struct gantry_connector *c)
{
	struct gantry_copy_engine *e = ((struct gantry_end *)c->resources)->engine;

	ASSERT(e && !e->stream);
	TRY_NOW(e->device->ops->stream_create(e->device, &e->stream));
	for (int i = 0; i < GANTRY_STEPS; i++)
		TRY_NOW(e->device->ops->event_create(e->device, &e->events[i]));
	return GANTRY_OK;
}

void gantry_end_proxy_free(struct gantry_connector *c)
{
	struct gantry_end *end = c->resources;

	if (!end)
		return;
	engine_free(end->engine);
	end->engine = NULL;
	if (c->proxy)
		c->proxy->resources = NULL;
}

/* Starts the copy of a step and remembers it. */
static gantry_result start_copy(struct gantry_copy_engine *e, uint64_t step, const struct step *s, char *to,
				const char *from)
{
	ASSERT(e->stream && e->events[step % GANTRY_STEPS]);
	if (s->size)
		TRY_NOW(e->device->ops->copy_async(e->device, e->stream, to, from, s->size));
	TRY_NOW(e->device->ops->event_record(e->device, e->events[step % GANTRY_STEPS], e->stream));
	e->steps[step % GANTRY_STEPS] = *s;
	return GANTRY_OK;
}

static char *ring_slot(const struct gantry_copy_engine *e, char *ring, uint64_t step)
{
	return ring + step % GANTRY_STEPS * e->step_bytes;
}

/* For reports, read by any thread. */
static void count_copy(struct gantry_proxy_conn *pc, const struct gantry_proxy_op *op)
{
	store_relaxed(&pc->copies, pc->copies + op->slice_steps);
}

/* Whether a remote or near slot can hold the step: sizes come out of memory that others write. */
static gantry_result check_size(const struct gantry_proxy_conn *pc, const struct gantry_copy_engine *e,
				const struct gantry_proxy_op *op, uint64_t step, uint64_t size)
{
	if (size > op->slice_steps * e->step_bytes || step % GANTRY_STEPS + op->slice_steps > GANTRY_STEPS)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "step %llu of a connection with rank %d has %llu bytes, at most %llu fit",
			 (unsigned long long)step, pc->connector->peer->rank, (unsigned long long)size,
			 (unsigned long long)(op->slice_steps * e->step_bytes));
	return GANTRY_OK;
}

static gantry_result start_sends(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e)
{
	struct gantry_proxy_op *op;

	while (pc->moved < pc->done + GANTRY_STEPS && (op = gantry_proxy_op_of(pc, pc->moved))) {
		uint64_t step = pc->moved, place;
		struct step s = {0};

		if (step + op->slice_steps > pc->done + GANTRY_STEPS)
			break;
		if (dev_load(&e->remote.fifo->head) + GANTRY_STEPS < step + op->slice_steps) {
			gantry_proxy_waits(pc, GANTRY_WAIT_PEER);
			break;
		}
		if (!gantry_proxy_posted(pc, step, &s.mode, &s.size, &place)) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			break;
		}
		if (s.mode != GANTRY_MODE_NORMAL && s.mode != GANTRY_MODE_PTR)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "a kernel posted step %llu in mode %u", (unsigned long long)step,
				 s.mode);
		TRY_NOW(check_size(pc, e, op, step, s.size));
		TRY_NOW(start_copy(e, step, &s, ring_slot(e, e->remote.ring, step),
				   s.mode == GANTRY_MODE_PTR ? (const char *)(uintptr_t)place
							     : ring_slot(e, e->staging, step)));
		pc->posted = pc->moved += op->slice_steps;
	}
	return GANTRY_OK;
}

/* AGAIN: the oldest copy is under way. */
static gantry_result look_at(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e, uint64_t step)
{
	gantry_result r = e->device->ops->event_query(e->device, e->events[step % GANTRY_STEPS]);

	if (r == GANTRY_AGAIN)
		gantry_proxy_waits(pc, GANTRY_WAIT_FLUSH);
	return r;
}

static gantry_result finish_sends(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e)
{
	gantry_result r = GANTRY_OK;
	struct gantry_proxy_op *op;

	while (pc->done < pc->moved && (op = gantry_proxy_op_of(pc, pc->done))) {
		uint64_t step = pc->done;

		TRY(look_at(pc, e, step));
		dev_publish(&e->remote.fifo->slots[step % GANTRY_STEPS],
			    gantry_slot_meta(step, GANTRY_MODE_NORMAL, e->steps[step % GANTRY_STEPS].size),
			    gantry_slot_where(step, 0));
		dev_store_relaxed(&e->remote.fifo->tail, step + op->slice_steps);
		dev_notify(e->remote.eventcount);
		count_copy(pc, op);
		pc->flushed = pc->done += op->slice_steps;
		gantry_proxy_done(pc, pc->done);
	}
out:
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

/* Where the bytes of a step are. AGAIN: the remote producer has not posted it. */
static gantry_result find_source(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e,
				 const struct gantry_proxy_op *op, uint64_t step, const char **ret_from,
				 uint64_t *ret_size)
{
	struct gantry_slot *slot = &e->remote.fifo->slots[step % GANTRY_STEPS];
	uint64_t meta = dev_load(&slot->meta), where;

	if (!gantry_slot_is(meta, step))
		return GANTRY_AGAIN;
	*ret_size = gantry_slot_size(meta);
	if (gantry_slot_mode(meta) == GANTRY_MODE_PTR && e->remote.takes_pointers) {
		where = dev_load(&slot->where);
		if (!gantry_slot_is(where, step))
			return GANTRY_AGAIN;
		*ret_from = (const char *)(uintptr_t)gantry_slot_place(where);
	} else if (gantry_slot_mode(meta) == GANTRY_MODE_NORMAL) {
		*ret_from = ring_slot(e, e->remote.ring, step);
	} else {
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d posted step %llu in mode %u", pc->connector->peer->rank,
			 (unsigned long long)step, gantry_slot_mode(meta));
	}
	TRY_NOW(check_size(pc, e, op, step, *ret_size));
	if (op->exact && *ret_size != gantry_proxy_step_bytes(op, step))
		FAIL_NOW(GANTRY_ERR_SIZE, "rank %d sent %llu bytes where %llu were expected (step %llu, channel %d)",
			 pc->connector->peer->rank, (unsigned long long)*ret_size,
			 (unsigned long long)gantry_proxy_step_bytes(op, step), (unsigned long long)step,
			 pc->connector->channel);
	return GANTRY_OK;
}

/* Where they are to go. AGAIN: the kernel has not offered its buffer. */
static gantry_result find_target(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e,
				 const struct gantry_proxy_op *op, uint64_t step, struct step *s, char **ret_to)
{
	uint64_t room;

	*ret_to = ring_slot(e, e->staging, step);
	if (!op->ptr)
		return GANTRY_OK;
	if (!gantry_proxy_offered(pc, step, &room, &s->place))
		return GANTRY_AGAIN;
	if (s->size > room)
		FAIL_NOW(GANTRY_ERR_SIZE, "rank %d sent %llu bytes where %llu were expected (step %llu, channel %d)",
			 pc->connector->peer->rank, (unsigned long long)s->size, (unsigned long long)room,
			 (unsigned long long)step, pc->connector->channel);
	s->mode = GANTRY_MODE_PTR;
	*ret_to = (char *)(uintptr_t)s->place;
	return GANTRY_OK;
}

static gantry_result start_recvs(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e)
{
	gantry_result r = GANTRY_OK;
	struct gantry_proxy_op *op;

	while (pc->moved < pc->done + GANTRY_STEPS && (op = gantry_proxy_op_of(pc, pc->moved))) {
		struct step s = {.mode = GANTRY_MODE_NORMAL};
		const char *from = NULL;
		char *to = NULL;

		/* The last steps of the slice may lie where the kernel still reads. */
		if (pc->moved + op->slice_steps > pc->done + GANTRY_STEPS) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			break;
		}
		r = find_source(pc, e, op, pc->moved, &from, &s.size);
		if (r == GANTRY_AGAIN)
			gantry_proxy_waits(pc, GANTRY_WAIT_PEER);
		if (r != GANTRY_OK)
			break;
		r = find_target(pc, e, op, pc->moved, &s, &to);
		if (r == GANTRY_AGAIN)
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
		if (r != GANTRY_OK)
			break;
		TRY(start_copy(e, pc->moved, &s, to, from));
		pc->posted = pc->moved += op->slice_steps;
	}
out:
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

/* Also when the engine's own counter has jumped over a gap between two operations: the producer needs that room too. */
static void tell_remote_head(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e)
{
	if (e->told == pc->flushed)
		return;
	ASSERT(e->told < pc->flushed);
	e->told = pc->flushed;
	dev_store(&e->remote.fifo->head, e->told);
	dev_notify(e->remote.eventcount);
}

static gantry_result finish_recvs(struct gantry_proxy_conn *pc, struct gantry_copy_engine *e)
{
	gantry_result r = GANTRY_OK;
	struct gantry_proxy_op *op;

	while (pc->flushed < pc->moved && (op = gantry_proxy_op_of(pc, pc->flushed))) {
		uint64_t step = pc->flushed;
		const struct step *s = &e->steps[step % GANTRY_STEPS];

		TRY(look_at(pc, e, step));
		pc->flushed += op->slice_steps;
		tell_remote_head(pc, e);
		gantry_proxy_publish(pc, step, s->mode, s->size, s->place);
		count_copy(pc, op);
	}
out:
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

static void count_consumed(struct gantry_proxy_conn *pc)
{
	uint64_t head = gantry_proxy_consumed(pc);
	struct gantry_proxy_op *op;

	while (pc->done < pc->flushed && (op = gantry_proxy_op_of(pc, pc->done))) {
		if (head < pc->done + op->slice_steps) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			return;
		}
		pc->done += op->slice_steps;
	}
}

gantry_result gantry_end_proxy_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct gantry_copy_engine *e = pc->resources;
	uint64_t before = pc->moved + pc->flushed + pc->done;

	if (pc->send) {
		TRY_NOW(start_sends(pc, e));
		TRY_NOW(finish_sends(pc, e));
	} else {
		tell_remote_head(pc, e);
		TRY_NOW(start_recvs(pc, e));
		TRY_NOW(finish_recvs(pc, e));
		count_consumed(pc);
	}
	*ret_worked |= pc->moved + pc->flushed + pc->done != before;
	return GANTRY_OK;
}
