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
	FREED uint32_t *mine = malloc(16384 * 4), *all = malloc((size_t)s->nranks * 16384 * 4);

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
	FREED uint8_t *data = malloc(GANTRY_CTL_MESSAGE_MAX), *got = malloc(GANTRY_CTL_MESSAGE_MAX);
	int other = 1 - s->rank;

	CHECK(data && got);
	for (int i = 0; i < GANTRY_CTL_MESSAGE_MAX; i++)
		data[i] = (uint8_t)(i * 7 + s->rank);
	CHECK_OK(gantry_ctl_send(s->ctl, other, 1, NULL, 0));
	CHECK_OK(gantry_ctl_send(s->ctl, other, 2, data, GANTRY_CTL_MESSAGE_MAX));
	CHECK_EQ(gantry_ctl_send(s->ctl, other, 2, data, GANTRY_CTL_MESSAGE_MAX + 1), GANTRY_ERR_INVALID);
	CHECK_ERROR(gantry_ctl_send(s->ctl, 2, 2, data, 1), GANTRY_ERR_INVALID, "no rank 2");
	CHECK_OK(recv_wait(s->ctl, other, 1, NULL, 0));
	CHECK_ERROR(recv_wait(s->ctl, other, 2, got, 10), GANTRY_ERR_SIZE, "65536");
	CHECK_OK(recv_wait(s->ctl, other, 2, got, GANTRY_CTL_MESSAGE_MAX));
	for (int i = 0; i < GANTRY_CTL_MESSAGE_MAX; i++)
		CHECK_EQ(got[i], (uint8_t)(i * 7 + other));
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
	CHECK_ERROR(gantry_ctl_call(s->ctl, 0, 99, NULL, 0, reply, &size), GANTRY_ERR_UNSUPPORTED,
		    "rank 0 rejected call 99");
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
	threads_start(t, 4, calling_thread, &s[0], 0);
	threads_join(t, 4);
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
	CHECK_ERROR(recv_wait(s[1].ctl, 0, 9, &got, sizeof(got)), GANTRY_ERR_PEER_CLOSED, "rank 0 has left");
	CHECK_EQ(gantry_ctl_send(s[1].ctl, 0, 9, &v, sizeof(v)), GANTRY_ERR_PEER_CLOSED);
	CHECK_EQ(gantry_ctl_call(s[1].ctl, 0, 1, NULL, 0, NULL, &size), GANTRY_ERR_PEER_CLOSED);
	CHECK_ERROR(gantry_ctl_allgather(s[1].ctl, &v, sizeof(v), (char[12]){0}), GANTRY_ERR_PEER_CLOSED, "rank 0 (");
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

/*
 * Ranks that go without a word: cut off, silent, stopped. ctl_death.sh does the same with processes and signals.
 * Catches: a loss told twice, to nobody, or about the wrong rank; calls and allgathers that wait for somebody who is
 * gone; silence that is not noticed, or noticed where there is none; a thread that wakes up for nothing.
 */

/* Breaks the connection of a membership under its feet. */
static void kill_socket(struct gantry_ctl *ctl)
{
	inet_loop_lock();
	CHECK(ctl->conn != NULL);
	CHECK_EQ(shutdown(ctl->conn->source.fd, SHUT_RDWR), 0);
	inet_loop_unlock();
}

static void until_lost(struct rank_state *s, int n)
{
	uint64_t end = until_hang();

	while (lost_count(s) < n && gantry_now_ns() < end)
		sleep_ms(1);
	for (int i = 0; lost_count(s) != n && i < lost_count(s); i++)
		fprintf(stderr, "rank %d lost rank %d: %s (%s)\n", s->rank, s->lost_rank[i],
			gantry_result_name(s->lost_why[i]), s->lost_text);
	CHECK_EQ(lost_count(s), n);
}

static void *call_thread(void *arg)
{
	struct rank_state *s = arg;
	size_t size = 0;

	/* It may go out before or after the news. */
	CHECK_ERROR(gantry_ctl_call(s->ctl, 2, 99, NULL, 0, NULL, &size), GANTRY_ERR_PEER_LOST, "rank 2 (");
	return NULL;
}

static void *gather_thread(void *arg)
{
	struct rank_state *s = arg;

	CHECK_ERROR(gantry_ctl_allgather(s->ctl, NULL, 0, NULL), GANTRY_ERR_PEER_LOST, "allgather failed: rank 2 (");
	return NULL;
}

