/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over a struct gantry_net, the way NCCL's proxy moves them: a window of requests, only the oldest is tested, the
 * next is posted when a slot is free. With channels also in its pattern: a connection each way per channel, one thread
 * that goes round all of them and does one step on each, both ranks sending and receiving.
 *
 * And over plain TCP, the limit to measure against: one stream, one send per message, one message read at a time, default
 * socket options. Once spinning on non-blocking sockets and once blocking; the ping-pong spins, with one connection per
 * direction and TCP_NODELAY.
 *
 * Default options mean Nagle's algorithm: small messages of a stream are joined by the kernel, which makes tens of them
 * out of one trip through the stack. --raw-nodelay measures streams without it, for comparison with movers that set
 * TCP_NODELAY as most do.
 *
 * If both ranks are on this host, packets pass the loopback device whatever interface the network uses; so do those of
 * plain TCP. Between hosts they go where the connection goes by which the two have met.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_net.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/unpack.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "common/figures.h"
#include "net/loader.h"

struct perf_peer {
	struct gantry_loader *loader; /* owned; NULL for Gantry's own network */
	struct gantry_net *net;	      /* borrowed from the loader, or static */
	int inited;
	int unpack;	 /* of device type UNPACK */
	int sizes_wrong; /* receives whose size was reported wrong */
	void *ctx;
	struct channel {
		void *listen, *send, *recv;
		void *send_mr[PERF_DEPTH_MAX], *recv_mr[PERF_DEPTH_MAX]; /* one per slot */
		int nsend_mr, nrecv_mr;
	} channels[PERF_CHANNELS_MAX];
	int n; /* of them: 1 without --channels */
};

/* What one slot of the window sends or receives. */
struct message {
	struct channel *channel;
	unsigned char *at;
	size_t size;
	void *mr;
};

static gantry_result post(struct perf_peer *p, int sending, const struct message *m, void **ret_request)
{
	gantry_result r;
	void *request = NULL, *data = m->at, *mr = m->mr;
	size_t size = m->size;
	int tag = 0;

	if (sending)
		r = p->net->ops->isend(p->net, m->channel->send, data, size, tag, mr, &request);
	else
		r = p->net->ops->irecv(p->net, m->channel->recv, 1, &data, &size, &tag, &mr, &request);
	if (r == GANTRY_OK)
		*ret_request = request;
	return r;
}

/* want: what a receive must report when it is done. */
static gantry_result poll_request(struct perf_peer *p, const struct channel *ch, void *request, int sending,
				  size_t want, int *ret_done)
{
	int size = -1, done = 0;

	TRY_NOW(p->net->ops->test(p->net, request, &done, &size));
	if (done && !sending && want <= INT_MAX && size != (int)want && !p->sizes_wrong++)
		LOG_WARN(TOOL, "a receive says that %d bytes came where %zu were sent (gantry check --rule test-sizes)",
			 size, want);	   /* NCCL would go on as well: it reads sizes for its profiler and to flush */
	if (done && !sending && p->unpack) /* the bytes are in the buffer, as host memory always has them */
		TRY_NOW(p->net->ops->irecv_consumed(p->net, ch->recv, 1, request));
	*ret_done = done;
	return GANTRY_OK;
}

/* A message has arrived. Checks all of it, or its stamps. */
static void check_message(struct perf_net_rank *rk, const unsigned char *at, size_t size, uint64_t seq, int all)
{
	uint64_t wrong = all ? perf_check(at, size, seq) : perf_stamp_check(at, size, seq);

	if (wrong && !rk->me->wrong)
		snprintf(rk->me->first_wrong, sizeof(rk->me->first_wrong),
			 "at offset %llu of a message of %s that rank %d received",
			 (unsigned long long)(all ? perf_first_wrong(at, size, seq)
						  : perf_stamp_first_wrong(at, size, seq)),
			 SIZE_TEXT(size), rk->rank);
	rk->me->wrong += wrong;
}

