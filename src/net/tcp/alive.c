/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Liveness: heartbeats, silence, and lingering of closed links. Then single lanes, and stalls.
 *
 * A link on which nothing was sent for 1/32 of GANTRY_TIMEOUT carries a heartbeat, from this thread, whatever the
 * user's threads do. A peer that was silent for GANTRY_TIMEOUT is dead: stopped, unreachable or gone. An idle peer
 * keeps sending heartbeats and never counts as dead. Silence is what this thread has observed: time for which it was
 * held up itself (a starved or suspended machine), however short, does not count. A hello for a resumed session, and
 * any answer to one, are signs of life too. A peer that is given up is notified: by a frame, and by a reset where the
 * frame would not arrive.
 *
 * An outage of up to 0.9 of GANTRY_TIMEOUT is survived. The last sign of life before it may be 1/32 old. What waits
 * in TCP's back-off goes out at 0.91 and a tick of 1/64, or a second after the outage where that is 1/25 at most
 * (sock.h); finding the peer's hardware address again may take another second. What is missing for that, and what
 * comes late on a loaded machine, is added before silence counts as death: 1/16, half a second at most.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "base/stall.h"
#include "net/tcp/flow.h"
#include "net/tcp/link.h"
#include "net/tcp/network.h"
#include "net/tcp/worker.h"

/* ---- stalls ---- */

/*
 * A direction of a link is stalled when it has requests and none of its counters has moved for GANTRY_STALL. The
 * service thread looks; heartbeats are not among the counters, so a live peer that does not send is a stall too. It is
 * reported once, until something moves.
 */

static struct {
	uint64_t looked; /* ns */
	int asked;	 /* the last look was asked for */
	struct gantry_stall_request request;
	struct gantry_stall_wait *waits; /* owned; between a look that found something and tcp_stall_tell */
	size_t n, room;
} stall;

/* One direction at a moment. */
struct look {
	uint32_t requests;
	uint64_t sum; /* changes whenever something moves */
	uint64_t tag, bytes;
	const char *waits_for;
};

static uint32_t count_entries(const struct gantry_list *list)
{
	uint32_t n = 0;

	gantry_list_each (pos, list)
		n++;
	return n;
}

static void see_send(struct look *k, const struct gantry_list *list, const char *waits_for)
{
	const struct tcp_send *s;

	if (gantry_list_empty(list))
		return;
	s = gantry_container(list->next, struct tcp_send, head.node);
	if (!k->requests) {
		k->tag = s->tag;
		k->bytes = s->size;
		k->waits_for = waits_for;
	}
	k->requests += count_entries(list);
}

/* The first bulk message may go only when the peer has posted its receive. */
static const char *bulk_waits(struct tcp_link *l) REQUIRES(link_mu)
{
	const struct tcp_send *s = gantry_container(l->tx.bulk.next, struct tcp_send, head.node);
	const struct tcp_tag *t = gantry_list_empty(&l->tx.bulk) ? NULL : tcp_tag_of(&l->tx.tags, s->tag);

	return t && (int32_t)(t->credit - s->index) <= 0 ? "peer" : "socket";
}

static void look_tx(struct tcp_link *l, struct look *k) REQUIRES(link_mu)
{
	see_send(k, &l->tx.unacked, "peer");
	if (l->resume)
		see_send(k, &l->resume->held, "peer");
	see_send(k, &l->tx.bulk, bulk_waits(l));
	see_send(k, &l->tx.eager, l->tx.window_blocked ? "peer" : "socket");
	see_send(k, &l->devmem->copying_out, "flush");
	k->sum = k->requests + l->tx.next_seq + l->tx.peer_done + l->tx.bulk_sent + l->tx.eager_out +
		 l->tx.peer_consumed + l->tx.peer_received;
	for (int i = 1; i < l->nlanes; i++)
		k->sum += load_relaxed(&l->lanes[i].tx.given);
}

static void look_rx(struct tcp_link *l, struct look *k) REQUIRES(link_mu)
{
	const struct tcp_recv *r = gantry_container(l->rx.posted.next, struct tcp_recv, head.node);

	k->requests = count_entries(&l->rx.posted);
	k->sum = k->requests + l->rx.done + l->rx.consumed + l->rx.bulk_received + l->rx.unexpected_bytes;
	for (int i = 0; i < l->rx.tags.count; i++)
		k->sum += l->rx.tags.items[i].posted;
	for (int i = 1; i < l->nlanes; i++)
		k->sum += load_relaxed(&l->lanes[i].rx.bytes);
	k->waits_for = "peer";
	if (k->requests) {
		k->tag = r->buffers[0].tag;
		k->bytes = r->buffers[0].size;
	}
}

