/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules on a profiler, called as NCCL 2.30 calls it. NCCL ignores what startEvent, stopEvent and recordEventState
 * return, so what counts is that they survive what they are given:
 *
 *   kinds     those of the mask that init wrote, and those above them: a step brings its operation and its call
 *   *event    NULL, but from v4 on a handle of a stopped event for collective calls and kernels, and garbage for the
 *             proxy's own events
 *   fields    garbage at v4 where the kind of event has none
 *   parents   stopped before their children begin: the call is behind the user's thread when the proxy begins with it;
 *             or an address of another process, if proxyOp.pid is not this one
 *   NULL      handles of events that were not started are stopped too, if the network calls NCCL's callback
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/profiler_v6.h"
#include "base/atomic.h"
#include "check/check.h"

enum {
	CONTEXTS = 3,
	CALLS = 40,
	THREAD_CALLS = 2000,
	STEPS = 8,
	/* States that only the older versions have, or only the newest. */
	OP_SEND_POSTED = 0,
	OP_RECV_POSTED = 4,
	OP_STATES = 4,
	CTRL_SLEEP = 15,
	CTRL_WAKEUP = 16,
	GROUP_START_API_STOP = 23,
	GROUP_END_API_START = 24,
};

/* One event in the words of v5. */
struct event {
	int kind;
	void *parent, *group; /* group: of calls, the parent up to v4 */
	pid_t pid;
	int number; /* of the call or of the step */
	int send;
};

static int buffers[2]; /* addresses to name */

/* The kinds that the proxy has, and those of the network and of kernels: the same in all versions that have them. */
#define FILL_PROXY(d, e)                                                                                               \
	do {                                                                                                           \
		if ((e)->kind == ncclProfileProxyStep)                                                                 \
			(d)->proxyStep.step = (e)->number;                                                             \
		if ((e)->kind != ncclProfileProxyOp)                                                                   \
			break;                                                                                         \
		(d)->proxyOp.pid = (e)->pid;                                                                           \
		(d)->proxyOp.channelId = 1;                                                                            \
		(d)->proxyOp.peer = 1;                                                                                 \
		(d)->proxyOp.nSteps = STEPS;                                                                           \
		(d)->proxyOp.chunkSize = 1 << 19;                                                                      \
		(d)->proxyOp.isSend = (e)->send;                                                                       \
	} while (0)
#define FILL_NET(d, e)                                                                                                 \
	do {                                                                                                           \
		if ((e)->kind == ncclProfileKernelCh)                                                                  \
			(d)->kernelCh.channelId = 1;                                                                   \
		if ((e)->kind != ncclProfileNetPlugin)                                                                 \
			break;                                                                                         \
		(d)->netPlugin.id = (int64_t)2 << NCCL_PROFILER_NET_VER_BITS | 1; /* of Socket */                      \
		(d)->netPlugin.data = buffers;                                                                         \
	} while (0)
#define FILL_COLL(d, e)                                                                                                \
	do {                                                                                                           \
		if ((e)->kind != ncclProfileColl)                                                                      \
			break;                                                                                         \
		(d)->coll.seqNumber = (uint64_t)(e)->number;                                                           \
		(d)->coll.sendBuff = &buffers[0];                                                                      \
		(d)->coll.recvBuff = &buffers[1];                                                                      \
		(d)->coll.count = 1000;                                                                                \
		(d)->coll.root = 0;                                                                                    \
		(d)->coll.nWarps = 16;                                                                                 \
	} while (0)
#define FILL_P2P(d, e)                                                                                                 \
	do {                                                                                                           \
		if ((e)->kind != ncclProfileP2p)                                                                       \
			break;                                                                                         \
		(d)->p2p.buff = &buffers[0];                                                                           \
		(d)->p2p.count = 1000;                                                                                 \
		(d)->p2p.peer = 1;                                                                                     \
	} while (0)
