/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that a test forks: because parameters are read once in each, or because a failure must not hide another. */
#ifndef GANTRY_TESTS_CHILD_H
#define GANTRY_TESTS_CHILD_H

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* Whatever hangs ends: no test takes so long on whatever machine. */
enum { CHILD_SECONDS = 500 };

/* fork with a deadline for the child, which is to end with child_end. */
pid_t child_fork(void);

/* With leaks: as programs end, with a search for leaks where there is one. That takes seconds, so most go without. */
_Noreturn void child_end(int leaks);

/* Waits; any end but a good one is the test's failure. */
void child_wait(pid_t pid);

/* In a process of its own, which must end well. */
void in_child(void (*run)(void));

/* A table of cases: one that fails or hangs does not hide the others. */
struct test_row {
	const char *name;
	void (*run)(void);
};

/*
 * Each in a process of its own, of which the last searches for leaks; under sanitizers those that are not `alone` share
 * this one, which does so at its end. `only` names the one that is wanted, or is NULL. Returns what main shall.
 */
int run_rows(const struct test_row *rows, size_t n, int alone, const char *only);
#define RUN_ROWS(rows, argc, argv) run_rows(rows, TEST_COUNT(rows), 0, (argc) > 1 ? (argv)[1] : NULL)
#define RUN_ROWS_ALONE(rows, argc, argv) run_rows(rows, TEST_COUNT(rows), 1, (argc) > 1 ? (argv)[1] : NULL)

/* One in a process of its own; 1 if it fails. */
int run_row(const char *name, void (*run)(void), int leaks, const char *only);

#endif
