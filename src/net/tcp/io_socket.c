/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of plain sockets: each operation is one non-blocking system call, and is complete when that returns. */
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "inet/sock.h"
#include "net/tcp/io.h"

#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

const struct tcp_io_ops *tcp_io_engine = &tcp_io_sockets;

static void open_socket(struct tcp_io *io, int fd)
{
	io->fd = fd;
}

static int replace_socket(struct tcp_io *io, int fd)
{
	int e = dup3(fd, io->fd, O_CLOEXEC) < 0 ? errno : 0;

	close(fd);
	return e;
}

static void close_socket(struct tcp_io *io)
{
	if (io->fd >= 0)
		close(io->fd);
	io->fd = -1;
}

/* The kernel has less to do for one buffer than for a list of one. */
static ssize_t send_socket(struct tcp_io *io, const struct iovec *iov, int n, unsigned flags)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n};
	int f = MSG_DONTWAIT | MSG_NOSIGNAL | (flags & TCP_IO_MORE ? MSG_MORE : 0) |
		(flags & TCP_IO_REFERENCE ? MSG_ZEROCOPY : 0);

	return n == 1 ? send(io->fd, iov->iov_base, iov->iov_len, f) : sendmsg(io->fd, &msg, f);
}

static ssize_t splice_socket(struct tcp_io *io, int pipe, size_t bytes, unsigned flags)
{
	return splice(pipe, NULL, io->fd, NULL, bytes,
		      SPLICE_F_NONBLOCK | SPLICE_F_MOVE | (flags & TCP_IO_MORE ? SPLICE_F_MORE : 0));
}

/* As for send; and a spinning receiver does this most of the time. */
static ssize_t recv_socket(struct tcp_io *io, const struct iovec *iov, int n)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)n};

	return n == 1 ? recv(io->fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT) : recvmsg(io->fd, &msg, MSG_DONTWAIT);
}

static size_t cancel_nothing(struct tcp_io *io)
{
	(void)io;
	return 0;
}

static bool next_completion(struct tcp_io *io, uint32_t *ret_call, bool *ret_copied)
{
	uint8_t control[128];

	for (;;) {
		struct msghdr msg = {.msg_control = control, .msg_controllen = sizeof(control)};

		if (recvmsg(io->fd, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			return false;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
			struct sock_extended_err ee;

			if (c->cmsg_level != SOL_IP && c->cmsg_level != SOL_IPV6)
				continue;
			memcpy(&ee, CMSG_DATA(c), sizeof(ee));
			if (ee.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
				continue;
			*ret_call = ee.ee_data;
			*ret_copied = ee.ee_code & SO_EE_CODE_ZEROCOPY_COPIED;
			return true;
		}
	}
}

static bool drain_socket(struct tcp_io *io)
{
	enum { CALLS = 64 };
	char nowhere[16 << 10];
	ssize_t n = 1;

	for (int i = 0; i < CALLS && n > 0; i++)
		n = recv(io->fd, nowhere, sizeof(nowhere), MSG_DONTWAIT);
	return n == 0 || (n < 0 && errno != EAGAIN);
}

static void shut_socket(struct tcp_io *io)
{
	shutdown(io->fd, SHUT_WR);
}

static void reset_socket(struct tcp_io *io)
{
	sock_reset(io->fd);
}

static bool socket_info(const struct tcp_io *io, struct tcp_io_info *ret)
{
	struct tcp_info t = {0};
	socklen_t len = sizeof(t);
	enum { ESTABLISHED = 1, CLOSE = 7 }; /* words of netinet/tcp.h, which does not know all fields */
	enum { NO_LOSS = 0x7fffffff };

	*ret = (struct tcp_io_info){0};
	if (getsockopt(io->fd, IPPROTO_TCP, TCP_INFO, &t, &len))
		return false;
	ret->established = t.tcpi_state == ESTABLISHED;
	ret->closed = t.tcpi_state == CLOSE;
	ret->unacked = t.tcpi_unacked;
	ret->bytes_acked = t.tcpi_bytes_acked;
	ret->ack_age_ms = t.tcpi_last_ack_recv;
	ret->data_age_ms = t.tcpi_last_data_recv;
	ret->retransmits = t.tcpi_retransmits;
	ret->rto_us = t.tcpi_rto;
	ret->rtt_us = t.tcpi_rtt;
	ret->delivery_rate = t.tcpi_delivery_rate;
	/* After a loss it doubles with every round trip, up to half of what it was. */
	ret->window = t.tcpi_snd_ssthresh < NO_LOSS && t.tcpi_snd_ssthresh > t.tcpi_snd_cwnd ? t.tcpi_snd_ssthresh
											     : t.tcpi_snd_cwnd;
	ret->window *= t.tcpi_snd_mss;
	ret->has_limits = len >= offsetof(struct tcp_info, tcpi_delivered); /* an older kernel fills in less */
	ret->retransmits_total = t.tcpi_total_retrans;
	ret->busy_us = t.tcpi_busy_time;
	ret->receiver_limited_us = t.tcpi_rwnd_limited;
	ret->buffer_limited_us = t.tcpi_sndbuf_limited;
	return true;
}

static enum tcp_io_peek peek_socket(const struct tcp_io *io)
{
	char c;
	ssize_t n = recv(io->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? TCP_IO_EMPTY : TCP_IO_BROKEN;
	return n ? TCP_IO_READABLE : TCP_IO_ENDED;
}

static uint64_t socket_unread(const struct tcp_io *io)
{
	int bytes = 0;

	return ioctl(io->fd, SIOCINQ, &bytes) || bytes < 0 ? 0 : (uint64_t)bytes;
}

static bool socket_unacked(const struct tcp_io *io, uint64_t *ret_bytes)
{
	int bytes = 0;

	if (ioctl(io->fd, SIOCOUTQ, &bytes) || bytes < 0)
		return false;
	*ret_bytes = (uint64_t)bytes;
	return true;
}

const struct tcp_io_ops tcp_io_sockets = {
	.name = "sockets",
	.open = open_socket,
	.replace = replace_socket,
	.close = close_socket,
	.send = send_socket,
	.splice = splice_socket,
	.recv = recv_socket,
	.cancel_send = cancel_nothing,
	.cancel_recv = cancel_nothing,
	.completion = next_completion,
	.drain = drain_socket,
	.shut = shut_socket,
	.reset = reset_socket,
	.info = socket_info,
	.peek = peek_socket,
	.unread = socket_unread,
	.unacked = socket_unacked,
};
