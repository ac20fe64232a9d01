/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules on what requests of GIN and RMA do: bytes, signals, their order, and requests themselves. Each has a body that runs on the
 * thread of each rank that makes progress.
 */
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "check/check_gin.h"

enum {
	SMALL = 64,
	ORDER_MESSAGES = 100,
	ORDER_LARGE = 8,
	CONTEXT_MESSAGES = 40,
	SOURCE_MESSAGES = 24,
	SHARED_ROUNDS = 40,
	RESET_ROUNDS = 5,
	SELF_ROUNDS = 20,
	GETS = 8,
	GETS_AT = 100000,
	STOPS = 3,
	STOPPED_MS = 1000,
	LARGE = (1 << 20) + 3,
	/* Words of a rank's signals: of each peer and context, a message and an answer. */
	WORD_MESSAGE = 0,
	WORD_ANSWER = 16,
	WORD_SHARED = 40,
};

static size_t below(uint64_t *rng, size_t n)
{
	return n ? (size_t)(check_random(rng) % n) : 0;
}

static struct gin_table table;
static struct gin_world world;

/* Opens, runs the body on all ranks and ends. */
static void run_all_ranks(struct check_side *s, void (*body)(struct gin_rank *), void *arg, const char *phase)
{
	gin_open(s, &world, &table);
	check_phase(s, "%s", phase);
	gin_run(&world, body, arg);
	gin_end(&world);
}

static bool at_random(struct gin_rank *r, int since, unsigned of)
{
	return r->w->t->version >= since && check_random(&r->rng) % of == 0;
}

/* ---- puts ---- */

static const size_t put_sizes[] = {0, 1, 8, 4096, 65536, LARGE, 0, 0, 0, 0, 0, 0};
enum { PUT_ROUNDS = sizeof(put_sizes) / sizeof(put_sizes[0]) };

/* One put of a round: both ends compute it. */
struct piece {
	size_t size, from_at, to_at;
};

static struct piece piece_of(const struct gin_world *w, int round, int from, int to)
{
	uint64_t rng = 1000 * (uint64_t)(round + 1) + gin_seed(w, from, to);
	struct piece p = {.size = put_sizes[round]};

	if (round >= PUT_ROUNDS / 2)
		p.size = below(&rng, round % 2 ? 300 : 200000);
	p.from_at = below(&rng, p.size <= 2048 ? 2048 : GIN_SLOT - p.size);
	p.to_at = below(&rng, GIN_SLOT - p.size);
	return p;
}

/* The signal comes with the put, behind it by itself, or with a put from the block of inline values. */
static void put_piece(struct gin_rank *r, int round, int to)
{
	struct piece p = piece_of(r->w, round, r->rank, to);
	const struct gin_memory *from = &r->memory[p.size <= 2048 && round % 3 == 2 ? GIN_INLINES : GIN_SOURCE];
	struct gin_request q = gin_put(r, to, p.from_at, gin_slot(r->rank) + p.to_at, p.size);
	struct gin_request signal = gin_only(r, to, WORD_MESSAGE + r->rank, NCCL_NET_SIGNAL_OP_INC, 1);

	q.from = from == &r->memory[GIN_SOURCE] ? from->gh : from->mh;
	check_fill(from->base + p.from_at, p.size, gin_seed(r->w, r->rank, to), (uint64_t)round);
	if (p.size && round % 3 != 1) {
		q.op = signal.op;
		q.signal = signal.signal;
		q.signal_at = signal.signal_at;
		q.value = signal.value;
		gin_do(r, &q);
		return;
	}
	if (p.size)
		gin_do(r, &q);
	gin_do(r, &signal);
}

static void compare_piece(struct gin_rank *r, int round, int from)
{
	struct piece p = piece_of(r->w, round, from, r->rank);
	const uint8_t *slot = r->memory[GIN_TARGET].base + gin_slot(from);
	size_t at = check_compare(slot + p.to_at, p.size, gin_seed(r->w, from, r->rank), (uint64_t)round);
	size_t behind = GIN_SLOT - p.to_at - p.size;

	if (at < p.size)
		gin_wrong(r, from, at, p.size, "is not what was put");
	at = check_untouched(slot, p.to_at);
	if (at < p.to_at)
		gin_wrong(r, from, at, p.size, "was written in front of the put");
	at = check_untouched(slot + p.to_at + p.size, behind);
	if (at < behind)
		gin_wrong(r, from, p.size + at, p.size, "was written behind the put");
}

