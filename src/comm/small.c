/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small collectives over the network are done by the thread that runs the stream, which is the caller's if that waits for
 * it: it goes through the plan, sends and receives by itself (transport/direct.h) and reduces. No kernel, no FIFO, no
 * operations of the proxy. Each rank decides for itself, call by call: the messages are the same.
 *
 * It is a second interpreter of plans, and pays for that: with GANTRY_CALLER_MAX=0 an all_reduce of 2 ranks takes 1.21
 * times as long at 8 and 64 B, 1.28 at 512 B, 1.27 at 4 KiB and 1.06 at 32 KiB. `gantry perf all_reduce --transport net
 * --ranks 2 -b 8 -e 32K -f 8 --in-place no --repeats 3 -n 300` on two Neoverse-V1 cores; medians of 9 rounds that take
 * turns, every round of every size above 1.
 *
 * Order. `held` is set when such a call is enqueued, while the communicator has no operations, and cleared when it has
 * ended. Meanwhile nobody else touches the connections: operations of later calls wait (gantry_proxy_group_config.held),
 * as their kernels do. Steps of FIFOs are counted between a rank's kernel and its proxy, so they do not move here.
 *
 * A call has one chunk of one slice, so a step of the plan is at most one message on a connection. Each message has its
 * own place in the connection's memory, which outlives requests that an abort or an error leaves behind. One that may join
 * the next to the same rank (gantry_coll_step) waits in its place for that: together they are one system call here, and as a
 * rule one there. The peer cannot tell.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/clock.h"
#include "base/event.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "comm/launches.h"
#include "comm/report.h"
#include "device/k_coll.h"
#include "transport/direct.h"

struct small_args {
	struct gantry_comm *comm;
	const struct gantry_coll *coll; /* in the memory of the launch's work */
	const struct coll_plan *plan;
	struct gantry_xfer_time *time; /* NULL: no trace */
	uint64_t *finished, value;
	uint32_t op; /* its number among operations, for the trace */
};

/* A call while it runs. */
struct small {
	const struct small_args *a;
	struct gantry_comm *comm;
	const struct gantry_coll *c;
	struct dev_prims p;
	uint64_t stride;  /* bytes from the place of a message to that of the next one */
	bool posted;	  /* all receives are */
	uint32_t sending; /* messages that have not left yet */
	bool waits;	  /* waiter is in use */
	struct gantry_waiter waiter;
};

/* ---- whether it goes this way ---- */

static bool same_end(const struct coll_peer *a, const struct coll_peer *b)
{
	return a->rank == b->rank && a->send == b->send;
}

/* Messages that a connection carries if every step is one. */
static uint32_t count_messages(const struct coll_plan *plan, const struct coll_peer *end)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < plan->nsteps; i++) {
		const struct gantry_coll_step *t = &plan->steps[i];
		uint32_t first = end->send ? t->send : t->recv, most = end->send ? t->nsend : t->nrecv;

		for (uint32_t k = first; k < first + most; k++)
			n += same_end(&plan->peers[k], end);
	}
	return n;
}

static void look_at_plan(const struct gantry_comm *comm, struct comm_plan *p)
{
	const struct coll_plan *plan = p->channels[0].plan;

	p->small.known = true;
	p->small.room = plan->npeers ? UINT64_MAX : 0;
	for (uint32_t i = 0; i < plan->npeers; i++) {
		uint64_t room = gantry_direct_room(&comm_coll_conn(comm, &plan->peers[i], 0)->c);
		uint32_t n = count_messages(plan, &plan->peers[i]);

		p->small.room = room < p->small.room ? room : p->small.room;
		p->small.messages = n > p->small.messages ? n : p->small.messages;
	}
	if (p->small.messages > GANTRY_DIRECT_MESSAGES)
		p->small.room = 0;
}

/* One slice, small enough, by connections that can. */
static bool fits(const struct comm_plan *p, const struct gantry_coll *share)
{
	uint64_t bytes = share->count * coll_type_bytes(share->type), slice = share->step_bytes;

	if (share->proto == GANTRY_PROTO_SIMPLE)
		slice *= share->slice_steps;
	return bytes <= gantry_params()->caller_max && bytes <= slice && share->count <= share->chunk &&
	       p->small.messages * slice <= p->small.room && p->small.messages * bytes <= GANTRY_DIRECT_BYTES;
}