static void add_wait(const struct tcp_link *l, int send, const struct look *k, uint64_t wait_ns)
{
	struct gantry_stall_wait *grown = stall.waits;
	int64_t ticks = (int64_t)(gantry_ticks() - load_relaxed(&l->last.heard));
	uint64_t heard_ns = ticks > 0 ? (uint64_t)(gantry_us_of_ticks((uint64_t)ticks) * 1000) : 0;

	if (stall.n == stall.room) {
		grown = realloc(stall.waits, (stall.room + 16) * sizeof(*grown));
		if (!grown)
			return;
		stall.waits = grown;
		stall.room += 16;
	}
	stall.waits[stall.n] = (struct gantry_stall_wait){.waits_for = k->waits_for,
							  .send = send,
							  .requests = k->requests,
							  .tag = k->tag,
							  .bytes = k->bytes,
							  .wait_ns = wait_ns,
							  .heard_ns = heard_ns,
							  .silent = heard_ns > gantry_params()->timeout / 8};
	memcpy(stall.waits[stall.n++].peer, l->session.peer, sizeof(l->session.peer));
}

static struct look look_locked(struct tcp_link *l, int send)
{
	struct look k = {0};

	link_mu_lock(&l->mu);
	if (send)
		look_tx(l, &k);
	else
		look_rx(l, &k);
	link_mu_unlock(&l->mu);
	return k;
}

/* 1: it has become a stall. */
static int look_at(struct tcp_link *l, int send, uint64_t now, int asked) REQUIRES(loop_mu)
{
	struct tcp_stall *s = &l->entry->stall[send];
	struct look k = look_locked(l, send);
	int fresh = 0;

	if (!k.requests || k.sum != s->sum || !s->since) {
		*s = (struct tcp_stall){.sum = k.sum, .since = now};
		if (!asked || !k.requests)
			return 0;
	}
	if (now - s->since >= gantry_stall_after() && !s->told)
		fresh = s->told = 1;
	add_wait(l, send, &k, now - s->since);
	return fresh;
}

void tcp_stall_look(struct tcp_link *l, int send, struct gantry_stall_wait *ret)
{
	struct look k = look_locked(l, send);

	*ret = (struct gantry_stall_wait){
		.waits_for = k.waits_for, .send = send, .requests = k.requests, .tag = k.tag, .bytes = k.bytes};
}

int tcp_stall_tick(uint64_t now_ns, int asked)
{
	int fresh = 0;

	if (!gantry_stall_after() || (!asked && now_ns - stall.looked < gantry_stall_interval()))
		return 0;
	asked |= gantry_stall_requested(&stall.request);
	stall.asked = asked;
	stall.looked = now_ns;
	stall.n = 0;
	gantry_list_each_entry (l, &tcp_network.links, struct tcp_link, node) {
		if (!l->entry->up || tcp_link_failed(l) || !load_relaxed(&l->watched))
			continue;
		if (!load_relaxed(&l->standing_receives)) /* they wait for what may never be sent */
			fresh |= look_at(l, 0, now_ns, asked);
		fresh |= asked;
		fresh |= look_at(l, 1, now_ns, asked);
	}
	return fresh;
}

void tcp_stall_tell(void)
{
	gantry_stall_tell("net", stall.waits, stall.n, stall.asked);
	free(stall.waits);
	stall.waits = NULL;
	stall.n = stall.room = 0;
}

/* ---- single lanes ---- */

/*
 * Whether what is sent on a bulk lane arrives.
 *
 * Heartbeats travel on lane 0 and tell nothing about the other lanes: something between the hosts may acknowledge the
 * bytes of one of them and drop them, or lose its packets alone. So each side reports to the other how many bytes have
 * arrived on each bulk lane, when that has changed, and the sender compares that with what it has given to the socket.
 * Bytes that are missing, without a report of further arrivals, for GANTRY_TIMEOUT during which the peer showed signs
 * of life, are an error. Whether the receiver reads its socket does not matter: bytes that wait there have arrived, and
 * while some wait, missing ones are no evidence against the lane.
 *
 * All of it is done by the service thread, a few times in GANTRY_TIMEOUT.
 */

