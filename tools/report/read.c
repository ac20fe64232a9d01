/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines become series.
 *
 * A line is one of: the head of a run (machine, command, commit ... and no figure), which describes the lines after it;
 * figures, with a head of their own or not; an array "rows" of figures under one head; a check or a count of calls,
 * which has no plot; a series that failed; or something this version does not know, which is counted and named.
 *
 * Figures of one series and size are repeats: rounds of bench/sendrecv.sh, or a run appended to the same file.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/figures.h"
#include "report/series.h"

enum { BLOCKS_GIVEN_MAX = 4096 };
#define BYTES_MAX 1e15 /* whole numbers up to here are exact in a double */

/* Every figure that is drawn. */
static const struct measure {
	const char *key;
	enum report_quantity quantity;
	const char *peer; /* NULL: it is the thing itself */
	double from, to;  /* sizes at which the peer says anything */
} measures[] = {
	{"bw_gbs", REPORT_BANDWIDTH, NULL, 0, INFINITY},
	{"busbw_gbs", REPORT_BANDWIDTH, NULL, 0, INFINITY},
	{"gbs", REPORT_BANDWIDTH, NULL, 0, INFINITY},
	{"fused_gbs", REPORT_BANDWIDTH, NULL, 0, INFINITY},
	{"unpack_gbs", REPORT_BANDWIDTH, NULL, 0, INFINITY},
	{"gbs_per_direction", REPORT_BANDWIDTH, NULL, 0, INFINITY},
	{"lat_us", REPORT_LATENCY, NULL, 0, INFINITY},
	{"time_us", REPORT_LATENCY, NULL, 0, INFINITY},
	{"rtt_us", REPORT_LATENCY, NULL, 0, INFINITY},
	{"us_per_job", REPORT_LATENCY, NULL, 0, INFINITY},
	{"cpu_s_per_gb", REPORT_CPU, NULL, 0, INFINITY},
	{"in_place_busbw_gbs", REPORT_BANDWIDTH, "in place", 0, INFINITY},
	{"in_place_time_us", REPORT_LATENCY, "in place", 0, INFINITY},
	{"raw_bw_gbs", REPORT_BANDWIDTH, "raw TCP", 0, INFINITY},
	{"raw_gbs", REPORT_BANDWIDTH, "raw TCP", 0, INFINITY},
	{"raw_lat_us", REPORT_LATENCY, "raw TCP", 0, INFINITY},
	{"raw_cpu_s_per_gb", REPORT_CPU, "raw TCP", 0, INFINITY},
	{"pcie_gbs", REPORT_BANDWIDTH, "the bus", 0, INFINITY},
	{"seed_gbs", REPORT_BANDWIDTH, "NCCL's loop", 0, INFINITY},
	{"copy_gbs", REPORT_BANDWIDTH, "plain copy", 0, INFINITY},
	{"two_step_gbs", REPORT_BANDWIDTH, "in two steps", 0, INFINITY},
	{"host_gbs", REPORT_BANDWIDTH, "through host memory", 0, INFINITY},
	{"launch_us", REPORT_LATENCY, "a launch", 0, INFINITY},
	{"bare_rtt_us", REPORT_LATENCY, "bare flag", 0, INFINITY},
	/* perf gives both at every size; a flag says nothing about bytes that are copied, nor memcpy about few of them.
	 */
	{"flag_us", REPORT_LATENCY, "bare flag", 0, 4096},
	{"memcpy_gbs", REPORT_BANDWIDTH, "memcpy", 4096, INFINITY},
};
enum { MEASURES = sizeof(measures) / sizeof(measures[0]) };

/* What a line of figures is of, by the first key that it has. */
static const struct {
	const char *key;
	enum report_op op;
} op_keys[] = {
	{"library", REPORT_LIBRARIES},
	{"label", REPORT_ALLREDUCE},
	{"puts_per_s", REPORT_GIN},
	{"series", REPORT_BENCH},
	{"kind", REPORT_UNPACK},
	{"rtt_us", REPORT_FIFO},
	{"path", REPORT_RX},
	{"collective", REPORT_COLL},
	{"algbw_gbs", REPORT_SENDRECV},
	{"bw_gbs", REPORT_NET},
	{"unpack_gbs", REPORT_NCCL_UNPACK},
};

