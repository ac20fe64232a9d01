/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device communicators: what a program's kernels get to start network operations by themselves. All ranks make one together:
 *
 *   1. what the program wants becomes one buffer, signals and counters of each context; ranks compare the sizes
 *   2. the first one that needs the network opens the queues, which all of a communicator share, and connects windows to them
 *   3. the buffer becomes a window of its own, words are cleared, and ranks meet: none has a kernel before all are ready
 *
 * Each rank is a team of its own: kernels reach other ranks by the network (docs/design/0042).
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nccl/nccl_device.h"

#define VERSIONS_TEXT "kernels compiled with headers of NCCL 2.28.7 to 2.29.3 work"
#define BUFFER_MOST (1ull << 40)
enum { BUFFER_ALIGN = 4096 };

/* ---- what the program wants ---- */

static gantry_result check_count(const char *what, int64_t n)
{
	if (n < 0 || n > NCCL_DEVICE_WORDS)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "ncclDevCommCreate: %s is %lld, expected 0 to %d (NCCL 2.28.3 has another "
			 "layout: " VERSIONS_TEXT ")",
			 what, (long long)n, NCCL_DEVICE_WORDS);
	return GANTRY_OK;
}

/* Which of the layouts it is: only the younger ones have a mark, where the older one has a pointer, which is even. */
static gantry_result take_wishes(const void *wanted, ncclDevCommWishes_t *ret_wishes)
{
	ncclDevCommWishesHead_t head;
	const char *at = wanted;
	unsigned char flags[2];

	memcpy(&head, at, sizeof(head));
	if (head.magic == NCCL_API_MAGIC) {
		if (head.size != sizeof(head) + sizeof(*ret_wishes) || head.version < NCCL_DEVICE_OLDEST ||
		    head.version > NCCL_DEVICE_NEWEST)
			FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
				 "ncclDevCommCreate: the program was compiled with headers of NCCL %u.%u.%u, of which "
				 "Gantry does not know the device API; " VERSIONS_TEXT,
				 head.version / 10000, head.version / 100 % 100, head.version % 100);
		at += sizeof(head);
	}
	flags[0] = (unsigned char)at[offsetof(ncclDevCommWishes_t, lsaMultimem)];
	flags[1] = (unsigned char)at[offsetof(ncclDevCommWishes_t, ginForceEnable)];
	if (flags[0] > 1 || flags[1] > 1)
		FAIL_NOW(GANTRY_ERR_INVALID, "ncclDevCommCreate: the requirements were not initialised, or have "
					     "another layout; " VERSIONS_TEXT);
	memcpy(ret_wishes, at, sizeof(*ret_wishes));
	TRY_NOW(check_count("barrierCount", ret_wishes->barrierCount));
	TRY_NOW(check_count("lsaBarrierCount", ret_wishes->lsaBarrierCount));
	TRY_NOW(check_count("railGinBarrierCount", ret_wishes->railGinBarrierCount));
	TRY_NOW(check_count("ginSignalCount", ret_wishes->ginSignalCount));
	TRY_NOW(check_count("ginCounterCount", ret_wishes->ginCounterCount));
	return GANTRY_OK;
}

/* A call, kept until the end of its group: lists are copied, as the caller's may go. */
struct creation {
	ncclDevCommWishes_t wishes;
	struct ncclDevComm *out; /* the caller's */
	uint32_t nitems;
	struct ncclDevResourceRequirements items[]; /* two for barriers, then the caller's */
};

static gantry_result check_teams(const ncclDevCommWishes_t *wishes)
{
	bool multimem = wishes->lsaMultimem;

	for (const struct ncclTeamRequirements *t = wishes->teamRequirementsList; t; t = t->next)
		multimem |= t->multimem;
	if (multimem)
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "ncclDevCommCreate: multimem needs NVLink multicast, which Gantry does not use");
	return GANTRY_OK;
}

