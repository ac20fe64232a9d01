/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of `gantry perf all_reduce` and the other collectives.
 *
 * A case is checked first: inputs are filled, everything else is poisoned, the collective runs, and then every element of
 * the result is compared with what it must be, and every other one, inputs and guards too, with what it was. That is done
 * twice with the same inputs at different addresses: the results must be equal bit by bit, and so must those of all ranks
 * where the collective gives all of them the same. Then it is timed.
 *
 *     page                                    even address
 *   | ...                      front guard 64 | part 0 | part 1 | ... | back guard 64 |
 *                                       --> shifted by the skew: 0 or 1 elements
 *
 * On a GPU the images of the buffers are made and compared in host memory.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm_coll.h"
#include "perf/perf_coll.h"

#define REPEAT_NS 100000000u
#define ITERS_MAX (1u << 20)
#define POISON_SEED 0x706f69736f6e0000u
#define GUARD_SEQ 0x6775617264000000u
enum { FRONT = 4096, GUARD = 64, ELEMENT_MAX = 8, PAGE = 4096, TIMES_MAX = 1 << 20, ROUNDS = 2 };

/* The buffers: an input, and an output, which in place is both. */
enum { IN, OUT, BUFFERS };
/* What a part of them holds. */
enum content { POISON, INPUT, RESULT, CONTENTS };

struct pcoll_rank {
	struct perf_rank base;
	const struct pcoll_opts *opts; /* borrowed */
	struct pcoll_shared *shared;   /* borrowed */
	char *memory[BUFFERS];
	char *image[BUFFERS]; /* where the CPU sees them: the same, or host memory for those of a GPU */
	void *handle[BUFFERS];
	struct gantry_window *window; /* of put: the output */
	size_t memory_size;
	struct table {
		void *elements; /* PCOLL_PERIOD of them */
		uint64_t seed;	/* of whose input or result it is, and which part; seed 0: empty */
		int part;
	} tables[CONTENTS]; /* kept, because the same are needed for each of the rounds */
	void *scalar_dev;   /* of mulsum */
	double *times;	    /* us, of each call */
	uint64_t ntimes, seed, barriers;
};

/* One case, in place or not, at one address. */
struct run {
	const struct pcoll_case *c;
	struct pcoll_data data;
	int in_place;
	size_t skew; /* bytes */
	int op;	     /* for the call */
};

/* ---- what the buffers hold ---- */

static int has_input(const struct pcoll_rank *rk, const struct pcoll_case *c)
{
	return (c->what != PCOLL_BROADCAST && c->what != PCOLL_SCATTER) || rk->base.rank == c->root;
}

static int has_output(const struct pcoll_rank *rk, const struct pcoll_case *c)
{
	return (c->what != PCOLL_REDUCE && c->what != PCOLL_GATHER) || rk->base.rank == c->root;
}

static int parts_of(const struct pcoll_rank *rk, const struct run *u, int buffer)
{
	const struct pcoll_traits *t = &pcoll_traits[u->c->what];
	int all = u->in_place ? t->in_all || t->out_all : buffer == IN ? t->in_all : t->out_all;

	return all ? rk->base.nranks : 1;
}

/* Where the input or the output begins within its buffer, in parts: in place the smaller one is this rank's part of the
 * larger, if it has that. */
static int first_part(const struct pcoll_rank *rk, const struct run *u, int buffer)
{
	const struct pcoll_traits *t = &pcoll_traits[u->c->what];

	if (!u->in_place)
		return 0;
	if (buffer == IN)
		return t->out_all && !t->in_all && has_output(rk, u->c) ? rk->base.rank : 0;
	return t->in_all && !t->out_all && has_input(rk, u->c) ? rk->base.rank : 0;
}

