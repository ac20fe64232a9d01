/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message's descriptors.
 *
 * Why it always fits. A table is in one of two states. At first entries are added one by one, for fragments where they
 * lie and for bytes that have landed. When that would exceed `max`, the table becomes compact: every page of the
 * message has a landing page, what was described in the pool is copied there, and the entries are written anew, one per
 * page or less where landing pages are neighbours. That is all entries that there will ever be: later bytes go to
 * their place without one. ceil(total / 4096) <= max is checked when the message begins, so they fit.
 *
 * It needs the landing pages of the whole message at once: taken together or not at all, so two tables never hold half
 * of what both need. If they are not free, the bytes go directly to the message's destination, if that is known. From
 * then on the table cannot become compact: its entries would cover bytes that are not in its pages.
 *
 * An entry of landed bytes has src_off >= landing_base, one of the pool less; they never merge with each other, even if
 * they touch.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include "net/devmem_rx.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "device/device.h"

#define NO_PAGE UINT32_MAX
enum { DROP_AT_ONCE = 512 };

/* Where bytes come from: host memory, or a place in the pool. */
struct origin {
	const uint8_t *data; /* NULL: in the pool */
	uint64_t off;
};

gantry_result devmem_table_init(struct devmem_table *t, struct devmem_pool *pool, struct gantry_unpack_desc *descs,
				uint32_t max, uint32_t coalesce)
{
	gantry_result r = GANTRY_OK;

	*t = (struct devmem_table){.pool = pool, .descs = descs, .max = max, .coalesce = coalesce, .held_room = 256};
	t->held = malloc(t->held_room * sizeof(*t->held));
	t->page_of = malloc(DEVMEM_TABLE_PAGES * sizeof(*t->page_of));
	if (!t->held || !t->page_of)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a table of fragments");
out:
	if (r != GANTRY_OK)
		devmem_table_free(t);
	return r;
}

void devmem_table_free(struct devmem_table *t)
{
	if (!t->pool)
		return;
	devmem_table_release(t);
	free(t->held);
	free(t->page_of);
	*t = (struct devmem_table){0};
}

gantry_result devmem_table_begin(struct devmem_table *t, uint64_t total, void *direct)
{
	uint64_t pages = (total + DEVMEM_LANDING_PAGE - 1) / DEVMEM_LANDING_PAGE;

	if (t->total != 0 || t->n != 0 || t->nheld != 0)
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a message begins in a table that still has one of %" PRIu64 " bytes",
			 t->total);
	if (total > GANTRY_UNPACK_MAX_SLICE || pages > t->max)
		FAIL_NOW(GANTRY_ERR_SIZE, "a message of %" PRIu64 " bytes for a table of %u entries, %d bytes at most",
			 total, t->max, GANTRY_UNPACK_MAX_SLICE);
	t->total = total;
	t->direct = direct;
	t->npages = (uint32_t)pages;
	for (uint32_t i = 0; i < t->npages; i++)
		t->page_of[i] = NO_PAGE;
	return GANTRY_OK;
}

/* The table needs the fragment's token. Its last bytes: then the caller needs it no more, and hands its use over. */
static gantry_result hold_token(struct devmem_table *t, struct devmem_tokens *tokens, struct devmem_frag *frag,
				int is_last)
{
	struct devmem_held *last = t->nheld ? &t->held[t->nheld - 1] : NULL, *held;

	if (last && last->token == frag->token && last->tokens == tokens)
		return GANTRY_OK;
	if (t->nheld == t->held_room) {
		held = realloc(t->held, 2 * (size_t)t->held_room * sizeof(*held));
		if (!held)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %u tokens of a message", 2 * t->held_room);
		t->held = held;
		t->held_room *= 2;
	}
	if (!is_last)
		TRY_NOW(devmem_tokens_use(tokens, frag->token));
	t->held[t->nheld++] = (struct devmem_held){.tokens = tokens, .token = frag->token};
	if (is_last)
		frag->token = 0;
	return GANTRY_OK;
}

