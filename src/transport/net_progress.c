/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending over a network and receiving from it, seen from the progress thread.
 *
 *   send   offer space, transmit what the kernel has posted, tell it when the network is done. All three in one pass; a
 *          step leaves as soon as it is there.
 *   recv   post receives (grouped over the channels of a link), see what has arrived, flush where the data went to a
 *          device, hand over to the kernel, and count what the kernel has consumed. Each receive is for one step of each
 *          of its channels.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "device/dev.h"
#include "proxy/proxy.h"
#include "transport/direct.h"
#include "transport/net_priv.h"

/*
 * Channels that share a link have tags of their own, three each, so that they do not wait for each other. The network
 * sends small messages before their receive is posted, within a window that all tags share: a channel whose kernel is
 * ahead could fill it and keep out the message that another channel's kernel waits for, or that a grouped receive of
 * both does. Therefore an operation takes an eager tag only if such operations of all channels fit in the window
 * together. (In a collective those of later calls are behind them, those of earlier calls have been received.) Others
 * take a tag whose messages wait for their receive. Send and recv have one tag for all sizes where channels share
 * nothing: ends that disagree about the size get an error.
 *
 * A channel that has the link for itself waits for no messages but its own, in the order in which both ends have their
 * operations. There the window may be smaller than an operation, and where no helpers send large messages anyway, what is
 * saved, credits and acknowledgements, is worth a copy (all_reduce of 1 MiB on two cores: 377 us gated, 275 eager).
 */
static int tag_of(const struct net_link *l, const struct gantry_proxy_op *op, int channel)
{
	const uint64_t most = l->eager_most;

	ASSERT(channel >= 0 && channel < NET_CHANNELS_MAX);
	if (!l->tagged || (op->exact && !l->shared))
		return channel;
	if (op->nsteps * op->step_bytes > most && (!op->exact || op->bytes > most))
		return NET_TAG_GATED + channel;
	return op->exact ? channel : NET_TAG_EAGER + channel;
}

/* ---- sending ---- */

/* The lines of a step of LL or LL128. */
static uint64_t *lines_of(const struct net_conn *nc, uint8_t proto, uint64_t step)
{
	uint64_t bytes = proto == GANTRY_PROTO_LL ? gantry_ll_bytes(GANTRY_ENDS_LL_STEP)
						  : gantry_ll128_bytes(GANTRY_ENDS_LL128_STEP);

	ASSERT(proto != GANTRY_PROTO_SIMPLE && nc->rings.at[proto]);
	return (void *)(nc->block_host + nc->rings.at[proto] + step % GANTRY_STEPS * bytes);
}

/* Takes the flags off. 0: not all lines are there yet. */
static int pack_ll(const struct net_conn *nc, const struct gantry_proxy_op *op, uint64_t step, uint64_t bytes,
		   char *out)
{
	const uint64_t *line = lines_of(nc, op->proto, step);
	uint64_t data;

	if (op->proto == GANTRY_PROTO_LL) {
		for (uint64_t i = 0; i < bytes; i += GANTRY_LL_DATA, line += GANTRY_LL_LINE / 8) {
			if (!dev_ll_load(line, gantry_ll_flag(step), &data))
				return 0;
			memcpy(out + i, &data, bytes - i < GANTRY_LL_DATA ? bytes - i : GANTRY_LL_DATA);
		}
		return 1;
	}
	for (uint64_t i = 0; i < bytes; i += GANTRY_LL128_DATA, line += GANTRY_LL128_LINE / 8) {
		uint32_t n = bytes - i < GANTRY_LL128_DATA ? (uint32_t)(bytes - i) : GANTRY_LL128_DATA;

		if (!dev_ll128_get(line, out + i, n, gantry_ll128_flag(step)))
			return 0;
	}
	return 1;
}

