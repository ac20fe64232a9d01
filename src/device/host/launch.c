/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a kernel. Block 0's lane 0 is the stream's own thread; each further lane of each block has a helper thread,
 * so that all blocks of a launch really run at the same time, however much they wait for each other.
 *
 * A stream keeps as many helpers as its largest launch needed, from the moment that launch is enqueued: so running it
 * cannot fail, takes no lock and finds nobody in its way. They go back to the device with the stream.
 *
 * The usual launch has one block of one lane and costs nothing but the queue's own accesses.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include <string.h>

#include "base/atomic.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "device/host/host.h"

static struct dev_thread make_thread(const struct host_item *item, uint32_t block, uint32_t lane, struct dev_team *team)
{
	return (struct dev_thread){.lane = lane,
				   .lanes = item->lanes,
				   .block = block,
				   .blocks = item->blocks,
				   .abort = item->abort,
				   .eventcount = item->eventcounts ? &item->eventcounts[block] : NULL,
				   .team = team};
}

static struct dev_team *start_team(struct dev_team *t, uint32_t lanes)
{
	if (lanes == 1)
		return NULL;
	*t = (struct dev_team){.lanes = lanes};
	return t;
}

/* Everybody but block 0's lane 0, in the order of the helpers. */
static void start_helpers(struct gantry_stream *s, const struct host_item *item, struct dev_team *team,
			  uint32_t *pending)
{
	struct host_helper *h = s->helpers;
	uint32_t n = (uint32_t)item->blocks * item->lanes;

	for (uint32_t i = 1; i < n; i++) {
		uint32_t lane = i % item->lanes;

		if (i > 1)
			h = h->next;
		if (lane == 0)
			team = start_team(&h->team, item->lanes);
		h->self = make_thread(item, i / item->lanes, lane, team);
		h->fn = item->fn;
		h->args = item->args;
		h->pending = pending;
		h->done_eventcount = &s->eventcount;
		gantry_host_helper_start(h);
	}
}

static void run_many(struct gantry_stream *s, const struct host_item *item)
{
	uint32_t pending = (uint32_t)item->blocks * item->lanes - 1;
	struct dev_team *team = start_team(&s->team, item->lanes);
	struct gantry_waiter w;

	start_helpers(s, item, team, &pending);
	dev_self = make_thread(item, 0, 0, team);
	item->fn(item->args);
	gantry_waiter_init(&w, &s->eventcount);
	while (load_seq(&pending))
		gantry_waiter_idle(&w, UINT64_MAX);
	gantry_waiter_done(&w);
}

void gantry_host_run(struct gantry_stream *s, const struct host_item *item)
{
	if (item->blocks * item->lanes > 1) {
		run_many(s, item);
		return;
	}
	dev_self = make_thread(item, 0, 0, NULL);
	item->fn(item->args);
}

/* The stream has at least n helpers from here on. */
static gantry_result have_helpers(struct gantry_stream *s, uint32_t n)
{
	gantry_result r = GANTRY_OK;
	struct host_helper *first, *last;

	stream_mu_lock(&s->mu);
	if (s->nhelpers >= n)
		goto out;
	TRY(gantry_host_helpers_take(s->hd, n - s->nhelpers, &first, &last));
	/* The worker may be walking along the helpers it needs now; it does not look beyond the last of them. */
	if (s->last_helper)
		s->last_helper->next = first;
	else
		s->helpers = first;
	s->last_helper = last;
	s->nhelpers = n;
out:
	stream_mu_unlock(&s->mu);
	return r;
}

gantry_result gantry_host_launch_body(struct gantry_device *dev, struct gantry_stream *s, uint32_t blocks,
				      uint32_t lanes, gantry_host_body fn, const void *args, size_t args_size,
				      const uint32_t *abort_flag, struct gantry_eventcount *eventcounts)
{
	gantry_result r = GANTRY_OK;
	struct host_item item = {
		.kind = HOST_ITEM_LAUNCH, .fn = fn, .size = args_size, .abort = abort_flag, .eventcounts = eventcounts};

	(void)dev;
	if (!lanes)
		lanes = 1;
	if (!blocks || blocks > GANTRY_HOST_MAX_BLOCKS || lanes > GANTRY_HOST_MAX_LANES ||
	    blocks * lanes > GANTRY_HOST_MAX_THREADS)
		FAIL(GANTRY_ERR_INVALID,
		     "a launch of %u blocks of %u lanes; the host takes 1 to %d of up to %d, %d in all", blocks, lanes,
		     GANTRY_HOST_MAX_BLOCKS, GANTRY_HOST_MAX_LANES, GANTRY_HOST_MAX_THREADS);
	item.blocks = (uint16_t)blocks;
	item.lanes = (uint16_t)lanes;
	if (blocks * lanes > 1)
		TRY(have_helpers(s, blocks * lanes - 1));
	r = gantry_host_enqueue(s, &item, args);
out:
	return r;
}

gantry_result gantry_host_launch(struct gantry_device *dev, struct gantry_stream *s, const struct gantry_launch *l)
{
	return gantry_host_launch_body(dev, s, l->blocks, l->lanes, l->kernel->body, l->args, l->args_size, l->abort,
				       l->eventcounts);
}
