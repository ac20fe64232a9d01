/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unpack queue by itself: which receives take slots, when slots are free again, what is refused, and where bytes
 * end that are too many for a table. Messages come over a lane pair without fragments; test_flow_rx has those.
 */
#include "unpack_util.h"

static void *irecv(struct world *w, void *data, size_t size, int device, int optional)
{
	void *request = NULL;

	CHECK_OK(tcp_link_irecv_unpack(w->l, data, size, 0, device, optional, &request));
	return request;
}

static void settle(struct world *w, void *request)
{
	int done = 0;

	while (!done) {
		for (int i = 0; i < w->config.nlanes; i++)
			utter(w, i, 1 << 20);
		listen_away(w);
		CHECK_OK(tcp_link_test(request, &done, NULL));
	}
}

/* 16 receives, whatever their memory; the 17th waits for the oldest to be consumed, not just to be done. */
TEST(depth)
{
	struct world w;
	uint8_t buf[17][100], data[100];
	void *request[17];

	world_params(NULL);
	world_open(&w, 1, 0);
	pattern_fill(data, sizeof(data), 3);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 16; i++) {
			memset(buf[i], 0, 100);
			request[i] = irecv(&w, buf[i], 100, i % 3 != 0, 0);
			CHECK(request[i]);
			say_eager(&w, data, 100, 0);
		}
		CHECK(!irecv(&w, buf[16], 100, 1, 0));
		CHECK_EQ(tcp_unpack_consumed(w.l, request[0]), GANTRY_ERR_USAGE); /* not even tested */
		for (int i = 0; i < 16; i++)
			settle(&w, request[i]);
		CHECK(!irecv(&w, buf[16], 100, 1, 0));
		/* LL and LL128 take none and are free after test. */
		for (int i = 0; i < 40; i++) {
			memset(buf[16], 0, 100);
			request[16] = irecv(&w, buf[16], 100, i & 1, 1);
			CHECK(request[16]);
			say_eager(&w, data, 100, 0);
			settle(&w, request[16]);
			CHECK_PATTERN(buf[16], 100, 3);
			CHECK_OK(tcp_unpack_consumed(w.l, request[16]));
		}
		for (int i = 0; i < 16; i++) {
			CHECK_EQ(kernel_unpack(w.handle, buf[i], 100), i % 3 != 0);
			CHECK_PATTERN(buf[i], 100, 3);
		}
		/* A younger one alone does not help. */
		CHECK_OK(tcp_unpack_consumed(w.l, request[5]));
		CHECK(!irecv(&w, buf[16], 100, 1, 0));
		CHECK_EQ(tcp_unpack_consumed(w.l, request[5]), GANTRY_ERR_USAGE); /* twice */
		for (int i = 0; i < 16; i++)
			if (i != 5)
				CHECK_OK(tcp_unpack_consumed(w.l, request[i]));
		world_whole(&w);
	}
	CHECK_EQ(w.handle->head, 3 * 16 - 1);
	world_close(&w);
}

/* Counts are those of this message, not of the one that had the slot before. */
TEST(counts)
{
	struct world w;
	size_t sizes[] = {10000, 0, 1, 4096, 65536, 0, 7};
	FREED uint8_t *data = malloc(65536), *buf = malloc(65536);

	world_params(NULL);
	world_open(&w, 1, 0);
	for (int i = 0; i < 16 * 7; i++) {
		size_t size = sizes[i % 7];
		void *request = irecv(&w, buf, 65536, 1, 0);
		uint64_t n;

		pattern_fill(data, size, (uint64_t)i);
		say_eager(&w, data, size, 0);
		settle(&w, request);
		n = kernel_unpack(w.handle, buf, size);
		CHECK(size ? n > 0 : n == 0);
		CHECK_PATTERN(buf, size, (uint64_t)i);
		CHECK_OK(tcp_unpack_consumed(w.l, request));
	}
	CHECK_EQ(w.u->messages, 16 * 7);
	world_close(&w);
}

/* Larger than any slice of NCCL's: the bytes are in the buffer, the slot says 0. */
static void too_large(int device_rx, int blind)
{
	struct world w;
	size_t size = 5 << 20;
	FREED uint8_t *data = malloc(size), *buf = calloc(1, size);
	void *request;

	world_params(NULL);
	world_open(&w, 2, device_rx);
	if (blind)
		world_blind(&w, 1, 1);
	for (int i = 0; i < 2; i++) {
		pattern_fill(data, size, 9);
		memset(buf, 0, size);
		request = irecv(&w, buf, size, 1, 0);
		say_bulk(&w, data, size, 0);
		settle(&w, request);
		CHECK_EQ(kernel_unpack(w.handle, buf, size), 0);
		CHECK_PATTERN(buf, size, 9);
		CHECK_OK(tcp_unpack_consumed(w.l, request));
	}
	/* And 4 MiB, which fits. */
	size = 4 << 20;
	memset(buf, 0, size);
	request = irecv(&w, buf, size, 1, 0);
	say_bulk(&w, data, size, 0);
	settle(&w, request);
	CHECK(kernel_unpack(w.handle, buf, size) > 0);
	CHECK_PATTERN(buf, size, 9);
	CHECK_OK(tcp_unpack_consumed(w.l, request));
	world_whole(&w);
	world_close(&w);
}

