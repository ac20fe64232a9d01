/* Until closed links have been seen off and freed: the service thread does both, after the close. */
#ifndef GANTRY_TESTS_GONE_H
#define GANTRY_TESTS_GONE_H

#include <unistd.h>

#include "base/clock.h"
#include "net/tcp/engine.h"
#include "test.h"

static inline void links_are_gone(void)
{
	uint64_t until = gantry_now_ns() + 60 * 1000000000ull;
	int gone = 0;

	while (!gone) {
		pthread_mutex_lock(&tcp_engine.mu);
		gone = gantry_list_empty(&tcp_engine.links) && gantry_list_empty(&tcp_engine.lingering) &&
		       !tcp_engine.nburied;
		pthread_mutex_unlock(&tcp_engine.mu);
		CHECK(gone || gantry_now_ns() < until);
		if (!gone)
			usleep(1000);
	}
}

#endif
