/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane at work: ranks as threads join, gather, talk, call each other and leave.
 * Catches: messages out of order or mixed up between tags and senders, an allgather that mixes ranks or numbers, a call
 * answered to the wrong caller, a leave that waits, threads, descriptors or memory that stay behind.
 */
#include <malloc.h>

#include "ctl_util.h"

/* A part that tells who gave it and when. */
static uint32_t part(int rank, int round, int i)
{
	return (uint32_t)(rank * 1000003 + round * 7919 + i * 31);
}

static void gather_body(struct rank_state *s)
{
	static const size_t counts[] = {1, 0, 5, 16384};
	uint32_t *mine = malloc(16384 * 4), *all = malloc((size_t)s->nranks * 16384 * 4);

	CHECK(mine && all);
	for (int round = 0; round < 12; round++) {
		size_t n = counts[round % 4];

		if (s->nranks > 8 && n > 5)
			n = 64;
		for (size_t i = 0; i < n; i++)
			mine[i] = part(s->rank, round, (int)i);
		CHECK_OK(gantry_ctl_allgather(s->ctl, mine, n * 4, all));
		for (int r = 0; r < s->nranks; r++)
			for (size_t i = 0; i < n; i++)
				CHECK_EQ(all[(size_t)r * n + i], part(r, round, (int)i));
	}
	free(mine);
	free(all);
}

TEST(test_gather)
{
	struct gantry_unique_id id;

	ranks_leave(ranks_run(1, &id, gather_body), 1);
	ranks_leave(ranks_run(5, &id, gather_body), 5);
}

TEST(test_many)
{
	struct gantry_unique_id id;
	uint64_t began = now_ms();
	struct rank_state *s = ranks_run(64, &id, NULL);
	int took = (int)(now_ms() - began);

	printf("64 ranks joined in %d ms\n",
	       took); /* some ms on an idle machine; GANTRY_CONNECT_TIMEOUT is the limit */
	ranks_leave(s, 64);
	ranks_leave(ranks_run(64, &id, gather_body), 64);
}

/* Everybody sends everybody numbered messages with two tags; both orders hold, whichever is asked for first. */
static void talk_body(struct rank_state *s)
{
	enum { N = 50 };

	for (int i = 0; i < N; i++)
		for (int to = 0; to < s->nranks; to++)
			for (int tag = 0; tag < 2; tag++) {
				uint32_t v = part(s->rank * 2 + tag, to, i);

				CHECK_OK(gantry_ctl_send(s->ctl, to, (uint64_t)tag + (1ull << 40), &v, sizeof(v)));
			}
	for (int tag = 1; tag >= 0; tag--)
		for (int from = 0; from < s->nranks; from++)
			for (int i = 0; i < N; i++) {
				uint32_t v = 0;

				CHECK_OK(recv_wait(s->ctl, from, (uint64_t)tag + (1ull << 40), &v, sizeof(v)));
				CHECK_EQ(v, part(from * 2 + tag, s->rank, i));
			}
	CHECK_EQ(gantry_ctl_try_recv(s->ctl, 0, 1ull << 40, NULL, 0), GANTRY_AGAIN);
	/* Nobody leaves before all have got theirs. */
	CHECK_OK(gantry_ctl_allgather(s->ctl, NULL, 0, NULL));
}

