/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues through which kernels of the program ask for puts and signals, and the thread that serves them with src/rma. The format of
 * gantry/kernel.h is here; gin.h has what a format is.
 *
 * Its own thread: nothing on the CPU announces what a kernel writes into a queue, and the progress engine looks at connections only while
 * they have operations. The thread looks at all queues in turn, sleeps briefly when there was nothing for a while, and ends with the
 * first error, which it makes the communicator's; kernels that wait see the stop word, or are released by what they wait for.
 *
 * Signals, counters and queues are memory that the CPU writes and the device reads, so signals cost no copies.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "comm/gin.h"
#include "inet/loop.h"
#include "net/net.h"

#define GIN_NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum {
	CONTEXTS_MOST = 64,
	DEPTH_MOST = 4096,
	WORDS_MOST = 65536,
	BARRIERS_MOST = 1024,
	SLEEP_NS = 50000,      /* of a thread that found nothing: nothing announces what kernels ask for */
	RELEASE_US = 500,      /* between two releases of kernels */
	LATCH_NS = 1800000000, /* an error whose cause is looked for is known by then (cause.c) */
};

/* What a rank offers when it opens or registers. */
struct gin_offer {
	uint32_t result;	   /* gantry_result */
	uint32_t sizes[GIN_SIZES]; /* the same on all ranks */
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
};

/* ---- the thread ---- */

static bool take_request(struct gantry_gin *k, uint32_t context, uint32_t peer, gantry_result *ret_result)
{
	const uint64_t at = (uint64_t)context * k->view.ranks + peer;
	struct gin_queue *q = &k->queues[at];
	const uint64_t slot = q->begun % k->view.depth;
	const struct rma_to to = {peer, context};
	struct rma_signal signal = {{RMA_NO_MEMORY, 0}, 0};
	struct gin_put put;
	gantry_result r;

	ASSERT(q->begun - q->over <= k->view.depth);
	if (q->begun - q->over == k->view.depth)
		return false;
	r = k->format->read(k, at, q->begun, &put);
	if (r == GANTRY_AGAIN)
		return false;
	if (r == GANTRY_OK && put.signal != GANTRY_GIN_NONE)
		signal = (struct rma_signal){{GIN_SIGNAL_MEMORY, 8 * (uint64_t)put.signal}, put.add};
	if (r == GANTRY_OK)
		r = rma_put(k->rma, to, put.from, put.at, put.bytes, &signal, &q->requests[slot]);
	if (r == GANTRY_OK)
		q->counters[slot] = put.counter;
	q->begun += r == GANTRY_OK;
	*ret_result = r;
	return r == GANTRY_OK;
}

static bool end_request(struct gantry_gin *k, struct gin_queue *q, gantry_result *ret_result)
{
	uint32_t counter;
	int done = 0;

	if (q->over == q->begun)
		return false;
	*ret_result = rma_look(q->requests[q->over % k->view.depth], &done);
	if (*ret_result != GANTRY_OK || !done)
		return false;
	counter = q->counters[q->over % k->view.depth];
	if (counter < k->view.counters)
		store_release(&k->counter[counter], load_relaxed(&k->counter[counter]) + 1);
	q->over++;
	return true;
}

/* Kernels poll the number over the bus: so it is stored once. */
static bool end_requests(struct gantry_gin *k, uint64_t at, gantry_result *ret_result)
{
	struct gin_queue *q = &k->queues[at];
	bool moved = false;

	while (end_request(k, q, ret_result))
		moved = true;
	if (moved)
		k->format->done(k, at, q->over);
	return moved;
}

/* true: something moved. */
static bool serve_all(struct gantry_gin *k, gantry_result *ret_result)
{
	bool moved = false;

	for (uint32_t context = 0; context < k->view.contexts; context++)
		for (uint32_t peer = 0; peer < k->view.ranks; peer++) {
			moved |= end_requests(k, (uint64_t)context * k->view.ranks + peer, ret_result);
			while (*ret_result == GANTRY_OK && take_request(k, context, peer, ret_result))
				moved = true;
			if (*ret_result != GANTRY_OK)
				return moved;
		}
	*ret_result = rma_progress(k->rma);
	if (k->moves != rma_moves(k->rma))
		moved = true;
	k->moves = rma_moves(k->rma);
	return moved;
}