/* What part k of a buffer holds before the collective, or after it; *ret_part: which part of the input or result. */
static enum content content_of(const struct pcoll_rank *rk, const struct run *u, int buffer, int k, int after,
			       int *ret_part)
{
	const struct pcoll_traits *t = &pcoll_traits[u->c->what];
	int in = first_part(rk, u, IN), out = first_part(rk, u, OUT);
	int nin = t->in_all ? rk->base.nranks : 1, nout = t->out_all ? rk->base.nranks : 1;

	if (after && buffer == OUT && has_output(rk, u->c) && k >= out && k < out + nout) {
		*ret_part = k - out;
		return RESULT;
	}
	if ((buffer == IN || u->in_place) && has_input(rk, u->c) && k >= in && k < in + nin) {
		*ret_part = k - in;
		return INPUT;
	}
	*ret_part = k;
	return POISON;
}

/* All parts are poisoned alike. */
static const void *table_of(struct pcoll_rank *rk, const struct run *u, enum content what, int part)
{
	const struct pcoll_data poison = {
		.what = PCOLL_BROADCAST, .type = u->data.type, .nranks = 1, .seed = POISON_SEED + u->data.seed};
	uint64_t length = pcoll_table_length(u->c->count);
	struct table *t = &rk->tables[what];

	part = what == POISON ? 0 : part;
	if (t->seed == u->data.seed && t->part == part)
		return t->elements;
	t->seed = u->data.seed;
	t->part = part;
	if (what == INPUT)
		pcoll_input(&u->data, rk->base.rank, part, length, t->elements);
	else if (what == RESULT)
		pcoll_expected(&u->data, rk->base.rank, part, length, t->elements);
	else
		pcoll_input(&poison, rk->base.rank, part, length, t->elements);
	return t->elements;
}

static char *data_at(const struct pcoll_rank *rk, const struct run *u, int buffer)
{
	return rk->image[buffer] + FRONT + u->skew;
}

static size_t part_bytes(const struct run *u)
{
	return u->c->count * perf_comm_type_bytes(u->c->type);
}

static uint64_t guard_seq(const struct pcoll_rank *rk, int buffer, int back)
{
	return GUARD_SEQ + ((uint64_t)rk->base.rank * BUFFERS + (uint64_t)buffer) * 2 + (uint64_t)back;
}

/* Between the image and the GPU's memory. */
static gantry_result move_image(struct pcoll_rank *rk, const struct run *u, int buffer, int to_device)
{
	size_t at = FRONT + u->skew - GUARD, n = GUARD + (size_t)parts_of(rk, u, buffer) * part_bytes(u) + GUARD;
	char *image = rk->image[buffer] + at, *memory = rk->memory[buffer] + at;

	if (image == memory)
		return GANTRY_OK;
	return gantry_mem_copy(rk->base.dev, to_device ? memory : image, to_device ? image : memory, n);
}

static gantry_result prepare(struct pcoll_rank *rk, const struct run *u, int buffer)
{
	size_t size = perf_comm_type_bytes(u->c->type), n = (size_t)parts_of(rk, u, buffer) * part_bytes(u);
	char *at = data_at(rk, u, buffer);
	int part = 0;

	perf_fill(at - GUARD, GUARD, guard_seq(rk, buffer, 0));
	perf_fill(at + n, GUARD, guard_seq(rk, buffer, 1));
	for (int k = 0; k < parts_of(rk, u, buffer) && u->c->count; k++) {
		enum content what = content_of(rk, u, buffer, k, 0, &part);

		pcoll_fill(at + (size_t)k * part_bytes(u), u->c->count, size, table_of(rk, u, what, part));
		perf_progress(rk->base.state);
	}
	return move_image(rk, u, buffer, 1);
}

/* ---- what the ranks used ---- */

/* The ways to this rank's peers. */
static void transports(const struct pcoll_rank *rk, char *buf, size_t len)
{
	buf[0] = 0;
	for (int i = 0; i < rk->base.nranks; i++)
		perf_comm_join(buf, len, gantry_comm_transport(rk->base.comm, i));
	perf_comm_join(buf, len, buf[0] ? "" : "self");
}

/* What collectives used: by one rank, or by all of them in all repeats. */
struct used {
	struct gantry_comm_counters counters;
	uint64_t paths[COMM_PATHS];
	char transport[32];
};

