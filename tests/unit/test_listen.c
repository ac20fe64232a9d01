/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A listening port that two protocols share: who gets which connection, by the name in its hello.
 * Catches: a connection that is given to the wrong one, lost or read too far; one that waits for a protocol that is not
 * served any more; a port that stays open or closes early; strangers that are not bounded, or not counted; a key that is
 * used after its owner is gone; a forked child that takes its parent's connections.
 */
#include "inet/listen.h"

#include "test.h"

enum { CROWD = 300, PLACES = 256 };

static const struct inet_key none;
static int accepted[2], waiting, lost; /* under the loop's lock, as all that the services touch */
static char payloads[2][16];

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	c->tag = c->shake.payload_size ? c->shake.payload[0] : 0;
	if (c->tag == 'n')
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "not you");
	else
		inet_conn_challenge(c, &none);
}

static struct inet_service first, second;

static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	int which = c->service == &second;

	if (c->tag == 'w') {
		waiting++;
		return;
	}
	snprintf(payloads[which], sizeof(payloads[which]), "%.*s", (int)c->shake.payload_size, c->shake.payload);
	CHECK(inet_conn_accept(c, which ? "two" : "one", 3));
	close(inet_conn_take(c, NULL));
	accepted[which]++;
}

static void on_lost(struct inet_conn *c)
{
	lost++;
}

static struct inet_service first = {
	.protocol = {"first", 4, "here", "there", NULL}, .hello = on_hello, .proved = on_proved, .lost = on_lost};
static struct inet_service second = {
	.protocol = {"second", 4, "here", "there", NULL}, .hello = on_hello, .proved = on_proved};

static struct inet_port *get(struct inet_service *s)
{
	const struct gantry_addr lo = {.in = lo_addr(0)};
	struct inet_port *p;

	inet_loop_lock();
	CHECK_OK(inet_port_get(s, &lo, &p));
	inet_loop_unlock();
	return p;
}

static void put(struct inet_service *s, struct inet_port *p)
{
	inet_loop_lock();
	inet_port_put(s, p);
	inet_loop_unlock();
}

/* What comes of a hello for this protocol with this payload. */
static enum inet_event shake(const struct gantry_addr *to, const char *name, const char *payload,
			     struct inet_handshake *h)
{
	struct inet_protocol p = {"", 4, "there", "here", NULL};
	enum inet_event event = INET_AGAIN;
	int fd = dial(&to->in);

	CHECK(fd >= 0);
	memcpy(p.name, name, strlen(name));
	CHECK_OK(inet_handshake_start_client(h, &p, &none, payload, strlen(payload)));
	UNTIL((event = inet_handshake_move(h, fd)) != INET_AGAIN);
	close(fd);
	return event;
}

/* What the services have seen, read under the lock. */
static int seen(const int *counter)
{
	int n;

	inet_loop_lock();
	n = *counter;
	inet_loop_unlock();
	return n;
}

static int strangers(void)
{
	int n;

	inet_loop_lock();
	n = inet_arrivals.strangers;
	inet_loop_unlock();
	return n;
}

static int conns(void)
{
	int n = 0;

	inet_loop_lock();
	gantry_list_each (pos, &inet_arrivals.conns)
		n++;
	inet_loop_unlock();
	return n;
}

TEST(test_shared)
{
	struct inet_port *a = get(&first), *b = get(&second);
	struct gantry_addr at = a->addr;
	struct inet_handshake h;

	CHECK(a == b);
	CHECK_EQ(shake(&at, "second", "abc", &h), INET_DONE);
	CHECK(h.payload_size == 3 && memcmp(h.payload, "two", 3) == 0);
	CHECK_EQ(seen(&accepted[1]), 1);
	CHECK_STR(payloads[1], "abc");
	CHECK_EQ(shake(&at, "first", "xyz", &h), INET_DONE);
	CHECK(memcmp(h.payload, "one", 3) == 0);
	CHECK(seen(&accepted[0]) == 1 && seen(&accepted[1]) == 1);
	CHECK_STR(payloads[0], "xyz");
	/* A name that nobody has, and one that nobody has any more: refused, not left waiting. */
	CHECK_EQ(shake(&at, "third", "", &h), INET_FAILED);
	CHECK(h.refused && h.error == GANTRY_ERR_REFUSED);
	CHECK_HAS(h.text, "no third listener in this process");
	put(&second, b);
	CHECK_EQ(shake(&at, "second", "abc", &h), INET_FAILED);
	CHECK_HAS(h.text, "no second listener in this process");
	CHECK_EQ(shake(&at, "first", "n", &h), INET_FAILED);
	CHECK_STR(h.text, "not you");
	CHECK_EQ(shake(&at, "first", "", &h), INET_DONE);
	CHECK_EQ(seen(&lost), 1);
	lost = 0;
	put(&first, a);
	CHECK_EQ(dial(&at.in), -1);
	CHECK_EQ(errno, ECONNREFUSED);
}

