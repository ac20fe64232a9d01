/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of a hand-shake share: making a link, filling its lanes, bringing it up. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "base/trace.h"
#include "inet/sock.h"
#include "net/tcp/flow.h"
#include "net/tcp/network.h"
#include "net/tcp/worker.h"

enum { FD_RESERVE = 16, FD_SPARE = 256, FD_COUNT_NS = 1000000000, LONE_TIMES = 4, HASTY_TIMES = 8 };

/*
 * File descriptors that are left, less what links that were made a moment ago may still take. Counting those in use
 * takes as long as there are many, and a process may make a thousand links in a second: so they are counted now and
 * then, and again before a connection is refused.
 */
static long fds_left(long need, long *ret_limit)
{
	static uint64_t counted; /* ns; loop_mu, as for all of these */
	static long left, limit;
	uint64_t now = gantry_now_ns();

	if (now - counted > FD_COUNT_NS || left < need) {
		left = sock_fd_budget(&limit);
		counted = now;
	}
	*ret_limit = limit;
	left -= need;
	return left + need;
}

gantry_result tcp_link_for_session(int nlanes, struct tcp_link **ret_link)
{
	struct tcp_link *l;
	char advice[GANTRY_ADVICE_TEXT];
	/* A socket per lane, and a pipe for each bulk lane. */
	long limit, need = 3 * nlanes + FD_RESERVE, left = fds_left(need, &limit);

	if (left < need && sock_fd_reserve(need, FD_SPARE))
		left = fds_left(need, &limit);
	if (left < need)
		FAIL_NOW(GANTRY_ERR_LIMIT,
			 "%ld of %ld file descriptors are left, a connection of %d lanes needs %d: %s, lower "
			 "GANTRY_LANES or set GANTRY_NET_LINKS=one",
			 left, limit, nlanes, (int)need, gantry_nofile_advice(advice));
	TRY_NOW(tcp_link_create(nlanes, &l));
	l->entry = calloc(1, sizeof(*l->entry));
	if (!l->entry) {
		tcp_link_free(l);
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a link");
	}
	l->entry->link = l;
	gantry_list_init(&l->entry->by_session);
	gantry_list_init(&l->entry->waiting);
	l->entry->confirm.fd = -1;
	l->session.id = (uint32_t)++tcp_network.next_id;
	l->session.forks = inet_forks;
	l->session.crc = gantry_params()->crc;
	l->session.pace_ticks = gantry_ticks_of_ns(gantry_params()->poll_pace);
	*ret_link = l;
	return GANTRY_OK;
}

/* Sessions are random. */
static struct gantry_list *bucket_of(const uint8_t session[WIRE_SESSION_SIZE])
{
	return &tcp_network.sessions[(session[0] | (uint32_t)session[1] << 8) % TCP_BUCKETS];
}

struct tcp_link *tcp_link_of_session(const uint8_t session[WIRE_SESSION_SIZE])
{
	gantry_list_each_entry (e, bucket_of(session), struct tcp_entry, by_session)
		if (memcmp(e->key, session, WIRE_SESSION_SIZE) == 0)
			return e->link;
	return NULL;
}

void tcp_link_opening(struct tcp_link *l, struct tcp_listener *listener)
{
	l->entry->rx_state = TCP_RESERVED;
	l->entry->rx_listener = listener->id;
	listener->nopening++;
	gantry_list_append(&tcp_network.links, &l->node);
	gantry_list_append(&tcp_network.opening, &l->entry->waiting);
	gantry_list_append(bucket_of(l->entry->key), &l->entry->by_session);
	/* The listener may be closed as soon as it has its connection, and the peer must find us again. */
	for (int i = 0; l->resume && i < listener->nports; i++)
		if (inet_port_get(&tcp_service, &listener->ports[i]->addr, &l->resume->ports[i]) != GANTRY_OK)
			l->resume->ports[i] = NULL;
}

/* All lanes are there, or none will come any more. */
static void end_opening(struct tcp_link *l) REQUIRES(loop_mu)
{
	struct tcp_listener *listener = tcp_listener_find(l->entry->rx_listener);

	if (!l->entry->initiator && !l->entry->up && listener)
		listener->nopening--;
	inet_source_release(&l->entry->confirm);
	gantry_list_remove(&l->entry->waiting);
}

