/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows. Registering is collective: one exchange by the control plane of what each rank offers. Whatever can fail does so
 * before it and is part of the offer, so all ranks know of it and the communicator goes on. Memory of the others is mapped,
 * and connections are made, at the first put (reach.c). Deregistering is local.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/onesided.h"
#include "transport/ends.h"
#include "transport/transport.h"

/* What a rank offers when it registers a window. */
struct offer {
	uint64_t size;
	uint64_t address;     /* within its process */
	uint64_t from_handle; /* where the window begins within what the handle names */
	uint32_t result;      /* gantry_result: why it has none */
	uint32_t exported;
	uint32_t slot;
	uint32_t number; /* of the window; all count alike */
	struct gantry_ipc_handle memory, block;
};

/* ---- its own memory ---- */

static size_t words_of(const struct gantry_comm *comm)
{
	return (size_t)comm->nranks * GANTRY_SIGNALS;
}

static struct gantry_window *find_window(struct comm_onesided *o, uint32_t number) REQUIRES(onesided_mu)
{
	ASSERT_HELD(&o->mu);
	gantry_list_each_entry (w, &o->windows, struct gantry_window, node)
		if (w->number == number)
			return w;
	return NULL;
}

/* A put of no bytes goes to no window. */
static gantry_result look_up(struct gantry_comm *comm, int from, const struct gantry_put_request *put,
			     struct gantry_window **ret_window) REQUIRES(onesided_mu)
{
	struct gantry_window *w = find_window(comm->onesided, put->window);

	ASSERT_HELD(&comm->onesided->mu);
	if (!w && put->window && put->window <= comm->onesided->last_number)
		FAIL_NOW(GANTRY_ERR_USAGE, "rank %d put %llu bytes into window %u, which rank %d has deregistered",
			 from, (unsigned long long)put->bytes, put->window, comm->rank);
	if (!w || put->bytes > w->size || put->offset > w->size - put->bytes)
		FAIL_NOW(GANTRY_ERR_PROTOCOL,
			 "rank %d put %llu bytes at offset %llu of window %u, which has %llu bytes here", from,
			 (unsigned long long)put->bytes, (unsigned long long)put->offset, put->window,
			 (unsigned long long)(w ? w->size : 0));
	*ret_window = w;
	return GANTRY_OK;
}

static gantry_result find_target(void *ctx, int from, const struct gantry_put_request *put, char **ret_at,
				 int *ret_cpu_writes)
{
	struct gantry_comm *comm = ctx;
	struct comm_onesided *o = comm->onesided;
	struct gantry_window *w = NULL;
	gantry_result r;

	*ret_at = NULL;
	*ret_cpu_writes = 1;
	if (put->signal < -1 || put->signal >= GANTRY_SIGNALS)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d raised unknown signal %d", from, put->signal);
	if (!put->bytes)
		return GANTRY_OK;
	onesided_mu_lock(&o->mu);
	r = look_up(comm, from, put, &w);
	if (r == GANTRY_OK) {
		w->incoming++;
		*ret_at = w->base + put->offset;
		*ret_cpu_writes = w->cpu_writes;
	}
	onesided_mu_unlock(&o->mu);
	return r;
}

/* First the window, which may be deregistered as soon as the signal is seen. Release: the data is there. Sequentially
 * consistent like all that a kernel looks at before it sleeps. */
static void on_arrived(void *ctx, int from, uint32_t window, int signal)
{
	struct gantry_comm *comm = ctx;
	struct comm_onesided *o = comm->onesided;
	struct gantry_window *w;
	uint64_t *word;

	if (window) {
		onesided_mu_lock(&o->mu);
		w = find_window(o, window);
		if (w)
			w->incoming--;
		onesided_mu_unlock(&o->mu);
	}
	if (signal >= 0) {
		word = &o->by_net_host[onesided_word(from, signal)];
		store_seq(word, load_relaxed(word) + 1);
		comm_onesided_wake(comm);
	}
	store_release(&o->peers[from].arrived, o->peers[from].arrived + 1);
}

/* Of standing receives. Ranks that leave after the last synchronisation close their ends. */
static void on_error(void *ctx, gantry_result r, int peer, const char *text)
{
	struct gantry_comm *comm = ctx;

	if (!load_acquire(&comm->closing))
		comm_suspect(comm, r, comm_error_about(comm, r, peer), text);
}

