/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ctl_bruck.h"

#include <string.h>

#include "base/assert.h"

int ctl_bruck_rounds(int nranks)
{
	int n = 0;

	while (1 << n < nranks)
		n++;
	return n;
}

int ctl_bruck_to(int rank, int nranks, int round)
{
	return (rank - (1 << round) + nranks) % nranks;
}

int ctl_bruck_round(int from, int to, int nranks)
{
	if (from < 0 || from >= nranks)
		return -1; /* a peer may claim any number */
	for (int k = 0; k < ctl_bruck_rounds(nranks); k++)
		if (ctl_bruck_to(from, nranks, k) == to)
			return k;
	return -1;
}

void ctl_bruck_start(struct ctl_bruck *b, int rank, int nranks, size_t part, uint8_t *all)
{
	ASSERT(rank >= 0 && rank < nranks);
	*b = (struct ctl_bruck){.rank = rank, .nranks = nranks, .part = part, .all = all};
}

/* Parts in the message of a round. */
static int count_parts(const struct ctl_bruck *b, int round)
{
	int have = 1 << round, missing = b->nranks - have;

	ASSERT(round >= 0 && missing > 0);
	return have < missing ? have : missing;
}

int ctl_bruck_next(const struct ctl_bruck *b)
{
	uint32_t needs = (1u << b->sent) - 1;

	return b->sent < ctl_bruck_rounds(b->nranks) && (b->got & needs) == needs ? b->sent : -1;
}

size_t ctl_bruck_size(const struct ctl_bruck *b, int round)
{
	return (size_t)count_parts(b, round) * b->part;
}

/* Parts from rank `first` on may go past the last rank, and then begin with rank 0. Returns the bytes before that. */
static size_t bytes_to_end(const struct ctl_bruck *b, int first, size_t size)
{
	size_t to_end = (size_t)(b->nranks - first) * b->part;

	ASSERT(first >= 0 && first < b->nranks);
	return size < to_end ? size : to_end;
}

void ctl_bruck_fill(const struct ctl_bruck *b, int round, uint8_t *out)
{
	size_t size = ctl_bruck_size(b, round), head = bytes_to_end(b, b->rank, size);

	memcpy(out, b->all + (size_t)b->rank * b->part, head);
	memcpy(out + head, b->all, size - head);
}

bool ctl_bruck_has(const struct ctl_bruck *b, int from)
{
	int round = ctl_bruck_round(from, b->rank, b->nranks);

	return round >= 0 && b->got >> round & 1;
}

gantry_result ctl_bruck_take(struct ctl_bruck *b, int from, const uint8_t *data, size_t size)
{
	int round = ctl_bruck_round(from, b->rank, b->nranks);
	size_t head;

	if (round < 0 || size != ctl_bruck_size(b, round))
		return GANTRY_ERR_PROTOCOL;
	if (b->got >> round & 1)
		return GANTRY_OK;
	head = bytes_to_end(b, from, size);
	memcpy(b->all + (size_t)from * b->part, data, head);
	memcpy(b->all, data + head, size - head);
	b->got |= 1u << round;
	return GANTRY_OK;
}

bool ctl_bruck_done(const struct ctl_bruck *b)
{
	uint32_t all = (1u << ctl_bruck_rounds(b->nranks)) - 1;

	return b->sent == ctl_bruck_rounds(b->nranks) && b->got == all;
}
