/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner: channels and protocol of each call, for communicators with one rank per node. NCCL takes as many channels as there are
 * as soon as a call is large enough to occupy their threads; over TCP a further channel is worth its wake-ups and system calls
 * only from a part of some size on, the part being what a rank sends at one step of a ring. Measured: docs/design/0026.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include <stdlib.h>

#include "abi/tuner_v7.h"
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

/*
 * What the lanes like (net/tcp/bulk_tx.c): messages up to 1 MiB, which is what NCCL's buffers hold, in whole units of a piece;
 * 256 KiB is the least that gives each of four lanes work.
 */
enum { PIECE_UNIT = 64 << 10, PIPE_CHUNK = 256 << 10, PIPE_CHUNKS_PER_HOP = 4 };

static size_t div_up(size_t n, size_t by)
{
	return n / by + (n % by != 0);
}

/* As many chunks as before, but alike: a share a little above a whole number of chunks would end in a message of a few KiB. */
static size_t even_chunk(size_t share, size_t chunk, size_t unit)
{
	size_t chunks = div_up(share, chunk), even;

	if (chunks < 2)
		return chunk;
	even = div_up(div_up(share, chunks), unit) * unit;
	return even < chunk ? even : chunk;
}

/* A chain or a tree works at all its hops only while several chunks are on their way. */
static size_t pipe_chunk(size_t share, size_t chunk, size_t hops)
{
	while (chunk >= 2 * PIPE_CHUNK && share / chunk < PIPE_CHUNKS_PER_HOP * hops)
		chunk /= 2;
	return even_chunk(share, chunk, PIECE_UNIT);
}

static size_t tree_hops(size_t ranks)
{
	size_t hops = 0;

	while (ranks >>= 1)
		hops++;
	return hops;
}

/* Never more than NCCL's, and a function of what all ranks know. */
static size_t chunk_for(const struct tuner *t, ncclFunc_t func, size_t share, int algo, size_t chunk)
{
	if (algo == NCCL_ALGO_TREE && func == ncclFuncAllReduce)
		return pipe_chunk(share, chunk, tree_hops(t->ranks));
	if (algo != NCCL_ALGO_RING)
		return chunk;
	if (func == ncclFuncBroadcast || func == ncclFuncReduce)
		return pipe_chunk(share, chunk, t->ranks - 1);
	/* Each step of these rings sends a chunk as two messages. */
	return even_chunk(div_up(share, t->ranks), chunk, 2 * PIECE_UNIT);
}

static ncclResult_t chunk_v6(void *context, ncclFunc_t func, size_t bytes, int algo, int proto, int channels,
			     size_t *chunk)
{
	const struct tuner *t = context;

	if (t->channels && !t->unpack && proto == NCCL_PROTO_SIMPLE && channels > 0 && *chunk >= PIECE_UNIT &&
	    func >= ncclFuncBroadcast && func <= ncclFuncAllReduce)
		*chunk = chunk_for(t, func, bytes / (size_t)channels, algo, *chunk);
	return ncclSuccess;
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

static ncclResult_t init_v7(void **ret_context, uint64_t comm, size_t ranks, size_t nodes, ncclDebugLogger_t log,
			    ncclNvlDomainInfo_v7_t *nvlink, ncclTunerConstants_v7_t *constants)
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
EXPORT const ncclTuner_v6_t ncclTunerPlugin_v6 = {
	.name = "gantry", .init = init_v5, .getCollInfo = info_v4, .finalize = tuner_end, .getChunkSize = chunk_v6};
EXPORT const ncclTuner_v7_t ncclTunerPlugin_v7 = {
	.name = "gantry", .init = init_v7, .getCollInfo = info_v4, .finalize = tuner_end, .getChunkSize = chunk_v6};
