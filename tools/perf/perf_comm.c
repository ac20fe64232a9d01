/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_comm.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/trace.h"
#include "gantry/fifo.h"
#include "perf/perf_table.h"

#define TIMEOUT_NS ((uint64_t)60000000000)
enum { PAGE = 4096 };

/* ---- options ---- */

static const struct {
	const char *name;
	size_t bytes;
} types[GANTRY_TYPE_COUNT] = {
#define TYPE_ROW(name, number, bytes, text) [number] = {text, bytes},
	GANTRY_TYPES(TYPE_ROW)
#undef TYPE_ROW
};

size_t perf_comm_type_bytes(int type)
{
	return types[type].bytes;
}

const char *perf_comm_type_name(int type)
{
	return types[type].name;
}

int perf_comm_type(const struct option_set *set, const char *name)
{
	char names[256] = "";

	for (int type = 0; type < GANTRY_TYPE_COUNT; type++)
		if (strcmp(types[type].name, name) == 0)
			return type;
	for (size_t i = 0; i < GANTRY_TYPE_COUNT; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? "|" : "", types[i].name);
	options_bad_choice(set->program, "-d", name, names);
	return -1;
}

/* Sorted, and each of them once. */
static size_t add_size(uint64_t *sizes, size_t n, size_t max, uint64_t size)
{
	size_t at = n;

	while (at > 0 && sizes[at - 1] > size)
		at--;
	if ((at > 0 && sizes[at - 1] == size) || n == max)
		return n;
	memmove(&sizes[at + 1], &sizes[at], (n - at) * sizeof(*sizes));
	sizes[at] = size;
	return n + 1;
}

/* At most max, and returns how many there are. */
static size_t make_sizes(const struct perf_size_opts *o, uint64_t unit, uint64_t *ret_sizes, size_t max)
{
	uint64_t size = o->begin, next;
	size_t n = 0;

	while (size <= o->end && n < max) {
		n = add_size(ret_sizes, n, max, size / unit * unit);
		if (o->odd && size)
			n = add_size(ret_sizes, n, max, (size - 1) / unit * unit);
		if (o->odd) {
			n = add_size(ret_sizes, n, max, (size + 1) / unit * unit);
			n = add_size(ret_sizes, n, max, (size + 3) / unit * unit);
		}
		if (o->step)
			next = size + o->step;
		else /* after nothing comes one element */
			next = size ? size * o->factor : unit;
		size = next;
	}
	return n;
}

int perf_comm_sizes(const struct option_set *set, struct perf_size_opts *o, uint64_t unit, uint64_t *ret_sizes,
		    size_t *ret_n)
{
	if (o->factor && o->step)
		return 1 + options_wrong(set, "-f and -i exclude each other");
	if (!o->factor)
		o->factor = 4;
	if (o->begin > o->end)
		return 1 + options_wrong(set, "-b is larger than -e");
	*ret_n = make_sizes(o, unit, ret_sizes, PERF_SIZES_MAX);
	if (*ret_n == PERF_SIZES_MAX)
		return 1 + options_wrong(set, "-i: too many sizes");
	return 0;
}

int perf_comm_check(const struct option_set *set, struct perf_comm_opts *o)
{
	const char *p = o->gpus_text ? o->gpus_text : "0";
	char *end;

	if (o->hosts && o->threads)
		return 1 + options_wrong(set, "--hosts and --threads exclude each other: a process is on one host");
	if (o->gpus_text && o->device == GANTRY_DEVICE_HOST)
		return 1 + options_wrong(set, "--gpus needs --device cuda or hip");
	for (o->ngpus = 0;; p = end + 1) {
		long v = strtol(p, &end, 10);

		if (end == p || v < 0 || v > 1023 || (*end && *end != ','))
			return 1 + options_wrong(set, "--gpus: not a list of numbers: %s", o->gpus_text);
		if (o->ngpus == PERF_GPUS_MAX)
			return 1 + options_wrong(set, "--gpus: too many of them");
		o->gpus[o->ngpus++] = (int)v;
		if (!*end)
			return 0;
	}
}

