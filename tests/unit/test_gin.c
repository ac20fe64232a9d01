/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's GIN and RMA tables, all versions, called as NCCL calls them: a communicator of a rank connects several collComms, registers
 * the same memory in the same order on all ranks, and has one thread that takes what kernels put into queues, posts at most one request
 * to each peer and context in turn, tests the oldest ones, and counts what is done. The kernels are threads: they fill the queues, and
 * poll signals. Every byte, sum and counter is compared.
 *
 * With GANTRY_TEST_GPU=fake all memory is that of a CUDA driver without a GPU, whose streams run late: what the plugin does with GPU
 * memory is then the same as on a GPU.
 */
#include <dlfcn.h>
#include <sys/wait.h>

#include "abi/rma_v17.h"
#include "base/atomic.h"
#include "device/cuda/driver.h"
#include "fixtures/cuda/fake_load.h"
#include "test.h"

enum {
	RANKS = 4,
	COMMS = 2, /* collComms of a communicator, each with all contexts */
	CONTEXTS = 3,
	QUEUE = 64,
	ROOM = 1 << 20, /* that a rank puts to another in a context of a collComm, at most */
	ROUNDS = 8, /* in fours, after which signals start at 0 again */
	SIGNALS = RANKS + 1,
};

static void *library;

/* ---- memory ---- */

static struct fake_cuda *fake; /* NULL: memory is the host's */
static struct {
	unsigned (*init)(unsigned flags);
	unsigned (*retain)(cu_context *ret_ctx, cu_device device);
	unsigned (*set_current)(cu_context ctx);
	unsigned (*alloc)(cu_ptr *ret_ptr, size_t size);
	unsigned (*free)(cu_ptr ptr);
} gpu;
static uint32_t stop_streams;

static void *run_streams(void *arg)
{
	(void)arg;
	while (!load_seq(&stop_streams)) {
		fake->run(3);
		sched_yield();
	}
	return NULL;
}

/* As NCCL's threads have it when they connect. */
static void use_gpu(void)
{
	cu_context ctx;

	if (!fake)
		return;
	CHECK_EQ(gpu.init(0), 0u);
	CHECK_EQ(gpu.retain(&ctx, 0), 0u);
	CHECK_EQ(gpu.set_current(ctx), 0u);
}

static void *memory_get(size_t size)
{
	cu_ptr p = 0;

	if (!fake)
		return calloc(1, size);
	CHECK_EQ(gpu.alloc(&p, size), 0u);
	return memset((void *)(uintptr_t)p, 0, size);
}

static void memory_put(void *p)
{
	if (fake)
		gpu.free((cu_ptr)(uintptr_t)p);
	else
		free(p);
}

/* ---- one shape for all versions ---- */

struct request {
	uint64_t src, dst, size, signal, value;
	void *src_mr, *dst_mr, *signal_mr; /* signal_mr NULL: none */
	uint32_t rank, op;
};

struct api {
	const char *symbol;
	ncclResult_t (*init)(void **ctx);
	ncclResult_t (*finalize)(void *ctx);
	ncclResult_t (*listen)(void *ctx, void *handle, void **listen);
	ncclResult_t (*connect)(void *handles[], int n, int rank, void *listen, void **comm);
	ncclResult_t (*close_listen)(void *listen);
	ncclResult_t (*close)(void *comm);
	ncclResult_t (*reg)(void *comm, void *data, size_t size, void **mr, void **gr);
	ncclResult_t (*dereg)(void *comm, void *mr);
	ncclResult_t (*group)(void *comm, void **group);
	ncclResult_t (*ungroup)(void *group);
	ncclResult_t (*post)(void *comm, void *group, int context, const struct request *q, void **request);
	/* NULL before v13 */
	ncclResult_t (*get)(void *group, int context, const struct request *q, void **request);
	ncclResult_t (*flush)(void *group, int context, uint32_t rank, void **request);
	ncclResult_t (*test)(void *comm, void *request, int *done);
	ncclResult_t (*progress)(void *comm, void *group);
	void (*properties)(int *type, int *max_recvs, int *ptr_support);
	int contexts;
};

