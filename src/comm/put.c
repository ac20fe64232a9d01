/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided calls: put, signal and wait, from the call to a launch; and notifications, which have no stream. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/launches.h"
#include "comm/onesided.h"

enum {
	PUT_KERNEL_MAX = 65536, /* more is copied by the copy engines of a GPU, not by the one block that signals */
	PUT_LAUNCH_MAX = 128,	/* calls of a launch, less than a connection has room for: GANTRY_PUT_REQUESTS */
};

/* ---- near ---- */

static int is_mapped(const struct comm_put *put)
{
	return put->bytes && put->window->peers[put->peer].at;
}

static int sends_data(const struct comm_put *put)
{
	return put->bytes && !is_mapped(put);
}

/* The network has to do something: move the data, or carry a signal that must not overtake such data. */
static int uses_net(const struct gantry_comm *comm, const struct comm_put *put)
{
	const struct onesided_peer *p = &comm->onesided->peers[put->peer];

	return sends_data(put) || (put->signal >= 0 && (p->by_net || !p->block));
}

static gantry_result fill_put(struct gantry_comm *comm, const struct comm_put *put, struct gantry_stream *stream,
			      int signals, struct gantry_put *p)
{
	struct comm_onesided *o = comm->onesided;
	struct gantry_device *d = comm->device;
	size_t word;

	memset(p, 0, sizeof(*p));
	if (is_mapped(put)) {
		p->to = put->window->peers[put->peer].at + put->offset;
		p->from = put->buf;
		p->bytes = put->bytes;
		p->window = &o->peers[put->peer].block->windows[put->window->peers[put->peer].slot];
		p->number = put->window->number;
		if (gantry_traits(d)->needs_own_copy && put->bytes > PUT_KERNEL_MAX) {
			TRY_NOW(d->ops->copy_async(d, stream, p->to, p->from, p->bytes));
			p->bytes = 0;
		}
	}
	if (signals) {
		ASSERT(put->signal >= 0 && o->peers[put->peer].block);
		word = onesided_word(put->peer, put->signal);
		p->count = &o->raised[word];
		word = onesided_word(comm->rank, put->signal);
		p->word = &o->peers[put->peer].block->words[word];
		p->eventcount = d->sleeps ? &o->peers[put->peer].block->eventcount : NULL;
	}
	return GANTRY_OK;
}

static void fill_wait(const struct gantry_comm *comm, const struct comm_wait *wait, struct gantry_put *p)
{
	const struct comm_onesided *o = comm->onesided;
	size_t word = onesided_word(wait->peer, wait->signal);

	ASSERT(wait->signal >= 0 && wait->signal < GANTRY_SIGNALS);
	memset(p, 0, sizeof(*p));
	p->count = &o->taken[word];
	p->word = &o->block->words[word];
	p->by_net = &o->by_net[word];
	p->expected = wait->count;
}

static gantry_result launch_puts(struct gantry_comm *comm, struct comm_work *w, uint64_t n, int waits)
{
	struct comm_onesided *o = comm->onesided;
	const struct comm_order order = comm_work_order(comm, w);
	const struct gantry_put_args args = {.puts = w->mapped.puts,
					     .n = n,
					     .result = comm->result_dev,
					     .finished = w->finished_dev,
					     .after = order.after,
					     .after_value = order.after_value};
	const struct comm_launch launch = {.kernel = &gantry_kernel_put,
					   .args = &args,
					   .args_size = sizeof(args),
					   .blocks = 1,
					   .drives = waits && load_acquire(&o->receives) && comm_drives(comm, 0),
					   .eventcount = comm->device->sleeps ? &o->block->eventcount : NULL};

	return comm_work_launch(comm, w, &launch);
}

/* ---- over the network ---- */

static int may_ptr(const struct gantry_connector *c, const struct comm_put *put)
{
	const struct gantry_params *p = gantry_params();

	return p->ptr && c->any_memory && put->bytes && put->bytes >= p->ptr_min &&
	       gantry_slot_can_point((uint64_t)(uintptr_t)put->buf, put->bytes);
}

