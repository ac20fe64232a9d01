/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every socket of a meeting of two rx is reset at every byte of set-up, in both directions, by relays: the rendezvous, and the
 * network's connections. Each side comes up once, and a transfer each way arrives; or, where the network's connection is lost
 * without GANTRY_RESUME, both sides fail with a typed error. No reset ends in a timeout.
 * Catches: a connection that only one side has, one that is accepted twice, a meeting that hangs.
 *
 * GANTRY_TEST_EVERY_BYTE=1 tries all positions, else a sample of them.
 */
#include "relay.h"
#include "rx_util.h"

enum { SAMPLES = SANITIZED ? 1 : 2, CONNS = 8, BYTES = 100 };

static struct relay meet, data; /* of the rendezvous, and of the network's connections */
static struct {
	const struct relay *relay;
	int conn, way; /* which connection of the relay's, and which way of it */
	int64_t at;    /* bytes that pass before the reset */
	bool ends;     /* it ends in order instead, in both directions */
	int hit;       /* atomic */
} cut;

static int64_t reset_at(const struct relay_conn *c, int way)
{
	if (!cut.relay || c != &cut.relay->conns[cut.conn] || way != cut.way ||
	    __atomic_load_n(&cut.hit, __ATOMIC_RELAXED))
		return RELAY_ALL;
	if ((int64_t)c->moved[way] < cut.at)
		return cut.at;
	__atomic_store_n(&cut.hit, 1, __ATOMIC_RELAXED);
	if (!cut.ends)
		return -1;
	for (int i = 0; i < 2; i++)
		shutdown(c->fd[i], SHUT_WR);
	return RELAY_ALL;
}

static void begin_relay(struct relay *r)
{
	memset(&r->n, 0, sizeof(*r) - offsetof(struct relay, n));
	r->stop = 0;
	relay_start(r);
}

static void end_relay(struct relay *r)
{
	__atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE);
	pthread_join(r->thread, NULL);
	for (int i = 0; i < r->n; i++)
		for (int k = 0; k < 2; k++)
			if (r->conns[i].fd[k] >= 0)
				close(r->conns[i].fd[k]);
}

static int measure(struct relay *r, uint64_t bytes[CONNS][2])
{
	int n;

	pthread_mutex_lock(&r->mu);
	n = r->n;
	CHECK(n <= CONNS);
	for (int i = 0; i < n; i++)
		memcpy(bytes[i], r->conns[i].moved, sizeof(bytes[i]));
	pthread_mutex_unlock(&r->mu);
	return n;
}

struct acceptor {
	struct gantry_rx_listener *l;
	struct gantry_rx_conn *conns[CONNS];
	int n, stop; /* atomic */
};

static void *accept_thread(void *arg)
{
	struct acceptor *a = arg;

	while (!__atomic_load_n(&a->stop, __ATOMIC_ACQUIRE)) {
		struct gantry_rx_conn *c = NULL;

		if (gantry_rx_accept(a->l, 2000000, &c) == GANTRY_OK) {
			CHECK(a->n < CONNS);
			a->conns[a->n] = c;
			__atomic_store_n(&a->n, a->n + 1, __ATOMIC_RELEASE);
		}
	}
	return NULL;
}

/* A transfer; returns its first error. */
static gantry_result transfer(struct gantry_rx_conn *from, struct gantry_rx_conn *to, uint8_t *out, uint8_t *in)
{
	struct gantry_rx_piece send = {out, BYTES, 0, 1}, recv = {in, BYTES, 0, 1};
	struct gantry_rx_op *s = NULL, *r = NULL;
	gantry_result sent, received;

	memset(in, 0, BYTES);
	sent = gantry_rx_send(from, &send, 1, 7, &s);
	received = gantry_rx_recv(to, &recv, 1, 7, &r);
	if (sent == GANTRY_OK && received == GANTRY_OK) {
		rx_both(s, r);
		sent = rx_result(s);
		received = rx_result(r);
		if (received == GANTRY_OK)
			CHECK(memcmp(in, out, BYTES) == 0);
	}
	gantry_rx_op_free(s);
	gantry_rx_op_free(r);
	return sent != GANTRY_OK ? sent : received;
}

