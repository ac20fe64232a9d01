/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From gantry_send and gantry_recv to a launch, in the order of this file:
 *
 *   works    argument memory of launches; nothing is allocated per launch once the sizes have settled
 *   plans    a transfer becomes xfers for the kernel's blocks and operations for the proxy. What both ends must agree on
 *            (protocol, split over channels, step size) is computed from what both know: the size, the settings compared
 *            at init, and what the connection settled. What is each end's own affair (copy or hand over) is not
 *   calls    gantry_send, gantry_recv
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "comm/report.h"

/* ---- works ---- */

/*
 * Transfers that a work holds from the start. On a GPU it is generous: memory is not got while kernels run there,
 * because the driver may wait for them, and they may be waiting for this very launch.
 */
enum { XFERS_FIRST = 4, XFERS_FIRST_GPU = 64, XFERS_NEAR = 8 /* P2P_NEAR: a block copies so few to itself */ };

static uint32_t first_capacity(const struct gantry_comm *comm)
{
	return gantry_traits(comm->device)->calls_may_wait ? XFERS_FIRST_GPU : XFERS_FIRST;
}

/* A work's memory: xfers, first[], on a line of its own finished, and behind it the times, if there is a trace. */
static size_t xfers_size(uint32_t capacity)
{
	return (size_t)capacity * sizeof(struct gantry_xfer);
}

static size_t times_at(uint32_t capacity)
{
	return (xfers_size(capacity) + (COMM_CHANNELS_MAX + 1) * sizeof(uint32_t) + 127) / 128 * 128 + 128;
}

static size_t work_size(const struct gantry_comm *comm, uint32_t capacity)
{
	size_t times = comm->traced ? capacity * sizeof(struct gantry_xfer_time) : 0;

	return times_at(capacity) + (times + 127) / 128 * 128;
}

static void work_place(const struct gantry_comm *comm, struct comm_work *w, uint32_t capacity, char *host, char *dev,
		       char *own)
{
	size_t size = times_at(capacity);

	w->times_host = comm->traced ? (void *)(host + size) : NULL;
	w->times_dev = comm->traced ? (void *)(dev + size) : NULL;
	w->host.at = host;
	w->first_host = (void *)(host + xfers_size(capacity));
	w->finished_host = (void *)(host + size - 128);
	w->finished_dev = (void *)(dev + size - 128);
	w->arrived = (void *)(own + size - 64);
	w->mapped.at = dev;
	w->dev.at = own;
	w->first_dev = (void *)(own + xfers_size(capacity));
	w->capacity = capacity;
	w->expected = 0;
}

