/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel to kernel by loads and stores: between host devices of one host, between ranks on the same GPU, and with
 * GANTRY_P2P=force between different GPUs of a host. can_connect has only the two infos, and they do not say whether
 * two GPUs reach each other; so without force it answers yes only where that is certain.
 *
 * Each end waits on its own memory and stores into the other's (p2p_block.h):
 *
 *   receiving end's block   tail, slots, rings
 *   sending end's block     head
 *
 * A connect is done when each has opened the other's block: an end that has nothing more to do may be freed, and its
 * process may end, before the other one begins.
 *
 * Copy mode (GANTRY_P2P_COPY, chosen by the sending end for itself): the proxy moves steps into the receiver's ring
 * with the device's copy engine (copy_engine.h). Its CPU cannot store into another process's GPU memory, so the FIFO's
 * words are in a segment of host memory then, which the sender makes and the receiver takes (segment.h); the ring stays
 * where it is. The connect infos tell the receiver. Without a socket between the two (other network namespaces) there
 * is no copy mode.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "transport/copy_engine.h"
#include "transport/p2p_block.h"

enum { P2P_MAGIC = 0x70327031 };		   /* "p2p1" */
enum { P2P_AUTO = 0, P2P_FORCE = 1, P2P_OFF = 2 }; /* as GANTRY_P2P counts them */

struct p2p_info {
	uint32_t magic;
	uint32_t copies; /* the sending end is proxied */
	uint32_t ll128;	 /* this end's device keeps the order of a line */
	uint32_t reserved;
	uint64_t step; /* of the receiving end */
	struct p2p_block_info block;
	struct gantry_handover_address words; /* of a sending end that is proxied */
	struct gantry_door_info door;
};
_Static_assert(sizeof(struct p2p_info) <= GANTRY_CONNECT_INFO_SIZE, "travels in the connect info");

/* One end. */
struct p2p_end {
	struct gantry_end base;	     /* first */
	struct p2p_block *block;     /* counted; a proxied end has none */
	struct p2p_far far;	     /* the peer's; of a proxied one there is none */
	struct gantry_sharing words; /* copy mode */
	void *words_dev;	     /* receiving end: as the device addresses them; NULL: not mapped */
};

static int proxied(const struct gantry_peer_info *me, const struct gantry_peer_info *peer)
{
	if (!gantry_params()->p2p_copy || (!gantry_ends_same_process(me, peer) && me->net_ns != peer->net_ns))
		return 0;
	return GANTRY_TRANSPORT_PROXIED_SEND;
}

static gantry_result can_connect(const struct gantry_peer_info *me, const struct gantry_peer_info *peer, int *ret_can,
				 char *why, size_t len)
{
	int mode = gantry_params()->p2p;

	*ret_can = 0;
	if (mode == P2P_OFF)
		snprintf(why, len, "GANTRY_P2P=off");
	else if (me->host != peer->host)
		snprintf(why, len, "%.64s is another host", peer->host_name);
	else if (me->device_kind != peer->device_kind)
		snprintf(why, len, "a GPU and the host device do not address each other's memory");
	else if (strncmp(me->bus_id, peer->bus_id, sizeof(me->bus_id)) != 0 && mode != P2P_FORCE)
		snprintf(why, len, "different GPUs (%.23s and %.23s; GANTRY_P2P=force tries them)", me->bus_id,
			 peer->bus_id);
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
	int same = strncmp(c->me->bus_id, c->peer->bus_id, sizeof(c->me->bus_id)) ==
		   0; /* the same GPU, or both the host */

	gantry_rings_layout(step, 1, same && ll128, ret_rings);
}

static gantry_result setup(struct gantry_connector *c, struct gantry_connect_info *ret_info)
{
	gantry_result r = GANTRY_OK;
	struct p2p_info info = {.magic = P2P_MAGIC, .copies = c->proxy != NULL};
	struct gantry_rings rings = {.size = GANTRY_ENDS_PAGE};
	struct p2p_end *end = gantry_end_get(c, sizeof(*end));

	if (!end)
		return GANTRY_ERR_NOMEM;
	info.ll128 = c->device->ll128_local != 0;
	gantry_door_describe(c, &info.door);
	if (!c->send) {
		info.step = own_step(c);
		lay_out(c, info.step, (int)info.ll128, &rings);
	}
	if (c->proxy) {
		TRY(gantry_sharing_make(&end->words, c, sizeof(struct gantry_fifo), &info.words));
	} else {
		TRY(p2p_block_create(c, rings.size, &end->block));
		TRY(p2p_block_describe(c, end->block, &info.block));
	}
	memset(ret_info, 0, sizeof(*ret_info));
	memcpy(ret_info, &info, sizeof(info));
out:
	return r;
}

static gantry_result check_info(const struct gantry_connector *c, const struct gantry_connect_info *peer,
				struct p2p_info *ret_info)
{
	gantry_result r = GANTRY_OK;

	memcpy(ret_info, peer, sizeof(*ret_info));
	if (ret_info->magic != P2P_MAGIC)
		FAIL(GANTRY_ERR_PROTOCOL, "rank %d chose another transport than p2p", c->peer->rank);
	if (!c->send)
		ret_info->step = own_step(c);
	if (!gantry_rings_step_is_good(ret_info->step))
		FAIL(GANTRY_ERR_PROTOCOL, "rank %d has a ring with steps of %llu bytes", c->peer->rank,
		     (unsigned long long)ret_info->step);
out:
	return r;
}