/* From v2 on. */
#define FILL_NAMES(d, e)                                                                                               \
	do {                                                                                                           \
		if ((e)->kind == ncclProfileColl) {                                                                    \
			(d)->coll.func = "AllReduce";                                                                  \
			(d)->coll.datatype = "ncclFloat32";                                                            \
			(d)->coll.algo = "RING";                                                                       \
			(d)->coll.proto = "SIMPLE";                                                                    \
		} else if ((e)->kind == ncclProfileP2p) {                                                              \
			(d)->p2p.func = "Send";                                                                        \
			(d)->p2p.datatype = "ncclFloat32";                                                             \
		}                                                                                                      \
	} while (0)

/* parentObj of calls: the group up to v4. */
#define BEGIN(version, garbage, d, e)                                                                                  \
	ncclProfilerEventDescr_v##version##_t d;                                                                       \
                                                                                                                       \
	memset(&(d), garbage, sizeof(d));                                                                              \
	(d).type = (uint8_t)(e)->kind;                                                                                 \
	(d).parentObj = (e)->group ? (e)->group : (e)->parent;                                                         \
	(d).rank = 0;                                                                                                  \
	FILL_PROXY(&(d), e);                                                                                           \
	FILL_COLL(&(d), e);                                                                                            \
	FILL_P2P(&(d), e)

static ncclResult_t start_v1(const void *table, void *ctx, void **handle, const struct event *e)
{
	BEGIN(1, 0, d, e);
	if (e->kind == ncclProfileColl) {
		d.coll.func = 4;
		d.coll.datatype = ncclFloat32;
		d.coll.algo = 1;
		d.coll.proto = 2;
	}
	return ((const ncclProfiler_v1_t *)table)->startEvent(ctx, handle, &d);
}

static ncclResult_t start_v2(const void *table, void *ctx, void **handle, const struct event *e)
{
	BEGIN(2, 0, d, e);
	FILL_NAMES(&d, e);
	return ((const ncclProfiler_v2_t *)table)->startEvent(ctx, handle, &d);
}

static ncclResult_t start_v3(const void *table, void *ctx, void **handle, const struct event *e)
{
	BEGIN(3, 0, d, e);
	FILL_NAMES(&d, e);
	FILL_NET(&d, e);
	return ((const ncclProfiler_v3_t *)table)->startEvent(ctx, handle, &d);
}

static ncclResult_t start_v4(const void *table, void *ctx, void **handle, const struct event *e)
{
	BEGIN(4, GANTRY_NET_UNWRITTEN, d, e);
	FILL_NAMES(&d, e);
	FILL_NET(&d, e);
	if (e->kind == ncclProfileColl)
		d.coll.nChannels = 2;
	return ((const ncclProfiler_v4_t *)table)->startEvent(ctx, handle, &d);
}

/* From v5 on. */
#define FILL_API(d, e)                                                                                                 \
	do {                                                                                                           \
		(d)->type = (uint64_t)(e)->kind;                                                                       \
		(d)->parentObj = (e)->parent;                                                                          \
		if ((e)->kind == ncclProfileColl) {                                                                    \
			(d)->coll.nChannels = 2;                                                                       \
			(d)->coll.parentGroup = (e)->group;                                                            \
		} else if ((e)->kind == ncclProfileP2p) {                                                              \
			(d)->p2p.nChannels = 2;                                                                        \
			(d)->p2p.parentGroup = (e)->group;                                                             \
		} else if ((e)->kind == ncclProfileCollApi) {                                                          \
			(d)->collApi.func = "AllReduce";                                                               \
			(d)->collApi.count = 1000;                                                                     \
			(d)->collApi.datatype = "ncclFloat32";                                                         \
		} else if ((e)->kind == ncclProfileP2pApi) {                                                           \
			(d)->p2pApi.func = "Send";                                                                     \
			(d)->p2pApi.count = 1000;                                                                      \
			(d)->p2pApi.datatype = "ncclFloat32";                                                          \
		}                                                                                                      \
	} while (0)

