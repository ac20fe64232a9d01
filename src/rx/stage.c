/*
 * Staging buffers and descriptor buffers: pinned, made when first needed, kept, and bounded.
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
	void *host, *dev;

	if (d) {
		rx->descs = d->next;
		d->next = NULL;
		return d;
	}
	if (rx->ndescs == DESCS_MAX)
		return NULL;
	d = calloc(1, sizeof(*d));
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