static void put_body(struct gin_rank *r)
{
	for (int round = 0; round < PUT_ROUNDS; round++) {
		memset(r->memory[GIN_TARGET].base, CHECK_POISON, r->memory[GIN_TARGET].size);
		gin_barrier(r);
		for (int i = 0; i < GIN_RANKS; i++)
			put_piece(r, round, (r->rank + i) % GIN_RANKS);
		for (int from = 0; from < GIN_RANKS; from++) {
			gin_until(r, WORD_MESSAGE + from, (uint64_t)round + 1, "the signal of a put");
			compare_piece(r, round, from);
		}
		gin_barrier(r);
		for (int k = 0; k < GIN_PLACES; k++)
			gin_guards(r, &r->memory[k]);
	}
}

void gin_rule_put(struct check_side *s)
{
	run_all_ranks(s, put_body, NULL, "puts of 0 bytes to 1 MiB + 3");
	check_note(s, "%d puts among %d ranks, up to 1 MiB + 3", PUT_ROUNDS * GIN_RANKS * GIN_RANKS, GIN_RANKS);
}

/* ---- streams ---- */

static const size_t CELL = GIN_SLOT / (GIN_CONTEXTS * STREAM_CELLS) / 64 * 64;

/* Of a rank with a peer, in a context. */
struct stream {
	int to, context;
	int sent, got, tested;			    /* messages; tested: all requests of those before it are done */
	void *open[STREAM_CELLS][STREAM_PARTS + 1]; /* requests of a message; NULL: none */
	void *answer;
};

static size_t cell_of(const struct stream *m, int peer, int k)
{
	return gin_slot(peer) + (size_t)(m->context * STREAM_CELLS + k % STREAM_CELLS) * CELL;
}

static size_t message_size(const struct gin_world *w, const struct gin_stream *how, const struct stream *m, int from,
			   int to, int k)
{
	uint64_t rng = (uint64_t)k * 1000 + gin_seed(w, from, to) * 7 + (uint64_t)m->context;
	size_t most = check_random(&rng) % 4 ? 512 : CELL;

	if (how->least)
		return how->least + below(&rng, CELL - how->least);
	return 1 + below(&rng, most - 1);
}

static uint64_t message_seed(const struct gin_world *w, const struct stream *m, int from, int to)
{
	return 1000 + gin_seed(w, from, to) * GIN_CONTEXTS + (uint64_t)m->context;
}

static int word_of(int base, int rank, int context)
{
	return base + rank * GIN_CONTEXTS + context;
}

/* Message `sent`, in up to STREAM_PARTS puts, the signal with the last of them or by itself. */
static void send_message(struct gin_rank *r, const struct gin_stream *how, struct stream *m)
{
	size_t size = message_size(r->w, how, m, r->rank, m->to, m->sent), at = 0, from = cell_of(m, m->to, m->sent);
	struct gin_request signal = gin_only(r, m->to, word_of(WORD_MESSAGE, r->rank, m->context), 0, 1), q;
	void **open = m->open[m->sent % STREAM_CELLS];
	int parts = 1 + (int)below(&r->rng, STREAM_PARTS), alone = check_random(&r->rng) % 2;

	signal.op = m->sent % 2 ? NCCL_NET_SIGNAL_OP_INC : NCCL_NET_SIGNAL_OP_ADD;
	check_fill(r->memory[GIN_SOURCE].base + from, size, message_seed(r->w, m, r->rank, m->to), (uint64_t)m->sent);
	for (int i = 0; i < parts; i++) {
		size_t n = i == parts - 1 ? size - at : below(&r->rng, size - at);
		int last = i == parts - 1 && !alone;

		q = gin_put(r, m->to, from + at, cell_of(m, r->rank, m->sent) + at, n);
		q.op = last ? signal.op : GIN_SIGNAL_NONE;
		q.signal = last ? signal.signal : NULL;
		q.signal_at = last ? signal.signal_at : 0;
		q.value = signal.value;
		q.context = m->context;
		q.weak = last && parts == 1 && at_random(r, GIN_V_WEAK, 2);
		q.more = !last && at_random(r, GIN_V_MORE, 2);
		open[i] = gin_post(r, &q);
		at += n;
	}
	signal.context = m->context;
	if (alone)
		open[parts] = gin_post(r, &signal);
	m->sent++;
}

