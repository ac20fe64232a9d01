/* SPDX-License-Identifier: Apache-2.0 */
/* Meeting: strangers, timeouts, addresses; and a peer that is killed and started again at the same address, often. */
#include <fcntl.h>
#include <spawn.h>

#include "net/net.h"
#include "rx/rx_wire.h"
#include "rx_util.h"

extern char **environ;

enum { STRANGER_S = 5 /* for each of them */ };
enum { RESTARTS = SANITIZED ? 20 : 50, SIZE = 8 << 20 };

static void *connect_thread(void *arg)
{
	void **in = arg;

	CHECK_OK(gantry_rx_connect(in[0], in[1], LONG_ENOUGH * SECOND, in[2]));
	return NULL;
}

static void strangers(void)
{
	static const char garbage[] = "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
	struct gantry_rx *a, *b;
	struct gantry_rx_listener *l;
	struct gantry_rx_conn *ca, *cb, *nobody;
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	uint8_t offer[RX_OFFER_SIZE] = {1}, hello[INET_HELLO_SIZE + RX_OFFER_SIZE], answer[INET_ANSWER_SIZE];
	struct inet_key key = rx_key(getenv("GANTRY_SECRET"));
	struct inet_handshake h;
	pthread_t t;
	void *in[3];
	int fds[6];
	uint64_t began = gantry_now_ns();

	CHECK_OK(gantry_rx_open(NULL, &a));
	CHECK_OK(gantry_rx_open(NULL, &b));
	CHECK_OK(gantry_rx_listen(b, "127.0.0.1:0", &l));
	CHECK_EQ(gantry_rx_accept(l, 0, &cb), GANTRY_ERR_TIMEOUT);
	for (int i = 0; i < 6; i++)
		fds[i] = lo_dial(port_of(gantry_rx_listener_address(l)));
	CHECK(write(fds[0], garbage, sizeof(garbage)) > 0); /* another protocol */
	close(fds[1]);					    /* nothing at all */
	CHECK_OK(inet_handshake_start_client(&h, &rx_by_hand, &key, offer, sizeof(offer)));
	memcpy(hello, h.out, sizeof(hello));
	CHECK_EQ(write(fds[2], hello, 20), 20);				       /* the beginning, and then silence */
	CHECK_EQ(write(fds[3], hello, sizeof(hello)), (ssize_t)sizeof(hello)); /* a handle that is none */
	hello[8]++;
	CHECK_EQ(write(fds[4], hello, sizeof(hello)), (ssize_t)sizeof(hello)); /* from the future */
	in[0] = a;
	in[1] = (void *)(uintptr_t)gantry_rx_listener_address(l);
	in[2] = &ca;
	CHECK_EQ(pthread_create(&t, NULL, connect_thread, in), 0);
	CHECK_OK(gantry_rx_accept(l, LONG_ENOUGH * SECOND, &cb));
	pthread_join(t, NULL);
	CHECK_EQ(gantry_rx_conn_peer_epoch(cb), gantry_rx_epoch(a));
	/* All are seen by whoever accepts, but for the two that may still say something. */
	UNTIL(gantry_rx_accept(l, 0, &nobody) == GANTRY_ERR_TIMEOUT &&
	      (gantry_rx_get_counters(b, &n), n.strangers >= 4));
	CHECK(n.strangers == 4 || gantry_now_ns() - began > STRANGER_S * (uint64_t)SECOND);
	/* The one from the future is told the version, where every version has it. */
	CHECK_EQ(recv(fds[4], answer, sizeof(answer), MSG_WAITALL), (ssize_t)sizeof(answer));
	CHECK_EQ(answer[8], RX_VERSION);
	CHECK_HAS((char *)answer + 104, "protocol version differs");
	for (int i = 0; i < 6; i++)
		if (i != 1)
			close(fds[i]);
	gantry_rx_conn_close(ca);
	gantry_rx_conn_close(cb);
	gantry_rx_close(b); /* with its listener, and whom that was still talking to */
	gantry_rx_close(a);
}

