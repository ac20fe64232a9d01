/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf fifo`: what it costs that a kernel tells the proxy something and hears back.
 *
 *   bare   the kernel stores a flag, a plain CPU thread spins on it and stores another: the least that is possible
 *   fifo   the kernel posts a step to the real FIFO of a connection, the real progress thread finds it on its way over
 *          its connections, takes it and reports it done. The network is left out: the connection's transport has a
 *          proxy_progress that is done with a step as soon as it sees it
 *
 * A round trip is a post and its answer; the rate is taken with as many posts as the FIFO has room for. Repeats of the
 * three follow one another, so that whatever else the machine does hits them alike.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "common/cmd.h"
#include "common/figures.h"
#include "common/options.h"
#include "device/device.h"
#include "device/work.h"
#include "kernels/bench.h"
#include "perf/perf_table.h"
#include "proxy/proxy.h"

enum { REPEATS_MAX = 101, SPINS_BEFORE_YIELD = 1 << 16, STEP_BYTES = 8 };
enum way { BARE, FIFO, WAYS };

/* The one line of the table. */
struct fifo_row {
	struct perf_spread rtt, bare; /* us */
	double ratio, rate;
	const char *device, *device_name;
	uint64_t iters, repeats;
};

struct opts {
	int device, gpu, repeats, json;
	uint64_t iters, timeout_ns;
};

/* What kernels and CPU share: mapped memory. */
struct mapped {
	struct gantry_fifo fifo[WAYS];
	struct gantry_eventcount eventcount; /* what the kernel sleeps on, if it sleeps */
	struct gantry_conn_state state;
	uint32_t abort, result;
};

struct bench {
	struct gantry_device *dev;
	struct gantry_stream *stream;
	struct mapped *host, *mapped; /* the same, as the CPU and as the kernels address it */
	struct gantry_conn *conns;    /* device memory: by way */
	struct gantry_proxy *proxy;
	struct gantry_proxy_group *group;
	struct gantry_connector connector;
	struct gantry_peer_info peer;
	uint32_t bare_stop; /* ends the plain thread */
};

/* Takes what has been posted, all of it, and reports it done. */
static gantry_result null_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	gantry_result r = GANTRY_OK;
	uint64_t size, place, step = pc->done;
	uint32_t mode;

	while (step < pc->end && gantry_proxy_posted(pc, step, &mode, &size, &place)) {
		if (mode != GANTRY_MODE_PTR || size != STEP_BYTES)
			FAIL(GANTRY_ERR_CORRUPT, "step %llu has mode %u and %llu bytes", (unsigned long long)step, mode,
			     (unsigned long long)size);
		step++;
	}
	if (step == pc->done) {
		gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
		goto out;
	}
	gantry_proxy_done(pc, step);
	pc->posted = pc->moved = pc->done = step;
	*ret_worked = 1;
out:
	return r;
}

static const struct gantry_transport_side null_side = {.proxy_progress = null_progress};

/* SIGALRM: the kernel looks at this while it waits, and ends. */
static uint32_t *abort_word;

static void on_alarm(int sig)
{
	(void)sig;
	store_seq(abort_word, 1);
}

static gantry_result open_conns(struct bench *b)
{
	struct gantry_conn conns[WAYS];
	void *p = NULL;

	memset(conns, 0, sizeof(conns));
	for (int way = 0; way < WAYS; way++) {
		struct gantry_fifo *f = &b->mapped->fifo[way];

		conns[way].head = &f->head;
		conns[way].tail = &f->tail;
		conns[way].slots = f->slots;
		conns[way].offers = f->offers;
		conns[way].state = &b->mapped->state;
		conns[way].flags = GANTRY_CONN_PROXIED | GANTRY_CONN_SEND;
	}
	conns[FIFO].eventcount = b->dev->sleeps ? gantry_proxy_eventcount(b->proxy) : NULL;
	TRY_NOW(b->dev->ops->alloc(b->dev, sizeof(conns), &p));
	b->conns = p;
	return b->dev->ops->copy(b->dev, p, conns, sizeof(conns));
}

static gantry_result open_all(struct bench *b, const struct opts *o)
{
	void *host = NULL, *mapped = NULL;
	struct gantry_proxy_group_config config = {.abort = NULL};
	struct gantry_proxy_conn *pc;

	TRY_NOW(gantry_params_load(0));
	TRY_NOW(gantry_device_open((enum gantry_device_kind)o->device, o->gpu, &b->dev));
	TRY_NOW(gantry_stream_create(b->dev, &b->stream));
	TRY_NOW(b->dev->ops->alloc_mapped(b->dev, sizeof(*b->host), &host, &mapped));
	b->host = host;
	b->mapped = mapped;
	TRY_NOW(gantry_proxy_get(b->dev, &b->proxy));
	config.abort = &b->host->abort;
	TRY_NOW(gantry_proxy_group_create(b->proxy, &config, &b->group));
	b->connector.send = 1;
	b->connector.device = b->dev;
	b->connector.peer = &b->peer;
	TRY_NOW(gantry_proxy_conn_create(b->proxy, b->group, &b->connector, &pc));
	b->connector.proxy = pc;
	pc->side = &null_side;
	pc->fifo = &b->host->fifo[FIFO];
	pc->kernel_eventcount = b->dev->sleeps ? &b->host->eventcount : NULL;
	TRY_NOW(open_conns(b));
	abort_word = &b->host->abort;
	signal(SIGALRM, on_alarm);
	return GANTRY_OK;
}

static void close_all(struct bench *b)
{
	alarm(0);
	if (b->stream)
		gantry_stream_destroy(b->dev, b->stream);
	if (b->group)
		gantry_proxy_group_destroy(b->group);
	if (b->connector.proxy)
		gantry_proxy_conn_destroy(b->connector.proxy);
	if (b->proxy)
		gantry_proxy_put(b->proxy);
	if (b->conns)
		b->dev->ops->free(b->dev, b->conns);
	if (b->host)
		b->dev->ops->free_mapped(b->dev, b->host);
	if (b->dev)
		gantry_device_close(b->dev);
}

/* The kernel with n steps, from launch to end. */
static gantry_result run_kernel(struct bench *b, const struct opts *o, enum way way, uint32_t window, uint64_t *ret_ns)
{
	struct gantry_fifo_args args = {.conn = &b->conns[way],
					.n = o->iters,
					.window = window,
					.bare = way == BARE,
					.result = &b->mapped->result};
	struct gantry_launch l = {.kernel = &gantry_kernel_fifo,
				  .blocks = 1,
				  .args = &args,
				  .args_size = sizeof(args),
				  .abort = &b->mapped->abort};
	uint64_t start;

	if (way == FIFO && b->dev->sleeps)
		l.eventcounts = &b->host->eventcount;
	alarm((unsigned)(o->timeout_ns / 1000000000u) + 1);
	start = gantry_now_ns();
	TRY_NOW(b->dev->ops->launch(b->dev, b->stream, &l));
	TRY_NOW(gantry_stream_sync(b->dev, b->stream));
	*ret_ns = gantry_now_ns() - start;
	alarm(0);
	if (load_acquire(&b->host->result))
		FAIL_NOW(GANTRY_ERR_TIMEOUT,
			 "%llu %s did not end within %.0f s; step %llu was the last that was answered",
			 (unsigned long long)o->iters, way == BARE ? "bare round trips" : "steps",
			 (double)o->timeout_ns / 1e9, (unsigned long long)load_relaxed(&b->host->fifo[way].head));
	return GANTRY_OK;
}

/* The other side of the bare flag. It keeps its CPU, but for a machine that has none left. */
static void *bare_thread(void *arg)
{
	struct bench *b = arg;
	struct gantry_fifo *f = &b->host->fifo[BARE];
	uint64_t seen = f->head, tail, n = 0;

	while (!load_relaxed(&b->bare_stop)) {
		tail = load_acquire(&f->tail);
		if (tail != seen) {
			store_release(&f->head, tail);
			seen = tail;
			n = 0;
		} else if (++n % SPINS_BEFORE_YIELD == 0) {
			sched_yield();
		}
	}
	return NULL;
}

static gantry_result bare(struct bench *b, const struct opts *o, uint64_t *ret_ns)
{
	gantry_result r = GANTRY_OK;
	pthread_t thread;

	b->bare_stop = 0;
	if (pthread_create(&thread, NULL, bare_thread, b))
		FAIL(GANTRY_ERR_LIMIT, "no thread to play the bare flag's other side");
	r = run_kernel(b, o, BARE, 1, ret_ns);
	store_relaxed(&b->bare_stop, 1);
	pthread_join(thread, NULL);
out:
	return r;
}

static gantry_result fifo(struct bench *b, const struct opts *o, uint32_t window, uint64_t *ret_ns)
{
	struct gantry_proxy_op *op;

	TRY_NOW(gantry_proxy_ops_get(b->proxy, 1, &op));
	op->conn = b->connector.proxy;
	op->nsteps = o->iters;
	op->step_bytes = STEP_BYTES;
	op->bytes = o->iters * STEP_BYTES;
	op->slice_steps = op->chunk_steps = 1;
	op->ptr = op->exact = 1;
	gantry_proxy_append(b->proxy, op, op);
	TRY_NOW(run_kernel(b, o, FIFO, window, ret_ns));
	return gantry_proxy_group_error(b->group);
}

static gantry_result measure(struct bench *b, const struct opts *o, struct fifo_row *row)
{
	static double bare_rtt[REPEATS_MAX], rtt[REPEATS_MAX], rate[REPEATS_MAX];
	double n = (double)o->iters;
	uint64_t ns = 1;

	/* From -1: one round of each to warm up. */
	for (int k = -1; k < o->repeats; k++) {
		int at = k < 0 ? 0 : k;

		TRY_NOW(bare(b, o, &ns));
		bare_rtt[at] = (double)ns / n / 1e3;
		TRY_NOW(fifo(b, o, 1, &ns));
		rtt[at] = (double)ns / n / 1e3;
		TRY_NOW(fifo(b, o, GANTRY_STEPS, &ns));
		rate[at] = n * 1e9 / (double)(ns ? ns : 1);
	}
	row->rtt = perf_spread_of(rtt, (size_t)o->repeats);
	row->bare = perf_spread_of(bare_rtt, (size_t)o->repeats);
	row->rate = perf_median(rate, (size_t)o->repeats);
	row->ratio = row->rtt.median / row->bare.median;
	return GANTRY_OK;
}

/* clang-format off */
#define FIELD(field) offsetof(struct fifo_row, field)
static const struct perf_column columns[] = {
	{"round trip", "(us)", "rtt_us", PERF_SPREAD, 7, FIELD(rtt)},
	{"bare flag", "(us)", "bare_rtt_us", PERF_SPREAD, 7, FIELD(bare)},
	{"ratio", "", "rtt_ratio", PERF_FIGURE, 7, FIELD(ratio)},
	{"rate", "(steps/s)", "ops_per_s", PERF_FIGURE, 12, FIELD(rate)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(device)},
	{NULL, "", "device_name", PERF_NAME, 0, FIELD(device_name)},
	{NULL, "", "iters", PERF_COUNT, 0, FIELD(iters)},
	{NULL, "", "repeats", PERF_COUNT, 0, FIELD(repeats)},
};
/* clang-format on */

static gantry_result measure_and_print(struct bench *b, const struct opts *o, struct perf_table *t)
{
	struct fifo_row row = {.device = o->device == GANTRY_DEVICE_CUDA ? "cuda" : "host",
			       .device_name = gantry_device_name(b->dev),
			       .iters = o->iters,
			       .repeats = (uint64_t)o->repeats};

	perf_table_begin(t, options_command(),
			 "a kernel posts steps without payload to the progress thread and waits for its replies");
	perf_fact_text(t, "device", row.device);
	perf_fact_text(t, "device_name", row.device_name);
	perf_fact_int(t, "iters", (int64_t)o->iters);
	perf_fact_int(t, "repeats", o->repeats);
	perf_table_columns(t, columns, sizeof(columns) / sizeof(columns[0]));
	TRY_NOW(measure(b, o, &row));
	perf_table_row(t, &row);
	return GANTRY_OK;
}

/* clang-format off */
#define AT(field) offsetof(struct opts, field)
static const struct option_spec specs[] = {
	{0, OPTION_CHOICE, "device", AT(device), 0, 0, "host|cuda", NULL, "where the kernel runs (host)"},
	{0, OPTION_INT, "gpu", AT(gpu), 0, 1023, NULL, "N", "which GPU (0)"},
	{'n', OPTION_COUNT, "iters", AT(iters), 1, 1 << 30, NULL, "STEPS", "steps per repeat (20000)"},
	{0, OPTION_INT, "repeats", AT(repeats), 1, REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (9)"},
	{0, OPTION_TIME, "timeout", AT(timeout_ns), 0, 0, NULL, "TIME", "the longest that a repeat may take (60s)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "a JSON object"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf fifo",
	.about = "A kernel posts steps to the proxy, which answers at once: what the two cost each other.\n",
	.notes = "\nSee gantry-perf(1).\n",
	OPTION_SPECS(specs),
};

int cmd_perf_fifo(int argc, char **argv)
{
	struct opts o = {.iters = 20000, .repeats = 9, .timeout_ns = 60000000000};
	struct perf_table t = {.op = "fifo", .out = stdout, .whole = 1};
	static struct bench b;
	int status = options_parse(&set, argc, argv, &o);
	gantry_result r;

	if (status)
		return status - 1;
	t.json = o.json;
	r = open_all(&b, &o);
	if (r == GANTRY_OK)
		r = measure_and_print(&b, &o, &t);
	if (r != GANTRY_OK)
		fprintf(stderr, "gantry perf fifo: %s: %s\n", gantry_result_name(r),
			gantry_last_error()[0] ? gantry_last_error() : gantry_result_text(r));
	close_all(&b);
	return perf_table_end(&t, r != GANTRY_OK, NULL);
}