/* Memory for n works. On a GPU the kernel works on a copy in its own memory. */
static gantry_result works_alloc(struct gantry_comm *comm, struct comm_work *w, uint32_t n, uint32_t capacity)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	size_t size = work_size(comm, capacity);
	void *host = NULL, *dev = NULL, *own = NULL;

	TRY(d->ops->alloc_mapped(d, n * size, &host, &dev));
	own = dev;
	if (gantry_traits(d)->needs_own_copy) {
		r = d->ops->alloc(d, n * size, &own);
		if (r != GANTRY_OK) {
			d->ops->free_mapped(d, host);
			goto out;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		work_place(comm, &w[i], capacity, (char *)host + i * size, (char *)dev + i * size,
			   (char *)own + i * size);
out:
	return r;
}

static void works_release(struct gantry_comm *comm, struct comm_work *w)
{
	struct gantry_device *d = comm->device;

	if (w->dev.at && w->dev.at != w->host.at)
		d->ops->free(d, w->dev.at);
	if (w->host.at)
		d->ops->free_mapped(d, w->host.at);
}

gantry_result comm_works_init(struct gantry_comm *comm)
{
	comm->traced = *gantry_params()->trace != 0;
	TRY_NOW(works_alloc(comm, comm->works, COMM_WORKS, first_capacity(comm)));
	comm->works_first = comm->works[0];
	return GANTRY_OK;
}

int comm_work_busy(const struct comm_work *w)
{
	return w->finished_host && load_acquire(w->finished_host) != load_relaxed(&w->expected);
}

int comm_works_busy(const struct gantry_comm *comm)
{
	int n = 0;

	for (int i = 0; i < COMM_WORKS; i++)
		n += comm_work_busy(&comm->works[i]);
	return n + comm_graphs_busy(comm);
}

void comm_works_free(struct gantry_comm *comm)
{
	for (int i = 0; i < COMM_WORKS; i++) {
		if (comm->works[i].capacity > first_capacity(comm))
			works_release(comm, &comm->works[i]);
	}
	for (uint32_t i = 0; i < comm->outgrown.n; i++)
		works_release(comm, &comm->outgrown.works[i]);
	free(comm->outgrown.works);
	works_release(comm, &comm->works_first);
}

/* The memory that was too small is kept to the end: a kernel may wait for its counter, and freeing may wait for
 * kernels. */
static gantry_result grow_work(struct gantry_comm *comm, struct comm_work *w, uint32_t capacity)
{
	struct comm_work now = {0}, *kept;

	kept = realloc(comm->outgrown.works, (comm->outgrown.n + 1) * sizeof(*kept));
	if (!kept)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a launch of %u transfers", capacity);
	comm->outgrown.works = kept;
	TRY_NOW(works_alloc(comm, &now, 1, capacity));
	if (w->capacity > first_capacity(comm))
		comm->outgrown.works[comm->outgrown.n++] = *w;
	comm_mu_lock(&comm->mu); /* the watchdog asks which works are busy */
	*w = now;
	comm_mu_unlock(&comm->mu);
	return GANTRY_OK;
}

/*
 * Launches of a communicator follow each other. One on another stream than the last waits for the event behind that. The first
 * time there is none, and it may be too late for one, as the program may have destroyed that stream: the kernel waits then.
 */
static int is_elsewhere(const struct gantry_comm *comm, const struct comm_work *w)
{
	return comm->last_work && (comm->last_stream != w->stream || comm->last_work->number != w->number);
}

static gantry_result order_work(struct gantry_comm *comm, struct comm_work *w)
{
	struct gantry_device *d = comm->device;

	w->ordered = 0;
	TRY_NOW(d->ops->stream_number(d, w->stream, &w->number));
	if (!is_elsewhere(comm, w))
		return GANTRY_OK;
	if (!comm->coll.behind)
		TRY_NOW(d->ops->event_create(d, &comm->coll.behind));
	w->ordered = comm->coll.recorded;
	return w->ordered ? d->ops->stream_wait(d, w->stream, comm->coll.behind) : GANTRY_OK;
}

gantry_result comm_work_get(struct gantry_comm *comm, size_t bytes, struct gantry_stream *stream,
			    struct comm_work **ret_work)
{
	struct gantry_device *d = comm->device;
	struct comm_work *w = &comm->works[comm->launches % COMM_WORKS];
	uint32_t capacity = w->capacity, n = (uint32_t)((bytes + xfers_size(1) - 1) / xfers_size(1));
	struct gantry_waiter wait;
	uint64_t capture;

	TRY_NOW(d->ops->stream_captured(d, stream, &capture));
	if (capture)
		return comm_graph_work(comm, n, stream, capture, ret_work);
	if (comm_graphs_live(comm))
		TRY_NOW(comm_graph_plain_wait(comm, stream));
	gantry_waiter_init(&wait, NULL);
	/* All in use: let the whole of it drain, so that caller and kernels do not take turns on a small machine. Where streams
	 * cannot report an error, a wait inside the device would not end after one; and what was launched last may wait for a
	 * communicator whose turn comes later. */
	while (comm_work_busy(w)) {
		TRY_NOW(comm_check(comm));
		if (d->reports && !comm->coll.in_turns)
			TRY_NOW(d->ops->stream_sync(d, stream));
		if (comm_work_busy(w))
			gantry_waiter_idle(&wait, UINT64_MAX);
	}
	if (w->ntimes)
		comm_times_collect(comm, 0);
	if (n > capacity) {
		while (capacity < n)
			capacity *= 2;
		TRY_NOW(grow_work(comm, w, capacity));
	}
	w->stream = stream;
	*ret_work = w;
	return order_work(comm, w);
}

struct comm_order comm_work_order(const struct gantry_comm *comm, const struct comm_work *w)
{
	struct comm_order order = {.end = {.arrived = w->arrived,
					   .word = w->finished_dev,
					   .value = w->expected + 1,
					   .runs = w->runs,
					   .begun = w->begun_dev}};

	if (!w->captured && !w->ordered && is_elsewhere(comm, w)) {
		order.after = comm->last_work->finished_dev;
		order.after_value = comm->last_work->expected;
	}
	return order;
}

/*
 * A thread that waits for the proxy may as well be the proxy: that saves waking one and waiting for its turn on a CPU.
 * Where there are CPUs for both, and much to copy, they work side by side instead.
 */
enum { DRIVES_MAX = 65536, DRIVES_CPUS = 4 };

int comm_drives(const struct gantry_comm *comm, uint64_t bytes)
{
	return comm->device->sleeps && !comm->bound &&
	       (bytes <= DRIVES_MAX || gantry_wait_limits()->cpus <= DRIVES_CPUS);
}

static gantry_result append_ops(struct gantry_comm *comm, const struct comm_work *w, const struct comm_launch *launch)
{
	struct gantry_proxy_op *last = launch->ops;

	if (!last)
		return GANTRY_OK;
	while (last->next)
		last = last->next;
	if (comm_graphs_live(comm))
		return comm_graph_plain_append(comm, w->stream, launch->ops, last);
	if (launch->drives)
		gantry_proxy_push(comm->proxy, launch->ops, last);
	else
		gantry_proxy_append(comm->proxy, launch->ops, last);
	return GANTRY_OK;
}

static gantry_result launch_plain(struct gantry_comm *comm, struct comm_work *w, const struct gantry_launch *l)
{
	struct gantry_device *d = comm->device;
	gantry_result r;

	store_relaxed(&w->expected, w->expected + 1); /* the watchdog looks */
	comm->launches++;
	r = d->ops->launch(d, w->stream, l);
	comm->last_stream = w->stream;
	comm->last_work = w;
	comm->coll.recorded = false;
	if (r != GANTRY_OK) {
		store_relaxed(&w->expected, w->expected - 1);
		return r;
	}
	if (comm->coll.behind) {
		TRY_NOW(d->ops->event_record(d, comm->coll.behind, w->stream));
		comm->coll.recorded = true;
	}
	return comm_graphs_live(comm) ? comm_graph_plain_record(comm, w->stream) : GANTRY_OK;
}

gantry_result comm_work_launch(struct gantry_comm *comm, struct comm_work *w, const struct comm_launch *launch)
{
	const struct gantry_launch l = {.kernel = launch->kernel,
					.blocks = launch->blocks,
					.lanes = comm->device->sleeps ? 0 : launch->lanes,
					.args = launch->args,
					.args_size = launch->args_size,
					.abort = comm->abort_dev,
					.help = launch->drives && !w->captured ? &comm->help : NULL,
					.failure = comm->life.failure,
					.eventcounts = launch->eventcount ? launch->eventcount
						       : comm->all_notify ? comm->eventcounts
									  : NULL};

	if (w->captured)
		return comm_graph_launch(comm, w, &l, launch->ops);
	TRY_NOW(append_ops(comm, w, launch));
	if (comm->traced) {
		w->ntimes = launch->ntimes;
		w->launched = gantry_ticks();
	}
	return launch_plain(comm, w, &l);
}

gantry_result comm_launch_transfers(struct gantry_comm *comm, struct comm_work *w, uint32_t n,
				    struct gantry_proxy_op *ops, int drives)
{
	struct gantry_device *d = comm->device;
	uint32_t blocks = (uint32_t)comm->nchannels;
	const struct comm_order order = comm_work_order(comm, w);
	struct gantry_p2p_args args = {.xfers = w->dev.xfers,
				       .first = w->first_dev,
				       .result = comm->result_dev,
				       .end = order.end,
				       .after = order.after,
				       .after_value = order.after_value,
				       .times = w->times_dev};
	const struct comm_launch launch = {.kernel = &gantry_kernel_p2p,
					   .args = &args,
					   .args_size = sizeof(args),
					   .blocks = blocks,
					   .ntimes = n,
					   .ops = ops,
					   .drives = drives};
	int near = 1;

	/* A GPU's kernel works on a copy in its own memory: made by itself, or here if there are many. */
	for (uint32_t b = 0; b < blocks; b++)
		near &= w->first_host[b + 1] - w->first_host[b] <= XFERS_NEAR;
	if (near) {
		args.xfers = w->mapped.xfers;
		args.first = (void *)&w->mapped.xfers[w->capacity];
	} else if (w->dev.at != w->mapped.at) {
		TRY_NOW(d->ops->copy_async(d, w->stream, w->dev.at, w->host.at, xfers_size(n)));
		TRY_NOW(d->ops->copy_async(d, w->stream, w->first_dev, w->first_host, (blocks + 1) * sizeof(uint32_t)));
	}
	return comm_work_launch(comm, w, &launch);
}

/* ---- plans ---- */

static uint8_t choose_proto(const struct gantry_conn *conn, uint64_t bytes)
{
	const struct gantry_params *p = gantry_params();
	uint8_t asked = (uint8_t)(p->proto - PARAM_PROTO_SIMPLE);

	if (!bytes)
		return GANTRY_PROTO_SIMPLE;
	if (p->proto != PARAM_PROTO_AUTO)
		return conn->buffs[asked] ? asked : GANTRY_PROTO_SIMPLE;
	if (bytes <= p->ll_max && conn->buffs[GANTRY_PROTO_LL])
		return GANTRY_PROTO_LL;
	if (bytes <= p->ll128_max && conn->buffs[GANTRY_PROTO_LL128])
		return GANTRY_PROTO_LL128;
	return GANTRY_PROTO_SIMPLE;
}

/* Simple over a proxy: both ends cut alike. Between kernels the sender cuts as it likes. */
static uint64_t choose_step(const struct gantry_connector *c, uint8_t proto, int ptr)
{
	if (proto != GANTRY_PROTO_SIMPLE)
		return c->conn.step_bytes[proto];
	if (c->max_step)
		return c->max_step;
	return ptr ? gantry_params()->ptr_step : c->conn.step_bytes[proto];
}

static int may_ptr(struct gantry_comm *comm, struct comm_conn *cc, const struct comm_transfer *t, uint8_t proto,
		   uint64_t *ret_place)
{
	const struct gantry_params *p = gantry_params();

	if (!p->ptr || proto != GANTRY_PROTO_SIMPLE || !t->bytes || t->bytes < p->ptr_min || !cc->c.sharing)
		return 0;
	/* Between kernels the receiver reads where the slot says. */
	if (!t->send && !(cc->c.conn.flags & GANTRY_CONN_PROXIED && cc->c.conn.offers))
		return 0;
	return comm_memory_place(comm, cc, t->buf, t->bytes, ret_place);
}

/* One part of a call on one channel. op: NULL if the end is not proxied. */
static void plan_part(struct gantry_comm *comm, struct comm_conn *cc, const struct comm_transfer *t, uint64_t from,
		      uint64_t bytes, struct gantry_xfer *x, struct gantry_proxy_op *op)
{
	uint64_t place = 0;

	memset(x, 0, sizeof(*x));
	x->conn = cc->dev;
	x->buf = t->buf + from;
	x->bytes = bytes;
	x->send = (uint8_t)t->send;
	x->coll = t->number;
	x->proto = choose_proto(&cc->c.conn, bytes);
	x->ptr = (uint8_t)may_ptr(comm, cc, t, x->proto, &place);
	x->place = place + from;
	x->step_bytes = choose_step(&cc->c, x->proto, x->ptr);
	store_relaxed(&cc->turns, cc->turns + 1); /* reports look */
	comm_trace_xfer(cc, comm->op_ids, x);
	if (!op)
		return;
	op->conn = cc->c.proxy;
	op->bytes = bytes;
	op->step_bytes = x->step_bytes;
	op->nsteps = bytes ? (bytes + x->step_bytes - 1) / x->step_bytes : 1;
	op->slice_steps = op->chunk_steps = 1;
	op->proto = x->proto;
	op->ptr = x->ptr;
	op->exact = 1;
	op->id = comm->op_ids;
}

static uint32_t parts_of(const struct gantry_comm *comm, uint64_t bytes)
{
	uint64_t per = gantry_params()->split_min, n;

	if (comm->nchannels == 1 || bytes < 2 * per)
		return 1;
	n = bytes / per;
	return n < (uint64_t)comm->nchannels ? (uint32_t)n : (uint32_t)comm->nchannels;
}

/* Parts are multiples of 4 KiB, so that they stay aligned as the buffer is. */
static uint64_t part_bytes(uint64_t bytes, uint32_t parts)
{
	return parts == 1 ? bytes : ((bytes + parts - 1) / parts + 4095) / 4096 * 4096;
}

/* The channel of a part: both ends count from the same one, and pairs differ. */
static uint32_t channel_of(const struct gantry_comm *comm, int peer, uint32_t part)
{
	return ((uint32_t)(comm->rank + peer) + part) % (uint32_t)comm->nchannels;
}

struct count {
	uint32_t xfers, ops;
	uint32_t per_channel[COMM_CHANNELS_MAX];
};

static void count_calls(const struct gantry_comm *comm, const struct comm_call *calls, size_t n, struct count *c)
{
	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < n; i++) {
		const struct comm_transfer *t = &calls[i].transfer;
		uint32_t parts = parts_of(comm, t->bytes);

		if (t->peer == comm->rank)
			continue;
		c->xfers += parts;
		for (uint32_t p = 0; p < parts; p++) {
			uint32_t ch = channel_of(comm, t->peer, p);

			c->per_channel[ch]++;
			c->ops += comm->peers[t->peer].conns[t->send][ch].c.proxy != NULL;
		}
	}
}

