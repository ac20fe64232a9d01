/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rendezvous whose connection is reset when both sides have the other's offer, and before they are connected: with
 * GANTRY_RESUME this meeting goes on, without it the connecting side begins another.
 */
#include "inet/handshake.h"
#include "relay.h"
#include "rx/rx_wire.h"
#include "rx_util.h"

enum { ANSWERED = INET_ANSWER_SIZE + RX_OFFER_SIZE };

static struct relay relay;
static int was_reset; /* atomic */

/* Of the first connection. */
static int64_t reset_answered(const struct relay_conn *c, int way)
{
	if (c != &relay.conns[0] || c->moved[TO_CLIENT] < ANSWERED || __atomic_load_n(&was_reset, __ATOMIC_RELAXED))
		return RELAY_ALL;
	(void)way;
	__atomic_store_n(&was_reset, 1, __ATOMIC_RELEASE);
	return -1;
}

static void *connect_thread(void *arg)
{
	void **in = arg;

	CHECK_OK(gantry_rx_connect(in[0], in[1], LONG_ENOUGH * SECOND, in[2]));
	return NULL;
}

/* The accepting side stands still for a while after its answer: the other one must have noticed the reset. */
static struct gantry_rx_conn *accept_slowly(struct gantry_rx_listener *l)
{
	struct gantry_rx_conn *c = NULL;
	int stood = 0;

	WAIT_WHILE (!c) {
		if (!stood && __atomic_load_n(&was_reset, __ATOMIC_ACQUIRE)) {
			sleep_ms(50);
			stood = 1;
		}
		if (gantry_rx_accept(l, 100000, &c) != GANTRY_OK)
			c = NULL;
	}
	return c;
}

/* How many meetings it took. */
static int meet(const char *resume)
{
	struct gantry_rx *a, *b;
	struct gantry_rx_listener *l;
	struct gantry_rx_conn *ca, *cb;
	char at[64];
	void *in[3] = {NULL, at, &ca};
	pthread_t t;
	int n;

	set_params("GANTRY_RESUME", resume);
	memset(&relay, 0, sizeof(relay));
	was_reset = 0;
	CHECK_OK(gantry_rx_open(NULL, &a));
	CHECK_OK(gantry_rx_open(NULL, &b));
	CHECK_OK(gantry_rx_listen(b, "127.0.0.1:0", &l));
	relay.to = (struct sockaddr_in){.sin_family = AF_INET,
					.sin_port = htons((uint16_t)port_of(gantry_rx_listener_address(l))),
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	relay.allow = reset_answered;
	relay_make(&relay, 0, 1);
	relay_start(&relay);
	snprintf(at, sizeof(at), "127.0.0.1:%d#%llx", relay.port, (unsigned long long)gantry_rx_epoch(b));
	in[0] = a;
	CHECK_EQ(pthread_create(&t, NULL, connect_thread, in), 0);
	cb = accept_slowly(l);
	pthread_join(t, NULL);
	CHECK_EQ(gantry_rx_conn_peer_epoch(cb), gantry_rx_epoch(a));
	CHECK_EQ(gantry_rx_conn_peer_epoch(ca), gantry_rx_epoch(b));
	gantry_rx_conn_close(ca);
	gantry_rx_conn_close(cb);
	gantry_rx_close(b);
	gantry_rx_close(a);
	relay_stop(&relay);
	n = relay.n;
	CHECK(was_reset);
	return n;
}

TEST(reset)
{
	CHECK_EQ(meet("on"), 1);
	CHECK(meet("off") > 1);
}

TEST(encrypted)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_ENCRYPT", "on");
	CHECK_EQ(meet("on"), 1);
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
}
