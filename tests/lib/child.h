/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that a test forks: because parameters are read once in each, or because a failure must not hide another. */
#ifndef GANTRY_TESTS_CHILD_H
#define GANTRY_TESTS_CHILD_H

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* A child of a process with several threads may start none under ThreadSanitizer. */
#if defined(__SANITIZE_THREAD__)
enum { CAN_FORK = 0 };
#elif defined(__has_feature)
enum { CAN_FORK = !__has_feature(thread_sanitizer) };
#else
enum { CAN_FORK = 1 };
#endif

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

/*
 * For tests_begin: each test in a process of its own, of which the last searches for leaks. One that fails or hangs does
 * not hide the others. Under sanitizers tests that are not `alone` share one process, which searches at its end.
 */
void tests_apart(int alone);

/* One in a process of its own; 1 if it fails. */
int run_row(const char *name, void (*run)(void), int leaks, const char *only);

#endif
