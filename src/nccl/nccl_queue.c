/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues in the format of NCCL's device code (abi/nccl_device_api.h), served by the thread of comm/gin.c.
 *
 * Where things are. Kernels add to place indices in memory of the device, as additions to host memory are slow there. All else is mapped host
 * memory: requests, consumer indices, counters, and signals, to which the CPU adds behind the data without a call of the driver.
 *
 * RELEASE. NCCL's device code of these versions looks at no word that says that all is over. Once the communicator has failed, the
 * thread ends its waits with what it waits for, again and again, as a kernel may come to the next wait or reset a signal:
 *
 *   room in a queue, flush   requests are taken as ever, and count as done at once
 *   signals, counters        are moved ahead of what any kernel waits for. Kernels compare with what is expected in a number of bits that they
 *                            choose, and "at least" is half of that range. So a word moves by a quarter of it, in 8, 16, 32 and 64 bits at
 *                            the same time: that is enough in every width but 7, 15, 31 and 63, which NCCL's own code does not use
 *
 * What a kernel computes from then on is garbage; the communicator has reported its error before.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "abi/nccl_device_api.h"
#include "base/log.h"
#include "nccl/nccl_device.h"

enum { QUEUE_SIZE = 128, INLINE_MEMORY = GIN_SIGNAL_MEMORY + 1, CONTEXT_APART = 64 };
#define AHEAD (1ull << 62 | 1ull << 30 | 1ull << 14 | 1ull << 6)

struct nccl_queues {
	struct gantry_gin gin;
	ncclGinProxyGfd_t *requests; /* [context][rank][QUEUE_SIZE] */
	uint32_t *cis;		     /* [context][rank] */
	uint32_t *next;		     /* owned, the same: the request that is read next */
	uint64_t *values; /* owned: of requests that have one in their words; registered, by place in the queue */
	char *device;	  /* owned, the device's: a struct of each context, then place indices */
	uint32_t used_signals, used_counters; /* seq: of a context, from the first one; by the caller's thread */
	uint64_t *moved;		      /* owned: what signals, and behind them counters, were moved to, */
	bool released;			      /* once they were. Both are the release's alone */
};

static struct nccl_queues *queues_of(const struct gantry_gin *k)
{
	return (struct nccl_queues *)(uintptr_t)k;
}

/* ---- memory ---- */

static gantry_result choose_sizes(struct gantry_gin *k, const void *config)
{
	(void)config;
	k->view.contexts = NCCL_DEVICE_CONTEXTS;
	k->view.depth = QUEUE_SIZE;
	k->view.signals = k->view.counters = NCCL_DEVICE_CONTEXTS * NCCL_DEVICE_WORDS;
	return GANTRY_OK;
}

/* A struct for each context, which kernels read, and the indices that they add to. */
static gantry_result make_device_half(struct nccl_queues *q, char *block_dev, const char *block)
{
	struct gantry_device *d = q->gin.comm->device;
	const struct gantry_gin_view *v = &q->gin.view;
	const size_t n = (size_t)v->contexts * v->ranks;
	char *places;
	void *p;

	TRY_NOW(d->ops->alloc(d, (size_t)v->contexts * CONTEXT_APART + n * sizeof(uint32_t), &p));
	q->device = p;
	places = q->device + (size_t)v->contexts * CONTEXT_APART;
	for (uint32_t c = 0; c < v->contexts; c++) {
		const size_t first = (size_t)c * v->ranks;
		const uint64_t *counters = q->gin.counter + (size_t)c * NCCL_DEVICE_WORDS,
			       *signals = q->gin.signal + (size_t)c * NCCL_DEVICE_WORDS;
		const ncclGinProxyGpuCtx_t own = {
			.nranks = (int)v->ranks,
			.queueSize = QUEUE_SIZE,
			.queues = (void *)(block_dev + ((const char *)&q->requests[first * QUEUE_SIZE] - block)),
			.pis = (void *)(places + first * sizeof(uint32_t)),
			.cis = (void *)(block_dev + ((const char *)&q->cis[first] - block)),
			.counters = (void *)(block_dev + ((const char *)counters - block)),
			.signals = (void *)(block_dev + ((const char *)signals - block))};

		TRY_NOW(d->ops->copy(d, q->device + (size_t)c * CONTEXT_APART, &own, sizeof(own)));
	}
	return GANTRY_OK;
}

