/* `gantry perf unpack`: the command line, which measurements there are, and the table; see perf_unpack.h. */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/param.h"
#include "cmd.h"
#include "json.h"
#include "options.h"
#include "perf_unpack.h"
#include "perf_util.h"

enum { LIST_MAX = 1 << 16 };
enum kind { KIND_UNPACK, KIND_REDUCE, KIND_RING, KIND_ALL };

/* "8,32,all": numbers of blocks, `all` for the whole device. */
static gantry_result read_blocks(struct unpack_bench *b, const char *list)
{
	gantry_result r = GANTRY_OK;
	const char *p = list;

	while (*p) {
		const int all = strncmp(p, "all", 3) == 0;
		char *end = (char *)p + (all ? 3 : 0);
		unsigned long n = all ? UNPACK_ALL : strtoul(p, &end, 10);

		if (end == p || (*end != ',' && *end) || (*end && !end[1]) || (n < 1 && !all) || n > LIST_MAX)
			FAIL(GANTRY_ERR_INVALID, "--blocks %s: numbers of at least 1, or all, with commas between",
			     list);
		if (b->nblocks == UNPACK_BLOCKS_MAX)
			FAIL(GANTRY_ERR_INVALID, "--blocks %s: more than %d", list, UNPACK_BLOCKS_MAX);
		if (n > b->dev->max_blocks)
			FAIL(GANTRY_ERR_LIMIT, "--blocks %lu: %s runs %u at the same time", n,
			     gantry_device_name(b->dev), b->dev->max_blocks);
		b->blocks[b->nblocks++] = (uint32_t)n;
		p = *end ? end + 1 : end;
	}
out:
	return r;
}

static void print_head(const struct unpack_bench *b, const char *command)
{
	char machine[256];
	struct json_line j;

	perf_machine(machine, sizeof(machine));
	if (b->o->json) {
		json_begin(&j, stdout);
		json_str(&j, "machine", machine);
		json_str(&j, "command", command);
		json_str(&j, "commit", GANTRY_COMMIT);
		json_str(&j, "device", b->o->device == GANTRY_DEVICE_CUDA ? "cuda" : "host");
		json_str(&j, "device_name", gantry_device_name(b->dev));
		json_str(&j, "pages", b->mapped ? "mapped" : "device");
		json_int(&j, "lanes", b->dev->default_lanes);
		json_int(&j, "repeats", b->o->repeats);
		json_int(&j, "seed", (int64_t)b->o->seed);
		json_end(&j);
		return;
	}
	printf("# %s\n# machine: %s; commit %s\n# device: %s, pages in %s memory; medians of %d repeats\n", command,
	       machine, GANTRY_COMMIT, gantry_device_name(b->dev), b->mapped ? "mapped" : "device", b->o->repeats);
	printf("# GB/s of payload; seed: NCCL's loop, copy: a plain copy on the device\n#\n");
}

static void print_json(const struct unpack_row *w)
{
	struct json_line j;

	json_begin(&j, stdout);
	json_str(&j, "kind", w->kind);
	json_str(&j, "shape", w->shape);
	json_int(&j, "blocks", w->blocks);
	json_int(&j, "lanes", w->lanes);
	json_int(&j, "bytes", (int64_t)w->bytes);
	json_int(&j, "frags", (int64_t)w->frags);
	if (strcmp(w->kind, "unpack") == 0) {
		json_num(&j, "gbs", w->gbs);
		json_num(&j, "seed_gbs", w->seed_gbs);
		json_num(&j, "copy_gbs", w->copy_gbs);
		json_num(&j, "ratio_seed", w->gbs / w->seed_gbs);
		json_num(&j, "ratio_copy", w->gbs / w->copy_gbs);
	} else if (strcmp(w->kind, "reduce") == 0) {
		json_num(&j, "fused_gbs", w->fused_gbs);
		json_num(&j, "two_step_gbs", w->two_step_gbs);
		json_num(&j, "ratio_two_step", w->fused_gbs / w->two_step_gbs);
	} else {
		json_num(&j, "jobs_per_s", w->jobs);
		json_num(&j, "us_per_job", w->us_per_job);
		json_num(&j, "launch_us", w->launch_us);
		json_num(&j, "ratio_launch", w->us_per_job / w->launch_us);
	}
	json_int(&j, "wrong", (int64_t)w->wrong);
	json_end(&j);
}

/* Not finite: "-". */
static const char *figure(double v, int digits, char *buf, size_t len)
{
	if (isfinite(v))
		snprintf(buf, len, "%.*f", digits, v);
	else
		snprintf(buf, len, "-");
	return buf;
}

static void print_row(const struct unpack_row *w)
{
	const int unpack = strcmp(w->kind, "unpack") == 0, reduce = strcmp(w->kind, "reduce") == 0;
	const double v[] = {unpack   ? w->gbs
			    : reduce ? w->fused_gbs
				     : w->us_per_job,
			    unpack   ? w->seed_gbs
			    : reduce ? w->two_step_gbs
				     : w->launch_us,
			    unpack   ? w->copy_gbs
			    : reduce ? NAN
				     : w->jobs,
			    unpack   ? w->gbs / w->seed_gbs
			    : reduce ? w->fused_gbs / w->two_step_gbs
				     : w->us_per_job / w->launch_us,
			    unpack ? w->gbs / w->copy_gbs : NAN};
	char text[5][32];

	for (int i = 0; i < 5; i++)
		figure(v[i], i >= 3 ? 3 : i == 2 && !unpack ? 0 : 2, text[i], sizeof(text[i]));
	printf(" %-7s %-9s %7u %5u %11llu %9s %9s %9s %10s %10s %7llu\n", w->kind, w->shape, w->blocks, w->lanes,
	       (unsigned long long)w->bytes, text[0], text[1], text[2], text[3], text[4], (unsigned long long)w->wrong);
}

