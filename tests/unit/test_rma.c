/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote memory access among ranks in threads of this process: every byte and every signal of random puts and gets, in host memory and
 * in memory that only the device's copy queues reach; what is wrong, and ranks that are missing or go.
 */
#include "rma/rma_wire.h"
#include "rma_world.h"

enum { ROUNDS = SANITIZED ? 4 : 10, ROOM = 3 << 20, CONTEXTS = 3, PUTS = 4 };

/* ---- memory ---- */

/* What a rank has registered, in this order. */
struct memory {
	uint8_t *source, *target, *words;
	uint32_t source_number, target_number, words_number;
	size_t target_size, words_count;
};

static bool words_on_device(const struct rma_world *w)
{
#ifdef __SANITIZE_THREAD__
	(void)w; /* the queue's plain store of a word is polled here: a race by the letter, a GPU's would be none */
	return false;
#else
	return w->staged && !w->host_words;
#endif
}

static void *get_memory(const struct rma_world *w, size_t size)
{
	void *p = NULL;

	if (w->staged)
		CHECK_OK(w->device->ops->alloc(w->device, size, &p));
	else
		p = calloc(1, size);
	return p;
}

/* NULL is fine. */
static void put_memory(const struct rma_world *w, void *p)
{
	if (w->staged && p)
		w->device->ops->free(w->device, p);
	else
		free(p);
}

static void open_memory(const struct rma_world *w, struct rma_comm *c, struct memory *m)
{
	enum rma_kind kind = w->staged ? RMA_DEVICE : RMA_HOST;

	m->target_size = (size_t)w->n * PUTS * ROOM;
	m->words_count = (size_t)w->n * CONTEXTS + 1;
	m->source = get_memory(w, (size_t)PUTS * ROOM);
	m->target = get_memory(w, m->target_size);
	m->words = get_memory(w, m->words_count * 8);
	CHECK_OK(rma_register(c, m->source, (size_t)PUTS * ROOM, kind, &m->source_number));
	CHECK_OK(rma_register(c, m->target, m->target_size, kind, &m->target_number));
	CHECK_OK(rma_register(c, m->words, m->words_count * 8, words_on_device(w) ? RMA_DEVICE : RMA_HOST,
			      &m->words_number));
	CHECK_EQ(m->source_number, 1u);
	CHECK_EQ(m->words_number, 3u);
}

static void close_memory(const struct rma_world *w, struct memory *m)
{
	put_memory(w, m->source);
	put_memory(w, m->target);
	put_memory(w, m->words);
}

/* After an error, when the network and copy queues may still read and write it. */
static void drop_memory(const struct rma_world *w, struct rma_comm *c, struct memory *m)
{
	for (uint32_t number = m->source_number; number <= m->words_number; number++)
		rma_deregister(c, number);
	close_memory(w, m);
}

static uint64_t word(const struct memory *m, size_t i)
{
	return load_seq((const uint64_t *)(const void *)m->words + i);
}

/* ---- random puts ---- */

/* What rank `from` puts to rank `to` in a round; both draw the same. */
struct plan {
	struct {
		uint64_t bytes, at; /* at: in the part of `from` */
	} puts[PUTS];
	uint32_t context, n;
	uint64_t add;
	bool signal_with_data;
};

static void draw_plan(uint32_t round, uint32_t from, uint32_t to, struct plan *ret)
{
	random_seed(((uint64_t)round << 16 | from << 8 | to) + 1);
	ret->context = random_below(CONTEXTS);
	ret->n = random_below(PUTS + 1);
	ret->add = 1 + random_below(5);
	ret->signal_with_data = random_below(2);
	for (uint32_t i = 0; i < ret->n; i++) {
		uint32_t kind = random_below(10);
		uint64_t most = kind < 5 ? 300 : kind < 8 ? 100000 : ROOM - 1;

		ret->puts[i].bytes = random_below((uint32_t)most + 1);
		ret->puts[i].at = i * (uint64_t)ROOM + random_below((uint32_t)(ROOM - ret->puts[i].bytes + 1));
	}
}

static uint8_t byte_of(uint32_t round, uint32_t from, uint32_t to, uint32_t put, uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + ((uint64_t)round << 32 | from << 16 | to << 8 | put);

	return (uint8_t)(x >> 40 ^ x >> 17);
}

static void make_puts(struct rma_comm *c, const struct memory *m, uint32_t round, uint32_t rank, uint32_t to)
{
	struct rma_request *q[PUTS + 1];
	uint32_t nq = 0;
	struct plan p;

	draw_plan(round, rank, to, &p);
	for (uint32_t i = 0; i < p.n; i++) {
		struct rma_signal s = {{m->words_number, 8 * ((uint64_t)rank * CONTEXTS + p.context)}, p.add};
		bool last = i + 1 == p.n && p.signal_with_data;

		for (uint64_t k = 0; k < p.puts[i].bytes; k++)
			m->source[i * (uint64_t)ROOM + k] = byte_of(round, rank, to, i, k);
		CHECK_OK(rma_put(c, (struct rma_to){to, p.context},
				 (struct rma_place){m->source_number, i * (uint64_t)ROOM},
				 (struct rma_place){m->target_number, (uint64_t)rank * PUTS * ROOM + p.puts[i].at},
				 p.puts[i].bytes, last ? &s : NULL, &q[nq++]));
	}
	if (!p.signal_with_data || !p.n) {
		struct rma_signal s = {{m->words_number, 8 * ((uint64_t)rank * CONTEXTS + p.context)}, p.add};

		CHECK_OK(rma_put(c, (struct rma_to){to, p.context}, (struct rma_place){0}, (struct rma_place){0}, 0, &s,
				 &q[nq++]));
	}
	for (uint32_t i = 0; i < nq; i++)
		rma_world_finish(c, q[i]);
	memset(m->source, 0xee, (size_t)PUTS * ROOM); /* it may be used again */
}

