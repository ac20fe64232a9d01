/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows, for calls of the program and for its kernels. ncclWindow_t is a pointer into memory of the device, where kernels read what they
 * need. Calls look the window up by that pointer: the structs of a communicator lie in slabs.
 *
 * Which ranks' memory kernels address: their own alone (docs/design/0042). An address at another rank is one that no memory can have, so a
 * kernel that uses it fails instead of writing elsewhere.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nccl/nccl_device.h"

enum { SLAB_WINDOWS = 128, SLAB_APART = 128, FAR_4G = 1 << 20 };

struct slab {
	struct gantry_list node; /* of the process */
	struct ncclComm *c;
	char *base;				   /* owned: memory of the device */
	struct nccl_window *windows[SLAB_WINDOWS]; /* by place; NULL: free */
};
MUTEX_KIND(nccl_windows_mu);
static struct nccl_windows_mu windows_mu;
static struct gantry_list slabs GUARDED_BY(nccl_windows_mu) = {&slabs, &slabs};

/* ---- places ---- */

static bool take_place(struct ncclComm *c, struct nccl_window *w)
{
	bool found = false;

	nccl_windows_mu_lock(&windows_mu);
	gantry_list_each_entry (s, &slabs, struct slab, node)
		for (int i = 0; i < SLAB_WINDOWS && s->c == c && !found; i++)
			if (!s->windows[i]) {
				s->windows[i] = w;
				w->handle = (void *)(s->base + (size_t)i * SLAB_APART);
				found = true;
			}
	nccl_windows_mu_unlock(&windows_mu);
	return found;
}

static gantry_result add_slab(struct ncclComm *c)
{
	struct slab *s = calloc(1, sizeof(*s));
	void *p = NULL;
	gantry_result r;

	if (!s)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for windows");
	r = c->device->ops->alloc(c->device, (size_t)SLAB_WINDOWS * SLAB_APART, &p);
	if (r != GANTRY_OK) {
		free(s);
		return r;
	}
	s->c = c;
	s->base = p;
	nccl_windows_mu_lock(&windows_mu);
	gantry_list_append(&slabs, &s->node);
	nccl_windows_mu_unlock(&windows_mu);
	return GANTRY_OK;
}

static struct nccl_window **place_of(ncclWindow_t handle) REQUIRES(nccl_windows_mu)
{
	const uintptr_t at = (uintptr_t)handle;

	gantry_list_each_entry (s, &slabs, struct slab, node) {
		const uintptr_t from = at - (uintptr_t)s->base;

		if (from < (uintptr_t)SLAB_WINDOWS * SLAB_APART && from % SLAB_APART == 0)
			return &s->windows[from / SLAB_APART];
	}
	return NULL;
}

struct nccl_window *nccl_window_of(const struct ncclComm *c, ncclWindow_t handle, const char *function)
{
	struct nccl_window **place, *w;

	nccl_windows_mu_lock(&windows_mu);
	place = place_of(handle);
	w = place && *place && (!c || (*place)->c == c) ? *place : NULL;
	nccl_windows_mu_unlock(&windows_mu);
	if (!w)
		gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__, "%s: %p is not a registered window%s",
			    function, (void *)handle, c ? " of this communicator" : "");
	return w;
}

static void leave_place(ncclWindow_t handle)
{
	struct nccl_window **place;

	nccl_windows_mu_lock(&windows_mu);
	place = place_of(handle);
	if (place)
		*place = NULL;
	nccl_windows_mu_unlock(&windows_mu);
}

/* ---- tables: windows by address, for kernels ---- */

/* Kernels may read it meanwhile: an entry counts when its size is there, which comes last and goes first. */
static void write_entry(struct nccl_windows *ws, uint32_t at, const struct nccl_window *w)
{
	struct ncclDevCommWindowTable *t = ws->tables[at / NCCL_DEVICE_WINDOWS].host;
	const uint32_t i = at % NCCL_DEVICE_WINDOWS;

	store_release(&t->entries[i].size, 0);
	store_release(&t->entries[i].base, w ? (uintptr_t)w->device_base : 0);
	store_release(&t->entries[i].window, w ? w->handle : NULL);
	store_release(&t->entries[i].size, w ? w->size : 0);
}

