/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel to kernel by loads and stores: between host devices of one host, between ranks on the same GPU or on GPUs that
 * reach each other, and with GANTRY_P2P=force between any GPUs of a host. can_connect has only the two infos: each rank
 * has asked the driver which of the GPUs that it sees its own one does not reach. A process need not see the peer's GPU
 * (Slurm and Ray show each process its own alone) to open memory of it. So can_connect answers yes unless one of the two
 * sees that it is not so, and whether it is so the communicator tries before it chooses (the probe below; comm/probe.c).
 *
 * Each end waits on its own memory, its block, and stores into the other's:
 *
 *   receiving end's block   tail, slots, rings
 *   sending end's block     head
 *
 * A block begins with struct gantry_end_words, of which an end uses those that it waits on, and `opened`, which says
 * that the peer has opened the block. Another process opens it by a handle of the device. Within a process the end that
 * made a block may be freed while the other end's kernel still stores into it (a receiver publishes the head to a
 * sender that has long ended), or before the other end has come at all: there the connect info carries a random token,
 * an end that finds the block by it holds a reference, and the last one frees it.
 *
 * A connect is done when each has opened the other's block: an end that has nothing more to do may be freed, and its
 * process may end, before the other one begins.
 *
 * Copy mode (GANTRY_P2P_COPY, chosen by the sending end for itself): the proxy moves steps into the receiver's ring
 * with the device's copy engine (copy_engine.c). Its CPU cannot store into another process's GPU memory, so the FIFO's
 * words are in a segment of host memory then, which the sender makes and the receiver takes (device/share.h); the ring
 * stays where it is. The connect infos tell the receiver. Without a socket between the two (other network namespaces)
 * there is no copy mode.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hmac.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/param.h"
#include "transport/ends.h"

enum { P2P_MAGIC = 0x70327031 }; /* "p2p1" */

struct p2p_block {
	struct gantry_list node; /* of all of the process; blocks_mu, as refs and found */
	int refs, found;
	unsigned char token[16];
	struct gantry_device *device; /* counted: the block may outlive its communicator */
	char *base;		      /* as the device addresses it */
	size_t size;
};

/* What the peer needs to find a block; travels in connect infos. */
struct p2p_block_info {
	unsigned char token[16];	 /* within the process */
	struct gantry_ipc_handle memory; /* from elsewhere */
};

/* The peer's block. Zeroed is none. */
struct p2p_remote {
	char *base;
	struct p2p_block *block; /* counted; NULL: of another process */
};

struct p2p_info {
	uint32_t magic;
	uint32_t copies; /* the sending end is proxied */
	uint32_t ll128;	 /* this end's device keeps the order of a line */
	uint32_t reserved;
	uint64_t step; /* of the receiving end */
	struct p2p_block_info block;
	struct gantry_share_address words; /* of a sending end that is proxied */
	struct gantry_eventcount_info eventcount;
};
_Static_assert(sizeof(struct p2p_info) <= GANTRY_CONNECT_INFO_SIZE, "travels in the connect info");

/* One end. */
struct p2p_end {
	struct gantry_end base;	     /* first */
	struct p2p_block *block;     /* counted; a proxied end has none, */
	struct p2p_block *probe;     /* but a page for say_opened where that needs one; else NULL */
	struct p2p_remote remote;    /* the peer's; of a proxied one there is none */
	struct gantry_sharing words; /* copy mode */
	void *words_dev;	     /* receiving end: as the device addresses them; NULL: not mapped */
};

/* ---- blocks ---- */

MUTEX_KIND(blocks_mu);
static struct blocks_mu blocks_mu_one;
static struct gantry_list blocks GUARDED_BY(blocks_mu) = {&blocks, &blocks};

static void block_free(struct p2p_block *b)
{
	if (b->base)
		b->device->ops->free(b->device, b->base);
	gantry_device_close(b->device);
	free(b);
}

static void block_put(struct p2p_block *b)
{
	int last;

	if (!b)
		return;
	blocks_mu_lock(&blocks_mu_one);
	ASSERT(b->refs > 0);
	last = --b->refs == 0;
	if (last)
		gantry_list_remove(&b->node);
	blocks_mu_unlock(&blocks_mu_one);
	if (last)
		block_free(b);
}

