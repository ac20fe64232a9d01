/* SPDX-License-Identifier: Apache-2.0 */
/* Two rx of one process, connected over the loopback interface, and the bytes that travel between them. */
#ifndef GANTRY_TESTS_RX_UTIL_H
#define GANTRY_TESTS_RX_UTIL_H

#include <sys/socket.h>

#include "gantry/rx.h"
#include "inet/handshake.h"
#include "rx/rx_wire.h"
#include "test.h"

#define SECOND 1000000000ll
enum { LONG_ENOUGH = UNTIL_SECONDS }; /* seconds: for what must happen, on a loaded machine */

/* Over lo, and in silence: errors are provoked. */
__attribute__((constructor)) static void rx_environment(void)
{
	setenv("GANTRY_IFNAME", "lo", 0);
	setenv("GANTRY_LOG_FILE", "/dev/null", 0);
}

struct rx_end {
	struct gantry_rx *rx;
	struct gantry_rx_conn *conn;
};

struct rx_pair {
	struct gantry_device *dev;
	struct rx_end a, b;
};

static inline void *rx_accept_thread(void *arg)
{
	void **in = arg;

	CHECK_OK(gantry_rx_accept(in[0], LONG_ENOUGH * SECOND, (struct gantry_rx_conn **)in[1]));
	return NULL;
}

/* b listens, a connects. */
static inline void rx_pair_connect(struct rx_pair *p)
{
	struct gantry_rx_listener *l;
	pthread_t t;
	void *in[2];

	CHECK_OK(gantry_rx_listen(p->b.rx, "127.0.0.1:0", &l));
	in[0] = l;
	in[1] = &p->b.conn;
	CHECK_EQ(pthread_create(&t, NULL, rx_accept_thread, in), 0);
	CHECK_OK(gantry_rx_connect(p->a.rx, gantry_rx_listener_address(l), LONG_ENOUGH * SECOND, &p->a.conn));
	CHECK_EQ(pthread_join(t, NULL), 0);
	gantry_rx_listener_close(l);
}

static inline void rx_pair_open_each(struct rx_pair *p, struct gantry_rx_config a, struct gantry_rx_config b)
{
	memset(p, 0, sizeof(*p));
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &p->dev));
	a.device = b.device = p->dev;
	CHECK_OK(gantry_rx_open(&a, &p->a.rx));
	CHECK_OK(gantry_rx_open(&b, &p->b.rx));
	rx_pair_connect(p);
}

static inline void rx_pair_open(struct rx_pair *p, const struct gantry_rx_config *config)
{
	struct gantry_rx_config c = {.struct_size = sizeof(c), .path = GANTRY_RX_PATH_HOST};

	if (config)
		c = *config;
	rx_pair_open_each(p, c, c);
}

static inline void rx_pair_close(struct rx_pair *p)
{
	gantry_rx_conn_close(p->a.conn);
	gantry_rx_conn_close(p->b.conn);
	gantry_rx_close(p->a.rx);
	gantry_rx_close(p->b.rx);
	gantry_device_close(p->dev);
}

static const struct inet_protocol rx_by_hand = {"rx", RX_VERSION, "accepting side", "connecting side", NULL};

static inline struct inet_key rx_key(const char *secret)
{
	return (struct inet_key){secret ? INET_AUTH_SECRET : INET_AUTH_NONE, secret, secret ? strlen(secret) : 0,
				 INET_ENCRYPT_OFF};
}

/* It is for whoever is at the other end of this socket. */
static inline void rx_offer_aim(struct rx_offer *o, int fd)
{
	struct gantry_addr to;
	socklen_t len = sizeof(to);

	memset(&to, 0, sizeof(to));
	CHECK_EQ(getpeername(fd, &to.sa, &len), 0);
	o->to = inet_target_of(&to);
}

