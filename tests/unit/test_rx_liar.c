/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer of the pipeline that lies: every field of every head, one at a time, at the edges of its range, once and twice; data of
 * every size; in every state of a transfer, of either direction; in place of UP; and in the offer of the rendezvous, as the
 * connecting and as the accepting side. It is played with the network's own calls, below the pipeline. What is checked where:
 *
 *   head      field       checked by
 *   all       magic, kind, flags, size, reserved   rx_head_decode; UP, first and once: check_up
 *   SEND      bytes       rx_head_decode (inline), match_recv (the receive); arg: match_recv takes the smaller; tag: any
 *   TAKEN     transfer    send_answered: offered with its bytes, or all out
 *   GRANT     transfer, arg   send_granted: offered, and not larger than was asked for
 *   REJECT    transfer, bytes   send_answered: offered, and larger than the receive
 *   STOP      transfer, arg   send_stopped: offered, and no more messages than there are; answers are bounded: rx_head_send
 *   END       arg         recv_ended: as many messages as there are; transfer: unknown ones are answered already
 *   data      size        take_arrival
 *   offer     size, epoch, id, handle, target   rx_offer_decode, take_offer, is_for_us
 *
 * Catches: reads and writes outside of memory (with the sanitizers), ops that end without a name or never, other connections of
 * the same rx that pay for it.
 *
 * Each field of each kind has two of its values in a state, and all of them in some state; GANTRY_TEST_EVERY_BYTE=1: all in all.
 */
#include <fcntl.h>

#include "liar_util.h"
#include "net/net.h"
#include "rx/rx.h"
#include "rx_util.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum { SMALL = 100, LARGE = 100000, GUARD = 64, FILL = 0xd6, TAG = 3, FENCE = 99, MESSAGE = 64 << 10 };
enum { HEAD_ROOM = RX_HEAD_SIZE + RX_INLINE_MAX };

/* The rx under test, an honest peer of it, and the liar's end of a connection. */
static struct {
	struct gantry_device *dev;
	struct gantry_rx *rx;
	struct gantry_rx_listener *listener;
	struct rx_pair pair; /* a: the honest peer, b: the rx under test */
	uint8_t memory[GUARD + LARGE + GUARD];
	/* The connection with the liar. */
	struct gantry_rx_conn *conn;
	int fd;
	void *ctx, *out, *in, *listen;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
} run;

static void work_with_other(void)
{
	static uint8_t out[SMALL] = {1, 2, 3}, in[SMALL];
	struct gantry_rx_piece from = {out, SMALL, 0, 1}, to = {in, SMALL, 0, 1};
	struct gantry_rx_op *s, *r;

	memset(in, 0, sizeof(in));
	CHECK_OK(gantry_rx_register(run.pair.a.rx, out, sizeof(out)));
	CHECK_OK(gantry_rx_register(run.rx, in, sizeof(in)));
	CHECK_OK(gantry_rx_recv(run.pair.b.conn, &to, 1, 7, &r));
	CHECK_OK(gantry_rx_send(run.pair.a.conn, &from, 1, 7, &s));
	rx_both(s, r);
	CHECK_OK(rx_result(s));
	CHECK_OK(rx_result(r));
	CHECK(memcmp(in, out, SMALL) == 0);
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	CHECK_OK(gantry_rx_deregister(run.pair.a.rx, out));
	CHECK_OK(gantry_rx_deregister(run.rx, in));
}

static void open_all(void)
{
	const struct gantry_rx_config config = {
		.struct_size = sizeof(config), .path = GANTRY_RX_PATH_HOST, .message = MESSAGE};

	logs_drop();
	rx_pair_open(&run.pair, &config);
	run.rx = run.pair.b.rx;
	CHECK_OK(gantry_rx_register(run.rx, run.memory, sizeof(run.memory)));
	CHECK_OK(gantry_rx_listen(run.rx, "127.0.0.1:0", &run.listener));
	work_with_other();
}

static void close_all(void)
{
	work_with_other();
	gantry_rx_listener_close(run.listener);
	CHECK_OK(gantry_rx_deregister(run.rx, run.memory));
	rx_pair_close(&run.pair);
}

/* ---- the liar's connection ---- */

static int accepting; /* atomic: until there is one, or it is 0 */