/* The connection is there on this side: until the other has it as well, or this one is at its end. False: that. */
static bool both_up(struct gantry_rx_conn *c, const struct acceptor *a)
{
	static uint8_t byte;
	struct gantry_rx_piece piece = {&byte, 0, 0, 0};
	struct gantry_rx_op *op;
	bool ended = gantry_rx_recv(c, &piece, 0, 9, &op) != GANTRY_OK;

	WAIT_WHILE (!ended && !__atomic_load_n(&a->n, __ATOMIC_ACQUIRE))
		ended = gantry_rx_test(op) == GANTRY_RX_DONE;
	if (ended)
		CHECK(gantry_rx_conn_error(c, NULL, 0) != GANTRY_OK);
	gantry_rx_op_free(op);
	return !ended;
}

struct outcome {
	gantry_result connected, talked;
	char text[256];
};

static void talk(struct gantry_rx *a, struct gantry_rx *b, struct gantry_rx_conn *ca, struct gantry_rx_conn *cb,
		 struct outcome *o)
{
	static uint8_t bytes[2][2][BYTES];

	for (int i = 0; i < BYTES; i++)
		bytes[0][0][i] = (uint8_t)(3 * i + 1), bytes[1][0][i] = (uint8_t)(5 * i + 2);
	for (int i = 0; i < 2; i++) {
		CHECK_OK(gantry_rx_register(a, bytes[i][i], BYTES));
		CHECK_OK(gantry_rx_register(b, bytes[i][!i], BYTES));
	}
	o->talked = transfer(ca, cb, bytes[0][0], bytes[0][1]);
	if (o->talked == GANTRY_OK)
		o->talked = transfer(cb, ca, bytes[1][0], bytes[1][1]);
	for (int i = 0; i < 2; i++) {
		CHECK_OK(gantry_rx_deregister(a, bytes[i][i]));
		CHECK_OK(gantry_rx_deregister(b, bytes[i][!i]));
	}
}

/* Two rx meet through the relays and send something each way. bytes: what meeting took, of both relays, or NULL. */
static void meet_once(struct outcome *o, uint64_t meet_bytes[CONNS][2], uint64_t data_bytes[CONNS][2])
{
	struct acceptor acceptor = {0};
	struct gantry_rx *a, *b;
	struct gantry_rx_conn *ca = NULL;
	char at[64];
	pthread_t t;

	memset(o, 0, sizeof(*o));
	CHECK_OK(gantry_rx_open(NULL, &a));
	CHECK_OK(gantry_rx_open(NULL, &b));
	CHECK_OK(gantry_rx_listen(b, "127.0.0.1:0", &acceptor.l));
	meet.to = (struct sockaddr_in){.sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port_of(gantry_rx_listener_address(acceptor.l))),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	begin_relay(&meet);
	begin_relay(&data);
	snprintf(at, sizeof(at), "127.0.0.1:%d#%llx", meet.port, (unsigned long long)gantry_rx_epoch(b));
	threads_start(&t, 1, accept_thread, &acceptor, 0);
	o->connected = gantry_rx_connect(a, at, 20 * SECOND, &ca);
	snprintf(o->text, sizeof(o->text), "%s", gantry_last_error());
	if (o->connected == GANTRY_OK && !both_up(ca, &acceptor))
		o->connected = gantry_rx_conn_error(ca, o->text, sizeof(o->text));
	if (meet_bytes)
		CHECK(measure(&meet, meet_bytes) == 1);
	if (data_bytes)
		CHECK(measure(&data, data_bytes) > 1);
	__atomic_store_n(&acceptor.stop, 1, __ATOMIC_RELEASE);
	threads_join(&t, 1);
	if (acceptor.n > 1 || (o->connected == GANTRY_OK && acceptor.n != 1))
		TEST_FAIL("connect: %s, and %d connections were accepted", gantry_result_name(o->connected),
			  acceptor.n);
	if (o->connected == GANTRY_OK)
		talk(a, b, ca, acceptor.conns[0], o);
	gantry_rx_conn_close(ca);
	gantry_rx_close(a);
	gantry_rx_close(b);
	end_relay(&meet);
	end_relay(&data);
}