static void count_so_far(const struct pcoll_rank *rk, struct used *ret)
{
	ret->counters.struct_size = sizeof(ret->counters);
	gantry_comm_get_counters(rk->base.comm, &ret->counters);
	comm_paths(rk->base.comm, ret->paths);
}

/* Since `before`. */
static void count_used(const struct pcoll_rank *rk, const struct used *before, struct pcoll_sample *s)
{
	struct used now;

	count_so_far(rk, &now);
	s->counters = now.counters;
	perf_comm_counters_add(&s->counters, &before->counters, -1);
	for (int i = 0; i < COMM_PATHS; i++)
		s->paths[i] = now.paths[i] - before->paths[i];
	transports(rk, s->transport, sizeof(s->transport));
}

static void add_used(const struct pcoll_rank *rk, struct used *used)
{
	for (int i = 0; i < rk->base.nranks; i++) {
		const struct pcoll_sample *s = perf_sample_of(&rk->base, i);

		perf_comm_counters_add(&used->counters, &s->counters, 1);
		for (int path = 0; path < COMM_PATHS; path++)
			used->paths[path] += s->paths[path];
		perf_comm_join(used->transport, sizeof(used->transport), s->transport);
	}
}

static void show_used(const struct used *used, struct pcoll_row *row)
{
	perf_comm_mode_name(&used->counters, row->mode, sizeof(row->mode));
	perf_comm_proto_name(&used->counters, row->proto, sizeof(row->proto));
	memcpy(row->transport, used->transport, sizeof(row->transport));
	row->algo[0] = row->paths[0] = 0;
	for (int i = 0; i < COMM_PATHS; i++)
		if (used->paths[i])
			perf_comm_join(i < COLL_ALGOS ? row->algo : row->paths, sizeof(row->paths), comm_path_name(i));
}

/* ---- checking ---- */

static void say_wrong(struct pcoll_rank *rk, const struct run *u, const char *where, struct pcoll_sample *s)
{
	if (!s->first_wrong[0])
		snprintf(s->first_wrong, sizeof(s->first_wrong), "%s, of %s of %s (%s, %s, root %d, %s), rank %d",
			 where, pcoll_traits[u->c->what].name, SIZE_TEXT(u->c->bytes), perf_comm_type_name(u->c->type),
			 pcoll_redop(u->c->op), u->c->root, u->in_place ? "in place" : "out of place", rk->base.rank);
}

static void compare_part(struct pcoll_rank *rk, const struct run *u, int buffer, int k, struct pcoll_sample *s)
{
	int part = 0;
	enum content what = content_of(rk, u, buffer, k, 1, &part);
	const char *got = data_at(rk, u, buffer) + (size_t)k * part_bytes(u);
	size_t size = perf_comm_type_bytes(u->c->type);
	uint64_t first = 0, wrong, a = 0, b = 0;
	const char *table;
	char where[128];

	if (what == RESULT)
		s->crc = gantry_crc32c(s->crc, got, part_bytes(u));
	if (what == RESULT && u->data.bits && pcoll_traits[u->c->what].reduces)
		return;
	table = table_of(rk, u, what, part);
	wrong = pcoll_compare(got, u->c->count, u->c->type, table, what == RESULT ? pcoll_tolerance(&u->data) : 0,
			      &first);
	if (!wrong)
		return;
	s->wrong += wrong;
	memcpy(&a, got + first * size, size);
	memcpy(&b, table + first % PCOLL_PERIOD * size, size);
	snprintf(where, sizeof(where), "at element %llu of part %d of the %s: %#llx instead of %#llx",
		 (unsigned long long)first, part,
		 what == RESULT	 ? "result"
		 : what == INPUT ? "input"
				 : "memory that is not the collective's",
		 (unsigned long long)a, (unsigned long long)b);
	say_wrong(rk, u, where, s);
}

