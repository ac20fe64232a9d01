/* SPDX-License-Identifier: Apache-2.0 */
/* Mutexes know their owner in checked builds, and an assertion that does not hold ends the process there. */
#include "base/mutex.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

MUTEX_KIND(test_mu);
static struct test_mu mu = MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int flag GUARDED_BY(test_mu);

static void *raise_flag(void *arg)
{
	(void)arg;
	test_mu_lock(&mu);
	flag = 1;
	pthread_cond_signal(&cond);
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

int main(void)
{
	pthread_t t;

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
	return 0;
}
