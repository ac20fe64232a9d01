/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches, i.e. pieces of registered memory, and walking over their bytes without ever searching. Then what the device
 * does for a message: put fragments into place (unpack), bytes from staging into pieces (scatter), and pieces into
 * staging (gather). One kernel does all three: descriptors say what goes where. Where staging meets pieces that lie at
 * equal distances and are not small, the copy engine does it: that takes nothing from the program's kernels, and
 * processes that share a GPU do not wait for each other's turn to run one.
 *
 * Descriptors are cut at the borders of pieces while walking along the batch. A message whose list is longer than one
 * launch takes several; the walk's place is kept in the flight, so a message can wait in the middle for a descriptor
 * buffer (its own first ones, if need be). All launches of a direction are in one stream: an event behind the last one
 * covers them all.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "device/work.h"
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "device/device.h"
#include "rx/rx.h"

/* ---- batches ---- */

/* The region that holds all pieces of an entry; NULL: none. */
static struct rx_region *region_of(struct gantry_rx *rx, const struct gantry_rx_piece *p, uint64_t span)
{
	uint8_t *base = p->base;

	gantry_list_each_entry (g, &rx->regions, struct rx_region, node)
		if (base >= g->base && span <= g->size && (size_t)(base - g->base) <= g->size - span)
			return g;
	return NULL;
}

/* From the first byte of an entry to its last, and the batch's bytes with it. 0: they do not fit the address space. */
static int measure_entry(const struct gantry_rx_piece *p, uint64_t before, uint64_t *ret_span, uint64_t *ret_bytes)
{
	return !__builtin_mul_overflow((uint64_t)p->count - 1, (uint64_t)p->stride, ret_span) &&
	       !__builtin_add_overflow(*ret_span, (uint64_t)p->piece_bytes, ret_span) &&
	       !__builtin_mul_overflow((uint64_t)p->count, (uint64_t)p->piece_bytes, ret_bytes) &&
	       !__builtin_add_overflow(before, *ret_bytes, ret_bytes);
}

static gantry_result add_entry(struct gantry_rx *rx, const struct gantry_rx_piece *in, size_t index, struct rx_batch *b)
{
	struct gantry_rx_piece p = *in;
	struct rx_region *g;
	uint64_t span, bytes;

	if (!p.piece_bytes || !p.count)
		return GANTRY_OK;
	if (!p.stride || p.count == 1)
		p.stride = p.piece_bytes;
	if (p.stride < p.piece_bytes)
		FAIL_NOW(GANTRY_ERR_INVALID, "entry %zu: a stride of %zu bytes is less than its pieces of %zu", index,
			 p.stride, p.piece_bytes);
	if (!measure_entry(&p, b->bytes, &span, &bytes))
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "entry %zu: %zu pieces of %zu bytes with a stride of %zu do not fit the address space", index,
			 p.count, p.piece_bytes, p.stride);
	g = region_of(rx, &p, span);
	if (!g)
		FAIL_NOW(GANTRY_ERR_INVALID, "entry %zu: %llu bytes at %p are not in registered memory", index,
			 (unsigned long long)span, p.base);
	if (b->n && g->device != b->device)
		FAIL_NOW(GANTRY_ERR_INVALID, "entry %zu is %s memory, those before it are %s memory: use two batches",
			 index, g->device ? "device" : "host", b->device ? "device" : "host");
	if (p.stride == p.piece_bytes) { /* one long piece: nothing to cut */
		p.piece_bytes = p.stride = (size_t)span;
		p.count = 1;
	}
	b->device = g->device;
	b->bytes = bytes;
	b->pieces[b->n] = p;
	b->regions[b->n++] = g;
	g->users++;
	return GANTRY_OK;
}

