/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a piece of a bulk message gets from host memory into its lane's socket: through a pipe, or by sendmsg, by
 * reference or copied. What stands here follows from how Linux carries out such calls; it knows a lane and the rest of
 * its piece. Messages, their pieces and which way is taken when are in bulk_tx.c; link.h has the table of all ways.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/log.h"
#include "net/tcp/link.h"

enum { SPLICE_TAIL = 16 << 10, DRAIN_AT = 8 };
/* Where sender and receiver share the work: bytes that are spliced, then copied. Two fifths copied was best
 * (docs/design/0030). */
enum { SHARED_SPLICE = 384 << 10, SHARED_COPY = 256 << 10, SHARE_FOR = 16 << 20, SHARED_MESSAGE = 2 << 20 };

int tcp_piece_list(const struct tcp_lane_tx *tx, struct iovec iov[LINK_VEC_MAX], uint64_t *ret_bytes)
{
	const struct tcp_vec *v = &tx->send->vec;

	if (v->n)
		return tcp_vec_list(v, &tx->at, tx->left, iov, LINK_VEC_MAX, ret_bytes);
	iov[0] = (struct iovec){(void *)(uintptr_t)tx->data, tx->left};
	*ret_bytes = tx->left;
	return tx->left != 0;
}

void tcp_piece_advance(struct tcp_lane_tx *tx, uint64_t n)
{
	tx->left -= n;
	if (tx->send->vec.n)
		tcp_vec_skip(&tx->send->vec, &tx->at, n);
	else
		tx->data += n;
}

static int open_pipe(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
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

/* What a call on a socket that failed means for a push. */
static int full_or_lost(void)
{
	return tcp_io_is_later(errno) ? 0 : -1;
}

/* The same while splicing: a full socket says that the receiver is behind. */
static int spliced_full_or_lost(struct tcp_lane_tx *tx) REQUIRES(lane_tx_mu)
{
	int rc = full_or_lost();

	if (rc == 0)
		tx->share = SHARE_FOR;
	return rc;
}

/* This memory or this kernel does not splice: from now on the link copies. */
static void stop_splicing(struct tcp_lane *lane, const char *what) REQUIRES(lane_tx_mu)
{
	ASSERT(!lane->tx.in_pipe);
	LOG_INFO(DATA, "%s: %s: %s; large messages are copied from now on", lane->link->session.peer, what,
		 strerror(errno));
	store_relaxed(&lane->link->tx.splice, 0);
	lane->tx.push = &tcp_push_copied;
}

/* The header alone, where it cannot go with the payload. 1: it is out; 0, -1: as a push. */
static int send_header(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	const struct iovec iov = {tx->header + WIRE_FRAME_SIZE - tx->header_left, tx->header_left};
	ssize_t n;

	if (!tx->header_left)
		return 1;
	n = lane->io.ops->send(&lane->io, &iov, 1, TCP_IO_MORE);
	if (n < 0)
		return full_or_lost();
	tcp_lane_given(lane, n);
	tx->header_left -= (uint32_t)n;
	return !tx->header_left;
}

/* Maps what is left, or as much of it as there is room for, into the empty pipe. 1: some; 0, -1: as a push. */
static int fill_pipe(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	/* The request outlives the piece, so a header in it may be mapped like the payload. */
	int whole = tx->header_left == WIRE_FRAME_SIZE && tx->length == tx->send->size, rc;
	uint64_t bytes = tx->share && tx->left > SHARED_SPLICE ? (uint64_t)SHARED_SPLICE : tx->left;
	struct iovec iov[2] = {{tx->send->header, WIRE_FRAME_SIZE}, {(void *)(uintptr_t)tx->data, bytes}};
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
	tcp_piece_advance(tx, (uint64_t)n);
	return 1;
}

/*
 * A spliced byte is copied once, by the receiver, and that limits a stream of large messages: the sender finds the socket
 * full. Instead of waiting it may as well copy some of the bytes itself, to memory that the receiver then finds in the
 * cache. Not where this process receives as well: there its time is not free. Nor with several lanes, which several
 * threads may receive. The socket gets room for megabytes at once, so one that was full stands for many bytes.
 */
static void share_work(struct tcp_lane *lane, uint64_t spliced) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;

	if (tx->share < spliced || tx->send->size < SHARED_MESSAGE || lane->link->nlanes > 2 ||
	    load_relaxed(&tcp_large_receives)) {
		tx->share = 0;
	} else {
		tx->share -= spliced;
		tx->to_copy = SHARED_COPY;
	}
}

/* How much of the piece is to be copied next. A pipe of the usual size just misses a header and 1 MiB: one call for such a
 * tail, not two. */
static uint64_t bytes_to_copy(const struct tcp_lane_tx *tx) REQUIRES(lane_tx_mu)
{
	if (tx->in_pipe || tx->header_left)
		return 0;
	return tx->left <= SPLICE_TAIL || tx->left < tx->to_copy ? tx->left : tx->to_copy;
}

