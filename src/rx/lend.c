/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives that lend their bytes where they arrived, instead of putting them in place: gantry_rx_recv_frags.
 *
 * A message of such a receive goes POSTED -> HERE -> LENT. Once gantry_rx_op_frags has handed its fragments out they are
 * the caller's until gantry_rx_op_release; then the flight is in DEVICE, until the stream that was named there and all
 * calls of gantry_rx_unpack that read the message have passed, and then SPENT like any other: the network gets its pages
 * back, and the peer its TAKEN behind the last message. A fragment is a descriptor of the network's table, which stays as
 * it is until then; on path host, and where bytes came with their head, the message is one fragment in staging memory.
 *
 * Nothing else changes for the ring: what the caller keeps stays in it, and what came later leaves it later. That is
 * the bound: `depth` messages per connection, and never a queue that grows.
 *
 * When a connection ends its pages and staging buffers go back at once, whatever the caller still reads: closing the
 * network's side must not wait for streams that are not ours. The memory stays mapped (conn->pool, unpack->pool), so a
 * kernel that is late reads other bytes and faults at nothing; the op's result is an error then.
 *
 * A list of the caller's is copied to pinned memory of its own (rx->lists): buffers of the pipeline's own launches must
 * not wait for a stream of the program's.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdlib.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/param.h"
#include "rx/rx.h"

_Static_assert(GANTRY_RX_FRAGS == GANTRY_UNPACK_MAX_DESCS, "the largest table of a message fits the caller's array");
_Static_assert(RX_DEPTH_MAX <= 32, "places of the ring are bits");

/* ---- fragments of a message ---- */

static uint64_t count_frags(const struct gantry_rx_conn *c, const struct rx_flight *f)
{
	return f->slot < 0 ? 1 : load_acquire(&c->unpack->meta->cnt[f->slot]);
}

/* What their offsets are relative to. */
static uint8_t *frags_base(const struct gantry_rx_conn *c, const struct rx_flight *f)
{
	return f->slot < 0 ? f->stage->dev : c->unpack->bounce_buf;
}

static struct gantry_rx_frag frag_at(const struct gantry_rx_conn *c, const struct rx_flight *f, uint64_t k)
{
	const uint64_t at = f->index * f->op->message;
	const struct gantry_unpack_desc *d;

	if (f->slot < 0)
		return (struct gantry_rx_frag){f->stage->dev, at, (uint32_t)f->len, (uint32_t)f->index};
	d = &c->unpack->meta->mem[f->slot][k];
	return (struct gantry_rx_frag){frags_base(c, f) + d->src_off, at + d->dst_off, d->len, (uint32_t)f->index};
}

gantry_result rx_frags_check(struct gantry_rx_conn *c, const struct rx_flight *f)
{
	const uint64_t n = count_frags(c, f);
	uint64_t bytes = 0;

	ASSERT(f->op->frags && (f->slot >= 0 || f->stage));
	if (n > GANTRY_UNPACK_MAX_DESCS)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "slot %d of the table has %llu descriptors", f->slot,
			 (unsigned long long)n);
	for (uint64_t k = 0; f->slot >= 0 && k < n; k++) {
		const struct gantry_unpack_desc *d = &c->unpack->meta->mem[f->slot][k];

		if (d->dst_off > f->len || d->len > f->len - d->dst_off)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "descriptor %llu of slot %d is outside its message",
				 (unsigned long long)k, f->slot);
		bytes += d->len;
	}
	return f->slot < 0 ? GANTRY_OK : rx_work_whole(f, bytes);
}

/* ---- handing out and taking back ---- */

bool rx_frags_held(const struct rx_flight *f)
{
	return f->state == RX_FLIGHT_LENT && f->index < f->op->handed;
}

static void give_flight(struct rx_flight *f)
{
	ASSERT(f->state == RX_FLIGHT_LENT && f->op->frags && f->touches);
	f->state = RX_FLIGHT_DEVICE;
}

void rx_frags_drop(struct gantry_rx_op *op, uint64_t first)
{
	for (uint32_t i = op->conn->in.head; op->frags && i != op->conn->in.tail; i++) {
		struct rx_flight *f = rx_flight_at(&op->conn->in, i);

		if (f->op == op && f->state == RX_FLIGHT_LENT && f->index >= first)
			give_flight(f);
	}
}

bool rx_frags_give_all(struct gantry_rx_op *op)
{
	if (!op->frags || op->ending || (op->phase != RX_GRANTED && op->phase != RX_LOCAL) ||
	    op->handed < op->nmessages)
		return false;
	rx_frags_drop(op, 0);
	return true;
}

