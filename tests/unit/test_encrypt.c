/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GANTRY_ENCRYPT over whole connections, through a relay that sees and may change everything: of what is sent, and of the
 * secret, nothing shows; without encryption it does, so the relay would see it. A bit that is changed on the way is an
 * error on both sides that names the lane, and no byte of it counts. First records of two sessions have nothing in common.
 */
#include "base/bytes.h"
#include "net/tcp/network.h"
#include "relay.h"
#include "tcp_util.h"

#if GANTRY_HAVE_OPENSSL

enum { SMALL = 500, LARGE = 2 * MIB, FLIP_AT = 300000 };
static const char mark[] = "a payload that is marked", secret[] = "a secret of thirty-two characters";

static struct relay relay = {.lanes = 1};
static int seen_mark, seen_secret; /* atomic */
static int flip_lane;		   /* -1: none */

static void look(const struct relay_conn *c, int way, uint8_t *bytes, size_t n)
{
	uint64_t from = c->moved[way];

	if (memmem(bytes, n, mark, sizeof(mark) - 1))
		__atomic_store_n(&seen_mark, 1, __ATOMIC_RELAXED);
	if (memmem(bytes, n, secret, sizeof(secret) - 1))
		__atomic_store_n(&seen_secret, 1, __ATOMIC_RELAXED);
	if (way == TO_SERVER && c->lane == flip_lane && from <= FLIP_AT && FLIP_AT < from + n)
		bytes[FLIP_AT - from] ^= 16;
}

/* ---- first records ---- */

static struct first {
	int lane;
	int way;
	size_t n;
	uint8_t bytes[WIRE_FRAME_SIZE];
} firsts[16]; /* under the relay's lock */
static int nfirsts;

static void keep_first(struct relay_conn *c, int way, const uint8_t *record, size_t n)
{
	struct first *f = &firsts[nfirsts];

	if (get64(record + 8) == 0) {
		CHECK(nfirsts < (int)TEST_COUNT(firsts));
		*f = (struct first){.lane = c->lane, .way = way, .n = n - GANTRY_SEAL_EXTRA};
		memcpy(f->bytes, record + GANTRY_SEAL_HEADER, f->n < sizeof(f->bytes) ? f->n : sizeof(f->bytes));
		nfirsts++;
	}
	relay_say(c, way, record, n);
}

static void begin(const char *encrypt, int lane, void **ret_ctx)
{
	setenv("GANTRY_SECRET", secret, 1);
	setenv("GANTRY_ENCRYPT", encrypt, 1);
	setenv("GANTRY_LANES", "2", 1);
	setenv("GANTRY_CONNECT_TIMEOUT", "100s", 1);
	setenv("GANTRY_TIMEOUT", "100s", 1);
	flip_lane = lane;
	relay.find = listening_port;
	relay.alter = look;
	relay_make(&relay, 0, 1);
	relay_advertise(&relay);
	relay_start(&relay);
	start(ret_ctx, -1);
}

static void fill(uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		data[i] = i % 64 < sizeof(mark) - 1 ? (uint8_t)mark[i % 64] : (uint8_t)(i * 13 + i / 256);
}

/* In a process of its own: the parameters are read once. */
static void in_child(void (*run)(void))
{
	pid_t pid = child_fork();

	if (!pid) {
		run();
		exit(0);
	}
	child_wait(pid);
}