static gantry_result block_create(const struct gantry_connector *c, size_t size, struct p2p_block **ret_block)
{
	gantry_result r = GANTRY_OK;
	struct p2p_block *b = calloc(1, sizeof(*b));
	void *base = NULL;

	if (!b)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	b->refs = 1;
	TRY(gantry_random_bytes(b->token, sizeof(b->token)));
	TRY(gantry_device_open(c->device->kind, c->device->index, &b->device));
	TRY(c->device->ops->alloc(c->device, size, &base));
	b->base = base;
	b->size = size;
	blocks_mu_lock(&blocks_mu_one);
	gantry_list_append(&blocks, &b->node);
	blocks_mu_unlock(&blocks_mu_one);
	*ret_block = b;
	b = NULL;
out:
	if (b)
		block_free(b);
	return r;
}

static struct p2p_block *block_find(const unsigned char token[16])
{
	struct p2p_block *found = NULL;

	blocks_mu_lock(&blocks_mu_one);
	gantry_list_each_entry (b, &blocks, struct p2p_block, node) {
		if (memcmp(b->token, token, sizeof(b->token)) == 0)
			found = b;
	}
	if (found) {
		ASSERT(found->refs > 0);
		found->refs++;
		found->found = 1;
	}
	blocks_mu_unlock(&blocks_mu_one);
	return found;
}

static gantry_result block_describe(const struct gantry_connector *c, struct p2p_block *b,
				    struct p2p_block_info *ret_info)
{
	memset(ret_info, 0, sizeof(*ret_info));
	if (gantry_ends_same_process(c->me, c->peer)) {
		memcpy(ret_info->token, b->token, sizeof(b->token));
		return GANTRY_OK;
	}
	return c->device->ops->ipc_export(c->device, b->base, b->size, &ret_info->memory);
}

/* Whether the peer has opened it: OK or AGAIN. The word is in device memory, which the CPU may not be able to read. */
static gantry_result block_is_opened(const struct gantry_connector *c, struct p2p_block *b)
{
	gantry_result r = GANTRY_OK;
	uint64_t opened = 0;

	if (gantry_ends_same_process(c->me, c->peer)) {
		blocks_mu_lock(&blocks_mu_one);
		opened = (uint64_t)b->found;
		blocks_mu_unlock(&blocks_mu_one);
	} else {
		TRY(c->device->ops->copy(c->device, &opened, b->base + offsetof(struct gantry_end_words, opened),
					 sizeof(opened)));
	}
	r = opened ? GANTRY_OK : GANTRY_AGAIN;
out:
	return r;
}

/* Within a process: between two GPUs only if the hardware can. */
static gantry_result check_access(const struct gantry_connector *c, const struct p2p_block *b)
{
	int can = 0;

	TRY_NOW(c->device->ops->peer_access(c->device, b->device, &can));
	if (!can)
		FAIL_NOW(GANTRY_ERR_UNREACHABLE,
			 "%s (rank %d) cannot address memory of %s (rank %d), though GANTRY_P2P=force requires it",
			 c->device->name, c->me->rank, b->device->name, c->peer->rank);
	return GANTRY_OK;
}

static void remote_close(const struct gantry_connector *c, struct p2p_remote *remote)
{
	if (remote->block)
		block_put(remote->block);
	else if (remote->base)
		c->device->ops->ipc_close(c->device, remote->base);
	memset(remote, 0, sizeof(*remote));
}

static int same_gpu(const struct gantry_connector *c) /* or both are the host */
{
	return strncmp(c->me->bus_id, c->peer->bus_id, sizeof(c->me->bus_id)) == 0;
}

/*
 * Writes 1 to a word of a peer's memory by a copy from this GPU's own, the way that kernels will take, and looks whether it
 * has arrived: drivers call GPUs peers whose writes an IOMMU or a switch (ACS) then drops. own: two words of this GPU.
 */
static gantry_result write_and_look(struct gantry_device *d, uint64_t *own, void *word, int *ret_arrived)
{
	uint64_t there = 1, back = 0;

	TRY_NOW(d->ops->copy(d, own, &there, sizeof(there)));
	TRY_NOW(d->ops->copy(d, word, own, sizeof(there)));
	TRY_NOW(d->ops->copy(d, own + 1, word, sizeof(back)));
	TRY_NOW(d->ops->copy(d, &back, own + 1, sizeof(back)));
	*ret_arrived = back == there;
	return GANTRY_OK;
}

/*
 * Says in the peer's block that it is open. Between two GPUs the way that kernels will take: an error now is better than
 * wrong data. The words for it are a part of this end's block: the driver frees none before all kernels of the GPU have
 * ended, and one of them may be waiting for this very connection.
 */
