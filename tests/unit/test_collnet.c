/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's collNet tables as NCCL meets them: the library is opened, each rank is a process, handles are exchanged,
 * connect is one call, and then requests are posted and tested. All versions, 2 to 4 ranks.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "abi/collnet_v12.h"
#include "reduce_util.h"

enum { RANKS = 4, TEXT = 4096, ROOM = 1 << 20 };

/* Of all processes of a test. */
static struct shared {
	uint8_t handles[RANKS][NCCL_NET_HANDLE_MAXSIZE];
	uint32_t arrived, sums[RANKS];
	uint64_t begun;		/* ns: when a rank was killed or stopped */
	char text[RANKS][TEXT]; /* warnings and errors */
} * shared;

static uint32_t nranks, rank;
static void *library, *ctx;

static pthread_mutex_t text_mu = PTHREAD_MUTEX_INITIALIZER; /* the service thread logs too */

static void log_text(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	char *to = shared->text[rank];
	va_list args;
	size_t at;

	if (level != NCCL_LOG_WARN)
		return;
	va_start(args, fmt);
	pthread_mutex_lock(&text_mu);
	at = strlen(to);
	vsnprintf(to + at, TEXT - at, fmt, args);
	pthread_mutex_unlock(&text_mu);
	va_end(args);
}

/* A warning of this rank has that in it; "": there is none. */
static int has_text(const char *part)
{
	int found;

	pthread_mutex_lock(&text_mu);
	found = *part ? strstr(shared->text[rank], part) != NULL : !*shared->text[rank];
	pthread_mutex_unlock(&text_mu);
	return found;
}

/* ---- one form of all versions ---- */

struct api {
	const char *symbol;
	ncclResult_t (*init)(void);
	ncclResult_t (*finalize)(void);
	ncclResult_t (*listen)(int dev, void *handle, void **listen);
	ncclResult_t (*connect)(void *handles[], int n, int rank, void *listen, void **comm);
	ncclResult_t (*support)(ncclDataType_t type, ncclRedOp_t op, int *yes);
	ncclResult_t (*reg)(void *comm, void *data, size_t size, void **mr);
	ncclResult_t (*dereg)(void *comm, void *mr);
	ncclResult_t (*iallreduce)(void *comm, void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
				   void *mr, void **request);
	/* NULL before v8 */
	ncclResult_t (*iallgather)(void *comm, void *own, void *all, size_t per_rank, size_t offset, size_t bytes,
				   void *mr, void **request);
	ncclResult_t (*ireducescatter)(void *comm, void *all, void *own, size_t per_rank, size_t offset, size_t bytes,
				       void *mr, void **request);
	ncclResult_t (*iflush)(void *comm, void *data, void *mr, void **request);
	ncclResult_t (*test)(void *request, int *done, int *size);
	ncclResult_t (*close)(void *comm);
	ncclResult_t (*close_listen)(void *listen);
	const char *(*device)(int *ptr_support); /* of device 0 */
};

