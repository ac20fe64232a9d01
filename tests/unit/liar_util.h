/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that are mostly waiting, such as one connection each: several processes take turns at them. */
#ifndef GANTRY_TESTS_LIAR_UTIL_H
#define GANTRY_TESTS_LIAR_UTIL_H

#include <stdbool.h>
#include <sys/mman.h>

#include "test.h"

enum { LIAR_PARTS = 6 };

static struct {
	int part, parts;
	int *cases; /* atomic, of all processes */
} liar_turns = {0, 1, NULL};

static inline void liar_begin(void)
{
	liar_turns.cases = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(liar_turns.cases != MAP_FAILED);
}

static inline void liar_end(void)
{
	printf("%d lies\n", *liar_turns.cases);
	munmap(liar_turns.cases, sizeof(int));
}

/* Whether case i is this process's. Counts it. */
static inline bool liar_takes(size_t i)
{
	if ((int)(i % (size_t)liar_turns.parts) != liar_turns.part)
		return false;
	__atomic_fetch_add(liar_turns.cases, 1, __ATOMIC_RELAXED);
	return true;
}

/* A test in several processes; the caller has no threads. */
static inline void liar_spread(void (*run)(void))
{
	pid_t pids[LIAR_PARTS];

	if (!CAN_FORK) {
		run();
		return;
	}
	liar_turns.parts = LIAR_PARTS;
	for (liar_turns.part = 0; liar_turns.part < LIAR_PARTS; liar_turns.part++) {
		pids[liar_turns.part] = child_fork();
		if (!pids[liar_turns.part]) {
			run();
			child_end(liar_turns.part == 0);
		}
	}
	for (int i = 0; i < LIAR_PARTS; i++)
		child_wait(pids[i]);
}

/* An outcome: fine, or an error with a name. */
static inline gantry_result typed(gantry_result r)
{
	CHECK(r == GANTRY_OK || (r > GANTRY_AGAIN && r < GANTRY_RESULT_COUNT));
	return r;
}

#endif
