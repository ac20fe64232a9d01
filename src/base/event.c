/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of events.
 *
 * A writer takes the next position with a fetch_add and claims its slot by
 * exchanging the slot's sequence word for BUSY. It then stores the fields and
 * last the sequence word, position + 1.
 *
 * Why a claim: a writer can lose its CPU in the middle of a record for as long
 * as the others need to go once around the ring. Without the claim both would
 * write one slot and leave a record made of two, under a valid sequence word.
 * With it the one that finds the slot BUSY drops its record: an event is lost
 * once in a blue moon, and none is ever false. A writer that wakes up to find
 * a newer record puts that one's word back.
 *
 * Why release on every field and acquire on every read of one: a reader that
 * sees any field of a newer record must also see that the sequence word is no
 * longer the old one. The exchange comes before the field's release, the
 * reader's second look at the word comes after its acquire. Fences would say
 * the same with fewer ordered accesses, but ThreadSanitizer does not know them.
 */
#include "base/event.h"

#include "base/atomic.h"
#include "base/clock.h"

enum { AHEAD = 4 };    /* slots fetched before their turn */
enum { SLOTS = GANTRY_EVENTS_TRACED }; /* zero pages until used: 512 KiB of them without GANTRY_TRACE, 4 MiB with it */
#define BUSY UINT64_MAX

struct slot {
	_Alignas(64) uint64_t seq; /* position + 1 of the record here, 0 for none, BUSY while it is written */
	uint64_t ticks;
	uint64_t kind_and_a; /* kind in the low half */
	uint64_t b;
	uint64_t c;
};
_Static_assert(sizeof(struct slot) == 64, "a slot is one cache line, so that two writers do not share one");
_Static_assert((SLOTS & (SLOTS - 1)) == 0 && (GANTRY_EVENTS_KEPT & (GANTRY_EVENTS_KEPT - 1)) == 0,
	       "positions wrap by a mask");

static struct slot ring[SLOTS];
/* Relaxed: a thread that sees an old value writes to, or reads, a slot whose sequence word reveals it. */
static uint64_t ring_mask = GANTRY_EVENTS_KEPT - 1;
/* Positions handed out so far. Written by all writers; on a line of its own. */
static _Alignas(64) uint64_t next_position;

static const struct {
	const char *name;
	const char *fields[3];
} kinds[] = {
#define EVENT_TEXT(kind, text, a, b, c) [GANTRY_EV_##kind] = {text, {a, b, c}},
	GANTRY_EVENTS(EVENT_TEXT)
#undef EVENT_TEXT
};

const char *const gantry_event_rma_names[GANTRY_EV_IS_COUNT] = {
#define EVENT_RMA_TEXT(name, text) text,
	GANTRY_EVENT_RMA(EVENT_RMA_TEXT)
#undef EVENT_RMA_TEXT
};

/* NULL: the record is dropped. */
static struct slot *claim(uint64_t position)
{
	struct slot *s = &ring[position & load_relaxed(&ring_mask)];
	uint64_t old = exchange_acquire(&s->seq, BUSY);

	if (old == BUSY)
		return NULL;
	if (old > position) {
		store_release(&s->seq, old);
		return NULL;
	}
	return s;
}

void gantry_event_put_at(uint64_t ticks, enum gantry_event_kind kind, uint32_t a, uint64_t b, uint64_t c)
{
	uint64_t position = fetch_add_relaxed(&next_position, 1);
	struct slot *s = claim(position);

	/* The ring is larger than what stays in a core's cache; a writer waits long for a line that is far away. */
	__builtin_prefetch(&ring[(position + AHEAD) & load_relaxed(&ring_mask)], 1);
	if (!s)
		return;
	store_release(&s->ticks, ticks);
	store_release(&s->kind_and_a, (uint64_t)a << 32 | (uint32_t)kind);
	store_release(&s->b, b);
	store_release(&s->c, c);
	store_release(&s->seq, position + 1);
}

/* 1 if the record at `position` was there, whole, from the first to the last look. */
static int read_slot(uint64_t position, struct gantry_event *ret_event)
{
	struct slot *s = &ring[position & load_relaxed(&ring_mask)];
	struct gantry_event e;
	uint64_t kind_and_a;

	if (load_acquire(&s->seq) != position + 1)
		return 0;
	e.ticks = load_acquire(&s->ticks);
	kind_and_a = load_acquire(&s->kind_and_a);
	e.b = load_acquire(&s->b);
	e.c = load_acquire(&s->c);
	if (load_relaxed(&s->seq) != position + 1)
		return 0;
	e.kind = (uint32_t)kind_and_a;
	e.a = (uint32_t)(kind_and_a >> 32);
	*ret_event = e;
	return 1;
}

void gantry_event_keep_more(void)
{
	store_relaxed(&ring_mask, GANTRY_EVENTS_TRACED - 1);
}

size_t gantry_event_snapshot(struct gantry_event *out, size_t n)
{
	uint64_t end = load_acquire(&next_position);
	uint64_t room = load_relaxed(&ring_mask) + 1, want = n < room ? n : room;
	uint64_t position = end > want ? end - want : 0;
	size_t copied = 0;

	for (; position < end; position++)
		copied += (size_t)read_slot(position, &out[copied]);
	return copied;
}

const char *gantry_event_name(enum gantry_event_kind kind)
{
	return (unsigned)kind < GANTRY_EV_COUNT ? kinds[kind].name : "unknown";
}

const char *gantry_event_field(enum gantry_event_kind kind, int i)
{
	return (unsigned)kind < GANTRY_EV_COUNT && i >= 0 && i < 3 ? kinds[kind].fields[i] : "";
}
