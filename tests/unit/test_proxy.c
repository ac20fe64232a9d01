/* SPDX-License-Identifier: Apache-2.0 */
/* The progress engine under a scripted transport: order, steps, queues, idling, counters, groups. */
#include "proxy_util.h"

static struct gantry_proxy *proxy;

static void finish(struct gantry_proxy_group *g, struct fake *f, int n)
{
	gantry_proxy_group_destroy(g);
	for (int i = 0; i < n; i++)
		gantry_proxy_conn_destroy(f[i].pc);
}

TEST(test_order)
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

TEST(test_threads)
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

		if (!ops[i].nsteps) /* leaves no trace, as in device/k_prim.h */
			continue;
		end = base + ops[i].nsteps;
		CHECK_EQ(f.seen[seen], i);
		CHECK_EQ(f.bases[seen++], base);
	}
	CHECK_EQ(f.nseen, seen);
	gantry_proxy_conn_look(f.pc, &view);
	CHECK_EQ(view.end, end);
	CHECK_EQ(view.done, end);
	CHECK_EQ(view.posted, end);
	CHECK_EQ(view.busy, 0);
	/* The last gap (before the last operation) was told to a sending kernel; the fake tells no steps. */
	CHECK_EQ(__atomic_load_n(&fifo.head, __ATOMIC_SEQ_CST), send ? end - 6 : 0);
	finish(g, &f, 1);
}