/*
 * All that kernels have asked for is over here. A kernel that was ended by force may have taken a place and asked for nothing: when
 * nothing else is under way, and has not been for `idle` ns, that is given up.
 */
static bool is_drained(const struct gantry_gin *k, uint64_t idle)
{
	bool holes;

	for (size_t i = 0; i < (size_t)k->view.contexts * k->view.ranks; i++)
		if (k->queues[i].begun != k->queues[i].over)
			return false;
	holes = k->format->has_holes && k->format->has_holes(k);
	if (holes && idle >= gantry_params()->timeout)
		LOG_WARN(COMM, "rank %d: gantry_gin_close: a kernel ended while it was writing a request",
			 k->comm->rank);
	return !holes || idle >= gantry_params()->timeout;
}

/* A program whose kernel ends asks for the error: so it is there before kernels are released. Ends with the queues, or at
 * `gone`. */
static void release_kernels(struct gantry_gin *k)
{
	const uint64_t begin = gantry_now_ns();
	uint64_t gone = 0;

	while (!load_acquire(&k->comm->error_seen) && gantry_now_ns() - begin < LATCH_NS && !load_seq(&k->ends))
		usleep(RELEASE_US);
	ASSERT(k->format->free && !load_seq(&k->releases));
	store_seq(&k->releases, 1);
	do {
		if (!k->format->release(k))
			usleep(RELEASE_US);
		gone = load_seq(&k->gone);
	} while (!load_seq(&k->ends) && (!gone || gantry_now_ns() < gone));
	if (!gone)
		return;
	k->format->free(k, true);
	free(k);
}

/* After a pass that moved nothing; `ends` and `asked` are from before it. true: the queues close, and nothing is left. */
static bool answer_idle(struct gantry_gin *k, uint32_t ends, uint32_t asked, uint64_t *idle_since)
{
	if (!ends && asked == k->answered)
		return false;
	if (ends && !*idle_since)
		*idle_since = gantry_now_ns();
	if (!is_drained(k, ends ? gantry_now_ns() - *idle_since : 0))
		return false;
	store_seq(&k->answered, asked);
	return ends != 0;
}

/* A rank that has left at the end is no error. */
static void end_service(struct gantry_gin *k, gantry_result r)
{
	const char *text = "";
	int rank = -1;

	if (r != GANTRY_OK && !load_acquire(&k->comm->closing)) {
		if (rma_error(k->rma, &rank, &text) == GANTRY_OK)
			text = gantry_last_error(); /* a request of this rank's own */
		comm_suspect(k->comm, r, rank < 0 ? k->comm->rank : rank, text);
	}
	if (k->format->stop)
		store_seq(k->format->stop(k), 1);
	else if (!load_seq(&k->ends))
		release_kernels(k);
}

static void *serve_main(void *arg)
{
	struct gantry_gin *k = arg;
	gantry_result r = GANTRY_OK;
	struct gantry_waiter wait;
	uint64_t idle_since = 0; /* while it closes */
	uint32_t ends, asked;

	gantry_waiter_init(&wait, NULL);
	if (k->comm->device->sleeps)
		wait.spin = 0; /* kernels are CPU threads, which may need this CPU to go on */
	while (r == GANTRY_OK && !load_seq(&k->comm->life.stop)) {
		ends = load_seq(&k->ends); /* then what kernels have asked for before it is in the queues */
		asked = load_seq(&k->asked);
		if (serve_all(k, &r)) {
			gantry_waiter_done(&wait);
			idle_since = 0;
			continue;
		}
		if (answer_idle(k, ends, asked, &idle_since))
			break;
		if (r == GANTRY_OK)
			gantry_waiter_idle(&wait, SLEEP_NS);
	}
	gantry_waiter_done(&wait);
	end_service(k, r);
	return NULL;
}

/* ---- the format of gantry/kernel.h ---- */

enum { DATA_MEMORY = GIN_SIGNAL_MEMORY + 1, CARRIED_MOST = 4096, DATA_BYTES = 16 << 20 };