/* Space for the steps that the kernel will fill. */
static gantry_result offer_space(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	while (pc->posted < pc->end && pc->posted < pc->done + GANTRY_STEPS) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->posted);
		struct net_step *s = &nc->steps[pc->posted % GANTRY_STEPS];

		if (!op) { /* a gap left by aligning */
			pc->posted++;
			continue;
		}
		if (pc->posted + op->slice_steps > pc->done + GANTRY_STEPS)
			break;
		s->piece = NULL;
		if (op->proto == GANTRY_PROTO_SIMPLE && !op->ptr && !nc->ring_host) {
			uint64_t size = gantry_proxy_step_bytes(op, pc->posted);
			gantry_result r = net_pool_take(nc, size, s);

			if (r == GANTRY_AGAIN) {
				gantry_proxy_waits(pc, GANTRY_WAIT_SPACE);
				break;
			}
			TRY_NOW(r);
			gantry_proxy_offer(pc, pc->posted, s->place, size);
		}
		pc->posted += op->slice_steps;
		*worked = 1;
	}
	return GANTRY_OK;
}

/* NULL: not registered, or without need. */
static void *mr_of(struct net_link *l, const void *p, uint64_t size)
{
	return l->context->any_memory ? NULL : net_link_mr_of(l, p, size);
}

/* Where the step's bytes are. AGAIN: the kernel has not posted it, or its lines are not all there. */
static gantry_result locate_step(struct gantry_proxy_conn *pc, struct net_conn *nc, const struct gantry_proxy_op *op,
				 struct net_step *s)
{
	uint64_t step = pc->moved, slot = step % GANTRY_STEPS, place;

	if (!gantry_proxy_posted(pc, step, &s->mode, &s->size, &place))
		return GANTRY_AGAIN;
	if (op->proto != GANTRY_PROTO_SIMPLE) {
		s->data = nc->stage + slot * NET_STAGE_STEP;
		s->mr = nc->stage_mr;
		if (s->size > NET_STAGE_STEP)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "a kernel posted %llu bytes in an LL step",
				 (unsigned long long)s->size);
		return pack_ll(nc, op, step, s->size, s->data) ? GANTRY_OK : GANTRY_AGAIN;
	}
	if (s->mode == GANTRY_MODE_PTR) {
		s->data = (char *)(uintptr_t)place;
		s->mr = mr_of(nc->link, s->data, s->size);
		if (!s->mr && !nc->link->context->any_memory)
			FAIL_NOW(GANTRY_ERR_INTERNAL, "a kernel posted %llu bytes at %p, which are not registered",
				 (unsigned long long)s->size, (void *)s->data);
	} else if (s->mode == GANTRY_MODE_NORMAL && nc->ring_host) {
		s->data = nc->ring_host + slot * (nc->ring_size / GANTRY_STEPS);
		s->mr = nc->ring_mr;
	} else if (s->mode != GANTRY_MODE_OFFSET || !s->piece || place != s->place || s->size > s->piece->size) {
		FAIL_NOW(GANTRY_ERR_INTERNAL, "a kernel posted step %llu in mode %u at %llu", (unsigned long long)step,
			 s->mode, (unsigned long long)place);
	}
	return GANTRY_OK;
}

static gantry_result post_send(const struct gantry_proxy_conn *pc, const struct net_conn *nc, int tag,
			       struct net_step *s)
{
	struct gantry_net *net = nc->link->context->net;

	s->request = NULL;
	if (!net->ops->isendp)
		return net->ops->isend(net, nc->link->comm, s->data, s->size, tag, s->mr, &s->request);
	s->note = (struct gantry_net_note){pc->id, (uint32_t)pc->moved};
	return net->ops->isendp(net, nc->link->comm, s->data, s->size, tag, s->mr, &s->note, &s->request);
}

static gantry_result transmit_steps(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	gantry_result r = GANTRY_OK;

	while (pc->moved < pc->posted) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->moved);
		struct net_step *s = &nc->steps[pc->moved % GANTRY_STEPS];

		if (!op) {
			pc->moved++;
			continue;
		}
		r = locate_step(pc, nc, op, s);
		if (r == GANTRY_AGAIN) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			return GANTRY_OK;
		}
		if (r != GANTRY_OK)
			return r;
		net_attr_transfer(nc->link->context, op, 1);
		TRY(post_send(pc, nc, tag_of(nc->link, op, nc->channel), s));
		if (!s->request) {
			gantry_proxy_waits(pc, GANTRY_WAIT_SOCKET);
			return GANTRY_OK;
		}
		if (nc->link->rails > 1)
			net_count_rails();
		pc->moved += op->slice_steps;
		*worked = 1;
	}
