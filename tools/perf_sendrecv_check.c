/*
 * What messages carry. A message's bytes follow from its number, which is made of the round, both ranks and its place
 * in the group, and from its size: see perf_util.h. Before each round receive buffers are poisoned and guards stand in
 * front of each message and behind it.
 *
 *        page                                            even address
 *   ... |                                 front guard 64 | message ... | back guard 64 |
 *                                                  --> shifted by the skew: 0, 1 or 3 bytes
 *
 * On a GPU kernels fill and compare; on the host the tool does it itself, so that the kernels are not their own judge.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/text.h"
#include "device/work.h"
#include "perf_sendrecv.h"
#include "perf_util.h"

#define GUARD_SEQ 0x6775617264000000u
#define POISON_SEQ 0x706f69736f6e0000u
#define ROUNDS_ALL_BELOW ((uint64_t)16 << 20)
enum { BLOCKS = 16 };

static gantry_result launch(struct sr_rank *rk, enum gantry_kernel kernel, const void *args, size_t size)
{
	const struct gantry_launch l = {.kernel = kernel, .blocks = BLOCKS, .args = args, .args_size = size};

	return rk->dev->ops->launch(rk->dev, rk->stream, &l);
}

static gantry_result fill(struct sr_rank *rk, char *p, uint64_t bytes, uint64_t seq)
{
	const struct gantry_fill_args args = {.dst = p, .bytes = bytes, .seq = seq};

	if (!bytes)
		return GANTRY_OK;
	if (rk->dev->kind == GANTRY_DEVICE_CUDA)
		return launch(rk, GANTRY_KERNEL_FILL, &args, sizeof(args));
	perf_fill(p, bytes, seq);
	return GANTRY_OK;
}

/* Adds to *wrong_host, at the latest when the stream is through. */
static gantry_result verify(struct sr_rank *rk, const char *p, uint64_t bytes, uint64_t seq)
{
	const struct gantry_verify_args args = {.src = p, .bytes = bytes, .seq = seq, .wrong = rk->wrong_dev};

	if (!bytes)
		return GANTRY_OK;
	if (rk->dev->kind == GANTRY_DEVICE_CUDA)
		return launch(rk, GANTRY_KERNEL_VERIFY, &args, sizeof(args));
	*rk->wrong_host += perf_check(p, bytes, seq);
	return GANTRY_OK;
}

static uint64_t seq_of(const struct sr_rank *rk, const struct sr_msg *m)
{
	uint64_t n = (uint64_t)rk->nranks, from = (uint64_t)(m->send ? rk->rank : m->peer),
		 to = (uint64_t)(m->send ? m->peer : rk->rank);

	return ((rk->round * n + from) * n + to) * SR_INFLIGHT_MAX + (uint64_t)m->number;
}

/* Another one at every place: bytes copied beyond the end of a message must not look like the guard that they hit. */
static uint64_t guard_seq(const struct sr_rank *rk, const struct sr_msg *m, int back)
{
	return GUARD_SEQ + (((uint64_t)rk->rank * 2 + (uint64_t)m->send) * 2 + (uint64_t)back) + rk->round * 4096;
}

static gantry_result prepare(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	gantry_result r = GANTRY_OK;
	char *at = sr_place(rk, m);

	TRY(fill(rk, at - SR_GUARD, SR_GUARD, guard_seq(rk, m, 0)));
	TRY(fill(rk, at, bytes, m->send ? seq_of(rk, m) : POISON_SEQ + rk->round));
	TRY(fill(rk, at + bytes, SR_GUARD, guard_seq(rk, m, 1)));
	sr_progress(rk);
out:
	return r;
}

/* Sent messages too: nobody may have written there. */
static gantry_result compare(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes)
{
	gantry_result r = GANTRY_OK;
	char *at = sr_place(rk, m);

	TRY(verify(rk, at - SR_GUARD, SR_GUARD, guard_seq(rk, m, 0)));
	TRY(verify(rk, at, bytes, seq_of(rk, m)));
	TRY(verify(rk, at + bytes, SR_GUARD, guard_seq(rk, m, 1)));
	sr_progress(rk);
out:
	return r;
}

/* Says where the first wrong byte of a message or of its guards is; text stays "" if there is none. */
static gantry_result locate(struct sr_rank *rk, const struct sr_msg *m, uint64_t bytes, char *text, size_t len)
{
	gantry_result r = GANTRY_OK;
	unsigned char *copy = malloc(SR_GUARD + bytes + SR_GUARD), *at;
	char size[GANTRY_TEXT_MAX], what[128];
	uint64_t first;

	if (!copy)
		FAIL(GANTRY_ERR_NOMEM, "no memory to look for the first wrong byte");
	at = copy + SR_GUARD;
	TRY(gantry_mem_copy(rk->dev, copy, sr_place(rk, m) - SR_GUARD, SR_GUARD + bytes + SR_GUARD));
	snprintf(what, sizeof(what), "a message of %s from rank %d to rank %d",
		 gantry_size_text(bytes, size, sizeof(size)), m->send ? rk->rank : m->peer,
		 m->send ? m->peer : rk->rank);
	first = perf_first_wrong(at, bytes, seq_of(rk, m));
	if (first < bytes)
		snprintf(text, len, "at offset %llu of %s%s", (unsigned long long)first, what,
			 m->send ? ", in the sender's buffer" : "");
	else if (perf_check(copy, SR_GUARD, guard_seq(rk, m, 0)))
		snprintf(text, len, "in front of %s, at rank %d", what, rk->rank);
	else if (perf_check(at + bytes, SR_GUARD, guard_seq(rk, m, 1)))
		snprintf(text, len, "behind %s, at rank %d", what, rk->rank);
out:
	free(copy);
	return r;
}

static gantry_result check_round(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s)
{
	gantry_result r = GANTRY_OK;
	static const size_t skews[] = {0, 1, SR_SKEW_MAX};

	rk->round++;
	for (int i = 0; i < rk->nmsgs; i++) {
		rk->msgs[i].skew = skews[(rk->round + (uint64_t)rk->msgs[i].number) % 3];
		TRY(prepare(rk, &rk->msgs[i], bytes));
	}
	TRY(sr_enqueue(rk, bytes));
	TRY(sr_finish(rk));
	for (int i = 0; i < rk->nmsgs; i++)
		TRY(compare(rk, &rk->msgs[i], bytes));
	TRY(sr_finish(rk));
	s->wrong = __atomic_load_n(rk->wrong_host, __ATOMIC_ACQUIRE);
	for (int i = 0; s->wrong && !s->first_wrong[0] && i < rk->nmsgs; i++)
		TRY(locate(rk, &rk->msgs[i], bytes, s->first_wrong, sizeof(s->first_wrong)));
out:
	for (int i = 0; i < rk->nmsgs; i++)
		rk->msgs[i].skew = 0;
	return r;
}

/* Each message at each of the addresses; large ones, whose filling takes longest, at two of them at least. */
gantry_result sr_check(struct sr_rank *rk, uint64_t bytes, struct sr_sample *s)
{
	gantry_result r = GANTRY_OK;
	uint64_t all = bytes * (uint64_t)rk->opts->inflight;
	int rounds = all <= ROUNDS_ALL_BELOW ? 3 : rk->opts->inflight >= 2 ? 1 : 2;

	sr_phase(rk, "checking", bytes);
	*rk->wrong_host = 0;
	while ((rk->round + 1) % 3) /* every size begins at the even address */
		rk->round++;
	for (int i = 0; i < rounds; i++)
		TRY(check_round(rk, bytes, s));
out:
	return r;
}
