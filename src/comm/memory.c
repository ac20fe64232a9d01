/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers. What registering is good for depends on the connection:
 *
 *   ADDRESSES    nothing: the other end is in this process and can read any address
 *   EXPORTED     the peer's process maps the memory (it must be exportable: from gantry_mem_alloc); asked for once
 *                per peer, at the first transfer, through the control plane
 *   REGISTERED   with the network (proxy_register), once per connection, at the first transfer
 *
 * What is registered is a promise of the program: the memory stays until it is deregistered. A program that gives it back by
 * gantry_mem_free all the same may get the address again for other memory. So before a registration is looked for, those
 * of freed memory lose what was made of them at peers and with networks, and get it anew when they are used again. Memory
 * that goes back otherwise (munmap, cudaFree) is not seen: nothing but what the program registers is ever kept.
 *
 * Where it cannot be done the transfer is copied through the connection's ring, silently: registering never breaks it.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "comm/comm_coll.h"
#include "comm/launches.h"
#include "device/freed.h"

#define CANNOT UINT64_MAX

gantry_result gantry_comm_register(struct gantry_comm *comm, void *ptr, size_t size, void **ret_handle)
{
	if (!comm || !ptr || !size || !ret_handle)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_register: invalid buffer (%zu bytes at %p)", size, ptr);
	if (load_acquire(&comm->life.starting))
		FAIL_NOW(GANTRY_ERR_USAGE, "gantry_comm_register: the communicator is not ready yet");
	return comm_memory_register(comm, ptr, size, ret_handle);
}

gantry_result comm_memory_register(struct gantry_comm *comm, void *ptr, size_t size, void **ret_handle)
{
	gantry_result r = GANTRY_OK;
	size_t conns = (size_t)comm->nranks * 2 * (size_t)comm->nchannels;
	struct comm_reg *reg = calloc(1, sizeof(*reg));

	if (!reg)
		FAIL(GANTRY_ERR_NOMEM, "no memory to register a buffer");
	reg->handles = calloc(conns, sizeof(*reg->handles));
	reg->peer_base = calloc((size_t)comm->nranks, sizeof(*reg->peer_base));
	if (!reg->handles || !reg->peer_base)
		FAIL(GANTRY_ERR_NOMEM, "no memory to register a buffer");
	reg->base = ptr;
	reg->size = size;
	reg->freed_seen = gantry_freed_count();
	TRY(comm->device->ops->pointer(comm->device, ptr, &reg->info));
	if (!gantry_slot_can_point((uint64_t)(uintptr_t)ptr, size))
		LOG_INFO(COMM, "%p is above 2^48: transfers from it are copied", ptr);
	gantry_list_append(&comm->regs, &reg->node);
	*ret_handle = reg;
	reg = NULL;
out:
	if (reg) {
		free(reg->handles);
		free(reg->peer_base);
		free(reg);
	}
	return r;
}

struct map_request {
	struct gantry_ipc_handle ipc;
	uint64_t address; /* UNMAP: as sent to the peer */
};

/* With the network. */
static void release_handles(struct gantry_comm *comm, struct comm_reg *reg)
{
	for (int peer = 0; peer < comm->nranks; peer++) {
		for (int i = 0; i < 2 * comm->nchannels; i++) {
			void **handle = &reg->handles[peer * 2 * comm->nchannels + i];
			int send = i >= comm->nchannels, ch = i % comm->nchannels;
			struct gantry_connector *c;

			if (*handle && *handle != (void *)(uintptr_t)CANNOT) {
				ASSERT(comm->peers[peer].conns[send]);
				c = &comm->peers[peer].conns[send][ch].c;
				comm_side_of(c)->proxy_deregister(c->proxy, *handle);
			}
			*handle = NULL;
		}
	}
}

static void unmap_at_peers(struct gantry_comm *comm, struct comm_reg *reg)
{
	struct map_request request;

	memset(&request, 0, sizeof(request));
	for (int peer = 0; peer < comm->nranks; peer++) {
		uint64_t address = reg->peer_base[peer];
		size_t n = 0;

		reg->peer_base[peer] = 0;
		if (!address || address == CANNOT || comm_check(comm) != GANTRY_OK)
			continue;
		request.address = address - (uint64_t)(reg->base - (char *)reg->info.base);
		gantry_ctl_call(comm->ctl, peer, COMM_CALL_UNMAP, &request, sizeof(request), NULL, &n);
	}
}