static void move_all(const char *encrypt, int shown)
{
	FREED uint8_t *out = malloc(LARGE), *in = calloc(1, LARGE);
	static const size_t sizes[] = {SMALL, MIB, LARGE};
	void *ctx;
	struct way w;

	begin(encrypt, -1, &ctx);
	fill(out, LARGE);
	w = connect_way(ctx);
	EACH_ROW (i, sizes) {
		void *recv = post_recv(w.recv, in, sizes[i], 1), *send = post_send(w.send, out, sizes[i], 1);

		CHECK_EQ(wait_two(recv, send, NULL), (int)sizes[i]);
		CHECK(memcmp(in, out, sizes[i]) == 0);
		memset(in, 0, sizes[i]);
	}
	CHECK(relay_passed(&relay, TO_SERVER) > LARGE);
	CHECK_EQ(__atomic_load_n(&seen_mark, __ATOMIC_RELAXED), shown);
	CHECK(!__atomic_load_n(&seen_secret, __ATOMIC_RELAXED));
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

/* The same message in two sessions, of one process: each lane and each direction has keys of its own. */
static void compare_first(void)
{
	FREED uint8_t *out = malloc(LARGE), *in = calloc(1, LARGE);
	struct way w;
	void *ctx;
	int bulk = 0;

	relay.record = keep_first;
	begin("require", -1, &ctx);
	fill(out, LARGE);
	for (int i = 0; i < 2; i++) {
		w = connect_way(ctx);
		for (size_t size = SMALL; size <= LARGE; size += LARGE - SMALL)
			wait_two(post_recv(w.recv, in, size, 1), post_send(w.send, out, size, 1), NULL);
		close_way(w); /* or the next would share the session */
	}
	pthread_mutex_lock(&relay.mu);
	CHECK(nfirsts >= 6); /* the control lane in both directions, and a bulk lane, of each */
	for (int a = 0; a < nfirsts; a++) {
		/* The first record of a bulk lane is the header of a piece. */
		bulk += firsts[a].lane > 0 && firsts[a].way == TO_SERVER && firsts[a].n == WIRE_FRAME_SIZE;
		for (int b = 0; b < a; b++) {
			size_t n = firsts[a].n < firsts[b].n ? firsts[a].n : firsts[b].n;

			CHECK(n >= 16 &&
			      memcmp(firsts[a].bytes, firsts[b].bytes, n < WIRE_FRAME_SIZE ? n : WIRE_FRAME_SIZE));
		}
	}
	CHECK(bulk >= 2);
	pthread_mutex_unlock(&relay.mu);
	CHECK_OK(ops->finalize(net, ctx));
}

static void move_plain(void)
{
	move_all("off", 1);
}

static void move_encrypted(void)
{
	move_all("require", 0);
}

/* The error of the request, which must come. */
static gantry_result failure(void *request)
{
	gantry_result r = GANTRY_OK;
	int done = 0;

	UNTIL((r = ops->test(net, request, &done, NULL)) != GANTRY_OK || done);
	return r;
}

static void flip(int lane)
{
	FREED uint8_t *out = malloc(LARGE), *in = calloc(1, LARGE);
	void *ctx, *send, *recv;
	char name[16];
	struct way w;

	snprintf(name, sizeof(name), "lane %d", lane);
	begin("on", lane, &ctx);
	fill(out, LARGE);
	w = connect_way(ctx);
	recv = post_recv(w.recv, in, LARGE, 1);
	send = post_send(w.send, out, LARGE, 1);
	WAIT_WHILE (1) { /* both ends are in this thread */
		int received = 0, sent = 0;

		if (ops->test(net, recv, &received, NULL) != GANTRY_OK)
			break;
		CHECK(!received);
		if (send && ops->test(net, send, &sent, NULL) != GANTRY_OK)
			break;
		if (sent)
			send = NULL;
	}
	CHECK_EQ(failure(recv), GANTRY_ERR_CORRUPT);
	CHECK_HAS(gantry_last_error(), name);
	CHECK_HAS(gantry_last_error(), "message 0 of tag 1");
	CHECK_HAS(gantry_last_error(), "record");
	UNTIL(ops->isend(net, w.send, out, SMALL, 1, NULL, &send) != GANTRY_OK);
	CHECK_HAS(gantry_last_error(), "the peer gave up");
	CHECK_HAS(gantry_last_error(), name);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

static void flip_bulk(void)
{
	flip(1);
}

TEST(check_seen)
{
	in_child(move_plain);
}

TEST(check_unseen)
{
	in_child(move_encrypted);
}

TEST(check_first_records)
{
	in_child(compare_first);
}

TEST(check_flipped)
{
	in_child(flip_bulk);
}

#else

TEST(check_refused)
{
	void *ctx;

	setenv("GANTRY_ENCRYPT", "on", 1);
	setenv("GANTRY_IFNAME", "lo", 1);
	net = gantry_net_tcp();
	CHECK_EQ(net->ops->init(net, 7, &(struct gantry_net_config){0}, &ctx), GANTRY_ERR_CONFIG);
}

#endif
