/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the device does for a message: put fragments into place (unpack), bytes from staging into pieces (scatter), and
 * pieces into staging (gather). One kernel does all three: descriptors say what goes where. Where staging meets pieces
 * that lie at equal distances and are not small, the copy engine does it: that takes nothing from the program's
 * kernels, and processes that share a GPU do not wait for each other's turn to run one.
 *
 * Descriptors are cut at the borders of pieces while walking along the batch. A message whose list is longer than one
 * launch takes several; the walk's place is kept in the flight, so a message can wait in the middle for a descriptor
 * buffer (its own first ones, if need be). All launches of a direction are in one stream: an event behind the last one
 * covers them all.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "device/work.h"
#include "base/atomic.h"
#include "device/unpack_launch.h"
#include "rx/rx.h"

/* For the copy engine: so many copies a message at most, and rows that are worth it. */
enum { COPIES_MAX = 4, ROW_MIN = 2048, ROW_STRIDE_MAX = 1 << 30 };

/* A list under construction. */
struct list {
	struct gantry_piece *descs; /* NULL: none yet */
	uint32_t n;
	uint64_t bytes;
};

struct plan {
	struct gantry_rx *rx;
	struct gantry_stream *stream;
	uint8_t *bounce; /* what src_off is relative to; dst_off is an address */
	int gather;
};

static gantry_result launch(const struct plan *p, struct rx_flight *f, struct list *l) REQUIRES(rx_mu)
{
	struct gantry_device *dev = p->rx->device;
	struct gantry_unpack_args args = {
		.descs = (struct gantry_unpack_desc *)(void *)l->descs->dev,
		.n = l->n,
		.bounce = (char *)p->bounce,
		.gather = (uint32_t)p->gather,
	};
	struct gantry_launch launch = {.args = &args, .args_size = sizeof(args)};

	gantry_unpack_launch_shape(dev, GANTRY_UNPACK_BESIDE, l->n, l->bytes, &launch);
	l->descs->next = f->descs;
	f->descs = l->descs;
	l->descs = NULL;
	p->rx->counters.launches++;
	p->rx->counters.descriptors += l->n;
	l->n = 0;
	l->bytes = 0;
	return dev->ops->launch(dev, p->stream, &launch);
}

/* Bytes [src_off, + len) of bounce belong at the walk's place: as many descriptors as there are pieces, as long as
 * there is room. *ret_len: how far it got. AGAIN: no descriptor buffer is free. */
static gantry_result cut(const struct plan *p, struct rx_flight *f, struct list *l, uint64_t src_off, uint64_t len,
			 uint64_t *ret_len) REQUIRES(rx_mu)
{
	const struct rx_batch *b = &f->op->batch;
	uint64_t run = 0;

	*ret_len = 0;
	while (*ret_len < len) {
		uint8_t *at;

		if (l->descs && l->n == p->rx->max_descs)
			TRY_NOW(launch(p, f, l));
		if (!l->descs && !(l->descs = rx_descs_get(p->rx)))
			return p->rx->descs.memory ? GANTRY_AGAIN : GANTRY_ERR_NOMEM;
		at = rx_batch_run(b, &f->walk, len - *ret_len, &run);
		if (!at)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "a message goes beyond its batch of %llu bytes",
				 (unsigned long long)b->bytes);
		((struct gantry_unpack_desc *)(void *)l->descs->host)[l->n++] = (struct gantry_unpack_desc){
			.src_off = (uint32_t)(src_off + *ret_len), .len = (uint32_t)run, .dst_off = (uintptr_t)at};
		l->bytes += run;
		*ret_len += run;
		f->walk_pos += run;
		rx_batch_skip(b, &f->walk, run);
	}
	return GANTRY_OK;
}

gantry_result rx_work_seal(struct gantry_rx_conn *c, struct rx_flight *f)
{
	struct gantry_device *dev = c->rx->device;
	struct gantry_stream *s = f->op->send ? c->rx->out_stream : c->rx->in_stream;

	if (!f->event)
		TRY_NOW(dev->ops->event_create(dev, &f->event));
	return dev->ops->event_record(dev, f->event, s);
}

/* r: what cut said. After AGAIN the event covers what has been launched so far, so that its descriptors come back. */
static gantry_result finish(struct gantry_rx_conn *c, const struct plan *p, struct rx_flight *f, struct list *l,
			    gantry_result r) REQUIRES(rx_mu)
{
	gantry_result done = GANTRY_OK;

	if (l->descs && l->n)
		done = launch(p, f, l);
	else if (l->descs)
		rx_descs_put(p->rx, l->descs);
	if (done == GANTRY_OK && (r == GANTRY_OK || (r == GANTRY_AGAIN && f->descs)))
		done = rx_work_seal(c, f);
	return done != GANTRY_OK ? done : r;
}