out:
	return r;
}

static gantry_result complete_sends(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = nc->link->context->net;
	uint64_t before = pc->done;

	ASSERT(pc->done <= pc->moved && pc->moved <= pc->posted);
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

/* ---- receiving ---- */

/* Chooses where the next step goes. AGAIN: it cannot be posted now. */
static gantry_result prepare_step(struct gantry_proxy_conn *pc, struct net_conn *nc)
{
	uint64_t step = pc->posted, slot = step % GANTRY_STEPS, size, offered, place;
	struct net_step *s = &nc->steps[slot];
	struct gantry_proxy_op *op = gantry_proxy_op_of(pc, step);
	uint32_t mode = GANTRY_MODE_NORMAL;

	if (nc->prepared)
		return GANTRY_OK;
	ASSERT(op && !s->piece);
	size = gantry_proxy_step_bytes(op, step);
	if (op->ptr && !gantry_proxy_offered_as(pc, step, &mode, &offered, &place)) {
		gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
		return GANTRY_AGAIN;
	}
	s->piece = NULL;
	s->mode = GANTRY_MODE_NORMAL;
	s->place = 0;
	if (op->proto != GANTRY_PROTO_SIMPLE) {
		s->data = nc->stage + slot * NET_STAGE_STEP;
		s->mr = nc->stage_mr;
	} else if (op->ptr && mode == GANTRY_MODE_PTR) {
		size = offered;
		s->mode = GANTRY_MODE_PTR;
		s->place = place;
		s->data = (char *)(uintptr_t)place;
		s->mr = mr_of(nc->link, s->data, size);
	} else if (nc->ring_host) {
		s->data = nc->ring_host + slot * (nc->ring_size / GANTRY_STEPS);
		s->mr = nc->ring_mr;
	} else {
		gantry_result r = net_pool_take(nc, size, s);

		if (r == GANTRY_AGAIN)
			gantry_proxy_waits(pc, GANTRY_WAIT_SPACE);
		if (r != GANTRY_OK)
			return r;
	}
	s->size = size;
	nc->prepared = 1;
	return GANTRY_OK;
}

/* Requests are shared out: receives of one channel that wait must not keep those of another from being posted. */
static int has_request(const struct net_conn *nc)
{
	ASSERT(nc->arrived <= nc->numbers && nc->link->nchannels > 0);
	return nc->numbers - nc->arrived < NET_RECVS / (uint64_t)nc->link->nchannels;
}

/* AGAIN: the channel has no step of that call to post now. */
static gantry_result find_step(struct gantry_proxy_conn *pc, uint32_t call)
{
	struct gantry_proxy_op *op = NULL;

	if (!pc || !pc->first)
		return GANTRY_AGAIN;
	if (pc->posted < pc->end)
		op = gantry_proxy_op_of(pc, pc->posted);
	if (!op || op->id != call || pc->posted + op->slice_steps > pc->done + GANTRY_STEPS ||
	    (!op->exact && !has_request(pc->resources)))
		return GANTRY_AGAIN;
	return prepare_step(pc, pc->resources);
}

/*
 * A receive of several channels is done when all of them have their data. Messages of send and recv depend on nothing
 * but their launch. Those of a collective are made of what its ranks received before: a channel whose data waits for
 * another channel's, on one rank in this order and on the next in the other, is a deadlock (two trees of opposite
 * direction, say). So each of their receives is for one channel.
 */
static int may_group(struct gantry_proxy_conn *pc)
{
	return gantry_proxy_op_of(pc, pc->posted)->exact;
}

/*
 * The oldest call that has steps to post on any channel. Receives are posted call by call: those of a later call may be
 * of a later launch, which waits until this one has ended, and must hold up neither buffers nor requests nor, in a
 * network that serves receives in order, the network itself. 0: there is none.
 */
static int oldest_call(const struct net_link *l, uint32_t *ret_call)
{
	int found = 0;

	for (int i = 0; i < l->nsubs; i++) {
		struct gantry_proxy_conn *pc = l->subs[i];
		const struct gantry_proxy_op *op = NULL;

		if (!pc || !pc->first)
			continue;
		while (pc->posted < pc->end && !(op = gantry_proxy_op_of(pc, pc->posted)))
			pc->posted++; /* a gap left by aligning */
		if (op && (!found || (int32_t)(op->id - *ret_call) < 0)) {
			*ret_call = op->id;
			found = 1;
		}
	}
	return found;
}

/* What the steps of a receive say of where they go. */
struct buffers {
	void *data[GANTRY_NET_MAX_RECVS], *mrs[GANTRY_NET_MAX_RECVS];
	size_t sizes[GANTRY_NET_MAX_RECVS];
	int tags[GANTRY_NET_MAX_RECVS];
};

static gantry_result post_recv(struct net_link *l, struct net_recv *recv, struct buffers *b)
{
	struct gantry_net *net = l->context->net;
	struct gantry_net_note *notes[GANTRY_NET_MAX_RECVS];

	if (!net->ops->irecvp)
		return net->ops->irecv(net, l->comm, recv->n, b->data, b->sizes, b->tags, b->mrs, &recv->request);
	for (int i = 0; i < recv->n; i++) {
		struct net_conn *nc = recv->pc[i]->resources;

		notes[i] = &nc->steps[recv->step[i] % GANTRY_STEPS].note;
		*notes[i] = (struct gantry_net_note){recv->pc[i]->id, (uint32_t)recv->step[i]};
	}
	return net->ops->irecvp(net, l->comm, recv->n, b->data, b->sizes, b->tags, b->mrs, notes, &recv->request);
}

/* One receive for as many channels as can take a step of that call now. */
static gantry_result post_group(struct net_link *l, int *ret_posted)
{
	int at = __builtin_ctzll(~l->recvs_used);
	struct net_recv *recv = &l->recvs[at];
	int limit = l->shared ? l->context->props.max_recvs : 1;
	struct buffers b;
	uint32_t call = 0;

	ASSERT(l->nrecvs < NET_RECVS && ~l->recvs_used);
	if (!oldest_call(l, &call))
		return GANTRY_OK;
	memset(recv, 0, sizeof(*recv));
	if (limit > GANTRY_NET_MAX_RECVS)
		limit = GANTRY_NET_MAX_RECVS;
	for (int i = 0; i < l->nsubs && recv->n < limit; i++) {
		gantry_result r = find_step(l->subs[i], call);
		struct net_step *s;

		if (r == GANTRY_AGAIN || (r == GANTRY_OK && recv->n && !may_group(l->subs[i])))
			continue;
		TRY_NOW(r);
		if (!may_group(l->subs[i]))
			limit = 1;
		s = &((struct net_conn *)l->subs[i]->resources)->steps[l->subs[i]->posted % GANTRY_STEPS];
		b.data[recv->n] = s->data;
		b.sizes[recv->n] = s->size;
		b.tags[recv->n] = tag_of(l, gantry_proxy_op_of(l->subs[i], l->subs[i]->posted), i);
		b.mrs[recv->n] = s->mr;
		recv->pc[recv->n] = l->subs[i];
		recv->step[recv->n++] = l->subs[i]->posted;
	}
	if (!recv->n)
		return GANTRY_OK;
	net_unpack_mark(l, gantry_proxy_op_of(recv->pc[0], recv->step[0]), recv);
	net_attr_transfer(l->context, gantry_proxy_op_of(recv->pc[0], recv->step[0]), 0);
	TRY_NOW(post_recv(l, recv, &b));
	if (!recv->request)
		return GANTRY_OK; /* the steps stay prepared */
	for (int i = 0; i < recv->n; i++) {
		struct gantry_proxy_conn *pc = recv->pc[i];
		struct net_conn *nc = pc->resources;
		const struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->posted);

		nc->prepared = 0;
		recv->number[i] = nc->numbers++;
		net_unpack_posted(l, op, recv->request, &nc->steps[pc->posted % GANTRY_STEPS]);
		pc->posted += op->slice_steps;
	}
	l->recvs_used |= 1ull << at;
	l->recv_order[l->nrecvs++] = (uint8_t)at;
	net_count_recv(recv->n);
	*ret_posted = 1;
	return GANTRY_OK;
}