/* Tests the requests of the oldest message that is not done, of NCCL's groups in any order; 1 when all are done. */
static int test_message(struct gin_rank *r, const struct gin_stream *how, struct stream *m)
{
	void **open = m->open[m->tested % STREAM_CELLS];
	int left = 0;

	for (int i = 0; i <= STREAM_PARTS; i++) {
		if (open[i] && gin_test(r, open[i]))
			open[i] = NULL;
		left += open[i] != NULL;
	}
	if (left)
		return 0;
	if (how->scribble)
		memset(r->memory[GIN_SOURCE].base + cell_of(m, m->to, m->tested), ~CHECK_POISON, CELL);
	m->tested++;
	return 1;
}

/* The signal of message `got` is there: its bytes must be, too. */
static void receive_message(struct gin_rank *r, const struct gin_stream *how, struct stream *m)
{
	size_t size = message_size(r->w, how, m, m->to, r->rank, m->got), at;
	struct gin_request answer =
		gin_only(r, m->to, word_of(WORD_ANSWER, r->rank, m->context), NCCL_NET_SIGNAL_OP_INC, 1);

	at = check_compare(r->memory[GIN_TARGET].base + cell_of(m, m->to, m->got), size,
			   message_seed(r->w, m, m->to, r->rank), (uint64_t)m->got);
	if (at < size)
		gin_wrong(r, m->to, at, size, "is not there when its signal is");
	if (m->answer)
		gin_wait(r, m->answer);
	answer.context = m->context;
	m->answer = gin_post(r, &answer);
	m->got++;
}

/* 1 when all of it is done. */
static int stream_step(struct gin_rank *r, const struct gin_stream *how, struct stream *m)
{
	uint64_t answered = gin_signal(r, word_of(WORD_ANSWER, m->to, m->context));
	uint64_t come = gin_signal(r, word_of(WORD_MESSAGE, m->to, m->context));

	if (come > (uint64_t)how->count || answered > (uint64_t)m->sent)
		check_fail(r->w->s, "rank %d counts %llu signals of rank %d in context %d, which sent fewer", r->rank,
			   (unsigned long long)come, m->to, m->context);
	while (m->got < (int)come)
		receive_message(r, how, m);
	if (m->tested < m->sent)
		test_message(r, how, m);
	if (m->answer && gin_test(r, m->answer))
		m->answer = NULL;
	if (m->sent < how->count && m->sent - m->tested < STREAM_CELLS && m->sent - (int)answered < STREAM_CELLS)
		send_message(r, how, m);
	return m->got == how->count && m->tested == how->count && !m->answer && answered == (uint64_t)how->count;
}

void gin_stream(struct gin_rank *r)
{
	const struct gin_stream *how = r->arg;
	int n = GIN_RANKS * how->contexts, done;
	struct stream *all = check_alloc(r->w->s, (size_t)n, sizeof(*all));

	for (int i = 0; i < n; i++) {
		all[i].to = i % GIN_RANKS;
		all[i].context = i / GIN_RANKS;
	}
	do {
		done = 0;
		for (int i = 0; i < n; i++)
			done += stream_step(r, how, &all[i]);
		gin_idle(r, "messages");
	} while (done < n);
	free(all);
	/* The words begin anew, for another stream. */
	gin_barrier(r);
	memset(r->memory[GIN_SIGNALS].base, 0, r->memory[GIN_SIGNALS].size);
	gin_barrier(r);
	for (int k = 0; k < GIN_PLACES; k++)
		gin_guards(r, &r->memory[k]);
}

