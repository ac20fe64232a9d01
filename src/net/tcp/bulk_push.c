/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a piece of a bulk message gets into the kernel: through a pipe, or by sendmsg, by reference or copied; bulk_tx.c
 * says when.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DATA
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "net/tcp/link.h"

#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

enum { SPLICE_TAIL = 16 << 10 };
enum { VEC_MAX = 256 }; /* pieces of memory in one call */

/* What is left of the piece, or the beginning of it: how many parts, and bytes. */
static int list(const struct tcp_lane_tx *tx, struct iovec iov[VEC_MAX], uint64_t *ret_bytes)
{
	const struct tcp_vec *v = &tx->send->vec;

	if (v->n)
		return tcp_vec_list(v, &tx->at, tx->left, iov, VEC_MAX, ret_bytes);
	iov[0] = (struct iovec){(void *)(uintptr_t)tx->data, tx->left};
	*ret_bytes = tx->left;
	return tx->left != 0;
}

static void advance(struct tcp_lane_tx *tx, uint64_t n)
{
	tx->left -= n;
	if (tx->send->vec.n)
		tcp_vec_skip(&tx->send->vec, &tx->at, n);
	else
		tx->data += n;
}

static int open_pipe(struct tcp_lane *lane)
{
	int *p = lane->tx.pipe;

	if (p[0] >= 0)
		return 0;
	if (pipe2(p, O_CLOEXEC | O_NONBLOCK)) {
		p[0] = p[1] = -1;
		return -1;
	}
	/* Whatever the kernel grants: a large pipe saves calls. */
	for (int size = LINK_PIPE_SIZE; size > 1 << 16 && fcntl(p[1], F_SETPIPE_SZ, size) < 0;)
		size /= 2;
	if (fcntl(p[1], F_GETPIPE_SZ) >= LINK_PIPE_MIN)
		return 0;
	/* This user's share of pipe memory is used up (fs.pipe-user-pages-soft): copying is cheaper than tiny pipes. */
	close(p[0]);
	close(p[1]);
	p[0] = p[1] = -1;
	errno = EDQUOT;
	return -1;
}

/* This memory or this kernel does not splice: from now on the link copies. Only called with an empty pipe. */
static void stop_splicing(struct tcp_lane *lane, const char *what)
{
	LOG_INFO(DATA, "%s: %s: %s; large messages are copied from now on", lane->link->session.peer, what,
		 strerror(errno));
	store_relaxed(&lane->link->tx.splice, 0);
	lane->tx.splicing = 0;
}

