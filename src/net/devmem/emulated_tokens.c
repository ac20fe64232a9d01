/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of a flow: numbers from 1, the lowest free one first, used again at once. Many may be out for one page; the
 * page is free when the last of them is back and no piece of the plan lies in it.
 */
#include "net/devmem/emulated.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_WORDS = 16, MAX_WORDS = 1 << 25 /* 2^31 tokens */ };

static int grow(struct emu_flow *f, uint32_t words)
{
	uint64_t *out = realloc(f->out, words * sizeof(*out));
	uint32_t *slot_of;

	if (!out)
		return -1;
	f->out = out;
	slot_of = realloc(f->slot_of, (size_t)words * 64 * sizeof(*slot_of));
	if (!slot_of)
		return -1;
	f->slot_of = slot_of;
	memset(out + f->words, 0, (words - f->words) * sizeof(*out));
	f->words = words;
	return 0;
}

EMU int emu_tokens_reserve(struct emu_flow *f, uint32_t n)
{
	int r = 0;

	pthread_mutex_lock(&f->lock);
	while (!r && f->words * 64 - f->nout < n)
		r = f->words >= MAX_WORDS / 2 ? -1 : grow(f, f->words ? f->words * 2 : FIRST_WORDS);
	pthread_mutex_unlock(&f->lock);
	return r;
}

/* There is one: it was reserved. */
EMU uint32_t emu_tokens_take(struct emu_flow *f, uint32_t slot)
{
	uint32_t w = EMU_FAULT(41) && f->nout ? f->words - 1 : f->hint, bit;

	while (!~f->out[w])
		w++;
	bit = (uint32_t)__builtin_ctzll(~f->out[w]);
	f->out[w] |= 1ull << bit;
	f->hint = EMU_FAULT(41) ? 0 : w;
	f->nout++;
	f->slot_of[w * 64 + bit] = slot;
	f->binding->users[slot]++;
	return w * 64 + bit + 1;
}

/* 1: it was out. A page that nobody uses any more is put to freed[*n]. */
static int give_one(struct emu_flow *f, uint32_t token, uint32_t *freed, uint32_t *n)
{
	uint32_t w = (token - 1) / 64, slot;
	uint64_t bit = 1ull << ((token - 1) % 64);

	if (!token || w >= f->words || !(f->out[w] & bit))
		return 0;
	f->out[w] &= ~bit;
	f->nout--;
	if (w < f->hint)
		f->hint = w;
	slot = f->slot_of[token - 1];
	if (!--f->binding->users[slot] || EMU_FAULT(42))
		freed[(*n)++] = slot;
	return 1;
}

/* SO_DEVMEM_DONTNEED. Tokens that are not out are skipped, but count as looked at. */
EMU int emu_give_back(struct devmem_flow *pub, const struct devmem_token *ranges, size_t n)
{
	struct emu_flow *f = (struct emu_flow *)pub;
	uint32_t freed[DEVMEM_MAX_RETURNED], nfreed = 0, looked = 0;
	int good = 0;

	if (!n || (n > DEVMEM_MAX_RANGES && !EMU_FAULT(53))) {
		errno = EINVAL;
		return -1;
	}
	if (!ranges) {
		errno = EFAULT;
		return -1;
	}
	pthread_mutex_lock(&f->lock);
	for (size_t i = 0; i < n && looked < DEVMEM_MAX_RETURNED; i++)
		for (uint32_t j = 0; j < ranges[i].token_count && looked < DEVMEM_MAX_RETURNED; j++) {
			int was_out = give_one(f, ranges[i].token_start + j, freed, &nfreed);

			good += was_out;
			looked += EMU_FAULT(52) ? (uint32_t)was_out : 1;
		}
	pthread_mutex_unlock(&f->lock);
	emu_slots_put(f, freed, nfreed);
	EMU_COUNT(f->binding, returned, good);
	if (looked > (uint32_t)good)
		EMU_COUNT(f->binding, bad_returns, looked - (uint32_t)good);
	return EMU_FAULT(51) ? (int)looked : good;
}

EMU void emu_tokens_free_all(struct emu_flow *f)
{
	pthread_mutex_lock(&f->lock);
	for (uint32_t w = 0; w < f->words; w++)
		while (f->out[w]) {
			uint32_t freed[1], n = 0;

			give_one(f, w * 64 + (uint32_t)__builtin_ctzll(f->out[w]) + 1, freed, &n);
			if (!EMU_FAULT(101))
				emu_slots_put(f, freed, n);
		}
	pthread_mutex_unlock(&f->lock);
}
