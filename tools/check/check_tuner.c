/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules on a tuner, called as NCCL 2.32 calls it: a context for each communicator, and before each collective
 * getCollInfo with the costs of algorithms and protocols, of which NCCL then takes the cheapest. From v6 on NCCL then asks for
 * the chunk of each channel's share, if the tuner has an answer. An error of any call ends the communicator or the
 * collective. All ranks must get the same answer, or the collective hangs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/tuner_v7.h"
#include "check/check.h"

enum {
	ALGOS = 7,
	ALGOS_V3 = 6, /* of NCCL 2.22, before PAT */
	PROTOS = 3,
	COSTS = ALGOS * PROTOS,
	GUARDS = 32,
	CONTEXTS = 3,
	SIZES = 34,
	STEP = 512 << 10, /* of NCCL's buffers, eight of them 4 MiB */
};

/* NCCL cuts a chunk down to whole grains, and divides by what is left. By protocol. */
static const size_t grains[PROTOS] = {16, 1920, 512};

/* NCCL's cost of an algorithm that it would not take for anything. */
static const float cost_limit = 3600000000.0f;
static const float guard_cost = 12345.5f;

struct ask {
	ncclFunc_t func;
	size_t bytes;
	int ops, registered;
	int lone; /* only one way is open */
};

struct answer {
	float costs[COSTS];
	int algo, proto; /* of v2 */
	int channels;
	size_t chunk; /* from v6 on; 0: the tuner has no say */
};

/* Two nodes of a rank each, and more: NCCL has several communicators at once. */
static const struct {
	size_t ranks, nodes;
} worlds[CONTEXTS] = {{2, 2}, {16, 2}, {1024, 128}};

static ncclResult_t call_init(struct check_side *s, int world, void **ret_ctx)
{
	ncclNvlDomainInfo_v5_t nvlink = {.nNvlDomains = (int)worlds[world].nodes, 1, 8};
	ncclDebugLogger_t log = gantry_loader_logger(s->loader);
	static union {
		ncclTunerConstants_v5_t v5;
		ncclTunerConstants_v7_t v7;
		double all[sizeof(ncclTunerConstants_v7_t) / sizeof(double)];
	} constants[CONTEXTS]; /* as long as the communicator */
	const ncclTuner_v2_t *old = s->table;
	const ncclTuner_v5_t *v5 = s->table; /* and v6 */
	const ncclTuner_v7_t *v7 = s->table;
	const double *at = constants[world].all;
	uint64_t comm = 0x7475 + (uint64_t)world;
	ncclResult_t r;

	for (size_t i = 0; i < sizeof(constants[0]) / sizeof(double); i++)
		constants[world].all[i] = 1.0 + (double)i;
	if (s->version < 5)
		return old->init(worlds[world].ranks, worlds[world].nodes, log, ret_ctx);
	if (s->version < 7)
		r = v5->init(ret_ctx, comm, worlds[world].ranks, worlds[world].nodes, log, &nvlink,
			     &constants[world].v5);
	else
		r = v7->init(ret_ctx, comm, worlds[world].ranks, worlds[world].nodes, log, &nvlink,
			     &constants[world].v7);
	for (size_t i = 0; i < sizeof(constants[0]) / sizeof(double); i++)
		if (!isfinite(at[i]) || at[i] < 0)
			check_fail(s, "init made a constant of NCCL's cost model %g", at[i]);
	return r;
}

static void must(struct check_side *s, ncclResult_t r, const char *call, const char *then)
{
	if (r != ncclSuccess)
		check_fail(s, "%s gave %d, phase: %s; NCCL then %s", call, (int)r, s->me->phase, then);
}

static void *tuner_init(struct check_side *s, int world)
{
	uint64_t since = check_enter(s, CHECK_SERVICE, "init");
	void *ctx = NULL;
	ncclResult_t r = call_init(s, world, &ctx);

	check_leave(s, CHECK_SERVICE, since);
	must(s, r, "init", "gives up the communicator");
	return ctx;
}