static gantry_result add_table(struct ncclComm *c)
{
	struct nccl_windows *ws = c->windows;
	void *grown = realloc(ws->tables, (ws->ntables + 1) * sizeof(*ws->tables)), *host = NULL, *device = NULL;

	if (!grown)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for windows");
	ws->tables = grown;
	TRY_NOW(c->device->ops->alloc_mapped(c->device, sizeof(struct ncclDevCommWindowTable), &host, &device));
	ws->tables[ws->ntables].host = host;
	ws->tables[ws->ntables].device = device;
	if (ws->ntables)
		store_release(&ws->tables[ws->ntables - 1].host->next, ws->tables[ws->ntables].device);
	ws->ntables++;
	return GANTRY_OK;
}

static gantry_result list_window(struct nccl_window *w)
{
	struct nccl_windows *ws = w->c->windows;
	uint32_t at = 0;

	if (!w->size)
		return GANTRY_OK;
	while (at < ws->ntables * NCCL_DEVICE_WINDOWS &&
	       ws->tables[at / NCCL_DEVICE_WINDOWS].host->entries[at % NCCL_DEVICE_WINDOWS].window)
		at++;
	if (at == ws->ntables * NCCL_DEVICE_WINDOWS)
		TRY_NOW(add_table(w->c));
	write_entry(ws, at, w);
	return GANTRY_OK;
}

static void unlist_window(const struct nccl_window *w)
{
	struct nccl_windows *ws = w->c->windows;

	for (uint32_t at = 0; at < ws->ntables * NCCL_DEVICE_WINDOWS; at++)
		if (ws->tables[at / NCCL_DEVICE_WINDOWS].host->entries[at % NCCL_DEVICE_WINDOWS].window == w->handle)
			write_entry(ws, at, NULL);
}

gantry_result nccl_windows_list(struct ncclComm *c)
{
	if (c->windows->ntables)
		return GANTRY_OK;
	TRY_NOW(add_table(c));
	gantry_list_each_entry (w, &c->windows->all, struct nccl_window, node)
		TRY_NOW(list_window(w));
	return GANTRY_OK;
}

/* ---- windows ---- */

static gantry_result write_window(struct nccl_window *w)
{
	struct gantry_device *d = w->c->device;

	for (int i = 0; i < NCCL_DEVICE_CONTEXTS; i++)
		w->own.ginWins[i] = (void *)(uintptr_t)w->memory;
	return d->ops->copy(d, w->handle, &w->own, sizeof(w->own));
}

static gantry_result place_window(struct nccl_window *w)
{
	struct ncclComm *c = w->c;
	struct gantry_mem_info info = {0};

	if (w->size)
		TRY_NOW(c->device->ops->pointer(c->device, w->base, &info));
	w->device_base = info.device_ptr ? info.device_ptr : w->base;
	w->own = (struct ncclWindow_vidmem){.winHost = w,
					    .lsaFlatBase = w->device_base,
					    .worldRank = gantry_comm_rank(c->comm),
					    .stride4G = FAR_4G};
	if (!take_place(c, w)) {
		TRY_NOW(add_slab(c));
		take_place(c, w);
	}
	return GANTRY_OK;
}

gantry_result nccl_window_make(struct ncclComm *c, struct gantry_window *window, void *ptr, size_t size,
			       struct nccl_window **ret_window)
{
	gantry_result r = GANTRY_OK;
	struct nccl_window *w = calloc(1, sizeof(*w));

