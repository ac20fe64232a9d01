/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting in tests. A machine may be loaded, any thread may be off its CPU for seconds: what must happen is waited for,
 * and the limit is one that only a hang reaches.
 */
#ifndef GANTRY_TESTS_UNTIL_H
#define GANTRY_TESTS_UNTIL_H

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "test.h"

/* Half of what ctest gives a test. A thread among fifty on two CPUs has seconds of it for itself. */
enum { UNTIL_SECONDS = 240 };

/* When patience ends that begins now. */
static inline uint64_t until_hang(void)
{
	return gantry_now_ns() + (uint64_t)UNTIL_SECONDS * 1000000000u;
}

static inline uint64_t now_ms(void)
{
	return gantry_now_ns() / 1000000;
}

/* Signals do not shorten it. */
static inline void sleep_ns(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static inline void sleep_ms(uint64_t ms)
{
	sleep_ns(ms * 1000000);
}

static inline void until_pause(void)
{
	sleep_ns(500000);
}

/* Asked again and again, also once more when time is over: the asking thread may have been away. */
#define UNTIL(cond)                                                                                                    \
	do {                                                                                                           \
		uint64_t until_end = until_hang();                                                                     \
		int until_over = 0;                                                                                    \
		while (!(cond)) {                                                                                      \
			if (until_over)                                                                                \
				TEST_FAIL("not true within %d s: %s", UNTIL_SECONDS, #cond);                           \
			until_pause();                                                                                 \
			until_over = gantry_now_ns() >= until_end;                                                     \
		}                                                                                                      \
	} while (0)

#endif
