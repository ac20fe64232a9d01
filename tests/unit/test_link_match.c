/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which message goes where: tags, groups, messages that come early, sizes that do not fit, a limited number of
 * requests. Who waits for whom: the window of eager messages; large messages, which wait for their receives, overtake
 * each other on their lanes, are announced and acknowledged, once.
 */
#include "link_match_util.h"

/* ---- tags and groups ---- */

/* A0, A1, B0, B1 against {A,B}, {A,B}: the second group gets A1 and B1. Posted before, after, or in the middle. */
static void groups_of(size_t size, int posted_when, int nlanes)
{
	struct pair_config c = {.nlanes = nlanes, .eager_max = 1000};
	uint8_t *in[4], *out[4];
	void *sends[4], *recvs[2];
	static const int tags[4] = {A, A, B, B};
	struct tcp_link *l[2];

	pair_links(&c, l);
	for (int i = 0; i < 4; i++) {
		out[i] = message(size + (size_t)i, (uint64_t)i);
		in[i] = room(size + 10);
	}
	for (int step = 0; step < 5; step++) {
		if (step == posted_when) {
			for (int g = 0; g < 2; g++) {
				/* Group g gets message g of A and message g of B; B first in the second group. */
				void *data[2] = {in[g], in[2 + g]}, *swapped[2] = {in[2 + g], in[g]};
				size_t sizes[2] = {size + 10, size + 10};
				int ab[2] = {A, B}, ba[2] = {B, A};

				CHECK_OK(tcp_link_irecv(l[1], 2, g ? swapped : data, sizes, g ? ba : ab, &recvs[g]));
			}
		}
		if (step < 4)
			sends[step] = isend(l[0], out[step], size + (size_t)step, tags[step]);
		progress(l, 3);
	}
	for (int g = 0; g < 2; g++) {
		int sizes[2] = {-1, -1};

		wait_for(l, recvs[g], sizes);
		CHECK_EQ(sizes[g], size + (size_t)g);
		CHECK_EQ(sizes[!g], size + 2 + (size_t)g);
	}
	for (int i = 0; i < 4; i++) {
		int got = -1;

		wait_for(l, sends[i], &got);
		CHECK_EQ(got, size + (size_t)i);
		CHECK_PATTERN(in[i], size + (size_t)i, (uint64_t)i);
		free(in[i]);
		free(out[i]);
	}
	done_with(l);
}

TEST(groups)
{
	for (int when = 0; when <= 4; when++) {
		groups_of(0, when, 2);
		groups_of(500, when, 2);
		groups_of(990, when, 2); /* some of the four are eager, none of the receives is small */
		groups_of(200000, when, 2);
		groups_of(200000, when, 4);
	}
}

/* One tag three times in one group, and once more in the next: in order of posting within the group. */
TEST(duplicate_tags)
{
	struct pair_config c = {.nlanes = 2, .eager_max = 100};
	struct tcp_link *l[2];
	uint8_t *in[8], *out[8];
	void *data[4], *sends[8], *first, *second;
	size_t room_for[4] = {300, 300, 300, 300};
	int tags[4] = {A, B, A, A}, sizes[4];
	/* k-th message of A goes to the k-th buffer of A. */
	static const int order[8] = {A, A, B, A, A, A, B, A};
	static const int slot[8] = {0, 2, 1, 3, 4, 6, 5, 7};

	pair_links(&c, l);
	for (int i = 0; i < 8; i++) {
		out[i] = message((size_t)i * 37, (uint64_t)i + 50);
		in[i] = room(300);
	}
	for (int i = 0; i < 4; i++)
		data[i] = in[i];
	CHECK_OK(tcp_link_irecv(l[1], 4, data, room_for, tags, &first));
	for (int i = 0; i < 8; i++)
		sends[i] = isend(l[0], out[i], (size_t)i * 37, order[i]);
	progress(l, 5);
	for (int i = 0; i < 4; i++)
		data[i] = in[4 + i];
	CHECK_OK(tcp_link_irecv(l[1], 4, data, room_for, tags, &second));
	wait_for(l, first, sizes);
	CHECK_EQ(sizes[0], 0);
	CHECK_EQ(sizes[2], 37);
	CHECK_EQ(sizes[1], 74);
	CHECK_EQ(sizes[3], 111);
	wait_for(l, second, sizes);
	CHECK_EQ(sizes[3], 259);
	for (int i = 0; i < 8; i++) {
		wait_for(l, sends[i], NULL);
		CHECK_PATTERN(in[slot[i]], (size_t)i * 37, (uint64_t)i + 50);
		free(out[i]);
	}
	for (int i = 0; i < 8; i++)
		free(in[i]);
	done_with(l);
}