static ncclResult_t start_v5(const void *table, void *ctx, void **handle, const struct event *e)
{
	BEGIN(5, 0, d, e);
	FILL_NAMES(&d, e);
	FILL_NET(&d, e);
	FILL_API(&d, e);
	return ((const ncclProfiler_v5_t *)table)->startEvent(ctx, handle, &d);
}

static ncclResult_t start_v6(const void *table, void *ctx, void **handle, const struct event *e)
{
	BEGIN(6, 0, d, e);
	FILL_NAMES(&d, e);
	FILL_NET(&d, e);
	FILL_API(&d, e);
	if (e->kind == ncclProfileCeColl) {
		d.ceColl.seqNumber = (uint64_t)e->number;
		d.ceColl.func = "AllGather";
		d.ceColl.sendBuff = &buffers[0];
		d.ceColl.recvBuff = &buffers[1];
		d.ceColl.count = 1000;
		d.ceColl.datatype = "ncclFloat32";
		d.ceColl.syncStrategy = "UC";
		d.ceColl.ceSeqNum = (uint32_t)e->number;
	} else if (e->kind == ncclProfileCeSync) {
		d.ceCollSync.nRanks = 2;
	} else if (e->kind == ncclProfileCeBatch) {
		d.ceCollBatch.numOps = 2;
		d.ceCollBatch.totalBytes = 4000;
	}
	return ((const ncclProfiler_v6_t *)table)->startEvent(ctx, handle, &d);
}

/* Kinds that a version does not know never reach it. */
static int known_kinds(int version)
{
	return version < 3   ? ncclProfileKernelCh - 1
	       : version < 5 ? ncclProfileGroupApi - 1
	       : version < 6 ? ncclProfileCeColl - 1
			     : -1;
}

struct profiler {
	struct check_side *s;
	void *ctx;
	int mask;
};

/* *handle: what an earlier event left there. */
static void start_event(const struct profiler *p, enum check_thread thread, void **handle, const struct event *e)
{
	static ncclResult_t (*const start[])(const void *, void *, void **, const struct event *) = {
		NULL, start_v1, start_v2, start_v3, start_v4, start_v5, start_v6};
	struct check_side *s = p->s;
	void *before;
	uint64_t since;

	if (!(e->kind & known_kinds(s->version))) {
		*handle = NULL;
		return;
	}
	before = *handle = s->version < 4 ? NULL : *handle;
	check_phase(s, "an event of kind 0x%x", e->kind);
	since = check_enter(s, thread, "startEvent");
	start[s->version](s->table, p->ctx, handle, e);
	check_leave(s, thread, since);
	if (check_unwritten(&before, sizeof(before)) && check_unwritten(handle, sizeof(*handle)))
		check_fail(s,
			   "startEvent left the handle of an event of kind 0x%x as it was: NCCL stops what it finds "
			   "there",
			   e->kind);
}

static void call_stop(const struct profiler *p, enum check_thread thread, void *handle)
{
	const ncclProfiler_v1_t *t = p->s->table; /* the same place in every version */
	uint64_t since = check_enter(p->s, thread, "stopEvent");

	t->stopEvent(handle);
	check_leave(p->s, thread, since);
}

static void call_record(const struct profiler *p, enum check_thread thread, void *handle, int state)
{
	const ncclProfiler_v1_t *v1 = p->s->table;
	const ncclProfiler_v5_t *v5 = p->s->table;
	ncclProfilerEventStateArgs_v1_t old = {0};
	ncclProfilerEventStateArgs_v5_t args = {0};
	int no_args = state == GROUP_START_API_STOP || state == GROUP_END_API_START;
	uint64_t since = check_enter(p->s, thread, "recordEventState");

	if (p->s->version < 4)
		v1->recordEventState(handle, (ncclProfilerEventState_v1_t)state, &old);
	else
		v5->recordEventState(handle, (ncclProfilerEventState_v5_t)state, no_args ? NULL : &args);
	check_leave(p->s, thread, since);
}

