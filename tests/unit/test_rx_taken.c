/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A receiver that closes right after its op is done, as gantry/rx.h allows: what it has answered counts on the sending
 * side, whatever else has come with the answer. The order is forced: the sender makes no call between the receiver's
 * last answer and its close, so that the answer and the goodbye wait in the sender's socket side by side. The same with
 * a thread for each side, where everything in between happens as well.
 *
 * "test_rx_taken N": N rounds of each.
 */
#include "rx_util.h"

enum { SMALL = 20000, INLINE = 100, MB = 1 << 20, SEVERAL_MAX = 16 };

struct way {
	const char *name;
	enum gantry_rx_path path;
	int device;
	size_t piece; /* bytes of a piece; 0: contiguous */
	size_t total;
};

static const struct way ways[] = {
	{"empty", GANTRY_RX_PATH_HOST, 0, 0, 0},
	{"inline", GANTRY_RX_PATH_HOST, 0, 0, INLINE},
	{"inline pieces", GANTRY_RX_PATH_HOST, 0, 64, SMALL},
	{"direct 1 MB", GANTRY_RX_PATH_HOST, 0, 0, MB},
	{"direct 8 MB", GANTRY_RX_PATH_HOST, 0, 0, 8 * MB},
	{"pieces 1 MB", GANTRY_RX_PATH_HOST, 0, 4096, MB},
	{"small pieces 1 MB", GANTRY_RX_PATH_HOST, 0, 512, MB},
	{"device 1 MB", GANTRY_RX_PATH_HOST, 1, 0, MB},
	{"device small", GANTRY_RX_PATH_HOST, 1, 0, SMALL},
	{"unpack 1 MB", GANTRY_RX_PATH_EMULATED, 1, 4096, MB},
	{"unpack 8 MB", GANTRY_RX_PATH_EMULATED, 1, 0, 8 * MB},
};
enum { NWAYS = sizeof(ways) / sizeof(ways[0]) };

static int rounds = SANITIZED ? 3 : 5;

struct both {
	const struct way *way;
	struct rx_pair pair;
	struct rx_layout layout;
	unsigned char *from, *to;
	struct gantry_rx_piece send[2], recv[2];
	size_t n;
};

/* What goes well is no error in the log: the receiver's goodbye meets receives of ours that always stand. */
static void both_open(struct both *b, const struct way *way)
{
	struct gantry_rx_config config = {.struct_size = sizeof(config), .path = way->path};
	size_t piece = way->piece ? way->piece : way->total ? way->total : 1;

	*b = (struct both){.way = way, .layout = {piece, way->piece ? 2 * piece : piece, way->total}};
	rx_pair_open(&b->pair, &config);
	b->from = rx_memory(&b->pair, &b->pair.a, rx_span(&b->layout), way->device);
	b->to = rx_memory(&b->pair, &b->pair.b, rx_span(&b->layout), way->device);
	b->n = rx_pieces(&b->layout, b->from, b->send);
	rx_pieces(&b->layout, b->to, b->recv);
}

static void both_close(struct both *b)
{
	rx_memory_free(&b->pair, &b->pair.a, b->from, b->way->device);
	rx_memory_free(&b->pair, &b->pair.b, b->to, b->way->device);
	rx_pair_close(&b->pair);
}

/* New connections for the next round; the old ones are over. */
static void reconnect(struct both *b)
{
	gantry_rx_conn_close(b->pair.a.conn);
	gantry_rx_conn_close(b->pair.b.conn);
	b->pair.a.conn = b->pair.b.conn = NULL;
	rx_pair_connect(&b->pair);
}

/* Both move, the sender first, until the receiver's op is done: from then on the sender has not moved. */
static void until_received(struct gantry_rx_op *s, struct gantry_rx_op *r)
{
	WAIT_WHILE ((gantry_rx_test(s), gantry_rx_test(r) != GANTRY_RX_DONE))
		;
}

/* The receiver goes; its goodbye is in the sender's socket after a moment, now and then without one. */
static void leave(struct rx_pair *p, int round)
{
	gantry_rx_conn_close(p->b.conn);
	p->b.conn = NULL;
	sleep_ms((uint64_t)round % 4);
}

