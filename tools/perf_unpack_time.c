/* `perf unpack`: the ways that are compared, and how long they take. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>

#include "base/log.h"
#include "device/unpack_launch.h"
#include "gantry/types.h"
#include "perf_unpack.h"
#include "perf_util.h"

enum { TIMES = 3 };

struct gantry_launch unpack_shape_of(const struct unpack_bench *b, enum gantry_kernel kernel, uint32_t blocks)
{
	struct gantry_launch l = {.kernel = kernel, .blocks = blocks == UNPACK_ALL ? b->dev->max_blocks : blocks};

	if (kernel == GANTRY_KERNEL_UNPACK && blocks == UNPACK_ALL)
		gantry_unpack_launch_shape(b->dev, GANTRY_UNPACK_WHOLE, b->l.n, b->l.bytes, &l);
	if (!l.lanes)
		l.lanes = b->dev->default_lanes;
	return l;
}

gantry_result unpack_launch(struct unpack_bench *b, uint32_t blocks, enum gantry_kernel kernel, const void *args,
			    size_t size)
{
	struct gantry_launch l = unpack_shape_of(b, kernel, blocks);

	l.args = args;
	l.args_size = size;
	return b->dev->ops->launch(b->dev, b->stream, &l);
}

gantry_result unpack_enqueue(struct unpack_bench *b, enum unpack_way way, uint32_t blocks)
{
	gantry_result r = GANTRY_OK;
	char *dst = b->dst + UNPACK_GUARD, *tmp = b->tmp + UNPACK_GUARD;
	struct gantry_unpack_args ours = {
		.descs = b->descs, .n = b->l.n, .bounce = b->pool, .dst = way == UNPACK_TWO_STEP ? tmp : dst};
	struct gantry_unpack_seed_args seed = {
		.descs = b->descs, .n = b->l.n, .bounce = b->pool, .dst = dst, .bytes = b->l.bytes};
	struct gantry_unpack_reduce_args fused = {.descs = b->descs,
						  .n = b->l.n,
						  .bounce = b->pool,
						  .input = dst,
						  .output = dst,
						  .type = GANTRY_TYPE_FLOAT32,
						  .op = GANTRY_OP_SUM};
	struct gantry_reduce_args sum = {.src = {dst, tmp},
					 .dst = {dst},
					 .nsrc = 2,
					 .ndst = 1,
					 .count = b->l.bytes / sizeof(float),
					 .type = GANTRY_TYPE_FLOAT32,
					 .op = GANTRY_OP_SUM};

	switch (way) {
	case UNPACK_COPY:
		r = b->dev->ops->copy_async(b->dev, b->stream, tmp, dst, b->l.bytes);
		break;
	case UNPACK_SEED:
		r = unpack_launch(b, blocks, GANTRY_KERNEL_UNPACK_SEED, &seed, sizeof(seed));
		break;
	case UNPACK_FUSED:
		r = unpack_launch(b, blocks, GANTRY_KERNEL_UNPACK_REDUCE, &fused, sizeof(fused));
		break;
	case UNPACK_TWO_STEP:
		TRY(unpack_launch(b, blocks, GANTRY_KERNEL_UNPACK, &ours, sizeof(ours)));
		TRY(unpack_launch(b, blocks, GANTRY_KERNEL_REDUCE, &sum, sizeof(sum)));
		break;
	default:
		r = unpack_launch(b, blocks, GANTRY_KERNEL_UNPACK, &ours, sizeof(ours));
	}
out:
	return r;
}

/* GB/s of payload, a few in a row between two events. */
static gantry_result time_once(struct unpack_bench *b, enum unpack_way way, uint32_t blocks, double *ret_gbs)
{
	gantry_result r = GANTRY_OK;
	double us = 0;

	TRY(b->dev->ops->event_record(b->dev, b->from, b->stream));
	for (int i = 0; i < TIMES; i++)
		TRY(unpack_enqueue(b, way, blocks));
	TRY(b->dev->ops->event_record(b->dev, b->to, b->stream));
	TRY(gantry_stream_sync(b->dev, b->stream));
	TRY(b->dev->ops->event_elapsed(b->dev, b->from, b->to, &us));
	*ret_gbs = us > 0 ? (double)b->l.bytes * TIMES / us / 1e3 : NAN;
out:
	return r;
}

/* Interleaved; one round to warm up. */
gantry_result unpack_time(struct unpack_bench *b, const enum unpack_way *ways, int n, uint32_t blocks,
			  struct perf_spread *ret_gbs)
{
	gantry_result r = GANTRY_OK;
	static double v[UNPACK_WAYS][UNPACK_REPEATS_MAX];

	for (int k = -1; k < b->o->repeats; k++)
		for (int i = 0; i < n; i++)
			TRY(time_once(b, ways[i], blocks, &v[i][k < 0 ? 0 : k]));
	for (int i = 0; i < n; i++)
		ret_gbs[i] = perf_spread_of(v[i], (size_t)b->o->repeats);
out:
	return r;
}
