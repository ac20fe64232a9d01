/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_DEVICE
#include "device/pinned.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "device/device.h"

struct gantry_extent {
	struct gantry_extent *next;
	void *owned; /* NULL: the memory is its owner's */
	struct gantry_piece records[];
};

void gantry_pinned_init(struct gantry_pinned *p, struct gantry_device *device, size_t unit)
{
	*p = (struct gantry_pinned){.device = device, .unit = unit};
	gantry_list_init(&p->pieces);
	gantry_list_init(&p->spare);
}

void gantry_pinned_free(struct gantry_pinned *p)
{
	for (struct gantry_extent *e = p->extents, *next; e; e = next) {
		next = e->next;
		if (e->owned)
			p->device->ops->free_mapped(p->device, e->owned);
		free(e);
	}
	memset(p, 0, sizeof(*p));
}

gantry_result gantry_pinned_add(struct gantry_pinned *p, void *host, void *dev, size_t size, uint32_t pieces)
{
	struct gantry_extent *e = calloc(1, sizeof(*e) + pieces * sizeof(e->records[0]));

	ASSERT(size % p->unit == 0 && pieces);
	if (!e)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a pool of pinned memory");
	e->records[0] = (struct gantry_piece){.host = host, .dev = dev, .size = size, .first = true};
	gantry_list_append(&p->pieces, &e->records[0].node);
	for (uint32_t i = 1; i < pieces; i++)
		gantry_list_append(&p->spare, &e->records[i].node);
	e->next = p->extents;
	p->extents = e;
	p->memory += size;
	return GANTRY_OK;
}

gantry_result gantry_pinned_grow(struct gantry_pinned *p, size_t size, uint32_t pieces)
{
	gantry_result r = GANTRY_OK;
	void *host = NULL, *dev = NULL;

	TRY(p->device->ops->alloc_mapped(p->device, size, &host, &dev));
	r = gantry_pinned_add(p, host, dev, size, pieces);
	if (r == GANTRY_OK)
		p->extents->owned = host;
	else
		p->device->ops->free_mapped(p->device, host);
out:
	return r;
}

/* The rest of a free piece becomes a piece of its own. false: there is no record for it. */
static bool split_piece(struct gantry_pinned *p, struct gantry_piece *piece, size_t size)
{
	struct gantry_piece *rest;

	if (gantry_list_empty(&p->spare))
		return false;
	rest = gantry_container(p->spare.next, struct gantry_piece, node);
	gantry_list_remove(&rest->node);
	rest->host = piece->host + size;
	rest->dev = piece->dev + size;
	rest->size = piece->size - size;
	rest->taken = rest->first = false;
	gantry_list_append(piece->node.next, &rest->node); /* behind it */
	piece->size = size;
	return true;
}

struct gantry_piece *gantry_pinned_take(struct gantry_pinned *p, size_t size)
{
	size = ((size ? size : 1) + p->unit - 1) / p->unit * p->unit;
	gantry_list_each_entry (piece, &p->pieces, struct gantry_piece, node) {
		if (piece->taken || piece->size < size || (piece->size > size && !split_piece(p, piece, size)))
			continue;
		piece->taken = true;
		piece->next = NULL;
		piece->copying = false;
		p->taken += size;
		return piece;
	}
	return NULL;
}

/* A free piece and the free one behind it, within one extent, become one. */
static void merge_next(struct gantry_pinned *p, struct gantry_piece *piece)
{
	struct gantry_piece *next = gantry_container(piece->node.next, struct gantry_piece, node);

	if (piece->node.next == &p->pieces || next->taken || next->first)
		return;
	piece->size += next->size;
	gantry_list_remove(&next->node);
	gantry_list_append(&p->spare, &next->node);
}

void gantry_pinned_give(struct gantry_pinned *p, struct gantry_piece *piece)
{
	struct gantry_piece *before;

	if (!piece)
		return;
	ASSERT(piece->taken);
	piece->taken = false;
	p->taken -= piece->size;
	merge_next(p, piece);
	before = gantry_container(piece->node.prev, struct gantry_piece, node);
	if (!piece->first && !before->taken)
		merge_next(p, before);
}