/* Registrations of memory that was freed since the last look: begun anew, with what is at the address now. */
static void renew_freed(struct gantry_comm *comm)
{
	uint64_t now = gantry_freed_count();

	if (now == comm->freed_seen)
		return;
	gantry_list_each_entry (reg, &comm->regs, struct comm_reg, node) {
		if (!gantry_freed_since(reg->freed_seen, reg->base, reg->size))
			continue;
		LOG_INFO(COMM, "%zu bytes at %p were freed before they were deregistered", reg->size,
			 (void *)reg->base);
		unmap_at_peers(comm, reg);
		release_handles(comm, reg);
		reg->exported = 0;
		if (comm->device->ops->pointer(comm->device, reg->base, &reg->info) != GANTRY_OK)
			reg->size = 0; /* nothing is found in it any more */
		reg->freed_seen = now;
	}
	comm->freed_seen = now;
}

static struct comm_reg *find_reg(struct gantry_comm *comm, const char *buf, uint64_t bytes)
{
	gantry_list_each_entry (reg, &comm->regs, struct comm_reg, node) {
		if (buf >= reg->base && buf + bytes <= reg->base + reg->size)
			return reg;
	}
	return NULL;
}

/*
 * Asks the peer's process to map the allocation; remembers the answer either way. The peer's kernel may be waiting for us
 * already: it sees what is mapped while it runs. (compute-sanitizer knows only what was mapped when a kernel was
 * launched, and reports such reads.)
 */
static void map_at_peer(struct gantry_comm *comm, struct comm_reg *reg, int peer)
{
	struct map_request request;
	uint64_t address = 0;
	size_t n = sizeof(address);
	struct gantry_device *d = comm->device;

	ASSERT(!reg->peer_base[peer] && reg->base);
	reg->peer_base[peer] = CANNOT;
	if (!reg->info.exportable || !reg->info.base)
		return;
	if (!reg->exported && d->ops->ipc_export(d, reg->info.base, reg->info.size, &reg->ipc) != GANTRY_OK)
		return;
	reg->exported = 1;
	memset(&request, 0, sizeof(request));
	request.ipc = reg->ipc;
	if (gantry_ctl_call(comm->ctl, peer, COMM_CALL_MAP, &request, sizeof(request), &address, &n) != GANTRY_OK ||
	    n != sizeof(address) || !address || !gantry_slot_can_point(address, reg->info.size)) {
		LOG_INFO(COMM, "rank %d cannot map memory of rank %d: transfers are copied", peer, comm->rank);
		return;
	}
	reg->peer_base[peer] = address + (uint64_t)(reg->base - (char *)reg->info.base);
}

/* Another GPU of this process reaches what cuMemAlloc gave, which can be exported, and neither memory of pools nor of
 * cuMemMap. */
static int is_good_there(struct gantry_comm *comm, const struct gantry_connector *c, const void *buf)
{
	struct gantry_mem_info info;

	if (strncmp(c->me->bus_id, c->peer->bus_id, sizeof(c->me->bus_id)) == 0)
		return 1;
	return comm->device->ops->pointer(comm->device, buf, &info) == GANTRY_OK && info.exportable;
}

int comm_memory_place(struct gantry_comm *comm, struct comm_conn *cc, const char *buf, uint64_t bytes,
		      uint64_t *ret_place)
{
	struct comm_reg *reg;
	int peer = cc->c.peer->rank;
	uint64_t address = (uint64_t)(uintptr_t)buf;
	size_t at;

	if (!gantry_slot_can_point(address, bytes))
		return 0;
	*ret_place = address;
	if (cc->c.sharing == GANTRY_SHARES_ADDRESSES)
		return is_good_there(comm, &cc->c, buf);
	renew_freed(comm);
	reg = find_reg(comm, buf, bytes);
	if (!reg)
		return 0;
	if (cc->c.sharing == GANTRY_SHARES_EXPORTED) {
		if (!reg->peer_base[peer])
			map_at_peer(comm, reg, peer);
		*ret_place = reg->peer_base[peer] + (uint64_t)(buf - reg->base);
		return reg->peer_base[peer] != CANNOT;
	}
	at = (size_t)(cc->c.state - comm->states_host);
	ASSERT(at < (size_t)comm->nranks * 2 * (size_t)comm->nchannels);
	if (!reg->handles[at] &&
	    comm_side_of(&cc->c)->proxy_register(cc->c.proxy, reg->base, reg->size, &reg->handles[at]) != GANTRY_OK)
		reg->handles[at] = (void *)(uintptr_t)CANNOT;
	return reg->handles[at] != (void *)(uintptr_t)CANNOT;
}

/* ---- of a collective ---- */

