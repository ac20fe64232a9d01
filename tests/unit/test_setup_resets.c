/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two connections that share a link, one each way, through a relay that resets one of their sockets when a given number of
 * bytes has passed on it, in one direction: both ends come up once and a message arrives each way, or both ends have a typed
 * error. GANTRY_TEST_RESETS=n: every n-th place, 1 for all, in all modes; without it three places of each socket and direction, in
 * some modes.
 * Catches: an end that is up without the other, because the answer to its hello, or the last one of a link, was lost.
 */
#include "relay.h"
#include "tcp_util.h"

static struct relay box = {.lanes = 1, .find = listening_port};
static struct {
	int socket, way;
	int64_t byte;
} target;		       /* the relay's mutex */
static uint64_t longest[8][2]; /* bytes that pass on each socket until both ways are up */
static long places, came_up, failed_both;

static int64_t reset_there(const struct relay_conn *c, int way)
{
	if (c - box.conns != target.socket || way != target.way)
		return RELAY_ALL;
	return (int64_t)c->moved[way] >= target.byte ? -1 : target.byte;
}

static void aim(int socket, int way, int64_t byte)
{
	pthread_mutex_lock(&box.mu);
	for (int i = 0; i < box.n; i++)
		for (int k = 0; k < 2 && box.conns[i].fd[k] >= 0; k++)
			close(box.conns[i].fd[k]);
	box.n = 0;
	target.socket = socket;
	target.way = way;
	target.byte = byte;
	pthread_mutex_unlock(&box.mu);
}

struct ends {
	struct way w;
	gantry_result sending, receiving;
};

/* Until each end has a connection or an error. */
static struct ends connect_ends(void *ctx)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct gantry_net_device_handle *none = NULL, *h;
	struct ends e = {.sending = GANTRY_OK};
	void *listen = NULL;

	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	WAIT_WHILE ((!e.w.send && e.sending == GANTRY_OK) || (!e.w.recv && e.receiving == GANTRY_OK)) {
		h = &e.w.handle;
		if (!e.w.send && e.sending == GANTRY_OK)
			e.sending = ops->connect(net, ctx, 0, handle, &e.w.send, &none);
		if (!e.w.recv && e.receiving == GANTRY_OK)
			e.receiving = ops->accept(net, listen, &e.w.recv, &h);
	}
	CHECK_OK(ops->close_listen(net, listen));
	return e;
}

/* A request, until it is done or has failed. */
static bool ends_well(void **request, gantry_result *r)
{
	int done = 0;

	if (*request && *r == GANTRY_OK)
		*r = ops->test(net, *request, &done, NULL);
	if (done)
		*request = NULL;
	return done;
}

static void start_message(struct ends *e, uint8_t *out, uint8_t *in, size_t n, void *requests[2])
{
	int tag = 0;
	void *to = in;

	if (e->sending == GANTRY_OK)
		e->sending = ops->isend(net, e->w.send, out, n, 0, NULL, &requests[0]);
	if (e->receiving == GANTRY_OK)
		e->receiving = ops->irecv(net, e->w.recv, 1, &to, &n, &tag, NULL, &requests[1]);
}

/* Whether the message has arrived, and its sender knows. If not, both ends have errors in the end: sends that are done prove
 * nothing. */
static bool exchange_message(struct ends *e, size_t n)
{
	static uint8_t out[256 << 10], in[256 << 10];
	void *requests[2] = {NULL, NULL};
	bool came = false;

	pattern_fill(out, n, n);
	memset(in, 0, n);
	start_message(e, out, in, n, requests);
	WAIT_WHILE (!came && (e->sending == GANTRY_OK || e->receiving == GANTRY_OK)) {
		if (!requests[0] && e->sending == GANTRY_OK && e->receiving != GANTRY_OK)
			start_message(e, out, in, n, requests);
		ends_well(&requests[0], &e->sending);
		came = ends_well(&requests[1], &e->receiving);
	}
	if (!came)
		return false;
	CHECK_PATTERN(in, n, n);
	WAIT_WHILE (requests[0] && e->sending == GANTRY_OK)
		ends_well(&requests[0], &e->sending);
	if (e->sending == GANTRY_OK)
		return true;
	/* Its acknowledgement was lost with the socket: then the receiver finds that end, too. */
	WAIT_WHILE (e->receiving == GANTRY_OK) {
		if (!requests[1])
			start_message(e, out, in, n, requests);
		ends_well(&requests[1], &e->receiving);
	}
	return false;
}