const struct report_op_text report_ops[REPORT_OPS] = {
	[REPORT_NET] = {"perf net", "A net plugin: messages streamed from one process to another, and ping-pong.",
			"Latency, one way"},
	[REPORT_SENDRECV] = {"perf sendrecv", "Sends and receives of Gantry's communicator.", "Time of a message"},
	[REPORT_COLL] = {"perf of collectives", "Collectives of Gantry's communicator; bus bandwidth.",
			 "Time of a call"},
	[REPORT_ALLREDUCE] = {"NCCL all-reduce",
			      "Stock NCCL over Gantry and over its own Socket network; bus bandwidth.",
			      "Time of an all-reduce"},
	[REPORT_BENCH] = {"bench/sendrecv", "The communicator beside what it is built on; medians over the rounds.",
			  "Time of a message"},
	[REPORT_GIN] = {"perf gin", "Puts and signals by kernels, from rank to rank.", "Latency, one way"},
	[REPORT_RX] = {"perf rx", "The pipeline of gantry/rx.h between two processes.", "Time"},
	[REPORT_UNPACK] = {"perf unpack", "Kernels that gather fragments of received pages.", "Time of a job"},
	[REPORT_FIFO] = {"perf fifo", "A kernel's post to the progress thread and its answer.", "Round trip"},
	[REPORT_NCCL_UNPACK] = {"NCCL all-reduce with UNPACK",
				"Stock NCCL, received into GPU memory and through the host.", "Time of an all-reduce"},
	[REPORT_LIBRARIES] = {"bench/coll_compare",
			      "Collectives of Gantry, OpenMPI and gloo; medians of single calls, bus bandwidth.",
			      "Time of a call"},
};

const char *report_quantity_title(enum report_op op, int q)
{
	return q == REPORT_LATENCY ? report_ops[op].latency : q == REPORT_CPU ? "CPU time per GB" : "Bandwidth";
}

const char *report_quantity_word(enum report_op op, int q)
{
	return q == REPORT_BANDWIDTH		      ? "bandwidth"
	       : q == REPORT_CPU		      ? "CPU time"
	       : op == REPORT_NET || op == REPORT_GIN ? "latency"
						      : "time";
}

const char *report_bar_name(enum report_op op)
{
	return op == REPORT_RX || op == REPORT_UNPACK || op == REPORT_FIFO || op == REPORT_NCCL_UNPACK ? "Gantry"
												       : "measured";
}

const char *const report_quantity_keys[REPORT_QUANTITIES] = {"bandwidth", "latency", "cpu"};
const char *const report_units[REPORT_QUANTITIES] = {"GB/s", "\302\265s", "s/GB"};

/* One object of a line; strings that it has not may be those of the head before it. */
struct row {
	const struct json_doc *doc;
	const struct json_value *object;
	const struct report_run *head; /* NULL: none */
};

static const char *text_of(const struct row *w, const char *key)
{
	const struct json_value *v = json_get(w->doc, w->object, key);

	return v && v->type == JSON_STRING ? v->text : "";
}

static const char *head_of(const struct row *w, enum report_field field)
{
	return w->head ? w->head->fields[field] : "";
}

static double number_of(const struct row *w, const char *key)
{
	const struct json_value *v = json_get(w->doc, w->object, key);

	return v && v->type == JSON_NUMBER ? v->number : NAN;
}

static int has(const struct row *w, const char *key)
{
	return json_get(w->doc, w->object, key) != NULL;
}

static const struct measure *next_measure(const struct row *w, const struct measure *m)
{
	for (; m < &measures[MEASURES]; m++)
		if (!isnan(number_of(w, m->key)))
			return m;
	return NULL;
}

/* ---- names ---- */

struct name {
	char text[160];
};

/* What names come to also goes to a terminal, which obeys control characters. */
static void drop_controls(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
}

static void add_word(struct name *n, const char *word, const char *more)
{
	size_t used = strlen(n->text);

	if (*word)
		snprintf(n->text + used, sizeof(n->text) - used, "%s%s%s%s", used ? ", " : "", word, *more ? " " : "",
			 more);
	drop_controls(n->text + used);
}