static int reset_conn(struct relay *relay, int conn, int way, uint64_t size, int must_work)
{
	uint64_t step = getenv("GANTRY_TEST_EVERY_BYTE") ? 1 : size / SAMPLES + 1;
	int hits = 0;

	for (uint64_t at = step == 1 ? 0 : (uint64_t)getpid() % step; at <= size; at += step) {
		struct outcome o;

		CASE("%s %d, %s, byte %llu of %llu", relay == &meet ? "rendezvous" : "data connection", conn,
		     way == TO_SERVER ? "to the server" : "to the client", (unsigned long long)at,
		     (unsigned long long)size);
		cut.relay = relay;
		cut.conn = conn;
		cut.way = way;
		cut.at = (int64_t)at;
		cut.hit = 0;
		meet_once(&o, NULL, NULL);
		hits += cut.hit;
		if (o.connected == GANTRY_ERR_TIMEOUT || (must_work && o.connected != GANTRY_OK))
			TEST_FAIL("connect: %s: %s", gantry_result_name(o.connected), o.text);
		if (must_work && o.talked != GANTRY_OK)
			TEST_FAIL("connected, but: %s", gantry_result_name(o.talked));
	}
	return hits;
}

static void try_all(const char *name, int resume)
{
	uint64_t meet_bytes[CONNS][2], data_bytes[CONNS][2];
	struct outcome o;
	int meet_hits = 0, data_hits = 0, n;

	set_params("GANTRY_RESUME", resume ? "on" : "off", "GANTRY_TIMEOUT", "20s");
	cut.relay = NULL;
	CASE("%s, resume %s, no reset", name, resume ? "on" : "off");
	meet_once(&o, meet_bytes, data_bytes);
	CHECK_OK(o.connected);
	CHECK_OK(o.talked);
	n = data.n;
	for (int way = 0; way < 2; way++) {
		meet_hits += reset_conn(&meet, 0, way, meet_bytes[0][way], 1);
		for (int conn = 0; conn < n; conn++)
			data_hits += reset_conn(&data, conn, way, data_bytes[conn][way], resume);
	}
	printf("%s, resume %s: %d resets of the rendezvous, %d of the network's connections\n", name,
	       resume ? "on" : "off", meet_hits, data_hits);
	CHECK(meet_hits >= SAMPLES && data_hits >= SAMPLES);
}

static void try_both(const char *name)
{
	try_all(name, 0);
	try_all(name, 1);
}

TEST(plain)
{
	try_both("plain");
}

TEST(secret)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters");
	try_both("secret");
	set_params("GANTRY_SECRET", NULL);
}

TEST(encrypted)
{
	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_ENCRYPT", "on");
	try_both("encrypted");
	set_params("GANTRY_SECRET", NULL, "GANTRY_ENCRYPT", NULL);
}

/*
 * The rendezvous ends, as a proxy may end it, when both sides have the other's offer and neither has said that it is ready. With
 * GANTRY_RESUME both go on over the network: there is no second rendezvous, unless the machine was so slow that the first was given up.
 */
TEST(ended)
{
	enum { PATIENCE_MS = 4000 }; /* less than rx waits before it begins again */
	uint64_t began;
	struct outcome o;

	set_params("GANTRY_RESUME", "on", "GANTRY_TIMEOUT", "20s");
	cut.relay = &meet;
	cut.conn = 0;
	cut.way = TO_CLIENT;
	cut.at = INET_ANSWER_SIZE + RX_OFFER_SIZE; /* then comes the word that the server is ready */
	cut.ends = true;
	cut.hit = 0;
	began = now_ms();
	meet_once(&o, NULL, NULL);
	CHECK_OK(o.connected);
	CHECK_OK(o.talked);
	CHECK(cut.hit);
	if (now_ms() - began < PATIENCE_MS)
		CHECK_EQ(meet.n, 1);
	cut.ends = false;
	set_params("GANTRY_RESUME", NULL);
}

/* ---- after set-up ---- */

enum { CUTS = 20, LARGE = 200000 };

struct pair_of_rx {
	struct gantry_rx *rx[2];
	struct gantry_rx_conn *conn[2];
	uint8_t *out[2], *in[2];
};

