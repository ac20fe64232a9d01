/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped sends and receives on the null machine of k_world.h: every way of moving a step, and what can go wrong. */
#include "k_world.h"
#include "kernels/bench.h"

#define LARGEST ((SANITIZED ? 128 : 1024) * 1024 + 3)
static const uint64_t sizes[] = {0, 1, 7, 8, 9, 119, 120, 121, 4095, 4096, 65536, LARGEST};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* One way of moving steps: flags of the ends, protocol, registered buffers. */
struct way {
	const char *name;
	uint32_t tx, rx;
	int proto, send_ptr, recv_ptr;
	uint64_t step_bytes; /* 0: the ring's */
};
#define P GANTRY_CONN_PROXIED
#define PO (GANTRY_CONN_PROXIED | GANTRY_CONN_OFFSET)
static const struct way ways[] = {
	{"direct", 0, 0, GANTRY_PROTO_SIMPLE, 0, 0, 0},
	{"direct, small steps", 0, 0, GANTRY_PROTO_SIMPLE, 0, 0, 1000},
	{"direct, from the user's buffer", 0, 0, GANTRY_PROTO_SIMPLE, 1, 0, 100003},
	{"direct, LL", 0, 0, GANTRY_PROTO_LL, 0, 0, 0},
	{"direct, LL, odd steps", 0, 0, GANTRY_PROTO_LL, 0, 0, 999},
	{"direct, LL128", 0, 0, GANTRY_PROTO_LL128, 0, 0, 0},
	{"direct, LL128, odd steps", 0, 0, GANTRY_PROTO_LL128, 0, 0, 1001},
	{"proxied", P, P, GANTRY_PROTO_SIMPLE, 0, 0, 0},
	{"proxied, to pool", P, PO, GANTRY_PROTO_SIMPLE, 0, 0, 0},
	{"proxied, to the user's", P, P, GANTRY_PROTO_SIMPLE, 0, 1, 0},
	{"proxied, from pool", PO, P, GANTRY_PROTO_SIMPLE, 0, 0, 0},
	{"proxied, pool to pool", PO, PO, GANTRY_PROTO_SIMPLE, 0, 0, 5000},
	{"proxied, pool to the user's", PO, P, GANTRY_PROTO_SIMPLE, 0, 1, 0},
	{"proxied, from the user's", P, P, GANTRY_PROTO_SIMPLE, 1, 0, 0},
	{"proxied, from the user's to pool", P, PO, GANTRY_PROTO_SIMPLE, 1, 0, 0},
	{"proxied, user's to user's", P, P, GANTRY_PROTO_SIMPLE, 1, 1, 100003},
	{"proxied, LL", P, P, GANTRY_PROTO_LL, 0, 0, 0},
	{"proxied, LL128", P, P, GANTRY_PROTO_LL128, 0, 0, 0},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static struct link *way_link(struct world *w, const struct way *way, int from, int to, uint64_t start)
{
	return world_link(w, from, to, way->tx, way->rx, start);
}
static struct message *way_message(struct world *w, const struct way *way, struct link *l, uint64_t bytes)
{
	return world_message(w, l, bytes, way->proto, way->send_ptr, way->recv_ptr, way->step_bytes);
}

/* All sizes in one group, in both directions, listed in any order; then once more on the same connections. */
static void check_way(const struct way *way, uint32_t lanes, uint64_t start)
{
	struct world *w = world_new(2, lanes, 1, start + lanes);
	struct link *there = way_link(w, way, 0, 1, start), *back = way_link(w, way, 1, 0, start);

	/* Several lanes wait for each other at every step: with fewer CPUs than lanes that takes long. */
	for (int round = 0, n = lanes > 1 ? SIZES - 1 : SIZES; round < 2; round++, n--) {
		for (int i = 0; i < n; i++) {
			way_message(w, way, there, sizes[i]);
			way_message(w, way, back, sizes[n - 1 - i]);
		}
		world_run(w);
	}
	world_free(w);
}

/* Four ranks, everybody with everybody and with himself, several messages per connection, all ways mixed. */
static void check_all_to_all(uint32_t lanes, uint32_t blocks, uint64_t seed)
{
	struct world *w = world_new(4, lanes, blocks, seed);

	for (int from = 0; from < 4; from++)
		for (int to = 0; to < 4; to++)
			for (int k = 0; k < 2; k++)
				way_link(w, &ways[random_next() % WAYS], from, to, random_next() % 100);
	for (int round = 0; round < 2; round++) {
		for (int n = 0; n < 96; n++) {
			struct link *l = &w->link[random_next() % (uint64_t)w->nlinks];
			const struct way *way;

			/* Any way that the link's ends can do. */
			do
				way = &ways[random_next() % WAYS];
			while (way->tx != (l->tx.flags & (uint32_t)PO) || way->rx != (l->rx.flags & (uint32_t)PO));
			way_message(w, way, l, sizes[random_next() % (SIZES - 1)]);
		}
		world_run(w);
	}
	world_free(w);
}

/* Both ends in one block of one thread: nothing else can make it move. */
static void check_self(void)
{
	for (int i = 0; i < WAYS; i++) {
		struct world *w = world_new(1, 1, 1, (uint64_t)i);
		struct link *l = way_link(w, &ways[i], 0, 0, 3);

		for (int s = 0; s < SIZES; s++)
			way_message(w, &ways[i], l, sizes[s]);
		world_run(w);
		world_free(w);
	}
}

static void run_xfers(struct gantry_xfer *x, uint32_t n, uint32_t *abort_flag, uint32_t *result)
{
	uint32_t first[2] = {0, n};
	struct gantry_p2p_args args = {.xfers = x, .first = first, .result = result};

	dev_self = (struct dev_thread){.lanes = 1, .blocks = 1, .abort = abort_flag};
	*result = GANTRY_OK;
	gantry_kernel_p2p.body(&args);
}

/* A receive smaller than its send: both sizes are known, the step is consumed, nothing beyond the buffer is written. */
static void check_too_large(void)
{
	struct world *w = world_new(1, 1, 1, 1);
	struct link *l = world_link(w, 0, 0, 0, 0, 0);
	char big[256], small[64];
	struct gantry_xfer x[2] = {
		{.conn = &l->tx, .buf = big, .bytes = sizeof(big), .step_bytes = 4096, .send = 1},
		{.conn = &l->rx, .buf = small + 16, .bytes = 32, .step_bytes = 4096},
	};
	uint32_t result;

	memset(big, 1, sizeof(big));
	memset(small, 2, sizeof(small));
	run_xfers(x, 2, NULL, &result);
	CHECK_EQ(result, GANTRY_ERR_SIZE);
	CHECK_EQ(x[1].error, GANTRY_ERR_SIZE);
	CHECK_EQ(x[1].error_bytes, 256);
	CHECK_OK(x[0].error);
	CHECK_EQ(*l->rx.head, 1);
	CHECK_EQ(l->rx.turn, 1);
	CHECK_FILLED(small, 64, 2);
	world_free(w);
}

/* The same into an offered buffer, where whoever moved the bytes says how many they were. */
static void check_wrong_arrival(uint64_t arrived)
{
	struct world *w = world_new(1, 1, 1, 1);
	struct link *l = world_link(w, 0, 0, P, P, 0);
	char buf[100];
	struct gantry_xfer x = {.conn = &l->rx, .buf = buf, .bytes = sizeof(buf), .step_bytes = 64, .ptr = 1};
	uint32_t result;

	dev_post(&l->rx.slots[0], gantry_slot_meta(0, GANTRY_MODE_PTR, 64), gantry_slot_where(0, 0));
	dev_post(&l->rx.slots[1], gantry_slot_meta(1, GANTRY_MODE_PTR, arrived), gantry_slot_where(1, 0));
	run_xfers(&x, 1, NULL, &result);
	CHECK_EQ(gantry_slot_size(l->rx.offers[0].meta), 64);
	CHECK_EQ(gantry_slot_size(l->rx.offers[1].meta), 36);
	CHECK_EQ(result, arrived == 36 ? GANTRY_OK : GANTRY_ERR_SIZE);
	CHECK_EQ(x.error, result);
	CHECK_EQ(x.error_bytes, arrived == 36 ? 0 : 64 + arrived);
	CHECK_EQ(*l->rx.head, 2);
	CHECK_EQ(l->rx.turn, 1);
	world_free(w);
}

/* A kernel whose peers never come ends when it is told to, with several lanes too, and says what it waited for. */
enum { LONELY = 7, LONELY_SENDS = 3 };
static const uint32_t lonely_waits[LONELY] = {
	GANTRY_KERNEL_WAIT_HEAD, GANTRY_KERNEL_WAIT_OFFER, GANTRY_KERNEL_WAIT_DONE, GANTRY_KERNEL_WAIT_DATA,
	GANTRY_KERNEL_WAIT_DATA, GANTRY_KERNEL_WAIT_DATA,  GANTRY_KERNEL_WAIT_DATA};
static const uint64_t lonely_steps[LONELY] = {8, 0, 2, 0, 0, 0, 0};

static int all_wait(const struct world *w)
{
	for (int i = 0; i < LONELY; i++) {
		const struct gantry_conn *c = i < LONELY_SENDS ? &w->link[i].tx : &w->link[i].rx;

		if (__atomic_load_n(&c->state->doing, __ATOMIC_RELAXED) != lonely_waits[i] ||
		    __atomic_load_n(&c->state->step, __ATOMIC_RELAXED) != lonely_steps[i])
			return 0;
	}
	return 1;
}
static void *set_abort(void *arg)
{
	struct world *w = arg;

	UNTIL(all_wait(w));
	usleep(20000);
	__atomic_store_n(&w->abort, 1, __ATOMIC_SEQ_CST);
	return NULL;
}
static void check_abort(uint32_t lanes)
{
	static const struct way lonely[LONELY] = {
		{"no credit", P, P, GANTRY_PROTO_SIMPLE, 0, 0, 1000},
		{"no offer", PO, P, GANTRY_PROTO_SIMPLE, 0, 0, 1000},
		{"not given back", P, P, GANTRY_PROTO_SIMPLE, 1, 0, 4000},
		{"no data", P, P, GANTRY_PROTO_SIMPLE, 0, 0, 1000},
		{"no arrival", P, P, GANTRY_PROTO_SIMPLE, 0, 1, 4000},
		{"no lines", 0, 0, GANTRY_PROTO_LL, 0, 0, 0},
		{"no lines", 0, 0, GANTRY_PROTO_LL128, 0, 0, 0},
	};
	struct world *w = world_new(1, lanes, 1, lanes);
	pthread_t thread;

	for (int i = 0; i < LONELY; i++) {
		struct link *l = way_link(w, &lonely[i], 0, 0, 0);
		struct message *m = way_message(w, &lonely[i], l, 10000);

		m->turn = 0;
		w->rank[0].nxfers -= 2;
		l->proxied = 0; /* nobody serves it */
		add_xfer(w, 0, m, i < LONELY_SENDS);
	}
	*w->link[2].tx.head = 2; /* all but the last step */
	CHECK_EQ(pthread_create(&thread, NULL, set_abort, w), 0);
	world_launch(w);
	pthread_join(thread, NULL);
	CHECK_EQ(w->rank[0].result, GANTRY_ERR_ABORTED);
	CHECK_EQ(w->rank[0].finished, 1);
	for (int i = 0; i < LONELY; i++) {
		struct gantry_conn *c = i < LONELY_SENDS ? &w->link[i].tx : &w->link[i].rx;

		CHECK_EQ(c->state->doing, lonely_waits[i]);
		CHECK_EQ(c->state->step, lonely_steps[i]);
		w->link[i].proxied = w->link[i].fifo[0] != w->link[i].fifo[1];
	}
	CHECK_EQ(w->link[0].tx.step, 8);
	CHECK_EQ(w->link[2].tx.step, 3);
	CHECK_EQ(w->link[4].rx.step, 3); /* offered */
	CHECK_EQ(w->link[4].rx.offered, 3);
	CHECK_EQ(*w->link[4].rx.head, 0);
	world_free(w);
}

/* Of the two words of a slot or an offer one may be seen before the other: then nothing is there yet. */
static void check_half_posts(void)
{
	static const uint32_t modes[] = {GANTRY_MODE_OFFSET, GANTRY_MODE_PTR};
	uint32_t result, abort_flag = 1;
	char buf[8] = "nothing";

	for (int i = 0; i < 4; i++) {
		struct world *w = world_new(1, 1, 1, 1);
		struct link *l = world_link(w, 0, 0, PO, PO, 0);
		struct gantry_conn *c = i < 2 ? &l->tx : &l->rx;
		struct gantry_slot *slot = i < 2 ? c->offers : c->slots;
		struct gantry_xfer x = {.conn = c, .buf = buf, .bytes = 8, .step_bytes = 8, .send = i < 2};

		if (i == 0)
			slot->where = gantry_slot_where(0, 0);
		else
			slot->meta = gantry_slot_meta(0, i == 1 ? GANTRY_MODE_OFFSET : modes[i - 2], 8);
		run_xfers(&x, 1, &abort_flag, &result);
		CHECK_EQ(result, GANTRY_ERR_ABORTED);
		CHECK_EQ(c->state->doing, i < 2 ? GANTRY_KERNEL_WAIT_OFFER : GANTRY_KERNEL_WAIT_DATA);
		CHECK_EQ(c->step, 0);
		world_free(w);
	}
}

/*
 * Marks come round: after 65,535 steps of LL, which write no slot, the slot's tag is that of the step which Simple
 * waits for next. It must not be taken for that step. The same for the offers that a receiving end leaves behind.
 */
static void check_old_marks(uint64_t start)
{
	const uint64_t n = 65535;
	struct world *w = world_new(1, 1, 1, 1);
	struct link *l = world_link(w, 0, 0, 0, 0, start);
	char *data = guarded(n * 8, 0), one[8] = "seven 7";
	struct gantry_xfer pair[2] = {{.conn = &l->tx, .buf = one, .bytes = 8, .step_bytes = 8, .send = 1},
				      {.conn = &l->rx, .buf = data, .bytes = 8, .step_bytes = 8}};
	struct gantry_xfer late[1] = {pair[1]};
	struct gantry_xfer many[2] = {pair[0], pair[1]};
	uint32_t result, abort_flag = 1;

	l->rx.offers = l->fifo[0]->offers;
	dev_post(&l->rx.offers[start % 8], gantry_slot_meta(start, GANTRY_MODE_PTR, 8), gantry_slot_where(start, 0));
	run_xfers(pair, 2, NULL, &result);
	CHECK_OK(result);
	for (int i = 0; i < 2; i++) {
		many[i].buf = data;
		many[i].bytes = n * 8;
		many[i].proto = GANTRY_PROTO_LL;
	}
	run_xfers(many, 2, NULL, &result);
	CHECK_OK(result);
	CHECK_EQ(l->rx.step, start + 65536);
	run_xfers(late, 1, &abort_flag, &result);
	CHECK_EQ(result, GANTRY_ERR_ABORTED);
	CHECK_EQ(l->rx.step, start + 65536);
	CHECK(!gantry_slot_is(l->rx.offers[start % 8].meta, start + 65536));
	CHECK(!gantry_slot_is(l->rx.offers[start % 8].where, start + 65536));
	free(data - GUARD);
	world_free(w);
}

/* A line that only long messages reach is written at the latest every 2^31 steps, whatever protocol is used then. */
static void check_old_lines(uint64_t lap, int proto, uint32_t flags)
{
	uint64_t start = lap + 0x7fffffe8;
	struct world *w = world_new(1, 1, 1, 1);
	struct link *l = world_link(w, 0, 0, flags, flags, start);
	int which = flags ? 1 : 0;

	for (int e = 0; e <= which; e++) { /* lines from long ago */
		uint64_t *line = (uint64_t *)(void *)(e ? l->rx : l->tx).buffs[GANTRY_PROTO_LL];

		for (uint64_t i = 0; i < GANTRY_STEPS * gantry_ll_bytes(LL_STEP) / 8; i++)
			line[i] = (uint64_t)gantry_ll_flag(start + 0x40000000) << 32;
	}
	for (int i = 0; i < 32; i++)
		world_message(w, l, 16, proto, 0, 0, 0);
	world_run(w);
	for (int e = 0; e <= which; e++)
		for (uint64_t step = start + 24; step < start + 32; step++)
			for (uint64_t i = 0; i < LL_STEP / GANTRY_LL_DATA; i++) {
				const char *ring = k_ring(e ? &l->rx : &l->tx, GANTRY_PROTO_LL, step);
				uint64_t word = *(const uint64_t *)(ring + i * GANTRY_LL_LINE);

				/* Of this step, or written over in the refreshing steps: never far from here. */
				CHECK((uint32_t)((uint32_t)(word >> 32) - gantry_ll_flag(start)) < 64);
			}
	world_free(w);
}

/* k_fifo against a consumer that answers: bare flags, one step at a time, as many as fit. */
struct echo {
	struct gantry_conn *c;
	struct gantry_eventcount *eventcount;
	uint64_t from, n;
	int bare;
};
static void *echo_main(void *arg)
{
	struct echo *e = arg;
	uint64_t ahead = 0;

	for (uint64_t s = e->from; s < e->from + e->n; s++) {
		if (e->bare) {
			while (dev_load(e->c->tail) <= s)
				sched_yield();
			CHECK_EQ(dev_load(e->c->tail), s + 1);
		} else {
			struct gantry_slot *slot = &e->c->slots[s % GANTRY_STEPS];

			while (!gantry_slot_is(dev_load(&slot->meta), s) || !gantry_slot_is(dev_load(&slot->where), s))
				sched_yield();
			CHECK_EQ(gantry_slot_mode(dev_load(&slot->meta)), GANTRY_MODE_PTR);
			CHECK_EQ(gantry_slot_size(dev_load(&slot->meta)), 8);
			CHECK_EQ(gantry_slot_place(dev_load(&slot->where)), 0x1000 + s % 8 * 8);
			ahead = dev_load_relaxed(e->c->tail) - s > ahead ? dev_load_relaxed(e->c->tail) - s : ahead;
		}
		dev_store(e->c->head, s + 1);
		dev_notify(e->eventcount);
	}
	CHECK(ahead <= GANTRY_STEPS);
	return NULL;
}
static void check_fifo(uint32_t window, uint32_t bare)
{
	struct world *w = world_new(1, 1, 1, 1);
	struct link *l = world_link(w, 0, 0, P, P, 0);
	uint32_t result = GANTRY_OK, abort_flag = 1;
	struct gantry_fifo_args args = {&l->tx, 2000, window, bare, &result};
	pthread_t thread;

	l->tx.eventcount = NULL;
	for (int round = 0; round < 2; round++) {
		struct echo e = {&l->tx, bare ? NULL : &w->rank[0].eventcounts[0], l->tx.step, 2000, (int)bare};

		CHECK_EQ(pthread_create(&thread, NULL, echo_main, &e), 0);
		dev_self = (struct dev_thread){.lanes = 1, .blocks = 1, .eventcount = e.eventcount};
		gantry_kernel_fifo.body(&args);
		pthread_join(thread, NULL);
		CHECK_OK(result);
		CHECK_EQ(*l->tx.head, 2000 * (round + 1));
		CHECK_EQ(*l->tx.tail, 2000 * (round + 1));
	}
	dev_self.abort = &abort_flag;
	gantry_kernel_fifo.body(&args);
	CHECK_EQ(result, GANTRY_ERR_ABORTED);
	world_free(w);
}

int main(void)
{
	alarm(500);
	for (uint32_t lanes = 1; lanes <= 3; lanes++)
		for (int i = 0; i < WAYS; i++)
			RUN(check_way(&ways[i], lanes, 0));
	for (int i = 0; i < WAYS; i++) {
		RUN(check_way(&ways[i], 1, 65530));
		RUN(check_way(&ways[i], 1, 0x100000000 - 5));
	}
	for (uint64_t seed = 1; seed <= 6; seed++)
		RUN(check_all_to_all(seed % 3 + 1, seed % 2 + 1, seed));
	RUN(check_self());
	RUN(check_too_large());
	RUN(check_wrong_arrival(36));
	RUN(check_wrong_arrival(35));
	RUN(check_wrong_arrival(64));
	RUN(check_abort(1));
	RUN(check_abort(3));
	RUN(check_half_posts());
	RUN(check_old_marks(0));
	RUN(check_old_marks(65535));
	RUN(check_old_marks(12345));
	for (int i = 0; i < 2; i++) {
		RUN(check_old_lines(i ? 0x80000000 : 0, GANTRY_PROTO_LL, 0));
		RUN(check_old_lines(i ? 0x80000000 : 0, GANTRY_PROTO_SIMPLE, 0));
		RUN(check_old_lines(i ? 0x80000000 : 0, GANTRY_PROTO_LL, P));
		RUN(check_old_lines(i ? 0x80000000 : 0, GANTRY_PROTO_SIMPLE, P));
	}
	RUN(check_fifo(1, 0));
	RUN(check_fifo(8, 0));
	RUN(check_fifo(1, 1));
	return 0;
}