static void *accept_thread(void *arg)
{
	while (__atomic_load_n(&accepting, __ATOMIC_ACQUIRE)) {
		gantry_result r = gantry_rx_accept(run.listener, 2000000, &run.conn);

		if (r == GANTRY_OK)
			__atomic_store_n(&accepting, 0, __ATOMIC_RELEASE);
		else
			CHECK_EQ(r, GANTRY_ERR_TIMEOUT);
	}
	return NULL;
}

static void liar_listens(void)
{
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};

	CHECK_OK(NET(init, 77, &config, &run.ctx));
	CHECK_OK(NET(listen, run.ctx, 0, run.handle, &run.listen));
}

static void liar_connects(uint8_t handle[GANTRY_NET_HANDLE_SIZE])
{
	struct gantry_net_device_handle *none = NULL;

	CHECK_OK(NET(take_handle, handle));
	WAIT_WHILE (!run.out || !run.in) {
		if (!run.out)
			CHECK_OK(NET(connect, run.ctx, 0, handle, &run.out, &none));
		if (!run.in)
			CHECK_OK(NET(accept, run.listen, &run.in, &none));
		sleep_ns(50000);
	}
}

static void liar_leaves(void)
{
	NET(close_send, run.out);
	NET(close_recv, run.in);
	run.out = run.in = NULL;
	CHECK_OK(NET(close_listen, run.listen));
	CHECK_OK(NET(finalize, run.ctx));
	if (run.fd >= 0)
		close(run.fd);
	run.fd = -1;
}

/* It is taken by the network, or the connection is over. */
static void put(int tag, const uint8_t *message, size_t size)
{
	static uint8_t kept[16][HEAD_ROOM + 1]; /* as long as their requests */
	static unsigned n;
	uint8_t *out = kept[n++ % 16];
	void *request = NULL;
	int done = 0;

	memcpy(out, message, size);
	WAIT_WHILE (!request && typed(NET(isend, run.out, out, size, tag, NULL, &request)) == GANTRY_OK)
		gantry_rx_poll(run.rx, NULL, 0);
	WAIT_WHILE (request && !done && typed(NET(test, request, &done, NULL)) == GANTRY_OK)
		gantry_rx_poll(run.rx, NULL, 0);
}

static void say(const struct rx_head *h)
{
	static uint8_t out[HEAD_ROOM];

	rx_head_encode(h, out);
	put(RX_TAG_HEAD, out, RX_HEAD_SIZE + (h->flags & RX_INLINE ? h->bytes : 0));
}

/* The next head that the rx under test says. */
static struct rx_head hear(void)
{
	static uint8_t in[HEAD_ROOM];
	void *data = in, *mr = NULL, *request = NULL;
	size_t size = sizeof(in);
	int tag = RX_TAG_HEAD, done = 0, got = 0;
	struct rx_head h;

	CHECK_OK(NET(irecv, run.in, 1, &data, &size, &tag, &mr, &request));
	CHECK(request);
	WAIT_WHILE (!done) {
		gantry_rx_poll(run.rx, NULL, 0);
		CHECK_OK(NET(test, request, &done, &got));
	}
	CHECK_OK(rx_head_decode(in, (size_t)got, &h));
	return h;
}

/* Up to where the liar is to say UP. */
static void meet(pthread_t *ret_thread)
{
	struct rx_offer own = {.epoch = 5, .id = 77}, peer;
	const uint8_t ready = 1;

	liar_listens();
	memcpy(own.handle, run.handle, sizeof(own.handle));
	__atomic_store_n(&accepting, 1, __ATOMIC_RELEASE);
	CHECK_EQ(pthread_create(ret_thread, NULL, accept_thread, NULL), 0);
	run.fd = lo_dial(port_of(gantry_rx_listener_address(run.listener)));
	rx_meet_by_hand(run.fd, getenv("GANTRY_SECRET"), &own, &peer);
	liar_connects(peer.handle);
	CHECK_EQ(write(run.fd, &ready, 1), 1);
}

static void begin(void)
{
	pthread_t t;

	meet(&t);
	say(&(struct rx_head){.kind = RX_UP});
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(hear().kind, RX_UP);
}

/* ---- lies about heads ---- */

static const struct {
	uint8_t at, width;
} fields[] = {{0, 4}, {6, 2}, {8, 8}, {16, 8}, {24, 8}, {32, 8}, {40, 8}};
static const uint64_t values[] = {
	0, 1, 2, SMALL, RX_INLINE_MAX + 1, MESSAGE + 1, UINT32_MAX, (uint64_t)UINT32_MAX + 1, INT64_MAX, UINT64_MAX};