/* Where the slot of a channel lies. With --channels both directions are busy: each has buffers of its own. */
static unsigned char *slot_at(const struct perf_net_rank *rk, int channel, uint64_t slot, int sending)
{
	uint64_t depth = (uint64_t)rk->opts->work.depth;

	return perf_buf(rk,
			rk->opts->work.channels ? (2 * (uint64_t)channel + (uint64_t)!sending) * depth + slot : slot);
}

static struct message nth(const struct perf_net_rank *rk, int channel, uint64_t i, size_t size, int sending)
{
	uint64_t slot = i % (uint64_t)rk->opts->work.depth;
	struct channel *ch = &rk->peer->channels[channel];

	return (struct message){ch, slot_at(rk, channel, slot, sending), size,
				sending ? ch->send_mr[slot] : ch->recv_mr[slot]};
}

/* Posts now, however often that takes. The other side must be at the same message. */
static gantry_result post_now(struct perf_peer *p, int sending, const struct message *m, void **ret_request)
{
	gantry_result r;

	*ret_request = NULL;
	do
		r = post(p, sending, m, ret_request);
	while (r == GANTRY_OK && !*ret_request);
	return r;
}

/* A message each way, in flight or to be posted. */
struct exchange {
	struct message in, out;
	int want_in, want_out; /* not posted yet */
	void *recv, *send;
};

static gantry_result try_post(struct perf_peer *p, int sending, const struct message *m, int *want, void **request)
{
	if (*want) {
		*request = NULL;
		TRY_NOW(post(p, sending, m, request));
		*want = !*request;
	}
	return GANTRY_OK;
}

/* Until both are done. What gets no request is tried again beside the other, as NCCL does: some plugins take a receive only
 * after the other side has called isend. */
static gantry_result wait_both(struct perf_peer *p, struct exchange *x)
{
	size_t size = x->in.size;
	int done;

	do {
		TRY_NOW(try_post(p, 0, &x->in, &x->want_in, &x->recv));
		TRY_NOW(try_post(p, 1, &x->out, &x->want_out, &x->send));
		if (x->recv) {
			TRY_NOW(poll_request(p, &p->channels[0], x->recv, 0, size, &done));
			if (done)
				x->recv = NULL;
		}
		if (x->send) {
			TRY_NOW(poll_request(p, &p->channels[0], x->send, 1, size, &done));
			if (done)
				x->send = NULL;
		}
	} while (x->want_in || x->want_out || x->send || x->recv);
	return GANTRY_OK;
}

/*
 * Rank 0 serves. A receive is posted before the message that provokes
 * the answer leaves, as NCCL does. Sent from buffer 0, received into buffer 1.
 */
static gantry_result pingpong(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	struct perf_peer *p = rk->peer;
	struct channel *ch = &p->channels[0];
	struct exchange x = {.in = {ch, perf_buf(rk, 1), size, ch->recv_mr[1]},
			     .out = {ch, perf_buf(rk, 0), size, ch->send_mr[0]},
			     .want_in = 1};
	int check = rk->opts->work.check, answer = rk->rank == 1;

	for (uint64_t i = 0; i < iters; i++) {
		if (answer) {
			TRY_NOW(wait_both(p, &x));
			if (check)
				check_message(rk, x.in.at, size, perf_seq(rk, 2 * i), 0);
			x.want_in = i + 1 < iters;
		}
		if (check)
			perf_stamp(x.out.at, size, perf_seq(rk, 2 * i + (uint64_t)answer));
		x.want_out = 1;
		if (!answer) {
			TRY_NOW(wait_both(p, &x));
			if (check)
				check_message(rk, x.in.at, size, perf_seq(rk, 2 * i + 1), 0);
			x.want_in = i + 1 < iters;
		}
		perf_progress(rk->state);
	}
	return wait_both(p, &x);
}

/* ---- streams: of one channel in one direction, or of all channels in both ---- */

/* One direction of a channel. Slots are filled in beforehand: with messages of 64 bytes, finding one for each costs as much as
 * a tenth of sending it. */
struct way {
	int sending;
	uint64_t posted, finished, seq; /* messages; seq: number of the first */
	struct slot {
		struct message message;
		void *request;
	} slots[PERF_DEPTH_MAX];
};

