/* The limit to compare with: the same bytes over plain TCP, 1 MiB blocking sends. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
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

	TRY(prx_barrier(rk));
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

/* Where rank 1 listens, as rank 0 sees it or as rank 1 itself does. */
static struct gantry_addr raw_address(const struct prx_rank *rk)
{
	const struct perf_remote *rm = rk->remote;
	struct gantry_addr loopback = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};

	return rm ? perf_remote_address(rm) : loopback;
}

/* A peer that does not come, or whose packets are dropped, ends accept and connect in time. */
static void limit_time(int fd, uint64_t ns)
{
	struct timeval t = {(time_t)(ns / 1000000000), (suseconds_t)(ns % 1000000000 / 1000)};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

static gantry_result raw_connect(struct prx_rank *rk, const struct gantry_addr *to, int listener, int *ret_fd)
{
	gantry_result r = GANTRY_OK;
	char text[GANTRY_ADDR_TEXT];
	int fd = rk->rank == 1 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC)
			       : socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0)
		limit_time(fd, rk->opts->work.timeout_ns);
	if (fd < 0 || (rk->rank == 0 && connect(fd, &to->sa, gantry_addr_len(to)))) {
		int e = errno == EAGAIN || errno == EINPROGRESS ? ETIMEDOUT : errno;

		if (fd >= 0)
			close(fd);
		FAIL(GANTRY_ERR_SYSTEM, "raw streams: connecting to %s: %s", gantry_addr_text(to, text), strerror(e));
	}
	*ret_fd = fd;
out:
	return r;
}

gantry_result prx_raw_open(struct prx_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr a = raw_address(rk);
	char text[GANTRY_ADDR_TEXT];
	socklen_t len = sizeof(a);
	int l = -1;

	if (rk->rank == 1) {
		l = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		gantry_addr_set_port(&a, 0);
		if (l < 0 || bind(l, &a.sa, gantry_addr_len(&a)) || listen(l, PRX_STREAMS_MAX) ||
		    getsockname(l, &a.sa, &len))
			FAIL(GANTRY_ERR_SYSTEM, "raw streams: listening on %s: %s", gantry_addr_text(&a, text),
			     strerror(errno));
		limit_time(l, rk->opts->work.timeout_ns);
		rk->shared->raw_port = gantry_addr_port(&a);
	}
	TRY(prx_barrier(rk));
	gantry_addr_set_port(&a, rk->shared->raw_port);
	for (int i = 0; i < rk->shared->streams; i++) {
		TRY(raw_connect(rk, &a, l, &rk->raw[rk->nraw]));
		rk->nraw++;
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
