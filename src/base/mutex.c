/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutex.h"

#include <stdio.h>
#include <stdlib.h>

/* stderr and not the log: what is broken may be the log itself, or hold its mutex. */
void gantry_assert_failed(const char *what, const char *function, const char *file, int line)
{
	fprintf(stderr, "gantry: %s:%d: %s: this should hold and does not: %s\n", file, line, function, what);
	abort();
}

int gantry_cond_wait(pthread_cond_t *cond, struct gantry_mutex *m, const struct timespec *until)
{
	int rc;

	ASSERT(gantry_mutex_mine(m));
	gantry_mutex_owned(m, false);
	rc = until ? pthread_cond_timedwait(cond, &m->m, until) : pthread_cond_wait(cond, &m->m);
	gantry_mutex_owned(m, true);
	return rc;
}
