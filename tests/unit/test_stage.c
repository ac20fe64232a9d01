/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending from device memory (here the host device's): the stage hands out blocks that never overlap, and takes them
 * all back; links keep posting order, whatever is copied when, and leave nothing behind when they close or fail.
 */
#include "device/device.h"
#include "device/pinned.h"
#include "link_pair.h"
#include "net/tcp/stage.h"

enum { MIB = 1 << 20, STAGE = 4 * MIB };

static struct gantry_device *dev;

/* Between two looks: who copies wants a CPU too, and would wait for the end of our time slice. */
static void give_way(void)
{
	sched_yield();
}

static void wait_ready(struct tcp_stage *s, struct gantry_piece *b)
{
	gantry_result r;

	WAIT_WHILE ((r = tcp_stage_ready(s, b)) == GANTRY_AGAIN)
		give_way();
	CHECK_OK(r);
}

/* All pieces are back: then the whole stage is one. */
static int is_empty(struct tcp_stage *s)
{
	static uint8_t from[STAGE];
	struct gantry_piece *all = NULL;
	gantry_result r = tcp_stage_copy(s, from, STAGE, &all);

	if (r == GANTRY_AGAIN)
		return 0;
	CHECK_OK(r);
	wait_ready(s, all);
	tcp_stage_give(s, all);
	return 1;
}

static void check_empty(struct tcp_stage *s)
{
	WAIT_WHILE (!is_empty(s))
		give_way();
}

/* Blocks come and go at random; each keeps its bytes until it is given back. */
TEST(blocks)
{
	enum { HELD = 64, ROUNDS = 4000 };
	struct held {
		struct gantry_piece *b;
		uint64_t size, seed;
	} held[HELD] = {{0}};
	FREED uint8_t *from = malloc(STAGE + MIB);
	struct tcp_stage *s, *same;
	uint32_t full = 0, given = 0;

	CHECK_OK(tcp_stage_get(dev, &s));
	CHECK_OK(tcp_stage_get(dev, &same));
	CHECK(s == same);
	tcp_stage_put(same);
	for (uint64_t k = 0; k < ROUNDS; k++) {
		struct held *h = &held[random_below(HELD)];
		gantry_result r;

		if (h->b) {
			uint8_t *data = h->b->host;

			wait_ready(s, h->b);
			CHECK_EQ(pattern_wrong_at(data, h->size < 4096 ? h->size : 4096, h->seed),
				 h->size < 4096 ? h->size : 4096);
			CHECK_EQ(data[h->size - 1], pattern_byte(h->seed, h->size - 1));
			tcp_stage_give(s, h->b);
			h->b = NULL;
			given++;
			continue;
		}
		h->size = 1 + random_below(random_below(3) ? 20000 : 400000);
		h->seed = k;
		pattern_fill(from, h->size < 4096 ? h->size : 4096, k);
		from[h->size - 1] = pattern_byte(k, h->size - 1);
		r = tcp_stage_copy(s, from, h->size, &h->b);
		if (r == GANTRY_AGAIN) {
			full++;
			CHECK(!h->b);
			continue;
		}
		CHECK_OK(r);
		wait_ready(s, h->b); /* `from` is used again */
		for (int i = 0; i < HELD; i++)
			if (held[i].b && &held[i] != h)
				CHECK(held[i].b->host + held[i].size <= h->b->host ||
				      h->b->host + h->size <= held[i].b->host);
	}
	CHECK(given > ROUNDS / 4);
	CHECK(full > 0);
	for (int i = 0; i < HELD; i++)
		if (held[i].b)
			tcp_stage_give(s, held[i].b);
	CHECK(is_empty(s));
	tcp_stage_put(s);
}

/* The whole stage is one block; more than that is an error that names the parameter. */
TEST(limits)
{
	struct tcp_stage *s;
	struct gantry_piece *b = NULL, *c = NULL;
	FREED uint8_t *from = calloc(1, STAGE + 1);

	CHECK_OK(tcp_stage_get(dev, &s));
	for (int i = 0; i < 3; i++) {
		check_empty(s);
		CHECK_OK(tcp_stage_copy(s, from, STAGE, &b));
		CHECK_EQ(tcp_stage_copy(s, from, 1, &c), GANTRY_AGAIN);
		/* Given back at once: the place is not free before the copy is over. */
		tcp_stage_give(s, b);
	}
	CHECK_ERROR(tcp_stage_copy(s, from, STAGE + 1, &b), GANTRY_ERR_LIMIT, "GANTRY_UNPACK_STAGE");
	check_empty(s);
	tcp_stage_put(s);
	/* More blocks than there are: again later. */
	CHECK_OK(tcp_stage_get(dev, &s));
	{
		struct gantry_piece *all[STAGE_PIECES];

		for (int i = 0; i < STAGE_PIECES; i++)
			CHECK_OK(tcp_stage_copy(s, from, 1, &all[i]));
		CHECK_EQ(tcp_stage_copy(s, from, 1, &c), GANTRY_AGAIN);
		for (int i = 0; i < STAGE_PIECES; i++)
			tcp_stage_give(s, all[i]);
	}
	check_empty(s);
	tcp_stage_put(s);
}

/* A block that is given back while it is being copied to is not handed out before that is over. */
TEST(draining)
{
	struct tcp_stage *s;
	FREED uint8_t *from = malloc(STAGE);

	CHECK_OK(tcp_stage_get(dev, &s));
	for (uint64_t k = 0; k < 30; k++) {
		struct gantry_piece *b = NULL;
		gantry_result r;

		WAIT_WHILE ((r = tcp_stage_copy(s, from, STAGE, &b)) == GANTRY_AGAIN)
			give_way();
		CHECK_OK(r);
		if (k % 3) {
			tcp_stage_give(s, b);
			continue;
		}
		wait_ready(s, b);
		memset(b->host, 0xee, STAGE); /* would be overwritten by an older copy */
		sched_yield();
		for (int i = 0; i < STAGE; i += 4096)
			CHECK_EQ(b->host[i], 0xee);
		tcp_stage_give(s, b);
	}
	check_empty(s);
	tcp_stage_put(s);
}

/* ---- links ---- */

static void *irecv(struct tcp_link *l, uint8_t *data, size_t size, int tag)
{
	void *request = NULL, *p = data;

	CHECK_OK(tcp_link_irecv(l, 1, &p, &size, &tag, &request));
	CHECK(request);
	return request;
}

/* Many messages, larger in sum than the stage, from device and from host memory: each to its own receive. */
TEST(order)
{
	enum { MESSAGES = 120, WINDOW = 24, ROOM = 600000 };
	struct pair_config c = {.nlanes = 3, .eager_max = 2000};
	struct tcp_link *l[2];
	struct tcp_stage *s;
	FREED uint8_t *out = malloc((size_t)WINDOW * ROOM), *in = malloc((size_t)WINDOW * ROOM);
	void *sends[WINDOW] = {0}, *recvs[WINDOW] = {0};
	uint64_t sizes[MESSAGES], total = 0;
	uint32_t sent = 0, posted = 0, received = 0, finished = 0;

	CHECK_OK(tcp_stage_get(dev, &s));
	pair_links(&c, l);
	CHECK_OK(tcp_link_stage(l[0], dev));
	for (int i = 0; i < MESSAGES; i++) {
		sizes[i] = i % 5 == 0 ? 0 : random_below(i % 3 ? 3000 : ROOM);
		total += sizes[i];
	}
	CHECK(total > STAGE);
	while (received < MESSAGES || finished < MESSAGES) {
		if (posted < MESSAGES && !recvs[posted % WINDOW]) {
			recvs[posted % WINDOW] = irecv(l[1], in + (size_t)(posted % WINDOW) * ROOM, ROOM, 1);
			posted++;
		}
		if (sent < MESSAGES && !sends[sent % WINDOW]) {
			uint8_t *from = out + (size_t)(sent % WINDOW) * ROOM;

			pattern_fill(from, sizes[sent], sent);
			if (sent % 7 == 3)
				CHECK_OK(tcp_link_isend(l[0], from, sizes[sent], 1, &sends[sent % WINDOW]));
			else
				CHECK_OK(tcp_link_isend_device(l[0], from, sizes[sent], 1, &sends[sent % WINDOW]));
			sent += sends[sent % WINDOW] != NULL;
		}
		for (uint32_t i = 0; i < WINDOW; i++) {
			int done = 0;

			if (sends[i])
				CHECK_OK(tcp_link_test(sends[i], &done, NULL));
			if (done) {
				sends[i] = NULL;
				finished++;
			}
		}
		while (received < posted) { /* in order */
			int done = 0, size = -1;
			uint32_t at = received % WINDOW;

			CHECK_OK(tcp_link_test(recvs[at], &done, &size));
			if (!done)
				break;
			CHECK_EQ(size, sizes[received]);
			CHECK_PATTERN(in + (size_t)at * ROOM, sizes[received], received);
			recvs[at] = NULL;
			received++;
		}
		give_way();
	}
	CHECK(is_empty(s));
	CHECK_EQ(l[0]->devmem->copying_out_n, 0);
	pair_free(l);
	tcp_stage_put(s);
}

/* Sends in every state (being copied, waiting for a receive, half sent, done and not tested) when the link ends. */
TEST(ends)
{
	for (int how = 0; how < 4; how++) {
		struct pair_config c = {.nlanes = 2, .eager_max = 2000, .buffer = 8192, .splice = how == 3};
		struct tcp_link *l[2];
		struct tcp_stage *s;
		FREED uint8_t *out = calloc(1, 2 * MIB), *in = malloc(2 * MIB);
		void *sends[8] = {0};
		int done = 0;

		CHECK_OK(tcp_stage_get(dev, &s));
		pair_links(&c, l);
		CHECK_OK(tcp_link_stage(l[0], dev));
		irecv(l[1], in, MIB, 0);
		for (int i = 0; i < 8; i++) {
			CHECK_OK(tcp_link_isend_device(l[0], out, i % 2 ? 1500 : 300000, i, &sends[i]));
			CHECK(sends[i]);
			for (int k = 0; k < (how == 0 ? 0 : 30); k++) {
				tcp_link_progress(l[0]);
				tcp_link_progress(l[1]);
			}
		}
		CHECK(!is_empty(s));
		if (how == 2) {
			tcp_link_fail(l[0], 1, GANTRY_ERR_CORRUPT, "enough");
			CHECK_EQ(tcp_link_test(sends[2], &done, NULL), GANTRY_ERR_CORRUPT); /* nobody receives it */
			CHECK_EQ(tcp_link_isend_device(l[0], out, 10, 0, &sends[0]), GANTRY_ERR_CORRUPT);
		}
		if (how == 1) {
			tcp_link_free(l[0]);
			l[0] = NULL;
		} else {
			tcp_link_close_tx(l[0]);
		}
		check_empty(s);
		pair_free(l);
		tcp_stage_put(s);
	}
}

/* No registration, no stage: said, not crashed. A message that no stage holds: the error names the parameter. */
TEST(refusals)
{
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	FREED uint8_t *data = calloc(1, STAGE + 4096);
	void *request = NULL;

	pair_links(&c, l);
	CHECK_EQ(tcp_link_isend_device(l[0], data, 10, 0, &request), GANTRY_ERR_USAGE);
	CHECK_OK(tcp_link_stage(l[0], dev));
	CHECK_ERROR(tcp_link_isend_device(l[0], data, STAGE + 4096, 0, &request), GANTRY_ERR_LIMIT,
		    "GANTRY_UNPACK_STAGE");
	/* Neither has used up a request or a number of its tag. */
	CHECK_EQ(l[0]->sends->nfree, l[0]->sends->count);
	CHECK_EQ(l[0]->tx.tags.count, 0);
	pair_free(l);
}

/* ---- several threads: helpers move messages on while the user posts ---- */

static uint32_t stop;

static void *pusher(void *arg)
{
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		tcp_link_progress(arg);
		sched_yield(); /* where others want the CPUs too, a message would take time slices */
	}
	return NULL;
}

