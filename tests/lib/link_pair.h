/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links without an engine, for unit tests and for the fuzzer of the wire: a tcp_link over socket pairs, whose other end
 * is another link or raw bytes. Frames are put together here byte by byte, not by the encoder under test.
 */
#ifndef GANTRY_TESTS_LINK_PAIR_H
#define GANTRY_TESTS_LINK_PAIR_H

#include <fcntl.h>
#include <netinet/tcp.h>

#include "net/tcp/link.h"
#include "test.h"

/* Tests look into links that no other thread has, or whose locks they hold in ways that clang does not follow. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wthread-safety-analysis"
#endif

struct pair_config {
	int nlanes; /* control lane included */
	int inet;   /* TCP over loopback instead of AF_UNIX */
	int buffer; /* of the sockets; 0: default */
	int crc, splice, msg_zerocopy;
	uint32_t eager_max, window;
};

static inline void pair_sockets(const struct pair_config *c, int fd[2])
{
	int one = 1;

	if (c->inet)
		lo_pair(fd);
	else
		CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	for (int i = 0; i < 2; i++) {
		if (c->inet)
			setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (c->inet && c->msg_zerocopy)
			setsockopt(fd[i], SOL_SOCKET, 60 /* SO_ZEROCOPY */, &one, sizeof(one));
		if (c->buffer) {
			setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &c->buffer, sizeof(c->buffer));
			setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &c->buffer, sizeof(c->buffer));
		}
		fcntl(fd[i], F_SETFL, O_NONBLOCK);
	}
}

/* A link that owns the given sockets, both directions open. */
static inline struct tcp_link *pair_link(const struct pair_config *c, const int *fds, const char *peer)
{
	struct tcp_link *l;

	CHECK_OK(tcp_link_create(c->nlanes, &l));
	l->session.crc = c->crc;
	l->tx.splice = c->splice && tcp_io_engine->splice;
	l->tx.msg_zerocopy = c->msg_zerocopy;
	l->session.eager_max = c->eager_max ? c->eager_max : 65536;
	l->session.peer_window = c->window ? c->window : LINK_WINDOW;
	l->tx.wanted = 1;
	l->session.rails = 1;
	l->last.heard = l->last.told = l->last.progressed = gantry_ticks();
	snprintf(l->session.peer, sizeof(l->session.peer), "%s", peer);
	for (int i = 0; i < c->nlanes; i++)
		l->lanes[i].io.ops->open(&l->lanes[i].io, fds[i]);
	CHECK_OK(tcp_link_open_tx(l));
	CHECK_OK(tcp_link_open_rx(l));
	return l;
}

/* Two links that are connected to each other. */
static inline void pair_links(const struct pair_config *c, struct tcp_link *ret[2])
{
	int fds[2][WIRE_MAX_LANES];

	for (int i = 0; i < c->nlanes; i++) {
		int fd[2];

		pair_sockets(c, fd);
		fds[0][i] = fd[0];
		fds[1][i] = fd[1];
	}
	ret[0] = pair_link(c, fds[0], "right");
	ret[1] = pair_link(c, fds[1], "left");
}

static inline void pair_free(struct tcp_link *l[2])
{
	tcp_link_free(l[0]);
	tcp_link_free(l[1]);
}

static inline void pair_passes(struct tcp_link *l, int times)
{
	for (int i = 0; i < times; i++)
		tcp_link_progress(l);
}

/* One link; the other ends of its lanes are raw. */
static inline struct tcp_link *pair_raw(const struct pair_config *c, int *ret_raw)
{
	int fds[WIRE_MAX_LANES];

	for (int i = 0; i < c->nlanes; i++) {
		int fd[2];

		pair_sockets(c, fd);
		fds[i] = fd[0];
		ret_raw[i] = fd[1];
	}
	return pair_link(c, fds, "raw peer");
}