/* Without it a rank cannot even take part in the exchange. */
static gantry_result alloc_onesided(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct comm_onesided *o = aligned_alloc(64, (sizeof(*o) + 63) / 64 * 64);
	struct onesided_peer *peers = calloc((size_t)comm->nranks, sizeof(*peers));

	ASSERT(!comm->onesided);
	if (!o || !peers)
		FAIL(GANTRY_ERR_NOMEM, "no memory for windows");
	memset(o, 0, sizeof(*o));
	onesided_mu_lock(&o->mu);
	gantry_list_init(&o->windows);
	onesided_mu_unlock(&o->mu);
	o->target = (struct gantry_put_target){.find = find_target, .arrived = on_arrived, .ctx = comm};
	o->peers = peers;
	store_release(&comm->onesided, o); /* other threads look */
	return GANTRY_OK;
out:
	free(o);
	free(peers);
	return r;
}

/* All that does not depend on peers; after a failure what is missing. */
static gantry_result make_onesided(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;
	struct gantry_device *d = comm->device;
	const struct gantry_proxy_group_config config = {.on_error = on_error,
							 .abort = &comm->life.stop,
							 .ctx = comm,
							 .any_thread = d->kind == GANTRY_DEVICE_HOST};
	size_t block = sizeof(struct onesided_block) + words_of(comm) * sizeof(uint64_t);
	void *p = NULL, *dev = NULL;

	if (!o->group)
		TRY_NOW(gantry_proxy_group_create(comm->proxy, &config, &o->group));
	if (!o->raised) {
		TRY_NOW(d->ops->alloc(d, 2 * words_of(comm) * sizeof(uint64_t), &p));
		o->raised = p;
		o->taken = o->raised + words_of(comm);
	}
	if (!o->by_net_host) {
		TRY_NOW(d->ops->alloc_mapped(d, words_of(comm) * sizeof(uint64_t), &p, &dev));
		o->by_net_host = p;
		o->by_net = dev;
	}
	if (!o->block) {
		TRY_NOW(d->ops->alloc(d, block, &p));
		store_release(&o->block, p);
	}
	TRY_NOW(d->ops->ipc_export(d, o->block, block, &o->handle));
	onesided_mu_lock(&o->mu);
	o->is_open = 1;
	onesided_mu_unlock(&o->mu);
	return GANTRY_OK;
}

void comm_onesided_wake(struct gantry_comm *comm)
{
	struct comm_onesided *o = load_acquire(&comm->onesided);
	struct onesided_block *block = o && comm->device->sleeps ? load_acquire(&o->block) : NULL;

	if (block)
		gantry_eventcount_notify(&block->eventcount);
}

void comm_onesided_count(const struct gantry_comm *comm, struct gantry_comm_counters *c)
{
	const struct comm_onesided *o = load_acquire(&comm->onesided);
	const struct gantry_conn_state *states = o ? load_acquire(&o->states) : NULL;

	for (int i = 0; states && i < comm->nranks; i++) {
		c->send_bytes += load_relaxed(&states[i].counts.bytes);
		c->send_copies += load_relaxed(&states[i].counts.copies);
		c->send_copied += load_relaxed(&states[i].counts.copied);
		for (int k = 0; k < GANTRY_PROTOS * GANTRY_MODES; k++)
			c->steps[k / GANTRY_MODES][k % GANTRY_MODES] +=
				load_relaxed(&states[i].counts.steps[k / GANTRY_MODES][k % GANTRY_MODES]);
	}
}

/* ---- registering ---- */

/* What the others' kernels look at before they copy into the window of that slot. */
static gantry_result show_window(struct gantry_comm *comm, uint32_t slot, uint64_t number)
{
	uint64_t *at = &comm->onesided->block->windows[slot];

	ASSERT(slot < ONESIDED_WINDOWS);
	if (!gantry_traits(comm->device)->cpu_reads_memory)
		return comm->device->ops->copy(comm->device, at, &number, sizeof(number));
	store_seq(at, number);
	return GANTRY_OK;
}

static gantry_result choose_slot(struct gantry_comm *comm, uint32_t *ret_slot)
{
	gantry_result r = GANTRY_OK;
	struct comm_onesided *o = comm->onesided;
	unsigned char *used = calloc(1, ONESIDED_WINDOWS);
	uint32_t slot = 0;

	if (!used)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a window");
	onesided_mu_lock(&o->mu);
	gantry_list_each_entry (w, &o->windows, struct gantry_window, node)
		used[w->slot] = 1;
	onesided_mu_unlock(&o->mu);
	while (slot < ONESIDED_WINDOWS && used[slot])
		slot++;
	if (slot == ONESIDED_WINDOWS)
		FAIL(GANTRY_ERR_LIMIT, "gantry_window_register: the limit of %d registered windows is reached",
		     ONESIDED_WINDOWS);
	*ret_slot = slot;
out:
	free(used);
	return r;
}

