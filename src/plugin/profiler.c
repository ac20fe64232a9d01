/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's profiler interface, v1 to v5: what NCCL does becomes events of the trace (base/ranks.h), and the ranks of this
 * process become known to it and to stall reports.
 *
 *   GANTRY_TRACE      calls, operations and steps of the proxy, requests of the network
 *   GANTRY_STALL_DIR  calls: their number shows which rank has not called
 *   neither           a mask of 0: NCCL then looks at the mask at each call and does nothing more
 *
 * Handles and contexts are numbers, not pointers: NCCL does not look into them, so nothing is allocated, and nothing
 * can be used after its end. The upper four bits say what it is.
 *
 *   call   entry of the rank << 32 | number
 *   op     send << 59 | op
 *   step   send << 59 | step << 32 | op
 *
 * A request of the network is tied to its step by the profiler callback: the plugin hands the callback what the message
 * is called in the trace, NCCL adds the step and calls startEvent.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_PLUGIN
#include "plugin/profiler.h"

#include <stdlib.h>
#include <unistd.h>

#include "abi/profiler_v6.h"
#include "base/log.h"
#include "base/param.h"
#include "base/ranks.h"
#include "base/stall.h"
#include "base/trace.h"

#define EXPORT __attribute__((visibility("default")))

enum { HANDLE_CALL = 1, HANDLE_OP = 2, HANDLE_STEP = 3, HANDLE_SEND_BIT = 59 };
#define HANDLE(kind, rest) ((void *)(uintptr_t)((uint64_t)(kind) << 60 | (rest)))
#define HANDLE_KIND(h) ((uint32_t)((uintptr_t)(h) >> 60))
#define HANDLE_SEND(h) ((uint32_t)((uintptr_t)(h) >> HANDLE_SEND_BIT & 1))
#define HANDLE_STEP_OF(h) ((uint32_t)((uintptr_t)(h) >> 32 & 0x7ffffff))
#define HANDLE_LOW(h) ((uint32_t)(uintptr_t)(h))

/* "Ga" and the version of struct gantry_net_tcp_message, which is the data. */
#define NET_ID ((int64_t)0x4761 << NCCL_PROFILER_NET_VER_BITS | 1)

/* ---- the network's events ---- */

int plugin_profiled;
static ncclProfilerCallback_t net_callback; /* relaxed: a function's code does not change */

void plugin_profile_begin(ncclProfilerCallback_t callback)
{
	store_relaxed(&net_callback, callback);
	store_relaxed(&plugin_profiled, callback && (gantry_trace_on() || getenv("NCCL_PROFILER_PLUGIN")));
}

void plugin_profile_posted(void *request, int n, void **phandles)
{
	struct gantry_net_tcp_message m;

	for (int i = 0; phandles && i < n && gantry_net_tcp_message(request, i, &m); i++)
		if (phandles[i])
			load_relaxed (&net_callback)(m.event, ncclProfilerNetEventStart, phandles[i], NET_ID, &m);
}

void plugin_profile_take(void *request, struct plugin_profile_events *ret_events)
{
	struct gantry_net_tcp_message m;

	ret_events->n = 0;
	for (int i = 0; i < GANTRY_NET_MAX_RECVS && gantry_net_tcp_message(request, i, &m); i++)
		if (*m.event)
			ret_events->event[ret_events->n++] = *m.event;
}

void plugin_profile_done(const struct plugin_profile_events *events)
{
	for (int i = 0; i < events->n; i++) {
		void *event = events->event[i];

		load_relaxed (&net_callback)(&event, ncclProfilerNetEventStop, NULL, NET_ID, NULL);
	}
}

/* ---- the profiler: versionless ---- */

/*
 * The newest state of each step that is in flight, as op << 32 | step << 8 | state + 1. NCCL reports some of them again
 * in each pass of its progress loop. Written by the thread that progresses the op; a state that replaces another in the
 * same place is reported again.
 */
enum { OPS = 4096, STEPS = 8, TRIED = GANTRY_NCCL_STATES };
static uint64_t states[OPS][STEPS];
static uint32_t next_op;