/* Options of perf that choose sizes, repeats and output, or whose value stands elsewhere, do not name a series. */
static const struct {
	const char *option;
	int takes_value, shown; /* shown: 0 not at all, 1 by its name and value, 2 by its value */
} variants[] = {
	{"-b", 1, 0},	     {"-e", 1, 0},	   {"-f", 1, 0},	  {"-i", 1, 0},
	{"-n", 1, 0},	     {"-w", 1, 0},	   {"-c", 1, 0},	  {"--json", 0, 0},
	{"--repeats", 1, 0}, {"--timeout", 1, 0},  {"--raw", 0, 0},	  {"--raw-nodelay", 0, 0},
	{"--calls", 0, 0},   {"--baseline", 0, 0}, {"--id-file", 1, 0},	  {"--odd", 0, 0},
	{"--pattern", 1, 0}, {"--ranks", 1, 0},	   {"--device", 1, 0},	  {"--gpus", 1, 0},
	{"--plugin", 1, 0},  {"--threads", 0, 1},  {"--transport", 1, 2}, {"--proto", 1, 2},
	{"--mode", 1, 2},    {"-d", 1, 2},	   {"--port", 1, 0},	  {"--root", 1, 0},
	{"--listen", 0, 0},  {"-o", 1, 0},	   {"-r", 1, 0},	  {"--in-place", 1, 0},
	{"--timing", 1, 0},  {"--explain", 0, 0},  {"--algo", 1, 2},	  {"--hosts", 1, 1},
};
enum { VARIANTS = sizeof(variants) / sizeof(variants[0]) };

static void name_option(struct name *n, const char *option, const char *value)
{
	size_t i = 0;

	while (i < VARIANTS && strcmp(variants[i].option, option) != 0)
		i++;
	if (i == VARIANTS || variants[i].shown == 1)
		add_word(n, option + strspn(option, "-"), i < VARIANTS && !variants[i].takes_value ? "" : value);
	else if (variants[i].shown == 2)
		add_word(n, value, "");
}

/* "gantry perf sendrecv --transport shm --threads -b 8": "shm, threads". but: an option that is left out, or "". */
static void name_by_command(struct name *n, const char *command, const char *but)
{
	char *copy = strdup(command), *rest = copy, *word, *option = NULL;

	while (copy && (word = strsep(&rest, " "))) {
		if (*word == '-' && !strchr("0123456789", word[1])) {
			if (option)
				name_option(n, option, "");
			option = word;
		} else if (*word && option) {
			if (strcmp(option, but) != 0)
				name_option(n, option, word);
			option = NULL;
		}
	}
	if (copy && option)
		name_option(n, option, "");
	free(copy);
}

/* The names that bench/ gives to its series, as readers know them. */
static const char *bench_name(const char *label)
{
	static const char *const known[][2] = {
		{"gantry", "Gantry"},
		{"gantry+", "Gantry, other settings"},
		{"openmpi", "OpenMPI"},
		{"socket", "NCCL Socket"},
		{"socket2x2", "NCCL Socket, 2 \303\227 2"},
		{"raw", "raw TCP"},
		{"host", "Gantry, through host memory"},
		{"unpack", "Gantry, UNPACK"},
		{"sr_net", "sendrecv over net"},
		{"net", "perf net"},
		{"shm_oneway", "one way"},
		{"shm_ring", "ring"},
		{"shm_latency", "echo, kernel to kernel"},
		{"shm_calls", "ping-pong, a call per message"},
		{"copies_normal", "mode normal"},
		{"copies_offset", "mode offset"},
		{"copies_ptr", "mode ptr"},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i][0], label) == 0)
			return known[i][1];
	return label;
}

/* "4 streams"; what: of several. */
static void count_word(struct name *n, const struct row *w, const char *key, const char *what)
{
	char text[32], one[32];
	double v = number_of(w, key);

	if (isnan(v))
		return;
	snprintf(text, sizeof(text), "%.15g", v);
	if (v == 1)
		snprintf(one, sizeof(one), "%.*s", (int)strlen(what) - 1, what);
	add_word(n, text, v == 1 ? one : what);
}

static void name_sendrecv(const struct row *w, struct name *group, struct name *name)
{
	add_word(group, text_of(w, "pattern"), "");
	count_word(group, w, "ranks", "ranks");
	add_word(group, text_of(w, "device"), "");
	name_by_command(name, head_of(w, REPORT_COMMAND), "");
	if (!*name->text)
		add_word(name, text_of(w, "transport"), "");
}

