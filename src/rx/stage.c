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
#include "rx/rx.h"

enum { DESCS_MAX = 4 * RX_DEPTH_MAX };

static size_t descs_size(const struct gantry_rx *rx)
{
	return rx->max_descs * sizeof(struct gantry_unpack_desc);
}

void rx_stages_init(struct gantry_rx *rx)
{
	gantry_pinned_init(&rx->stages, rx->device, rx->message);
	gantry_pinned_init(&rx->descs, rx->device, descs_size(rx));
}

static gantry_result add_stage(struct gantry_rx *rx) REQUIRES(rx_mu)
{
	gantry_result r = gantry_pinned_grow(&rx->stages, rx->message, 1);

	rx->counters.stage_memory = rx->stages.memory;
	return r;
}

void rx_stages_reserve(struct gantry_rx *rx)
{
	uint64_t wanted = 0;

	gantry_list_each (pos, &rx->conns)
		wanted += 2 * rx->depth;
	/* Whoever needs one that there is no memory for finds out whether it can do without. */
	while (rx->stages.memory < wanted * rx->message && rx->stages.memory + rx->message <= rx->stage_limit)
		if (add_stage(rx) != GANTRY_OK)
			return;
	wanted = wanted < DESCS_MAX ? wanted : DESCS_MAX;
	while (rx->descs.memory < wanted * descs_size(rx))
		if (gantry_pinned_grow(&rx->descs, descs_size(rx), 1) != GANTRY_OK)
			return;
}

struct gantry_piece *rx_stage_get(struct gantry_rx *rx, struct rx_side *side)
{
	struct gantry_piece *s = gantry_pinned_take(&rx->stages, rx->message);

	if (!s && (rx->stages.memory + rx->message <= rx->stage_limit || !side->staged) && add_stage(rx) == GANTRY_OK)
		s = gantry_pinned_take(&rx->stages, rx->message);
	if (s)
		side->staged++;
	return s;
}

gantry_result rx_stage_none(const struct rx_side *side)
{
	return side->staged ? GANTRY_AGAIN : GANTRY_ERR_NOMEM;
}

void rx_stage_put(struct gantry_rx *rx, struct rx_side *side, struct gantry_piece *s)
{
	if (s)
		side->staged--;
	gantry_pinned_give(&rx->stages, s);
}

struct gantry_piece *rx_descs_get(struct gantry_rx *rx)
{
	struct gantry_piece *d = gantry_pinned_take(&rx->descs, descs_size(rx));

	if (!d && rx->descs.memory < DESCS_MAX * descs_size(rx) &&
	    gantry_pinned_grow(&rx->descs, descs_size(rx), 1) == GANTRY_OK)
		d = gantry_pinned_take(&rx->descs, descs_size(rx));
	return d;
}

void rx_descs_put(struct gantry_rx *rx, struct gantry_piece *d)
{
	for (struct gantry_piece *next; d; d = next) {
		next = d->next;
		gantry_pinned_give(&rx->descs, d);
	}
}

void rx_stages_free(struct gantry_rx *rx)
{
	gantry_pinned_free(&rx->stages);
	gantry_pinned_free(&rx->descs);
}

/* Apart: the program's kernels may stay until what this puts in place has come. */
gantry_result rx_stream_of(struct gantry_rx *rx, struct gantry_stream **s)
{
	return *s ? GANTRY_OK : rx->device->ops->stream_create_apart(rx->device, s);
}