static const size_t sizes[] = {0, 1, RX_HEAD_SIZE - 1, RX_HEAD_SIZE + 1, HEAD_ROOM, HEAD_ROOM + 1};
enum { FIELD_LIES = TEST_COUNT(fields) * TEST_COUNT(values), LIES = FIELD_LIES + TEST_COUNT(sizes) };

/* Lie i about a head that an honest peer might send. */
static void put_lie(const struct rx_head *h, size_t i, int times)
{
	static uint8_t out[HEAD_ROOM + 1];
	size_t size = RX_HEAD_SIZE + (h->flags & RX_INLINE ? h->bytes : 0);

	memset(out, 0, sizeof(out));
	rx_head_encode(h, out);
	if (i < FIELD_LIES)
		le_put(out + fields[i / TEST_COUNT(values)].at, values[i % TEST_COUNT(values)],
		       fields[i / TEST_COUNT(values)].width);
	else
		size = sizes[i - FIELD_LIES];
	while (times--)
		put(RX_TAG_HEAD, out, size);
}

/* ---- states ---- */

enum state {
	IDLE,
	WAITS,	       /* a receive for the transfer */
	EARLY,	       /* a transfer for its receive */
	GRANTED,       /* a receive: nothing has come */
	HALF,	       /* the first of its two messages has */
	STOPPED,       /* it is cancelled, the liar has not answered */
	OFFERED,       /* a send that came with its head */
	OFFERED_LARGE, /* one that did not */
	SENDS,	       /* granted, and all of it is out */
	ENDED,	       /* cancelled before it was granted */
	STATES
};

static struct gantry_rx_op *ops[4];
static int nops;

static void post(bool send, size_t bytes, size_t piece)
{
	struct gantry_rx_piece p = {run.memory + GUARD, piece, 2 * piece, bytes / piece};

	memset(run.memory, FILL, sizeof(run.memory));
	CHECK_OK((send ? gantry_rx_send : gantry_rx_recv)(run.conn, &p, 1, TAG, &ops[nops++]));
}

static void put_data(size_t size)
{
	static uint8_t data[LARGE];
	void *request = NULL;

	WAIT_WHILE (!request && typed(NET(isend, run.out, data, size, RX_TAG_DATA, NULL, &request)) == GANTRY_OK)
		gantry_rx_poll(run.rx, NULL, 0);
	for (int i = 0, done = 0; request && !done && i < 200; i++) { /* it may find no receive */
		if (typed(NET(test, request, &done, NULL)) != GANTRY_OK)
			break;
		gantry_rx_poll(run.rx, NULL, 0);
	}
}

static void enter(enum state state)
{
	/* Pieces too small to be received in place: a cancelled receive waits for nothing then. */
	size_t bytes = state == STOPPED ? LARGE / 2 : LARGE, piece = state == STOPPED ? 250 : LARGE;

	nops = 0;
	if (state == WAITS || (state >= GRANTED && state <= STOPPED))
		post(false, bytes, piece);
	if (state >= EARLY && state <= STOPPED)
		say(&(struct rx_head){.kind = RX_SEND, .tag = TAG, .bytes = bytes, .arg = MESSAGE});
	if (state >= GRANTED && state <= STOPPED)
		CHECK_EQ(hear().kind, RX_GRANT);
	if (state == HALF)
		put_data(MESSAGE);
	if (state == STOPPED) {
		gantry_rx_cancel(ops[0], 0);
		hear();
	}
	if (state >= OFFERED && state <= ENDED) {
		post(true, state == OFFERED ? SMALL : LARGE, state == OFFERED ? SMALL : LARGE);
		CHECK_EQ(hear().kind, RX_SEND);
	}
	if (state == SENDS)
		say(&(struct rx_head){.kind = RX_GRANT, .arg = MESSAGE});
	if (state == ENDED) {
		gantry_rx_cancel(ops[0], 0);
		CHECK_EQ(hear().kind, RX_END);
	}
}