/* A launcher started this process: whether the options go with that, and where the ranks meet. */
static void take_launched(struct perf_comm_opts *o, char *why, size_t len)
{
	o->launcher = o->launched.name;
	o->rank = o->launched.rank;
	o->ranks = o->launched.size;
	if (o->ranks > PERF_RANKS_MAX)
		snprintf(why, len, "%s started %d ranks, at most %d", o->launcher, o->ranks, PERF_RANKS_MAX);
	else if (o->threads)
		snprintf(why, len, "%s started this as rank %d of %d: it cannot have --threads too", o->launcher,
			 o->rank, o->ranks);
	else if (o->root && o->id_file)
		snprintf(why, len, "--root and --id-file exclude each other");
	else if (!o->id_file)
		perf_launcher_root(&o->launched, o->root, &o->meet, why, len);
}

/* What starts the ranks: --ranks does it here, whatever the environment contains. */
static int find_ranks(const struct option_set *set, struct perf_comm_opts *o)
{
	const char *option = o->root ? "--root" : o->id_file ? "--id-file" : NULL;
	char why[512] = "";

	if (!o->ranks)
		perf_launcher_find(&o->launched, why, sizeof(why));
	o->launched.program = set->program;
	if (!why[0] && o->launched.name)
		take_launched(o, why, sizeof(why));
	else if (!why[0] && option)
		snprintf(why, sizeof(why), "%s is for ranks that mpirun, srun or torchrun starts, and %s", option,
			 o->ranks ? "--ranks forks them here" : "none of them started this process");
	if (why[0])
		return -options_wrong(set, "%s", why);
	o->ranks = o->ranks ? o->ranks : 2;
	if (o->hosts && o->rank >= 0)
		return -options_wrong(set, "--hosts is for ranks that are forked here, and %s started this one",
				      o->launcher);
	if (o->hosts > o->ranks)
		return -options_wrong(set, "--hosts %d: there are %d ranks", o->hosts, o->ranks);
	return 0;
}

int perf_comm_environment(const struct option_set *set, struct perf_comm_opts *o)
{
	const char *given = getenv("GANTRY_IFNAME") ? getenv("GANTRY_IFNAME") : getenv("NCCL_SOCKET_IFNAME");
	const char *ifname = o->ifname;
	char call_timeout[24];

	if (find_ranks(set, o) < 0)
		return -1;
	/* Hundreds of ranks share a few CPUs while they connect, and nothing counts as progress meanwhile. */
	if (!o->timeout_ns)
		o->timeout_ns = TIMEOUT_NS + (o->ranks > 64 ? (uint64_t)(o->ranks - 64) * 1000000000 : 0);
	/* Forked ranks are on one host: loopback, unless the user has named an interface. */
	if (!ifname && o->rank < 0 && !(given && given[0]))
		ifname = "lo";
	if (ifname) {
		setenv("GANTRY_IFNAME", ifname, 1);
		setenv("NCCL_SOCKET_IFNAME", ifname, 1);
	}
	if (o->plugin)
		setenv("GANTRY_NET_PLUGIN", o->plugin, 1);
	/* A rank that does not come is a mistake here, not a late one. */
	snprintf(call_timeout, sizeof(call_timeout), "%" PRIu64 "ms", gantry_params()->connect_timeout / 1000000);
	setenv("GANTRY_CALL_TIMEOUT", call_timeout, 0);
	if (gantry_params_load(1) != GANTRY_OK)
		return -1;
	return perf_preflight(set->program, gantry_params()->net_plugin,
			      o->transport ? o->transport : gantry_params()->transport);
}

/* ---- the parent ---- */

static size_t rounded(size_t size)
{
	return (size + 127) / 128 * 128;
}

struct perf_comm_shared *perf_comm_map(const struct perf_comm_op *op, const struct perf_comm_opts *o, size_t own_size)
{
	size_t n = (size_t)o->ranks, head = rounded(sizeof(struct perf_comm_shared)), own = rounded(own_size);
	size_t states = n * sizeof(struct perf_state), samples = 2 * n * op->sample_size;
	size_t size = head + own + states + samples;
	char *p = perf_ranks_map(op->program, size);
	struct perf_comm_shared *sh = (struct perf_comm_shared *)p;

