/*
 * The limit to measure against: plain TCP, one stream, one send per message,
 * one message read at a time, default socket options. Once spinning on
 * non-blocking sockets and once blocking; the ping-pong spins, with one
 * connection per direction and TCP_NODELAY.
 *
 * Default options mean Nagle's algorithm: small messages of a stream are joined
 * by the kernel, which makes tens of them out of one trip through the stack.
 * --raw-nodelay measures streams without it, for comparison with movers that set
 * TCP_NODELAY as most do.
 *
 * If both ranks are on this host, packets pass the loopback device whatever
 * interface the network uses; so do these. Between hosts they go where the
 * connection goes by which the two have met.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "perf_util.h"

enum { SPIN, BLOCK, PING, PONG }; /* the four connections, in the order in which they are made */

struct perf_raw {
	int fd[PERF_RAW_SOCKETS];
	int listener;
};

/* Sends or receives all of it; on a non-blocking socket it spins. */
static gantry_result move(int fd, unsigned char *p, size_t size, int sending)
{
	gantry_result r = GANTRY_OK;

	while (size > 0) {
		ssize_t n = sending ? send(fd, p, size, MSG_NOSIGNAL) : recv(fd, p, size, 0);

		if (n > 0) {
			p += n;
			size -= (size_t)n;
		} else if (n == 0) {
			FAIL(GANTRY_ERR_PEER_CLOSED, "raw mover: the other rank closed the connection");
		} else if (errno != EAGAIN && errno != EINTR) {
			FAIL(GANTRY_ERR_SYSTEM, "raw mover: %s: %s", sending ? "send" : "recv", strerror(errno));
		}
	}
out:
	return r;
}

static gantry_result stream_on(struct perf_rank *rk, int fd, size_t size, uint64_t iters)
{
	gantry_result r = GANTRY_OK;
	int sending = rk->rank == 0, check = rk->opts->work.check;

	for (uint64_t i = 0; i < iters; i++) {
		unsigned char *at = perf_buf(rk, i % (uint64_t)rk->opts->work.depth);

		if (sending && check)
			perf_stamp(at, size, perf_seq(rk, i));
		TRY(move(fd, at, size, sending));
		if (!sending && check)
			rk->me->wrong += perf_stamp_check(at, size, perf_seq(rk, i));
		perf_progress(rk);
	}
out:
	return r;
}

static gantry_result stream_spin(struct perf_rank *rk, size_t size, uint64_t iters)
{
	return stream_on(rk, rk->raw->fd[SPIN], size, iters);
}
static gantry_result stream_block(struct perf_rank *rk, size_t size, uint64_t iters)
{
	return stream_on(rk, rk->raw->fd[BLOCK], size, iters);
}

static gantry_result pingpong(struct perf_rank *rk, size_t size, uint64_t iters)
{
	gantry_result r = GANTRY_OK;
	int check = rk->opts->work.check, answer = rk->rank == 1;
	int to = rk->raw->fd[answer ? PONG : PING], from = rk->raw->fd[answer ? PING : PONG];
	unsigned char *out_buf = perf_buf(rk, 0), *in_buf = perf_buf(rk, 1);

	for (uint64_t i = 0; i < iters; i++) {
		for (int half = 0; half < 2; half++) {
			uint64_t seq = perf_seq(rk, 2 * i + (uint64_t)half);

			if (half == answer) {
				if (check)
					perf_stamp(out_buf, size, seq);
				TRY(move(to, out_buf, size, 1));
			} else {
				TRY(move(from, in_buf, size, 0));
				if (check)
					rk->me->wrong += perf_stamp_check(in_buf, size, seq);
			}
		}
		perf_progress(rk);
	}
out:
	return r;
}

const struct perf_mover perf_mover_raw_spin = {
	.name = "raw spinning stream", .stream = stream_spin, .pingpong = pingpong};
const struct perf_mover perf_mover_raw_block = {
	.name = "raw blocking stream", .stream = stream_block, .pingpong = NULL};

/* Where rank 1 listens, as rank 0 sees it or as rank 1 itself does. */
static struct gantry_addr raw_address(const struct perf_rank *rk)
{
	struct gantry_addr loopback = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};

	return rk->remote ? perf_remote_address(rk->remote) : loopback;
}

static gantry_result start_listening(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr addr = raw_address(rk);
	char text[GANTRY_ADDR_TEXT];
	socklen_t len = sizeof(addr);
	int fd = socket(addr.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	rk->raw->listener = fd;
	gantry_addr_set_port(&addr, 0);
	if (fd < 0 || bind(fd, &addr.sa, gantry_addr_len(&addr)) < 0 || listen(fd, PERF_RAW_SOCKETS) < 0 ||
	    getsockname(fd, &addr.sa, &len) < 0)
		FAIL(GANTRY_ERR_SYSTEM, "raw mover: listening on %s: %s", gantry_addr_text(&addr, text),
		     strerror(errno));
	rk->me->raw_port = gantry_addr_port(&addr);
out:
	return r;
}

/* Each connection says which it is: the kernel may hand them over in another order. */
static gantry_result join(struct perf_rank *rk, int i)
{
	gantry_result r = GANTRY_OK;
	struct gantry_addr addr = raw_address(rk);
	char text[GANTRY_ADDR_TEXT];
	unsigned char which = (unsigned char)i;
	int fd, on = 1;

	if (rk->rank == 0) {
		gantry_addr_set_port(&addr, rk->other->raw_port);
		fd = rk->raw->fd[i] = socket(addr.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || connect(fd, &addr.sa, gantry_addr_len(&addr)) < 0)
			FAIL(GANTRY_ERR_SYSTEM, "raw mover: connect to %s: %s", gantry_addr_text(&addr, text),
			     strerror(errno));
		TRY(move(fd, &which, 1, 1));
	} else {
		fd = accept4(rk->raw->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			FAIL(GANTRY_ERR_SYSTEM, "raw mover: accept: %s", strerror(errno));
		r = move(fd, &which, 1, 0);
		if (r != GANTRY_OK || which >= PERF_RAW_SOCKETS || rk->raw->fd[which] >= 0) {
			close(fd);
			if (r != GANTRY_OK)
				goto out;
			FAIL(GANTRY_ERR_PROTOCOL, "raw mover: a stranger connected to port %d", rk->me->raw_port);
		}
		rk->raw->fd[which] = fd;
	}
	if (which == PING || which == PONG || rk->opts->work.raw_nodelay)
		if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
			FAIL(GANTRY_ERR_SYSTEM, "raw mover: TCP_NODELAY: %s", strerror(errno));
	if (which != BLOCK)
		if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
			FAIL(GANTRY_ERR_SYSTEM, "raw mover: O_NONBLOCK: %s", strerror(errno));
out:
	return r;
}

gantry_result perf_raw_open(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;

	rk->raw = malloc(sizeof(*rk->raw));
	if (!rk->raw)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the raw movers");
	*rk->raw = (struct perf_raw){.fd = {-1, -1, -1, -1}, .listener = -1};
	if (rk->rank == 1)
		TRY(start_listening(rk));
	TRY(perf_sync(rk));
	for (int i = 0; i < PERF_RAW_SOCKETS; i++)
		TRY(join(rk, i));
out:
	return r;
}

void perf_raw_close(struct perf_rank *rk)
{
	if (!rk->raw)
		return;
	for (int i = 0; i < PERF_RAW_SOCKETS; i++)
		if (rk->raw->fd[i] >= 0)
			close(rk->raw->fd[i]);
	if (rk->raw->listener >= 0)
		close(rk->raw->listener);
	free(rk->raw);
	rk->raw = NULL;
}
