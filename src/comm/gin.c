/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues through which kernels of the program ask for puts and signals (gantry/kernel.h), and the thread that serves them with src/rma.
 *
 * Its own thread: nothing on the CPU announces what a kernel writes into a queue, and the progress engine looks at connections only while
 * they have operations. The thread looks at all queues in turn, sleeps briefly when there was nothing for a while, and ends with the
 * first error, which it makes the communicator's; kernels that wait see the stop word.
 *
 * Signals, counters and queues are memory that the CPU writes and the device reads, so signals cost no copies.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "gantry/kernel.h"
#include "inet/loop.h"
#include "net/net.h"
#include "rma/rma.h"

#define GIN_NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum {
	CONTEXTS_MOST = 64,
	DEPTH_MOST = 4096,
	WORDS_MOST = 65536,
	BARRIERS_MOST = 1024,
	SIGNAL_MEMORY = 1, /* the first registration */
	SLEEP_NS = 50000,  /* of a thread that found nothing: nothing announces what kernels ask for */
};

/* What is under way of one queue. */
struct gin_queue {
	struct rma_request **requests; /* by number % depth */
	uint64_t begun, over;
};

/* What a rank offers when it opens or registers. */
struct gin_offer {
	uint32_t result;   /* gantry_result */
	uint32_t sizes[6]; /* the same on all ranks */
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
};

struct gantry_gin {
	struct gantry_list node;     /* of the communicator */
	struct gantry_comm *comm;    /* borrowed; NULL: it has ended, and all but this struct with it */
	struct gantry_gin_view view; /* with the device's pointers */
	void *block;		     /* owned: mapped memory of all below */
	struct gantry_gin_request *queue;
	uint64_t *taken, *done, *counter, *signal;
	uint32_t *stop;
	struct gin_queue *queues; /* owned: [context][rank] */
	struct gin_offer *offers; /* owned: of all ranks */
	struct rma_comm *rma;	  /* owned */
	uint64_t moves;		  /* of the former, when the thread last looked */
	void *ctx;		  /* owned: the network's */
	pthread_t thread;
	bool has_thread;
	uint32_t ends; /* seq: close has been called */
};

/* ---- the thread ---- */

static bool take_request(struct gantry_gin *k, uint32_t context, uint32_t peer, gantry_result *ret_result)
{
	const uint64_t at = (uint64_t)context * k->view.ranks + peer;
	struct gin_queue *q = &k->queues[at];
	const uint64_t *words = k->queue[at * k->view.depth + q->begun % k->view.depth].words;
	const struct rma_to to = {peer, context};
	struct rma_signal signal = {{RMA_NO_MEMORY, 0}, 0};
	struct rma_place from, there;

	if (q->begun - q->over == k->view.depth || load_acquire(&words[7]) != q->begun + 1)
		return false;
	if ((uint32_t)words[4] != GANTRY_GIN_NONE)
		signal = (struct rma_signal){{SIGNAL_MEMORY, 8 * (words[4] & UINT32_MAX)}, words[5]};
	from = (struct rma_place){(uint32_t)words[3], words[1]};
	there = (struct rma_place){(uint32_t)(words[3] >> 32), words[2]};
	*ret_result = rma_put(k->rma, to, from, there, words[0], &signal, &q->requests[q->begun % k->view.depth]);
	q->begun += *ret_result == GANTRY_OK;
	return *ret_result == GANTRY_OK;
}

static bool end_request(struct gantry_gin *k, uint64_t at, gantry_result *ret_result)
{
	struct gin_queue *q = &k->queues[at];
	const uint64_t *words = k->queue[at * k->view.depth + q->over % k->view.depth].words;
	uint32_t counter;
	int done = 0;

	if (q->over == q->begun)
		return false;
	*ret_result = rma_test(q->requests[q->over % k->view.depth], &done);
	if (*ret_result != GANTRY_OK || !done)
		return false;
	counter = (uint32_t)(words[4] >> 32);
	if (counter < k->view.counters)
		store_release(&k->counter[counter], k->counter[counter] + 1);
	store_release(&k->done[at], ++q->over);
	return true;
}