static void sizes_body(struct rank_state *s)
{
	uint8_t *data = malloc(GANTRY_CTL_MESSAGE_MAX), *got = malloc(GANTRY_CTL_MESSAGE_MAX);
	int other = 1 - s->rank;

	CHECK(data && got);
	for (int i = 0; i < GANTRY_CTL_MESSAGE_MAX; i++)
		data[i] = (uint8_t)(i * 7 + s->rank);
	CHECK_OK(gantry_ctl_send(s->ctl, other, 1, NULL, 0));
	CHECK_OK(gantry_ctl_send(s->ctl, other, 2, data, GANTRY_CTL_MESSAGE_MAX));
	CHECK_EQ(gantry_ctl_send(s->ctl, other, 2, data, GANTRY_CTL_MESSAGE_MAX + 1), GANTRY_ERR_INVALID);
	CHECK_EQ(gantry_ctl_send(s->ctl, 2, 2, data, 1), GANTRY_ERR_INVALID);
	CHECK_HAS(gantry_last_error(), "no rank 2");
	CHECK_OK(recv_wait(s->ctl, other, 1, NULL, 0));
	CHECK_EQ(recv_wait(s->ctl, other, 2, got, 10), GANTRY_ERR_SIZE);
	CHECK_HAS(gantry_last_error(), "65536");
	CHECK_OK(recv_wait(s->ctl, other, 2, got, GANTRY_CTL_MESSAGE_MAX));
	for (int i = 0; i < GANTRY_CTL_MESSAGE_MAX; i++)
		CHECK_EQ(got[i], (uint8_t)(i * 7 + other));
	free(data);
	free(got);
	CHECK_OK(gantry_ctl_allgather(s->ctl, NULL, 0, NULL));
}

TEST(test_messages)
{
	struct gantry_unique_id id;

	ranks_leave(ranks_run(4, &id, talk_body), 4);
	ranks_leave(ranks_run(2, &id, sizes_body), 2);
}

static void call_body(struct rank_state *s)
{
	uint8_t reply[64];
	size_t size;

	for (int i = 0; i < 30; i++) {
		int to = (s->rank + i) % s->nranks;
		char text[16];

		snprintf(text, sizeof(text), "call %d", i);
		size = sizeof(reply);
		CHECK_OK(gantry_ctl_call(s->ctl, to, ANSWER_KIND, text, strlen(text) + 1, reply, &size));
		CHECK_EQ(size, strlen(text) + 3);
		CHECK_EQ(reply[0], s->rank);
		CHECK_EQ(reply[1], to);
		CHECK_STR((char *)reply + 2, text);
	}
	size = sizeof(reply);
	CHECK_EQ(gantry_ctl_call(s->ctl, 0, 99, NULL, 0, reply, &size), GANTRY_ERR_UNSUPPORTED);
	CHECK_HAS(gantry_last_error(), "rank 0 answers call 99");
	size = 3;
	CHECK_EQ(gantry_ctl_call(s->ctl, 0, ANSWER_KIND, "long", 4, reply, &size), GANTRY_ERR_SIZE);
	CHECK_EQ(size, 6);
	CHECK_OK(gantry_ctl_allgather(s->ctl, NULL, 0, NULL));
}

static void *calling_thread(void *arg)
{
	struct rank_state *s = arg;

	for (int i = 0; i < 10; i++) {
		uint32_t v = (uint32_t)(uintptr_t)pthread_self() + (uint32_t)i, got = 0;
		uint8_t reply[6];
		size_t size = sizeof(reply);

		CHECK_OK(gantry_ctl_call(s->ctl, 1, ANSWER_KIND, &v, sizeof(v), reply, &size));
		memcpy(&got, reply + 2, sizeof(got));
		CHECK_EQ(got, v);
	}
	return NULL;
}

TEST(test_calls)
{
	struct gantry_unique_id id;
	struct rank_state *s;
	pthread_t t[4];
	size_t size = 0;

	ranks_leave(ranks_run(3, &id, call_body), 3);
	/* Several threads of one rank at a time; a rank without on_call. */
	s = ranks_run(2, &id, NULL);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, calling_thread, &s[0]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK_EQ(s[1].calls, 40);
	ranks_leave(s, 2);
	s = ranks_make(1, &id, NULL);
	CHECK_OK(gantry_ctl_create_id(&id));
	s[0].silent_calls = 1;
	join_as(s);
	CHECK_OK(s->joined);
	CHECK_EQ(gantry_ctl_call(s->ctl, 0, ANSWER_KIND, NULL, 0, NULL, &size), GANTRY_ERR_UNSUPPORTED);
	ranks_leave(s, 1);
}

