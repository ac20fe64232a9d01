/* SPDX-License-Identifier: Apache-2.0 */
/* The device's own queues of copies: a stream each, made on first use, and a word that its thread counts up. */
#include "base/atomic.h"
#include "device/host/host.h"

static struct host_way *way_of(struct gantry_device *dev, enum gantry_way way)
{
	return &host_device(dev)->ways[way];
}

gantry_result gantry_host_move(struct gantry_device *dev, enum gantry_way way, void *dst, const void *src, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct host_way *w = way_of(dev, way);
	struct gantry_stream *s;

	host_way_mu_lock(&w->lock);
	if (!w->stream)
		r = gantry_host_stream_new(host_device(dev), &w->stream);
	s = w->stream;
	host_way_mu_unlock(&w->lock);
	return r == GANTRY_OK ? gantry_host_copy_async(dev, s, dst, src, size) : r;
}

gantry_result gantry_host_move_ticket(struct gantry_device *dev, enum gantry_way way, uint64_t *ret_ticket)
{
	gantry_result r = GANTRY_OK;
	struct host_way *w = way_of(dev, way);
	struct host_item item = {.kind = HOST_ITEM_MARK, .dst = &w->reached};

	host_way_mu_lock(&w->lock);
	item.size = (size_t)(w->tickets + 1);
	if (w->stream)
		r = gantry_host_enqueue(w->stream, &item, NULL);
	if (r == GANTRY_OK)
		*ret_ticket = w->stream ? ++w->tickets : 0;
	host_way_mu_unlock(&w->lock);
	return r;
}

gantry_result gantry_host_moved(struct gantry_device *dev, enum gantry_way way, uint64_t ticket)
{
	return load_acquire(&way_of(dev, way)->reached) >= ticket ? GANTRY_OK : GANTRY_AGAIN;
}