/* A large put that nothing waits for, and a signal behind it by itself or with a few bytes: it must not overtake. */
static void overtake_body(struct gin_rank *r)
{
	int to = (r->rank + 1) % GIN_RANKS, from = (r->rank + GIN_RANKS - 1) % GIN_RANKS;
	size_t size = LARGE - SMALL, at;

	for (int round = 0; round < ORDER_LARGE; round++) {
		struct gin_request put = gin_put(r, to, 0, gin_slot(r->rank), size);
		struct gin_request signal = gin_only(r, to, WORD_SHARED, NCCL_NET_SIGNAL_OP_INC, 1);
		void *open[2];

		check_fill(r->memory[GIN_SOURCE].base, size, gin_seed(r->w, r->rank, to), (uint64_t)round);
		if (round % 2) {
			signal.from = put.from;
			signal.to = put.to;
			signal.to_at = put.to_at + size;
			signal.size = SMALL;
		}
		gin_barrier(r);
		open[0] = gin_post(r, &put);
		open[1] = gin_post(r, &signal);
		gin_until(r, WORD_SHARED, (uint64_t)round + 1, "the signal behind a large put");
		at = check_compare(r->memory[GIN_TARGET].base + gin_slot(from), size, gin_seed(r->w, from, r->rank),
				   (uint64_t)round);
		if (at < size)
			gin_wrong(r, from, at, size, "is not there when a later signal is");
		for (int i = 0; i < 2; i++)
			gin_wait(r, open[i]);
		gin_barrier(r);
	}
}

void gin_rule_order(struct check_side *s)
{
	struct gin_stream how = {.count = ORDER_MESSAGES, .contexts = 1};

	gin_open(s, &world, &table);
	check_phase(s, "puts and the signals behind them");
	gin_run(&world, gin_stream, &how);
	check_phase(s, "signals behind large puts");
	gin_run(&world, overtake_body, NULL);
	gin_end(&world);
	check_note(s, "%d messages of random sizes from each of %d ranks to each, no signal came early", ORDER_MESSAGES,
		   GIN_RANKS);
}

void gin_rule_source(struct check_side *s)
{
	struct gin_stream how = {.count = SOURCE_MESSAGES, .contexts = 1, .least = CELL / 2, .scribble = true};

	run_all_ranks(s, gin_stream, &how, "puts whose source changes when they are done");
	check_note(s, "%d puts from each rank to each, from memory that changed at once", SOURCE_MESSAGES);
}

void gin_rule_contexts(struct check_side *s)
{
	struct gin_stream how = {.count = CONTEXT_MESSAGES, .contexts = GIN_CONTEXTS};

	if (s->version < GIN_V_CONTEXTS)
		check_skip(s, "before v12 a collComm is a context");
	run_all_ranks(s, gin_stream, &how, "messages in several contexts");
	check_note(s, "%d contexts at once", GIN_CONTEXTS);
}

/* ---- signals ---- */

static const struct {
	uint32_t op;
	uint64_t value;
	int word; /* of those that belong to the sender */
} additions[] = {{NCCL_NET_SIGNAL_OP_INC, 1, 0},	  {NCCL_NET_SIGNAL_OP_INC, 7, 0}, /* the value does not count */
		 {NCCL_NET_SIGNAL_OP_INC, 0, 0},	  {NCCL_NET_SIGNAL_OP_ADD, 1, 2},
		 {NCCL_NET_SIGNAL_OP_ADD, 3, 2},	  {NCCL_NET_SIGNAL_OP_ADD, (uint64_t)5 << 40, 2},
		 {NCCL_NET_SIGNAL_OP_ADD, UINT64_MAX, 4}, /* takes one away */
		 {NCCL_NET_SIGNAL_OP_ADD, 3, 4},	  {NCCL_NET_SIGNAL_OP_ADD, 0, 6},
		 {NCCL_NET_SIGNAL_OP_INC, UINT64_MAX, 8}};
