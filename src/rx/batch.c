/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: pieces of registered memory, and walking over their bytes without ever searching. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdlib.h>
#include <string.h>

#include "rx/rx.h"

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
static int measure(const struct gantry_rx_piece *p, uint64_t before, uint64_t *ret_span, uint64_t *ret_bytes)
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
	if (!measure(&p, b->bytes, &span, &bytes))
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
		FAIL(GANTRY_ERR_INVALID, "%zu pieces at NULL", n);
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
	for (size_t i = 0; b->regions && i < b->n; i++)
		b->regions[i]->users--;
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
	left = p->piece_bytes - c->at;
	*ret_len = left < max ? left : max;
	return (uint8_t *)p->base + c->k * p->stride + c->at;
}

uint8_t *rx_batch_rows(const struct rx_batch *b, const struct rx_cursor *c, uint64_t max, struct rx_rows *ret)
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