static gantry_result copy_wishes(const void *wanted, struct ncclDevComm *out, struct creation **ret_creation)
{
	ncclDevCommWishes_t wishes;
	struct creation *made;
	uint32_t n = 2;

	TRY_NOW(take_wishes(wanted, &wishes));
	TRY_NOW(check_teams(&wishes));
	for (const struct ncclDevResourceRequirements *r = wishes.resourceRequirementsList; r; r = r->next) {
		TRY_NOW(check_count("ginSignalCount of a resource", r->ginSignalCount));
		TRY_NOW(check_count("ginCounterCount of a resource", r->ginCounterCount));
		if (r->bufferSize > BUFFER_MOST || r->bufferAlign > BUFFER_MOST ||
		    r->bufferAlign & (r->bufferAlign - 1))
			FAIL_NOW(GANTRY_ERR_INVALID, "ncclDevCommCreate: invalid resource of %zu bytes, aligned to %zu",
				 r->bufferSize, r->bufferAlign);
		n++;
	}
	made = calloc(1, sizeof(*made) + n * sizeof(made->items[0]));
	if (!made)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a device communicator");
	made->wishes = wishes;
	made->out = out;
	made->nitems = 2;
	for (const struct ncclDevResourceRequirements *r = wishes.resourceRequirementsList; r; r = r->next)
		made->items[made->nitems++] = *r;
	*ret_creation = made;
	return GANTRY_OK;
}

/* ---- requirements that the library makes. Kernels know where in the buffer what is ---- */

static void lsa_barriers(int team, int n, ncclLsaBarrierHandle_t *handle, struct ncclDevResourceRequirements *ret)
{
	/* Epochs with multicast and without, one inbox with, an inbox of each rank without. */
	*ret = (struct ncclDevResourceRequirements){.bufferSize = ((size_t)n * 3 + (size_t)n * (size_t)team) *
								  sizeof(uint32_t),
						    .bufferAlign = sizeof(uint32_t),
						    .outBufferHandle = &handle->bufHandle};
	handle->nBarriers = n;
}

static void gin_barriers(int n, ncclGinBarrierHandle_t *handle, struct ncclDevResourceRequirements *ret)
{
	/* An epoch of each context. */
	*ret = (struct ncclDevResourceRequirements){.bufferSize = (size_t)n * NCCL_DEVICE_CONTEXTS * sizeof(uint32_t),
						    .bufferAlign = sizeof(uint32_t),
						    .outBufferHandle = &handle->bufHandle,
						    .ginSignalCount = n,
						    .outGinSignalStart = &handle->signal0};
}

NCCL_FUNCTION(ncclResult_t, LsaBarrierCreateRequirement,
	      (ncclTeam_t team, int n, void *handle, ncclDevResourceRequirements_t *wanted))
{
	if (!handle || !wanted || n < 0 || team.nRanks < 0)
		return nccl_result(nccl_missing("ncclLsaBarrierCreateRequirement"));
	lsa_barriers(team.nRanks, n, handle, wanted);
	return ncclSuccess;
}

NCCL_FUNCTION(ncclResult_t, GinBarrierCreateRequirement,
	      (ncclComm_t comm, ncclTeam_t team, int n, void *handle, ncclDevResourceRequirements_t *wanted))
{
	(void)team; /* the same for all */
	if (!nccl_comm_of(comm, "ncclGinBarrierCreateRequirement"))
		return nccl_result(GANTRY_ERR_INVALID);
	if (!handle || !wanted || n < 0)
		return nccl_result(nccl_missing("ncclGinBarrierCreateRequirement"));
	gin_barriers(n, handle, wanted);
	return ncclSuccess;
}

/* Of each block its epoch, and twice the slots, of 16 bytes each. */
NCCL_FUNCTION(ncclResult_t, LLA2ACreateRequirement,
	      (int blocks, int slots, void *handle, ncclDevResourceRequirements_t *wanted))
{
	ncclLLA2AHandle_t *h = handle;

	if (!handle || !wanted || blocks < 0 || slots < 0)
		return nccl_result(nccl_missing("ncclLLA2ACreateRequirement"));
	h->nSlots = (uint32_t)slots;
	*wanted = (struct ncclDevResourceRequirements){.bufferSize = (size_t)blocks * (1 + 2 * (size_t)slots) * 16,
						       .bufferAlign = 16,
						       .outBufferHandle = &h->bufHandle};
	return ncclSuccess;
}