/* The next message of the op, if it is here. */
static struct rx_flight *next_lent(struct gantry_rx_op *op)
{
	for (uint32_t i = op->conn->in.head; i != op->conn->in.tail; i++) {
		struct rx_flight *f = rx_flight_at(&op->conn->in, i);

		if (f->op == op && f->state == RX_FLIGHT_LENT && f->index == op->handed)
			return f;
	}
	return NULL;
}

/* The caller has all messages that the connection may have: nothing is on its way, and nothing can be posted. */
static bool is_kept(struct gantry_rx_op *op)
{
	struct rx_side *s = &op->conn->in;

	if (s->head == s->tail || op->posted == op->nmessages)
		return false;
	for (uint32_t i = s->head; i != s->tail; i++)
		if (!rx_frags_held(rx_flight_at(s, i)))
			return false;
	return true;
}

static gantry_result hand_out(struct gantry_rx_conn *c, struct rx_flight *f, struct gantry_rx_frag *frags, size_t room,
			      size_t *ret_n)
{
	const uint64_t n = count_frags(c, f);

	if (n > room)
		FAIL_NOW(GANTRY_ERR_INVALID, "the next message has %llu fragments, and the array room for %zu",
			 (unsigned long long)n, room);
	for (uint64_t k = 0; k < n; k++)
		frags[k] = frag_at(c, f, k);
	f->op->handed++;
	*ret_n = (size_t)n;
	return GANTRY_OK;
}

/* AGAIN: nothing is here. */
static gantry_result take_next(struct gantry_rx_op *op, struct gantry_rx_frag *frags, size_t room, size_t *ret_n)
	REQUIRES(rx_mu)
{
	struct rx_flight *f;

	if (op->state == GANTRY_RX_DONE && op->result != GANTRY_OK)
		FAIL_NOW(op->result, "%s", op->text);
	if (op->state == GANTRY_RX_DONE || (op->nmessages && op->handed == op->nmessages && !op->ending)) {
		*ret_n = 0;
		return GANTRY_OK;
	}
	if (op->ending)
		FAIL_NOW(GANTRY_ERR_CANCELLED, "cancelled by %s", op->by_peer ? op->conn->peer : "the caller");
	f = next_lent(op);
	if (f)
		return hand_out(op->conn, f, frags, room, ret_n);
	if (is_kept(op))
		FAIL_NOW(GANTRY_ERR_LIMIT,
			 "no more of the transfer can come before fragments are released: the caller has those of "
			 "%u messages (tag %llu, %s)",
			 rx_flights(&op->conn->in), (unsigned long long)op->tag, op->conn->peer);
	return GANTRY_AGAIN;
}

static gantry_result refuse_op(const struct gantry_rx_op *op, const char *call)
{
	return op->frags ? GANTRY_OK
			 : gantry_fail(GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__,
				       "%s of an operation that gantry_rx_recv_frags has not made", call);
}

gantry_result gantry_rx_op_frags(struct gantry_rx_op *op, struct gantry_rx_frag *frags, size_t room, int64_t timeout_ns,
				 size_t *ret_n)
{
	struct gantry_rx *rx = op->rx;
	struct gantry_waiter idle;
	uint64_t deadline;
	gantry_result r;

	TRY_NOW(refuse_op(op, "gantry_rx_op_frags"));
	if (!ret_n || (!frags && room))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s is NULL", ret_n ? "the array of fragments" : "ret_n");
	TRY_NOW(gantry_deadline(timeout_ns, gantry_params()->timeout, &deadline));
	gantry_waiter_init(&idle, NULL);
	rx_mu_lock(&rx->mu);
	for (;;) {
		int moved = op->state == GANTRY_RX_DONE ? 0 : rx_progress(rx);

		r = take_next(op, frags, room, ret_n);
		if (r != GANTRY_AGAIN)
			break;
		r = GANTRY_ERR_TIMEOUT;
		if (gantry_now_ns() >= deadline)
			break;
		rx_idle(rx, &idle, moved, deadline);
	}
	rx_mu_unlock(&rx->mu);
	return r;
}

/* The stream runs as it goes: what is captured runs when a graph does, and says nothing about now. */
static gantry_result check_stream(struct gantry_rx *rx, struct gantry_stream *stream)
{
	uint64_t capture = 0;

	TRY_NOW(rx->device->ops->stream_captured(rx->device, stream, &capture));
	if (capture)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "fragments cannot be used in a stream that is being captured");
	return GANTRY_OK;
}