static gantry_result choose_transports(struct gantry_comm *comm)
{
	for (int i = 0; i < comm->nranks; i++)
		if (i != comm->rank)
			TRY_NOW(comm_choose_transport(comm, i));
	return GANTRY_OK;
}

/* This rank's part of the window. Nothing after it fails but the exchange itself. */
static gantry_result prepare_window(struct gantry_comm *comm, struct gantry_window *w, void *ptr, size_t size,
				    struct offer *ret_offer)
{
	struct gantry_device *d = comm->device;
	struct gantry_mem_info info = {0};

	TRY_NOW(make_onesided(comm));
	TRY_NOW(choose_transports(comm));
	if (size && !ptr)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_register: the buffer is NULL (%zu bytes)", size);
	if (size)
		TRY_NOW(d->ops->pointer(d, ptr, &info));
	if (size && info.kind == GANTRY_MEM_PAGEABLE)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_register: %s cannot access the memory at %p", d->name, ptr);
	TRY_NOW(choose_slot(comm, &w->slot));
	w->base = ptr;
	w->size = size;
	w->cpu_writes = info.kind != GANTRY_MEM_DEVICE || gantry_traits(d)->cpu_reads_memory;
	TRY_NOW(show_window(comm, w->slot, w->number));
	ret_offer->size = size;
	ret_offer->slot = w->slot;
	ret_offer->address = (uint64_t)(uintptr_t)ptr;
	ret_offer->block = comm->onesided->handle;
	/* Without network and transport there is nothing to export it to. */
	if (size && info.exportable && info.base &&
	    d->ops->ipc_export(d, info.base, info.size, &ret_offer->memory) == GANTRY_OK) {
		ret_offer->exported = 1;
		ret_offer->from_handle = (uint64_t)((char *)ptr - (char *)info.base);
	}
	return GANTRY_OK;
}

/* What the others offer. All ranks find the same. */
static gantry_result take_offers(struct gantry_comm *comm, struct gantry_window *w, const struct offer *all)
{
	for (int i = 0; i < comm->nranks; i++)
		if (all[i].result != GANTRY_OK)
			FAIL_NOW(all[i].result < GANTRY_RESULT_COUNT ? (gantry_result)all[i].result
								     : GANTRY_ERR_PROTOCOL,
				 "gantry_window_register failed on rank %d (%s): %s", i, comm->infos[i].host_name,
				 gantry_result_text((gantry_result)all[i].result));
	for (int i = 0; i < comm->nranks; i++) {
		struct window_peer *p = &w->peers[i];

		if (all[i].slot >= ONESIDED_WINDOWS || all[i].number != w->number)
			FAIL_NOW(GANTRY_ERR_PROTOCOL,
				 "rank %d has window %u in slot %u, but this rank has window %u there", i,
				 all[i].number, all[i].slot, w->number);
		p->size = all[i].size;
		p->slot = all[i].slot;
		p->exported = all[i].exported != 0;
		p->address = all[i].address;
		p->from_handle = all[i].from_handle;
		p->handle = all[i].memory;
		comm->onesided->peers[i].handle = all[i].block;
	}
	return GANTRY_OK;
}

/* Where the network is left out, every pair must be able to map: known beforehand, and on all ranks. */
static gantry_result check_pairs(struct gantry_comm *comm, const struct gantry_window *w, struct offer *all)
{
	struct offer mine = {0};

	if (onesided_allows_net(comm))
		return GANTRY_OK;
	for (int i = 0; i < comm->nranks && !mine.result; i++)
		if (!onesided_could_map(comm, &w->peers[i], i))
			mine = (struct offer){.result = GANTRY_ERR_UNREACHABLE, .number = (uint32_t)i};
	TRY_NOW(gantry_ctl_allgather(comm->ctl, &mine, sizeof(mine), all));
	for (int i = 0; i < comm->nranks; i++)
		if (all[i].result && all[i].number < (uint32_t)comm->nranks)
			FAIL_NOW(GANTRY_ERR_UNREACHABLE,
				 "rank %d cannot map the window of rank %u (%s), and transport \"%s\" excludes net; "
				 "memory from gantry_mem_alloc can be mapped",
				 i, all[i].number, comm->infos[all[i].number].host_name, comm->transport);
	return GANTRY_OK;
}

