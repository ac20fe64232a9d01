/* SPDX-License-Identifier: Apache-2.0 */
/*
 * impostors N: B listens with a secret set; N connections come to its port that know everything but the secret: the
 * cookies of all of its listeners, and what a genuine peer has said, which they say again. They come in every kind and
 * leave in every state. They may change B's counter of strangers and nothing else: no accept hears of them, no link is
 * made, memory, descriptors and CPU time per stranger are bounded, and A gets in before, in the middle of and after
 * them.
 */
#include "net/tcp/network.h"
#include "pair.h"
#include "relay.h"

enum { LISTENERS = 4, GENUINE = 3, SIZE = 100000, HELD = 300, FDS_MORE = 300 };
enum { RSS_KIB_MORE = 4096, CPU_US_EACH = 500 }; /* at 0ef997f: 36 KB and 1,400 us each */

static struct relay relay;
static int impostors;
static struct pair_shared *shared;

/* ---- B ---- */

static uint64_t rss_kib(void)
{
	char line[256];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/self/status", "re");

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %lu", &kib) == 1)
			break;
	fclose(f);
	return kib;
}

static int links(void)
{
	int n = 0;

	inet_loop_lock();
	gantry_list_each (pos, &tcp_network.links)
		n++;
	inet_loop_unlock();
	return n;
}

/* The genuine peer comes to listener i. */
static void receive(struct pair_side *s, void *listen, int i)
{
	uint8_t *data = malloc(SIZE);
	void *comm = pair_accept(s, listen);

	CHECK(data);
	pair_wait(s, pair_irecv(s, comm, data, SIZE, 0));
	CHECK_PATTERN(data, SIZE, (uint32_t)i);
	CHECK_OK(s->net->ops->close_recv(s->net, comm));
	pair_step(s, (uint32_t)i + 1);
	free(data);
}

static void server(struct pair_side *s)
{
	void *listen[LISTENERS], *comm = NULL;
	uint64_t cpu = 0, rss = 0, count = 0;
	int fds, most = 0;

	relay_advertise(&relay);
	pair_init(s);
	for (int i = 0; i < LISTENERS; i++)
		listen[i] = pair_listen(s, i);
	receive(s, listen[0], 0);
	fds = pair_fds();
	for (int i = 1; i < GENUINE; i++) {
		uint64_t cpu0 = cpu_us(), rss0 = rss_kib(), count0 = load_relaxed(&inet_strangers);

		while (load_acquire(&shared->event) < (uint32_t)i) {
			for (int k = i; k < LISTENERS; k++) {
				CHECK_OK(s->net->ops->accept(s->net, listen[k], &comm, NULL));
				CHECK(!comm);
			}
			CHECK(links() <= 1); /* that of the genuine peer before may still be closing */
			if (pair_fds() > most)
				most = pair_fds();
			sleep_ms(5);
		}
		cpu += cpu_us() - cpu0;
		count += load_relaxed(&inet_strangers) - count0;
		if (rss_kib() > rss0 + rss)
			rss = rss_kib() - rss0;
		receive(s, listen[i], i);
	}
	/* Those that hang on are dropped by their deadline. */
	for (uint64_t end = now_ms() + PAIR_PATIENCE_MS; now_ms() < end; sleep_ms(20))
		if (load_relaxed(&inet_strangers) >= (uint64_t)impostors)
			break;
	printf("%d impostors: %d strangers counted; %d us of CPU each, %d KiB more memory; %d descriptors, at most "
	       "%d\n",
	       impostors, (int)load_relaxed(&inet_strangers), (int)(cpu / (count ? count : 1)), (int)rss, fds, most);
	fflush(stdout);
	CHECK(load_relaxed(&inet_strangers) >= (uint64_t)impostors);
	CHECK(most <= fds + FDS_MORE);
	if (!getenv("GANTRY_SANITIZED") || !*getenv("GANTRY_SANITIZED")) {
		CHECK(rss < RSS_KIB_MORE);
		CHECK(cpu < count * CPU_US_EACH);
	}
	/* The last listener has had no genuine peer: nobody else has come to it. */
	CHECK_OK(s->net->ops->accept(s->net, listen[LISTENERS - 1], &comm, NULL));
	CHECK(!comm);
	for (int i = 0; i < LISTENERS; i++)
		CHECK_OK(s->net->ops->close_listen(s->net, listen[i]));
}

