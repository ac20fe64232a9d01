/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

pid_t child_fork(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		alarm(CHILD_SECONDS);
	return pid;
}

void child_end(int leaks)
{
	if (!SANITIZED || leaks)
		exit(0);
	fflush(stdout);
	_exit(0);
}

static int wait_for(pid_t pid)
{
	int status = -1;

	CHECK_EQ(waitpid(pid, &status, 0), pid);
	return status;
}

void child_wait(pid_t pid)
{
	int status = wait_for(pid);

	if (status)
		TEST_FAIL("a child ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
			  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void threads_start(pthread_t *t, int n, void *(*run)(void *), const void *args, size_t step)
{
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, run, (void *)((uintptr_t)args + (size_t)i * step)), 0);
}

void threads_join(const pthread_t *t, int n)
{
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
}

int run_row(const char *name, void (*run)(void), int leaks, const char *only)
{
	uint64_t before = gantry_now_ns();
	int status;
	pid_t pid;

	if (only && strcmp(only, name) != 0)
		return 0;
	pid = child_fork();
	if (!pid) {
		test_part(name);
		run();
		child_end(leaks);
	}
	status = wait_for(pid);
	if (only)
		printf("%s: %.2f s\n", name, (double)(gantry_now_ns() - before) / 1e9);
	if (!status)
		return 0;
	if (WIFSIGNALED(status))
		fprintf(stderr, "%s FAILED: signal %d%s\n", name, WTERMSIG(status),
			WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
	else
		fprintf(stderr, "%s FAILED: status %d\n", name, WEXITSTATUS(status));
	return 1;
}

static struct test_row *tests;
static enum { TOGETHER, APART, ALONE } how_apart;

void test_add(struct test_row *row)
{
	struct test_row **at = &tests;

	while (*at && (*at)->line < row->line)
		at = &(*at)->next;
	row->next = *at;
	*at = row;
}

void tests_apart(int alone)
{
	how_apart = alone ? ALONE : APART;
}

static const char *running;

static void say_hung(int sig)
{
	ssize_t said = write(STDERR_FILENO, running, strlen(running));

	said += write(STDERR_FILENO, ": it hung\n", 10);
	(void)said;
	signal(sig, SIG_DFL);
	raise(sig);
}

static void run_here(const struct test_row *t)
{
	test_part(t->name);
	running = t->name;
	if (how_apart != TOGETHER) {
		signal(SIGALRM, say_hung);
		alarm(CHILD_SECONDS);
	}
	t->run();
	if (how_apart != TOGETHER)
		alarm(0);
}

int tests_run(const char *only)
{
	int failed = 0, found = 0;

	for (const struct test_row *t = tests; t; t = t->next) {
		if (only && strcmp(only, t->name) != 0)
			continue;
		found = 1;
		if (how_apart == ALONE || (how_apart == APART && !SANITIZED))
			failed += run_row(t->name, t->run, !t->next, only);
		else
			run_here(t);
	}
	test_part("");
	CHECK(found);
	if (!failed)
		printf("ok\n");
	return failed != 0;
}
