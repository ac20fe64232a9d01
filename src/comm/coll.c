/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: a call becomes a plan (coll/coll.h), shares of it for the kernel's blocks, and operations for the proxy.
 * gather, scatter and a large all_to_all are groups of sends and receives.
 *
 * Plans are made when they are first needed and kept: their steps, and a table of the device's connections, in memory
 * that the kernel reads. What all ranks must do alike follows from the arguments of the call, which are the same
 * everywhere, and from what was exchanged at init.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launches.h"
#include "comm/report.h"
#include "device/k_prim.h"

gantry_result comm_coll_make(struct gantry_comm *comm)
{
	struct comm_coll *c = calloc(1, sizeof(*c));

	ASSERT(!comm->coll);
	if (!c)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for the collectives of a communicator");
	gantry_list_init(&c->plans);
	gantry_list_init(&c->ops);
	comm->coll = c;
	return GANTRY_OK;
}

void comm_coll_free(struct gantry_comm *comm)
{
	struct comm_coll *c = comm->coll;
	struct gantry_device *d = comm->device;

	if (!c)
		return;
	gantry_list_each_entry_safe (p, &c->plans, struct comm_plan, node) {
		for (int i = 0; i < COMM_CHANNELS_MAX; i++) {
			coll_plan_free(p->channels[i].plan);
			d->ops->free(d, p->channels[i].dev);
		}
		free(p);
	}
	gantry_list_each_entry_safe (op, &c->ops, struct comm_op, node)
		free(op);
	d->ops->free(d, c->word);
	gantry_transport_net_close(c->network);
	free((void *)(uintptr_t)c->topo.host);
	free(c->order);
	free(c);
	comm->coll = NULL;
}

/* ---- plans ---- */

static gantry_result find_plan(struct comm_coll *c, enum coll_algo_id algo, enum coll_kind kind, int root,
			       struct comm_plan **ret_plan)
{
	struct comm_plan *p;

	gantry_list_each_entry (it, &c->plans, struct comm_plan, node) {
		if (it->algo == algo && it->kind == kind && it->root == root) {
			*ret_plan = it;
			return GANTRY_OK;
		}
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a plan");
	p->algo = algo;
	p->kind = kind;
	p->root = root;
	gantry_list_append(&c->plans, &p->node);
	*ret_plan = p;
	return GANTRY_OK;
}

/* Of as many channels as the call uses. */
static gantry_result make_plans(const struct comm_coll *c, struct comm_plan *p, uint32_t channels)
{
	int root = 0;

	while (c->order[root] != p->root)
		root++;
	for (uint32_t i = 0; i < channels; i++) {
		if (p->channels[i].plan)
			continue;
		TRY_NOW(coll_plan_make(&c->topo, p->algo, p->kind, root, (int)i, &p->channels[i].plan));
		coll_plan_name_ranks(p->channels[i].plan, p->kind, c->order);
	}
	return GANTRY_OK;
}

/* Whether entry i of the plan's peers is the first of its connection. */
static bool is_first(const struct coll_plan *plan, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (plan->peers[k].rank == plan->peers[i].rank && plan->peers[k].send == plan->peers[i].send)
			return false;
	return true;
}

size_t comm_coll_needs(struct gantry_comm *comm, const struct comm_collective *coll, struct comm_need *ret)
{
	size_t n = 0;

	for (uint32_t ch = 0; ch < coll->choice.channels; ch++) {
		const struct coll_plan *plan = coll->plan->channels[ch].plan;

		if (coll->plan->channels[ch].dev)
			continue;
		for (uint32_t i = 0; i < plan->npeers; i++) {
			/* The network, which stands for the rank itself, is connected already. */
			if (!is_first(plan, i) || plan->peers[i].rank == comm->rank)
				continue;
			if (ret)
				ret[n] = (struct comm_need){comm, plan->peers[i].rank, plan->peers[i].send};
			n++;
		}
	}
	return n;
}

/* The connections have what the plans of all ranks count on. */
static gantry_result check_conn(const struct comm_conn *cc, const struct coll_choice *choice)
{
	const struct gantry_conn *c = &cc->c.conn;
	uint64_t slice = (uint64_t)choice->step_bytes * choice->slice_steps;

	if (!c->buffs[choice->proto] && !(choice->proto == GANTRY_PROTO_SIMPLE && c->pool))
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED,
			 "%s does not have the protocol of this collective (rank %d): GANTRY_PROTO",
			 cc->c.transport->name, cc->c.peer->rank);
	if (c->step_bytes[choice->proto] < choice->step_bytes || (cc->c.max_step && cc->c.max_step < slice))
		FAIL_NOW(
			GANTRY_ERR_UNSUPPORTED,
			"steps of %s to rank %d hold %u bytes, the collective's slices have %llu: set GANTRY_COLL_STEP",
			cc->c.transport->name, cc->c.peer->rank, c->step_bytes[choice->proto],
			(unsigned long long)slice);
	return GANTRY_OK;
}