/* Bytes that have arrived, those in the socket included. While another thread reads the lane, only what it has read. */
static void count_arrived(struct tcp_lane *lane, uint64_t *ret_arrived, uint64_t *ret_unread)
{
	*ret_unread = 0;
	if (lane_rx_mu_trylock(&lane->rx.lock)) {
		*ret_unread = lane->io.ops->unread(&lane->io);
		*ret_arrived = lane->rx.bytes - lane->rx.base + *ret_unread;
		lane_rx_mu_unlock(&lane->rx.lock);
	} else {
		*ret_arrived = load_relaxed(&lane->rx.bytes) - load_relaxed(&lane->rx.base);
	}
}

int tcp_lanes_report(struct tcp_link *l)
{
	int news = 0;

	for (int i = 1; i < l->nlanes; i++) {
		struct tcp_lane_rx *rx = &l->lanes[i].rx;
		uint64_t arrived, unread;

		count_arrived(&l->lanes[i], &arrived, &unread);
		link_mu_lock(&l->mu);
		if (arrived > rx->arrived || (arrived == rx->arrived && !unread != !rx->unread)) {
			rx->arrived = arrived;
			rx->unread = unread;
			rx->tell_arrived = 1;
			store_relaxed(&l->tx.pending, 1);
			news = 1;
		}
		link_mu_unlock(&l->mu);
	}
	return news;
}

int tcp_lane_arrived(struct tcp_link *l, const struct wire_arrived *a)
{
	struct tcp_lane_resume *r;
	struct tcp_lane_tx *tx;

	if (a->lane >= (uint32_t)l->nlanes) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
				     "the peer reports bytes of lane %u, but there are only %d lanes", a->lane,
				     l->nlanes);
		return -1;
	}
	tx = &l->lanes[a->lane].tx;
	r = l->lanes[a->lane].resume;
	if (a->generation != (r ? r->generation : 0))
		return 0; /* of a socket that is no more */
	if (r && a->pieces > r->given) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL,
				     "lane %u: peer reports %llu pieces received, but only %llu were sent", a->lane,
				     (unsigned long long)a->pieces, (unsigned long long)r->given);
		return -1;
	}
	if (r)
		tcp_resume_arrived(r, a->pieces);
	store_relaxed(&tx->arrived, a->bytes);
	store_relaxed(&tx->unread, a->unread);
	return 0;
}

static void lane_stands_still(struct tcp_lane *lane, uint64_t given, uint64_t arrived)
{
	uint64_t queued;
	bool lost;

	if (lane->link->resume && tcp_resume_broken(lane, ETIMEDOUT))
		return;
	/* Not acknowledged: the packets are lost. Otherwise a middlebox has acknowledged them instead of the peer. */
	lost = lane->io.ops->unacked(&lane->io, &queued) && queued > 0;
	tcp_link_fail(lane->link, 1, GANTRY_ERR_PEER_SILENT,
		      "lane %d: %llu bytes sent, %llu arrived, and no more for %.3g s (GANTRY_TIMEOUT), while lane 0 "
		      "to the same peer works: %s",
		      lane->index, (unsigned long long)given, (unsigned long long)arrived,
		      (double)gantry_params()->timeout / 1e9,
		      lost ? "packets of this lane are being lost"
			   : "a device between the hosts acknowledges but does not deliver them");
}

/* The peer being silent on all lanes is another matter: the time is not counted. */
static void check_lane(struct tcp_lane *lane, uint64_t now, uint64_t grace, int silent)
{
	struct tcp_lane_tx *tx = &lane->tx;
	uint64_t arrived = load_relaxed(&tx->arrived), given = load_relaxed(&tx->given),
		 timeout = gantry_ticks_of_ns(gantry_params()->timeout);
	int moved = arrived != tx->arrived_seen;

	tx->arrived_seen = arrived;
	if ((int64_t)(given - arrived) <= 0 || load_relaxed(&tx->dead)) {
		tx->still_since = 0;
	} else if (!tx->still_since || moved || silent || load_relaxed(&tx->unread)) {
		tx->still_since = now | 1;
	} else {
		tx->still_since += grace;
		if ((int64_t)(now - tx->still_since) > (int64_t)timeout)
			lane_stands_still(lane, given, arrived);
	}
}

void tcp_lanes_check(struct tcp_link *l, uint64_t now, uint64_t grace)
{
	uint64_t quiet = gantry_ticks_of_ns(gantry_params()->timeout) / 8;
	int64_t silence = (int64_t)(now - load_relaxed(&l->last.heard));
	int closed;

	link_mu_lock(&l->mu);
	closed = l->tx.peer_closed;
	link_mu_unlock(&l->mu);
	if (closed || tcp_link_failed(l) || load_relaxed(&l->end.ending))
		return;
	for (int i = 1; i < l->nlanes; i++)
		check_lane(&l->lanes[i], now, grace, silence > (int64_t)quiet);
	if (tcp_link_failed(l))
		tcp_link_service(l, 0); /* says so to the peer */
}