enum { ADDITIONS = sizeof(additions) / sizeof(additions[0]), WORDS_EACH = GIN_WORDS / GIN_RANKS };

static uint64_t sum_of(int word)
{
	uint64_t sum = 0;

	for (int i = 0; i < ADDITIONS; i++)
		if (additions[i].word == word)
			sum += additions[i].op == NCCL_NET_SIGNAL_OP_INC ? 1 : additions[i].value;
	return sum;
}

static void signals_body(struct gin_rank *r)
{
	for (int to = 0; to < GIN_RANKS; to++)
		for (int i = 0; i < ADDITIONS; i++) {
			struct gin_request q = gin_only(r, to, r->rank * WORDS_EACH + additions[i].word,
							additions[i].op, additions[i].value);

			if (i % 2) { /* with a put */
				q.from = r->memory[GIN_SOURCE].gh;
				q.to = r->memory[GIN_TARGET].gh;
				q.to_at = gin_slot(r->rank);
				q.size = SMALL;
			}
			q.weak = at_random(r, GIN_V_WEAK, 2);
			gin_do(r, &q);
		}
	for (int round = 0; round < 2; round++) {
		for (int word = 0; word < GIN_WORDS; word++)
			gin_settle(r, word, sum_of(word % WORDS_EACH));
		gin_barrier(r); /* and nothing comes twice */
	}
}

void gin_rule_signals(struct check_side *s)
{
	run_all_ranks(s, signals_body, NULL, "signals that count and signals that add");
	check_note(s, "%d signals from each rank to each, %d words right", ADDITIONS, GIN_WORDS);
}

static void shared_body(struct gin_rank *r)
{
	uint64_t all = 0;

	for (int round = 0; round < SHARED_ROUNDS; round++) {
		void *open[GIN_RANKS * GIN_CONTEXTS];
		int n = 0;

		for (int context = 0; context < r->contexts; context++)
			for (int to = 0; to < GIN_RANKS; to++) {
				struct gin_request q =
					gin_only(r, to, WORD_SHARED, NCCL_NET_SIGNAL_OP_ADD, (uint64_t)round + 1);

				q.context = context;
				open[n++] = gin_post(r, &q);
			}
		for (int i = 0; i < n; i++)
			gin_wait(r, open[i]);
		all += (uint64_t)(round + 1) * (uint64_t)(GIN_RANKS * r->contexts);
	}
	gin_settle(r, WORD_SHARED, all);
	gin_barrier(r);
	gin_settle(r, WORD_SHARED, all);
}

void gin_rule_shared(struct check_side *s)
{
	run_all_ranks(s, shared_body, NULL, "all ranks add to the same words");
	check_note(s, "%d additions of each rank to one word, none lost", SHARED_ROUNDS);
}

static void reset_body(struct gin_rank *r)
{
	uint64_t *words = (uint64_t *)(void *)r->memory[GIN_SIGNALS].base;

	for (int round = 0; round < RESET_ROUNDS; round++) {
		for (int to = 0; to < GIN_RANKS; to++)
			for (int i = 0; i < 2; i++) {
				struct gin_request q = gin_only(r, to, i * WORD_SHARED, NCCL_NET_SIGNAL_OP_ADD,
								(uint64_t)(round + 2 + i));

				gin_do(r, &q);
			}
		for (int i = 0; i < 2; i++)
			gin_settle(r, i * WORD_SHARED, (uint64_t)(round + 2 + i) * GIN_RANKS);
		gin_barrier(r);
		for (int i = 0; i < 2; i++)
			store_release(&words[i * WORD_SHARED], 0);
		gin_barrier(r);
	}
}

void gin_rule_reset(struct check_side *s)
{
	run_all_ranks(s, reset_body, NULL, "words that their owner sets to 0 between signals");
	check_note(s, "%d resets, and signals count from 0 again", RESET_ROUNDS);
}

/* ---- the own rank ---- */

