/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers at the listener of an rx: with a well-formed hello and without a secret, and with everything but the
 * secret: what a session says (recorded by a relay, replayed, cut, mixed), wrong proofs, all kinds of messages in all
 * states, noise and silence. They change a counter and nothing else: no handle goes out to them, nothing connects to
 * the address that their hello names, accept does not fail, peers get in before, among and after them, and memory and
 * CPU time have bounds. Then two sides whose secrets differ.
 */
#include <poll.h>
#include <sys/resource.h>

#include "net/tcp/hello.h"
#include "relay.h"
#include "rx_util.h"

enum { STRANGERS = SANITIZED ? 2000 : 10000, BATCH = 50, HELLOS = 512, SILENT = 300 };
enum { KEPT = 256 /* meetings of a listener */ };

static const char secret[] = "a secret of this test";

/* ---- a listener with a thread that accepts, a trap that nobody may connect to, and peers ---- */

struct scene {
	struct gantry_rx *rx, *peer;
	struct gantry_rx_listener *listener;
	int port, trap, trap_port;
	pthread_t thread;
	int stop;  /* atomic */
	int peers; /* atomic: accepted so far */
	double cpu_s;
};

static double cpu_of_thread(void)
{
	struct rusage u;

	CHECK_EQ(getrusage(RUSAGE_THREAD, &u), 0);
	return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Accepts, gives each peer one transfer back, and never sees an error. */
static void *serve(void *arg)
{
	struct scene *s = arg;
	static unsigned char memory[1000];
	struct gantry_rx_piece p = {memory, sizeof(memory), 0, 1};

	CHECK_OK(gantry_rx_register(s->rx, memory, sizeof(memory)));
	while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
		struct gantry_rx_conn *c;
		struct gantry_rx_op *op;
		gantry_result r = gantry_rx_accept(s->listener, SECOND / 50, &c);

		if (r == GANTRY_ERR_TIMEOUT)
			continue;
		CHECK_OK(r);
		__atomic_fetch_add(&s->peers, 1, __ATOMIC_RELAXED);
		CHECK_OK(gantry_rx_recv(c, &p, 1, 0, &op));
		CHECK_OK(gantry_rx_wait(op, LONG_ENOUGH * SECOND));
		gantry_rx_op_free(op);
		CHECK_OK(gantry_rx_send(c, &p, 1, 0, &op));
		CHECK_OK(gantry_rx_wait(op, LONG_ENOUGH * SECOND));
		gantry_rx_op_free(op);
		gantry_rx_conn_close(c);
	}
	CHECK_OK(gantry_rx_deregister(s->rx, memory));
	s->cpu_s = cpu_of_thread();
	return NULL;
}

static bool lacks_secrets(void)
{
	if (!GANTRY_HAVE_OPENSSL)
		fprintf(stderr, "skipped: what needs a secret: this build has no OpenSSL\n");
	return !GANTRY_HAVE_OPENSSL;
}

static void set_secret(const char *value)
{
	if (value)
		setenv("GANTRY_SECRET", value, 1);
	else
		unsetenv("GANTRY_SECRET");
}