/* How many copies of the copy engine the message is; more than `most` if it is not for it. */
static uint32_t count_copies(const struct rx_flight *f, uint32_t most)
{
	struct rx_cursor at = f->from;
	struct rx_rows rows;
	uint64_t left = f->len;
	uint32_t n = 0;

	for (; left && n <= most; n++) {
		if (!rx_batch_rows(&f->op->batch, &at, left, &rows) || rows.stride > ROW_STRIDE_MAX ||
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
	struct rx_rows rows;
	uint8_t *at, *stage = f->stage->host;

	while (stage < f->stage->host + f->len) {
		struct gantry_rows copy;

		at = rx_batch_rows(&f->op->batch, &from, f->len - (uint64_t)(stage - f->stage->host), &rows);
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

/* Between staging and the pieces, [0, len) of the message. */
static gantry_result staged(struct gantry_rx_conn *c, struct rx_flight *f, struct gantry_stream *stream, int gather)
	REQUIRES(rx_mu)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = c->rx->device;
	struct plan p = {c->rx, stream, f->stage->dev, gather};
	struct list l = {NULL, 0, 0};
	uint64_t got;

	if (!f->descs && !f->walk_pos && count_copies(f, COPIES_MAX) <= COPIES_MAX) {
		TRY(copy_rows(dev, f, stream, gather));
		return rx_work_seal(c, f);
	}
	if (f->descs && !rx_work_over(c, f, &r))
		return r != GANTRY_OK ? r : GANTRY_AGAIN;
	r = finish(c, &p, f, &l, cut(&p, f, &l, f->walk_pos, f->len - f->walk_pos, &got));
out:
	return r;
}

gantry_result rx_work_gather(struct gantry_rx_conn *c, struct rx_flight *f)
{
	gantry_result r = rx_stream_of(c->rx, &c->rx->out_stream);

	return r == GANTRY_OK ? staged(c, f, c->rx->out_stream, 1) : r;
}

gantry_result rx_work_scatter(struct gantry_rx_conn *c, struct rx_flight *f)
{
	gantry_result r = rx_stream_of(c->rx, &c->rx->in_stream);

	return r == GANTRY_OK ? staged(c, f, c->rx->in_stream, 0) : r;
}

/* The walk's place for byte `pos` of the message. Lanes deliver out of order, but rarely: mostly it is there already.
 */
static void seek(struct rx_flight *f, uint64_t pos)
{
	if (pos < f->walk_pos) {
		f->walk = f->from;
		f->walk_pos = 0;
	}
	rx_batch_skip(&f->op->batch, &f->walk, pos - f->walk_pos);
	f->walk_pos = pos;
}

gantry_result rx_work_unpack(struct gantry_rx_conn *c, struct rx_flight *f)
{
	gantry_result r = GANTRY_OK;
	const struct gantry_unpack_meta *meta = c->unpack->meta;
	const struct gantry_unpack_desc *descs = meta->mem[f->slot];
	uint64_t n = load_acquire(&meta->cnt[f->slot]), got, done;
	struct plan p = {c->rx, NULL, c->unpack->bounce_buf, 0};
	struct list l = {NULL, 0, 0};

	if (f->descs && !rx_work_over(c, f, &r))
		return r != GANTRY_OK ? r : GANTRY_AGAIN;
	TRY(rx_stream_of(c->rx, &c->rx->in_stream));
	p.stream = c->rx->in_stream;
	if (n > GANTRY_UNPACK_MAX_DESCS)
		FAIL(GANTRY_ERR_INTERNAL, "slot %d of the table has %llu descriptors", f->slot, (unsigned long long)n);
	for (; f->desc_at < n; f->desc_at++, f->desc_skip = 0) {
		struct gantry_unpack_desc d = descs[f->desc_at];

		if (d.dst_off > f->len || d.len > f->len - d.dst_off)
			FAIL(GANTRY_ERR_INTERNAL, "descriptor %u of slot %d is outside its message", f->desc_at,
			     f->slot);
		seek(f, d.dst_off + f->desc_skip);
		done = f->desc_skip;
		r = cut(&p, f, &l, d.src_off + done, d.len - done, &got);
		f->desc_skip += (uint32_t)got;
		f->unpacked += got;
		if (r != GANTRY_OK)
			break;
	}
	TRY(finish(c, &p, f, &l, r));
	if (f->unpacked != f->len)
		FAIL(GANTRY_ERR_INTERNAL, "slot %d of the table describes %llu of %llu bytes", f->slot,
		     (unsigned long long)f->unpacked, (unsigned long long)f->len);
out:
	return r;
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
	rx_descs_put(c->rx, f->descs);
	f->descs = NULL;
	return 1;
}
