/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives, send and receive, and operations of the caller's own: the numbers of types and operations are NCCL's in
 * gantry/types.h already, so arguments pass through, and gantry/comm.h refuses the wrong ones.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "base/log.h"
#include "coll/coll.h"
#include "comm/onesided.h"
#include "nccl/nccl.h"
#include "nccl/nccl_device.h"

/* A call by itself, or one of a group. r: what is wrong with its communicator or stream. */
struct call {
	struct gantry_comm *comm;
	struct gantry_stream *stream;
	gantry_result r;
};

static struct call call_begin(const char *function, ncclComm_t comm, cudaStream_t native)
{
	struct ncclComm *c = nccl_comm_of(comm, function);
	struct call call = {.r = GANTRY_ERR_INVALID};

	if (!c)
		return call;
	call.comm = c->comm;
	call.r = nccl_stream_for(c, native, &call.stream);
	if (call.r == GANTRY_OK)
		nccl_group_uses(c);
	return call;
}

static ncclResult_t call_end(gantry_result r)
{
	return nccl_result(comm_group_depth() ? comm_group_fail(r) : nccl_group_settle(r));
}

#define CALL(name, function, ...)                                                                                      \
	do {                                                                                                           \
		struct call call = call_begin("nccl" #name, comm, stream);                                             \
		gantry_result r = call.r;                                                                              \
                                                                                                                       \
		if (r == GANTRY_OK)                                                                                    \
			r = function(__VA_ARGS__, call.comm, call.stream);                                             \
		return call_end(r);                                                                                    \
	} while (0)

#define TYPE ((enum gantry_type)type)
#define OP ((int)op)

/* PLAIN makes the function and the one that also takes wishes for this call: how many blocks, which algorithm. They are
 * wishes in NCCL too; the cost model knows the connections here better. */
#define COLLECTIVE(name, params, config_params, function, ...)                                                         \
	NCCL_FUNCTION(ncclResult_t, name, params)                                                                      \
	{                                                                                                              \
		CALL(name, function, __VA_ARGS__);                                                                     \
	}                                                                                                              \
	NCCL_FUNCTION(ncclResult_t, name##Config, config_params)                                                       \
	{                                                                                                              \
		(void)config;                                                                                          \
		CALL(name##Config, function, __VA_ARGS__);                                                             \
	}

#define BUFFERS const void *in, void *out, size_t count, ncclDataType_t type
#define WHERE ncclComm_t comm, cudaStream_t stream
#define WISHES WHERE, const ncclCollConfig_t *config

COLLECTIVE(AllReduce, (BUFFERS, ncclRedOp_t op, WHERE), (BUFFERS, ncclRedOp_t op, WISHES), gantry_all_reduce, in, out,
	   count, TYPE, OP)
COLLECTIVE(Reduce, (BUFFERS, ncclRedOp_t op, int root, WHERE), (BUFFERS, ncclRedOp_t op, int root, WISHES),
	   gantry_reduce, in, out, count, TYPE, OP, root)
COLLECTIVE(Broadcast, (BUFFERS, int root, WHERE), (BUFFERS, int root, WISHES), gantry_broadcast, in, out, count, TYPE,
	   root)
COLLECTIVE(AllGather, (BUFFERS, WHERE), (BUFFERS, WISHES), gantry_all_gather, in, out, count, TYPE)
COLLECTIVE(ReduceScatter, (BUFFERS, ncclRedOp_t op, WHERE), (BUFFERS, ncclRedOp_t op, WISHES), gantry_reduce_scatter,
	   in, out, count, TYPE, OP)
COLLECTIVE(AlltoAll, (BUFFERS, WHERE), (BUFFERS, WISHES), gantry_all_to_all, in, out, count, TYPE)
COLLECTIVE(Gather, (BUFFERS, int root, WHERE), (BUFFERS, int root, WISHES), gantry_gather, in, out, count, TYPE, root)
COLLECTIVE(Scatter, (BUFFERS, int root, WHERE), (BUFFERS, int root, WISHES), gantry_scatter, in, out, count, TYPE, root)

/* In place. */
NCCL_FUNCTION(ncclResult_t, Bcast, (void *buf, size_t count, ncclDataType_t type, int root, WHERE))
{
	CALL(Bcast, gantry_broadcast, buf, buf, count, TYPE, root);
}

NCCL_FUNCTION(ncclResult_t, Send, (const void *buf, size_t count, ncclDataType_t type, int peer, WHERE))
{
	CALL(Send, gantry_send, buf, count, TYPE, peer);
}

NCCL_FUNCTION(ncclResult_t, Recv, (void *buf, size_t count, ncclDataType_t type, int peer, WHERE))
{
	CALL(Recv, gantry_recv, buf, count, TYPE, peer);
}

/* ---- operations ---- */

NCCL_FUNCTION(ncclResult_t, RedOpCreatePreMulSum,
	      (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where, ncclComm_t comm))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclRedOpCreatePreMulSum");
	gantry_result r = GANTRY_ERR_INVALID;
	int made;

	if (!c)
		return nccl_result(r);
	if (!op || !scalar)
		return nccl_result(nccl_missing("ncclRedOpCreatePreMulSum"));
	if (where != ncclScalarDevice && where != ncclScalarHostImmediate)
		return nccl_result(gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclRedOpCreatePreMulSum: unknown residence %d", (int)where));
	nccl_enter(c);
	r = gantry_op_create_premul(c->comm, TYPE, scalar, where == ncclScalarDevice, &made);
	nccl_leave(c);
	if (r == GANTRY_OK)
		*op = (ncclRedOp_t)made;
	return nccl_result(r);
}

NCCL_FUNCTION(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclRedOpDestroy");
	gantry_result r = GANTRY_ERR_INVALID;

	if (!c)
		return nccl_result(r);
	if ((int)op <= ncclAvg)
		return nccl_result(gantry_fail(r, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclRedOpDestroy: operation %d was not created", (int)op));
	nccl_enter(c);
	r = gantry_op_destroy(c->comm, OP);
	nccl_leave(c);
	return nccl_result(r);
}

/* ---- one-sided ---- */

/* Contexts and flags are for later, in NCCL too. */
static gantry_result check_context(const char *function, int context, unsigned flags)
{
	if (context || flags)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: context %d and flags %#x, both must be 0", function, context, flags);
	return GANTRY_OK;
}

static gantry_result put(const void *buf, size_t count, ncclDataType_t type, int peer, struct gantry_window *window,
			 size_t offset, int signal, struct gantry_comm *comm, struct gantry_stream *stream)
{
	uint32_t size = (unsigned)type < GANTRY_TYPE_COUNT ? coll_type_bytes((unsigned)type) : 0;

	if (!size || count > SIZE_MAX / size)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclPutSignal: invalid size: %zu elements of type %d", count, (int)type);
	return gantry_put(buf, count * size, peer, window, offset, signal, comm, stream);
}

NCCL_FUNCTION(ncclResult_t, PutSignal,
	      (const void *buf, size_t count, ncclDataType_t type, int peer, ncclWindow_t window, size_t offset,
	       int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream))
{
	struct call call = call_begin("ncclPutSignal", comm, stream);
	gantry_result r = call.r;

	const struct nccl_window *w;

	if (r == GANTRY_OK)
		r = check_context("ncclPutSignal", context, flags);
	if (r == GANTRY_OK) {
		w = nccl_window_of(comm, window, "ncclPutSignal");
		r = w ? GANTRY_OK : GANTRY_ERR_INVALID;
	}
	if (r == GANTRY_OK)
		r = put(buf, count, type, peer, w->window, offset, signal, call.comm, call.stream);
	return call_end(r);
}

NCCL_FUNCTION(ncclResult_t, Signal,
	      (int peer, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream))
{
	struct call call = call_begin("ncclSignal", comm, stream);
	gantry_result r = call.r;

	if (r == GANTRY_OK)
		r = check_context("ncclSignal", context, flags);
	if (r == GANTRY_OK)
		r = gantry_signal(peer, signal, call.comm, call.stream);
	return call_end(r);
}

static gantry_result wait_signals(int n, const ncclWaitSignalDesc_t *signals, const struct call *call)
{
	gantry_result r = GANTRY_OK, end;

	if (n < 0 || (n && !signals))
		return nccl_missing("ncclWaitSignal");
	TRY_NOW(gantry_group_start());
	for (int i = 0; i < n && r == GANTRY_OK; i++) {
		const struct gantry_signal_wait wait = {
			.count = signals[i].opCnt, .peer = signals[i].peer, .signal = signals[i].sigIdx};

		r = comm_group_fail(check_context("ncclWaitSignal", signals[i].ctx, 0));
		if (r == GANTRY_OK)
			r = gantry_wait_signals(&wait, 1, call->comm, call->stream);
	}
	end = gantry_group_end();
	return r == GANTRY_OK ? end : r;
}

NCCL_FUNCTION(ncclResult_t, WaitSignal, (int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream))
{
	struct call call = call_begin("ncclWaitSignal", comm, stream);

	return call_end(call.r == GANTRY_OK ? wait_signals(n, signals, &call) : call.r);
}

/* ---- what a group would take ---- */

/* Nothing of the group is done. There is no estimate for a group as a whole: NCCL's mark for "none" is the answer. */
NCCL_FUNCTION(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * info))
{
	gantry_result r = nccl_group_drop();

	if (r != GANTRY_OK || !info)
		return nccl_result(r);
	if (info->magic != NCCL_SIM_INFO_MAGIC || info->size < offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float))
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclGroupSimulateEnd: the struct was not initialised"));
	info->estimatedTime = NCCL_UNDEF_FLOAT;
	return ncclSuccess;
}