/* The plan of a channel as the kernel reads it. */
static gantry_result upload(struct gantry_comm *comm, struct comm_plan *p, uint32_t ch)
{
	gantry_result r = GANTRY_OK;
	struct gantry_device *d = comm->device;
	const struct coll_plan *plan = p->channels[ch].plan;
	size_t steps = plan->nsteps * sizeof(*plan->steps), table = plan->npeers * sizeof(struct gantry_conn *);
	struct gantry_conn **conns;
	void *dev = NULL;
	char *host;

	steps = (steps + 15) / 16 * 16;
	host = calloc(1, steps + table + 1);
	if (!host)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a plan of %u steps", plan->nsteps);
	memcpy(host, plan->steps, plan->nsteps * sizeof(*plan->steps));
	conns = (struct gantry_conn **)(void *)(host + steps);
	for (uint32_t i = 0; i < plan->npeers; i++)
		conns[i] = comm_coll_conn(comm, &plan->peers[i], ch)->dev;
	TRY(d->ops->alloc(d, steps + table + 1, &dev));
	TRY(d->ops->copy(d, dev, host, steps + table));
	p->channels[ch].dev = dev;
	dev = NULL;
out:
	d->ops->free(d, dev);
	free(host);
	return r;
}

/* ---- enqueueing ---- */

/* Entries of all tables of connections. */
static size_t count_entries(const struct comm_collective *coll)
{
	size_t n = 0;

	for (uint32_t ch = 0; ch < coll->choice.channels; ch++)
		n += coll->plan->channels[ch].plan->npeers;
	return n;
}

/* Floats are scaled before they are summed, as in NCCL: no partial sum overflows. Integers are divided at the end. */
static void fill_average(int nranks, struct gantry_coll *c)
{
	const float f = 1.0f / (float)nranks;
	const double d = 1.0 / nranks;

	c->scalar = (uint64_t)nranks;
	if (c->type == GANTRY_TYPE_FLOAT32)
		memcpy(&c->scalar, &f, sizeof(f));
	else if (c->type == GANTRY_TYPE_FLOAT64)
		memcpy(&c->scalar, &d, sizeof(d));
	else if (dev_type_small(c->type))
		c->op = DEV_OP_MEAN;
	if (c->type == GANTRY_TYPE_FLOAT32 || c->type == GANTRY_TYPE_FLOAT64)
		c->op = GANTRY_OP_PREMUL;
}

/* The share of one channel, without the buffers of the call. */
static void plan_share(const struct gantry_comm *comm, const struct comm_collective *coll, uint32_t ch,
		       struct gantry_coll *c)
{
	const struct coll_plan *plan = coll->plan->channels[ch].plan;
	const struct coll_shape shape = {.kind = coll->plan->kind,
					 .count = coll->count,
					 .elem = coll_type_bytes(coll->type),
					 .nranks = comm->nranks};
	char *dev = coll->plan->channels[ch].dev;

	memset(c, 0, sizeof(*c));
	c->type = coll->type;
	c->op = coll->op;
	coll_share(&shape, plan, &coll->choice, ch, c);
	c->steps = (const void *)dev;
	c->conns = (void *)(dev + (plan->nsteps * sizeof(*plan->steps) + 15) / 16 * 16);
	c->scalar = coll->scalar;
	c->scalar_at = coll->scalar_at;
	if (coll->op == GANTRY_OP_AVG)
		fill_average(comm->nranks, c);
}