static void begin_rank(uint64_t comm, int rank, int nranks, const char *name, void **ret_context, int *ret_mask)
{
	int mask = 0, entry = -1;

	*ret_context = NULL;
	if (gantry_params_load(0) == GANTRY_OK) {
		gantry_trace_begin();
		if (gantry_trace_on())
			mask = ncclProfileColl | ncclProfileP2p | ncclProfileProxyOp | ncclProfileProxyStep |
			       ncclProfileNetPlugin;
		else if (gantry_stall_after())
			mask = ncclProfileColl | ncclProfileP2p;
	}
	if (mask)
		entry = gantry_rank_add(comm, rank, nranks, name);
	if (entry >= 0)
		*ret_context = (void *)(uintptr_t)(entry + 1);
	if (entry >= 0 && gantry_stall_after())
		gantry_stall_write_ranks();
	*ret_mask = mask;
}

static ncclResult_t end_rank(void *context)
{
	if (context)
		gantry_rank_end((int)(uintptr_t)context - 1);
	return ncclSuccess;
}

static void *begin_call(void *context, struct gantry_rank_call *call, size_t count)
{
	int entry = (int)(uintptr_t)context - 1;
	uint32_t number;

	if (entry < 0)
		return NULL;
	call->bytes = count * gantry_nccl_type_size(call->type);
	number = gantry_rank_called(entry, call);
	if (!gantry_trace_on())
		return NULL;
	gantry_event_put(GANTRY_EV_NCCL_CALL, (uint32_t)entry, gantry_rank_call_b(number, call),
			 gantry_rank_call_c(call));
	return HANDLE(HANDLE_CALL, (uint64_t)entry << 32 | number);
}

/* parent: the call's handle, unless it is another process's (pid). */
static void *begin_op(void *context, void *parent, pid_t pid, uint32_t channel, int peer, int steps, int send)
{
	static pid_t self;
	uint64_t entry = (uintptr_t)context - 1, number = 0;
	uint32_t op;

	if (!context)
		return NULL;
	if (!load_relaxed(&self))
		store_relaxed(&self, getpid());
	if (HANDLE_KIND(parent) == HANDLE_CALL && pid == load_relaxed(&self))
		number = HANDLE_LOW(parent);
	op = fetch_add_relaxed(&next_op, 1);
	gantry_event_put(GANTRY_EV_NCCL_OP, op,
			 number | (uint64_t)(channel & 255) << 32 | entry << 40 | (uint64_t)(send != 0) << 48,
			 (uint32_t)peer | ((uint64_t)steps & 0x3fffffff) << 32);
	return HANDLE(HANDLE_OP, (uint64_t)(send != 0) << HANDLE_SEND_BIT | op);
}

/* 0: that was its state already. */
static int enter_state(void *step, uint32_t state)
{
	uint32_t op = HANDLE_LOW(step), number = HANDLE_STEP_OF(step);
	uint64_t *at = &states[op % OPS][number % STEPS];
	uint64_t now = (uint64_t)op << 32 | (number & 0xffffff) << 8 | (state + 1);

	if (load_relaxed(at) == now)
		return 0;
	store_relaxed(at, now);
	return 1;
}

static void put_state(void *step, enum gantry_nccl_state state, uint64_t bytes)
{
	if (enter_state(step, state))
		gantry_event_put(GANTRY_EV_NCCL_STEP, HANDLE_LOW(step), HANDLE_STEP_OF(step) | (uint64_t)state << 32,
				 bytes);
}

/* Right before each try to send: only the second one means that there was no room. */
static void note_try(void *step)
{
	uint32_t op = HANDLE_LOW(step), number = HANDLE_STEP_OF(step);
	uint64_t now =
		load_relaxed(&states[op % OPS][number % STEPS]) ^ ((uint64_t)op << 32 | (number & 0xffffff) << 8);

	if (now == TRIED + 1)
		put_state(step, GANTRY_NCCL_ROOM, 0);
	else if (now != GANTRY_NCCL_ROOM + 1)
		enter_state(step, TRIED);
}

/* Its first state, which follows at once, is its beginning in the trace. */
static void *begin_step(void *op, int step)
{
	if (HANDLE_KIND(op) != HANDLE_OP)
		return NULL;
	return HANDLE(HANDLE_STEP, (uint64_t)HANDLE_SEND(op) << HANDLE_SEND_BIT | ((uint64_t)step & 0x7ffffff) << 32 |
					   HANDLE_LOW(op));
}

/* A request of ours for a step: NCCL tells that state next, and need not. The link says when it ends. */
static void *begin_request(void *step, int64_t id, const struct gantry_net_tcp_message *m)
{
	if (id != NET_ID || HANDLE_KIND(step) != HANDLE_STEP)
		return NULL;
	enter_state(step, GANTRY_NCCL_NETWORK);
	gantry_event_put(GANTRY_EV_NCCL_REQUEST, m->link, GANTRY_EV_MSG(m->tag, m->index),
			 HANDLE_LOW(step) | (uint64_t)HANDLE_STEP_OF(step) << 32 | (uint64_t)m->send << 62);
	return NULL;
}