TEST(test_killed)
{
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(4, &id, NULL);
	pthread_t t[2];
	char c = 0;

	CHECK_OK(gantry_ctl_send(s[2].ctl, 0, 1, "a", 1));
	CHECK_OK(recv_wait(s[0].ctl, 2, 1, &c, 1));
	CHECK_OK(gantry_ctl_send(s[2].ctl, 0, 1, "b", 1));
	CHECK_OK(gantry_ctl_send(s[2].ctl, 0, 2, "z", 1));
	CHECK_OK(recv_wait(s[0].ctl, 2, 2, &c, 1)); /* so the other one is there too */
	CHECK_EQ(pthread_create(&t[0], NULL, gather_thread, &s[0]), 0);
	sleep_ms(50);
	kill_socket(s[2].ctl);
	CHECK_EQ(pthread_create(&t[1], NULL, call_thread, &s[1]), 0);
	for (int i = 0; i < 4; i++)
		if (i != 2)
			until_lost(&s[i], 1);
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	/* Whoever comes to the allgather later hears the same. */
	gather_thread(&s[1]);
	gather_thread(&s[3]);
	sleep_ms(50);
	for (int i = 0; i < 4; i++) {
		if (i == 2)
			continue;
		CHECK_EQ(lost_count(&s[i]), 1);
		CHECK_EQ(s[i].lost_rank[0], 2);
		CHECK_EQ(s[i].lost_why[0], GANTRY_ERR_PEER_LOST);
		CHECK_HAS(s[i].lost_text, "rank 2 (127.0.0.1:");
		CHECK_EQ(gantry_ctl_send(s[i].ctl, 2, 1, "x", 1), GANTRY_ERR_PEER_LOST);
	}
	/* What it said before is still there, then its error. */
	CHECK_OK(gantry_ctl_try_recv(s[0].ctl, 2, 1, &c, 1));
	CHECK_EQ(c, 'b');
	CHECK_EQ(gantry_ctl_try_recv(s[0].ctl, 2, 1, &c, 1), GANTRY_ERR_PEER_LOST);
	/* The others go on. */
	CHECK_OK(gantry_ctl_send(s[0].ctl, 3, 1, "c", 1));
	CHECK_OK(recv_wait(s[3].ctl, 0, 1, &c, 1));
	/* And itself: the hub's process is gone for it, with all ranks that live there. */
	until_lost(&s[2], 3);
	CHECK_EQ(gantry_ctl_send(s[2].ctl, 0, 1, "x", 1), GANTRY_ERR_PEER_LOST);
	ranks_leave(s, 4);
	until_quiet();
}

/* Of three ranks, rank 1 comes by the relay. */
struct relayed {
	struct relay relay;
	struct gantry_unique_id id, by_relay;
	struct rank_state *s;
};

static void relayed_join(struct relayed *w)
{
	struct ctl_id i;

	ctl_relay_make(&w->relay);
	CHECK_OK(gantry_ctl_create_id(&w->by_relay));
	ctl_relay_start(&w->relay, &w->by_relay);
	w->id = w->by_relay;
	CHECK_OK(ctl_id_decode(&w->id, &i));
	i.addr.in = w->relay.to;
	ctl_id_encode(&i, &w->id);
	w->s = ranks_make(3, &w->id, NULL);
	w->s[1].id = &w->by_relay;
	ranks_start(w->s, 3);
	ranks_wait(w->s, 3);
}

static void relayed_leave(struct relayed *w)
{
	ranks_leave(w->s, 3);
	ctl_relay_stop(&w->relay);
}

static int lost_rank(struct rank_state *s, int k, int rank, const char *text)
{
	int right;

	pthread_mutex_lock(&s->mu);
	right = s->nlost > k && s->lost_rank[k] == rank && s->lost_why[k] == GANTRY_ERR_PEER_SILENT &&
		strstr(s->lost_text, text);
	pthread_mutex_unlock(&s->mu);
	return right;
}