/* For networks that take hints: NCCL's numbers. */
static uint8_t call_hint(const struct comm_collective *coll)
{
	static const uint8_t funcs[COLL_KINDS] = {
		[COLL_ALL_REDUCE] = GANTRY_NET_ALL_REDUCE,	   [COLL_REDUCE] = GANTRY_NET_REDUCE,
		[COLL_BROADCAST] = GANTRY_NET_BROADCAST,	   [COLL_ALL_GATHER] = GANTRY_NET_ALL_GATHER,
		[COLL_REDUCE_SCATTER] = GANTRY_NET_REDUCE_SCATTER, [COLL_ALL_TO_ALL] = GANTRY_NET_ALL_TO_ALL};
	static const uint8_t algos[COLL_ALGOS] = {
		[COLL_RING] = GANTRY_NET_ALGO_RING,	 [COLL_DIRECT] = GANTRY_NET_ALGO_NONE,
		[COLL_DIRECT2] = GANTRY_NET_ALGO_NONE,	 [COLL_TREE] = GANTRY_NET_ALGO_TREE,
		[COLL_HIER] = GANTRY_NET_ALGO_NONE,	 [COLL_PAT] = GANTRY_NET_ALGO_PAT,
		[COLL_COLLNET] = GANTRY_NET_ALGO_COLLNET};

	return GANTRY_PROXY_CALLED(funcs[coll->plan->kind], algos[coll->choice.algo]);
}

/* For the same: one operation per peer and direction. until: the end of the chain. */
static void hint_peers(struct gantry_proxy_op *first, const struct gantry_proxy_op *until)
{
	uint32_t n[2] = {0, 0};

	for (struct gantry_proxy_op *op = first; op != until; op = op->next)
		n[op->conn->send]++;
	for (struct gantry_proxy_op *op = first; op != until; op = op->next)
		op->peers = n[op->conn->send] < UINT16_MAX ? (uint16_t)n[op->conn->send] : UINT16_MAX;
}

/* One operation for each proxied connection that moves something. ops: a chain to be filled in, or NULL: only counts. */
static uint32_t plan_ops(struct gantry_comm *comm, const struct comm_collective *coll, uint32_t ch,
			 const struct gantry_coll *c, struct gantry_proxy_op **ops)
{
	const struct coll_plan *plan = coll->plan->channels[ch].plan;
	struct gantry_proxy_op *first = ops ? *ops : NULL;
	uint32_t n = 0;

	for (uint32_t i = 0; i < plan->npeers; i++) {
		struct comm_conn *cc = comm_coll_conn(comm, &plan->peers[i], ch);
		bool lent = false;
		uint64_t steps = cc->c.proxy && is_first(plan, i) ? coll_steps_on(plan, c, i, &lent) : 0;
		struct gantry_proxy_op *op;

		if (!steps)
			continue;
		n++;
		if (!ops)
			continue;
		op = *ops;
		*ops = op->next;
		op->conn = cc->c.proxy;
		op->bytes = steps * c->step_bytes; /* at most */
		op->step_bytes = c->step_bytes;
		op->nsteps = steps;
		op->slice_steps = c->slice_steps;
		op->chunk_steps = c->chunk_steps;
		op->called = call_hint(coll);
		op->channels = (uint8_t)coll->choice.channels;
		op->type = c->type;
		op->op = c->op;
		op->proto = c->proto;
		op->ptr = cc->c.conn.flags & GANTRY_CONN_POINTS && (cc->c.send ? lent : c->ptr & GANTRY_COLL_PTR_OUT);
		op->exact = 0;
		op->id = comm->launches->op_ids;
	}
	if (ops)
		hint_peers(first, *ops);
	return n;
}

static gantry_result make_ops(struct gantry_comm *comm, const struct comm_collective *coll,
			      const struct gantry_coll *shares, struct gantry_proxy_op **ret_ops)
{
	struct gantry_proxy_op *next;
	uint32_t n = 0;

	*ret_ops = NULL;
	for (uint32_t ch = 0; ch < coll->choice.channels; ch++)
		n += plan_ops(comm, coll, ch, &shares[ch], NULL);
	if (!n)
		return GANTRY_OK;
	TRY_NOW(gantry_proxy_ops_get(comm->proxy, n, ret_ops));
	next = *ret_ops;
	for (uint32_t ch = 0; ch < coll->choice.channels; ch++)
		plan_ops(comm, coll, ch, &shares[ch], &next);
	return GANTRY_OK;
}