static ncclResult_t stop_event(void *handle)
{
	switch (HANDLE_KIND(handle)) {
	case HANDLE_CALL:
		gantry_event_put(GANTRY_EV_NCCL_CALL, (uint32_t)((uintptr_t)handle >> 32 & 255), HANDLE_LOW(handle),
				 GANTRY_EV_OP_END);
		break;
	case HANDLE_OP:
		gantry_event_put(GANTRY_EV_NCCL_OP, HANDLE_LOW(handle), 0, GANTRY_EV_OP_END);
		break;
	case HANDLE_STEP:
		put_state(handle, GANTRY_NCCL_END, 0);
		break;
	default:
		break;
	}
	return ncclSuccess;
}

/* bytes: 0 where the version does not tell. */
static ncclResult_t record_state(void *handle, ncclProfilerEventState_v1_t state, uint64_t bytes)
{
	if (HANDLE_KIND(handle) != HANDLE_STEP)
		return ncclSuccess;
	switch (state) {
	case ncclProfilerProxyStepSendGPUWait:
	case ncclProfilerProxyStepRecvGPUWait:
		put_state(handle, GANTRY_NCCL_KERNEL, 0);
		break;
	case ncclProfilerProxyStepSendPeerWait_v4:
		note_try(handle);
		break;
	case ncclProfilerProxyStepSendWait:
		put_state(handle, GANTRY_NCCL_NETWORK, bytes);
		break;
	case ncclProfilerProxyStepRecvWait: /* bytes: of the step before */
		put_state(handle, GANTRY_NCCL_NETWORK, 0);
		break;
	case ncclProfilerProxyStepRecvFlushWait:
		put_state(handle, GANTRY_NCCL_FLUSH, bytes);
		break;
	default:
		break;
	}
	return ncclSuccess;
}

/* ---- the tables ---- */

#define BY_NAME(d)                                                                                                     \
	.func = gantry_nccl_number(GANTRY_NCCL_FUNC, (d).func),                                                        \
	.type = gantry_nccl_number(GANTRY_NCCL_TYPE, (d).datatype)
#define BY_NUMBER(d)                                                                                                   \
	.func = (d).func < 8 ? (d).func : GANTRY_NCCL_FUNCS - 1,                                                       \
	.type = (d).datatype < GANTRY_NCCL_TYPES ? (d).datatype : GANTRY_NCCL_TYPES - 1
#define WAY_BY_NAME(d)                                                                                                 \
	.algo = gantry_nccl_number(GANTRY_NCCL_ALGO, (d).algo),                                                        \
	.proto = gantry_nccl_number(GANTRY_NCCL_PROTO, (d).proto)
#define WAY_BY_NUMBER(d) .algo = (d).algo & 7, .proto = (d).proto & 3
#define LEARN(d) gantry_rank_learn((int)(uintptr_t)context - 1, (d).commHash, e->rank)
#define NOTHING(d) (void)0
#define HAS_NET begin_request(e->parentObj, e->netPlugin.id, e->netPlugin.data)

/*
 * A collective of copy engines: a call like any other, which all ranks make alike. It has no channels and no algorithm that has a
 * number. Its synchronisations and batches are not recorded: they end when they are enqueued, which says nothing.
 */
static void *begin_copies(void *context, const ncclProfilerEventDescr_v6_t *e)
{
	if (!context || e->type != ncclProfileCeColl)
		return NULL;
	return begin_call(context,
			  &(struct gantry_rank_call){BY_NAME(e->ceColl), .algo = GANTRY_NCCL_ALGOS - 1,
						     .proto = GANTRY_NCCL_PROTOS - 1, .root = e->ceColl.root},
			  e->ceColl.count);
}