static void check_puts(const struct memory *m, uint32_t round, uint32_t from, uint32_t rank)
{
	uint8_t *part = m->target + (size_t)from * PUTS * ROOM;
	struct plan p;

	draw_plan(round, from, rank, &p);
	for (uint32_t i = 0; i < p.n; i++) {
		for (uint64_t k = 0; k < p.puts[i].bytes; k++)
			CHECK_EQ(part[p.puts[i].at + k], byte_of(round, from, rank, i, k));
		memset(part + p.puts[i].at, 0, p.puts[i].bytes);
	}
}

/* Rounds in which every rank puts to every rank. A signal says that all before it in its context is here. */
static void random_puts(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	uint64_t want[RMA_WORLD_MOST * CONTEXTS] = {0}, meets = 0;
	struct rma_counts counts;
	struct memory m;
	struct plan p;

	open_memory(w, c, &m);
	rma_world_meet(w, c, ++meets);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < w->n; i++)
			make_puts(c, &m, round, rank, (rank + i) % w->n);
		for (uint32_t from = 0; from < w->n; from++) {
			draw_plan(round, from, rank, &p);
			want[from * CONTEXTS + p.context] += p.add;
			while (word(&m, from * CONTEXTS + p.context) < want[from * CONTEXTS + p.context])
				CHECK_OK(rma_progress(c));
			check_puts(&m, round, from, rank);
		}
		rma_world_meet(w, c, ++meets);
		for (uint32_t i = 0; i < w->n * CONTEXTS; i++)
			CHECK_EQ(word(&m, i), want[i]);
		rma_world_meet(w, c, ++meets);
	}
	for (size_t i = 0; i < m.target_size; i++)
		if (m.target[i])
			TEST_FAIL("rank %u: byte %zu was written", rank, i);
	rma_counts(c, &counts);
	CHECK_EQ(counts.signals, (uint64_t)ROUNDS * w->n);
	CHECK_EQ(counts.applied, (uint64_t)ROUNDS * w->n);
	CHECK_OK(rma_error(c, NULL, NULL));
	rma_world_meet(w, c, ++meets);
	close_memory(w, &m);
}

static void run_world(uint32_t n, bool staged, void (*body)(struct rma_world *w, uint32_t rank, struct rma_comm *c))
{
	struct rma_world w = {.n = n, .staged = staged, .body = body};

	CASE("%u ranks, %s", n, staged ? "staged" : "host memory");
	rma_world_run(&w);
	for (uint32_t i = 0; i < n; i++)
		CHECK_OK(w.opened[i]);
}

TEST(puts_and_signals)
{
	for (uint32_t n = 1; n <= (SANITIZED ? 3 : 4); n++)
		for (int staged = 0; staged < 2; staged++)
			run_world(n, staged, random_puts);
}

/* Data in device memory, signals in host memory: the CPU's addition must not overtake the copies of earlier puts. */
TEST(puts_and_signals_of_the_cpu)
{
	struct rma_world w = {.n = 3, .staged = true, .host_words = true, .body = random_puts};

	rma_world_run(&w);
	for (uint32_t i = 0; i < w.n; i++)
		CHECK_OK(w.opened[i]);
}

/* ---- gets ---- */

static void gets(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct rma_request *q[8], *flush;
	uint64_t meets = 0, at[8], bytes[8];
	struct memory m;
	int done = 0;

	open_memory(w, c, &m);
	for (size_t i = 0; i < m.target_size; i++)
		m.target[i] = byte_of(0, rank, 0, 0, i);
	rma_world_meet(w, c, ++meets);
	random_seed(rank + 1);
	for (uint32_t round = 0; round < 20; round++) {
		uint32_t from = random_below(w->n), used = 0;

		for (int i = 0; i < 8; i++) {
			bytes[i] = random_below(random_below(3) ? 5000 : 1000000);
			at[i] = random_below((uint32_t)(m.target_size - bytes[i]));
			CHECK_OK(rma_get(c, (struct rma_to){from, random_below(CONTEXTS)},
					 (struct rma_place){m.target_number, at[i]},
					 (struct rma_place){m.source_number, used}, bytes[i], &q[i]));
			used += (uint32_t)bytes[i];
		}
		CHECK_OK(rma_flush(c, (struct rma_to){from, 0}, &flush));
		for (int i = 0; i < 8; i++)
			rma_world_finish(c, q[i]);
		CHECK_OK(rma_test(flush, &done));
		CHECK(done);
		used = 0;
		for (int i = 0; i < 8; used += (uint32_t)bytes[i++])
			for (uint64_t k = 0; k < bytes[i]; k++)
				CHECK_EQ(m.source[used + k], byte_of(0, from, 0, 0, at[i] + k));
	}
	rma_world_meet(w, c, ++meets);
	close_memory(w, &m);
}

