/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals in device memory. The CPU does not address it, and the copy queues know no addition: a word is read, the sum is formed here,
 * and written by the queue that has brought the data before.
 *
 *   expected ──> being read ──> known ──add: value grows, unwritten──> written ──the write is over, none expected──> forgotten
 *
 * Why it is forgotten: the owner's kernels may set it to another value while no signal is on its way. So what is known counts as long as
 * signals are expected or unwritten, and after that the word is read again, behind its last write. Why it may be read as soon as a
 * signal is expected: as long as one is on its way they may not.
 *
 * Words that are only expected have half of the places: a signal whose turn it is finds one, or waits for another whose turn it is.
 *
 * Before anything is added the word is claimed, against other communicators of the process (rma_claim.c).
 *
 * One word at most is unwritten, so that values reach the memory in the order in which signals count: further signals of that word
 * join it, one of another word writes it first.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdlib.h>

#include "base/log.h"
#include "rma/rma_priv.h"

/* The first place stays empty: behind a buffer of data a value could be copied as its neighbour, that is together with the data. */
static uint64_t *value_at(const struct rma_comm *c, uint64_t i) REQUIRES(rma_mu)
{
	return (uint64_t *)(void *)(c->signals.values + (1 + i) * RMA_VALUE_APART);
}

gantry_result rma_signal_open(struct rma_comm *c)
{
	void *values = NULL;

	if (!c->device)
		return GANTRY_OK;
	c->signals.all = calloc(RMA_WORDS, sizeof(*c->signals.all));
	if (!c->signals.all)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for signals");
	TRY_NOW(rma_mapped_alloc(c, (size_t)(1 + RMA_VALUES + RMA_WORDS) * RMA_VALUE_APART, &values));
	c->signals.values = values;
	for (int i = 0; i < RMA_WORDS; i++) {
		struct rma_word *w = &c->signals.all[i];

		w->read = value_at(c, RMA_VALUES + (uint64_t)i);
		gantry_list_append(&c->signals.free, &w->node);
		c->signals.nfree++;
	}
	return GANTRY_OK;
}

static struct rma_word *find_word(struct rma_comm *c, const char *at) REQUIRES(rma_mu)
{
	gantry_list_each_entry (w, &c->signals.words, struct rma_word, node)
		if (w->at == at)
			return w;
	return NULL;
}

/* There is a free one. */
static struct rma_word *take_word(struct rma_comm *c, char *at) REQUIRES(rma_mu)
{
	struct rma_word *w = gantry_container(c->signals.free.next, struct rma_word, node);

	ASSERT(c->signals.nfree && !w->expected && !w->known && !w->reading);
	c->signals.nfree--;
	gantry_list_remove(&w->node);
	gantry_list_append(&c->signals.words, &w->node);
	w->at = at;
	return w;
}

/* AGAIN: its last write is not over. */
static gantry_result begin_read(struct rma_comm *c, struct rma_word *w) REQUIRES(rma_mu)
{
	ASSERT(!w->known && !w->reading && !w->unwritten);
	TRY_NOW(rma_fence_over(c, &w->fence));
	rma_claim_read(c, w);
	w->reading = true;
	return rma_copy(c, (struct rma_span){(char *)w->read, false}, (struct rma_span){w->at, true}, sizeof(*w->read),
			&w->fence);
}

/* A signal begins to be on its way. If none was, the owner may have changed the word since. */
static void renew(struct rma_word *w)
{
	if (!w->expected && !w->unwritten)
		w->known = false;
}

gantry_result rma_signal_expect(struct rma_comm *c, struct rma_span word, bool *ret_expected)
{
	struct rma_word *w = find_word(c, word.at);
	gantry_result r;

	if (!w && c->signals.nfree > RMA_WORDS / 2)
		w = take_word(c, word.at);
	*ret_expected = w != NULL;
	if (!w)
		return GANTRY_OK;
	renew(w);
	w->expected++;
	r = w->known || w->reading ? GANTRY_OK : begin_read(c, w);
	return r == GANTRY_AGAIN ? GANTRY_OK : r;
}

/* AGAIN: not yet. */
static gantry_result know(struct rma_comm *c, struct rma_word *w) REQUIRES(rma_mu)
{
	if (w->known)
		return GANTRY_OK;
	if (!w->reading)
		TRY_NOW(begin_read(c, w));
	TRY_NOW(rma_fence_over(c, &w->fence));
	w->reading = false;
	if (w->stale) {
		w->stale = false;
		TRY_NOW(begin_read(c, w));
		return GANTRY_AGAIN;
	}
	w->value = *w->read;
	w->known = true;
	return GANTRY_OK;
}

/* For devices that cannot store a word. */
static gantry_result copy_word(struct rma_comm *c, struct rma_word *w) REQUIRES(rma_mu)
{
	uint64_t at = c->signals.given % RMA_VALUES, *value = value_at(c, at);

	TRY_NOW(rma_fence_over(c, &c->signals.fences[at])); /* of the write before, from there */
	*value = w->value;
	TRY_NOW(rma_copy(c, (struct rma_span){w->at, true}, (struct rma_span){(char *)value, false}, sizeof(*value),
			 &w->fence));
	c->signals.fences[at] = w->fence;
	c->signals.given++;
	return GANTRY_OK;
}

static gantry_result write_word(struct rma_comm *c) REQUIRES(rma_mu)
{
	struct rma_word *w = c->signals.unwritten;
	gantry_result r;

	if (!w)
		return GANTRY_OK;
	r = rma_store(c, w->at, w->value, &w->fence);
	if (r == GANTRY_ERR_UNSUPPORTED)
		r = copy_word(c, w);
	if (r != GANTRY_OK)
		return r;
	w->unwritten = false;
	c->signals.unwritten = NULL;
	return GANTRY_OK;
}

gantry_result rma_signal_add(struct rma_comm *c, struct rma_span word, uint64_t add, bool expected)
{
	struct rma_word *w = find_word(c, word.at);

	if (!w && !c->signals.nfree)
		return GANTRY_AGAIN;
	if (!w)
		w = take_word(c, word.at);
	else if (!expected)
		renew(w);
	if (!rma_claim(c, w))
		return GANTRY_AGAIN;
	TRY_NOW(know(c, w));
	if (c->signals.unwritten != w)
		TRY_NOW(write_word(c));
	ASSERT(w->expected || !expected);
	w->expected -= expected;
	w->value += add;
	w->unwritten = true;
	c->signals.unwritten = w;
	return GANTRY_OK;
}

gantry_result rma_signal_progress(struct rma_comm *c)
{
	gantry_result r = write_word(c);

	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		return r;
	gantry_list_each_entry_safe (w, &c->signals.words, struct rma_word, node) {
		if (w->unwritten || w->reading)
			continue;
		r = rma_fence_over(c, &w->fence);
		if (r == GANTRY_OK) {
			rma_claim_end(w);
			if (w->expected && !w->known)
				r = begin_read(c, w);
		}
		if (r != GANTRY_OK && r != GANTRY_AGAIN)
			return r;
		if (r == GANTRY_AGAIN || w->expected)
			continue;
		w->known = false;
		gantry_list_remove(&w->node);
		gantry_list_append(&c->signals.free, &w->node);
		c->signals.nfree++;
	}
	return GANTRY_OK;
}

void rma_signal_end(struct rma_comm *c)
{
	for (int i = 0; c->signals.all && i < RMA_WORDS; i++)
		rma_claim_end(&c->signals.all[i]);
}
