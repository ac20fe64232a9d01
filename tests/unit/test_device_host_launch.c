/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels on the host device: several blocks that wait for each other, several lanes, sleeping at eventcounts, abort,
 * and that no thread is left when the device is closed.
 *
 * Lost wake-ups show as a hang where eventcounts are slept at without a limit (an alarm ends the test), and in kernels
 * as a sleep that ran to its end, 100 ms, although the ring was over before that. How fast the machine is matters to
 * neither.
 */
#include "base/eventcount.h"
#include "device/host/host.h"
#include "test.h"

enum { LIMIT_S = 500, BLOCKS = 6, LANES = 3, ROUNDS = 300, TIGHT = 10000 };

static struct gantry_device *dev;

/* A body of the test's own as a kernel; further members of the launch follow. */
#define LAUNCH(stream, fn, arg, ...)                                                                                   \
	dev->ops->launch(dev, stream,                                                                                  \
			 &(struct gantry_launch){.kernel = &(struct gantry_kernel){.body = (fn)},                      \
						 .args = &(arg),                                                       \
						 .args_size = sizeof(arg),                                             \
						 __VA_ARGS__})

/* The device's own; sanitizers have threads too. */
static int threads_now(void)
{
	DIR *tasks = opendir(HELD_THREADS);
	struct dirent *entry;
	int n = 0;

	CHECK(tasks);
	while ((entry = readdir(tasks))) {
		char path[300], name[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), HELD_THREADS "/%s/comm", entry->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		if (fgets(name, sizeof(name), f) && !strncmp(name, "gantry-", 7))
			n++;
		fclose(f);
	}
	closedir(tasks);
	return n;
}

/* Every block waits for all others, in several rounds: they must all be running. */
struct meet_args {
	uint64_t *arrived; /* one counter per round */
	uint32_t *seen;	   /* per block */
	struct gantry_eventcount *eventcounts;
	int rounds;
};

static void body_meet(const void *p)
{
	const struct meet_args *a = p;
	struct dev_wait w;

	CHECK_EQ(dev_blocks(), BLOCKS);
	CHECK_EQ(dev_lanes(), 1);
	a->seen[dev_block()]++;
	for (int i = 0; i < a->rounds; i++) {
		__atomic_fetch_add(&a->arrived[i], 1, __ATOMIC_SEQ_CST);
		for (uint32_t b = 0; a->eventcounts && b < dev_blocks(); b++)
			dev_notify(&a->eventcounts[b]);
		dev_wait_init(&w);
		while (dev_load(&a->arrived[i]) < dev_blocks())
			CHECK(!dev_wait(&w));
		dev_wait_done(&w);
	}
}

TEST(check_blocks)
{
	static struct gantry_eventcount eventcounts[BLOCKS];
	struct gantry_stream *s;
	uint64_t arrived[20];
	uint32_t seen[BLOCKS] = {0};
	struct meet_args a = {arrived, seen, NULL, 20};

	CHECK_OK(gantry_stream_create(dev, &s));
	for (int i = 0; i < 20; i++) {
		memset(arrived, 0, sizeof(arrived));
		a.eventcounts = i % 2 ? eventcounts : NULL;
		CHECK_OK(LAUNCH(s, body_meet, a, .blocks = BLOCKS, .eventcounts = a.eventcounts));
		CHECK_OK(gantry_stream_sync(dev, s));
	}
	for (int i = 0; i < BLOCKS; i++)
		CHECK_EQ(seen[i], 20);
	CHECK_OK(gantry_stream_destroy(dev, s));
}

/* Lanes of each block fill their part, meet, copy with odd alignment, and agree on lane 0's value. */
struct lanes_args {
	unsigned char *from, *to; /* per block 4096 bytes */
};