TEST(gets_and_flushes)
{
	for (uint32_t n = 1; n <= 3; n++)
		for (int staged = 0; staged < 2; staged++)
			run_world(n, staged, gets);
}

enum { GETS = SANITIZED ? 1500 : 5000 };

/* All ranks ask all others for more than may be under way, in both sizes, at the same time: none waits for another for ever. */
static void many_gets(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct rma_request *q[GETS];
	struct memory m;
	int done = 0;

	open_memory(w, c, &m);
	for (size_t i = 0; i < m.target_size; i++)
		m.target[i] = byte_of(0, rank, 0, 0, i);
	rma_world_meet(w, c, 1);
	for (uint32_t i = 0; i < GETS; i++) {
		const uint64_t at = i % 100 * 8000, bytes = i % 3 ? 100 : 7000;

		CHECK_OK(rma_get(c, (struct rma_to){(rank + 1 + i % (w->n - 1)) % w->n, i % CONTEXTS},
				 (struct rma_place){m.target_number, at}, (struct rma_place){m.source_number, at},
				 bytes, &q[i]));
	}
	for (uint32_t i = GETS; i--;) /* the last first */
		for (done = 0; !done;) {
			CHECK_OK(rma_test(q[i], &done));
			CHECK_OK(rma_progress(c));
		}
	for (uint32_t i = GETS - 300; i < GETS; i++) {
		const uint64_t at = i % 100 * 8000;
		bool mine = false;

		for (uint32_t from = 0; from < w->n; from++)
			mine |= from != rank && m.source[at + 50] == byte_of(0, from, 0, 0, at + 50);
		CHECK(mine);
	}
	rma_world_meet(w, c, 2);
	close_memory(w, &m);
}

TEST(more_gets_than_may_be_under_way)
{
	for (uint32_t n = 2; n <= 3; n++)
		for (int staged = 0; staged < 2; staged++)
			run_world(n, staged, many_gets);
}

/* A rank by hand: its connections, and a hello on the one that it makes. */
struct liar {
	struct rma_world *w;
	void *out, *in;
};

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

static void lie(struct liar *l, void *data, size_t size)
{
	void *q = NULL;
	int done = 0;

	WAIT_WHILE (!q)
		if (NET(isend, l->out, data, size, 0, NULL, &q) != GANTRY_OK)
			return;
	WAIT_WHILE (!done)
		if (NET(test, q, &done, NULL) != GANTRY_OK)
			return;
}

static void connect_liar(struct liar *l)
{
	struct gantry_net_device_handle *none = NULL;
	uint64_t job = 0xcbf29ce484222325u;
	uint8_t hello[RMA_HEADER], handle[GANTRY_NET_HANDLE_SIZE]; /* the network keeps its place in it */

	for (uint32_t i = 0; i < l->w->n; i++)
		for (size_t k = 0; k < GANTRY_NET_HANDLE_SIZE; k++)
			job = (job ^ l->w->handles[i][k]) * 0x100000001b3u;
	memcpy(handle, l->w->handles[0], sizeof(handle));
	CHECK_OK(NET(take_handle, handle));
	WAIT_WHILE (!l->out || !l->in) {
		if (!l->out)
			CHECK_OK(NET(connect, l->w->ctx[1], 0, handle, &l->out, &none));
		if (!l->in)
			CHECK_OK(NET(accept, l->w->listen[1], &l->in, &none));
	}
	rma_hello_encode(job, l->w->n, 1, hello);
	lie(l, hello, sizeof(hello));
}

static void *ask_for_ever(void *arg)
{
	const struct rma_header get = {.what = RMA_GET, .at = {1, 0}, .bytes = 100000, .id = 7};
	struct liar l = {.w = arg};
	uint8_t head[RMA_HEADER];

	connect_liar(&l);
	rma_encode(&get, RMA_INLINE, head);
	for (int i = 0; i < 3000 && !load_seq(&l.w->came); i++)
		lie(&l, head, sizeof(head));
	UNTIL(load_seq(&l.w->came));
	NET(close_send, l.out);
	NET(close_recv, l.in);
	return NULL;
}