/* Negative tags are tags like any other; a receive of nothing at NULL is a receive. */
TEST(odd_tags_and_null)
{
	struct pair_config c = {.nlanes = 2, .crc = 1};
	struct tcp_link *l[2];
	uint8_t one = 0x5a, got = 0;
	void *r[2], *s[2];
	int size = -1;

	for (int early = 0; early < 2; early++) {
		pair_links(&c, l);
		if (!early) {
			r[0] = irecv(l[1], NULL, 0, -1);
			r[1] = irecv(l[1], &got, 1, INT32_MIN);
		}
		s[1] = isend(l[0], &one, 1, INT32_MIN);
		s[0] = isend(l[0], NULL, 0, -1);
		progress(l, 4);
		if (early) {
			r[0] = irecv(l[1], NULL, 0, -1);
			r[1] = irecv(l[1], &got, 1, INT32_MIN);
		}
		wait_for(l, r[0], &size);
		CHECK_EQ(size, 0);
		wait_for(l, r[1], &size);
		CHECK_EQ(size, 1);
		CHECK_EQ(got, 0x5a);
		wait_for(l, s[0], NULL);
		wait_for(l, s[1], NULL);
		done_with(l);
	}
}

/* Eager messages of three tags come before any receive; the receives are posted in every order of tags. */
TEST(early_any_order)
{
	static const int perms[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
	struct pair_config c = {.nlanes = 2};
	static uint8_t out[30][400], in[30][400];

	for (int p = 0; p < 6; p++) {
		struct tcp_link *l[2];
		void *sends[30], *recvs[30];
		int n = 0;

		pair_links(&c, l);
		for (int i = 0; i < 30; i++) {
			pattern_fill(out[i], 400, (uint64_t)i);
			sends[i] = isend(l[0], out[i], (size_t)i * 13, i % 3);
		}
		progress(l, 10);
		memset(in, 0, sizeof(in));
		for (int k = 0; k < 3; k++)
			for (int i = perms[p][k]; i < 30; i += 3)
				recvs[n++] = irecv(l[1], in[i], 400, perms[p][k]);
		n = 0;
		for (int k = 0; k < 3; k++)
			for (int i = perms[p][k]; i < 30; i += 3) {
				int size = -1;

				wait_for(l, recvs[n++], &size);
				CHECK_EQ(size, i * 13);
				CHECK_PATTERN(in[i], (size_t)i * 13, (uint64_t)i);
				CHECK(i * 13 >= 400 || in[i][i * 13] == 0);
			}
		for (int i = 0; i < 30; i++)
			wait_for(l, sends[i], NULL);
		done_with(l);
	}
}

/* ---- sizes that do not fit ---- */

enum { EAGER_POSTED, EAGER_EARLY, EAGER_GROUP, BULK_POSTED, BULK_LATE, MISMATCHES };

static void mismatch(int how)
{
	struct pair_config c = {.nlanes = 2, .eager_max = 5000};
	struct tcp_link *l[2];
	size_t sent = how < BULK_POSTED ? 4321 : 54321, got = how < BULK_POSTED ? 1234 : 12345;
	uint8_t *out = message(sent, 1), *in = room(got), other[8];
	uint8_t tail = in[got] = 0x77;
	void *data[2] = {other, in}, *r = NULL, *s = NULL;
	size_t sizes[2] = {8, got};
	char text[2][32];
	int tags[2] = {B, A}, done;
	gantry_result result = GANTRY_OK;

	pair_links(&c, l);
	if (how == EAGER_POSTED || how == BULK_POSTED)
		r = irecv(l[1], in, got, A);
	if (how == EAGER_GROUP)
		CHECK_OK(tcp_link_irecv(l[1], 2, data, sizes, tags, &r));
	s = isend(l[0], out, sent, A);
	if (how == BULK_LATE || how == EAGER_EARLY)
		progress(l, 10);
	if (!r)
		CHECK_OK(tcp_link_irecv(l[1], 1, data + 1, sizes + 1, tags + 1, &r));
	snprintf(text[0], sizeof(text[0]), "%zu bytes", sent);
	snprintf(text[1], sizeof(text[1]), "%zu bytes", got);
	for (int i = 0; i < 100 && result == GANTRY_OK; i++) {
		progress(l, 1);
		result = tcp_link_test(r, &done, NULL);
		CHECK(result != GANTRY_OK || !done);
	}
	CHECK_ERROR(result, GANTRY_ERR_SIZE, text[0]);
	CHECK_HAS(gantry_last_error(), text[1]);
	gantry_set_last_error("");
	/* A send that was copied was done when it left; whatever its side does next hears of it. */
	result = GANTRY_OK;
	for (int i = 0; i < 100 && result == GANTRY_OK; i++) {
		progress(l, 1);
		result = s ? tcp_link_test(s, &done, NULL) : tcp_link_irecv(l[0], 1, data, sizes, tags, &r);
		if (s && result == GANTRY_OK && done)
			s = NULL;
	}
	CHECK_ERROR(result, GANTRY_ERR_SIZE, text[0]);
	CHECK_HAS(gantry_last_error(), text[1]);
	CHECK_EQ(in[got], tail);
	pair_free(l);
	free(in);
	free(out);
}

TEST(mismatches)
{
	for (int how = 0; how < MISMATCHES; how++)
		mismatch(how);
}

/* ---- how many ---- */

TEST(requests_exhausted)
{
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	static uint8_t in[LINK_RECVS][4], out[4] = {1, 2, 3, 4};
	void *sends[LINK_SENDS], *recvs[LINK_RECVS], *request = out, *data = in[0];
	size_t size = 4;
	int tag = A;

	pair_links(&c, l);
	/* At least 32 receives and 32 times 8 sends are in flight, then "again later". */
	CHECK(LINK_RECVS >= 32 && LINK_SENDS >= 256);
	for (int i = 0; i < LINK_RECVS; i++)
		recvs[i] = irecv(l[1], in[i], 4, A);
	CHECK_OK(tcp_link_irecv(l[1], 1, &data, &size, &tag, &request));
	CHECK(!request);
	for (int i = 0; i < LINK_SENDS; i++)
		sends[i] = isend(l[0], out, 4, A);
	request = out;
	CHECK_OK(tcp_link_isend(l[0], out, 4, A, &request));
	CHECK(!request);
	/* What did not get a request has not counted: the next one is the 257th, and arrives as that. */
	wait_for(l, sends[0], NULL);
	CHECK_OK(tcp_link_isend(l[0], out, 3, A, &request));
	CHECK(request);
	sends[0] = request;
	for (int i = 0; i < LINK_SENDS + 1; i++) {
		int got = -1;

		wait_for(l, recvs[i % LINK_RECVS], &got);
		CHECK_EQ(got, i < LINK_SENDS ? 4 : 3);
		if (i + LINK_RECVS < LINK_SENDS + 1)
			recvs[i % LINK_RECVS] = irecv(l[1], in[i % LINK_RECVS], 4, A);
	}
	for (int i = 0; i < LINK_SENDS; i++)
		wait_for(l, sends[i], NULL);
	done_with(l);
}

/* ---- several sends in one call ---- */

static int socket_sends;

static ssize_t count_send(struct tcp_io *io, const struct iovec *iov, int n, unsigned flags)
{
	socket_sends++;
	return tcp_io_engine->send(io, iov, n, flags);
}

TEST(sends_of_one_call)
{
	enum { N = 5 };
	static const size_t sizes[N] = {16384, 0, 1, 4096, 7000};
	struct pair_config c = {.nlanes = 2};
	struct tcp_io_ops counted = *tcp_io_engine;
	void *data[N], *sends[N], *recvs[N], *taken[LINK_SENDS];
	struct tcp_link *l[2];
	uint8_t *in[N];

	pair_links(&c, l);
	counted.send = count_send;
	l[0]->lanes[0].io.ops = &counted;
	for (int i = 0; i < N; i++) {
		data[i] = message(sizes[i], (uint64_t)i);
		in[i] = room(sizes[i]);
		recvs[i] = irecv(l[1], in[i], sizes[i] + 1, A);
	}
	progress(l, 10);
	socket_sends = 0;
	CHECK_OK(tcp_link_isends(l[0], N, data, sizes, A, sends));
	CHECK_EQ(socket_sends, 1);
	for (int i = 0; i < N; i++) {
		int got = -1;

		CHECK(sends[i]);
		wait_for(l, sends[i], NULL);
		wait_for(l, recvs[i], &got);
		CHECK_EQ(got, (int)sizes[i]);
		CHECK(memcmp(in[i], data[i], sizes[i]) == 0);
		free(in[i]);
	}
	/* As many as there is room for. */
	for (int i = 0; i < LINK_SENDS - 2; i++)
		taken[i] = isend(l[0], data[3], 1, A);
	CHECK_OK(tcp_link_isends(l[0], N, data, sizes, A, sends));
	CHECK(sends[0] && sends[1]);
	for (int i = 2; i < N; i++)
		CHECK(!sends[i]);
	taken[LINK_SENDS - 2] = sends[0];
	taken[LINK_SENDS - 1] = sends[1];
	for (int i = 0; i < LINK_SENDS; i++) {
		static uint8_t into[16384];
		int got = -1;
		void *recv = irecv(l[1], into, sizeof(into), A);

		wait_for(l, recv, &got);
		CHECK_EQ(got, i < LINK_SENDS - 2 ? 1 : (int)sizes[i - (LINK_SENDS - 2)]);
	}
	for (int i = 0; i < LINK_SENDS; i++)
		wait_for(l, taken[i], NULL);
	for (int i = 0; i < N; i++)
		free(data[i]);
	done_with(l);
}

/* ---- the window of eager messages ---- */

/* 1 MiB of window takes 17 messages of 60000 + 24 bytes and no eighteenth until receives are posted. */
TEST(window)
{
	enum { N = 60, SIZE = 60000 };
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	FREED uint8_t *out = message(SIZE + N, 0), *in = room(SIZE);
	void *sends[N], *request;
	int done = 0;

	pair_links(&c, l);
	for (int i = 0; i < N; i++)
		sends[i] = isend(l[0], out + i, SIZE, A);
	progress(l, 200);
	for (int i = 0; i < N; i++)
		done += is_done(sends[i]);
	CHECK_EQ(done, MIB / (SIZE + 24));
	for (int i = 0; i < N; i++) {
		request = irecv(l[1], in, SIZE, A);
		wait_for(l, request, NULL);
		CHECK(memcmp(in, out + i, SIZE) == 0);
	}
	for (int i = 0; i < N; i++)
		wait_for(l, sends[i], NULL);
	done_with(l);
}

/* Messages of a held tag that nobody receives leave the window to others, and come when they are received. */
TEST(window_and_held)
{
	enum { N = 60, SIZE = 60000 };
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	FREED uint8_t *out = message(SIZE + N, 0), *in = room(SIZE);
	void *sends[N], *s, *r;

	pair_links(&c, l);
	CHECK_OK(tcp_link_hold(l[0], true, A));
	for (int i = 0; i < N; i++)
		sends[i] = isend(l[0], out + i, SIZE - i * 1000, A);
	for (int i = 0; i < N; i++) { /* more than a window of another tag */
		r = irecv(l[1], in, SIZE, B);
		s = isend(l[0], out + i, SIZE, B);
		wait_for(l, s, NULL);
		wait_for(l, r, NULL);
		CHECK(memcmp(in, out + i, SIZE) == 0);
	}
	for (int i = 0; i < N; i++)
		CHECK(!is_done(sends[i]));
	for (int i = 0; i < N; i++) {
		size_t size = (size_t)(SIZE - i * 1000);

		r = irecv(l[1], in, SIZE, A);
		wait_for(l, r, NULL);
		wait_for(l, sends[i], NULL);
		CHECK(memcmp(in, out + i, size) == 0);
	}
	done_with(l);
}

/*
 * The receiver of a held tag looks for its small messages on the bulk lanes, and its helpers do: without that a last part of a
 * few KiB was found a millisecond late.
 */
TEST(held_and_small)
{
	enum { SIZE = 1000 };
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	FREED uint8_t *out = message(SIZE, 0), *in = room(SIZE);
	void *s, *r;

	pair_links(&c, l);
	r = irecv(l[1], in, SIZE, B);
	CHECK_EQ(l[1]->rx.large_posted, 0);
	s = isend(l[0], out, SIZE, B);
	wait_for(l, s, NULL);
	wait_for(l, r, NULL);
	CHECK_OK(tcp_link_hold(l[0], true, A));
	CHECK_OK(tcp_link_hold(l[1], false, A));
	r = irecv(l[1], in, SIZE, A);
	CHECK_EQ(l[1]->rx.large_posted, 1);
	s = isend(l[0], out, SIZE, A);
	wait_for(l, r, NULL);
	wait_for(l, s, NULL);
	CHECK(memcmp(in, out, SIZE) == 0);
	CHECK_EQ(l[1]->rx.large_posted, 0);
	done_with(l);
}

/* Empty messages take their headers' worth: 1 MiB / 24. They cannot fill the receiver's memory. */
TEST(window_of_nothing)
{
	struct pair_config c = {.nlanes = 2, .window = 2400};
	struct tcp_link *l[2];
	void *sends[150];
	int done = 0;

	pair_links(&c, l);
	for (int i = 0; i < 150; i++)
		sends[i] = isend(l[0], NULL, 0, A);
	progress(l, 100);
	for (int i = 0; i < 150; i++)
		done += is_done(sends[i]);
	CHECK_EQ(done, 2400 / 24);
	done_with(l);
}

/* The largest eager message (half a window) behind small ones that were consumed: the window must come back. */
TEST(window_and_largest)
{
	struct pair_config c = {.nlanes = 2, .eager_max = MIB / 2};
	struct tcp_link *l[2];
	FREED uint8_t *out = message(MIB, 1), *in = room(MIB);

	pair_links(&c, l);
	for (int round = 0; round < 9; round++) {
		size_t size = round % 2 ? MIB / 2 : (size_t)(1000 << round);
		void *r = irecv(l[1], in, size, A), *s = isend(l[0], out, size, A);

		wait_for(l, r, NULL);
		wait_for(l, s, NULL);
		CHECK_PATTERN(in, size, 1);
	}
	done_with(l);
}

/* ---- large messages ---- */

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
	FREED uint8_t *out = message(20000 + N, 9);
	void *sends[2][N], *recvs[2][N];
	int sent[2] = {0}, posted[2] = {0}, got[2] = {0};

	pair_links(&c, l);
	WAIT_WHILE (got[0] < N || got[1] < N) {
		progress(l, 1); /* a direction that is through must not leave the other one alone */
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

/*
 * Message 1, which its sender waits to hear of, comes before message 0, whose sender does not; in between the receiver
 * has something else to say. When message 0 is there too, both are done and the sender must be told.
 */
TEST(ack_after_gap)
{
	static const struct pair_frame first = {.kind = WIRE_DATA, .length = 100, .total = 100, .tag = A};
	static const struct pair_frame second = {
		.kind = WIRE_DATA, .flags = WIRE_FLAG_ACK, .length = 200, .total = 200, .seq = 1, .tag = A, .index = 1};
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
	pair_say(raw[2], &second, out);
	pair_passes(l, 5);
	irecv(l, in[2], 200, B); /* is advertised: a STATE frame leaves */
	pair_passes(l, 5);
	for (size_t i = 0, n = take_frames(raw[0], f, 16); i < n; i++)
		CHECK_EQ(f[i].seq, 0);
	pair_say(raw[1], &first, out);
	pair_passes(l, 5);
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
	pair_passes(l, 5);
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

/*
 * A burst of receives after a run of bulk messages: the sender, which knows of no other, hears of the first at once, and
 * of the rest in the next look, in one frame. (One more each, as it was, are a tenth of NCCL's time at 1 MiB.)
 */
TEST(burst_of_receives)
{
	enum { BURST = 4, SIZE = 100 };
	struct pair_config c = {.nlanes = 2, .eager_max = 64};
	struct pair_frame f[16], data = {.kind = WIRE_DATA, .length = SIZE, .total = SIZE, .tag = A};
	uint8_t in[BURST][SIZE], out[SIZE] = {0};
	void *r[BURST];
	int raw[2];
	struct tcp_link *l = pair_raw(&c, raw);

	pair_say(raw[0], &(struct pair_frame){.kind = WIRE_RTS, .tag = A, .total = SIZE}, NULL);
	pair_passes(l, 2);
	for (uint32_t burst = 0; burst < 3; burst++) {
		for (int i = 0; i < BURST; i++)
			r[i] = irecv(l, in[i], SIZE, A);
		CHECK_EQ(take_frames(raw[0], f, 16), 1);
		CHECK_EQ(f[0].kind, WIRE_STATE);
		CHECK_EQ(f[0].index, BURST * burst + 1);
		pair_passes(l, 1);
		CHECK_EQ(take_frames(raw[0], f, 16), 1);
		CHECK_EQ(f[0].kind, WIRE_STATE);
		CHECK_EQ(f[0].index, BURST * (burst + 1));
		for (int i = 0; i < BURST; i++, data.index++, data.seq++)
			pair_say(raw[1], &data, out);
		for (int i = 0; i < BURST; i++)
			WAIT_WHILE (!test(r[i], NULL))
				;
		CHECK_EQ(take_frames(raw[0], f, 16), 0); /* nothing to acknowledge */
	}
	pair_raw_free(&c, l, raw);
}

/* A small message comes between a receive and the test that tells of it, read by another thread, say: the sender, which
 * has not asked, hears of the receive nevertheless. */
TEST(small_one_between)
{
	enum { SIZE = 100 };
	struct pair_config c = {.nlanes = 2, .eager_max = 64};
	struct pair_frame f[16];
	uint8_t in[2][SIZE], out[SIZE] = {0};
	int raw[2];
	struct tcp_link *l = pair_raw(&c, raw);

	pair_say(raw[0], &(struct pair_frame){.kind = WIRE_RTS, .tag = A, .total = SIZE}, NULL);
	pair_passes(l, 2);
	for (int i = 0; i < 2; i++)
		irecv(l, in[i], SIZE, A);
	CHECK_EQ(take_frames(raw[0], f, 16), 1);
	pair_say(raw[0], &(struct pair_frame){.kind = WIRE_EAGER, .tag = A, .index = 2, .length = 1, .total = 1}, out);
	WAIT_WHILE (!tcp_lane_rx(&l->lanes[0], true))
		;
	pair_passes(l, 1);
	CHECK_EQ(take_frames(raw[0], f, 16), 1);
	CHECK_EQ(f[0].kind, WIRE_STATE);
	CHECK_EQ(f[0].index, 2);
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
			pair_say(raw[0], &empty, NULL);
			pair_say(raw[0], &empty, NULL);
		} else if (how == 1) { /* the same piece, more than a half */
			pair_say(raw[1], &half, out);
			pair_say(raw[2], &half, out);
		} else { /* a message that shrinks on the way */
			struct pair_frame shorter = half;

			shorter.total = 52;
			shorter.offset = 51;
			shorter.length = 1;
			pair_say(raw[1], &half, out);
			pair_say(raw[2], &shorter, out);
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

/* One message from l[0] to l[1], and back. Were they bulk messages? */
static int exchange(struct tcp_link *l[2], uint8_t *out, uint8_t *in, size_t size)
{
	uint64_t before = l[0]->tx.next_seq + l[1]->tx.next_seq;

	for (int i = 0; i < 2; i++) {
		void *r = irecv(l[!i], in, size, A), *s = isend(l[i], out, size, A);

		wait_for(l, s, NULL);
		wait_for(l, r, NULL);
		CHECK_PATTERN(in, size, 3);
	}
	return (int)(l[0]->tx.next_seq + l[1]->tx.next_seq - before);
}

/* Pieces that four bulk lanes carry of so many messages of 1 MiB, which are all posted before the first byte leaves. */
static uint64_t pieces_of(int n)
{
	enum { MOST = 16 };
	struct tcp_link *l[2];
	uint8_t *from[MOST], *to[MOST];
	void *sends[MOST], *recvs[MOST];
	uint64_t pieces = 0;

	pair_links(&(struct pair_config){.nlanes = 5, .inet = 1}, l);
	for (int i = 0; i < n; i++) {
		from[i] = message(MIB, (uint64_t)i);
		to[i] = room(MIB);
		recvs[i] = irecv(l[1], to[i], MIB, A);
	}
	progress(l, 4); /* the sender knows of the receives */
	for (int i = 0; i < n; i++)
		sends[i] = isend(l[0], from[i], MIB, A);
	for (int i = 0; i < n; i++) {
		wait_for(l, sends[i], NULL);
		wait_for(l, recvs[i], NULL);
		CHECK(memcmp(from[i], to[i], MIB) == 0);
		free(from[i]);
		free(to[i]);
	}
	for (int i = 1; i < 5; i++)
		pieces += l[0]->lanes[i].tx.pieces;
	done_with(l);
	return pieces;
}

/* One message is cut for all lanes to have a part of it; of many that wait only the last are. */
TEST(fewer_pieces_where_more_waits)
{
	uint64_t many = pieces_of(16);

	CHECK_EQ(pieces_of(1), 4u);
	CASE("%llu pieces of 16 messages", (unsigned long long)many);
	CHECK(many >= 16 && many <= 16 + 3 * 4);
}

/* Large messages that go alone, several in a row, become eager; in a stream they are bulk messages. */
TEST(alone)
{
	enum { SIZE = 50000, LARGER = 70000 };
	static uint8_t out[LARGER], in[2][LARGER];
	struct pair_config c = {.nlanes = 2, .inet = 1, .eager_max = 16384};
	struct tcp_link *l[2];
	void *r[2], *s[2];

	pair_links(&c, l);
	l[0]->session.lone_max = l[1]->session.lone_max = 65536;
	pattern_fill(out, LARGER, 3);
	for (int i = 1; i < 20; i++)
		CHECK_EQ(exchange(l, out, in[0], SIZE), i < LINK_LONE_RUN ? 2 : 0);
	CHECK_EQ(exchange(l, out, in[0], LARGER), 2);
	for (int i = 0; i < 2; i++) {
		r[i] = irecv(l[1], in[i], SIZE, A);
		s[i] = isend(l[0], out, SIZE, A);
	}
	CHECK(!((struct tcp_send *)s[1])->eager);
	for (int i = 0; i < 2; i++) {
		wait_for(l, s[i], NULL);
		wait_for(l, r[i], NULL);
		CHECK_PATTERN(in[i], SIZE, 3);
	}
	CHECK_EQ(exchange(l, out, in[0], SIZE), 1); /* the stream was one way */
	pair_free(l);
}

/* Those of a hasty tag leave before their receive is posted, also several; or only if they are alone, then larger. */
TEST(hasty)
{
	enum { SIZE = 50000, LARGER = 70000 };
	static uint8_t out[LARGER], in[2][LARGER];
	struct pair_config c = {.nlanes = 2, .inet = 1, .eager_max = 16384};
	struct tcp_link *l[2];
	void *r[2], *s[2];

	pair_links(&c, l);
	for (int i = 0; i < 2; i++) {
		l[i]->session.lone_max = 20000;
		l[i]->session.hasty_max = 65536;
	}
	pattern_fill(out, LARGER, 3);
	CHECK_OK(tcp_link_hasten(l[0], B, 0));
	for (int i = 0; i < 2; i++)
		s[i] = isend(l[0], out, SIZE, B);
	for (int i = 0; i < 2; i++) {
		CHECK(((struct tcp_send *)s[i])->eager);
		wait_for(l, s[i], NULL);
		r[i] = irecv(l[1], in[i], SIZE, B);
		wait_for(l, r[i], NULL);
		CHECK_PATTERN(in[i], SIZE, 3);
	}
	r[0] = irecv(l[1], in[0], LARGER, B);
	s[0] = isend(l[0], out, LARGER, B);
	CHECK(!((struct tcp_send *)s[0])->eager);
	wait_for(l, s[0], NULL);
	wait_for(l, r[0], NULL);
	for (int i = 0; i < 2; i++)
		CHECK_OK(tcp_link_hasten(l[i], A, 1));
	for (int i = 1; i < 20; i++)
		CHECK_EQ(exchange(l, out, in[0], SIZE), i < LINK_LONE_RUN ? 2 : 0);
	for (int i = 0; i < 2; i++) {
		r[i] = irecv(l[1], in[i], SIZE, A);
		s[i] = isend(l[0], out, SIZE, A);
	}
	CHECK(!((struct tcp_send *)s[1])->eager);
	for (int i = 0; i < 2; i++) {
		wait_for(l, s[i], NULL);
		wait_for(l, r[i], NULL);
	}
	pair_free(l);
}
