/* SPDX-License-Identifier: Apache-2.0 */
/* A small tuner that is right: fewer channels for small calls, no LL for large ones. BROKEN(name): see simple_net.h. */
#ifndef GANTRY_TESTS_SIMPLE_TUNER_H
#define GANTRY_TESTS_SIMPLE_TUNER_H

#include <stdlib.h>
#include <unistd.h>

#include "abi/tuner_v7.h"

struct tuner {
	size_t ranks;
};
static struct tuner *newest_tuner; /* only variants look at it */

static ncclResult_t tuner_init(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **ctx)
{
	struct tuner *t = malloc(sizeof(*t));

	(void)nodes, (void)log;
	if (!t || BROKEN(tuner_refuses))
		return ncclSystemError;
	t->ranks = ranks;
	newest_tuner = t;
	*ctx = t;
	return ncclSuccess;
}

static ncclResult_t tuner_init_v5(void **ctx, uint64_t comm, size_t ranks, size_t nodes, ncclDebugLogger_t log,
				  ncclNvlDomainInfo_v5_t *nvlink, ncclTunerConstants_v5_t *constants)
{
	(void)comm, (void)nvlink;
	constants->llMaxBws[0][0] = 100; /* it may */
	if (BROKEN(tuner_constant))
		constants->baseLatencies[1][2] = -1;
	return tuner_init(ranks, nodes, log, ctx);
}

static int tuner_channels(const struct tuner *t, size_t bytes)
{
	int n = bytes / t->ranks < 65536 ? 1 : bytes / t->ranks < (1 << 20) ? 2 : 0;

	if (BROKEN(tuner_latest))
		return newest_tuner->ranks > 8 ? 1 : n;
	if (BROKEN(tuner_pid))
		return 1 + (int)(getpid() & 0xff);
	if (BROKEN(tuner_random)) {
		static unsigned seed;

		if (!seed)
			seed = (unsigned)(uintptr_t)&n ^ (unsigned)getpid();
		return 1 + (int)((seed = seed * 1103515245 + 12345) >> 16 & 3);
	}
	return BROKEN(tuner_negative) && bytes > (1 << 30) ? -1 : n;
}

static ncclResult_t tuner_info(void *ctx, size_t bytes, float *costs, int nalgo, int nproto, int *channels)
{
	if (BROKEN(tuner_counts)) { /* what it says depends on what else it was asked */
		static int asked;

		*channels = ++asked > 600 ? 2 : 1;
		return ncclSuccess;
	}
	*channels = tuner_channels(ctx, bytes);
	for (int a = 0; costs && a < (BROKEN(tuner_seven) ? 7 : nalgo) && bytes > (1 << 20); a++)
		if (a != NCCL_ALGO_RING || BROKEN(tuner_none))
			costs[a * nproto + NCCL_PROTO_LL] = NCCL_ALGO_PROTO_IGNORE;
	if (costs && BROKEN(tuner_none) && bytes == 1 << 20)
		for (int i = 0; i < nalgo * nproto; i++)
			costs[i] = NCCL_ALGO_PROTO_IGNORE;
	if (costs && BROKEN(tuner_seven))
		costs[6 * nproto + NCCL_PROTO_LL] = 1e9f;
	if (costs && BROKEN(tuner_nvls))
		costs[4 * nproto + NCCL_PROTO_SIMPLE] = 0;
	if (BROKEN(tuner_strict) && bytes > (1ul << 34))
		return ncclInvalidArgument;
	return ncclSuccess;
}

static ncclResult_t tuner_info_v2(void *ctx, ncclFunc_t func, size_t bytes, int collnet, int nvls, int ops, int *algo,
				  int *proto, int *channels)
{
	(void)func, (void)collnet, (void)nvls, (void)ops;
	*algo = NCCL_ALGO_RING;
	*proto = NCCL_PROTO_SIMPLE;
	return tuner_info(ctx, bytes, NULL, 0, 0, channels);
}

static ncclResult_t tuner_info_v3(void *ctx, ncclFunc_t func, size_t bytes, int ops, float **costs, int nalgo,
				  int nproto, int *channels)
{
	(void)func, (void)ops;
	return tuner_info(ctx, bytes, (float *)costs, nalgo, nproto, channels);
}

static ncclResult_t tuner_info_v5(void *ctx, ncclFunc_t func, size_t bytes, int ops, float **costs, int nalgo,
				  int nproto, int registered, int *channels)
{
	(void)func, (void)ops, (void)registered;
	return tuner_info(ctx, bytes, (float *)costs, nalgo, nproto, channels);
}

static ncclResult_t tuner_init_v7(void **ctx, uint64_t comm, size_t ranks, size_t nodes, ncclDebugLogger_t log,
				  ncclNvlDomainInfo_v7_t *nvlink, ncclTunerConstants_v7_t *constants)
{
	(void)comm, (void)nvlink;
	constants->perChMaxNVLSTreeBws[4][2] = BROKEN(tuner_constant) ? -1 : 100; /* the last of all */
	return tuner_init(ranks, nodes, log, ctx);
}

/* Small calls in small chunks. */
static ncclResult_t tuner_chunk(void *ctx, ncclFunc_t func, size_t bytes, int algo, int proto, int channels,
				size_t *chunk)
{
	const struct tuner *t = ctx;

	(void)func, (void)algo, (void)proto, (void)channels;
	if (bytes < (1 << 20))
		*chunk /= 2;
	if (BROKEN(tuner_chunk_empty) && bytes < t->ranks)
		*chunk = bytes;
	if (BROKEN(tuner_chunk_pid))
		*chunk += 512 * (size_t)(getpid() & 0xff);
	if (BROKEN(tuner_chunk_latest))
		*chunk = newest_tuner->ranks > 8 ? *chunk / 2 : *chunk;
	return BROKEN(tuner_chunk_strict) && bytes > (1ul << 34) ? ncclInvalidArgument : ncclSuccess;
}

static ncclResult_t tuner_end(void *ctx)
{
	if (BROKEN(tuner_one_end) && ctx != newest_tuner)
		return ncclInvalidArgument;
	free(ctx);
	return ncclSuccess;
}

EXPORT ncclTuner_v2_t ncclTunerPlugin_v2 = {"simple", tuner_init, tuner_info_v2, tuner_end};
EXPORT ncclTuner_v3_t ncclTunerPlugin_v3 = {"simple", tuner_init, tuner_info_v3, tuner_end};
EXPORT ncclTuner_v5_t ncclTunerPlugin_v5 = {"simple", tuner_init_v5, tuner_info_v5, tuner_end};
EXPORT ncclTuner_v6_t ncclTunerPlugin_v6 = {"simple", tuner_init_v5, tuner_info_v5, tuner_end, NULL};
EXPORT ncclTuner_v7_t ncclTunerPlugin_v7 = {"simple", tuner_init_v7, tuner_info_v5, tuner_end, tuner_chunk};

#endif