static void answer_too_often(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	static uint8_t memory[100000];
	const char *text;
	uint32_t number;
	int culprit;

	(void)rank;
	CHECK_OK(rma_register(c, memory, sizeof(memory), RMA_HOST, &number));
	UNTIL(rma_progress(c) != GANTRY_OK);
	CHECK_EQ(rma_error(c, &culprit, &text), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(culprit, 1);
	CHECK_HAS(text, "rank 1 sent more than 256 gets without taking the answers");
	store_seq(&w->came, 1);
}

TEST(answers_are_bounded)
{
	struct rma_world w = {.n = 2, .body = answer_too_often, .absent = 1 << 1, .instead = ask_for_ever};

	rma_world_run(&w);
	CHECK_OK(w.opened[0]);
}

/* A flush is done when what was asked for before it is, and not before; what comes later, or in another context, does not matter. */
static void flushes(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct rma_request *big, *flush, *other, *late;
	struct memory m;
	int done = 0;

	open_memory(w, c, &m);
	rma_world_meet(w, c, 1);
	if (rank == 0) {
		CHECK_OK(rma_get(c, (struct rma_to){1, 2}, (struct rma_place){m.target_number, 0},
				 (struct rma_place){m.source_number, 0}, ROOM, &big));
		CHECK_OK(rma_flush(c, (struct rma_to){1, 2}, &flush));
		CHECK_OK(rma_flush(c, (struct rma_to){1, 1}, &other));
		CHECK_OK(rma_get(c, (struct rma_to){1, 2}, (struct rma_place){m.target_number, 0},
				 (struct rma_place){m.source_number, ROOM}, ROOM, &late));
		CHECK_OK(rma_test(other, &done));
		CHECK(done);
		CHECK_OK(rma_test(flush, &done));
		CHECK(!done); /* rank 1 has not even looked */
		fetch_add_seq(&w->came, 100);
		rma_world_finish(c, flush);
		CHECK_OK(rma_test(big, &done));
		CHECK(done);
		rma_world_finish(c, late);
		fetch_add_seq(&w->came, 100);
	} else {
		while (load_seq(&w->came) < 100)
			sched_yield();
		while (load_seq(&w->came) < 200)
			CHECK_OK(rma_progress(c));
	}
	close_memory(w, &m);
}

TEST(flush_waits)
{
	run_world(2, false, flushes);
	run_world(2, true, flushes);
}

/* All ranks have come, while none makes progress. */
static void meet_idle(struct rma_world *w, uint64_t n)
{
	fetch_add_seq(&w->came, 1);
	while (load_seq(&w->came) < n * w->n)
		sched_yield();
}

/* ---- stages ---- */

/*
 * Each rank has staged all it can for the next one, and looks for data of the next one only, whose data is staged for the one after
 * that: none may hold all stages of its receiver meanwhile.
 */
static void circle(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	const uint32_t next = (rank + 1) % w->n, last = (rank + 2) % w->n;
	const uint64_t bytes = (uint64_t)PUTS * ROOM;
	struct rma_request *q[2];
	struct rma_counts counts;
	struct memory m;
	int done = 0;

	open_memory(w, c, &m);
	for (uint64_t i = 0; i < bytes; i++)
		m.source[i] = byte_of(0, rank, 0, 0, i);
	rma_world_meet(w, c, 1);
	meet_idle(w, 2);
	for (uint32_t i = 0; i < 2; i++) {
		const struct rma_signal s = {{m.words_number, 8 * (uint64_t)rank}, 1};

		CHECK_OK(rma_put(c, (struct rma_to){i ? last : next, 0}, (struct rma_place){m.source_number, 0},
				 (struct rma_place){m.target_number, rank * bytes}, bytes, &s, &q[i]));
	}
	do {
		CHECK_OK(rma_test(q[0], &done));
		CHECK(!done);
		rma_counts(c, &counts);
	} while (!counts.bytes_in);
	meet_idle(w, 3);
	UNTIL(rma_progress(c) != GANTRY_OK || (word(&m, next) && word(&m, last)));
	CHECK_OK(rma_error(c, NULL, NULL));
	for (uint32_t i = 0; i < 2; i++) {
		const uint32_t from = i ? last : next;

		rma_world_finish(c, q[i]);
		for (uint64_t k = 0; k < bytes; k++)
			CHECK_EQ(m.target[from * bytes + k], byte_of(0, from, 0, 0, k));
	}
	rma_world_meet(w, c, 4);
	close_memory(w, &m);
}

TEST(no_circle_of_stages)
{
	run_world(3, true, circle);
}

/* ---- signals ---- */

enum { ADDS = 3000 };

/* All ranks add to one word of rank 0, in all contexts; from time to time, when none is on its way, it is set to 0. */
static void one_word(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct rma_request *q[64];
	struct memory m;
	uint64_t meets = 0;

	open_memory(w, c, &m);
	rma_world_meet(w, c, ++meets);
	for (int round = 0; round < 3; round++) {
		const struct rma_signal s = {{m.words_number, 8 * (m.words_count - 1)}, (uint64_t)rank + 1};
		const uint64_t want = (uint64_t)ADDS * w->n * (w->n + 1) / 2;

		for (int i = 0; i < ADDS; i++) {
			if (i >= 64)
				rma_world_finish(c, q[i % 64]);
			CHECK_OK(rma_put(c, (struct rma_to){0, (uint32_t)i % CONTEXTS}, (struct rma_place){0},
					 (struct rma_place){0}, 0, &s, &q[i % 64]));
		}
		for (int i = ADDS; i < ADDS + 64; i++)
			rma_world_finish(c, q[i % 64]);
		while (rank == 0 && word(&m, m.words_count - 1) < want)
			CHECK_OK(rma_progress(c));
		rma_world_meet(w, c, ++meets);
		if (rank == 0) {
			CHECK_EQ(word(&m, m.words_count - 1), want);
			store_seq((uint64_t *)(void *)m.words + m.words_count - 1, 0); /* by a kernel of the owner */
		}
		rma_world_meet(w, c, ++meets);
	}
	close_memory(w, &m);
}

TEST(no_addition_is_lost)
{
	for (uint32_t n = 1; n <= 4; n++)
		for (int staged = 0; staged < 2; staged++)
			run_world(n, staged, one_word);
}

/*
 * The same memory in two communicators of each rank, as NCCL registers windows with several collComms: rank 0's words are added to
 * through both at the same time, with a thread for each.
 */
enum { TWICE = 500, TWO_WORDS = 5 };

static struct {
	uint64_t *words;
} shared;

static void add_twice(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	uint64_t *words = rank ? get_memory(w, TWO_WORDS * 8) : shared.words;
	struct rma_request *q[TWICE];
	struct rma_counts counts = {0};
	uint32_t number;

	CHECK_OK(rma_register(c, words, TWO_WORDS * 8, RMA_DEVICE, &number));
	rma_world_meet(w, c, 1);
	for (uint32_t i = 0; i < TWICE; i++) {
		const struct rma_signal s = {{number, 8 * (i % TWO_WORDS)}, 1};

		CHECK_OK(rma_put(c, (struct rma_to){0, i % CONTEXTS}, (struct rma_place){0}, (struct rma_place){0}, 0,
				 &s, &q[i]));
		CHECK_OK(rma_progress(c));
	}
	for (uint32_t i = 0; i < TWICE; i++)
		rma_world_finish(c, q[i]);
	while (!rank && counts.applied < (uint64_t)TWICE * w->n) {
		CHECK_OK(rma_progress(c));
		rma_counts(c, &counts);
	}
	CHECK_OK(rma_progress(c)); /* writes the last value */
	rma_world_meet(w, c, 2);
	if (rank)
		put_memory(w, words);
}

static void *run_twice(void *arg)
{
	rma_world_run(arg);
	return NULL;
}

TEST(two_communicators_add_to_one_word)
{
	struct rma_world w[2];
	struct gantry_device *device;
	pthread_t t[2];
	void *p;

	for (int i = 0; i < 2; i++)
		w[i] = (struct rma_world){.n = 2, .staged = true, .body = add_twice};
	if (!words_on_device(&w[0]))
		return;
	CHECK_OK(gantry_device_host(&device));
	CHECK_OK(device->ops->alloc(device, TWO_WORDS * 8, &p));
	shared.words = p;
	threads_start(t, 2, run_twice, w, sizeof(w[0]));
	threads_join(t, 2);
	for (uint32_t i = 0; i < TWO_WORDS; i++)
		CHECK_EQ(shared.words[i], 4 * TWICE / TWO_WORDS);
	device->ops->free(device, p);
	gantry_device_close(device);
}

/* Many words of a device at once: more than there are places for values on their way. */
static void many_words(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	enum { WORDS = 1500 };
	struct rma_request *q;
	uint64_t *words = get_memory(w, WORDS * 8);
	uint32_t number, left = WORDS;

	CHECK_OK(rma_register(c, words, WORDS * 8, words_on_device(w) ? RMA_DEVICE : RMA_HOST, &number));
	rma_world_meet(w, c, 1);
	for (uint32_t i = 0; i < WORDS; i++) {
		const struct rma_signal s = {{number, 8 * (i * 7 % WORDS)}, i * 7 % WORDS + 1};

		CHECK_OK(rma_put(c, (struct rma_to){(rank + 1) % w->n, i % 5}, (struct rma_place){0},
				 (struct rma_place){0}, 0, &s, &q));
		rma_world_finish(c, q);
	}
	while (left) {
		left = WORDS;
		for (uint32_t i = 0; i < WORDS; i++)
			left -= load_seq(&words[i]) == i + 1;
		CHECK_OK(rma_progress(c));
	}
	rma_world_meet(w, c, 2);
	put_memory(w, words);
}

TEST(many_signals)
{
	run_world(2, false, many_words);
	run_world(3, true, many_words);
}

/* ---- what is wrong ---- */

static void wrong_calls(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	const struct rma_to other = {1 - rank, 0};
	struct rma_signal s = {{3, 4}, 1};
	struct rma_request *q;
	struct memory m;
	uint32_t number;

	open_memory(w, c, &m);
	rma_world_meet(w, c, 1);
	CHECK_EQ(rma_register(c, NULL, 8, RMA_HOST, &number), GANTRY_ERR_INVALID);
	CHECK_EQ(rma_register(c, m.words, 8, RMA_DEVICE, &number), GANTRY_ERR_INVALID);
	CHECK_EQ(rma_deregister(c, 0), GANTRY_ERR_INVALID);
	CHECK_EQ(rma_deregister(c, 4), GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, (struct rma_to){2, 0}, (struct rma_place){1, 0}, (struct rma_place){2, 0}, 8, NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, (struct rma_to){1, RMA_CONTEXTS_MAX}, (struct rma_place){1, 0}, (struct rma_place){2, 0}, 8,
			 NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, other, (struct rma_place){4, 0}, (struct rma_place){2, 0}, 8, NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, other, (struct rma_place){1, PUTS * ROOM - 7}, (struct rma_place){2, 0}, 8, NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, other, (struct rma_place){1, UINT64_MAX - 3}, (struct rma_place){2, 0}, 8, NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, other, (struct rma_place){1, 0}, (struct rma_place){9, 0}, 8, NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, other, (struct rma_place){1, 0}, (struct rma_place){2, 0}, 8, &s, &q), GANTRY_ERR_INVALID);
	CHECK_EQ(rma_put(c, (struct rma_to){rank, 0}, (struct rma_place){1, 0}, (struct rma_place){2, m.target_size}, 8,
			 NULL, &q),
		 GANTRY_ERR_INVALID);
	CHECK_EQ(rma_get(c, other, (struct rma_place){2, 0}, (struct rma_place){0, 0}, 8, &q), GANTRY_ERR_INVALID);
	CHECK_OK(rma_error(c, NULL, NULL)); /* none of them has touched a peer */
	rma_world_meet(w, c, 2);
	close_memory(w, &m);
}

