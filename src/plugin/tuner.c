/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner: channels and protocol of each call, for communicators with one rank per node. NCCL takes as many channels as there are
 * as soon as a call is large enough to occupy their threads; over TCP a further channel is worth its wake-ups and system calls
 * only from a part of some size on, the part being what a rank sends at one step of a ring. Measured: docs/design/0026.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdlib.h>

#include "abi/tuner_v5.h"
#include "base/log.h"
#include "plugin/tune.h"

#define EXPORT __attribute__((visibility("default")))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

struct tuner {
	size_t ranks;
	bool channels, protocol; /* what it decides */
	bool unpack;
};

enum { ALL = 0 }; /* NCCL's own choice: 8, or more where there are many NICs */

/* From how large a part on so many channels are fastest, between two ranks and among more. */
static const struct {
	size_t part[2];
	int channels;
} steps[] = {{{64 * MIB, 64 * MIB}, ALL}, {{2 * MIB, 8 * MIB}, 4}, {{128 * KIB, 512 * KIB}, 2}, {{0, 0}, 1}};

/* From here on LL, which doubles the bytes, loses against Simple, whatever NCCL thinks of the network. */
enum { SIMPLE_PART = 32 << 10 };

/* NCCL's unpacking occupies a channel longer than the network does, so where several channels pay, all of them do. */
static int channels_for(const struct tuner *t, size_t part)
{
	size_t i = 0;

	while (part < steps[i].part[t->ranks > 2])
		i++;
	return t->unpack && steps[i].channels >= 4 ? ALL : steps[i].channels;
}

static bool is_possible(float cost)
{
	return cost >= 0;
}

/* Takes all of an algorithm or of a protocol (the other is -1) out of the table, unless nothing would be left. */
static void take_out(float *table, int nalgo, int nproto, int algo, int proto)
{
	bool left = false;

	for (int i = 0; i < nalgo * nproto; i++)
		left |= is_possible(table[i]) && i / nproto != algo && i % nproto != proto;
	for (int i = 0; left && i < nalgo * nproto; i++)
		if (i / nproto == algo || i % nproto == proto)
			table[i] = NCCL_ALGO_PROTO_IGNORE;
}

static void choose(const struct tuner *t, ncclFunc_t func, size_t bytes, float *table, int nalgo, int nproto,
		   int *channels)
{
	size_t part = bytes / t->ranks;

	if (func < ncclFuncBroadcast || func > ncclFuncAllReduce)
		return;
	if (table && t->unpack && nalgo > NCCL_ALGO_PAT)
		take_out(table, nalgo, nproto, NCCL_ALGO_PAT, -1);
	if (table && t->protocol && part >= SIMPLE_PART && nproto > NCCL_PROTO_SIMPLE)
		take_out(table, nalgo, nproto, -1, NCCL_PROTO_LL);
	if (t->channels)
		*channels = channels_for(t, part);
}

static ncclResult_t tuner_init(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **ret_context)
{
	struct tuner *t = calloc(1, sizeof(*t));
	bool alone = nodes > 1 && ranks == nodes;

	(void)log; /* the network's init has taken it */
	if (!t) {
		LOG_ERROR(PLUGIN, "no memory for a tuner");
		return ncclSystemError;
	}
	t->ranks = ranks ? ranks : 1;
	t->channels = alone && plugin_tune_owns_channels();
	t->protocol = t->channels && !getenv("NCCL_PROTO") && !getenv("NCCL_ALGO");
	t->unpack = plugin_tune_unpacks();
	*ret_context = t;
	return ncclSuccess;
}

static ncclResult_t tuner_end(void *context)
{
	free(context);
	return ncclSuccess;
}

/* v2 names algorithm and protocol or neither: it names none. */
static ncclResult_t info_v2(void *context, ncclFunc_t func, size_t bytes, int collnet, int nvls, int ops, int *algo,
			    int *proto, int *channels)
{
	(void)collnet, (void)nvls, (void)ops, (void)algo, (void)proto;
	choose(context, func, bytes, NULL, 0, 0, channels);
	return ncclSuccess;
}

static ncclResult_t info_v3(void *context, ncclFunc_t func, size_t bytes, int ops, float **table, int nalgo, int nproto,
			    int *channels)
{
	(void)ops;
	choose(context, func, bytes, (float *)table, nalgo, nproto, channels);
	return ncclSuccess;
}

static ncclResult_t info_v4(void *context, ncclFunc_t func, size_t bytes, int ops, float **table, int nalgo, int nproto,
			    int registered, int *channels)
{
	(void)registered;
	return info_v3(context, func, bytes, ops, table, nalgo, nproto, channels);
}

static ncclResult_t init_v5(void **ret_context, uint64_t comm, size_t ranks, size_t nodes, ncclDebugLogger_t log,
			    ncclNvlDomainInfo_v5_t *nvlink, ncclTunerConstants_v5_t *constants)
{
	(void)comm, (void)nvlink, (void)constants;
	return tuner_init(ranks, nodes, log, ret_context);
}

EXPORT const ncclTuner_v2_t ncclTunerPlugin_v2 = {
	.name = "gantry", .init = tuner_init, .getCollInfo = info_v2, .destroy = tuner_end};
EXPORT const ncclTuner_v3_t ncclTunerPlugin_v3 = {
	.name = "gantry", .init = tuner_init, .getCollInfo = info_v3, .destroy = tuner_end};
EXPORT const ncclTuner_v4_t ncclTunerPlugin_v4 = {
	.name = "gantry", .init = tuner_init, .getCollInfo = info_v4, .destroy = tuner_end};
EXPORT const ncclTuner_v5_t ncclTunerPlugin_v5 = {
	.name = "gantry", .init = init_v5, .getCollInfo = info_v4, .finalize = tuner_end};