gantry_result rx_batch_init(struct gantry_rx *rx, const struct gantry_rx_piece *pieces, size_t n, struct rx_batch *b)
{
	gantry_result r = GANTRY_OK;

	memset(b, 0, sizeof(*b));
	if (n && !pieces)
		FAIL(GANTRY_ERR_INVALID, "the array of pieces is NULL (%zu pieces)", n);
	b->pieces = calloc(n ? n : 1, sizeof(*b->pieces));
	b->regions = calloc(n ? n : 1, sizeof(struct rx_region *));
	if (!b->pieces || !b->regions)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a batch of %zu entries", n);
	for (size_t i = 0; i < n; i++)
		TRY(add_entry(rx, &pieces[i], i, b));
out:
	if (r != GANTRY_OK)
		rx_batch_free(b);
	return r;
}

void rx_batch_release(struct rx_batch *b)
{
	for (size_t i = 0; b->regions && i < b->n; i++) {
		ASSERT(b->regions[i]->users > 0);
		b->regions[i]->users--;
	}
	free(b->regions);
	b->regions = NULL;
}

void rx_batch_free(struct rx_batch *b)
{
	rx_batch_release(b);
	free(b->pieces);
	memset(b, 0, sizeof(*b));
}

uint8_t *rx_batch_run(const struct rx_batch *b, const struct rx_cursor *c, uint64_t max, uint64_t *ret_len)
{
	const struct gantry_rx_piece *p = &b->pieces[c->entry];
	uint64_t left;

	if (c->entry >= b->n)
		return NULL;
	ASSERT(c->k < p->count && c->at < p->piece_bytes);
	left = p->piece_bytes - c->at;
	*ret_len = left < max ? left : max;
	return (uint8_t *)p->base + c->k * p->stride + c->at;
}

struct rows {
	uint64_t width, stride, count;
};

/* As rx_batch_run, but as many whole pieces as there are of an entry; or what is left of one, and that is one row. */
static uint8_t *batch_rows(const struct rx_batch *b, const struct rx_cursor *c, uint64_t max, struct rows *ret)
{
	const struct gantry_rx_piece *p = &b->pieces[c->entry];
	uint64_t whole;
	uint8_t *at = rx_batch_run(b, c, max, &ret->width);

	if (!at)
		return NULL;
	whole = max / p->piece_bytes < p->count - c->k ? max / p->piece_bytes : p->count - c->k;
	ret->stride = p->stride;
	ret->count = c->at || !whole ? 1 : whole;
	return at;
}

void rx_batch_skip(const struct rx_batch *b, struct rx_cursor *c, uint64_t bytes)
{
	while (bytes && c->entry < b->n) {
		const struct gantry_rx_piece *p = &b->pieces[c->entry];
		uint64_t at = c->at + bytes, whole = at / p->piece_bytes, left = p->count - c->k;

		if (whole < left) {
			c->k += (size_t)whole;
			c->at = (size_t)(at % p->piece_bytes);
			return;
		}
		bytes -= left * p->piece_bytes - c->at;
		c->entry++;
		c->k = c->at = 0;
	}
}

void rx_batch_gather(const struct rx_batch *b, struct rx_cursor c, uint8_t *to, uint64_t bytes)
{
	uint64_t len = 0;

	while (bytes) {
		const uint8_t *from = rx_batch_run(b, &c, bytes, &len);

		ASSERT(from);
		memcpy(to, from, len);
		to += len;
		bytes -= len;
		rx_batch_skip(b, &c, len);
	}
}

void rx_batch_scatter(const struct rx_batch *b, struct rx_cursor c, const uint8_t *from, uint64_t bytes)
{
	uint64_t len = 0;

	while (bytes) {
		uint8_t *to = rx_batch_run(b, &c, bytes, &len);

		ASSERT(to);
		memcpy(to, from, len);
		from += len;
		bytes -= len;
		rx_batch_skip(b, &c, len);
	}
}