static gantry_result make_memory(struct gantry_gin *k)
{
	struct nccl_queues *q = queues_of(k);
	struct gantry_device *d = k->comm->device;
	const size_t n = (size_t)k->view.contexts * k->view.ranks, words = (size_t)k->view.contexts * NCCL_DEVICE_WORDS;
	const size_t requests = n * QUEUE_SIZE * sizeof(*q->requests),
		     indices = (n * sizeof(*q->cis) + CONTEXT_APART - 1) / CONTEXT_APART * CONTEXT_APART;
	void *host = NULL, *dev = NULL;

	q->next = calloc(n, sizeof(*q->next));
	q->values = calloc(n * QUEUE_SIZE, sizeof(*q->values));
	q->moved = calloc(2 * words, sizeof(*q->moved));
	if (!q->next || !q->values || !q->moved)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the queues of %u ranks", k->view.ranks);
	TRY_NOW(d->ops->alloc_mapped(d, requests + indices + 2 * words * sizeof(uint64_t), &host, &dev));
	k->block = host;
	q->requests = host;
	q->cis = (uint32_t *)(void *)((char *)host + requests);
	k->signal = (uint64_t *)(void *)((char *)host + requests + indices);
	k->counter = k->signal + words;
	return make_device_half(q, dev, host);
}

static gantry_result add_values(struct gantry_gin *k)
{
	const size_t n = (size_t)k->view.contexts * k->view.ranks * QUEUE_SIZE;
	uint32_t number;

	TRY_NOW(comm_gin_add(k, queues_of(k)->values, n * sizeof(uint64_t), &number));
	ASSERT(number == INLINE_MEMORY);
	return GANTRY_OK;
}

static void free_memory(struct gantry_gin *k, bool kernels)
{
	struct nccl_queues *q = queues_of(k);

	free(q->next);
	free(q->values);
	free(q->moved);
	if (!kernels)
		k->comm->device->ops->free(k->comm->device, q->device);
}

/* ---- requests ---- */

static uint64_t take_bits(uint64_t word, unsigned from, unsigned count)
{
	return word >> from & ((1ull << count) - 1);
}

/* A whole request is taken out of its place. */
static bool take_words(struct nccl_queues *q, uint64_t at, uint64_t words[NCCL_DEVICE_REQUEST_WORDS])
{
	uint64_t *there = q->requests[at * QUEUE_SIZE + q->next[at] % QUEUE_SIZE].words;

	for (int i = 0; i < NCCL_DEVICE_REQUEST_WORDS; i++) {
		words[i] = load_acquire(&there[i]);
		if (!(words[i] & 1))
			return false;
	}
	for (int i = 0; i < NCCL_DEVICE_REQUEST_WORDS; i++)
		store_relaxed(&there[i], 0);
	q->next[at]++;
	return true;
}

static uint64_t value_of(const uint64_t *words, uint64_t bytes)
{
	uint64_t value = take_bits(words[1], 8, 32);

	if (bytes > 4)
		value |= take_bits(words[1], 40, 16) << 32;
	if (bytes > 6)
		value |= take_bits(words[2], 8, 16) << 48;
	return value;
}

static gantry_result check_request(const struct gantry_gin *k, uint64_t at, const uint64_t *words)
{
	const uint64_t what = take_bits(words[0], 1, 6), bytes = take_bits(words[0], 7, 57),
		       from = take_bits(words[2], 1, 63), target = take_bits(words[4], 1, 63);
	const unsigned context = (unsigned)(at / k->view.ranks), peer = (unsigned)(at % k->view.ranks);

	if (!(what & NCCL_DEVICE_PUT) || what & 0x20 || (what & 0x18) == 0x18)
		FAIL_NOW(GANTRY_ERR_USAGE,
			 "a kernel wrote an unknown request (%#llx) to rank %u in context %u; kernels compiled with "
			 "headers of NCCL 2.28.7 to 2.29.3 work",
			 (unsigned long long)what, peer, context);
	if (what & NCCL_DEVICE_VALUE && bytes > sizeof(uint64_t))
		FAIL_NOW(GANTRY_ERR_USAGE, "a kernel put a value of %llu bytes to rank %u; at most 8",
			 (unsigned long long)bytes, peer);
	if (bytes && (!target || target > UINT32_MAX || (!(what & NCCL_DEVICE_VALUE) && (!from || from > UINT32_MAX))))
		FAIL_NOW(GANTRY_ERR_USAGE,
			 "a kernel put %llu bytes to rank %u between windows that the network does not know",
			 (unsigned long long)bytes, peer);
	return GANTRY_OK;
}