/* The first call from `at` on that is a rank's send to itself, or its receive; n: none. */
static size_t next_to_self(const struct comm_call *calls, size_t at, size_t n, int send)
{
	while (at < n && !(calls[at].transfer.peer == calls[at].comm->rank && calls[at].transfer.send == send))
		at++;
	return at;
}

/* A rank's messages to itself: the k-th send goes to the k-th receive. */
static gantry_result copy_to_self(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	struct gantry_device *d = comm->device;
	size_t s = 0, v = 0;

	for (;; s++, v++) {
		const struct comm_transfer *from, *to;

		s = next_to_self(calls, s, n, 1);
		v = next_to_self(calls, v, n, 0);
		if (s == n && v == n)
			return GANTRY_OK;
		if (s == n || v == n)
			FAIL_NOW(GANTRY_ERR_USAGE, "rank %d %s itself without the other half in the same group",
				 comm->rank, s < n ? "sends to" : "receives from");
		from = &calls[s].transfer;
		to = &calls[v].transfer;
		if (from->bytes > to->bytes)
			FAIL_NOW(GANTRY_ERR_SIZE, "rank %d sends itself %llu bytes and receives %llu", comm->rank,
				 (unsigned long long)from->bytes, (unsigned long long)to->bytes);
		if (from->bytes && from->buf != to->buf)
			TRY_NOW(d->ops->copy_async(d, calls[v].stream, to->buf, from->buf, from->bytes));
	}
}