void tcp_link_forget(struct tcp_link *l)
{
	end_opening(l);
	tcp_resume_forget(l);
	gantry_list_remove(&l->node);
	gantry_list_remove(&l->entry->by_session);
}

/* Every lane of a link is sealed, or none: what its control lane has agreed on holds. */
static void take_seals(struct tcp_lane *lane, struct inet_seals *seals)
{
	struct tcp_link *l = lane->link;

	tcp_lane_unseal(lane); /* of a socket that the peer has given up */
	if (!seals->tx != !l->session.sealed)
		tcp_link_fail(l, 1, GANTRY_ERR_AUTH, "lane %d is %s, the link is not", lane->index,
			      seals->tx ? "encrypted" : "not encrypted");
	else if (seals->tx && tcp_lane_seal(lane, seals) != GANTRY_OK)
		tcp_link_fail(l, 1, GANTRY_ERR_NOMEM, "%s", gantry_last_error());
	inet_seals_free(seals);
}

const struct gantry_nic *tcp_nic_of(const struct gantry_addr *a)
{
	const struct gantry_nic_list *nics = tcp_network.nics;

	for (int i = 0; nics && i < nics->count; i++) /* links of tests may have no network */
		for (int k = 0; k < nics->nics[i].naddrs; k++)
			if (gantry_addr_same_host(&nics->nics[i].addrs[k], a))
				return &nics->nics[i];
	return NULL;
}

/* Whatever GANTRY_HOST_ID says of the hosts. */
bool tcp_passes_no_nic(const struct gantry_addr *to)
{
	return gantry_addr_is_loopback(to) || tcp_nic_of(to);
}

void tcp_lane_tune(struct tcp_lane *lane, int fd, const struct gantry_addr *peer, const char *device)
{
	const struct tcp_link *l = lane->link;
	struct sock_options o = {
		.same_host = l->session.same_host || tcp_passes_no_nic(peer),
		.traffic_class = l->session.traffic_class,
		.timeout_ns = gantry_params()->timeout,
		.zerocopy = load_relaxed(&l->tx.msg_zerocopy),
		/* What waits in a slow lane's socket cannot go to a faster one any more. */
		.unsent_max = lane->index > 0 && l->session.rails > 1 ? 128 << 10 : 0,
		.device = device,
	};

	sock_local(fd, &lane->local);
	lane->peer = *peer;
	sock_tune(fd, &o);
}

void tcp_lane_take(struct tcp_link *l, int index, int fd, struct inet_seals *seals, const struct gantry_addr *peer,
		   const struct tcp_context *ctx, const char *device)
{
	struct tcp_lane *lane = &l->lanes[index];

	if (lane->io.fd >= 0) { /* the first socket's welcome was lost, and the peer has dialled again */
		if (index == 0)
			inet_source_release(&l->entry->confirm);
		tcp_flow_free(lane);
		lane->io.ops->close(&lane->io);
	} else {
		l->entry->lanes_here++;
	}
	lane->io.ops->open(&lane->io, fd);
	take_seals(lane, seals);
	l->session.traffic_class = ctx->traffic_class;
	tcp_lane_tune(lane, fd, peer, device);
	/* Nothing comes on this lane before a receive is posted: no byte is missed. */
	if (index > 0 && l->session.device_rx && !tcp_link_failed(l)) {
		gantry_result r = tcp_flow_attach(lane);

		if (r != GANTRY_OK)
			tcp_link_fail(l, 1, r, "lane %d cannot receive into device memory: %s", index,
				      gantry_last_error());
	}
}

static int lands_in_device(enum wire_unpack offer, int same_host)
{
	return offer == WIRE_UNPACK_YES || (offer == WIRE_UNPACK_BETWEEN_HOSTS && !same_host);
}