/* NCCL's flush for GPU memory is a put of a word onto itself. */
static void put_onto_itself(struct gin_rank *r, size_t at)
{
	struct gin_request q = gin_put(r, r->rank, at, at, sizeof(uint64_t));

	q.from = r->memory[GIN_TARGET].gh;
	gin_do(r, &q);
}

static void self_body(struct gin_rank *r)
{
	uint8_t *target = r->memory[GIN_TARGET].base;
	uint64_t seed = gin_seed(r->w, r->rank, r->rank);

	for (int i = 0; i < SELF_ROUNDS; i++) {
		size_t size = 1 + below(&r->rng, i % 2 ? 256 : 100000), at = below(&r->rng, 5000), wrong;
		struct gin_request q = gin_put(r, r->rank, at, 2 * at, size);
		struct gin_request alone = gin_only(r, r->rank, 1, NCCL_NET_SIGNAL_OP_ADD, 5);

		check_fill(r->memory[GIN_SOURCE].base + at, size, seed, (uint64_t)i);
		q.op = NCCL_NET_SIGNAL_OP_INC;
		q.signal = r->memory[GIN_SIGNALS].gh;
		gin_do(r, &q);
		gin_do(r, &alone);
		gin_settle(r, 0, (uint64_t)i + 1);
		gin_settle(r, 1, ((uint64_t)i + 1) * 5);
		put_onto_itself(r, 2 * at);
		wrong = check_compare(target + 2 * at, size, seed, (uint64_t)i);
		if (wrong < size)
			gin_wrong(r, r->rank, wrong, size, "is not what it put to itself");
	}
}

void gin_rule_self(struct check_side *s)
{
	run_all_ranks(s, self_body, NULL, "puts and signals to the own rank");
	check_note(s, "%d puts of each rank to itself", SELF_ROUNDS);
}

/* ---- requests ---- */

/* Posts as many as NCCL has open, to each peer in each context, and tests only then; returns how many. */
static int post_many(struct gin_rank *r, int to, int context, size_t size, void **open)
{
	int many = GIN_OPEN * r->w->max_recvs;

	for (int i = 0; i < many; i++) {
		size_t at = (size_t)(context * many + i) * size;
		struct gin_request q = gin_put(r, to, gin_slot(to) + at, gin_slot(r->rank) + at, size);

		q.context = context;
		if (i % 4 == 3) {
			q.op = NCCL_NET_SIGNAL_OP_INC;
			q.signal = r->memory[GIN_SIGNALS].gh;
			q.signal_at = (uint64_t)word_of(WORD_MESSAGE, r->rank, context) * sizeof(uint64_t);
		}
		q.more = r->w->t->version >= GIN_V_MORE && i < many - 1;
		open[i] = gin_post(r, &q);
	}
	return many;
}

/* Returns how many are not done. */
static int test_many(struct gin_rank *r, void **open, int n)
{
	int left = 0;

	for (int i = 0; i < n; i++) {
		if (open[i] && gin_test(r, open[i]))
			open[i] = NULL;
		left += open[i] != NULL;
	}
	return left;
}

static void wait_many(struct gin_rank *r, void **open, int n)
{
	while (test_many(r, open, n))
		gin_idle(r, "requests");
}

static void in_flight_body(struct gin_rank *r)
{
	int many = GIN_OPEN * r->w->max_recvs, n = 0;
	size_t each = (size_t)(many * r->contexts) * SMALL;
	void **open = check_alloc(r->w->s, (size_t)(many * GIN_RANKS * r->contexts), sizeof(*open));

	for (int to = 0; to < GIN_RANKS; to++)
		check_fill(r->memory[GIN_SOURCE].base + gin_slot(to), each, gin_seed(r->w, r->rank, to), 0);
	gin_barrier(r);
	for (int context = 0; context < r->contexts; context++)
		for (int to = 0; to < GIN_RANKS; to++)
			n += post_many(r, to, context, SMALL, open + n);
	wait_many(r, open, n);
	free(open);
	for (int from = 0; from < GIN_RANKS; from++) {
		size_t at;

		for (int context = 0; context < r->contexts; context++)
			gin_settle(r, word_of(WORD_MESSAGE, from, context), (uint64_t)many / 4);
		at = check_compare(r->memory[GIN_TARGET].base + gin_slot(from), each, gin_seed(r->w, from, r->rank), 0);
		if (at < each)
			gin_wrong(r, from, at, each, "is not what was put");
	}
}

