/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers at the hub's port, while ranks join and talk: with everything but the key, recordings of a genuine rank
 * included. They change counters and nothing else, with GANTRY_SECRET and without.
 * Catches: a stranger who stalls, crashes or joins; memory and descriptors that pile up; genuine ranks that are locked
 * out; a hub that tells more than it should before the proof; versions that are not compared; a stranger who has the
 * service thread busy after it was refused.
 */
#include <malloc.h>
#include <poll.h>

#include "base/bytes.h"
#include "base/hmac.h"
#include "ctl/hub_priv.h"
#include "ctl_util.h"

enum { HELD = 300, PLACES = 256, RANKS = 3, JOINING = 6000, JOINED = 4000, FLOOD_MAX = 32 << 20 };
enum { HEAP_MOST = 2 << 20, CPU_US_MOST = 500 }; /* of all of them at once; of each */

static struct gantry_unique_id id;
static struct ctl_id decoded;
static struct gantry_addr hub_addr; /* where the hub listens; the id may name a relay */
static uint8_t tape[RELAY_TAPE];    /* what a genuine rank has said: hello, proof and more */
static size_t ntape;
static enum inet_auth auth;

enum { HELLO = INET_HELLO_SIZE + CTL_HELLO_SIZE };
enum verdict { VERSION = 2, AUTH = 4, NOBODY = 5, CHALLENGE = 7 }; /* of an answer: docs/wire.md */

static void tell(int fd, const void *data, size_t n)
{
	ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);

	CHECK(sent == (ssize_t)n || errno == EPIPE || errno == ECONNRESET);
}

static void send_frame(int fd, uint32_t kind, const void *body, uint32_t n)
{
	struct inet_header h = {.kind = kind, .from = 0, .to = -1, .size = n};
	uint8_t raw[INET_HEADER_SIZE + 256];

	inet_header_encode(&h, raw);
	memcpy(raw + INET_HEADER_SIZE, body, n);
	tell(fd, raw, INET_HEADER_SIZE + n);
}

static void send_hello(int fd, uint16_t version, uint64_t comm_id)
{
	const struct inet_protocol protocol = {"ctl", (uint16_t)(version < 4 ? 4 : version), "hub", "rank", NULL};
	const struct inet_key key = {auth, "", 0, INET_ENCRYPT_OFF};
	const struct ctl_hello h = {.comm_id = comm_id, .rank = 1, .nranks = 2, .timeout_ms = 1000, .wait_ms = 1};
	uint8_t payload[CTL_HELLO_SIZE], raw[HELLO];
	struct inet_handshake shake;

	ctl_hello_encode(&h, payload);
	CHECK_OK(inet_handshake_start_client(&shake, &protocol, &key, payload, sizeof(payload)));
	CHECK_EQ(shake.out_size, HELLO);
	memcpy(raw, shake.out, HELLO);
	put16(raw + 8, version);
	tell(fd, raw, HELLO);
}

static void send_proof(int fd)
{
	uint8_t raw[INET_PROOF_SIZE] = "GANTRY\x03\n";

	CHECK_OK(gantry_random_bytes(raw + 8, sizeof(raw) - 8));
	tell(fd, raw, sizeof(raw));
}

static int read_all(int fd, void *buf, size_t n)
{
	struct timeval limit = {UNTIL_SECONDS, 0};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return recv(fd, buf, n, MSG_WAITALL) == (ssize_t)n;
}

/* What the hub answers; 0: it has closed. It has no payload for who has not proved itself. */
static int read_answer(int fd, char text[INET_TEXT_SIZE])
{
	uint8_t raw[INET_ANSWER_SIZE];

	if (!read_all(fd, raw, 16))
		return 0;
	CHECK(memcmp(raw, "GANTRY\x02\n\x07\0", 10) == 0);
	CHECK_EQ(get32(raw + 12), 0);
	CHECK(raw[10] == VERSION || raw[10] == AUTH || raw[10] == NOBODY || raw[10] == CHALLENGE);
	CHECK(read_all(fd, raw + 16, (raw[10] == CHALLENGE ? INET_CHALLENGE_SIZE : INET_ANSWER_SIZE) - 16));
	snprintf(text, INET_TEXT_SIZE, "%s", raw[10] == CHALLENGE ? "" : (char *)raw + 104);
	return raw[10];
}

/* ---- what strangers do ---- */

static void noise(int fd, int i)
{
	uint8_t bytes[200];

	CHECK_OK(gantry_random_bytes(bytes, sizeof(bytes)));
	tell(fd, bytes, 1 + (size_t)i % sizeof(bytes));
}