	if (!p)
		return NULL;
	sh->op = op;
	sh->size = size;
	sh->opts = o;
	sh->own = p + head;
	sh->states = (struct perf_state *)(p + head + own);
	sh->samples = p + head + own + states;
	return sh;
}

void perf_comm_unmap(struct perf_comm_shared *sh)
{
	munmap(sh, sh->size);
}

static uint64_t timeout_of(void *shared)
{
	return ((const struct perf_comm_shared *)shared)->opts->timeout_ns;
}

/* A thread of each child answers with what its communicator knows. */
static void ask_ranks(void *shared)
{
	const struct timespec grace = {1, 0};

	store_release(&((struct perf_comm_shared *)shared)->dump, 1);
	nanosleep(&grace, NULL);
}

/* A rank has sockets to every other, and threads of one child have their descriptors in common: as many as the system
 * allows. */
static void allow_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int run_ranks(void *ctx, int first, int n);

int perf_comm_run(struct perf_comm_shared *sh, size_t rows, void (*print)(void *shared, struct perf_ranks *p))
{
	const struct perf_comm_opts *o = sh->opts;
	const int launched = o->rank >= 0;
	struct perf_ranks ranks = {
		.program = sh->op->program,
		.unit = sh->op->unit,
		.first = launched ? o->rank : 0,
		.count = launched ? 1 : o->ranks,
		.together = o->threads,
		.tidy = 1,		       /* leaks are looked for on the way */
		.signals = o->id_file != NULL, /* which is not to stay: launchers end their ranks by signals */
		/* Ranks that were started elsewhere may come late, and joining has a deadline of its own, which says
		 * more. */
		.more_ns = launched ? gantry_params()->connect_timeout : 0,
		.rows = rows,
		.states = sh->states,
		.stride = sizeof(struct perf_state),
		.ctx = sh,
		.run = run_ranks,
		.print = print,
		.timeout = timeout_of,
		.ask = ask_ranks,
	};
	int status;

	allow_descriptors();
	status = perf_ranks_run(&ranks);
	if (o->id_file && load_acquire(&sh->id_ready))
		perf_id_remove(o->id_file, &sh->id);
	if (ranks.ended_by)
		raise(ranks.ended_by);
	return status;
}

/*
 * ---- ranks meet ----
 *
 * Those of one host meet in shared memory, where they also leave what they measured. Ranks that a launcher started may
 * be on several hosts: they send their samples to rank 0 and get all of them back, by the communicator itself, between
 * the phases that are measured.
 */

/* In turns: others may read one while the next is written. */
static char *sample_at(const struct perf_rank *rk, int rank)
{
	return rk->shared->samples + rk->shared->op->sample_size * (2 * (size_t)rank + rk->syncs % 2);
}

const void *perf_sample_of(const struct perf_rank *rk, int rank)
{
	return sample_at(rk, rank);
}

static void meet(struct perf_rank *rk)
{
	perf_ranks_meet(rk->state, rk->shared->states, sizeof(struct perf_state), rk->nranks);
}

/* A GPU's stream stays busy after an error until the communicator is aborted or destroyed. No naps: it is timed. */
gantry_result perf_rank_wait(struct perf_rank *rk)
{
	struct gantry_waiter wait;
	gantry_result r, error = GANTRY_OK;

	if (rk->dev->reports)
		return gantry_stream_sync(rk->dev, rk->stream);
	gantry_waiter_init(&wait, NULL);
	while ((r = gantry_stream_query(rk->dev, rk->stream)) == GANTRY_AGAIN && error == GANTRY_OK) {
		gantry_waiter_idle(&wait, 0);
		error = gantry_comm_error(rk->comm, NULL, NULL, 0);
	}
	return error == GANTRY_OK ? r : error;
}