static void scene_open(struct scene *s)
{
	memset(s, 0, sizeof(*s));
	CHECK_OK(gantry_rx_open(NULL, &s->rx));
	CHECK_OK(gantry_rx_open(NULL, &s->peer));
	CHECK_OK(gantry_rx_listen(s->rx, "127.0.0.1:0", &s->listener));
	s->port = port_of(gantry_rx_listener_address(s->listener));
	s->trap = lo_listen(0, &s->trap_port);
	CHECK_EQ(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void scene_close(struct scene *s)
{
	__atomic_store_n(&s->stop, 1, __ATOMIC_RELEASE);
	CHECK_EQ(pthread_join(s->thread, NULL), 0);
	CHECK_EQ(poll(&(struct pollfd){s->trap, POLLIN, 0}, 1, 0), 0); /* nobody was sent there */
	close(s->trap);
	gantry_rx_close(s->rx);
	gantry_rx_close(s->peer);
}

static uint64_t strangers(struct scene *s)
{
	struct gantry_rx_counters n = GANTRY_RX_COUNTERS_INIT;

	gantry_rx_get_counters(s->rx, &n);
	return n.strangers;
}

/* A peer gets in, over this port, and its bytes come back. */
static void genuine(struct scene *s, int port)
{
	static unsigned char out[1000], in[1000];
	struct gantry_rx_piece p = {out, sizeof(out), 0, 1}, q = {in, sizeof(in), 0, 1};
	struct gantry_rx_conn *c;
	struct gantry_rx_op *op[2];
	char address[64];
	int before = __atomic_load_n(&s->peers, __ATOMIC_RELAXED);

	pattern_fill(out, sizeof(out), (uint64_t)before);
	memset(in, 0, sizeof(in));
	CHECK_OK(gantry_rx_register(s->peer, out, sizeof(out)));
	CHECK_OK(gantry_rx_register(s->peer, in, sizeof(in)));
	snprintf(address, sizeof(address), "127.0.0.1:%d#%llx", port, (unsigned long long)gantry_rx_epoch(s->rx));
	CHECK_OK(gantry_rx_connect(s->peer, address, LONG_ENOUGH * SECOND, &c));
	CHECK_EQ(gantry_rx_conn_peer_epoch(c), gantry_rx_epoch(s->rx));
	CHECK_OK(gantry_rx_recv(c, &q, 1, 0, &op[0]));
	CHECK_OK(gantry_rx_send(c, &p, 1, 0, &op[1]));
	CHECK_OK(gantry_rx_wait(op[1], LONG_ENOUGH * SECOND));
	CHECK_OK(gantry_rx_wait(op[0], LONG_ENOUGH * SECOND));
	CHECK(memcmp(in, out, sizeof(in)) == 0);
	gantry_rx_op_free(op[0]);
	gantry_rx_op_free(op[1]);
	gantry_rx_conn_close(c);
	CHECK_OK(gantry_rx_deregister(s->peer, out));
	CHECK_OK(gantry_rx_deregister(s->peer, in));
	CHECK_EQ(__atomic_load_n(&s->peers, __ATOMIC_RELAXED), before + 1);
}

enum { HELLO = INET_HELLO_SIZE + RX_OFFER_SIZE, PROOF = INET_PROOF_SIZE, CHALLENGE = INET_CHALLENGE_SIZE };
enum { ANSWER = INET_ANSWER_SIZE + RX_OFFER_SIZE };

/* Hello as a peer says it, with the trap's address in a handle that is as good as any. */
static void hello_to_trap(const struct scene *s, enum inet_auth auth, uint8_t ret_hello[HELLO])
{
	struct wire_handle handle = {.version = WIRE_VERSION, .process = 77, .listener = 1, .naddrs = 1};
	const struct inet_key key = {auth, "wrong", 5, INET_ENCRYPT_OFF};
	struct rx_offer own = {.epoch = 5, .id = 9};
	uint8_t offer[RX_OFFER_SIZE];
	struct inet_handshake h;

	handle.addrs[0].in = lo_addr(s->trap_port);
	wire_handle_encode(&handle, own.handle);
	own.to = inet_target_of(&(struct gantry_addr){.in = lo_addr(s->port)});
	rx_offer_encode(&own, offer);
	CHECK_OK(inet_handshake_start_client(&h, &rx_by_hand, &key, offer, sizeof(offer)));
	CHECK_EQ(h.out_size, HELLO);
	memcpy(ret_hello, h.out, HELLO);
}

static void crowd(struct scene *s, int *fds, int n, const uint8_t *hello)
{
	for (int i = 0; i < n; i++) {
		fds[i] = lo_dial(s->port);
		if (hello)
			CHECK_EQ(write(fds[i], hello, HELLO), HELLO);
	}
}

static void leave(int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

/* ---- without a secret ---- */

TEST(hellos_without_secret)
{
	struct scene s;
	uint8_t hello[HELLO];
	int fds[HELLOS];

	scene_open(&s);
	hello_to_trap(&s, INET_AUTH_NONE, hello);
	crowd(&s, fds, HELLOS, hello);
	genuine(&s, s.port); /* they are all still there */
	CHECK(strangers(&s) >= HELLOS - KEPT);
	leave(fds, HELLOS);
	UNTIL(strangers(&s) >= HELLOS);
	genuine(&s, s.port);
	scene_close(&s);
}

/* ---- with one ---- */

struct record {
	uint8_t said[RELAY_TAPE]; /* by the connecting side: hello, proof, and that it is ready */
	uint8_t heard[RELAY_TAPE];
};

/* A peer connects through a relay that writes down what is said. */
static void record_session(struct scene *s, struct record *ret)
{
	static struct relay relay;

	relay.to = lo_addr(s->port);
	relay_make(&relay, 0, 1);
	relay_start(&relay);
	genuine(s, relay.port);
	UNTIL(relay_tape(&relay, TO_SERVER, ret->said) >= HELLO + PROOF + 1);
	UNTIL(relay_tape(&relay, TO_CLIENT, ret->heard) >= CHALLENGE + ANSWER);
	relay_stop(&relay);
	CHECK(memcmp(ret->said, "GANTRY\x01\n\x05\0\x03", 11) == 0);
	CHECK(memcmp(ret->said + HELLO, "GANTRY\x03\n", 8) == 0);
	CHECK(memcmp(ret->heard, "GANTRY\x02\n\x05\0\x07", 11) == 0);
	CHECK(memcmp(ret->heard + CHALLENGE, "GANTRY\x02\n\x05\0\0", 11) == 0);
}

/* What a stranger says at once, and what when it has been asked for a proof. */
struct script {
	uint8_t first[1024], second[1024];
	size_t nfirst, nsecond;
	int silent; /* behind that it says nothing and waits */
};

enum { SCRIPTS = 16 };

static void say(struct script *t, const uint8_t *first, size_t n, const uint8_t *second, size_t m)
{
	memcpy(t->first, first, n);
	memcpy(t->second, second, m);
	t->nfirst = n;
	t->nsecond = m;
}

static void write_script(struct script *t, const struct scene *s, const struct record *seen, int i)
{
	const uint8_t *proof = seen->said + HELLO, *answer = seen->heard + CHALLENGE;
	const struct {
		const uint8_t *bytes;
		size_t size;
	} any[4] = {{proof, PROOF}, {seen->heard, CHALLENGE}, {answer, ANSWER}, {seen->said, HELLO}};
	uint8_t hello[HELLO], made[PROOF];
	int round = i / SCRIPTS;

	memset(t, 0, sizeof(*t));
	hello_to_trap(s, INET_AUTH_SECRET, hello);
	memcpy(made, proof, PROOF);
	random_fill(made + 8, PROOF - 8);
	switch (i % SCRIPTS) {
	case 0: /* a session as it was */
		say(t, seen->said, HELLO, proof, PROOF);
		break;
	case 1: /* the same without waiting for the question */
		say(t, seen->said, HELLO + PROOF + 1, made, 0);
		break;
	case 2: /* its own hello and a proof that was sniffed */
		say(t, hello, HELLO, proof, PROOF);
		break;
	case 3: /* a proof made up */
		say(t, hello, HELLO, made, PROOF);
		break;
	case 4: /* the server's own mac as proof */
		memcpy(made + 8, answer + 16, 32);
		say(t, seen->said, HELLO, made, PROOF);
		break;
	case 5: /* without authentication */
		hello[10] = INET_AUTH_NONE;
		say(t, hello, HELLO, made, 0);
		break;
	case 6: /* another version: a later one, or one that had another size */
		if (round % 2)
			memcpy(hello, "GANTRYrx\x03\0\x01", 11);
		else
			hello[8] = RX_VERSION + 1;
		say(t, hello, round % 2 ? 208 : HELLO, made, 0);
		break;
	case 7: /* any message as the first */
	case 8:
		say(t, any[round % 3].bytes, any[round % 3].size, made, 0);
		break;
	case 9: /* any message instead of a proof */
	case 10:
		say(t, i % 2 ? hello : seen->said, HELLO, any[1 + round % 3].bytes, any[1 + round % 3].size);
		break;
	case 11: /* noise, after a good beginning or at once */
		random_fill(t->first, HELLO);
		memcpy(t->first, hello, (size_t)(round % 2) * 24);
		t->nfirst = HELLO;
		break;
	case 12: /* noise for a proof */
		random_fill(made, (size_t)(round % 2 ? PROOF : 8));
		say(t, seen->said, HELLO, made, PROOF);
		break;
	case 13: /* cut */
		say(t, hello, (size_t)(round % HELLO), made, 0);
		t->silent = 1;
		break;
	case 14:
		say(t, seen->said, HELLO, proof, (size_t)(round % PROOF));
		t->silent = 1;
		break;
	default: /* a hello, and no word more */
		say(t, round % 2 ? hello : seen->said, HELLO, made, 0);
		t->silent = 1;
	}
}

/* All that the server says until it ends the connection, or one message. Never a handle, never an epoch. 1: a question.
 */
static int hear(int fd)
{
	uint8_t in[ANSWER];
	ssize_t n = recv(fd, in, 16, MSG_WAITALL);

	if (n <= 0)
		return 0;
	CHECK_EQ(n, 16);
	if (memcmp(in, "GANTRYrx", 8) == 0) { /* to one of an older build: that the version differs */
		CHECK_EQ(in[10], 5);
		CHECK_EQ(recv(fd, in, 208 - 16, MSG_WAITALL), 208 - 16);
		return 0;
	}
	CHECK(memcmp(in, "GANTRY\x02\n\x05\0", 10) == 0);
	CHECK(in[10] >= 2 && in[10] <= 7); /* refused, or a question: both without a payload */
	CHECK(memcmp(in + 12, "\0\0\0\0", 4) == 0);
	n = in[10] == 7 ? CHALLENGE - 16 : INET_ANSWER_SIZE - 16;
	CHECK_EQ(recv(fd, in + 16, (size_t)n, MSG_WAITALL), n);
	return in[10] == 7;
}

/* The peer may have ended the connection already. */
static void tell(int fd, const uint8_t *message, size_t n)
{
	if (n && send(fd, message, n, MSG_NOSIGNAL) < 0)
		CHECK(errno == EPIPE || errno == ECONNRESET);
}

static void batch(struct scene *s, const struct record *seen, int first)
{
	static struct script scripts[BATCH];
	int fds[BATCH];

	for (int i = 0; i < BATCH; i++) {
		write_script(&scripts[i], s, seen, first + i);
		fds[i] = lo_dial(s->port);
		tell(fds[i], scripts[i].first, scripts[i].nfirst);
	}
	for (int i = 0; i < BATCH; i++)
		if (scripts[i].nsecond) {
			CHECK(hear(fds[i]));
			tell(fds[i], scripts[i].second, scripts[i].nsecond);
		}
	for (int i = 0; i < BATCH; i++) {
		while (!scripts[i].silent && hear(fds[i]))
			;
		close(fds[i]);
	}
}

static double rss_mb(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%*s %ld", &pages) == 1);
	fclose(f);
	return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

TEST(everything_but_the_secret)
{
	struct scene s;
	struct record seen;
	double before = 0, after;

	if (lacks_secrets())
		return;
	set_secret(secret);
	scene_open(&s);
	record_session(&s, &seen);
	for (int i = 0; i < STRANGERS; i += BATCH) {
		if (i == STRANGERS / 10 / BATCH * BATCH)
			before = rss_mb();
		if (i == STRANGERS / 2 / BATCH * BATCH)
			genuine(&s, s.port);
		batch(&s, &seen, i);
	}
	UNTIL(strangers(&s) >= STRANGERS);
	CHECK_EQ(strangers(&s), STRANGERS); /* each of them, and no peer */
	after = rss_mb();
	genuine(&s, s.port);
	scene_close(&s);
	printf("%d strangers: memory grew by %.1f MB, %.3f ms of CPU each\n", STRANGERS, after - before,
	       s.cpu_s * 1e3 / STRANGERS);
	CHECK(SANITIZED || after - before < 8);
	CHECK(SANITIZED || s.cpu_s * 1e3 / STRANGERS < 2);
}

/* More than there is room for, that say nothing, or a hello and nothing: they hold nobody up. */
TEST(silence_with_secret)
{
	struct scene s;
	uint8_t hello[HELLO];
	int fds[2][SILENT];

	if (lacks_secrets())
		return;
	set_secret(secret);
	scene_open(&s);
	hello_to_trap(&s, INET_AUTH_SECRET, hello);
	crowd(&s, fds[0], SILENT, NULL);
	genuine(&s, s.port);
	crowd(&s, fds[1], SILENT, hello);
	genuine(&s, s.port);
	CHECK(strangers(&s) >= 2 * SILENT - KEPT);
	leave(fds[0], SILENT);
	leave(fds[1], SILENT);
	UNTIL(strangers(&s) >= 2 * SILENT);
	genuine(&s, s.port);
	scene_close(&s);
}

/* ---- two sides that do not agree ---- */

/* The accepting side, in a process of its own: says its address, and in the end how many strangers it has counted. */
static void accept_alone(const char *value, int out, int in)
{
	char address[64] = "", byte;
	struct scene s;
	uint64_t n;

	set_secret(value);
	scene_open(&s);
	snprintf(address, sizeof(address), "%s", gantry_rx_listener_address(s.listener));
	CHECK_EQ(write(out, address, sizeof(address)), (ssize_t)sizeof(address));
	CHECK_EQ(read(in, &byte, 1), 1);
	UNTIL(strangers(&s) >= 1);
	n = strangers(&s);
	CHECK_EQ(s.peers, 0);
	CHECK_EQ(write(out, &n, sizeof(n)), (ssize_t)sizeof(n));
	scene_close(&s);
	_exit(0);
}

static void differ(const char *accepting, const char *connecting, const char *text)
{
	int to[2], from[2];
	char address[64];
	struct gantry_rx *rx;
	struct gantry_rx_conn *c;
	uint64_t n = 0, began;
	pid_t pid;

	if (lacks_secrets())
		return;
	CHECK(!pipe(to) && !pipe(from));
	pid = child_fork();
	if (!pid)
		accept_alone(accepting, from[1], to[0]);
	set_secret(connecting);
	CHECK_EQ(read(from[0], address, sizeof(address)), (ssize_t)sizeof(address));
	CHECK_OK(gantry_rx_open(NULL, &rx));
	began = gantry_now_ns();
	CHECK_EQ(gantry_rx_connect(rx, address, LONG_ENOUGH * SECOND, &c), GANTRY_ERR_AUTH);
	CHECK(gantry_now_ns() - began < LONG_ENOUGH * (uint64_t)SECOND / 2); /* at once: not at the end of the time */
	CHECK_HAS(gantry_last_error(), text);
	CHECK_HAS(gantry_last_error(), address);
	CHECK_EQ(write(to[1], "x", 1), 1);
	CHECK_EQ(read(from[0], &n, sizeof(n)), (ssize_t)sizeof(n));
	CHECK_EQ(n, 3); /* tries: a bit may have been flipped on the way */
	gantry_rx_close(rx);
	child_wait(pid);
}

TEST_CALL(only_accepting, differ("one", NULL, "GANTRY_SECRET is set only on the accepting side"))
TEST_CALL(only_connecting, differ(NULL, "one", "GANTRY_SECRET is set only on the connecting side"))
TEST_CALL(both_differ, differ("one", "another", "GANTRY_SECRET differs between the two sides"))

void tests_begin(void)
{
	unsetenv("GANTRY_SECRET");
	tests_apart(1);
}
