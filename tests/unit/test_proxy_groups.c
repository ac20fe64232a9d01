/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of the progress engine: an error, an abort or the end of one leaves the others alone. */
#include "proxy_util.h"

static struct gantry_proxy *proxy;

static int heard_times(struct heard *h)
{
	int times;

	pthread_mutex_lock(&h->mu);
	times = h->times;
	pthread_mutex_unlock(&h->mu);
	return times;
}

static void test_error(void)
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
	CHECK_EQ(gantry_proxy_group_error(b), GANTRY_OK);
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

static void test_look(void)
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

static void test_visitors(void)
{
	pthread_t threads[3];

	for (uintptr_t i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, visitor, (void *)(i + 1)), 0);
	threads_join(threads, 3);
}

int main(void)
{
	gantry_log_configure(GANTRY_LOG_WARN, GANTRY_SUBSYS_ALL, NULL);
	CHECK_OK(gantry_params_load(0));
	test_visitors(); /* without a user of our own: engines end in between */
	CHECK_OK(gantry_proxy_get(NULL, &proxy));
	RUN(test_error());
	RUN(test_abort(0));
	RUN(test_abort(1));
	RUN(test_destroy(STUCK));
	RUN(test_destroy(BUSY));
	RUN(test_destroy(ASLEEP));
	gantry_proxy_group_destroy(NULL);
	gantry_proxy_conn_destroy(NULL);
	RUN(test_look());
	RUN(test_visitors());
	gantry_proxy_put(proxy);
	return 0;
}