int rx_flight_list(struct rx_flight *f)
{
	const struct rx_batch *b = &f->op->batch;
	struct rx_cursor at = f->from;
	uint64_t left = f->len, run = 0;
	uint32_t most = (uint32_t)(f->len / RX_VEC_PIECE + 2);

	f->niov = 0;
	if (f->iov_room < most) {
		struct iovec *grown = realloc(f->iov, most * sizeof(*grown));

		if (!grown)
			return 0;
		f->iov = grown;
		f->iov_room = most;
	}
	for (; left; left -= run) {
		uint8_t *p = rx_batch_run(b, &at, left, &run);

		if (!p || f->niov == most) { /* small pieces: a copy of all of them together costs less */
			f->niov = 0;
			return 0;
		}
		f->iov[f->niov++] = (struct iovec){p, run};
		rx_batch_skip(b, &at, run);
	}
	return 1;
}

/* ---- the device ---- */

/* For the copy engine: so many copies a message at most, and rows that are worth it. */
enum { COPIES_MAX = 4, ROW_MIN = 2048, ROW_STRIDE_MAX = 1 << 30 };

/* GANTRY_RX_RECV_SYNC: what fails in the stream is the work that was just put there. */
static gantry_result await_receive(const struct rx_plan *p)
{
	return p->rx->recv_sync ? p->rx->device->ops->stream_sync(p->rx->device, p->stream) : GANTRY_OK;
}

gantry_result rx_list_launch(const struct rx_plan *p, struct rx_list *l, struct gantry_piece **used)
{
	struct gantry_device *dev = p->rx->device;
	struct gantry_unpack_args args = {
		.descs = (struct gantry_unpack_desc *)(void *)l->descs->dev,
		.n = l->n,
		.bounce = (char *)p->bounce,
		.gather = (uint32_t)p->gather,
		.from = p->as->from,
		.to = p->as->to,
	};
	struct gantry_launch launch = {.args = &args, .args_size = sizeof(args)};

	ASSERT(l->n && l->n <= p->rx->max_descs);
	gantry_unpack_launch_shape(dev, GANTRY_UNPACK_BESIDE, l->n, l->bytes, &launch);
	if (p->as->from != p->as->to)
		launch.kernel = &gantry_kernel_unpack_as;
	l->descs->next = *used;
	*used = l->descs;
	l->descs = NULL;
	rx_count(&p->rx->counters.launches, 1);
	rx_count(&p->rx->counters.descriptors, l->n);
	l->n = 0;
	l->bytes = 0;
	TRY_NOW(dev->ops->launch(dev, p->stream, &launch));
	return p->gather ? GANTRY_OK : await_receive(p);
}

/* Room for n descriptors in one launch. AGAIN: no descriptor buffer is free. */
static gantry_result have_room(const struct rx_plan *p, struct rx_flight *f, struct rx_list *l, uint32_t n)
	REQUIRES(rx_mu)
{
	if (l->descs && l->n + n > p->rx->max_descs)
		TRY_NOW(rx_list_launch(p, l, &f->descs));
	if (!l->descs && !(l->descs = rx_descs_get(p->rx, &p->rx->descs)))
		return p->rx->descs.memory ? GANTRY_AGAIN : GANTRY_ERR_NOMEM;
	return GANTRY_OK;
}

void rx_list_add(struct rx_list *l, uint64_t src_off, uint64_t len, uint64_t place)
{
	((struct gantry_unpack_desc *)(void *)l->descs->host)[l->n++] =
		(struct gantry_unpack_desc){.src_off = (uint32_t)src_off, .len = (uint32_t)len, .dst_off = place};
	l->bytes += len;
}

/* The next bytes of the walk, `most` of them as sent. NULL: the batch has no more. */
static uint8_t *walk_run(const struct rx_flight *f, uint64_t most, uint64_t *ret_stored)
{
	uint8_t *at;

	if (rx_converts(f->op) && most > RX_AS_FRAG)
		most = RX_AS_FRAG;
	at = rx_batch_run(&f->op->batch, &f->walk, rx_stored(f->op, most), ret_stored);
	if (!at)
		gantry_fail(GANTRY_ERR_INTERNAL, LOG_SUBSYS, __FILE__, __LINE__,
			    "a message exceeds its batch of %llu bytes", (unsigned long long)f->op->batch.bytes);
	return at;
}

