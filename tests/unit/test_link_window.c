/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for whom: the window of eager messages. */
#include "link_match_util.h"

/* 1 MiB of window takes 17 messages of 60000 + 24 bytes and no eighteenth until receives are posted. */
TEST(window)
{
	enum { N = 60, SIZE = 60000 };
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	uint8_t *out = message(SIZE + N, 0), *in = room(SIZE);
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
	free(in);
	free(out);
	done_with(l);
}

/* Messages of a held tag that nobody receives leave the window to others, and come when they are received. */
TEST(window_and_held)
{
	enum { N = 60, SIZE = 60000 };
	struct pair_config c = {.nlanes = 2};
	struct tcp_link *l[2];
	uint8_t *out = message(SIZE + N, 0), *in = room(SIZE);
	void *sends[N], *s, *r;

	pair_links(&c, l);
	CHECK_OK(tcp_link_hold(l[0], A));
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
	free(in);
	free(out);
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
	uint8_t *out = message(MIB, 1), *in = room(MIB);

	pair_links(&c, l);
	for (int round = 0; round < 9; round++) {
		size_t size = round % 2 ? MIB / 2 : (size_t)(1000 << round);
		void *r = irecv(l[1], in, size, A), *s = isend(l[0], out, size, A);

		wait_for(l, r, NULL);
		wait_for(l, s, NULL);
		CHECK_PATTERN(in, size, 1);
	}
	free(in);
	free(out);
	done_with(l);
}

void tests_begin(void)
{
	logs_drop();
	tests_apart(0);
}
