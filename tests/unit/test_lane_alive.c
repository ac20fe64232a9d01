/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bulk lane that does not deliver is an error that names it, on both sides; one whose receiver does not read is none.
 *
 * First the rules alone, on two links without an engine and with a clock of the test's own. Then whole connections,
 * through a proxy between their two ends that swallows what comes on one lane, resets it, or ends it.
 */
#include <netinet/tcp.h>
#include <poll.h>

#include "link_pair.h"
#include "net/tcp/network.h"
#include "relay.h"
#include "tcp_util.h"

/* ---- the rules ---- */

static const struct pair_config two_lanes = {.nlanes = 3, .inet = 1};

/* What the receiver tells reaches the sender, which then looks, at a time at which it has just heard the peer. */
static int fails_at(struct tcp_link *l[2], uint64_t now)
{
	tcp_lanes_report(l[1]);
	tcp_control_flush(l[1]);
	for (int i = 0; i < 1000; i++) {
		struct pollfd p = {.fd = l[0]->lanes[0].io.fd, .events = POLLIN};

		if (poll(&p, 1, 0) <= 0)
			break;
		tcp_lane_rx(&l[0]->lanes[0], 1);
	}
	l[0]->last.heard = now;
	tcp_lanes_check(l[0], now, 0);
	return tcp_link_failed(l[0]);
}

static void swallow_some(struct tcp_link *l[2], int lane, uint64_t bytes)
{
	l[0]->lanes[lane].tx.given += bytes; /* as if they were on their way */
}

static void check_swallowed(void)
{
	uint64_t t = gantry_ticks_of_ns(gantry_params()->timeout), now = gantry_ticks();
	struct tcp_link *l[2];

	pair_links(&two_lanes, l);
	swallow_some(l, 2, 5000);
	CHECK(!fails_at(l, now));
	CHECK(!fails_at(l, now + t - 10));
	CHECK(fails_at(l, now + t + 10));
	CHECK_EQ(l[0]->end.error, GANTRY_ERR_PEER_SILENT);
	CHECK_HAS(l[0]->end.text, "lane 2: 5000 bytes sent, 0 arrived, and no more for");
	CHECK_HAS(l[0]->end.text, "a device between the hosts acknowledges but does not deliver them");
	/* The peer was told. */
	for (int i = 0; i < 1000 && !tcp_link_failed(l[1]); i++) {
		tcp_lane_rx(&l[1]->lanes[0], 1);
		until_pause();
	}
	CHECK(tcp_link_failed(l[1]));
	CHECK_EQ(l[1]->end.error, GANTRY_ERR_PEER_SILENT);
	CHECK_HAS(l[1]->end.text, "the peer gave up: ");
	CHECK_HAS(l[1]->end.text, "lane 2: 5000 bytes sent");
	pair_free(l);
}

/* A message that is there and not read, for ten deadlines; then it is read. */
static void check_unread(void)
{
	uint64_t t = gantry_ticks_of_ns(gantry_params()->timeout), now = gantry_ticks();
	FREED uint8_t *out = calloc(1, MIB), *in = calloc(1, MIB);
	void *send = NULL, *recv = NULL, *data = in;
	size_t size = MIB;
	int tag = 0, done = 0;
	struct tcp_link *l[2];

	CHECK(out && in);
	pair_links(&two_lanes, l);
	CHECK_OK(tcp_link_irecv(l[1], 1, &data, &size, &tag, &recv));
	CHECK_OK(tcp_link_isend(l[0], out, MIB, 0, &send));
	UNTIL((tcp_lane_rx(&l[1]->lanes[0], 1), tcp_control_flush(l[1]), tcp_link_progress(l[0]),
	       l[0]->lanes[1].tx.given > 0));
	UNTIL((tcp_lanes_report(l[1]), l[1]->lanes[1].rx.unread > 0));
	for (uint64_t k = 0; k < 10; k++) {
		tcp_link_progress(l[0]);
		CHECK(!fails_at(l, now + k * t));
	}
	CHECK(l[0]->lanes[1].tx.unread > 0);
	WAIT_WHILE (!done) {
		tcp_link_progress(l[0]);
		CHECK_OK(tcp_link_test(recv, &done, NULL));
	}
	for (uint64_t k = 0; k < 10; k++)
		CHECK(!fails_at(l, now + (10 + k) * t));
	/* Both counted the same bytes, headers included. */
	for (int i = 1; i < 3; i++) {
		CHECK_EQ(l[0]->lanes[i].tx.given, l[1]->lanes[i].rx.bytes);
		CHECK_EQ(l[0]->lanes[i].tx.arrived, l[1]->lanes[i].rx.bytes);
	}
	CHECK(l[0]->lanes[1].tx.given + l[0]->lanes[2].tx.given > MIB);
	CHECK_EQ(l[0]->lanes[1].tx.unread, 0);
	pair_free(l);
}