TEST(wrong_calls_are_refused)
{
	run_world(2, false, wrong_calls);
}

enum misdeed { BEYOND_THE_END, BEYOND_THE_WORDS, DEREGISTERED, CUT_OFF, GONE, MISDEEDS };

/* Rank 1 does something to rank 0 that ends both; each learns who did it. */
static void misdeed(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	enum misdeed what = *(enum misdeed *)w->user;
	struct rma_signal s = {{3, 1 << 20}, 1};
	struct rma_place from = {1, 0}, at = {2, 0};
	struct rma_request *q = NULL;
	const char *text = "";
	gantry_result r = GANTRY_OK;
	struct memory m;
	uint64_t bytes = 8;
	int culprit, done = 0;

	open_memory(w, c, &m);
	if (what == DEREGISTERED && rank == 0)
		CHECK_OK(rma_deregister(c, 2));
	rma_world_meet(w, c, 1);
	if (rank == 0)
		fetch_add_seq(&w->came, 1); /* it looks at results of its calls from here on */
	while (rank == 1 && load_seq(&w->came) < 3)
		sched_yield();
	at.offset = what == BEYOND_THE_END ? m.target_size - 7 : 0;
	if (what == CUT_OFF) { /* more pieces than one call of progress takes */
		from = at;
		bytes = m.target_size;
		m.target[0] = (uint8_t)rank;
	}
	if (rank == 1 && what != GONE)
		r = rma_put(c, (struct rma_to){0, 0}, from, at, bytes, what == BEYOND_THE_WORDS ? &s : NULL, &q);
	CHECK_OK(r);
	if (rank == 1 && what == GONE)
		return close_memory(w, &m);
	if (rank == 0 && what == CUT_OFF) {
		UNTIL((r = rma_progress(c)) != GANTRY_OK || m.target[0]);
		CHECK_OK(r);
		CHECK_OK(rma_deregister(c, 2));
	}
	UNTIL((r = rma_progress(c)) != GANTRY_OK ||
	      (rank == 0 && what == GONE &&
	       (r = rma_put(c, (struct rma_to){1, 0}, from, at, 8, NULL, &q)) != GANTRY_OK));
	r = rma_error(c, &culprit, &text);
	CHECK(r != GANTRY_OK);
	if (rank == 0 && what != CUT_OFF)
		CHECK_EQ(culprit, 1);
	if (rank == 1 && what != CUT_OFF)
		CHECK_EQ(culprit, 1);
	CHECK_HAS(text, rank == 1	  ? "rank 0 has failed: "
			: what == CUT_OFF ? "while requests were using it"
					  : "rank 1");
	if (what == BEYOND_THE_END)
		CHECK_HAS(text,
			  "invalid request of rank 1 to rank 0: 8 bytes at 25165817 exceed memory 2 of 25165824 bytes");
	if (what == DEREGISTERED)
		CHECK_HAS(text, "memory 2 is not registered");
	CHECK_EQ(rma_put(c, (struct rma_to){1 - rank, 0}, from, at, 8, NULL, &q), r); /* the first error stays */
	if (q)
		CHECK_EQ(rma_test(q, &done), r);
	CHECK_EQ(rma_progress(c), r);
	drop_memory(w, c, &m);
}