struct own_queues {
	struct gantry_gin gin;
	struct gantry_gin_request *queue;
	uint64_t *done;
	char *data;
	uint32_t *stop;
	/* Owned, of the device: what kernels add to and read, which is slow in host memory (1.1 us instead of 0.04 on an H200). */
	uint64_t *taken;  /* [queue], then as many of view.seen, then view.memory */
	uint64_t *copied; /* owned: what taken was, on the host */
};

static struct own_queues *own_of(const struct gantry_gin *k)
{
	return (struct own_queues *)(uintptr_t)k;
}

static gantry_result read_own(struct gantry_gin *k, uint64_t at, uint64_t number, struct gin_put *ret_put)
{
	const uint64_t place = at * k->view.depth + number % k->view.depth, *words = own_of(k)->queue[place].words;
	bool carried;

	if (load_acquire(&words[7]) != number + 1)
		return GANTRY_AGAIN;
	carried = (uint32_t)words[3] == GANTRY_GIN_CARRIED;
	if (carried && words[0] > k->view.carried)
		FAIL_NOW(GANTRY_ERR_USAGE, "a kernel put %llu bytes with its request; at most %u",
			 (unsigned long long)words[0], k->view.carried);
	*ret_put = (struct gin_put){.from = carried ? (struct rma_place){DATA_MEMORY, place * k->view.carried}
						    : (struct rma_place){(uint32_t)words[3], words[1]},
				    .at = {(uint32_t)(words[3] >> 32), words[2]},
				    .bytes = words[0],
				    .signal = (uint32_t)words[4],
				    .counter = (uint32_t)(words[4] >> 32),
				    .add = words[5]};
	return GANTRY_OK;
}

static void done_own(struct gantry_gin *k, uint64_t at, uint64_t over)
{
	store_release(&own_of(k)->done[at], over);
}

static size_t queues_in(const struct gantry_gin_view *v)
{
	return (size_t)v->contexts * v->ranks;
}

static bool own_has_holes(const struct gantry_gin *k)
{
	struct own_queues *own = own_of(k);
	struct gantry_device *d = k->comm->device;
	const size_t n = queues_in(&k->view);

	if (d->ops->copy(d, own->copied, own->taken, n * sizeof(*own->taken)) != GANTRY_OK)
		return false; /* the device has failed, and its kernels with it */
	for (size_t i = 0; i < n; i++)
		if (own->copied[i] != k->queues[i].over)
			return true;
	return false;
}

static uint32_t *own_stop(const struct gantry_gin *k)
{
	return own_of(k)->stop;
}

static uint32_t choose_carried(const struct gantry_gin_view *v)
{
	uint32_t bytes = CARRIED_MOST;

	while (bytes > GANTRY_GIN_FEW && queues_in(v) * v->depth * bytes > DATA_BYTES)
		bytes /= 2;
	return bytes;
}

static gantry_result choose_own(struct gantry_gin *k, const void *arg)
{
	const struct gantry_gin_config *config = arg;
	struct gantry_gin_config c = {0};
	struct gantry_gin_view *v = &k->view;

	if (config && config->struct_size != sizeof(c))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_open: config.struct_size is %u, expected %zu",
			 config->struct_size, sizeof(c));
	if (config)
		c = *config;
	v->contexts = c.contexts ? c.contexts : 1;
	v->depth = c.depth ? c.depth : 64;
	v->signals = c.signals ? c.signals : 64;
	v->counters = c.counters ? c.counters : 64;
	v->barriers = c.barriers ? c.barriers : 16;
	if (v->contexts > CONTEXTS_MOST || v->depth > DEPTH_MOST || v->depth & (v->depth - 1) ||
	    v->signals > WORDS_MOST || v->counters > WORDS_MOST || v->barriers > BARRIERS_MOST)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "gantry_gin_open: at most %d contexts, %d signals, %d counters, %d barriers, and a depth "
			 "that is a "
			 "power of two up to %d",
			 CONTEXTS_MOST, WORDS_MOST, WORDS_MOST, BARRIERS_MOST, DEPTH_MOST);
	v->carried = choose_carried(v);
	return GANTRY_OK;
}

/* Those that kernels name, then those of barriers: [barrier][rank]. */
static size_t signals_of(const struct gantry_gin_view *v)
{
	return v->signals + (size_t)v->barriers * v->ranks;
}