/* Slots of 8 bytes. */
NCCL_FUNCTION(int, LLA2ACalcSlots, (int elements, int bytes))
{
	return elements * ((bytes + 7) / 8);
}

/* ---- making ---- */

struct device_comm {
	struct gantry_list node;
	struct ncclDevComm own; /* as the program has it */
	struct nccl_words words;
	struct nccl_window *window; /* NULL: no buffer */
	void *buffer;		    /* owned: memory of the device */
};

/* Of all that is wanted. */
struct sizes {
	uint64_t bytes, align;
	uint64_t signals, counters;
};

static uint64_t align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static void place_items(const struct creation *x, bool tell, struct sizes *ret)
{
	struct sizes s = {.align = BUFFER_ALIGN,
			  .signals = (uint64_t)x->wishes.ginSignalCount,
			  .counters = (uint64_t)x->wishes.ginCounterCount};

	for (uint32_t i = 0; i < x->nitems; i++) {
		const struct ncclDevResourceRequirements *r = &x->items[i];
		const uint64_t align =
			r->bufferAlign > NCCL_DEVICE_BUFFER_UNIT ? r->bufferAlign : NCCL_DEVICE_BUFFER_UNIT;

		s.align = align > s.align ? align : s.align;
		s.bytes = align_up(s.bytes, align);
		if (tell && r->outBufferHandle)
			*r->outBufferHandle = (uint32_t)(s.bytes / NCCL_DEVICE_BUFFER_UNIT);
		if (tell && r->outGinSignalStart)
			*r->outGinSignalStart = (uint32_t)s.signals;
		if (tell && r->outGinCounterStart)
			*r->outGinCounterStart = (uint32_t)s.counters;
		s.bytes += r->bufferSize;
		s.signals += (uint64_t)r->ginSignalCount;
		s.counters += (uint64_t)r->ginCounterCount;
	}
	s.bytes = align_up(s.bytes, NCCL_DEVICE_BUFFER_UNIT);
	*ret = s;
}

/* The first run of so many words that no device communicator has. counters: which of the two kinds. */
static gantry_result find_words(const struct ncclComm *c, bool counters, uint64_t n, uint32_t *ret_first)
{
	uint64_t first = 0;
	bool moved = n != 0;

	while (moved) {
		moved = false;
		gantry_list_each_entry (d, &c->windows->devices, struct device_comm, node) {
			const uint64_t from = counters ? d->words.counter : d->words.signal,
				       to = from + (counters ? d->words.counters : d->words.signals);

			if (first < to && from < first + n) {
				first = to;
				moved = true;
			}
		}
	}
	if (first + n > NCCL_DEVICE_WORDS)
		FAIL_NOW(GANTRY_ERR_LIMIT, "ncclDevCommCreate: %llu %s, of %d that device communicators share",
			 (unsigned long long)n, counters ? "counters" : "signals", NCCL_DEVICE_WORDS);
	*ret_first = (uint32_t)first;
	return GANTRY_OK;
}

static gantry_result choose_words(const struct ncclComm *c, const struct sizes *s, struct nccl_words *ret_words)
{
	struct nccl_words w = {0};

	TRY_NOW(find_words(c, false, s->signals, &w.signal));
	TRY_NOW(find_words(c, true, s->counters, &w.counter));
	w.signals = (uint32_t)s->signals;
	w.counters = (uint32_t)s->counters;
	*ret_words = w;
	return GANTRY_OK;
}

