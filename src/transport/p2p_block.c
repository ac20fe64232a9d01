/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "transport/p2p_block.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

_Static_assert(sizeof(struct p2p_words) <= GANTRY_ENDS_PAGE, "rings begin on the next page");

static void destroy(struct gantry_shared *shared)
{
	struct p2p_block *b = gantry_container(shared, struct p2p_block, shared);

	if (b->base)
		b->device->ops->free(b->device, b->base);
	gantry_device_close(b->device);
	free(b);
}

gantry_result p2p_block_create(const struct gantry_connector *c, size_t size, struct p2p_block **ret_block)
{
	gantry_result r = GANTRY_OK;
	struct p2p_block *b = calloc(1, sizeof(*b));
	void *base = NULL;

	if (!b)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a connection to rank %d", c->peer->rank);
	TRY(gantry_device_open(c->device->kind, c->device->index, &b->device));
	TRY(c->device->ops->alloc(c->device, size, &base));
	b->base = base;
	b->size = size;
	TRY(gantry_shared_init(&b->shared, destroy));
	*ret_block = b;
	b = NULL;
out:
	if (b)
		destroy(&b->shared);
	return r;
}

gantry_result p2p_block_describe(const struct gantry_connector *c, struct p2p_block *b, struct p2p_block_info *ret_info)
{
	memset(ret_info, 0, sizeof(*ret_info));
	if (gantry_ends_same_process(c->me, c->peer)) {
		ret_info->token = b->shared.token;
		return GANTRY_OK;
	}
	return c->device->ops->ipc_export(c->device, b->base, b->size, &ret_info->memory);
}

/* The word is in device memory, which the CPU may not be able to look at. */
gantry_result p2p_block_is_opened(const struct gantry_connector *c, struct p2p_block *b)
{
	gantry_result r = GANTRY_OK;
	uint64_t opened = 0;

	if (gantry_ends_same_process(c->me, c->peer))
		return gantry_shared_found(&b->shared);
	TRY(c->device->ops->copy(c->device, &opened, b->base + offsetof(struct p2p_words, opened), sizeof(opened)));
	r = opened ? GANTRY_OK : GANTRY_AGAIN;
out:
	return r;
}

void p2p_block_put(struct p2p_block *b)
{
	if (b)
		gantry_shared_put(&b->shared);
}

/* Within a process: between two GPUs only if the hardware can. */
static gantry_result check_access(const struct gantry_connector *c, const struct p2p_block *b)
{
	gantry_result r = GANTRY_OK;
	int can = 0;

	TRY(c->device->ops->peer_access(c->device, b->device, &can));
	if (!can)
		FAIL(GANTRY_ERR_UNREACHABLE,
		     "%s (rank %d) cannot address memory of %s (rank %d), and GANTRY_P2P=force asked for it",
		     c->device->name, c->me->rank, b->device->name, c->peer->rank);
out:
	return r;
}

gantry_result p2p_far_open(const struct gantry_connector *c, const struct p2p_block_info *info, struct p2p_far *ret_far)
{
	gantry_result r = GANTRY_OK;
	struct p2p_far far = {0};
	uint64_t opened = 1;
	void *base = NULL;

	if (gantry_ends_same_process(c->me, c->peer)) {
		struct gantry_shared *shared = NULL;

		if (gantry_shared_find(&info->token, destroy, 0, &shared) != GANTRY_OK)
			FAIL(GANTRY_ERR_PEER_LOST, "rank %d's end of a connection is gone", c->peer->rank);
		far.block = gantry_container(shared, struct p2p_block, shared);
		far.base = far.block->base;
		TRY(check_access(c, far.block));
	} else {
		r = c->device->ops->ipc_open(c->device, &info->memory, &base);
		if (r == GANTRY_ERR_INVALID)
			FAIL(GANTRY_ERR_PEER_LOST, "rank %d's end of a connection is gone", c->peer->rank);
		TRY(r);
		far.base = base;
		TRY(c->device->ops->copy(c->device, far.base + offsetof(struct p2p_words, opened), &opened,
					 sizeof(opened)));
	}
	*ret_far = far;
	far.base = NULL;
out:
	if (far.base || (r != GANTRY_OK && far.block))
		p2p_far_close(c, &far);
	return r;
}

void p2p_far_close(const struct gantry_connector *c, struct p2p_far *far)
{
	if (far->block)
		p2p_block_put(far->block);
	else if (far->base)
		c->device->ops->ipc_close(c->device, far->base);
	memset(far, 0, sizeof(*far));
}
