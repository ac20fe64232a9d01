/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of GIN and RMA, called as NCCL calls them (src/gin/gin_host.cc, gin_host_proxy.cc, src/rma):
 *
 *   listen, connect  by all ranks together; connect waits for the others. NCCL 2.28 gives connect another context than listen:
 *                    that of the process's first communicator, and NULL in later ones
 *   regMrSym         by all ranks in the same order: signals, a block for inline values, then what the user registers
 *   the GIN thread   from connect to close: requests, test, ginProgress. There is no "again later" for a request
 *   the user         deregMrSym and closeColl, on each rank for itself
 */
#include "check/check_gin.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"

enum { ALIGN = 4096, SETTLE_MS = 2000 };
static const size_t place_size[GIN_PLACES] = {[GIN_SIGNALS] = GIN_WORDS * sizeof(uint64_t),
					      [GIN_INLINES] = 4096,
					      [GIN_SOURCE] = GIN_RANKS * (size_t)GIN_SLOT,
					      [GIN_TARGET] = GIN_RANKS * (size_t)GIN_SLOT};
static const uint64_t place_flags[GIN_PLACES] = {[GIN_SIGNALS] = NCCL_NET_MR_FLAG_FORCE_SO};

/* ---- calls ---- */

static enum check_thread status_of(const struct gin_rank *r, enum gin_thread thread)
{
	return (enum check_thread)((r->w->number * GIN_PER + r->rank % GIN_PER) * CHECK_OF_ONE + (int)thread);
}

uint64_t gin_enter(struct gin_rank *r, enum gin_thread thread, const char *call)
{
	return check_enter(r->w->s, status_of(r, thread), call);
}

void gin_leave(struct gin_rank *r, enum gin_thread thread, uint64_t since)
{
	check_leave(r->w->s, status_of(r, thread), since);
}

void gin_must(struct gin_rank *r, ncclResult_t result, const char *call)
{
	if (result != ncclSuccess)
		check_fail(r->w->s, "%s of rank %d gave %d, phase: %s", call, r->rank, (int)result, r->w->s->me->phase);
}

/* ---- init ---- */

static void *init_context(struct gin_rank *r)
{
	static bool succeeded;
	ncclDebugLogger_t log = gantry_loader_logger(r->w->s->loader);
	void *ctx = NULL;
	ncclResult_t result = GIN_CALL(r, GIN_JOB, "init", r->w->t->init(&ctx, 0x67696e, log));

	if (result != ncclSuccess && succeeded)
		check_fail(r->w->s, "init gives %d after it has succeeded before", (int)result);
	if (result != ncclSuccess)
		check_skip(r->w->s, "init gives %d: NCCL goes on without GIN", (int)result);
	succeeded = true;
	return ctx;
}

static void init_rank(struct gin_rank *r)
{
	struct gin_world *w = r->w;

	r->ctx = init_context(r);
	r->connect_ctx = r->ctx;
	if (w->t->version < GIN_V_CONTEXTS)
		r->connect_ctx = init_context(r);
	r->contexts = w->t->version < GIN_V_CONTEXTS ? 1 : GIN_CONTEXTS;
	r->rng = (uint64_t)(1000 * w->number + r->rank);
}

void gin_init(struct check_side *s, struct gin_world *w, struct gin_table *t)
{
	int n;

	memset(w, 0, sizeof(*w));
	gin_table_read(t, s->table, s->version);
	if (!t->init)
		check_fail(s, "init is NULL, and NCCL calls it without looking");
	w->s = s;
	w->t = t;
	w->rank = check_alloc(s, GIN_PER, sizeof(*w->rank));
	for (int i = 0; i < GIN_PER; i++) {
		w->rank[i].w = w;
		w->rank[i].rank = s->role * GIN_PER + i;
		init_rank(&w->rank[i]);
	}
	gin_table_read(t, s->table, s->version); /* init may have filled it */
	memset(&n, GANTRY_NET_UNWRITTEN, sizeof(n));
	if (!t->devices)
		check_fail(s, "devices is NULL, and NCCL calls it without looking");
	if (GIN_CALL(w->rank, GIN_JOB, "devices", t->devices(&n)) != ncclSuccess || n < 1)
		check_skip(s, "no device: NCCL goes on without GIN");
	s->devices = n;
}