	c->windows->made++;
	if (!w)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a window");
	gantry_list_init(&w->node);
	w->c = c;
	w->window = window;
	w->number = c->windows->made;
	w->base = ptr;
	w->size = size;
	TRY(place_window(w));
	if (c->windows->gin)
		TRY(comm_gin_add(c->windows->gin, w->base, w->size, &w->memory));
	TRY(write_window(w));
	if (c->windows->ntables)
		TRY(list_window(w));
	gantry_list_append(&c->windows->all, &w->node);
	*ret_window = w;
	return GANTRY_OK;
out:
	nccl_window_free(w);
	return r;
}

void nccl_window_free(struct nccl_window *w)
{
	struct ncclComm *c = w->c;

	gantry_list_remove(&w->node);
	if (w->handle) {
		unlist_window(w);
		leave_place(w->handle);
	}
	if (w->memory && w->size)
		gantry_gin_deregister(c->windows->gin, w->memory);
	free(w);
}

gantry_result nccl_windows_connect(struct ncclComm *c, struct gantry_gin *gin)
{
	struct nccl_windows *ws = c->windows;
	uint32_t memory;

	for (uint32_t number = 1; number <= ws->made; number++) {
		struct nccl_window *found = NULL;

		gantry_list_each_entry (w, &ws->all, struct nccl_window, node)
			if (w->number == number)
				found = w;
		TRY_NOW(comm_gin_add(gin, found ? found->base : NULL, found ? found->size : 0, &memory));
		if (!found)
			continue;
		found->memory = memory;
		TRY_NOW(write_window(found));
	}
	ws->gin = gin;
	return GANTRY_OK;
}

void nccl_windows_end(struct ncclComm *c, bool kernels)
{
	struct nccl_windows *ws = c->windows;
	struct gantry_device *d = c->device;

	gantry_list_each_entry_safe (w, &ws->all, struct nccl_window, node) {
		gantry_list_remove(&w->node);
		free(w);
	}
	nccl_windows_mu_lock(&windows_mu);
	gantry_list_each_entry_safe (s, &slabs, struct slab, node) {
		if (s->c != c)
			continue;
		gantry_list_remove(&s->node);
		if (!kernels)
			d->ops->free(d, s->base);
		free(s);
	}
	nccl_windows_mu_unlock(&windows_mu);
	for (uint32_t i = 0; i < ws->ntables && !kernels; i++)
		d->ops->free_mapped(d, ws->tables[i].host);
	free(ws->tables);
}

/* ---- calls. All ranks of a communicator register, so in a group those of several communicators run together ---- */

/* Registered on all ranks: only this one may still fail, and then ranks do not count alike any more. */
static gantry_result finish_window(struct ncclComm *c, struct gantry_window *made, void *ptr, size_t size,
				   ncclWindow_t *ret_handle)
{
	struct nccl_window *w = NULL;
	gantry_result r = nccl_window_make(c, made, ptr, size, &w), all = r;
	uint32_t sizes[GIN_SIZES] = {0};

	if (c->windows->gin) {
		sizes[0] = w ? w->memory : 0;
		all = comm_gin_agree(c->comm, "ncclCommWindowRegister", r, sizes);
	}
	if (all == GANTRY_OK) {
		*ret_handle = w->handle;
		return GANTRY_OK;
	}
	comm_fail_for_cause(c->comm, all, r != GANTRY_OK ? c->comm->rank : comm_error_about(c->comm, all, -1),
			    gantry_last_error());
	if (w)
		nccl_window_free(w);
	gantry_window_deregister(c->comm, made);
	return all;
}

/* Where windows cannot be, callers go on without: the window is not written. */
static gantry_result run_register(struct nccl_job *job)
{
	struct gantry_window *made = NULL;
	gantry_result r;

	if (job->dropped)
		return GANTRY_OK;
	nccl_enter(job->c);
	r = gantry_window_register(job->c->comm, job->buf, job->size, &made);
	if (r == GANTRY_OK)
		r = finish_window(job->c, made, job->buf, job->size, job->window);
	nccl_leave(job->c);
	return r == GANTRY_ERR_UNREACHABLE || r == GANTRY_ERR_UNSUPPORTED ? GANTRY_OK : r;
}