static gantry_result agree_on_sizes(struct ncclComm *c, gantry_result mine, const struct sizes *s,
				    const struct nccl_words *w)
{
	const uint32_t all[GIN_SIZES] = {
		(uint32_t)s->bytes, (uint32_t)(s->bytes >> 32), w->signals, w->counters, w->signal, w->counter};

	return comm_gin_agree(c->comm, "ncclDevCommCreate", mine, all);
}

static gantry_result open_queues(struct ncclComm *c)
{
	struct gantry_gin *gin = NULL;
	uint32_t none[GIN_SIZES] = {0};
	gantry_result r;

	if (c->windows->gin)
		return GANTRY_OK;
	TRY_NOW(nccl_queues_open(c->comm, &gin));
	r = nccl_windows_connect(c, gin);
	return comm_gin_agree(c->comm, "ncclDevCommCreate", r, none);
}

/* Shadows of signals stand behind what is wanted. */
static gantry_result make_buffer(struct ncclComm *c, struct device_comm *d, const struct sizes *s)
{
	const uint64_t shadows = c->windows->gin ? NCCL_DEVICE_CONTEXTS * s->signals * sizeof(uint64_t) : 0;
	char *base;

	if (!s->bytes && !shadows)
		return GANTRY_OK;
	TRY_NOW(c->device->ops->alloc(c->device, s->bytes + shadows + s->align, &d->buffer));
	base = (char *)d->buffer + (s->align - (uintptr_t)d->buffer % s->align) % s->align;
	TRY_NOW(nccl_window_make(c, NULL, base, s->bytes + shadows, &d->window));
	if (shadows)
		d->own.ginSignalShadows = (uint64_t *)(void *)(d->window->device_base + s->bytes);
	return GANTRY_OK;
}

static gantry_result meet_with_buffer(struct ncclComm *c, gantry_result mine, const struct device_comm *d)
{
	const uint32_t sizes[GIN_SIZES] = {d->window ? d->window->memory : 0, d->window ? d->window->number : 0};

	return comm_gin_agree(c->comm, "ncclDevCommCreate", mine, sizes);
}

static uint32_t find_reciprocal(uint32_t x)
{
	return UINT32_MAX / x + ((x & (x - 1)) == 0);
}

static void fill_in(struct ncclComm *c, struct device_comm *d)
{
	struct ncclDevComm *own = &d->own;

	own->rank = gantry_comm_rank(c->comm);
	own->nRanks = gantry_comm_size(c->comm);
	own->nRanks_rcp32 = find_reciprocal((uint32_t)own->nRanks);
	own->lsaSize = 1;
	own->lsaSize_rcp32 = find_reciprocal(1);
	own->windowTable = c->windows->tables[0].device;
	if (d->window) {
		own->resourceWindow = d->window->handle;
		own->resourceWindow_inlined = d->window->own;
	}
	if (!c->windows->gin)
		return;
	own->ginContextCount = NCCL_DEVICE_CONTEXTS;
	own->ginSignalBase = d->words.signal;
	own->ginSignalCount = (int)d->words.signals;
	own->ginCounterBase = d->words.counter;
	own->ginCounterCount = (int)d->words.counters;
	for (uint32_t i = 0; i < NCCL_DEVICE_CONTEXTS; i++) {
		own->ginTypes[i] = NCCL_DEVICE_GIN_TYPE_PROXY;
		own->ginHandles[i] = nccl_queues_handle(c->windows->gin, i);
	}
}

static void free_device(struct ncclComm *c, struct device_comm *d)
{
	if (d->window)
		nccl_window_free(d->window);
	c->device->ops->free(c->device, d->buffer);
	free(d);
}