TEST(test_wait)
{
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(2, &id, NULL);
	uint64_t began;

	gantry_ctl_wait(s[1].ctl, 0); /* what came at joining */
	began = now_ms();
	gantry_ctl_wait(s[1].ctl, 50000000);
	CHECK(now_ms() - began >= 45);
	CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 5, "x", 1));
	UNTIL(gantry_ctl_try_recv(s[1].ctl, 0, 5, (char[1]){0}, 1) != GANTRY_AGAIN);
	began = now_ms();
	gantry_ctl_wait(s[1].ctl, 100000000000); /* it came since the last call */
	CHECK(now_ms() - began < 60000);
	ranks_leave(s, 2);
}

/* The hub's ranks are all of this process: whoever leaves first, the others go on. */
TEST(test_leave)
{
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(3, &id, NULL);
	uint32_t v = 42, got = 0;
	uint64_t began = now_ms();
	size_t size = 0;

	CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 9, &v, sizeof(v)));
	gantry_ctl_leave(s[0].ctl);
	CHECK(now_ms() - began < 30000); /* it waits for nobody: that would be GANTRY_TIMEOUT, 30 s */
	CHECK_OK(recv_wait(s[1].ctl, 0, 9, &got, sizeof(got))); /* said before it left */
	CHECK_EQ(got, 42);
	CHECK_EQ(recv_wait(s[1].ctl, 0, 9, &got, sizeof(got)), GANTRY_ERR_PEER_CLOSED);
	CHECK_HAS(gantry_last_error(), "rank 0 has left");
	CHECK_EQ(gantry_ctl_send(s[1].ctl, 0, 9, &v, sizeof(v)), GANTRY_ERR_PEER_CLOSED);
	CHECK_EQ(gantry_ctl_call(s[1].ctl, 0, 1, NULL, 0, NULL, &size), GANTRY_ERR_PEER_CLOSED);
	CHECK_EQ(gantry_ctl_allgather(s[1].ctl, &v, sizeof(v), (char[12]){0}), GANTRY_ERR_PEER_CLOSED);
	CHECK_HAS(gantry_last_error(), "rank 0 (");
	CHECK_OK(gantry_ctl_send(s[1].ctl, 2, 9, &v, sizeof(v)));
	CHECK_OK(recv_wait(s[2].ctl, 1, 9, &got, sizeof(got)));
	CHECK_EQ(lost_count(&s[1]) + lost_count(&s[2]), 0);
	gantry_ctl_leave(s[2].ctl);
	gantry_ctl_leave(s[1].ctl);
	gantry_ctl_leave(NULL);
	free(s);
	until_quiet();
}

static void come_and_go(int times)
{
	for (int i = 0; i < times; i++) {
		struct gantry_unique_id id;
		struct rank_state *s = ranks_run(2, &id, NULL);

		CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, "left behind", 11));
		ranks_leave(s, 2);
	}
	until_quiet();
}

TEST(test_again)
{
	int fds, threads;
	size_t heap;

	come_and_go(20); /* what the heap keeps for each thread is there then */
	fds = held(HELD_FDS);
	threads = held(HELD_THREADS);
	heap = mallinfo2().uordblks;
	come_and_go(200);
	CHECK(held_at_most(HELD_FDS, fds));
	CHECK(held_at_most(HELD_THREADS, threads)); /* and with the thread its share of the heap */
	printf("heap: %zu bytes before, %zu after\n", heap, mallinfo2().uordblks);
	CHECK(SANITIZED || mallinfo2().uordblks < heap + 16384);
}

TEST(test_clock)
{
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(1, &id, NULL);
	char text[GANTRY_ADDR_TEXT];

	CHECK_EQ(gantry_ctl_clock_offset(s->ctl), 0); /* one process, one clock; the system test has two */
	CHECK(gantry_ctl_comm_id(&id) != 0);
	id_text(&id, text);
	CHECK_HAS(text, "127.0.0.1:");
	ranks_leave(s, 1);
}

void tests_begin(void)
{
	setenv("GANTRY_IFNAME", "lo", 0);
}

void tests_end(void)
{
	until_quiet();
}
