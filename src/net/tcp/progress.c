/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass over a link's lanes, made by whoever calls test.
 *
 * Which sockets are worth a system call? The control lane always, at full rate while a small message may come; while
 * only large messages are outstanding, at most every GANTRY_POLL_PACE. A bulk lane only while a large receive is posted
 * or the peer has announced one, paced too once it was found empty. So a spinning caller costs few system calls.
 */
#include "base/atomic.h"
#include "base/clock.h"
#include "net/tcp/link.h"
#include "net/tcp/stage.h"
#include "net/tcp/unpack.h"
#include "net/tcp/worker.h"

enum { SELDOM = 200, PATIENCE = 100 }; /* paces */

/*
 * While workers move bulk bytes, the user's thread keeps its hands free: it has other connections and a GPU to look
 * after. If nothing has moved for a while, it does not rely on them.
 */
static bool is_helped(const struct tcp_link *l, uint64_t now)
{
	return tcp_workers_awake() &&
	       (int64_t)(now - load_relaxed(&l->last.bulk_moved)) < (int64_t)(PATIENCE * l->session.pace_ticks);
}

/* A lane has ended: what the others still hold is taken before the link fails. */
static void progress_ending(struct tcp_link *l)
{
	for (int i = 0; i < l->nlanes; i++)
		tcp_lane_rx(&l->lanes[i], true);
	tcp_link_check_ending(l);
}

static void progress_bulk(struct tcp_link *l, uint64_t now, bool sending, bool large)
{
	bool hands_off = is_helped(l, now); /* for all lanes: what one of them sends may leave something to others */

	for (int i = 1; i < l->nlanes; i++) {
		if (sending && !hands_off)
			tcp_bulk_tx(&l->lanes[i]);
		/* Without a large receive nothing should come, but a send that is too large must be noticed. */
		if ((!hands_off || !large) &&
		    tcp_lane_due(&l->lanes[i], large ? now : now - SELDOM * l->session.pace_ticks))
			tcp_lane_rx(&l->lanes[i], false);
	}
}

void tcp_link_progress(struct tcp_link *l)
{
	uint64_t now = gantry_ticks();
	bool sending = load_relaxed(&l->tx.bulk_pending) != 0;
	bool large = load_relaxed(&l->rx.large_posted) || load_relaxed(&l->rx.bulk_hint);
	bool small = load_relaxed(&l->rx.small_posted) || !(sending || large);

	store_relaxed(&l->last.progressed, now);
	tcp_unpack_progress(l);
	if (load_acquire(&l->end.ending)) {
		progress_ending(l);
		return;
	}
	tcp_stage_progress(l);
	if (load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
	if (small || tcp_lane_due(&l->lanes[0], now))
		tcp_lane_rx(&l->lanes[0], false);
	progress_bulk(l, now, sending, large);
	if (load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
}

void tcp_link_service(struct tcp_link *l, int heartbeat)
{
	for (int i = 0; i < l->nlanes; i++)
		tcp_lane_rx(&l->lanes[i], true);
	if (load_acquire(&l->end.ending))
		tcp_link_check_ending(l);
	if (heartbeat) {
		tcp_unpack_flush(l); /* an idle link keeps nothing back */
		link_mu_lock(&l->mu);
		l->rx.heartbeat_due = true;
		link_mu_unlock(&l->mu);
	}
	if (heartbeat || load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
}
