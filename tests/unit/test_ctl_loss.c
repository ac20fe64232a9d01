/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that go without a word: cut off, silent, stopped. ctl_death.sh does the same with processes and signals.
 * Catches: a loss told twice, to nobody, or about the wrong rank; calls and allgathers that wait for somebody who is
 * gone; silence that is not noticed, or noticed where there is none; a thread that wakes up for nothing.
 */
#include <errno.h>

#include "ctl_util.h"

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
	CHECK_EQ(gantry_ctl_call(s->ctl, 2, 99, NULL, 0, NULL, &size), GANTRY_ERR_PEER_LOST);
	CHECK_HAS(gantry_last_error(), "rank 2 (");
	return NULL;
}

static void *gather_thread(void *arg)
{
	struct rank_state *s = arg;

	CHECK_EQ(gantry_ctl_allgather(s->ctl, NULL, 0, NULL), GANTRY_ERR_PEER_LOST);
	CHECK_HAS(gantry_last_error(), "allgather without rank 2 (");
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
	set_env("GANTRY_TIMEOUT", text);
	relayed_join(&w);
	sleep_ms(3 * timeout_ms); /* without a word of the users: that is no silence */
	for (int k = 0; k < 3; k++)
		fine = fine && w.s[k].joined == GANTRY_OK && !lost_count(&w.s[k]);
	fine = fine && falls_silent(&w, timeout_ms);
	for (int k = 0; k < 3 && !fine; k++)
		fprintf(stderr, "rank %d: joining gave %s, %d lost: %s\n", k, gantry_result_name(w.s[k].joined),
			lost_count(&w.s[k]), w.s[k].lost_text);
	relayed_leave(&w);
	set_env("GANTRY_TIMEOUT", NULL);
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

	set_env("GANTRY_TIMEOUT", "600ms");
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
	set_env("GANTRY_TIMEOUT", NULL);
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

	set_env("GANTRY_TIMEOUT", "32s"); /* a beat is 1/32 of it */
	s = ranks_run(16, &id, NULL);
	sleep_ms(100);
	UNTIL(hardly_turns());
	ranks_leave(s, 16);
	set_env("GANTRY_TIMEOUT", NULL);
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

	set_env("GANTRY_TIMEOUT", "10m"); /* it shall not count as silent first */
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
	CHECK_HAS(s[2].lost_text, "does not read: 64 MiB");
	/* What was meant for rank 1 may still be on its way to the hub, and fill it. */
	UNTIL((r = gantry_ctl_send(s[0].ctl, 2, 1, "x", 1)) != GANTRY_ERR_LIMIT);
	CHECK_OK(r);
	CHECK_OK(recv_wait(s[2].ctl, 0, 1, &c, 1));
	relayed_leave(&w);
	set_env("GANTRY_TIMEOUT", NULL);
	until_quiet();
}

/* A user that is faster than the service thread is told so; what the service itself has to say still has room. */
TEST(test_full)
{
	static uint8_t data[GANTRY_CTL_MESSAGE_MAX], got[GANTRY_CTL_MESSAGE_MAX];
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(2, &id, NULL);
	gantry_result r;
	uint32_t n = 0, k = 0;

	inet_loop_lock(); /* it waits */
	do {
		memcpy(data, &n, sizeof(n));
		r = gantry_ctl_send(s[1].ctl, 0, 1, data, sizeof(data));
	} while (r == GANTRY_OK && ++n < 100000);
	CHECK_EQ(r, GANTRY_ERR_LIMIT);
	ctl_members_take();
	CHECK(s[1].ctl->conn->out_bytes >= (size_t)n * sizeof(data));
	CHECK(s[1].ctl->conn->out_bytes + GANTRY_CTL_MESSAGE_MAX <= CTL_OUT_MAX);
	CHECK(!s[1].ctl->conn->fault);
	inet_loop_unlock();
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