/* More who say nothing than there are places: they hold nobody up. */
static void silent_crowd(void)
{
	enum { CROWD = 320, PLACES = 256 };
	struct gantry_rx *a, *b;
	struct gantry_rx_listener *l;
	struct gantry_rx_conn *ca, *cb;
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	uint64_t began;
	pthread_t t;
	void *in[3];
	int fds[CROWD];

	CHECK_OK(gantry_rx_open(NULL, &a));
	CHECK_OK(gantry_rx_open(NULL, &b));
	CHECK_OK(gantry_rx_listen(b, "127.0.0.1:0", &l));
	began = gantry_now_ns();
	for (int i = 0; i < CROWD; i++)
		fds[i] = lo_dial(port_of(gantry_rx_listener_address(l)));
	in[0] = a;
	in[1] = (void *)(uintptr_t)gantry_rx_listener_address(l);
	in[2] = &ca;
	CHECK_EQ(pthread_create(&t, NULL, connect_thread, in), 0);
	CHECK_OK(gantry_rx_accept(l, LONG_ENOUGH * SECOND, &cb));
	pthread_join(t, NULL);
	gantry_rx_get_counters(b, &n);
	CHECK(n.strangers > CROWD - PLACES); /* one for the peer, too */
	/* And not all of them, because their time was over. */
	CHECK(n.strangers < PLACES || gantry_now_ns() - began > STRANGER_S * (uint64_t)SECOND);
	for (int i = 0; i < CROWD; i++)
		close(fds[i]);
	gantry_rx_conn_close(ca);
	gantry_rx_conn_close(cb);
	gantry_rx_close(b);
	gantry_rx_close(a);
}

struct liar {
	int fd; /* listens */
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
};

/* The accepting side of one rendezvous by hand, with the liar's handle. */
static void *accept_by_hand(void *arg)
{
	struct liar *liar = arg;
	struct inet_key key = rx_key(getenv("GANTRY_SECRET"));
	int fd = accept(liar->fd, NULL, NULL);
	uint8_t offer[RX_OFFER_SIZE], byte;
	enum inet_event event;
	struct inet_handshake h;
	struct rx_offer o;

	inet_handshake_start_server(&h);
	UNTIL(inet_handshake_move(&h, fd) == INET_HELLO);
	CHECK_OK(rx_offer_decode(h.payload, h.payload_size, &o));
	h.protocol = &rx_by_hand;
	event = inet_handshake_challenge(&h, &key);
	UNTIL(event == INET_PROVED || (event = inet_handshake_move(&h, fd)) == INET_PROVED);
	memcpy(o.handle, liar->handle, sizeof(o.handle));
	rx_offer_encode(&o, offer);
	inet_handshake_accept(&h, offer, sizeof(offer));
	UNTIL(inet_handshake_move(&h, fd) == INET_DONE);
	CHECK_EQ(recv(fd, &byte, 1, 0), 0); /* until the other side gives up */
	close(fd);
	return NULL;
}

/* A peer's handle says that it belongs to a connection attempt of this process: it is somebody else's. */
static void stolen(void)
{
	struct gantry_net *net = gantry_net_tcp();
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	int port;
	struct liar liar = {.fd = lo_listen(0, &port)};
	void *ctx, *listener, *out = NULL, *in = NULL;
	struct gantry_net_device_handle *none = NULL;
	struct gantry_rx_conn *c;
	struct gantry_rx *rx;
	char address[64];
	pthread_t t;

	snprintf(address, sizeof(address), "127.0.0.1:%d", port);
	CHECK_OK(gantry_rx_open(NULL, &rx));
	CHECK_OK(net->ops->init(net, 1, &config, &ctx));
	CHECK_OK(net->ops->listen(net, ctx, 0, liar.handle, &listener));
	CHECK_OK(net->ops->connect(net, ctx, 0, liar.handle, &out, &none)); /* begins; the network goes on by itself */
	CHECK(!out);
	CHECK_EQ(pthread_create(&t, NULL, accept_by_hand, &liar), 0);
	CHECK_EQ(gantry_rx_connect(rx, address, SECOND / 2, &c), GANTRY_ERR_TIMEOUT);
	pthread_join(t, NULL);
	close(liar.fd);
	while (!out || !in) {
		if (!out)
			CHECK_OK(net->ops->connect(net, ctx, 0, liar.handle, &out, &none));
		if (!in)
			CHECK_OK(net->ops->accept(net, listener, &in, &none));
	}
	CHECK_OK(net->ops->close_send(net, out));
	CHECK_OK(net->ops->close_recv(net, in));
	CHECK_OK(net->ops->close_listen(net, listener));
	CHECK_OK(net->ops->finalize(net, ctx));
	gantry_rx_close(rx);
}

