/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many transfers both ways at once between two sides that are set up differently, cancelled at random by either side,
 * and some connections closed in the middle. Whatever happens: every op ends, a receive that is OK has every byte of
 * its send and nothing beside them, a send that is OK has such a receive, and memory whose op is done is not written
 * any more.
 *
 * argv: a seed, and a number of rounds, to try more than the usual ones.
 */
#include "rx_util.h"

enum { SLOTS = 12, BIGGEST = 700000, ROOM = 2 * BIGGEST + 4096, TRANSFERS = SANITIZED ? 60 : 120, ROUNDS = 6 };
enum { GUARD = 0x5a, GONE = 0xcc };
#define BUDGET_NS 3000000000u /* no new transfers after this, if some were received and some cancelled */

static struct rx_pair pair;
static uint32_t stop;
static uint64_t until;

/* One end of a transfer. */
struct half {
	struct rx_end *at;
	unsigned char *memory[2]; /* plain, of the device */
	unsigned char *m;
	int device;
	struct rx_layout layout;
	struct gantry_rx_op *op;
	int cancel_in; /* looks until it is cancelled; < 0: never */
	int seen;      /* it is done, and its memory was overwritten */
};

struct slot {
	struct half send, recv;
	size_t bytes;
	uint64_t tag;
	int live;
};

static struct slot slots[SLOTS];
static uint64_t next_tag;
static int done_ok, done_cancelled;

static void *mover(void *rx)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		gantry_rx_poll(rx, NULL, 0);
		sched_yield();
	}
	return NULL;
}

static size_t some_size(void)
{
	switch (random_below(6)) {
	case 0:
		return random_below(100);
	case 1:
		return 32768 - 2 + random_below(4);
	case 2:
		return 65536 * (1 + random_below(4)) - 1 + random_below(3);
	default:
		return random_below(BIGGEST - 10);
	}
}

static struct rx_layout some_layout(size_t total)
{
	static const size_t pieces[] = {37, 300, 2048, 8192, 100000, BIGGEST};
	size_t bytes = pieces[random_below(6)] + random_below(3), most = (ROOM - 64) / (total / bytes + 2);
	size_t stride = bytes + random_below(4) * random_below(bytes / 8 + 1);

	return (struct rx_layout){bytes, stride <= most ? stride : bytes, total};
}

static void set_up(struct half *h, struct rx_end *at, size_t total)
{
	h->at = at;
	h->device = (int)random_below(2);
	h->m = h->memory[h->device];
	h->layout = some_layout(total);
	h->op = NULL;
	h->seen = 0;
	h->cancel_in = random_below(4) ? -1 : (int)random_below(random_below(3) ? 8 : 60);
}

/* Since the last receive into it was done, nobody has written to the memory. */
static void untouched(const struct slot *s)
{
	for (size_t i = 0; s->recv.seen && i < ROOM; i++)
		if (s->recv.m[i] != GONE)
			TEST_FAIL("byte %zu was written when the receive of tag %llu was done", i,
				  (unsigned long long)s->tag);
}

static void begin(struct slot *s, int index)
{
	int forth = index % 2;

	untouched(s);
	s->bytes = some_size();
	s->tag = next_tag++;
	s->live = 1;
	set_up(&s->send, forth ? &pair.a : &pair.b, s->bytes);
	/* The receive may be larger: guards are behind what has come. */
	set_up(&s->recv, forth ? &pair.b : &pair.a, s->bytes + random_below(3));
	rx_fill(&s->send.layout, s->send.m, s->tag);
	memset(s->recv.m, GUARD, ROOM);
}

static void post(struct slot *s, struct half *h)
{
	struct gantry_rx_piece p[2];
	size_t n = rx_pieces(&h->layout, h->m, p);

	CHECK_OK(h == &s->send ? gantry_rx_send(h->at->conn, p, n, s->tag, &h->op)
			       : gantry_rx_recv(h->at->conn, p, n, s->tag, &h->op));
}

/* What was received is right, at the moment at which the receive is done. */
static void arrived(const struct slot *s)
{
	struct rx_layout l = s->recv.layout;

	CHECK_EQ(rx_bytes(s->recv.op), s->bytes);
	l.total = s->bytes;
	rx_check(&l, s->recv.m, ROOM, s->tag, GUARD);
}

static void look(struct slot *s, struct half *h, int closing)
{
	gantry_result r;

	if (!h->op || h->seen)
		return;
	if (h->cancel_in == 0)
		gantry_rx_cancel(h->op, LONG_ENOUGH * SECOND);
	h->cancel_in -= h->cancel_in >= 0;
	if (gantry_rx_test(h->op) != GANTRY_RX_DONE)
		return;
	h->seen = 1;
	r = rx_result(h->op);
	if (!closing && r != GANTRY_OK && r != GANTRY_ERR_CANCELLED)
		TEST_FAIL("%s of %zu bytes: %s: %s", h == &s->send ? "send" : "receive", s->bytes,
			  gantry_result_name(r), rx_text(h->op));
	if (h == &s->recv && r == GANTRY_OK)
		arrived(s);
	memset(h->m, GONE, ROOM);
}

/* Both are done. */
static void end(struct slot *s)
{
	gantry_result sent = rx_result(s->send.op), got = rx_result(s->recv.op);

	if (sent == GANTRY_OK)
		CHECK_OK(got);
	done_ok += got == GANTRY_OK;
	done_cancelled += got == GANTRY_ERR_CANCELLED;
	gantry_rx_op_free(s->send.op);
	gantry_rx_op_free(s->recv.op);
	s->live = 0;
}

