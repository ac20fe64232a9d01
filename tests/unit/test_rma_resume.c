/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote memory access while the sockets below it are reset (GANTRY_RESUME=on): rounds of puts, gets and signals between two ranks, in
 * host memory and in memory that only copy queues reach, in the clear and encrypted. GANTRY_TEST_CUTS: how many sockets
 * are lost in each test.
 * Catches: a message that a resumed session delivers twice, late or not at all, which shows as a sum that is off, as bytes of another
 * round, or as a wait that does not end; a source that is read after its put was done; memory that is read after it was deregistered.
 */
#include "rma_world.h"

#include "resume_util.h"

enum {
	RANKS = 2,
	PUTS = 3,
	GETS = 3,
	BURST = 40,
	CONTEXTS = 2,
	ROOM = 5 << 19,
	GUARD = 64,
	FILL = 0xa5,
	LARGEST_GET = 200000
};
/* Words: one for each context of the peer's puts, and one that all ranks add to. */
enum { SUM = CONTEXTS, WORDS };
/* Registered in this order by every rank, hence the numbers. */
enum { SOURCE = 1, TARGET, STEADY, FETCHED, WORDS_MEMORY };

struct buffers {
	uint8_t *source, *target, *steady, *fetched, *words;
};

struct cutter {
	long wanted;
	long lost; /* sockets */
	int over;  /* atomic */
	int last;  /* atomic: no further round. Rank 0 sets it before a meeting, both read it behind that */
};

/* ---- memory ---- */

/* See test_rma.c: the queue's plain store to a word that is polled is a race to ThreadSanitizer. */
static bool words_are_staged(const struct rma_world *w)
{
#ifdef __SANITIZE_THREAD__
	return false;
#else
	return w->staged;
#endif
}

static uint8_t *get_buffer(const struct rma_world *w, struct rma_comm *c, size_t size, bool staged, uint32_t number)
{
	void *p = NULL;
	uint32_t got;

	if (w->staged)
		CHECK_OK(w->device->ops->alloc(w->device, size, &p));
	else
		p = calloc(1, size);
	CHECK(p);
	CHECK_OK(rma_register(c, p, size, staged ? RMA_DEVICE : RMA_HOST, &got));
	CHECK_EQ(got, number);
	return p;
}

/* The peer has what it has got from there; the network of this rank may not know yet. */
static void put_buffer(const struct rma_world *w, struct rma_comm *c, void *p, uint32_t number)
{
	CHECK_OK(rma_deregister(c, number));
	CHECK_OK(rma_error(c, NULL, NULL));
	if (w->staged)
		w->device->ops->free(w->device, p);
	else
		free(p);
}

static uint64_t *word_at(const struct buffers *b, int i)
{
	return (uint64_t *)(void *)b->words + i;
}

/* ---- a round ---- */

/* What one rank puts to the other in a round; both draw the same. */
struct plan {
	struct {
		uint64_t bytes, at;
	} puts[PUTS];
	uint32_t n, context;
	uint64_t add;
	bool with_data; /* the signal goes with the last put */
};

static void draw_plan(uint64_t round, uint32_t from, struct plan *ret)
{
	random_seed(2 * round + from + 1);
	ret->n = random_below(PUTS + 1);
	ret->context = random_below(CONTEXTS);
	ret->add = 1 + random_below(9);
	ret->with_data = ret->n && random_below(2);
	for (uint32_t i = 0; i < ret->n; i++) {
		uint32_t kind = random_below(8);
		uint32_t most = kind < 3 ? 300 : kind < 5 ? 6000 : kind < 7 ? 100000 : ROOM;

		ret->puts[i].bytes = random_below(most + 1);
		ret->puts[i].at = random_below((uint32_t)(ROOM - ret->puts[i].bytes + 1));
	}
}

static uint64_t number_of(uint64_t round, uint32_t from, uint32_t put)
{
	return (2 * round + from) * PUTS + put + 1;
}

static uint64_t target_of(uint32_t put)
{
	return put * (uint64_t)(ROOM + 2 * GUARD) + GUARD;
}

static uint32_t post_puts(struct rma_comm *c, const struct buffers *b, uint64_t round, uint32_t rank,
			  struct rma_request **q)
{
	struct rma_signal s;
	struct rma_to to;
	uint32_t nq = 0;
	struct plan p;