TEST(threads)
{
	enum { MESSAGES = 200, WINDOW = 8, SIZE = 40000 };
	struct pair_config c = {.nlanes = 3, .eager_max = 2000};
	struct tcp_link *l[2];
	FREED uint8_t *out = malloc(WINDOW * SIZE), *in = malloc(WINDOW * SIZE);
	void *sends[WINDOW] = {0}, *recvs[WINDOW] = {0};
	uint32_t sent = 0, finished = 0, received = 0;
	pthread_t t[2];

	pair_links(&c, l);
	CHECK_OK(tcp_link_stage(l[0], dev));
	stop = 0;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, pusher, l[i]), 0);
	while (finished < MESSAGES || received < MESSAGES) {
		uint32_t k = sent % WINDOW;

		if (sent < MESSAGES && !sends[k] && !recvs[k]) {
			uint8_t *from = out + (size_t)k * SIZE;
			size_t size = sent % 3 ? SIZE : 1000;

			recvs[k] = irecv(l[1], in + (size_t)k * SIZE, SIZE, 0);
			pattern_fill(from, size, sent);
			CHECK_OK(tcp_link_isend_device(l[0], from, size, 0, &sends[k]));
			CHECK(sends[k]);
			sent++;
		}
		for (k = 0; k < WINDOW; k++) {
			int done = 0;

			if (sends[k])
				CHECK_OK(tcp_link_test(sends[k], &done, NULL));
			if (done) {
				sends[k] = NULL;
				finished++;
			}
		}
		while (received < sent) {
			int done = 0, size = 0;

			k = received % WINDOW;
			CHECK_OK(tcp_link_test(recvs[k], &done, &size));
			if (!done)
				break;
			CHECK_EQ(size, received % 3 ? SIZE : 1000);
			CHECK_EQ(pattern_wrong_at(in + (size_t)k * SIZE, (size_t)size, received), size);
			recvs[k] = NULL;
			received++;
		}
		give_way();
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	threads_join(t, 2);
	pair_free(l);
}

void tests_begin(void)
{
	set_params("GANTRY_UNPACK_STAGE", "4194304", "GANTRY_ZEROCOPY_MIN", "4096");
	CHECK_OK(gantry_device_host(&dev));
	alarm(500);
}

void tests_end(void)
{
	gantry_device_close(dev);
}
