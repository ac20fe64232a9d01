/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between two processes, or two threads, of a host. One segment (device/share.h) per connection:
 *
 *   page 0     struct gantry_end_words: head, tail, slots
 *   then       rings of 8 steps: Simple, LL, LL128 (the last between two host devices only: a GPU reads host memory in
 *              pieces, so the order within a line is not certain)
 *
 * One end makes it (GANTRY_SHM_LOCALITY) and with that chooses the size of its steps. A device that is not the host
 * maps it (map_host), so its kernels work on it by loads and stores over the bus.
 *
 * States of an end's connect, each of which may say AGAIN:
 *   maker   segment made in setup -> eventcount opened -> somebody has the segment -> mapped, filled in
 *   taker   eventcount opened -> segment found or taken -> mapped, filled in
 * So both are connected or none is, and an end that is freed early leaves the other one with AGAIN.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/param.h"
#include "device/share.h"
#include "transport/ends.h"

enum { SHM_MAGIC = 0x73686d31 }; /* "shm1" */

struct shm_info {
	uint32_t magic;
	uint32_t maker; /* by this end's parameter */
	uint32_t reserved;
	uint32_t ll128;			     /* this end's device keeps the order of a line */
	uint64_t step;			     /* of the maker */
	struct gantry_share_address segment; /* the same */
	struct gantry_eventcount_info eventcount;
};
_Static_assert(sizeof(struct shm_info) <= GANTRY_CONNECT_INFO_SIZE, "travels in the connect info");

/* The segment, which one end makes and the other one gets. Zeroed is none. */
struct shm_sharing {
	struct gantry_end_words *words; /* where it begins; counted */
	int made;			/* by this end */
	struct gantry_offer offer;	/* maker, to another process */
	struct gantry_taker taker;
};

/* One end. Owned by the thread that connects. */
struct shm_end {
	struct gantry_remote_eventcount eventcount;
	struct shm_sharing shared;
	void *dev; /* the segment as the device addresses it; NULL: not mapped */
};

/* For the maker's setup. */
static gantry_result sharing_make(struct shm_sharing *s, const struct gantry_connector *c, size_t size,
				  struct gantry_share_address *ret_address)
{
	void *memory = NULL;

	TRY_NOW(gantry_share_create(size, &memory, ret_address));
	s->words = memory;
	s->made = 1;
	if (gantry_ends_same_process(c->me, c->peer))
		gantry_share_close_file(memory);
	else
		TRY_NOW(gantry_share_offer(&s->offer, memory, c->peer->user, ret_address));
	return GANTRY_OK;
}

/* The maker may be freed before it is ready: so nobody holds what is not ready. */
static gantry_result find_ready(const struct gantry_share_address *address, struct gantry_end_words **ret_words)
{
	gantry_result r = GANTRY_OK;
	struct gantry_end_words *words;
	void *memory = NULL;

	TRY(gantry_share_find(address->id, &memory));
	words = memory;
	if (load_acquire(&words->ready)) {
		*ret_words = words;
	} else {
		gantry_share_put(memory, false);
		r = GANTRY_AGAIN;
	}
out:
	return r;
}

/* For connect. AGAIN until both ends have it: the maker knows that the other one has, too. */
static gantry_result sharing_meet(struct shm_sharing *s, const struct gantry_connector *c, size_t size,
				  const struct gantry_share_address *address)
{
	void *memory = NULL;

	if (s->made) {
		store_release(&s->words->ready, 1);
		if (s->offer.memory)
			gantry_share_serve(&s->offer);
		if (!load_acquire(&s->words->opened))
			return GANTRY_AGAIN;
		if (s->offer.memory)
			gantry_share_close_file(s->words);
		gantry_share_withdraw(&s->offer);
		return GANTRY_OK;
	}
	if (!s->words && gantry_ends_same_process(c->me, c->peer)) {
		TRY_NOW(find_ready(address, &s->words));
	} else if (!s->words) {
		TRY_NOW(gantry_share_take(&s->taker, address, c->peer->user, size, &memory));
		s->words = memory;
	}
	if (!load_acquire(&s->words->ready))
		return GANTRY_AGAIN;
	store_release(&s->words->opened, 1);
	return GANTRY_OK;
}

static void sharing_end(struct shm_sharing *s)
{
	gantry_share_withdraw(&s->offer);
	gantry_share_taker_close(&s->taker);
	if (s->words)
		gantry_share_put(s->words, s->made);
	s->words = NULL;
}

static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	*ret_can = 0;
	if (me->host != peer->host)
		snprintf(why, len, "%.64s is another host", peer->host_name);
	else if (me->process == peer->process)
		*ret_can = 1;
	else if (me->net_ns != peer->net_ns)
		snprintf(why, len, "another network namespace (%llu and %llu), so no socket to hand memory over",
			 (unsigned long long)me->net_ns, (unsigned long long)peer->net_ns);
	else if (me->user != peer->user && me->user && peer->user)
		snprintf(why, len, "another user (%llu and %llu)", (unsigned long long)me->user,
			 (unsigned long long)peer->user);
	else
		*ret_can = 1;
	return GANTRY_OK;
}