	draw_plan(round, rank, &p);
	to = (struct rma_to){1 - rank, p.context};
	s = (struct rma_signal){{WORDS_MEMORY, 8 * p.context}, p.add};
	for (uint32_t i = 0; i < p.n; i++) {
		pattern_fill(b->source + i * (size_t)ROOM, p.puts[i].bytes, number_of(round, rank, i));
		CHECK_OK(rma_put(c, to, (struct rma_place){SOURCE, i * (uint64_t)ROOM},
				 (struct rma_place){TARGET, target_of(i) + p.puts[i].at}, p.puts[i].bytes,
				 p.with_data && i + 1 == p.n ? &s : NULL, &q[nq++]));
	}
	if (!p.with_data)
		CHECK_OK(rma_put(c, to, (struct rma_place){0}, (struct rma_place){0}, 0, &s, &q[nq++]));
	return nq;
}

/* Both ranks add to a word of each of them, in both contexts. */
static uint32_t post_burst(struct rma_comm *c, uint32_t rank, struct rma_request **q)
{
	const struct rma_signal s = {{WORDS_MEMORY, 8 * SUM}, rank + 1};
	uint32_t nq = 0;

	for (uint32_t i = 0; i < BURST; i++)
		for (uint32_t to = 0; to < RANKS; to++)
			CHECK_OK(rma_put(c, (struct rma_to){to, i % CONTEXTS}, (struct rma_place){0},
					 (struct rma_place){0}, 0, &s, &q[nq++]));
	return nq;
}

struct fetch {
	uint64_t at, bytes;
};

static uint32_t post_gets(struct rma_comm *c, uint64_t round, uint32_t rank, struct fetch *gets, struct rma_request **q)
{
	random_seed(1u << 30 | (2 * round + rank));
	for (uint32_t i = 0; i < GETS; i++) {
		gets[i].bytes = random_below(random_below(2) ? 6000 : LARGEST_GET);
		gets[i].at = random_below((uint32_t)(LARGEST_GET - gets[i].bytes));
		CHECK_OK(rma_get(c, (struct rma_to){1 - rank, i % CONTEXTS}, (struct rma_place){STEADY, gets[i].at},
				 (struct rma_place){FETCHED, i * (uint64_t)LARGEST_GET}, gets[i].bytes, &q[i]));
	}
	return GETS;
}

static void check_bytes(const uint8_t *bytes, size_t n, uint8_t want)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != want)
			TEST_FAIL("byte %zu of %zu is %u, not %u", i, n, bytes[i], want);
}

/* What has come, and that nothing else has been written; then the target is as before. */
static void check_puts(const struct buffers *b, uint64_t round, uint32_t from)
{
	struct plan p;

	draw_plan(round, from, &p);
	for (uint32_t i = 0; i < p.n; i++) {
		uint8_t *at = b->target + target_of(i) + p.puts[i].at;

		CHECK_PATTERN(at, p.puts[i].bytes, number_of(round, from, i));
		check_bytes(at - GUARD, GUARD, FILL);
		check_bytes(at + p.puts[i].bytes, GUARD, FILL);
		memset(at, FILL, p.puts[i].bytes);
	}
}

/* The owner's pattern, computed for all of it: it depends on the place. */
static void check_gets(const struct buffers *b, uint32_t owner, const struct fetch *gets)
{
	uint8_t *want = malloc(LARGEST_GET);

	CHECK(want);
	pattern_fill(want, LARGEST_GET, 1000 + owner);
	for (uint32_t i = 0; i < GETS; i++)
		CHECK(memcmp(b->fetched + i * (size_t)LARGEST_GET, want + gets[i].at, gets[i].bytes) == 0);
	free(want);
	memset(b->fetched, 0, GETS * (size_t)LARGEST_GET);
}

static void finish_all(struct rma_comm *c, struct rma_request **q, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		int done = 0;

		WAIT_WHILE (!done)
			CHECK_OK(rma_test(q[i], &done));
	}
}

static void wait_word(struct rma_comm *c, const struct buffers *b, int i, uint64_t want)
{
	WAIT_WHILE (load_seq(word_at(b, i)) < want)
		CHECK_OK(rma_progress(c));
	CHECK_EQ(load_seq(word_at(b, i)), want);
}

static void run_round(struct rma_world *w, struct rma_comm *c, const struct buffers *b, uint64_t round, uint32_t rank,
		      uint64_t want[WORDS])
{
	struct rma_request *q[PUTS + 1 + RANKS * BURST + GETS];
	struct fetch gets[GETS];
	uint32_t n = 0;
	struct plan p;

	n += post_puts(c, b, round, rank, q + n);
	n += post_gets(c, round, rank, gets, q + n);
	n += post_burst(c, rank, q + n);
	finish_all(c, q, n);
	memset(b->source, 0xee, PUTS * (size_t)ROOM); /* done: it may be used again */
	check_gets(b, 1 - rank, gets);
	draw_plan(round, 1 - rank, &p);
	want[p.context] += p.add;
	wait_word(c, b, (int)p.context, want[p.context]);
	check_puts(b, round, 1 - rank);
	want[SUM] += BURST * (RANKS * (RANKS + 1) / 2);
	wait_word(c, b, SUM, want[SUM]);
	rma_world_meet(w, c, 3 * round + 2);
	for (int i = 0; i < WORDS; i++)
		CHECK_EQ(load_seq(word_at(b, i)), want[i]);
	if (round % 2) { /* no signal is on its way */
		store_seq(word_at(b, SUM), 0);
		want[SUM] = 0;
	}
}