/* ---- links: heartbeats, silence, the end ---- */

static const uint64_t linger_max_ns = 10000000000, linger_failed_ns = 100000000, slack_max_ns = 500000000;

uint64_t tcp_alive_interval(void)
{
	uint64_t tick = sock_backoff_interval(gantry_params()->timeout);

	if (tick < 20000000)
		tick = 20000000;
	return tick > 500000000 ? 500000000 : tick;
}

/* Other threads move these on while we look: an age may be negative. */
static int64_t age_of(uint64_t now, const uint64_t *since)
{
	return (int64_t)(now - load_relaxed(since));
}

/*
 * Whether our packets to the peer are lost: there is a heartbeat to acknowledge every 1/32 of the deadline. Data from
 * the peer is no evidence, because a retransmission of its own may bring new bytes late. Links of one peer must report
 * the same for one reset, so all are checked in the same tick, and the threads that see the reset use that result.
 */
static void note_acked(struct tcp_link *l, uint64_t now, uint64_t grace) REQUIRES(loop_mu)
{
	const struct tcp_io *io = &l->lanes[0].io;
	struct tcp_io_info info;

	if (!io->ops->info(io, &info) || !info.established)
		return;
	if (!info.unacked || info.bytes_acked != l->entry->acked)
		l->entry->acked_at = now;
	else
		l->entry->acked_at += grace;
	l->entry->acked = info.bytes_acked;
	store_relaxed(&l->last.unanswered,
		      now - l->entry->acked_at > gantry_ticks_of_ns(gantry_params()->timeout) / 8 * 3);
}

/* Whether not even the peer's kernel has answered us lately; that of a process which is merely stopped does. */
static int is_unanswered(const struct tcp_link *l)
{
	const struct tcp_io *io = &l->lanes[0].io;
	struct tcp_io_info info;

	return io->ops->info(io, &info) && info.ack_age_ms > gantry_params()->timeout / 2000000;
}

/*
 * Where only the path from the peer to us is cut, the peer can still be notified. But what we write waits in the kernel
 * behind unacknowledged data; a reset does not, and this sends one without closing the socket under threads that are
 * using it.
 */
static void reset_lanes(struct tcp_link *l)
{
	for (int i = 0; i < l->nlanes; i++)
		if (l->lanes[i].io.fd >= 0)
			l->lanes[i].io.ops->reset(&l->lanes[i].io);
}

static void bound_backoff(struct tcp_link *l, uint64_t now_ns)
{
	for (int i = 0; i < l->nlanes; i++)
		if (i == 0 || load_relaxed(&l->lanes[i].tx.given))
			sock_backoff_tick(&l->lanes[i].tx.backoff, l->lanes[i].io.fd, now_ns, gantry_params()->timeout);
}

static void check_link(struct tcp_link *l, uint64_t now, uint64_t grace) REQUIRES(loop_mu)
{
	uint64_t slack = gantry_params()->timeout / 16 < slack_max_ns ? gantry_params()->timeout / 16 : slack_max_ns;
	uint64_t timeout = gantry_ticks_of_ns(gantry_params()->timeout), quiet = timeout / 16;
	int idle = age_of(now, &l->last.progressed) > (int64_t)quiet;
	/* Now, if it would be too late at the next tick. */
	int beat =
		age_of(now, &l->last.told) + (int64_t)gantry_ticks_of_ns(tcp_alive_interval()) > (int64_t)timeout / 32;

	if (tcp_link_failed(l)) {
		tcp_link_service(l, 0); /* an ERROR frame may still wait */
		return;
	}
	if (grace)
		fetch_add_relaxed(&l->last.heard, grace);
	note_acked(l, now, grace);
	/* While the user's threads are at it, they read the peer's heartbeats themselves. */
	if (idle || beat || age_of(now, &l->last.heard) > (int64_t)quiet)
		tcp_link_service(l, beat);
	if (tcp_lanes_report(l))
		tcp_control_flush(l);
	tcp_lanes_check(l, now, grace);
	/* By the clock of before: if this thread was held up since then, the peer had no chance to show a sign of
	 * life. */
	if (age_of(now, &l->last.heard) > (int64_t)(timeout + gantry_ticks_of_ns(slack))) {
		int cut = is_unanswered(l);

		gantry_event_put(GANTRY_EV_HEARTBEAT_LATE, l->session.id, gantry_params()->timeout, 0);
		tcp_link_fail(l, 1, GANTRY_ERR_PEER_SILENT,
			      "no sign of life for %.3g s (GANTRY_TIMEOUT): the peer is stopped or unreachable",
			      (double)gantry_params()->timeout / 1e9);
		tcp_link_service(l, 0);
		if (cut)
			reset_lanes(l);
	}
}