#define TABLE(v) ((const ncclCollNet_##v##_t *)dlsym(library, "ncclCollNetPlugin_" #v))
#define EVERY_VERSION(v, C)                                                                                            \
	static ncclResult_t v##_connect(void *handles[], int n, int me, void *listen, void **comm)                     \
	{                                                                                                              \
		return TABLE(v)->connect(handles, n, me, listen, comm);                                                \
	}                                                                                                              \
	static ncclResult_t v##_support(ncclDataType_t type, ncclRedOp_t op, int *yes)                                 \
	{                                                                                                              \
		return TABLE(v)->reduceSupport(type, op, yes);                                                         \
	}                                                                                                              \
	static ncclResult_t v##_reg(void *comm, void *data, size_t size, void **mr)                                    \
	{                                                                                                              \
		return TABLE(v)->regMr(comm, data, size, NCCL_PTR_HOST, mr);                                           \
	}                                                                                                              \
	static ncclResult_t v##_dereg(void *comm, void *mr)                                                            \
	{                                                                                                              \
		return TABLE(v)->deregMr(comm, mr);                                                                    \
	}                                                                                                              \
	static ncclResult_t v##_iallreduce(void *comm, void *in, void *out, size_t count, ncclDataType_t type,         \
					   ncclRedOp_t op, void *mr, void **request)                                   \
	{                                                                                                              \
		return TABLE(v)->iallreduce(comm, in, out, (C)count, type, op, mr, mr, request);                       \
	}                                                                                                              \
	static ncclResult_t v##_iflush(void *comm, void *data, void *mr, void **request)                               \
	{                                                                                                              \
		return TABLE(v)->iflush(comm, data, 8, mr, request);                                                   \
	}                                                                                                              \
	static ncclResult_t v##_test(void *request, int *done, int *size)                                              \
	{                                                                                                              \
		return TABLE(v)->test(request, done, size);                                                            \
	}                                                                                                              \
	static ncclResult_t v##_close(void *comm)                                                                      \
	{                                                                                                              \
		return TABLE(v)->closeColl(comm);                                                                      \
	}                                                                                                              \
	static ncclResult_t v##_close_listen(void *listen)                                                             \
	{                                                                                                              \
		return TABLE(v)->closeListen(listen);                                                                  \
	}                                                                                                              \
	static const char *v##_device(int *ptr_support)                                                                \
	{                                                                                                              \
		ncclNetProperties_##v##_t p;                                                                           \
		int n = 0;                                                                                             \
                                                                                                                       \
		CHECK_EQ(TABLE(v)->devices(&n), ncclSuccess);                                                          \
		CHECK(n > 0);                                                                                          \
		CHECK_EQ(TABLE(v)->getProperties(0, &p), ncclSuccess);                                                 \
		*ptr_support = p.ptrSupport;                                                                           \
		return p.name;                                                                                         \
	}
#define WITHOUT_CONTEXT(v)                                                                                             \
	static ncclResult_t v##_init(void)                                                                             \
	{                                                                                                              \
		return TABLE(v)->init(log_text);                                                                       \
	}                                                                                                              \
	static ncclResult_t v##_finalize(void)                                                                         \
	{                                                                                                              \
		return ncclSuccess;                                                                                    \
	}                                                                                                              \
	static ncclResult_t v##_listen(int dev, void *handle, void **listen)                                           \
	{                                                                                                              \
		return TABLE(v)->listen(dev, handle, listen);                                                          \
	}
#define WITH_CONTEXT(v)                                                                                                \
	static ncclResult_t v##_init(void)                                                                             \
	{                                                                                                              \
		return TABLE(v)->init(&ctx, 4711, log_text);                                                           \
	}                                                                                                              \
	static ncclResult_t v##_finalize(void)                                                                         \
	{                                                                                                              \
		return TABLE(v)->finalize(ctx);                                                                        \
	}                                                                                                              \
	static ncclResult_t v##_listen(int dev, void *handle, void **listen)                                           \
	{                                                                                                              \
		return TABLE(v)->listen(ctx, dev, handle, listen);                                                     \
	}
