/*
 * Waiting in tests. A machine may be loaded, any thread may be off its CPU for seconds: what must happen is waited for,
 * and the limit is one that only a hang reaches.
 */
#ifndef GANTRY_TESTS_UNTIL_H
#define GANTRY_TESTS_UNTIL_H

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

static inline void until_pause(void)
{
	struct timespec t = {0, 500000};

	nanosleep(&t, NULL);
}

/* Asked again and again, also once more when time is over: the asking thread may have been away. */
#define UNTIL(cond)                                                                                                    \
	do {                                                                                                           \
		uint64_t until_end = until_hang();                                                                     \
		int until_over = 0;                                                                                    \
		while (!(cond)) {                                                                                      \
			if (until_over) {                                                                              \
				fprintf(stderr, "%s:%d: not true within %d s: %s\n", __FILE__, __LINE__,               \
					UNTIL_SECONDS, #cond);                                                         \
				exit(1);                                                                               \
			}                                                                                              \
			until_pause();                                                                                 \
			until_over = gantry_now_ns() >= until_end;                                                     \
		}                                                                                                      \
	} while (0)

#endif