/* Which of the two directions ends in device memory. Both sides come to the same answers. */
static void agree_on_devices(struct tcp_link *l, const struct tcp_rx_memory *rx_memory, enum wire_unpack peer)
	REQUIRES(loop_mu)
{
	static int warned;

	l->entry->own_unpack = (int)tcp_rx_memory_says(rx_memory);
	l->entry->peer_unpack = (int)peer;
	l->session.device_tx = !l->session.sealed && lands_in_device(peer, l->session.same_host);
	l->session.device_rx =
		!l->session.sealed && lands_in_device((enum wire_unpack)l->entry->own_unpack, l->session.same_host);
	if (l->session.sealed && (l->entry->own_unpack != WIRE_UNPACK_NO || peer != WIRE_UNPACK_NO))
		LOG_INFO(NET,
			 "%s: encrypted, so data cannot be received directly into device memory; it goes through host "
			 "memory",
			 l->session.peer);
	else if (l->entry->own_unpack == WIRE_UNPACK_BETWEEN_HOSTS && !l->session.device_rx)
		LOG_INFO(NET,
			 "%s is on this host: its data does not pass the NIC, so devmem TCP cannot deliver it to "
			 "device memory; it goes through host memory",
			 l->session.peer);
	if (l->session.device_rx && devmem_pool_get(rx_memory->device, rx_memory->kind, &l->devmem->pool) != GANTRY_OK)
		tcp_link_fail(l, 1, GANTRY_ERR_NOMEM, "no pool of device memory: %s", gantry_last_error());
	if (l->session.crc && (l->session.device_tx || l->session.device_rx) && !exchange_relaxed(&warned, 1))
		LOG_WARN(NET, "GANTRY_CRC: messages above %u bytes that land in device memory are not checked",
			 l->session.eager_max);
}

/* Both sides come to the same answer. Pages and tokens of a lane to device memory would have to go back first. */
static void agree_on_resume(struct tcp_link *l, enum inet_resume peer) REQUIRES(loop_mu)
{
	struct tcp_session *s = &l->session;

	if (l->entry->own_unpack != WIRE_UNPACK_NO || l->entry->peer_unpack != WIRE_UNPACK_NO ||
	    !inet_resume_wanted(inet_resume_says(), s->same_host) || !inet_resume_wanted(peer, s->same_host))
		return;
	if (tcp_resume_init(l) != GANTRY_OK) {
		tcp_link_fail(l, 1, GANTRY_ERR_NOMEM, "no memory for a session's replay buffer: %s",
			      gantry_last_error());
		return;
	}
	if (s->peer_window > LINK_WINDOW) /* what is kept is bounded */
		s->peer_window = LINK_WINDOW;
}

/* Not where the message would be sent without a copy: with many channels each of a stream looks like the only one, and
 * copying 256 KiB cost a sixth of the bandwidth. And so that the window, of which the receiver tells late, has room. */
static uint32_t lone_max(const struct tcp_link *l)
{
	uint64_t most = gantry_params()->zerocopy_min - 1, times = (uint64_t)LONE_TIMES * l->session.eager_max;

	if (most > l->session.peer_window / 4)
		most = l->session.peer_window / 4;
	return (uint32_t)(times < most ? times : most);
}

static uint32_t hasty_max(const struct tcp_link *l)
{
	uint64_t times = (uint64_t)HASTY_TIMES * l->session.eager_max, most = l->session.peer_window / 2;

	return (uint32_t)(times < most ? times : most);
}

void tcp_link_meet(struct tcp_link *l, const struct tcp_rx_memory *rx_memory, const struct tcp_peer *peer)
{
	const struct gantry_params *p = gantry_params();
	bool near;

	ASSERT(peer->addr);
	l->session.same_host = peer->host == tcp_network.host;
	l->session.sealed = peer->sealed;
	l->session.crc &= !peer->sealed;
	l->session.rails = tcp_network.devs[l->session.dev].nrails;
	if (peer->window <
	    2 * (LINK_TELL + WIRE_EAGER_SIZE)) /* a message could wait for an acknowledgement that is not due */
		tcp_link_fail(l, 1, GANTRY_ERR_PROTOCOL, "the peer buffers only %u eager bytes, which is too few",
			      peer->window);
	l->session.peer_window = peer->window;
	l->session.eager_max = peer->eager_max < p->eager_max ? peer->eager_max : (uint32_t)p->eager_max;
	/* The receiver reports at LINK_TELL at the latest: what is left of the window must hold an eager message whole. */
	_Static_assert(LINK_TELL + LINK_WINDOW / 2 + WIRE_EAGER_SIZE <= LINK_WINDOW, "room for one more eager message");
	if (l->session.eager_max > peer->window / 2)
		l->session.eager_max = peer->window / 2;
	if (peer->unpack == WIRE_UNPACK_NO) { /* unpack queues have room for eager_max */
		l->session.lone_max = lone_max(l);
		l->session.hasty_max = hasty_max(l);
	}
	agree_on_devices(l, rx_memory, peer->unpack);
	agree_on_resume(l, peer->resume);
	if (peer->sealed) /* what leaves is not the user's memory */
		return;
	near = l->session.same_host || tcp_passes_no_nic(peer->addr);
	store_relaxed(&l->tx.splice, tcp_io_engine->splice && (p->zerocopy == PARAM_ZEROCOPY_SPLICE ||
							       (p->zerocopy == PARAM_ZEROCOPY_AUTO && near)));
	store_relaxed(&l->tx.msg_zerocopy,
		      p->zerocopy == PARAM_ZEROCOPY_MSG || (p->zerocopy == PARAM_ZEROCOPY_AUTO && !near));
}