_Static_assert(sizeof(struct gantry_coll) >= sizeof(struct gantry_xfer), "a work has a time for each share");

/* Few lines need few lanes, and fewer lanes meet sooner. */
enum { LANES_MIN = 64, LANES_MAX = 512 };

static uint32_t lanes_for(const struct comm_collective *coll)
{
	uint64_t n = coll->bytes / coll->choice.channels / GANTRY_LL_DATA;

	if (coll->choice.proto == GANTRY_PROTO_SIMPLE || n >= LANES_MAX)
		return 0;
	return n < LANES_MIN ? LANES_MIN : (uint32_t)(n + 31) / 32 * 32;
}

/* For reports: both ends of a connection count alike, since their plans have it alike. */
static void count_turns(struct gantry_comm *comm, const struct comm_collective *coll, uint32_t ch)
{
	const struct coll_plan *plan = coll->plan->channels[ch].plan;

	for (uint32_t i = 0; i < plan->npeers; i++) {
		struct comm_conn *cc = comm_coll_conn(comm, &plan->peers[i], ch);

		if (is_first(plan, i))
			store_relaxed(&cc->turns, cc->turns + 1);
	}
}

static void count_paths(struct gantry_comm *comm, const struct comm_collective *coll, const struct gantry_coll *share)
{
	uint64_t *paths = comm->coll->paths, step = coll->choice.step_bytes;
	uint64_t bytes = (share->count < share->chunk ? share->count : share->chunk) * coll_type_bytes(coll->type);

	store_relaxed(&paths[coll->choice.algo], paths[coll->choice.algo] + 1);
	if (share->slice_steps > 1 && bytes > step)
		store_relaxed(&paths[COMM_PATH_SLICES], paths[COMM_PATH_SLICES] + 1);
	if (bytes > share->slice_steps * step)
		store_relaxed(&paths[COMM_PATH_CHUNKS], paths[COMM_PATH_CHUNKS] + 1);
}

/* Where the shifts of n shares are: two for each entry of their tables. */
static uint64_t *shifts_behind(struct gantry_coll *shares, uint32_t n)
{
	return (void *)&shares[n];
}

/* What kernels read of the plans; and which kernel that is. */
static gantry_result prepare(struct gantry_comm *comm, const struct comm_collective *coll,
			     const struct gantry_kernel **ret_kernel)
{
	*ret_kernel = &gantry_kernel_coll;
	for (uint32_t ch = 0; ch < coll->choice.channels; ch++) {
		const struct coll_plan *plan = coll->plan->channels[ch].plan;

		for (uint32_t i = 0; i < plan->npeers; i++) {
			struct comm_conn *cc = comm_coll_conn(comm, &plan->peers[i], ch);

			TRY_NOW(check_conn(cc, &coll->choice));
			if (cc->c.conn.flags & GANTRY_CONN_UNPACK && coll->choice.proto == GANTRY_PROTO_SIMPLE)
				*ret_kernel = &gantry_kernel_coll_unpack;
		}
		if (!coll->plan->channels[ch].dev)
			TRY_NOW(upload(comm, coll->plan, ch));
	}
	return GANTRY_OK;
}

/* Fills the work in: the shares of all channels. again: that of the one channel, planned before; or NULL. */
static void plan_shares(struct gantry_comm *comm, const struct comm_collective *coll, const struct gantry_coll *again,
			struct comm_work *w)
{
	uint32_t channels = coll->choice.channels;
	struct gantry_coll *shares = w->host.colls;
	uint64_t *shifts = shifts_behind(shares, channels), *mapped = shifts_behind(w->mapped.colls, channels);
	uint8_t ptr = comm_memory_ptr(comm, coll, shifts);