/* ---- A ---- */

static void client(struct pair_side *s)
{
	uint8_t *data = malloc(SIZE);

	CHECK(data);
	pair_init(s);
	for (int i = 0; i < GENUINE; i++) {
		void *comm;

		while (load_acquire(&shared->event) < (uint32_t)i)
			sleep_ms(1);
		comm = pair_connect(s, i);
		pattern_fill(data, SIZE, (uint32_t)i);
		pair_wait(s, pair_isend(s, comm, data, SIZE, 0));
		pair_wait_step(s->shared, s->other, (uint32_t)i + 1);
		CHECK_OK(s->net->ops->close_send(s->net, comm));
	}
	free(data);
}

/* ---- the impostors ---- */

/* Where things stand in a hello (docs/wire.md). */
enum {
	VERSION = 8,
	AUTH = 10,
	NONCE = 24,
	CRC = 112 + 11,
	COOKIE = INET_HELLO_SIZE + 8,
	SESSION = INET_HELLO_SIZE + 24
};

/* A hello that is right in everything. */
static void forge(uint8_t out[RELAY_HELLO], int listener, const uint8_t *recorded)
{
	struct wire_hello h;
	struct wire_handle to;

	memcpy(out, recorded, RELAY_HELLO);
	CHECK_OK(wire_handle_decode(shared->handle[1][listener], &to));
	CHECK_OK(wire_hello_decode(out + INET_HELLO_SIZE, WIRE_HELLO_SIZE, WIRE_VERSION, &h));
	h.listener = to.listener;
	memcpy(h.cookie, to.cookie, sizeof(h.cookie));
	h.lane = 0;
	for (size_t i = 0; i < INET_NONCE_SIZE; i++) {
		out[NONCE + i] = (uint8_t)(rand() >> 7);
		h.session[i] = (uint8_t)(rand() >> 7);
	}
	wire_hello_encode(&h, out + INET_HELLO_SIZE);
}