/* Behind what is in the stream now. */
static gantry_result mark_flight(struct gantry_rx *rx, struct rx_flight *f, struct gantry_stream *stream)
{
	if (!f->event)
		TRY_NOW(rx->device->ops->event_create(rx->device, &f->event));
	TRY_NOW(rx->device->ops->event_record(rx->device, f->event, stream));
	f->works = 1;
	return GANTRY_OK;
}

gantry_result gantry_rx_op_release(struct gantry_rx_op *op, struct gantry_stream *stream)
{
	struct gantry_rx *rx = op->rx;
	gantry_result r = GANTRY_OK;
	struct rx_side *s;

	TRY_NOW(refuse_op(op, "gantry_rx_op_release"));
	if (stream)
		TRY_NOW(check_stream(rx, stream));
	rx_mu_lock(&rx->mu);
	if (op->state == GANTRY_RX_DONE) {
		r = op->result;
		goto out;
	}
	s = &op->conn->in;
	for (uint32_t i = s->head; i != s->tail; i++) {
		struct rx_flight *f = rx_flight_at(s, i);

		if (f->op != op || !rx_frags_held(f))
			continue;
		if (stream)
			TRY(mark_flight(rx, f, stream));
		give_flight(f);
	}
	rx_conn_progress(op->conn);
	r = op->state == GANTRY_RX_DONE ? op->result : GANTRY_OK;
out:
	rx_mu_unlock(&rx->mu);
	return r;
}

/* ---- unpacking a list ---- */

int rx_frags_over(struct gantry_rx_conn *c, struct rx_flight *f, gantry_result *ret_r)
{
	const uint32_t bit = 1u << (f - c->in.flights);
	struct gantry_device *dev = c->rx->device;

	gantry_list_each_entry (u, &c->rx->unpacks, struct rx_unpack, node) {
		gantry_result r = u->conn == c && (u->flights & bit) ? dev->ops->event_query(dev, u->event) : GANTRY_OK;

		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			*ret_r = r;
		if (r != GANTRY_OK)
			return 0;
	}
	return f->works ? rx_work_over(c, f, ret_r) : 1;
}

static void free_unpack(struct gantry_rx *rx, struct rx_unpack *u)
{
	if (!u)
		return;
	rx_descs_put(&rx->lists, u->descs);
	rx->device->ops->event_destroy(rx->device, u->event);
	devmem_pool_put(u->pool);
	free(u);
}

/* A stream that has failed goes on later where the device reports failures (gantry/device.h): then its launches run. Else
 * a failure is for good; it ends the connection first: rx_frags_over. */
static bool is_over(struct gantry_rx *rx, const struct rx_unpack *u) REQUIRES(rx_mu)
{
	const gantry_result r = rx->device->ops->event_query(rx->device, u->event);

	if (r == GANTRY_OK || r == GANTRY_AGAIN)
		return r == GANTRY_OK;
	return !rx->device->reports && (!u->conn || u->conn->error != GANTRY_OK);
}

void rx_unpacks_reap(struct gantry_rx *rx)
{
	gantry_list_each_entry_safe (u, &rx->unpacks, struct rx_unpack, node) {
		if (!is_over(rx, u))
			continue;
		gantry_list_remove(&u->node);
		free_unpack(rx, u);
	}
}

void rx_unpacks_forget(struct gantry_rx_conn *c)
{
	gantry_list_each_entry (u, &c->rx->unpacks, struct rx_unpack, node)
		if (u->conn == c)
			u->conn = NULL;
	rx_unpacks_reap(c->rx);
}

void rx_unpacks_await(struct gantry_rx *rx)
{
	struct gantry_waiter idle;

	gantry_waiter_init(&idle, NULL);
	for (rx_unpacks_reap(rx); !gantry_list_empty(&rx->unpacks); rx_unpacks_reap(rx))
		gantry_waiter_idle(&idle, gantry_params()->proxy_sleep);
}

/* A walk over the caller's list, which is made twice: to check it and to count its launches, and to fill them. */
struct walk {
	struct gantry_rx_op *op;
	const struct gantry_rx_frag *frags;
	struct rx_flight *flight; /* of the fragment before, and which of its own that was in */
	uint64_t at;
	const struct rx_region *region; /* the same: where it went */
	uint32_t flights;		/* all so far: bits */
	/* Launches: how many there are, what the last one's offsets are relative to, and how many fragments it has. */
	uint32_t launches, in_launch;
	uint8_t *base;
};

