/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a test by scripts/pauses.sh: any thread may pause before and after any lock and system call, mostly
 * for microseconds, now and then for tenths of a second, rarely for longer than a second. What a loaded machine does to
 * a test once in a thousand runs shows within a few.
 *
 *   TEST_SEED      which pauses come. Threads are numbered as they begin, so a seed nearly repeats itself, not quite.
 *   PAUSES_SCALE   how many times more of them
 */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../lib/random.h"

static uint32_t scale = 1;

static void pause_us(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};

	syscall(SYS_nanosleep, &t, NULL);
}

static void maybe_pause(void)
{
	uint32_t draw = random_below(1 << 20);

	if (draw < 3 * scale)
		pause_us(1500000);
	else if (draw < 40 * scale)
		pause_us(100000 + draw % 64 * 1000);
	else if (draw < 2000 * scale)
		pause_us(draw % 2000);
	else if (draw < 20000)
		syscall(SYS_sched_yield);
}

#define CALLS(X)                                                                                                       \
	X(int, pthread_mutex_lock, (pthread_mutex_t * m), (m))                                                         \
	X(int, pthread_mutex_unlock, (pthread_mutex_t * m), (m))                                                       \
	X(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))                               \
	X(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))                                     \
	X(ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))                              \
	X(ssize_t, recv, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))                                    \
	X(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))                                               \
	X(ssize_t, read, (int fd, void *p, size_t n), (fd, p, n))                                                      \
	X(int, epoll_wait, (int fd, struct epoll_event *e, int n, int ms), (fd, e, n, ms))                             \
	X(int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))                                                \
	X(int, accept4, (int fd, struct sockaddr *a, socklen_t *len, int flags), (fd, a, len, flags))                  \
	X(int, connect, (int fd, const struct sockaddr *a, socklen_t len), (fd, a, len))                               \
	X(int, close, (int fd), (fd))

#define FIND(ret, name, params, args) *(void **)&real_##name = dlsym(RTLD_NEXT, #name);

/* Other libraries may begin before this one and call: then it looks by itself. */
#define WRAP(ret, name, params, args)                                                                                  \
	static ret(*real_##name) params;                                                                               \
	__attribute__((visibility("default"))) ret name params                                                         \
	{                                                                                                              \
		ret value;                                                                                             \
                                                                                                                       \
		if (!real_##name)                                                                                      \
			FIND(ret, name, params, args)                                                                  \
		maybe_pause();                                                                                         \
		value = real_##name args;                                                                              \
		maybe_pause();                                                                                         \
		return value;                                                                                          \
	}

CALLS(WRAP)

/* All are found before main: dlsym at the first call would change what dlerror says to the caller. */
__attribute__((constructor)) static void begin(void)
{
	const char *x = getenv("PAUSES_SCALE");

	CALLS(FIND)
	scale = x ? (uint32_t)atoi(x) : 1;
}
