/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf unpack`: the command line, which measurements there are, the table, and what fragments look like.
 * Each fragment lies on a page of its own, and pages come in random order, as a
 * NIC that has been running for a while takes them from its pool.
 *
 *   aligned    whole pages of 4096 bytes
 *   mtu1500    1448 bytes, the payload of a segment, at a multiple of 64 in its page; one after the other in the
 * message mtu9000    4096 + 4096 + 756: a segment of 8948 bytes on three pages even1500, even9000   the same, but each
 * destination starts at a multiple of 16, with gaps. Such messages do not exist: it is the best case for NCCL's loop,
 * which goes at the width that divides both offsets odd        4095 bytes, at an odd offset of source or destination
 *   random     1 to 4096 bytes anywhere in their page
 *   bytes      1 to 16 bytes, many on a page; only a 256th of the message
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "common/array.h"
#include "common/cmd.h"
#include "common/options.h"
#include "perf/perf_table.h"
#include "perf/perf_unpack.h"

enum { LIST_MAX = 1 << 16 };
enum kind { KIND_UNPACK, KIND_REDUCE, KIND_RING, KIND_ALL };

const char *const unpack_shape_names[UNPACK_SHAPE_COUNT] = {
#define X(NAME, name) [UNPACK_##NAME] = #name,
	UNPACK_SHAPES(X)
#undef X
};

enum { PAGE = 4096u, SEGMENT = 1448, LAST = 756, BYTES_PART = 256, BYTES_PER_PAGE = 64 };

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* Length and place in its page of fragment k. */
static void one(enum unpack_shape shape, uint64_t k, uint64_t *random, uint32_t *ret_len, uint32_t *ret_at)
{
	uint64_t r = next_random(random);
	uint32_t len = PAGE, at = 0;

	switch (shape) {
	case UNPACK_MTU1500:
	case UNPACK_EVEN1500:
		len = SEGMENT;
		at = (uint32_t)(r % ((PAGE - SEGMENT) / 64 + 1)) * 64;
		break;
	case UNPACK_MTU9000:
	case UNPACK_EVEN9000:
		len = k % 3 == 2 ? LAST : PAGE;
		at = k % 3 == 2 ? (uint32_t)(r % ((PAGE - LAST) / 64 + 1)) * 64 : 0;
		break;
	case UNPACK_ODD:
		len = PAGE - 1;
		at = r & 1; /* the destination goes through all alignments */
		break;
	case UNPACK_RANDOM:
		len = 1 + (uint32_t)(r % PAGE);
		at = (uint32_t)((r >> 32) % (PAGE - len + 1));
		break;
	case UNPACK_BYTES:
		len = 1 + (uint32_t)(r % 16);
		at = (uint32_t)(k % BYTES_PER_PAGE) * (PAGE / BYTES_PER_PAGE) + (uint32_t)((r >> 32) % 48);
		break;
	default:
		break;
	}
	*ret_len = len;
	*ret_at = at;
}

static int add(struct unpack_list *l, uint64_t page, uint32_t at, uint32_t len, uint64_t dst)
{
	struct gantry_unpack_desc *d = ARRAY_ADD(l->descs, l->n);

	if (!d)
		return 0;
	/* The page's number for now: its place in the pool comes with the shuffle. */
	d->src_off = (uint32_t)page;
	d->len = len;
	d->dst_off = dst | (uint64_t)at << 48;
	return 1;
}

/* Pages in random order. */
static int shuffle(struct unpack_list *l, uint64_t pages, uint64_t *random)
{
	const uint64_t low = (1ull << 48) - 1;
	uint32_t *place = malloc(pages * sizeof(*place) + 1);

	if (!place)
		return 0;
	for (uint64_t i = 0; i < pages; i++)
		place[i] = (uint32_t)i;
	for (uint64_t i = pages; i > 1; i--) {
		uint64_t k = next_random(random) % i;
		uint32_t t = place[i - 1];

		place[i - 1] = place[k];
		place[k] = t;
	}
	for (uint64_t i = 0; i < l->n; i++) {
		l->descs[i].src_off = place[l->descs[i].src_off] * PAGE + (uint32_t)(l->descs[i].dst_off >> 48);
		l->descs[i].dst_off &= low;
	}
	free(place);
	return 1;
}

int unpack_list_make(struct unpack_list *l, enum unpack_shape shape, uint64_t bytes, uint64_t seed,
		     const char **ret_why)
{
	const int gaps = shape == UNPACK_EVEN1500 || shape == UNPACK_EVEN9000;
	uint64_t random = seed, dst = 0, page = 0;
	uint32_t len, at;

	*ret_why = "no memory for the descriptors";
	memset(l, 0, sizeof(*l));
	if (shape == UNPACK_BYTES)
		bytes = bytes / BYTES_PART ? bytes / BYTES_PART : 1;
	for (uint64_t k = 0; l->bytes < bytes; k++) {
		one(shape, k, &random, &len, &at);
		len = len < bytes - l->bytes ? len : (uint32_t)(bytes - l->bytes);
		dst = gaps ? (dst + 15) / 16 * 16 : dst;
		page = shape == UNPACK_BYTES ? k / BYTES_PER_PAGE : k;
		if (!add(l, page, at, len, dst))
			goto fail;
		dst += len;
		l->bytes += len;
	}
	l->span = dst;
	l->pool_bytes = (page + 1) * PAGE;
	if (l->pool_bytes > UINT32_MAX) {
		*ret_why = "the pages of the message would be more than the 4 GiB that an offset reaches";
		goto fail;
	}
	if (shuffle(l, page + 1, &random))
		return 1;
fail:
	unpack_list_free(l);
	return 0;
}

void unpack_list_free(struct unpack_list *l)
{
	free(l->descs);
	memset(l, 0, sizeof(*l));
}

/* ---- the command ---- */

/* "8,32,all": numbers of blocks, `all` for the whole device. -1: invalid, and reported. */
static int read_blocks(struct unpack_bench *b, const char *list)
{
	const char *p = list;

	do {
		const int all = strncmp(p, "all", 3) == 0;
		char *end = (char *)p + (all ? 3 : 0);
		unsigned long n = all ? UNPACK_ALL : strtoul(p, &end, 10);

		if (end == p || (*end != ',' && *end) || (*end && !end[1]) || (n < 1 && !all) || n > LIST_MAX ||
		    b->nblocks == UNPACK_BLOCKS_MAX) {
			fprintf(stderr,
				"gantry perf unpack: --blocks %s: not numbers from 1 to %d, or all, with commas "
				"between, %d at most\n",
				list, LIST_MAX, UNPACK_BLOCKS_MAX);
			return -1;
		}
		b->blocks[b->nblocks++] = (uint32_t)n;
		p = *end ? end + 1 : end;
	} while (*p);
	return 0;
}

static gantry_result check_blocks(const struct unpack_bench *b)
{
	for (int i = 0; i < b->nblocks; i++)
		if (b->blocks[i] > b->dev->max_blocks)
			FAIL_NOW(GANTRY_ERR_LIMIT, "--blocks %u: %s runs %u at the same time", b->blocks[i],
				 gantry_device_name(b->dev), b->dev->max_blocks);
	return GANTRY_OK;
}

/* clang-format off */
#define FIELD(field) offsetof(struct unpack_row, field)
#define FIRST_COLUMNS \
	{"kind", "", "kind", PERF_NAME, -6, FIELD(kind)}, \
	{"shape", "", "shape", PERF_NAME, -9, FIELD(shape)}, \
	{"blocks", "", "blocks", PERF_COUNT, 6, FIELD(blocks)}, \
	{"lanes", "", "lanes", PERF_COUNT, 5, FIELD(lanes)}, \
	{"size", "(B)", "bytes", PERF_COUNT, 11, FIELD(bytes)}, \
	{NULL, "", "frags", PERF_COUNT, 0, FIELD(frags)}
#define LAST_COLUMN {"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(wrong)}
static const struct perf_column unpack_columns[] = {
	FIRST_COLUMNS,
	{"bandwidth", "(GB/s)", "gbs", PERF_SPREAD, 7, FIELD(gbs)},
	{"NCCL", "(GB/s)", "seed_gbs", PERF_FIGURE, 8, FIELD(seed_gbs)},
	{"ratio", "", "ratio_seed", PERF_FIGURE, 7, FIELD(ratio_seed)},
	{"copy", "(GB/s)", "copy_gbs", PERF_FIGURE, 8, FIELD(copy_gbs)},
	{"ratio", "", "ratio_copy", PERF_FIGURE, 7, FIELD(ratio_copy)},
	LAST_COLUMN,
};
static const struct perf_column reduce_columns[] = {
	FIRST_COLUMNS,
	{"bandwidth", "(GB/s)", "fused_gbs", PERF_SPREAD, 7, FIELD(fused_gbs)},
	{"two steps", "(GB/s)", "two_step_gbs", PERF_FIGURE, 9, FIELD(two_step_gbs)},
	{"ratio", "", "ratio_two_step", PERF_FIGURE, 7, FIELD(ratio_two_step)},
	LAST_COLUMN,
};
static const struct perf_column ring_columns[] = {
	FIRST_COLUMNS,
	{"time", "(us)", "us_per_job", PERF_SPREAD, 7, FIELD(us_per_job)},
	{"launch", "(us)", "launch_us", PERF_FIGURE, 8, FIELD(launch_us)},
	{"ratio", "", "ratio_launch", PERF_FIGURE, 7, FIELD(ratio_launch)},
	{"rate", "(jobs/s)", "jobs_per_s", PERF_FIGURE, 9, FIELD(jobs)},
	LAST_COLUMN,
};
#define COUNT(columns) (sizeof(columns) / sizeof((columns)[0]))
/* clang-format on */

static const struct {
	const struct perf_column *columns;
	size_t n;
} tables[] = {
	[KIND_UNPACK] = {unpack_columns, COUNT(unpack_columns)},
	[KIND_REDUCE] = {reduce_columns, COUNT(reduce_columns)},
	[KIND_RING] = {ring_columns, COUNT(ring_columns)},
};

static void print_header(const struct unpack_bench *b, struct perf_table *t)
{
	perf_table_begin(t, options_command(),
			 "fragments of received pages go to where they belong, beside NCCL's loop and a copy");
	perf_fact_text(t, "device", b->o->device == GANTRY_DEVICE_CUDA ? "cuda" : "host");
	perf_fact_text(t, "device_name", gantry_device_name(b->dev));
	perf_fact_text(t, "pages", b->mapped ? "mapped" : "device");
	perf_fact_int(t, "lanes", b->dev->default_lanes);
	perf_fact_int(t, "repeats", b->o->repeats);
	perf_fact_int(t, "seed", (int64_t)b->o->seed);
	perf_table_note(t, "GB/s of payload; NCCL: its loop, written anew; copy: a plain copy on the device");
}

/* The reduction is measured where fragments are aligned, are not, and cut elements; the ring with one shape. */
static int wanted(enum kind kind, enum unpack_shape shape)
{
	if (kind == KIND_RING)
		return shape == UNPACK_ALIGNED;
	return kind == KIND_UNPACK || shape == UNPACK_ALIGNED || shape == UNPACK_MTU1500 || shape == UNPACK_ODD ||
	       shape == UNPACK_RANDOM;
}

static gantry_result measure_shape(struct unpack_bench *b, enum kind kind, enum unpack_shape shape,
				   struct perf_table *t)
{
	struct unpack_row row;

	if (kind == KIND_REDUCE)
		TRY_NOW(unpack_bench_load_floats(b, shape));
	else
		TRY_NOW(unpack_bench_load(b, shape));
	for (int k = 0; k < b->nblocks; k++) {
		if (kind == KIND_UNPACK)
			TRY_NOW(unpack_measure(b, b->blocks[k], &row));
		else if (kind == KIND_REDUCE)
			TRY_NOW(unpack_measure_reduce(b, b->blocks[k], &row));
		else
			TRY_NOW(unpack_measure_ring(b, b->blocks[k], &row));
		perf_table_row(t, &row);
	}
	return GANTRY_OK;
}

static gantry_result measure(struct unpack_bench *b, const enum unpack_shape *shapes, int nshapes, struct perf_table *t)
{
	for (int kind = KIND_UNPACK; kind <= KIND_RING; kind++)
		for (int i = 0; i < nshapes; i++) {
			if ((b->o->kind != kind && b->o->kind != KIND_ALL) || !wanted((enum kind)kind, shapes[i]))
				continue;
			if (t->columns != tables[kind].columns)
				perf_table_columns(t, tables[kind].columns, tables[kind].n);
			TRY_NOW(measure_shape(b, (enum kind)kind, shapes[i], t));
		}
	return GANTRY_OK;
}

/* clang-format off */
#define AT(field) offsetof(struct unpack_opts, field)
#define X(NAME, name) #name "|"
static const struct option_spec specs[] = {
	{0, OPTION_CHOICE, "device", AT(device), 0, 0, "host|cuda", NULL, "where the kernels run (host)"},
	{0, OPTION_INT, "gpu", AT(gpu), 0, 1023, NULL, "N", "which GPU (0)"},
	{0, OPTION_CHOICE, "pages", AT(pages), 0, 0, "device|mapped", NULL, "where the pages are: the device's memory, or pinned host memory (device)"},
	{0, OPTION_CHOICE, "shape", AT(shape), 0, 0, UNPACK_SHAPES(X) "all", NULL, "what the fragments look like (all)"},
	{0, OPTION_CHOICE, "kind", AT(kind), 0, 0, "unpack|reduce|ring|all", NULL, "which kernels; ring: with shape aligned only (all)"},
	{0, OPTION_TEXT, "blocks", AT(blocks), 0, 0, NULL, "LIST", "numbers of blocks; all: the whole device (8,32,all; host: 1,2)"},
	{'e', OPTION_SIZE, "bytes", AT(bytes), 16, 2ull << 30, NULL, "SIZE", "payload of a message (512M; host: 32M)"},
	{0, OPTION_COUNT, "seed", AT(seed), 0, UINT64_MAX, NULL, "N", "of the order of the pages and of all that is random (1)"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, UNPACK_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (7)"},
	{0, OPTION_FLAG, "check-only", AT(check_only), 0, 0, NULL, NULL, "checks every byte and times nothing"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "JSON lines"},
};
#undef X
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf unpack",
	.about =
		"Fragments of received pages go to where they belong: Gantry's kernel, NCCL's loop and a plain copy.\n",
	.notes = "\nSee gantry-perf(1).\n",
	OPTION_SPECS(specs),
};

static const char *default_blocks(const struct unpack_opts *o)
{
	return o->device == GANTRY_DEVICE_CUDA ? "8,32,all" : "1,2";
}

/* 0, or the exit status plus 1 after a line on stderr. */
static int parse(int argc, char **argv, struct unpack_opts *o, struct unpack_bench *b, enum unpack_shape *shapes,
		 int *n)
{
	int status = options_parse(&set, argc, argv, o);

	if (status)
		return status;
	if (read_blocks(b, o->blocks ? o->blocks : default_blocks(o)) < 0)
		return 1 + 2;
	if (!o->bytes)
		o->bytes = o->device == GANTRY_DEVICE_CUDA ? 512ull << 20 : 32ull << 20;
	if (o->kind == KIND_RING && o->shape != UNPACK_ALIGNED && o->shape != UNPACK_SHAPE_COUNT)
		return 1 + options_wrong(&set, "--kind ring is measured with --shape aligned only");
	o->bytes -= o->bytes % 16; /* whole elements */
	for (int i = 0; i < UNPACK_SHAPE_COUNT; i++)
		if (o->shape == i || o->shape == UNPACK_SHAPE_COUNT)
			shapes[(*n)++] = (enum unpack_shape)i;
	return 0;
}

int cmd_perf_unpack(int argc, char **argv)
{
	struct unpack_opts o = {.shape = UNPACK_SHAPE_COUNT, .kind = KIND_ALL, .repeats = 7, .seed = 1};
	static struct unpack_bench b;
	enum unpack_shape shapes[UNPACK_SHAPE_COUNT];
	struct perf_table t = {.op = "unpack", .out = stdout};
	int nshapes = 0, status;
	gantry_result r;

	status = parse(argc, argv, &o, &b, shapes, &nshapes);
	if (status)
		return status - 1;
	t.json = o.json;
	r = unpack_bench_open(&b, &o, shapes, nshapes);
	if (r == GANTRY_OK)
		r = check_blocks(&b);
	if (r == GANTRY_OK) {
		print_header(&b, &t);
		r = measure(&b, shapes, nshapes, &t);
	}
	if (r != GANTRY_OK)
		fprintf(stderr, "gantry perf unpack: %s: %s\n", gantry_result_name(r),
			gantry_last_error()[0] ? gantry_last_error() : gantry_result_text(r));
	status = perf_table_end(&t, r != GANTRY_OK, b.first_wrong[0] ? b.first_wrong : NULL);
	if (b.stuck) { /* the driver's own way out waits for the kernel as well */
		fflush(NULL);
		_exit(1);
	}
	unpack_bench_close(&b);
	return status;
}