/* In two parts where that is possible. */
#define WINDOWS(v)                                                                                                     \
	static int v##_parts(void *data, size_t bytes, ncclNetSGE_##v##_t *parts)                                      \
	{                                                                                                              \
		size_t first = bytes / 8 * 4;                                                                          \
                                                                                                                       \
		parts[0] = (ncclNetSGE_##v##_t){.address = data, .size = first ? first : bytes};                       \
		parts[1] = (ncclNetSGE_##v##_t){.address = (char *)data + first, .size = bytes - first};               \
		return first ? 2 : 1;                                                                                  \
	}                                                                                                              \
	static ncclResult_t v##_iallgather(void *comm, void *own, void *all, size_t per_rank, size_t offset,           \
					   size_t bytes, void *mr, void **request)                                     \
	{                                                                                                              \
		ncclNetSGE_##v##_t parts[2];                                                                           \
		int n = v##_parts(all, bytes, parts);                                                                  \
                                                                                                                       \
		return TABLE(v)->iallgather(comm, own, n, parts, per_rank, offset, bytes, mr, request);                \
	}                                                                                                              \
	static ncclResult_t v##_ireducescatter(void *comm, void *all, void *own, size_t per_rank, size_t offset,       \
					       size_t bytes, void *mr, void **request)                                 \
	{                                                                                                              \
		ncclNetSGE_##v##_t parts[2];                                                                           \
		int n = v##_parts(all, bytes, parts);                                                                  \
                                                                                                                       \
		return TABLE(v)->ireducescatter(comm, n, parts, own, per_rank, offset, bytes, ncclInt32, ncclSum, mr,  \
						request);                                                              \
	}
#define ROW(v)                                                                                                         \
	{                                                                                                              \
		"ncclCollNetPlugin_" #v, v##_init, v##_finalize, v##_listen, v##_connect, v##_support, v##_reg,        \
			v##_dereg, v##_iallreduce, v##_iallgather, v##_ireducescatter, v##_iflush, v##_test,           \
			v##_close, v##_close_listen, v##_device                                                        \
	}

EVERY_VERSION(v6, int)
EVERY_VERSION(v7, int)
EVERY_VERSION(v8, int)
EVERY_VERSION(v9, size_t)
EVERY_VERSION(v10, size_t)
EVERY_VERSION(v11, size_t)
EVERY_VERSION(v12, size_t)
WITHOUT_CONTEXT(v6)
WITHOUT_CONTEXT(v7)
WITHOUT_CONTEXT(v8)
WITHOUT_CONTEXT(v9)
WITHOUT_CONTEXT(v10)
WITH_CONTEXT(v11)
WITH_CONTEXT(v12)
#define v6_iallgather NULL
#define v6_ireducescatter NULL
#define v7_iallgather NULL
#define v7_ireducescatter NULL
WINDOWS(v8)
WINDOWS(v9)
WINDOWS(v10)
WINDOWS(v11)
WINDOWS(v12)
static const struct api versions[] = {ROW(v6), ROW(v7), ROW(v8), ROW(v9), ROW(v10), ROW(v11), ROW(v12)};

/* ---- worlds ---- */

void tests_begin(void);
void tests_begin(void)
{
	const char *build = getenv("BUILD_DIR");
	static char path[4096];

	snprintf(path, sizeof(path), "%s/lib/libnccl-net-gantry.so", build ? build : ".");
	if (access(path, R_OK) != 0)
		SKIP("no plugin: set BUILD_DIR to the build folder");
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_TIMEOUT", "20s", 1);
	setenv("NCCL_COLLNET_ENABLE", "1", 1);
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
}

static void meet_all(uint32_t times)
{
	__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL);
	WAIT_WHILE (__atomic_load_n(&shared->arrived, __ATOMIC_ACQUIRE) < times * nranks)
		sched_yield();
}

struct coll {
	const struct api *api;
	void *comm, *mr;
	char *in, *out;
};

static void open_coll(struct coll *c, const struct api *api)
{
	void *listen = NULL, *handles[RANKS];
	int ptr_support = 0;

	*c = (struct coll){.api = api, .in = malloc(2 * ROOM)};
	c->out = c->in + ROOM;
	CHECK_EQ(api->init(), ncclSuccess);
	CHECK(strcmp(api->device(&ptr_support), "lo") == 0);
	CHECK_EQ(ptr_support, NCCL_PTR_HOST);
	CHECK_EQ(api->listen(0, shared->handles[rank], &listen), ncclSuccess);
	meet_all(1);
	for (uint32_t i = 0; i < nranks; i++)
		handles[i] = shared->handles[i];
	CHECK_EQ(api->connect(handles, (int)nranks, (int)rank, listen, &c->comm), ncclSuccess);
	CHECK(c->comm);
	CHECK_EQ(api->close_listen(listen), ncclSuccess);
	CHECK_EQ(api->reg(c->comm, c->in, 2 * ROOM, &c->mr), ncclSuccess);
}