/* The relay passes on nothing any more. */
static int falls_silent(struct relayed *w, unsigned timeout_ms)
{
	struct rank_state *s = w->s;
	char text[64];
	uint64_t took;

	__atomic_store_n(&w->relay.frozen, 1, __ATOMIC_RELEASE);
	UNTIL(lost_count(&s[0]) && lost_count(&s[2]) && (lost_count(&s[1]) > 1 || lost_rank(&s[1], 0, 1, "")));
	/*
	 * Whoever heard the last word has waited for the whole of it; or for half, if the service thread was held up
	 * in the middle of a turn, which began before that word.
	 */
	took = now_ms() - __atomic_load_n(&w->relay.moved_ms, __ATOMIC_ACQUIRE);
	printf("silence of %u ms noticed after %d ms\n", timeout_ms, (int)took);
	snprintf(text, sizeof(text), "no sign of life for %.3g s", timeout_ms / 1e3);
	return took + 5 >= timeout_ms / 2 && lost_rank(&s[0], 0, 1, text) && lost_rank(&s[2], 0, 1, text) &&
	       lost_rank(&s[1], 0, 0, text) && lost_rank(&s[1], 1, 2, text) && lost_count(&s[0]) == 1 &&
	       lost_count(&s[2]) == 1;
}

/* 0: it went otherwise, and rightly so, because the relay itself was held up. */
static int silence_is_told(unsigned timeout_ms)
{
	struct relayed w;
	char text[16];
	int fine = 1;

	snprintf(text, sizeof(text), "%ums", timeout_ms);
	set_params("GANTRY_TIMEOUT", text);
	relayed_join(&w);
	sleep_ms(3 * timeout_ms); /* without a word of the users: that is no silence */
	for (int k = 0; k < 3; k++)
		fine = fine && w.s[k].joined == GANTRY_OK && !lost_count(&w.s[k]);
	fine = fine && falls_silent(&w, timeout_ms);
	for (int k = 0; k < 3 && !fine; k++)
		fprintf(stderr, "rank %d: joining gave %s, %d lost: %s\n", k, gantry_result_name(w.s[k].joined),
			lost_count(&w.s[k]), w.s[k].lost_text);
	relayed_leave(&w);
	set_params("GANTRY_TIMEOUT", NULL);
	until_quiet();
	if (!fine) {
		fprintf(stderr, "timeout %u ms; the relay was held up for %u ms\n", timeout_ms,
			(unsigned)w.relay.held_up);
		CHECK(w.relay.held_up > timeout_ms / 8);
	}
	return fine;
}

TEST(test_silent)
{
	unsigned timeout_ms = 400;

	while (!silence_is_told(timeout_ms)) {
		timeout_ms *= 2;
		if (timeout_ms > 7000) {
			fprintf(stderr, "this machine is too busy to tell silence from load\n");
			return;
		}
	}
}

/* The service thread itself is held up for longer than the timeout: that is nobody's silence. */
TEST(test_held_up)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	set_params("GANTRY_TIMEOUT", "600ms");
	s = ranks_run(3, &id, NULL);
	for (int i = 0; i < 2; i++) {
		inet_loop_lock();
		sleep_ms(1300);
		inet_loop_unlock();
		sleep_ms(100);
	}
	for (int i = 0; i < 3; i++)
		CHECK_EQ(lost_count(&s[i]), 0);
	CHECK_OK(gantry_ctl_send(s[0].ctl, 1, 1, "x", 1));
	CHECK_OK(recv_wait(s[1].ctl, 0, 1, (char[1]){0}, 1));
	ranks_leave(s, 3);
	set_params("GANTRY_TIMEOUT", NULL);
	until_quiet();
}

static uint64_t turns_so_far(void)
{
	uint64_t turns;

	inet_loop_lock();
	turns = inet_loop.passes;
	inet_loop_unlock();
	return turns;
}

/* A timer, the questions, the answers; more of them where this thread came back late. */
static int hardly_turns(void)
{
	uint64_t turns = turns_so_far(), began = now_ms();

	sleep_ms(1120);
	turns = turns_so_far() - turns;
	printf("%d turns in %d idle ms\n", (int)turns, (int)(now_ms() - began));
	return turns <= 8 * (1 + (now_ms() - began) / 2000);
}

/*
 * A beat and a bit: with the hub and 16 ranks in it the process hardly wakes up. On a busy machine the end of joining
 * may be part of it, or answers come one by one: then the next beat tells.
 */
TEST(test_idle)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	set_params("GANTRY_TIMEOUT", "32s"); /* a beat is 1/32 of it */
	s = ranks_run(16, &id, NULL);
	sleep_ms(100);
	UNTIL(hardly_turns());
	ranks_leave(s, 16);
	set_params("GANTRY_TIMEOUT", NULL);
	until_quiet();
}