static void push(int fd, const void *data, size_t n)
{
	if (send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		CHECK(errno == EPIPE || errno == ECONNRESET || errno == EAGAIN);
}

/* What B answers; nobody who has not proved itself is let in or told anything of use. */
static void answer(int fd)
{
	struct timeval patience = {.tv_usec = 100000};
	uint8_t in[INET_ANSWER_SIZE];
	size_t rest;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (recv(fd, in, 16, MSG_WAITALL) != 16)
		return;
	CHECK(memcmp(in, "GANTRY\x02\n", 8) == 0);
	CHECK(in[10] == 7 || in[10] == 2 || in[10] == 4 || in[10] == 5); /* challenge; version, auth, listener */
	CHECK(memcmp(in + 12, "\0\0\0\0", 4) == 0);			 /* no payload */
	rest = in[10] == 7 ? INET_CHALLENGE_SIZE - 16 : INET_ANSWER_SIZE - 16;
	CHECK(recv(fd, in + 16, rest, MSG_WAITALL) <= (ssize_t)rest);
}

enum { KINDS = 16 };

static void come(int fd, int kind, int listener, const uint8_t *recorded)
{
	uint8_t hello[RELAY_HELLO], noise[4096], frame[WIRE_FRAME_SIZE] = {0};
	struct wire_frame f = {.kind = (enum wire_kind)(1 + rand() % (WIRE_KINDS - 1))};

	forge(hello, listener, recorded);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (uint8_t)(rand() >> 7);
	wire_frame_encode(&f, 0, frame);
	switch (kind) {
	case 0: /* a genuine hello, again */
		push(fd, recorded, RELAY_HELLO);
		break;
	case 1: /* and the proof that followed it */
		push(fd, recorded, RELAY_FIRST);
		break;
	case 2: /* a fresh hello, and that proof */
		push(fd, hello, sizeof(hello));
		answer(fd);
		push(fd, recorded + RELAY_HELLO, INET_PROOF_SIZE);
		answer(fd);
		break;
	case 3: /* and one that is made up */
		push(fd, hello, sizeof(hello));
		memcpy(noise, "GANTRY\x03\n", 8);
		push(fd, noise, INET_PROOF_SIZE);
		break;
	case 4: /* another version */
		hello[VERSION]++;
		push(fd, hello, sizeof(hello));
		answer(fd);
		break;
	case 5: /* no secret */
		hello[AUTH] = INET_AUTH_NONE;
		push(fd, hello, sizeof(hello));
		answer(fd);
		break;
	case 6: /* other settings */
		hello[CRC] ^= 1;
		push(fd, hello, sizeof(hello));
		break;
	case 7: /* a lane of the genuine session */
		memcpy(hello + SESSION, recorded + SESSION, WIRE_SESSION_SIZE);
		hello[RELAY_LANE] = 1;
		push(fd, hello, sizeof(hello));
		push(fd, noise, INET_PROOF_SIZE);
		break;
	case 8: /* a lane of no session */
		hello[RELAY_LANE] = 1;
		push(fd, hello, sizeof(hello));
		break;
	case 9: /* frames at once */
		push(fd, frame, sizeof(frame));
		break;
	case 10: /* frames instead of a proof */
		push(fd, hello, sizeof(hello));
		push(fd, frame, sizeof(frame));
		break;
	case 11: /* half a hello */
		push(fd, hello, sizeof(hello) / 2);
		break;
	case 12: /* half a proof */
		push(fd, hello, sizeof(hello));
		push(fd, recorded + RELAY_HELLO, INET_PROOF_SIZE / 2);
		break;
	case 13: /* a lot more than it is asked for */
		push(fd, hello, sizeof(hello));
		push(fd, noise, sizeof(noise));
		break;
	case 14: /* a wrong cookie */
		hello[COOKIE + 6] ^= 1;
		push(fd, hello, sizeof(hello));
		answer(fd);
		break;
	case 15: /* a proof first */
		push(fd, recorded + RELAY_HELLO, INET_PROOF_SIZE);
		break;
	}
}

static void come_all(int n)
{
	int held[HELD];
	uint8_t recorded[RELAY_TAPE];

	CHECK(relay_tape(&relay, TO_SERVER, recorded) >= RELAY_FIRST);
	memset(held, 0xff, sizeof(held));
	for (int i = 0; i < n; i++) {
		int fd = dial_hard(&relay.to), slot = i % HELD;

		come(fd, i % KINDS, i / KINDS % LISTENERS, recorded);
		if (held[slot] >= 0)
			close(held[slot]);
		held[slot] = fd; /* most stay for a while, some leave at once */
		if (random_below(4) == 0) {
			close(fd);
			held[slot] = -1;
		}
	}
	for (int i = 0; i < HELD; i++)
		if (held[i] >= 0)
			close(held[i]);
}

int main(int argc, char **argv)
{
	if (!GANTRY_HAVE_OPENSSL)
		SKIP("this build has no OpenSSL to authenticate with");
	shared = pair_share();
	impostors = argc > 1 ? atoi(argv[1]) : 10000;
	relay.lanes = 1;
	relay.to = lo_addr(lo_free_port());
	relay_make(&relay, 0, 1);
	pair_fork_both(shared, client, server);
	relay_start(&relay);
	for (uint32_t i = 1; i < GENUINE; i++) {
		pair_wait_step(shared, 1, i);
		come_all(impostors / (GENUINE - 1));
		store_release(&shared->event, i);
	}
	return pair_reap_both(shared);
}