static void check_told_either(struct gantry_rx_op *op, gantry_result expected, gantry_result or, uint64_t bytes)
{
	gantry_result r = gantry_rx_wait(op, LONG_ENOUGH * SECOND);

	if ((r != expected && r != or) || (expected == GANTRY_OK && rx_bytes(op) != bytes))
		TEST_FAIL("%s, %llu bytes: %s", gantry_result_name(r), (unsigned long long)rx_bytes(op), rx_text(op));
	gantry_rx_op_free(op);
}

static void check_told(struct gantry_rx_op *op, gantry_result expected, uint64_t bytes)
{
	check_told_either(op, expected, expected, bytes);
}

/* A way, as often as it is to be tried, each time over new connections. */
static void try_way(const struct way *way, void (*try)(struct both *b, int round))
{
	struct both b;

	CASE("%s", way->name);
	both_open(&b, way);
	for (int i = 0; i < rounds; i++) {
		try(&b, i);
		reconnect(&b);
	}
	both_close(&b);
}

static void forced(struct both *b, int round)
{
	struct gantry_rx_op *s, *r;

	rx_fill(&b->layout, b->from, (uint64_t)round);
	memset(b->to, 0x11, rx_span(&b->layout));
	CHECK_OK(gantry_rx_recv(b->pair.b.conn, b->recv, b->n, 5, &r));
	CHECK_OK(gantry_rx_send(b->pair.a.conn, b->send, b->n, 5, &s));
	until_received(s, r);
	CHECK_OK(rx_result(r));
	gantry_rx_op_free(r);
	leave(&b->pair, round);
	check_told(s, GANTRY_OK, b->way->total);
	rx_check(&b->layout, b->to, rx_span(&b->layout), (uint64_t)round, 0x11);
}

static void *receive_thread(void *arg)
{
	struct both *b = arg;
	struct gantry_rx_op *op;

	CHECK_OK(gantry_rx_recv(b->pair.b.conn, b->recv, b->n, 5, &op));
	CHECK_OK(gantry_rx_wait(op, LONG_ENOUGH * SECOND));
	gantry_rx_op_free(op);
	gantry_rx_conn_close(b->pair.b.conn);
	b->pair.b.conn = NULL;
	return NULL;
}

static void threaded(struct both *b, int round)
{
	struct gantry_rx_op *s;
	pthread_t t;

	threads_start(&t, 1, receive_thread, b, 0);
	CHECK_OK(gantry_rx_send(b->pair.a.conn, b->send, b->n, 5, &s));
	check_told(s, GANTRY_OK, b->way->total);
	threads_join(&t, 1);
}

/* Of four sends two are taken, one is rejected, and one never meets a receive: each sender is told the truth. */
static void some_taken(struct both *b, int round)
{
	struct gantry_rx_op *s[4], *r[3];
	struct gantry_rx_piece little = {b->to, 1, 0, 1};

	for (int k = 0; k < 4; k++)
		CHECK_OK(gantry_rx_send(b->pair.a.conn, b->send, b->n, (uint64_t)k, &s[k]));
	CHECK_OK(gantry_rx_recv(b->pair.b.conn, b->recv, b->n, 0, &r[0]));
	until_received(s[0], r[0]);
	CHECK_OK(gantry_rx_recv(b->pair.b.conn, &little, 1, 2, &r[1]));
	until_received(s[2], r[1]);
	CHECK_EQ(rx_result(r[1]), GANTRY_ERR_SIZE);
	CHECK_OK(gantry_rx_recv(b->pair.b.conn, b->recv, b->n, 3, &r[2]));
	until_received(s[3], r[2]);
	for (int k = 0; k < 3; k++)
		gantry_rx_op_free(r[k]);
	leave(&b->pair, round);
	check_told(s[0], GANTRY_OK, b->way->total);
	check_told(s[1], GANTRY_ERR_PEER_CLOSED, 0);
	check_told(s[2], GANTRY_ERR_SIZE, 0);
	check_told(s[3], GANTRY_OK, b->way->total);
}

/*
 * K transfers are received before the receiver goes. Inline ones leave when they are posted, so the sender makes no call
 * until all K answers and the goodbye wait for it; larger ones need its help, and some of the answers are read on the way.
 */