static void plan_send(struct gantry_comm *comm, const struct comm_put *put, struct gantry_xfer *x,
		      struct gantry_proxy_op *op)
{
	struct onesided_peer *p = &comm->onesided->peers[put->peer];
	struct comm_conn *cc = p->send;
	/* What was copied straight is not sent. */
	uint64_t bytes = is_mapped(put) ? 0 : put->bytes;
	struct gantry_put_request request = {.window = put->window ? put->window->number : 0,
					     .signal = put->signal,
					     .offset = put->offset,
					     .bytes = bytes};

	ASSERT(cc && cc->stage == CONN_READY && cc->c.max_step);
	memset(x, 0, sizeof(*x));
	x->conn = cc->dev;
	x->buf = put->buf;
	x->bytes = bytes;
	x->send = 1;
	x->proto = GANTRY_PROTO_SIMPLE;
	x->ptr = (uint8_t)(bytes && may_ptr(&cc->c, put));
	x->place = (uint64_t)(uintptr_t)put->buf;
	x->step_bytes = cc->c.max_step;
	cc->turns++;
	op->conn = cc->c.proxy;
	op->bytes = bytes;
	op->step_bytes = x->step_bytes;
	op->nsteps = bytes ? (bytes + x->step_bytes - 1) / x->step_bytes : 1;
	op->slice_steps = op->chunk_steps = 1;
	op->called = GANTRY_PROXY_CALLED(GANTRY_NET_PUT, GANTRY_NET_ALGO_NONE);
	op->peers = op->channels = 1;
	op->proto = GANTRY_PROTO_SIMPLE;
	op->ptr = x->ptr;
	op->exact = 1;
	op->id = ++comm->launches->op_ids;
	gantry_put_give(&cc->c, &request);
	p->sent++;
}

/* Room for one more request. Those before it depend on the kernels and the proxy only. */
static gantry_result await_room(struct gantry_comm *comm, const struct gantry_connector *c)
{
	struct gantry_waiter wait;

	gantry_waiter_init(&wait, NULL);
	while (!gantry_put_has_room(c)) {
		TRY_NOW(comm_check(comm));
		gantry_waiter_idle(&wait, UINT64_MAX);
	}
	return GANTRY_OK;
}

/* Blocks are those whose eventcounts the connections wake: by the peer's rank. */
static gantry_result send_puts(struct gantry_comm *comm, const struct comm_call *calls, size_t n, uint32_t nsends)
{
	struct gantry_proxy_op *first = NULL, *op;
	struct comm_work *w;
	uint64_t bytes = 0;
	uint32_t at = 0;

	for (size_t i = 0; i < n; i++)
		if (calls[i].kind == COMM_IS_PUT && uses_net(comm, &calls[i].put))
			TRY_NOW(await_room(comm, &comm->onesided->peers[calls[i].put.peer].send->c));
	TRY_NOW(comm_work_get(comm, nsends * sizeof(struct gantry_xfer), calls[0].stream, &w));
	TRY_NOW(gantry_proxy_ops_get(comm->proxy, nsends, &first));
	op = first;
	for (int b = 0; b < comm->nchannels; b++) {
		w->first_host[b] = at;
		for (size_t i = 0; i < n; i++) {
			if (calls[i].kind != COMM_IS_PUT || calls[i].put.peer % comm->nchannels != b ||
			    !uses_net(comm, &calls[i].put))
				continue;
			plan_send(comm, &calls[i].put, &w->host.xfers[at], op);
			if (comm->launches->traced)
				memset(&w->times_host[at], 0, sizeof(w->times_host[at]));
			op = op->next;
			bytes += calls[i].put.bytes;
			at++;
		}
	}
	ASSERT(at == nsends && !op);
	w->first_host[comm->nchannels] = at;
	return comm_launch_transfers(comm, w, at, first, comm_drives(comm, bytes));
}

static gantry_result enqueue_waits(struct gantry_comm *comm, const struct comm_call *calls, size_t n, size_t nwaits)
{
	struct comm_work *w;
	struct gantry_put *p;

	TRY_NOW(comm_work_get(comm, nwaits * sizeof(*p), calls[0].stream, &w));
	p = w->host.puts;
	for (size_t i = 0; i < n; i++)
		if (calls[i].kind == COMM_IS_WAIT)
			fill_wait(comm, &calls[i].wait, p++);
	return launch_puts(comm, w, nwaits, 1);
}

