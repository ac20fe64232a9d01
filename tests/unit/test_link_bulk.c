/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large messages: they wait for their receives, overtake each other on their lanes, are announced and acknowledged,
 * once.
 */
#include "link_match_util.h"

TEST(bulk_waits)
{
	struct pair_config c = {.nlanes = 3, .eager_max = 4096};
	struct tcp_link *l[2];
	uint8_t *out = message(700000, 5), *in = room(700000), small[10] = {1, 2, 3}, got[10];
	void *bulk, *s, *r;

	for (int hint = 0; hint < 2; hint++) {
		pair_links(&c, l);
		bulk = isend(l[0], out, 700000, A);
		progress(l, 20);
		/* Not a byte of it has left: the control lane has one RTS. Small messages pass it. */
		CHECK_EQ(l[0]->lanes[1].tx.bytes + l[0]->lanes[2].tx.bytes, 0);
		CHECK_EQ(l[1]->lanes[1].rx.bytes + l[1]->lanes[2].rx.bytes, 0);
		CHECK_EQ(l[0]->lanes[0].tx.bytes, 48);
		s = isend(l[0], small, 10, hint ? A : B);
		if (hint) /* the same tag: it belongs to the second receive */
			r = irecv(l[1], in, 700000, A);
		else
			r = NULL;
		void *r2 = irecv(l[1], got, 10, hint ? A : B);

		wait_for(l, r2, NULL);
		wait_for(l, s, NULL);
		CHECK(memcmp(got, small, 10) == 0);
		if (!r) {
			progress(l, 20);
			CHECK(!is_done(bulk));
			r = irecv(l[1], in, 700000, A);
		}
		wait_for(l, r, NULL);
		wait_for(l, bulk, NULL);
		CHECK_PATTERN(in, 700000, 5);
		done_with(l);
	}
	free(in);
	free(out);
}

/* Bulk and eager messages of one tag, mixed, in a long stream both ways with few receives posted at a time. */
TEST(mixed_stream)
{
	enum { N = 200, DEPTH = 5 };
	struct pair_config c = {.nlanes = 4, .eager_max = 2000};
	struct tcp_link *l[2];
	static uint8_t in[2][DEPTH][20000];
	uint8_t *out = message(20000 + N, 9);
	void *sends[2][N], *recvs[2][N];
	int sent[2] = {0}, posted[2] = {0}, got[2] = {0};
	uint64_t until = until_hang();

	pair_links(&c, l);
	while (got[0] < N || got[1] < N) {
		CHECK(gantry_now_ns() < until);
		for (int d = 0; d < 2; d++) {
			size_t size;

			if (sent[d] < N && sent[d] < got[d] + 3 * DEPTH) {
				size = (size_t)(sent[d] * 7919 % 20000);
				sends[d][sent[d]] = isend(l[d], out + sent[d], size, A);
				sent[d]++;
			}
			if (posted[d] < N && posted[d] < got[d] + DEPTH) {
				recvs[d][posted[d]] = irecv(l[!d], in[d][posted[d] % DEPTH], 20000, A);
				posted[d]++;
			}
			if (got[d] < posted[d]) {
				int bytes = -1;

				if (test(recvs[d][got[d]], &bytes)) {
					size = (size_t)(got[d] * 7919 % 20000);
					CHECK_EQ(bytes, size);
					CHECK(memcmp(in[d][got[d] % DEPTH], out + got[d], size) == 0);
					got[d]++;
				}
			}
		}
	}
	for (int d = 0; d < 2; d++)
		for (int i = 0; i < N; i++)
			wait_for(l, sends[d][i], NULL);
	free(out);
	done_with(l);
}

