/* SPDX-License-Identifier: Apache-2.0 */
/* The progress engine under a scripted transport: order, steps, queues, idling, counters. */
#include "proxy_util.h"

static struct gantry_proxy *proxy;

static void finish(struct gantry_proxy_group *g, struct fake *f, int n)
{
	gantry_proxy_group_destroy(g);
	for (int i = 0; i < n; i++)
		gantry_proxy_conn_destroy(f[i].pc);
}

static void test_order(void)
{
	static struct fake f;
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_stats before, after;
	struct gantry_proxy_conn_view view;

	gantry_proxy_get_stats(proxy, &before);
	fake_make(proxy, g, &f, 0, 1);
	f.per_pass = 1;
	f.silent = 1; /* the engine sees for itself that something moved */
	append(proxy, &f, 1, 3, 1, 1, 0);
	append(proxy, &f, 5, 1, 1, 1, 1);
	append(proxy, &f, 2, 7, 1, 1, 6);
	append(proxy, &f, 1, 0, 1, 1, 8); /* nothing to do is done at once */
	drain(g);
	CHECK_EQ(f.nseen, 8);
	for (uint32_t i = 0; i < 8; i++)
		CHECK_EQ(f.seen[i], i);
	CHECK_EQ(f.bases[7], 3 + 5 + 7);
	gantry_proxy_conn_look(f.pc, &view);
	CHECK_EQ(view.ops, 9);
	gantry_proxy_get_stats(proxy, &after);
	CHECK_EQ(after.batches - before.batches, 4);
	CHECK_EQ(after.ops - before.ops, 9);
	finish(g, &f, 1);
}

/* Four threads append to a connection each and to one that they share. */
enum { APPENDERS = 4, BATCHES = SANITIZED ? 100 : 400 };
static struct fake own[APPENDERS], common;
static uint32_t appended[APPENDERS], shared_by[APPENDERS]; /* by thread */

static void *appender(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg;

	for (int i = 0; i < BATCHES; i++) {
		uint32_t n = 1 + random_below(8);

		append(proxy, &own[me], n, 1 + random_below(3), 1, 1, appended[me]);
		appended[me] += n;
		n = 1 + random_below(4);
		append(proxy, &common, n, 1, 1, 1, me << 24 | shared_by[me]);
		shared_by[me] += n;
	}
	return NULL;
}

static void test_threads(void)
{
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	uint32_t next[APPENDERS] = {0}, total = 0;
	pthread_t threads[APPENDERS];

	fake_make(proxy, g, &common, 1, 1);
	for (uintptr_t i = 0; i < APPENDERS; i++) {
		fake_make(proxy, g, &own[i], i & 1, 1);
		own[i].per_pass = (uint32_t)i;
	}
	threads_start(threads, APPENDERS, appender, NULL, 1);
	threads_join(threads, APPENDERS);
	drain(g);
	for (int i = 0; i < APPENDERS; i++) {
		CHECK_EQ(own[i].nseen, appended[i]);
		CHECK(appended[i] <= MAX_SEEN);
		for (uint32_t k = 0; k < appended[i]; k++)
			CHECK_EQ(own[i].seen[k], k);
		total += shared_by[i];
	}
	CHECK_EQ(common.nseen, total);
	for (uint32_t k = 0; k < total; k++)
		CHECK_EQ(common.seen[k] & 0xffffff, next[common.seen[k] >> 24]++);
	finish(g, own, APPENDERS);
	gantry_proxy_conn_destroy(common.pc);
}

