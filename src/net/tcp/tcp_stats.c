/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of links and lanes, for inet/stats.h. They are those that the network keeps anyway, and TCP's own of each
 * socket: nothing is counted for this alone on the way of a message. Runs under loop_mu, so no link goes away meanwhile.
 */
#include "base/atomic.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "net/tcp/network.h"

static uint64_t ns_of(uint64_t ticks)
{
	return (uint64_t)(gantry_us_of_ticks(ticks) * 1e3);
}

/* TCP's microseconds. It says how long there was something to send, and how much of that its two limits were to blame
 * for. */
static void put_limited(struct gantry_metrics *m, uint32_t labels, const struct tcp_io_info *t)
{
	uint64_t limits = t->receiver_limited_us + t->buffer_limited_us;
	uint64_t rest = t->busy_us > limits ? t->busy_us - limits : 0;

	gantry_metrics_put(m, GANTRY_METRIC_LANE_LIMITED, gantry_metrics_label(m, labels, "cause", "receiver"),
			   t->receiver_limited_us * 1000);
	gantry_metrics_put(m, GANTRY_METRIC_LANE_LIMITED, gantry_metrics_label(m, labels, "cause", "send_buffer"),
			   t->buffer_limited_us * 1000);
	gantry_metrics_put(m, GANTRY_METRIC_LANE_LIMITED, gantry_metrics_label(m, labels, "cause", "network"),
			   rest * 1000);
}

static void put_lane(struct gantry_metrics *m, uint32_t link, struct tcp_lane *lane)
{
	uint32_t labels = gantry_metrics_label_int(m, link, "lane", lane->index);
	const struct gantry_nic *nic = tcp_nic_of(&lane->local);
	struct tcp_io_info t;

	if (nic)
		labels = gantry_metrics_label(m, labels, "nic", nic->name);

	/* What is given to lane 0 is in `bytes` at once, that of others when a piece is over. */
	gantry_metrics_put(m, GANTRY_METRIC_LANE_SENT, labels,
			   load_relaxed(lane->index ? &lane->tx.given : &lane->tx.bytes));
	gantry_metrics_put(m, GANTRY_METRIC_LANE_RECEIVED, labels, load_relaxed(&lane->rx.bytes));
	if (lane->index)
		gantry_metrics_put(m, GANTRY_METRIC_LANE_PIECES, labels, load_relaxed(&lane->tx.pieces));
	if (!lane->io.ops->info(&lane->io, &t) || !t.has_limits)
		return;
	gantry_metrics_put(m, GANTRY_METRIC_LANE_RETRANSMITS, labels, t.retransmits_total);
	gantry_metrics_put(m, GANTRY_METRIC_LANE_RTT, labels, (uint64_t)t.rtt_us * 1000);
	put_limited(m, labels, &t);
}

static void put_direction(struct gantry_metrics *m, uint32_t link, struct tcp_link *l, int send, uint64_t messages)
{
	uint32_t labels = gantry_metrics_label(m, link, "dir", send ? "send" : "recv");
	struct gantry_stall_wait w;

	gantry_metrics_put(m, GANTRY_METRIC_LINK_MESSAGES, labels, messages);
	tcp_stall_look(l, send, &w);
	labels = gantry_metrics_label(m, labels, "waits_for", w.requests ? w.waits_for : "none");
	gantry_metrics_put(m, GANTRY_METRIC_LINK_REQUESTS, labels, w.requests);
}

static void put_link(struct gantry_metrics *m, struct tcp_link *l) REQUIRES(loop_mu)
{
	uint32_t labels = gantry_metrics_label_int(m, 0, "link", l->session.id);
	uint64_t sent, received, waits, ticks;

	link_mu_lock(&l->mu);
	sent = l->tx.bulk_sent;
	received = l->rx.bulk_received;
	waits = l->tx.credit_waits;
	ticks = l->tx.credit_wait_ticks;
	link_mu_unlock(&l->mu);
	labels = gantry_metrics_label(m, labels, "peer", l->session.peer);
	put_direction(m, labels, l, 1, sent);
	put_direction(m, labels, l, 0, received);
	gantry_metrics_put(m, GANTRY_METRIC_LINK_SPREAD, labels, load_relaxed(&l->spread->messages));
	gantry_metrics_put(m, GANTRY_METRIC_LINK_CREDIT_WAITS, labels, waits);
	gantry_metrics_put(m, GANTRY_METRIC_LINK_CREDIT_TIME, labels, ns_of(ticks));
	for (int i = 0; i < l->nlanes; i++)
		put_lane(m, labels, &l->lanes[i]);
}

static void collect_links(struct gantry_metrics *m) REQUIRES(loop_mu)
{
	const struct tcp_network *e = &tcp_network;

	gantry_metrics_put(m, GANTRY_METRIC_CONNECT_RETRIES, 0, e->counts.connect_retries);
	gantry_metrics_put(m, GANTRY_METRIC_LINK_FAILURES, 0, e->counts.link_failures);
	gantry_list_each_entry (l, &e->links, struct tcp_link, node)
		if (l->entry->up)
			put_link(m, l);
}

struct inet_stats_source tcp_stats = {.collect = collect_links};