void gin_rule_in_flight(struct check_side *s)
{
	run_all_ranks(s, in_flight_body, NULL, "as many requests as NCCL has open");
	check_note(s, "%d requests open to each rank in each context", GIN_OPEN * world.max_recvs);
}

/* What a rank is in the middle of, for the report. */
static const char *call_of_others(const struct check_side *s)
{
	const char *call = NULL;

	for (int i = 0; i < 2 * CHECK_THREADS && !call; i++)
		call = load_acquire(&s->shared->side[i / CHECK_THREADS].call[i % CHECK_THREADS]);
	return call ? call : "their calls";
}

/* Makes no progress until the other ranks have posted, or have tried for long enough; 1 if that ended it. */
static int stop_progress(struct gin_rank *r, uint32_t all, const char **ret_call)
{
	struct check_side *s = r->w->s;
	uint64_t until = 0;

	while (load_acquire(&s->shared->ended) < all) {
		uint64_t now = gantry_now_ns();

		if (!until && load_acquire(&s->shared->begun) == all)
			until = now + STOPPED_MS * (uint64_t)CHECK_MS * (uint64_t)s->stretch;
		if (until && now > until) {
			*ret_call = call_of_others(s);
			return 1;
		}
		check_sleep_ms(1);
	}
	return 0;
}

/* The last rank makes no progress for a while, several times: one that takes long may be the scheduler's. */
static void nonblocking_body(struct gin_rank *r)
{
	int last = GIN_RANKS - 1, many = GIN_OPEN * r->w->max_recvs, waited = 0;
	struct check_shared *shared = r->w->s->shared;
	const char *call = "";
	size_t size = GIN_SLOT / (size_t)many;
	void *open[GIN_OPEN * GANTRY_NET_MAX_RECVS];

	for (int round = 1; round <= STOPS; round++) {
		gin_barrier(r);
		if (r->rank == last) {
			waited += stop_progress(r, (uint32_t)(round * last), &call);
			for (int from = 0; from < last; from++)
				gin_until(r, word_of(WORD_MESSAGE, from, 0), (uint64_t)(round * many / 4), "signals");
			continue;
		}
		fetch_add_seq(&shared->begun, 1);
		post_many(r, last, 0, size, open);
		test_many(r, open, many);
		fetch_add_seq(&shared->ended, 1);
		wait_many(r, open, many);
	}
	if (waited == STOPS)
		check_late(r->w->s, "%s waits for a rank that makes no progress for %d ms", call, STOPPED_MS);
}

void gin_rule_nonblocking(struct check_side *s)
{
	run_all_ranks(s, nonblocking_body, NULL, "puts to a rank that makes no progress for a while");
	check_note(s, "%d requests posted and tested while a rank makes no progress", GIN_OPEN * world.max_recvs);
}

/* ---- gets ---- */

static void need_get(struct check_side *s)
{
	if (s->version < GIN_V_CREATE)
		check_skip(s, "no iget before v13");
}

static void need_get_entry(struct check_side *s)
{
	if (!table.get)
		check_skip(s, "iget is NULL: programs that get fail");
}

/* What a rank gets from `from`: bytes `at` to `at + size` of its target memory, to `to` of the own source memory. */
struct getting {
	int from;
	size_t at, to, size;
	void *request;
};

static void begin_get(struct gin_rank *r, struct getting *g)
{
	struct gin_request q = {.rank = (uint32_t)g->from,
				.context = g->from % r->contexts,
				.from = r->memory[GIN_TARGET].gh,
				.from_at = g->at,
				.to = r->memory[GIN_SOURCE].gh,
				.to_at = g->to,
				.size = g->size};

	g->request = gin_get(r, &q);
}

