/*
 * Pages of a binding, and starving.
 *
 * Free pages are a stack: what was given back is used again at once, while it is in the caches, and an early return
 * shows soon as wrong bytes. The order is shuffled at bind. Where bytes are copied on to device memory, free pages are
 * a ring, shuffled in groups, so that pages stay together that can be copied together.
 *
 * When a flow has bytes waiting and there is no page for them, the binding starves. A real NIC drops packets then and
 * TCP waits for its retransmission timeout: so nobody gets a page before GANTRY_EMU_RTO has passed since, although
 * pages may be back earlier. Who holds the pages is said in one line, and that it is over in another.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/devmem/emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* "flow 2 (10.0.0.1:4000) holds 60 of 64 pages, flow 1 (...) 4": the one that has most comes first. With the lock. */
static void who_holds(struct emu_binding *b, char *text, size_t len)
{
	struct emu_flow *most = NULL;
	uint32_t held = 0;
	size_t n;

	gantry_list_each (e, &b->flows) {
		struct emu_flow *f = gantry_container(e, struct emu_flow, link);
		uint32_t h = __atomic_load_n(&f->held, __ATOMIC_RELAXED);

		if (!most || h > held) {
			most = f;
			held = h;
		}
	}
	if (!most) {
		snprintf(text, len, "no flow");
		return;
	}
	n = (size_t)snprintf(text, len, "flow %u (%s) holds %u of %u pages", most->number, most->peer, held, b->nslots);
	gantry_list_each (e, &b->flows) {
		struct emu_flow *f = gantry_container(e, struct emu_flow, link);

		if (f != most && n < len)
			n += (size_t)snprintf(text + n, len - n, ", flow %u (%s) %u", f->number, f->peer,
					      __atomic_load_n(&f->held, __ATOMIC_RELAXED));
	}
}

/* With the lock. Writes the line to be logged, if any, to `text`. */
static void starve(struct emu_binding *b, char *text, size_t len)
{
	uint32_t left_out = 0;

	if (b->starved)
		return;
	b->starved = 1;
	b->starved_ns = gantry_now_ns();
	b->resume_ns = b->starved_ns + (EMU_FAULT(91) ? 0 : b->rto_ns);
	EMU_COUNT(b, starved, 1);
	b->said = gantry_ratelimit_pass(&b->warned, &left_out);
	if (b->said)
		who_holds(b, text, len);
}

/* Somebody wrote to a page that was free? */
static void look_at_poison(struct emu_binding *b, uint32_t slot)
{
	const uint8_t *p = b->bytes + (uint64_t)slot * b->page;
	uint32_t i;

	if (!b->poisoned[slot])
		return;
	b->poisoned[slot] = 0;
	for (i = 0; i < b->page && p[i] == EMU_POISON; i++)
		;
	if (i == b->page || EMU_FAULT(111))
		return;
	EMU_COUNT(b, written_after, 1);
	LOG_ERROR(NET, "emulated NIC %s: dmabuf %u, byte %u of page %u was written after the page was given back",
		  b->nic, b->pub.dmabuf_id, i, slot);
}

static int by_number(const void *a, const void *b)
{
	return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1;
}

/* With the lock. Of a mirrored binding in rising order: pages that follow each other are copied together. */
static void take_free(struct emu_binding *b, uint32_t *ret_slots, uint32_t n)
{
	if (!b->mirrored) {
		b->nfree -= n;
		for (uint32_t i = 0; i < n; i++)
			ret_slots[i] = b->free[b->nfree + n - 1 - i];
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		ret_slots[i] = b->free[((uint64_t)b->first + i) % b->nslots];
	b->first = (b->first + n) % b->nslots;
	b->nfree -= n;
	qsort(ret_slots, n, sizeof(*ret_slots), by_number);
}

EMU uint32_t emu_slots_take(struct emu_flow *f, uint32_t least, uint32_t want, uint32_t *ret_slots)
{
	struct emu_binding *b = f->binding;
	char starving[512] = "";
	uint64_t starved_ns = 0;
	uint32_t n = 0;

	pthread_mutex_lock(&b->lock);
	if (b->nfree < least) {
		starve(b, starving, sizeof(starving));
	} else if (!b->starved || gantry_now_ns() >= b->resume_ns || (EMU_FAULT(93) && f->number == 1)) {
		starved_ns = b->starved && b->said ? b->starved_ns : 0;
		b->starved = 0;
		n = want < b->nfree ? want : b->nfree;
		take_free(b, ret_slots, n);
	}
	pthread_mutex_unlock(&b->lock);

	if (*starving)
		LOG_WARN(NET, "emulated NIC %s: dmabuf %u starved: %s", b->nic, b->pub.dmabuf_id, starving);
	if (starved_ns)
		LOG_INFO(NET, "emulated NIC %s: dmabuf %u has pages again, after %.1f ms", b->nic, b->pub.dmabuf_id,
			 (double)(gantry_now_ns() - starved_ns) * 1e-6);
	for (uint32_t i = 0; i < n; i++)
		look_at_poison(b, ret_slots[i]);
	if (n)
		__atomic_fetch_add(&f->held, n, __ATOMIC_RELAXED);
	return n;
}

EMU void emu_slots_put(struct emu_flow *f, const uint32_t *slots, uint32_t n)
{
	struct emu_binding *b = f->binding;

	if (!n)
		return;
	if (emu_poison_on() && !EMU_FAULT(113))
		for (uint32_t i = 0; i < n; i++) {
			memset(b->bytes + (uint64_t)slots[i] * b->page, EMU_POISON, b->page);
			b->poisoned[slots[i]] = 1;
		}
	__atomic_fetch_sub(&f->held, n, __ATOMIC_RELAXED);
	pthread_mutex_lock(&b->lock);
	if (b->mirrored) {
		for (uint32_t i = 0; i < n; i++)
			b->free[((uint64_t)b->first + b->nfree + i) % b->nslots] = slots[i];
	} else {
		memcpy(b->free + b->nfree, slots, n * sizeof(*slots));
	}
	b->nfree += n;
	pthread_mutex_unlock(&b->lock);
}