gantry_result perf_rank_finish(struct perf_rank *rk)
{
	gantry_result r = perf_rank_wait(rk), error;

	perf_progress(rk->state);
	error = gantry_comm_error(rk->comm, NULL, NULL, 0);
	return error == GANTRY_OK ? r : error;
}

/* Rank 0's half of the exchange, or another's. The box holds a sample of each rank. */
static gantry_result exchange(struct perf_rank *rk)
{
	const size_t one = rk->shared->op->sample_size, all = one * (size_t)rk->nranks;

	if (rk->rank == 0) {
		gantry_group_start();
		for (int i = 1; i < rk->nranks; i++)
			gantry_recv(rk->box + one * (size_t)i, one, GANTRY_TYPE_INT8, i, rk->comm, rk->stream);
		TRY_NOW(gantry_group_end());
		gantry_group_start();
		for (int i = 1; i < rk->nranks; i++)
			gantry_send(rk->box, all, GANTRY_TYPE_INT8, i, rk->comm, rk->stream);
		TRY_NOW(gantry_group_end());
	} else {
		TRY_NOW(gantry_send(rk->box + one * (size_t)rk->rank, one, GANTRY_TYPE_INT8, 0, rk->comm, rk->stream));
		/* What comes back is all of them: to the beginning, not where the own one still lies. */
		TRY_NOW(gantry_recv(rk->box, all, GANTRY_TYPE_INT8, 0, rk->comm, rk->stream));
	}
	return perf_rank_finish(rk);
}

static gantry_result share_far(struct perf_rank *rk)
{
	const size_t one = rk->shared->op->sample_size;

	TRY_NOW(gantry_mem_copy(rk->dev, rk->box + one * (size_t)rk->rank, sample_at(rk, rk->rank), one));
	TRY_NOW(exchange(rk));
	for (int i = 0; i < rk->nranks; i++)
		if (i != rk->rank)
			TRY_NOW(gantry_mem_copy(rk->dev, sample_at(rk, i), rk->box + one * (size_t)i, one));
	return GANTRY_OK;
}

gantry_result perf_rank_share(struct perf_rank *rk, const void *mine)
{
	rk->syncs++;
	if (mine)
		memcpy(sample_at(rk, rk->rank), mine, rk->shared->op->sample_size);
	else
		memset(sample_at(rk, rk->rank), 0, rk->shared->op->sample_size);
	if (rk->box)
		return share_far(rk);
	meet(rk);
	return GANTRY_OK;
}

gantry_result perf_rank_sync(struct perf_rank *rk)
{
	if (rk->box)
		return perf_rank_share(rk, NULL);
	meet(rk);
	return GANTRY_OK;
}

/* ---- a rank's life ---- */

/* Rank 0 makes it; the others wait. If rank 0 cannot, the parent ends them. */
static gantry_result get_id(struct perf_rank *rk, struct gantry_unique_id *ret_id)
{
	const struct timespec nap = {0, 1000000};
	const struct perf_comm_opts *o = rk->opts;

	if (o->rank >= 0 && !o->id_file) {
		TRY_NOW(perf_id_exchange(&o->launched, &o->meet, ret_id));
	} else if (rk->rank == 0) {
		TRY_NOW(gantry_unique_id_create(ret_id));
		rk->shared->id = *ret_id;
		store_release(&rk->shared->id_ready, 1);
		if (o->rank >= 0)
			TRY_NOW(perf_id_publish(o->id_file, ret_id));
	} else if (o->rank >= 0) {
		TRY_NOW(perf_id_await(&o->launched, o->id_file, gantry_params()->connect_timeout, ret_id));
	} else {
		while (!load_acquire(&rk->shared->id_ready))
			nanosleep(&nap, NULL);
		*ret_id = rk->shared->id;
	}
	return GANTRY_OK;
}

/* Rank 0's process has the hub, which knows the missing ranks. */
static int say_waiting(void *ctx, const char *awaits)
{
	fprintf(stderr, "%s: rank 0 waits for %s\n", (const char *)ctx, awaits);
	return 1;
}