/* Kept waiting: until the peer leaves, what it is for goes, or the service does. */
TEST(test_waiting)
{
	struct inet_port *p = get(&first), *q = get(&second);
	struct inet_protocol protocol = {"first", 4, "there", "here", NULL};
	struct inet_handshake h[3];
	uint8_t byte;
	int fd[3];

	for (int i = 0; i < 3; i++) {
		fd[i] = dial(&p->addr.in);
		CHECK_OK(inet_handshake_start_client(&h[i], &protocol, &none, "w", 1));
		CHECK_EQ(inet_handshake_move(&h[i], fd[i]), INET_AGAIN);
	}
	UNTIL(conns() == 3 && strangers() == 0);
	CHECK_EQ(seen(&waiting), 3);
	inet_loop_lock();
	CHECK_EQ(inet_conn_waiting(&first, NULL)->tag, 'w');
	CHECK(!inet_conn_waiting(&second, NULL));
	inet_conn_waiting(&first, NULL)->tag = 'x';
	inet_loop_unlock();
	close(fd[1]);
	UNTIL(conns() == 2);
	CHECK_EQ(seen(&lost), 1);
	inet_loop_lock();
	inet_conns_drop(&first, 'x');
	inet_loop_unlock();
	CHECK_EQ(recv(fd[0], &byte, 1, 0), 0);
	CHECK_EQ(conns(), 1);
	put(&first, p);
	CHECK_EQ(recv(fd[2], &byte, 1, 0), 0);
	CHECK_EQ(conns(), 0);
	close(fd[0]);
	close(fd[2]);
	put(&second, q);
}

/* More who say nothing than there are places: they are bounded, counted, and delay a peer for a moment. */
TEST(test_crowd)
{
	struct inet_port *p = get(&first);
	uint64_t before = __atomic_load_n(&inet_strangers, __ATOMIC_RELAXED);
	struct inet_handshake h;
	int fds[CROWD];

	for (int i = 0; i < CROWD; i++)
		fds[i] = dial(&p->addr.in);
	CHECK_EQ(shake(&p->addr, "first", "abc", &h), INET_DONE);
	CHECK(strangers() <= PLACES);
	for (int i = 0; i < CROWD; i++)
		close(fds[i]);
	UNTIL(strangers() == 0);
	CHECK_EQ(__atomic_load_n(&inet_strangers, __ATOMIC_RELAXED) - before, CROWD);
	put(&first, p);
}

/* A port of its own: no other service has connections from it, what comes to nothing there is the service's to know, and peers that
 * wait are bounded as strangers are. */
TEST(test_own)
{
	struct inet_port *shared = get(&second), *p, *q;
	struct inet_protocol protocol = {"first", 4, "there", "here", NULL};
	struct inet_handshake h;
	int fds[CROWD], before = seen(&lost);

	inet_loop_lock();
	CHECK_OK(inet_port_open(&first, &(struct gantry_addr){.in = lo_addr(0)}, &p, &p));
	CHECK_OK(inet_port_open(&first, &(struct gantry_addr){.in = lo_addr(0)}, &q, &q));
	CHECK_EQ(inet_port_open(&first, &q->addr, &q, &q), GANTRY_ERR_LIMIT);
	CHECK(p != q && p != shared && p->owner == &p);
	inet_loop_unlock();
	CHECK(get(&second) == shared); /* not one of these */
	put(&second, shared);
	CHECK_EQ(shake(&p->addr, "second", "abc", &h), INET_FAILED);
	CHECK_HAS(h.text, "no second listener at this port");
	close(dial(&p->addr.in)); /* without a hello */
	UNTIL(seen(&lost) == before + 2);
	CHECK_EQ(shake(&p->addr, "first", "abc", &h), INET_DONE);
	for (int i = 0; i < CROWD; i++) {
		fds[i] = dial(&p->addr.in);
		CHECK_OK(inet_handshake_start_client(&h, &protocol, &none, "w", 1));
		CHECK_EQ(inet_handshake_move(&h, fds[i]), INET_AGAIN);
	}
	UNTIL(conns() == PLACES);
	CHECK_EQ(shake(&q->addr, "first", "abc", &h), INET_DONE); /* they are in no one else's way */
	CHECK_EQ(shake(&shared->addr, "second", "abc", &h), INET_DONE);
	CHECK(conns() == PLACES && strangers() == 0);
	close(fds[0]);
	UNTIL(seen(&lost) == before + 3);
	UNTIL(conns() == PLACES); /* the next one has its place */
	put(&first, q);
	CHECK_EQ(conns(), PLACES);
	put(&first, p);
	CHECK_EQ(conns(), 0);
	for (int i = 1; i < CROWD; i++)
		close(fds[i]);
	put(&second, shared);
}

/* Another one has the port. */
TEST(test_taken)
{
	int port, fd = lo_listen(0, &port);
	struct gantry_addr at = {.in = lo_addr(port)};
	struct inet_port *p;

	inet_loop_lock();
	CHECK_EQ(inet_port_get(&first, &at, &p), GANTRY_ERR_LIMIT);
	CHECK_EQ(first.refs, 0);
	inet_loop_unlock();
	close(fd);
}

TEST(test_fork)
{
	struct inet_port *p;
	struct inet_handshake h;
	pid_t pid;

	if (!CAN_FORK)
		return;
	p = get(&first);
	pid = child_fork();
	if (pid == 0) {
		struct inet_port *own = get(&first);

		put(&first, p); /* the parent's: nothing to it */
		CHECK(gantry_addr_port(&own->addr) != gantry_addr_port(&p->addr));
		CHECK_EQ(shake(&own->addr, "first", "abc", &h), INET_DONE);
		put(&first, own);
		_exit(0);
	}
	child_wait(pid);
	CHECK_EQ(shake(&p->addr, "first", "abc", &h), INET_DONE);
	put(&first, p);
}

void tests_begin(void)
{
	setenv("GANTRY_LOG_FILE", "/dev/null", 0);
	CHECK_OK(gantry_params_load(0));
}