enum { WAY_SHIFT = 26 }; /* no stream has more messages than this, see ITERS_TIMED_MAX */

static void begin_way(const struct perf_net_rank *rk, int channel, int sending, size_t size, struct way *w)
{
	uint64_t sender = (uint64_t)(sending ? rk->rank : !rk->rank);

	w->sending = sending;
	w->posted = w->finished = 0;
	/* The same number on both sides, and none twice in a phase. */
	w->seq = perf_seq(rk, (2 * (uint64_t)channel + sender) << WAY_SHIFT);
	for (uint64_t i = 0; i < (uint64_t)rk->opts->work.depth; i++)
		w->slots[i] = (struct slot){.message = nth(rk, channel, i, size, sending)};
}

/* As NCCL's proxy does: at most `most` messages are posted while there are slots, the oldest is tested once. upto: messages. */
static inline gantry_result step_way(struct perf_net_rank *rk, struct way *w, uint64_t upto, uint64_t most)
{
	struct perf_peer *p = rk->peer;
	uint64_t depth = (uint64_t)rk->opts->work.depth;
	int done, check = rk->opts->work.check;
	struct slot *s;

	for (; most && w->posted < upto && w->posted - w->finished < depth; most--) {
		s = &w->slots[w->posted % depth];
		if (w->sending && check)
			perf_stamp(s->message.at, s->message.size, w->seq + w->posted);
		s->request = NULL;
		TRY_NOW(post(p, w->sending, &s->message, &s->request));
		if (!s->request)
			break;
		w->posted++;
	}
	if (w->finished == w->posted)
		return GANTRY_OK;
	s = &w->slots[w->finished % depth];
	TRY_NOW(poll_request(p, s->message.channel, s->request, w->sending, s->message.size, &done));
	if (!done)
		return GANTRY_OK;
	if (!w->sending && check)
		check_message(rk, s->message.at, s->message.size, w->seq + w->finished, 0);
	w->finished++;
	perf_progress(rk->state);
	return GANTRY_OK;
}

static gantry_result stream(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	struct way w;

	begin_way(rk, 0, rk->rank == 0, size, &w);
	while (w.finished < iters)
		TRY_NOW(step_way(rk, &w, iters, (uint64_t)rk->opts->work.depth));
	return GANTRY_OK;
}

const struct perf_mover perf_mover_peer = {.name = "stream over the network", .stream = stream, .pingpong = pingpong};

/* Every direction of every channel has moved this many messages. */
static gantry_result move_all(struct perf_net_rank *rk, struct way *ways, uint64_t upto)
{
	int n = 2 * rk->peer->n, open = 1;

	while (open) {
		open = 0;
		for (int i = 0; i < n; i++) {
			TRY_NOW(step_way(rk, &ways[i], upto, 1));
			open |= ways[i].finished < upto;
		}
	}
	return GANTRY_OK;
}

/* Receives first. */
static void begin_ways(const struct perf_net_rank *rk, size_t size, struct way ways[2 * PERF_CHANNELS_MAX])
{
	for (int i = 0; i < 2 * rk->peer->n; i++)
		begin_way(rk, i / 2, i % 2, size, &ways[i]);
}

static gantry_result stream_all(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	struct way ways[2 * PERF_CHANNELS_MAX];

	begin_ways(rk, size, ways);
	return move_all(rk, ways, iters);
}

/* One message each way on every channel, and the next when all have come: two of these are a small all-reduce. */
static gantry_result exchange_all(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	struct way ways[2 * PERF_CHANNELS_MAX];

	begin_ways(rk, size, ways);
	for (uint64_t i = 0; i < 2 * iters; i++)
		TRY_NOW(move_all(rk, ways, i + 1));
	return GANTRY_OK;
}

const struct perf_mover perf_mover_channels = {
	.name = "channels over the network", .stream = stream_all, .pingpong = exchange_all};

enum { GUARD = 16 };
static const unsigned char guard_bytes[GUARD] = "no byte beyond!";

