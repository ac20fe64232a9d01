/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which message goes where: tags, groups, messages that come early, sizes that do not fit, a limited number of
 * requests.
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
	CHECK_EQ(result, GANTRY_ERR_SIZE);
	CHECK_HAS(gantry_last_error(), text[0]);
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
	CHECK_EQ(result, GANTRY_ERR_SIZE);
	CHECK_HAS(gantry_last_error(), text[0]);
	CHECK_HAS(gantry_last_error(), text[1]);
	CHECK_EQ(in[got], tail);
	tcp_link_free(l[0]);
	tcp_link_free(l[1]);
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

void tests_begin(void)
{
	logs_drop();
	tests_apart(0);
}
