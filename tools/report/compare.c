/* SPDX-License-Identifier: Apache-2.0 */
/* Which series stand in one section, and which is compared with which. */
#include <math.h>
#include <string.h>

#include "report/series.h"

/* Series of bench/ that are peers of another series by name. */
static const struct {
	enum report_op op;
	enum report_quantity quantity;
	const char *own, *peer;
} bench_peers[] = {
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry", "NCCL Socket"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry", "NCCL Socket, 2 \303\227 2"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry, other settings", "NCCL Socket"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry, other settings", "NCCL Socket, 2 \303\227 2"},
	{REPORT_ALLREDUCE, REPORT_LATENCY, "Gantry, UNPACK", "Gantry, through host memory"},
	{REPORT_BENCH, REPORT_BANDWIDTH, "sendrecv over net", "perf net"},
	{REPORT_LIBRARIES, REPORT_LATENCY, "Gantry", "OpenMPI"},
	{REPORT_LIBRARIES, REPORT_LATENCY, "Gantry", "gloo"},
};
enum { BENCH_PEERS = sizeof(bench_peers) / sizeof(bench_peers[0]) };

const char *report_letter(size_t file, char buf[8])
{
	if (file < 26)
		snprintf(buf, 8, "%c", 'A' + (int)file);
	else
		snprintf(buf, 8, "%c%c", 'A' + (int)((file / 26 - 1) % 26), 'A' + (int)(file % 26));
	return buf;
}

int report_in_section(const struct report_section *s, const struct report_series *x)
{
	return x->op == s->op && strcmp(x->group, s->group) == 0;
}

int report_is_beside(const struct report_series *s)
{
	for (size_t i = 0; i < BENCH_PEERS; i++)
		if (s->op == bench_peers[i].op && strcmp(s->name, bench_peers[i].peer) == 0)
			return 1;
	return s->peer != NULL || (s->op == REPORT_ALLREDUCE && isnan(s->points[0].bytes));
}

int report_is_peer(const struct report_series *own, const struct report_series *s)
{
	if (own->peer || s->file != own->file || s->op != own->op || s->quantity != own->quantity ||
	    strcmp(s->group, own->group) != 0 || strcmp(s->commit, own->commit) != 0)
		return 0;
	if (s->peer)
		return strcmp(s->name, own->name) == 0;
	for (size_t i = 0; i < BENCH_PEERS; i++)
		if (own->op == bench_peers[i].op && own->quantity == bench_peers[i].quantity &&
		    strcmp(own->name, bench_peers[i].own) == 0 && strcmp(s->name, bench_peers[i].peer) == 0)
			return 1;
	return 0;
}

const struct report_series *report_counterpart(const struct report *r, const struct report_series *a, size_t file)
{
	const struct report_series *found = NULL, *only = NULL;
	size_t here = 0, there = 0;

	for (size_t i = 0; i < r->nseries; i++) {
		const struct report_series *s = &r->series[i];

		if (s->peer || s->quantity != a->quantity || s->op != a->op || strcmp(s->group, a->group) != 0)
			continue;
		here += s->file == a->file;
		if (s->file != file)
			continue;
		there++;
		only = s;
		if (strcmp(s->name, a->name) == 0)
			found = s;
	}
	return found ? found : here == 1 && there == 1 ? only : NULL;
}

/* Beyond these there is no figure of a measurement, and arithmetic has its limits. */
int report_drawable(double v)
{
	return v >= 1e-9 && v <= 1e12;
}

size_t report_ratio(const struct report_series *a, const struct report_series *b, struct report_point *ret)
{
	size_t n = 0;

	for (const struct report_point *x = a->points; x < a->points + a->npoints; x++) {
		for (const struct report_point *y = b->points; y < b->points + b->npoints; y++) {
			double v = a->quantity == REPORT_BANDWIDTH ? x->median / y->median : y->median / x->median;

			if ((x->bytes != y->bytes && !(isnan(x->bytes) && isnan(y->bytes))) || !report_drawable(v))
				continue;
			if (ret)
				ret[n] = (struct report_point){x->bytes, v, v, v, 1};
			n++;
		}
	}
	return n;
}