/* Puts flags on, word by word. */
static void unpack_ll(struct net_conn *nc, uint8_t proto, uint64_t step, const char *in, uint64_t bytes)
{
	uint64_t *line = lines_of(nc, proto, step);

	if (proto == GANTRY_PROTO_LL) {
		for (uint64_t i = 0; i < bytes; i += GANTRY_LL_DATA, line += GANTRY_LL_LINE / 8) {
			uint64_t data = 0;

			memcpy(&data, in + i, bytes - i < GANTRY_LL_DATA ? bytes - i : GANTRY_LL_DATA);
			dev_ll_store(line, data, gantry_ll_flag(step));
		}
		return;
	}
	for (uint64_t i = 0; i < bytes; i += GANTRY_LL128_DATA, line += GANTRY_LL128_LINE / 8) {
		uint32_t n = bytes - i < GANTRY_LL128_DATA ? (uint32_t)(bytes - i) : GANTRY_LL128_DATA;

		dev_ll128_put(line, in + i, n, gantry_ll128_flag(step));
	}
}

static gantry_result take_arrival(struct net_link *l, struct net_recv *recv, const int *sizes)
{
	ASSERT(recv->n > 0 && recv->n <= GANTRY_NET_MAX_RECVS && !recv->arrived);
	for (int i = 0; i < recv->n; i++) {
		struct gantry_proxy_conn *pc = recv->pc[i];
		struct net_step *s = &((struct net_conn *)pc->resources)->steps[recv->step[i] % GANTRY_STEPS];
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, recv->step[i]);

		if (op->exact && (uint64_t)sizes[i] != s->size)
			FAIL_NOW(GANTRY_ERR_SIZE,
				 "rank %d sent %d bytes where %llu were expected (step %llu, channel %d)", l->peer,
				 sizes[i], (unsigned long long)s->size, (unsigned long long)recv->step[i],
				 ((struct net_conn *)pc->resources)->channel);
		s->size = (uint64_t)sizes[i];
		pc->moved = recv->step[i] + op->slice_steps;
	}
	recv->arrived = 1;
	return GANTRY_OK;
}

