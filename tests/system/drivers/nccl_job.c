/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of stock NCCL without NCCL: ranks as processes over the plugin's library, which make the calls that NCCL 2.28.9
 * makes for all-reduces on a ring, in its order: those of the network (v11), of the profiler (v6, as 2.29 to 2.32 have it; v5 with
 * NCCL_JOB_PROFILER=5), and of the profiler callback with handles of proxy steps. What it does not have is a GPU:
 * kernels fill and consume at once. With NCCL_JOB_COPIES=N the first N calls are all-gathers that copy engines do.
 *
 *   nccl_job RANKS CHANNELS COLLECTIVES STEPS BYTES [stop|idle RANK | until FILE | time PLUGIN]
 *
 * stop: that rank is stopped (SIGSTOP) before its last collective. idle: it does not call it. The others then wait until
 * they are killed. until: the last collective is the first that rank 0 begins when the file is there. Every byte is checked, but
 * not where time is taken. time: over any plugin with a table v11, without a profiler, each collective begun by all ranks at once
 * and timed; a step is sent when the slice that it forwards has come: 4 * (RANKS - 1) STEPS are an all-reduce of
 * BYTES * 2 * RANKS * CHANNELS bytes.
 */
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "abi/net_v11.h"
#include "abi/profiler_v6.h"
#include "base/clock.h"
#include "pair.h"

enum { MAX_RANKS = 8, MAX_CHANNELS = 8, DEPTH = 8, COMM = 0x1234abcd };
enum { SLICES = 2, SLICES_IN_FLIGHT = 4 }; /* of a chunk; NCCL's eight steps are four slices of two */

struct shared {
	int ready[MAX_RANKS][MAX_CHANNELS];
	uint8_t handle[MAX_RANKS][MAX_CHANNELS][NCCL_NET_HANDLE_MAXSIZE];
	int done, begun;
	int last; /* the number of the last collective; -1: COLLECTIVES says it */
};

/* One direction of a channel in one operation, as NCCL's proxy has it. */
struct sub {
	int send, channel, peer, posted, transmitted, done;
	void *comm, *mr, *op;
	uint8_t *buffer;
	struct phandle {
		void *step;
		struct sub *sub;
	} phandles[DEPTH];
	void *requests[DEPTH];
};

static struct {
	int ranks, channels, collectives, steps;
	size_t bytes;
	int odd; /* the rank that stops or does not call; -1: none */
	int stops;
	const char *timed; /* the plugin; NULL: ours, and nothing is timed */
	const char *until; /* NULL: no file ends it */
	uint64_t number;   /* of the collective */
	int depth;
	double *us;
	int self;
	const ncclNet_v11_t *net;
	const ncclProfiler_v6_t *profiler;
	const ncclProfiler_v5_t *old_profiler; /* NULL: NCCL has v6 */
	void *ctx, *profile;
	int mask;
	struct shared *shared;
	struct sub subs[2 * MAX_CHANNELS];
} job;

static void log_line(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list args;

	(void)flags, (void)file, (void)line;
	if (level > (getenv("GANTRY_LOG") ? NCCL_LOG_INFO : NCCL_LOG_WARN))
		return;
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

/* v5 has the first members of v6's descriptor, which are all but those of copy engines. */
static ncclResult_t start_event(void **event, ncclProfilerEventDescr_v6_t *e)
{
	ncclProfilerEventDescr_v5_t old;

	if (!job.old_profiler)
		return job.profiler->startEvent(job.profile, event, e);
	CHECK(e->type < ncclProfileCeColl);
	memcpy(&old, e, sizeof(old));
	return job.old_profiler->startEvent(job.profile, event, &old);
}

/* As ncclProfilerCallback: a start goes to the profiler with the step as parent, the rest as it is. */
static ncclResult_t callback(void **event, int type, void *phandle, int64_t id, void *data)
{
	ncclProfilerEventDescr_v6_t e = {.type = ncclProfileNetPlugin, .rank = job.self};
	struct phandle *p = phandle;

	if (job.timed)
		return ncclSuccess;
	if (type == ncclProfilerNetEventStop)
		return job.profiler->stopEvent(*event);
	CHECK_EQ(type, ncclProfilerNetEventStart);
	CHECK(p->sub);
	if (!(job.mask & ncclProfileNetPlugin))
		return ncclSuccess;
	e.parentObj = p->step;
	e.netPlugin.id = id;
	e.netPlugin.data = data;
	return start_event(event, &e);
}

static void open_library(void)
{
	const char *build = getenv("BUILD_DIR");
	char path[512];
	void *lib;

	if (job.timed)
		snprintf(path, sizeof(path), "%s", job.timed);
	else
		snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build ? build : "build");
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		TEST_FAIL("%s", dlerror());
	job.net = dlsym(lib, "ncclNetPlugin_v11");
	if (!job.timed) {
		const char *version = getenv("NCCL_JOB_PROFILER");

		job.profiler = dlsym(lib, "ncclProfiler_v6");
		job.old_profiler = version && *version == '5' ? dlsym(lib, "ncclProfiler_v5") : NULL;
	}
	CHECK(job.net && (job.profiler || job.timed));
}

