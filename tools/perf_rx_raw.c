/* The limit to compare with: the same bytes over plain TCP, 1 MiB blocking sends. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "perf_rx.h"

enum { STEP = 1 << 20 };

struct stream {
	int fd, sending, failed;
	uint64_t bytes;
};

static void *run(void *arg)
{
	struct stream *s = arg;
	char *buf = calloc(1, STEP);

	s->failed = !buf;
	while (!s->failed && s->bytes) {
		size_t want = s->bytes < STEP ? (size_t)s->bytes : STEP;
		ssize_t n = s->sending ? send(s->fd, buf, want, MSG_NOSIGNAL) : recv(s->fd, buf, want, 0);

		if (n > 0)
			s->bytes -= (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			s->failed = 1;
	}
	free(buf);
	return NULL;
}

gantry_result prx_raw_run(struct prx_rank *rk, uint64_t *ret_ns)
{
	gantry_result r = GANTRY_OK;
	struct stream s[PRX_STREAMS_MAX];
	pthread_t threads[PRX_STREAMS_MAX];
	uint64_t start, left = rk->bytes;
	int n = 0;

	if (prx_barrier(rk))
		FAIL(GANTRY_ERR_ABORTED, "the other rank has given up");
	start = gantry_now_ns();
	for (int i = 0; i < rk->nraw; i++) {
		uint64_t part = left / (uint64_t)(rk->nraw - i);

		s[i] = (struct stream){rk->raw[i], rk->rank == 0, 0, part};
		left -= part;
		if (pthread_create(&threads[i], NULL, run, &s[i]))
			break;
		n++;
	}
	for (int i = 0; i < n; i++) {
		pthread_join(threads[i], NULL);
		if (s[i].failed)
			r = GANTRY_ERR_PEER_CLOSED;
	}
	*ret_ns = gantry_now_ns() - start;
	if (n < rk->nraw || r != GANTRY_OK)
		FAIL(GANTRY_ERR_SYSTEM, "raw streams: %s", n < rk->nraw ? "no thread" : "a connection broke");
out:
	return r;
}

gantry_result prx_raw_open(struct prx_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int l = -1;

	if (rk->rank == 1) {
		l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (l < 0 || bind(l, (struct sockaddr *)&a, len) || listen(l, PRX_STREAMS_MAX) ||
		    getsockname(l, (struct sockaddr *)&a, &len))
			FAIL(GANTRY_ERR_SYSTEM, "raw streams: listening on 127.0.0.1: %s", strerror(errno));
		rk->shared->raw_port = ntohs(a.sin_port);
	}
	if (prx_barrier(rk))
		FAIL(GANTRY_ERR_ABORTED, "the other rank has given up");
	a.sin_port = htons(rk->shared->raw_port);
	for (int i = 0; i < rk->shared->streams; i++) {
		int fd = rk->rank == 1 ? accept4(l, NULL, NULL, SOCK_CLOEXEC)
				       : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0 || (rk->rank == 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)))) {
			if (fd >= 0)
				close(fd);
			FAIL(GANTRY_ERR_SYSTEM, "raw streams: connecting: %s", strerror(errno));
		}
		rk->raw[rk->nraw++] = fd;
	}
out:
	if (l >= 0)
		close(l);
	return r;
}

void prx_raw_close(struct prx_rank *rk)
{
	while (rk->nraw > 0)
		close(rk->raw[--rk->nraw]);
}