static void walk_on(struct rx_flight *f, uint64_t stored)
{
	f->walk_pos += rx_sent(f->op, stored);
	rx_batch_skip(&f->op->batch, &f->walk, stored);
}

/* Bytes [src_off, + len) of bounce belong at the walk's place: as many descriptors as there are pieces, as long as
 * there is room. *ret_len: how far it got. AGAIN: no descriptor buffer is free. */
static gantry_result cut_pieces(const struct rx_plan *p, struct rx_flight *f, struct rx_list *l, uint64_t src_off,
				uint64_t len, uint64_t *ret_len) REQUIRES(rx_mu)
{
	uint64_t run = 0;

	*ret_len = 0;
	while (*ret_len < len) {
		uint8_t *at;

		TRY_NOW(have_room(p, f, l, 1));
		at = walk_run(f, len - *ret_len, &run);
		if (!at)
			return GANTRY_ERR_INTERNAL;
		rx_list_add(l, src_off + *ret_len, rx_sent(f->op, run), (uintptr_t)at);
		*ret_len += rx_sent(f->op, run);
		walk_on(f, run);
	}
	return GANTRY_OK;
}

/* Apart: the program's kernels may stay until what this puts in place has come. */
static gantry_result stream_of(struct gantry_rx *rx, struct gantry_stream **s)
{
	return *s ? GANTRY_OK : rx->device->ops->stream_create_apart(rx->device, s);
}

gantry_result rx_work_seal(struct gantry_rx_conn *c, struct rx_flight *f)
{
	struct gantry_device *dev = c->rx->device;
	struct gantry_stream *s = f->op->send ? c->rx->out_stream : c->rx->in_stream;

	ASSERT(s);
	if (!f->event)
		TRY_NOW(dev->ops->event_create(dev, &f->event));
	return dev->ops->event_record(dev, f->event, s);
}

/* r: result of cut. After AGAIN the event covers what has been launched so far, so that its descriptors come back. */
static gantry_result finish_list(struct gantry_rx_conn *c, const struct rx_plan *p, struct rx_flight *f,
				 struct rx_list *l, gantry_result r) REQUIRES(rx_mu)
{
	gantry_result done = GANTRY_OK;

	if (l->descs && l->n)
		done = rx_list_launch(p, l, &f->descs);
	else if (l->descs)
		rx_descs_put(&p->rx->descs, l->descs);
	if (done == GANTRY_OK && (r == GANTRY_OK || (r == GANTRY_AGAIN && f->descs)))
		done = rx_work_seal(c, f);
	return done != GANTRY_OK ? done : r;
}

/* How many copies of the copy engine the message is; more than `most` if it is not for it. */
static uint32_t count_copies(const struct rx_flight *f, uint32_t most)
{
	struct rx_cursor at = f->from;
	struct rows rows;
	uint64_t left = f->len;
	uint32_t n = 0;

	for (; left && n <= most; n++) {
		if (!batch_rows(&f->op->batch, &at, left, &rows) || rows.stride > ROW_STRIDE_MAX ||
		    (rows.width < ROW_MIN && rows.count > 1))
			return most + 1;
		left -= rows.width * rows.count;
		rx_batch_skip(&f->op->batch, &at, rows.width * rows.count);
	}
	return left ? most + 1 : n;
}

static gantry_result copy_rows(struct gantry_device *dev, const struct rx_flight *f, struct gantry_stream *stream,
			       int gather)
{
	struct rx_cursor from = f->from;
	struct rows rows;
	uint8_t *at, *stage = f->stage->host;

	while (stage < f->stage->host + f->len) {
		struct gantry_rows copy;

		at = batch_rows(&f->op->batch, &from, f->len - (uint64_t)(stage - f->stage->host), &rows);
		copy = (struct gantry_rows){.dst = gather ? stage : at,
					    .src = gather ? at : stage,
					    .dst_stride = gather ? rows.width : rows.stride,
					    .src_stride = gather ? rows.stride : rows.width,
					    .width = rows.width,
					    .count = rows.count};
		if (rows.count == 1)
			TRY_NOW(dev->ops->copy_async(dev, stream, copy.dst, copy.src, copy.width));
		else
			TRY_NOW(dev->ops->copy_rows_async(dev, stream, &copy));
		rx_batch_skip(&f->op->batch, &from, rows.width * rows.count);
		stage += rows.width * rows.count;
	}
	return GANTRY_OK;
}