void gin_init_data(struct check_side *s, struct gin_world *w, struct gin_table *t)
{
	struct gin_properties p;

	gin_init(s, w, t);
	GIN_MUST(w->rank, GIN_JOB, "getProperties", t->properties(t->raw, 0, &p));
	if (p.type != NCCL_NET_DEVICE_GIN_PROXY)
		check_skip(s, "netDeviceType is %d: not for NCCL's proxy", (int)p.type);
	if (!(p.ptr_support & NCCL_PTR_HOST))
		check_skip(s, "ptrSupport is 0x%x, without host memory", p.ptr_support);
	w->max_recvs = p.max_recvs;
	if (p.max_recvs < 1 || p.max_recvs > GANTRY_NET_MAX_RECVS)
		check_fail(s, "maxRecvs is %d", p.max_recvs);
}

void gin_beside(struct gin_world *w, const struct gin_world *first, int number)
{
	*w = *first;
	w->number = number;
	w->rank = check_alloc(w->s, GIN_PER, sizeof(*w->rank));
	for (int i = 0; i < GIN_PER; i++) {
		const struct gin_rank *of = &first->rank[i];

		w->rank[i] = (struct gin_rank){.w = w,
					       .rank = of->rank,
					       .contexts = of->contexts,
					       .ctx = of->ctx,
					       .connect_ctx = of->connect_ctx,
					       .rng = (uint64_t)(1000 * number + of->rank)};
	}
}

void gin_finalize(struct gin_world *w)
{
	for (int i = 0; i < GIN_PER; i++) {
		struct gin_rank *r = &w->rank[i];

		if (r->connect_ctx != r->ctx && w->t->version < GIN_V_CONTEXTS)
			GIN_MUST(r, GIN_JOB, "finalize", w->t->finalize(r->connect_ctx));
		GIN_MUST(r, GIN_JOB, "finalize", w->t->finalize(r->ctx));
	}
	free(w->rank);
	w->rank = NULL;
}

/* ---- memory ---- */

void gin_register(struct gin_rank *r, struct gin_memory *m, size_t size, uint64_t flags)
{
	const struct gin_table *t = r->w->t;
	void *arena = NULL;

	if (posix_memalign(&arena, ALIGN, size + 2 * GIN_GUARD) != 0)
		check_fail(r->w->s, "no memory (a limit of this machine)");
	*m = (struct gin_memory){.arena = arena, .size = size};
	m->base = m->arena + GIN_GUARD;
	memset(arena, CHECK_POISON, size + 2 * GIN_GUARD);
	GIN_MUST(r, GIN_JOB, "regMrSym", t->reg(t->raw, r->coll, m->base, size, flags, &m->mh, &m->gh));
}

void gin_guards(struct gin_rank *r, const struct gin_memory *m)
{
	size_t at = check_untouched(m->arena, GIN_GUARD);

	if (at < GIN_GUARD)
		check_fail(r->w->s, "rank %d: %zu bytes before a registration of %zu bytes were overwritten", r->rank,
			   GIN_GUARD - at, m->size);
	at = check_untouched(m->base + m->size, GIN_GUARD);
	if (at < GIN_GUARD)
		check_fail(r->w->s, "rank %d: byte %zu behind a registration of %zu bytes was overwritten", r->rank, at,
			   m->size);
}

void gin_deregister(struct gin_rank *r, struct gin_memory *m)
{
	GIN_MUST(r, GIN_JOB, "deregMrSym", r->w->t->dereg(r->coll, m->mh));
	gin_guards(r, m);
	free(m->arena);
	memset(m, 0, sizeof(*m));
}

size_t gin_slot(int from)
{
	return (size_t)from * GIN_SLOT;
}

/* ---- connecting and closing ---- */

static void listen_rank(struct gin_rank *r)
{
	struct check_side *s = r->w->s;
	uint8_t handle[3 * GANTRY_NET_HANDLE_SIZE];
	size_t at, rest = 2 * GANTRY_NET_HANDLE_SIZE;

	memset(handle, CHECK_POISON, sizeof(handle));
	memset(handle, 0, GANTRY_NET_HANDLE_SIZE);
	GIN_MUST(r, GIN_JOB, "listen", r->w->t->listen(r->ctx, 0, handle, &r->listen));
	at = check_untouched(handle + GANTRY_NET_HANDLE_SIZE, rest);
	if (at < rest)
		check_fail(s, "listen wrote byte %zu of a handle of %d bytes", GANTRY_NET_HANDLE_SIZE + at,
			   GANTRY_NET_HANDLE_SIZE);
	memcpy(r->w->handles[r->rank], handle, GANTRY_NET_HANDLE_SIZE);
}