static void addresses(void)
{
	struct gantry_rx *rx;
	struct gantry_rx_listener *l;
	struct gantry_rx_conn *c;

	CHECK_OK(gantry_rx_open(NULL, &rx));
	CHECK_EQ(gantry_rx_listen(rx, "nowhere", &l), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_rx_listen(rx, "::1:4000", &l), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_rx_connect(rx, ":4000", 0, &c), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_rx_connect(rx, "no.such.host.invalid:4000", 0, &c), GANTRY_ERR_UNREACHABLE);
	CHECK_OK(gantry_rx_listen(rx, NULL, &l));
	CHECK_HAS(gantry_rx_listener_address(l), "127.0.0.1:"); /* GANTRY_IFNAME=lo */
	/* Nobody accepts: the deadline ends it. */
	CHECK_EQ(gantry_rx_connect(rx, gantry_rx_listener_address(l), 200000000, &c), GANTRY_ERR_TIMEOUT);
	gantry_rx_listener_close(l);
	gantry_rx_close(rx);
}

/* Ports are a listener's own, whether the kernel or the user chooses them; what a hello names decides nothing there. */
static void own_ports(void)
{
	struct inet_protocol tcp = {"tcp", INET_FIRST_VERSION, "accepting side", "connecting side", NULL};
	struct gantry_rx *rx;
	struct gantry_rx_listener *l, *m;
	struct gantry_rx_conn *c;
	struct inet_handshake h;
	enum inet_event event = INET_AGAIN;
	pid_t pid;
	int fd;

	CHECK_OK(gantry_rx_open(NULL, &rx));
	CHECK_OK(gantry_rx_listen(rx, "127.0.0.1:0", &l));
	CHECK_OK(gantry_rx_listen(rx, "127.0.0.1:0", &m));
	CHECK(strcmp(gantry_rx_listener_address(l), gantry_rx_listener_address(m)) != 0);
	gantry_rx_listener_close(m);
	CHECK_EQ(gantry_rx_listen(rx, gantry_rx_listener_address(l), &m), GANTRY_ERR_LIMIT);
	fd = lo_dial(port_of(gantry_rx_listener_address(l)));
	CHECK_OK(inet_handshake_start_client(&h, &tcp, &(struct inet_key){0}, NULL, 0));
	UNTIL((event = inet_handshake_move(&h, fd)) != INET_AGAIN);
	CHECK(event == INET_FAILED && h.refused && h.error == GANTRY_ERR_REFUSED);
	CHECK_HAS(h.text, "no tcp listener at this port");
	close(fd);
	pid = CAN_FORK ? child_fork() : -1;
	if (!pid) {
		CHECK_EQ(gantry_rx_accept(l, LONG_ENOUGH * SECOND, &c), GANTRY_ERR_USAGE);
		gantry_rx_listener_close(l);
		_exit(0);
	}
	if (pid > 0)
		child_wait(pid);
	CHECK_EQ(gantry_rx_accept(l, 0, &c), GANTRY_ERR_TIMEOUT);
	gantry_rx_close(rx);
}

/* ---- restarts ---- */

/* The peer: receives and sends back, until it is killed. */
static int serve(const char *address)
{
	struct gantry_rx *rx;
	struct gantry_rx_listener *l;
	struct gantry_rx_conn *c;
	unsigned char *m = calloc(1, SIZE);
	struct gantry_rx_piece p = {m, SIZE, 0, 1};
	struct gantry_rx_op *op;

	CHECK_OK(gantry_rx_open(NULL, &rx));
	CHECK_OK(gantry_rx_register(rx, m, SIZE));
	CHECK_OK(gantry_rx_listen(rx, address, &l));
	CHECK_OK(gantry_rx_accept(l, LONG_ENOUGH * SECOND, &c));
	for (;;) {
		CHECK_OK(gantry_rx_recv(c, &p, 1, 0, &op));
		if (gantry_rx_wait(op, LONG_ENOUGH * SECOND) != GANTRY_OK)
			return 0; /* the parent is gone */
		gantry_rx_op_free(op);
		CHECK_OK(gantry_rx_send(c, &p, 1, 0, &op));
		if (gantry_rx_wait(op, LONG_ENOUGH * SECOND) != GANTRY_OK)
			return 0;
		gantry_rx_op_free(op);
	}
}

