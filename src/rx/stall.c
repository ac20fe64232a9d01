/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops that do not move. A pipeline has no thread of its own, so whoever waits for an op looks: after a pass that moved
 * nothing. Time in which nobody called is nobody's stall.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include "base/stall.h"
#include <stdio.h>

#include "base/clock.h"
#include "rx/rx.h"

enum { WAITS_MAX = 64, AWAY_NS = 1000000000 };

void rx_stall_init(struct gantry_rx *rx)
{
	rx->stall.after = gantry_stall_after() ? gantry_ticks_of_ns(gantry_stall_after()) : 0;
}

static void see_ops(struct gantry_stall_wait *w, const struct gantry_list *ops)
{
	gantry_list_each_entry (op, ops, struct gantry_rx_op, node) {
		if (!w->requests++) {
			w->tag = op->tag;
			w->bytes = op->batch.bytes;
			w->waits_for = op->phase == RX_LOCAL ? "kernel" : "peer";
		}
	}
}

static void tell(struct gantry_rx *rx, uint64_t now)
{
	struct gantry_stall_wait waits[WAITS_MAX];
	size_t n = 0;

	gantry_list_each_entry (c, &rx->conns, struct gantry_rx_conn, node) {
		for (int send = 0; send < 2 && n < WAITS_MAX; send++) {
			struct rx_side *s = send ? &c->out : &c->in;
			struct gantry_stall_wait *w = &waits[n];

			*w = (struct gantry_stall_wait){.send = send};
			snprintf(w->peer, sizeof(w->peer), "%s", s->comm ? gantry_net_tcp_peer(s->comm) : c->peer);
			w->wait_ns = (uint64_t)(gantry_us_of_ticks(now - rx->stall.since) * 1e3);
			see_ops(w, &s->data);
			see_ops(w, &s->offered);
			see_ops(w, &s->waiting);
			n += w->requests != 0;
		}
	}
	if (n)
		gantry_stall_tell("rx", waits, n);
}

void rx_stall_look(struct gantry_rx *rx, int moved)
{
	uint64_t now;

	if (!rx->stall.after)
		return;
	now = gantry_ticks();
	if (moved || !rx->stall.since || now - rx->stall.looked > gantry_ticks_of_ns(AWAY_NS)) {
		rx->stall.since = now;
		rx->stall.told = 0;
	} else if (now - rx->stall.since >= rx->stall.after && !rx->stall.told) {
		rx->stall.told = 1;
		tell(rx, now);
	}
	rx->stall.looked = now;
}