/* ---- resets ---- */

/* Both ends of a socket are in this process, and each counts it when it has another one. */
static void *cut_sockets(void *arg)
{
	struct cutter *c = arg;
	uint32_t first = resumed(), before;

	for (long n = 0; c->lost < c->wanted; n++) {
		before = resumed();
		cut_at((int)any(2), (int)any(n % 8 ? LANES : LANES + 1) - (n % 8 ? 0 : 1));
		WAIT_WHILE (resumed() == before)
			sleep_ns(100000);
		sleep_ns(any(3000000));
		c->lost = (resumed() - first) / 2;
	}
	store_release(&c->over, 1);
	return NULL;
}

static void move(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct cutter *cutter = w->user;
	uint64_t want[WORDS] = {0}, round = 0;
	struct rma_counts counts;
	pthread_t thread;
	struct buffers b = {
		.source = get_buffer(w, c, PUTS * (size_t)ROOM, w->staged, SOURCE),
		.target = get_buffer(w, c, PUTS * (size_t)(ROOM + 2 * GUARD), w->staged, TARGET),
		.steady = get_buffer(w, c, LARGEST_GET, w->staged, STEADY),
		.fetched = get_buffer(w, c, GETS * (size_t)LARGEST_GET, w->staged, FETCHED),
		.words = get_buffer(w, c, WORDS * sizeof(uint64_t), words_are_staged(w), WORDS_MEMORY),
	};

	memset(b.target, FILL, PUTS * (size_t)(ROOM + 2 * GUARD));
	pattern_fill(b.steady, LARGEST_GET, 1000 + rank);
	for (; !load_acquire(&cutter->last); round++) {
		rma_world_meet(w, c, 3 * round + 1);
		if (!round && !rank)
			CHECK_EQ(pthread_create(&thread, NULL, cut_sockets, cutter), 0);
		run_round(w, c, &b, round, rank, want);
		if (!rank && load_acquire(&cutter->over))
			store_release(&cutter->last, 1);
		rma_world_meet(w, c, 3 * round + 3);
	}
	if (!rank)
		CHECK_EQ(pthread_join(thread, NULL), 0);
	rma_counts(c, &counts);
	CHECK_EQ(counts.gets, round * GETS);
	CHECK_EQ(counts.signals, round * (1 + RANKS * BURST));
	CHECK_EQ(counts.applied, counts.signals); /* as many come as leave */
	CHECK_OK(rma_error(c, NULL, NULL));
	if (!rank)
		printf("%s: %ld sockets lost in %llu rounds\n", w->staged ? "staged" : "host memory", cutter->lost,
		       (unsigned long long)round);
	rma_world_meet(w, c, 3 * round + 1);
	put_buffer(w, c, b.source, SOURCE);
	put_buffer(w, c, b.target, TARGET);
	put_buffer(w, c, b.steady, STEADY);
	put_buffer(w, c, b.fetched, FETCHED);
	put_buffer(w, c, b.words, WORDS_MEMORY);
	rma_world_meet(
		w, c, 3 * round + 2); /* else one closes while the other one waits for its answers to be acknowledged */
}

static void run(bool staged, bool encrypted)
{
	const char *wanted = getenv("GANTRY_TEST_CUTS");
	struct cutter cutter = {.wanted = wanted ? atol(wanted) : 100};
	struct rma_world w = {.n = RANKS, .staged = staged, .body = move, .user = &cutter};

	logs_keep();
	set_params("GANTRY_RESUME", "on", "GANTRY_LANES", "2", "GANTRY_TIMEOUT", "100s", "GANTRY_SECRET",
		   encrypted ? "a secret of thirty-two characters" : NULL, "GANTRY_ENCRYPT",
		   encrypted ? "require" : NULL);
	rma_world_run(&w);
	for (uint32_t i = 0; i < RANKS; i++)
		CHECK_OK(w.opened[i]);
	CHECK(cutter.lost >= cutter.wanted);
}

TEST_CALL(host_memory, run(false, false))
TEST_CALL(staged_memory, run(true, false))
#if GANTRY_HAVE_OPENSSL
TEST_CALL(host_memory_encrypted, run(false, true))
TEST_CALL(staged_memory_encrypted, run(true, true))
#endif

void tests_begin(void)
{
	tests_apart(1);
}