static void one_life(struct gantry_rx *rx, const char *address, unsigned char *m, unsigned char *back, unsigned delay)
{
	static uint64_t last_epoch;
	char self[] = "/proc/self/exe", word[] = "serve", where[64];
	char *argv[] = {self, word, where, NULL};
	struct gantry_rx_piece p = {m, SIZE, 0, 1}, q = {back, SIZE, 0, 1};
	struct gantry_rx_conn *c;
	struct gantry_rx_op *ops[4];
	struct timespec moment = {0, (long)delay * 1000};
	pid_t pid;
	int status;

	snprintf(where, sizeof(where), "%s", address);
	CHECK_EQ(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
	CHECK_OK(gantry_rx_connect(rx, address, LONG_ENOUGH * SECOND, &c));
	CHECK(gantry_rx_conn_peer_epoch(c) != last_epoch);
	last_epoch = gantry_rx_conn_peer_epoch(c);
	/* It works: there and back. */
	CHECK_OK(gantry_rx_recv(c, &q, 1, 0, &ops[0]));
	CHECK_OK(gantry_rx_send(c, &p, 1, 0, &ops[1]));
	memset(back, 0, SIZE);
	CHECK_OK(gantry_rx_wait(ops[1], LONG_ENOUGH * SECOND));
	CHECK_OK(gantry_rx_wait(ops[0], LONG_ENOUGH * SECOND));
	CHECK(memcmp(m, back, SIZE) == 0);
	gantry_rx_op_free(ops[0]);
	gantry_rx_op_free(ops[1]);
	/* In the middle of the next ones it dies. */
	for (int i = 0; i < 4; i++)
		CHECK_OK(i % 2 ? gantry_rx_recv(c, &q, 1, (uint64_t)i, &ops[i]) : gantry_rx_send(c, &p, 1, 0, &ops[i]));
	gantry_rx_poll(rx, ops, 4);
	nanosleep(&moment, NULL);
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	for (int i = 0; i < 4; i++) {
		gantry_result r = gantry_rx_wait(ops[i], LONG_ENOUGH * SECOND);

		CHECK(r == GANTRY_OK || r == GANTRY_ERR_PEER_LOST || r == GANTRY_ERR_PEER_CLOSED);
		CHECK(i % 2 == 0 || r != GANTRY_OK); /* nobody sent these */
		if (r != GANTRY_OK)
			CHECK_HAS(rx_text(ops[i]), address);
		gantry_rx_op_free(ops[i]);
	}
	CHECK(gantry_rx_conn_error(c, NULL, 0) != GANTRY_OK);
	CHECK(gantry_rx_send(c, &p, 1, 0, &ops[0]) != GANTRY_OK); /* old connections stay old */
	gantry_rx_conn_close(c);
}

static void restarts(void)
{
	FREED unsigned char *m = malloc(SIZE), *back = malloc(SIZE);
	struct gantry_rx *rx;
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;
	char address[64];
	int fds = 0, threads = 0, keeper;
	uint64_t memory = 0;

	snprintf(address, sizeof(address), "127.0.0.1:%d", lo_kept_port(&keeper));
	CHECK_OK(gantry_rx_open(NULL, &rx));
	CHECK_OK(gantry_rx_register(rx, m, SIZE));
	CHECK_OK(gantry_rx_register(rx, back, SIZE));
	pattern_fill(m, SIZE, 1);
	for (int i = 0; i < RESTARTS; i++) {
		one_life(rx, address, m, back, (unsigned)random_below(5000));
		gantry_rx_get_counters(rx, &n);
		if (i == 4) {
			fds = held(HELD_FDS);
			threads = held(HELD_THREADS);
			memory = n.stage_memory;
		}
	}
	CHECK(held_at_most(HELD_FDS, fds + 4)); /* of so many lives each would have left something */
	CHECK(held_at_most(HELD_THREADS, threads + 2));
	CHECK_EQ(n.stage_memory, memory);
	CHECK_OK(gantry_rx_deregister(rx, m));
	CHECK_OK(gantry_rx_deregister(rx, back));
	gantry_rx_close(rx);
	close(keeper);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(argv[2]);
	RUN(strangers());
	RUN(silent_crowd());
	RUN(stolen());
	RUN(addresses());
	RUN(own_ports());
	RUN(restarts());
	return 0;
}