static gantry_result say_opened(const struct gantry_connector *c, const struct p2p_block *mine, char *remote)
{
	struct gantry_device *d = c->device;
	char *word = remote + offsetof(struct gantry_end_words, opened);
	uint64_t there = 1;
	int arrived = 0;

	if (same_gpu(c))
		return d->ops->copy(d, word, &there, sizeof(there));
	ASSERT(mine && mine->base);
	TRY_NOW(write_and_look(d, (uint64_t *)(void *)(mine->base + offsetof(struct gantry_end_words, probe)), word,
			       &arrived));
	if (!arrived)
		FAIL_NOW(GANTRY_ERR_UNREACHABLE,
			 "writes of GPU %s (rank %d) to memory of GPU %s (rank %d) do not arrive, although the driver "
			 "reports them as peers; set GANTRY_P2P=off on all ranks, or disable ACS",
			 c->me->bus_id, c->me->rank, c->peer->bus_id, c->peer->rank);
	return GANTRY_OK;
}

static gantry_result remote_open(const struct gantry_connector *c, const struct p2p_block *mine,
				 const struct p2p_block_info *info, struct p2p_remote *ret_remote)
{
	gantry_result r = GANTRY_OK;
	struct p2p_remote remote = {0};
	void *base = NULL;

	if (gantry_ends_same_process(c->me, c->peer)) {
		remote.block = block_find(info->token);
		if (!remote.block)
			FAIL(GANTRY_ERR_PEER_LOST, "rank %d's end of a connection was closed", c->peer->rank);
		remote.base = remote.block->base;
		TRY(check_access(c, remote.block));
		if (!same_gpu(c))
			TRY(say_opened(c, mine, remote.base));
	} else {
		r = c->device->ops->ipc_open(c->device, &info->memory, &base);
		if (r == GANTRY_ERR_INVALID)
			FAIL(GANTRY_ERR_PEER_LOST, "rank %d's end of a connection was closed", c->peer->rank);
		TRY(r);
		remote.base = base;
		TRY(say_opened(c, mine, remote.base));
	}
	*ret_remote = remote;
	remote.base = NULL;
out:
	if (remote.base || (r != GANTRY_OK && remote.block))
		remote_close(c, &remote);
	return r;
}

/* ---- the probe ---- */

gantry_result gantry_p2p_probe_make(struct gantry_p2p_probe *p, struct gantry_device *device, int nranks,
				    struct gantry_ipc_handle *ret_handle)
{
	size_t size = ((size_t)nranks + 2) * sizeof(*p->base);
	void *base = NULL;

	p->device = device;
	p->opened = calloc((size_t)nranks, sizeof(*p->opened));
	if (!p->opened)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a probe of %d ranks", nranks);
	p->nranks = nranks;
	TRY_NOW(device->ops->alloc(device, size, &base));
	p->base = base;
	return device->ops->ipc_export(device, base, size, ret_handle);
}

/* Two GPUs of one process: the driver opens nothing, access is to be enabled. */
static gantry_result enable_access(struct gantry_device *d, const struct gantry_peer_info *peer)
{
	struct gantry_device *other = NULL;
	gantry_result r = GANTRY_OK;
	int can = 0;

	TRY(gantry_device_open((enum gantry_device_kind)peer->device_kind, peer->device_index, &other));
	TRY(d->ops->peer_access(d, other, &can));
	if (!can)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s cannot address memory of %s", d->name, other->name);
out:
	gantry_device_close(other);
	return r;
}

gantry_result gantry_p2p_probe_try(struct gantry_p2p_probe *p, const struct gantry_peer_info *me,
				   const struct gantry_peer_info *peer, const struct gantry_ipc_handle *handle)
{
	struct gantry_device *d = p->device;
	void *at = NULL;
	int arrived = 0;

	if (gantry_ends_same_process(me, peer))
		TRY_NOW(enable_access(d, peer));
	TRY_NOW(d->ops->ipc_open(d, handle, &at));
	p->opened[peer->rank] = at;
	TRY_NOW(write_and_look(d, p->base, (uint64_t *)at + 2 + me->rank, &arrived));
	if (!arrived)
		FAIL_NOW(GANTRY_ERR_UNREACHABLE,
			 "writes of GPU %s to memory of GPU %s do not arrive (IOMMU, or ACS of a PCI switch)",
			 me->bus_id, peer->bus_id);
	return GANTRY_OK;
}

