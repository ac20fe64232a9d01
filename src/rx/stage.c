/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging buffers and descriptor buffers: pinned, made when a connection starts (allocating pinned memory later may
 * wait for the program's kernels), more of them when they are needed, kept, and bounded.
 *
 * All connections share the staging memory, but each side of each connection may have one buffer whatever the others
 * hold. Otherwise the sends of one process could hold all of its buffers while they wait for receives of another whose
 * buffers are all held by sends to the first.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdlib.h>

#include "rx/rx.h"

enum { DESCS_MAX = 4 * RX_DEPTH_MAX };

static struct rx_stage *stage_new(struct gantry_rx *rx)
{
	struct rx_stage *s = calloc(1, sizeof(*s));
	void *host, *dev;

	if (!s || rx->device->ops->alloc_mapped(rx->device, rx->message, &host, &dev) != GANTRY_OK) {
		free(s);
		return NULL;
	}
	s->host = host;
	s->dev = dev;
	rx->counters.stage_memory += rx->message;
	return s;
}

static struct rx_descs *descs_new(struct gantry_rx *rx)
{
	struct rx_descs *d = calloc(1, sizeof(*d));
	void *host, *dev;

	if (!d || rx->device->ops->alloc_mapped(rx->device, rx->max_descs * sizeof(struct gantry_unpack_desc), &host,
						&dev) != GANTRY_OK) {
		free(d);
		return NULL;
	}
	d->host = host;
	d->dev = dev;
	rx->ndescs++;
	return d;
}

void rx_stages_reserve(struct gantry_rx *rx)
{
	uint64_t wanted = 0;

	gantry_list_each (pos, &rx->conns)
		wanted += 2 * rx->depth;
	while (rx->counters.stage_memory < wanted * rx->message &&
	       rx->counters.stage_memory + rx->message <= rx->stage_limit) {
		struct rx_stage *s = stage_new(rx);

		if (!s)
			return; /* whoever needs one finds out whether it can do without */
		s->next = rx->stages;
		rx->stages = s;
	}
	while (rx->ndescs < wanted && rx->ndescs < DESCS_MAX) {
		struct rx_descs *d = descs_new(rx);

		if (!d)
			return;
		d->next = rx->descs;
		rx->descs = d;
	}
}

struct rx_stage *rx_stage_get(struct gantry_rx *rx, struct rx_side *side)
{
	struct rx_stage *s = rx->stages;

	if (s)
		rx->stages = s->next;
	else if (rx->counters.stage_memory + rx->message <= rx->stage_limit || !side->staged)
		s = stage_new(rx);
	if (s)
		side->staged++;
	return s;
}

gantry_result rx_stage_none(const struct rx_side *side)
{
	return side->staged ? GANTRY_AGAIN : GANTRY_ERR_NOMEM;
}

void rx_stage_put(struct gantry_rx *rx, struct rx_side *side, struct rx_stage *s)
{
	if (!s)
		return;
	side->staged--;
	s->next = rx->stages;
	rx->stages = s;
}

struct rx_descs *rx_descs_get(struct gantry_rx *rx)
{
	struct rx_descs *d = rx->descs;

	if (!d)
		return rx->ndescs < DESCS_MAX ? descs_new(rx) : NULL;
	rx->descs = d->next;
	d->next = NULL;
	return d;
}

void rx_descs_put(struct gantry_rx *rx, struct rx_descs *d)
{
	while (d) {
		struct rx_descs *next = d->next;

		d->next = rx->descs;
		rx->descs = d;
		d = next;
	}
}

void rx_stages_free(struct gantry_rx *rx)
{
	for (struct rx_stage *s = rx->stages, *next; s; s = next) {
		next = s->next;
		rx->device->ops->free_mapped(rx->device, s->host);
		free(s);
	}
	for (struct rx_descs *d = rx->descs, *next; d; d = next) {
		next = d->next;
		rx->device->ops->free_mapped(rx->device, d->host);
		free(d);
	}
	rx->stages = NULL;
	rx->descs = NULL;
}

/* Apart: the program's kernels may stay until what this puts in place has come. */
gantry_result rx_stream_of(struct gantry_rx *rx, struct gantry_stream **s)
{
	return *s ? GANTRY_OK : rx->device->ops->stream_create_apart(rx->device, s);
}