static gantry_result let_go(struct devmem_table *t)
{
	gantry_result r = GANTRY_OK, d;
	uint32_t tokens[DROP_AT_ONCE], i = 0;

	while (i < t->nheld) {
		struct devmem_tokens *of = t->held[i].tokens;
		uint32_t n = 0;

		for (; i < t->nheld && n < DROP_AT_ONCE && t->held[i].tokens == of; i++)
			tokens[n++] = t->held[i].token;
		d = devmem_tokens_drop(of, tokens, n);
		if (r == GANTRY_OK)
			r = d;
	}
	t->nheld = 0;
	return r;
}

/* Does an entry follow the last one? */
static int follows_last(const struct devmem_table *t, uint64_t src_off, uint64_t dst_off)
{
	const struct gantry_unpack_desc *last = t->n ? &t->descs[t->n - 1] : NULL;

	return last && last->src_off + (uint64_t)last->len == src_off && last->dst_off + last->len == dst_off &&
	       (last->src_off < t->pool->landing_base) == (src_off < t->pool->landing_base);
}

/*
 * Neighbours become one entry, up to DEVMEM_ENTRY bytes: NCCL's kernels hand out entries to warps, up to four at a
 * time, and a warp has one load in flight, so a message of a few long entries would be gathered by a few warps alone. A
 * table that is full merges whatever it can; else there is room for one entry more.
 */
static void describe_bytes(struct devmem_table *t, uint64_t src_off, uint32_t len, uint64_t dst_off)
{
	uint32_t some;

	for (; len; src_off += some, dst_off += some, len -= some) {
		struct gantry_unpack_desc *last = follows_last(t, src_off, dst_off) ? &t->descs[t->n - 1] : NULL;

		if (last && (last->len < DEVMEM_ENTRY || t->n == t->max)) {
			some = t->n == t->max || len < DEVMEM_ENTRY - last->len ? len : DEVMEM_ENTRY - last->len;
			last->len += some; /* below 4 GiB: the whole message is */
			t->merged++;
		} else {
			some = len < DEVMEM_ENTRY ? len : DEVMEM_ENTRY;
			t->descs[t->n++] = (struct gantry_unpack_desc){
				.src_off = (uint32_t)src_off, .len = some, .dst_off = dst_off};
		}
	}
}

/* How many pages of the message bytes [dst_off, dst_off + len) touch; len > 0. */
static uint64_t pages_of(uint64_t dst_off, uint64_t len)
{
	return (dst_off + len - 1) / DEVMEM_LANDING_PAGE - dst_off / DEVMEM_LANDING_PAGE + 1;
}

/* Landing pages for bytes [dst_off, dst_off + len) of the message: 0, or -1: too few, none taken. */
static int get_pages(struct devmem_table *t, uint64_t dst_off, uint64_t len)
{
	uint32_t fresh[DEVMEM_TABLE_PAGES], n = 0;
	uint32_t first = (uint32_t)(dst_off / DEVMEM_LANDING_PAGE);
	uint32_t end = first + (uint32_t)pages_of(dst_off, len);

	for (uint32_t i = first; i < end; i++)
		n += t->page_of[i] == NO_PAGE;
	if (n > 0 && devmem_pool_take(t->pool, n, fresh) != 0)
		return -1;
	n = 0;
	for (uint32_t i = first; i < end; i++) {
		if (t->page_of[i] == NO_PAGE)
			t->page_of[i] = fresh[n++];
	}
	return 0;
}

static uint64_t place_of(const struct devmem_table *t, uint64_t dst_off)
{
	return devmem_pool_page_offset(t->pool, t->page_of[dst_off / DEVMEM_LANDING_PAGE]) +
	       dst_off % DEVMEM_LANDING_PAGE;
}

/* How many of the next len bytes have places that follow each other: they are copied at once. */
static uint64_t run_of(const struct devmem_table *t, uint64_t dst_off, uint64_t len)
{
	uint64_t first = place_of(t, dst_off), n = DEVMEM_LANDING_PAGE - dst_off % DEVMEM_LANDING_PAGE;

	while (n < len && place_of(t, dst_off + n) == first + n)
		n += DEVMEM_LANDING_PAGE;
	return n < len ? n : len;
}