static void log_text(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	(void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

#define TABLE(K, v) ((const nccl##K##_##v##_t *)dlsym(library, "nccl" #K "Plugin_" #v))
#define EVERY_VERSION(K, v, P, CONNECTIONS)                                                                            \
	static ncclResult_t K##v##_init(void **ctx)                                                                    \
	{                                                                                                              \
		return TABLE(K, v)->init(ctx, 4711, log_text);                                                         \
	}                                                                                                              \
	static ncclResult_t K##v##_finalize(void *ctx)                                                                 \
	{                                                                                                              \
		return TABLE(K, v)->finalize(ctx);                                                                     \
	}                                                                                                              \
	static ncclResult_t K##v##_listen(void *ctx, void *handle, void **listen)                                      \
	{                                                                                                              \
		return TABLE(K, v)->listen(ctx, 0, handle, listen);                                                    \
	}                                                                                                              \
	static ncclResult_t K##v##_connect(void *handles[], int n, int me, void *listen, void **comm)                  \
	{                                                                                                              \
		return TABLE(K, v)->connect(NULL, handles, n, me, CONNECTIONS listen, comm);                           \
	}                                                                                                              \
	static ncclResult_t K##v##_close_listen(void *listen)                                                          \
	{                                                                                                              \
		return TABLE(K, v)->closeListen(listen);                                                               \
	}                                                                                                              \
	static ncclResult_t K##v##_close(void *comm)                                                                   \
	{                                                                                                              \
		return TABLE(K, v)->closeColl(comm);                                                                   \
	}                                                                                                              \
	static ncclResult_t K##v##_dereg(void *comm, void *mr)                                                         \
	{                                                                                                              \
		return TABLE(K, v)->deregMrSym(comm, mr);                                                              \
	}                                                                                                              \
	static ncclResult_t K##v##_ungroup(void *group)                                                                \
	{                                                                                                              \
		bool failed = true;                                                                                    \
                                                                                                                       \
		CHECK_EQ(TABLE(K, v)->queryLastError(group, &failed), ncclSuccess);                                    \
		CHECK(!failed);                                                                                        \
		return TABLE(K, v)->destroyContext(group);                                                             \
	}                                                                                                              \
	static ncclResult_t K##v##_test(void *comm, void *request, int *done)                                          \
	{                                                                                                              \
		return TABLE(K, v)->test(comm, request, done);                                                         \
	}                                                                                                              \
	static void K##v##_properties(int *type, int *max_recvs, int *ptr_support)                                     \
	{                                                                                                              \
		ncclNetProperties_##P##_t p;                                                                           \
		int n = 0;                                                                                             \
                                                                                                                       \
		CHECK_EQ(TABLE(K, v)->devices(&n), ncclSuccess);                                                       \
		CHECK(n > 0);                                                                                          \
		CHECK_EQ(TABLE(K, v)->getProperties(0, &p), ncclSuccess);                                              \
		*type = (int)p.netDeviceType;                                                                          \
		*max_recvs = p.maxRecvs;                                                                               \
		*ptr_support = p.ptrSupport;                                                                           \
	}
#define TWO_HANDLES(K, v)                                                                                              \
	static ncclResult_t K##v##_reg(void *comm, void *data, size_t size, void **mr, void **gr)                      \
	{                                                                                                              \
		return TABLE(K, v)->regMrSym(comm, data, size, fake ? NCCL_PTR_CUDA : NCCL_PTR_HOST,                   \
					     NCCL_NET_MR_FLAG_FORCE_SO, mr, gr);                                       \
	}
#define ONE_HANDLE(K, v)                                                                                               \
	static ncclResult_t K##v##_reg(void *comm, void *data, size_t size, void **mr, void **gr)                      \
	{                                                                                                              \
		ncclResult_t r = TABLE(K, v)->regMrSym(comm, data, size, fake ? NCCL_PTR_CUDA : NCCL_PTR_HOST,         \
						       NCCL_NET_MR_FLAG_FORCE_SO, mr);                                 \
                                                                                                                       \
		*gr = *mr;                                                                                             \
		return r;                                                                                              \
	}
#define WITHOUT_GROUPS(v, CONTEXT, ...)                                                                                \
	static ncclResult_t Gin##v##_group(void *comm, void **group)                                                   \
	{                                                                                                              \
		ncclNetDeviceHandle_v11_t *handle;                                                                     \
                                                                                                                       \
		return TABLE(Gin, v)->createContext(comm, SIGNALS, 1, __VA_ARGS__ group, &handle);                     \
	}                                                                                                              \
	static ncclResult_t Gin##v##_post(void *comm, void *group, int context, const struct request *q,               \
					  void **request)                                                              \
	{                                                                                                              \
		(void)group, (void)context;                                                                            \
		if (!q->signal_mr)                                                                                     \
			return TABLE(Gin, v)->iput(comm, q->src, q->src_mr, q->size, q->dst, q->dst_mr,                \
						   q->rank CONTEXT, request);                                          \
		return TABLE(Gin, v)->iputSignal(comm, q->src, q->src_mr, q->size, q->dst, q->dst_mr, q->rank,         \
						 q->signal, q->signal_mr, q->value, q->op CONTEXT, request);           \
	}                                                                                                              \
	static ncclResult_t Gin##v##_progress(void *comm, void *group)                                                 \
	{                                                                                                              \
		(void)group;                                                                                           \
		return TABLE(Gin, v)->ginProgress(comm);                                                               \
	}
#define COMMA ,
#define WITH_GROUPS(K, v, PROGRESS, CONFIG, HANDLE, STRONG, FLAGS)                                                     \
	static ncclResult_t K##v##_group(void *comm, void **group)                                                     \
	{                                                                                                              \
		nccl##K##Config_##v##_t config = {CONFIG};                                                             \
                                                                                                                       \
		return TABLE(K, v)->createContext(comm, &config, group HANDLE);                                        \
	}                                                                                                              \
	static ncclResult_t K##v##_post(void *comm, void *group, int context, const struct request *q, void **request) \
	{                                                                                                              \
		(void)comm;                                                                                            \
		if (!q->signal_mr)                                                                                     \
			return TABLE(K, v)->iput(group, context, q->src, q->src_mr, q->size, q->dst, q->dst_mr,        \
						 q->rank FLAGS, request);                                              \
		return TABLE(K, v)->iputSignal(group, context, q->src, q->src_mr, q->size, q->dst, q->dst_mr, q->rank, \
					       q->signal, q->signal_mr, q->value, q->op STRONG FLAGS, request);        \
	}                                                                                                              \
	static ncclResult_t K##v##_get(void *group, int context, const struct request *q, void **request)              \
	{                                                                                                              \
		return TABLE(K, v)->iget(group, context, q->src, q->src_mr, q->size, q->dst, q->dst_mr, q->rank FLAGS, \
					 request);                                                                     \
	}                                                                                                              \
	static ncclResult_t K##v##_flush(void *group, int context, uint32_t rank, void **request)                      \
	{                                                                                                              \
		return TABLE(K, v)->iflush(group, context, NULL, rank, request);                                       \
	}                                                                                                              \
	static ncclResult_t K##v##_progress(void *comm, void *group)                                                   \
	{                                                                                                              \
		(void)comm;                                                                                            \
		return TABLE(K, v)->PROGRESS(group);                                                                   \
	}
#define ROW(K, v, n)                                                                                                   \
	{                                                                                                              \
		"nccl" #K "Plugin_" #v, K##v##_init, K##v##_finalize, K##v##_listen, K##v##_connect,                   \
			K##v##_close_listen, K##v##_close, K##v##_reg, K##v##_dereg, K##v##_group, K##v##_ungroup,     \
			K##v##_post, K##v##_get, K##v##_flush, K##v##_test, K##v##_progress, K##v##_properties, n      \
	}

EVERY_VERSION(Gin, v11, v11, )
EVERY_VERSION(Gin, v12, v11, CONTEXTS COMMA 128 COMMA)
EVERY_VERSION(Gin, v13, v12, )
EVERY_VERSION(Rma, v13, v12, )
EVERY_VERSION(Rma, v14, v12, )
EVERY_VERSION(Rma, v15, v12, )
EVERY_VERSION(Rma, v16, v12, )
EVERY_VERSION(Rma, v17, v12, )
TWO_HANDLES(Gin, v11)
TWO_HANDLES(Gin, v12)
TWO_HANDLES(Gin, v13)
TWO_HANDLES(Rma, v13)
ONE_HANDLE(Rma, v14)
ONE_HANDLE(Rma, v15)
ONE_HANDLE(Rma, v16)
ONE_HANDLE(Rma, v17)
WITHOUT_GROUPS(v11, )
WITHOUT_GROUPS(v12, COMMA context, CONTEXTS, )
WITH_GROUPS(Gin, v13, ginProgress, SIGNALS COMMA 1 COMMA CONTEXTS COMMA 128 COMMA - 1, COMMA NULL, , )
WITH_GROUPS(Rma, v13, ginProgress, SIGNALS COMMA 1 COMMA CONTEXTS COMMA 128 COMMA - 1, COMMA NULL, , )
WITH_GROUPS(Rma, v14, rmaProgress, CONTEXTS COMMA - 1 COMMA 1, , COMMA true, )
WITH_GROUPS(Rma, v15, rmaProgress, CONTEXTS COMMA - 1 COMMA 1, , COMMA false, COMMA NCCL_RMA_OPT_MORE)
WITH_GROUPS(Rma, v16, rmaProgress, CONTEXTS COMMA - 1 COMMA 1, , COMMA true, COMMA 0)
WITH_GROUPS(Rma, v17, rmaProgress, CONTEXTS COMMA - 1 COMMA NULL COMMA 0, , COMMA false, COMMA 0)
#define Ginv11_get NULL
#define Ginv11_flush NULL
#define Ginv12_get NULL
#define Ginv12_flush NULL
static const struct api versions[] = {ROW(Gin, v11, 1),	       ROW(Gin, v12, CONTEXTS), ROW(Gin, v13, CONTEXTS),
				      ROW(Rma, v13, CONTEXTS), ROW(Rma, v14, CONTEXTS), ROW(Rma, v15, CONTEXTS),
				      ROW(Rma, v16, CONTEXTS), ROW(Rma, v17, CONTEXTS)};

enum { VERSIONS = sizeof(versions) / sizeof(versions[0]) };

/* ---- a communicator as NCCL has it ---- */

/* From a kernel to the proxy, for one peer and context. pi: the kernel's; ci: the proxy's, of what is done. */
struct queue {
	struct request descriptors[QUEUE];
	void *requests[QUEUE];
	uint64_t pi, ci, posted;
};

struct rank {
	struct world *w;
	uint32_t rank;
	void *ctx, *listen[COMMS], *comm[COMMS], *group[COMMS];
	uint8_t *source, *target;
	uint64_t *signals[COMMS][CONTEXTS];
	void *source_mr[COMMS], *target_mr[COMMS], *signals_mr[COMMS][CONTEXTS];
	struct queue queues[COMMS][CONTEXTS][RANKS];
	uint64_t counter; /* of puts that are done, as NCCL's */
	uint32_t stop;
};

struct world {
	const struct api *api;
	uint32_t n, late; /* late: the rank that comes a second after the others, or n */
	uint8_t handles[COMMS][RANKS][NCCL_NET_HANDLE_MAXSIZE];
	uint64_t arrived;
	struct rank ranks[RANKS];
};

static void meet_all(struct world *w, uint64_t times)
{
	fetch_add_seq(&w->arrived, 1);
	while (load_seq(&w->arrived) < times * w->n)
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void post_one(struct rank *me, int comm, int context, struct queue *q)
{
	void *request = NULL;

	if (q->posted == load_seq(&q->pi) || q->posted == q->ci + QUEUE)
		return;
	CHECK_EQ(me->w->api->post(me->comm[comm], me->group[comm], context, &q->descriptors[q->posted % QUEUE],
				  &request),
		 ncclSuccess);
	CHECK(request);
	q->requests[q->posted++ % QUEUE] = request;
}

static void retire_some(struct rank *me, int comm, struct queue *q)
{
	int done = 1;

	while (q->ci < q->posted && done) {
		CHECK_EQ(me->w->api->test(me->comm[comm], q->requests[q->ci % QUEUE], &done), ncclSuccess);
		if (done) {
			fetch_add_seq(&me->counter, 1);
			store_seq(&q->ci, q->ci + 1);
		}
	}
}

/* NCCL's GIN thread: one for all contexts of a communicator. */
static void *proxy_main(void *arg)
{
	struct rank *me = arg;

	while (!load_seq(&me->stop))
		for (int c = 0; c < COMMS; c++) {
			for (int x = 0; x < me->w->api->contexts; x++)
				for (uint32_t peer = 0; peer < me->w->n; peer++) {
					retire_some(me, c, &me->queues[c][x][peer]);
					post_one(me, c, x, &me->queues[c][x][peer]);
				}
			CHECK_EQ(me->w->api->progress(me->comm[c], me->group[c]), ncclSuccess);
			sched_yield();
		}
	return NULL;
}

/* ---- what kernels call ---- */

/* Kernels have processors of their own; here they share the CPU with the proxies that they wait for. */
static void leave_cpu(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void kernel_put(struct rank *me, int comm, int context, struct request q)
{
	struct queue *to = &me->queues[comm][context][q.rank];

	while (to->pi == load_seq(&to->ci) + QUEUE)
		leave_cpu();
	to->descriptors[to->pi % QUEUE] = q;
	store_seq(&to->pi, to->pi + 1);
}

static void kernel_flush(struct rank *me, int comm, int context)
{
	for (uint32_t peer = 0; peer < me->w->n; peer++)
		while (load_seq(&me->queues[comm][context][peer].ci) != me->queues[comm][context][peer].pi)
			leave_cpu();
}

static void kernel_wait(struct rank *me, int comm, int context, uint32_t signal, uint64_t value)
{
	while (load_seq(&me->signals[comm][context][signal]) < value)
		leave_cpu();
}

/* ---- the program ---- */

static uint8_t byte_of(uint32_t round, uint32_t from, uint32_t to, int comm, int context, uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u +
		     ((uint64_t)round << 40 | from << 24 | to << 16 | (uint32_t)comm << 8 | (uint32_t)context);

	return (uint8_t)(x >> 40 ^ x >> 17);
}

/* Place of what `from` puts to `to` in a collComm and context, in both ranks' memory. */
static uint64_t place_of(uint32_t peer, int comm, int context)
{
	return ((peer * (uint64_t)COMMS + (uint64_t)comm) * CONTEXTS + (uint64_t)context) * ROOM;
}

static uint64_t size_of(uint32_t round, uint32_t from, uint32_t to, int comm, int context)
{
	random_seed((((uint64_t)round * RANKS + from) * RANKS + to) * 64 + (uint64_t)comm * 8 + (uint64_t)context + 1);
	return random_below(4) ? random_below(6000) : random_below(ROOM);
}

/* Two puts, the signal with the second, and one to the word that all ranks add to. */
static void put_round(struct rank *me, uint32_t round, uint32_t to, int c, int x)
{
	uint64_t size = size_of(round, me->rank, to, c, x), first = size / 3, at = place_of(to, c, x);
	struct request q = {.src = at,
			    .dst = place_of(me->rank, c, x),
			    .size = first,
			    .src_mr = me->source_mr[c],
			    .dst_mr = me->target_mr[c],
			    .rank = to};

	for (uint64_t i = 0; i < size; i++)
		me->source[at + i] = byte_of(round, me->rank, to, c, x, i);
	if (first)
		kernel_put(me, c, x, q);
	q.src += first;
	q.dst += first;
	q.size = size - first;
	q.signal_mr = me->signals_mr[c][x];
	q.signal = 8 * me->rank;
	q.op = NCCL_NET_SIGNAL_OP_INC;
	q.value = 77; /* an increment adds 1 whatever is here */
	if (!q.size)
		q.src = q.dst = 0, q.src_mr = q.dst_mr = NULL;
	kernel_put(me, c, x, q);
	q = (struct request){.rank = to,
			     .signal_mr = me->signals_mr[c][x],
			     .signal = 8ull * RANKS,
			     .op = NCCL_NET_SIGNAL_OP_ADD,
			     .value = ((uint64_t)me->rank + 1) << 33};
	kernel_put(me, c, x, q);
}

static void check_round(struct rank *me, uint32_t round, uint32_t from, int c, int x)
{
	uint64_t size = size_of(round, from, me->rank, c, x);
	uint8_t *at = me->target + place_of(from, c, x);

	kernel_wait(me, c, x, from, round % 4 + 1);
	for (uint64_t i = 0; i < size; i++)
		CHECK_EQ(at[i], byte_of(round, from, me->rank, c, x, i));
	memset(at, 0, size);
}

/* Signals start at 0 again, as ncclGin's resetSignal makes them: the owner stores when none is on its way. */
static void reset_signals(struct rank *me, int c, int x)
{
	const uint64_t each = (uint64_t)me->w->n * (me->w->n + 1) / 2;

	kernel_wait(me, c, x, RANKS, 4 * each << 33);
	CHECK_EQ(me->signals[c][x][RANKS], 4 * each << 33);
	for (uint32_t i = 0; i < SIGNALS; i++)
		store_seq(&me->signals[c][x][i], 0);
}

#define EACH_CONTEXT(c, x)                                                                                             \
	for (int c = 0; c < COMMS; c++)                                                                                \
		for (int x = 0; x < me->w->api->contexts; x++)

static void run_kernels(struct rank *me, uint64_t *meets)
{
	uint64_t puts = 0;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		EACH_CONTEXT(c, x)
		for (uint32_t i = 0; i < me->w->n; i++)
			put_round(me, round, (me->rank + i) % me->w->n, c, x);
		EACH_CONTEXT(c, x)
		kernel_flush(me, c, x);
		memset(me->source, 0xee,
		       (size_t)me->w->n * COMMS * CONTEXTS * ROOM); /* flushed: it may be used again */
		EACH_CONTEXT(c, x)
		for (uint32_t i = 0; i < me->w->n; i++)
			check_round(me, round, i, c, x);
		if (round % 4 == 3)
			EACH_CONTEXT(c, x)
		reset_signals(me, c, x);
		meet_all(me->w, ++*meets);
	}
	EACH_CONTEXT(c, x)
	for (uint32_t i = 0; i < me->w->n; i++)
		puts += me->queues[c][x][i].pi;
	CHECK_EQ(load_seq(&me->counter), puts);
}

/* By the proxy's thread in NCCL; here after it has ended. */
static void run_gets(struct rank *me)
{
	const struct api *api = me->w->api;
	const uint32_t peer = (me->rank + 1) % me->w->n;
	struct request q = {.src = 5, .dst = 77, .size = ROOM - 100, .rank = peer};
	void *get = NULL, *flush = NULL;
	int done = 0;

	q.src_mr = me->target_mr[0];
	q.dst_mr = me->source_mr[0];
	CHECK_EQ(api->get(me->group[0], 1, &q, &get), ncclSuccess);
	CHECK_EQ(api->flush(me->group[0], 1, peer, &flush), ncclSuccess);
	CHECK(get && flush);
	while (!done) {
		CHECK_EQ(api->test(me->comm[0], flush, &done), ncclSuccess);
		CHECK_EQ(api->progress(me->comm[0], me->group[0]), ncclSuccess);
	}
	CHECK_EQ(api->test(me->comm[0], get, &done), ncclSuccess);
	CHECK(done);
	for (uint64_t i = 0; i < q.size; i++)
		CHECK_EQ(me->source[77 + i], byte_of(0, peer, 0, 0, 0, 5 + i));
}

/* ---- life ---- */

static void connect_comm(struct rank *me, int c)
{
	struct world *w = me->w;
	void *handles[RANKS];

	for (uint32_t i = 0; i < w->n; i++)
		handles[i] = w->handles[c][i];
	if (me->rank == w->late && c == 0)
		nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	CHECK_EQ(w->api->connect(handles, (int)w->n, (int)me->rank, me->listen[c], &me->comm[c]), ncclSuccess);
	CHECK_EQ(w->api->close_listen(me->listen[c]), ncclSuccess);
}

static void register_all(struct rank *me, int c)
{
	const struct api *api = me->w->api;
	const size_t size = (size_t)me->w->n * COMMS * CONTEXTS * ROOM;
	void *mr, *first = NULL;

	for (int x = 0; x < CONTEXTS; x++) {
		me->signals[c][x] = memory_get(SIGNALS * 8);
		CHECK_EQ(api->reg(me->comm[c], me->signals[c][x], SIGNALS * 8, &mr, &me->signals_mr[c][x]),
			 ncclSuccess);
		CHECK(mr == me->signals_mr[c][x] && (uintptr_t)mr >> 63 == 0);
		first = first ? first : mr;
	}
	CHECK_EQ(api->reg(me->comm[c], me->source, size, &mr, &me->source_mr[c]), ncclSuccess);
	CHECK_EQ(api->reg(me->comm[c], me->target, size, &mr, &me->target_mr[c]), ncclSuccess);
	CHECK(mr != first);
}

static void open_rank(struct rank *me, uint64_t *meets)
{
	struct world *w = me->w;
	const size_t size = (size_t)w->n * COMMS * CONTEXTS * ROOM;

	use_gpu();
	me->source = memory_get(size);
	me->target = memory_get(size);
	CHECK_EQ(w->api->init(&me->ctx), ncclSuccess);
	for (int c = 0; c < COMMS; c++)
		CHECK_EQ(w->api->listen(me->ctx, w->handles[c][me->rank], &me->listen[c]), ncclSuccess);
	meet_all(w, ++*meets);
	for (int c = 0; c < COMMS; c++) {
		connect_comm(me, c);
		CHECK_EQ(w->api->group(me->comm[c], &me->group[c]), ncclSuccess);
		register_all(me, c);
	}
	meet_all(w, ++*meets);
}

static void close_rank(struct rank *me)
{
	const struct api *api = me->w->api;

	for (int c = 0; c < COMMS; c++) {
		CHECK_EQ(api->dereg(me->comm[c], me->target_mr[c]), ncclSuccess);
		CHECK_EQ(api->dereg(me->comm[c], me->source_mr[c]), ncclSuccess);
		CHECK_EQ(api->ungroup(me->group[c]), ncclSuccess);
		CHECK_EQ(api->close(me->comm[c]),
			 ncclSuccess); /* words of signals are still registered, as NCCL leaves them */
		for (int x = 0; x < CONTEXTS; x++)
			memory_put(me->signals[c][x]);
	}
	CHECK_EQ(api->finalize(me->ctx), ncclSuccess);
	memory_put(me->source);
	memory_put(me->target);
}

static void *rank_main(void *arg)
{
	struct rank *me = arg;
	uint64_t meets = 0;
	pthread_t proxy;

	open_rank(me, &meets);
	threads_start(&proxy, 1, proxy_main, me, 0);
	run_kernels(me, &meets);
	for (size_t i = 0; i < ROOM; i++)
		me->target[i] = byte_of(0, me->rank, 0, 0, 0, i);
	meet_all(me->w, ++meets);
	if (me->w->api->get) {
		store_seq(&me->stop, 1);
		threads_join(&proxy, 1);
		run_gets(me);
		store_seq(&me->stop, 0);
		threads_start(&proxy, 1, proxy_main, me, 0); /* peers may still be asking */
	}
	meet_all(me->w, ++meets);
	store_seq(&me->stop, 1);
	threads_join(&proxy, 1);
	meet_all(me->w, ++meets);
	close_rank(me);
	return NULL;
}

static void run_world(const struct api *api, uint32_t n, uint32_t late)
{
	struct world *w = calloc(1, sizeof(*w));
	pthread_t t[RANKS], streams;

	CASE("%s, %u ranks", api->symbol, n);
	w->api = api;
	w->n = n;
	w->late = late;
	for (uint32_t i = 0; i < n; i++) {
		w->ranks[i].w = w;
		w->ranks[i].rank = i;
	}
	if (fake) {
		use_gpu();
		store_seq(&stop_streams, 0);
		__atomic_store_n(&fake->late, 1, __ATOMIC_SEQ_CST);
		threads_start(&streams, 1, run_streams, NULL, 0);
	}
	threads_start(t, (int)n, rank_main, w->ranks, sizeof(w->ranks[0]));
	threads_join(t, (int)n);
	if (fake) {
		store_seq(&stop_streams, 1);
		threads_join(&streams, 1);
	}
	free(w);
}

/* ---- tests ---- */

static void *symbol_of(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *symbol = driver ? dlsym(driver, name) : NULL;

	CHECK(symbol);
	return symbol;
}

void tests_begin(void);
void tests_begin(void)
{
	const char *build = getenv("BUILD_DIR");
	static char path[4096];

	snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build ? build : ".");
	if (access(path, R_OK) != 0)
		SKIP("no plugin: set BUILD_DIR to the build folder");
	setenv("GANTRY_IFNAME", "lo", 1);
	if (getenv("GANTRY_TEST_GPU")) {
#ifdef __SANITIZE_THREAD__
		SKIP("kernels poll words that the driver copies to: a race by the letter");
#endif
		FAKE_OPEN(fake);
		gpu.init = symbol_of("cuInit");
		gpu.retain = symbol_of("cuDevicePrimaryCtxRetain");
		gpu.set_current = symbol_of("cuCtxSetCurrent");
		gpu.alloc = symbol_of("cuMemAlloc_v2");
		gpu.free = symbol_of("cuMemFree_v2");
	}
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
}

/* In a process of its own: parameters are read once. */
static void init_with(const char *gin)
{
	pid_t pid = fork();
	int status = 0;

	CHECK(pid >= 0);
	if (pid == 0) {
		void *ctx = NULL;

		setenv("GANTRY_GIN", gin, 1);
		for (int i = 0; i < VERSIONS; i++)
			if (versions[i].init(&ctx) != ncclInvalidUsage)
				_exit(1);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

TEST(off_refuses)
{
	init_with("off");
}

TEST(auto_refuses_without_gpu)
{
	if (!fake && access("/dev/nvidiactl", F_OK) != 0) /* where there is no GPU */
		init_with("auto");
}

TEST(properties_are_those_of_a_proxy)
{
	setenv("GANTRY_GIN", fake ? "auto" : "on", 1);
	for (int i = 0; i < VERSIONS; i++) {
		int type, max_recvs, ptr_support;
		void *ctx = NULL;

		CASE("%s", versions[i].symbol);
		CHECK_EQ(versions[i].init(&ctx), ncclSuccess);
		versions[i].properties(&type, &max_recvs, &ptr_support);
		CHECK_EQ(type, (int)NCCL_NET_DEVICE_GIN_PROXY);
		CHECK(max_recvs > 0 && (max_recvs & (max_recvs - 1)) == 0);
		CHECK(ptr_support & NCCL_PTR_HOST);
		CHECK_EQ(!(ptr_support & NCCL_PTR_CUDA), !fake);
		CHECK(!(ptr_support & NCCL_PTR_DMABUF));
		CHECK_EQ(versions[i].finalize(ctx), ncclSuccess);
		CHECK_EQ(versions[i].finalize(NULL), ncclSuccess);
	}
}

TEST(every_version)
{
	for (int i = 0; i < VERSIONS; i++)
		run_world(&versions[i], 2 + (uint32_t)i % 2, RANKS);
}

TEST(one_to_four_ranks)
{
	for (uint32_t n = 1; n <= (SANITIZED ? 3 : RANKS); n++)
		run_world(&versions[n % 2 ? VERSIONS - 1 : 0], n, n - 1);
}