TEST(misdeeds_end_both)
{
	for (enum misdeed what = 0; what < MISDEEDS; what++) {
		struct rma_world w = {.n = 2, .body = misdeed, .user = &what};

		CASE("misdeed %d", what);
		rma_world_run(&w);
	}
}

/* ---- a device that fails ---- */

static const struct gantry_device_ops *sound;

static gantry_result fail_words(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst, uint64_t value)
{
	(void)dev, (void)queue, (void)dst, (void)value;
	return gantry_fail(GANTRY_ERR_DEVICE, GANTRY_SUBSYS_DEVICE, __FILE__, __LINE__, "no copies today");
}

static gantry_result store_nothing(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst, uint64_t value)
{
	(void)dev, (void)queue, (void)dst, (void)value;
	return GANTRY_ERR_UNSUPPORTED;
}

/* Rank 0 cannot write a signal, which a call of progress finds: puts and all other ranks learn it, too. */
static void unwritable(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	static struct gantry_device_ops failing;
	struct rma_request *q;
	struct memory m;
	int culprit;

	open_memory(w, c, &m);
	rma_world_meet(w, c, 1);
	meet_idle(w, 2);
	if (rank == 0) {
		sound = w->device->ops;
		failing = *sound;
		failing.queue_store = fail_words;
		w->device->ops = &failing;
	}
	meet_idle(w, 3);
	if (rank == 1) {
		const struct rma_signal s = {{m.words_number, 0}, 1};

		CHECK_OK(rma_put(c, (struct rma_to){0, 0}, (struct rma_place){0}, (struct rma_place){0}, 0, &s, &q));
	}
	UNTIL(rma_progress(c) != GANTRY_OK);
	CHECK_EQ(rma_put(c, (struct rma_to){1 - rank, 0}, (struct rma_place){m.source_number, 0},
			 (struct rma_place){m.target_number, 0}, 8, NULL, &q),
		 GANTRY_ERR_DEVICE);
	CHECK_EQ(rma_error(c, &culprit, NULL), GANTRY_ERR_DEVICE);
	CHECK_EQ(culprit, 0);
	meet_idle(w, 4);
	if (rank == 0)
		w->device->ops = sound;
	meet_idle(w, 5);
	drop_memory(w, c, &m);
}