/* What cannot be: the communicator goes on. What fails behind that ends it, as ranks do not count alike any more. */
static gantry_result make_device(struct ncclComm *c, struct creation *x, struct device_comm *d)
{
	const int ranks = gantry_comm_size(c->comm);
	const ncclDevCommWishes_t *wishes = &x->wishes;
	struct sizes s;
	gantry_result r;

	lsa_barriers(1, wishes->barrierCount > wishes->lsaBarrierCount ? wishes->barrierCount : wishes->lsaBarrierCount,
		     &d->own.lsaBarrier, &x->items[0]);
	gin_barriers(wishes->barrierCount > wishes->railGinBarrierCount ? wishes->barrierCount
									: wishes->railGinBarrierCount,
		     &d->own.railGinBarrier, &x->items[1]);
	place_items(x, false, &s);
	r = choose_words(c, &s, &d->words);
	TRY_NOW(agree_on_sizes(c, r, &s, &d->words));
	if (ranks > 1 || wishes->ginForceEnable || s.signals || s.counters)
		r = open_queues(c);
	if (r == GANTRY_OK) {
		r = nccl_windows_list(c);
		if (r == GANTRY_OK)
			r = make_buffer(c, d, &s);
		if (r == GANTRY_OK && c->windows->gin)
			nccl_queues_clear(c->windows->gin, &d->words);
		r = meet_with_buffer(c, r, d);
	}
	if (r != GANTRY_OK) {
		comm_fail_for_cause(c->comm, r, comm_error_about(c->comm, r, -1), gantry_last_error());
		return r;
	}
	place_items(x, true, &s);
	fill_in(c, d);
	return GANTRY_OK;
}

static gantry_result run_create(struct nccl_job *job)
{
	struct ncclComm *c = job->c;
	struct creation *x = job->owned;
	struct device_comm *d;
	gantry_result r;

	if (job->dropped)
		return GANTRY_OK;
	d = calloc(1, sizeof(*d));
	if (!d)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a device communicator");
	nccl_enter(c);
	gantry_list_init(&d->node);
	r = comm_ready(c->comm, "ncclDevCommCreate");
	if (r == GANTRY_OK)
		r = make_device(c, x, d);
	if (r == GANTRY_OK) {
		gantry_list_append(&c->windows->devices, &d->node);
		if (c->windows->gin)
			c->windows->gin->users++;
		*x->out = d->own;
	} else {
		free_device(c, d);
	}
	nccl_leave(c);
	return r;
}

static gantry_result start_creation(struct ncclComm *c, const void *wanted, struct ncclDevComm *out)
{
	struct creation *x = NULL;
	struct nccl_job *job;

	TRY_NOW(copy_wishes(wanted, out, &x));
	job = calloc(1, sizeof(*job));
	if (!job) {
		free(x);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a device communicator");
	}
	*job = (struct nccl_job){.run = run_create, .c = c, .uses = true, .owned = x};
	return nccl_group_run(job);
}

NCCL_FUNCTION(ncclResult_t, DevCommCreate,
	      (ncclComm_t comm, const ncclDevCommRequirements_t *wanted, ncclDevComm_t *made))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclDevCommCreate");

	if (!c)
		return nccl_result(comm_group_fail(GANTRY_ERR_INVALID));
	if (!wanted || !made)
		return nccl_result(comm_group_fail(nccl_missing("ncclDevCommCreate")));
	return nccl_result(comm_group_fail(start_creation(c, wanted, made)));
}

/* ---- the end ---- */

static struct device_comm *find_device(const struct ncclComm *c, const struct ncclDevComm *made)
{
	gantry_list_each_entry (d, &c->windows->devices, struct device_comm, node)
		if (memcmp(&d->own, made, sizeof(d->own)) == 0)
			return d;
	return NULL;
}

/* By each rank, when its kernels have ended and none of the others puts or signals there any more. */
NCCL_FUNCTION(ncclResult_t, DevCommDestroy, (ncclComm_t comm, const ncclDevComm_t *made))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclDevCommDestroy");
	struct device_comm *d;

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!made)
		return nccl_result(nccl_missing("ncclDevCommDestroy"));
	nccl_enter(c);
	d = find_device(c, made);
	if (d) {
		gantry_list_remove(&d->node);
		if (c->windows->gin)
			c->windows->gin->users -= d->own.ginContextCount != 0;
		free_device(c, d);
	}
	nccl_leave(c);
	return d ? ncclSuccess
		 : nccl_result(gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					   "ncclDevCommDestroy: not a device communicator of this communicator"));
}