TEST(all_bases)
{
	for (int i = 0; i < 4; i++)
		test_bases(i & 1, i >> 1);
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
TEST(test_idle)
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
TEST(test_random)
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
			uint32_t slice = 1 + random_below(2); /* it divides the chunk */

			append(proxy, &f[k], n, random_below(20) * 2, slice, slice << random_below(3), ops[k]);
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
TEST(test_shown)
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

TEST(test_waits)
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

TEST(test_pool)
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

/* ---- groups: an error, an abort or the end of one leaves the others alone ---- */

static int heard_times(struct heard *h)
{
	int times;

	pthread_mutex_lock(&h->mu);
	times = h->times;
	pthread_mutex_unlock(&h->mu);
	return times;
}

TEST(test_error)
{
	static struct fake bad[3], good[2];
	struct heard ha, hb;
	struct gantry_proxy_group *a = make_group(proxy, &ha, NULL), *b = make_group(proxy, &hb, NULL);

	for (int i = 0; i < 3; i++)
		fake_make(proxy, a, &bad[i], i & 1, 40 + i);
	for (int i = 0; i < 2; i++)
		fake_make(proxy, b, &good[i], i & 1, 50 + i);
	bad[0].gate = 0; /* these two would never end by themselves */
	bad[2].gate = 1;
	good[1].gate = 2;
	bad[1].fail_at = 5;
	bad[1].per_pass = good[0].per_pass = 1;
	append(proxy, &bad[0], 3, 2, 1, 1, 0);
	append(proxy, &bad[2], 3, 2, 1, 1, 0);
	append(proxy, &good[1], 3, 2, 1, 1, 0);
	append(proxy, &bad[1], 4, 2, 1, 1, 0);
	append(proxy, &good[0], 20, 2, 1, 1, 0);
	drain(a);
	CHECK_EQ(gantry_proxy_group_error(a), GANTRY_ERR_PEER_LOST);
	UNTIL(heard_times(&ha));
	sleep_ms(5);
	pthread_mutex_lock(&ha.mu);
	CHECK_EQ(ha.times, 1);
	CHECK_EQ(ha.why, GANTRY_ERR_PEER_LOST);
	CHECK_EQ(ha.peer, 41);
	CHECK_STR(ha.text, "rank 41 hung up");
	pthread_mutex_unlock(&ha.mu);

	/* What comes later ends at once, and nobody is told again. */
	append(proxy, &bad[0], 10, 1, 1, 1, 0);
	drain(a);
	CHECK_EQ(bad[0].nseen, 0);

	__atomic_store_n(&good[1].gate, UINT64_MAX, __ATOMIC_SEQ_CST);
	drain(b);
	CHECK_OK(gantry_proxy_group_error(b));
	CHECK_EQ(good[0].nseen, 20);
	CHECK_EQ(good[1].nseen, 3);
	gantry_proxy_group_destroy(a);
	gantry_proxy_group_destroy(b);
	CHECK_EQ(ha.times, 1);
	CHECK_EQ(hb.times, 0);
	for (int i = 0; i < 3; i++)
		gantry_proxy_conn_destroy(bad[i].pc);
	for (int i = 0; i < 2; i++)
		gantry_proxy_conn_destroy(good[i].pc);
}

static void test_abort(int ring)
{
	static struct fake stuck, other;
	uint32_t flag = 0;
	struct heard ha, hb;
	struct gantry_proxy_group *a = make_group(proxy, &ha, &flag), *b = make_group(proxy, &hb, NULL);

	fake_make(proxy, a, &stuck, 1, 7);
	fake_make(proxy, b, &other, 1, 8);
	stuck.gate = other.gate = 0;
	append(proxy, &stuck, 5, 1, 1, 1, 0);
	append(proxy, &other, 5, 1, 1, 1, 0);
	sleep_ms(20);
	CHECK_EQ(gantry_proxy_group_pending(a), 5);
	__atomic_store_n(&flag, 1, __ATOMIC_SEQ_CST);
	if (ring)
		gantry_eventcount_notify(gantry_proxy_eventcount(proxy));
	drain(a);
	CHECK_EQ(gantry_proxy_group_error(a), GANTRY_ERR_ABORTED);
	gantry_proxy_group_destroy(a);
	CHECK_EQ(ha.times, 1);
	CHECK_EQ(ha.peer, -1);
	CHECK_EQ(ha.why, GANTRY_ERR_ABORTED);
	CHECK_STR(ha.text, gantry_result_text(GANTRY_ERR_ABORTED)); /* and not the text of an older error */
	CHECK_EQ(gantry_proxy_group_pending(b), 5);
	__atomic_store_n(&other.gate, UINT64_MAX, __ATOMIC_SEQ_CST);
	drain(b);
	gantry_proxy_group_destroy(b);
	CHECK_EQ(hb.times, 0);
	gantry_proxy_conn_destroy(stuck.pc);
	gantry_proxy_conn_destroy(other.pc);
}
TEST_CALL(test_abort_alone, test_abort(0))
TEST_CALL(test_abort_ring, test_abort(1))

enum how { STUCK, BUSY, ASLEEP };

/* Destroyed while its operations are stuck, while they move, or while the thread sleeps. */
static void test_destroy(enum how how)
{
	static struct fake f[20];
	struct heard h;
	struct gantry_proxy_group *g = make_group(proxy, &h, NULL);
	uint64_t from, calls[20];

	for (int i = 0; i < 20; i++) {
		fake_make(proxy, g, &f[i], i & 1, i);
		f[i].gate = how == STUCK ? (uint64_t)i : UINT64_MAX;
		f[i].per_pass = 1;
		if (how != ASLEEP)
			append(proxy, &f[i], 4, how == BUSY ? 1000000000 : 10, 1, 1, 0);
	}
	if (how == ASLEEP)
		wait_for_sleep(proxy);
	for (int i = 0; how != ASLEEP && i < 20; i++)
		UNTIL(__atomic_load_n(&f[i].calls, __ATOMIC_RELAXED));
	from = gantry_now_ns();
	gantry_proxy_group_destroy(g);
	CHECK(gantry_now_ns() - from < UNTIL_SECONDS * 1000000000ull); /* it waits for a pass, not for the operations */
	for (int i = 0; i < 20; i++)
		calls[i] = f[i].calls; /* plainly: nobody else touches it any more */
	sleep_ms(5);
	for (int i = 0; i < 20; i++) {
		CHECK_EQ(f[i].calls, calls[i]);
		CHECK_EQ(f[i].calls > 0, how != ASLEEP);
		memset(f[i].pc, 0xff, 64);
		gantry_proxy_conn_destroy(f[i].pc);
	}
	CHECK_EQ(h.times, 0);
}

TEST(all_destroyed)
{
	test_destroy(STUCK);
	test_destroy(BUSY);
	test_destroy(ASLEEP);
	gantry_proxy_group_destroy(NULL);
	gantry_proxy_conn_destroy(NULL);
}

/* Reports look at connections while the thread counts. */
struct tour {
	struct fake steady[4];
	uint32_t stop;
	uint64_t met;
};

static void *tourist(void *arg)
{
	struct tour *t = arg;
	struct gantry_proxy_conn_view view;

	for (int i = 0; !__atomic_load_n(&t->stop, __ATOMIC_SEQ_CST); i++) {
		gantry_proxy_conn_look(t->steady[i % 4].pc, &view);
		CHECK(view.done <= view.end && view.waits_for < GANTRY_WAIT_CAUSES);
		__atomic_fetch_add(&t->met, 1, __ATOMIC_RELAXED);
		usleep(20);
	}
	return NULL;
}

TEST(test_look)
{
	static struct tour t;
	struct gantry_proxy_group *g = make_group(proxy, NULL, NULL);
	pthread_t thread;

	for (int i = 0; i < 4; i++) {
		fake_make(proxy, g, &t.steady[i], i & 1, i);
		t.steady[i].waits = i % GANTRY_WAIT_CAUSES;
	}
	CHECK_EQ(pthread_create(&thread, NULL, tourist, &t), 0);
	for (int i = 0; i < 500; i++)
		append(proxy, &t.steady[i % 4], 2, 4, 2, 4, 0);
	drain(g);
	UNTIL(__atomic_load_n(&t.met, __ATOMIC_RELAXED) >= 4);
	__atomic_store_n(&t.stop, 1, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	gantry_proxy_group_destroy(g);
	for (int i = 0; i < 4; i++)
		gantry_proxy_conn_destroy(t.steady[i].pc);
}

/* Groups come and go on threads of their own, as communicators do; with engines that start and end. */
static void *visitor(void *arg)
{
	random_seed((uintptr_t)arg);
	for (int i = 0; i < (SANITIZED ? 30 : 100); i++) {
		struct gantry_proxy *p;
		struct gantry_proxy_group *g;
		struct fake *f = malloc(sizeof(*f));

		CHECK(f);
		CHECK_OK(gantry_proxy_get(NULL, &p));
		g = make_group(p, NULL, NULL);
		fake_make(p, g, f, random_below(2) != 0, 1);
		f->gate = random_below(30);
		append(p, f, 1 + random_below(10), 1 + random_below(4), 1, 1, 0);
		if (random_below(2)) {
			__atomic_store_n(&f->gate, UINT64_MAX, __ATOMIC_SEQ_CST);
			drain(g);
		}
		gantry_proxy_group_destroy(g);
		gantry_proxy_conn_destroy(f->pc);
		gantry_proxy_put(p);
		free(f);
	}
	return NULL;
}

TEST(test_visitors)
{
	pthread_t threads[3];

	for (uintptr_t i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, visitor, (void *)(i + 1)), 0);
	threads_join(threads, 3);
}

void tests_begin(void)
{
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, NULL);
	CHECK_OK(gantry_params_load(0));
	test_engines();
	test_visitors(); /* without a user of our own: engines end in between */
	CHECK_OK(gantry_proxy_get(NULL, &proxy));
}

void tests_end(void)
{
	gantry_proxy_put(proxy);
}