/* true: something moved. */
static bool serve_all(struct gantry_gin *k, gantry_result *ret_result)
{
	bool moved = false;

	for (uint32_t context = 0; context < k->view.contexts; context++)
		for (uint32_t peer = 0; peer < k->view.ranks; peer++) {
			while (end_request(k, (uint64_t)context * k->view.ranks + peer, ret_result))
				moved = true;
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
	bool holes = false;

	for (size_t i = 0; i < (size_t)k->view.contexts * k->view.ranks; i++) {
		if (k->queues[i].begun != k->queues[i].over)
			return false;
		holes |= load_acquire(&k->taken[i]) != k->queues[i].over;
	}
	if (holes && idle >= gantry_params()->timeout)
		LOG_WARN(COMM, "rank %d: gantry_gin_close: a kernel ended while it was writing a request",
			 k->comm->rank);
	return !holes || idle >= gantry_params()->timeout;
}

static void *serve_main(void *arg)
{
	struct gantry_gin *k = arg;
	gantry_result r = GANTRY_OK;
	struct gantry_waiter wait;
	const char *text = "";
	uint64_t idle_since = 0; /* while it closes */
	uint32_t ends;
	int rank = -1;

	gantry_waiter_init(&wait, NULL);
	if (k->comm->device->sleeps)
		wait.spin = 0; /* kernels are CPU threads, which may need this CPU to go on */
	while (r == GANTRY_OK && !load_seq(&k->comm->life.stop)) {
		ends = load_seq(&k->ends); /* then what kernels have asked for before it is in the queues */
		if (serve_all(k, &r)) {
			gantry_waiter_done(&wait);
			idle_since = 0;
			continue;
		}
		if (ends && !idle_since)
			idle_since = gantry_now_ns();
		if (ends && is_drained(k, gantry_now_ns() - idle_since))
			break;
		if (r == GANTRY_OK)
			gantry_waiter_idle(&wait, SLEEP_NS);
	}
	gantry_waiter_done(&wait);
	if (r != GANTRY_OK) {
		if (rma_error(k->rma, &rank, &text) == GANTRY_OK)
			text = gantry_last_error(); /* a request of this rank's own */
		comm_suspect(k->comm, r, rank < 0 ? k->comm->rank : rank, text);
	}
	store_seq(k->stop, 1);
	return NULL;
}

/* ---- opening ---- */

static gantry_result choose_sizes(const struct gantry_gin_config *config, struct gantry_gin_view *v)
{
	struct gantry_gin_config c = {0};

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
	return GANTRY_OK;
}

/* Those that kernels name, then those of barriers: [barrier][rank]. */
static size_t signals_of(const struct gantry_gin_view *v)
{
	return v->signals + (size_t)v->barriers * v->ranks;
}

/* One block, in which the CPU writes and kernels read and write; nothing of it is far from either. */
static gantry_result make_block(struct gantry_gin *k)
{
	struct gantry_device *d = k->comm->device;
	struct gantry_gin_view *v = &k->view;
	const size_t n = (size_t)v->contexts * v->ranks, words = n * 2 + signals_of(v) + v->counters + v->barriers;
	const size_t queues = n * v->depth * sizeof(*k->queue);
	void *host = NULL, *dev = NULL;
	uint64_t *at_host, *at_dev;

	TRY_NOW(d->ops->alloc_mapped(d, queues + (words + 16) * sizeof(uint64_t), &host, &dev));
	k->block = host;
	memset(host, 0, queues + (words + 16) * sizeof(uint64_t));
	k->queue = host;
	v->queue = dev;
	at_host = (uint64_t *)((char *)host + queues);
	at_dev = (uint64_t *)((char *)dev + queues);
	k->stop = (uint32_t *)at_host;
	v->stop = (uint32_t *)at_dev;
	v->taken = at_dev += 16;
	k->taken = at_host += 16;
	k->done = k->taken + n;
	v->done = at_dev + n;
	k->signal = k->done + n;
	v->signal = at_dev + 2 * n;
	k->counter = k->signal + signals_of(v);
	v->counter = v->signal + signals_of(v);
	v->epoch = v->signal + signals_of(v) + v->counters;
	return GANTRY_OK;
}

static gantry_result make_queues(struct gantry_gin *k)
{
	const size_t n = (size_t)k->view.contexts * k->view.ranks;

	k->queues = calloc(n, sizeof(*k->queues));
	if (!k->queues)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the queues of %u ranks", k->view.ranks);
	for (size_t i = 0; i < n; i++) {
		k->queues[i].requests = calloc(k->view.depth, sizeof(*k->queues[i].requests));
		if (!k->queues[i].requests)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the queues of %u ranks", k->view.ranks);
	}
	return GANTRY_OK;
}

/* Whatever fails on one rank fails on all; on that rank with its own error. */
static gantry_result exchange_offers(struct gantry_gin *k, const char *what, const struct gin_offer *mine)
{
	struct gantry_comm *comm = k->comm;
	const struct gin_offer *all = k->offers;
	char why[256];

	snprintf(why, sizeof(why), "%s", gantry_last_error());
	TRY_NOW(gantry_ctl_allgather(comm->ctl, mine, sizeof(*mine), k->offers));
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

static gantry_result listen_for(struct gantry_gin *k, const struct gantry_gin_config *config, void **ret_listen,
				struct gin_offer *mine)
{
	/* Receives wait for messages at all times: ranks that close at the end are no error. */
	const struct gantry_net_config net = {
		.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1, .device = k->comm->device};

	TRY_NOW(choose_sizes(config, &k->view));
	memcpy(mine->sizes, &k->view.contexts, sizeof(mine->sizes));
	TRY_NOW(make_block(k));
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
	ASSERT(number == SIGNAL_MEMORY);
	TRY(gantry_thread_start("gantry-kernels", serve_main, k, &k->thread));
	k->has_thread = true;
out:
	free(handles);
	return r;
}

/* kernels_run: the memory that they look at stays. */
static void free_queues(struct gantry_gin *k, bool kernels_run)
{
	struct gantry_device *d = k->comm->device;

	store_seq(&k->ends, 1);
	if (k->has_thread)
		pthread_join(k->thread, NULL);
	rma_close(k->rma);
	if (k->ctx)
		GIN_NET(finalize, k->ctx);
	for (size_t i = 0; k->queues && i < (size_t)k->view.contexts * k->view.ranks; i++)
		free(k->queues[i].requests);
	free(k->queues);
	free(k->offers);
	if (k->block && !kernels_run)
		d->ops->free_mapped(d, k->block);
}

static gantry_result open_queues(struct gantry_gin *k, const struct gantry_gin_config *config)
{
	gantry_result r;
	struct gin_offer mine = {0};
	void *listen = NULL;

	mine.result = listen_for(k, config, &listen, &mine);
	TRY(exchange_offers(k, "gantry_gin_open", &mine));
	mine.result = connect_queues(k, listen);
	TRY(exchange_offers(k, "gantry_gin_open", &mine)); /* all are registered before the first put */
out:
	if (listen)
		GIN_NET(close_listen, listen);
	return r;
}

gantry_result gantry_gin_open(struct gantry_comm *comm, const struct gantry_gin_config *config,
			      struct gantry_gin **ret_queues)
{
	gantry_result r = GANTRY_OK;
	struct gantry_gin *k = NULL;

	if (!comm || !ret_queues)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_open: comm or ret_queues is NULL");
	TRY_NOW(comm_ready(comm, "gantry_gin_open"));
	k = calloc(1, sizeof(*k));
	if (!k)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the queues of kernels");
	gantry_list_init(&k->node);
	k->comm = comm;
	k->view.rank = (uint32_t)comm->rank;
	k->view.ranks = (uint32_t)comm->nranks;
	k->offers = calloc((size_t)comm->nranks, sizeof(*k->offers));
	if (!k->offers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for the queues of kernels");
	TRY(open_queues(k, config));
	gantry_list_append(&comm->gins, &k->node);
	*ret_queues = k;
	k = NULL;
out:
	if (k)
		free_queues(k, false);
	free(k);
	return r;
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

void comm_gin_stop(struct gantry_comm *comm)
{
	gantry_list_each_entry_safe (k, &comm->gins, struct gantry_gin, node) {
		LOG_WARN(COMM,
			 "rank %d: the communicator ends before gantry_gin_close, so its kernels' queues are not "
			 "freed",
			 comm->rank);
		gantry_list_remove(&k->node);
		free_queues(k, true);
		k->comm = NULL;
	}
}

/* ---- calls ---- */

static gantry_result register_mine(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory)
{
	struct gantry_device *d = k->comm->device;
	struct gantry_mem_info info = {0};

	if (!ptr || !size)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_register: invalid buffer (%zu bytes at %p)", size, ptr);
	TRY_NOW(d->ops->pointer(d, ptr, &info));
	return rma_register(k->rma, ptr, size, info.kind == GANTRY_MEM_DEVICE ? RMA_DEVICE : RMA_HOST, ret_memory);
}

static gantry_result check_open(const struct gantry_gin *k, const char *what)
{
	if (!k)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: queues is NULL", what);
	if (!k->comm)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: the communicator has ended", what);
	return GANTRY_OK;
}

gantry_result gantry_gin_register(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory)
{
	struct gin_offer mine = {0};
	uint32_t number = 0;
	gantry_result r;

	TRY_NOW(check_open(k, "gantry_gin_register"));
	if (!ret_memory)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_register: ret_memory is NULL");
	TRY_NOW(comm_ready(k->comm, "gantry_gin_register"));
	mine.result = register_mine(k, ptr, size, &number);
	if (mine.result != GANTRY_OK)
		rma_register_nothing(k->rma, &number); /* numbers stay the same on all ranks */
	mine.sizes[0] = number;
	r = exchange_offers(k, "gantry_gin_register", &mine);
	if (r == GANTRY_OK)
		*ret_memory = number;
	else if (mine.result == GANTRY_OK)
		rma_deregister(k->rma, number);
	return r;
}

gantry_result gantry_gin_deregister(struct gantry_gin *k, uint32_t memory)
{
	TRY_NOW(check_open(k, "gantry_gin_deregister"));
	if (memory <= SIGNAL_MEMORY)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_deregister: memory %u is not registered", memory);
	return rma_deregister(k->rma, memory);
}

gantry_result gantry_gin_view(const struct gantry_gin *k, struct gantry_gin_view *ret_view)
{
	TRY_NOW(check_open(k, "gantry_gin_view"));
	if (!ret_view)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_gin_view: ret_view is NULL");
	*ret_view = k->view;
	return GANTRY_OK;
}