gantry_result rx_work_staged(struct gantry_rx_conn *c, struct rx_flight *f)
{
	gantry_result r = GANTRY_OK;
	struct gantry_stream **stream = f->op->send ? &c->rx->out_stream : &c->rx->in_stream;
	struct rx_plan p = {.rx = c->rx, .bounce = f->stage->dev, .gather = f->op->send, .as = &f->op->as};
	struct rx_list l = {NULL, 0, 0};
	uint64_t got;

	ASSERT(f->walk_pos <= f->len);
	TRY_NOW(stream_of(c->rx, stream));
	p.stream = *stream;
	if (!rx_converts(f->op) && !f->descs && !f->walk_pos && count_copies(f, COPIES_MAX) <= COPIES_MAX) {
		TRY_NOW(copy_rows(c->rx->device, f, p.stream, p.gather));
		if (!p.gather)
			TRY_NOW(await_receive(&p));
		return rx_work_seal(c, f);
	}
	if (f->descs && !rx_work_over(c, f, &r))
		return r != GANTRY_OK ? r : GANTRY_AGAIN;
	return finish_list(c, &p, f, &l, cut_pieces(&p, f, &l, f->walk_pos, f->len - f->walk_pos, &got));
}

/* The walk's place for byte `pos` of the message. Lanes deliver out of order, but rarely: mostly it is there already.
 */
static void seek_walk(struct rx_flight *f, uint64_t pos)
{
	if (pos < f->walk_pos) {
		f->walk = f->from;
		f->walk_pos = 0;
	}
	rx_batch_skip(&f->op->batch, &f->walk, rx_stored(f->op, pos - f->walk_pos));
	f->walk_pos = pos;
}

/* The network's table for a message. */
struct table {
	const struct gantry_unpack_desc *descs;
	uint32_t n;
	int slot;
};

/* The element at `pos` of the message, which begins in descriptor f->desc_at and ends in others: a descriptor for each
 * part of it, all in one launch. They are looked for from there on: mostly it is the next one. */
static gantry_result cut_element(const struct rx_plan *p, struct rx_flight *f, struct rx_list *l, const struct table *t,
				 uint64_t pos) REQUIRES(rx_mu)
{
	const uint64_t end = pos + f->op->as.sent;
	uint64_t place, run = 0, part;
	uint8_t *at;

	TRY_NOW(have_room(p, f, l, f->op->as.sent));
	seek_walk(f, pos);
	at = walk_run(f, f->op->as.sent, &run);
	if (!at)
		return GANTRY_ERR_INTERNAL;
	place = (uintptr_t)at;
	for (uint32_t tried = 0, k = f->desc_at; pos < end && tried < t->n; tried++, k = (k + 1) % t->n) {
		const struct gantry_unpack_desc *d = &t->descs[k];

		if (pos < d->dst_off || pos - d->dst_off >= d->len)
			continue;
		part = d->dst_off + d->len < end ? d->dst_off + d->len - pos : end - pos;
		rx_list_add(l, d->src_off + (pos - d->dst_off), part, place);
		place = GANTRY_UNPACK_GOES_ON;
		pos += part;
		tried = 0;
	}
	if (pos < end)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "slot %d of the table does not describe byte %llu", t->slot,
			 (unsigned long long)pos);
	walk_on(f, run);
	f->unpacked += f->op->as.sent;
	return GANTRY_OK;
}

/* Descriptor f->desc_at of the table, `d`, from f->desc_skip on: the elements that begin in it. The bytes before the
 * first belong to one that begins elsewhere. */
