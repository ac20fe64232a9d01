/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include <signal.h>

#include "base/clock.h"

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

void in_child(void (*run)(void))
{
	pid_t pid = child_fork();

	if (!pid) {
		run();
		child_end(0);
	}
	child_wait(pid);
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

int run_rows(const struct test_row *rows, size_t n, int alone, const char *only)
{
	int failed = 0;

	for (size_t i = 0; i < n; i++) {
		if (!SANITIZED || alone) {
			failed += run_row(rows[i].name, rows[i].run, i == n - 1, only);
		} else if (!only || !strcmp(only, rows[i].name)) {
			test_part(rows[i].name);
			alarm(CHILD_SECONDS);
			rows[i].run();
			alarm(0);
		}
	}
	if (!failed)
		printf("ok\n");
	return failed != 0;
}