/* Some connections take any memory of the device. *ret_shift: gantry_coll's. */
static int can_point(struct gantry_comm *comm, struct comm_conn *cc, const char *buf, uint64_t bytes,
		     uint64_t *ret_shift)
{
	const uint64_t address = (uint64_t)(uintptr_t)buf;
	uint64_t place = address;

	*ret_shift = GANTRY_COLL_KEPT;
	if (!(cc->c.any_memory && gantry_slot_can_point(address, bytes)) &&
	    !comm_memory_place(comm, cc, buf, bytes, &place))
		return 0;
	*ret_shift = cc->c.conn.flags & GANTRY_CONN_LENDS ? place - address : 0;
	return 1;
}

/*
 * Memory that a kernel reads at its peer saves a copy, but the peer waits until it was read. Where ranks share cores that
 * is until the reader gets one. In a broadcast, whose root has nothing else to wait for, copies are faster up to here (2
 * cores, 4 ranks, 64 KiB: a quarter of the time); in the others ranks wait for each other anyway (all_reduce of 256 KiB 41 us
 * instead of 105, reduce_scatter of 1 MiB 60 instead of 211).
 */
enum { LEND_CROWDED = 1 << 19 };

static int may_lend(const struct gantry_comm *comm, const struct comm_collective *coll, const struct comm_conn *cc)
{
	bool crowded = comm->device->sleeps && comm->coll->model.limits.crowd > COLL_CROWD;

	return cc->c.conn.flags & GANTRY_CONN_LENDS &&
	       (!crowded || coll->plan->kind != COLL_BROADCAST || coll->bytes >= LEND_CROWDED);
}

/*
 * GANTRY_COLL_PTR_IN, and OFFERS where proxies move it: connections of the call take the buffer where it lies. All of
 * those with proxies, or none; of the others each for itself. shifts: of the buffer, in every other place.
 */
static uint8_t may_point(struct gantry_comm *comm, const struct comm_collective *coll, const char *buf, uint64_t bytes,
			 uint64_t *shifts)
{
	uint8_t ptr = 0;

	for (uint32_t ch = 0; buf && ch < coll->choice.channels; ch++) {
		const struct coll_plan *plan = coll->plan->channels[ch].plan;

		for (uint32_t i = 0; i < plan->npeers; i++, shifts += 2) {
			struct comm_conn *cc = comm_coll_conn(comm, &plan->peers[i], ch);
			int points = (cc->c.conn.flags & GANTRY_CONN_POINTS) != 0;

			*shifts = GANTRY_COLL_KEPT;
			if (!points && !may_lend(comm, coll, cc))
				continue;
			if (can_point(comm, cc, buf, bytes, shifts))
				ptr |= points ? GANTRY_COLL_PTR_IN | GANTRY_COLL_PTR_OFFERS : GANTRY_COLL_PTR_IN;
			else if (points)
				return 0;
		}
	}
	return ptr;
}

uint8_t comm_memory_ptr(struct gantry_comm *comm, const struct comm_collective *coll, uint64_t *ret_shifts)
{
	const struct gantry_params *p = gantry_params();
	enum coll_kind kind = coll->plan->kind;
	uint64_t all = coll->bytes * (uint64_t)comm->nranks;
	int in_place;
	uint8_t ptr = 0, out;

	if (!p->ptr || coll->choice.proto != GANTRY_PROTO_SIMPLE || coll->bytes < p->ptr_min)
		return 0;
	in_place = coll->in && coll->out && coll->in < coll->out + all && coll->out < coll->in + all;
	if (!(in_place && coll_algos[coll->choice.algo]->overwrites))
		ptr = may_point(comm, coll, coll->in, coll_in_by_rank(kind) ? all : coll->bytes, ret_shifts) &
		      GANTRY_COLL_PTR_IN;
	out = may_point(comm, coll, coll->out, coll_out_by_rank(kind) ? all : coll->bytes, ret_shifts + 1);
	if (out & GANTRY_COLL_PTR_IN)
		ptr |= GANTRY_COLL_PTR_OUT | (out & GANTRY_COLL_PTR_OFFERS);
	return ptr;
}

/* ---- the end of a registration ---- */

static void reg_free(struct gantry_comm *comm, struct comm_reg *reg)
{
	release_handles(comm, reg);
	gantry_list_remove(&reg->node);
	free(reg->handles);
	free(reg->peer_base);
	free(reg);
}

