/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of pipelines, for inet/stats.h. A pipeline has no thread: it is shown while it, or another user
 * of the network, has a connection or listens.
 */
#include "base/atomic.h"
#include "inet/stats.h"
#include "rx/rx.h"

static struct gantry_list all GUARDED_BY(loop_mu) = {&all, &all};

static void put_rx(struct gantry_metrics *m, const struct gantry_rx *rx)
{
	const struct gantry_rx_counters *c = &rx->counters;
	uint32_t labels = gantry_metrics_label_int(m, 0, "rx", rx->number);
	const struct {
		enum gantry_metric metric;
		const char *label, *word; /* NULL: no label */
		const uint64_t *value;
	} rows[] = {
		{GANTRY_METRIC_RX_BYTES, "dir", "send", &c->sent_bytes},
		{GANTRY_METRIC_RX_BYTES, "dir", "recv", &c->received_bytes},
		{GANTRY_METRIC_RX_WAY, "way", "unpacked", &c->unpacked_bytes},
		{GANTRY_METRIC_RX_WAY, "way", "staged", &c->staged_bytes},
		{GANTRY_METRIC_RX_WAY, "way", "direct", &c->direct_bytes},
		{GANTRY_METRIC_RX_LAUNCHES, NULL, NULL, &c->launches},
		{GANTRY_METRIC_RX_STRANGERS, NULL, NULL, &rx->strangers},
		{GANTRY_METRIC_RX_STAGING, NULL, NULL, &c->stage_memory},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		gantry_metrics_put(m, rows[i].metric,
				   rows[i].label ? gantry_metrics_label(m, labels, rows[i].label, rows[i].word)
						 : labels,
				   load_relaxed(rows[i].value));
}

static void collect_rx(struct gantry_metrics *m) REQUIRES(loop_mu)
{
	gantry_list_each_entry (rx, &all, struct gantry_rx, node)
		put_rx(m, rx);
}

static struct inet_stats_source source = {.collect = collect_rx, .passive = 1};

void rx_stats_add(struct gantry_rx *rx)
{
	static uint32_t last GUARDED_BY(loop_mu);

	inet_loop_lock();
	rx->number = ++last;
	gantry_list_append(&all, &rx->node);
	inet_stats_add(&source);
	inet_loop_unlock();
}

void rx_stats_remove(struct gantry_rx *rx)
{
	inet_loop_lock();
	if (rx->node.next)
		gantry_list_remove(&rx->node);
	if (gantry_list_empty(&all))
		inet_stats_remove(&source);
	inet_loop_unlock();
}