static void tuner_end(struct check_side *s, void *ctx)
{
	const ncclTuner_v2_t *t = s->table; /* in the same place in every version */
	const char *call = s->version < 5 ? "destroy" : "finalize";
	uint64_t since = check_enter(s, CHECK_SERVICE, call);
	ncclResult_t r = t->destroy(ctx);

	check_leave(s, CHECK_SERVICE, since);
	must(s, r, call, "does not free the communicator");
}

static int algos(const struct check_side *s)
{
	return s->version == 3 ? ALGOS_V3 : ALGOS;
}

/* What NCCL thinks: some ways are not to be had, with or without collNet and NVLink. */
static void fill_costs(const struct ask *a, float costs[COSTS])
{
	for (int i = 0; i < COSTS; i++) {
		int algo = i / PROTOS, proto = i % PROTOS;
		int possible =
			a->lone ? algo == NCCL_ALGO_RING && proto == NCCL_PROTO_SIMPLE
				: algo <= NCCL_ALGO_RING || (algo == NCCL_ALGO_PAT && proto == NCCL_PROTO_SIMPLE);

		costs[i] = possible ? 10.0f + (float)i + (float)a->bytes / (1000.0f * (float)(1 + proto))
				    : NCCL_ALGO_PROTO_IGNORE;
	}
	if (a->lone)
		costs[NCCL_ALGO_RING * PROTOS + NCCL_PROTO_SIMPLE] = 0; /* as with one rank */
}

static ncclResult_t call_info(struct check_side *s, void *ctx, const struct ask *a, float *costs, struct answer *out)
{
	const ncclTuner_v2_t *v2 = s->table;
	const ncclTuner_v3_t *v3 = s->table;
	const ncclTuner_v5_t *v5 = s->table; /* and v4, v6, v7 */

	if (s->version == 2)
		return v2->getCollInfo(ctx, a->func, a->bytes, 0, 0, a->ops, &out->algo, &out->proto, &out->channels);
	if (s->version == 3)
		return v3->getCollInfo(ctx, a->func, a->bytes, a->ops, (float **)costs, algos(s), PROTOS,
				       &out->channels);
	return v5->getCollInfo(ctx, a->func, a->bytes, a->ops, (float **)costs, algos(s), PROTOS, a->registered,
			       &out->channels);
}

/* The cheapest way, which NCCL takes; -1: nothing is left. */
static int cheapest(const float *costs, int n)
{
	int best = -1;

	for (int i = 0; i < n; i++)
		if (costs[i] >= 0 && costs[i] < (best < 0 ? cost_limit : costs[best]))
			best = i;
	return best;
}

/* As NCCL asks for one channel, which carries all of the call here. */
static void ask_chunk(struct check_side *s, void *ctx, const struct ask *a, struct answer *out)
{
	const ncclTuner_v6_t *t = s->table; /* and v7 */
	int way = cheapest(out->costs, algos(s) * PROTOS), algo = way / PROTOS, proto = way % PROTOS;
	uint64_t since;
	ncclResult_t r;

	if (s->version < 6 || !t->getChunkSize || way < 0)
		return;
	out->chunk = algo == NCCL_ALGO_RING && proto == NCCL_PROTO_SIMPLE ? 4 * STEP : STEP;
	since = check_enter(s, CHECK_PROGRESS, "getChunkSize");
	r = t->getChunkSize(ctx, a->func, a->bytes, algo, proto, 1, &out->chunk);
	check_leave(s, CHECK_PROGRESS, since);
	must(s, r, "getChunkSize", "fails the collective");
	if (out->chunk < grains[proto])
		check_fail(s, "getChunkSize made the chunk %zu bytes for %zu bytes of collective %d: NCCL divides by 0",
			   out->chunk, a->bytes, (int)a->func);
}