void gantry_p2p_probe_free(struct gantry_p2p_probe *p)
{
	for (int i = 0; i < p->nranks; i++)
		if (p->opened[i])
			p->device->ops->ipc_close(p->device, p->opened[i]);
	if (p->base)
		p->device->ops->free(p->device, p->base);
	free(p->opened);
	memset(p, 0, sizeof(*p));
}

/* ---- ends ---- */

static int proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	if (gantry_params()->p2p_copy == PARAM_P2P_COPY_OFF ||
	    (!gantry_ends_same_process(me, peer) && me->net_ns != peer->net_ns))
		return 0;
	return GANTRY_TRANSPORT_PROXIED_SEND;
}

/* Each has looked when its communicator was made: one that sees the other's GPU and does not reach it is enough. */
static int sees_apart(const struct gantry_peer_info *a, const struct gantry_peer_info *b)
{
	uint32_t hash = gantry_bus_hash(b->bus_id);

	for (size_t i = 0; i < sizeof(a->apart) / sizeof(*a->apart); i++)
		if (a->apart[i] == hash)
			return 1;
	return 0;
}

static int are_near(const struct gantry_peer_info *a, const struct gantry_peer_info *b)
{
	return strncmp(a->bus_id, b->bus_id, sizeof(a->bus_id)) == 0 || (!sees_apart(a, b) && !sees_apart(b, a));
}

static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	int mode = gantry_params()->p2p;

	*ret_can = 0;
	if (mode == PARAM_P2P_OFF)
		snprintf(why, len, "GANTRY_P2P=off");
	else if (me->host != peer->host)
		snprintf(why, len, "%.64s is another host", peer->host_name);
	else if (me->device_kind != peer->device_kind)
		snprintf(why, len, "a GPU and the host device do not address each other's memory");
	else if (!are_near(me, peer) && mode != PARAM_P2P_FORCE)
		snprintf(why, len, "GPUs %.23s and %.23s have no peer access (GANTRY_P2P=force tries it anyway)",
			 me->bus_id, peer->bus_id);
	else if (me->process == peer->process)
		*ret_can = 1;
	else if (me->pid_ns != peer->pid_ns)
		snprintf(why, len, "another pid namespace (%llu and %llu)", (unsigned long long)me->pid_ns,
			 (unsigned long long)peer->pid_ns);
	else if (me->user != peer->user)
		snprintf(why, len, "another user (%llu and %llu)", (unsigned long long)me->user,
			 (unsigned long long)peer->user);
	else
		*ret_can = 1;
	return GANTRY_OK;
}

static gantry_result proxy_setup(struct gantry_connector *c)
{
	return gantry_end_proxy_setup(c, sizeof(struct p2p_end));
}

static uint64_t own_step(const struct gantry_connector *c)
{
	uint64_t step = gantry_params()->p2p_step;

	if (!step)
		step = gantry_traits(c->device)->p2p_step;
	return gantry_rings_round_step(step);
}

/* The rings as the receiving end, whose device keeps the order of a line or not, lays them out. */
static void lay_out(const struct gantry_connector *c, uint64_t step, int ll128, struct gantry_rings *ret_rings)
{
	gantry_rings_layout(step, 1, same_gpu(c) && ll128, ret_rings);
}

static gantry_result setup_end(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	struct p2p_info info = {.magic = P2P_MAGIC, .copies = c->proxy != NULL};
	struct gantry_rings rings = {.size = GANTRY_ENDS_PAGE};
	struct p2p_end *end = gantry_end_get(c, sizeof(*end));

	if (!end)
		return GANTRY_ERR_NOMEM;
	info.ll128 = c->device->ll128_local != 0;
	gantry_eventcount_describe(c, &info.eventcount);
	if (!c->send) {
		info.step = own_step(c);
		lay_out(c, info.step, (int)info.ll128, &rings);
	}
	if (c->proxy) {
		TRY_NOW(gantry_sharing_make(&end->words, c, sizeof(struct gantry_end_words), &info.words));
		if (!same_gpu(c))
			TRY_NOW(block_create(c, GANTRY_ENDS_PAGE, &end->probe));
	} else {
		TRY_NOW(block_create(c, rings.size, &end->block));
		TRY_NOW(block_describe(c, end->block, &info.block));
	}
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
	return GANTRY_OK;
}

