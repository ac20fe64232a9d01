/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether what is sent on a bulk lane arrives.
 *
 * Heartbeats travel on lane 0 and tell nothing about the other lanes: something between the hosts may acknowledge the
 * bytes of one of them and drop them, or lose its packets alone. So each side tells the other how many bytes have
 * arrived on each bulk lane, when that has changed, and the sender compares that with what it has given to the socket.
 * Bytes that are missing, and no news of any that have arrived, for GANTRY_TIMEOUT during which the peer was heard, are
 * an error. Whether the receiver reads its socket is not the question: what waits there has arrived, and while
 * something waits, what does not arrive says nothing about the lane.
 *
 * All of it is done by the service thread, a few times in GANTRY_TIMEOUT.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/link.h"

/* Bytes that have arrived, those in the socket included. While another thread reads the lane, only what it has read. */
static void count_arrived(struct tcp_lane *lane, uint64_t *ret_arrived, uint64_t *ret_unread)
{
	int unread = 0;

	if (lane_rx_mu_trylock(&lane->rx.lock)) {
		if (ioctl(lane->fd, SIOCINQ, &unread) || unread < 0)
			unread = 0;
		*ret_arrived = lane->rx.bytes + (uint64_t)unread;
		lane_rx_mu_unlock(&lane->rx.lock);
	} else {
		*ret_arrived = load_relaxed(&lane->rx.bytes);
	}
	*ret_unread = (uint64_t)unread;
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
	struct tcp_lane_tx *tx;

	if (a->lane >= (uint32_t)l->nlanes) {
		tcp_link_fail_locked(l, 1, GANTRY_ERR_PROTOCOL, "the peer counts bytes of lane %u, of %d lanes",
				     a->lane, l->nlanes);
		return -1;
	}
	tx = &l->lanes[a->lane].tx;
	store_relaxed(&tx->arrived, a->bytes);
	store_relaxed(&tx->unread, a->unread);
	return 0;
}

static void lane_stands_still(struct tcp_lane *lane, uint64_t given, uint64_t arrived)
{
	int queued = 0;
	/* Not acknowledged: nobody has them. Otherwise somebody does, who is not the peer. */
	int lost = !ioctl(lane->fd, SIOCOUTQ, &queued) && queued > 0;

	tcp_link_fail(
		lane->link, 1, GANTRY_ERR_PEER_SILENT,
		"lane %d: %llu bytes sent, %llu arrived, none of the others for %.3g s (GANTRY_TIMEOUT) while the "
		"peer is heard on lane 0: %s",
		lane->index, (unsigned long long)given, (unsigned long long)arrived,
		(double)gantry_params()->timeout / 1e9,
		lost ? "packets of this lane are lost" : "something between the hosts swallows them");
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