/* Behind the lie: an empty transfer comes, or the connection has ended, by name. Then it ends, and all ops with it. */
static void leave(void)
{
	char why[512] = "";

	if (gantry_rx_recv(run.conn, NULL, 0, FENCE, &ops[nops]) == GANTRY_OK) {
		nops++;
		say(&(struct rx_head){.kind = RX_SEND, .flags = RX_INLINE, .transfer = 999, .tag = FENCE, .arg = 1});
		UNTIL(gantry_rx_test(ops[nops - 1]) == GANTRY_RX_DONE);
		typed(rx_result(ops[nops - 1]));
	}
	if (typed(gantry_rx_conn_error(run.conn, why, sizeof(why))) != GANTRY_OK)
		CHECK(*why);
	gantry_rx_conn_close(run.conn);
	run.conn = NULL;
	for (int i = 0; i < nops; i++) {
		CHECK(typed(rx_result(ops[i])) == GANTRY_OK || *rx_text(ops[i]));
		gantry_rx_op_free(ops[i]);
	}
	CHECK_FILLED(run.memory, nops > 1 ? GUARD : 0, FILL);
	CHECK_FILLED(run.memory + GUARD + LARGE, nops > 1 ? GUARD : 0, FILL);
	liar_leaves();
}

static struct rx_head honest(int kind)
{
	struct rx_head h = {.kind = (uint16_t)kind, .tag = TAG};

	if (kind == RX_SEND)
		h = (struct rx_head){
			.kind = RX_SEND, .flags = RX_INLINE, .transfer = 1, .tag = TAG, .bytes = SMALL, .arg = MESSAGE};
	if (kind == RX_GRANT)
		h.arg = MESSAGE;
	return h;
}

/* ---- in every state ---- */

static void lie_in_states(void)
{
	bool all = getenv("GANTRY_TEST_EVERY_BYTE");
	size_t n = 0;

	open_all();
	for (int state = 0; state < STATES; state++)
		for (int kind = 0; kind <= RX_KINDS; kind++)
			for (size_t i = 0; i < LIES; i++) {
				struct rx_head h = honest(kind);

				if ((!all && (i * 7 + (size_t)(kind + state)) % 5) || !liar_takes(n++))
					continue;
				CASE("state %d, kind %d, lie %zu", state, kind, i);
				begin();
				enter((enum state)state);
				put_lie(&h, i, 1 + (int)(i % 2));
				leave();
			}
	close_all();
}

TEST_CALL(heads, liar_spread(lie_in_states))

static void data_in_states(void)
{
	static const size_t lengths[] = {0, 1, LARGE - MESSAGE, MESSAGE - 1, MESSAGE, MESSAGE + 1, LARGE};
	size_t n = 0;

	open_all();
	for (int state = 0; state < STATES; state++)
		for (size_t i = 0; i < TEST_COUNT(lengths); i++)
			for (int times = 1; times <= 3; times += 2) {
				if (!liar_takes(n++))
					continue;
				CASE("state %d, %d times %zu bytes", state, times, lengths[i]);
				begin();
				enter((enum state)state);
				for (int k = 0; k < times; k++)
					put_data(lengths[i]);
				leave();
			}
	close_all();
}

TEST_CALL(data, liar_spread(data_in_states))

/* In place of UP: it is not accepted, others are. */
static void lie_for_up(void)
{
	size_t n = 0;

	open_all();
	for (int kind = 0; kind <= RX_KINDS; kind++)
		for (size_t i = kind == RX_UP ? 0 : FIELD_LIES; i < LIES; i++) {
			struct rx_head h = honest(kind);
			pthread_t t;

			if (!liar_takes(n++))
				continue;
			CASE("kind %d, lie %zu", kind, i);
			meet(&t);
			put_lie(&h, i, 1 + (int)(i % 2));
			for (int k = 0; k < 20 && __atomic_load_n(&accepting, __ATOMIC_ACQUIRE); k++)
				sleep_ns(500000); /* whether it is accepted in that time or not */
			__atomic_store_n(&accepting, 0, __ATOMIC_RELEASE);
			CHECK_EQ(pthread_join(t, NULL), 0);
			gantry_rx_conn_close(run.conn);
			run.conn = NULL;
			liar_leaves();
		}
	close_all();
}

TEST_CALL(first_heads, liar_spread(lie_for_up))

/* ---- answers that nobody reads ---- */

static size_t outgoing(void)
{
	size_t n = 0;

	gantry_list_each (pos, &run.conn->outgoing)
		n++;
	return n;
}

