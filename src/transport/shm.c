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
 * Copy mode (GANTRY_SHM_COPY), chosen by each end for itself: its kernels stay in device memory, and the proxy moves
 * steps between that and the segment with the device's copy engine (copy_engine.c). The peer notices nothing but that
 * steps have a largest size and that there is Simple only; the connect infos carry this to both.
 *
 * States of an end's connect, each of which may return AGAIN:
 *   maker   segment made in setup -> eventcount opened -> the taker has the segment -> mapped, filled in
 *   taker   eventcount opened -> segment found or taken -> mapped, filled in
 * So both are connected or none is, and an end that is freed early leaves the other one with AGAIN.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "transport/ends.h"

enum { SHM_MAGIC = 0x73686d31 }; /* "shm1" */

struct shm_info {
	uint32_t magic;
	uint32_t maker;			     /* by this end's parameter */
	uint32_t proxied;		     /* this end is */
	uint32_t ll128;			     /* this end's device keeps the order of a line */
	uint64_t step;			     /* of the maker */
	struct gantry_share_address segment; /* the same */
	struct gantry_eventcount_info eventcount;
};
_Static_assert(sizeof(struct shm_info) <= GANTRY_CONNECT_INFO_SIZE, "travels in the connect info");

/* One end. */
struct shm_end {
	struct gantry_end base; /* first */
	struct gantry_sharing shared;
	void *dev; /* the segment as the device addresses it; NULL: not mapped */
};

static int proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	static const int bits[] = {
		[PARAM_SHM_COPY_OFF] = 0,
		[PARAM_SHM_COPY_SEND] = GANTRY_TRANSPORT_PROXIED_SEND,
		[PARAM_SHM_COPY_RECV] = GANTRY_TRANSPORT_PROXIED_RECV,
		[PARAM_SHM_COPY_BOTH] = GANTRY_TRANSPORT_PROXIED_SEND | GANTRY_TRANSPORT_PROXIED_RECV,
	};

	(void)me;
	(void)peer;
	return bits[gantry_params()->shm_copy];
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

static gantry_result proxy_setup(struct gantry_connector *c)
{
	return gantry_end_proxy_setup(c, sizeof(struct shm_end));
}

static int makes_segment(const struct gantry_connector *c)
{
	return gantry_params()->shm_locality == (c->send ? PARAM_SHM_LOCALITY_SEND : PARAM_SHM_LOCALITY_RECV);
}

static int both_on_host(const struct gantry_connector *c)
{
	return gantry_traits(c->device)->cpu_reads_memory &&
	       gantry_traits_of_kind(c->peer->device_kind)->cpu_reads_memory;
}

static gantry_result setup_end(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	struct shm_info info = {.magic = SHM_MAGIC, .proxied = c->proxy != NULL};
	struct gantry_rings rings;
	struct shm_end *end = gantry_end_get(c, sizeof(*end));

	if (!end)
		return GANTRY_ERR_NOMEM;
	info.maker = (uint32_t)gantry_params()->shm_locality;
	info.ll128 = c->device->ll128_local != 0;
	gantry_eventcount_describe(c, &info.eventcount);
	if (makes_segment(c)) {
		info.step = gantry_rings_round_step(gantry_params()->shm_step);
		gantry_rings_layout(info.step, 1, gantry_ends_keep_lines(c), &rings);
		TRY_NOW(gantry_sharing_make(&end->shared, c, rings.size, &info.segment));
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
	if (makes_segment(c))
		ret_info->step = gantry_rings_round_step(gantry_params()->shm_step);
	if (!gantry_rings_step_is_good(ret_info->step))
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "rank %d has shared memory with steps of %llu bytes", c->peer->rank,
			 (unsigned long long)ret_info->step);
	return GANTRY_OK;
}

/* PTR from the sending end of a pair of kernels, or of a kernel and a copy engine. */
static enum gantry_memory_sharing sharing_of(const struct gantry_connector *c, const struct shm_info *info)
{
	if (!both_on_host(c) || (info->proxied && !c->send))
		return GANTRY_SHARES_NOTHING;
	if (gantry_ends_same_process(c->me, c->peer))
		return GANTRY_SHARES_ADDRESSES;
	return !info->proxied && gantry_ends_see_each_other(c->me, c->peer) ? GANTRY_SHARES_EXPORTED
									    : GANTRY_SHARES_NOTHING;
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	struct shm_end *end = c->resources;
	struct gantry_rings rings;
	struct shm_info info;

	TRY_NOW(check_info(c, peer, &info));
	gantry_rings_layout(info.step, 1, gantry_ends_keep_lines(c), &rings);
	TRY_NOW(gantry_end_open_eventcount(c, &info.eventcount, info.proxied != 0));
	TRY_NOW(gantry_sharing_meet(&end->shared, c, rings.size, &info.segment));
	if (!info.ll128 || !c->device->ll128_local)
		rings.at[GANTRY_PROTO_LL128] = 0;
	TRY_NOW(c->device->ops->map_host(c->device, end->shared.words, rings.size, &end->dev));
	if (end->base.engine)
		return gantry_end_proxy_fill(c, info.step, &end->shared.words->fifo,
					     (char *)end->dev + rings.at[GANTRY_PROTO_SIMPLE],
					     both_on_host(c) && gantry_ends_same_process(c->me, c->peer));
	gantry_end_fill_words(c, end->dev, 0);
	gantry_end_fill(c, &rings, end->dev, info.proxied != 0);
	c->sharing = sharing_of(c, &info);
	return GANTRY_OK;
}

static void free_end(struct gantry_connector *c)
{
	struct shm_end *end = c->resources;

	if (!end)
		return;
	gantry_end_close(c);
	if (end->dev)
		c->device->ops->unmap_host(c->device, end->shared.words);
	gantry_sharing_end(&end->shared);
	free(end);
	c->resources = NULL;
}

static const struct gantry_transport_side side = {
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

const struct gantry_transport gantry_transport_shm = {
	.struct_size = sizeof(struct gantry_transport),
	.name = "shm",
	.proxied = proxied,
	.can_connect = can_connect,
	.send = &side,
	.recv = &side,
};