static void fill(struct gantry_comm *comm, const struct comm_call *calls, size_t n, const struct count *c,
		 struct comm_work *w, struct gantry_proxy_op *op)
{
	uint32_t at[COMM_CHANNELS_MAX], sum = 0;

	for (int ch = 0; ch < comm->nchannels; ch++) {
		w->first_host[ch] = at[ch] = sum;
		sum += c->per_channel[ch];
	}
	w->first_host[comm->nchannels] = sum;
	for (size_t i = 0; i < n; i++) {
		const struct comm_transfer *t = &calls[i].transfer;
		uint32_t parts = parts_of(comm, t->bytes);
		uint64_t size = part_bytes(t->bytes, parts), from = 0;

		if (t->peer == comm->rank)
			continue;
		comm->op_ids++;
		for (uint32_t p = 0; p < parts; p++) {
			uint32_t ch = channel_of(comm, t->peer, p);
			struct comm_conn *cc = &comm->peers[t->peer].conns[t->send][ch];
			uint64_t left = t->bytes - from, bytes = left < size ? left : size;
			struct gantry_xfer *x = &w->host.xfers[at[ch]];

			plan_part(comm, cc, t, from, bytes, x, cc->c.proxy ? op : NULL);
			if (w->times_host)
				comm_times_plan(&w->times_host[at[ch]], cc, comm->op_ids, x);
			at[ch]++;
			from += bytes;
			op = cc->c.proxy && op ? op->next : op;
		}
	}
}