static void connect_channel(int c)
{
	int next = (job.self + 1) % job.ranks, before = (job.self + job.ranks - 1) % job.ranks;
	struct sub *s = &job.subs[2 * c], *r = &job.subs[2 * c + 1];
	uint8_t handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen;

	CHECK_EQ(job.net->listen(job.ctx, 0, job.shared->handle[job.self][c], &listen), ncclSuccess);
	store_release(&job.shared->ready[job.self][c], 1);
	while (!load_acquire(&job.shared->ready[next][c]))
		usleep(1000);
	memcpy(handle, job.shared->handle[next][c], sizeof(handle));
	while (!s->comm || !r->comm) {
		if (!s->comm)
			CHECK_EQ(job.net->connect(job.ctx, 0, handle, &s->comm, &(ncclNetDeviceHandle_v11_t *){NULL}),
				 ncclSuccess);
		if (!r->comm)
			CHECK_EQ(job.net->accept(listen, &r->comm, &(ncclNetDeviceHandle_v11_t *){NULL}), ncclSuccess);
	}
	CHECK_EQ(job.net->closeListen(listen), ncclSuccess);
	s->send = 1;
	s->peer = next;
	r->peer = before;
	for (struct sub *x = s; x <= r; x++) {
		x->channel = c;
		x->buffer = calloc(DEPTH, job.bytes);
		CHECK(x->buffer);
		CHECK_EQ(job.net->regMr(x->comm, x->buffer, DEPTH * job.bytes, NCCL_PTR_HOST, &x->mr), ncclSuccess);
	}
}

static void start_step(struct sub *s, int step)
{
	ncclProfilerEventDescr_v6_t e = {.type = ncclProfileProxyStep, .parentObj = s->op, .rank = job.self};
	struct phandle *p = &s->phandles[step % DEPTH];

	if (job.mask & (ncclProfileProxyStep | ncclProfileNetPlugin)) {
		e.proxyStep.step = step;
		start_event(&p->step, &e);
	}
	p->sub = s;
}

static void record(struct sub *s, int step, ncclProfilerEventState_v6_t state, size_t size)
{
	ncclProfilerEventStateArgs_v6_t a = {.proxyStep = {size}};

	if (s->op && s->phandles[step % DEPTH].step)
		job.profiler->recordEventState(s->phandles[step % DEPTH].step, state, &a);
}

static void stop_step(struct sub *s, int step)
{
	if (s->phandles[step % DEPTH].step)
		job.profiler->stopEvent(s->phandles[step % DEPTH].step);
	s->phandles[step % DEPTH].step = NULL;
}

static int tested(struct sub *s)
{
	int done = 0, size = 0;

	CHECK_EQ(job.net->test(s->requests[s->done % DEPTH], &done, &size), ncclSuccess);
	if (done && !job.timed) /* NCCL itself reads no sizes of host memory, and some plugins write none */
		CHECK_EQ(size, (int)job.bytes);
	return done;
}

/* The kernel has filled the slot: it reduces what has come, or has the first chunk. */
static int is_filled(const struct sub *s)
{
	return !job.timed || s->transmitted < SLICES || s[1].done > s->transmitted - SLICES;
}

static uint64_t seed_of(const struct sub *s, int step)
{
	uint64_t sender = (uint64_t)(s->send ? job.self : s->peer);

	return (job.number * (uint64_t)job.steps + (uint64_t)step) * MAX_CHANNELS * MAX_RANKS +
	       (uint64_t)s->channel * MAX_RANKS + sender;
}

static uint8_t *slot_of(const struct sub *s, int step)
{
	return s->buffer + (size_t)(step % DEPTH) * job.bytes;
}