static gantry_result make_device_half(struct own_queues *own)
{
	struct gantry_device *d = own->gin.comm->device;
	struct gantry_gin_view *v = &own->gin.view;
	const size_t n = queues_in(v);
	void *p = NULL;

	own->copied = calloc(n, sizeof(*own->copied));
	if (!own->copied)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the queues of %u ranks", v->ranks);
	TRY_NOW(d->ops->alloc(d, 2 * n * sizeof(uint64_t) + 2 * GANTRY_GIN_MEMORIES * sizeof(*v->memory), &p));
	own->taken = v->taken = p;
	v->seen = v->taken + n;
	v->memory = (const char *const *)(v->seen + n);
	return GANTRY_OK;
}

/* One block, in which the CPU writes and kernels read and write; nothing of it is far from either. */
static gantry_result make_own(struct gantry_gin *k)
{
	struct own_queues *own = own_of(k);
	struct gantry_device *d = k->comm->device;
	struct gantry_gin_view *v = &k->view;
	const size_t n = queues_in(v), words = n + signals_of(v) + v->counters + v->barriers + 16;
	const size_t queues = n * v->depth * sizeof(*own->queue), data = n * v->depth * v->carried;
	void *host = NULL, *dev = NULL;
	uint64_t *at_host, *at_dev;

	TRY_NOW(d->ops->alloc_mapped(d, data + queues + words * sizeof(uint64_t), &host, &dev));
	k->block = host;
	memset(host, 0, data + queues + words * sizeof(uint64_t));
	own->data = host;
	v->data = dev;
	own->queue = (void *)(own->data + data);
	v->queue = (void *)(v->data + data);
	at_host = (uint64_t *)(void *)((char *)own->queue + queues);
	at_dev = (uint64_t *)(void *)((char *)v->queue + queues);
	own->stop = (uint32_t *)at_host;
	v->stop = (uint32_t *)at_dev;
	v->done = at_dev += 16;
	own->done = at_host += 16;
	k->signal = own->done + n;
	v->signal = at_dev + n;
	k->counter = k->signal + signals_of(v);
	v->counter = v->signal + signals_of(v);
	v->epoch = v->signal + signals_of(v) + v->counters;
	return make_device_half(own);
}

static gantry_result add_data(struct gantry_gin *k)
{
	const size_t size = queues_in(&k->view) * k->view.depth * k->view.carried;
	uint32_t number;

	TRY_NOW(rma_register(k->rma, own_of(k)->data, size, RMA_HOST, &number));
	ASSERT(number == DATA_MEMORY);
	return GANTRY_OK;
}

static void free_own(struct gantry_gin *k, bool kernels)
{
	struct own_queues *own = own_of(k);

	free(own->copied);
	if (!kernels)
		k->comm->device->ops->free(k->comm->device, own->taken);
}

/* Where memory lies, for kernels. size 0: it is not registered any more. What they cannot read stays NULL. */
static gantry_result show_memory(struct gantry_gin *k, uint32_t number, char *ptr, size_t size)
{
	struct gantry_device *d = k->comm->device;
	struct gantry_mem_info info = {0};
	const char *entry[2] = {NULL, NULL};

	if (!k->view.memory || number >= GANTRY_GIN_MEMORIES) /* NCCL's format has no such table */
		return GANTRY_OK;
	if (size && !gantry_traits(d)->cpu_reads_memory) {
		TRY_NOW(d->ops->pointer(d, ptr, &info));
		ptr = info.kind == GANTRY_MEM_DEVICE ? info.device_ptr : NULL; /* NULL: of another GPU */
	}
	if (size && ptr) {
		entry[0] = ptr;
		entry[1] = ptr + size;
	}
	return d->ops->copy(d, (void *)(uintptr_t)&k->view.memory[2 * number], entry, sizeof(entry));
}

/* The number names no memory any more, neither for kernels nor for other ranks. */
static gantry_result forget_memory(struct gantry_gin *k, uint32_t number)
{
	const gantry_result shown = show_memory(k, number, NULL, 0), r = rma_deregister(k->rma, number);

	return r == GANTRY_OK ? shown : r;
}

static const struct gin_format own_format = {.opens = "gantry_gin_open",
					     .closes = "gantry_gin_close",
					     .size = sizeof(struct own_queues),
					     .choose = choose_own,
					     .make = make_own,
					     .add_own = add_data,
					     .free = free_own,
					     .read = read_own,
					     .done = done_own,
					     .has_holes = own_has_holes,
					     .stop = own_stop};