/* NCCL itself stops and records only what was started. */
static void stop_event(const struct profiler *p, enum check_thread thread, void *handle)
{
	if (handle)
		call_stop(p, thread, handle);
}

static void record_state(const struct profiler *p, enum check_thread thread, void *handle, int state)
{
	if (handle)
		call_record(p, thread, handle, state);
}

static ncclResult_t call_init(struct check_side *s, int rank, void **ctx, int *mask)
{
	ncclDebugLogger_t log = gantry_loader_logger(s->loader);
	const ncclProfiler_v1_t *v1 = s->table;
	const ncclProfiler_v4_t *v4 = s->table;
	const ncclProfiler_v5_t *v5 = s->table;

	/* A communicator has no name unless its user gave it one. */
	if (s->version < 4)
		return v1->init(ctx, mask);
	if (s->version == 4)
		return v4->init(ctx, mask, NULL, 0x70726f66u + (uint64_t)rank, 2, 2, rank, log);
	return v5->init(ctx, 0x70726f66u + (uint64_t)rank, mask, NULL, 2, 2, rank, log);
}

/*
 * The mask is one for the process. After an error NCCL goes on without the profiler, but looks at the mask all the same,
 * and then calls startEvent without a context, or without a function up to v4.
 */
static ncclResult_t profiler_init(struct profiler *p, struct check_side *s, int rank)
{
	uint64_t since = check_enter(s, CHECK_SERVICE, "init");
	ncclResult_t r = call_init(s, rank, &p->ctx, &p->mask);

	p->s = s;
	check_leave(s, CHECK_SERVICE, since);
	if (r != ncclSuccess && p->mask)
		check_fail(s, "init gave %d and the mask is 0x%x: NCCL starts events without a context", (int)r,
			   (unsigned)p->mask);
	return r;
}

static void profiler_end(const struct profiler *p)
{
	const ncclProfiler_v1_t *t = p->s->table;
	uint64_t since;

	if (!p->ctx)
		return;
	since = check_enter(p->s, CHECK_SERVICE, "finalize");
	t->finalize(p->ctx);
	check_leave(p->s, CHECK_SERVICE, since);
}

/* For rules that need events: an error and an empty mask are none. */
static void profiler_begin(struct profiler *p, struct check_side *s)
{
	if (profiler_init(p, s, 0) != ncclSuccess)
		check_skip(s, "init gives an error: NCCL goes on without the profiler");
	if (!(p->mask & known_kinds(s->version)))
		check_skip(s, "the mask is 0: NCCL starts no event");
}

/* What NCCL keeps between calls: handles of events, old ones among them. */
struct handles {
	void *group_api, *call_api, *launch, *group, *call, *op, *kernel, *step, *net, *control;
};

/* What NCCL has in the place of a handle from v4 on: of an event that was stopped long ago, or garbage. */
static void *stale(void)
{
	void *handle;

	memset(&handle, GANTRY_NET_UNWRITTEN, sizeof(handle));
	return handle;
}

static int wants(const struct profiler *p, int kinds)
{
	return p->mask & kinds & known_kinds(p->s->version);
}

enum {
	BELOW_STEP = ncclProfileProxyStep | ncclProfileNetPlugin,
	BELOW_OP = ncclProfileProxyOp | BELOW_STEP,
	BELOW_CALL = BELOW_OP | ncclProfileKernelCh,
	BELOW_GROUP = BELOW_CALL | ncclProfileGroup | ncclProfileColl | ncclProfileP2p,
	COPIES = ncclProfileCeColl | ncclProfileCeSync | ncclProfileCeBatch,
	BELOW_API = BELOW_GROUP | COPIES | ncclProfileGroupApi | ncclProfileCollApi | ncclProfileP2pApi |
		    ncclProfileKernelLaunch,
};

