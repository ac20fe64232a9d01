/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small world for tests of the primitives: numbers that every type holds exactly, connections in memory, ranks that
 * are threads, and a relay, a thread that stands between the ends of connections as proxies do.
 */
#ifndef GANTRY_TESTS_PRIM_UTIL_H
#define GANTRY_TESTS_PRIM_UTIL_H

#define GANTRY_TEST_DELAYS /* another thread may get its turn in the middle of everything that is published */
#include "device/k_prim.h"

#include "device/host/host.h"
#include "number_util.h"
#include "test.h"

enum { RANKS = 7, LINKS = 6, LANES = 3, OPS = 3, STEP = 240, SPACE = 1 << 16 };

/* One primitive, as a rank's kernel runs it. */
struct prim_args {
	uint32_t kind, proto, type, op;
	uint32_t nrecv, nsend;
	struct gantry_conn *recv[GANTRY_PRIM_PEERS], *send[GANTRY_PRIM_PEERS];
	const char *input;
	char *output;
	uint64_t count;	      /* elements */
	uint32_t slice_steps; /* a slice is this many steps; a chunk is chunk_steps, a multiple of it; both divide STEPS
			       */
	uint32_t chunk_steps;
	uint64_t scalar; /* PREMUL: the scalar's bits; AVG: the divisor, applied by the last reduction */
	uint32_t last;	 /* this reduction is the last one: AVG divides */
	uint32_t *result;
};

/* An operation of a rank: number `k` of those on its connections. Answers the elements of a chunk. */
static uint64_t prim_begin(struct dev_prims *p, const struct prim_args *a, uint64_t k)
{
	p->id = k + 1;
	p->proto = a->proto;
	p->type = a->type;
	p->op = a->op;
	p->scalar = a->scalar;
	p->ptr = 0;
	dev_prims_init(p, STEP, a->slice_steps, a->chunk_steps);
	return p->slice * (p->error ? 1 : a->chunk_steps / p->slice_steps);
}

/* n elements from element `in` of the input to element `out` of the output. */
static void prim_move(struct dev_prims *p, const struct prim_args *a, uint32_t kind, uint64_t in, uint64_t out,
		      uint64_t n, uint32_t last)
{
	struct prim_slice s = {.what = kind,
			       .last = last,
			       .nrecv = kind & PRIM_RECV ? a->nrecv : 0,
			       .nsend = kind & PRIM_SEND ? a->nsend : 0,
			       .recv = a->recv,
			       .send = a->send,
			       .in = a->input + in * p->elem,
			       .out = a->output + out * p->elem,
			       .count = n};

	dev_prims_move(p, &s);
}

static void prim_end(const struct dev_prims *p, const struct prim_args *a)
{
	dev_barrier();
	if (dev_lane() != 0)
		return;
	for (uint32_t i = 0; i < a->nrecv; i++)
		prim_show(p, a->recv[i], a->recv[i]->step, GANTRY_KERNEL_IDLE);
	for (uint32_t i = 0; i < a->nsend; i++)
		prim_show(p, a->send[i], a->send[i]->step, GANTRY_KERNEL_IDLE);
	if (p->error)
		k_fail(a->result, p->error);
}

/* One primitive over `count` elements, by one block: connections have one user. */
static void run_prim(const struct prim_args *a, uint64_t k)
{
	uint64_t at, n, chunk;
	struct dev_prims p;

	if (dev_block() != 0)
		return;
	chunk = prim_begin(&p, a, k);
	for (at = 0; at < a->count && !p.error; at += n) {
		n = a->count - at < chunk ? a->count - at : chunk;
		prim_move(&p, a, a->kind, at, at, n, a->last);
	}
	prim_end(&p, a);
}

void (*dev_delay)(void);
static void delay(void)
{
	if (random_below(256) == 0)
		sched_yield();
}

/* Numbers. */