/*
 * One window. shift_tx and shift_rx move the buffers off their page boundary;
 * with `shorter`, slot k sends k bytes less than its receive has room for.
 */
static gantry_result verify_window(struct perf_net_rank *rk, int channel, size_t size, size_t shift_tx, size_t shift_rx,
				   int shorter)
{
	struct perf_peer *p = rk->peer;
	void *request[PERF_DEPTH_MAX] = {0};
	int sending = rk->rank == 0, done;

	for (uint64_t i = 0; i < (uint64_t)rk->opts->work.depth; i++) {
		struct message m = nth(rk, channel, i, size, sending);

		m.at += sending ? shift_tx : shift_rx;
		if (sending) {
			m.size -= shorter && i < size ? i : 0;
			perf_fill(m.at, m.size, perf_seq(rk, i));
		} else {
			memcpy(m.at + size, guard_bytes, GUARD);
		}
		TRY_NOW(post_now(p, sending, &m, &request[i]));
	}
	for (uint64_t i = 0; i < (uint64_t)rk->opts->work.depth; i++) {
		struct message m = nth(rk, channel, i, size, sending);
		size_t sent = size - (shorter && i < size ? i : 0);

		do
			TRY_NOW(poll_request(p, m.channel, request[i], sending, sent, &done));
		while (!done);
		if (!sending) {
			check_message(rk, m.at + shift_rx, sent, perf_seq(rk, i), 1);
			if (memcmp(m.at + shift_rx + size, guard_bytes, GUARD) != 0)
				FAIL_NOW(GANTRY_ERR_CORRUPT, "a receive of %s wrote beyond its buffer",
					 SIZE_TEXT(size));
		}
		perf_progress(rk->state);
	}
	return GANTRY_OK;
}

gantry_result perf_peer_verify(struct perf_net_rank *rk, size_t size)
{
	static const struct {
		unsigned char tx, rx, shorter;
	} windows[] = {{0, 0, 0}, {1, 3, 0}, {13, 0, 1}, {0, 7, 0}};

	for (int c = 0; c < rk->peer->n; c++)
		for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
			rk->round++;
			TRY_NOW(verify_window(rk, c, size, windows[w].tx, windows[w].rx, windows[w].shorter));
		}
	return GANTRY_OK;
}

static gantry_result choose_net(struct perf_net_rank *rk)
{
	struct perf_peer *p = rk->peer;
	struct perf_shared *sh = rk->shared;
	struct gantry_net_properties props = {0};
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF};
	int ndevs = 0;

	p->net = gantry_net_tcp();
	if (rk->opts->plugin) {
		TRY_NOW(gantry_loader_open(rk->opts->plugin, &p->loader));
		TRY_NOW(gantry_loader_net(p->loader, 0, &p->net));
	}
	TRY_NOW(p->net->ops->init(p->net, 1, &config, &p->ctx));
	p->inited = 1;
	TRY_NOW(p->net->ops->devices(p->net, &ndevs));
	if (ndevs < 1)
		FAIL_NOW(GANTRY_ERR_CONFIG, "%s has no device here", p->net->name);
	TRY_NOW(p->net->ops->get_properties(p->net, 0, &props));
	p->unpack = props.device_type == GANTRY_NET_DEVICE_UNPACK;
	if (p->unpack && rk->opts->work.depth > GANTRY_UNPACK_DEPTH)
		FAIL_NOW(GANTRY_ERR_CONFIG,
			 "--depth %d: %s is of device type UNPACK, which takes %d receives at a time",
			 rk->opts->work.depth, p->net->name, GANTRY_UNPACK_DEPTH);
	if (rk->rank == 0 || rk->remote) {
		snprintf(sh->net_name, sizeof(sh->net_name), "%s", p->net->name);
		snprintf(sh->net_from, sizeof(sh->net_from), "%s",
			 p->loader ? gantry_loader_path(p->loader) : "built in");
		snprintf(sh->dev_name, sizeof(sh->dev_name), "%s", props.name ? props.name : "?");
		sh->net_version = p->net->version;
		store_release(&sh->pair.info_ready, 1);
	}
	return GANTRY_OK;
}