gantry_result nccl_device_init(struct ncclComm *c)
{
	c->windows = calloc(1, sizeof(*c->windows));
	if (!c->windows)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a communicator");
	gantry_list_init(&c->windows->all);
	gantry_list_init(&c->windows->devices);
	return GANTRY_OK;
}

void nccl_device_end(struct ncclComm *c, bool failed)
{
	const bool kernels = failed && !gantry_list_empty(&c->windows->devices);

	gantry_list_each_entry_safe (d, &c->windows->devices, struct device_comm, node) {
		gantry_list_remove(&d->node);
		if (!kernels)
			c->device->ops->free(c->device, d->buffer);
		free(d);
	}
	nccl_windows_end(c, kernels);
	free(c->windows);
}

/* ---- teams: ranks reachable by loads and stores of a kernel. Only the rank itself ---- */

NCCL_FUNCTION(ncclTeam_t, TeamWorld, (ncclComm_t comm))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclTeamWorld");

	if (!c)
		return (ncclTeam_t){0, 0, 0};
	return (ncclTeam_t){gantry_comm_size(c->comm), gantry_comm_rank(c->comm), 1};
}

NCCL_FUNCTION(ncclTeam_t, TeamLsa, (ncclComm_t comm))
{
	return nccl_comm_of(comm, "ncclTeamLsa") ? (ncclTeam_t){1, 0, 1} : (ncclTeam_t){0, 0, 0};
}

NCCL_FUNCTION(ncclTeam_t, TeamRail, (ncclComm_t comm))
{
	return pncclTeamWorld(comm);
}

NCCL_FUNCTION(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclTeamRankToWorld");

	return c ? gantry_comm_rank(c->comm) + (rank - team.rank) * team.stride : -1;
}

NCCL_FUNCTION(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank))
{
	return nccl_comm_of(comm, "ncclTeamRankToLsa") ? (rank - team.rank) * team.stride : -1;
}

/* ---- properties ---- */

/* As the caller's version of the struct has it: the type of networking that kernels do is a byte in 2.29.2 and 2.29.3. */
static size_t fill_properties(const struct ncclComm *c, const ncclCommProperties_t *asked, ncclCommProperties_t *own)
{
	const bool old = asked->size == sizeof(ncclCommProperties_v22902_t);
	ncclCommProperties_v22902_t *v22902 = (void *)own;

	own->size = asked->size;
	own->magic = asked->magic;
	own->version = asked->version;
	own->rank = gantry_comm_rank(c->comm);
	own->nRanks = gantry_comm_size(c->comm);
	own->cudaDev = own->nvmlDev = c->device->index;
	own->deviceApiSupport = asked->version >= NCCL_DEVICE_OLDEST && asked->version <= NCCL_DEVICE_NEWEST;
	if (old) {
		v22902->ginType = own->deviceApiSupport ? NCCL_DEVICE_GIN_TYPE_PROXY : 0;
		return sizeof(*v22902);
	}
	own->ginType = own->railedGinType = own->deviceApiSupport ? NCCL_DEVICE_GIN_TYPE_PROXY : 0;
	own->nLsaTeams = own->nRanks;
	own->hostRmaSupport = true;
	return asked->size < sizeof(*own) ? asked->size : sizeof(*own);
}

NCCL_FUNCTION(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t *properties))
{
	struct ncclComm *c = nccl_comm_of(comm, "ncclCommQueryProperties");
	ncclCommProperties_t own = {.nLsaTeams = 0};
	size_t size;

	if (!c)
		return nccl_result(GANTRY_ERR_INVALID);
	if (!properties || properties->magic != NCCL_API_MAGIC ||
	    properties->size < offsetof(ncclCommProperties_t, rank))
		return nccl_result(nccl_missing("ncclCommQueryProperties"));
	size = fill_properties(c, properties, &own);
	memcpy(properties, &own, size);
	return ncclSuccess;
}
