/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of communicators, for inet/stats.h: those of reports (report.c), summed up over the channels of a direction.
 * Runs under loop_mu, so no communicator goes away meanwhile; takes no other lock.
 */
#include <stdio.h>

#include "base/atomic.h"
#include "comm/report.h"
#include "transport/transport.h"

/* One direction of a peer. */
struct sum {
	int peer, send; /* peer -1: nothing yet */
	const char *transport;
	uint64_t bytes, steps, waited_ns[GANTRY_COMM_WAITS];
	uint64_t waiting[COMM_WAITS_COUNT];
};

static void add_end(struct sum *s, const struct comm_end *e)
{
	s->peer = e->peer;
	s->send = e->send;
	s->transport = e->transport ? e->transport->name : "";
	s->bytes += e->bytes;
	for (int i = 0; i < GANTRY_PROTOS * GANTRY_MODES; i++)
		s->steps += e->by[i / GANTRY_MODES][i % GANTRY_MODES];
	for (int i = 0; i < GANTRY_COMM_WAITS; i++)
		s->waited_ns[i] += e->waited_ns[i];
	s->waiting[e->waits] += (uint64_t)e->pending;
}

static void put_sum(struct gantry_metrics *m, uint32_t comm, const struct sum *s)
{
	uint32_t labels;

	if (s->peer < 0)
		return;
	labels = gantry_metrics_label_int(m, comm, "peer", s->peer);
	labels = gantry_metrics_label(m, labels, "dir", s->send ? "send" : "recv");
	labels = gantry_metrics_label(m, labels, "transport", s->transport);
	gantry_metrics_put(m, GANTRY_METRIC_COMM_BYTES, labels, s->bytes);
	gantry_metrics_put(m, GANTRY_METRIC_COMM_STEPS, labels, s->steps);
	for (int i = 0; i < GANTRY_COMM_WAITS; i++)
		if (s->waited_ns[i])
			gantry_metrics_put(m, GANTRY_METRIC_COMM_WAIT,
					   gantry_metrics_label(m, labels, "cause", comm_wait_cause_name(i)),
					   s->waited_ns[i]);
	for (int i = 0; i < COMM_WAITS_COUNT; i++)
		if (s->waiting[i])
			gantry_metrics_put(
				m, GANTRY_METRIC_COMM_WAITING,
				gantry_metrics_label(m, labels, "waits_for", comm_waits_name((enum comm_waits)i)),
				s->waiting[i]);
}

static void put_comm(struct gantry_metrics *m, struct gantry_comm *comm)
{
	struct sum s = {.peer = -1};
	uint32_t labels, info;
	char id[20];

	snprintf(id, sizeof(id), "%016llx", (unsigned long long)comm->id);
	labels = gantry_metrics_label(m, 0, "comm", id);
	labels = gantry_metrics_label_int(m, labels, "rank", comm->rank);
	info = gantry_metrics_label_int(m, labels, "nranks", comm->nranks);
	gantry_metrics_put(m, GANTRY_METRIC_COMM_INFO, info, 1);
	gantry_metrics_put(m, GANTRY_METRIC_COMM_COLLECTIVES, labels, load_relaxed(&comm->coll->calls));
	COMM_EACH_END (comm, e) {
		if (s.peer != e.peer || s.send != e.send) {
			put_sum(m, labels, &s);
			s = (struct sum){.peer = -1};
		}
		add_end(&s, &e);
	}
	put_sum(m, labels, &s);
}

static void collect_comms(struct gantry_metrics *m) REQUIRES(loop_mu)
{
	for (struct gantry_comm *comm = comm_watch_next(NULL); comm; comm = comm_watch_next(comm))
		if (!load_acquire(&comm->life.starting))
			put_comm(m, comm);
}

struct inet_stats_source comm_stats = {.collect = collect_comms};
