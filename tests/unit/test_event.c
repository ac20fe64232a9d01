/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event ring. Writers put records whose fields follow from one another, so
 * that a record made of two shows: the reader takes snapshots the whole time.
 */
#include "base/event.h"
#include "test.h"

enum { WRITERS = 4, ROUNDS = 100000, INTERRUPTS = 500, RING = 8192 };

static struct gantry_event events[3 * RING];
static int writers_running = WRITERS;

static uint64_t expected_c(uint32_t writer, uint64_t round)
{
	return (round + 1) * 0x9e3779b97f4a7c15u ^ writer;
}

TEST(check_empty_and_order)
{
	CHECK_EQ(gantry_event_snapshot(events, 10), 0);
	gantry_event_put(GANTRY_EV_SEND_POST, 7, 1ull << 40, UINT64_MAX);
	gantry_event_put(GANTRY_EV_SEND_DONE, UINT32_MAX, 2, 3);
	CHECK_EQ(gantry_event_snapshot(events, 10), 2);
	CHECK_EQ(events[0].kind, GANTRY_EV_SEND_POST);
	CHECK_EQ(events[0].a, 7);
	CHECK_EQ(events[0].b, 1ull << 40);
	CHECK_EQ(events[0].c, UINT64_MAX);
	CHECK_EQ(events[1].kind, GANTRY_EV_SEND_DONE);
	CHECK_EQ(events[1].a, UINT32_MAX);
	CHECK(events[0].ticks <= events[1].ticks);

	/* A short buffer gets the newest. */
	CHECK_EQ(gantry_event_snapshot(events, 1), 1);
	CHECK_EQ(events[0].kind, GANTRY_EV_SEND_DONE);
	CHECK_EQ(gantry_event_snapshot(events, 0), 0);
}

/* The newest overwrite the oldest: of more than fit, exactly the last are left, in order. */
TEST(check_wrap)
{
	size_t n;

	for (uint64_t i = 0; i < 2 * RING + 5; i++)
		gantry_event_put(GANTRY_EV_CHUNK_TX, 0, i, 0);
	n = gantry_event_snapshot(events, 3 * RING);
	CHECK(n >= 1024 && n <= 2 * RING);
	for (size_t i = 0; i < n; i++)
		CHECK_EQ(events[i].b, 2 * RING + 5 - n + i);
}

static void *write_events(void *arg)
{
	uint32_t writer = (uint32_t)(uintptr_t)arg;

	for (uint64_t i = 0; i < ROUNDS; i++)
		gantry_event_put(GANTRY_EV_RECV_DONE, writer, i, expected_c(writer, i));
	__atomic_fetch_sub(&writers_running, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Records are whole, and those of one writer are in its order. Returns how many are the writers'. */
static size_t check_snapshot(void)
{
	int64_t last[WRITERS] = {-1, -1, -1, -1};
	size_t n = gantry_event_snapshot(events, 3 * RING), ours = 0;

	for (size_t i = 0; i < n; i++) {
		const struct gantry_event *e = &events[i];

		if (e->kind == GANTRY_EV_CHUNK_TX)
			continue; /* left over from check_wrap */
		CHECK_EQ(e->kind, GANTRY_EV_RECV_DONE);
		CHECK(e->a < WRITERS);
		CHECK_EQ(e->c, expected_c(e->a, e->b));
		CHECK((int64_t)e->b > last[e->a]);
		last[e->a] = (int64_t)e->b;
		ours++;
	}
	return ours;
}

TEST(check_threads)
{
	pthread_t threads[WRITERS];
	size_t seen = 0;

	threads_start(threads, WRITERS, write_events, NULL, 1);
	while (__atomic_load_n(&writers_running, __ATOMIC_ACQUIRE))
		seen += check_snapshot();
	threads_join(threads, WRITERS);
	seen = check_snapshot();
	CHECK(seen >= 1024);
}

static int interrupts;

/* Runs in the middle of a snapshot and writes once around the ring: whatever is being read changes there and then. */
static void overwrite_all(int sig)
{
	static uint64_t round; /* signals do not nest */

	for (int i = 0; i <= RING; i++, round++) {
		uint32_t writer = (uint32_t)(round % WRITERS);

		gantry_event_put(GANTRY_EV_RECV_DONE, writer, round, expected_c(writer, round));
	}
	__atomic_fetch_add(&interrupts, 1, __ATOMIC_RELEASE);
}

static void *read_events(void *arg)
{
	while (__atomic_load_n(&interrupts, __ATOMIC_ACQUIRE) < INTERRUPTS)
		check_snapshot();
	return arg;
}

/* Threads alone rarely meet within the few loads of one record; a signal at the reader does so often. */
TEST(check_interrupted_reader)
{
	struct sigaction action = {.sa_handler = overwrite_all};
	pthread_t reader;

	sigaction(SIGUSR1, &action, NULL);
	overwrite_all(0); /* rounds start again at 0: nothing of the threads before may be left */
	CHECK_EQ(pthread_create(&reader, NULL, read_events, NULL), 0);
	for (int i = 1; i < INTERRUPTS; i++) {
		CHECK_EQ(pthread_kill(reader, SIGUSR1), 0);
		while (__atomic_load_n(&interrupts, __ATOMIC_ACQUIRE) <= i)
			sched_yield();
	}
	pthread_join(reader, NULL);
}

TEST(check_names)
{
	CHECK_STR(gantry_event_name(GANTRY_EV_LINK_UP), "link up");
	CHECK_STR(gantry_event_field(GANTRY_EV_LINK_UP, 0), "link");
	CHECK_STR(gantry_event_field(GANTRY_EV_LINK_UP, 1), "lanes");
	CHECK_STR(gantry_event_field(GANTRY_EV_LINK_UP, 2), "dev");
	CHECK_STR(gantry_event_field(GANTRY_EV_STRANGER, 1), "");
	CHECK_STR(gantry_event_field(GANTRY_EV_LINK_UP, 3), "");
	CHECK_STR(gantry_event_field(GANTRY_EV_LINK_UP, -1), "");
	CHECK_STR(gantry_event_name(GANTRY_EV_COUNT), "unknown");
	CHECK_STR(gantry_event_field((enum gantry_event_kind)99999, 0), "");
	for (int i = 0; i < GANTRY_EV_COUNT; i++)
		CHECK(*gantry_event_name((enum gantry_event_kind)i));
}