/* Both directions at once, connect and accept in turn: neither may depend on the other being there first. */
static gantry_result connect_both(struct perf_net_rank *rk, struct channel *ch)
{
	struct perf_peer *p = rk->peer;
	const struct gantry_net_ops *ops = p->net->ops;
	struct gantry_net_device_handle *send_dev = NULL, *recv_dev = NULL;
	char handle[GANTRY_NET_HANDLE_SIZE] __attribute__((aligned(16)));
	uint64_t deadline = gantry_now_ns() + rk->opts->work.timeout_ns;

	TRY_NOW(ops->listen(p->net, p->ctx, 0, rk->me->handle, &ch->listen));
	TRY_NOW(perf_sync(rk));
	memcpy(handle, rk->other->handle, sizeof(handle));
	TRY_NOW(perf_sync(rk)); /* the next channel's takes its place */
	while (!ch->send || !ch->recv) {
		if (!ch->send)
			TRY_NOW(ops->connect(p->net, p->ctx, 0, handle, &ch->send, &send_dev));
		if (!ch->recv)
			TRY_NOW(ops->accept(p->net, ch->listen, &ch->recv, &recv_dev));
		if (rk->remote)
			TRY_NOW(perf_remote_alive(rk->remote));
		if (gantry_now_ns() > deadline)
			FAIL_NOW(GANTRY_ERR_TIMEOUT, "not connected after %.1f s: connect is %s, accept is %s",
				 (double)rk->opts->work.timeout_ns / 1e9, ch->send ? "done" : "waiting",
				 ch->recv ? "done" : "waiting");
		sched_yield();
	}
	return GANTRY_OK;
}

static gantry_result register_slots(struct perf_net_rank *rk, int channel)
{
	struct perf_peer *p = rk->peer;
	struct channel *ch = &p->channels[channel];

	for (int i = 0; i < rk->nslots; i++) {
		void *out = slot_at(rk, channel, (uint64_t)i, 1), *in = slot_at(rk, channel, (uint64_t)i, 0);

		TRY_NOW(p->net->ops->reg_mr(p->net, ch->send, out, rk->stride, GANTRY_NET_PTR_HOST, &ch->send_mr[i]));
		ch->nsend_mr++;
		TRY_NOW(p->net->ops->reg_mr(p->net, ch->recv, in, rk->stride, GANTRY_NET_PTR_HOST, &ch->recv_mr[i]));
		ch->nrecv_mr++;
	}
	return GANTRY_OK;
}

gantry_result perf_peer_open(struct perf_net_rank *rk)
{
	struct perf_peer *p = calloc(1, sizeof(*p));
	int channels = rk->opts->work.channels ? rk->opts->work.channels : 1;

	rk->peer = p;
	if (!p)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a connection");
	TRY_NOW(choose_net(rk));
	for (; p->n < channels; p->n++) {
		TRY_NOW(connect_both(rk, &p->channels[p->n]));
		TRY_NOW(register_slots(rk, p->n));
	}
	return GANTRY_OK;
}

static void close_channel(const struct perf_peer *p, struct channel *ch)
{
	const struct gantry_net_ops *ops = p->net->ops;

	for (int i = 0; i < ch->nsend_mr; i++)
		ops->dereg_mr(p->net, ch->send, ch->send_mr[i]);
	for (int i = 0; i < ch->nrecv_mr; i++)
		ops->dereg_mr(p->net, ch->recv, ch->recv_mr[i]);
	if (ch->send)
		ops->close_send(p->net, ch->send);
	if (ch->recv)
		ops->close_recv(p->net, ch->recv);
	if (ch->listen)
		ops->close_listen(p->net, ch->listen);
}

void perf_peer_close(struct perf_net_rank *rk)
{
	struct perf_peer *p = rk->peer;

	if (!p)
		return;
	for (int c = 0; p->net && c < PERF_CHANNELS_MAX; c++)
		close_channel(p, &p->channels[c]);
	if (p->inited)
		p->net->ops->finalize(p->net, p->ctx);
	gantry_loader_close(p->loader);
	free(p);
	rk->peer = NULL;
}