/*
 * Each forked rank keeps to its part of the CPUs, as in `perf net` and for its reasons. After the device and the
 * communicator were opened, so that they see all CPUs; the stream's thread comes later and keeps to the part too.
 */
void perf_rank_pin(struct perf_rank *rk, int on)
{
	if (!rk->opts->pin || rk->opts->threads || rk->opts->rank >= 0)
		return;
	if (!rk->all_cpus_known && sched_getaffinity(0, sizeof(rk->all_cpus), &rk->all_cpus) < 0)
		return;
	rk->all_cpus_known = 1;
	sched_setaffinity(0, sizeof(rk->all_cpus), &rk->all_cpus);
	if (on)
		perf_keep_to_part(rk->rank, rk->nranks);
}

static gantry_result open_device(struct perf_rank *rk)
{
	const struct perf_comm_opts *o = rk->opts;
	int index = o->device != GANTRY_DEVICE_HOST ? o->gpus[rk->rank % o->ngpus] : 0;

	perf_phase(rk->state, "opening the device", 0);
	TRY_NOW(gantry_device_open((enum gantry_device_kind)o->device, index, &rk->dev));
	TRY_NOW(gantry_stream_create(rk->dev, &rk->stream));
	if (rk->rank == 0) {
		snprintf(rk->shared->device, sizeof(rk->shared->device), "%s", gantry_device_name(rk->dev));
		store_release(&rk->shared->info_ready, 1);
	}
	return GANTRY_OK;
}

static gantry_result join(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	const struct perf_comm_opts *o = rk->opts;
	struct gantry_comm_config config = {.struct_size = sizeof(config),
					    .rank = rk->rank,
					    .nranks = rk->nranks,
					    .transport = o->transport,
					    .channels = o->channels};
	struct perf_announcer *announcer = NULL;
	void *box = NULL;

	TRY(open_device(rk));
	perf_phase(rk->state, "joining", 0);
	TRY(get_id(rk, &config.id));
	config.device = rk->dev;
	if (rk->rank == 0 && o->id_file)
		announcer = perf_announce_start(&config.id, say_waiting, (void *)(uintptr_t)rk->shared->op->program);
	r = gantry_comm_init(&config, &rk->comm);
	perf_announce_stop(announcer);
	if (rk->rank == 0 && o->id_file)
		perf_id_remove(o->id_file, &config.id); /* all have read it, or never will */
	TRY(r);
	perf_rank_pin(rk, 1);
	if (o->rank >= 0)
		TRY(gantry_mem_alloc(rk->dev, rk->shared->op->sample_size * (size_t)rk->nranks, &box));
	rk->box = box;
	perf_progress(rk->state);
out:
	return r;
}

gantry_result perf_rank_alloc(struct perf_rank *rk, size_t size, void **ret_ptr)
{
	*ret_ptr = NULL;
	if (!size)
		return GANTRY_OK;
	TRY_NOW(gantry_mem_alloc(rk->dev, size, ret_ptr));
	/* Page faults are not what is measured. */
	for (size_t at = 0; at < size && rk->dev->kind == GANTRY_DEVICE_HOST; at += PAGE)
		((char *)*ret_ptr)[at] = 1;
	return GANTRY_OK;
}

/* All ranks have measured. Those that a launcher started on this machine are no other processes, see perf_table.h. */
static gantry_result close_run(struct perf_rank *rk)
{
	gantry_result r = GANTRY_OK;
	const struct perf_sample *other;
	struct perf_sample *s = calloc(1, rk->shared->op->sample_size);

	perf_phase(rk->state, "closing", 0);
	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a sample");
	s->cpu_seconds = perf_load_cpu_seconds();
	s->machine = gantry_boot_id();
	TRY(perf_rank_share(rk, s));
	for (int i = 0; rk->opts->rank >= 0 && i < rk->nranks; i++) {
		other = perf_sample_of(rk, i);
		if (i != rk->rank && other->machine == s->machine)
			rk->shared->others_cpu += other->cpu_seconds;
	}
out:
	free(s);
	return r;
}