static gantry_result meet(struct gantry_connector *c, struct p2p_end *end, const struct p2p_info *info)
{
	gantry_result r = GANTRY_OK;
	int peer_has_block = c->send || !info->copies;

	if (peer_has_block && !end->far.base)
		TRY(p2p_far_open(c, &info->block, &end->far));
	if (end->base.engine || !peer_has_block)
		TRY(gantry_sharing_meet(&end->words, c, sizeof(struct gantry_fifo), &info->words));
	if (end->block)
		TRY(p2p_block_is_opened(c, end->block));
out:
	return r;
}

static void fill_direct(struct gantry_connector *c, const struct p2p_end *end, int copies,
			const struct gantry_rings *rings)
{
	struct gantry_fifo *mine = (void *)end->block->base, *theirs = (void *)end->far.base;
	struct gantry_fifo *words = copies ? end->words_dev : NULL;

	c->conn.head = words ? &words->head : c->send ? &mine->head : &theirs->head;
	c->conn.tail = words ? &words->tail : c->send ? &theirs->tail : &mine->tail;
	c->conn.slots = words ? words->slots : c->send ? theirs->slots : mine->slots;
	c->conn.offers = NULL; /* neither a pool nor a producer that puts bytes into the receiver's buffer */
	gantry_rings_fill(&c->conn, rings, c->send ? end->far.base : end->block->base, copies);
	c->conn.door = end->base.door.door;
	c->conn.state = c->state;
	c->conn.flags = c->send ? GANTRY_CONN_SEND : 0;
	c->max_step = copies ? rings->step_bytes[GANTRY_PROTO_SIMPLE] : 0;
	c->peer_rings = gantry_door_is_rung(c, copies);
	c->shares_memory = copies ? 0 : gantry_ends_same_process(c->me, c->peer) ? 1 : 2;
}

static gantry_result fill_proxied(struct gantry_connector *c, const struct p2p_end *end,
				  const struct gantry_rings *rings)
{
	struct gantry_fifo *f = (void *)end->words.segment->base;
	struct gantry_copy_far far = {.head = &f->head,
				      .tail = &f->tail,
				      .slots = f->slots,
				      .ring = end->far.base + rings->at[GANTRY_PROTO_SIMPLE],
				      .door = end->base.door.door};

	return gantry_copy_engine_connect(end->base.engine, c, rings->step_bytes[GANTRY_PROTO_SIMPLE], &far);
}

static gantry_result connect_end(struct gantry_connector *c, const struct gantry_connect_info *peer)
{
	gantry_result r = GANTRY_OK;
	struct p2p_end *end = c->resources;
	int ll128 = c->device->ll128_local != 0;
	struct gantry_rings rings;
	struct p2p_info info;

	TRY(check_info(c, peer, &info));
	/* A kernel that rings, or the copy engine in its place, wants the door of a kernel that sleeps; a proxy polls.
	 */
	if (!info.copies && (c->device->sleeps || end->base.engine))
		TRY(gantry_far_door_open(c, &info.door, &end->base.door));
	TRY(meet(c, end, &info));
	lay_out(c, info.step, c->send ? (int)info.ll128 : ll128, &rings);
	if (!info.ll128 || !ll128)
		rings.at[GANTRY_PROTO_LL128] = 0;
	if (!c->send && info.copies)
		TRY(c->device->ops->map_host(c->device, end->words.segment->base, end->words.segment->size,
					     &end->words_dev));
	if (end->base.engine)
		TRY(fill_proxied(c, end, &rings));
	else
		fill_direct(c, end, info.copies != 0, &rings);
out:
	return r;
}

static void free_end(struct gantry_connector *c)
{
	struct p2p_end *end = c->resources;

	if (!end)
		return;
	gantry_end_proxy_free(c);
	gantry_far_door_close(&end->base.door);
	if (end->words_dev)
		c->device->ops->unmap_host(c->device, end->words.segment->base);
	gantry_sharing_end(&end->words);
	p2p_far_close(c, &end->far);
	p2p_block_put(end->block);
	free(end);
	c->resources = NULL;
}

const struct gantry_transport gantry_transport_p2p = {
	.name = "p2p",
	.proxied = proxied,
	.can_connect = can_connect,
	.send = {.setup = setup,
		 .connect = connect_end,
		 .free = free_end,
		 .proxy_setup = proxy_setup,
		 .proxy_connect = gantry_end_proxy_connect,
		 .proxy_progress = gantry_copy_engine_send,
		 .proxy_register = gantry_transport_unsupported_register,
		 .proxy_deregister = gantry_transport_unsupported_deregister,
		 .proxy_free = gantry_end_proxy_free},
	.recv = {.setup = setup,
		 .connect = connect_end,
		 .free = free_end,
		 .proxy_setup = gantry_transport_unsupported_connector,
		 .proxy_connect = gantry_transport_unsupported_connector,
		 .proxy_progress = gantry_transport_unsupported_progress,
		 .proxy_register = gantry_transport_unsupported_register,
		 .proxy_deregister = gantry_transport_unsupported_deregister,
		 .proxy_free = gantry_transport_unsupported_free},
};