/* ---- plain TCP ---- */

enum { SPIN, BLOCK, PING, PONG, RAW_SOCKETS }; /* the connections */

static gantry_result raw_move(int fd, unsigned char *p, size_t size, int sending)
{
	if (raw_tcp_move(fd, p, size, sending))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "raw mover: %s: %s", sending ? "send" : "recv", strerror(errno));
	return GANTRY_OK;
}

static gantry_result raw_stream(struct perf_net_rank *rk, int fd, size_t size, uint64_t iters)
{
	int sending = rk->rank == 0, check = rk->opts->work.check;

	for (uint64_t i = 0; i < iters; i++) {
		unsigned char *at = perf_buf(rk, i % (uint64_t)rk->opts->work.depth);

		if (sending && check)
			perf_stamp(at, size, perf_seq(rk, i));
		TRY_NOW(raw_move(fd, at, size, sending));
		if (!sending && check)
			rk->me->wrong += perf_stamp_check(at, size, perf_seq(rk, i));
		perf_progress(rk->state);
	}
	return GANTRY_OK;
}

static gantry_result stream_spin(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	return raw_stream(rk, rk->raw.fd[SPIN], size, iters);
}
static gantry_result stream_block(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	return raw_stream(rk, rk->raw.fd[BLOCK], size, iters);
}

static gantry_result raw_pingpong(struct perf_net_rank *rk, size_t size, uint64_t iters)
{
	int check = rk->opts->work.check, answer = rk->rank == 1;
	int to = rk->raw.fd[answer ? PONG : PING], from = rk->raw.fd[answer ? PING : PONG];
	unsigned char *out_buf = perf_buf(rk, 0), *in_buf = perf_buf(rk, 1);

	for (uint64_t i = 0; i < iters; i++) {
		for (int half = 0; half < 2; half++) {
			uint64_t seq = perf_seq(rk, 2 * i + (uint64_t)half);

			if (half == answer) {
				if (check)
					perf_stamp(out_buf, size, seq);
				TRY_NOW(raw_move(to, out_buf, size, 1));
			} else {
				TRY_NOW(raw_move(from, in_buf, size, 0));
				if (check)
					rk->me->wrong += perf_stamp_check(in_buf, size, seq);
			}
		}
		perf_progress(rk->state);
	}
	return GANTRY_OK;
}

const struct perf_mover perf_mover_raw_spin = {
	.name = "raw spinning stream", .stream = stream_spin, .pingpong = raw_pingpong};
const struct perf_mover perf_mover_raw_block = {
	.name = "raw blocking stream", .stream = stream_block, .pingpong = NULL};

gantry_result perf_raw_open(struct perf_net_rank *rk)
{
	struct gantry_addr addr = perf_remote_address(rk->remote);
	char text[GANTRY_ADDR_TEXT];
	int on = 1, rank = rk->rank;

	if (rank == 1 && raw_tcp_listen(&rk->raw, &addr.sa, gantry_addr_len(&addr), 0, &rk->me->raw_port))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "raw mover: listening on %s: %s", gantry_addr_text(&addr, text),
			 strerror(errno));
	TRY_NOW(perf_sync(rk));
	gantry_addr_set_port(&addr, rk->shared->rank[1].raw_port);
	if (raw_tcp_join(&rk->raw, RAW_SOCKETS, rank == 0 ? &addr.sa : NULL, gantry_addr_len(&addr), 0))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "raw mover: connecting to %s: %s", gantry_addr_text(&addr, text),
			 strerror(errno));
	for (int i = 0; i < RAW_SOCKETS; i++) {
		int fd = rk->raw.fd[i], plain = i < PING && !rk->opts->work.raw_nodelay;

		if ((!plain && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0) ||
		    (i != BLOCK && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0))
			FAIL_NOW(GANTRY_ERR_SYSTEM, "raw mover: TCP_NODELAY or O_NONBLOCK: %s", strerror(errno));
	}
	return GANTRY_OK;
}