static void http(int fd, int i)
{
	static const char text[] = "GET /metrics HTTP/1.1\r\nHost: gantry\r\n\r\n";

	tell(fd, text, sizeof(text) - 1);
}

static void reset(int fd, int i)
{
	struct linger hard = {1, 0};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, i & 1 ? sizeof(hard) : 0);
	shutdown(fd, SHUT_RDWR);
}

static void silent(int fd, int i)
{
	if (i & 1)
		tell(fd, i & 2 ? "GANTRY" : "GCTL", 4); /* the magic, then nothing */
}

/* Knows the id's number, not its key: no proof follows, or another one. */
static void hello(int fd, int i)
{
	send_hello(fd, CTL_VERSION, decoded.comm_id);
	if (i & 1)
		send_proof(fd);
}

static void wrong_version(int fd, int i)
{
	send_hello(fd, (uint16_t)i, decoded.comm_id + (i == CTL_VERSION));
}

static void wrong_auth(int fd, int i)
{
	enum inet_auth right = auth;

	auth = (enum inet_auth)((right + 1 + (unsigned)i % 3) % INET_AUTHS);
	send_hello(fd, CTL_VERSION, decoded.comm_id);
	auth = right;
}

/* Every kind of frame before a hello, after one, and after a refusal. */
static void any_kind(int fd, int i)
{
	uint8_t body[CTL_HELLO_SIZE] = {0};

	if (i % 3 == 1)
		hello(fd, 0);
	if (i % 3 == 2)
		wrong_version(fd, 9);
	send_frame(fd, 1 + (uint32_t)i / 3 % (CTL_KIND_COUNT - 1), body, i & 1 ? 8 : 0);
}

/* The recording: whole, cut, or with a bit that has changed. */
static void replay(int fd, int i)
{
	uint8_t copy[RELAY_TAPE];
	size_t n = ntape;

	memcpy(copy, tape, n);
	if (i % 3 == 1)
		n = (size_t)i % ntape;
	if (i % 3 == 2)
		copy[(size_t)i % ntape] ^= (uint8_t)(1 << i % 8);
	tell(fd, copy, n);
}

/* The recorded hello, the hub's answer, the recorded proof; or another. */
static void replay_slowly(int fd, int i)
{
	char text[INET_TEXT_SIZE];
	int verdict;

	tell(fd, tape, HELLO);
	verdict = read_answer(fd, text);
	if (!verdict) /* crowded out */
		return;
	CHECK_EQ(verdict, CHALLENGE);
	if (i & 1)
		tell(fd, tape + HELLO, INET_PROOF_SIZE);
	else
		send_proof(fd);
	verdict = read_answer(fd, text);
	CHECK(!verdict || verdict == AUTH);
}

/* Those that stay are held until HELD later ones have come. */
static void *come(void *arg)
{
	static void (*const kinds[])(int, int) = {noise,	 http,	     reset,    silent, hello,
						  wrong_version, wrong_auth, any_kind, replay, replay_slowly};
	static int held_fds[HELD];
	int n = *(int *)arg;

	memset(held_fds, 0xff, sizeof(held_fds));
	for (int i = 0; i < n; i++) {
		int *slot = &held_fds[i % HELD];

		if (*slot >= 0)
			close(*slot);
		*slot = dial_hard(&hub_addr.in);
		kinds[i % 10](*slot, i / 10);
	}
	for (int i = 0; i < HELD; i++)
		if (held_fds[i] >= 0)
			close(held_fds[i]);
	return NULL;
}

/*
 * Says hello and hears the answer. Whoever has not proved himself after 5 s is sent away without a word: on a loaded
 * machine that may be us, then once more.
 */
static int hello_answered(uint16_t version, uint64_t comm_id, int *ret_verdict, char text[INET_TEXT_SIZE])
{
	int fd = -1;

	UNTIL((close(fd), fd = dial_hard(&hub_addr.in), send_hello(fd, version, comm_id),
	       (*ret_verdict = read_answer(fd, text))));
	return fd;
}

static int proof_refused(void)
{
	char text[INET_TEXT_SIZE];
	int verdict, fd = hello_answered(CTL_VERSION, decoded.comm_id, &verdict, text);

	CHECK_EQ(verdict, CHALLENGE);
	send_proof(fd);
	verdict = read_answer(fd, text);
	close(fd);
	CHECK(!verdict || verdict == AUTH);
	return verdict;
}