static void print_columns(const char *kind)
{
	static const char *const names[][5] = {{"gbs", "seed_gbs", "copy_gbs", "ratio_seed", "ratio_copy"},
					       {"fused", "two_step", "", "ratio_two", ""},
					       {"us_per_job", "launch_us", "jobs/s", "ratio", ""}};
	const char *const *n = names[strcmp(kind, "unpack") == 0 ? 0 : strcmp(kind, "reduce") == 0 ? 1 : 2];

	printf("#%-7s %-9s %7s %5s %11s %9s %9s %9s %10s %10s %7s\n", "kind", "shape", "blocks", "lanes", "bytes", n[0],
	       n[1], n[2], n[3], n[4], "wrong");
}

static void print(const struct unpack_bench *b, const struct unpack_row *w, const char **last)
{
	if (b->o->json) {
		print_json(w);
		fflush(stdout); /* a row that was measured is not lost with the next */
		return;
	}
	if (!*last || strcmp(*last, w->kind) != 0)
		print_columns(w->kind);
	*last = w->kind;
	print_row(w);
	fflush(stdout);
}

/* The reduction is measured where fragments are aligned, are not, and cut elements; the ring with one shape. */
static int wanted(enum kind kind, enum unpack_shape shape)
{
	if (kind == KIND_RING)
		return shape == UNPACK_ALIGNED;
	return kind == KIND_UNPACK || shape == UNPACK_ALIGNED || shape == UNPACK_MTU1500 || shape == UNPACK_ODD ||
	       shape == UNPACK_RANDOM;
}

static gantry_result measure_shape(struct unpack_bench *b, enum kind kind, enum unpack_shape shape, const char **last,
				   uint64_t *wrong)
{
	gantry_result r = GANTRY_OK;
	struct unpack_row row;

	if (kind == KIND_REDUCE)
		TRY(unpack_bench_load_floats(b, shape));
	else
		TRY(unpack_bench_load(b, shape));
	for (int k = 0; k < b->nblocks; k++) {
		if (kind == KIND_UNPACK)
			TRY(unpack_measure(b, shape, b->blocks[k], &row));
		else if (kind == KIND_REDUCE)
			TRY(unpack_measure_reduce(b, shape, b->blocks[k], &row));
		else
			TRY(unpack_measure_ring(b, b->blocks[k], &row));
		print(b, &row, last);
		*wrong += row.wrong;
	}
out:
	return r;
}

static gantry_result measure(struct unpack_bench *b, const enum unpack_shape *shapes, int nshapes, uint64_t *wrong)
{
	gantry_result r = GANTRY_OK;
	const char *last = NULL;

	for (int kind = KIND_UNPACK; kind <= KIND_RING; kind++)
		for (int i = 0; i < nshapes; i++)
			if ((b->o->kind == kind || b->o->kind == KIND_ALL) && wanted((enum kind)kind, shapes[i]))
				TRY(measure_shape(b, (enum kind)kind, shapes[i], &last, wrong));
out:
	return r;
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
	{0, OPTION_INT, "repeats", AT(repeats), 1, UNPACK_REPEATS_MAX, NULL, "R", "repeats; medians are reported (7)"},
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
	.specs = specs,
	.nspecs = sizeof(specs) / sizeof(specs[0]),
};

static const char *default_blocks(const struct unpack_opts *o)
{
	return o->device == GANTRY_DEVICE_CUDA ? "8,32,all" : "1,2";
}

int cmd_perf_unpack(int argc, char **argv)
{
	struct unpack_opts o = {.shape = UNPACK_SHAPE_COUNT, .kind = KIND_ALL, .repeats = 7, .seed = 1};
	static struct unpack_bench b;
	enum unpack_shape shapes[UNPACK_SHAPE_COUNT];
	int nshapes = 0, status;
	uint64_t wrong = 0;
	char command[512];
	gantry_result r;

	options_join(set.program, argc, argv, command, sizeof(command));
	status = options_parse(&set, argc, argv, &o);
	if (status)
		return status - 1;
	if (!o.bytes)
		o.bytes = o.device == GANTRY_DEVICE_CUDA ? 512ull << 20 : 32ull << 20;
	if (o.kind == KIND_RING && o.shape != UNPACK_ALIGNED && o.shape != UNPACK_SHAPE_COUNT) {
		fprintf(stderr, "gantry perf unpack: --kind ring is measured with --shape aligned only\n");
		return 2;
	}
	o.bytes -= o.bytes % 16; /* whole elements */
	for (int i = 0; i < UNPACK_SHAPE_COUNT; i++)
		if (o.shape == i || o.shape == UNPACK_SHAPE_COUNT)
			shapes[nshapes++] = (enum unpack_shape)i;
	r = gantry_params_load(0);
	if (r == GANTRY_OK)
		r = unpack_bench_open(&b, &o, shapes, nshapes);
	if (r == GANTRY_OK)
		r = read_blocks(&b, o.blocks ? o.blocks : default_blocks(&o));
	if (r == GANTRY_OK) {
		print_head(&b, command);
		r = measure(&b, shapes, nshapes, &wrong);
	}
	if (r != GANTRY_OK)
		fprintf(stderr, "gantry perf unpack: %s: %s\n", gantry_result_name(r),
			gantry_last_error()[0] ? gantry_last_error() : gantry_result_text(r));
	else if (wrong)
		fprintf(stderr, "gantry perf unpack: %llu bytes are wrong\n", (unsigned long long)wrong);
	if (b.stuck) { /* the driver's own way out waits for the kernel as well */
		fflush(NULL);
		_exit(1);
	}
	unpack_bench_close(&b);
	return r != GANTRY_OK || wrong;
}