/* Data that went to a device's memory is visible to its kernels only after a flush. */
static gantry_result start_flush(struct net_link *l, struct net_recv *recv)
{
	gantry_result r = GANTRY_OK;
	void *data[GANTRY_NET_MAX_RECVS], *mrs[GANTRY_NET_MAX_RECVS];
	int sizes[GANTRY_NET_MAX_RECVS], n = 0;

	recv->request = NULL;
	if (l->context->unpack || (!l->context->gdr && !gantry_params()->net_flush))
		return GANTRY_OK;
	for (int i = 0; i < recv->n; i++) {
		struct net_step *s = &((struct net_conn *)recv->pc[i]->resources)->steps[recv->step[i] % GANTRY_STEPS];

		if (!s->size)
			continue;
		data[n] = s->data;
		sizes[n] = (int)s->size;
		mrs[n++] = s->mr;
	}
	if (n)
		r = l->context->net->ops->iflush(l->context->net, l->comm, n, data, sizes, mrs, &recv->request);
	return r;
}

/* What the network has written to the memory of some devices is there after a flush of theirs, behind that of the network. */
static gantry_result flush_device(struct net_link *l, const struct net_recv *recv)
{
	struct gantry_device *dev = l->context->device;
	uint64_t size = 0;

	if (!dev->flushes || l->context->unpack || !l->context->gdr)
		return GANTRY_OK;
	for (int i = 0; i < recv->n; i++)
		size += ((struct net_conn *)recv->pc[i]->resources)->steps[recv->step[i] % GANTRY_STEPS].size;
	return size ? dev->ops->flush_remote_writes(dev) : GANTRY_OK;
}

