/* SPDX-License-Identifier: Apache-2.0 */
/* The one way to reach a peer: every way in which an attempt ends, by the loop and polled, and what an owner may do in a callback. */
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "inet/dial.h"
#include "inet/sock.h"
#include "test.h"

static const struct inet_protocol test = {"test", 7, "accepting side", "connecting side", NULL};
static const struct inet_key none;

enum { MS = 1000000, TRIES = 3 };

struct owner {
	struct inet_dial dial;
	int port;
	uint64_t connect_ns, shake_ns, whole_ns;
	uint32_t tries;	     /* attempts that it makes */
	int wanted;	     /* aim: an attempt is needed */
	int free_in_failed;  /* ends the dial in its own callback */
	struct owner *other; /* stopped in its callback */
	/* Atomic: what came of it. */
	int aimed, done, failed;
	char answer[8];
};

static bool aim(struct inet_dial *d, struct inet_dial_aim *ret)
{
	struct owner *o = gantry_container(d, struct owner, dial);

	__atomic_add_fetch(&o->aimed, 1, __ATOMIC_ACQ_REL);
	ret->to.in = lo_addr(o->port);
	ret->patience = o->connect_ns;
	return o->wanted;
}

static void hello(struct inet_dial *d, struct inet_dial_hello *ret)
{
	struct owner *o = gantry_container(d, struct owner, dial);

	memcpy(ret->payload, "ping", 4);
	ret->size = 4;
	ret->protocol = &test;
	ret->key = &none;
	ret->patience = o->shake_ns;
	ret->whole = o->whole_ns;
}

static void take_answer(struct owner *o)
{
	CHECK(o->dial.shake.payload_size < sizeof(o->answer));
	if (o->dial.shake.payload_size) /* none where there is no hello */
		memcpy(o->answer, o->dial.shake.payload, o->dial.shake.payload_size);
}

static void done(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct owner *o = gantry_container(d, struct owner, dial);
	struct inet_seals seals;

	take_answer(o);
	close(inet_dial_take(d, &seals));
	CHECK(!seals.tx && !seals.rx);
	__atomic_add_fetch(&o->done, 1, __ATOMIC_ACQ_REL);
}

static void failed(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct owner *o = gantry_container(d, struct owner, dial);

	CHECK_EQ(d->state, INET_DIAL_IDLE);
	CHECK_EQ(d->source.fd, -1);
	if (o->other)
		inet_dial_end(&o->other->dial);
	if (o->free_in_failed) {
		inet_dial_end(d);
		memset(d, 0xa5, sizeof(*d)); /* as if it was freed */
	} else if (--o->tries) {
		inet_dial_start(d, inet_dial_retry_at(d));
	}
	__atomic_add_fetch(&o->failed, 1, __ATOMIC_ACQ_REL);
}

static const struct inet_dial_ops ops = {.aim = aim, .hello = hello, .done = done, .failed = failed};
static const struct inet_dial_ops connect_only = {.aim = aim, .done = done, .failed = failed};

static void owner_init(struct owner *o, int port)
{
	*o = (struct owner){.port = port,
			    .connect_ns = UINT64_MAX,
			    .shake_ns = UINT64_MAX,
			    .whole_ns = UINT64_MAX,
			    .tries = 1,
			    .wanted = 1};
	inet_dial_init(&o->dial, &ops);
}

/* A client that is always there: a dial's owner is one. */
static uint64_t never(void)
{
	return UINT64_MAX;
}
static void nothing(void)
{
}
static int serving;
static int is_serving(void)
{
	return serving;
}
static struct inet_client client = {.due = never, .pass = nothing, .busy = is_serving, .in_child = nothing};

static void loop_begin(void)
{
	inet_loop_lock();
	serving = 1;
	CHECK_OK(inet_loop_start(&client));
	inet_loop_unlock();
}

static void loop_end(void)
{
	int running = 1;

	inet_loop_lock();
	serving = 0;
	inet_loop_wake();
	inet_loop_unlock();
	WAIT_WHILE (running) {
		inet_loop_lock();
		running = inet_loop.running;
		inet_loop_unlock();
	}
}

static void start(struct owner *o)
{
	inet_loop_lock();
	inet_dial_start(&o->dial, 0);
	inet_loop_unlock();
}

static void end(struct owner *o)
{
	inet_loop_lock();
	inet_dial_end(&o->dial);
	inet_loop_unlock();
}

static int seen(const int *what)
{
	return __atomic_load_n(what, __ATOMIC_ACQUIRE);
}

/* ---- the accepting side, by hand ---- */

/* A port at which nothing listens, and nothing will. */
static int closed_port(void)
{
	static int port;

	if (!port)
		lo_bound(0, &port); /* kept until the process ends */
	return port;
}