#define DEFINE_START(version, call, way, channel_count, learn, request, other)                                         \
	static ncclResult_t start_##version(void *context, void **event, ncclProfilerEventDescr_##version##_t *e)      \
	{                                                                                                              \
		void *handle = NULL;                                                                                   \
                                                                                                                       \
		if (context && e->type == ncclProfileColl) {                                                           \
			learn(e->coll);                                                                                \
			handle = begin_call(context,                                                                   \
					    &(struct gantry_rank_call){call(e->coll), way(e->coll),                    \
								       .channels = e->coll.channel_count,              \
								       .root = e->coll.root},                          \
					    e->coll.count);                                                            \
		} else if (context && e->type == ncclProfileP2p) {                                                     \
			learn(e->p2p);                                                                                 \
			handle = begin_call(context,                                                                   \
					    &(struct gantry_rank_call){call(e->p2p), .algo = GANTRY_NCCL_ALGOS - 1,    \
								       .proto = GANTRY_NCCL_PROTOS - 1, .p2p = 1,      \
								       .root = e->p2p.peer},                           \
					    e->p2p.count);                                                             \
		} else if (e->type == ncclProfileProxyOp) {                                                            \
			handle = begin_op(context, e->parentObj, e->proxyOp.pid, e->proxyOp.channelId,                 \
					  e->proxyOp.peer, e->proxyOp.nSteps, e->proxyOp.isSend);                      \
		} else if (e->type == ncclProfileProxyStep) {                                                          \
			handle = begin_step(e->parentObj, e->proxyStep.step);                                          \
		} else if (e->type == ncclProfileNetPlugin) {                                                          \
			handle = request;                                                                              \
		} else {                                                                                               \
			handle = other;                                                                                \
		}                                                                                                      \
		*event = handle;                                                                                       \
		return ncclSuccess;                                                                                    \
	}
DEFINE_START(v1, BY_NUMBER, WAY_BY_NUMBER, nMaxChannels, LEARN, NULL, NULL)
DEFINE_START(v2, BY_NAME, WAY_BY_NAME, nMaxChannels, LEARN, NULL, NULL)
DEFINE_START(v3, BY_NAME, WAY_BY_NAME, nMaxChannels, LEARN, HAS_NET, NULL)
DEFINE_START(v4, BY_NAME, WAY_BY_NAME, nChannels, NOTHING, HAS_NET, NULL)
DEFINE_START(v5, BY_NAME, WAY_BY_NAME, nChannels, NOTHING, HAS_NET, NULL)
DEFINE_START(v6, BY_NAME, WAY_BY_NAME, nChannels, NOTHING, HAS_NET, begin_copies(context, e))

static ncclResult_t record_v1(void *event, ncclProfilerEventState_v1_t state, ncclProfilerEventStateArgs_v1_t *args)
{
	(void)args;
	return record_state(event, state, 0);
}

static ncclResult_t record_v4(void *event, ncclProfilerEventState_v4_t state, ncclProfilerEventStateArgs_v4_t *args)
{
	return record_state(event, state, args ? args->proxyStep.transSize : 0);
}

static ncclResult_t init_v1(void **context, int *mask)
{
	begin_rank(0, -1, 0, NULL, context, mask);
	return ncclSuccess;
}

static ncclResult_t init_v5(void **context, uint64_t comm, int *mask, const char *name, int nodes, int nranks, int rank,
			    ncclDebugLogger_t log)
{
	(void)nodes, (void)log; /* the network has the same one */
	begin_rank(comm, rank, nranks, name, context, mask);
	return ncclSuccess;
}

static ncclResult_t init_v4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int nranks, int rank,
			    ncclDebugLogger_t log)
{
	return init_v5(context, comm, mask, name, nodes, nranks, rank, log);
}

/* Only NCCL that has v6 knows the kind. */
static ncclResult_t begin_v6(void **context, uint64_t comm, int *mask, const char *name, int nodes, int nranks,
			     int rank, ncclDebugLogger_t log)
{
	init_v5(context, comm, mask, name, nodes, nranks, rank, log);
	if (*mask & ncclProfileColl)
		*mask |= ncclProfileCeColl;
	return ncclSuccess;
}

#define TABLE(version, init_of, record_of)                                                                             \
	EXPORT const ncclProfiler_##version##_t ncclProfiler_##version = {                                             \
		.name = "gantry",                                                                                      \
		.init = init_of,                                                                                       \
		.startEvent = start_##version,                                                                         \
		.stopEvent = stop_event,                                                                               \
		.recordEventState = record_of,                                                                         \
		.finalize = end_rank,                                                                                  \
	}
TABLE(v1, init_v1, record_v1);
TABLE(v2, init_v1, record_v1);
TABLE(v3, init_v1, record_v1);
TABLE(v4, init_v4, record_v4);
TABLE(v5, init_v5, record_v4);
TABLE(v6, begin_v6, record_v4);