/* So many bytes each way at once, of which every one is checked. */
static void move_both_ways(struct pair_of_rx *p, size_t n, uint64_t seed)
{
	struct gantry_rx_op *s[2], *r[2];

	for (int i = 0; i < 2; i++) {
		struct gantry_rx_piece from = {p->out[i], n, 0, 1}, to = {p->in[i], n, 0, 1};

		pattern_fill(p->out[i], n, seed + (uint64_t)i);
		memset(p->in[i], 0, n);
		CHECK_OK(gantry_rx_recv(p->conn[i], &to, 1, seed, &r[i]));
		CHECK_OK(gantry_rx_send(p->conn[i], &from, 1, seed, &s[i]));
	}
	for (int i = 0; i < 2; i++)
		rx_both(s[i], r[!i]);
	for (int i = 0; i < 2; i++) {
		if (rx_result(s[i]) != GANTRY_OK || rx_result(r[i]) != GANTRY_OK)
			TEST_FAIL("sent %s, received %s: %s", gantry_result_name(rx_result(s[i])),
				  gantry_result_name(rx_result(r[i])), rx_text(r[i]));
		CHECK(memcmp(p->in[i], p->out[!i], n) == 0);
		gantry_rx_op_free(s[i]);
		gantry_rx_op_free(r[i]);
	}
}