static inline void pair_raw_free(const struct pair_config *c, struct tcp_link *l, const int *raw)
{
	tcp_link_free(l);
	for (int i = 0; i < c->nlanes; i++)
		if (raw[i] >= 0)
			close(raw[i]);
}

/* The bytes of a frame, after docs/wire.md. */
struct pair_frame {
	uint8_t kind, flags;
	uint32_t length;
	uint64_t seq, offset, total;
	uint32_t tag, index;
	uint32_t crc; /* of the header; 0: the right one, if the flag is set */
	union {
		uint32_t payload_crc, done_bits, lane;
	};
};

/* CRC32C, bit by bit. A running sum: begin with 0. */
static inline uint32_t pair_crc(uint32_t crc, const void *data, size_t n)
{
	const uint8_t *p = data;

	crc = ~crc;
	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

enum { PAIR_EAGER = 8, PAIR_EAGER_SIZE = 24 };

/* Of the header that begins here. */
static inline size_t pair_header(const uint8_t *in)
{
	return in[0] == PAIR_EAGER ? PAIR_EAGER_SIZE : 48;
}

static inline uint32_t pair_header_crc(const uint8_t *in)
{
	size_t size = pair_header(in), sum = size - 8;

	return pair_crc(pair_crc(0, in, sum), in + sum + 4, 4);
}

/* Returns the size of the header. */
static inline size_t pair_frame_put(uint8_t *out, const struct pair_frame *f)
{
	out[0] = f->kind;
	out[1] = f->flags;
	out[2] = 'G';
	out[3] = 'T';
	le_put(out + 4, f->length, 4);
	if (f->kind == PAIR_EAGER) {
		le_put(out + 8, f->tag, 4);
		le_put(out + 12, f->index, 4);
		le_put(out + 16, f->crc, 4);
		le_put(out + 20, f->payload_crc, 4);
		if ((f->flags & WIRE_FLAG_CRC) && !f->crc)
			le_put(out + 16, pair_header_crc(out), 4);
		return PAIR_EAGER_SIZE;
	}
	le_put(out + 8, f->seq, 8);
	le_put(out + 16, f->offset, 8);
	le_put(out + 24, f->total, 8);
	le_put(out + 32, f->tag, 4);
	le_put(out + 36, f->index, 4);
	le_put(out + 40, f->crc, 4);
	le_put(out + 44, f->lane, 4);
	if ((f->flags & WIRE_FLAG_CRC) && !f->crc)
		le_put(out + 40, pair_header_crc(out), 4);
	return 48;
}

/* At a raw end: a frame and its payload, if any. */
static inline void pair_say(int fd, const struct pair_frame *f, const void *payload)
{
	uint8_t b[48];

	send_all(fd, b, pair_frame_put(b, f));
	if (payload)
		send_all(fd, payload, f->length);
}

static inline struct pair_frame pair_frame_get(const uint8_t *in)
{
	if (in[0] == PAIR_EAGER)
		return (struct pair_frame){.kind = in[0],
					   .flags = in[1],
					   .length = (uint32_t)le_get(in + 4, 4),
					   .total = le_get(in + 4, 4),
					   .tag = (uint32_t)le_get(in + 8, 4),
					   .index = (uint32_t)le_get(in + 12, 4),
					   .crc = (uint32_t)le_get(in + 16, 4),
					   .payload_crc = (uint32_t)le_get(in + 20, 4)};
	return (struct pair_frame){.kind = in[0],
				   .flags = in[1],
				   .length = (uint32_t)le_get(in + 4, 4),
				   .seq = le_get(in + 8, 8),
				   .offset = le_get(in + 16, 8),
				   .total = le_get(in + 24, 8),
				   .tag = (uint32_t)le_get(in + 32, 4),
				   .index = (uint32_t)le_get(in + 36, 4),
				   .crc = (uint32_t)le_get(in + 40, 4),
				   .lane = (uint32_t)le_get(in + 44, 4)};
}

#endif