static void close_ends(struct ends *e)
{
	if (e->w.send)
		CHECK_OK(ops->close_send(net, e->w.send));
	if (e->w.recv)
		CHECK_OK(ops->close_recv(net, e->w.recv));
}

static void note_lengths(void)
{
	pthread_mutex_lock(&box.mu);
	for (int i = 0; i < box.n && i < 8; i++)
		for (int way = 0; way < 2; way++)
			longest[i][way] = box.conns[i].moved[way];
	pthread_mutex_unlock(&box.mu);
}

/* One round. resume: the session outlives the socket, so that nothing may fail once it is up. */
static void try_place(void *ctx, bool resume)
{
	struct ends first = connect_ends(ctx), second = connect_ends(ctx);
	bool came;

	if (target.socket < 0)
		note_lengths();
	came = exchange_message(&first, 100) && exchange_message(&first, 256 << 10);
	came = exchange_message(&second, 100) && exchange_message(&second, 256 << 10) && came;
	CHECK(came || !resume);
	places++;
	came_up += came;
	failed_both += !came;
	close_ends(&first);
	close_ends(&second);
	UNTIL(links_are_gone());
}

/* ---- an answer that does not arrive ---- */

static int first_held; /* atomic: nothing passes to the client on the relay's connections from this one on */

static int64_t hold_answers(const struct relay_conn *c, int way)
{
	return way == TO_CLIENT && c - box.conns >= __atomic_load_n(&first_held, __ATOMIC_RELAXED) ? 0 : RELAY_ALL;
}

/* The first way is up; what is dialled from now on gets no answer. */
static struct ends begin_held(void **ctx, const char *resume, const char *connect_timeout)
{
	struct ends first;

	box.allow = hold_answers;
	__atomic_store_n(&first_held, RELAY_CONNS, __ATOMIC_RELAXED);
	relay_make(&box, 0, 1);
	relay_advertise(&box);
	relay_start(&box);
	set_params("GANTRY_LANES", "1", "GANTRY_RESUME", resume, "GANTRY_TIMEOUT", "20s", "GANTRY_CONNECT_TIMEOUT",
		   connect_timeout);
	start(ctx, GANTRY_NET_UNDEF);
	first = connect_ends(*ctx);
	CHECK(exchange_message(&first, 100));
	pthread_mutex_lock(&box.mu);
	__atomic_store_n(&first_held, box.n, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&box.mu);
	return first;
}

static void end_held(void *ctx, struct ends *first, struct ends *second)
{
	CHECK(exchange_message(first, 100)); /* the session lives */
	close_ends(first);
	close_ends(second);
	UNTIL(links_are_gone());
	CHECK_OK(ops->finalize(net, ctx));
	relay_stop(&box);
}

/* The dialler of the second way never hears that it is to share the session, and gives up: whoever has accepted it hears of that. */
static void never_answered(const char *resume)
{
	void *ctx;
	struct ends first = begin_held(&ctx, resume, "2s"), second = connect_ends(ctx);

	CHECK_EQ(second.sending, GANTRY_ERR_TIMEOUT);
	CHECK(!exchange_message(&second, 100));
	CHECK_EQ(second.receiving, GANTRY_ERR_PEER_CLOSED);
	CHECK_HAS(gantry_last_error(), "GANTRY_CONNECT_TIMEOUT");
	end_held(ctx, &first, &second);
}
TEST_CALL(never_answered_plain, never_answered("off"))
TEST_CALL(never_answered_resumed, never_answered("on"))

/* The answer is late: the second way is not accepted before the dialler has it. */
TEST(answered_late)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct gantry_net_device_handle *none = NULL, *h;
	struct ends second = {.sending = GANTRY_OK}, first;
	void *ctx, *listen;

	first = begin_held(&ctx, "off", "100s");
	CHECK_OK(ops->listen(net, ctx, 0, handle, &listen));
	for (int i = 0; i < 300 || relay_passed(&box, TO_SERVER) == 0; i++) {
		h = &second.w.handle;
		CHECK_OK(ops->connect(net, ctx, 0, handle, &second.w.send, &none));
		CHECK_OK(ops->accept(net, listen, &second.w.recv, &h));
		CHECK(!second.w.send && !second.w.recv);
		sleep_ms(1);
	}
	__atomic_store_n(&first_held, RELAY_CONNS, __ATOMIC_RELAXED);
	WAIT_WHILE (!second.w.send || !second.w.recv) {
		h = &second.w.handle;
		if (!second.w.send)
			CHECK_OK(ops->connect(net, ctx, 0, handle, &second.w.send, &none));
		if (!second.w.recv)
			CHECK_OK(ops->accept(net, listen, &second.w.recv, &h));
	}
	CHECK_OK(ops->close_listen(net, listen));
	CHECK(exchange_message(&second, 100) && exchange_message(&second, 256 << 10));
	end_held(ctx, &first, &second);
}