static int several_k;

static void several(struct both *b, int round)
{
	struct gantry_rx_op *s[SEVERAL_MAX], *r[SEVERAL_MAX];
	int k = several_k;

	rx_fill(&b->layout, b->from, (uint64_t)round);
	memset(b->to, 0x11, rx_span(&b->layout));
	for (int i = 0; i < k; i++) {
		CHECK_OK(gantry_rx_recv(b->pair.b.conn, b->recv, b->n, (uint64_t)i, &r[i]));
		CHECK_OK(gantry_rx_send(b->pair.a.conn, b->send, b->n, (uint64_t)i, &s[i]));
	}
	for (int i = 0; i < k; i++) {
		WAIT_WHILE (gantry_rx_test(r[i]) != GANTRY_RX_DONE)
			if (b->way->total > SMALL)
				gantry_rx_test(s[i]);
		CHECK_OK(rx_result(r[i]));
		gantry_rx_op_free(r[i]);
	}
	leave(&b->pair, round);
	for (int i = 0; i < k; i++) /* the last first: whichever is asked, all answers are read */
		check_told(s[k - 1 - i], GANTRY_OK, b->way->total);
	rx_check(&b->layout, b->to, rx_span(&b->layout), (uint64_t)round, 0x11);
}

/* The rejection and the goodbye come together. */
static void rejected(struct both *b, int round)
{
	struct gantry_rx_op *s, *r;
	struct gantry_rx_piece little = {b->to, 1, 0, 1};

	CHECK_OK(gantry_rx_send(b->pair.a.conn, b->send, b->n, 1, &s));
	CHECK_OK(gantry_rx_recv(b->pair.b.conn, &little, 1, 1, &r));
	until_received(s, r);
	CHECK_EQ(rx_result(r), GANTRY_ERR_SIZE);
	gantry_rx_op_free(r);
	leave(&b->pair, round);
	check_told(s, GANTRY_ERR_SIZE, 0);
}

/* A receive through staging is cancelled, which waits for nothing, and then the receiver goes. */
static void stopped(struct both *b, int round)
{
	struct gantry_rx_op *s, *r;
	gantry_result cancelled;

	CHECK_OK(gantry_rx_send(b->pair.a.conn, b->send, b->n, 1, &s));
	CHECK_OK(gantry_rx_recv(b->pair.b.conn, b->recv, b->n, 1, &r));
	for (int k = 0; k < round % 3; k++) { /* some of it has come, or nothing */
		gantry_rx_test(s);
		gantry_rx_test(r);
	}
	cancelled = gantry_rx_cancel(r, LONG_ENOUGH * SECOND);
	leave(&b->pair, round);
	/* A cancelled receive that no send had met leaves no trace at the sender. */
	if (cancelled == GANTRY_OK)
		check_told(s, GANTRY_OK, b->way->total);
	else
		check_told_either(s, GANTRY_ERR_CANCELLED, round % 3 ? GANTRY_ERR_CANCELLED : GANTRY_ERR_PEER_CLOSED,
				  0);
	gantry_rx_op_free(r);
}

int main(int argc, char **argv)
{
	static const struct way large = {"stopped 8 MB", GANTRY_RX_PATH_HOST, 0, 512, 8 * MB};
	static const struct way direct = {"several 1 MB", GANTRY_RX_PATH_HOST, 0, 0, MB};
	static const struct way little = {"several inline", GANTRY_RX_PATH_HOST, 0, 0, INLINE};

	if (argc == 2)
		rounds = atoi(argv[1]);
	logs_keep();
	for (int i = 0; i < NWAYS; i++) {
		try_way(&ways[i], forced);
		try_way(&ways[i], threaded);
	}
	for (several_k = 1; several_k <= 8; several_k++) {
		try_way(&little, several);
		try_way(&direct, several);
	}
	several_k = SEVERAL_MAX; /* more than there are receives posted for answers */
	try_way(&little, several);
	CHECK_EQ(logs_count("ERROR"), 0);
	logs_end();
	try_way(&little, some_taken);
	try_way(&direct, some_taken);
	try_way(&little, rejected);
	try_way(&direct, rejected);
	try_way(&large, stopped);
	return 0;
}
