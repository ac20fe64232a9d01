/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of a message must cover it exactly once, whatever their order and their lanes, with checksums or without:
 * a message is done if and only if they do. What they cover is counted byte by byte here.
 */
#include "link_match_util.h"
#include "unpack_util.h"

enum { MAX_TOTAL = 5000, MAX_PIECES = 64 };

struct piece {
	uint32_t offset, length;
};

struct pieces {
	struct piece of[MAX_PIECES];
	uint32_t n, total;
};

static const struct pair_config config = {.nlanes = 3, .eager_max = 64};
static uint8_t data[MAX_TOTAL], in[MAX_TOTAL];

static int exact(const struct pieces *p)
{
	static uint8_t count[MAX_TOTAL];

	memset(count, 0, p->total);
	for (uint32_t i = 0; i < p->n; i++)
		for (uint32_t k = 0; k < p->of[i].length; k++)
			count[p->of[i].offset + k]++;
	for (uint32_t k = 0; k < p->total; k++)
		if (count[k] != 1)
			return 0;
	return 1;
}

static void say_piece(int fd, const struct pieces *p, uint32_t i, uint32_t index)
{
	struct pair_frame f = {.kind = WIRE_DATA,
			       .length = p->of[i].length,
			       .seq = index,
			       .offset = p->of[i].offset,
			       .total = p->total,
			       .tag = A,
			       .index = index};

	pair_say(fd, &f, data + f.offset);
}

/* Message `index` of a link, in this order, over lanes that take turns or at random. 1: it is done. */
static int deliver(struct tcp_link *l, const int *raw, const struct pieces *p, uint32_t index, int lanes)
{
	void *request = irecv(l, in, p->total, A);
	int done = 0;

	memset(in, 0, p->total);
	for (uint32_t i = 0; i < p->n; i++) {
		CHECK(!is_done(request));
		say_piece(raw[1 + (lanes < 2 ? (i + (uint32_t)lanes) % 2 : random_below(2))], p, i, index);
		pair_passes(l, 3);
	}
	if (tcp_link_failed(l)) {
		CHECK(!is_done(request));
		CHECK_EQ(l->end.error, GANTRY_ERR_PROTOCOL);
		CHECK_HAS(l->end.text, "do not cover it exactly once");
		return 0;
	}
	CHECK_OK(tcp_link_test(request, &done, NULL));
	CHECK_EQ(done, 1); /* as many bytes as it has have come: there is nothing to wait for */
	return done;
}

/* One message on a link of its own: is the receiver of the same opinion as the count? */
static int agrees(const struct pieces *p, int lanes)
{
	int raw[3], done, expected = exact(p);
	struct tcp_link *l = pair_raw(&config, raw);

	done = deliver(l, raw, p, 0, lanes);
	if (done && expected)
		CHECK_EQ(memcmp(in, data, p->total), 0);
	pair_raw_free(&config, l, raw);
	return done == expected;
}

/* All pieces of all lengths at all places, in all orders, that have as many bytes as the message. */
static void each_of(struct pieces *p, uint32_t left, uint32_t room, uint32_t *cases, uint32_t *wrong)
{
	if (!left) {
		for (int lanes = 0; lanes < (p->total < 6 ? 2 : 1); lanes++) {
			*wrong += !agrees(p, lanes);
			(*cases)++;
		}
		return;
	}
	for (uint32_t length = room == 1 ? left : 1; room && length <= left; length++)
		for (uint32_t offset = 0; offset + length <= p->total; offset++) {
			p->of[p->n++] = (struct piece){offset, length};
			each_of(p, left - length, room - 1, cases, wrong);
			p->n--;
		}
}

TEST(exhaustive)
{
	uint32_t cases = 0, wrong = 0;

	for (uint32_t total = 1; total <= (SANITIZED ? 5 : 6); total++) {
		struct pieces p = {.total = total};

		each_of(&p, total, total < 6 ? 4 : 3, &cases, &wrong);
	}
	printf("%u messages, %u judged wrongly\n", cases, wrong);
	CHECK_EQ(wrong, 0);
}

static void random_cover(struct pieces *p)
{
	*p = (struct pieces){.total = 2 + random_below(MAX_TOTAL - 1)};
	for (uint32_t at = 0; at < p->total;) {
		uint32_t left = p->total - at, n = 1 + random_below(random_below(2) ? 20 : 1 + 2 * p->total / 5);

		if (n > left || p->n + 1 == MAX_PIECES)
			n = left;
		p->of[p->n++] = (struct piece){at, n};
		at += n;
	}
	for (uint32_t i = p->n; i > 1; i--) {
		uint32_t k = random_below(i);
		struct piece t = p->of[k];

		p->of[k] = p->of[i - 1];
		p->of[i - 1] = t;
	}
}