/* Several types, operations and roots may stand in one table, so each row says them. */
static void name_coll(const struct row *w, struct name *group, struct name *name)
{
	const char *redop = text_of(w, "redop");
	char root[32];

	add_word(group, text_of(w, "collective"), "");
	count_word(group, w, "ranks", "ranks");
	add_word(group, text_of(w, "device"), "");
	add_word(name, text_of(w, "type"), strcmp(redop, "none") != 0 ? redop : "");
	snprintf(root, sizeof(root), "%.15g", number_of(w, "root"));
	if (number_of(w, "root") > 0)
		add_word(name, "root", root);
	name_by_command(name, head_of(w, REPORT_COMMAND), "-d");
}

static void name_gin(const struct row *w, struct name *group, struct name *name)
{
	count_word(group, w, "ranks", "ranks");
	add_word(group, text_of(w, "device"), "");
	name_by_command(name, head_of(w, REPORT_COMMAND), "");
}

static void name_rx(const struct row *w, struct name *name)
{
	char path[64];

	snprintf(path, sizeof(path), "%s", text_of(w, "path"));
	path[strcspn(path, ":")] = 0; /* what follows is the reason */
	add_word(name, path, "path");
	add_word(name, text_of(w, "memory"), "memory");
	if (number_of(w, "pieces") > 0)
		count_word(name, w, "pieces", "pieces");
}

static void name_bench(const struct row *w, struct name *group, struct name *name)
{
	const char *series = text_of(w, "series"), *transport = text_of(w, "transport"),
		   *pattern = text_of(w, "pattern");

	add_word(group, *transport ? transport : "net", "");
	if (strncmp(series, "copies", 6) == 0)
		add_word(group, "counted copies", "");
	else if (strcmp(pattern, "echo") == 0 || strcmp(pattern, "pingpong") == 0)
		add_word(group, "latency", "");
	add_word(name, bench_name(series), "");
}

static void name_unpack(const struct row *w, struct name *group, struct name *name)
{
	add_word(group, text_of(w, "kind"), "");
	/* With the whole GPU there are as many blocks as the shape has work for. */
	if (number_of(w, "blocks") > BLOCKS_GIVEN_MAX)
		add_word(group, "the whole device", "");
	else
		count_word(group, w, "blocks", "blocks");
	add_word(name, text_of(w, "shape"), "");
	add_word(name, text_of(w, "form"), "");
}

static void name_row(const struct row *w, enum report_op op, struct name *group, struct name *name)
{
	switch (op) {
	case REPORT_NET:
		add_word(name, head_of(w, REPORT_NETWORK), "");
		name_by_command(name, head_of(w, REPORT_COMMAND), "");
		break;
	case REPORT_SENDRECV:
		name_sendrecv(w, group, name);
		break;
	case REPORT_COLL:
		name_coll(w, group, name);
		break;
	case REPORT_ALLREDUCE:
		if (number_of(w, "ranks") > 2)
			count_word(group, w, "ranks", "ranks");
		add_word(name, bench_name(text_of(w, "label")), "");
		count_word(name, w, "streams_per_direction", "streams");
		break;
	case REPORT_BENCH:
		name_bench(w, group, name);
		break;
	case REPORT_GIN:
		name_gin(w, group, name);
		break;
	case REPORT_RX:
		name_rx(w, name);
		break;
	case REPORT_UNPACK:
		name_unpack(w, group, name);
		break;
	case REPORT_FIFO:
		add_word(name, text_of(w, "device_name"), "");
		break;
	case REPORT_LIBRARIES:
		add_word(group, text_of(w, "op"), "");
		count_word(group, w, "ranks", "ranks");
		add_word(group, text_of(w, "transport"), "");
		add_word(name, bench_name(text_of(w, "library")), "");
		break;
	default:
		break;
	}
	if (!*name->text)
		add_word(name, op == REPORT_NET ? "gantry" : "measured", "");
}

/* ---- heads ---- */

const char *const report_field_keys[REPORT_FIELDS] = {
	[REPORT_HOST] = "host", [REPORT_MACHINE] = "machine", [REPORT_COMMAND] = "command", [REPORT_COMMIT] = "commit",
	[REPORT_DATE] = "date", [REPORT_NOTE] = "note",	      [REPORT_NETWORK] = "network", [REPORT_NCCL] = "nccl",
};

static void run_free(struct report_run *run)
{
	for (int i = 0; i < REPORT_FIELDS; i++)
		free(run->fields[i]);
}

