/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bruck's allgather: what a rank sends to which rank, and when. Pure: it uses neither sockets nor time, so the same
 * code runs over connections (ctl_exchange.c) and over the simulated wire of tests/unit/test_ctl_bruck.c.
 *
 * In round k rank r has the parts of ranks r .. r + 2^k - 1 (modulo N), sends them to rank r - 2^k, and gets those of the
 * next 2^k ranks from rank r + 2^k. The last round carries what is still missing. So every rank sends and receives
 * ceil(log2 N) messages with N - 1 parts in all, and each of its peers is a peer in one round only.
 *
 * A message has its place whenever it comes: one of a later round may overtake.
 */
#ifndef GANTRY_CTL_CTL_BRUCK_H
#define GANTRY_CTL_CTL_BRUCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"

struct ctl_bruck {
	int rank, nranks;
	size_t part;  /* bytes */
	uint8_t *all; /* borrowed: nranks * part, in rank order; this rank's own is there from the beginning */
	uint32_t got; /* rounds whose message has come, a bit each */
	int sent;     /* rounds whose message has arrived at its receiver */
};

/* ceil(log2 N): at most 15 for CTL_RANKS_MAX. */
int ctl_bruck_rounds(int nranks);
/* The destination of a rank in that round. */
int ctl_bruck_to(int rank, int nranks, int round);
/* In which round the one sends to the other; -1: never, or there is no such rank. */
int ctl_bruck_round(int from, int to, int nranks);

void ctl_bruck_start(struct ctl_bruck *b, int rank, int nranks, size_t part, uint8_t *all);
/* The round whose message may be sent now; -1: none. It is the same until `sent` is counted up. */
int ctl_bruck_next(const struct ctl_bruck *b);
size_t ctl_bruck_size(const struct ctl_bruck *b, int round);
void ctl_bruck_fill(const struct ctl_bruck *b, int round, uint8_t *out);
/* Has the message of that rank come already? */
bool ctl_bruck_has(const struct ctl_bruck *b, int from);
/* ERR_PROTOCOL: that rank sends nothing here, or another size. A second one changes nothing. */
gantry_result ctl_bruck_take(struct ctl_bruck *b, int from, const uint8_t *data, size_t size);
/* It has all parts, and its peers have what they need of it. */
bool ctl_bruck_done(const struct ctl_bruck *b);

#endif