static void progress_send(struct sub *s)
{
	void **request = &s->requests[s->transmitted % DEPTH];

	if (s->posted < job.steps && s->posted < s->done + job.depth) {
		start_step(s, s->posted);
		record(s, s->posted++, ncclProfilerProxyStepSendGPUWait, 0);
		return;
	}
	if (s->transmitted < s->posted && is_filled(s)) {
		record(s, s->transmitted, ncclProfilerProxyStepSendPeerWait_v4, 0);
		if (!job.timed)
			pattern_fill(slot_of(s, s->transmitted), job.bytes, seed_of(s, s->transmitted));
		CHECK_EQ(job.net->isend(s->comm, slot_of(s, s->transmitted), job.bytes, job.self, s->mr,
					&s->phandles[s->transmitted % DEPTH], request),
			 ncclSuccess);
		if (*request) {
			record(s, s->transmitted++, ncclProfilerProxyStepSendWait, job.bytes);
			return;
		}
	}
	if (s->done < s->transmitted && tested(s))
		stop_step(s, s->done++);
}

static void progress_recv(struct sub *s)
{
	void *data, *phandle, **request = &s->requests[s->posted % DEPTH];
	size_t size = job.bytes;
	int tag = s->peer;

	if (s->posted < job.steps && s->posted < s->done + job.depth) {
		start_step(s, s->posted);
		data = slot_of(s, s->posted);
		phandle = &s->phandles[s->posted % DEPTH];
		*request = NULL;
		CHECK_EQ(job.net->irecv(s->comm, 1, &data, &size, &tag, &s->mr, &phandle, request), ncclSuccess);
		if (*request)
			record(s, s->posted++, ncclProfilerProxyStepRecvWait, 0);
		return;
	}
	if (s->done < s->posted && tested(s)) {
		if (!job.timed)
			CHECK_PATTERN(slot_of(s, s->done), job.bytes, seed_of(s, s->done));
		record(s, s->done, ncclProfilerProxyStepRecvFlushWait, job.bytes);
		record(s, s->done, ncclProfilerProxyStepRecvGPUWait, job.bytes);
		stop_step(s, s->done++);
	}
}

/* Operations are appended, calls are over when they are enqueued, and the proxy works. */
static void all_reduce(uint64_t number)
{
	ncclProfilerEventDescr_v6_t e = {.type = ncclProfileColl, .rank = job.self};
	void *call = NULL;
	int busy = 1;

	job.number = number;
	e.coll.seqNumber = number;
	e.coll.func = "AllReduce";
	e.coll.count = job.bytes * (size_t)(job.channels * job.steps) / sizeof(float);
	e.coll.datatype = "ncclFloat32";
	e.coll.nChannels = (uint8_t)job.channels;
	e.coll.algo = "RING";
	e.coll.proto = "SIMPLE";
	if (job.mask)
		start_event(&call, &e);
	for (int i = 0; i < 2 * job.channels; i++) {
		struct sub *s = &job.subs[i];
		ncclProfilerEventDescr_v6_t o = {.type = ncclProfileProxyOp, .parentObj = call, .rank = job.self};

		s->posted = s->transmitted = s->done = 0;
		s->op = NULL;
		o.proxyOp.pid = getpid();
		o.proxyOp.channelId = (uint8_t)s->channel;
		o.proxyOp.peer = s->peer;
		o.proxyOp.nSteps = job.steps;
		o.proxyOp.isSend = s->send;
		if (job.mask & (ncclProfileProxyOp | ncclProfileProxyStep))
			start_event(&s->op, &o);
	}
	if (call)
		job.profiler->stopEvent(call);
	while (busy) {
		busy = 0;
		for (int i = 0; i < 2 * job.channels; i++) {
			struct sub *s = &job.subs[i];

			if (s->done == job.steps)
				continue;
			busy = 1;
			s->send ? progress_send(s) : progress_recv(s);
			if (s->done == job.steps && s->op)
				job.profiler->stopEvent(s->op);
		}
	}
}

/* A collective of copy engines: over for the profiler when it is enqueued. NCCL asks for its parts only where the mask has them. */
static void all_gather_by_copies(uint64_t number)
{
	ncclProfilerEventDescr_v6_t e = {.type = ncclProfileCeColl, .rank = job.self};
	static const uint64_t parts[] = {ncclProfileCeSync, ncclProfileCeBatch, ncclProfileCeSync};
	void *call = NULL, *part;

	if (!(job.mask & (ncclProfileCeColl | ncclProfileCeSync | ncclProfileCeBatch)))
		return;
	e.ceColl.seqNumber = number;
	e.ceColl.func = "AllGather";
	e.ceColl.count = 1000 + number;
	e.ceColl.datatype = "ncclFloat16";
	e.ceColl.syncStrategy = "UC";
	e.ceColl.ceSeqNum = (uint32_t)number;
	start_event(&call, &e);
	for (int i = 0; call && i < 3; i++) {
		ncclProfilerEventDescr_v6_t p = {.type = parts[i], .parentObj = call, .rank = job.self};

		part = NULL;
		if (job.mask & (int)parts[i])
			start_event(&part, &p);
		if (part)
			job.profiler->stopEvent(part);
	}
	if (call)
		job.profiler->stopEvent(call);
}