/* The next place: by steps, or half of the bytes, all but one, and all. */
static int64_t place_after(int64_t at, int64_t last, int64_t step)
{
	if (step)
		return at < 0 ? 0 : at + step;
	return at < last / 2 ? last / 2 : at < last - 1 ? last - 1 : at + 1;
}

static void run(const char *lanes, const char *resume, const char *crc, const char *secret, const char *encrypt)
{
	const char *text = getenv("GANTRY_TEST_RESETS");
	int64_t step = text ? atol(text) : 0;
	void *ctx;

	if (text)
		alarm(0); /* all places take longer than a test may */
	box.allow = reset_there;
	relay_make(&box, 0, 1);
	relay_advertise(&box);
	relay_start(&box);
	set_params("GANTRY_LANES", lanes, "GANTRY_RESUME", resume, "GANTRY_CRC", crc, "GANTRY_SECRET", secret,
		   "GANTRY_ENCRYPT", encrypt, "GANTRY_TIMEOUT", "20s", "GANTRY_CONNECT_TIMEOUT",
		   strcmp(resume, "on") ? "10s" : "20s");
	start(&ctx, GANTRY_NET_UNDEF);
	aim(-1, 0, 0);
	try_place(ctx, true);
	for (int i = 0; i < 8; i++)
		for (int way = 0; way < 2; way++)
			for (int64_t last = (int64_t)longest[i][way], at = place_after(-1, last, step);
			     last && at <= last; at = place_after(at, last, step)) {
				CASE("socket %d, way %d, byte %d", i, way, (int)at);
				aim(i, way, at);
				try_place(ctx, strcmp(resume, "on") == 0);
			}
	CHECK_OK(ops->finalize(net, ctx));
	relay_stop(&box);
	printf("%s bulk lanes, resume %s%s%s%s: %ld places, %ld up, %ld failed at both ends\n", lanes, resume,
	       crc ? ", CRC" : "", encrypt ? ", encrypted" : "", secret && !encrypt ? ", secret" : "", places, came_up,
	       failed_both);
}

#define SECRET "a secret of thirty-two characters"
/* Only where all modes are asked for. */
static void run_more(const char *lanes, const char *resume, const char *crc, const char *secret, const char *encrypt)
{
	if (getenv("GANTRY_TEST_RESETS"))
		run(lanes, resume, crc, secret, encrypt);
}

TEST_CALL(one_lane, run("1", "off", NULL, NULL, NULL))
TEST_CALL(one_lane_resumed, run("1", "on", NULL, NULL, NULL))
TEST_CALL(three_lanes, run("3", "off", NULL, NULL, NULL))
TEST_CALL(three_lanes_resumed, run_more("3", "on", NULL, NULL, NULL))
TEST_CALL(one_lane_crc, run_more("1", "off", "1", NULL, NULL))
TEST_CALL(one_lane_crc_resumed, run_more("1", "on", "1", NULL, NULL))
TEST_CALL(three_lanes_crc, run_more("3", "off", "1", NULL, NULL))
TEST_CALL(three_lanes_crc_resumed, run_more("3", "on", "1", NULL, NULL))
#if GANTRY_HAVE_OPENSSL
TEST_CALL(one_lane_secret, run_more("1", "off", NULL, SECRET, NULL))
TEST_CALL(one_lane_secret_resumed, run_more("1", "on", NULL, SECRET, NULL))
TEST_CALL(three_lanes_secret, run_more("3", "off", NULL, SECRET, NULL))
TEST_CALL(three_lanes_secret_resumed, run_more("3", "on", NULL, SECRET, NULL))
TEST_CALL(one_lane_encrypted, run("1", "off", NULL, SECRET, "require"))
TEST_CALL(one_lane_encrypted_resumed, run_more("1", "on", NULL, SECRET, "require"))
TEST_CALL(three_lanes_encrypted, run_more("3", "off", NULL, SECRET, "require"))
TEST_CALL(three_lanes_encrypted_resumed, run_more("3", "on", NULL, SECRET, "require"))
#endif

void tests_begin(void)
{
	tests_apart(1);
}