/* From v5 on calls of the API have events, too. */
static void api_events(const struct profiler *p, enum check_thread thread, struct handles *h, int number)
{
	int coll = !(number & 1), api = coll ? ncclProfileCollApi : ncclProfileP2pApi;
	struct event e = {.kind = ncclProfileGroupApi};

	start_event(p, thread, &h->group_api, &e);
	record_state(p, thread, h->group_api, GROUP_START_API_STOP);
	e = (struct event){.kind = api, .parent = h->group_api, .number = number};
	if (wants(p, BELOW_CALL | api | (coll ? ncclProfileColl : ncclProfileP2p))) {
		h->call_api = coll ? stale() : NULL;
		start_event(p, thread, &h->call_api, &e);
	}
	stop_event(p, thread, h->call_api);
	record_state(p, thread, h->group_api, GROUP_END_API_START);
	e.kind = ncclProfileKernelLaunch;
	if (wants(p, ncclProfileKernelLaunch))
		start_event(p, thread, &h->launch, &e);
	stop_event(p, thread, h->launch);
}

/* From v6 on a collective may be left to copy engines: its parent is the call of the API, and its children end within it. */
static void copy_events(const struct profiler *p, enum check_thread thread, const struct handles *h, int number)
{
	struct event e = {.kind = ncclProfileCeColl, .parent = h->call_api, .number = number};
	void *call = NULL, *child;

	if (!wants(p, COPIES))
		return;
	start_event(p, thread, &call, &e);
	e.parent = call;
	for (int i = 0; i < 3; i++) { /* a batch between two synchronisations */
		e.kind = i == 1 ? ncclProfileCeBatch : ncclProfileCeSync;
		child = NULL;
		if (call && wants(p, e.kind))
			start_event(p, thread, &child, &e);
		stop_event(p, thread, child);
	}
	stop_event(p, thread, call);
}

/* The user's thread: a collective, or a send if its number is odd. Its events end before the proxy begins. */
static void call_events(const struct profiler *p, enum check_thread thread, struct handles *h, int number)
{
	struct event e = {.kind = ncclProfileGroup};

	memset(h, 0, sizeof(*h));
	if (p->s->version >= 5 && wants(p, BELOW_API))
		api_events(p, thread, h, number);
	if (!(number & 1))
		copy_events(p, thread, h, number);
	if (wants(p, BELOW_GROUP))
		start_event(p, thread, &h->group, &e);
	e = (struct event){.kind = number & 1 ? ncclProfileP2p : ncclProfileColl, .number = number};
	e.parent = h->call_api;
	e.group = h->group;
	if (wants(p, BELOW_CALL | e.kind))
		start_event(p, thread, &h->call, &e);
	stop_event(p, thread, h->call);
	stop_event(p, thread, h->group);
	stop_event(p, thread, h->group_api);
}

static void step_events(const struct profiler *p, enum check_thread thread, struct handles *h, int step, int send)
{
	struct event e = {.kind = ncclProfileProxyStep, .parent = h->op, .number = step};
	int wait = send ? ncclProfilerProxyStepSendWait : ncclProfilerProxyStepRecvWait;

	h->step = h->net = NULL;
	start_event(p, thread, &h->step, &e);
	if (send)
		record_state(p, thread, h->step, ncclProfilerProxyStepSendGPUWait);
	if (send && p->s->version >= 4)
		record_state(p, thread, h->step, ncclProfilerProxyStepSendPeerWait_v4);
	e = (struct event){.kind = ncclProfileNetPlugin, .parent = h->step};
	if (wants(p, ncclProfileNetPlugin))
		start_event(p, thread, &h->net, &e);
	record_state(p, thread, h->step, wait);
	if (p->s->version >= 4)
		record_state(p, thread, h->net, ncclProfilerNetPluginUpdate);
	stop_event(p, thread, h->net);
	if (!send) {
		record_state(p, thread, h->step, ncclProfilerProxyStepRecvFlushWait);
		record_state(p, thread, h->step, ncclProfilerProxyStepRecvGPUWait);
	}
	stop_event(p, thread, h->step);
}

