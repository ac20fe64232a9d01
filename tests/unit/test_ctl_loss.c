/*
 * Ranks that go without a word: cut off, silent, stopped. ctl_death.sh does the same with processes and signals.
 * Catches: a loss told twice, to nobody, or about the wrong rank; calls and allgathers that wait for somebody who is
 * gone; silence that is not noticed, or noticed where there is none; a thread that wakes up for nothing.
 */
#include <errno.h>

#include "ctl_relay.h"

/* Breaks the connection of a membership under its feet. */
static void kill_socket(struct gantry_ctl *ctl)
{
	pthread_mutex_lock(&ctl_service.mu);
	CHECK(ctl->conn != NULL);
	CHECK_EQ(shutdown(ctl->conn->source.fd, SHUT_RDWR), 0);
	pthread_mutex_unlock(&ctl_service.mu);
}

static void until_lost(struct rank_state *s, int n)
{
	uint64_t end = now_ms() + 20000;

	while (lost_count(s) < n && now_ms() < end)
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

static void test_killed(void)
{
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(4, &id, NULL);
	pthread_t t[2];
	char c = 0;

	CHECK_OK(gantry_ctl_send(s[2].ctl, 0, 1, "a", 1));
	CHECK_OK(recv_wait(s[0].ctl, 2, 1, &c, 1));
	CHECK_OK(gantry_ctl_send(s[2].ctl, 0, 1, "b", 1));
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

/* Rank 1 of 2 comes by the relay, which then passes on nothing. */
static void test_silent(void)
{
	struct gantry_unique_id id, by_relay;
	struct rank_state *s;
	struct relay relay;
	struct ctl_id i;
	uint64_t took;

	set_env("GANTRY_TIMEOUT", "400ms");
	relay_make(&relay);
	CHECK_OK(gantry_ctl_create_id(&by_relay));
	relay_start(&relay, &by_relay);
	id = by_relay;
	CHECK_OK(ctl_id_decode(&id, &i));
	i.addr = relay.to;
	ctl_id_encode(&i, &id);
	s = ranks_make(3, &id, NULL);
	s[1].id = &by_relay;
	ranks_start(s, 3);
	ranks_wait(s, 3);
	sleep_ms(1200); /* three timeouts without a word of the users: that is no silence */
	for (int k = 0; k < 3; k++) {
		CHECK_OK(s[k].joined);
		CHECK_EQ(lost_count(&s[k]), 0);
	}
	__atomic_store_n(&relay.frozen, 1, __ATOMIC_RELEASE);
	until_lost(&s[0], 1);
	until_lost(&s[2], 1);
	until_lost(&s[1], 2);
	/* Whoever heard the last word has waited for the whole of it. */
	took = now_ms() - __atomic_load_n(&relay.passed_ms, __ATOMIC_ACQUIRE);
	printf("silence of 400 ms noticed after %d ms\n", (int)took);
	CHECK(took >= 395);
	for (int k = 0; k < 3; k += 2) {
		CHECK_EQ(s[k].lost_rank[0], 1);
		CHECK_EQ(s[k].lost_why[0], GANTRY_ERR_PEER_SILENT);
		CHECK_HAS(s[k].lost_text, "no sign of life for 0.4 s");
	}
	CHECK_EQ(s[1].lost_rank[0], 0);
	CHECK_EQ(s[1].lost_rank[1], 2);
	CHECK_EQ(s[1].lost_why[1], GANTRY_ERR_PEER_SILENT);
	ranks_leave(s, 3);
	relay_stop(&relay);
	set_env("GANTRY_TIMEOUT", NULL);
	until_quiet();
}

/* The service thread itself is held up for longer than the timeout: that is nobody's silence. */
static void test_held_up(void)
{
	struct gantry_unique_id id;
	struct rank_state *s;

	set_env("GANTRY_TIMEOUT", "200ms");
	s = ranks_run(3, &id, NULL);
	for (int i = 0; i < 3; i++) {
		pthread_mutex_lock(&ctl_service.mu);
		sleep_ms(700);
		pthread_mutex_unlock(&ctl_service.mu);
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

/* A beat and a bit: with the hub and 16 ranks in it the process hardly wakes up. */
static void test_idle(void)
{
	struct gantry_unique_id id;
	struct rank_state *s;
	uint64_t turns, began;

	set_env("GANTRY_TIMEOUT", "8s"); /* a beat is an eighth of it */
	s = ranks_run(16, &id, NULL);
	sleep_ms(100);
	pthread_mutex_lock(&ctl_service.mu);
	turns = ctl_service.turns;
	pthread_mutex_unlock(&ctl_service.mu);
	began = now_ms();
	sleep_ms(1120);
	pthread_mutex_lock(&ctl_service.mu);
	turns = ctl_service.turns - turns;
	pthread_mutex_unlock(&ctl_service.mu);
	printf("%d turns in 1.1 idle seconds\n", (int)turns);
	/* A timer, the questions, the answers; more of them where this thread came back late. */
	CHECK(turns <= 8 * (1 + (now_ms() - began) / 2000));
	ranks_leave(s, 16);
	set_env("GANTRY_TIMEOUT", NULL);
	until_quiet();
}

/* A rank that does not read: the hub's memory for it is bounded, the others go on. */
static void test_slow_reader(void)
{
	static uint8_t data[GANTRY_CTL_MESSAGE_MAX];
	struct gantry_unique_id id, by_relay;
	struct rank_state *s;
	struct relay relay;
	struct ctl_id i;
	gantry_result r = GANTRY_OK;
	uint64_t end;
	char c;

	relay_make(&relay);
	CHECK_OK(gantry_ctl_create_id(&by_relay));
	relay_start(&relay, &by_relay);
	id = by_relay;
	CHECK_OK(ctl_id_decode(&id, &i));
	i.addr = relay.to;
	ctl_id_encode(&i, &id);
	s = ranks_make(3, &id, NULL);
	s[1].id = &by_relay;
	ranks_start(s, 3);
	ranks_wait(s, 3);
	__atomic_store_n(&relay.frozen, 1, __ATOMIC_RELEASE);
	end = now_ms() + 20000;
	for (int k = 0; now_ms() < end && r == GANTRY_OK; k++) {
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
	for (end = now_ms() + 20000; (r = gantry_ctl_send(s[0].ctl, 2, 1, "x", 1)) == GANTRY_ERR_LIMIT;) {
		CHECK(now_ms() < end);
		sleep_ms(10);
	}
	CHECK_OK(r);
	CHECK_OK(recv_wait(s[2].ctl, 0, 1, &c, 1));
	ranks_leave(s, 3);
	relay_stop(&relay);
	until_quiet();
}

/* A user that is faster than the service thread is told so; what the service itself has to say still has room. */
static void test_full(void)
{
	static uint8_t data[GANTRY_CTL_MESSAGE_MAX], got[GANTRY_CTL_MESSAGE_MAX];
	struct gantry_unique_id id;
	struct rank_state *s = ranks_run(2, &id, NULL);
	gantry_result r;
	uint32_t n = 0, k = 0;

	pthread_mutex_lock(&ctl_service.mu); /* it waits */
	do {
		memcpy(data, &n, sizeof(n));
		r = gantry_ctl_send(s[1].ctl, 0, 1, data, sizeof(data));
	} while (r == GANTRY_OK && ++n < 100000);
	CHECK_EQ(r, GANTRY_ERR_LIMIT);
	ctl_members_take();
	CHECK(s[1].ctl->conn->out_bytes >= (size_t)n * sizeof(data));
	CHECK(s[1].ctl->conn->out_bytes + GANTRY_CTL_MESSAGE_MAX <= CTL_OUT_MAX);
	CHECK(!s[1].ctl->conn->fault);
	pthread_mutex_unlock(&ctl_service.mu);
	for (uint32_t i = 0; i < n; i++) {
		CHECK_OK(recv_wait(s[0].ctl, 1, 1, got, sizeof(got)));
		memcpy(&k, got, sizeof(k));
		CHECK_EQ(k, i);
	}
	CHECK_EQ(lost_count(&s[0]) + lost_count(&s[1]), 0);
	ranks_leave(s, 2);
	until_quiet();
}

int main(void)
{
	setenv("GANTRY_LOG", "error", 0);
	setenv("GANTRY_IFNAME", "lo", 1);
	test_killed();
	test_silent();
	test_held_up();
	test_slow_reader();
	test_idle();
	test_full();
	return 0;
}