/* A rank that does not read: the hub's memory for it is bounded, the others go on. */
TEST(test_slow_reader)
{
	static uint8_t data[GANTRY_CTL_MESSAGE_MAX];
	struct relayed w;
	struct rank_state *s;
	gantry_result r = GANTRY_OK;
	uint64_t end;
	char c;

	set_params("GANTRY_TIMEOUT", "10m"); /* it shall not count as silent first */
	relayed_join(&w);
	s = w.s;
	for (int k = 0; k < 3; k++)
		CHECK_OK(s[k].joined);
	__atomic_store_n(&w.relay.frozen, 1, __ATOMIC_RELEASE);
	end = until_hang();
	for (int k = 0; gantry_now_ns() < end && r == GANTRY_OK; k++) {
		r = gantry_ctl_send(s[0].ctl, 1, 1, data, sizeof(data));
		if (r == GANTRY_ERR_LIMIT) { /* faster than the service thread: that is bounded too */
			sleep_ms(10);
			r = GANTRY_OK;
		}
		if (k % 64 == 0)
			sleep_ms(5);
	}
	CHECK_EQ(r, GANTRY_ERR_PEER_LOST);
	until_lost(&s[0], 1);
	until_lost(&s[2], 1);
	CHECK_EQ(s[2].lost_rank[0], 1);
	CHECK_HAS(s[2].lost_text, "not reading: 64 MiB");
	/* What was meant for rank 1 may still be on its way to the hub, and fill it. */
	UNTIL((r = gantry_ctl_send(s[0].ctl, 2, 1, "x", 1)) != GANTRY_ERR_LIMIT);
	CHECK_OK(r);
	CHECK_OK(recv_wait(s[2].ctl, 0, 1, &c, 1));
	relayed_leave(&w);
	set_params("GANTRY_TIMEOUT", NULL);
	until_quiet();
}

/* A client of the loop that keeps the service thread busy, without its lock, until it is let go. */
static uint32_t block_begun, block_over;

static uint64_t block_due(void)
{
	return UINT64_MAX;
}

static void block_pass(void) REQUIRES(loop_mu)
{
	__atomic_store_n(&block_begun, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&block_over, __ATOMIC_ACQUIRE)) {
		inet_loop_unlock();
		usleep(500);
		inet_loop_lock();
	}
}

static int block_busy(void)
{
	return !__atomic_load_n(&block_over, __ATOMIC_ACQUIRE);
}

static void block_in_child(void)
{
}

static struct inet_client block = {
	.due = block_due, .pass = block_pass, .busy = block_busy, .in_child = block_in_child};

/* A user that is faster than the service thread is told so; what the service itself has to say still has room. */
TEST(test_full)
{
	static uint8_t data[GANTRY_CTL_MESSAGE_MAX], got[GANTRY_CTL_MESSAGE_MAX];
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(2, &id, NULL);
	gantry_result r;
	uint32_t n = 0, k = 0;

	inet_loop_lock();
	CHECK_OK(inet_loop_start(&block));
	inet_loop_wake();
	inet_loop_unlock();
	UNTIL(__atomic_load_n(&block_begun, __ATOMIC_ACQUIRE));
	do {
		memcpy(data, &n, sizeof(n));
		r = gantry_ctl_send(s[1].ctl, 0, 1, data, sizeof(data));
	} while (r == GANTRY_OK && ++n < 100000);
	CHECK_EQ(r, GANTRY_ERR_LIMIT);
	inet_loop_lock();
	CHECK(s[1].ctl->conn->out_bytes >= (size_t)n * sizeof(data));
	CHECK(s[1].ctl->conn->out_bytes + GANTRY_CTL_MESSAGE_MAX <= INET_STREAM_OUT_MAX);
	CHECK(!s[1].ctl->conn->fault);
	inet_loop_unlock();
	__atomic_store_n(&block_over, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < n; i++) {
		CHECK_OK(recv_wait(s[0].ctl, 1, 1, got, sizeof(got)));
		memcpy(&k, got, sizeof(k));
		CHECK_EQ(k, i);
	}
	CHECK_EQ(lost_count(&s[0]) + lost_count(&s[1]), 0);
	ranks_leave(s, 2);
	until_quiet();
}

void tests_begin(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
}

void tests_end(void)
{
	until_quiet();
}