static int same_run(const struct report_run *a, const struct report_run *b)
{
	for (int i = 0; i < REPORT_FIELDS; i++)
		if (strcmp(a->fields[i], b->fields[i]) != 0)
			return 0;
	return 1;
}

static int has_head(const struct row *w)
{
	return has(w, "machine") || has(w, "command") || has(w, "commit") || has(w, "bench");
}

/*
 * The head of the lines that follow is the newest run of the file. A new machine begins a new run; a line with less, as
 * the first one of bench/sendrecv.sh, adds to what is known.
 */
static const char *take_head(struct report_file *f, const struct row *w)
{
	struct report_run run = {0}, *kept, *before = f->nruns ? &f->runs[f->nruns - 1] : NULL;
	int bare = !has(w, "machine");

	for (int i = 0; i < REPORT_FIELDS; i++) {
		const char *text = text_of(w, report_field_keys[i]);

		/* bench/ has one date for all of its runs, and some rows of perf repeat a part of their head. */
		if (before && !*text && (bare || i == REPORT_DATE || i == REPORT_HOST))
			text = before->fields[i];
		run.fields[i] = strdup(text);
		if (!run.fields[i]) {
			run_free(&run);
			return "no memory";
		}
	}
	if (before && same_run(&run, before)) {
		run_free(&run);
		return NULL;
	}
	kept = ARRAY_ADD(f->runs, f->nruns);
	if (!kept) {
		run_free(&run);
		return "no memory";
	}
	*kept = run;
	return NULL;
}

/* ---- figures ---- */