/* Plans, appends to the proxy, launches. */
gantry_result comm_enqueue_transfers(struct gantry_comm *comm, const struct comm_call *calls, size_t n)
{
	struct gantry_proxy_op *first = NULL;
	struct comm_work *w;
	struct count c;
	uint64_t bytes = 0;

	count_calls(comm, calls, n, &c);
	TRY_NOW(copy_to_self(comm, calls, n));
	if (!c.xfers)
		return GANTRY_OK;
	TRY_NOW(comm_work_get(comm, xfers_size(c.xfers), calls[0].stream, &w));
	if (c.ops)
		TRY_NOW(gantry_proxy_ops_get(comm->proxy, c.ops, &first));
	fill(comm, calls, n, &c, w, first);
	for (size_t i = 0; i < n; i++)
		bytes += calls[i].transfer.bytes;
	return comm_launch_transfers(comm, w, c.xfers, first, first && comm_drives(comm, bytes));
}

/* ---- calls ---- */

static gantry_result check_transfer(const struct comm_call *call, size_t count, enum gantry_type type)
{
	const struct comm_transfer *t = &call->transfer;
	const char *what = t->send ? "gantry_send" : "gantry_recv";

	if (!call->comm || !call->stream)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: no communicator or no stream", what);
	TRY_NOW(comm_ready(call->comm, what));
	if ((unsigned)type >= GANTRY_TYPE_COUNT)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: there is no type %d", what, (int)type);
	if (t->peer < 0 || t->peer >= call->comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: peer %d of %s", what, t->peer,
			 COUNT_TEXT(call->comm->nranks, "rank"));
	if (count && !t->buf)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %zu elements at NULL", what, count);
	if (count > GANTRY_SLOT_SIZE / coll_type_bytes(type))
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %zu elements are too many", what, count);
	return GANTRY_OK;
}

static gantry_result transfer(char *buf, size_t count, enum gantry_type type, int peer, int send,
			      struct gantry_comm *comm, struct gantry_stream *stream)
{
	struct comm_call call = {.comm = comm,
				 .stream = stream,
				 .kind = COMM_IS_TRANSFER,
				 .transfer = {.buf = buf, .peer = peer, .send = send}};
	gantry_result r = check_transfer(&call, count, type);

	if (r == GANTRY_OK)
		call.transfer.bytes = (uint64_t)count * coll_type_bytes(type);
	return comm_group_add(r, &call);
}

gantry_result gantry_send(const void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			  struct gantry_stream *stream)
{
	return transfer((char *)(uintptr_t)buf, count, type, peer, 1, comm, stream);
}

gantry_result gantry_recv(void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
			  struct gantry_stream *stream)
{
	return transfer(buf, count, type, peer, 0, comm, stream);
}