static void close_coll(struct coll *c)
{
	CHECK_EQ(c->api->dereg(c->comm, c->mr), ncclSuccess);
	CHECK_EQ(c->api->close(c->comm), ncclSuccess);
	CHECK_EQ(c->api->finalize(), ncclSuccess);
	free(c->in);
}

static void wait_request(struct coll *c, void *request, size_t bytes)
{
	int done = 0, size = -1;

	CHECK(request);
	WAIT_WHILE (!done)
		CHECK_EQ(c->api->test(request, &done, &size), ncclSuccess);
	CHECK_EQ(size, (int)bytes);
}

static void all_reduce(struct coll *c, uint32_t type, uint32_t op, size_t count)
{
	static char want[ROOM];
	size_t bytes = count * element_bytes(type);
	void *request = NULL;
	int yes = 0;

	CHECK_EQ(c->api->support((ncclDataType_t)type, (ncclRedOp_t)op, &yes), ncclSuccess);
	CHECK_EQ(yes, 1);
	fill_values(c->in, type, op, rank, count);
	fill_expected(want, type, op, nranks, count);
	CHECK_EQ(c->api->iallreduce(c->comm, c->in, c->out, count, (ncclDataType_t)type, (ncclRedOp_t)op, c->mr,
				    &request),
		 ncclSuccess);
	wait_request(c, request, bytes);
	CHECK(memcmp(c->out, want, bytes) == 0);
}

static void gather_and_scatter(struct coll *c, size_t per_rank, size_t offset, size_t bytes)
{
	size_t first = rank * per_rank > offset ? rank * per_rank : offset;
	size_t end = (rank + 1) * per_rank < offset + bytes ? (rank + 1) * per_rank : offset + bytes;
	int32_t *in = (int32_t *)c->in, *out = (int32_t *)c->out;
	void *request = NULL;

	for (size_t i = first; i < end; i += 4)
		in[(i - first) / 4] = (int32_t)(i * 3);
	CHECK_EQ(c->api->iallgather(c->comm, in, out, per_rank, offset, bytes, c->mr, &request), ncclSuccess);
	wait_request(c, request, bytes);
	for (size_t i = 0; i < bytes; i += 4)
		CHECK_EQ(out[i / 4], (int32_t)((offset + i) * 3));
	for (size_t i = 0; i < bytes; i += 4)
		in[i / 4] = (int32_t)((offset + i) * (rank + 1));
	CHECK_EQ(c->api->ireducescatter(c->comm, in, out, per_rank, offset, bytes, c->mr, &request), ncclSuccess);
	wait_request(c, request, bytes);
	for (size_t i = first; i < end; i += 4)
		CHECK_EQ(out[(i - first) / 4], (int32_t)(i * (nranks * (nranks + 1) / 2)));
}

static int runs; /* of ranks, so far */

/* Asked by LeakSanitizer at the end of a process. On aarch64 its search takes seconds: it has to do with one of them. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return runs > 1 || rank;
}

/* Runs `body` as n processes; those in `lost` may end as they like. */
static void run_ranks(uint32_t n, const struct api *api, void (*body)(const struct api *), uint32_t lost)
{
	pid_t pids[RANKS];
	int status;

	memset(shared, 0, sizeof(*shared));
	nranks = n;
	runs++;
	for (uint32_t i = 0; i < n; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (!pids[i]) {
			rank = i;
			prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that is stopped must not outlive a test that fails */
			body(api);
			exit(0);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		if (lost & 1u << i)
			continue;
		CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
		CHECK_EQ(status, 0);
	}
	for (uint32_t i = 0; i < n; i++)
		if (lost & 1u << i) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], &status, 0);
		}
}