/* One of a build before this hand-shake: it is told so in a frame of its own. */
static int former_refused(void)
{
	uint8_t body[128] = {1}, raw[INET_HEADER_SIZE];
	struct inet_header h;
	char text[CTL_TEXT_MAX + 1];
	int fd = dial_hard(&hub_addr.in), answered;

	send_frame(fd, 1, body, sizeof(body));
	answered = read_all(fd, raw, sizeof(raw));
	if (answered) {
		CHECK_OK(inet_header_decode(raw, &h));
		CHECK_EQ(h.kind, CTL_REFUSED);
		CHECK_EQ(h.result, GANTRY_ERR_VERSION);
		CHECK(read_all(fd, text, h.size));
		text[h.size] = 0;
		CHECK_HAS(text, "version differs: 4 (accepting side) and 1 (connecting side)");
	}
	close(fd);
	return answered;
}

static void test_refusals(void)
{
	char text[INET_TEXT_SIZE];
	int verdict, fd = hello_answered(9, decoded.comm_id, &verdict, text);

	CHECK_EQ(verdict, VERSION);
	CHECK_HAS(text, "version differs: 7 (bootstrap root's side) and 9 (rank's side); gantry ");
	close(fd);
	fd = hello_answered(CTL_VERSION, decoded.comm_id + 1, &verdict, text);
	CHECK_EQ(verdict, NOBODY);
	CHECK_HAS(text, "no communicator with this id here");
	close(fd);
	fd = dial_hard(&hub_addr.in); /* a proof of another time */
	send_proof(fd);
	CHECK(!read_answer(fd, text));
	close(fd);
	UNTIL(former_refused());
	UNTIL(proof_refused());
}

/* ---- what they must not change ---- */

struct snapshot {
	enum hub_state state;
	int nranks, nhere, gathers;
	gantry_result error;
	struct inet_stream *conns[RANKS];
};

static void look_at_hub(struct snapshot *ret)
{
	struct hub *hub;

	memset(ret, 0, sizeof(*ret)); /* field by field: snapshots are compared as bytes, padding included */
	inet_loop_lock();
	hub = hub_find(decoded.comm_id);
	CHECK(hub != NULL);
	ret->state = hub->state;
	ret->nranks = hub->nranks;
	ret->nhere = hub->nhere;
	ret->gathers = hub->gather.open;
	ret->error = hub->error;
	for (int i = 0; i < hub->nranks; i++)
		ret->conns[i] = hub->ranks[i].conn;
	CHECK(inet_arrivals.strangers <= PLACES);
	inet_loop_unlock();
}

static int hub_has(int nhere)
{
	struct snapshot s;

	look_at_hub(&s);
	return s.nhere == nhere;
}

static uint64_t refused_so_far(int *ret_left)
{
	uint64_t n;

	inet_loop_lock();
	n = load_relaxed(&inet_strangers);
	*ret_left = inet_arrivals.strangers;
	inet_loop_unlock();
	return n;
}

static int all_gone(void)
{
	int left;

	refused_so_far(&left);
	return !left;
}