/* Exact ones in a long stream. */
TEST(covers)
{
	int raw[3];
	struct tcp_link *l = pair_raw(&config, raw);
	uint8_t nowhere[4096];

	for (uint32_t i = 0; i < 400; i++) {
		struct pieces p;

		random_cover(&p);
		CHECK(exact(&p));
		CHECK_EQ(deliver(l, raw, &p, i, 2), 1);
		CHECK_EQ(memcmp(in, data, p.total), 0);
		while (recv(raw[0], nowhere, sizeof(nowhere), MSG_DONTWAIT) > 0)
			;
	}
	pair_raw_free(&config, l, raw);
}

/* An exact one of which one or two pieces are somewhere else: they overlap others, and leave a hole. */
TEST(moved_pieces)
{
	uint32_t cases = 0, wrong = 0;

	for (int i = 0; i < 600; i++) {
		struct pieces p;

		random_cover(&p);
		for (uint32_t k = 0; k < 1 + random_below(2); k++) {
			struct piece *q = &p.of[random_below(p.n)];

			q->offset = random_below(p.total - q->length + 1);
		}
		cases += !exact(&p);
		wrong += !agrees(&p, 2);
	}
	printf("%u messages with a hole, %u judged wrongly\n", cases, wrong);
	CHECK(cases > 100);
	CHECK_EQ(wrong, 0);
}

/* ---- numbers of messages ---- */

static void say_numbered(int fd, uint32_t index, uint64_t seq, uint32_t offset, uint32_t length, uint32_t total)
{
	struct pair_frame f = {.kind = WIRE_DATA,
			       .length = length,
			       .seq = seq,
			       .offset = offset,
			       .total = total,
			       .tag = A,
			       .index = index};
	static const uint8_t zeros[100];

	pair_say(fd, &f, zeros);
}

/* Pieces that disagree about the number; a number that another message has, complete in order or out of order. */
TEST(numbers)
{
	for (int how = 0; how < 3; how++) {
		int raw[3];
		struct tcp_link *l = pair_raw(&config, raw);
		void *r[2] = {irecv(l, in, 100, A), irecv(l, in, 100, A)};

		if (how == 0) {
			say_numbered(raw[1], 0, 0, 0, 50, 100);
			say_numbered(raw[2], 0, 1, 50, 50, 100);
		} else {
			say_numbered(raw[1], 0, how == 1 ? 0 : 5, 0, 100, 100);
			pair_passes(l, 5);
			CHECK(is_done(r[0]));
			CHECK(!tcp_link_failed(l));
			say_numbered(raw[2], 1, how == 1 ? 0 : 5, 0, 100, 100);
		}
		pair_passes(l, 5);
		CHECK(tcp_link_failed(l));
		CHECK_EQ(l->end.error, GANTRY_ERR_PROTOCOL);
		CHECK_HAS(l->end.text, how == 0 ? "message 0 of tag 11" : "message 1 of tag 11");
		CHECK(!is_done(r[how != 0]));
		pair_raw_free(&config, l, raw);
	}
}

/* ---- towards device memory ---- */

static int ahead_agrees(const struct pieces *p)
{
	struct world w;
	void *request = NULL;
	int done = 0, expected = exact(p), fine;

	world_params(NULL);
	world_open(&w, 2, 1);
	memset(in, 0, p->total);
	CHECK_OK(tcp_link_irecv_unpack(w.l, in, p->total, A, 0, 1, &request));
	for (uint32_t i = 0; i < p->n; i++) {
		struct pair_frame f = {.kind = WIRE_DESCRIPTOR,
				       .length = p->of[i].length,
				       .offset = p->of[i].offset,
				       .total = p->total,
				       .tag = A};
		int lane = 1 + (int)random_below(2);

		say_frame(&w, f, (uint32_t)lane);
		say(&w, lane, data + p->of[i].offset, p->of[i].length);
	}
	WAIT_WHILE (!done && !tcp_link_failed(w.l)) {
		for (int i = 0; i < 3; i++)
			utter(&w, i, 1 << 20);
		listen_away(&w);
		tcp_link_test(request, &done, NULL);
	}
	fine = done == expected;
	if (done && expected) {
		CHECK_EQ(memcmp(in, data, p->total), 0);
		CHECK_OK(tcp_unpack_consumed(w.l, request));
	} else if (!done) {
		CHECK_EQ(w.l->end.error, GANTRY_ERR_PROTOCOL);
		CHECK_HAS(w.l->end.text, "do not cover it exactly once");
	}
	world_close(&w);
	return fine;
}

TEST(ahead)
{
	int wrong = 0;

	for (int i = 0; i < 60; i++) {
		struct pieces p;

		random_cover(&p);
		if (i % 2) {
			struct piece *q = &p.of[random_below(p.n)];

			q->offset = random_below(p.total - q->length + 1);
		}
		wrong += !ahead_agrees(&p);
	}
	CHECK_EQ(wrong, 0);
}

void tests_begin(void)
{
	pattern_fill(data, MAX_TOTAL, 9);
	logs_drop();
	tests_apart(0);
}