static gantry_result compare(struct pcoll_rank *rk, const struct run *u, int buffer, struct pcoll_sample *s)
{
	size_t n = (size_t)parts_of(rk, u, buffer) * part_bytes(u);
	const char *at = data_at(rk, u, buffer);

	TRY_NOW(move_image(rk, u, buffer, 0));
	for (int back = 0; back < 2; back++)
		if (perf_check(back ? at + n : at - GUARD, GUARD, guard_seq(rk, buffer, back))) {
			s->wrong++;
			say_wrong(rk, u, back ? "behind a buffer" : "in front of a buffer", s);
		}
	for (int k = 0; k < parts_of(rk, u, buffer) && u->c->count; k++) {
		compare_part(rk, u, buffer, k, s);
		perf_progress(rk->base.state);
	}
	return GANTRY_OK;
}

/* To the next rank, from the one before. */
static gantry_result put_around(struct pcoll_rank *rk, const struct run *u, const void *in)
{
	const int n = rk->base.nranks;
	const struct gantry_signal_wait wait = {.count = 1, .peer = (rk->base.rank + n - 1) % n};

	TRY_NOW(gantry_put(in, part_bytes(u), (rk->base.rank + 1) % n, rk->window, FRONT + u->skew, 0, rk->base.comm,
			   rk->base.stream));
	return gantry_wait_signals(&wait, 1, rk->base.comm, rk->base.stream);
}

/* A buffer that a rank does not use exists out of place, to check that it is not written, and is NULL in place. */
static gantry_result call(struct pcoll_rank *rk, const struct run *u)
{
	const struct pcoll_case *c = u->c;
	struct gantry_comm *comm = rk->base.comm;
	struct gantry_stream *stream = rk->base.stream;
	enum gantry_type type = (enum gantry_type)c->type;
	char *from = rk->memory[u->in_place ? OUT : IN] + FRONT + u->skew, *to = rk->memory[OUT] + FRONT + u->skew;
	const void *in = from + (size_t)first_part(rk, u, IN) * part_bytes(u);
	void *out = to + (size_t)first_part(rk, u, OUT) * part_bytes(u);

	in = u->in_place && !has_input(rk, c) ? NULL : in;
	out = u->in_place && !has_output(rk, c) ? NULL : out;
	switch (c->what) {
	case PCOLL_ALL_REDUCE:
		return gantry_all_reduce(in, out, c->count, type, u->op, comm, stream);
	case PCOLL_REDUCE:
		return gantry_reduce(in, out, c->count, type, u->op, c->root, comm, stream);
	case PCOLL_BROADCAST:
		return gantry_broadcast(in, out, c->count, type, c->root, comm, stream);
	case PCOLL_ALL_GATHER:
		return gantry_all_gather(in, out, c->count, type, comm, stream);
	case PCOLL_REDUCE_SCATTER:
		return gantry_reduce_scatter(in, out, c->count, type, u->op, comm, stream);
	case PCOLL_ALL_TO_ALL:
		return gantry_all_to_all(in, out, c->count, type, comm, stream);
	case PCOLL_GATHER:
		return gantry_gather(in, out, c->count, type, c->root, comm, stream);
	case PCOLL_SCATTER:
		return gantry_scatter(in, out, c->count, type, c->root, comm, stream);
	case PCOLL_PUT:
		return put_around(rk, u, in);
	default:
		return gantry_barrier(comm, stream);
	}
}

static gantry_result check_round(struct pcoll_rank *rk, const struct run *u, struct pcoll_sample *s)
{
	int first = u->in_place ? OUT : IN;

	for (int buffer = first; buffer < BUFFERS; buffer++)
		TRY_NOW(prepare(rk, u, buffer));
	if (u->c->what == PCOLL_PUT) /* nothing else keeps a rank from writing before the other one is ready */
		TRY_NOW(perf_rank_sync(&rk->base));
	TRY_NOW(call(rk, u));
	TRY_NOW(perf_rank_finish(&rk->base));
	s->crc = 0;
	for (int buffer = first; buffer < BUFFERS; buffer++)
		TRY_NOW(compare(rk, u, buffer, s));
	return GANTRY_OK;
}

/* The rank that is late differs from round to round; a rank that is through has seen all of them come. Only where ranks
 * share memory: between hosts this cannot be observed. */