/* The communicator's reason, if it has one: it names the peer. */
static void keep_error(struct perf_rank *rk, gantry_result r)
{
	char text[256] = "";
	int who = -1;

	if (rk->comm && gantry_comm_error(rk->comm, &who, text, sizeof(text)) != GANTRY_OK && text[0])
		snprintf(rk->state->error, sizeof(rk->state->error), "%s: %s", gantry_result_name(r), text);
	else
		perf_fail(rk->state, r);
	store_release(&rk->state->error_ns, gantry_now_ns());
}

/* Half-built things too. */
static gantry_result close_all(struct perf_rank *rk)
{
	gantry_result r;
	struct gantry_comm *comm = rk->comm;

	rk->shared->op->deregister(rk);
	/* From here on the other thread finds no communicator to ask. */
	store_seq(&rk->comm, NULL);
	r = gantry_comm_destroy(comm);
	rk->shared->op->free(rk);
	if (rk->box)
		gantry_mem_free(rk->dev, rk->box);
	if (rk->stream)
		gantry_stream_destroy(rk->dev, rk->stream);
	if (rk->dev)
		gantry_device_close(rk->dev);
	return r;
}

static gantry_result whole_run(struct perf_rank *rk)
{
	TRY_NOW(join(rk));
	TRY_NOW(rk->shared->op->work(rk));
	return close_run(rk);
}

void perf_rank_init(struct perf_rank *rk, struct perf_comm_shared *sh, int rank)
{
	*rk = (struct perf_rank){
		.rank = rank, .nranks = sh->opts->ranks, .opts = sh->opts, .shared = sh, .state = &sh->states[rank]};
}

gantry_result perf_rank_run(struct perf_rank *rk)
{
	gantry_result r, end;

	gantry_set_last_error("");
	r = whole_run(rk);
	if (r != GANTRY_OK) {
		keep_error(rk, r);
		if (rk->comm)
			gantry_comm_abort(rk->comm); /* the others need not wait */
	}
	end = close_all(rk);
	if (r == GANTRY_OK && end != GANTRY_OK) {
		keep_error(rk, end);
		r = end;
	}
	return r;
}

/* Where this rank is and what the communicator says, into its state. From another thread, while the rank hangs. */
static void dump(struct perf_rank *rk)
{
	struct gantry_comm *comm = load_seq(&rk->comm);
	char text[256] = "";
	int who = -1;

	if (load_acquire(&rk->state->error_ns))
		return;
	if (!comm)
		snprintf(text, sizeof(text), "it has no communicator");
	else if (gantry_comm_error(comm, &who, text, sizeof(text)) == GANTRY_OK)
		snprintf(text, sizeof(text), "the communicator knows of no error");
	snprintf(rk->state->error, sizeof(rk->state->error), "%s", text);
	if (comm)
		gantry_comm_report(comm, stderr);
	store_release(&rk->state->error_ns, gantry_now_ns());
}

/* ---- processes ---- */

/* What the threads of a child share. */
struct team {
	char *ranks; /* n structs of op->rank_size */
	size_t stride;
	int n;
	uint32_t stop;
	struct perf_comm_shared *shared;
};

static struct perf_rank *rank_of(const struct team *t, int i)
{
	return (struct perf_rank *)(t->ranks + t->stride * (size_t)i);
}

static void *run_rank(void *arg)
{
	return (void *)(uintptr_t)(perf_rank_run(arg) != GANTRY_OK);
}

/* Sleeps, but for the moment when the parent wants to know where the ranks hang. */
static void *answer(void *arg)
{
	const struct timespec nap = {0, 50000000};
	struct team *t = arg;

	while (!load_acquire(&t->stop)) {
		if (load_acquire(&t->shared->dump)) {
			for (int i = 0; i < t->n; i++)
				dump(rank_of(t, i));
			return NULL;
		}
		nanosleep(&nap, NULL);
	}
	return NULL;
}

/* In a child with one rank: neighbours are on the same host, as launchers place them. */
static int play_host(const struct perf_comm_opts *o, int rank)
{
	char name[32];

	if (!o->hosts)
		return 0;
	snprintf(name, sizeof(name), "perf-%d", (int)((int64_t)rank * o->hosts / o->ranks));
	setenv("GANTRY_HOST_ID", name, 1);
	return gantry_params_load(1) == GANTRY_OK ? 0 : -1;
}

