/*
 * Strangers at the hub's port, while ranks join and talk. They change a counter and nothing else.
 * Catches: a stranger who stalls, crashes or joins; descriptors that pile up; genuine ranks that are locked out; a hub
 * that tells more than it should before the proof; versions that are not compared.
 */
#include <errno.h>
#include <poll.h>

#include "base/hmac.h"
#include "comm/ctl_bytes.h"
#include "comm/hub.h"
#include "ctl_util.h"

enum { KINDS = 8, HELD = 300, FDS_MORE = 320, COUNT = 1500 };

static struct gantry_unique_id id;
static struct ctl_id decoded;

static int dial(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	CHECK_EQ(connect(fd, &decoded.addr.sa, sizeof(decoded.addr.in)), 0);
	return fd;
}

static void send_all(int fd, const void *data, size_t n)
{
	ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);

	CHECK(sent == (ssize_t)n || errno == EPIPE || errno == ECONNRESET);
}

static void send_frame(int fd, uint32_t kind, const void *body, uint32_t n)
{
	struct ctl_head h = {.kind = kind, .from = 0, .to = -1, .size = n};
	uint8_t raw[CTL_HEAD_SIZE + 256];

	ctl_head_encode(&h, raw);
	memcpy(raw + CTL_HEAD_SIZE, body, n);
	send_all(fd, raw, CTL_HEAD_SIZE + n);
}

static void send_hello(int fd, uint32_t version, uint64_t comm_id, uint8_t raw[CTL_HELLO_SIZE])
{
	struct ctl_hello h = {.version = version,
			      .auth = GANTRY_HAVE_OPENSSL ? CTL_AUTH_HMAC : CTL_AUTH_KEY,
			      .comm_id = comm_id,
			      .rank = 1,
			      .nranks = 2,
			      .timeout_ms = 1000,
			      .wait_ms = 1,
			      .who = "stranger pid 1"};

	CHECK_OK(gantry_random_bytes(h.nonce, sizeof(h.nonce)));
	ctl_hello_encode(&h, raw);
	send_frame(fd, CTL_HELLO, raw, CTL_HELLO_SIZE);
}

/* 0: the hub has closed. */
static int read_frame(int fd, struct ctl_head *h, uint8_t *body)
{
	uint8_t raw[CTL_HEAD_SIZE];
	struct timeval limit = {UNTIL_SECONDS, 0};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (recv(fd, raw, sizeof(raw), MSG_WAITALL) != (ssize_t)sizeof(raw))
		return 0;
	CHECK_OK(ctl_head_decode(raw, h));
	CHECK(h->size <= CTL_TEXT_MAX);
	CHECK(!h->size || recv(fd, body, h->size, MSG_WAITALL) == (ssize_t)h->size);
	return 1;
}

/* Those that stay are held until HELD later ones have come. */
static void come(int n)
{
	static const char http[] = "GET /metrics HTTP/1.1\r\nHost: gantry\r\n\r\n";
	static int held[HELD];
	uint8_t noise[200], raw[CTL_HELLO_SIZE];

	memset(held, 0xff, sizeof(held));
	for (int i = 0; i < n; i++) {
		struct linger hard = {1, 0};
		int fd = dial(), *slot = &held[i % HELD];

		CHECK_OK(gantry_random_bytes(noise, sizeof(noise)));
		if (*slot >= 0)
			close(*slot);
		*slot = fd;
		switch (i % KINDS) {
		case 0:
			send_all(fd, http, sizeof(http) - 1);
			break;
		case 1:
			send_all(fd, noise, sizeof(noise));
			break;
		case 2:
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
			/* fallthrough */
		case 3:
			close(fd);
			*slot = -1;
			break;
		case 4: /* the magic, then nothing */
			send_all(fd, "GCTL", 4);
			break;
		case 5: /* knows the id's number, not its key: no proof follows */
			send_hello(fd, CTL_VERSION, decoded.comm_id, raw);
			break;
		case 6: /* proves something else */
			send_hello(fd, CTL_VERSION, decoded.comm_id, raw);
			send_frame(fd, CTL_PROOF, noise, CTL_MAC_SIZE);
			break;
		case 7: /* silent */
			break;
		}
		if (i % 16 == 0)
			sleep_ms(1);
	}
	for (int i = 0; i < HELD; i++)
		if (held[i] >= 0)
			close(held[i]);
}

/*
 * Says hello and hears the answer. Whoever has not proved himself after 5 s is sent away without a word: on a loaded
 * machine that may be us, then once more.
 */
