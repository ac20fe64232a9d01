/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the stream is cut. A shape appends one unit at a time: one packet, or those that share a page. What packets look
 * like before that: lengths and places of split pieces. Some of them (GANTRY_EMU_PLAIN) come unsplit, of some
 * (GANTRY_EMU_LINEAR) the first bytes are linear.
 */
#include "net/devmem/emulated.h"

#include <stdlib.h>

enum { MSS_1500 = 1448, SLOT_1500 = 2048, TAIL_9000 = 756, PIECE_9000 = 4096, BYTES_UNIT = 64, HEAD_MAX = 192 };

/* Weyl sequence and a finalizer: any state is a good one. */
EMU uint64_t emu_random(uint64_t *state)
{
	uint64_t z = *state += 0x9E3779B97F4A7C15u;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static uint32_t below(struct emu_flow *f, uint32_t n)
{
	return (uint32_t)(((emu_random(&f->random) >> 32) * n) >> 32);
}

EMU uint32_t emu_shape_slots(enum emu_shape shape)
{
	switch (shape) {
	case EMU_MTU9000:
		return 3;
	case EMU_RANDOM:
		return EMU_UNIT_SLOTS;
	default:
		return 1;
	}
}

static struct emu_piece *append(struct emu_flow *f, enum emu_kind kind, uint32_t at, uint32_t len, int fresh)
{
	struct emu_piece *p = emu_piece(f, f->n++);

	*p = (struct emu_piece){.len = len, .at = at, .slot = EMU_NO_SLOT, .kind = (uint8_t)kind, .fresh = !!fresh};
	return p;
}

/*
 * The pieces [first, f->n) are a packet, all split. Lets fate decide about its kind. Returns whether it still has a
 * page (so that others can be put in it).
 */
static int packet(struct emu_flow *f, uint32_t first, uint32_t linear)
{
	const struct emu_binding *b = f->binding;
	struct emu_piece *p = emu_piece(f, first);
	uint32_t head;

	if (b->plain && below(f, 1000) < b->plain) {
		p->kind = EMU_PLAIN;
		for (uint32_t i = first + 1; i < f->n; i++)
			p->len += emu_piece(f, i)->len;
		f->n = first + 1;
		return 0;
	}
	if (!linear || below(f, 1000) >= linear)
		return 1;
	if (p->len == 1 && f->n - first < 2)
		return 1;
	if (p->len == 1) { /* the whole piece is linear, so the next one is the first in their page */
		p->kind = EMU_HEAD;
		emu_piece(f, first + 1)->fresh |= p->fresh;
		return 1;
	}
	head = 1 + below(f, p->len - 1 < HEAD_MAX ? p->len - 1 : HEAD_MAX);
	for (uint32_t i = f->n++; i > first; i--)
		*emu_piece(f, i) = *emu_piece(f, i - 1);
	p->kind = EMU_HEAD;
	p->len = head;
	if (EMU_FAULT(63)) {
		f->n = first + 1;
		return 0;
	}
	p = emu_piece(f, first + 1);
	p->at += head;
	p->len -= head;
	return 1;
}

static void unit_random(struct emu_flow *f, uint32_t page)
{
	uint32_t first = f->n, pieces = 1 + below(f, EMU_UNIT_SLOTS), end = page;

	for (uint32_t i = 0; i < pieces; i++) {
		int share = end < page && below(f, 2);
		uint32_t from = share ? end : 0, at, len;

		at = below(f, 4) ? from + below(f, page - from) : from;
		len = below(f, 4) ? 1 + below(f, page - at) : 1 + below(f, page - at < 16 ? page - at : 16);
		append(f, EMU_SPLIT, at, len, !share);
		end = at + len;
	}
	packet(f, first, f->binding->linear ? f->binding->linear : 100);
}

/* Packets that share a page, each in a part of its own. */
static void unit_mtu1500(struct emu_flow *f, uint32_t page)
{
	int opened = 0;

	for (uint32_t i = 0; i < page / SLOT_1500 && i < 16; i++) {
		append(f, EMU_SPLIT, i * SLOT_1500, MSS_1500, !opened || EMU_FAULT(24));
		opened |= packet(f, f->n - 1, f->binding->linear);
	}
}

EMU void emu_shape_more(struct emu_flow *f)
{
	uint32_t first = f->n, page = f->binding->page, linear = f->binding->linear;

	switch (f->binding->shape) {
	case EMU_PAGES:
		append(f, EMU_SPLIT, 0, page, 1);
		packet(f, first, linear);
		break;
	case EMU_MTU1500:
		unit_mtu1500(f, page);
		break;
	case EMU_MTU9000:
		append(f, EMU_SPLIT, 0, PIECE_9000, 1);
		append(f, EMU_SPLIT, 0, PIECE_9000, 1);
		append(f, EMU_SPLIT, 0, TAIL_9000 + EMU_FAULT(31), 1);
		packet(f, first, linear);
		break;
	case EMU_ODD:
		append(f, EMU_SPLIT, 1 + EMU_FAULT(23), page - 1, 1);
		packet(f, first, linear);
		break;
	case EMU_RANDOM:
		unit_random(f, page);
		break;
	case EMU_BYTES: /* 37 is odd: no two at the same place, and no neighbours */
		for (uint32_t i = 0; i < BYTES_UNIT; i++)
			append(f, EMU_SPLIT, (i * 37 + 5) % page, 1, i == 0);
		packet(f, first, linear);
		break;
	}
	emu_piece(f, first)->starts = 1;
}