static int same_peer(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

static struct report_series *find_series(struct report *r, const struct report_series *want)
{
	for (size_t i = 0; i < r->nseries; i++) {
		struct report_series *s = &r->series[i];

		if (s->file == want->file && s->op == want->op && s->quantity == want->quantity &&
		    same_peer(s->peer, want->peer) && strcmp(s->name, want->name) == 0 &&
		    strcmp(s->group, want->group) == 0 && strcmp(s->commit, want->commit) == 0)
			return s;
	}
	return NULL;
}

static void series_free(struct report_series *s)
{
	free(s->group);
	free(s->name);
	free(s->commit);
	free(s->points);
}

static struct report_series *add_series(struct report *r, const struct report_series *want)
{
	struct report_series *made = ARRAY_ADD(r->series, r->nseries);

	if (!made)
		return NULL;
	*made = *want;
	made->group = strdup(want->group);
	made->name = strdup(want->name);
	made->commit = strdup(want->commit);
	if (made->group && made->name && made->commit)
		return made;
	series_free(made);
	r->nseries--;
	return NULL;
}

/* perf gives the least and the most of its repeats beside the median: x_min and x_max beside x. */
static struct report_point point_of(const struct row *w, const struct measure *m, double bytes)
{
	struct report_point p = {.bytes = bytes, .median = number_of(w, m->key), .n = 1};
	char key[64];

	snprintf(key, sizeof(key), "%s_min", m->key);
	p.min = number_of(w, key);
	snprintf(key, sizeof(key), "%s_max", m->key);
	p.max = number_of(w, key);
	if (!(p.min <= p.median && p.median <= p.max))
		p.min = p.max = p.median;
	return p;
}

/* *ret_taken: how many figures it has that are drawn. */
static const char *take_figures(struct report *r, const struct row *w, enum report_op op, size_t *ret_taken)
{
	struct name group = {""}, name = {""};
	char none[] = "", *commit = w->head ? w->head->fields[REPORT_COMMIT] : none;
	struct report_series want = {
		.file = r->nfiles - 1, .op = op, .group = group.text, .name = name.text, .commit = commit};
	double bytes = number_of(w, "bytes");

	*ret_taken = 0;
	name_row(w, op, &group, &name);
	for (const struct measure *m = measures; (m = next_measure(w, m)); m++) {
		struct report_point *p;
		struct report_series *s;

		if (bytes < m->from || bytes > m->to)
			continue;
		want.quantity = m->quantity;
		want.peer = m->peer;
		s = find_series(r, &want);
		if (!s)
			s = add_series(r, &want);
		p = s ? ARRAY_ADD(s->points, s->npoints) : NULL;
		if (!p)
			return "no memory";
		*p = point_of(w, m, bytes);
		++*ret_taken;
	}
	return NULL;
}

static int find_op(const struct row *w, enum report_op *ret_op)
{
	for (size_t i = 0; i < sizeof(op_keys) / sizeof(op_keys[0]); i++) {
		if (!has(w, op_keys[i].key))
			continue;
		*ret_op = op_keys[i].op;
		return !(number_of(w, "bytes") < 0 || number_of(w, "bytes") > BYTES_MAX);
	}
	return 0;
}

/* ---- what is not drawn ---- */

static void append(char *buf, size_t len, const char *comma, const char *text)
{
	size_t used = strlen(buf);

	/* Whole or not at all: what is cut off would be another number or another key. */
	if (used + strlen(text) + 8 < len)
		snprintf(buf + used, len - used, "%s%s", used ? comma : "", text);
	else if (!used)
		snprintf(buf, len, "%.*s ...", (int)(len - 8), text);
	else if (used < 3 || strcmp(buf + used - 3, "...") != 0)
		snprintf(buf + used, len - used, " ...");
	drop_controls(buf + used);
}

/* "4, 7-9": numbers come in order. */
static void add_number(struct report_file *f, size_t number)
{
	char text[64];
	int next = f->unknown && number == f->range[1] + 1;

	if (f->unknown && number == f->range[1])
		return;
	if (!next) {
		f->range[0] = number;
		f->range_at = strlen(f->unknown_lines);
	}
	f->range[1] = number;
	f->unknown_lines[f->range_at] = 0;
	if (f->range[0] == number)
		snprintf(text, sizeof(text), "%zu", number);
	else
		snprintf(text, sizeof(text), "%zu-%zu", f->range[0], number);
	append(f->unknown_lines, sizeof(f->unknown_lines), ", ", text);
}

static void take_unknown(struct report_file *f, const struct row *w, size_t number)
{
	add_number(f, number);
	if (f->unknown++)
		return;
	for (const struct json_value *v = json_first(w->doc, w->object); v; v = json_next(w->doc, v))
		append(f->unknown_keys, sizeof(f->unknown_keys), ", ", v->key);
}

/* The last line of perf. */
static void take_end(struct report_file *f, const struct row *w)
{
	const struct json_value *ok = json_get(w->doc, w->object, "ok");
	const char *warning = text_of(w, "warning");

	if (ok && ok->type == JSON_BOOL && !ok->number) {
		f->failures++;
		append(f->failed, sizeof(f->failed), ", ", w->head ? head_of(w, REPORT_COMMAND) : "a run of perf");
	}
	if (*warning && !f->warnings++)
		append(f->warning, sizeof(f->warning), "", warning);
}

static const char *take_object(struct report *r, struct row *w, size_t number);

/* An array "rows" of figures under one head. */
static const char *take_rows(struct report *r, const struct row *w, const struct json_value *rows, size_t number)
{
	const char *bad = NULL;

	for (const struct json_value *v = json_first(w->doc, rows); v && !bad; v = json_next(w->doc, v)) {
		struct row inner = {.doc = w->doc, .object = v};

		bad = take_object(r, &inner, number);
	}
	return bad;
}

static void count_row(struct report_file *f, const struct row *w, int drawn)
{
	f->rows += (size_t)drawn;
	if (number_of(w, "wrong") > 0) {
		f->wrong += number_of(w, "wrong");
		f->wrong_rows++;
	}
}

/* A line without a figure that is drawn. 0: it is none of the known kinds. */
static int take_other(struct report_file *f, const struct row *w)
{
	if (has(w, "error")) {
		f->failures++;
		append(f->failed, sizeof(f->failed), ", ", bench_name(text_of(w, "label")));
	} else if ((has(w, "wrong_bytes") || has(w, "wrong_elements")) && has(w, "ok")) {
		take_end(f, w);
	} else if (has(w, "test") || has(w, "collective") || (has(w, "call") && has(w, "count"))) {
		f->checks++;
	} else {
		return 0;
	}
	return 1;
}

static const char *take_object(struct report *r, struct row *w, size_t number)
{
	struct report_file *f = &r->files[r->nfiles - 1];
	const struct json_value *rows = json_get(w->doc, w->object, "rows");
	int figures = next_measure(w, measures) != NULL, head = has_head(w);
	const char *bad = head ? take_head(f, w) : NULL;
	enum report_op op;
	size_t taken = 0;

	w->head = f->nruns ? &f->runs[f->nruns - 1] : NULL;
	if (!bad && figures && find_op(w, &op))
		bad = take_figures(r, w, op, &taken);
	count_row(f, w, !bad && taken);
	if (bad || taken || take_other(f, w))
		return bad;
	if (rows && rows->type == JSON_ARRAY && w->object == &w->doc->values[0])
		return take_rows(r, w, rows, number);
	if (!head || figures)
		take_unknown(f, w, number);
	return NULL;
}

const char *report_take(struct report *r, const struct json_doc *line, size_t number)
{
	struct row w = {.doc = line, .object = &line->values[0]};

	return take_object(r, &w, number);
}

/* ---- files ---- */

const char *report_add_file(struct report *r, const char *path)
{
	struct report_file *f = ARRAY_ADD(r->files, r->nfiles);

	if (f)
		f->path = path;
	return f ? NULL : "no memory";
}

static const char *take_line(void *ctx, const struct json_doc *line)
{
	return report_take(ctx, line, line->line);
}

int report_read(struct report *r, const char *path, char *why, size_t len)
{
	const char *bad = report_add_file(r, path);

	if (bad) {
		snprintf(why, len, "%s: %s", path, bad);
		return -1;
	}
	return json_read_lines(strcmp(path, "-") == 0 ? "/dev/stdin" : path, take_line, r, why, len);
}

/* By size; figures without one first. */
static int by_bytes(const void *a, const void *b)
{
	double x = ((const struct report_point *)a)->bytes, y = ((const struct report_point *)b)->bytes;

	if (isnan(x) || isnan(y))
		return (isnan(x) == 0) - (isnan(y) == 0);
	return (x > y) - (x < y);
}

/* n points of one size become one. */
static struct report_point merge(const struct report_point *p, size_t n, double *medians)
{
	struct report_point m = p[0];

	m.n = n;
	for (size_t i = 0; i < n; i++) {
		medians[i] = p[i].median;
		m.min = fmin(m.min, p[i].min);
		m.max = fmax(m.max, p[i].max);
	}
	m.median = perf_median(medians, n);
	return m;
}

static int finish_series(struct report_series *s)
{
	double *medians = calloc(s->npoints ? s->npoints : 1, sizeof(*medians));
	size_t made = 0, n;

	if (!medians)
		return -1;
	qsort(s->points, s->npoints, sizeof(*s->points), by_bytes);
	for (size_t i = 0; i < s->npoints; i += n) {
		for (n = 1; i + n < s->npoints && by_bytes(&s->points[i], &s->points[i + n]) == 0;)
			n++;
		s->points[made++] = merge(&s->points[i], n, medians);
	}
	s->npoints = made;
	free(medians);
	return 0;
}

int report_has_section(const struct report *r, const struct report_series *s)
{
	for (size_t i = 0; i < r->nsections; i++)
		if (report_in_section(&r->sections[i], s))
			return 1;
	return 0;
}

static int find_sections(struct report *r, const char *only)
{
	for (size_t i = 0; i < r->nseries; i++) {
		const struct report_series *s = &r->series[i];
		struct report_section made = {.op = s->op, .group = s->group}, *section;

		snprintf(made.title, sizeof(made.title), "%s%s%s", report_ops[s->op].title, *s->group ? ": " : "",
			 s->group);
		if (report_has_section(r, s) || (only && !strcasestr(made.title, only)))
			continue;
		section = ARRAY_ADD(r->sections, r->nsections);
		if (!section)
			return -1;
		*section = made;
	}
	return 0;
}

int report_finish(struct report *r, const char *only)
{
	for (size_t i = 0; i < r->nseries; i++) {
		struct report_series *s = &r->series[i];

		if (finish_series(s))
			return -1;
		for (size_t k = 0; k < i; k++) {
			struct report_series *t = &r->series[k];

			if (t->file == s->file && t->op == s->op && strcmp(t->name, s->name) == 0 &&
			    strcmp(t->group, s->group) == 0 && strcmp(t->commit, s->commit) != 0)
				s->named_commit = t->named_commit = 1;
		}
	}
	return find_sections(r, only);
}

void report_free(struct report *r)
{
	for (size_t i = 0; i < r->nfiles; i++) {
		for (size_t k = 0; k < r->files[i].nruns; k++)
			run_free(&r->files[i].runs[k]);
		free(r->files[i].runs);
	}
	for (size_t i = 0; i < r->nseries; i++)
		series_free(&r->series[i]);
	free(r->files);
	free(r->series);
	free(r->sections);
	memset(r, 0, sizeof(*r));
}