static int hello_answered(uint32_t version, uint64_t comm_id, struct ctl_head *h, uint8_t *body)
{
	uint8_t raw[CTL_HELLO_SIZE];
	int fd = -1;

	UNTIL((close(fd), fd = dial(), send_hello(fd, version, comm_id, raw), read_frame(fd, h, body)));
	return fd;
}

static int proof_refused(void)
{
	uint8_t body[CTL_TEXT_MAX];
	struct ctl_head h;
	int fd = hello_answered(CTL_VERSION, decoded.comm_id, &h, body), answered;

	CHECK_EQ(h.kind, CTL_CHALLENGE);
	send_frame(fd, CTL_PROOF, body + CTL_CHALLENGE_MAC, CTL_MAC_SIZE);
	answered = read_frame(fd, &h, body);
	close(fd);
	if (answered)
		CHECK_EQ(h.result, GANTRY_ERR_AUTH);
	return answered;
}

static void test_refusals(void)
{
	uint8_t body[CTL_TEXT_MAX];
	struct ctl_head h;
	char text[CTL_TEXT_MAX];
	int fd = hello_answered(9, decoded.comm_id, &h, body);

	CHECK_EQ(h.kind, CTL_REFUSED);
	CHECK_EQ(h.result, GANTRY_ERR_VERSION);
	ctl_get_text(text, sizeof(text), body, h.size);
	CHECK_HAS(text, "version differs: 1 (hub, gantry ");
	CHECK_HAS(text, " and 9 (rank)");
	close(fd);
	fd = hello_answered(CTL_VERSION, decoded.comm_id + 1, &h, body);
	CHECK_EQ(h.result, GANTRY_ERR_REFUSED);
	close(fd);
	fd = dial(); /* a frame of another time */
	send_frame(fd, CTL_LEAVE, "", 0);
	CHECK(!read_frame(fd, &h, body));
	close(fd);
	fd = dial(); /* too large for a stranger */
	h = (struct ctl_head){.kind = CTL_MESSAGE, .from = 1, .to = 0, .size = 60000};
	ctl_head_encode(&h, body);
	send_all(fd, body, CTL_HEAD_SIZE);
	CHECK(!read_frame(fd, &h, body));
	close(fd);
	UNTIL(proof_refused()); /* the hub's proof cannot be sent back as the rank's */
}

static void *flood(void *arg)
{
	(void)arg;
	come(COUNT);
	return NULL;
}

static int all_refused(uint64_t *ret_refused)
{
	int left;

	pthread_mutex_lock(&ctl_service.mu);
	*ret_refused = ctl_service.refused;
	left = ctl_service.nstrangers;
	pthread_mutex_unlock(&ctl_service.mu);
	return !left && *ret_refused >= COUNT;
}

static void test_flood(void)
{
	struct rank_state *s = ranks_make(2, &id, NULL);
	pthread_t t;
	int fds, most = 0, rounds = 0;
	uint64_t refused, slowest = 0;

	ranks_start(s, 1);
	sleep_ms(50);
	fds = held(HELD_FDS); /* rank 0's connection may not be among them: there is room for it below */
	CHECK_EQ(pthread_create(&t, NULL, flood, NULL), 0);
	sleep_ms(20);
	ranks_start(s + 1, 1);
	ranks_wait(s, 2);
	CHECK_OK(s[0].joined);
	CHECK_OK(s[1].joined);
	do {
		uint64_t began = now_ms();
		uint32_t v = (uint32_t)rounds, got = 0;

		CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, &v, sizeof(v)));
		CHECK_OK(recv_wait(s[1].ctl, 0, 1, &got, sizeof(got)));
		CHECK_EQ(got, v);
		if (now_ms() - began > slowest)
			slowest = now_ms() - began;
		if (held(HELD_FDS) > most)
			most = held(HELD_FDS);
		rounds++;
		sleep_ms(1);
	} while (pthread_tryjoin_np(t, NULL) == EBUSY);
	/* The last ones hung up: until the hub has noticed. */
	UNTIL(all_refused(&refused));
	printf("%d strangers, %d counted; %d messages, the slowest %d ms; %d fds at the start, at most %d\n", COUNT,
	       (int)refused, rounds, (int)slowest, fds, most);
	CHECK(most <= fds + HELD + FDS_MORE); /* their ends are in this process too */
	CHECK_EQ(lost_count(&s[0]) + lost_count(&s[1]), 0);
	ranks_leave(s, 2);
	until_quiet();
	CHECK(held_at_most(HELD_FDS, fds - 1));
}

int main(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
	setenv("GANTRY_CONNECT_TIMEOUT", "400s", 1);
	CHECK_OK(gantry_ctl_create_id(&id));
	CHECK_OK(ctl_id_decode(&id, &decoded));
	test_refusals();
	test_flood();
	return 0;
}