/* Bases are rounded up, whether the connection is idle or busy when an operation comes, and nothing sticks in a gap. */
static void test_bases(int send, int busy)
{
	static const struct {
		uint64_t nsteps;
		uint32_t slice, chunk;
	} ops[] = {{1, 1, 1}, {2, 2, 4},  {8, 4, 8}, {1, 1, 1}, {8, 8, 8},
		   {3, 1, 2}, {16, 2, 4}, {1, 1, 1}, {0, 1, 8}, {6, 2, 2}};
	static struct gantry_fifo fifo;
	static struct fake f;
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_conn_view view;
	uint64_t end = 0, seen = 0;

	memset(&fifo, 0, sizeof(fifo));
	fake_make(proxy, g, &f, send, 1);
	f.pc->fifo = &fifo;
	f.gate = busy ? 0 : UINT64_MAX;
	for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		append(proxy, &f, 1, ops[i].nsteps, ops[i].slice, ops[i].chunk, i);
		if (!busy)
			drain(g);
	}
	__atomic_store_n(&f.gate, UINT64_MAX, __ATOMIC_SEQ_CST);
	drain(g);
	for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		uint64_t base = (end + ops[i].chunk - 1) / ops[i].chunk * ops[i].chunk;

		end = base + ops[i].nsteps;
		if (!ops[i].nsteps)
			continue;
		CHECK_EQ(f.seen[seen], i);
		CHECK_EQ(f.bases[seen++], base);
	}
	CHECK_EQ(f.nseen, seen);
	gantry_proxy_conn_look(f.pc, &view);
	CHECK_EQ(view.end, end);
	CHECK_EQ(view.done, end);
	CHECK_EQ(view.posted, end);
	CHECK_EQ(view.busy, 0);
	/* The last gap (before the empty operation) was told to a sending kernel; the fake tells no steps. */
	CHECK_EQ(__atomic_load_n(&fifo.head, __ATOMIC_SEQ_CST), send ? end - 6 : 0);
	finish(g, &f, 1);
}

/* Whether 200 ms pass with fewer than `limit` passes. On a busy machine it may need a while to come to its sleep, and
 * so may this thread. Adds the thread's sleeps. */
static int quiet_window(uint64_t limit, uint64_t *sleeps)
{
	struct gantry_proxy_stats before, after;
	uint64_t from = gantry_now_ns(), windows;

	gantry_proxy_get_stats(proxy, &before);
	sleep_ms(200);
	gantry_proxy_get_stats(proxy, &after);
	windows = (gantry_now_ns() - from) / 200000000;
	*sleeps += after.sleeps - before.sleeps;
	return after.passes - before.passes < limit * windows && after.worked == before.worked;
}

/* Connections without operations cost nothing: the thread sleeps. And it wakes up at once. */
static void test_idle(void)
{
	enum { N = 256 };
	static struct fake f[N];
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_stats before, after;
	uint64_t slept = 0;
	uint32_t rung = 0;

	for (int i = 0; i < N; i++)
		fake_make(proxy, g, &f[i], i & 1, i);
	for (int i = 0; i < N; i += 2)
		append(proxy, &f[i], 2, 2, 1, 1, 0);
	drain(g);
	wait_for_sleep(proxy);
	UNTIL(quiet_window(20, &slept));

	/* One that waits does not keep it awake either: sleeps of up to 1 ms. */
	f[0].gate = 0;
	append(proxy, &f[0], 1, 1, 1, 1, 0);
	slept = 0;
	UNTIL(quiet_window(1000, &slept) && slept > 10); /* where others want the CPU, a sleep may last longer */
	__atomic_store_n(&f[0].gate, UINT64_MAX, __ATOMIC_SEQ_CST);
	drain(g);

	/* Its sleep may end by itself just then; some may come while it still looks around. */
	gantry_proxy_get_stats(proxy, &before);
	after = before;
	for (uint64_t i = 0, end = until_hang(); rung < 40 || after.wakes - before.wakes < 10; i++) {
		struct gantry_eventcount *eventcount = gantry_proxy_eventcount(proxy);
		uint32_t seq;

		wait_for_sleep(proxy);
		seq = __atomic_load_n(&eventcount->seq, __ATOMIC_SEQ_CST);
		append(proxy, &f[i % N], 1, 1, 1, 1, 0);
		rung += __atomic_load_n(&eventcount->seq, __ATOMIC_SEQ_CST) != seq;
		drain(g);
		gantry_proxy_get_stats(proxy, &after);
		CHECK(gantry_now_ns() < end);
	}
	finish(g, f, N);
}

