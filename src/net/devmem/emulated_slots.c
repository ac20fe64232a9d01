/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of a binding, and starving.
 *
 * Free pages are a stack: what was given back is used again at once, while it is in the caches, and an early return
 * shows soon as wrong bytes. The order is shuffled at bind. Where bytes are copied on to device memory, each copy costs
 * a call of the driver, so pages that follow each other have to be found together, in whatever order they came back:
 * then groups of pages are shuffled, and the free ones of a group are bits of a word. A flow goes through a group from
 * its first page to its last and then takes another group, although pages behind it come back meanwhile: those are few
 * and lie apart, and when the next flow comes to the group most of it is free again. A group is looked at again after
 * all others, so what is free is always found.
 *
 * When a flow has bytes waiting and there is no page for them, the binding starves. A real NIC drops packets then and
 * TCP waits for its retransmission timeout: so nobody gets a page before GANTRY_EMU_RTO has passed since, although
 * pages may be back earlier. Who holds the pages is said in one line, and that it is over in another.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "base/atomic.h"
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
		uint32_t h = load_relaxed(&f->held);

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
					      load_relaxed(&f->held));
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

/* Not mirrored, each slot is one. */
static uint32_t groups_of(const struct emu_binding *b)
{
	return b->mirrored ? (b->nslots + EMU_GROUP - 1) / EMU_GROUP : b->nslots;
}

EMU gantry_result emu_slots_init(struct emu_binding *b)
{
	gantry_result r = GANTRY_OK;
	uint64_t state = b->seed + 1;
	uint32_t groups = groups_of(b);

	b->free = calloc(groups, sizeof(*b->free));
	b->bits = b->mirrored ? calloc(groups, sizeof(*b->bits)) : NULL;
	b->users = calloc(b->nslots, sizeof(*b->users));
	b->poisoned = calloc(b->nslots, sizeof(*b->poisoned));
	if (!b->free || (b->mirrored && !b->bits) || !b->users || !b->poisoned)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %u pages of the emulated NIC", b->nslots);
	for (uint32_t i = 0; i < groups; i++) {
		uint32_t j = EMU_FAULT(22) ? i : (uint32_t)(emu_random(&state) % (i + 1));

		b->free[i] = b->free[j];
		b->free[j] = i;
	}
	for (uint32_t slot = 0; b->mirrored && slot < b->nslots; slot++)
		b->bits[slot / EMU_GROUP] |= 1ull << slot % EMU_GROUP;
	b->nfree = b->nslots;
	if (EMU_FAULT(11))
		b->nfree--;
out:
	return r;
}

/* With the lock. Mirrored: the flow goes on with the group that comes next in the order. */
EMU void emu_slots_group(struct emu_flow *f)
{
	struct emu_binding *b = f->binding;

	if (!b->mirrored)
		return;
	f->group = b->free[b->at];
	f->passed = 0;
	b->at = (b->at + 1) % groups_of(b);
}

/* With the lock; there are n free bits: the loop finds them all while it comes once to each group. */
static void take_mirrored(struct emu_flow *f, uint32_t *ret_slots, uint32_t n)
{
	struct emu_binding *b = f->binding;

	for (uint32_t i = 0; i < n;) {
		uint64_t left = f->passed < EMU_GROUP ? b->bits[f->group] & UINT64_MAX << f->passed : 0;

		if (!left) {
			emu_slots_group(f);
			continue;
		}
		f->passed = (uint32_t)__builtin_ctzll(left) + 1;
		b->bits[f->group] &= ~(left & -left);
		ret_slots[i++] = f->group * EMU_GROUP + f->passed - 1;
	}
}

/* With the lock; there are n. */
static void take_free(struct emu_flow *f, uint32_t *ret_slots, uint32_t n)
{
	struct emu_binding *b = f->binding;

	if (b->mirrored)
		take_mirrored(f, ret_slots, n);
	else
		for (uint32_t i = 0; i < n; i++)
			ret_slots[i] = b->free[b->nfree - 1 - i];
	b->nfree -= n;
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
		take_free(f, ret_slots, n);
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
		fetch_add_relaxed(&f->held, n);
	return n;
}

/* With the lock. How many were not free before: as many as there are bits, whatever is given back. */
static uint32_t put_mirrored(struct emu_binding *b, const uint32_t *slots, uint32_t n)
{
	uint32_t more = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t *bits = &b->bits[slots[i] / EMU_GROUP], bit = 1ull << slots[i] % EMU_GROUP;

		more += !(*bits & bit);
		*bits |= bit;
	}
	return more;
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
	fetch_sub_relaxed(&f->held, n);
	pthread_mutex_lock(&b->lock);
	if (b->mirrored)
		n = put_mirrored(b, slots, n);
	else
		memcpy(b->free + b->nfree, slots, n * sizeof(*slots));
	b->nfree += n;
	pthread_mutex_unlock(&b->lock);
}