/* First what goes by loads and stores, then the network: signals that follow data by it come after all of that. */
static gantry_result enqueue_puts(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	struct comm_work *w;
	struct gantry_put *p;
	uint32_t nsends = 0;
	size_t near = 0;

	for (size_t i = 0; i < n; i++)
		if (calls[i].kind == COMM_IS_PUT && sends_data(&calls[i].put))
			comm->onesided->peers[calls[i].put.peer].by_net = 1;
	TRY_NOW(comm_work_get(comm, n * sizeof(*p), calls[0].stream, &w));
	p = w->host.puts;
	for (size_t i = 0; i < n; i++) {
		int by_net;

		if (calls[i].kind != COMM_IS_PUT)
			continue;
		by_net = uses_net(comm, &calls[i].put);
		nsends += (uint32_t)by_net;
		if (is_mapped(&calls[i].put) || (!by_net && calls[i].put.signal >= 0))
			TRY_NOW(fill_put(comm, &calls[i].put, calls[0].stream, !by_net && calls[i].put.signal >= 0,
					 &p[near++]));
	}
	ASSERT(near <= n && nsends <= n);
	if (near)
		TRY_NOW(launch_puts(comm, w, near, 0));
	return nsends ? send_puts(comm, calls, n, nsends) : GANTRY_OK;
}

gantry_result comm_onesided_enqueue(struct gantry_comm *comm, const struct comm_call *calls, size_t n,
				    enum comm_call_kind what)
{
	size_t found = 0;
	uint64_t capture;

	for (size_t i = 0; i < n; i++)
		found += calls[i].kind == what;
	if (!found)
		return GANTRY_OK;
	TRY_NOW(comm->device->ops->stream_captured(comm->device, calls[0].stream, &capture));
	if (capture) /* a network's requests are handed over by the call */
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "one-sided calls cannot be captured into a graph");
	if (what == COMM_IS_WAIT)
		return enqueue_waits(comm, calls, n, found);
	for (size_t i = 0; i < n; i++)
		if (calls[i].kind == COMM_IS_PUT)
			TRY_NOW(comm_onesided_reach(comm, &calls[i].put));
	for (size_t i = 0; i < n; i += PUT_LAUNCH_MAX)
		TRY_NOW(enqueue_puts(comm, calls + i, n - i < PUT_LAUNCH_MAX ? n - i : PUT_LAUNCH_MAX));
	return GANTRY_OK;
}

/* ---- calls ---- */

static gantry_result check_call(const struct comm_call *call, const char *what, int peer, int signal, int least_signal)
{
	struct gantry_comm *comm = call->comm;

	if (!comm || !call->stream)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %s is NULL", what, comm ? "stream" : "comm");
	TRY_NOW(comm_ready(comm, what));
	if (!comm->onesided)
		FAIL_NOW(GANTRY_ERR_USAGE, "%s: no window has been registered yet", what);
	if (peer < 0 || peer >= comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: peer %d of %s", what, peer, COUNT_TEXT(comm->nranks, "rank"));
	if (signal >= GANTRY_SIGNALS || signal < least_signal)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: signal %d of %d", what, signal, GANTRY_SIGNALS);
	return GANTRY_OK;
}

static gantry_result check_put(const struct comm_call *call)
{
	const struct comm_put *put = &call->put;
	uint64_t size;

	TRY_NOW(check_call(call, "gantry_put", put->peer, put->signal, GANTRY_NO_SIGNAL));
	if (!put->window || (put->bytes && !put->buf))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_put: no window, or %llu bytes at NULL",
			 (unsigned long long)put->bytes);
	if (!comm_window_is_registered(call->comm, put->window))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_put: %p is not a registered window of this communicator",
			 (void *)put->window);
	size = put->window->peers[put->peer].size;
	if (put->bytes > size || put->offset > size - put->bytes)
		FAIL_NOW(GANTRY_ERR_SIZE,
			 "gantry_put: %llu bytes at offset %llu exceed the window of rank %d (%llu bytes)",
			 (unsigned long long)put->bytes, (unsigned long long)put->offset, put->peer,
			 (unsigned long long)size);
	return GANTRY_OK;
}

