/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two ends of one process share: found by a random token, counted, freed by the last.
 *
 * Ranks that are threads of one process could hand each other plain addresses. But the end that made a thing may be
 * freed while the other end's kernel still stores into it (a receiver tells the head of a sender that has long ended),
 * or before the other end has come at all. So a connect info carries a token, and whoever finds the thing holds it.
 */
#ifndef GANTRY_TRANSPORT_SHARED_H
#define GANTRY_TRANSPORT_SHARED_H

#include "base/list.h"
#include "gantry/result.h"

struct gantry_token {
	unsigned char bytes[16];
};

/* The first member of what is shared. */
struct gantry_shared {
	struct gantry_list node; /* of all of the process, under shared.c's lock, as are the next three */
	int refs, asked, found;
	struct gantry_token token; /* constant */
	void (*destroy)(struct gantry_shared *s);
};

/* Makes a token and enters it. The caller has the first reference. */
gantry_result gantry_shared_init(struct gantry_shared *s, void (*destroy)(struct gantry_shared *s));
/*
 * With a reference. ERR_PEER_LOST, without a line in the log: there is none, or it is of another kind (destroy tells
 * the kinds). wait: AGAIN as long as its maker has not asked whether it was found, that is, has not done its own part
 * yet.
 */
gantry_result gantry_shared_find(const struct gantry_token *token, void (*destroy)(struct gantry_shared *s), int wait,
				 struct gantry_shared **ret_shared);
/* Whether somebody has found it: OK or AGAIN. */
gantry_result gantry_shared_found(struct gantry_shared *s);
void gantry_shared_put(struct gantry_shared *s); /* NULL is fine */

#endif