static void hand_over(struct net_recv *recv)
{
	ASSERT(recv->arrived && !recv->over);
	for (int i = 0; i < recv->n; i++) {
		struct gantry_proxy_conn *pc = recv->pc[i];
		struct net_conn *nc = pc->resources;
		struct net_step *s = &nc->steps[recv->step[i] % GANTRY_STEPS];
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, recv->step[i]);

		if (op->proto != GANTRY_PROTO_SIMPLE)
			unpack_ll(nc, op->proto, recv->step[i], s->data, s->size);
		pc->flushed = recv->step[i] + op->slice_steps;
		nc->arrived++;
		gantry_proxy_publish(pc, recv->step[i], s->mode, s->size, s->place);
	}
}

/* Steps of a channel are handed over in order, whatever order receives are done in. */
static int is_next(const struct net_recv *recv)
{
	for (int i = 0; i < recv->n; i++) {
		if (recv->number[i] != ((struct net_conn *)recv->pc[i]->resources)->arrived)
			return 0;
	}
	return 1;
}

/* One receive: arrived, flushed, handed over, as far as it goes. */
static gantry_result complete_one(struct net_link *l, struct net_recv *recv, int *worked)
{
	struct gantry_net *net = l->context->net;
	int done, sizes[GANTRY_NET_MAX_RECVS];

	do {
		done = 1;
		if (recv->request)
			TRY_NOW(net->ops->test(net, recv->request, &done, sizes));
		if (!done) {
			for (int i = 0; i < recv->n; i++)
				gantry_proxy_waits(recv->pc[i], recv->arrived ? GANTRY_WAIT_FLUSH : GANTRY_WAIT_PEER);
			return GANTRY_OK;
		}
		*worked = 1;
		if (recv->arrived)
			break;
		TRY_NOW(take_arrival(l, recv, sizes));
		TRY_NOW(start_flush(l, recv));
	} while (recv->request);
	TRY_NOW(flush_device(l, recv));
	hand_over(recv);
	recv->over = 1;
	return GANTRY_OK;
}

/*
 * With several channels not only the oldest: a channel that is ahead waits for a launch that comes only when a channel
 * behind it has been served.
 */
static gantry_result complete_recvs(struct net_link *l, int *worked)
{
	int kept = 0, stuck = 0;

	for (int i = 0; i < l->nrecvs; i++) {
		int at = l->recv_order[i];
		struct net_recv *recv = &l->recvs[at];

		if (!stuck && is_next(recv))
			TRY_NOW(complete_one(l, recv, worked));
		stuck |= !recv->over && !l->shared;
		if (recv->over)
			l->recvs_used &= ~(1ull << at);
		else
			l->recv_order[kept++] = (uint8_t)at;
	}
	l->nrecvs = kept;
	return GANTRY_OK;
}

static gantry_result count_consumed(struct gantry_proxy_conn *pc, struct net_conn *nc, int *worked)
{
	uint64_t head = gantry_proxy_consumed(pc);

	while (pc->done < pc->flushed) {
		struct gantry_proxy_op *op = gantry_proxy_op_of(pc, pc->done);

		if (!op) {
			pc->done++;
			continue;
		}
		if (head < pc->done + op->slice_steps) {
			gantry_proxy_waits(pc, GANTRY_WAIT_KERNEL);
			return GANTRY_OK;
		}
		TRY_NOW(net_unpack_consumed(nc->link, &nc->steps[pc->done % GANTRY_STEPS]));
		net_pool_give(nc, &nc->steps[pc->done % GANTRY_STEPS]);
		pc->done += op->slice_steps;
		*worked = 1;
	}
	return GANTRY_OK;
}

/* The first ready channel of a link works for all of them; the others only count what their kernels consumed. */
static int leads_link(const struct net_link *l, const struct gantry_proxy_conn *pc)
{
	for (int i = 0; i < l->nsubs; i++) {
		if (l->subs[i] && l->subs[i]->first)
			return l->subs[i] == pc;
	}
	return 1;
}