/* Gets what is in other ranks' memory may be used after a flush. NULL as its request: it is done. */
static void *begin_flush(struct gin_rank *r, int rank)
{
	const struct gin_table *t = r->w->t;
	void *request = NULL;

	if (t->flush)
		GIN_MUST(r, GIN_PROGRESS, "iflush",
			 t->flush(r->gin, rank % r->contexts, r->memory[GIN_SIGNALS].gh, (uint32_t)rank, &request));
	return request;
}

/* The target memory of each rank is one message, of which gets take 8-byte words. */
static void compare_get(struct gin_rank *r, const struct getting *g)
{
	const uint8_t *mine = r->memory[GIN_SOURCE].base + g->to;
	uint8_t *want = check_alloc(r->w->s, 1, g->at + g->size + 1);
	size_t at = 0;

	check_fill(want, g->at + g->size, gin_seed(r->w, g->from, g->from), 9);
	while (at < g->size && mine[at] == want[g->at + at])
		at++;
	if (at < g->size)
		gin_wrong(r, g->from, at, g->size, "is not what is there");
	if (check_untouched(mine - CHECK_GUARD, CHECK_GUARD) < CHECK_GUARD ||
	    check_untouched(mine + g->size, CHECK_GUARD) < CHECK_GUARD)
		gin_wrong(r, g->from, g->size, g->size, "or the one in front of it was written, beside what it got");
	free(want);
}

static void prepare_gets(struct gin_rank *r)
{
	check_fill(r->memory[GIN_TARGET].base, r->memory[GIN_TARGET].size, gin_seed(r->w, r->rank, r->rank), 9);
	gin_barrier(r);
}

static void get_body(struct gin_rank *r)
{
	prepare_gets(r);
	for (int i = 0; i < 2 * GETS; i++) {
		size_t size = i < PUT_ROUNDS / 2 ? put_sizes[i] : below(&r->rng, 100000);

		for (int from = 0; from < GIN_RANKS && size; from++) {
			struct getting g = {.from = from, .size = size, .at = below(&r->rng, GETS_AT)};
			void *flush;

			g.to = CHECK_GUARD + below(&r->rng, 5000);
			memset(r->memory[GIN_SOURCE].base, CHECK_POISON, size + 3 * CHECK_GUARD + 5000);
			begin_get(r, &g);
			gin_wait(r, g.request);
			flush = begin_flush(r, from);
			if (flush)
				gin_wait(r, flush);
			compare_get(r, &g);
		}
	}
}

void gin_rule_get(struct check_side *s)
{
	need_get(s);
	gin_open(s, &world, &table);
	need_get_entry(s);
	check_phase(s, "gets up to 1 MiB + 3");
	gin_run(&world, get_body, NULL);
	gin_end(&world);
	check_note(s, "gets from each rank, up to 1 MiB + 3");
}

/* NCCL's kernels wait for both, in the order in which they were posted. */
static void flush_body(struct gin_rank *r)
{
	prepare_gets(r);
	for (int from = 0; from < GIN_RANKS; from++) {
		struct getting g[GETS];
		void *flush;

		memset(r->memory[GIN_SOURCE].base, CHECK_POISON, r->memory[GIN_SOURCE].size);
		for (int i = 0; i < GETS; i++) {
			size_t place = (size_t)i * 110000;

			g[i] = (struct getting){.from = from, .size = 1 + below(&r->rng, 100000), .at = place};
			g[i].to = place + CHECK_GUARD;
			begin_get(r, &g[i]);
		}
		flush = begin_flush(r, from);
		for (int i = 0; i < GETS; i++)
			gin_wait(r, g[i].request);
		if (flush)
			gin_wait(r, flush);
		for (int i = 0; i < GETS; i++)
			compare_get(r, &g[i]);
	}
}

void gin_rule_flush(struct check_side *s)
{
	need_get(s);
	gin_open(s, &world, &table);
	need_get_entry(s);
	if (!table.flush)
		check_skip(s, "iflush is NULL: programs that get fail");
	check_phase(s, "gets with a flush behind them");
	gin_run(&world, flush_body, NULL);
	gin_end(&world);
	check_note(s, "%d gets from each rank, and a flush behind them", GETS);
}