int comm_small_takes(struct gantry_comm *comm, struct comm_plan *plan, const struct comm_work *w)
{
	const struct comm_launches *l = comm->launches;

	if (!comm->device->sleeps || comm->bound || w->captured || load_acquire(&comm->graphs))
		return 0;
	if (!plan->small.known)
		look_at_plan(comm, plan);
	if (!fits(plan, &w->host.colls[0]) || load_relaxed(&comm->coll->held) ||
	    gantry_proxy_group_pending(comm->group))
		return 0;
	/* Nothing of the communicator is under way but what this stream does before. */
	return !l->last_work || l->last_stream == w->stream || !comm_work_busy(l->last_work);
}

/* ---- doing it ---- */

static struct comm_conn *end_of(const struct small *s, uint32_t entry)
{
	return comm_coll_conn(s->comm, &s->a->plan->peers[entry], 0);
}

static char *place_of(const struct small *s, const struct comm_conn *cc, uint32_t message)
{
	return gantry_direct_memory(cc->c.proxy) + message * s->stride;
}

/* A communicator that has failed leaves its connections to the proxy. The call then waits for the abort, as kernels do. */
static uint32_t aborted(const struct small *s)
{
	struct gantry_waiter w;

	if (!load_seq(&s->comm->life.stop))
		return GANTRY_OK;
	gantry_waiter_init(&w, NULL);
	while (!load_seq(s->comm->abort_host))
		gantry_waiter_idle(&w, UINT64_MAX);
	return GANTRY_ERR_ABORTED;
}

/* As the proxy does it; kernels then wait for the abort, which comes when the cause is known. */
static uint32_t network_failed(struct small *s, const struct comm_conn *cc, gantry_result r)
{
	struct gantry_comm *comm = s->comm;
	struct gantry_waiter w;

	comm_suspect(comm, r, comm_error_about(comm, r, cc->c.peer->rank), gantry_last_error());
	gantry_waiter_init(&w, NULL);
	while (!aborted(s))
		gantry_waiter_idle(&w, UINT64_MAX);
	return GANTRY_ERR_ABORTED;
}

/* Takes note of what has left on an end. A network may keep a message back while one before it was not asked for. */
static uint32_t note_sent(struct small *s, struct comm_conn *cc)
{
	int done = 1;

	while (cc->taken < cc->messages) {
		gantry_result r = gantry_direct_test(cc->c.proxy, cc->taken, &done, NULL);

		if (r != GANTRY_OK)
			return network_failed(s, cc, r);
		if (!done)
			break;
		cc->taken++;
		s->sending--;
	}
	return GANTRY_OK;
}

static uint32_t note_all_sent(struct small *s)
{
	uint32_t error = GANTRY_OK;

	for (uint32_t i = 0; i < s->a->plan->npeers && s->sending && !error; i++)
		if (s->a->plan->peers[i].send)
			error = note_sent(s, end_of(s, i));
	return error;
}

/* Nothing came: once more. The peer's thread may need this CPU. Reports see a wait that is not short. */
static uint32_t wait_more(struct small *s, struct comm_conn *cc)
{
	struct gantry_waiter *w = &s->waiter;
	uint32_t error = note_all_sent(s);

	if (!s->waits) {
		gantry_waiter_init(w, NULL);
		if (s->comm->help.crowded)
			w->spin = 0;
		s->waits = true;
	}
	gantry_proxy_waits(cc->c.proxy, cc->c.send ? GANTRY_WAIT_SOCKET : GANTRY_WAIT_PEER);
	if (w->yields == 1) {
		PUT(cc->c.proxy->progress_ns, gantry_now_ns());
		prim_show_wait(&s->p, cc->dev, cc->dev->step,
			       cc->c.send ? GANTRY_KERNEL_WAIT_DONE : GANTRY_KERNEL_WAIT_DATA);
	}
	gantry_waiter_idle(w, UINT64_MAX);
	return error ? error : aborted(s);
}

static void wait_ends(struct small *s, struct comm_conn *cc)
{
	if (!s->waits)
		return;
	gantry_proxy_waits_end(cc->c.proxy);
	prim_show(&s->p, cc->dev, cc->dev->step, GANTRY_KERNEL_IDLE);
	s->waits = false;
}