	for (uint32_t ch = 0; ch < channels; ch++) {
		if (again)
			shares[ch] = *again;
		else
			plan_share(comm, coll, ch, &shares[ch]);
		shares[ch].in = coll->in;
		shares[ch].out = coll->out;
		shares[ch].id = comm->coll->calls;
		shares[ch].ptr = ptr;
		shares[ch].shifts = ptr ? mapped : NULL;
		count_turns(comm, coll, ch);
		mapped += 2 * coll->plan->channels[ch].plan->npeers;
		if (w->times_host)
			comm_times_coll(comm, &w->times_host[ch], ch);
	}
	count_paths(comm, coll, &shares[0]);
}

static gantry_result launch_shares(struct gantry_comm *comm, const struct comm_collective *coll, struct comm_work *w,
				   const struct gantry_kernel *kernel)
{
	uint32_t channels = coll->choice.channels;
	const struct comm_order order = comm_work_order(comm, w);
	struct gantry_coll_args args = {.result = comm->result_dev,
					.end = order.end,
					.after = order.after,
					.after_value = order.after_value,
					.times = w->times_dev};
	struct comm_launch launch = {.kernel = kernel,
				     .args = &args,
				     .args_size = sizeof(args),
				     .blocks = channels,
				     .ntimes = channels};

	TRY_NOW(make_ops(comm, coll, w->host.colls, &launch.ops));
	launch.drives = launch.ops && comm_drives(comm, coll->bytes);
	args.colls = w->mapped.colls;
	if (comm->device->sleeps) {
		launch.args_size = offsetof(struct gantry_coll_args, one);
	} else {
		launch.lanes = lanes_for(coll);
		if (channels == 1 && !w->captured) {
			args.one = w->host.colls[0];
			args.colls = NULL;
		}
	}
	return comm_work_launch(comm, w, &launch);
}

static gantry_result enqueue(struct gantry_comm *comm, const struct comm_collective *coll,
			     const struct gantry_coll *again, const struct gantry_kernel *kernel,
			     struct gantry_stream *stream)
{
	uint32_t channels = coll->choice.channels;
	struct comm_work *w;

	TRY_NOW(comm_work_get(comm, channels * sizeof(struct gantry_coll) + 2 * count_entries(coll) * sizeof(uint64_t),
			      stream, &w));
	comm_note(comm, coll, ++comm->launches->op_ids);
	plan_shares(comm, coll, again, w);
	if (!again && channels == 1)
		comm->coll->again.share = w->host.colls[0];
	if (channels == 1 && comm_small_takes(comm, coll->plan, w))
		return comm_small_launch(comm, coll->plan, w);
	return launch_shares(comm, coll, w, kernel);
}

gantry_result comm_coll_enqueue(struct gantry_comm *comm, const struct comm_collective *coll,
				struct gantry_stream *stream)
{
	struct comm_again *again = &comm->coll->again;
	const struct gantry_kernel *kernel;

	again->kernel = NULL;
	TRY_NOW(prepare(comm, coll, &kernel));
	TRY_NOW(enqueue(comm, coll, NULL, kernel, stream));
	if (coll->op >= GANTRY_OP_PREMUL) /* which the program may destroy and make anew */
		return GANTRY_OK;
	again->coll = *coll;
	again->kernel = kernel;
	return GANTRY_OK;
}

/* ---- calls ---- */

static const struct comm_op *find_op(const struct comm_coll *c, int number)
{
	gantry_list_each_entry (op, &c->ops, struct comm_op, node) {
		if (op->number == number)
			return op;
	}
	return NULL;
}

static gantry_result take_op(const struct gantry_comm *comm, struct comm_collective *coll, const char *what, int op)
{
	const struct comm_op *own = op >= GANTRY_OP_PREMUL ? find_op(comm->coll, op) : NULL;

	if (op >= 0 && op < GANTRY_OP_PREMUL) {
		coll->op = (uint8_t)op;
		return GANTRY_OK;
	}
	if (!own)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: there is no reduction %d in this communicator", what, op);
	if (own->type != coll->type)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: scalar type %s of reduction %d does not match data type %s", what,
			 comm_type_name(own->type), op, comm_type_name(coll->type));
	coll->op = GANTRY_OP_PREMUL;
	coll->scalar = own->scalar;
	coll->scalar_at = own->at;
	return GANTRY_OK;
}

static gantry_result null_buffer(const struct comm_collective *coll, const char *which, const char *what)
{
	FAIL_NOW(GANTRY_ERR_INVALID, "%s: %s is NULL (%llu elements)", what, which, (unsigned long long)coll->count);
}