TEST(errors_of_signals_stay)
{
	const struct rma_world w = {.staged = true};

	if (words_on_device(&w))
		run_world(2, true, unwritable);
}

/* A device that cannot store words: they are copied. */
static void without_stores(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	static struct gantry_device_ops lacking;
	static uint32_t changed;

	fetch_add_seq(&w->came, 1);
	if (rank == 0) {
		while (load_seq(&w->came) < w->n)
			sched_yield();
		sound = w->device->ops;
		lacking = *sound;
		lacking.queue_store = store_nothing;
		w->device->ops = &lacking;
		store_seq(&w->came, 0);
		store_seq(&changed, 1);
	}
	while (!load_seq(&changed))
		sched_yield();
	one_word(w, rank, c);
	meet_idle(w, 8);
	if (rank == 0)
		w->device->ops = sound;
	meet_idle(w, 9);
}

TEST(words_are_copied_where_they_cannot_be_stored)
{
	run_world(2, true, without_stores);
}

/* ---- a rank's own memory ---- */

static struct memory *of_device;

static bool is_on_device(const void *p)
{
	const uint8_t *at = p;

	return (at >= of_device->source && at < of_device->source + (size_t)PUTS * ROOM) ||
	       (at >= of_device->target && at < of_device->target + of_device->target_size);
}

static gantry_result copy_outwards(struct gantry_device *dev, enum gantry_copy_queue queue, void *dst, const void *src,
				   size_t size)
{
	CHECK(!is_on_device(dst) || !is_on_device(src));
	return sound->queue_copy(dev, queue, dst, src, size);
}

/* The device is never asked to copy within its memory: it may need a kernel for that, and room for it beside kernels that wait. */
static void own_copies(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	static struct gantry_device_ops watched;
	const uint64_t bytes = (uint64_t)PUTS * ROOM;
	const struct rma_to own = {rank, 0};
	struct rma_request *q[40];
	struct memory m;

	open_memory(w, c, &m);
	of_device = &m;
	sound = w->device->ops;
	watched = *sound;
	watched.queue_copy = copy_outwards;
	w->device->ops = &watched;
	for (uint64_t i = 0; i < bytes; i++)
		m.source[i] = byte_of(0, 0, 0, 0, i);
	CHECK_OK(rma_put(c, own, (struct rma_place){m.source_number, 0}, (struct rma_place){m.target_number, 0}, bytes,
			 NULL, &q[0]));
	rma_world_finish(c, q[0]);
	CHECK(memcmp(m.source, m.target, bytes) == 0);
	memset(m.source, 0, bytes);
	for (uint64_t i = 0; i < 40; i++)
		CHECK_OK(rma_get(c, own, (struct rma_place){m.target_number, i * 100000},
				 (struct rma_place){m.source_number, i * 100000}, 100000, &q[i]));
	for (int i = 0; i < 40; i++)
		rma_world_finish(c, q[i]);
	for (uint64_t i = 0; i < 40 * 100000; i++)
		CHECK_EQ(m.source[i], byte_of(0, 0, 0, 0, i));
	w->device->ops = sound;
	close_memory(w, &m);
}

TEST(no_copies_within_the_device)
{
	run_world(1, true, own_copies);
}

/* ---- memory that is taken back ---- */

/* The answer to a get would be written to memory that is not this rank's any more: so the communicator fails, and that is all. */
static void drop_destination(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct rma_request *q;
	struct memory m;
	int culprit;

	open_memory(w, c, &m);
	rma_world_meet(w, c, 1);
	if (rank == 0) {
		CHECK_OK(rma_get(c, (struct rma_to){1, 0}, (struct rma_place){m.target_number, 0},
				 (struct rma_place){m.source_number, 0}, ROOM, &q));
		CHECK_OK(rma_progress(c)); /* it leaves */
		CHECK_OK(rma_deregister(c, m.source_number));
		put_memory(w, m.source);
		m.source = NULL;
		CHECK_EQ(rma_error(c, &culprit, NULL), GANTRY_ERR_USAGE);
		CHECK_EQ(culprit, 0);
	} else {
		UNTIL(rma_progress(c) != GANTRY_OK);
		rma_error(c, &culprit, NULL);
		CHECK_EQ(culprit, 0);
	}
	drop_memory(w, c, &m);
}

