/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm and protocol, how many channels, which chunk. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "base/log.h"
#include "base/param.h"
#include "coll/coll.h"

static gantry_result choose_algo(const struct coll_topo *topo, enum coll_kind kind, enum coll_algo_id *ret_algo)
{
	enum coll_algo_id algo = COLL_RING;

	if (gantry_params()->algo != PARAM_ALGO_AUTO) {
		algo = (enum coll_algo_id)(gantry_params()->algo - PARAM_ALGO_AUTO - 1);
		/* What it cannot do goes by rings, which can do everything. */
		if (!coll_algos[algo]->supports(topo, kind))
			algo = COLL_RING;
	}
	*ret_algo = algo;
	return GANTRY_OK;
}

static enum gantry_proto choose_proto(const struct coll_limits *limits, uint64_t bytes)
{
	const struct gantry_params *p = gantry_params();
	enum gantry_proto asked = (enum gantry_proto)(p->proto - PARAM_PROTO_SIMPLE);

	if (p->proto != PARAM_PROTO_AUTO)
		return limits->step_bytes[asked] ? asked : GANTRY_PROTO_SIMPLE;
	if (bytes <= p->ll_max && limits->step_bytes[GANTRY_PROTO_LL])
		return GANTRY_PROTO_LL;
	if (bytes <= p->ll128_max && limits->step_bytes[GANTRY_PROTO_LL128])
		return GANTRY_PROTO_LL128;
	return GANTRY_PROTO_SIMPLE;
}

gantry_result coll_choose(const struct coll_topo *topo, const struct coll_limits *limits, enum coll_kind kind,
			  uint64_t bytes, struct coll_choice *ret_choice)
{
	uint64_t per = gantry_params()->split_min, channels = bytes / per;

	TRY_NOW(choose_algo(topo, kind, &ret_choice->algo));
	ret_choice->proto = choose_proto(limits, bytes);
	ret_choice->step_bytes = limits->step_bytes[ret_choice->proto];
	ret_choice->channels = channels < 1 ? 1 : channels < limits->channels ? (uint32_t)channels : limits->channels;
	/* Small steps are wasted on small buffers; chunks of several slices keep a connection busy. */
	ret_choice->slice_steps = ret_choice->proto == GANTRY_PROTO_SIMPLE ? 2 : 1;
	ret_choice->chunk_steps = GANTRY_STEPS / coll_algos[ret_choice->algo]->chunks;
	if (ret_choice->chunk_steps > 4)
		ret_choice->chunk_steps = 4;
	return GANTRY_OK;
}
