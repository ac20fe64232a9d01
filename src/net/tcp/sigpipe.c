/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp/sigpipe.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

void sigpipe_guard(struct sigpipe_guard *g)
{
	static _Thread_local int needed; /* 0: not known, 1: yes, 2: no */
	sigset_t set;

	if (!needed) {
		struct sigaction action;

		pthread_sigmask(SIG_BLOCK, NULL, &set);
		sigaction(SIGPIPE, NULL, &action);
		needed = sigismember(&set, SIGPIPE) || action.sa_handler == SIG_IGN ? 2 : 1;
	}
	g->on = needed == 1;
	if (!g->on)
		return;
	sigpending(&set);
	g->was_pending = sigismember(&set, SIGPIPE);
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, &g->old);
}

void sigpipe_unguard(const struct sigpipe_guard *g, int lost)
{
	struct timespec none = {0, 0};
	sigset_t set;

	if (!g->on)
		return;
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	if (lost && !g->was_pending)
		while (sigtimedwait(&set, NULL, &none) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &g->old, NULL);
}