/* The proxy's thread: an operation of the call with its steps, and what the thread does itself. */
static void proxy_events(const struct profiler *p, enum check_thread thread, struct handles *h, void *call, pid_t pid,
			 int send)
{
	struct event e = {.kind = ncclProfileProxyCtrl};

	if (wants(p, ncclProfileProxyCtrl)) {
		h->control = stale();
		start_event(p, thread, &h->control, &e);
		record_state(p, thread, h->control, CTRL_SLEEP);
		record_state(p, thread, h->control, CTRL_WAKEUP);
		stop_event(p, thread, h->control);
	}
	h->kernel = h->op = NULL;
	e = (struct event){.kind = ncclProfileKernelCh, .parent = call};
	if (wants(p, ncclProfileKernelCh) && pid == getpid()) { /* of this rank's own calls */
		h->kernel = stale();
		start_event(p, thread, &h->kernel, &e);
	}
	e = (struct event){.kind = ncclProfileProxyOp, .parent = call, .pid = pid, .send = send};
	if (wants(p, BELOW_OP))
		start_event(p, thread, &h->op, &e);
	for (int i = 0; h->op && p->s->version < 4 && i < OP_STATES; i++)
		record_state(p, thread, h->op, (send ? OP_SEND_POSTED : OP_RECV_POSTED) + i);
	if (p->s->version >= 4)
		record_state(p, thread, h->op, ncclProfilerProxyOpInProgress_v4);
	for (int i = 0; i < STEPS && wants(p, BELOW_STEP); i++)
		step_events(p, thread, h, i, send);
	stop_event(p, thread, h->op);
	if (p->s->version >= 4)
		record_state(p, thread, h->kernel, ncclProfilerKernelChStop);
	stop_event(p, thread, h->kernel);
}

static void rule_init(struct check_side *s)
{
	static const char *const entries[] = {"name",	 "init", "startEvent", "stopEvent", "recordEventState",
					      "finalize"};
	const void *const *t = s->table;
	struct profiler p[CONTEXTS] = {0};
	int failed = 0;

	if (!t[1])
		check_fail(s, "init is NULL, and NCCL calls it without looking");
	for (int i = 0; i < CONTEXTS; i++) {
		p[i].mask = i ? p[i - 1].mask : 0;
		failed += profiler_init(&p[i], s, i) != ncclSuccess;
	}
	for (int i = 2; i < 6; i++)
		if (!t[i])
			check_fail(s, "%s is NULL, and NCCL calls it without looking", entries[i]);
	for (int i = 0; i < CONTEXTS; i++)
		profiler_end(&p[i]);
	check_note(s, "%s is named \"%s\"; %d communicators, mask 0x%x%s", s->symbol, t[0] ? (const char *)t[0] : "",
		   CONTEXTS, (unsigned)p[CONTEXTS - 1].mask, failed ? "; init gives an error, and NCCL goes on" : "");
}

struct calls_job {
	const struct profiler *p;
	struct handles *h;
	int number;
};

static void call_job(struct check_side *s, void *arg)
{
	struct calls_job *j = arg;

	(void)s;
	call_events(j->p, CHECK_SERVICE, j->h, j->number);
}