/* The header, where it cannot be mapped with the payload. 1: it is out; 0, -1: as tcp_push_spliced. */
static int send_header(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;
	ssize_t n;

	if (!tx->header_left)
		return 1;
	n = send(lane->fd, tx->header + WIRE_FRAME_SIZE - tx->header_left, tx->header_left,
		 MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	tcp_lane_given(lane, n);
	tx->header_left -= (uint32_t)n;
	return !tx->header_left;
}

/* Maps what is left, or as much of it as there is room for, into the empty pipe. 1: some; 0, -1: as tcp_push_spliced.
 */
static int fill_pipe(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;
	/* The request outlives the piece, so a header in it may be mapped like the payload. */
	int whole = tx->header_left == WIRE_FRAME_SIZE && tx->length == tx->send->size, rc;
	struct iovec iov[2] = {{tx->send->header, WIRE_FRAME_SIZE}, {(void *)(uintptr_t)tx->data, tx->left}};
	ssize_t n;

	if (whole)
		memcpy(tx->send->header, tx->header, WIRE_FRAME_SIZE);
	else if ((rc = send_header(lane)) <= 0)
		return rc;
	if (open_pipe(lane)) {
		stop_splicing(lane, "pipe");
		return 0;
	}
	do
		n = vmsplice(tx->pipe[1], whole ? iov : iov + 1, whole ? 2 : 1, SPLICE_F_NONBLOCK);
	while (n < 0 && errno == EINTR);
	if (n <= 0) {
		stop_splicing(lane, "vmsplice");
		return 0;
	}
	if (whole && n < WIRE_FRAME_SIZE) { /* cannot happen: a header lies within one page */
		errno = EIO;
		return -1;
	}
	tx->in_pipe = (uint64_t)n;
	if (whole) {
		tx->header_left = 0;
		n -= WIRE_FRAME_SIZE;
	}
	advance(tx, (uint64_t)n);
	return 1;
}

int tcp_push_spliced(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;

	while (tx->left || tx->in_pipe) {
		ssize_t n;
		int rc;

		if (!tx->in_pipe && !tx->header_left && tx->left <= SPLICE_TAIL) {
			/* A pipe of the usual size just misses a header and 1 MiB: one call for the tail, not two. */
			n = send(lane->fd, tx->data, tx->left, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (n < 0)
				return errno == EAGAIN || errno == EINTR ? 0 : -1;
			tcp_lane_given(lane, n);
			advance(tx, (uint64_t)n);
			continue;
		}
		if (!tx->in_pipe && (rc = fill_pipe(lane)) <= 0)
			return rc;
		n = splice(tx->pipe[0], NULL, lane->fd, NULL, tx->in_pipe,
			   SPLICE_F_NONBLOCK | SPLICE_F_MOVE | (tx->left ? SPLICE_F_MORE : 0));
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		tcp_lane_given(lane, n);
		tx->in_pipe -= (uint64_t)n;
	}
	return 1;
}

/* Reads what the kernel has to say about MSG_ZEROCOPY calls: if it copied after all, stop asking. */
static void drain_errors(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;
	uint8_t control[128];

	while (tx->zerocopy_seen != tx->zerocopy_calls) {
		struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof(control)};
		struct cmsghdr *c;

		if (recvmsg(lane->fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return;
		for (c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
			struct sock_extended_err ee;

			if (c->cmsg_level != SOL_IP && c->cmsg_level != SOL_IPV6)
				continue;
			memcpy(&ee, CMSG_DATA(c), sizeof(ee));
			if (ee.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
				continue;
			store_relaxed(&tx->zerocopy_seen, ee.ee_data + 1);
			if ((ee.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) &&
			    exchange_relaxed(&lane->link->tx.msg_zerocopy, 0))
				LOG_INFO(DATA, "%s: the kernel copies despite MSG_ZEROCOPY; plain sends from now on",
					 lane->link->session.peer);
		}
	}
}

int tcp_push_copied(struct tcp_lane *lane)
{
	struct tcp_lane_tx *tx = &lane->tx;
	struct iovec iov[VEC_MAX + 1];

	while (tx->left || tx->header_left) {
		int zerocopy = tx->send->needs_ack && load_relaxed(&lane->link->tx.msg_zerocopy);
		/* A header must not be sent by reference: it is overwritten by the next piece's. */
		int header_only = zerocopy && tx->header_left, header = tx->header_left != 0, parts = 0;
		int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (header_only ? MSG_MORE : zerocopy ? MSG_ZEROCOPY : 0);
		struct msghdr msg = {.msg_iov = header ? iov : iov + 1};
		uint64_t bytes = 0;
		ssize_t n;

		iov[0] = (struct iovec){tx->header + WIRE_FRAME_SIZE - tx->header_left, tx->header_left};
		if (!header_only)
			parts = list(tx, iov + 1, &bytes);
		if (bytes < tx->left)
			flags |= MSG_MORE;
		msg.msg_iovlen = (size_t)(parts + header);
		n = sendmsg(lane->fd, &msg, flags);
		if (n < 0 && errno == ENOBUFS && (flags & MSG_ZEROCOPY)) {
			drain_errors(lane);
			n = sendmsg(lane->fd, &msg, flags & ~MSG_ZEROCOPY);
		} else if (n < 0 && errno == EFAULT && (flags & MSG_ZEROCOPY)) {
			LOG_INFO(DATA, "%s: this memory cannot be pinned; plain sends from now on",
				 lane->link->session.peer);
			store_relaxed(&lane->link->tx.msg_zerocopy, 0);
			continue;
		} else if (n >= 0 && (flags & MSG_ZEROCOPY)) {
			store_relaxed(&tx->zerocopy_calls, tx->zerocopy_calls + 1);
		}
		if (n < 0)
			return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
		tcp_lane_given(lane, n);
		if ((uint64_t)n <= tx->header_left) {
			tx->header_left -= (uint32_t)n;
		} else {
			n -= tx->header_left;
			tx->header_left = 0;
			advance(tx, (uint64_t)n);
		}
	}
	if (tx->zerocopy_calls - tx->zerocopy_seen >= 8)
		drain_errors(lane);
	return 1;
}