void gin_listen(struct gin_world *w)
{
	size_t part = GIN_PER * (size_t)GANTRY_NET_HANDLE_SIZE;

	for (int i = 0; i < GIN_PER; i++)
		listen_rank(&w->rank[i]);
	check_tell(w->s, w->handles[w->s->role * GIN_PER], part);
	check_hear(w->s, w->handles[!w->s->role * GIN_PER], part);
}

void *gin_connect_rank(void *arg)
{
	struct gin_rank *r = arg;
	const struct gin_table *t = r->w->t;
	void *handles[GIN_RANKS];

	for (int i = 0; i < GIN_RANKS; i++)
		handles[i] = r->w->handles[i];
	check_sleep_ms(r->late_ms);
	GIN_MUST(r, GIN_JOB, "connect", t->connect(t->raw, r->connect_ctx, handles, r->rank, r->listen, &r->coll));
	if (!r->coll)
		check_fail(r->w->s, "connect of rank %d succeeded without a collComm", r->rank);
	if (t->create)
		GIN_MUST(r, GIN_JOB, "createContext", t->create(t->raw, r->coll, &r->gin));
	for (int i = 0; i < GIN_PLACES; i++)
		gin_register(r, &r->memory[i], place_size[i], place_flags[i]);
	memset(r->memory[GIN_SIGNALS].base, 0, place_size[GIN_SIGNALS]); /* as NCCL leaves them */
	GIN_MUST(r, GIN_JOB, "closeListen", t->close_listen(r->listen));
	return NULL;
}

static void start_thread(struct gin_rank *r, pthread_t *ret_thread, void *(*body)(void *))
{
	int error = pthread_create(ret_thread, NULL, body, r);

	if (error)
		check_fail(r->w->s, "cannot start a thread: %s", strerror(error));
}

void gin_threads(struct gin_world *w, void *(*fn)(void *))
{
	for (int i = 0; i < GIN_PER; i++)
		start_thread(&w->rank[i], &w->rank[i].thread, fn);
	for (int i = 0; i < GIN_PER; i++)
		pthread_join(w->rank[i].thread, NULL);
}

void gin_jobs(struct gin_world *w, void *(*fn)(void *))
{
	for (int i = 0; i < GIN_PER; i++)
		start_thread(&w->rank[i], &w->rank[i].job, fn);
	for (int i = 0; i < GIN_PER; i++)
		pthread_join(w->rank[i].job, NULL);
}

void gin_connect(struct gin_world *w, unsigned late_ms)
{
	gin_listen(w);
	check_phase(w->s, "connecting %d ranks", GIN_RANKS);
	w->rank[GIN_PER - 1].late_ms = w->s->role ? late_ms : 0;
	gin_threads(w, gin_connect_rank);
	check_meet(w->s);
}

void gin_open(struct check_side *s, struct gin_world *w, struct gin_table *t)
{
	gin_init_data(s, w, t);
	gin_connect(w, 0);
}

void gin_close_rank(struct gin_rank *r)
{
	const struct gin_table *t = r->w->t;

	for (int i = GIN_PLACES - 1; i >= 0; i--)
		gin_deregister(r, &r->memory[i]);
	if (t->create)
		GIN_MUST(r, GIN_JOB, "destroyContext", t->destroy(r->gin));
	GIN_MUST(r, GIN_JOB, "closeColl", t->close_coll(r->coll));
}

void gin_close(struct gin_world *w)
{
	check_phase(w->s, "closing");
	for (int i = 0; i < GIN_PER; i++)
		gin_close_rank(&w->rank[i]);
}

void gin_end(struct gin_world *w)
{
	gin_close(w);
	gin_finalize(w);
}

/* ---- the thread that makes progress ---- */

static void *of_requests(const struct gin_rank *r)
{
	return r->w->t->create ? r->gin : r->coll;
}

/* NCCL does not look at what it returns: an error shows in the next request. */
void gin_progress(struct gin_rank *r)
{
	if (r->w->t->progress)
		(void)GIN_CALL(r, GIN_PROGRESS, "ginProgress", r->w->t->progress(of_requests(r)));
}

static void *must_request(struct gin_rank *r, void *request, const char *call)
{
	if (!request)
		check_fail(r->w->s, "%s of rank %d succeeded without a request, and NCCL hands NULL to test", call,
			   r->rank);
	return request;
}

void *gin_post(struct gin_rank *r, const struct gin_request *q)
{
	const struct gin_table *t = r->w->t;
	const char *call = q->op == GIN_SIGNAL_NONE ? "iput" : "iputSignal";
	void *request = NULL;

	GIN_MUST(r, GIN_PROGRESS, call, t->put(t->raw, of_requests(r), q, &request));
	return must_request(r, request, call);
}