static gantry_result check_buffers(const struct gantry_comm *comm, const struct comm_collective *coll, const char *what)
{
	int at_root = coll->root == comm->rank;
	int needs_in = coll->kind != COLL_BROADCAST || at_root;
	int needs_out = coll->kind != COLL_REDUCE || at_root;

	if (coll->count && ((needs_in && !coll->in) || (needs_out && !coll->out)))
		return null_buffer(coll, needs_in && !coll->in ? "in" : "out", what);
	return GANTRY_OK;
}

static gantry_result check_call(const struct comm_call *call, const char *what)
{
	const struct comm_collective *coll = &call->coll;
	uint32_t elem = coll_type_bytes(coll->type);

	if (!call->comm || !call->stream)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %s is NULL", what, call->comm ? "stream" : "comm");
	TRY_NOW(comm_ready(call->comm, what));
	if (!elem)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: the type is none of 0 to %d", what, GANTRY_TYPE_COUNT - 1);
	if (coll->root < 0 || coll->root >= call->comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: root %d of %s", what, coll->root,
			 COUNT_TEXT(call->comm->nranks, "rank"));
	if (coll->count > GANTRY_SLOT_SIZE / elem / (uint64_t)call->comm->nranks)
		FAIL_NOW(GANTRY_ERR_INVALID, "%s: %llu elements are too many", what, (unsigned long long)coll->count);
	return GANTRY_OK;
}

static gantry_result plan_call(struct gantry_comm *comm, struct comm_collective *coll)
{
	enum coll_kind kind = (enum coll_kind)coll->kind;
	struct coll_ask ask = {.kind = kind, .bytes = coll->count * coll_type_bytes(coll->type)};
	struct comm_coll *c = comm->coll;

	coll->bytes = ask.bytes;
	if (coll_by_rank(kind))
		ask.bytes *= (uint64_t)comm->nranks;
	ask.refused = coll_reduces(kind) && !comm_collnet_takes(comm, coll->type, coll->op);
	TRY_NOW(coll_choose(&c->model, &ask, &coll->choice));
	TRY_NOW(find_plan(c, coll->choice.algo, kind, coll->root, &coll->plan));
	return make_plans(c, coll->plan, coll->choice.channels);
}

/* A call as the program makes it: nothing of it is checked. */
struct asked {
	unsigned kind;
	const void *in;
	void *out;
	size_t count;
	enum gantry_type type;
	int op; /* 0 for kinds that do not reduce */
	int root;
	struct gantry_comm *comm;
	struct gantry_stream *stream;
};

static struct comm_call call_of(const struct asked *a)
{
	return (struct comm_call){
		.comm = a->comm,
		.stream = a->stream,
		.kind = COMM_IS_COLL,
		.coll = {.kind = a->kind,
			 .root = a->root,
			 .in = a->in,
			 .out = a->out,
			 .count = a->count,
			 .type = (unsigned)a->type < GANTRY_TYPE_COUNT ? (uint8_t)a->type : GANTRY_TYPE_COUNT}};
}

/* Whether it is the newest call with other buffers, outside groups, so that all of it is known to be right and planned. */
static bool is_again(const struct asked *a)
{
	const struct comm_again *n;

	if (!a->comm || !a->comm->coll || !a->stream || comm_group_depth())
		return false;
	n = &a->comm->coll->again;
	return n->kernel && n->coll.kind == a->kind && n->coll.count == a->count && n->coll.type == a->type &&
	       n->coll.op == a->op && n->coll.root == a->root && !n->coll.in == !a->in && !n->coll.out == !a->out;
}

static gantry_result call_again(const struct asked *a)
{
	struct gantry_comm *comm = a->comm;
	struct comm_again *n = &comm->coll->again;
	gantry_result r;

	n->coll.in = a->in;
	n->coll.out = a->out;
	comm->launches->in_turns = false;
	comm_memory_reap(comm);
	r = enqueue(comm, &n->coll, n->coll.choice.channels == 1 ? &n->share : NULL, n->kernel, a->stream);
	comm_enqueue_failed(comm, r);
	return r;
}