/* *ret_lost: the exchange itself failed, and with it the communicator. */
static gantry_result agree_on_window(struct gantry_comm *comm, struct gantry_window *w, const struct offer *mine,
				     int *ret_lost)
{
	gantry_result r = GANTRY_OK;
	struct offer *all = calloc((size_t)comm->nranks, sizeof(*all));

	*ret_lost = 1;
	if (!all)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a window of %d ranks", comm->nranks);
	TRY(gantry_ctl_allgather(comm->ctl, mine, sizeof(*mine), all));
	*ret_lost = 0;
	TRY(take_offers(comm, w, all));
	r = check_pairs(comm, w, all);
	*ret_lost = r != GANTRY_OK && r != GANTRY_ERR_UNREACHABLE;
out:
	free(all);
	return r;
}

/* Peers' mappings stay until kernels of this rank that may use them have ended. */
static void window_free(struct gantry_comm *comm, struct gantry_window *w)
{
	for (int i = 0; w && i < comm->nranks; i++)
		if (w->peers[i].opened)
			comm_memory_retire(comm, w->peers[i].opened);
	free(w);
}

/* No put finds it from here on. *ret_incoming: puts that were on their way into it. */
static void withdraw_window(struct gantry_comm *comm, struct gantry_window *w, uint32_t *ret_incoming)
{
	struct comm_onesided *o = comm->onesided;

	onesided_mu_lock(&o->mu);
	gantry_list_remove(&w->node);
	*ret_incoming = w->incoming;
	onesided_mu_unlock(&o->mu);
	if (o->block)
		show_window(comm, w->slot, 0);
}

static gantry_result register_window(struct gantry_comm *comm, void *ptr, size_t size,
				     struct gantry_window **ret_window, int *ret_lost)
{
	gantry_result r = GANTRY_OK, own;
	struct offer mine = {0};
	struct comm_onesided *o;
	uint32_t incoming;
	struct gantry_window *w = calloc(1, sizeof(*w) + (size_t)comm->nranks * sizeof(w->peers[0]));

	*ret_lost = 1;
	if (!w)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a window");
	if (!comm->onesided)
		TRY(alloc_onesided(comm));
	o = comm->onesided;
	gantry_list_init(&w->node);
	onesided_mu_lock(&o->mu);
	w->number = ++o->last_number; /* also of a call that fails: all ranks count alike */
	onesided_mu_unlock(&o->mu);
	mine.number = w->number;
	own = prepare_window(comm, w, ptr, size, &mine);
	mine.result = own;
	if (own == GANTRY_OK) { /* before the others know that it is there: puts may come as soon as they do */
		onesided_mu_lock(&o->mu);
		gantry_list_append(&o->windows, &w->node);
		onesided_mu_unlock(&o->mu);
	}
	r = agree_on_window(comm, w, &mine, ret_lost);
	if (r == GANTRY_OK) {
		*ret_window = w;
		return GANTRY_OK;
	}
	if (own == GANTRY_OK)
		withdraw_window(comm, w, &incoming);
	if (!*ret_lost && own != GANTRY_OK)
		r = own;
out:
	window_free(comm, w);
	return r;
}

gantry_result gantry_window_register(struct gantry_comm *comm, void *ptr, size_t size,
				     struct gantry_window **ret_window)
{
	gantry_result r;
	int lost;

	if (!comm || !ret_window)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_register: no communicator, or ret_window is NULL");
	TRY_NOW(comm_ready(comm, "gantry_window_register"));
	comm_memory_reap(comm);
	r = register_window(comm, ptr, size, ret_window, &lost);
	/* What all ranks have found alike leaves them as they were. */
	if (r != GANTRY_OK && lost)
		comm_fail_for_cause(comm, r, comm_error_about(comm, r, -1), gantry_last_error());
	return r;
}

