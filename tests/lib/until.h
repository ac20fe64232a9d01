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

/* Whether there is time for another round: also for one when time is over, as the asking thread may have been away. */
static inline int until_more(uint64_t *end, const char *file, int line, const char *function, const char *cond)
{
	if (!*end)
		test_fail(file, line, function, "still so after %d s: %s", UNTIL_SECONDS, cond);
	if (gantry_now_ns() >= *end)
		*end = 0;
	return 1;
}
#define UNTIL_LOOP(cond, text)                                                                                         \
	for (uint64_t until_end = until_hang(); (cond) && until_more(&until_end, __FILE__, __LINE__, __func__, text);)

/* A while loop that does something towards its end. */
#define WAIT_WHILE(cond) UNTIL_LOOP(cond, #cond)

/* Asked again and again. */
#define UNTIL(cond)                                                                                                    \
	do {                                                                                                           \
		UNTIL_LOOP(!(cond), "not " #cond) until_pause();                                                       \
	} while (0)

#endif