static void rule_events(struct check_side *s)
{
	struct profiler p = {0};
	struct handles h;

	profiler_begin(&p, s);
	for (int i = 0; i < CALLS; i++) {
		struct calls_job j = {.p = &p, .h = &h, .number = i};

		check_service(s, call_job, &j);
		proxy_events(&p, CHECK_PROGRESS, &h, h.call, getpid(), 1);
		proxy_events(&p, CHECK_PROGRESS, &h, h.call, getpid(), 0);
		check_waits(s, "startEvent, stopEvent and recordEventState");
	}
	profiler_end(&p);
	check_note(s, "%d calls of all kinds in the mask 0x%x, each with two operations of %d steps", CALLS,
		   (unsigned)p.mask, STEPS);
}

/* The proxy of another rank on this host does the sending (PXN): its events name a call of that process. And what was
 * not started, because the profiler had no room, is a parent that is NULL. */
static void rule_parents(struct check_side *s)
{
	struct profiler p = {0};
	struct handles h, later;

	profiler_begin(&p, s);
	call_events(&p, CHECK_PROGRESS, &h, 0);
	for (int i = 1; i < CALLS; i++) /* the call is long over when the proxy comes to it */
		call_events(&p, CHECK_PROGRESS, &later, i);
	proxy_events(&p, CHECK_PROGRESS, &h, h.call, getpid(), 1);
	proxy_events(&p, CHECK_PROGRESS, &h, (void *)0x6765747279, getpid() + 1, 1);
	proxy_events(&p, CHECK_PROGRESS, &h, NULL, getpid(), 1);
	h.op = NULL;
	if (wants(&p, BELOW_STEP))
		step_events(&p, CHECK_PROGRESS, &h, 0, 1);
	profiler_end(&p);
	check_note(s, "parents that were stopped, are NULL or belong to another process");
}

static void rule_null(struct check_side *s)
{
	struct profiler p = {0};

	profiler_init(&p, s, 0);
	check_phase(s, "events that were never started");
	call_stop(&p, CHECK_PROGRESS, NULL);
	if (s->version >= 4)
		call_record(&p, CHECK_PROGRESS, NULL, ncclProfilerNetPluginUpdate);
	profiler_end(&p);
	check_note(s, "stopEvent%s of NULL, as the network's callback does",
		   s->version < 4 ? "" : " and recordEventState");
}

/* Calls of one thread beside the proxy's events of earlier calls. */
struct busy_job {
	const struct profiler *p;
	void *newest; /* the call before; released by the thread of calls */
};

static void busy_calls_job(struct check_side *s, void *arg)
{
	struct busy_job *j = arg;
	struct handles h;

	for (int i = 0; i < THREAD_CALLS && check_left_ns(s); i++) {
		call_events(j->p, CHECK_SERVICE, &h, i);
		store_release(&j->newest, h.call);
	}
}

static void rule_threads(struct check_side *s)
{
	struct profiler p = {0};
	struct busy_job j = {.p = &p};
	struct handles h;

	profiler_begin(&p, s);
	call_events(&p, CHECK_PROGRESS, &h, 0);
	j.newest = h.call;
	check_service_start(s, busy_calls_job, &j);
	for (int i = 0; i < THREAD_CALLS / 2 && check_left_ns(s); i++)
		proxy_events(&p, CHECK_PROGRESS, &h, load_acquire(&j.newest), getpid(), i & 1);
	check_service_wait(s);
	profiler_end(&p);
	check_note(s, "a thread makes %d calls while another has the proxy's events", THREAD_CALLS);
}

const struct check_rule check_rules_profiler[] = {
	{"profiler-init", "init takes several communicators without names, and sets no mask if it fails", rule_init,
	 CHECK_ALONE, 0},
	{"profiler-events", "every kind of event in NCCL's order, handles written, nothing waits", rule_events,
	 CHECK_ALONE, 0},
	{"profiler-parents", "parents may be stopped, NULL or of another process", rule_parents, CHECK_ALONE, 0},
	{"profiler-null", "events that were never started may be stopped", rule_null, CHECK_ALONE, 0},
	{"profiler-threads", "calls and the proxy's events come from two threads at once", rule_threads, CHECK_ALONE,
	 0},
	{0},
};