/* A receive that was cancelled before its send had met it leaves the send waiting. */
static void orphans(struct slot *s)
{
	if (s->recv.seen && !s->send.seen && s->send.op && s->send.cancel_in < 0)
		s->send.cancel_in = 20;
	if (s->send.seen && !s->recv.seen && s->recv.op && s->recv.cancel_in < 0)
		s->recv.cancel_in = 20;
}

static void turn(struct slot *s, int closing)
{
	struct half *first = random_below(2) ? &s->send : &s->recv, *second = first == &s->send ? &s->recv : &s->send;

	if (!s->live)
		return;
	if (!first->op)
		post(s, first);
	else if (!second->op && random_below(3))
		post(s, second);
	look(s, first, closing);
	look(s, second, closing);
	orphans(s);
	if (s->send.seen && s->recv.seen)
		end(s);
}

/* However slow the machine is, something is tried. */
static int enough(void)
{
	return gantry_now_ns() >= until && done_ok && done_cancelled;
}

static int alive(void)
{
	int n = 0;

	for (int i = 0; i < SLOTS; i++)
		n += slots[i].live;
	return n;
}

/* One side closes while others are under way: its ops are aborted, those of the other side hear of it. */
static void close_now(void)
{
	struct rx_end *e = random_below(2) ? &pair.a : &pair.b;

	for (int i = 0; i < SLOTS; i++) {
		if (slots[i].live && !slots[i].send.op)
			post(&slots[i], &slots[i].send);
		if (slots[i].live && !slots[i].recv.op)
			post(&slots[i], &slots[i].recv);
		slots[i].send.cancel_in = slots[i].recv.cancel_in = -1;
	}
	gantry_rx_conn_close(e->conn);
	e->conn = NULL;
	for (int i = 0; i < SLOTS; i++)
		WAIT_WHILE (slots[i].live) {
			look(&slots[i], &slots[i].send, 1);
			look(&slots[i], &slots[i].recv, 1);
			/* OK of a send is said by its peer, so it holds here too. */
			if (slots[i].send.seen && slots[i].recv.seen)
				end(&slots[i]);
		}
}

static struct gantry_rx_config some_config(enum gantry_rx_path path)
{
	static const int depths[] = {1, 2, 8, 16};

	return (struct gantry_rx_config){.struct_size = sizeof(struct gantry_rx_config),
					 .path = path,
					 .depth = depths[random_below(4)],
					 .message = (uint64_t)65536 << random_below(5),
					 .stage = (uint64_t)(1 + random_below(8)) << 20,
					 .max_frags = random_below(2) ? 0 : 16 + (int)random_below(200)};
}

static void memory(int take)
{
	for (int i = 0; i < SLOTS; i++)
		for (int k = 0; k < 4; k++) {
			struct half *h = k & 1 ? &slots[i].send : &slots[i].recv;
			/* As begin: even slots go from b to a. */
			struct rx_end *e = (k & 1) == i % 2 ? &pair.a : &pair.b;

			if (take)
				h->memory[k >> 1] = rx_memory(&pair, e, ROOM, k >> 1);
			else
				rx_memory_free(&pair, e, h->memory[k >> 1], k >> 1);
		}
}

static void round_of(uint64_t seed, int closes)
{
	enum gantry_rx_path both[2];
	struct gantry_rx_config config[2];
	pthread_t threads[2];
	int left = TRANSFERS;

	random_seed(seed);
	for (int i = 0; i < 2; i++) {
		both[i] = random_below(2) ? GANTRY_RX_PATH_HOST : GANTRY_RX_PATH_EMULATED;
		config[i] = some_config(both[i]);
	}
	rx_pair_open_each(&pair, config[0], config[1]);
	memory(1);
	stop = 0;
	CHECK_EQ(pthread_create(&threads[0], NULL, mover, pair.a.rx), 0);
	CHECK_EQ(pthread_create(&threads[1], NULL, mover, pair.b.rx), 0);
	WAIT_WHILE (left > 0 || alive()) {
		int i = (int)random_below(SLOTS);

		if (enough())
			left = 0;
		if (closes && left < TRANSFERS / 4 && alive() > SLOTS / 2) {
			close_now();
			break;
		}
		if (!slots[i].live && left > 0) {
			begin(&slots[i], i);
			left--;
		}
		turn(&slots[i], 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	threads_join(threads, 2);
	for (int i = 0; i < 2; i++) {
		struct gantry_rx_conn *c = i ? pair.b.conn : pair.a.conn;

		if (c && !closes)
			CHECK_OK(gantry_rx_conn_error(c, NULL, 0));
	}
	for (int i = 0; i < SLOTS; i++) {
		untouched(&slots[i]);
		slots[i].recv.seen = 0;
	}
	memory(0);
	rx_pair_close(&pair);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261115;
	int rounds = argc > 2 ? atoi(argv[2]) : ROUNDS;
	uint64_t hang;

	until = gantry_now_ns() + (argc > 2 ? (uint64_t)rounds * BUDGET_NS : BUDGET_NS);
	hang = until + LONG_ENOUGH * SECOND;
	for (int i = 0; !enough() && (i < rounds || !done_ok || !done_cancelled); i++) {
		CHECK(gantry_now_ns() < hang);
		if (argc > 1)
			fprintf(stderr, "round %d: seed %llu\n", i, (unsigned long long)seed);
		RUN(round_of(seed++, i % 3 == 2));
	}
	CHECK(done_ok > 0 && done_cancelled > 0); /* otherwise nothing was tried */
	if (argc > 1)
		fprintf(stderr, "%d receives OK, %d cancelled\n", done_ok, done_cancelled);
	return 0;
}