static gantry_result check_barrier(struct pcoll_rank *rk, const struct run *u, struct pcoll_sample *s)
{
	const struct timespec late = {0, 3000000};
	uint64_t *came = rk->shared->came;

	for (int round = 0; round < rk->base.nranks && round < 8; round++) {
		rk->barriers++;
		if (round == rk->base.rank)
			nanosleep(&late, NULL);
		store_seq(&came[rk->base.rank], rk->barriers);
		TRY_NOW(call(rk, u));
		TRY_NOW(perf_rank_finish(&rk->base));
		for (int i = 0; i < rk->base.nranks && rk->base.opts->rank < 0; i++)
			if (load_seq(&came[i]) < rk->barriers) {
				s->wrong++;
				say_wrong(rk, u, "before the last rank came", s);
			}
	}
	return GANTRY_OK;
}

static int same_on_all(enum pcoll_op what)
{
	return what == PCOLL_ALL_REDUCE || what == PCOLL_ALL_GATHER || what == PCOLL_BROADCAST;
}

/* Of all ranks, after they have shared what they found. */
static void judge(struct pcoll_rank *rk, const struct run *u, struct pcoll_row *row)
{
	const struct pcoll_sample *zero = perf_sample_of(&rk->base, 0), *s;
	struct pcoll_figures *f = &row->place[u->in_place];

	for (int i = 0; i < rk->base.nranks; i++) {
		s = perf_sample_of(&rk->base, i);
		f->wrong += s->wrong;
		if (!row->first_wrong[0])
			memcpy(row->first_wrong, s->first_wrong, sizeof(row->first_wrong));
		if (!same_on_all(u->c->what) || s->crc == zero->crc)
			continue;
		f->wrong++;
		if (!row->first_wrong[0])
			snprintf(row->first_wrong, sizeof(row->first_wrong),
				 "in the result of %s: that of rank %d is not that of rank 0, bit by bit",
				 pcoll_traits[u->c->what].name, i);
	}
}

static gantry_result check(struct pcoll_rank *rk, struct run *u, struct pcoll_row *row)
{
	struct pcoll_sample s;
	struct used start, used;
	uint32_t before = 0;

	memset(&s, 0, sizeof(s));
	memset(&used, 0, sizeof(used));
	perf_phase(rk->base.state, "checking", u->c->bytes);
	count_so_far(rk, &start);
	for (int round = 0; round < ROUNDS && u->c->what != PCOLL_BARRIER; round++) {
		u->skew = round ? perf_comm_type_bytes(u->c->type) : 0;
		TRY_NOW(check_round(rk, u, &s));
		if (round && s.crc != before) {
			s.wrong++;
			say_wrong(rk, u, "in the result: a second run gives other bits", &s);
		}
		before = s.crc;
	}
	u->skew = 0;
	if (u->c->what == PCOLL_BARRIER)
		TRY_NOW(check_barrier(rk, u, &s));
	count_used(rk, &start, &s);
	TRY_NOW(perf_rank_share(&rk->base, &s));
	judge(rk, u, row);
	add_used(rk, &used);
	show_used(&used, row);
	return GANTRY_OK;
}

/* ---- timing ---- */

static gantry_result run_calls(struct pcoll_rank *rk, const struct run *u, uint64_t n)
{
	const int each = rk->opts->timing == PCOLL_TIMING_CALL;
	uint64_t now = gantry_now_ns(), before;

	for (uint64_t i = 0; i < n; i++) {
		before = now;
		TRY_NOW(call(rk, u));
		if (each) {
			TRY_NOW(perf_rank_wait(&rk->base));
			now = gantry_now_ns();
			rk->times[rk->ntimes++ % TIMES_MAX] = (double)(now - before) / 1e3;
		}
		perf_progress(rk->base.state);
	}
	return perf_rank_finish(&rk->base);
}