static struct rx_flight *held_message(struct gantry_rx_op *op, uint32_t message)
{
	struct rx_side *s = &op->conn->in;

	for (uint32_t i = s->head; i != s->tail; i++) {
		struct rx_flight *f = rx_flight_at(s, i);

		if (f->op == op && rx_frags_held(f) && (uint32_t)f->index == message)
			return f;
	}
	return NULL;
}

/* It is all of a fragment that the caller has, or a part of one. They are looked for from the one before on: lists
 * mostly keep the order. */
static bool find_source(struct walk *w, const struct gantry_rx_frag *g)
{
	struct gantry_rx_conn *c = w->op->conn;
	uint64_t n;

	if (!w->flight || (uint32_t)w->flight->index != g->message) {
		w->flight = held_message(w->op, g->message);
		w->at = 0;
	}
	if (!w->flight)
		return false;
	n = count_frags(c, w->flight);
	for (uint64_t tried = 0; tried < n; tried++, w->at = (w->at + 1) % n) {
		const struct gantry_rx_frag own = frag_at(c, w->flight, w->at);
		const uintptr_t skip = (uintptr_t)g->src - (uintptr_t)own.src;

		if (skip <= own.len && g->len <= own.len - skip)
			return true;
	}
	return false;
}

static bool is_within(const struct rx_region *g, uintptr_t at, uint64_t len)
{
	return g && g->device && at >= (uintptr_t)g->base && len <= g->size && at - (uintptr_t)g->base <= g->size - len;
}

static bool find_place(struct walk *w, const struct gantry_rx_frag *g, void *dst) REQUIRES(rx_mu)
{
	uintptr_t at;

	if (__builtin_add_overflow((uintptr_t)dst, g->dst_off, &at))
		return false;
	if (is_within(w->region, at, g->len))
		return true;
	gantry_list_each_entry (region, &w->op->rx->regions, struct rx_region, node) {
		if (!is_within(region, at, g->len))
			continue;
		w->region = region;
		return true;
	}
	return false;
}

/* Whether the fragment begins another launch: that before it is full, or its bytes lie too far from its base. */
static bool begins_launch(struct walk *w, const struct gantry_rx_frag *g)
{
	const uint64_t off = (uint64_t)((uintptr_t)g->src - (uintptr_t)w->base);

	if (w->launches && w->in_launch < w->op->rx->max_descs && off <= UINT32_MAX) {
		w->in_launch++;
		return false;
	}
	w->base = frags_base(w->op->conn, w->flight);
	w->in_launch = 1;
	w->launches++;
	return true;
}

static gantry_result check_list(struct walk *w, size_t n, void *dst) REQUIRES(rx_mu)
{
	for (size_t i = 0; i < n; i++) {
		const struct gantry_rx_frag *g = &w->frags[i];

		if (!find_source(w, g))
			FAIL_NOW(GANTRY_ERR_INVALID,
				 "fragment %zu: the caller does not hold %u bytes at %p of message %u (tag %llu, %s)",
				 i, g->len, g->src, g->message, (unsigned long long)w->op->tag, w->op->conn->peer);
		if (!find_place(w, g, dst))
			FAIL_NOW(GANTRY_ERR_INVALID,
				 "fragment %zu: %u bytes at offset %llu of %p are not in registered memory of the "
				 "device",
				 i, g->len, (unsigned long long)g->dst_off, dst);
		w->flights |= 1u << (w->flight - w->op->conn->in.flights);
		begins_launch(w, g);
	}
	return GANTRY_OK;
}

/* Buffers for all launches. AGAIN: others have them. */
static gantry_result take_buffers(struct gantry_rx *rx, uint32_t launches, struct gantry_piece **ret_descs)
{
	struct gantry_piece *all = NULL, *d;

	if (launches > rx_lists_most(rx))
		FAIL_NOW(GANTRY_ERR_LIMIT, "the list takes %u launches, more than %u (GANTRY_RX_MAX_FRAGS)", launches,
			 rx_lists_most(rx));
	for (uint32_t k = 0; k < launches; k++) {
		d = rx_descs_get(rx, &rx->lists);
		if (!d) {
			rx_descs_put(&rx->lists, all);
			return gantry_list_empty(&rx->unpacks) ? GANTRY_ERR_NOMEM : GANTRY_AGAIN;
		}
		d->next = all;
		all = d;
	}
	*ret_descs = all;
	return GANTRY_OK;
}