gantry_result gantry_comm_deregister(struct gantry_comm *comm, void *handle)
{
	struct comm_reg *reg = NULL;

	if (!comm || !handle)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_deregister: comm or the registration is NULL");
	gantry_list_each_entry (it, &comm->regs, struct comm_reg, node)
		if (it == handle)
			reg = it;
	if (!reg)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_deregister: %p is not a registration of this communicator",
			 handle);
	unmap_at_peers(comm, reg);
	reg_free(comm, reg);
	return GANTRY_OK;
}

struct retired {
	struct gantry_list node;
	void *opened;
};

void comm_memory_retire(struct gantry_comm *comm, void *opened)
{
	struct retired *x = malloc(sizeof(*x));

	if (!x) { /* it stays mapped until the process ends */
		LOG_WARN(COMM, "no memory to record that %p is to be unmapped", opened);
		return;
	}
	ASSERT(opened);
	x->opened = opened;
	comm_mu_lock(&comm->mu);
	gantry_list_append(&comm->peer_memory.retired, &x->node);
	store_release(&comm->peer_memory.nretired, comm->peer_memory.nretired + 1);
	comm_mu_unlock(&comm->mu);
}

static void close_retired(struct gantry_comm *comm)
{
	struct gantry_list taken;

	gantry_list_init(&taken);
	comm_mu_lock(&comm->mu);
	gantry_list_each_entry_safe (x, &comm->peer_memory.retired, struct retired, node) {
		gantry_list_remove(&x->node);
		gantry_list_append(&taken, &x->node);
	}
	store_release(&comm->peer_memory.nretired, 0);
	comm_mu_unlock(&comm->mu);
	gantry_list_each_entry_safe (x, &taken, struct retired, node) {
		comm->device->ops->ipc_close(comm->device, x->opened);
		free(x);
	}
}

/* On a GPU closing may wait for kernels of other communicators, too. */
void comm_memory_reap(struct gantry_comm *comm)
{
	if (load_acquire(&comm->peer_memory.nretired) && !comm_works_busy(comm) &&
	    (!gantry_traits(comm->device)->calls_may_wait || !comm_watch_busy(comm->device)))
		close_retired(comm);
}

void comm_memory_free(struct gantry_comm *comm)
{
	close_retired(comm);
	gantry_list_each_entry_safe (reg, &comm->regs, struct comm_reg, node)
		reg_free(comm, reg);
	for (size_t i = 0; i < comm->peer_memory.nmapped; i++) /* memory of peers */
		comm->device->ops->ipc_close(comm->device, comm->peer_memory.mapped[i]);
	free(comm->peer_memory.mapped);
}

/* On the service thread; `mapped` is its alone until the control plane has been left. */
gantry_result comm_memory_call(void *ctx, int from, uint32_t kind, const void *data, size_t size, void *reply,
			       size_t *reply_size)
{
	struct gantry_comm *comm = ctx;
	struct gantry_device *d = comm->device;
	struct map_request request;
	void *p = NULL, **grown;
	uint64_t address;

	if (kind == COMM_CALL_PUT)
		return comm_onesided_call(comm, from, data, size, reply, reply_size);
	if (size != sizeof(request))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d sent a mapping request of an invalid size (%zu bytes)", from,
			 size);
	memcpy(&request, data, sizeof(request));
	if (kind == COMM_CALL_MAP && *reply_size >= sizeof(address)) {
		grown = realloc(comm->peer_memory.mapped, (comm->peer_memory.nmapped + 1) * sizeof(*grown));
		if (!grown)
			FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to map a buffer of rank %d", from);
		comm->peer_memory.mapped = grown;
		TRY_NOW(d->ops->ipc_open(d, &request.ipc, &p));
		comm->peer_memory.mapped[comm->peer_memory.nmapped++] = p;
		address = (uint64_t)(uintptr_t)p;
		memcpy(reply, &address, sizeof(address));
		*reply_size = sizeof(address);
	} else if (kind == COMM_CALL_UNMAP) {
		*reply_size = 0;
		for (size_t i = 0; i < comm->peer_memory.nmapped; i++) {
			if ((uint64_t)(uintptr_t)comm->peer_memory.mapped[i] != request.address)
				continue;
			p = comm->peer_memory.mapped[i];
			comm->peer_memory.mapped[i] = comm->peer_memory.mapped[--comm->peer_memory.nmapped];
			if (!gantry_traits(d)->calls_may_wait)
				return d->ops->ipc_close(d, p);
			comm_memory_retire(comm, p); /* closing may wait for kernels that wait for this rank */
			break;
		}
	} else {
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d sent unknown call %u", from, kind);
	}
	return GANTRY_OK;
}