static gantry_result cut_elements(const struct rx_plan *p, struct rx_flight *f, struct rx_list *l,
				  const struct table *t, struct gantry_unpack_desc d) REQUIRES(rx_mu)
{
	const uint64_t size = f->op->as.sent, end = d.dst_off + d.len, whole = end / size * size;
	const uint64_t begin = (d.dst_off + size - 1) / size * size;
	uint64_t got;
	gantry_result r;

	if (begin >= end)
		return GANTRY_OK;
	if (f->desc_skip < whole - begin) {
		seek_walk(f, begin + f->desc_skip);
		r = cut_pieces(p, f, l, d.src_off + (begin - d.dst_off) + f->desc_skip, whole - begin - f->desc_skip,
			       &got);
		f->desc_skip += (uint32_t)got;
		f->unpacked += got;
		if (r != GANTRY_OK)
			return r;
	}
	return whole < end ? cut_element(p, f, l, t, whole) : GANTRY_OK;
}

static gantry_result cut_bytes(const struct rx_plan *p, struct rx_flight *f, struct rx_list *l,
			       struct gantry_unpack_desc d) REQUIRES(rx_mu)
{
	uint64_t got;
	gantry_result r;

	seek_walk(f, d.dst_off + f->desc_skip);
	r = cut_pieces(p, f, l, d.src_off + f->desc_skip, d.len - f->desc_skip, &got);
	f->desc_skip += (uint32_t)got;
	f->unpacked += got;
	return r;
}

gantry_result rx_work_whole(const struct rx_flight *f, uint64_t described)
{
	if (described > f->len)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "slot %d of the table describes %llu of %llu bytes", f->slot,
			 (unsigned long long)described, (unsigned long long)f->len);
	/* The network has put them into the receive's own buffer, which is the same for all of them. */
	if (described < f->len)
		FAIL_NOW(
			GANTRY_ERR_LIMIT,
			"no landing page was free for %llu of %llu bytes of a message: raise GANTRY_UNPACK_LANDING, or "
			"release fragments earlier",
			(unsigned long long)(f->len - described), (unsigned long long)f->len);
	return GANTRY_OK;
}

gantry_result rx_work_unpack(struct gantry_rx_conn *c, struct rx_flight *f)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_unpack_meta *meta = c->unpack->meta;
	const struct gantry_unpack_desc *descs = meta->mem[f->slot];
	uint64_t n = load_acquire(&meta->cnt[f->slot]);
	struct table t = {descs, (uint32_t)n, f->slot};
	struct rx_plan p = {.rx = c->rx, .bounce = c->unpack->bounce_buf, .as = &f->op->as};
	struct rx_list l = {NULL, 0, 0};

	if (f->descs && !rx_work_over(c, f, &r))
		return r != GANTRY_OK ? r : GANTRY_AGAIN;
	TRY_NOW(stream_of(c->rx, &c->rx->in_stream));
	p.stream = c->rx->in_stream;
	if (n > GANTRY_UNPACK_MAX_DESCS)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "slot %d of the table has %llu descriptors", f->slot,
			 (unsigned long long)n);
	for (; f->desc_at < n; f->desc_at++, f->desc_skip = 0) {
		struct gantry_unpack_desc d = descs[f->desc_at];

		if (d.dst_off > f->len || d.len > f->len - d.dst_off)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "descriptor %u of slot %d is outside its message", f->desc_at,
				 f->slot);
		r = rx_converts(f->op) ? cut_elements(&p, f, &l, &t, d) : cut_bytes(&p, f, &l, d);
		if (r != GANTRY_OK)
			break;
	}
	TRY_NOW(finish_list(c, &p, f, &l, r));
	return rx_work_whole(f, f->unpacked);
}

int rx_work_over(struct gantry_rx_conn *c, struct rx_flight *f, gantry_result *ret_r)
{
	struct gantry_device *dev = c->rx->device;
	gantry_result r = dev->ops->event_query(dev, f->event);

	if (r == GANTRY_AGAIN)
		return 0;
	*ret_r = r;
	if (r != GANTRY_OK)
		return 0;
	rx_descs_put(&c->rx->descs, f->descs);
	f->descs = NULL;
	return 1;
}