enum answer { ANSWER, REFUSE, HALF, CLOSE };

/* Takes one connection and ends it in this way; the socket, which the caller closes, or -1. */
static int serve_one(int listen_fd, enum answer how)
{
	int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK);
	struct inet_handshake h;
	enum inet_event e = INET_AGAIN;

	CHECK(fd >= 0);
	inet_handshake_start_server(&h);
	WAIT_WHILE ((e = inet_handshake_move(&h, fd)) == INET_AGAIN)
		;
	CHECK_EQ(e, INET_HELLO);
	CHECK(h.payload_size == 4 && memcmp(h.payload, "ping", 4) == 0);
	h.protocol = &test;
	if (how == CLOSE) {
		close(fd);
		fd = -1;
	} else if (how == REFUSE) {
		CHECK_EQ(inet_handshake_refuse(&h, GANTRY_ERR_REFUSED, "not today"), INET_FAILED);
	} else {
		CHECK_EQ(inet_handshake_challenge(&h, &none), INET_PROVED);
		CHECK_EQ(inet_handshake_accept(&h, "pong", 4), INET_DONE);
	}
	if (how == HALF)
		CHECK_EQ(send(fd, h.out, 10, 0), 10);
	else if (fd >= 0)
		WAIT_WHILE (h.out_size)
			inet_handshake_move(&h, fd);
	inet_handshake_end(&h);
	return fd;
}

/* ---- by the loop ---- */

TEST(reaches_a_peer)
{
	struct owner o;
	int port, fd = lo_listen(0, &port), peer;

	loop_begin();
	owner_init(&o, port);
	start(&o);
	peer = serve_one(fd, ANSWER);
	UNTIL(seen(&o.done) == 1);
	CHECK_STR(o.answer, "pong");
	CHECK_EQ(o.failed, 0);
	end(&o);
	owner_init(&o, port);
	o.dial.ops = &connect_only;
	start(&o);
	UNTIL(seen(&o.done) == 1); /* accepted by the kernel: no hello is said */
	end(&o);
	loop_end();
	close(peer);
	close(fd);
}

TEST(nothing_listens)
{
	struct owner o;
	uint64_t began = gantry_now_ns();

	loop_begin();
	owner_init(&o, closed_port());
	o.tries = TRIES;
	start(&o);
	UNTIL(seen(&o.failed) == TRIES);
	end(&o);
	loop_end();
	CHECK_EQ(o.dial.cause, INET_DIAL_CONNECT);
	CHECK_EQ(o.dial.error, ECONNREFUSED);
	CHECK_HAS(o.dial.text, "Connection refused");
	CHECK_EQ(o.aimed, TRIES);
	CHECK(gantry_now_ns() - began >= 30 * MS); /* pauses of 10 and 20 ms and more */
	CHECK(o.dial.refused_since >= began);
	CHECK(!inet_dial_is_deserted(&o.dial, UINT64_MAX));
	CHECK(inet_dial_is_deserted(&o.dial, 80 * MS)); /* an eighth of it has passed since the first refusal */
	inet_dial_reset(&o.dial);
	CHECK(!inet_dial_is_deserted(&o.dial, 0));
}

/* What each end of a hand-shake comes to. */
TEST(hand_shakes_that_fail)
{
	static const struct {
		enum answer how;
		enum inet_dial_cause cause;
		const char *text;
	} cases[] = {
		{REFUSE, INET_DIAL_REFUSED, "not today"},
		{HALF, INET_DIAL_REFUSED, "its answer is incomplete"},
		{CLOSE, INET_DIAL_BROKE, "closed without a goodbye"},
	};
	int port, fd = lo_listen(0, &port);

	loop_begin();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct owner o;
		int peer;

		owner_init(&o, port);
		o.whole_ns = 20 * MS;
		start(&o);
		peer = serve_one(fd, cases[i].how);
		UNTIL(seen(&o.failed) == 1);
		CHECK_EQ(o.dial.cause, cases[i].cause);
		CHECK_HAS(o.dial.text, cases[i].text);
		CHECK_EQ(o.dial.misshakes, cases[i].cause == INET_DIAL_REFUSED);
		CHECK_EQ(o.done, 0);
		CHECK_EQ(o.dial.refused_since, 0);
		end(&o);
		close(peer);
	}
	loop_end();
	close(fd);
}

TEST(silence)
{
	struct owner o;
	int port, fd = lo_listen(0, &port);

	loop_begin();
	owner_init(&o, port);
	o.shake_ns = 20 * MS;
	o.tries = 2;
	start(&o);
	UNTIL(seen(&o.failed) == 2);
	CHECK_EQ(o.dial.cause, INET_DIAL_SILENT);
	CHECK_EQ(o.dial.error, ETIMEDOUT);
	end(&o);
	loop_end();
	close(fd);
}