/* Random operations come and finish; a connection is polled if and only if it has some. */
static void test_random(void)
{
	enum { N = 40, ROUNDS = SANITIZED ? 400 : 2000 };
	static struct fake f[N];
	struct gantry_proxy_group *g[2] = {make_group(proxy, NULL, NULL), make_group(proxy, NULL, NULL)};
	uint32_t ops[N] = {0};
	uint64_t calls[N];

	for (int i = 0; i < N; i++)
		fake_make(proxy, g[i & 1], &f[i], i & 2, i);
	for (int i = 0; i < ROUNDS; i++) {
		uint32_t k = random_below(N), n = 1 + random_below(3);

		if (random_below(2)) {
			append(proxy, &f[k], n, random_below(20) * 2, 1 + random_below(2), 1u << random_below(4),
			       ops[k]);
			ops[k] += n;
		} else {
			__atomic_store_n(&f[k].gate, random_below(3) ? UINT64_MAX : random_below(200),
					 __ATOMIC_SEQ_CST);
		}
		if (random_below(10) == 0)
			usleep(random_below(200));
	}
	for (int i = 0; i < N; i++)
		__atomic_store_n(&f[i].gate, UINT64_MAX, __ATOMIC_SEQ_CST);
	drain(g[0]);
	drain(g[1]);
	wait_for_sleep(proxy);
	for (int i = 0; i < N; i++) {
		struct gantry_proxy_conn_view view;

		gantry_proxy_conn_look(f[i].pc, &view);
		CHECK_EQ(view.ops, ops[i]);
		CHECK_EQ(view.done, view.end);
		calls[i] = __atomic_load_n(&f[i].calls, __ATOMIC_RELAXED);
	}
	append(proxy, &f[7], 1, 4, 1, 1, 0);
	drain(g[1]);
	for (int i = 0; i < N; i++)
		CHECK_EQ(__atomic_load_n(&f[i].calls, __ATOMIC_RELAXED) > calls[i], i == 7);
	gantry_proxy_group_destroy(g[0]);
	finish(g[1], f, N);
}

/* All steps below the gate at once. */
static gantry_result jump(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct fake *f = pc->resources;
	uint64_t gate = __atomic_load_n(&f->gate, __ATOMIC_SEQ_CST);

	*ret_worked = pc->done < gate && pc->end == gate;
	if (*ret_worked)
		pc->posted = pc->moved = pc->flushed = pc->done = gate;
	return GANTRY_OK;
}

/* Who sees operations end sees the steps that they ended with. Many end at once, while this thread looks. */
static void test_shown(void)
{
	enum { OPS = 2000, ROUNDS = SANITIZED ? 4 : 30 };
	static struct fake f;
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_conn_view view;
	static const struct gantry_transport_side side = {.proxy_progress = jump};

	fake_make(proxy, g, &f, 0, 1);
	f.pc->side = &side;
	for (uint64_t end = OPS; end <= (uint64_t)OPS * ROUNDS; end += OPS) {
		uint64_t pending = 1;

		__atomic_store_n(&f.gate, end - OPS, __ATOMIC_SEQ_CST);
		append(proxy, &f, OPS, 1, 1, 1, 0);
		__atomic_store_n(&f.gate, end, __ATOMIC_SEQ_CST);
		WAIT_WHILE (pending) {
			pending = gantry_proxy_group_pending(g);
			gantry_proxy_conn_look(f.pc, &view);
			CHECK(view.done + pending >= end);
			CHECK(view.ops + pending >= end);
			if (pending == OPS)
				sched_yield();
		}
		CHECK_EQ(view.busy, 0);
	}
	finish(g, &f, 1);
}