static int makes(const struct gantry_connector *c)
{
	return gantry_params()->shm_locality == (c->send ? PARAM_SHM_LOCALITY_SEND : PARAM_SHM_LOCALITY_RECV);
}

static int both_on_host(const struct gantry_connector *c)
{
	return gantry_traits(c->device)->cpu_reads_memory &&
	       gantry_traits_of_kind(c->peer->device_kind)->cpu_reads_memory;
}

static gantry_result setup(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	struct shm_info info = {.magic = SHM_MAGIC};
	struct gantry_rings rings;
	struct shm_end *end = calloc(1, sizeof(*end));

	if (!end)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	c->resources = end;
	info.maker = (uint32_t)gantry_params()->shm_locality;
	info.ll128 = c->device->ll128_local != 0;
	gantry_eventcount_describe(c, &info.eventcount);
	if (makes(c)) {
		info.step = gantry_rings_round_step(gantry_params()->shm_step);
		gantry_rings_layout(info.step, 1, gantry_ends_keep_lines(c), &rings);
		TRY_NOW(sharing_make(&end->shared, c, rings.size, &info.segment));
	}
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
	return GANTRY_OK;
}

static gantry_result check_info(const struct gantry_connector *c, const struct gantry_connect_info *peer,
				struct shm_info *ret_info)
{
	uint32_t mine = (uint32_t)gantry_params()->shm_locality;

	memcpy(ret_info, peer, sizeof(*ret_info));
	if (ret_info->magic != SHM_MAGIC)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d chose another transport than shm", c->peer->rank);
	if (ret_info->maker != mine)
		FAIL_NOW(GANTRY_ERR_SETTING,
			 "GANTRY_SHM_LOCALITY is %s on rank %d and %s on rank %d: all ranks must agree",
			 mine == PARAM_SHM_LOCALITY_SEND ? "send" : "recv", c->me->rank,
			 ret_info->maker == PARAM_SHM_LOCALITY_SEND ? "send" : "recv", c->peer->rank);
	if (makes(c))
		ret_info->step = gantry_rings_round_step(gantry_params()->shm_step);
	if (!gantry_rings_step_is_good(ret_info->step))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d has shared memory with steps of %llu bytes", c->peer->rank,
			 (unsigned long long)ret_info->step);
	return GANTRY_OK;
}

static enum gantry_memory_sharing sharing_of(const struct gantry_connector *c)
{
	if (!both_on_host(c))
		return GANTRY_SHARES_NOTHING;
	if (gantry_ends_same_process(c->me, c->peer))
		return GANTRY_SHARES_ADDRESSES;
	return gantry_ends_see_each_other(c->me, c->peer) ? GANTRY_SHARES_EXPORTED : GANTRY_SHARES_NOTHING;
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct shm_end *end = c->resources;
	struct gantry_rings rings;
	struct shm_info info;

	TRY_NOW(check_info(c, peer, &info));
	gantry_rings_layout(info.step, 1, gantry_ends_keep_lines(c), &rings);
	TRY_NOW(gantry_remote_eventcount_open(&end->eventcount, c, &info.eventcount));
	TRY_NOW(sharing_meet(&end->shared, c, rings.size, &info.segment));
	if (!info.ll128 || !c->device->ll128_local)
		rings.at[GANTRY_PROTO_LL128] = 0;
	TRY_NOW(c->device->ops->map_host(c->device, end->shared.words, rings.size, &end->dev));
	gantry_end_fill_words(c, end->dev, 0);
	gantry_end_fill(c, &rings, end->dev, &end->eventcount);
	c->sharing = sharing_of(c);
	return GANTRY_OK;
}

static void free_end(struct gantry_connector *c)
{
	struct shm_end *end = c->resources;

	if (!end)
		return;
	gantry_remote_eventcount_close(&end->eventcount);
	if (end->dev)
		c->device->ops->unmap_host(c->device, end->shared.words);
	sharing_end(&end->shared);
	free(end);
	c->resources = NULL;
}

static const struct gantry_transport_side side = {
	.struct_size = sizeof(struct gantry_transport_side),
	.setup = setup,
	.connect = connect_end,
	.free = free_end,
	.proxy_setup = gantry_transport_unsupported_connector,
	.proxy_connect = gantry_transport_unsupported_connector,
	.proxy_progress = gantry_transport_unsupported_progress,
	.proxy_register = gantry_transport_unsupported_register,
	.proxy_deregister = gantry_transport_unsupported_deregister,
	.proxy_free = gantry_transport_unsupported_free,
};

const struct gantry_transport gantry_transport_shm = {
	.struct_size = sizeof(struct gantry_transport),
	.name = "shm",
	.proxied = gantry_ends_unproxied,
	.can_connect = can_connect,
	.send = &side,
	.recv = &side,
};