static void ask_tuner(struct check_side *s, void *ctx, const struct ask *a, struct answer *out)
{
	float costs[GUARDS + COSTS + GUARDS];
	int n = algos(s) * PROTOS;
	uint64_t since;
	ncclResult_t r;

	for (int i = 0; i < GUARDS + COSTS + GUARDS; i++)
		costs[i] = guard_cost;
	memset(out, 0, sizeof(*out));
	fill_costs(a, out->costs);
	memcpy(costs + GUARDS, out->costs, (size_t)n * sizeof(float));
	out->algo = out->proto = -1;
	check_phase(s, "collective %d of %zu bytes", (int)a->func, a->bytes);
	since = check_enter(s, CHECK_PROGRESS, "getCollInfo");
	r = call_info(s, ctx, a, costs + GUARDS, out);
	check_leave(s, CHECK_PROGRESS, since);
	must(s, r, "getCollInfo", "fails the collective");
	for (int i = 0; i < GUARDS; i++)
		if (memcmp(&costs[GUARDS - 1 - i], &guard_cost, sizeof(float)) != 0 ||
		    memcmp(&costs[GUARDS + n + i], &guard_cost, sizeof(float)) != 0)
			check_fail(s, "getCollInfo wrote outside a table of %d algorithms and %d protocols", algos(s),
				   PROTOS);
	memcpy(out->costs, costs + GUARDS, (size_t)n * sizeof(float));
	ask_chunk(s, ctx, a, out);
}

/* 8 bytes to 32 GiB, and nothing. */
static size_t size_of(int i)
{
	return i == SIZES - 1 ? 0 : (size_t)8 << i;
}

/* The i-th question of all; 0 when there are no more. */
static int question(int i, struct ask *ret_ask)
{
	int size = i % SIZES, func = i / SIZES % (ncclFuncAllReduce + 1), kind = i / SIZES / (ncclFuncAllReduce + 1);

	*ret_ask = (struct ask){.func = (ncclFunc_t)func,
				.bytes = size_of(size),
				.ops = kind == 1 ? 4 : 1,
				.registered = kind == 1,
				.lone = kind == 2};
	return kind < 3;
}

/* What NCCL does with the answer. */
static void judge(struct check_side *s, const struct ask *a, const struct answer *out)
{
	float before[COSTS];

	fill_costs(a, before);
	for (int i = 0; i < algos(s) * PROTOS; i++) {
		float now = out->costs[i];

		if (before[i] < 0 && now >= 0)
			check_fail(s,
				   "getCollInfo made algorithm %d with protocol %d possible, which NCCL cannot do "
				   "(%zu bytes, collective %d)",
				   i / PROTOS, i % PROTOS, a->bytes, (int)a->func);
	}
	if (cheapest(out->costs, algos(s) * PROTOS) < 0)
		check_fail(s, "getCollInfo left no algorithm for %zu bytes of collective %d: NCCL fails the call",
			   a->bytes, (int)a->func);
	if (out->channels < 0)
		check_fail(s, "getCollInfo asks for %d channels for %zu bytes", out->channels, a->bytes);
}

static void rule_table(struct check_side *s)
{
	static const char *const entries[] = {"name", "init", "getCollInfo", "destroy"};
	const void *const *t = s->table;
	void *ctx;

	if (!t[1])
		check_fail(s, "init is NULL, and NCCL calls it without looking");
	ctx = tuner_init(s, 0); /* which may fill the table */
	for (int i = 2; i < 4; i++)
		if (!t[i])
			check_fail(s, "%s is NULL, and NCCL calls it without looking",
				   i == 3 && s->version >= 5 ? "finalize" : entries[i]);
	tuner_end(s, ctx);
	check_note(s, "%s is named \"%s\"", s->symbol, t[0] ? (const char *)t[0] : "");
}