static void time_call(int i)
{
	uint64_t begin;

	fetch_add_release(&job.shared->begun, 1);
	while (load_acquire(&job.shared->begun) < job.ranks * (i + 1))
		sched_yield();
	begin = gantry_now_ns();
	all_reduce((uint64_t)i);
	job.us[i] = (double)(gantry_now_ns() - begin) / 1e3;
}

static int compare_us(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void show_times(void)
{
	int n = job.collectives;

	qsort(job.us, (size_t)n, sizeof(*job.us), compare_us);
	printf("%.1f us, 90%% %.1f, worst %.1f\n", job.us[n / 2], job.us[n * 9 / 10], job.us[n - 1]);
	fflush(stdout);
}

static void run_rank(int rank)
{
	ncclNetCommConfig_v11_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};

	job.self = rank;
	open_library();
	CHECK_EQ(job.net->init(&job.ctx, COMM, &config, log_line, callback), ncclSuccess);
	if (job.profiler)
		CHECK_EQ((job.old_profiler ? job.old_profiler->init : job.profiler->init)(
				 &job.profile, COMM, &job.mask, "world", job.ranks, job.ranks, rank, log_line),
			 ncclSuccess);
	for (int c = 0; c < job.channels; c++)
		connect_channel(c);
	for (int i = 0; getenv("NCCL_JOB_COPIES") && i < atoi(getenv("NCCL_JOB_COPIES")); i++)
		all_gather_by_copies((uint64_t)i);
	for (int i = 0; i < job.collectives; i++) {
		if (i == job.collectives - 1 && rank == job.odd) {
			if (job.stops)
				raise(SIGSTOP);
			for (;;)
				pause();
		}
		if (rank == 0 && job.until && access(job.until, F_OK) == 0 && job.shared->last < 0)
			store_release(&job.shared->last, i);
		job.timed ? time_call(i) : all_reduce((uint64_t)i);
		if (i == load_acquire(&job.shared->last)) /* nobody has it whole before rank 0 has begun it */
			break;
	}
	if (job.timed && rank == 0)
		show_times();
	/* Nobody leaves before all are through. */
	fetch_add_release(&job.shared->done, 1);
	while (load_acquire(&job.shared->done) < job.ranks)
		usleep(1000);
	for (int i = 0; i < 2 * job.channels; i++) {
		struct sub *s = &job.subs[i];

		CHECK_EQ(job.net->deregMr(s->comm, s->mr), ncclSuccess);
		CHECK_EQ(s->send ? job.net->closeSend(s->comm) : job.net->closeRecv(s->comm), ncclSuccess);
		free(s->buffer);
	}
	if (job.profile)
		CHECK_EQ(job.profiler->finalize(job.profile), ncclSuccess);
	CHECK_EQ(job.net->finalize(job.ctx), ncclSuccess);
	exit(0);
}

int main(int argc, char **argv)
{
	int failed = 0, status;

	if (argc != 6 && argc != 8)
		return 2;
	job.ranks = atoi(argv[1]);
	job.channels = atoi(argv[2]);
	job.collectives = atoi(argv[3]);
	job.steps = atoi(argv[4]);
	job.bytes = strtoul(argv[5], NULL, 0);
	job.timed = argc == 8 && !strcmp(argv[6], "time") ? argv[7] : NULL;
	job.until = argc == 8 && !strcmp(argv[6], "until") ? argv[7] : NULL;
	job.depth = job.timed ? SLICES_IN_FLIGHT : DEPTH;
	job.us = calloc((size_t)job.collectives, sizeof(*job.us));
	CHECK(job.us);
	job.odd = argc == 8 && !job.timed && !job.until ? atoi(argv[7]) : -1;
	job.stops = argc == 8 && !strcmp(argv[6], "stop");
	CHECK(job.ranks > 1 && job.ranks <= MAX_RANKS && job.channels <= MAX_CHANNELS);
	job.shared = share_memory(sizeof(*job.shared));
	job.shared->last = -1;
	for (int r = 0; r < job.ranks; r++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(PAIR_ALARM_S);
			run_rank(r);
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}
