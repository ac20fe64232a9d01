/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes exclude, also threads that sleep for them, and conditions wake all who wait. In checked builds a mutex knows
 * its owner, and an assertion that does not hold ends the process there.
 */
#include "base/mutex.h"

#include <sys/resource.h>

#include "test.h"

MUTEX_KIND(test_mu);
static struct test_mu mu;
static struct gantry_cond cond;
static int flag GUARDED_BY(test_mu);

static void *raise_flag(void *arg)
{
	test_mu_lock(&mu);
	flag = 1;
	gantry_cond_broadcast(&cond);
	test_mu_unlock(&mu);
	return NULL;
}

/* The signal that ends a child which runs `fn`; 0: it ends by itself. */
static int ends_by(void (*fn)(void))
{
	int status;
	pid_t child = fork();

	if (!child) {
		struct rlimit none = {0, 0};

		setrlimit(RLIMIT_CORE, &none);
		if (!freopen("/dev/null", "w", stderr))
			_exit(3);
		fn();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void need_it_unlocked(void)
{
	ASSERT_HELD(&mu);
}
static void need_it_locked(void)
{
	test_mu_lock(&mu);
	ASSERT_HELD(&mu);
	test_mu_unlock(&mu);
}
static void unlock_what_another_holds(void) UNCHECKED
{
	test_mu_unlock(&mu);
}
static void assert_wrong(void)
{
	ASSERT(1 + 1 == 3);
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 20000, SLEEPS = 20 };
static uint64_t counted GUARDED_BY(test_mu);

/* Now and then it sleeps with the mutex, so that the others have to wait in the kernel. */
static void *count_up(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (arg && i % 2)
			while (!test_mu_trylock(&mu))
				sched_yield();
		else
			test_mu_lock(&mu);
		counted++;
		if (i % (ROUNDS / SLEEPS) == 0)
			usleep(200);
		test_mu_unlock(&mu);
	}
	return NULL;
}

static int waiting GUARDED_BY(test_mu);

static void *wait_for_flag(void *arg)
{
	test_mu_lock(&mu);
	waiting++;
	while (!flag)
		mutex_wait(&cond, &mu);
	waiting--;
	test_mu_unlock(&mu);
	return NULL;
}

static void check_threads(void)
{
	pthread_t t[THREADS];
	uint64_t deadline;

	for (long i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, count_up, (void *)(i % 2)));
	threads_join(t, THREADS);
	test_mu_lock(&mu);
	CHECK_EQ(counted, THREADS * ROUNDS);
	deadline = gantry_now_ns() + 20000000;
	while (mutex_wait_until(&cond, &mu, deadline)) /* nobody broadcasts: a wait may end, but not for ever */
		;
	CHECK(gantry_now_ns() >= deadline);
	test_mu_unlock(&mu);
	threads_start(t, THREADS, wait_for_flag, NULL, 0);
	test_mu_lock(&mu);
	while (waiting < THREADS) {
		test_mu_unlock(&mu);
		usleep(1000);
		test_mu_lock(&mu);
	}
	flag = 1;
	test_mu_unlock(&mu);
	gantry_cond_broadcast(&cond);
	threads_join(t, THREADS);
	test_mu_lock(&mu);
	CHECK_EQ(waiting, 0);
	test_mu_unlock(&mu);
}

TEST(mutexes)
{
	pthread_t t;

	check_threads();
	test_mu_lock(&mu);
	flag = 0;
	CHECK(!pthread_create(&t, NULL, raise_flag, NULL));
	while (!flag)
		mutex_wait(&cond, &mu);
	ASSERT_HELD(&mu);
	CHECK(flag == 1);
	test_mu_unlock(&mu);
	pthread_join(t, NULL);
	CHECK(ends_by(need_it_locked) == 0);
	CHECK(ends_by(need_it_unlocked) == (GANTRY_CHECKED ? SIGABRT : 0));
	CHECK(ends_by(assert_wrong) == (GANTRY_CHECKED ? SIGABRT : 0));
	if (GANTRY_CHECKED)
		CHECK(ends_by(unlock_what_another_holds) == SIGABRT);
}
