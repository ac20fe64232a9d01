/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of device memory are read, added to and written, so only one communicator of the process may do that to a word at a time: NCCL
 * registers windows with all its collComms, and a program may signal one word through several of them.
 *
 * A word belongs to a communicator from the moment at which it begins to add until its write is over. What was read before that is good
 * if no other one had the word since: each change of hands is a turn, and what is read is marked with the turn in which that was. To
 * begin to read takes a turn as well, unless the word is in other hands: then what is read is worth nothing.
 *
 * A communicator that has a word waits for its own copies only, never for another word: there is no circle.
 *
 * A hash gives each word a place. Those that share a place only wait for each other, or are read once more.
 */
#include "rma/rma_priv.h"

enum { PLACES = 4096 };

MUTEX_KIND(claims_mu);
static struct claims_mu mu;
static struct {
	const struct rma_comm *owner; /* NULL: none has it now */
	const struct rma_comm *last;  /* to claim or read it; it may be gone */
	uint32_t words;		      /* of the owner */
	uint64_t turn;
} places[PLACES] GUARDED_BY(claims_mu);

static uint32_t place_of(const struct rma_word *w)
{
	return (uint32_t)(((uint64_t)(uintptr_t)w->at >> 3) * 0x9e3779b97f4a7c15u >> 52);
}

static void hand_over(const struct rma_comm *c, uint32_t i) REQUIRES(claims_mu)
{
	places[i].turn += places[i].last != c;
	places[i].last = c;
}

bool rma_claim(const struct rma_comm *c, struct rma_word *w)
{
	const uint32_t i = place_of(w);
	bool claimed;

	if (w->claimed)
		return true;
	claims_mu_lock(&mu);
	claimed = !places[i].owner || places[i].owner == c;
	if (claimed) {
		hand_over(c, i);
		places[i].owner = c;
		places[i].words++;
		w->claimed = true;
		if (w->turn != places[i].turn) {
			w->known = false;
			w->stale = w->reading;
		}
		w->turn = places[i].turn;
	}
	claims_mu_unlock(&mu);
	return claimed;
}

void rma_claim_read(const struct rma_comm *c, struct rma_word *w)
{
	const uint32_t i = place_of(w);

	claims_mu_lock(&mu);
	if (!places[i].owner || places[i].owner == c)
		hand_over(c, i);
	w->turn = places[i].turn;
	claims_mu_unlock(&mu);
}

void rma_claim_end(struct rma_word *w)
{
	const uint32_t i = place_of(w);

	if (!w->claimed)
		return;
	w->claimed = false;
	claims_mu_lock(&mu);
	if (!--places[i].words)
		places[i].owner = NULL;
	claims_mu_unlock(&mu);
}