static void put(char *p, uint32_t type, uint32_t h)
{
	number_put(p, type, dev_type_bytes(type), h);
}
static uint64_t scalar_of(uint32_t type, uint32_t op, uint32_t ranks)
{
	return op == GANTRY_OP_AVG ? ranks : number_bits(type, 2 * 2);
}
/* Element i of rank r: 1 or 2 for products, else 0 to 2 (1 where the sum is doubled). */
static uint32_t value(uint32_t op, uint32_t r, uint64_t i)
{
	uint32_t x = (uint32_t)((i * 2654435761u + r * 40503u) >> 7);

	return op == GANTRY_OP_PROD ? 1 + x % 2 : x % (op == GANTRY_OP_PREMUL ? 2 : 3);
}
/* In halves. `scaled`: which of the values PREMUL has doubled. */
static uint32_t expected(uint32_t op, uint32_t last, const uint32_t *values, const uint32_t *scaled, uint32_t n,
			 uint32_t by)
{
	uint32_t acc = op == GANTRY_OP_PREMUL && scaled[0] ? 2 * values[0] : values[0];

	for (uint32_t k = 1; k < n; k++) {
		uint32_t v = op == GANTRY_OP_PREMUL && scaled[k] ? 2 * values[k] : values[k];

		switch (op) {
		case GANTRY_OP_PROD:
			acc *= v;
			break;
		case GANTRY_OP_MAX:
			acc = v > acc ? v : acc;
			break;
		case GANTRY_OP_MIN:
			acc = v < acc ? v : acc;
			break;
		default:
			acc += v;
		}
	}
	return op == GANTRY_OP_AVG && last ? 2 * acc / by : 2 * acc;
}

/* Connections and ranks. */

struct link {
	struct gantry_fifo fifo, far; /* far: the consumer's, when a relay is between */
	struct gantry_conn tx, rx;
	struct gantry_conn_state tx_state, rx_state;
	char *rings[GANTRY_PROTOS], *far_rings[GANTRY_PROTOS], *pool;
	uint32_t far_mode; /* of what the relay hands on */
};
struct rank {
	struct prim_args ops[OPS];
	uint32_t nops, result;
	char *input, *output;
	void (*body)(struct rank *r); /* NULL: k_prim for each of ops */
	struct gantry_eventcount eventcount;
	struct dev_team team;
	/* ring all-reduce */
	uint32_t rank, ranks;
};

static struct link links[LINKS];
static struct rank ranks[RANKS];
static uint32_t abort_flag;
static struct gantry_eventcount relay_eventcount; /* nobody sleeps there; ringing it is harmless */

static void *room(void)
{
	void *p = aligned_alloc(128, SPACE);

	CHECK(p != NULL);
	memset(p, 0, SPACE);
	return p;
}
static void link_make(struct link *l, struct gantry_eventcount *producer, struct gantry_eventcount *consumer,
		      uint64_t step)
{
	memset(&l->fifo, 0, sizeof(l->fifo));
	memset(&l->far, 0, sizeof(l->far));
	memset(&l->tx, 0, sizeof(l->tx));
	memset(&l->tx_state, 0, sizeof(l->tx_state));
	memset(&l->rx_state, 0, sizeof(l->rx_state));
	for (int i = 0; i < GANTRY_PROTOS; i++) {
		if (!l->rings[i]) {
			l->rings[i] = room();
			l->far_rings[i] = room();
		}
		memset(l->rings[i], 0, SPACE);
		memset(l->far_rings[i], 0, SPACE);
		l->tx.buffs[i] = l->rings[i];
		l->tx.step_bytes[i] = STEP;
	}
	if (!l->pool)
		l->pool = room();
	l->fifo.head = l->fifo.tail = l->far.head = l->far.tail = step;
	l->tx.head = &l->fifo.head;
	l->tx.tail = &l->fifo.tail;
	l->tx.slots = l->fifo.slots;
	l->tx.step = step;
	l->rx = l->tx;
	l->tx.eventcount = consumer;
	l->tx.flags = GANTRY_CONN_SEND;
	l->tx.state = &l->tx_state;
	l->rx.eventcount = producer;
	l->rx.state = &l->rx_state;
}
/* Puts a relay in between. offset: the producer takes its space from offers. */
static void link_relayed(struct link *l, int offset, uint32_t far_mode)
{
	l->tx.flags |= GANTRY_CONN_PROXIED | (offset ? GANTRY_CONN_OFFSET : 0);
	l->tx.offers = l->fifo.offers;
	l->tx.pool = l->rx.pool = l->pool;
	l->tx.eventcount = l->rx.eventcount = &relay_eventcount;
	l->rx.flags |= GANTRY_CONN_PROXIED;
	l->rx.head = &l->far.head;
	l->rx.tail = &l->far.tail;
	l->rx.slots = l->far.slots;
	for (int i = 0; i < GANTRY_PROTOS; i++)
		l->rx.buffs[i] = l->far_rings[i];
	l->far_mode = far_mode;
}

