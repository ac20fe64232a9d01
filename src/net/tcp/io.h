/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam below the data network: every byte of a lane enters or leaves its socket through this table, and whatever a lane
 * asks of its socket goes through it too. Nothing above the seam calls a socket. (Device memory has a seam of its own,
 * net/devmem.h.)
 *
 * The model is completion, so that an engine whose operations finish later fits. send and recv start an operation and return
 * the bytes that it has moved, or -1 with errno:
 *   EAGAIN, EINTR, ENOBUFS  nothing was moved, and nothing is in flight;
 *   EINPROGRESS             the operation is in flight: its memory belongs to the engine.
 * The same call again completes an operation in flight: the memory begins where it began, more may follow behind it, and the call
 * returns the bytes or EINPROGRESS once more. Each direction has one operation in flight at most. Before memory in flight
 * changes its use (a buffer goes back to its user, a lane leaves its socket) its owner cancels the operation: then the engine
 * does not touch the memory any more, and the call says how many bytes had been moved.
 * An engine copies lists of buffers; only the memory that they name has to stay.
 *
 * Plain sockets (io_socket.c) complete everything at once, so for them nothing is ever in flight and cancelling is free.
 *
 * Locks: those of the lane's half (link.h) serialise the operations of a direction. What asks or ends may come from any thread.
 */
#ifndef GANTRY_NET_TCP_IO_H
#define GANTRY_NET_TCP_IO_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct tcp_io;

/* Of a send: more follows at once; the kernel may read the memory after the call, until completion() reports the call. */
enum { TCP_IO_MORE = 1, TCP_IO_REFERENCE = 2 };

/* What TCP knows of a connection. Zero: not known. */
struct tcp_io_info {
	bool established, closed;
	uint32_t unacked;		  /* packets */
	uint64_t bytes_acked;		  /* by the peer's kernel, of all */
	uint32_t ack_age_ms, data_age_ms; /* since an acknowledgement, and data, came last */
	uint32_t retransmits;		  /* of the oldest packet, in a row */
	uint32_t rto_us, rtt_us;
	uint64_t delivery_rate; /* bytes per second */
	uint64_t window;	/* bytes that congestion control lets be unacknowledged, soon after a loss */
	bool has_limits;	/* the kernel fills in what follows */
	uint32_t retransmits_total;
	uint64_t busy_us, receiver_limited_us, buffer_limited_us;
};

enum tcp_io_peek { TCP_IO_EMPTY, TCP_IO_READABLE, TCP_IO_ENDED, TCP_IO_BROKEN };

struct tcp_io_ops {
	const char *name;
	/* Takes a connected, non-blocking socket. */
	void (*open)(struct tcp_io *io, int fd);
	/* Takes the next socket of the lane; io->fd stays the same number. 0 or errno. The direction's operations are cancelled. */
	int (*replace)(struct tcp_io *io, int fd);
	void (*close)(struct tcp_io *io); /* nothing is in flight after that */

	ssize_t (*send)(struct tcp_io *io, const struct iovec *iov, int n, unsigned flags);
	/* `bytes` that lie in the pipe. NULL: the engine cannot, and messages are copied. */
	ssize_t (*splice)(struct tcp_io *io, int pipe, size_t bytes, unsigned flags);
	/* 0: the peer has ended its side. */
	ssize_t (*recv)(struct tcp_io *io, const struct iovec *iov, int n);
	size_t (*cancel_send)(struct tcp_io *io);
	size_t (*cancel_recv)(struct tcp_io *io);
	/* The next completion of sends by reference: all up to this call, counted from 0. False: none. *ret_copied: the kernel
	 * copied them after all. */
	bool (*completion)(struct tcp_io *io, uint32_t *ret_call, bool *ret_copied);
	/* Reads and drops what has come, to an end. True: the peer has ended its side, or the connection broke. */
	bool (*drain)(struct tcp_io *io);

	void (*shut)(struct tcp_io *io);  /* the peer reads to the end, and then finds it */
	void (*reset)(struct tcp_io *io); /* at once, ahead of what waits in the kernel; the descriptor stays */

	bool (*info)(const struct tcp_io *io, struct tcp_io_info *ret_info);
	enum tcp_io_peek (*peek)(const struct tcp_io *io);
	uint64_t (*unread)(const struct tcp_io *io); /* bytes that have come */
	bool (*unacked)(const struct tcp_io *io,
			uint64_t *ret_bytes); /* bytes that the peer's kernel has not acknowledged */
};

struct tcp_io {
	const struct tcp_io_ops *ops;
	int fd;	      /* what poll watches; -1: none yet */
	void *engine; /* the engine's own */
};

/* What lanes are opened with. */
extern const struct tcp_io_ops *tcp_io_engine;
extern const struct tcp_io_ops tcp_io_sockets;

/* An errno of send, splice or recv that is no failure: the same call again, later. */
static inline bool tcp_io_is_later(int e)
{
	return e == EAGAIN || e == EINTR || e == ENOBUFS || e == EINPROGRESS;
}

#endif