/* The kernel's queue of connections is full, so it drops what asks for another. */
TEST(no_answer_of_tcp)
{
	struct owner o;
	int port, fd, full[4];
	struct sockaddr_in a;

	fd = lo_listen(0, &port);
	CHECK(listen(fd, 0) == 0);
	a = lo_addr(port);
	for (int i = 0; i < 4; i++) {
		full[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(full[i] >= 0);
		connect(full[i], (void *)&a, sizeof(a));
	}
	loop_begin();
	owner_init(&o, port);
	o.connect_ns = 20 * MS;
	start(&o);
	UNTIL(seen(&o.failed) == 1);
	CHECK_EQ(o.dial.cause, INET_DIAL_FILTERED);
	end(&o);
	loop_end();
	for (int i = 0; i < 4; i++)
		close(full[i]);
	close(fd);
}

/* A callback may end its own dial and others, started or not; an attempt that is not needed is not made. */
TEST(callbacks_may_end_dials)
{
	struct owner o[3];
	int port, fd = lo_listen(0, &port);

	loop_begin();
	for (int i = 0; i < 3; i++)
		owner_init(&o[i], i ? port : closed_port());
	o[0].free_in_failed = 1;
	o[0].other = &o[1];
	o[2].wanted = 0;
	inet_loop_lock();
	inet_dial_start(&o[1].dial, gantry_now_ns() + 60000ull * MS);
	inet_dial_start(&o[0].dial, 0);
	inet_dial_start(&o[2].dial, 0);
	inet_loop_unlock();
	UNTIL(seen(&o[0].failed) == 1 && seen(&o[2].aimed) == 1);
	loop_end(); /* it ends by itself: no dial is left */
	CHECK_EQ(o[1].aimed, 0);
	CHECK_EQ(o[2].dial.state, INET_DIAL_IDLE);
	CHECK_EQ(o[2].done + o[2].failed, 0);
	close(fd);
}

/* ---- polled ---- */

static enum inet_event poll_until(struct owner *o)
{
	enum inet_event e;

	WAIT_WHILE ((e = inet_dial_poll(&o->dial)) == INET_AGAIN)
		;
	CHECK_EQ(o->dial.state, INET_DIAL_IDLE);
	return e;
}

static void *serve_thread(void *arg)
{
	int *fd = arg;

	*fd = serve_one(*fd, ANSWER);
	return NULL;
}

TEST(polled)
{
	struct owner o;
	int port, fd = lo_listen(0, &port), served = fd;
	pthread_t t;

	owner_init(&o, closed_port());
	CHECK_EQ(inet_dial_poll(&o.dial), INET_AGAIN); /* idle */
	inet_dial_poll_start(&o.dial, 0);
	CHECK_EQ(poll_until(&o), INET_FAILED);
	CHECK_EQ(o.dial.error, ECONNREFUSED);
	o.port = port;
	o.shake_ns = 20 * MS;
	inet_dial_poll_start(&o.dial, inet_dial_retry_at(&o.dial));
	CHECK_EQ(poll_until(&o), INET_FAILED);
	CHECK_EQ(o.dial.cause, INET_DIAL_SILENT);
	close(accept(fd, NULL, NULL)); /* of the attempt that was given up */
	o.shake_ns = UINT64_MAX;
	CHECK_EQ(pthread_create(&t, NULL, serve_thread, &served), 0);
	inet_dial_poll_start(&o.dial, 0);
	CHECK_EQ(poll_until(&o), INET_DONE);
	take_answer(&o);
	CHECK_STR(o.answer, "pong");
	close(inet_dial_poll_take(&o.dial));
	CHECK_EQ(pthread_join(t, NULL), 0);
	inet_dial_poll_end(&o.dial);
	close(served);
	close(fd);
}

/* A socket that is given up is closed, or reset where the dial says so. */
TEST(given_up)
{
	for (int resets = 0; resets < 2; resets++) {
		struct owner o;
		int port, fd = lo_listen(0, &port), peer;
		char byte[4096];
		ssize_t n;

		owner_init(&o, port);
		o.dial.resets = resets;
		inet_dial_poll_start(&o.dial, 0);
		WAIT_WHILE (o.dial.state != INET_DIAL_SHAKING)
			CHECK_EQ(inet_dial_poll(&o.dial), INET_AGAIN);
		peer = accept(fd, NULL, NULL);
		inet_dial_poll_end(&o.dial);
		WAIT_WHILE ((n = recv(peer, byte, sizeof(byte), 0)) > 0)
			;
		CHECK_EQ(n, resets ? -1 : 0);
		close(peer);
		close(fd);
	}
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
}