/* ns of CPU that the service thread has used. UNCHECKED: the thread stays for as long as there is a hub. */
static uint64_t service_cpu(void) UNCHECKED
{
	struct timespec t;
	clockid_t clock;

	inet_loop_lock();
	CHECK_EQ(pthread_getcpuclockid(inet_loop.thread, &clock), 0);
	inet_loop_unlock();
	CHECK_EQ(clock_gettime(clock, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* While they come: `during` once, then the hub is looked at all the time. Two ranks talk if there are any. */
static void flood(int n, void (*during)(struct rank_state *s), struct rank_state *s)
{
	struct snapshot before, now;
	size_t heap = mallinfo2().uordblks, most = 0;
	uint64_t cpu = service_cpu(), refused, slowest = 0;
	int left, rounds = 0;
	pthread_t t;

	refused = refused_so_far(&left);
	CHECK_EQ(pthread_create(&t, NULL, come, &n), 0);
	if (during)
		during(s);
	look_at_hub(&before);
	do {
		uint64_t began = now_ms();
		uint32_t v = (uint32_t)rounds++, got = 0;

		if (!during) {
			CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, &v, sizeof(v)));
			CHECK_OK(recv_wait(s[1].ctl, 0, 1, &got, sizeof(got)));
			CHECK_EQ(got, v);
		}
		if (now_ms() - began > slowest)
			slowest = now_ms() - began;
		if (mallinfo2().uordblks > most)
			most = mallinfo2().uordblks;
		look_at_hub(&now);
		CHECK_EQ(memcmp(&before, &now, sizeof(now)), 0);
		sleep_ms(1);
	} while (pthread_tryjoin_np(t, NULL) == EBUSY);
	UNTIL(all_gone());
	refused = refused_so_far(&left) - refused;
	cpu = (service_cpu() - cpu) / 1000 / (uint64_t)n;
	most = most > heap ? most - heap : 0;
	printf("%d strangers, %d counted: %d us of CPU each, at most %zu kB of memory, %d messages, the slowest %d "
	       "ms\n",
	       n, (int)refused, (int)cpu, most >> 10, during ? 0 : rounds, (int)slowest);
	CHECK_EQ(refused, n);
	look_at_hub(&now);
	CHECK_EQ(memcmp(&before, &now, sizeof(now)), 0);
	CHECK(SANITIZED || most < HEAP_MOST);
	CHECK(SANITIZED || mallinfo2().uordblks < heap + HEAP_MOST / 8);
	CHECK(SANITIZED || cpu < CPU_US_MOST);
}

/* Rank 1 joins while they come. */
static void join_during(struct rank_state *s)
{
	ranks_start(s + 1, 1);
	UNTIL(hub_has(2));
}

/* One rank joins before, one during, one after; then they talk. */
static void test_flood(void)
{
	struct rank_state *s;
	struct relay relay;
	struct snapshot now;
	int fds;

	ctl_relay_make(&relay);
	CHECK_OK(gantry_ctl_create_id(&id));
	CHECK_OK(ctl_id_decode(&id, &decoded));
	ctl_relay_start(&relay, &id);
	hub_addr.in = relay.to;
	s = ranks_make(RANKS, &id, NULL);
	fds = held(HELD_FDS);
	ranks_start(s, 1);
	UNTIL(hub_has(1));
	ntape = relay_tape(&relay, TO_SERVER, tape);
	CHECK(ntape >= HELLO + INET_PROOF_SIZE);
	flood(JOINING, join_during, s);
	look_at_hub(&now);
	CHECK_EQ(now.state, HUB_OPEN);
	ranks_start(s + 2, 1);
	ranks_joined(s, RANKS);
	flood(JOINED, NULL, s);
	for (int i = 0; i < RANKS; i++)
		CHECK_EQ(lost_count(&s[i]), 0);
	ranks_leave(s, RANKS);
	until_quiet();
	ctl_relay_stop(&relay);
	CHECK(held_at_most(HELD_FDS, fds));
}

/*
 * All places are held by those who know the id's number, and in one pass more come than there are turns to answer: a
 * newcomer that says hello at once is heard. The thread stands still while they connect, so the order is certain.
 */
static void test_places(void)
{
	int fds[2 * PLACES], n = 0, genuine, verdict;
	char text[INET_TEXT_SIZE];

	for (; n < PLACES; n++)
		fds[n] = hello_answered(CTL_VERSION, decoded.comm_id, &verdict, text);
	inet_loop_lock();
	genuine = dial_hard(&hub_addr.in);
	for (; n < PLACES + 60; n++)
		fds[n] = dial_hard(&hub_addr.in);
	inet_loop_unlock();
	send_hello(genuine, CTL_VERSION, decoded.comm_id);
	CHECK_EQ(read_answer(genuine, text), CHALLENGE);
	close(genuine);
	while (n)
		close(fds[--n]);
	UNTIL(all_gone());
}

/* Refused, and goes on talking: it is not listened to. */
static void test_talker(void)
{
	const struct inet_header life = {.kind = CTL_LIFE, .from = 0, .to = -1};
	uint8_t frames[512 * INET_HEADER_SIZE];
	size_t sent = 0;
	ssize_t n;
	int fd = dial_hard(&hub_addr.in);

	for (size_t i = 0; i < sizeof(frames); i += INET_HEADER_SIZE)
		inet_header_encode(&life, frames + i);
	send_hello(fd, 9, decoded.comm_id);
	while ((n = send(fd, frames, sizeof(frames), MSG_NOSIGNAL)) > 0 && sent < FLOOD_MAX)
		sent += (size_t)n;
	CHECK(sent < FLOOD_MAX);
	close(fd);
	UNTIL(all_gone());
}

static void test_alone(void)
{
	struct rank_state *s;

	CHECK_OK(gantry_ctl_create_id(&id));
	CHECK_OK(ctl_id_decode(&id, &decoded));
	hub_addr = decoded.addr;
	test_refusals();
	test_places();
	test_talker();
	s = ranks_make(1, &id, NULL);
	ranks_start(s, 1);
	ranks_joined(s, 1);
	ranks_leave(s, 1);
	until_quiet();
}

TEST(with_and_without_secret)
{
	if (!GANTRY_HAVE_OPENSSL)
		SKIP("in a build without OpenSSL the key is sent as it is, and a recording of it is as good as a rank");
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_CONNECT_TIMEOUT", "400s", 1);
	for (int secret = 0; secret < 2; secret++) {
		set_params("GANTRY_SECRET", secret ? "a secret of the job" : NULL);
		auth = secret ? INET_AUTH_SECRET : INET_AUTH_KEY;
		test_flood();
		test_alone();
	}
}