static gantry_result read_request(struct gantry_gin *k, uint64_t at, uint64_t number, struct gin_put *ret_put)
{
	struct nccl_queues *q = queues_of(k);
	const uint32_t words_before = (uint32_t)(at / k->view.ranks) * NCCL_DEVICE_WORDS;
	uint64_t words[NCCL_DEVICE_REQUEST_WORDS], what, bytes;

	if (!take_words(q, at, words))
		return GANTRY_AGAIN;
	TRY_NOW(check_request(k, at, words));
	what = take_bits(words[0], 1, 6);
	bytes = take_bits(words[0], 7, 57);
	*ret_put = (struct gin_put){.bytes = bytes, .signal = GANTRY_GIN_NONE, .counter = GANTRY_GIN_NONE};
	if (bytes) {
		ret_put->from = (struct rma_place){(uint32_t)take_bits(words[2], 1, 63), take_bits(words[1], 1, 63)};
		ret_put->at = (struct rma_place){(uint32_t)take_bits(words[4], 1, 63), take_bits(words[3], 1, 63)};
	}
	if (bytes && what & NCCL_DEVICE_VALUE) {
		const uint64_t place = at * QUEUE_SIZE + number % QUEUE_SIZE;

		q->values[place] = value_of(words, bytes);
		ret_put->from = (struct rma_place){INLINE_MEMORY, place * sizeof(uint64_t)};
	}
	if (what & NCCL_DEVICE_COUNTER)
		ret_put->counter = words_before + (uint32_t)take_bits(words[5], 8, 16);
	if (what & (NCCL_DEVICE_SIGNAL_INC | NCCL_DEVICE_SIGNAL_ADD)) {
		ret_put->signal = words_before + (uint32_t)take_bits(words[5], 24, 16);
		ret_put->add = what & NCCL_DEVICE_SIGNAL_INC
				       ? 1
				       : take_bits(words[5], 40, 16) | take_bits(words[6], 8, 16) << 16 |
						 take_bits(words[6], 24, 32) << 32;
	}
	return GANTRY_OK;
}

static void tell_done(struct gantry_gin *k, uint64_t at, uint64_t over)
{
	store_release(&queues_of(k)->cis[at], (uint32_t)over);
}

/* ---- the end of waits ---- */

/* Nothing else writes it any more but kernels that reset it. */
static void move_ahead(const struct nccl_queues *q, uint64_t *word, uint64_t *moved)
{
	uint64_t value = load_relaxed(word);

	if ((!q->released || value != *moved) && cas_acq_rel(word, &value, value + AHEAD))
		*moved = value + AHEAD;
}

static bool release_waits(struct gantry_gin *k)
{
	struct nccl_queues *q = queues_of(k);
	const uint32_t signals = load_seq(&q->used_signals), counters = load_seq(&q->used_counters);
	uint64_t words[NCCL_DEVICE_REQUEST_WORDS], *moved_counters = q->moved + k->view.signals;
	bool moved = false;

	for (uint64_t at = 0; at < (uint64_t)k->view.contexts * k->view.ranks; at++) {
		while (take_words(q, at, words))
			moved = true;
		tell_done(k, at, q->next[at]);
	}
	for (uint32_t c = 0; c < k->view.contexts; c++) {
		const size_t first = (size_t)c * NCCL_DEVICE_WORDS;

		for (size_t i = first; i < first + signals; i++)
			move_ahead(q, &k->signal[i], &q->moved[i]);
		for (size_t i = first; i < first + counters; i++)
			move_ahead(q, &k->counter[i], &moved_counters[i]);
	}
	q->released = true;
	return moved;
}

static const struct gin_format nccl_format = {.opens = "ncclDevCommCreate",
					      .closes = "ncclDevCommDestroy",
					      .size = sizeof(struct nccl_queues),
					      .choose = choose_sizes,
					      .make = make_memory,
					      .add_own = add_values,
					      .free = free_memory,
					      .read = read_request,
					      .done = tell_done,
					      .release = release_waits};

/* ---- calls ---- */

gantry_result nccl_queues_open(struct gantry_comm *comm, struct gantry_gin **ret_gin)
{
	return comm_gin_open(comm, &nccl_format, NULL, ret_gin);
}

void *nccl_queues_handle(const struct gantry_gin *k, uint32_t context)
{
	return queues_of(k)->device + (size_t)context * CONTEXT_APART;
}

static void clear_words(uint64_t *words, uint32_t contexts, uint32_t first, uint32_t count)
{
	for (uint32_t c = 0; c < contexts; c++)
		for (uint32_t i = first; i < first + count; i++)
			store_seq(&words[(size_t)c * NCCL_DEVICE_WORDS + i], 0);
}

void nccl_queues_clear(struct gantry_gin *k, const struct nccl_words *w)
{
	struct nccl_queues *q = queues_of(k);

	clear_words(k->signal, k->view.contexts, w->signal, w->signals);
	clear_words(k->counter, k->view.contexts, w->counter, w->counters);
	if (w->signal + w->signals > q->used_signals)
		store_seq(&q->used_signals, w->signal + w->signals);
	if (w->counter + w->counters > q->used_counters)
		store_seq(&q->used_counters, w->counter + w->counters);
}