static gantry_result check_info(const struct gantry_connector *c, const struct gantry_connect_info *peer,
				struct p2p_info *ret_info)
{
	memcpy(ret_info, peer, sizeof(*ret_info));
	if (ret_info->magic != P2P_MAGIC)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d chose another transport than p2p", c->peer->rank);
	if (c->send && ret_info->copies) /* only sending ends are proxied */
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d says that its receiving end copies", c->peer->rank);
	if (!c->send)
		ret_info->step = own_step(c);
	if (!gantry_rings_step_is_good(ret_info->step))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d has a ring with steps of %llu bytes", c->peer->rank,
			 (unsigned long long)ret_info->step);
	return GANTRY_OK;
}

static gantry_result meet(struct gantry_connector *c, struct p2p_end *end, const struct p2p_info *info)
{
	int peer_has_block = c->send || !info->copies;

	if (peer_has_block && !end->remote.base)
		TRY_NOW(remote_open(c, end->block ? end->block : end->probe, &info->block, &end->remote));
	if (end->base.engine || !peer_has_block)
		TRY_NOW(gantry_sharing_meet(&end->words, c, sizeof(struct gantry_end_words), &info->words));
	if (end->block)
		TRY_NOW(block_is_opened(c, end->block));
	return GANTRY_OK;
}

static void fill_direct(struct gantry_connector *c, const struct p2p_end *end, int copies,
			const struct gantry_rings *rings)
{
	struct gantry_fifo *mine = (void *)end->block->base, *theirs = (void *)end->remote.base;

	ASSERT(!end->base.engine);
	gantry_end_fill_words(c, copies ? end->words_dev : c->send ? theirs : mine, 0);
	if (!copies)
		c->conn.head = c->send ? &mine->head : &theirs->head; /* the sender waits for it */
	gantry_end_fill(c, rings, c->send ? end->remote.base : end->block->base, copies);
	c->sharing = copies					? GANTRY_SHARES_NOTHING
		     : gantry_ends_same_process(c->me, c->peer) ? GANTRY_SHARES_ADDRESSES
								: GANTRY_SHARES_EXPORTED;
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct p2p_end *end = c->resources;
	int ll128 = c->device->ll128_local != 0;
	struct gantry_rings rings;
	struct p2p_info info;

	TRY_NOW(check_info(c, peer, &info));
	TRY_NOW(gantry_end_open_eventcount(c, &info.eventcount, info.copies != 0));
	TRY_NOW(meet(c, end, &info));
	lay_out(c, info.step, c->send ? (int)info.ll128 : ll128, &rings);
	if (!info.ll128 || !ll128)
		rings.at[GANTRY_PROTO_LL128] = 0;
	if (!c->send && info.copies)
		TRY_NOW(c->device->ops->map_host(c->device, end->words.words, sizeof(struct gantry_end_words),
						 &end->words_dev));
	if (end->base.engine)
		return gantry_end_proxy_fill(c, info.step, &end->words.words->fifo,
					     end->remote.base + rings.at[GANTRY_PROTO_SIMPLE], 0);
	fill_direct(c, end, info.copies != 0, &rings);
	return GANTRY_OK;
}

static void free_end(struct gantry_connector *c)
{
	struct p2p_end *end = c->resources;

	if (!end)
		return;
	gantry_end_close(c);
	if (end->words_dev)
		c->device->ops->unmap_host(c->device, end->words.words);
	gantry_sharing_end(&end->words);
	remote_close(c, &end->remote);
	block_put(end->block);
	block_put(end->probe);
	free(end);
	c->resources = NULL;
}

static const struct gantry_transport_side send_side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup_end,
	.connect = connect_end,
	.free = free_end,
	.proxy_setup = proxy_setup,
	.proxy_connect = gantry_end_proxy_connect,
	.proxy_progress = gantry_end_proxy_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = gantry_end_proxy_free,
};

static const struct gantry_transport_side recv_side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup_end,
	.connect = connect_end,
	.free = free_end,
	.proxy_setup = gantry_transport_unsupported_connector,
	.proxy_connect = gantry_transport_unsupported_connector,
	.proxy_progress = gantry_transport_unsupported_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = gantry_transport_unsupported_free,
};

const struct gantry_transport gantry_transport_p2p = {
	.struct_size = sizeof(struct gantry_transport),
	.name = "p2p",
	.proxied = proxied,
	.can_connect = can_connect,
	.send = &send_side,
	.recv = &recv_side,
};