/* The liar has closed its receiving side. What it still says is heard for a while, and is not answered. */
static void flood_after_goodbye(void)
{
	size_t most = 0, now;

	open_all();
	begin();
	nops = 0;
	post(true, SMALL, SMALL);
	CHECK_EQ(hear().kind, RX_SEND);
	say(&(struct rx_head){.kind = RX_TAKEN});
	CHECK_OK(gantry_rx_wait(ops[0], LONG_ENOUGH * SECOND));
	post(true, SMALL, SMALL); /* this one is not answered: its answer is waited for */
	CHECK_EQ(hear().kind, RX_SEND);
	NET(close_recv, run.in);
	run.in = NULL;
	for (int i = 0; i < 20000 && gantry_rx_conn_error(run.conn, NULL, 0) == GANTRY_OK; i++) {
		say(&(struct rx_head){.kind = RX_STOP});
		now = outgoing();
		most = now > most ? now : most;
	}
	CHECK(most <= RX_ANSWERS_OUT);
	__atomic_fetch_add(liar_turns.cases, 1, __ATOMIC_RELAXED);
	leave();
	close_all();
}

static void take_data(size_t size)
{
	static uint8_t in[MESSAGE];
	void *data = in, *mr = NULL, *request = NULL;
	int tag = RX_TAG_DATA, done = 0;

	CHECK_OK(NET(irecv, run.in, 1, &data, &size, &tag, &mr, &request));
	CHECK(request);
	WAIT_WHILE (!done) {
		gantry_rx_poll(run.rx, NULL, 0);
		CHECK_OK(NET(test, request, &done, NULL));
	}
}

/* The liar has all of a send, stops it, and is gone before the answer: the send ends once. */
static void stop_after_goodbye(void)
{
	open_all();
	begin();
	enter(SENDS);
	take_data(MESSAGE);
	take_data(LARGE - MESSAGE);
	WAIT_WHILE (ops[0]->finished < ops[0]->nmessages)
		gantry_rx_poll(run.rx, NULL, 0);
	NET(close_recv, run.in);
	run.in = NULL;
	sleep_ns(SECOND / 20); /* its goodbye is read by then */
	say(&(struct rx_head){.kind = RX_STOP, .arg = ops[0]->nmessages});
	UNTIL(gantry_rx_test(ops[0]) == GANTRY_RX_DONE);
	CHECK_EQ(rx_result(ops[0]), GANTRY_ERR_CANCELLED);
	__atomic_fetch_add(liar_turns.cases, 1, __ATOMIC_RELAXED);
	leave();
	close_all();
}

static void in_child(void (*test)(void))
{
	pid_t pid = CAN_FORK ? child_fork() : -1;

	if (pid <= 0)
		test();
	if (!pid)
		child_end(0);
	if (pid > 0)
		child_wait(pid);
}

TEST_CALL(goodbye, in_child(flood_after_goodbye))
TEST_CALL(goodbye_after_stop, in_child(stop_after_goodbye))

/* ---- lies about offers ---- */

static const uint8_t offer_at[] = {0, 8, 16, 20, 22, 32, 40, 56, 64, 72, 74, 76, 144, 152, 154, 156, 160};
static const uint8_t offer_bytes[] = {0, 1, 6, 127, 255};
static const size_t offer_sizes[] = {0, 1, RX_OFFER_SIZE - 1, RX_OFFER_SIZE + 1, INET_PAYLOAD_MAX};
enum { OFFER_LIES = sizeof(offer_at) * sizeof(offer_bytes) + TEST_COUNT(offer_sizes) };

/* An offer of the liar's with lie i. Returns its size. */
static size_t put_offer(uint64_t id, size_t i, uint8_t out[INET_PAYLOAD_MAX])
{
	struct rx_offer own = {.epoch = 5, .id = id};
	size_t k = i / sizeof(offer_bytes);

	memcpy(own.handle, run.handle, sizeof(own.handle));
	memset(out, 0, INET_PAYLOAD_MAX);
	if (run.fd >= 0)
		rx_offer_aim(&own, run.fd);
	rx_offer_encode(&own, out);
	if (k >= sizeof(offer_at))
		return offer_sizes[i - sizeof(offer_at) * sizeof(offer_bytes)];
	memset(out + offer_at[k], offer_bytes[i % sizeof(offer_bytes)], i % 2 ? 1 : 2);
	return RX_OFFER_SIZE;
}