/* A copy to the pool is under way. */
static void note_copy(struct devmem_table *t)
{
	t->copying = 1;
	t->recorded = 0;
}

/* Bytes to landing pages that follow each other. */
static gantry_result land_some(struct devmem_table *t, struct origin from, uint64_t to, uint32_t len)
{
	struct devmem_pool *p = t->pool;
	const uint8_t *src = from.data;

	if (p->memory.host) {
		memcpy(p->memory.host + to, src ? src : p->memory.host + from.off, len);
	} else {
		if (src) {
			src = memcpy(p->bounce + (to - p->landing_base), src, len);
		} else {
			src = p->memory.device_ptr + from.off;
		}
		TRY_NOW(p->device->ops->queue_copy(p->device, GANTRY_COPY_IN, p->memory.device_ptr + to, src, len));
		note_copy(t);
	}
	t->landed_bytes += len;
	return GANTRY_OK;
}

/* Bytes to their landing pages, which are there; described unless all entries are made or will be. */
static gantry_result land_bytes(struct devmem_table *t, struct origin from, uint64_t len, uint64_t dst_off,
				int described)
{
	while (len > 0) {
		uint64_t to = place_of(t, dst_off);
		uint32_t some = (uint32_t)run_of(t, dst_off, len);

		TRY_NOW(land_some(t, from, to, some));
		if (described)
			describe_bytes(t, to, some, dst_off);
		if (from.data)
			from.data += some;
		else
			from.off += some;
		len -= some;
		dst_off += some;
	}
	return GANTRY_OK;
}

/* All that is described goes to landing pages. AGAIN: they are not there, nothing was done. */
static gantry_result make_compact(struct devmem_table *t)
{
	uint32_t n = t->n;

	if (t->went_direct || get_pages(t, 0, t->total) != 0)
		return GANTRY_AGAIN;
	for (uint32_t i = 0; i < n; i++) {
		const struct gantry_unpack_desc *d = &t->descs[i];

		if (d->src_off < t->pool->landing_base)
			TRY_NOW(land_bytes(t, (struct origin){.off = d->src_off}, d->len, d->dst_off, 0));
	}
	t->compact = 1;
	t->compacted++;
	t->n = 0;
	for (uint64_t at = 0; at < t->total; at += DEVMEM_LANDING_PAGE) {
		uint64_t left = t->total - at;

		describe_bytes(t, place_of(t, at), (uint32_t)(left < DEVMEM_LANDING_PAGE ? left : DEVMEM_LANDING_PAGE),
			       at);
	}
	/* Copies of the device still read the fragments. */
	if (!t->copying)
		TRY_NOW(let_go(t));
	return GANTRY_OK;
}

static gantry_result go_direct(struct devmem_table *t, struct origin from, uint64_t len, uint64_t dst_off)
{
	struct devmem_pool *p = t->pool;

	if (!t->direct)
		return GANTRY_AGAIN;
	TRY_NOW(p->device->ops->copy(p->device, t->direct + dst_off,
				     from.data ? from.data : p->memory.device_ptr + from.off, len));
	t->went_direct = 1;
	t->direct_bytes += len;
	return GANTRY_OK;
}

static gantry_result check_place(const struct devmem_table *t, uint64_t len, uint64_t dst_off)
{
	if (len > t->total || dst_off > t->total - len || len > t->total - t->added)
		FAIL_NOW(GANTRY_ERR_PROTOCOL,
			 "%" PRIu64 " bytes at %" PRIu64 " of a message of %" PRIu64 ", of which %" PRIu64 " are there",
			 len, dst_off, t->total, t->added);
	return GANTRY_OK;
}

gantry_result devmem_table_add_host(struct devmem_table *t, const void *data, uint64_t len, uint64_t dst_off)
{
	gantry_result r = GANTRY_OK;
	struct origin from = {.data = data};

	TRY(check_place(t, len, dst_off));
	if (len == 0)
		return GANTRY_OK;
	if (!t->compact && t->n + pages_of(dst_off, len) > t->max)
		r = make_compact(t);
	if (r == GANTRY_OK && get_pages(t, dst_off, len) == 0)
		r = land_bytes(t, from, len, dst_off, !t->compact);
	else if (r == GANTRY_OK || r == GANTRY_AGAIN)
		r = go_direct(t, from, len, dst_off);
	if (r == GANTRY_OK)
		t->added += len;
out:
	return r;
}

