/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state machine of the network against a script, in one thread: the clock, the random numbers and the sockets are the
 * script's. For targets whose line "wrap:" names the functions below.
 */
#ifndef GANTRY_TESTS_SESSION_H
#define GANTRY_TESTS_SESSION_H

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "inet/sock.h"
#include "script.h"
#include "test.h"

#define SECOND 1000000000ull

static struct {
	struct script in;
	int on; /* the clock and the random numbers are the script's */
	uint64_t now;
	int coming;	   /* what accept4 returns next; -1: nothing */
	int refuse;	   /* errno of the next connect */
	int refuse_accept; /* errno of the next accept4 */
} session;

static inline void session_begin(const uint8_t *data, size_t size)
{
	logs_drop();
	memset(&session, 0, sizeof(session));
	session.in = (struct script){data, data + size};
	session.coming = -1;
	random_seed(0);
}

static inline uint8_t next(void)
{
	return script_next(&session.in);
}

/* The script's end of a connection; the other one is for the code under test. */
static inline int session_pair(int *ret_other)
{
	int fds[2];

	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
	*ret_other = fds[1];
	return fds[0];
}

/* The target's: the code under test has dialled. */
static void session_dialled(int *ret_fd);

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __real_epoll_wait(int fd, struct epoll_event *ev, int n, int ms);
int __wrap_epoll_wait(int fd, struct epoll_event *ev, int n, int ms);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_sock_connect(const struct gantry_addr *from, const char *device, const struct gantry_addr *to, int *ret_fd);
gantry_result __wrap_sock_listen(const struct gantry_addr *addr, uint16_t first, uint16_t last, int *ret_fd,
				 struct gantry_addr *ret_bound);
gantry_result __real_gantry_random_bytes(void *buf, size_t n);
gantry_result __wrap_gantry_random_bytes(void *buf, size_t n);
gantry_result __wrap_gantry_thread_start(const char *name, void *(*thread)(void *), void *arg, pthread_t *ret_thread);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
	if (!session.on || id != CLOCK_MONOTONIC)
		return __real_clock_gettime(id, t);
	*t = (struct timespec){(time_t)(session.now / SECOND), (long)(session.now % SECOND)};
	return 0;
}

int __wrap_epoll_wait(int fd, struct epoll_event *ev, int n, int ms)
{
	return __real_epoll_wait(fd, ev, n, 0);
}

/* The loop believes that it has its thread. */
gantry_result __wrap_gantry_thread_start(const char *name, void *(*thread)(void *), void *arg, pthread_t *ret_thread)
{
	return GANTRY_OK;
}

gantry_result __wrap_gantry_random_bytes(void *buf, size_t n)
{
	if (!session.on)
		return __real_gantry_random_bytes(buf, n);
	random_fill(buf, n);
	return GANTRY_OK;
}

int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = 7, .sin_addr.s_addr = 0x0100007f};
	int came = session.coming;

	session.coming = -1;
	errno = session.refuse_accept ? session.refuse_accept : EAGAIN;
	session.refuse_accept = 0;
	if (came < 0)
		return -1;
	memcpy(addr, &a, sizeof(a));
	*len = sizeof(a);
	return came;
}

int __wrap_sock_connect(const struct gantry_addr *from, const char *device, const struct gantry_addr *to, int *ret_fd)
{
	int e = session.refuse;

	session.refuse = 0;
	if (!e)
		session_dialled(ret_fd);
	return e;
}

gantry_result __wrap_sock_listen(const struct gantry_addr *addr, uint16_t first, uint16_t last, int *ret_fd,
				 struct gantry_addr *ret_bound)
{
	*ret_fd = eventfd(0, EFD_CLOEXEC);
	*ret_bound = *addr;
	gantry_addr_set_port(ret_bound, 7);
	return GANTRY_OK;
}

#endif