static gantry_result recv_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct net_conn *nc = pc->resources;
	struct net_link *l = nc->link;

	if (leads_link(l, pc)) {
		for (int posted = 1; posted && l->nrecvs < NET_RECVS; *ret_worked |= posted) {
			posted = 0;
			TRY_NOW(post_group(l, &posted));
		}
		TRY_NOW(complete_recvs(l, ret_worked));
	}
	return count_consumed(pc, nc, ret_worked);
}

gantry_result net_progress(struct gantry_proxy_conn *pc, int *ret_worked)
{
	struct net_conn *nc = pc->resources;

	if (!pc->send)
		return recv_progress(pc, ret_worked);
	TRY_NOW(offer_space(pc, nc, ret_worked));
	TRY_NOW(transmit_steps(pc, nc, ret_worked));
	return complete_sends(pc, nc, ret_worked);
}

/* ---- messages in the place of steps (transport/direct.h) ---- */

_Static_assert((int)GANTRY_DIRECT_BYTES <= (int)GANTRY_STEPS * (int)NET_STAGE_STEP, "messages lie in the stage");

/* Memory of any kind, and the tag of messages that do not wait for their receive. */
uint64_t gantry_direct_room(const struct gantry_connector *c)
{
	const struct net_conn *nc = c->resources;

	if (!c->proxy || c->transport != &gantry_transport_net || !c->any_memory || nc->link->context->unpack)
		return 0;
	return NET_EAGER_MOST / (uint64_t)nc->link->nchannels;
}

char *gantry_direct_memory(const struct gantry_proxy_conn *pc)
{
	const struct net_conn *nc = pc->resources;

	return nc->stage;
}

static int direct_tag(const struct net_conn *nc) /* as tag_of has it */
{
	return (nc->link->tagged ? NET_TAG_EAGER : 0) + nc->channel;
}

gantry_result gantry_direct_send(struct gantry_proxy_conn *pc, uint32_t i, uint32_t n, char *data, size_t bytes,
				 uint32_t *ret_posted)
{
	struct net_conn *nc = pc->resources;
	struct gantry_net *net = nc->link->context->net;
	void *from[GANTRY_DIRECT_MESSAGES], *requests[GANTRY_DIRECT_MESSAGES];
	size_t sizes[GANTRY_DIRECT_MESSAGES];

	ASSERT(i + n <= GANTRY_DIRECT_MESSAGES);
	for (uint32_t k = 0; k < n; k++) {
		from[k] = data + k * bytes;
		sizes[k] = bytes;
	}
	TRY_NOW(net->ops->isends(net, nc->link->comm, n, from, sizes, direct_tag(nc), requests));
	for (*ret_posted = 0; *ret_posted < n && requests[*ret_posted]; ++*ret_posted)
		nc->steps[i + *ret_posted].request = requests[*ret_posted];
	return GANTRY_OK;
}

gantry_result gantry_direct_recv(struct gantry_proxy_conn *pc, uint32_t i, void *data, size_t bytes)
{
	struct net_conn *nc = pc->resources;
	struct gantry_net *net = nc->link->context->net;
	struct net_step *s = &nc->steps[i];
	int tag = direct_tag(nc);
	void *mr = NULL;

	ASSERT(i < GANTRY_DIRECT_MESSAGES);
	s->request = NULL;
	TRY_NOW(net->ops->irecv(net, nc->link->comm, 1, &data, &bytes, &tag, &mr, &s->request));
	return s->request ? GANTRY_OK : GANTRY_AGAIN;
}

gantry_result gantry_direct_test(struct gantry_proxy_conn *pc, uint32_t i, int *ret_done, int *ret_bytes)
{
	struct net_conn *nc = pc->resources;
	struct gantry_net *net = nc->link->context->net;

	ASSERT(i < GANTRY_DIRECT_MESSAGES && nc->steps[i].request);
	return net->ops->test(net, nc->steps[i].request, ret_done, ret_bytes);
}