static int push_spliced(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;

	ASSERT_HELD(&tx->lock);
	while (tx->left || tx->in_pipe) {
		uint64_t copy = bytes_to_copy(tx);
		ssize_t n;
		int rc;

		if (copy) {
			n = lane->io.ops->send(&lane->io, &(struct iovec){(void *)(uintptr_t)tx->data, copy}, 1,
					       copy < tx->left ? TCP_IO_MORE : 0);
			if (n < 0)
				return spliced_full_or_lost(tx);
			tcp_lane_given(lane, n);
			tcp_piece_advance(tx, (uint64_t)n);
			tx->to_copy -= (uint64_t)n < tx->to_copy ? (uint64_t)n : tx->to_copy;
			continue;
		}
		if (!tx->in_pipe && (rc = fill_pipe(lane)) <= 0)
			return rc;
		n = lane->io.ops->splice(&lane->io, tx->pipe[0], tx->in_pipe, tx->left ? TCP_IO_MORE : 0);
		if (n < 0)
			return spliced_full_or_lost(tx);
		tcp_lane_given(lane, n);
		tx->in_pipe -= (uint64_t)n;
		if (!tx->in_pipe)
			share_work(lane, (uint64_t)n);
	}
	return 1;
}

const struct tcp_push_ops tcp_push_spliced = {.name = "splice", .push = push_spliced, .may_raise_sigpipe = true};

/* Reads what the kernel has to say about MSG_ZEROCOPY calls: if it copied after all, stop asking. */
static void drain_errors(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	bool copied = false;
	uint32_t call;

	while (tx->completed != tx->calls && lane->io.ops->completion(&lane->io, &call, &copied)) {
		store_relaxed(&tx->completed, call + 1);
		if (copied && exchange_relaxed(&lane->link->tx.msg_zerocopy, 0))
			LOG_INFO(DATA, "%s: the kernel copies despite MSG_ZEROCOPY; plain sends from now on",
				 lane->link->session.peer);
	}
}

static int push_copied(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	struct iovec iov[LINK_VEC_MAX + 1];

	ASSERT_HELD(&tx->lock);
	while (tx->left || tx->header_left) {
		uint64_t bytes = 0;
		int header = tx->header_left != 0, parts = tcp_piece_list(tx, iov + 1, &bytes);
		uint32_t of_header = tx->header_left;
		ssize_t n;

		iov[0] = (struct iovec){tx->header + WIRE_FRAME_SIZE - of_header, of_header};
		n = lane->io.ops->send(&lane->io, header ? iov : iov + 1, parts + header,
				       bytes < tx->left ? TCP_IO_MORE : 0);
		if (n < 0)
			return full_or_lost();
		tcp_lane_given(lane, n);
		if (n < of_header)
			of_header = (uint32_t)n;
		tx->header_left -= of_header;
		tcp_piece_advance(tx, (uint64_t)n - of_header);
	}
	return 1;
}

const struct tcp_push_ops tcp_push_copied = {.name = "copy", .push = push_copied};

/* One call by reference. Bytes, or -1 with errno; EFAULT: plain sends from now on. */
static ssize_t send_by_reference(struct tcp_lane *lane, const struct iovec *iov, int parts, unsigned flags)
	REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	ssize_t n = lane->io.ops->send(&lane->io, iov, parts, flags | TCP_IO_REFERENCE);

	if (n >= 0) {
		store_relaxed(&tx->calls, tx->calls + 1);
	} else if (errno == ENOBUFS) {
		drain_errors(lane);
		n = lane->io.ops->send(&lane->io, iov, parts, flags);
	} else if (errno == EFAULT) {
		LOG_INFO(DATA, "%s: this memory cannot be pinned; plain sends from now on", lane->link->session.peer);
		store_relaxed(&lane->link->tx.msg_zerocopy, 0);
		errno = EFAULT;
	}
	return n;
}

static int push_zerocopy(struct tcp_lane *lane) REQUIRES(lane_tx_mu)
{
	struct tcp_lane_tx *tx = &lane->tx;
	struct iovec iov[LINK_VEC_MAX];
	int rc;

	ASSERT_HELD(&tx->lock);
	while ((tx->left || tx->header_left) && load_relaxed(&lane->link->tx.msg_zerocopy)) {
		uint64_t bytes = 0;
		int parts;
		ssize_t n;

		/* A header must not be sent by reference: it is overwritten by the next piece's. */
		rc = send_header(lane);
		if (rc <= 0)
			return rc;
		parts = tcp_piece_list(tx, iov, &bytes);
		n = send_by_reference(lane, iov, parts, bytes < tx->left ? TCP_IO_MORE : 0);
		if (n < 0 && errno == EFAULT)
			break;
		if (n < 0)
			return full_or_lost();
		tcp_lane_given(lane, n);
		tcp_piece_advance(tx, (uint64_t)n);
	}
	rc = tx->left ? push_copied(lane) : 1; /* some is left where the kernel has stopped to do it by reference */
	if (rc > 0 && tx->calls - tx->completed >= DRAIN_AT)
		drain_errors(lane);
	return rc;
}

const struct tcp_push_ops tcp_push_zerocopy = {.name = "zerocopy", .push = push_zerocopy};