TEST(destinations_of_gets_are_in_use)
{
	run_world(2, false, drop_destination);
	run_world(2, true, drop_destination);
}

/* An operation is over when its copies are in the device's queue. Memory that is deregistered then, and buffers of the communicator, are
 * written and read until they have been made. */
static void drop_target(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	struct rma_counts counts = {0};
	struct rma_request *q;
	struct memory m;

	open_memory(w, c, &m);
	rma_world_meet(w, c, 1);
	if (rank == 1) {
		const struct rma_signal s = {{m.words_number, 0}, 1};

		CHECK_OK(rma_put(c, (struct rma_to){0, 0}, (struct rma_place){m.source_number, 0},
				 (struct rma_place){m.target_number, 0}, (uint64_t)PUTS * ROOM, &s, &q));
		rma_world_finish(c, q);
		UNTIL(rma_progress(c) == GANTRY_OK && load_seq(&w->came) >= 100);
	}
	while (rank == 0 && !counts.applied) {
		CHECK_OK(rma_progress(c));
		rma_counts(c, &counts);
	}
	if (rank == 0 && *(bool *)w->user)
		CHECK_OK(rma_deregister(c, m.target_number));
	if (rank == 0)
		fetch_add_seq(&w->came, 100);
	if (rank == 1 || *(bool *)w->user)
		close_memory(w, &m); /* else the buffers are the first to go */
}

TEST(copies_end_before_memory_goes)
{
	for (int i = 0; i < 10; i++) {
		bool deregisters = i % 2;
		struct rma_world w = {.n = 2, .staged = true, .body = drop_target, .user = &deregisters};

		rma_world_run(&w);
	}
}

/* ---- what others see ---- */

/* Rank 1 does nothing for a while: the get that rank 0 waits for is in a report, once. Idle receives are in none. */
static void stuck(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	char path[512], host[64] = "", text[4096] = "";
	struct rma_request *q;
	struct memory m;
	size_t n;
	FILE *f;

	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/stall-%s-%d.jsonl", test_folder(), host, (int)getpid());
	open_memory(w, c, &m);
	rma_world_meet(w, c, 1);
	if (rank == 0) {
		for (uint64_t begin = gantry_now_ns(); gantry_now_ns() - begin < 500000000u;)
			CHECK_OK(rma_progress(c));
		CHECK(access(path, F_OK) != 0);
		CHECK_OK(rma_get(c, (struct rma_to){1, 2}, (struct rma_place){m.target_number, 16},
				 (struct rma_place){m.source_number, 0}, 100, &q));
		WAIT_WHILE (access(path, F_OK) != 0)
			CHECK_OK(rma_progress(c));
		f = fopen(path, "r");
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
		text[n] = 0;
		CHECK_HAS(text, "{\"kind\":\"process\",\"user\":\"rma\",");
		CHECK_HAS(text, "\"peer\":\"rank 1 in context 2 (get)\"");
		CHECK_HAS(text, "{\"kind\":\"rma\",\"rank\":0,\"peer\":1,\"context\":2,\"what\":\"get\",\"bytes\":100,"
				"\"signal\":-1,\"wait_ms\":");
		fetch_add_seq(&w->came, 100);
		rma_world_finish(c, q);
		fetch_add_seq(&w->came, 100);
	} else {
		while (load_seq(&w->came) < 100)
			sched_yield();
		while (load_seq(&w->came) < 200)
			CHECK_OK(rma_progress(c));
	}
	close_memory(w, &m);
}

TEST(stuck_requests_are_reported)
{
	set_params("GANTRY_STALL_DIR", test_folder(), "GANTRY_STALL", "200ms");
	run_world(2, false, stuck);
	set_params("GANTRY_STALL_DIR", NULL, "GANTRY_STALL", NULL);
}

/* ---- connecting ---- */

static void nothing(struct rma_world *w, uint32_t rank, struct rma_comm *c)
{
	(void)w, (void)rank, (void)c;
}

TEST(missing_ranks_are_named)
{
	struct rma_world w = {.n = 4, .body = nothing, .timeout = 400000000, .absent = 1 << 2 | 1 << 3};

	rma_world_run(&w);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(w.opened[i], GANTRY_ERR_TIMEOUT);
		CHECK_HAS(w.why[i], "no connection in time with rank 2, rank 3");
	}
}

TEST(connecting_can_be_stopped)
{
	static const uint32_t stop = 1;
	struct rma_world w = {.n = 3, .body = nothing, .absent = 1 << 1, .stop = &stop};

	rma_world_run(&w);
	CHECK_EQ(w.opened[0], GANTRY_ERR_ABORTED);
	CHECK_HAS(w.why[0], "rank 1");
}