/* A lane that stands still holds up only what it carries; later messages are done before earlier ones. */
TEST(out_of_order)
{
	enum { N = 8, SIZE = 100000 };
	struct pair_config c = {.nlanes = 4, .eager_max = 4096};
	struct tcp_link *l[2];
	uint8_t *out[N], *in[N];
	void *sends[N], *recvs[N];
	int done = 0;

	pair_links(&c, l);
	lane_rx_mu_lock(&l[1]->lanes[1].rx.lock);
	for (int i = 0; i < N; i++) {
		out[i] = message(SIZE, (uint64_t)i);
		in[i] = room(SIZE);
		recvs[i] = irecv(l[1], in[i], SIZE, i % 2 ? A : B);
	}
	for (int i = 0; i < N; i++)
		sends[i] = isend(l[0], out[i], SIZE, i % 2 ? A : B);
	progress(l, 100);
	for (int i = 0; i < N; i++)
		done += is_done(recvs[i]);
	/* Lane 1 took the first message, and one or two more while its socket had room. */
	CHECK(!is_done(recvs[0]));
	CHECK(done >= N / 2 && done < N);
	lane_rx_mu_unlock(&l[1]->lanes[1].rx.lock);
	for (int i = 0; i < N; i++) {
		wait_for(l, recvs[i], NULL);
		wait_for(l, sends[i], NULL);
		CHECK_PATTERN(in[i], SIZE, (uint64_t)i);
		free(in[i]);
		free(out[i]);
	}
	done_with(l);
}

static size_t take_frames(int fd, struct pair_frame *frames, size_t max)
{
	uint8_t b[48];
	size_t n = 0;

	while (n < max && recv(fd, b, 48, MSG_DONTWAIT) == 48)
		frames[n++] = pair_frame_get(b);
	return n;
}

static void say(int fd, struct pair_frame f, const void *payload)
{
	uint8_t b[48];
	size_t n = pair_frame_put(b, &f);

	CHECK_EQ(send(fd, b, n, 0), n);
	if (f.length)
		CHECK_EQ(send(fd, payload, f.length, 0), f.length);
}

/*
 * Message 1, which its sender waits to hear of, comes before message 0, whose sender does not; in between the receiver
 * has something else to say. When message 0 is there too, both are done and the sender must be told.
 */
TEST(ack_after_gap)
{
	struct pair_config c = {.nlanes = 3, .eager_max = 64};
	int raw[3];
	struct tcp_link *l = pair_raw(&c, raw);
	struct pair_frame f[16];
	uint8_t in[3][200], out[200];
	uint64_t told = 0;

	pattern_fill(out, 200, 3);
	irecv(l, in[0], 100, A);
	irecv(l, in[1], 200, A);
	tcp_link_progress(l);
	say(raw[2],
	    (struct pair_frame){.kind = WIRE_DATA,
				.flags = WIRE_FLAG_ACK,
				.length = 200,
				.total = 200,
				.seq = 1,
				.tag = A,
				.index = 1},
	    out);
	for (int i = 0; i < 5; i++)
		tcp_link_progress(l);
	irecv(l, in[2], 200, B); /* is advertised: a STATE frame leaves */
	for (int i = 0; i < 5; i++)
		tcp_link_progress(l);
	for (size_t i = 0, n = take_frames(raw[0], f, 16); i < n; i++)
		CHECK_EQ(f[i].seq, 0);
	say(raw[1], (struct pair_frame){.kind = WIRE_DATA, .length = 100, .total = 100, .seq = 0, .tag = A}, out);
	for (int i = 0; i < 5; i++)
		tcp_link_progress(l);
	for (size_t i = 0, n = take_frames(raw[0], f, 16); i < n; i++)
		told = f[i].seq;
	CHECK_EQ(told, 2);
	CHECK_PATTERN(in[1], 200, 3);
	pair_raw_free(&c, l, raw);
}