/* Fills and launches. What was launched is in u->descs, whatever is returned; the rest of `spare` goes back. */
static gantry_result launch_list(struct walk *w, size_t n, void *dst, struct gantry_stream *stream, struct rx_unpack *u,
				 struct gantry_piece *spare) REQUIRES(rx_mu)
{
	struct gantry_rx *rx = w->op->rx;
	struct rx_plan p = {.rx = rx, .stream = stream, .as = &rx_as_it_is};
	struct rx_list l = {NULL, 0, 0};
	gantry_result r = GANTRY_OK;

	for (size_t i = 0; i < n && r == GANTRY_OK; i++) {
		const struct gantry_rx_frag *g = &w->frags[i];

		if ((uint32_t)w->flight->index != g->message)
			w->flight = held_message(w->op, g->message);
		ASSERT(w->flight);
		if (begins_launch(w, g)) {
			if (l.n)
				r = rx_list_launch(&p, &l, &u->descs);
			if (r != GANTRY_OK)
				break;
			ASSERT(spare && !l.descs);
			l.descs = spare;
			spare = spare->next;
			p.bounce = w->base;
		}
		rx_list_add(&l, (uint64_t)((uintptr_t)g->src - (uintptr_t)w->base), g->len,
			    (uintptr_t)dst + (uintptr_t)g->dst_off);
	}
	if (r == GANTRY_OK && l.n)
		r = rx_list_launch(&p, &l, &u->descs);
	if (l.descs) {
		l.descs->next = NULL;
		rx_descs_put(&rx->lists, l.descs);
	}
	rx_descs_put(&rx->lists, spare);
	return r;
}

/* The launches may run from here on: the record lives until they are over. */
static gantry_result keep_unpack(struct gantry_rx *rx, struct rx_unpack *u, struct gantry_stream *stream)
	REQUIRES(rx_mu)
{
	gantry_result r = rx->device->ops->event_record(rx->device, u->event, stream);

	if (r == GANTRY_OK) {
		gantry_list_append(&rx->unpacks, &u->node);
		return GANTRY_OK;
	}
	rx->device->ops->stream_sync(rx->device, stream);
	free_unpack(rx, u);
	return r;
}

static gantry_result unpack_list(struct walk *w, size_t n, void *dst, struct gantry_stream *stream) REQUIRES(rx_mu)
{
	struct gantry_rx *rx = w->op->rx;
	struct gantry_rx_conn *c = w->op->conn;
	struct gantry_piece *descs = NULL;
	struct rx_unpack *u;
	gantry_result r = GANTRY_OK, launched;

	u = calloc(1, sizeof(*u));
	if (!u)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of %zu fragments", n);
	TRY(check_list(w, n, dst));
	TRY(rx->device->ops->event_create(rx->device, &u->event));
	TRY(take_buffers(rx, w->launches, &descs));
	u->conn = c;
	u->flights = w->flights;
	if (c->pool)
		TRY(devmem_pool_get_from(rx->device, c->pool->source, &u->pool));
	w->launches = 0;
	launched = launch_list(w, n, dst, stream, u, descs);
	descs = NULL;
	r = keep_unpack(rx, u, stream);
	u = NULL;
	if (launched != GANTRY_OK)
		r = launched;
out:
	rx_descs_put(&rx->lists, descs);
	free_unpack(rx, u);
	return r;
}

gantry_result gantry_rx_unpack(struct gantry_rx_op *op, const struct gantry_rx_frag *frags, size_t n, void *dst,
			       struct gantry_stream *stream)
{
	struct gantry_rx *rx = op->rx;
	struct walk w = {.op = op, .frags = frags};
	gantry_result r = GANTRY_OK;

	TRY_NOW(refuse_op(op, "gantry_rx_unpack"));
	if (!stream || (n && !frags))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s is NULL", stream ? "the list of fragments" : "the stream");
	TRY_NOW(check_stream(rx, stream));
	rx_mu_lock(&rx->mu);
	rx_unpacks_reap(rx);
	if (op->state == GANTRY_RX_DONE && op->result != GANTRY_OK)
		FAIL(op->result, "%s", op->text);
	if (n && !op->conn)
		FAIL(GANTRY_ERR_USAGE, "the fragments of the operation have been released");
	if (n)
		r = unpack_list(&w, n, dst, stream);
out:
	rx_mu_unlock(&rx->mu);
	return r;
}