static uint32_t post_receive(struct small *s, struct comm_conn *cc, uint64_t bytes)
{
	char *place = place_of(s, cc, cc->messages);
	uint32_t error = GANTRY_OK;
	gantry_result r;

	while (!error && (r = gantry_direct_recv(cc->c.proxy, cc->messages, place, bytes)) != GANTRY_OK)
		error = r == GANTRY_AGAIN ? wait_more(s, cc) : network_failed(s, cc, r);
	wait_ends(s, cc);
	cc->messages += !error;
	return error;
}

/* All that are filled. Those that were kept for this one have as many bytes: parts are equal (coll_join_messages). */
static uint32_t post_sends(struct small *s, struct comm_conn *cc, uint64_t bytes)
{
	uint32_t error = GANTRY_OK, posted;
	gantry_result r;

	ASSERT(cc->messages + 1 == cc->filled || bytes == s->stride);
	while (!error && cc->messages < cc->filled) {
		r = gantry_direct_send(cc->c.proxy, cc->messages, cc->filled - cc->messages,
				       place_of(s, cc, cc->messages), bytes, &posted);
		if (r != GANTRY_OK) {
			error = network_failed(s, cc, r);
			break;
		}
		cc->messages += (uint8_t)posted;
		s->sending += posted;
		if (!posted)
			error = wait_more(s, cc);
	}
	wait_ends(s, cc);
	return error ? error : note_sent(s, cc);
}

/* Each connection's in the order of the plan. */
static uint32_t post_receives(struct small *s)
{
	struct coll_at at;
	uint32_t error = GANTRY_OK;

	s->posted = true;
	coll_begin(s->c, &at);
	while (!error && coll_next(&s->p, s->c, &at)) {
		const struct gantry_coll_step *t = &s->c->steps[at.step];

		for (uint32_t i = 0; i < t->nrecv && !error; i++) {
			struct comm_conn *cc = end_of(s, t->recv + i);

			error = post_receive(s, cc, at.count * s->p.elem);
		}
	}
	return error;
}

static void count(struct small *s, struct comm_conn *cc, uint64_t bytes)
{
	struct gantry_proxy_conn *pc = cc->c.proxy;

	k_count(cc->dev, s->p.proto, GANTRY_MODE_NORMAL, bytes, 1);
	ADD(pc->steps, 1);
	ADD(pc->bytes, bytes);
}

static uint32_t receive(struct small *s, struct comm_conn *cc, uint64_t bytes, const char **ret_place)
{
	uint32_t error = GANTRY_OK;
	int got = 0, done = 0;

	while (!error && !done) {
		gantry_result r = gantry_direct_test(cc->c.proxy, cc->taken, &done, &got);

		if (r != GANTRY_OK)
			error = network_failed(s, cc, r);
		else if (!done)
			error = wait_more(s, cc);
	}
	wait_ends(s, cc);
	*ret_place = place_of(s, cc, cc->taken++);
	if (error)
		return error;
	count(s, cc, bytes);
	return (uint64_t)got == bytes ? GANTRY_OK : GANTRY_ERR_SIZE;
}

static uint32_t do_step(struct small *s, const struct coll_at *at)
{
	const struct gantry_coll_step *t = &s->c->steps[at->step];
	uint64_t bytes = at->count * s->p.elem;
	const char *from[GANTRY_PRIM_PEERS], *srcs[PRIM_SOURCES];
	char *dsts[1 + GANTRY_PRIM_PEERS];
	uint32_t error = GANTRY_OK, i;
	struct prim_slice slice;
	struct dev_reduction r = {
		.srcs = srcs, .dsts = dsts, .type = s->p.type, .op = s->p.op, .scalar = s->p.scalar, .last = t->last};

	coll_fill(&s->p, s->c, at, &slice);
	if (t->nrecv && !s->posted)
		error = post_receives(s);
	for (i = 0; i < t->nrecv && !error; i++)
		error = receive(s, end_of(s, t->recv + i), bytes, &from[i]);
	if (error)
		return error;
	r.nsrc = prim_sources(&slice);
	r.premul = prim_input_at(&slice);
	for (uint32_t k = 0; k < r.nsrc; k++) {
		srcs[k] = prim_local(&slice, k, &i);
		if (!srcs[k])
			srcs[k] = from[i];
	}
	if (t->what & PRIM_OUT)
		dsts[r.ndst++] = slice.out;
	for (i = 0; i < t->nsend; i++)
		dsts[r.ndst++] = place_of(s, end_of(s, t->send + i), end_of(s, t->send + i)->filled++);
	dev_reduce_copy(&r, at->count);
	for (i = 0; i < t->nsend && !error; i++) {
		if (!(t->joins >> i & 1))
			error = post_sends(s, end_of(s, t->send + i), bytes);
		count(s, end_of(s, t->send + i), bytes);
	}
	return error;
}