static void *cut_often(void *arg)
{
	int *stop = arg;

	for (int i = 0; i < CUTS && !__atomic_load_n(stop, __ATOMIC_ACQUIRE); i++) {
		relay_end_lane(&data, 0, 1);
		sleep_ms(3 + (uint64_t)i % 7);
	}
	__atomic_store_n(stop, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* All connections of the network are reset again and again while both sides send. Returns how many were. */
static int cut_and_move(uint64_t seed)
{
	struct acceptor acceptor = {0};
	struct pair_of_rx p = {0};
	pthread_t accepting, cutting;
	int stop = 0, over = 0;

	for (int i = 0; i < 2; i++) {
		CHECK_OK(gantry_rx_open(NULL, &p.rx[i]));
		p.out[i] = malloc(LARGE);
		p.in[i] = malloc(LARGE);
		CHECK(p.out[i] && p.in[i]);
		CHECK_OK(gantry_rx_register(p.rx[i], p.out[i], LARGE));
		CHECK_OK(gantry_rx_register(p.rx[i], p.in[i], LARGE));
	}
	CHECK_OK(gantry_rx_listen(p.rx[1], "127.0.0.1:0", &acceptor.l));
	begin_relay(&data);
	threads_start(&accepting, 1, accept_thread, &acceptor, 0);
	CHECK_OK(gantry_rx_connect(p.rx[0], gantry_rx_listener_address(acceptor.l), LONG_ENOUGH * SECOND, &p.conn[0]));
	UNTIL(__atomic_load_n(&acceptor.n, __ATOMIC_ACQUIRE));
	__atomic_store_n(&acceptor.stop, 1, __ATOMIC_RELEASE);
	threads_join(&accepting, 1);
	p.conn[1] = acceptor.conns[0];
	threads_start(&cutting, 1, cut_often, &stop, 0);
	for (uint64_t i = 0; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++)
		move_both_ways(&p, i % 3 ? BYTES : LARGE, seed + 2 * i);
	threads_join(&cutting, 1);
	move_both_ways(&p, LARGE, seed);
	pthread_mutex_lock(&data.mu);
	for (int i = 0; i < data.n; i++)
		over += data.conns[i].fd[0] < 0;
	pthread_mutex_unlock(&data.mu);
	for (int i = 0; i < 2; i++) {
		gantry_rx_conn_close(p.conn[i]);
		gantry_rx_close(p.rx[i]);
		free(p.out[i]);
		free(p.in[i]);
	}
	end_relay(&data);
	return over;
}

TEST(cuts)
{
	int rounds = getenv("GANTRY_TEST_CUTS") ? atoi(getenv("GANTRY_TEST_CUTS")) : 2, n = 0;

	set_params("GANTRY_RESUME", "on", "GANTRY_TIMEOUT", "20s");
	cut.relay = NULL;
	for (int i = 0; i < rounds; i++)
		n += cut_and_move((uint64_t)i * 1000);
	printf("%d connections were reset in %d rounds\n", n, rounds);
	CHECK(n > rounds);
	set_params("GANTRY_RESUME", NULL);
}

/* ---- one bit is flipped on the way ---- */

static struct {
	int way;
	uint64_t bit;
} flip;

static void flip_bit(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	uint64_t at = flip.bit / 8;

	if (c == &meet.conns[0] && way == flip.way && at >= c->moved[way] && at - c->moved[way] < n)
		bytes[at - c->moved[way]] ^= (uint8_t)(1 << flip.bit % 8);
}

/* With a secret, a hand-shake that was damaged is noticed, whatever bit it was, and passes the second time. */
TEST(flipped)
{
	enum { ALL = 8 * (INET_HELLO_SIZE + RX_OFFER_SIZE + INET_PROOF_SIZE) };
	static const uint64_t sizes[2] = {ALL, 8 * (INET_CHALLENGE_SIZE + INET_ANSWER_SIZE + RX_OFFER_SIZE)};
	uint64_t step = getenv("GANTRY_TEST_EVERY_BYTE") ? 3 : ALL / (4 * SAMPLES);
	struct outcome o;
	int n = 0;

	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters", "GANTRY_TIMEOUT", "20s");
	cut.relay = NULL;
	meet.alter = flip_bit;
	for (flip.way = 0; flip.way < 2; flip.way++)
		for (flip.bit = (uint64_t)getpid() % step; flip.bit < sizes[flip.way]; flip.bit += step, n++) {
			CASE("%s, bit %llu", flip.way == TO_SERVER ? "to the server" : "to the client",
			     (unsigned long long)flip.bit);
			meet_once(&o, NULL, NULL);
			if (o.connected != GANTRY_OK)
				TEST_FAIL("%s: %s", gantry_result_name(o.connected), o.text);
			CHECK_OK(o.talked);
		}
	meet.alter = NULL;
	printf("%d flipped bits\n", n);
	set_params("GANTRY_SECRET", NULL);
}

/* ---- passed on ---- */

static gantry_result connect_to(struct gantry_rx *a, uint64_t epoch)
{
	struct gantry_rx_conn *c = NULL;
	char at[64];
	gantry_result r;

	snprintf(at, sizeof(at), epoch ? "127.0.0.1:%d#%llx" : "127.0.0.1:%d", meet.port, (unsigned long long)epoch);
	r = gantry_rx_connect(a, at, LONG_ENOUGH * SECOND, &c);
	gantry_rx_conn_close(c);
	return r;
}

/* Whoever is on the way passes a hello on to another listener that has the same secret: that one is not meant, by the epoch of
 * the rx that is, nor by the address that was dialled. */
TEST(passed_on)
{
	struct acceptor acceptor = {0};
	struct gantry_rx *a, *b, *meant;
	pthread_t t;

	if (!GANTRY_HAVE_OPENSSL)
		return;
	set_params("GANTRY_SECRET", "a secret of thirty-two characters");
	cut.relay = NULL;
	CHECK_OK(gantry_rx_open(NULL, &a));
	CHECK_OK(gantry_rx_open(NULL, &b));
	CHECK_OK(gantry_rx_open(NULL, &meant));
	CHECK_OK(gantry_rx_listen(b, "127.0.0.1:0", &acceptor.l));
	meet.to = lo_addr(port_of(gantry_rx_listener_address(acceptor.l)));
	begin_relay(&meet);
	begin_relay(&data);
	threads_start(&t, 1, accept_thread, &acceptor, 0);
	CHECK_EQ(connect_to(a, gantry_rx_epoch(meant)), GANTRY_ERR_REFUSED);
	CHECK_HAS(gantry_last_error(), "another address or rx than this one");
	CHECK_EQ(connect_to(a, 0), GANTRY_ERR_REFUSED);
	CHECK_OK(connect_to(a, gantry_rx_epoch(b)));
	__atomic_store_n(&acceptor.stop, 1, __ATOMIC_RELEASE);
	threads_join(&t, 1);
	CHECK(acceptor.n <= 1);
	gantry_rx_close(a);
	gantry_rx_close(b);
	gantry_rx_close(meant);
	end_relay(&meet);
	end_relay(&data);
	set_params("GANTRY_SECRET", NULL);
}

/* Below those that the kernel gives to outgoing connections: the listener comes and goes, and would find its port taken. */
static int quiet_port(void)
{
	int port = 20000 + getpid() % 10000, taken = 1;

	for (; taken && port < 32768; port += taken) {
		struct sockaddr_in at = lo_addr(port);
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		CHECK(fd >= 0);
		taken = bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0;
		close(fd);
	}
	CHECK(!taken);
	return port;
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_LANES", "1", 1);
	relay_make(&meet, 0, 0);
	relay_make(&data, 0, 0);
	meet.allow = data.allow = reset_at;
	data.to = lo_addr(quiet_port());
	relay_advertise(&data);
}