static void body_lanes(const void *p)
{
	const struct lanes_args *a = p;
	unsigned char *from = a->from + 4096 * dev_block(), *to = a->to + 4096 * dev_block();

	random_seed(7); /* all lanes have the same */
	CHECK_EQ(dev_lanes(), LANES);
	for (int round = 0; round < 50; round++) {
		uint32_t shift = random_next() % 16, back = random_next() % 16, n = random_next() % 4000;
		uint64_t value;

		for (uint32_t i = dev_lane(); i < n; i += dev_lanes())
			from[shift + i] = (unsigned char)(i * 31 + (uint32_t)round + dev_block());
		value = dev_bcast(dev_lane() == 0 ? (uint64_t)round << 40 | n : 1);
		CHECK_EQ(value, (uint64_t)round << 40 | n);
		if (dev_lane() == 0 && round % 10 == 0)
			usleep(1000); /* the others fall asleep */
		dev_copy(to + back, from + shift, n);
		dev_barrier();
		for (uint32_t i = 0; i < n; i++)
			CHECK_EQ(to[back + i], (unsigned char)(i * 31 + (uint32_t)round + dev_block()));
		dev_barrier();
	}
}

TEST(check_lanes)
{
	FREED unsigned char *from = calloc(4, 4096), *to = calloc(4, 4096);
	struct lanes_args a = {from, to};
	struct gantry_stream *s;

	CHECK(from && to);
	CHECK_OK(gantry_stream_create(dev, &s));
	for (int i = 0; i < 3; i++)
		CHECK_OK(LAUNCH(s, body_lanes, a, .blocks = 1 + (uint32_t)i, .lanes = LANES));
	CHECK_OK(gantry_stream_destroy(dev, s));
}

/* Kernels that ping and pong across two streams, with dev.h's words. */
struct ping_args {
	uint64_t *mine, *other;
	struct gantry_eventcount *others_eventcount;
	uint64_t *rung, *other_rung; /* when the round's ring was over: mine, the other's */
	uint64_t *lost;		     /* sleeps that only the safety net ended */
	uint32_t first;
};

/* The net's time begins later than `from`: a ring that is over by then plus half of it must have ended the sleep. */
enum { NET_NS = 100000000 }; /* SLEEP_NS in host/launch.c */

static void store_and_ring(const struct ping_args *a, uint64_t round)
{
	if (random_below(2))
		usleep(random_below(800));
	if (round == 1) /* so that each sleeps at least once */
		UNTIL(__atomic_load_n(&a->others_eventcount->waiting, __ATOMIC_SEQ_CST));
	dev_store(a->mine, round);
	dev_notify(a->others_eventcount);
	dev_store(&a->rung[round], gantry_now_ns());
}

static void wait_for_round(const struct ping_args *a, uint64_t round)
{
	uint64_t from = 0, rung;
	int slept_out = 0;
	struct dev_wait w;

	dev_wait_init(&w);
	while (dev_load(a->other) < round) {
		int sleeps = w.backoff.announced != 0;

		from = gantry_now_ns();
		CHECK(!dev_wait(&w));
		slept_out = sleeps && w.backoff.announced; /* rung, it would have to announce itself anew */
	}
	dev_wait_done(&w);
	CHECK_EQ(dev_self.eventcount->waiting, 0);
	if (!slept_out)
		return;
	while (!(rung = dev_load(&a->other_rung[round])))
		usleep(10);
	*a->lost += rung < from + NET_NS / 2;
}

static void body_ping(const void *p)
{
	const struct ping_args *a = p;

	for (uint64_t i = 1; i <= ROUNDS; i++) {
		if (a->first)
			store_and_ring(a, i);
		wait_for_round(a, i);
		if (!a->first)
			store_and_ring(a, i);
	}
}

/* Two threads, a word and a eventcount each. */
struct table {
	struct gantry_eventcount eventcounts[2];
	uint64_t word[2];
};

static void linger(void)
{
	for (uint64_t k = random_below(200); k > 0; k--)
		gantry_cpu_pause();
}