struct lane {
	struct rank *rank;
	struct dev_thread self;
	pthread_t thread;
};
static void *lane_main(void *arg)
{
	struct lane *l = arg;
	struct rank *r = l->rank;

	dev_self = l->self;
	if (r->body)
		r->body(r);
	else
		for (uint32_t i = 0; i < r->nops; i++)
			run_prim(&r->ops[i], i);
	return NULL;
}
static void start(struct lane *lanes, uint32_t n, uint32_t per_rank)
{
	for (uint32_t i = 0; i < n * per_rank; i++) {
		struct rank *r = &ranks[i / per_rank];
		struct lane *l = &lanes[i];

		if (i % per_rank == 0)
			r->team = (struct dev_team){.lanes = per_rank};
		l->rank = r;
		l->self = (struct dev_thread){.lane = i % per_rank,
					      .lanes = per_rank,
					      .blocks = 1,
					      .abort = &abort_flag,
					      .eventcount = &r->eventcount,
					      .team = per_rank > 1 ? &r->team : NULL};
	}
	for (uint32_t i = 0; i < n * per_rank; i++)
		CHECK_EQ(pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]), 0);
}
static void join(struct lane *lanes, uint32_t n, uint32_t per_rank)
{
	for (uint32_t i = 0; i < n * per_rank; i++)
		pthread_join(lanes[i].thread, NULL);
}
static void run(uint32_t n, uint32_t per_rank)
{
	struct lane lanes[RANKS * LANES];

	start(lanes, n, per_rank);
	join(lanes, n, per_rank);
}

/* The relay: what a proxy pair would do, written from the comment in k_prim.h. One thread for all links. */

struct relay {
	struct link *link;
	uint64_t step; /* next to hand on */
	uint64_t end;
	uint64_t offered;      /* the step after the one whose offer was written */
	uint64_t before, base; /* where the operation before ended, where this one began */
	uint32_t slice_steps, proto, op;
	const struct prim_args *ops;
	uint32_t nops;
};