static void put_event(const struct small *s, const struct comm_conn *cc, uint64_t how)
{
	uint64_t bytes = s->stride;

	gantry_event_put(GANTRY_EV_PROXY_OP, cc->c.proxy->id, s->a->op,
			 GANTRY_EV_BYTES(bytes) | (uint64_t)s->p.proto << 56 | how);
}

static void begin_ends(struct small *s)
{
	for (uint32_t i = 0; i < s->a->plan->npeers; i++) {
		struct comm_conn *cc = end_of(s, i);

		cc->filled = cc->messages = cc->taken = 0;
		if (s->a->time)
			put_event(s, cc, 0);
	}
}

/* What was sent has left. */
static uint32_t end_ends(struct small *s)
{
	uint32_t error = GANTRY_OK;

	for (uint32_t i = 0; i < s->a->plan->npeers; i++) {
		struct comm_conn *cc = end_of(s, i);

		while (s->sending && cc->c.send && cc->taken < cc->messages && !error)
			error = wait_more(s, cc);
		wait_ends(s, cc);
		if (error)
			return error;
		ASSERT(!cc->c.send || cc->messages == cc->filled);
		ADD(cc->c.proxy->ops, cc->messages != 0);
		if (s->a->time)
			put_event(s, cc, GANTRY_EV_OP_END);
		cc->filled = cc->messages = cc->taken = 0; /* it may be in the table twice */
	}
	return GANTRY_OK;
}

static uint32_t run_call(const struct small_args *a)
{
	struct small s = {.a = a, .comm = a->comm, .c = a->coll};
	uint32_t error = aborted(&s);
	struct coll_at at;

	if (error)
		return error;
	coll_prims(s.c, &s.p);
	s.stride = s.c->count * s.p.elem;
	begin_ends(&s);
	coll_begin(s.c, &at);
	while (!error && coll_next(&s.p, s.c, &at))
		error = do_step(&s, &at);
	return error ? error : end_ends(&s);
}

static void run_small(const void *args)
{
	const struct small_args *a = args;
	struct gantry_comm *comm = a->comm;
	uint32_t error;

	if (a->time)
		store_relaxed(&a->time->begin, dev_clock());
	error = run_call(a);
	if (a->time && !error)
		store_relaxed(&a->time->end, dev_clock());
	if (error)
		k_end_failed(comm->result_host, error);
	store_seq(&comm->coll->held, 0);
	/* After an abort the group may be gone. */
	if (!error && gantry_proxy_group_pending(comm->group))
		gantry_eventcount_notify(gantry_proxy_eventcount(comm->proxy));
	store_seq(a->finished, a->value);
}

gantry_result comm_small_launch(struct gantry_comm *comm, const struct comm_plan *plan, struct comm_work *w)
{
	static const struct gantry_kernel kernel = {
		.name = "small", .body = run_small, .args_size = sizeof(struct small_args), .lanes = 1};
	const struct small_args args = {.comm = comm,
					.coll = &w->host.colls[0],
					.plan = plan->channels[0].plan,
					.time = w->times_host,
					.finished = w->finished_host,
					.value = w->expected + 1,
					.op = comm->launches->op_ids};
	const struct comm_launch launch = {
		.kernel = &kernel, .args = &args, .args_size = sizeof(args), .blocks = 1, .ntimes = 1};
	struct comm_coll *c = comm->coll;
	uint64_t *taken = &c->paths[COMM_PATH_CALLER];
	gantry_result r;

	store_relaxed(taken, *taken + 1);
	store_release(&c->held, 1);
	r = comm_work_launch(comm, w, &launch);
	if (r != GANTRY_OK)
		store_release(&c->held, 0);
	return r;
}