void tcp_link_drop_rx(struct tcp_link *l)
{
	l->entry->rx_state = TCP_CLOSED;
	tcp_link_close_rx(l);
	if (l->entry->tx_state == TCP_UNUSED || l->entry->tx_state == TCP_CLOSED)
		tcp_link_put_down(l);
}

void tcp_link_drop_tx(struct tcp_link *l)
{
	l->entry->tx_state = TCP_CLOSED;
	tcp_link_close_tx(l);
	if (l->entry->rx_state == TCP_UNUSED || l->entry->rx_state == TCP_CLOSED)
		tcp_link_put_down(l);
}

void tcp_link_deliver(struct tcp_link *l)
{
	struct tcp_listener *listener = tcp_listener_find(l->entry->rx_listener);

	if (!listener || listener->nready == TCP_READY_MAX) {
		/* Closed meanwhile: the peer's sends must not wait for ever. */
		tcp_link_drop_rx(l);
		return;
	}
	l->entry->rx_state = TCP_OPEN;
	listener->served = 1;
	if (listener->error_at)
		listener->error = GANTRY_OK; /* it was not the peer that was refused */
	gantry_list_append(&listener->ready, &l->entry->waiting);
	listener->nready++;
}

void tcp_link_confirm(struct tcp_link *l)
{
	link_mu_lock(&l->mu);
	l->rx.heartbeat_due = true;
	store_relaxed(&l->tx.pending, 1);
	link_mu_unlock(&l->mu);
	tcp_control_flush(l);
}

void tcp_link_up(struct tcp_link *l)
{
	char local[GANTRY_ADDR_TEXT], peer[GANTRY_ADDR_TEXT];
	uint64_t now = gantry_ticks();
	bool promised;

	l->last.heard = l->last.told = l->last.progressed = l->entry->acked_at = now;
	promised = l->entry->initiator && l->entry->rx_state == TCP_RESERVED;
	end_opening(l);
	l->entry->up = 1;
	if (l->entry->initiator && l->entry->rx_state == TCP_UNUSED)
		gantry_list_append(&tcp_network.shareable, &l->entry->waiting);
	LOG_INFO(NET, "link %u up: %s %s -> %s, %d+%d lanes, %s%s%s", l->session.id,
		 tcp_network.devs[l->session.dev].name, gantry_addr_text(&l->lanes[0].local, local), l->session.peer, 1,
		 l->nlanes - 1,
		 l->session.sealed		     ? "encrypted"
		 : load_relaxed(&l->tx.splice)	     ? "splice"
		 : load_relaxed(&l->tx.msg_zerocopy) ? "zerocopy"
						     : "copy",
		 l->session.device_tx ? ", to device memory there" : "",
		 l->session.device_rx ? ", to device memory here" : "");
	for (int i = 1; i < l->nlanes; i++)
		LOG_DEBUG(NET, "link %u lane %d: %s -> %s", l->session.id, i,
			  gantry_addr_text(&l->lanes[i].local, local), gantry_addr_text(&l->lanes[i].peer, peer));
	tcp_spread_survey(l);
	gantry_trace_link(l->session.id, l->session.peer);
	gantry_event_put(GANTRY_EV_LINK_UP, l->session.id, (uint64_t)l->nlanes, (uint64_t)l->session.dev);
	tcp_workers_know(l);
	if (promised)
		gantry_list_append(&tcp_network.promised, &l->entry->waiting);
	else if (l->entry->rx_state == TCP_RESERVED)
		tcp_link_deliver(l);
}
