/* SPDX-License-Identifier: Apache-2.0 */
#include "common/raw_tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 1 << 20 };

static int limit_time(int fd, uint64_t ns)
{
	struct timeval t = {(time_t)(ns / 1000000000), (suseconds_t)(ns % 1000000000 / 1000)};

	return ns && (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) ||
		      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)))
		       ? -1
		       : 0;
}

/* Errors caused by the time limit are reported as such, in accept, connect, send and recv alike. */
static int timed_out(void)
{
	if (errno == EAGAIN || errno == EINPROGRESS)
		errno = ETIMEDOUT;
	return -1;
}

int raw_tcp_listen(struct raw_tcp *w, const struct sockaddr *at, socklen_t len, uint64_t limit_ns, uint16_t *ret_port)
{
	struct sockaddr_in6 bound; /* the port is at the same place for both families */
	socklen_t size = sizeof(bound);

	w->listener = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (w->listener < 0 || bind(w->listener, at, len) || listen(w->listener, RAW_TCP_MAX) ||
	    getsockname(w->listener, (struct sockaddr *)&bound, &size) || limit_time(w->listener, limit_ns))
		return -1;
	*ret_port = ntohs(bound.sin6_port);
	return 0;
}

/* The kernel may hand connections over in another order than that in which they were made: each says which it is. */
static int join_one(struct raw_tcp *w, int i, const struct sockaddr *to, socklen_t len, uint64_t limit_ns)
{
	unsigned char which = (unsigned char)i;
	int fd = to ? socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)
		    : accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return timed_out();
	if (limit_time(fd, limit_ns) || (to && connect(fd, to, len)) || raw_tcp_move(fd, &which, 1, to != NULL)) {
		int e = errno;

		close(fd);
		errno = e;
		return timed_out();
	}
	if (which >= w->n || w->fd[which] >= 0) {
		close(fd);
		errno = EPROTO; /* a stranger */
		return -1;
	}
	w->fd[which] = fd;
	return 0;
}

int raw_tcp_join(struct raw_tcp *w, int n, const struct sockaddr *to, socklen_t len, uint64_t limit_ns)
{
	w->n = n;
	for (int i = 0; i < n; i++)
		w->fd[i] = -1;
	for (int i = 0; i < n; i++)
		if (join_one(w, i, to, len, limit_ns))
			return -1;
	return 0;
}

void raw_tcp_close(struct raw_tcp *w)
{
	while (w->n > 0)
		if (w->fd[--w->n] >= 0)
			close(w->fd[w->n]);
	if (w->listener > 0)
		close(w->listener);
	w->listener = 0;
}

int raw_tcp_move(int fd, void *p, size_t size, int sending)
{
	char *at = p;

	while (size > 0) {
		ssize_t n = sending ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, 0);

		if (n == 0)
			errno = ECONNRESET;
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return -1;
		at += n > 0 ? n : 0;
		size -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* Its bytes are moved, or its time is over. */
static int is_over(const struct raw_tcp_stream *s)
{
	struct timespec t;

	if (!s->until_ns)
		return s->moved >= s->bytes;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec >= s->until_ns;
}

/* What send or recv returned. 0: no more. */
static int take_step(struct raw_tcp_stream *s, ssize_t n, int over)
{
	if (n < 0 && errno != EINTR)
		s->error = errno;
	if (n == 0 && !s->until_ns)
		s->error = ECONNRESET;
	s->moved += n > 0 && !over ? (uint64_t)n : 0;
	return n && !s->error;
}

/* A receiver goes on beyond its time, to the end of what was sent: else the sender would never end. */
static void *run_stream(void *arg)
{
	struct raw_tcp_stream *s = arg;
	char *buf = calloc(1, STEP);
	int over = is_over(s), more = 1;

	s->error = buf ? 0 : ENOMEM;
	while (!s->error && more && (!over || (s->until_ns && !s->sending))) {
		size_t want = s->until_ns || s->bytes - s->moved > STEP ? STEP : (size_t)(s->bytes - s->moved);
		ssize_t n = s->sending ? send(s->fd, buf, want, MSG_NOSIGNAL) : recv(s->fd, buf, want, 0);

		more = take_step(s, n, s->until_ns && is_over(s));
		over = is_over(s);
	}
	if (s->until_ns && s->sending)
		shutdown(s->fd, SHUT_WR);
	free(buf);
	return NULL;
}

int raw_tcp_run(struct raw_tcp_stream *s, int n)
{
	pthread_t threads[RAW_TCP_MAX];
	int started = 0, error = 0;

	while (started < n && !error) {
		error = pthread_create(&threads[started], NULL, run_stream, &s[started]);
		started += !error;
	}
	for (int i = 0; i < started; i++) {
		pthread_join(threads[i], NULL);
		error = error ? error : s[i].error;
	}
	errno = error;
	return error ? -1 : 0;
}