static gantry_result add_in_pool(struct devmem_table *t, const struct devmem_piece *p)
{
	gantry_result r = GANTRY_OK;
	uint64_t src_off = p->base + p->frag->offset + p->skip;
	struct origin from = {.off = src_off};
	int is_last = p->skip + p->len == p->frag->len, merges = follows_last(t, src_off, p->dst_off);

	/* Copying small ones is to save entries; without a free page they can have one. */
	if (!t->compact && !merges && p->len < t->coalesce && t->pool->memory.host &&
	    t->n + pages_of(p->dst_off, p->len) <= t->max && get_pages(t, p->dst_off, p->len) == 0)
		return land_bytes(t, from, p->len, p->dst_off, 1);
	if (!t->compact && (merges || t->n < t->max)) { /* it stays where it is */
		TRY_NOW(hold_token(t, p->tokens, p->frag, is_last));
		describe_bytes(t, src_off, p->len, p->dst_off);
		if (p->tokens->flow->binding->late) /* it may not be there yet */
			note_copy(t);
		return GANTRY_OK;
	}
	if (!t->compact)
		r = make_compact(t);
	if (r == GANTRY_AGAIN) {
		TRY_NOW(devmem_settle(p->tokens->flow->binding));
		return go_direct(t, from, p->len, p->dst_off);
	}
	TRY_NOW(r);
	if (!t->pool->memory.host) /* a copy of the device reads the fragment after this has returned */
		TRY_NOW(hold_token(t, p->tokens, p->frag, is_last));
	return land_bytes(t, from, p->len, p->dst_off, 0);
}

gantry_result devmem_table_add(struct devmem_table *t, const struct devmem_piece *p)
{
	uint64_t limit = t->pool->landing_base;
	const struct devmem_frag *frag = p->frag;

	if (p->skip > frag->len || p->len > frag->len - p->skip)
		FAIL_NOW(GANTRY_ERR_INVALID, "bytes %u to %u of a fragment of %u", p->skip, p->skip + p->len,
			 frag->len);
	if (frag->where != DEVMEM_IN_POOL) {
		TRY_NOW(devmem_table_add_host(t, p->linear + frag->offset + p->skip, p->len, p->dst_off));
	} else {
		/* The parts end below 4 GiB, so what lies in them has an offset of 32 bits. */
		if (p->base > limit || frag->offset > limit - p->base || frag->len > limit - p->base - frag->offset)
			FAIL_NOW(GANTRY_ERR_INVALID,
				 "a fragment at %" PRIu64 " + %" PRIu64 " of parts of %" PRIu64 " bytes", p->base,
				 frag->offset, limit);
		TRY_NOW(check_place(t, p->len, p->dst_off));
		if (p->len > 0)
			TRY_NOW(add_in_pool(t, p));
		t->added += p->len;
	}
	t->frags++;
	return GANTRY_OK;
}

gantry_result devmem_table_ready(struct devmem_table *t)
{
	struct devmem_pool *p = t->pool;

	if (t->added < t->total)
		return GANTRY_AGAIN;
	if (!t->copying)
		return GANTRY_OK;
	if (!t->recorded)
		TRY_NOW(p->device->ops->queue_fence(p->device, GANTRY_COPY_IN, &t->fence));
	t->recorded = 1;
	TRY_NOW(p->device->ops->fence_reached(p->device, GANTRY_COPY_IN, t->fence));
	t->copying = 0;
	return GANTRY_OK;
}

gantry_result devmem_table_release(struct devmem_table *t)
{
	gantry_result r = let_go(t);
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->npages; i++) {
		if (t->page_of[i] != NO_PAGE)
			t->page_of[n++] = t->page_of[i];
	}
	devmem_pool_give(t->pool, t->page_of, n);
	t->npages = t->n = 0;
	t->total = t->added = 0;
	t->direct = NULL;
	t->went_direct = t->compact = t->copying = t->recorded = 0;
	return r;
}