gantry_result comm_onesided_flush(struct gantry_comm *comm)
{
	gantry_result r = GANTRY_OK;
	struct comm_onesided *o = comm->onesided;
	size_t n = (size_t)comm->nranks;
	struct gantry_waiter wait;
	uint64_t *sent, start;

	if (!o)
		return GANTRY_OK;
	sent = calloc(n + 1, n * sizeof(*sent));
	if (!sent)
		FAIL(GANTRY_ERR_NOMEM, "no memory for %d ranks", comm->nranks);
	for (size_t i = 0; i < n; i++)
		sent[n * n + i] = o->peers[i].sent;
	TRY(gantry_ctl_allgather(comm->ctl, sent + n * n, n * sizeof(*sent), sent));
	gantry_waiter_init(&wait, NULL);
	start = gantry_now_ns();
	for (size_t i = 0; i < n; i++) {
		while (load_acquire(&o->peers[i].arrived) < sent[i * n + (size_t)comm->rank]) {
			TRY(comm_check(comm));
			if (gantry_now_ns() - start > gantry_params()->timeout)
				FAIL(GANTRY_ERR_TIMEOUT, "puts of rank %zu have not arrived", i);
			gantry_waiter_idle(&wait, UINT64_MAX);
		}
	}
out:
	free(sent);
	return r;
}

/* After an error: the network lets go of windows before their owner frees them. */
static void close_receives(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;

	comm_onesided_stop(comm);
	ASSERT(!o->group); /* nothing makes progress on them */
	onesided_mu_lock(&o->mu);
	for (int i = 0; i < comm->nranks; i++) {
		onesided_end_free(o->peers[i].recv);
		o->peers[i].recv = NULL;
	}
	onesided_mu_unlock(&o->mu);
}

bool comm_window_is_registered(struct gantry_comm *comm, const struct gantry_window *window)
{
	struct comm_onesided *o = comm->onesided;
	bool found = false;

	if (!o)
		return false;
	onesided_mu_lock(&o->mu);
	gantry_list_each_entry (w, &o->windows, struct gantry_window, node)
		found |= w == window;
	onesided_mu_unlock(&o->mu);
	return found;
}

/*
 * Local. The memory is the caller's again when this returns: nothing of the network writes into it. A put that is on its
 * way into the window is a mistake of the program; its connection is closed, and the communicator fails.
 */
gantry_result gantry_window_deregister(struct gantry_comm *comm, struct gantry_window *window)
{
	gantry_result r = GANTRY_OK;
	uint32_t incoming = 0;
	char text[COMM_ERROR_TEXT];

	if (!comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_window_deregister: no communicator");
	if (!window)
		return GANTRY_OK;
	if (!comm_window_is_registered(comm, window))
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "gantry_window_deregister: %p is not a registered window of this communicator",
			 (void *)window);
	withdraw_window(comm, window, &incoming);
	if (incoming && comm_check(comm) == GANTRY_OK) {
		snprintf(text, sizeof(text), "window %u was deregistered while %s into it %s not complete",
			 window->number, COUNT_TEXT((int)incoming, "put"), incoming == 1 ? "was" : "were");
		r = gantry_fail(GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__, "%s", text);
		comm_fail(comm, r, comm->rank, text);
	}
	if (incoming || comm_check(comm) != GANTRY_OK)
		close_receives(comm);
	window_free(comm, window);
	comm_memory_reap(comm);
	return r;
}

void *gantry_window_ptr(const struct gantry_window *window)
{
	return window ? window->base : NULL;
}

/* ---- the end ---- */

void comm_onesided_stop(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;

	if (!o)
		return;
	onesided_mu_lock(&o->mu);
	o->is_open = 0;
	onesided_mu_unlock(&o->mu);
	gantry_proxy_group_destroy(o->group);
	o->group = NULL;
	store_release(&o->receives, 0);
}

void comm_onesided_free(struct gantry_comm *comm)
{
	struct comm_onesided *o = comm->onesided;
	struct gantry_device *d = comm->device;

	if (!o)
		return;
	onesided_mu_lock(&o->mu);
	gantry_list_each_entry_safe (w, &o->windows, struct gantry_window, node)
		window_free(comm, w);
	for (int i = 0; i < comm->nranks; i++) {
		struct onesided_peer *p = &o->peers[i];

		onesided_end_free(p->send);
		onesided_end_free(p->recv);
		if (p->block && i != comm->rank)
			d->ops->ipc_close(d, p->block);
	}
	onesided_mu_unlock(&o->mu);
	free(o->peers);
	/* A rank on another GPU of this process may still store there, where no mapping of its own keeps the memory. */
	if (gantry_traits(d)->cpu_reads_memory || comm_check(comm) == GANTRY_OK)
		d->ops->free(d, o->block);
	d->ops->free(d, o->raised);
	if (o->by_net_host)
		d->ops->free_mapped(d, o->by_net_host);
	if (o->states)
		d->ops->free_mapped(d, o->states);
	d->ops->free(d, o->conns_dev);
	free(o);
	comm->onesided = NULL;
}