/* ---- opening ---- */

static gantry_result make_queues(struct gantry_gin *k)
{
	const size_t n = (size_t)k->view.contexts * k->view.ranks;

	k->queues = calloc(n, sizeof(*k->queues));
	if (!k->queues)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the queues of %u ranks", k->view.ranks);
	for (size_t i = 0; i < n; i++) {
		k->queues[i].requests = calloc(k->view.depth, sizeof(*k->queues[i].requests));
		k->queues[i].counters = calloc(k->view.depth, sizeof(*k->queues[i].counters));
		if (!k->queues[i].requests || !k->queues[i].counters)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the queues of %u ranks", k->view.ranks);
	}
	return GANTRY_OK;
}

/* Whatever fails on one rank fails on all; on that rank with its own error. */
static gantry_result exchange_offers(struct gantry_comm *comm, const char *what, const struct gin_offer *mine,
				     struct gin_offer *all)
{
	char why[256];

	snprintf(why, sizeof(why), "%s", gantry_last_error());
	TRY_NOW(gantry_ctl_allgather(comm->ctl, mine, sizeof(*mine), all));
	if (mine->result != GANTRY_OK)
		gantry_set_last_error(why);
	for (int i = 0; i < comm->nranks && mine->result == GANTRY_OK; i++)
		if (all[i].result != GANTRY_OK)
			FAIL_NOW(all[i].result < GANTRY_RESULT_COUNT ? (gantry_result)all[i].result
								     : GANTRY_ERR_PROTOCOL,
				 "%s failed on rank %d (%s): %s", what, i, comm->infos[i].host_name,
				 gantry_result_text((gantry_result)all[i].result));
	for (int i = 0; i < comm->nranks && mine->result == GANTRY_OK; i++)
		if (memcmp(all[i].sizes, mine->sizes, sizeof(mine->sizes)) != 0)
			FAIL_NOW(GANTRY_ERR_USAGE, "%s: rank %d and rank %d have different sizes", what, comm->rank, i);
	return (gantry_result)mine->result;
}

static gantry_result listen_for(struct gantry_gin *k, const void *config, void **ret_listen, struct gin_offer *mine)
{
	/* Receives wait for messages at all times: ranks that close at the end are no error. */
	const struct gantry_net_config net = {
		.traffic_class = GANTRY_NET_UNDEF, .links = 1, .standing_receives = 1, .device = k->comm->device};

	TRY_NOW(k->format->choose(k, config));
	memcpy(mine->sizes, &k->view.contexts, sizeof(mine->sizes));
	TRY_NOW(k->format->make(k));
	TRY_NOW(make_queues(k));
	TRY_NOW(GIN_NET(init, 0, &net, &k->ctx));
	return GIN_NET(listen, k->ctx, 0, mine->handle, ret_listen);
}

static gantry_result connect_queues(struct gantry_gin *k, void *listen)
{
	struct gantry_comm *comm = k->comm;
	gantry_result r = GANTRY_OK;
	struct rma_config config = {.ctx = k->ctx,
				    .listen = listen,
				    .ranks = (uint32_t)comm->nranks,
				    .rank = (uint32_t)comm->rank,
				    .timeout = gantry_params()->connect_timeout,
				    .stop = &comm->life.stop,
				    .device = comm->device};
	const void **handles = calloc((size_t)comm->nranks, sizeof(*handles));
	uint32_t number;

	if (!handles)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	for (int i = 0; i < comm->nranks; i++)
		handles[i] = k->offers[i].handle;
	config.handles = handles;
	TRY(rma_open(&config, &k->rma));
	TRY(rma_register(k->rma, k->signal, signals_of(&k->view) * sizeof(uint64_t), RMA_HOST, &number));
	ASSERT(number == GIN_SIGNAL_MEMORY);
	if (k->format->add_own)
		TRY(k->format->add_own(k));
	TRY(gantry_thread_start("gantry-kernels", serve_main, k, &k->thread));
	k->has_thread = true;
out:
	free(handles);
	return r;
}