static gantry_result collective(const struct asked *a, const char *what)
{
	gantry_result r = GANTRY_OK;
	struct comm_call call;
	struct comm_collective *coll = &call.coll;

	if (is_again(a) && comm_ready(a->comm, what) == GANTRY_OK)
		return call_again(a);
	call = call_of(a);
	TRY(check_call(&call, what));
	TRY(check_buffers(call.comm, coll, what));
	if (coll_reduces((enum coll_kind)coll->kind))
		TRY(take_op(call.comm, coll, what, a->op));
	if (!coll->count) /* the count is the same on all ranks, so no rank waits for this one */
		return comm_check(call.comm);
	TRY(plan_call(call.comm, coll));
out:
	return comm_group_add(r, &call);
}

gantry_result gantry_all_reduce(const void *in, void *out, size_t count, enum gantry_type type, int op,
				struct gantry_comm *comm, struct gantry_stream *stream)
{
	return collective(&(struct asked){COLL_ALL_REDUCE, in, out, count, type, op, 0, comm, stream},
			  "gantry_all_reduce");
}

gantry_result gantry_reduce(const void *in, void *out, size_t count, enum gantry_type type, int op, int root,
			    struct gantry_comm *comm, struct gantry_stream *stream)
{
	return collective(&(struct asked){COLL_REDUCE, in, out, count, type, op, root, comm, stream}, "gantry_reduce");
}

gantry_result gantry_broadcast(const void *in, void *out, size_t count, enum gantry_type type, int root,
			       struct gantry_comm *comm, struct gantry_stream *stream)
{
	return collective(&(struct asked){COLL_BROADCAST, in, out, count, type, 0, root, comm, stream},
			  "gantry_broadcast");
}

gantry_result gantry_all_gather(const void *in, void *out, size_t count, enum gantry_type type,
				struct gantry_comm *comm, struct gantry_stream *stream)
{
	return collective(&(struct asked){COLL_ALL_GATHER, in, out, count, type, 0, 0, comm, stream},
			  "gantry_all_gather");
}

gantry_result gantry_reduce_scatter(const void *in, void *out, size_t count, enum gantry_type type, int op,
				    struct gantry_comm *comm, struct gantry_stream *stream)
{
	return collective(&(struct asked){COLL_REDUCE_SCATTER, in, out, count, type, op, 0, comm, stream},
			  "gantry_reduce_scatter");
}

gantry_result gantry_barrier(struct gantry_comm *comm, struct gantry_stream *stream)
{
	struct comm_coll *c;

	if (!comm)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_barrier: no communicator");
	c = comm->coll;
	if (!c->word)
		TRY_NOW(comm->device->ops->alloc(comm->device, 64, &c->word));
	return collective(&(struct asked){COLL_ALL_REDUCE, c->word, c->word, 1, GANTRY_TYPE_UINT8, GANTRY_OP_MAX, 0,
					  comm, stream},
			  "gantry_barrier");
}

/* ---- groups of sends and receives ---- */

/* Of the collective with that number. */
static gantry_result add_transfer(const struct comm_call *call, uint32_t number, int peer, int send, char *buf)
{
	const unsigned kind = call->coll.kind;
	struct comm_call one = {.comm = call->comm,
				.stream = call->stream,
				.kind = COMM_IS_TRANSFER,
				.transfer = {.buf = buf,
					     .bytes = call->coll.count * coll_type_bytes(call->coll.type),
					     .peer = peer,
					     .send = send,
					     .number = number,
					     .func = kind == COMM_GATHER    ? GANTRY_NET_GATHER
						     : kind == COMM_SCATTER ? GANTRY_NET_SCATTER
									    : GANTRY_NET_ALL_TO_ALL}};

	return comm_group_add(GANTRY_OK, &one);
}

/* One of them: this rank sends to and receives from all ranks or the root alone, and each may have a part of its own
 * in the buffer. */