/* All ranks make n calls; *ret_ns is the time of the slowest, on every rank, where samples then are. */
static gantry_result timed(struct pcoll_rank *rk, const struct run *u, uint64_t n, uint64_t *ret_ns)
{
	struct used before;
	struct pcoll_sample s;
	uint64_t start;

	memset(&s, 0, sizeof(s));
	TRY_NOW(perf_rank_sync(&rk->base));
	count_so_far(rk, &before);
	start = gantry_now_ns();
	TRY_NOW(run_calls(rk, u, n));
	s.ns = gantry_now_ns() - start;
	count_used(rk, &before, &s);
	TRY_NOW(perf_rank_share(&rk->base, &s));
	*ret_ns = 1;
	for (int i = 0; i < rk->base.nranks; i++) {
		const struct pcoll_sample *one = perf_sample_of(&rk->base, i);

		*ret_ns = one->ns > *ret_ns ? one->ns : *ret_ns;
	}
	return GANTRY_OK;
}

/* All ranks come to the same count, because they see the same times. */
static gantry_result warm_up(struct pcoll_rank *rk, const struct run *u, uint64_t *ret_iters)
{
	const struct pcoll_opts *o = rk->opts;
	uint64_t n = o->warmup ? o->warmup : 1, ns;

	perf_phase(rk->base.state, "warming up", u->c->bytes);
	for (int round = 0; round < 20; round++) {
		TRY_NOW(timed(rk, u, n, &ns));
		if (o->iters)
			break;
		n = perf_next_iters(n, ns, REPEAT_NS, 1, ITERS_MAX);
		if (ns >= REPEAT_NS / 8)
			break;
	}
	*ret_iters = o->iters ? o->iters : n;
	return GANTRY_OK;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* Each rank's own calls; the slowest rank counts for each figure. */
static gantry_result figures_of_calls(struct pcoll_rank *rk, struct pcoll_figures *f)
{
	size_t n = rk->ntimes < TIMES_MAX ? rk->ntimes : TIMES_MAX;
	struct perf_spread mine = perf_spread_of(rk->times, n); /* sorted from here on */
	struct pcoll_sample s;

	memset(&s, 0, sizeof(s));
	s.min = mine.min;
	s.median = mine.median;
	s.max = mine.max;
	s.p99 = rk->times[(n * 99 + 99) / 100 - 1];
	TRY_NOW(perf_rank_share(&rk->base, &s));
	f->us = (struct perf_spread){0, 0, 0};
	f->p99_us = 0;
	for (int i = 0; i < rk->base.nranks; i++) {
		const struct pcoll_sample *one = perf_sample_of(&rk->base, i);

		f->us.min = larger(f->us.min, one->min);
		f->us.median = larger(f->us.median, one->median);
		f->us.max = larger(f->us.max, one->max);
		f->p99_us = larger(f->p99_us, one->p99);
	}
	return GANTRY_OK;
}

static gantry_result measure(struct pcoll_rank *rk, const struct run *u, struct pcoll_row *row)
{
	const int repeats = rk->opts->repeats;
	struct pcoll_figures *f = &row->place[u->in_place];
	double us[PCOLL_REPEATS_MAX];
	uint64_t iters = 1, ns = 1;
	struct used used;

	memset(&used, 0, sizeof(used));
	TRY_NOW(warm_up(rk, u, &iters));
	rk->ntimes = 0;
	perf_phase(rk->base.state, "timing", u->c->bytes);
	for (int k = 0; k < repeats; k++) {
		TRY_NOW(timed(rk, u, iters, &ns));
		us[k] = (double)ns / 1e3 / (double)iters;
		add_used(rk, &used);
	}
	if (rk->opts->timing == PCOLL_TIMING_CALL)
		TRY_NOW(figures_of_calls(rk, f));
	else
		f->us = perf_spread_of(us, (size_t)repeats);
	pcoll_bandwidth(u->c->what, rk->base.nranks, u->c->bytes, f->us.max, &f->algbw.min, &f->busbw.min);
	pcoll_bandwidth(u->c->what, rk->base.nranks, u->c->bytes, f->us.median, &f->algbw.median, &f->busbw.median);
	pcoll_bandwidth(u->c->what, rk->base.nranks, u->c->bytes, f->us.min, &f->algbw.max, &f->busbw.max);
	show_used(&used, row);
	for (int i = 0; i < GANTRY_COMM_WAITS; i++)
		row->wait_us[i] = (double)used.counters.wait_ns[i] / 1e3 / (double)iters / repeats / rk->base.nranks;
	return GANTRY_OK;
}

/* ---- cases ---- */

/* mulsum has an operation of its own on each rank; its scalar is in device memory when it is in place. */
static gantry_result make_op(struct pcoll_rank *rk, struct run *u)
{
	uint64_t scalar = 0;

	u->op = u->c->op;
	if (u->c->op != GANTRY_OP_PREMUL)
		return GANTRY_OK;
	pcoll_scalar(u->c->type, rk->base.rank, &scalar);
	TRY_NOW(gantry_mem_copy(rk->base.dev, rk->scalar_dev, &scalar, sizeof(scalar)));
	return gantry_op_create_premul(rk->base.comm, (enum gantry_type)u->c->type,
				       u->in_place ? rk->scalar_dev : &scalar, u->in_place, &u->op);
}

static gantry_result run_place(struct pcoll_rank *rk, const struct pcoll_case *c, int in_place, struct pcoll_row *row)
{
	gantry_result r = GANTRY_OK;
	struct run u = {.c = c,
			.in_place = in_place,
			.op = -1,
			.data = {.what = c->what,
				 .type = c->type,
				 .op = c->op,
				 .root = c->root,
				 .nranks = rk->base.nranks,
				 .seed = ++rk->seed,
				 .bits = rk->opts->check == PCOLL_BITS}};

	TRY(make_op(rk, &u));
	if (rk->opts->check)
		TRY(check(rk, &u, row));
	if (!rk->opts->check_only)
		TRY(measure(rk, &u, row));
out:
	if (u.op >= 0 && u.op != c->op)
		gantry_op_destroy(rk->base.comm, u.op);
	return r;
}

static const struct pcoll_figures no_figures = {
	.us = {NAN, NAN, NAN}, .algbw = {NAN, NAN, NAN}, .busbw = {NAN, NAN, NAN}, .p99_us = NAN};

/* Into the text of the case. */
static gantry_result explain(struct pcoll_rank *rk, size_t number)
{
	const struct pcoll_case *c = &rk->opts->cases[number];
	FILE *f = fmemopen(pcoll_explain_of(rk->shared, number), PCOLL_EXPLAIN_MAX - 1, "w");
	gantry_result r;

	if (!f)
		FAIL_NOW(GANTRY_ERR_NOMEM, "fmemopen: %s", strerror(errno));
	r = gantry_comm_explain(rk->base.comm, pcoll_traits[c->what].name, c->count, (enum gantry_type)c->type, f);
	fclose(f);
	return r;
}

static gantry_result run_case(struct pcoll_rank *rk, size_t number)
{
	const struct pcoll_case *c = &rk->opts->cases[number];
	/* all_to_all in place sends what it has received already: no result to be checked. */
	const int places = c->what == PCOLL_BARRIER || c->what == PCOLL_ALL_TO_ALL || c->what == PCOLL_PUT
				   ? PCOLL_OUT_OF_PLACE
				   : rk->opts->places;
	struct pcoll_row row;

	memset(&row, 0, sizeof(row));
	row.place[0] = row.place[1] = no_figures;
	row.estimated_us = comm_coll_estimate(rk->base.comm, pcoll_traits[c->what].name, c->count, (enum gantry_type)c->type);
	if (row.estimated_us <= 0)
		row.estimated_us = NAN;
	if (rk->base.rank == 0 && rk->opts->explain)
		TRY_NOW(explain(rk, number));
	for (int in_place = 0; in_place < 2; in_place++)
		if (places == PCOLL_BOTH || places == in_place)
			TRY_NOW(run_place(rk, c, in_place, &row));
	if (rk->base.rank == 0) {
		rk->shared->rows[number] = row;
		store_release(&rk->shared->nrows, number + 1);
	}
	return GANTRY_OK;
}

/* ---- a rank's life ---- */

static size_t buffer_size(const struct pcoll_opts *o)
{
	uint64_t largest = 0;

	for (size_t i = 0; i < o->ncases; i++)
		largest = o->cases[i].bytes > largest ? o->cases[i].bytes : largest;
	return (FRONT + largest + ELEMENT_MAX + GUARD + PAGE - 1) / PAGE * PAGE;
}

double pcoll_memory(const struct pcoll_opts *o)
{
	return (double)BUFFERS * (double)buffer_size(o);
}

static gantry_result make_buffer(struct pcoll_rank *rk, int buffer)
{
	const struct pcoll_opts *o = rk->opts;
	void *p = NULL;

	if (o->buffers == PCOLL_PLAIN) /* as a program without Gantry's allocator has it */
		p = perf_map(rk->memory_size, 1);
	else
		TRY_NOW(perf_rank_alloc(&rk->base, rk->memory_size, &p));
	rk->memory[buffer] = p;
	rk->image[buffer] = rk->base.dev->kind == GANTRY_DEVICE_HOST ? p : malloc(rk->memory_size);
	if (!p || !rk->image[buffer])
		FAIL_NOW(GANTRY_ERR_NOMEM, "%s for buffers: %s", SIZE_TEXT(rk->memory_size), strerror(errno));
	if (o->reg)
		TRY_NOW(gantry_comm_register(rk->base.comm, p, rk->memory_size, &rk->handle[buffer]));
	return GANTRY_OK;
}

static gantry_result work(void *rank)
{
	struct pcoll_rank *rk = rank;

	rk->shared = rk->base.shared->own;
	rk->opts = rk->shared->opts;
	rk->memory_size = buffer_size(rk->opts);
	perf_phase(rk->base.state, "allocating", rk->memory_size);
	rk->times = malloc(TIMES_MAX * sizeof(*rk->times));
	for (int i = 0; i < CONTENTS && rk->times; i++) {
		rk->tables[i].elements = malloc((size_t)PCOLL_PERIOD * ELEMENT_MAX);
		if (!rk->tables[i].elements)
			break;
	}
	if (!rk->tables[CONTENTS - 1].elements)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for tables");
	TRY_NOW(perf_rank_alloc(&rk->base, ELEMENT_MAX, &rk->scalar_dev));
	for (int buffer = 0; buffer < BUFFERS; buffer++)
		TRY_NOW(make_buffer(rk, buffer));
	if (rk->opts->first == PCOLL_PUT)
		TRY_NOW(gantry_window_register(rk->base.comm, rk->memory[OUT], rk->memory_size, &rk->window));
	for (size_t i = 0; i < rk->opts->ncases; i++)
		TRY_NOW(run_case(rk, i));
	return GANTRY_OK;
}

static void deregister(void *rank)
{
	struct pcoll_rank *rk = rank;

	gantry_window_deregister(rk->base.comm, rk->window);
	for (int buffer = 0; buffer < BUFFERS; buffer++)
		if (rk->handle[buffer])
			gantry_comm_deregister(rk->base.comm, rk->handle[buffer]);
}

static void free_all(void *rank)
{
	struct pcoll_rank *rk = rank;

	for (int buffer = 0; buffer < BUFFERS; buffer++) {
		if (rk->image[buffer] != rk->memory[buffer])
			free(rk->image[buffer]);
		if (rk->memory[buffer] && rk->opts->buffers == PCOLL_PLAIN)
			munmap(rk->memory[buffer], rk->memory_size);
		else if (rk->memory[buffer])
			gantry_mem_free(rk->base.dev, rk->memory[buffer]);
	}
	if (rk->scalar_dev)
		gantry_mem_free(rk->base.dev, rk->scalar_dev);
	for (int i = 0; i < CONTENTS; i++)
		free(rk->tables[i].elements);
	free(rk->times);
}

struct perf_comm_op pcoll_op = {
	.program = "gantry perf",
	.unit = "calls",
	.rank_size = sizeof(struct pcoll_rank),
	.sample_size = sizeof(struct pcoll_sample),
	.work = work,
	.deregister = deregister,
	.free = free_all,
};