/* Time in which the peer was not heard at all, or in which this side was held up, does not count; news starts anew. */
static void check_clock(void)
{
	uint64_t t = gantry_ticks_of_ns(gantry_params()->timeout), now = gantry_ticks();
	struct tcp_link *l[2];

	pair_links(&two_lanes, l);
	swallow_some(l, 1, 5000);
	CHECK(!fails_at(l, now));
	l[0]->last.heard = now; /* an outage of 0.9 of the deadline */
	tcp_lanes_check(l[0], now + t / 10 * 9, 0);
	CHECK(!fails_at(l, now + t + t / 2));
	CHECK(!fails_at(l, now + t / 10 * 19 - 10));
	l[0]->last.heard = now + 3 * t;
	tcp_lanes_check(l[0], now + 3 * t, 2 * t);
	CHECK(!tcp_link_failed(l[0]));
	l[1]->lanes[1].rx.bytes += 100; /* as if some of them had come */
	CHECK(!fails_at(l, now + 5 * t));
	CHECK(!fails_at(l, now + 6 * t - 10));
	CHECK(fails_at(l, now + 6 * t + 10));
	CHECK_HAS(l[0]->end.text, "lane 1: 5000 bytes sent, 100 arrived");
	pair_free(l);
}

static void check_foreign_lane(void)
{
	struct pair_frame f = {.kind = 7, .seq = 10, .index = 3};
	uint8_t bytes[48];
	struct tcp_link *l;
	int raw[WIRE_MAX_LANES];

	l = pair_raw(&two_lanes, raw);
	CHECK_EQ(write(raw[0], bytes, pair_frame_put(bytes, &f)), 48);
	UNTIL((tcp_lane_rx(&l->lanes[0], 1), tcp_link_failed(l)));
	CHECK_EQ(l->end.error, GANTRY_ERR_PROTOCOL);
	CHECK_HAS(l->end.text, "lane 3, but there are only 3 lanes");
	pair_raw_free(&two_lanes, l, raw);
}

static void rules(void)
{
	setenv("GANTRY_TIMEOUT", "1s", 1);
	CHECK_OK(gantry_params_load(0));
	logs_keep();
	check_swallowed();
	check_unread();
	check_clock();
	check_foreign_lane();
}

/* ---- the proxy ---- */

enum { SWALLOW_AFTER = 100000 };

static struct relay proxy = {.lanes = 1};
static int swallow_lane; /* 0: none */

static uint64_t swallow(const struct relay_conn *c, int way)
{
	return swallow_lane && c->lane == swallow_lane && way == TO_SERVER ? RELAY_HELLO + SWALLOW_AFTER : UINT64_MAX;
}

static unsigned deadline_s;

/* resume: GANTRY_RESUME. */
static void start_behind_proxy(const char *resume, int lane, void **ret_ctx)
{
	char text[16];

	snprintf(text, sizeof(text), "%us", deadline_s);
	setenv("GANTRY_TIMEOUT", text, 1);
	setenv("GANTRY_RESUME", resume, 1);
	setenv("GANTRY_LANES", "2", 1);
	setenv("GANTRY_CONNECT_TIMEOUT", "200s", 1);
	swallow_lane = lane;
	proxy.find = listening_port;
	proxy.swallow = swallow;
	relay_make(&proxy, 0, 1);
	relay_advertise(&proxy);
	relay_start(&proxy);
	start(ret_ctx, -1);
}

/* The request's error, which must come; its text is the last error. */
static gantry_result failure(void *request)
{
	gantry_result r = GANTRY_OK;
	int done = 0;

	UNTIL((r = ops->test(net, request, &done, NULL)) != GANTRY_OK || done);
	return r;
}