void *gin_get(struct gin_rank *r, const struct gin_request *q)
{
	const struct gin_table *t = r->w->t;
	void *request = NULL;

	GIN_MUST(r, GIN_PROGRESS, "iget", t->get(t->raw, of_requests(r), q, &request));
	return must_request(r, request, "iget");
}

int gin_test(struct gin_rank *r, void *request)
{
	int done = 0;

	GIN_MUST(r, GIN_PROGRESS, "test", r->w->t->test(r->coll, request, &done));
	return done != 0;
}

void gin_idle(struct gin_rank *r, const char *what)
{
	struct check_side *s = r->w->s;

	gin_progress(r);
	if (!check_left_ns(s))
		check_fail(s, "rank %d still waits for %s, phase: %s", r->rank, what, s->me->phase);
	sched_yield();
}

void gin_wait(struct gin_rank *r, void *request)
{
	while (!gin_test(r, request))
		gin_idle(r, "a request");
}

void gin_do(struct gin_rank *r, const struct gin_request *q)
{
	gin_wait(r, gin_post(r, q));
}

void gin_barrier(struct gin_rank *r)
{
	static uint32_t passed[GIN_COMMS][GIN_PER]; /* one thread each */
	uint32_t *arrived = &r->w->s->shared->arrived[r->w->number], all;

	all = ++passed[r->w->number][r->rank % GIN_PER] * GIN_RANKS;
	fetch_add_seq(arrived, 1);
	while ((int32_t)(load_acquire(arrived) - all) < 0)
		gin_idle(r, "the other ranks");
}

static void *run_body(void *arg)
{
	struct gin_rank *r = arg;

	r->body(r);
	gin_barrier(r);
	return NULL;
}

void gin_start(struct gin_world *w, void (*body)(struct gin_rank *r), void *arg)
{
	for (int i = 0; i < GIN_PER; i++) {
		w->rank[i].body = body;
		w->rank[i].arg = arg;
		start_thread(&w->rank[i], &w->rank[i].thread, run_body);
	}
}

void gin_join(struct gin_world *w)
{
	for (int i = 0; i < GIN_PER; i++)
		pthread_join(w->rank[i].thread, NULL);
	check_meet(w->s);
}

void gin_run(struct gin_world *w, void (*body)(struct gin_rank *r), void *arg)
{
	gin_start(w, body, arg);
	gin_join(w);
}

/* ---- signals ---- */

uint64_t gin_signal(const struct gin_rank *r, int word)
{
	return load_acquire((const uint64_t *)(const void *)r->memory[GIN_SIGNALS].base + word);
}

void gin_until(struct gin_rank *r, int word, uint64_t value, const char *what)
{
	while (gin_signal(r, word) < value)
		gin_idle(r, what);
}

void gin_settle(struct gin_rank *r, int word, uint64_t value)
{
	uint64_t until = gantry_now_ns() + SETTLE_MS * (uint64_t)CHECK_MS * (uint64_t)r->w->s->stretch;

	while (gin_signal(r, word) != value && gantry_now_ns() < until)
		gin_idle(r, "a signal");
	if (gin_signal(r, word) != value)
		check_late(r->w->s, "rank %d: signal %d is %llu and not %llu, phase: %s", r->rank, word,
			   (unsigned long long)gin_signal(r, word), (unsigned long long)value, r->w->s->me->phase);
}

uint64_t gin_seed(const struct gin_world *w, int from, int to)
{
	return (uint64_t)((w->number * GIN_RANKS + from) * GIN_RANKS + to);
}

void gin_wrong(struct gin_rank *r, int from, size_t at, size_t size, const char *what)
{
	check_fail(r->w->s, "rank %d: byte %zu of %zu from rank %d %s, phase: %s", r->rank, at, size, from, what,
		   r->w->s->me->phase);
}

struct gin_request gin_put(const struct gin_rank *r, int rank, size_t from, size_t to, size_t size)
{
	return (struct gin_request){.rank = (uint32_t)rank,
				    .from = r->memory[GIN_SOURCE].gh,
				    .from_at = from,
				    .to = r->memory[GIN_TARGET].gh,
				    .to_at = to,
				    .size = size};
}

struct gin_request gin_only(const struct gin_rank *r, int rank, int word, uint32_t op, uint64_t value)
{
	return (struct gin_request){.rank = (uint32_t)rank,
				    .op = op,
				    .signal = r->memory[GIN_SIGNALS].gh,
				    .signal_at = (uint64_t)word * sizeof(uint64_t),
				    .value = value};
}