static void all_of_it(const struct api *api)
{
	static const size_t sizes[] = {1, 3, 1000, 65537, 30001, 250001};
	const int newest = api == &versions[TEST_COUNT(versions) - 1];
	void *request = (void *)1;
	struct coll c;
	int yes = 1;

	open_coll(&c, api);
	for (size_t i = 0; i < TEST_COUNT(sizes); i += newest ? 1 : 2)
		all_reduce(&c, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, sizes[i]);
	for (uint32_t type = 0; newest && type < GANTRY_TYPE_COUNT; type++)
		for (uint32_t op = 0; op <= GANTRY_OP_MIN; op++)
			all_reduce(&c, type, op, 777);
	if (api->iallgather) {
		gather_and_scatter(&c, 4000, 0, nranks * 4000);
		gather_and_scatter(&c, 4000, 2000, 4000);
		gather_and_scatter(&c, 200000, 100000, 200000);
	}
	CHECK_EQ(api->iflush(c.comm, c.in, c.mr, &request), ncclSuccess);
	CHECK(!request);
	CHECK_EQ(api->support(ncclFloat32, (ncclRedOp_t)4, &yes), ncclSuccess);
	CHECK_EQ(yes, 0);
	close_coll(&c);
	CHECK(has_text("")); /* no warning */
}

TEST(all_versions)
{
	EACH_ROW (i, versions)
		run_ranks(2 + i % 3, &versions[i], all_of_it, 0);
	run_ranks(3, &versions[TEST_COUNT(versions) - 1], all_of_it, 0);
	run_ranks(4, &versions[TEST_COUNT(versions) - 1], all_of_it, 0);
}

/* Any bits at all, which is what lies behind the end of NCCL's chunks too. */
static void sum_random(const struct api *api)
{
	enum { COUNT = 200000 };
	static const uint8_t types[] = {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat8e4m3, ncclFloat64};
	struct coll c;

	open_coll(&c, api);
	for (size_t t = 0; t < sizeof(types); t++) {
		size_t count = types[t] == ncclFloat64 ? COUNT / 2 : COUNT;
		size_t bytes = count * element_bytes(types[t]);
		void *request = NULL;
		uint64_t x = 88172645463325252u + rank * 977 + t;

		for (size_t i = 0; i < bytes; i += 8) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			memcpy(c.in + i, &x, 8);
		}
		CHECK_EQ(api->iallreduce(c.comm, c.in, c.out, count, types[t], ncclSum, c.mr, &request), ncclSuccess);
		wait_request(&c, request, bytes);
		for (size_t i = 0; i < bytes; i++)
			shared->sums[rank] = shared->sums[rank] * 31 + (uint8_t)c.out[i];
	}
	close_coll(&c);
}

TEST(results_repeat)
{
	uint32_t first;

	run_ranks(3, &versions[5], sum_random, 0);
	first = shared->sums[0];
	CHECK(first);
	for (int i = 0; i < 2; i++) {
		for (uint32_t k = 0; k < 3; k++)
			CHECK_EQ(shared->sums[k], first);
		if (i == 0)
			run_ranks(3, &versions[5], sum_random, 0);
	}
}

/* ---- encrypted ---- */

static void encrypt(const char *how)
{
	setenv("GANTRY_SECRET", "a secret of thirty-two characters", 1);
	setenv("GANTRY_ENCRYPT", how, 1);
}

static void sum_encrypted(const struct api *api)
{
	encrypt("require");
	sum_random(api);
}