static gantry_result exchange_parts(const struct comm_call *call, int sends_all, int recvs_all)
{
	gantry_result r = GANTRY_OK, end;
	const struct comm_collective *coll = &call->coll;
	uint64_t part = coll->count * coll_type_bytes(coll->type);
	uint32_t number = comm_note(call->comm, coll, 0);

	gantry_group_start();
	for (int i = 0; i < call->comm->nranks && r == GANTRY_OK; i++) {
		uint64_t at = (uint64_t)i * part;
		int root = i == coll->root;

		if (coll->in && (sends_all || root))
			r = add_transfer(call, number, i, 1, (char *)(uintptr_t)coll->in + (sends_all ? at : 0));
		if (coll->out && (recvs_all || root) && r == GANTRY_OK)
			r = add_transfer(call, number, i, 0, coll->out + (recvs_all ? at : 0));
	}
	end = gantry_group_end();
	return r == GANTRY_OK ? end : r;
}

static gantry_result exchange(const char *what, struct comm_call *call, int sends_all, int recvs_all)
{
	gantry_result r = check_call(call, what);

	if (r != GANTRY_OK)
		return comm_group_fail(r);
	return call->coll.count ? exchange_parts(call, sends_all, recvs_all) : GANTRY_OK;
}

gantry_result gantry_all_to_all(const void *in, void *out, size_t count, enum gantry_type type,
				struct gantry_comm *comm, struct gantry_stream *stream)
{
	const struct asked a = {COLL_ALL_TO_ALL, in, out, count, type, 0, 0, comm, stream};
	const char *what = "gantry_all_to_all";
	struct comm_call call;
	gantry_result r;

	if (is_again(&a))
		return collective(&a, what);
	call = call_of(&a);
	r = check_call(&call, what);
	if (r == GANTRY_OK && count && (!in || !out))
		r = null_buffer(&call.coll, in ? "out" : "in", what);
	if (r != GANTRY_OK)
		return comm_group_fail(r);
	if (coll_plans_exchange(&comm->coll->model, count * coll_type_bytes((unsigned)type)))
		return collective(&a, what);
	return count ? exchange_parts(&call, 1, 1) : GANTRY_OK;
}

gantry_result gantry_gather(const void *in, void *out, size_t count, enum gantry_type type, int root,
			    struct gantry_comm *comm, struct gantry_stream *stream)
{
	int at_root = comm && root == comm->rank;
	struct comm_call call = call_of(
		&(struct asked){COMM_GATHER, in, at_root ? out : NULL, count, type, 0, root, comm, stream});

	if (count && (!in || (at_root && !out)))
		return comm_group_fail(null_buffer(&call.coll, in ? "out" : "in", "gantry_gather"));
	return exchange("gantry_gather", &call, 0, at_root);
}

gantry_result gantry_scatter(const void *in, void *out, size_t count, enum gantry_type type, int root,
			     struct gantry_comm *comm, struct gantry_stream *stream)
{
	int at_root = comm && root == comm->rank;
	struct comm_call call = call_of(
		&(struct asked){COMM_SCATTER, at_root ? in : NULL, out, count, type, 0, root, comm, stream});

	if (count && (!out || (at_root && !in)))
		return comm_group_fail(null_buffer(&call.coll, out ? "in" : "out", "gantry_scatter"));
	return exchange("gantry_scatter", &call, at_root, 0);
}

/* ---- reductions with a scalar ---- */

gantry_result gantry_op_create_premul(struct gantry_comm *comm, enum gantry_type type, const void *scalar,
				      int on_device, int *ret_op)
{
	static int numbers = GANTRY_OP_PREMUL; /* of the process: one communicator's is no other's */
	struct comm_op *op;

	if (!comm || !scalar || !ret_op || !coll_type_bytes((unsigned)type))
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_op_create_premul: no communicator, scalar, type or result");
	op = calloc(1, sizeof(*op));
	if (!op)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a reduction");
	op->number = fetch_add_relaxed(&numbers, 1) + 1;
	op->type = type;
	if (on_device)
		op->at = scalar;
	else
		memcpy(&op->scalar, scalar, coll_type_bytes((unsigned)type));
	gantry_list_append(&comm->coll->ops, &op->node);
	*ret_op = op->number;
	return GANTRY_OK;
}

gantry_result gantry_op_destroy(struct gantry_comm *comm, int op)
{
	struct comm_op *own = comm ? (struct comm_op *)(uintptr_t)find_op(comm->coll, op) : NULL;

	if (!own)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_op_destroy: there is no reduction %d in this communicator", op);
	gantry_list_remove(&own->node);
	free(own);
	return GANTRY_OK;
}