static void test_waits(void)
{
	static struct fake f;
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_conn_view view;
	uint64_t from = gantry_now_ns(), ms20 = gantry_ticks_of_ns(20000000), took;

	fake_make(proxy, g, &f, 0, 1);
	f.gate = 0;
	f.waits = GANTRY_WAIT_PEER;
	append(proxy, &f, 1, 2, 1, 1, 77);
	do {
		CHECK(gantry_now_ns() - from < UNTIL_SECONDS * 1000000000ull);
		sleep_ms(5);
		gantry_proxy_conn_look(f.pc, &view);
	} while (view.wait_ticks[GANTRY_WAIT_PEER] <= ms20);
	CHECK(view.waits);
	CHECK(view.busy);
	CHECK_EQ(view.op, 77);
	CHECK_EQ(view.waits_for, GANTRY_WAIT_PEER);
	CHECK(view.wait_ticks[GANTRY_WAIT_PEER] > ms20);
	CHECK(view.progress_ns + 20000000 > from);
	__atomic_store_n(&f.gate, UINT64_MAX, __ATOMIC_SEQ_CST);
	drain(g);
	gantry_proxy_conn_look(f.pc, &view);
	CHECK(!view.waits);
	CHECK(view.wait_ticks[GANTRY_WAIT_PEER] > ms20);
	took = gantry_now_ns() - from; /* the two clocks' rates differ a little */
	CHECK(view.wait_ticks[GANTRY_WAIT_PEER] <= gantry_ticks_of_ns(took + took / 20 + 1000000));
	CHECK_EQ(view.wait_ticks[GANTRY_WAIT_KERNEL], 0);
	CHECK(view.progress_ns >= from);
	finish(g, &f, 1);
}

static void test_pool(void)
{
	static struct fake f;
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	struct gantry_proxy_op *first, *last = NULL;
	uint32_t n = 0;

	fake_make(proxy, g, &f, 1, 0);

	CHECK_OK(gantry_proxy_ops_get(proxy, 0, &first));
	CHECK(!first);
	CHECK_OK(gantry_proxy_ops_get(proxy, 1000, &first));
	for (struct gantry_proxy_op *op = first; op; op = op->next, n++) {
		CHECK_EQ((uintptr_t)op % 64, 0);
		CHECK_EQ(op->bytes + op->nsteps + op->id + op->chunk_steps, 0);
		op->id = 5;
		op->nsteps = op->slice_steps = 1;
		op->conn = f.pc;
		last = op;
	}
	CHECK_EQ(n, 1000);
	gantry_proxy_append(proxy, first, last);
	drain(g);
	/* Those that come back from the thread are zeroed as the new ones were. */
	CHECK_OK(gantry_proxy_ops_get(proxy, 1300, &first));
	for (struct gantry_proxy_op *op = first; op; op = op->next) {
		CHECK_EQ(op->id + op->nsteps, 0);
		op->nsteps = op->slice_steps = 1;
		op->conn = f.pc;
		last = op;
	}
	gantry_proxy_append(proxy, first, last);
	drain(g);
	gantry_proxy_group_destroy(g);
	gantry_proxy_conn_destroy(f.pc);
}

/* The process's engine is one and counted; with GANTRY_PROXY_PER_DEVICE each device has its own. */
static void test_engines(void)
{
	struct gantry_device a = {.numa_node = -1}, b = {.numa_node = 0}, c = {.numa_node = 4000};
	struct gantry_proxy *p[4];

	CHECK_OK(gantry_proxy_get(&a, &p[0]));
	CHECK_OK(gantry_proxy_get(&b, &p[1]));
	CHECK(p[0] == p[1]);
	gantry_proxy_put(p[0]);
	gantry_proxy_put(p[1]);
	set_params("GANTRY_PROXY_PER_DEVICE", "1");
	CHECK_OK(gantry_proxy_get(&a, &p[0]));
	CHECK_OK(gantry_proxy_get(&b, &p[1]));
	CHECK_OK(gantry_proxy_get(&c, &p[2]));
	CHECK_OK(gantry_proxy_get(&a, &p[3]));
	CHECK(p[0] != p[1] && p[1] != p[2] && p[0] == p[3]);
	for (int i = 0; i < 4; i++)
		gantry_proxy_put(p[i]);
	gantry_proxy_put(NULL);
	set_params("GANTRY_PROXY_PER_DEVICE", NULL);
}

int main(void)
{
	CHECK_OK(gantry_params_load(0));
	RUN(test_engines());
	CHECK_OK(gantry_proxy_get(NULL, &proxy));
	RUN(test_pool());
	RUN(test_order());
	RUN(test_threads());
	for (int i = 0; i < 4; i++)
		RUN(test_bases(i & 1, i >> 1));
	RUN(test_idle());
	RUN(test_random());
	RUN(test_shown());
	RUN(test_waits());
	gantry_proxy_put(proxy);
	return 0;
}