/* What only the thread and its requests need. */
static void close_network(struct gantry_gin *k)
{
	rma_close(k->rma);
	if (k->ctx)
		GIN_NET(finalize, k->ctx);
	for (size_t i = 0; k->queues && i < (size_t)k->view.contexts * k->view.ranks; i++) {
		free(k->queues[i].requests);
		free(k->queues[i].counters);
	}
	free(k->queues);
	free(k->offers);
	k->queues = NULL;
}

/* kernels_run: the memory that they look at stays. */
static void free_queues(struct gantry_gin *k, bool kernels_run)
{
	struct gantry_device *d = k->comm->device;

	store_seq(&k->ends, 1);
	if (k->has_thread)
		pthread_join(k->thread, NULL);
	close_network(k);
	if (k->format->free)
		k->format->free(k, kernels_run);
	if (k->block && !kernels_run)
		d->ops->free_mapped(d, k->block);
}

static gantry_result open_queues(struct gantry_gin *k, const void *config)
{
	gantry_result r;
	struct gin_offer mine = {0};
	void *listen = NULL;

	mine.result = listen_for(k, config, &listen, &mine);
	TRY(exchange_offers(k->comm, k->format->opens, &mine, k->offers));
	mine.result = connect_queues(k, listen);
	TRY(exchange_offers(k->comm, k->format->opens, &mine, k->offers)); /* all are registered before the first put */
out:
	if (listen)
		GIN_NET(close_listen, listen);
	return r;
}

gantry_result comm_gin_open(struct gantry_comm *comm, const struct gin_format *format, const void *config,
			    struct gantry_gin **ret_gin)
{
	gantry_result r = GANTRY_OK;
	struct gantry_gin *k = calloc(1, format->size);