static void rule_costs(struct check_side *s)
{
	void *ctx = tuner_init(s, 0);
	struct answer out;
	struct ask a;
	int n = 0;

	for (; question(n, &a); n++) {
		ask_tuner(s, ctx, &a, &out);
		judge(s, &a, &out);
	}
	tuner_end(s, ctx);
	check_note(s, "%d questions: no impossible algorithm, always one left, channels from 0 on", n);
}

static int same_answer(const struct check_side *s, const struct answer *a, const struct answer *b)
{
	return memcmp(a->costs, b->costs, (size_t)(algos(s) * PROTOS) * sizeof(float)) == 0 && a->algo == b->algo &&
	       a->proto == b->proto && a->channels == b->channels && a->chunk == b->chunk;
}

/* Two processes are two ranks: the same calls, the same answers. */
static void rule_agree(struct check_side *s)
{
	void *ctx = tuner_init(s, 0);
	struct answer mine, theirs;
	struct ask a;
	int n = 0;

	check_sleep_ms(s->role * 30u); /* ranks are not there at the same time */
	for (; question(n, &a); n++) {
		ask_tuner(s, ctx, &a, &mine);
		check_tell(s, &mine, sizeof(mine));
		check_hear(s, &theirs, sizeof(theirs));
		if (!same_answer(s, &mine, &theirs))
			check_fail(s,
				   "two ranks get different answers for %zu bytes of collective %d: the collective "
				   "hangs (channels %d and %d, chunks of %zu and %zu bytes)",
				   a.bytes, (int)a.func, mine.channels, theirs.channels, mine.chunk, theirs.chunk);
	}
	tuner_end(s, ctx);
	check_note(s, "two ranks get the same %d answers", n);
}

/*
 * Communicators come and go, and not all ranks have the same ones beside: what a context says depends on its own
 * communicator only.
 */
static void rule_contexts(struct check_side *s)
{
	struct answer *alone, now;
	void *ctx[CONTEXTS];
	struct ask a;
	int n = 0;

	while (question(n, &a))
		n++;
	alone = check_alloc(s, (size_t)n * CONTEXTS, sizeof(*alone));
	for (int c = 0; c < CONTEXTS; c++) {
		ctx[c] = tuner_init(s, c);
		for (int i = 0; question(i, &a); i++)
			ask_tuner(s, ctx[c], &a, &alone[i * CONTEXTS + c]);
		tuner_end(s, ctx[c]);
	}
	for (int c = 0; c < CONTEXTS; c++)
		ctx[c] = tuner_init(s, c);
	for (int i = 0; question(i, &a); i++) {
		if (i == n / 2)
			tuner_end(s, ctx[0]); /* the others go on */
		for (int c = i < n / 2 ? 0 : 1; c < CONTEXTS; c++) {
			ask_tuner(s, ctx[c], &a, &now);
			if (!same_answer(s, &now, &alone[i * CONTEXTS + c]))
				check_fail(s,
					   "the answer for %zu bytes of collective %d among %zu ranks changes with "
					   "other communicators (channels %d, %d alone): ranks that have others "
					   "choose differently",
					   a.bytes, (int)a.func, worlds[c].ranks, now.channels,
					   alone[i * CONTEXTS + c].channels);
		}
	}
	for (int c = 1; c < CONTEXTS; c++)
		tuner_end(s, ctx[c]);
	free(alone);
	check_note(s, "%d communicators at once, each answered as if it were alone", CONTEXTS);
}

const struct check_rule check_rules_tuner[] = {
	{"tuner-table", "the table has what NCCL calls, init succeeds", rule_table, CHECK_ALONE, 0},
	{"tuner-costs", "getCollInfo leaves a possible algorithm, and stays within its table; chunks are not empty",
	 rule_costs, CHECK_ALONE, 0},
	{"tuner-agree", "ranks get the same answers", rule_agree, 0, 0},
	{"tuner-contexts", "an answer depends on its own communicator only", rule_contexts, CHECK_ALONE, 0},
	{0},
};