static gantry_result run_deregister(struct nccl_job *job)
{
	struct nccl_window *w = nccl_window_of(job->c, job->buf, "ncclCommWindowDeregister");
	struct gantry_window *window;
	gantry_result r;

	if (!w || !w->window)
		return GANTRY_ERR_INVALID;
	nccl_enter(job->c);
	window = w->window;
	nccl_window_free(w);
	r = gantry_window_deregister(job->c->comm, window);
	nccl_leave(job->c);
	return r;
}

static gantry_result run_window(struct ncclComm *c, gantry_result (*run)(struct nccl_job *job), void *buf, size_t size,
				ncclWindow_t *window)
{
	struct nccl_job *job = calloc(1, sizeof(*job));

	if (!job)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a window");
	*job = (struct nccl_job){.run = run, .c = c, .uses = true, .buf = buf, .size = size, .window = window};
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, CommWindowRegister,
	      (ncclComm_t comm, void *buf, size_t size, ncclWindow_t *window, int flags))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommWindowRegister");

	(void)flags; /* how collectives may use it, and an order that puts have anyway */
	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!window || (size && !buf))
		return nccl_result(nccl_missing("ncclCommWindowRegister"));
	return nccl_result(run_window(c, run_register, buf, size, window));
}

NCCL_FUNCTION(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommWindowDeregister");

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	return window ? nccl_result(run_window(c, run_deregister, window, 0, NULL)) : ncclSuccess;
}

NCCL_FUNCTION(ncclResult_t, WinGetUserPtr, (ncclComm_t comm, ncclWindow_t window, void **ptr))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclWinGetUserPtr");
	struct nccl_window *w;

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!window || !ptr)
		return nccl_result(nccl_missing("ncclWinGetUserPtr"));
	w = nccl_window_of(c, window, "ncclWinGetUserPtr");
	if (!w)
		return nccl_result(GANTRY_ERR_INVALID);
	*ptr = w->base;
	return ncclSuccess;
}

/* ---- addresses for kernels, asked for on the host ---- */

static ncclResult_t tell_address(const struct nccl_window *w, size_t offset, const char *function, void **ptr)
{
	if (offset >= w->size)
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "%s: offset %zu of a window of %zu bytes", function, offset, w->size));
	*ptr = w->device_base + offset;
	return ncclSuccess;
}

NCCL_FUNCTION(ncclResult_t, GetLsaDevicePointer, (ncclWindow_t window, size_t offset, int rank, void **ptr))
{
	struct nccl_window *w = ptr ? nccl_window_of(NULL, window, "ncclGetLsaDevicePointer") : NULL;

	if (!w)
		return nccl_result(ptr ? GANTRY_ERR_INVALID : nccl_missing("ncclGetLsaDevicePointer"));
	if (rank != 0)
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclGetLsaDevicePointer: rank %d of a team of 1", rank));
	return tell_address(w, offset, "ncclGetLsaDevicePointer", ptr);
}

NCCL_FUNCTION(ncclResult_t, GetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **ptr))
{
	struct nccl_window *w = ptr ? nccl_window_of(NULL, window, "ncclGetPeerDevicePointer") : NULL;

	if (!w)
		return nccl_result(ptr ? GANTRY_ERR_INVALID : nccl_missing("ncclGetPeerDevicePointer"));
	if (peer < 0 || peer >= gantry_comm_size(w->c->comm))
		return nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					       "ncclGetPeerDevicePointer: there is no rank %d", peer));
	if (peer == gantry_comm_rank(w->c->comm))
		return tell_address(w, offset, "ncclGetPeerDevicePointer", ptr);
	*ptr = NULL; /* not an error: kernels cannot reach it */
	return ncclSuccess;
}