static void one_swallows(void)
{
	FREED uint8_t *out = calloc(1, MAX), *in = calloc(1, MAX);
	void *ctx, *send, *recv;
	struct way w;
	uint64_t began;

	start_behind_proxy("off", 1, &ctx);
	w = connect_way(ctx);
	CHECK(out && in);
	recv = post_recv(w.recv, in, MAX, 0);
	send = post_send(w.send, out, MAX, 0);
	began = gantry_now_ns();
	WAIT_WHILE (1) { /* both ends are in this thread */
		int done = 0;

		if (ops->test(net, recv, &done, NULL) != GANTRY_OK)
			break;
		CHECK(!done);
		if (ops->test(net, send, &done, NULL) != GANTRY_OK)
			break;
		CHECK(!done || gantry_params()->zerocopy);
		if (done)
			send = post_send(w.send, out, 1, 0); /* stays in the window */
	}
	CHECK_EQ(failure(recv), GANTRY_ERR_PEER_SILENT);
	printf("%.2f s: %s\n", (double)(gantry_now_ns() - began) / 1e9, gantry_last_error());
	CHECK_HAS(gantry_last_error(), "the peer gave up: ");
	CHECK_HAS(gantry_last_error(), "lane 1: ");
	CHECK_EQ(failure(send), GANTRY_ERR_PEER_SILENT);
	printf("%s\n", gantry_last_error());
	CHECK_HAS(gantry_last_error(), "lane 1: ");
	CHECK_HAS(gantry_last_error(), "100000 arrived");
	CHECK_HAS(gantry_last_error(), "a device between the hosts acknowledges but does not deliver them");
	CHECK(gantry_now_ns() - began >= deadline_s * 900000000ull);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

static void lane_over(int reset)
{
	static uint8_t out[MIB], in[MIB];
	void *ctx, *send, *recv;
	struct way w;

	start_behind_proxy("off", 0, &ctx);
	w = connect_way(ctx);
	recv = post_recv(w.recv, in, MIB, 0);
	send = post_send(w.send, out, MIB, 0);
	CHECK_EQ(wait_two(recv, send, NULL), MIB);
	recv = post_recv(w.recv, in, MIB, 0);
	relay_end_lane(&proxy, 2, reset);
	CHECK_EQ(failure(recv), GANTRY_ERR_PEER_LOST);
	printf("%s\n", gantry_last_error());
	CHECK_HAS(gantry_last_error(), "lane 2: ");
	CHECK_HAS(gantry_last_error(), reset ? "Connection reset by peer" : "it was closed without a goodbye message");
	CHECK_HAS(gantry_last_error(), "2 of the other 2 lanes still work");
	CHECK(!strstr(gantry_last_error(), "died"));
	UNTIL(ops->isend(net, w.send, out, MIB, 0, NULL, &send) != GANTRY_OK);
	printf("%s\n", gantry_last_error());
	CHECK_HAS(gantry_last_error(), "lane 2: ");
	CHECK(!strstr(gantry_last_error(), "died"));
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

static void one_is_reset(void)
{
	lane_over(1);
}

static void one_ends(void)
{
	lane_over(0);
}

/* The same where sessions outlive their sockets: the lane is replaced, through the proxy. */
static void lane_replaced(int reset)
{
	static uint8_t out[MIB], in[MIB];
	void *ctx, *send, *recv;
	struct way w;

	start_behind_proxy("on", 0, &ctx);
	w = connect_way(ctx);
	recv = post_recv(w.recv, in, MIB, 0);
	relay_end_lane(&proxy, 2, reset);
	UNTIL(__atomic_load_n(&proxy.hellos[2], __ATOMIC_RELAXED) == 2);
	pattern_fill(out, MIB, 5);
	send = post_send(w.send, out, MIB, 0);
	CHECK_EQ(wait_two(recv, send, NULL), MIB);
	CHECK_PATTERN(in, MIB, 5);
	close_way(w);
	CHECK_OK(ops->finalize(net, ctx));
}

static void reset_replaced(void)
{
	lane_replaced(1);
}

static void ended_replaced(void)
{
	lane_replaced(0);
}

/* Three deadlines in which nobody receives on one connection, and nobody looks after what was posted on another. */
static void slow_user(void)
{
	FREED uint8_t *out = calloc(1, MAX), *in = calloc(1, MAX);
	void *ctx, *send[2], *recv[2];
	struct way w[2];

	start_behind_proxy("off", 0, &ctx);
	w[0] = connect_way(ctx);
	w[1] = connect_way(ctx);
	CHECK(out && in);
	pattern_fill(out, MAX, 3);
	send[0] = post_send(w[0].send, out, MAX, 0);
	recv[1] = post_recv(w[1].recv, in, MAX, 0);
	send[1] = post_send(w[1].send, out, MAX, 0);
	sleep_ms(3000 * deadline_s);
	CHECK_EQ(wait_two(recv[1], send[1], NULL), MAX);
	CHECK(memcmp(in, out, MAX) == 0);
	memset(in, 0, MAX);
	recv[0] = post_recv(w[0].recv, in, MAX, 0);
	CHECK_EQ(wait_two(recv[0], send[0], NULL), MAX);
	CHECK(memcmp(in, out, MAX) == 0);
	close_way(w[0]);
	close_way(w[1]);
	CHECK_OK(ops->finalize(net, ctx));
}

/* On a loaded machine the proxy may not run for longer than a deadline: what does not hold with any of them is wrong.
 */
static int connection(const char *name, void (*run)(void), const char *only)
{
	static const unsigned deadlines[] = {1, 5, 20};
	int failed = 1;

	for (size_t i = 0; i < sizeof(deadlines) / sizeof(*deadlines) && failed; i++) {
		deadline_s = deadlines[i];
		failed = run_row(name, run, 0, only);
	}
	return failed;
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;
	int failed = run_row("rules", rules, 0, only);

	failed |= connection("one_swallows", one_swallows, only);
	failed |= connection("one_is_reset", one_is_reset, only);
	failed |= connection("one_ends", one_ends, only);
	failed |= connection("reset_replaced", reset_replaced, only);
	failed |= connection("ended_replaced", ended_replaced, only);
	failed |= connection("slow_user", slow_user, only);
	if (failed)
		return 1;
	printf("ok\n");
	return 0;
}