static void require_alone(const struct api *api)
{
	void *listen = NULL, *comm = NULL, *handles[2] = {shared->handles[0], shared->handles[1]};

	encrypt(rank ? "off" : "require");
	setenv("GANTRY_CONNECT_TIMEOUT", "20s", 1);
	CHECK_EQ(api->init(), ncclSuccess);
	CHECK_EQ(api->listen(0, shared->handles[rank], &listen), ncclSuccess);
	meet_all(1);
	CHECK(api->connect(handles, 2, (int)rank, listen, &comm) != ncclSuccess);
	CHECK(has_text("GANTRY_ENCRYPT=require"));
	meet_all(2);
}

/* Reducers between ranks that encrypt: the same sums; a rank that does not is refused, and both say why. */
TEST(encrypted)
{
	uint32_t plain;

	if (!GANTRY_HAVE_OPENSSL)
		return;
	run_ranks(2, &versions[5], sum_random, 0);
	plain = shared->sums[0];
	run_ranks(2, &versions[5], sum_encrypted, 0);
	CHECK(plain);
	CHECK_EQ(shared->sums[0], plain);
	CHECK_EQ(shared->sums[1], plain);
	run_ranks(2, &versions[5], require_alone, 0);
}

/* ---- what goes wrong ---- */

/* Rank 1 is killed or stopped: the others have an error that names it in time. */
static void lose_rank(const struct api *api, int signal)
{
	void *request = NULL;
	struct coll c;
	ncclResult_t r = ncclSuccess;
	int done, size;

	setenv("GANTRY_TIMEOUT", "1s", 1);
	open_coll(&c, api);
	for (uint32_t i = 0; r == ncclSuccess; i++) {
		if (i == 20 && rank == 1) {
			__atomic_store_n(&shared->begun, gantry_now_ns(), __ATOMIC_RELEASE);
			raise(signal);
		}
		r = api->iallreduce(c.comm, c.in, c.out, ROOM / 4, ncclFloat32, ncclSum, c.mr, &request);
		for (done = 0; r == ncclSuccess && request && !done;)
			r = api->test(request, &done, &size);
	}
	CHECK_EQ(r, ncclRemoteError);
	CHECK(gantry_now_ns() - __atomic_load_n(&shared->begun, __ATOMIC_ACQUIRE) < 2000000000u);
	CHECK(has_text("rank 1 was lost") || has_text("reducer 1 of 3"));
	CHECK_EQ(api->close(c.comm), ncclSuccess);
}

static void lose_killed(const struct api *api)
{
	lose_rank(api, SIGKILL);
}

static void lose_stopped(const struct api *api)
{
	lose_rank(api, SIGSTOP);
}

TEST(a_rank_is_killed)
{
	run_ranks(3, &versions[5], lose_killed, 2);
}

TEST(a_rank_is_stopped)
{
	run_ranks(3, &versions[5], lose_stopped, 2);
}

/* connect ends by itself, and closes the listener, which NCCL forgets; closing it all the same does no harm. */
static void refuse(const struct api *api)
{
	void *listen = NULL, *comm = NULL, *handles[2] = {shared->handles[0], shared->handles[1]};

	setenv("GANTRY_CONNECT_TIMEOUT", "300ms", 1);
	CHECK_EQ(api->init(), ncclSuccess);
	CHECK_EQ(api->listen(0, shared->handles[rank], &listen), ncclSuccess);
	meet_all(1);
	if (rank == 0) {
		CHECK(api->connect(handles, 2, 0, listen, &comm) != ncclSuccess);
		CHECK(!comm);
		CHECK(has_text("rank 1"));
		CHECK_EQ(api->close_listen(listen), ncclSuccess);
	}
	meet_all(2);
}

TEST(a_rank_that_does_not_connect)
{
	run_ranks(2, &versions[5], refuse, 0);
}

static void not_wanted(const struct api *api)
{
	unsetenv("NCCL_COLLNET_ENABLE");
	CHECK(api->init() != ncclSuccess);
	CHECK(has_text(""));
}

TEST(without_the_variable)
{
	EACH_ROW (i, versions)
		run_ranks(1, &versions[i], not_wanted, 0);
}
