/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending over a network, seen from the progress thread: offer space, transmit what the kernel has posted, tell it when
 * the network is done. All three in one pass; a step leaves as soon as it is there.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/log.h"
#include "device/dev.h"
#include "transport/net_priv.h"

/* Takes the flags off. 0: not all lines are there yet. */
static int pack_ll(const struct net_conn *nc, const struct gantry_proxy_op *op, uint64_t step, uint64_t bytes,
		   char *out)
{
	const char *block = nc->block_host + sizeof(struct gantry_fifo);
	uint64_t slot = step % GANTRY_STEPS, data;

	if (op->proto == GANTRY_PROTO_LL) {
		const uint64_t *line = (const void *)(block + slot * gantry_ll_bytes(NET_LL_STEP));

		for (uint64_t i = 0; i < bytes; i += GANTRY_LL_DATA, line += GANTRY_LL_LINE / 8) {
			if (!dev_ll_load(line, gantry_ll_flag(step), &data))
				return 0;
			memcpy(out + i, &data, bytes - i < GANTRY_LL_DATA ? bytes - i : GANTRY_LL_DATA);
		}
	} else {
		const uint64_t *line = (const void *)(block + GANTRY_STEPS * gantry_ll_bytes(NET_LL_STEP) +
						      slot * gantry_ll128_bytes(NET_LL128_STEP));

		for (uint64_t i = 0; i < bytes; i += GANTRY_LL128_DATA, line += GANTRY_LL128_LINE / 8) {
			uint32_t n = bytes - i < GANTRY_LL128_DATA ? (uint32_t)(bytes - i) : GANTRY_LL128_DATA;

			if (!dev_ll128_get(line, out + i, n, gantry_ll128_flag(step)))
				return 0;
		}
	}
	return 1;
}

/* Space for the steps that the kernel will fill. */
static void offer(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	while (pc->posted < pc->end && pc->posted < pc->done + GANTRY_STEPS) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->posted);
		struct net_step *s = &nc->steps[pc->posted % GANTRY_STEPS];

		if (!op) { /* a gap left by aligning */
			pc->posted++;
			continue;
		}
		if (pc->posted + op->slice_steps > pc->done + GANTRY_STEPS)
			return;
		s->piece = NULL;
		if (op->proto == GANTRY_PROTO_SIMPLE && !op->ptr && !nc->ring_host) {
			uint64_t size = gantry_proxy_step_bytes(op, pc->posted);

			if (!net_pool_take(nc, size, s)) {
				gantry_proxy_waits(pc, GANTRY_WAIT_SPACE);
				return;
			}
			gantry_proxy_offer(pc, pc->posted, s->place, size);
		}
		pc->posted += op->slice_steps;
		*worked = 1;
	}
}

/* Where the step's bytes are. AGAIN: the kernel has not posted it, or its lines are not all there. */
static gantry_result locate(struct gantry_proxy_conn *pc, struct net_conn *nc, const struct gantry_proxy_op *op,
			    struct net_step *s)
{
	gantry_result r = GANTRY_OK;
	uint64_t step = pc->moved, slot = step % GANTRY_STEPS, place;

	if (!gantry_proxy_posted(pc, step, &s->mode, &s->size, &place))
		return GANTRY_AGAIN;
	if (op->proto != GANTRY_PROTO_SIMPLE) {
		s->data = nc->stage + slot * NET_STAGE_STEP;
		s->mr = nc->stage_mr;
		if (s->size > NET_STAGE_STEP)
			FAIL(GANTRY_ERR_INTERNAL, "a kernel posted %llu bytes in an LL step",
			     (unsigned long long)s->size);
		return pack_ll(nc, op, step, s->size, s->data) ? GANTRY_OK : GANTRY_AGAIN;
	}
	if (s->mode == GANTRY_MODE_PTR) {
		s->data = (char *)(uintptr_t)place;
		s->mr = net_link_mr_of(nc->link, s->data, s->size);
		if (!s->mr)
			FAIL(GANTRY_ERR_INTERNAL, "a kernel posted %llu bytes at %p, which are not registered",
			     (unsigned long long)s->size, (void *)s->data);
	} else if (s->mode == GANTRY_MODE_NORMAL && nc->ring_host) {
		s->data = nc->ring_host + slot * (nc->ring_size / GANTRY_STEPS);
		s->mr = nc->ring_mr;
	} else if (s->mode != GANTRY_MODE_OFFSET || !s->piece || place != s->place) {
		FAIL(GANTRY_ERR_INTERNAL, "a kernel posted step %llu in mode %u at %llu", (unsigned long long)step,
		     s->mode, (unsigned long long)place);
	}
out:
	return r;
}

static gantry_result transmit(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = nc->link->use->net;

	while (pc->moved < pc->posted) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->moved);
		struct net_step *s = &nc->steps[pc->moved % GANTRY_STEPS];

		if (!op) {
			pc->moved++;
			continue;
		}
		r = locate(pc, nc, op, s);
		if (r == GANTRY_AGAIN) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			return GANTRY_OK;
		}
		if (r != GANTRY_OK)
			return r;
		s->request = NULL;
		TRY(net->ops->isend(net, nc->link->comm, s->data, s->size, nc->channel, s->mr, &s->request));
		if (!s->request) {
			gantry_proxy_waits(pc, GANTRY_WAIT_SOCKET);
			return GANTRY_OK;
		}
		pc->moved += op->slice_steps;
		*worked = 1;
	}
out:
	return r;
}

static gantry_result complete(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = nc->link->use->net;
	uint64_t before = pc->done;

	while (pc->done < pc->moved) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->done);
		struct net_step *s = &nc->steps[pc->done % GANTRY_STEPS];
		int done = 0;

		if (!op) {
			pc->done++;
			continue;
		}
		TRY(net->ops->test(net, s->request, &done, NULL));
		if (!done) {
			gantry_proxy_waits(pc, GANTRY_WAIT_PEER);
			break;
		}
		s->request = NULL;
		net_pool_give(nc, s);
		pc->done += op->slice_steps;
		gantry_proxy_done(pc, pc->done);
	}
out:
	if (pc->done != before)
		*worked = 1;
	return r;
}

gantry_result net_send_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	gantry_result r = GANTRY_OK;
	struct net_conn *nc = pc->resources;

	offer(pc, nc, ret_worked);
	TRY(transmit(pc, nc, ret_worked));
	TRY(complete(pc, nc, ret_worked));
out:
	return r;
}
