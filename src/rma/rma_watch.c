/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others see of a communicator: its counters (inet/stats.h), its oldest request in every stall report of the process, a
 * report of its own when that request does not get done: kernels wait for it, and have no deadline; its requests in the trace.
 */
#include <stdio.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/json.h"
#include "base/trace.h"
#include "inet/stats.h"
#include "rma/rma_priv.h"

static struct gantry_list all GUARDED_BY(loop_mu) = {&all, &all};

void rma_counts(const struct rma_comm *c, struct rma_counts *ret)
{
	*ret = (struct rma_counts){.puts = load_relaxed(&c->counts.puts),
				   .gets = load_relaxed(&c->counts.gets),
				   .signals = load_relaxed(&c->counts.signals),
				   .bytes_out = load_relaxed(&c->counts.bytes_out),
				   .bytes_in = load_relaxed(&c->counts.bytes_in),
				   .applied = load_relaxed(&c->counts.applied)};
}

static void put_counts(struct gantry_metrics *m, const struct rma_comm *c)
{
	uint32_t labels = gantry_metrics_label_int(m, 0, "rma", c->watch.number);
	struct rma_counts n;
	const struct {
		enum gantry_metric metric;
		const char *label, *word;
		const uint64_t *value;
	} rows[] = {
		{GANTRY_METRIC_RMA_REQUESTS, "what", "put", &n.puts},
		{GANTRY_METRIC_RMA_REQUESTS, "what", "get", &n.gets},
		{GANTRY_METRIC_RMA_REQUESTS, "what", "signal", &n.signals},
		{GANTRY_METRIC_RMA_BYTES, "dir", "send", &n.bytes_out},
		{GANTRY_METRIC_RMA_BYTES, "dir", "recv", &n.bytes_in},
		{GANTRY_METRIC_RMA_APPLIED, "rank", NULL, &n.applied},
	};

	rma_counts(c, &n);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		gantry_metrics_put(m, rows[i].metric,
				   rows[i].word ? gantry_metrics_label(m, labels, rows[i].label, rows[i].word)
						: gantry_metrics_label_int(m, labels, rows[i].label, c->rank),
				   *rows[i].value);
}

static void collect_counts(struct gantry_metrics *m) REQUIRES(loop_mu)
{
	gantry_list_each_entry (c, &all, struct rma_comm, watch.node)
		put_counts(m, c);
}

static struct inet_stats_source stats = {.collect = collect_counts, .passive = 1};

/* ---- stalls ---- */

static const struct rma_request *find_oldest(const struct rma_comm *c) REQUIRES(rma_mu)
{
	const struct rma_request *oldest = NULL;

	for (uint32_t i = 0; i < c->ranks; i++)
		gantry_list_each_entry (q, &c->peers[i].open, struct rma_request, open) {
			if (!oldest || q->since < oldest->since)
				oldest = q;
			break; /* they are in order */
		}
	return oldest;
}

/* A request of this rank. */
static enum gantry_event_rma what_of(const struct rma_request *q)
{
	if (q->head.what != RMA_PUT)
		return GANTRY_EV_IS_GET;
	if (q->head.signal.at.memory == RMA_NO_MEMORY)
		return GANTRY_EV_IS_PUT;
	return q->head.bytes ? GANTRY_EV_IS_PUT_SIGNAL : GANTRY_EV_IS_SIGNAL;
}

static const char *name_of(const struct rma_request *q)
{
	return q->head.what == RMA_REPLY ? "answer to a get" : gantry_event_rma_names[what_of(q)];
}