static void offer_as_connecting(void)
{
	struct inet_key key = rx_key(getenv("GANTRY_SECRET"));
	uint8_t out[INET_PAYLOAD_MAX];
	struct inet_handshake h;
	enum inet_event e;
	pthread_t t;

	open_all();
	for (size_t i = 0; i < OFFER_LIES; i++) {
		if (!liar_takes(i))
			continue;
		CASE("offer %zu", i);
		liar_listens();
		__atomic_store_n(&accepting, 1, __ATOMIC_RELEASE);
		CHECK_EQ(pthread_create(&t, NULL, accept_thread, NULL), 0);
		run.fd = lo_dial(port_of(gantry_rx_listener_address(run.listener)));
		CHECK_OK(inet_handshake_start_client(&h, &rx_by_hand, &key, out, put_offer(77, i, out)));
		UNTIL((e = inet_handshake_move(&h, run.fd)) == INET_DONE || e == INET_FAILED);
		if (e == INET_FAILED)
			CHECK(h.broken || typed(h.error) != GANTRY_OK);
		inet_handshake_end(&h);
		__atomic_store_n(&accepting, 0, __ATOMIC_RELEASE);
		CHECK_EQ(pthread_join(t, NULL), 0);
		liar_leaves();
	}
	close_all();
}

TEST_CALL(offers_of_the_connecting_side, liar_spread(offer_as_connecting))

/* The liar listens; everything that dials is answered with the lie. */
static struct {
	int fd, port, stop;
	size_t lie;
} server;

static void answer_one(int fd)
{
	struct inet_key key = rx_key(getenv("GANTRY_SECRET"));
	uint8_t out[INET_PAYLOAD_MAX];
	struct inet_handshake h;
	struct rx_offer peer;
	enum inet_event e;

	inet_handshake_start_server(&h);
	UNTIL((e = inet_handshake_move(&h, fd)) == INET_HELLO || e == INET_FAILED);
	if (e == INET_HELLO) {
		h.protocol = &rx_by_hand;
		e = rx_offer_decode(h.payload, h.payload_size, &peer) == GANTRY_OK ? inet_handshake_challenge(&h, &key)
										   : INET_FAILED; /* a stranger */
	}
	UNTIL(e == INET_PROVED || e == INET_FAILED || (e = inet_handshake_move(&h, fd)) == INET_PROVED);
	if (e == INET_PROVED)
		inet_handshake_accept(&h, out, put_offer(peer.id, server.lie, out));
	UNTIL(e == INET_FAILED || (e = inet_handshake_move(&h, fd)) == INET_DONE || e == INET_FAILED);
	inet_handshake_end(&h);
}

static void *answer_thread(void *arg)
{
	int fds[64], n = 0;

	while (!__atomic_load_n(&server.stop, __ATOMIC_ACQUIRE)) {
		int fd = accept4(server.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			until_pause();
			continue;
		}
		CHECK(n < 64);
		answer_one(fd);
		fds[n++] = fd;
	}
	while (n > 0)
		close(fds[--n]);
	return NULL;
}

static void offer_as_accepting(void)
{
	struct gantry_rx_conn *c = NULL;
	char address[64];
	pthread_t t;

	open_all();
	for (size_t i = 0; i < OFFER_LIES; i++) {
		if (!liar_takes(i))
			continue;
		CASE("answer %zu", i);
		liar_listens();
		server.lie = i;
		server.stop = 0;
		server.fd = lo_listen(0, &server.port);
		CHECK_EQ(fcntl(server.fd, F_SETFL, O_NONBLOCK), 0);
		CHECK_EQ(pthread_create(&t, NULL, answer_thread, NULL), 0);
		snprintf(address, sizeof(address), "127.0.0.1:%d", server.port);
		CHECK(typed(gantry_rx_connect(run.rx, address, SECOND / 5, &c)) != GANTRY_OK);
		CHECK(*gantry_last_error());
		__atomic_store_n(&server.stop, 1, __ATOMIC_RELEASE);
		CHECK_EQ(pthread_join(t, NULL), 0);
		close(server.fd);
		liar_leaves();
	}
	close_all();
}

TEST_CALL(offers_of_the_accepting_side, liar_spread(offer_as_accepting))

void tests_begin(void)
{
	setenv("GANTRY_LANES", "1", 1);
	run.fd = -1;
	liar_begin();
}

void tests_end(void)
{
	liar_end();
}