/* The connecting side of a rendezvous by hand: an offer for another. */
static inline void rx_meet_by_hand(int fd, const char *secret, const struct rx_offer *own, struct rx_offer *ret_offer)
{
	struct inet_key key = rx_key(secret);
	uint8_t offer[RX_OFFER_SIZE];
	struct inet_handshake h;
	struct rx_offer aimed = *own;

	rx_offer_aim(&aimed, fd);
	rx_offer_encode(&aimed, offer);
	CHECK_OK(inet_handshake_start_client(&h, &rx_by_hand, &key, offer, sizeof(offer)));
	UNTIL(inet_handshake_move(&h, fd) == INET_DONE);
	CHECK_OK(rx_offer_decode(h.payload, h.payload_size, ret_offer));
}

/* Memory, registered with one rx: of the device, or plain. */
static inline unsigned char *rx_memory(struct rx_pair *p, struct rx_end *e, size_t size, int device)
{
	void *m = NULL;

	if (device)
		CHECK_OK(gantry_mem_alloc(p->dev, size, &m));
	else
		m = calloc(1, size);
	CHECK(m);
	CHECK_OK(gantry_rx_register(e->rx, m, size));
	return m;
}

static inline void rx_memory_free(struct rx_pair *p, struct rx_end *e, void *m, int device)
{
	CHECK_OK(gantry_rx_deregister(e->rx, m));
	if (device)
		CHECK_OK(gantry_mem_free(p->dev, m));
	else
		free(m);
}

/* Both sides turn until both ops are done, or there is an end to patience. */
static inline void rx_both(struct gantry_rx_op *x, struct gantry_rx_op *y)
{
	int done = 0;

	WAIT_WHILE (done < 2) {
		done = gantry_rx_test(x) == GANTRY_RX_DONE;
		done += gantry_rx_test(y) == GANTRY_RX_DONE; /* always both: each moves its own side */
	}
}

static inline gantry_result rx_result(struct gantry_rx_op *op)
{
	struct gantry_rx_result r = GANTRY_RX_RESULT_INIT;

	gantry_rx_op_result(op, &r);
	return r.result;
}

static inline uint64_t rx_bytes(struct gantry_rx_op *op)
{
	struct gantry_rx_result r = GANTRY_RX_RESULT_INIT;

	gantry_rx_op_result(op, &r);
	return r.bytes;
}

static inline const char *rx_text(struct gantry_rx_op *op)
{
	struct gantry_rx_result r = GANTRY_RX_RESULT_INIT;

	gantry_rx_op_result(op, &r);
	return r.text;
}

/* A layout in memory: pieces of `bytes`, every `stride`, `total` bytes in all (the last piece may be shorter). */
struct rx_layout {
	size_t bytes, stride, total;
};

static inline size_t rx_span(const struct rx_layout *l)
{
	return (l->total / l->bytes + 2) * l->stride;
}

static inline size_t rx_pieces(const struct rx_layout *l, unsigned char *base, struct gantry_rx_piece pieces[2])
{
	size_t whole = l->total / l->bytes, rest = l->total % l->bytes, n = 0;

	if (whole)
		pieces[n++] = (struct gantry_rx_piece){base, l->bytes, l->stride, whole};
	if (rest)
		pieces[n++] = (struct gantry_rx_piece){base + whole * l->stride, rest, 0, 1};
	return n;
}

static inline void rx_fill(const struct rx_layout *l, unsigned char *base, uint64_t seed)
{
	memset(base, 0xee, rx_span(l));
	for (size_t i = 0; i < l->total; i++)
		base[i / l->bytes * l->stride + i % l->bytes] = pattern_byte(seed, i);
}

/* The first `total` bytes of the layout are there, and everything else of `size` bytes still is `guard`. */
static inline void rx_check(const struct rx_layout *l, const unsigned char *base, size_t size, uint64_t seed,
			    unsigned char guard)
{
	size_t at = 0;

	for (size_t i = 0; i < l->total; i++) {
		size_t place = i / l->bytes * l->stride + i % l->bytes;

		for (; at < place; at++)
			if (base[at] != guard)
				CHECK_EQ(at, (size_t)-1); /* written outside of the pieces */
		if (base[at] != pattern_byte(seed, i))
			TEST_FAIL("byte %zu of %zu is wrong", i, l->total);
		at++;
	}
	for (; at < size; at++)
		if (base[at] != guard)
			CHECK_EQ(at, (size_t)-1);
}

#endif