	ASSERT(format->size >= sizeof(*k) && !format->release == !!format->stop);
	if (!k)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the queues of kernels");
	gantry_list_init(&k->node);
	k->comm = comm;
	k->format = format;
	k->view.rank = (uint32_t)comm->rank;
	k->view.ranks = (uint32_t)comm->nranks;
	k->offers = calloc((size_t)comm->nranks, sizeof(*k->offers));
	if (!k->offers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the queues of kernels");
	TRY(open_queues(k, config));
	gantry_list_append(&comm->gins, &k->node);
	*ret_gin = k;
	k = NULL;
out:
	if (k)
		free_queues(k, false);
	free(k);
	return r;
}

gantry_result gantry_gin_open(struct gantry_comm *comm, const struct gantry_gin_config *config,
			      struct gantry_gin **ret_queues)
{
	if (!comm || !ret_queues)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_open: comm or ret_queues is NULL");
	TRY_NOW(comm_ready(comm, "gantry_gin_open"));
	return comm_gin_open(comm, &own_format, config, ret_queues);
}

void gantry_gin_close(struct gantry_gin *k)
{
	if (!k || (k->comm && inet_forked(k->comm->life.forks))) /* its thread is in another process */
		return;
	if (k->comm) {
		gantry_list_remove(&k->node);
		free_queues(k, false);
	}
	free(k);
}

/* Kernels that cannot look at a word may still wait, with nothing that says when they have ended. The thread goes on to release
 * them for a while, and what they look at is not freed. */
static void let_go(struct gantry_gin *k)
{
	ASSERT(k->has_thread && k->format->release);
	while (!load_seq(&k->releases))
		usleep(RELEASE_US);
	close_network(k);
	pthread_detach(k->thread);
	store_seq(&k->gone, gantry_now_ns() + gantry_params()->timeout); /* the thread's from here on */
}

void comm_gin_stop(struct gantry_comm *comm)
{
	gantry_list_each_entry_safe (k, &comm->gins, struct gantry_gin, node) {
		const bool own = k->format == &own_format, kernels = k->users && comm_check(comm) != GANTRY_OK;

		gantry_list_remove(&k->node);
		if (own || kernels)
			LOG_WARN(COMM, "rank %d: the communicator ends before %s, so its kernels' queues are not freed",
				 comm->rank, k->format->closes);
		if (kernels) {
			let_go(k);
			continue;
		}
		free_queues(k, own);
		k->comm = NULL;
		if (!own) /* else gantry_gin_close does */
			free(k);
	}
}

gantry_result comm_gin_flush(struct gantry_comm *comm)
{
	const uint64_t begin = gantry_now_ns();
	struct gantry_waiter wait;

	gantry_waiter_init(&wait, NULL);
	gantry_list_each_entry (k, &comm->gins, struct gantry_gin, node) {
		const uint32_t asked = load_seq(&k->asked) + 1;

		ASSERT(k->has_thread && !load_seq(&k->ends));
		if (k->format == &own_format) /* closed by the program, which knows when its kernels have ended */
			continue;
		store_seq(&k->asked, asked);
		while (load_seq(&k->answered) != asked) {
			TRY_NOW(comm_check(comm));
			if (gantry_now_ns() - begin > gantry_params()->timeout)
				FAIL_NOW(GANTRY_ERR_TIMEOUT, "what kernels have put did not leave");
			gantry_waiter_idle(&wait, SLEEP_NS);
		}
	}
	return GANTRY_OK;
}

/* ---- calls ---- */

static gantry_result register_memory(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory)
{
	struct gantry_device *d = k->comm->device;
	struct gantry_mem_info info = {0};

	TRY_NOW(d->ops->pointer(d, ptr, &info));
	return rma_register(k->rma, ptr, size, info.kind == GANTRY_MEM_DEVICE ? RMA_DEVICE : RMA_HOST, ret_memory);
}

gantry_result comm_gin_add(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory)
{
	gantry_result r = GANTRY_OK;

	if (size)
		r = register_memory(k, ptr, size, ret_memory);
	if (r != GANTRY_OK || !size)
		rma_register_nothing(k->rma, ret_memory); /* numbers stay the same on all ranks */
	return r;
}

gantry_result comm_gin_agree(struct gantry_comm *comm, const char *what, gantry_result mine,
			     const uint32_t sizes[GIN_SIZES])
{
	struct gin_offer offer = {.result = mine}, *all = calloc((size_t)comm->nranks, sizeof(*all));
	gantry_result r;

	if (!all)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	memcpy(offer.sizes, sizes, sizeof(offer.sizes));
	r = exchange_offers(comm, what, &offer, all);
	free(all);
	return r;
}

static gantry_result check_open(const struct gantry_gin *k, const char *what)
{
	if (!k)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: queues is NULL", what);
	if (!k->comm)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: the communicator has ended", what);
	if (inet_forked(k->comm->life.forks)) /* what kernels look at is shared with the parent */
		return inet_refuse_forked(what);
	return GANTRY_OK;
}

static gantry_result register_mine(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory)
{
	gantry_result r;

	if (!ptr || !size) {
		rma_register_nothing(k->rma, ret_memory);
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_register: invalid buffer (%zu bytes at %p)", size, ptr);
	}
	TRY_NOW(comm_gin_add(k, ptr, size, ret_memory));
	r = show_memory(k, *ret_memory, ptr, size);
	if (r != GANTRY_OK)
		rma_deregister(k->rma, *ret_memory);
	return r;
}

gantry_result gantry_gin_register(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory)
{
	struct gin_offer mine = {0};
	gantry_result r;

	TRY_NOW(check_open(k, "gantry_gin_register"));
	if (!ret_memory)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_register: ret_memory is NULL");
	TRY_NOW(comm_ready(k->comm, "gantry_gin_register"));
	mine.result = register_mine(k, ptr, size, &mine.sizes[0]);
	r = exchange_offers(k->comm, "gantry_gin_register", &mine, k->offers);
	if (r == GANTRY_OK)
		*ret_memory = mine.sizes[0];
	else if (mine.result == GANTRY_OK)
		forget_memory(k, mine.sizes[0]);
	return r;
}

gantry_result gantry_gin_deregister(struct gantry_gin *k, uint32_t memory)
{
	TRY_NOW(check_open(k, "gantry_gin_deregister"));
	if (memory <= DATA_MEMORY)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_deregister: memory %u is not registered", memory);
	return forget_memory(k, memory);
}

gantry_result gantry_gin_view(const struct gantry_gin *k, struct gantry_gin_view *ret_view)
{
	TRY_NOW(check_open(k, "gantry_gin_view"));
	if (!ret_view)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_view: ret_view is NULL");
	*ret_view = k->view;
	return GANTRY_OK;
}