TEST(large_messages)
{
	for (int i = 0; i < 4; i++)
		too_large(i & 1, i & 2);
}

static gantry_result fate(struct world *w, void *request)
{
	int done = 0;

	for (;;) {
		gantry_result r = tcp_link_test(request, &done, NULL);

		CHECK(!done);
		if (r != GANTRY_OK)
			return r;
		for (int i = 0; i < w->config.nlanes; i++)
			utter(w, i, 1 << 20);
		listen_away(w);
	}
}

/* What a peer of ours never sends. */
TEST(wrong_headers)
{
	static const struct {
		struct pair_frame f;
		uint32_t lane;
		const char *text;
		gantry_result result;
	} cases[] = {
		{{.kind = AHEAD, .length = 70000, .total = 70000, .index = 1},
		 1,
		 ", but its receive is not posted",
		 GANTRY_ERR_PROTOCOL},
		{{.kind = AHEAD, .length = 70000, .total = 70000}, 2, "lane 2", GANTRY_ERR_PROTOCOL},
		{{.kind = AHEAD, .length = 70000, .total = 70000}, 0, "not a frame", GANTRY_ERR_PROTOCOL},
		{{.kind = AHEAD, .length = 70000, .total = 300000}, 1, "matched a receive of only", GANTRY_ERR_SIZE},
		{{.kind = AHEAD, .length = 0, .total = 70000}, 1, "not a frame", GANTRY_ERR_PROTOCOL},
		{{.kind = AHEAD, .flags = WIRE_FLAGS + 1 /* unknown */, .length = 100, .total = 100},
		 1,
		 "not a frame",
		 GANTRY_ERR_PROTOCOL},
	};
	FREED uint8_t *buf = malloc(200000);

	EACH_ROW (i, cases) {
		struct world w;
		void *request;

		world_params(NULL);
		world_open(&w, 1, 1);
		request = irecv(&w, buf, 200000, 1, 0);
		say_frame(&w, cases[i].f, cases[i].lane);
		CHECK_EQ(fate(&w, request), cases[i].result);
		CHECK_HAS(gantry_last_error(), cases[i].text);
		world_close(&w);
	}
	/* Two pieces that overlap. */
	{
		struct world w;
		void *request;
		struct pair_frame f = {.kind = AHEAD, .length = 70000, .total = 100000};

		world_params(NULL);
		world_open(&w, 1, 1);
		request = irecv(&w, buf, 200000, 1, 0);
		say_frame(&w, f, 1);
		say_frame(&w, f, 1);
		CHECK_ERROR(fate(&w, request), GANTRY_ERR_PROTOCOL, "do not add up");
		world_close(&w);
	}
	/* A header ahead, towards a side whose lanes carry their own. */
	{
		struct world w;
		void *request;

		world_params(NULL);
		world_open(&w, 1, 0);
		request = irecv(&w, buf, 200000, 1, 0);
		say_frame(&w, (struct pair_frame){.kind = AHEAD, .length = 70000, .total = 100000}, 1);
		CHECK_EQ(fate(&w, request), GANTRY_ERR_PROTOCOL);
		world_close(&w);
	}
}

void tests_begin(void)
{
	tests_apart(0);
}

/* The peer says that its eager messages have 300 bytes at most, and sends more where only the device writes the buffer. */
TEST(eager_beyond_agreement)
{
	enum { AGREED = 300, SENT = 60000 };
	static const size_t sizes[] = {AGREED, 4096, 4097, SENT};
	static uint8_t data[SENT], buf[SENT];

	world_params(NULL);
	pattern_fill(data, sizeof(data), 3);
	EACH_ROW (i, sizes) {
		struct world w;
		void *request;
		gantry_result r = GANTRY_OK;
		int done = 0;

		world_open(&w, 1, 0);
		w.l->session.eager_max = AGREED;
		world_blind(&w, 1, 1);
		request = irecv(&w, buf, SENT, 1, 1);
		CHECK(request);
		say_eager(&w, data, sizes[i], 0);
		WAIT_WHILE (!done && r == GANTRY_OK) {
			utter(&w, 0, 1 << 20);
			listen_away(&w);
			r = tcp_link_test(request, &done, NULL);
		}
		CHECK_EQ(r, sizes[i] <= 4096 ? GANTRY_OK : GANTRY_ERR_PROTOCOL); /* there is room for whole pages */
		if (r == GANTRY_OK)
			CHECK_PATTERN(buf, sizes[i], 3);
		else
			CHECK_HAS(gantry_last_error(), "larger than agreed");
		world_close(&w);
	}
}