static void play_tight(struct table *s, int me)
{
	struct gantry_waiter w;

	gantry_waiter_init(&w, &s->eventcounts[me]);
	w.spin = w.yield = 0;
	for (uint64_t i = 1; i <= TIGHT; i++) {
		if (!me) {
			dev_store(&s->word[0], i);
			gantry_eventcount_notify(&s->eventcounts[1]);
		}
		while (dev_load(&s->word[!me]) < i) {
			linger(); /* rings come between the last look and the sleep, too */
			gantry_waiter_idle(&w, UINT64_MAX);
		}
		gantry_waiter_done(&w);
		linger();
		if (me) {
			dev_store(&s->word[1], i);
			gantry_eventcount_notify(&s->eventcounts[0]);
		}
	}
	CHECK(w.sleeps > 0);
}

static void *play_tight_1(void *arg)
{
	play_tight(arg, 1);
	return NULL;
}

TEST(check_eventcounts)
{
	static struct gantry_eventcount eventcounts[2];
	static struct table s;
	struct gantry_stream *streams[2];
	static uint64_t rung[2][ROUNDS + 1];
	uint64_t words[2] = {0}, lost[2] = {0};
	pthread_t thread;

	for (uint32_t i = 0; i < 2; i++) {
		struct ping_args a = {&words[i], &words[!i], &eventcounts[!i], rung[i], rung[!i], &lost[i], i};

		CHECK_OK(gantry_stream_create(dev, &streams[i]));
		CHECK_OK(LAUNCH(streams[i], body_ping, a, .blocks = 1, .eventcounts = &eventcounts[i]));
	}
	for (int i = 0; i < 2; i++)
		CHECK_OK(gantry_stream_destroy(dev, streams[i]));
	CHECK(eventcounts[0].seq && eventcounts[1].seq);
	CHECK_EQ(lost[0] + lost[1], 0);

	/* Straight to sleep, with hardly any delay: announcing and ringing meet in all orders. */
	CHECK_EQ(pthread_create(&thread, NULL, play_tight_1, &s), 0);
	play_tight(&s, 0);
	pthread_join(thread, NULL);
}

static void body_for_ever(const void *p)
{
	uint64_t *const *word = p;
	struct dev_wait w;

	dev_wait_init(&w);
	while (!dev_load(*word))
		if (dev_wait(&w))
			return;
	CHECK(0);
}

TEST(check_abort)
{
	static struct gantry_eventcount eventcounts[BLOCKS];
	struct gantry_stream *s;
	uint64_t word = 0, *arg = &word, from;

	CHECK_OK(gantry_stream_create(dev, &s));
	for (int i = 0; i < 6; i++) {
		uint32_t stop = 0;

		CHECK_OK(LAUNCH(s, body_for_ever, arg, .blocks = BLOCKS, .abort = &stop,
				.eventcounts = i % 2 ? eventcounts : NULL));
		usleep(i < 2 ? 0 : 3000);
		CHECK_EQ(gantry_stream_query(dev, s), GANTRY_AGAIN);
		from = gantry_now_ns();
		__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
		for (int b = 0; b < BLOCKS; b++)
			gantry_eventcount_notify(&eventcounts[b]);
		CHECK_OK(gantry_stream_sync(dev, s));
		CHECK(gantry_now_ns() - from < UNTIL_SECONDS * 1000000000ull);
		for (int b = 0; b < BLOCKS; b++)
			CHECK_EQ(eventcounts[b].waiting, 0);
	}
	CHECK_OK(gantry_stream_destroy(dev, s));
}

static void body_add(const void *p)
{
	uint64_t *const *n = p;

	++**n;
}

/* A stream keeps its device; with the last of both all threads are gone. */
TEST(check_end)
{
	struct gantry_stream *s;
	uint64_t n = 0, *counter = &n;

	CHECK_OK(gantry_stream_create(dev, &s));
	CHECK(threads_now() > 0);
	gantry_device_close(dev);
	CHECK_OK(LAUNCH(s, body_add, counter, .blocks = 1));
	CHECK_OK(gantry_stream_destroy(dev, s));
	CHECK_EQ(n, 1);
	UNTIL(!threads_now()); /* one that was joined may still be listed for a moment */
}

void tests_begin(void)
{
	alarm(LIMIT_S);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev));
}