void tcp_alive_tick(uint64_t now_ns)
{
	struct tcp_network *e = &tcp_network;
	uint64_t interval = tcp_alive_interval(), grace = 0, now = gantry_ticks();

	if (e->last_tick && now_ns - e->last_tick < interval)
		return;
	/* A tick comes an interval after the last, or a little later. What is more than another one this thread did not
	 * observe: it adds up on a loaded machine. */
	if (e->last_tick && now_ns - e->last_tick > 2 * interval)
		grace = gantry_ticks_of_ns(now_ns - e->last_tick - interval);
	e->last_tick = now_ns;
	gantry_list_each_entry (l, &e->links, struct tcp_link, node) {
		if (l->entry->up) {
			bound_backoff(l, now_ns);
			check_link(l, now, grace);
		}
	}
}

/* Our side of the sockets is shut only when the last frame is out: goodbye, and what was reported sent before it. */
static void shut_when_said(struct tcp_link *l, int now) REQUIRES(loop_mu)
{
	if (l->entry->shut)
		return;
	tcp_control_flush(l);
	if (!now && !tcp_control_idle(l))
		return;
	l->entry->shut = 1;
	for (int i = 0; i < l->nlanes; i++)
		if (l->lanes[i].io.fd >= 0) {
			l->lanes[i].io.ops->shut(&l->lanes[i].io);
			sock_backoff_leave(l->lanes[i].io.fd, gantry_params()->timeout);
		}
}

/* To see the peer off takes sockets alone. Memory of the device goes with the user's last call: the service thread would free
 * it later, maybe while the process exits and the driver with it. */
static void leave_device(struct tcp_link *l) REQUIRES(loop_mu)
{
	for (int i = 0; i < l->nlanes; i++)
		tcp_flow_free(&l->lanes[i]);
	l->devmem->pool_left = l->devmem->pool;
	l->devmem->pool = NULL;
}

void tcp_link_put_down(struct tcp_link *l)
{
	uint64_t tx = 0, rx = 0;

	tcp_workers_forget(l);
	tcp_network.counts.link_failures += tcp_link_failed(l);
	for (int i = 0; i < l->nlanes; i++) {
		tx += load_relaxed(&l->lanes[i].tx.bytes);
		rx += l->lanes[i].rx.bytes;
	}
	LOG_INFO(NET, "link %u to %s closed: %llu bytes sent, %llu received%s%s", l->session.id, l->session.peer,
		 (unsigned long long)tx, (unsigned long long)rx, tcp_link_failed(l) ? ", after " : "",
		 tcp_link_failed(l) ? gantry_result_name(load_relaxed(&l->end.error)) : "");
	tcp_link_forget(l);
	leave_device(l);
	gantry_list_append(&tcp_network.lingering, &l->node);
	l->entry->linger_until = gantry_params()->timeout < linger_max_ns ? gantry_params()->timeout : linger_max_ns;
	if (tcp_link_failed(l)) /* just long enough to say why */
		l->entry->linger_until = linger_failed_ns;
	l->entry->linger_until += gantry_now_ns();
	shut_when_said(l, 0);
	inet_loop_wake();
}

/* Reads and drops what the peer still sends, so that closing does not turn into a reset that destroys what it has not
 * read yet. 1: the peer is done too. */
static int drain_lanes(struct tcp_link *l)
{
	int all = 1;

	for (int i = 0; i < l->nlanes; i++)
		all &= l->lanes[i].io.ops->drain(&l->lanes[i].io);
	return all;
}

void tcp_linger_tick(uint64_t now)
{
	gantry_list_each_entry_safe (l, &tcp_network.lingering, struct tcp_link, node) {
		shut_when_said(l, now >= l->entry->linger_until);
		if (drain_lanes(l) || now >= l->entry->linger_until) {
			gantry_list_remove(&l->node);
			tcp_link_bury(l);
		}
	}
}