gantry_result gantry_put(const void *local, size_t bytes, int peer, struct gantry_window *window, size_t offset,
			 int signal, struct gantry_comm *comm, struct gantry_stream *stream)
{
	struct comm_call call = {.comm = comm,
				 .stream = stream,
				 .kind = COMM_IS_PUT,
				 .put = {.buf = (char *)(uintptr_t)local,
					 .bytes = bytes,
					 .peer = peer,
					 .window = window,
					 .offset = offset,
					 .signal = signal}};

	return comm_group_add(check_put(&call), &call);
}

gantry_result gantry_signal(int peer, int signal, struct gantry_comm *comm, struct gantry_stream *stream)
{
	struct comm_call call = {
		.comm = comm, .stream = stream, .kind = COMM_IS_PUT, .put = {.peer = peer, .signal = signal}};

	return comm_group_add(check_call(&call, "gantry_signal", peer, signal, 0), &call);
}

gantry_result gantry_wait_signals(const struct gantry_signal_wait *waits, int n, struct gantry_comm *comm,
				  struct gantry_stream *stream)
{
	gantry_result r = GANTRY_OK, end;

	if (n < 0 || (n && !waits))
		FAIL(GANTRY_ERR_INVALID, "gantry_wait_signals: invalid array (%d entries at %p)", n,
		     (const void *)waits);
	TRY(gantry_group_start());
	for (int i = 0; i < n; i++) {
		struct comm_call call = {
			.comm = comm,
			.stream = stream,
			.kind = COMM_IS_WAIT,
			.wait = {.peer = waits[i].peer, .signal = waits[i].signal, .count = (uint64_t)waits[i].count}};
		gantry_result one = check_call(&call, "gantry_wait_signals", waits[i].peer, waits[i].signal, 0);

		if (one == GANTRY_OK && waits[i].count < 0)
			one = gantry_fail(GANTRY_ERR_INVALID, LOG_SUBSYS, __FILE__, __LINE__,
					  "gantry_wait_signals: invalid signal count %d", waits[i].count);
		one = comm_group_add(one, &call);
		r = r == GANTRY_OK ? one : r;
	}
	end = gantry_group_end();
	r = r == GANTRY_OK ? end : r;
out:
	return r;
}

/* ---- notifications: by the control plane ---- */

struct notification {
	uint32_t size;
	char data[GANTRY_NOTIFY_MAX];
};

#define NOTIFY_TAG (3ull << 32)

gantry_result gantry_notify(struct gantry_comm *comm, int peer, const void *data, size_t size)
{
	struct notification n = {.size = (uint32_t)size};

	if (!comm || (size && !data) || size > GANTRY_NOTIFY_MAX)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_notify: invalid data (%zu bytes at %p; at most %d)", size, data,
			 GANTRY_NOTIFY_MAX);
	TRY_NOW(comm_ready(comm, "gantry_notify"));
	if (peer < 0 || peer >= comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_notify: there is no peer %d in %s", peer,
			 COUNT_TEXT(comm->nranks, "rank"));
	if (size)
		memcpy(n.data, data, size);
	return gantry_ctl_send(comm->ctl, peer, NOTIFY_TAG, &n, sizeof(n));
}

gantry_result gantry_notified(struct gantry_comm *comm, int peer, void *data, size_t *size)
{
	struct notification n;

	if (!comm || !size || (*size && !data))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_notified: the buffer is NULL");
	TRY_NOW(comm_ready(comm, "gantry_notified"));
	if (peer < 0 || peer >= comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_notified: there is no peer %d in %s", peer,
			 COUNT_TEXT(comm->nranks, "rank"));
	TRY_NOW(gantry_ctl_try_recv(comm->ctl, peer, NOTIFY_TAG, &n, sizeof(n)));
	if (n.size > GANTRY_NOTIFY_MAX || n.size > *size)
		FAIL_NOW(GANTRY_ERR_SIZE, "gantry_notified: rank %d sent %u bytes, but the buffer holds %zu", peer,
			 n.size, *size);
	if (n.size)
		memcpy(data, n.data, n.size);
	*size = n.size;
	return GANTRY_OK;
}
