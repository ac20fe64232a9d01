/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a moment, in Prometheus' text format (version 0.0.4).
 *
 * Collecting and formatting are separate. A module with counters adds samples while it holds its locks: that copies a
 * number, and a label set now and then. The text, which takes longer and needs all samples of a metric together, is
 * produced afterwards without a lock.
 *
 *	uint32_t link = gantry_metrics_label(m, 0, "peer", peer);
 *
 *	gantry_metrics_put(m, GANTRY_METRIC_LANE_SENT, gantry_metrics_label(m, link, "lane", "1"), bytes);
 */
#ifndef GANTRY_BASE_METRICS_H
#define GANTRY_BASE_METRICS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum gantry_metric {
#define M(name, kind, unit, text, help) GANTRY_METRIC_##name,
#include "base/metrics.def"
#undef M
	GANTRY_METRICS
};

struct gantry_metrics {
	struct gantry_sample {
		uint64_t value;
		uint32_t labels;
		uint32_t metric;
	} * samples; /* owned */
	size_t n, room;
	char *text; /* owned: label sets, each ended by 0; the empty set is the first */
	size_t len, text_room;
	int failed; /* no memory: what is there is not all */
};

/* Zeroed memory is a good beginning. */
void gantry_metrics_free(struct gantry_metrics *m);
/* The set `base` (0: the empty one) with one more label. */
uint32_t gantry_metrics_label(struct gantry_metrics *m, uint32_t base, const char *name, const char *value);
uint32_t gantry_metrics_label_int(struct gantry_metrics *m, uint32_t base, const char *name, int64_t value);
/* A metric with a label set is put once. */
void gantry_metrics_put(struct gantry_metrics *m, enum gantry_metric metric, uint32_t labels, uint64_t value);
void gantry_metrics_write(const struct gantry_metrics *m, FILE *f);

#endif