/* {"kind":"rma","rank":0,"peer":1,"context":2,"what":"put with signal","bytes":4096,"signal":24,"wait_ms":31000} */
static void put_line(struct gantry_stall_source *s, FILE *f)
{
	struct rma_comm *c = gantry_container(s, struct rma_comm, watch.source);
	const struct rma_request *q;
	struct gantry_json j;

	rma_mu_lock(&c->mu);
	q = find_oldest(c);
	if (q) {
		gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
		gantry_json_str(&j, "kind", "rma");
		gantry_json_int(&j, "rank", c->rank);
		gantry_json_int(&j, "peer", q->peer->rank);
		gantry_json_int(&j, "context", q->head.context);
		gantry_json_str(&j, "what", name_of(q));
		gantry_json_int(&j, "bytes", (int64_t)q->head.bytes);
		gantry_json_int(&j, "signal",
				q->head.signal.at.memory == RMA_NO_MEMORY ? -1 : (int64_t)q->head.signal.at.offset);
		gantry_json_int(&j, "wait_ms", (int64_t)((gantry_now_ns() - q->since) / 1000000));
		gantry_json_end(&j);
	}
	rma_mu_unlock(&c->mu);
}

/* true: the oldest request has waited too long, and has not been reported. */
static bool find_stall(struct rma_comm *c, struct gantry_stall_wait *ret) REQUIRES(rma_mu)
{
	const uint64_t now = gantry_now_ns();
	const struct rma_request *q;

	if (now - c->watch.looked < gantry_stall_interval())
		return false;
	c->watch.looked = now;
	q = find_oldest(c);
	if (!q || now - q->since < gantry_stall_after() || q->since == c->watch.reported)
		return false;
	c->watch.reported = q->since;
	*ret = (struct gantry_stall_wait){.waits_for = q->fence.pending ? "flush" : "peer",
					  .send = q->head.what != RMA_GET,
					  .requests = 1,
					  .tag = q->head.context,
					  .bytes = q->head.bytes,
					  .wait_ns = now - q->since};
	snprintf(ret->peer, sizeof(ret->peer), "rank %u in context %u (%s)", q->peer->rank, q->head.context,
		 name_of(q));
	return true;
}

enum { CALLS_PER_LOOK = 4096 }; /* a clock read in so many */

void rma_watch_progress(struct rma_comm *c)
{
	struct gantry_stall_wait wait;
	bool stalled;

	if (!c->watch.stalls || fetch_add_relaxed(&c->watch.calls, 1) % CALLS_PER_LOOK)
		return;
	rma_mu_lock(&c->mu);
	stalled = find_stall(c, &wait);
	rma_mu_unlock(&c->mu);
	if (stalled)
		gantry_stall_tell("rma", &wait, 1, 0);
}

/* ---- traces ---- */

void rma_watch_request(const struct rma_request *q)
{
	if (!gantry_trace_on() || q->answer)
		return;
	gantry_event_put(GANTRY_EV_RMA, (uint32_t)q->comm->watch.number,
			 (uint32_t)q->number | (uint64_t)q->peer->rank << 32,
			 q->head.bytes | (uint64_t)q->head.context << 44 | (uint64_t)what_of(q) << 56 |
				 (q->done ? GANTRY_EV_OP_END : 0));
}

void rma_watch_signal(const struct rma_comm *c, uint32_t peer, const struct rma_header *head)
{
	if (gantry_trace_on())
		gantry_event_put(GANTRY_EV_RMA_SIGNAL, (uint32_t)c->watch.number, head->context | (uint64_t)peer << 32,
				 head->signal.add);
}

/* ---- life ---- */

void rma_watch_open(struct rma_comm *c)
{
	static int64_t last GUARDED_BY(loop_mu);

	c->watch.stalls = gantry_stall_after() != 0;
	c->watch.source.put = put_line;
	gantry_stall_add(&c->watch.source);
	inet_loop_lock();
	c->watch.number = ++last;
	gantry_list_append(&all, &c->watch.node);
	inet_stats_add(&stats);
	inet_loop_unlock();
}

void rma_watch_close(struct rma_comm *c)
{
	if (!c->watch.source.put)
		return;
	gantry_stall_remove(&c->watch.source);
	inet_loop_lock();
	gantry_list_remove(&c->watch.node);
	if (gantry_list_empty(&all))
		inet_stats_remove(&stats);
	inet_loop_unlock();
}