static int run_ranks(void *ctx, int first, int n)
{
	struct perf_comm_shared *sh = ctx;
	struct team t = {
		.ranks = calloc((size_t)n, sh->op->rank_size), .stride = sh->op->rank_size, .n = n, .shared = sh};
	pthread_t threads[PERF_RANKS_MAX], helper;
	int started = 0, failed = 0;

	for (int i = 0; t.ranks && i < n; i++)
		perf_rank_init(rank_of(&t, i), sh, first + i);
	if (!t.ranks || play_host(sh->opts, first) < 0 || pthread_create(&helper, NULL, answer, &t))
		return 1;
	/* The last rank on this thread: a process that is one rank has no thread too many. */
	for (; started < n - 1; started++)
		if (pthread_create(&threads[started], NULL, run_rank, rank_of(&t, started)))
			return 1;
	failed = run_rank(rank_of(&t, n - 1)) != NULL;
	for (int i = 0; i < started; i++) {
		void *one = NULL;

		pthread_join(threads[i], &one);
		failed |= one != NULL;
	}
	store_release(&t.stop, 1);
	pthread_join(helper, NULL);
	free(t.ranks);
	return failed;
}

/* ---- what the counters say ---- */

void perf_comm_join(char *list, size_t len, const char *names)
{
	for (size_t n; *names; names += n + (names[n] == '+')) {
		const char *p = list;

		n = strcspn(names, "+");
		while (*p && (strcspn(p, "+") != n || strncmp(p, names, n) != 0)) {
			p += strcspn(p, "+");
			p += *p == '+';
		}
		if (!*p)
			snprintf(list + strlen(list), len - strlen(list), "%s%.*s", list[0] ? "+" : "", (int)n, names);
	}
}

void perf_comm_mode_name(const struct gantry_comm_counters *c, char *buf, size_t len)
{
	/* The ones with fewer copies first. */
	static const enum gantry_mode order[] = {GANTRY_MODE_PTR, GANTRY_MODE_OFFSET, GANTRY_MODE_NORMAL};
	buf[0] = 0;
	for (int i = 0; i < GANTRY_MODES; i++)
		for (int p = 0; p < GANTRY_PROTOS; p++)
			if (c->steps[p][order[i]])
				perf_comm_join(buf, len, gantry_trace_mode_names[order[i]]);
	perf_comm_join(buf, len, c->recv_unpacked ? "unpack" : "");
	perf_comm_join(buf, len, c->recv_unpack_reduced ? "reduce" : "");
	perf_comm_join(buf, len, buf[0] ? "" : "none");
}

void perf_comm_proto_name(const struct gantry_comm_counters *c, char *buf, size_t len)
{
	buf[0] = 0;
	for (int p = 0; p < GANTRY_PROTOS; p++)
		for (int m = 0; m < GANTRY_MODES; m++)
			if (c->steps[p][m])
				perf_comm_join(buf, len, gantry_trace_proto_names[p]);
	perf_comm_join(buf, len, buf[0] ? "" : "none");
}

enum { WORDS = sizeof(struct gantry_comm_counters) / sizeof(uint64_t) };
_Static_assert(sizeof(struct gantry_comm_counters) % sizeof(uint64_t) == 0, "a size, and words");

void perf_comm_counters_add(struct gantry_comm_counters *c, const struct gantry_comm_counters *d, int sign)
{
	uint64_t a[WORDS], b[WORDS];

	memcpy(a, c, sizeof(a));
	memcpy(b, d, sizeof(b));
	for (size_t i = 1; i < WORDS; i++) /* the first is the size */
		a[i] += sign > 0 ? b[i] : -b[i];
	memcpy(c, a, sizeof(a));
}

double perf_comm_copies(uint64_t copied, uint64_t bytes)
{
	return bytes ? (double)copied / (double)bytes : NAN;
}