/* Steps of operation `op`, from its arguments alone. */
static void relay_begin(struct relay *r)
{
	while (r->op < r->nops && r->step == r->end) {
		const struct prim_args *a = &r->ops[r->op++];
		uint32_t steps = a->proto == GANTRY_PROTO_SIMPLE ? a->slice_steps : 1;
		uint64_t per = steps * (uint64_t)STEP / dev_type_bytes(a->type), base;

		if (!a->count)
			continue;
		r->before = r->step;
		base = (r->step + a->chunk_steps - 1) / a->chunk_steps * a->chunk_steps;
		r->step = r->base = base;
		r->end = base + (a->count + per - 1) / per * steps;
		r->slice_steps = steps;
		r->proto = a->proto;
	}
}
static uint64_t load(uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
/* The words of a slot may arrive in any order, and that late: here the one that is usually last comes first. */
static void words(struct gantry_slot *s, uint64_t meta, uint64_t where)
{
	__atomic_store_n(&s->meta, meta, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 3; i++)
		sched_yield();
	__atomic_store_n(&s->where, where, __ATOMIC_SEQ_CST);
}
/* Copies the lines of a step of LL or LL128, if they are all there. */
static int relay_lines(struct relay *r, uint64_t bytes)
{
	struct link *l = r->link;
	uint64_t *from = (uint64_t *)k_ring(&l->tx, r->proto, r->step),
		 *to = (uint64_t *)k_ring(&l->rx, r->proto, r->step);
	uint64_t n = (r->proto == GANTRY_PROTO_LL ? gantry_ll_bytes(bytes) : gantry_ll128_bytes(bytes)) / 8;

	for (uint64_t i = 0; i < n; i++) {
		if (r->proto == GANTRY_PROTO_LL)
			CHECK_EQ(load(&from[i]) >> 32, gantry_ll_flag(r->step));
		else if (i % 16 == 15)
			CHECK_EQ(load(&from[i]), gantry_ll128_flag(r->step));
		__atomic_store_n(&to[i], load(&from[i]), __ATOMIC_SEQ_CST);
	}
	return 1;
}
/* One slice, if it is there. */
static int relay_slice(struct relay *r)
{
	struct link *l = r->link;
	uint32_t slot = (uint32_t)(r->step % GANTRY_STEPS);
	uint64_t meta, size, head, place = 0, mode = l->far_mode;
	const char *from = k_ring(&l->tx, GANTRY_PROTO_SIMPLE, r->step);

	if (l->tx.flags & GANTRY_CONN_OFFSET && r->proto == GANTRY_PROTO_SIMPLE && r->offered != r->step + 1) {
		r->offered = r->step + 1;
		words(&l->fifo.offers[slot], gantry_slot_meta(r->step, GANTRY_MODE_OFFSET, r->slice_steps * STEP),
		      gantry_slot_where(r->step, 8192 + slot * 4096));
	}
	meta = load(&l->fifo.slots[slot].meta);
	head = load(&l->far.head);
	if (head >= r->before && head < r->base)
		head = r->base;
	if (!gantry_slot_is(meta, r->step) || head + GANTRY_STEPS < r->step + r->slice_steps)
		return 0;
	size = gantry_slot_size(meta);
	if (gantry_slot_mode(meta) == GANTRY_MODE_OFFSET)
		from = l->pool + gantry_slot_place(load(&l->fifo.slots[slot].where));
	if (r->proto != GANTRY_PROTO_SIMPLE) {
		if (!relay_lines(r, size))
			return 0;
		mode = GANTRY_MODE_NORMAL;
	} else if (mode == GANTRY_MODE_NORMAL) {
		memcpy(k_ring(&l->rx, GANTRY_PROTO_SIMPLE, r->step), from, size);
	} else if (mode == GANTRY_MODE_OFFSET) {
		place = 48 * 1024 + slot * 2000;
		memcpy(l->pool + place, from, size);
	} else {
		place = (uint64_t)(uintptr_t)(l->far_rings[GANTRY_PROTO_SIMPLE] + 32768 + slot * 2008);
		memcpy((char *)(uintptr_t)place, from, size);
	}
	if (r->proto == GANTRY_PROTO_SIMPLE)
		words(&l->far.slots[slot], gantry_slot_meta(r->step, (uint32_t)mode, size),
		      gantry_slot_where(r->step, place));
	r->step += r->slice_steps;
	__atomic_store_n(&l->fifo.head, r->step, __ATOMIC_SEQ_CST);
	return 1;
}
static void *relay_main(void *arg)
{
	struct relay *all = arg;
	uint32_t left = 1, n;

	for (n = 0; n < LINKS && all[n].link; n++)
		;
	while (left) {
		left = 0;
		for (uint32_t i = 0; i < n; i++) {
			relay_begin(&all[i]);
			if (all[i].step == all[i].end)
				continue;
			left++;
			while (all[i].step != all[i].end && relay_slice(&all[i]))
				;
		}
		/* Rung by hand, as one that serves kernels does after each round of work. */
		for (uint32_t i = 0; i < RANKS; i++)
			dev_notify(&ranks[i].eventcount);
		sched_yield();
	}
	return NULL;
}

#endif