/* More tags to tell of than fit one call: none of them is forgotten. */
TEST(many_tags)
{
	enum { GROUPS = 4, TAGS = 8 };
	struct pair_config c = {.nlanes = 2, .eager_max = 64};
	struct tcp_link *l[2];
	static uint8_t in[GROUPS * TAGS][200], out[200];
	void *sends[GROUPS * TAGS], *recvs[GROUPS];

	pair_links(&c, l);
	pattern_fill(out, 200, 4);
	for (int i = 0; i < GROUPS * TAGS; i++)
		sends[i] = isend(l[0], out, 200, 1000 + i);
	progress(l, 10); /* all are announced */
	/* Somebody else is busy with the control lane while the receives are posted. */
	control_mu_lock(&l[1]->control_mu);
	for (int g = 0; g < GROUPS; g++) {
		void *data[TAGS];
		size_t sizes[TAGS];
		int tags[TAGS];

		for (int i = 0; i < TAGS; i++) {
			data[i] = in[g * TAGS + i];
			sizes[i] = 200;
			tags[i] = 1000 + g * TAGS + i;
		}
		CHECK_OK(tcp_link_irecv(l[1], TAGS, data, sizes, tags, &recvs[g]));
	}
	control_mu_unlock(&l[1]->control_mu);
	for (int i = 0; i < GROUPS * TAGS; i++)
		wait_for(l, sends[i], NULL);
	for (int g = 0; g < GROUPS; g++)
		wait_for(l, recvs[g], NULL);
	done_with(l);
}

/* Many announcements and the end of a direction in one call: every frame is sent once. */
TEST(announcements_and_close)
{
	struct pair_config c = {.nlanes = 2, .eager_max = 64};
	int raw[2], seen[20] = {0}, closes = 0;
	struct tcp_link *l = pair_raw(&c, raw);
	struct pair_frame f[40];
	uint8_t out[200] = {0};
	size_t n;

	control_mu_lock(&l->control_mu);
	for (int i = 0; i < 20; i++)
		isend(l, out, 100 + (size_t)i, A);
	tcp_link_close_rx(l);
	control_mu_unlock(&l->control_mu);
	for (int i = 0; i < 5; i++)
		tcp_link_progress(l);
	n = take_frames(raw[0], f, 40);
	for (size_t i = 0; i < n; i++) {
		closes += f[i].kind == WIRE_CLOSE;
		if (f[i].kind == WIRE_RTS) {
			CHECK(f[i].index < 20);
			CHECK_EQ(f[i].total, 100 + f[i].index);
			seen[f[i].index]++;
		}
	}
	CHECK_EQ(closes, 1);
	for (int i = 0; i < 20; i++)
		CHECK_EQ(seen[i], 1);
	pair_raw_free(&c, l, raw);
}

/* A peer that says things twice breaks the protocol; a receive that lacks bytes is never done. */
TEST(said_twice)
{
	static const struct pair_frame empty = {.kind = WIRE_EAGER, .tag = A};
	static const struct pair_frame half = {.kind = WIRE_DATA, .length = 51, .total = 100, .tag = A};
	struct pair_config c = {.nlanes = 3, .eager_max = 64};
	uint8_t in[2][100], out[100] = {0};

	for (int how = 0; how < 3; how++) {
		int raw[3], done = 0, tags[2] = {A, B};
		struct tcp_link *l = pair_raw(&c, raw);
		void *request, *data[2] = {in[0], in[1]};
		size_t sizes[2] = {100, 100};
		gantry_result r = GANTRY_OK;

		CHECK_OK(tcp_link_irecv(l, how == 0 ? 2 : 1, data, sizes, tags, &request));
		if (how == 0) { /* an empty message for the first of two buffers */
			say(raw[0], empty, NULL);
			say(raw[0], empty, NULL);
		} else if (how == 1) { /* the same piece, more than a half */
			say(raw[1], half, out);
			say(raw[2], half, out);
		} else { /* a message that shrinks on the way */
			struct pair_frame shorter = half;

			shorter.total = 52;
			shorter.offset = 51;
			shorter.length = 1;
			say(raw[1], half, out);
			say(raw[2], shorter, out);
		}
		for (int i = 0; i < 10 && r == GANTRY_OK; i++) {
			r = tcp_link_test(request, &done, NULL);
			CHECK(!done);
		}
		CHECK_EQ(r, GANTRY_ERR_PROTOCOL);
		pair_raw_free(&c, l, raw);
	}
}

void tests_begin(void)
{
	logs_drop();
	tests_apart(0);
}
