/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of collectives, simulated: the plans of all ranks run over FIFOs with as few chunks as the algorithm allows,
 * and with more; values are expressions of who contributed what, and in which order.
 *
 * A primitive here is one of device/k_prim.h: slice by slice, it waits until all of its sources are there and all of
 * its destinations have room, then moves. Ranks take turns at random. That is more than is needed: no rank can take
 * away what another one waits for, so if one interleaving comes to an end, all of them do.
 *
 * Found are: ranks that wait for each other, slices that are not what the receiver expects, contributions that are
 * missing or there twice, inputs that were overwritten before they were read (in place, also by the network where
 * memory is registered), results that are divided twice or not at all, folds whose order differs between ranks, and
 * steps that the proxy is not told of.
 */
#include "coll/coll.h"
#include "device/k_coll.h"
#include "test.h"

enum {
	RANKS_MAX = 64,
	ELEM = 8,
	STEP_ELEMS = 4,
	SLICE_ELEMS = STEP_ELEMS * GANTRY_STEPS,
	CHANNELS = 2,
};

/* ---- expressions ---- */

enum op { NONE, LEAF, SCALED, FOLD, FINAL };

/* Equal ones are the same entry. a, b: entries; of a leaf the rank and the element of its input. */
struct expr {
	enum op op;
	uint32_t a, b;
	uint32_t elem; /* of all leaves */
	uint64_t who;  /* ranks of the leaves */
};

static struct expr *exprs;
static uint32_t *buckets, nexprs, room; /* buckets: 2 * room */

static uint32_t bucket_of(enum op op, uint32_t a, uint32_t b)
{
	uint64_t h = ((uint64_t)op * 0x9e3779b97f4a7c15u + a) * 0xbf58476d1ce4e5b9u + b;

	h = (h ^ h >> 29) * 0x94d049bb133111ebu;
	return (uint32_t)(h >> 20) & (2 * room - 1);
}

static void file_expr(uint32_t e)
{
	uint32_t at = bucket_of(exprs[e].op, exprs[e].a, exprs[e].b);

	while (buckets[at])
		at = (at + 1) & (2 * room - 1);
	buckets[at] = e;
}

static void exprs_reset(void)
{
	if (!room) {
		room = 1 << 16;
		exprs = malloc(room * sizeof(*exprs));
		buckets = malloc(2 * room * sizeof(*buckets));
	}
	memset(buckets, 0, 2 * room * sizeof(*buckets));
	nexprs = 1; /* entry 0 is nothing */
	exprs[0] = (struct expr){.op = NONE};
}

static uint32_t intern(struct expr e)
{
	uint32_t at = bucket_of(e.op, e.a, e.b);

	for (; buckets[at]; at = (at + 1) & (2 * room - 1)) {
		const struct expr *x = &exprs[buckets[at]];

		if (x->op == e.op && x->a == e.a && x->b == e.b)
			return buckets[at];
	}
	if (nexprs == room) {
		room *= 2;
		exprs = realloc(exprs, room * sizeof(*exprs));
		free(buckets);
		buckets = calloc(2 * room, sizeof(*buckets));
		for (uint32_t i = 1; i < nexprs; i++)
			file_expr(i);
	}
	exprs[nexprs] = e;
	file_expr(nexprs);
	return nexprs++;
}

static uint32_t leaf(int rank, uint64_t elem)
{
	return intern((struct expr){LEAF, (uint32_t)rank, (uint32_t)elem, (uint32_t)elem, 1ull << rank});
}

/* ---- the world ---- */

struct message {
	uint32_t steps, part, count;
	uint64_t at; /* in the part */
	uint32_t ids[SLICE_ELEMS];
	/* Registered memory. */
	int lent_by;	  /* 1 + rank whose memory it is still in, from there on; 0: it is in ids */
	bool lent_in;	  /* its input, else its output */
	uint64_t lent_at; /* element there */
	uint32_t *landed; /* or where it has come to already */
};

/* Where a rank is. */
struct cursor {
	uint64_t chunk, done; /* elements of the step's chunk */
	uint32_t step;
};

struct fifo {
	struct cursor ahead; /* of the receiver, at what is sent next */
	struct message slices[GANTRY_STEPS];
	uint64_t sent, left, got; /* slices; left: that are on their way, since none waits to join another */
	uint64_t tail, head;
};

struct rank {
	struct coll_plan *plan;
	struct gantry_coll share;
	uint32_t *memory, *in, *out; /* NULL: it has none */
	struct cursor at;
	bool joins; /* what it sends leaves with the last message that it may join, as in comm/small.c */
};

struct world {
	enum coll_algo_id algo;
	enum coll_kind kind;
	int n, root, in_place;
	uint8_t ptr; /* GANTRY_COLL_PTR_* */
	uint64_t count;
	int host[RANKS_MAX], nhosts;
	int order[RANKS_MAX], host_at[RANKS_MAX]; /* by place: the rank and its host */
	struct coll_choice choice;
	struct rank ranks[RANKS_MAX];
	struct fifo *fifos; /* (n + 1) * n: from, to. To the own rank: to the network; from rank n: from the network */
	char fault[200];
};

static struct world w;
static bool network = true; /* reducers are connected */
static bool refused;	    /* but do not take the type or operation */
static bool all_join;	    /* all ranks, else some */

#define FAULT(...)                                                                                                     \
	do {                                                                                                           \
		if (!w.fault[0])                                                                                       \
			snprintf(w.fault, sizeof(w.fault), __VA_ARGS__);                                               \
	} while (0)

static int reduces(void)
{
	return coll_reduces(w.kind);
}

static struct fifo *fifo(int from, int to)
{
	return &w.fifos[from * w.n + to];
}

static size_t nfifos(void)
{
	return (size_t)(w.n + 1) * (size_t)w.n;
}

/* Parts of the buffers that the caller gives. */
static uint64_t in_parts(void)
{
	return coll_in_by_rank(w.kind) ? (uint64_t)w.n : 1;
}
static uint64_t out_parts(void)
{
	return coll_out_by_rank(w.kind) ? (uint64_t)w.n : 1;
}

static void make_buffers(int rank)
{
	struct rank *r = &w.ranks[rank];
	uint64_t nin = in_parts() * w.count, nout = out_parts() * w.count;
	uint64_t own = (uint64_t)rank * w.count;

	r->memory = calloc(nin + nout + 1, sizeof(*r->memory));
	r->in = r->memory;
	r->out = r->memory + nin;
	if (w.in_place && w.kind == COLL_ALL_GATHER) {
		r->out = r->memory;
		r->in = r->out + own;
	} else if (w.in_place) {
		r->out = r->in + (w.kind == COLL_REDUCE_SCATTER ? own : 0);
	}
	for (uint64_t i = 0; i < nin; i++)
		r->in[i] = leaf(rank, i);
	/* What a program need not have. */
	if (w.kind == COLL_REDUCE && rank != w.root && !w.in_place)
		r->out = NULL;
	if (w.kind == COLL_BROADCAST && rank != w.root && !w.in_place)
		r->in = NULL;
}

static void world_free(void)
{
	for (int i = 0; i < w.n; i++) {
		coll_plan_free(w.ranks[i].plan);
		free(w.ranks[i].memory);
	}
	free(w.fifos);
	memset(&w, 0, sizeof(w));
}

/* ---- a primitive ---- */

/* A slice of the step that the rank is at. */
struct move {
	const struct gantry_coll_step *t;
	uint64_t at;
	uint32_t count;
	int rank;
};

static int peer_of(const struct move *m, uint32_t k, int send)
{
	const struct coll_plan *plan = w.ranks[m->rank].plan;
	int rank = plan->peers[(send ? m->t->send : m->t->recv) + k].rank;

	return rank == m->rank && !send ? w.n : rank;
}

static uint32_t slice_steps(void)
{
	return w.choice.proto == GANTRY_PROTO_SIMPLE ? w.choice.slice_steps : 1;
}

/* Goes on to what the rank does next, as coll_run does; 0: it has done everything. */
static int next_move(int rank, struct cursor *p, struct move *m)
{
	const struct rank *r = &w.ranks[rank];
	const struct gantry_coll *c = &r->share;
	uint64_t chunks = (c->count + c->chunk - 1) / c->chunk;

	for (; p->chunk < chunks + c->delay; p->chunk++, p->step = 0)
		for (; p->step < r->plan->nsteps; p->step++, p->done = 0) {
			const struct gantry_coll_step *t = &r->plan->steps[p->step];
			uint64_t at = (p->chunk - t->delay) * c->chunk, n = coll_part(c, t->part), left;
			uint32_t slice = STEP_ELEMS * slice_steps();

			if (p->chunk < t->delay || p->chunk - t->delay >= chunks || at >= n)
				continue;
			left = (n - at < c->chunk ? n - at : c->chunk);
			if (p->done == left)
				continue;
			left -= p->done;
			*m = (struct move){t, at + p->done, left < slice ? (uint32_t)left : slice, rank};
			return 1;
		}
	return 0;
}

static int can_move(const struct move *m)
{
	for (uint32_t k = 0; k < m->t->nrecv; k++) {
		const struct fifo *f = fifo(peer_of(m, k, 0), m->rank);

		if (f->left == f->got)
			return 0;
	}
	for (uint32_t k = 0; k < m->t->nsend; k++) {
		const struct fifo *f = fifo(m->rank, peer_of(m, k, 1));

		if (f->tail + slice_steps() > f->head + GANTRY_STEPS)
			return 0;
	}
	return 1;
}

static uint32_t fold(const struct move *m, uint32_t a, uint32_t b)
{
	if (!b)
		FAULT("rank %d step %u: reads what nobody wrote", m->rank, w.ranks[m->rank].at.step);
	if (!a)
		return b;
	if (!reduces())
		FAULT("rank %d: nothing is reduced here", m->rank);
	if (exprs[a].op == FINAL || exprs[b].op == FINAL)
		FAULT("rank %d step %u: reduces a result", m->rank, w.ranks[m->rank].at.step);
	if (exprs[a].elem != exprs[b].elem)
		FAULT("rank %d step %u: adds element %u to %u", m->rank, w.ranks[m->rank].at.step, exprs[b].elem,
		      exprs[a].elem);
	if (exprs[a].who & exprs[b].who)
		FAULT("rank %d step %u: a contribution is there twice", m->rank, w.ranks[m->rank].at.step);
	return intern((struct expr){FOLD, a, b, exprs[a].elem, exprs[a].who | exprs[b].who});
}

static uint32_t read_input(int rank, uint64_t at)
{
	struct rank *r = &w.ranks[rank];
	uint32_t e = r->in ? r->in[at] : 0;

	if (!e) {
		FAULT("rank %d step %u: has no input", rank, r->at.step);
		return 0;
	}
	if (exprs[e].op != LEAF || (exprs[e].a != (uint32_t)rank && reduces()))
		FAULT("rank %d step %u: its input was overwritten", rank, r->at.step);
	if (!reduces())
		return e;
	return intern((struct expr){SCALED, e, 0, exprs[e].elem, exprs[e].who});
}

static uint32_t read_message(const struct message *s, uint32_t i)
{
	if (s->landed)
		return s->landed[i];
	if (!s->lent_by)
		return s->ids[i];
	if (s->lent_in)
		return read_input(s->lent_by - 1, s->lent_at + i);
	return w.ranks[s->lent_by - 1].out[s->lent_at + i];
}

/* One element: all sources in order, then what `last` does. i: in the slice. */
static uint32_t reduce_element(const struct move *m, uint32_t i)
{
	const struct gantry_coll_step *t = m->t;
	const struct rank *r = &w.ranks[m->rank];
	uint64_t at = r->share.begin + m->at + i;
	uint32_t e = 0;

	if (t->what & PRIM_ACC)
		e = fold(m, e, r->out ? r->out[t->part * r->share.out_stride + at] : 0);
	for (uint32_t k = 0; k <= t->nrecv; k++) {
		if (k == t->in_at && t->what & PRIM_IN)
			e = fold(m, e, read_input(m->rank, t->part * r->share.in_stride + at));
		if (k < t->nrecv) {
			const struct fifo *f = fifo(peer_of(m, k, 0), m->rank);

			e = fold(m, e, read_message(&f->slices[f->got % GANTRY_STEPS], i));
		}
	}
	if (!t->last || !reduces() || !e)
		return e;
	if (exprs[e].op == FINAL)
		FAULT("rank %d step %u: a result is divided twice", m->rank, r->at.step);
	return intern((struct expr){FINAL, e, 0, exprs[e].elem, exprs[e].who});
}

static void check_slice(const struct move *m, const struct fifo *f, int from)
{
	const struct message *s = &f->slices[f->got % GANTRY_STEPS];
	/* In an all_to_all parts of the input have the rank that they go to, parts of the output that from which they come. */
	bool parts = w.kind == COLL_ALL_TO_ALL ? m->t->part == (uint32_t)from && s->part == (uint32_t)m->rank
					       : s->part == m->t->part;

	if (!parts || s->at != m->at || s->count != m->count)
		FAULT("rank %d expects %u of part %u at %llu, from rank %d come %u of part %u at %llu", m->rank,
		      m->count, m->t->part, (unsigned long long)m->at, from, s->count, s->part,
		      (unsigned long long)s->at);
}

static bool receives_from(const struct move *m, int from)
{
	for (uint32_t k = 0; k < m->t->nrecv; k++)
		if (peer_of(m, k, 0) == from)
			return true;
	return false;
}

/* Where the receiver wants the next slice that comes by this connection, if it goes straight to its output. */
static uint32_t *landing_place(int from, int to)
{
	const struct rank *r = &w.ranks[to];
	struct cursor *p = &fifo(from, to)->ahead;
	struct move m;

	while (next_move(to, p, &m)) {
		p->done += m.count;
		if (receives_from(&m, from))
			return r->out && prim_lands(m.t->what, m.t->nrecv, GANTRY_OP_SUM, m.t->last, w.ptr)
				       ? r->out + m.t->part * r->share.out_stride + r->share.begin + m.at
				       : NULL;
	}
	return NULL;
}

/* Registered memory: the network may read it any time until the receiver has it, and write it any time before that. */
static void lend(const struct move *m, int to, struct message *s)
{
	const struct gantry_coll_step *t = m->t;
	const struct gantry_coll *c = &w.ranks[m->rank].share;
	uint32_t *place = landing_place(m->rank, to);
	uint32_t from = prim_lends(t->what, t->nrecv, GANTRY_OP_SUM, t->last, w.ptr);

	if (from && random_below(2)) {
		s->lent_by = 1 + m->rank;
		s->lent_in = from == GANTRY_COLL_PTR_IN;
		s->lent_at = t->part * (s->lent_in ? c->in_stride : c->out_stride) + c->begin + m->at;
	} else if (place && random_below(2)) {
		memcpy(place, s->ids, s->count * sizeof(*place));
		s->landed = place;
	}
}

static void do_move(const struct move *m)
{
	struct rank *r = &w.ranks[m->rank];
	uint32_t values[SLICE_ELEMS];

	for (uint32_t k = 0; k < m->t->nrecv; k++)
		check_slice(m, fifo(peer_of(m, k, 0), m->rank), peer_of(m, k, 0));
	for (uint32_t i = 0; i < m->count; i++)
		values[i] = reduce_element(m, i);
	for (uint32_t i = 0; m->t->what & PRIM_OUT && i < m->count; i++) {
		if (!r->out)
			FAULT("rank %d step %u: has no output", m->rank, r->at.step);
		else
			r->out[m->t->part * r->share.out_stride + r->share.begin + m->at + i] = values[i];
	}
	for (uint32_t k = 0; k < m->t->nsend; k++) {
		struct fifo *f = fifo(m->rank, peer_of(m, k, 1));
		struct message *s = &f->slices[f->sent++ % GANTRY_STEPS];

		*s = (struct message){.steps = slice_steps(), .part = m->t->part, .count = m->count, .at = m->at};
		memcpy(s->ids, values, m->count * sizeof(*values));
		lend(m, peer_of(m, k, 1), s);
		f->tail += s->steps;
		if (!r->joins || !(m->t->joins >> k & 1))
			f->left = f->sent;
	}
	for (uint32_t k = 0; k < m->t->nrecv; k++) {
		struct fifo *f = fifo(peer_of(m, k, 0), m->rank);

		f->head += f->slices[f->got++ % GANTRY_STEPS].steps;
	}
	r->at.done += m->count;
}

/* ---- the network ---- */

static bool sends_to_network(int rank)
{
	const struct coll_plan *plan = w.ranks[rank].plan;

	for (uint32_t i = 0; i < plan->npeers; i++)
		if (plan->peers[i].rank == rank)
			return true;
	return false;
}

/* Adds up what all who send to it have sent next, by host, and answers all of them. 0: some have not, or have no room. */
static int network_moves(void)
{
	struct message sum = {0};
	int first = -1;

	for (int i = 0; i < w.n; i++) {
		const struct fifo *in = fifo(i, i), *back = fifo(w.n, i);

		if (sends_to_network(i) &&
		    (in->sent == in->got || back->tail + slice_steps() > back->head + GANTRY_STEPS))
			return 0;
	}
	for (int i = 0; i < w.n; i++) {
		struct fifo *in = fifo(i, i);
		const struct message *s = &in->slices[in->got % GANTRY_STEPS];
		const struct move m = {.rank = i};

		if (!sends_to_network(i))
			continue;
		if (first < 0)
			sum = (struct message){.steps = s->steps, .part = s->part, .count = s->count, .at = s->at};
		first = first < 0 ? i : first;
		if (s->part != sum.part || s->at != sum.at || s->count != sum.count)
			FAULT("ranks %d and %d send the network different slices", first, i);
		for (uint32_t k = 0; k < sum.count; k++)
			sum.ids[k] = fold(&m, sum.ids[k], read_message(s, k));
		in->head += s->steps;
		in->got++;
	}
	for (int i = 0; first >= 0 && i < w.n; i++) {
		struct fifo *back = fifo(w.n, i);
		struct message *s = &back->slices[back->sent % GANTRY_STEPS];
		uint32_t *place;

		if (!sends_to_network(i))
			continue;
		*s = sum;
		place = landing_place(w.n, i);
		if (place && random_below(2)) {
			memcpy(place, s->ids, s->count * sizeof(*place));
			s->landed = place;
		}
		back->left = ++back->sent;
		back->tail += s->steps;
	}
	return first >= 0;
}

/* ---- a run ---- */

static void check_step(int rank, const struct gantry_coll_step *t)
{
	const struct coll_plan *plan = w.ranks[rank].plan;
	uint32_t parts = plan->nparts > 1 || coll_by_rank(w.kind)
				 ? (plan->nparts > 1 ? plan->nparts : (uint32_t)w.n)
				 : 1;

	if (t->nrecv > GANTRY_PRIM_PEERS || t->nsend > GANTRY_PRIM_PEERS)
		FAULT("rank %d: a step with %u and %u peers", rank, t->nrecv, t->nsend);
	if (t->part >= parts)
		FAULT("rank %d: part %u of %u", rank, t->part, parts);
	if (!t->nrecv != !(t->what & PRIM_RECV) || !t->nsend != !(t->what & PRIM_SEND) || t->in_at > t->nrecv)
		FAULT("rank %d: a step that is not what it says", rank);
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t k = 0; k < (s ? t->nsend : t->nrecv); k++) {
			const struct coll_peer *p = &plan->peers[(s ? t->send : t->recv) + k];

			if (p->send != (int32_t)s || (p->rank == rank && !coll_algos[w.algo]->network) || p->rank < 0 ||
			    p->rank >= w.n)
				FAULT("rank %d: a step with peer %d", rank, p->rank);
		}
}

/* The proxy was told of as many steps as are moved. */
static void check_steps_on(int rank, const struct coll_peer *p, uint32_t i)
{
	struct rank *r = &w.ranks[rank];
	const struct fifo *f = p->send ? fifo(rank, p->rank) : fifo(p->rank == rank ? w.n : p->rank, rank);
	bool lent;
	uint64_t steps = coll_steps_on(r->plan, &r->share, i, &lent);

	if (steps != f->tail)
		FAULT("rank %d: %llu steps on the connection with rank %d, not %llu", rank, (unsigned long long)f->tail,
		      p->rank, (unsigned long long)steps);
}

static void run_channel(void)
{
	int left = w.n, turns = 0;
	struct move m;

	/* Somebody can always go on, or it is over. From a random rank on, a random number of slices. */
	while (left && !w.fault[0]) {
		int first = (int)random_below((uint32_t)w.n), moved = 0;

		left = 0;
		for (int i = 0; i < w.n; i++) {
			int rank = (first + i) % w.n;

			for (uint32_t k = random_between(1, 20);
			     k && !w.fault[0] && next_move(rank, &w.ranks[rank].at, &m); k--) {
				left++;
				if (!can_move(&m))
					break;
				do_move(&m);
				moved++;
			}
		}
		turns++;
		while (!w.fault[0] && network_moves())
			moved++;
		if (left && !moved)
			FAULT("deadlock: rank %d waits at step %u of %u, turn %d", m.rank, w.ranks[m.rank].at.step,
			      w.ranks[m.rank].plan->nsteps, turns);
	}
	for (int i = 0; i < (int)nfifos(); i++)
		if (w.fifos[i].sent != w.fifos[i].got || w.fifos[i].sent != w.fifos[i].left)
			FAULT("rank %d sent rank %d what it does not take", i / w.n, i % w.n);
	for (int i = 0; i < w.n; i++)
		for (uint32_t k = 0; k < w.ranks[i].plan->npeers; k++)
			check_steps_on(i, &w.ranks[i].plan->peers[k], k);
}

static void check_outputs(void)
{
	uint64_t all = w.n == 64 ? UINT64_MAX : (1ull << w.n) - 1;

	for (int rank = 0; rank < w.n; rank++) {
		const struct rank *r = &w.ranks[rank];

		if (w.kind == COLL_REDUCE && rank != w.root)
			continue;
		for (uint64_t i = 0; i < out_parts() * w.count && !w.fault[0]; i++) {
			const struct expr *e = &exprs[r->out[i]];
			uint64_t elem = i + (w.kind == COLL_REDUCE_SCATTER ? (uint64_t)rank * w.count : 0);
			int from = coll_out_by_rank(w.kind) ? (int)(i / w.count) : w.root;
			uint64_t at = coll_out_by_rank(w.kind) ? i % w.count : i;

			at += w.kind == COLL_ALL_TO_ALL ? (uint64_t)rank * w.count : 0;
			if (!reduces()) {
				if (r->out[i] != leaf(from, at))
					FAULT("rank %d: wrong element %llu", rank, (unsigned long long)i);
			} else if (e->op != FINAL || e->who != all || e->elem != elem) {
				FAULT("rank %d: element %llu is no result", rank, (unsigned long long)i);
			} else if (w.kind == COLL_ALL_REDUCE && r->out[i] != w.ranks[0].out[i]) {
				FAULT("rank %d: element %llu is summed in another order", rank, (unsigned long long)i);
			}
		}
	}
}

static void make_plans(int channel)
{
	int root = 0;

	while (w.order[root] != w.root)
		root++;
	for (int i = 0; i < w.n; i++) {
		struct rank *r = &w.ranks[w.order[i]];
		const struct coll_topo topo = {i, w.n, w.nhosts, w.host_at, network};
		const struct coll_shape shape = {w.kind, w.count, ELEM, w.n};

		coll_plan_free(r->plan);
		r->plan = NULL;
		CHECK_OK(coll_plan_make(&topo, w.algo, w.kind, root, channel, &r->plan));
		coll_plan_name_ranks(r->plan, w.kind, w.order);
		memset(&r->share, 0, sizeof(r->share));
		r->share.type = GANTRY_TYPE_UINT64;
		coll_share(&shape, r->plan, &w.choice, (uint32_t)channel, &r->share);
		r->at = (struct cursor){0};
		r->joins = r->share.count <= r->share.chunk && r->share.count <= STEP_ELEMS * slice_steps() &&
			   (all_join || random_below(2));
	}
}

/* What is done to the plans before they run; NULL: nothing. */
typedef void spoil_fn(void);

/* All of w but what follows from it is set. Answers what is wrong, or NULL. */
static const char *simulate(spoil_fn *spoil)
{
	static char text[sizeof(w.fault)];

	exprs_reset();
	w.fifos = calloc(nfifos(), sizeof(*w.fifos));
	for (int i = 0; i < w.n; i++)
		make_buffers(i);
	for (uint32_t c = 0; c < w.choice.channels && !w.fault[0]; c++) {
		memset(w.fifos, 0, nfifos() * sizeof(*w.fifos));
		make_plans((int)c);
		if (spoil)
			spoil();
		for (int i = 0; i < w.n; i++)
			for (uint32_t k = 0; k < w.ranks[i].plan->nsteps; k++)
				check_step(i, &w.ranks[i].plan->steps[k]);
		if (!w.fault[0])
			run_channel();
	}
	if (!w.fault[0])
		check_outputs();
	memcpy(text, w.fault, sizeof(text));
	world_free();
	return text[0] ? text : NULL;
}

/* ---- what is run ---- */

/* Hosts of equal size, or of random ones; ranks of a host need not be neighbours. */
static void set_hosts(int n, int per_host, int mixed)
{
	w.n = n;
	w.nhosts = 0;
	for (int i = 0; i < n; i++) {
		int hosts = (n + per_host - 1) / per_host;

		w.host[i] = mixed ? i % hosts : i / per_host;
		w.nhosts = w.host[i] + 1 > w.nhosts ? w.host[i] + 1 : w.nhosts;
	}
}

static void set_random_hosts(int n)
{
	w.n = n;
	w.nhosts = 0;
	for (int i = 0; i < n; i++) {
		int at = (int)random_below((uint32_t)w.nhosts + 1);

		w.host[i] = w.nhosts > 5 ? at % 6 : at;
		w.nhosts = w.host[i] + 1 > w.nhosts ? w.host[i] + 1 : w.nhosts;
	}
}

/* 0: by rank; 1: by host and NUMA node, as a communicator does it; 2: any. */
static void set_order(uint32_t how)
{
	struct coll_where where[RANKS_MAX];

	for (int i = 0; i < w.n; i++)
		where[i] = (struct coll_where){i, w.host[i], random_below(3), ""};
	if (how == 1)
		coll_order(where, w.n);
	for (uint32_t i = (uint32_t)w.n; how == 2 && i > 1; i--) {
		uint32_t k = random_below(i);
		struct coll_where last = where[i - 1];

		where[i - 1] = where[k];
		where[k] = last;
	}
	for (int i = 0; i < w.n; i++) {
		w.order[i] = where[i].rank;
		w.host_at[i] = where[i].host;
	}
}

static void set_choice(uint32_t slice, uint32_t chunk, enum gantry_proto proto)
{
	set_order(0);
	w.choice = (struct coll_choice){.algo = w.algo,
					.proto = proto,
					.channels = CHANNELS,
					.step_bytes = STEP_ELEMS * ELEM,
					.slice_steps = slice,
					.chunk_steps = chunk};
}

/* One kind on the hosts that are set, for all chunks that the algorithm takes; among many ranks for some of them, but
 * always for those that leave the FIFO the fewest. */
static void run_kind(enum coll_algo_id algo, enum coll_kind kind, int root, uint64_t count)
{
	const struct world hosts = w;
	uint32_t most = GANTRY_STEPS / coll_algos[algo]->chunks;

	for (uint32_t chunk = most; chunk; chunk /= 2)
		for (uint32_t slice = 1; slice <= chunk; slice *= 2) {
			if (hosts.n > 6 && chunk != most && random_below(4))
				continue;
			int in_place = kind != COLL_ALL_TO_ALL && random_below(2);
			enum gantry_proto proto = slice == 1 && random_below(2) ? GANTRY_PROTO_LL : GANTRY_PROTO_SIMPLE;
			const char *fault;

			w = hosts;
			w.algo = algo;
			w.kind = kind;
			w.root = root;
			w.count = count;
			w.in_place = in_place;
			w.ptr = (uint8_t)random_below(4);
			if (in_place && coll_algos[algo]->overwrites)
				w.ptr &= (uint8_t)~GANTRY_COLL_PTR_IN;
			set_choice(slice, chunk, proto);
			w.choice.part_bytes = random_below(3) ? 0 : 128 * random_below(2 * STEP_ELEMS);
			set_order(random_below(3));
			CASE("%s by %s, %d ranks on %d hosts, root %d, %llu elements, slices of %u, chunks of %u, %s, "
			     "ptr %u",
			     coll_kind_name(kind), coll_algos[algo]->name, w.n, w.nhosts, root,
			     (unsigned long long)count, slice, chunk, in_place ? "in place" : "out of place", w.ptr);
			fault = simulate(NULL);
			if (fault)
				TEST_FAIL("%s", fault);
		}
	w = hosts;
}

static int supported(enum coll_algo_id algo, enum coll_kind kind)
{
	const struct coll_topo topo = {0, w.n, w.nhosts, w.host, network};

	return coll_algos[algo]->supports(&topo, kind);
}

/* Everything on the hosts that are set; how many combinations an algorithm can do. */
static uint32_t run_all_kinds(enum coll_algo_id algo)
{
	uint32_t ran = 0;

	for (int kind = 0; kind < COLL_KINDS; kind++) {
		uint32_t parts = coll_by_rank((enum coll_kind)kind) ? 1 : (uint32_t)w.n;

		if (!supported(algo, (enum coll_kind)kind))
			continue;
		run_kind(algo, (enum coll_kind)kind, (int)random_below((uint32_t)w.n),
			 random_between(1, (w.n > 9 ? 20 : 50) * parts));
		ran++;
	}
	return ran;
}

static void run_sizes(enum coll_algo_id algo)
{
	uint32_t ran = 0;

	for (int n = 1; n <= (SANITIZED ? 9 : 17); n++) {
		set_hosts(n, 1, 0);
		ran += run_all_kinds(algo);
		set_hosts(n, n, 0);
		ran += run_all_kinds(algo);
		for (int per = 2; per < n && per <= 8; per += n > 9 ? 2 : 1) {
			set_hosts(n, per, 0);
			ran += run_all_kinds(algo);
		}
		set_hosts(n, 2, 1);
		ran += run_all_kinds(algo);
		set_random_hosts(n);
		ran += run_all_kinds(algo);
	}
	CHECK(ran > 0); /* it can do something */
}

static void run_large(enum coll_algo_id algo)
{
	static const int sizes[] = {32, 40, 64};

	for (size_t i = 0; i < (SANITIZED ? 1 : TEST_COUNT(sizes)); i++) {
		set_hosts(sizes[i], 8, 0);
		run_all_kinds(algo);
		set_hosts(sizes[i], 1, 0);
		run_all_kinds(algo);
	}
	for (int i = 0; i < (SANITIZED ? 2 : 6); i++) {
		set_random_hosts((int)random_between(2, 48));
		run_all_kinds(algo);
	}
}

TEST(every_algorithm)
{
	for (int algo = 0; algo < COLL_ALGOS; algo++) {
		run_sizes((enum coll_algo_id)algo);
		run_large((enum coll_algo_id)algo);
	}
}

/* Every rank once as the root. */
TEST(every_root)
{
	for (int algo = 0; algo < COLL_ALGOS; algo++)
		for (int n = 2; n <= 9; n++)
			for (int root = 0; root < n; root++) {
				set_hosts(n, 3, 0);
				if (supported((enum coll_algo_id)algo, COLL_REDUCE))
					run_kind((enum coll_algo_id)algo, COLL_REDUCE, root, 100);
				if (supported((enum coll_algo_id)algo, COLL_BROADCAST))
					run_kind((enum coll_algo_id)algo, COLL_BROADCAST, root, 100);
			}
}

/* Of parts that are one message: by pat a rank sends to as many peers as n has digits, and once to each. */
TEST(messages_join)
{
	static const enum coll_kind kinds[] = {COLL_ALL_GATHER, COLL_REDUCE_SCATTER};

	for (int n = 2; n <= 9; n++)
		for (size_t k = 0; k < TEST_COUNT(kinds); k++) {
			const struct coll_topo topo = {n / 2, n, 1, w.host, false};
			uint32_t leave = 0, digits = 0;
			struct coll_plan *plan;

			set_hosts(n, 3, 0);
			for (int all = 0; all < 2; all++) {
				all_join = all;
				run_kind(COLL_PAT, kinds[k], 0, random_between(1, 4));
			}
			all_join = false;
			CHECK_OK(coll_plan_make(&topo, COLL_PAT, kinds[k], 0, 0, &plan));
			for (uint32_t i = 0; i < plan->nsteps; i++)
				for (uint32_t s = 0; s < plan->steps[i].nsend; s++)
					leave += !(plan->steps[i].joins >> s & 1);
			while (1 << digits < n)
				digits++;
			CHECK_EQ(leave, n <= 8 ? digits : (uint32_t)n - 1);
			coll_plan_free(plan);
		}
}

/* ---- planted faults ---- */

static int victim = 2; /* rank whose plan is spoilt */
static uint64_t spoilt_count = 800;
static uint8_t spoilt_ptr; /* GANTRY_COLL_PTR_* */

static struct coll_plan *victims_plan(void)
{
	return w.ranks[victim].plan;
}

static void drop_step(void)
{
	victims_plan()->nsteps--;
	w.ranks[victim].share.nsteps--;
}

static void drop_first_step(void)
{
	struct coll_plan *p = victims_plan();

	memmove(p->steps, p->steps + 1, --p->nsteps * sizeof(*p->steps));
}

static void wrong_part(void)
{
	victims_plan()->steps[0].part ^= 1;
}

static void not_last(void)
{
	struct coll_plan *p = victims_plan();

	for (uint32_t i = 0; i < p->nsteps; i++)
		p->steps[i].last = 0;
}

static void all_last(void)
{
	struct coll_plan *p = victims_plan();

	for (uint32_t i = 0; i < p->nsteps; i++)
		p->steps[i].last = 1;
}

static void input_twice(void)
{
	struct coll_plan *p = victims_plan();

	for (uint32_t i = 0; i < p->nsteps; i++)
		p->steps[i].what |= PRIM_IN;
}

static void input_never(void)
{
	struct coll_plan *p = victims_plan();

	for (uint32_t i = 0; i < p->nsteps; i++)
		if (p->steps[i].nrecv && p->steps[i].what & PRIM_IN) {
			p->steps[i].what &= (uint8_t)~PRIM_IN;
			p->steps[i].in_at = 0;
		}
}

static void other_way_round(void)
{
	struct coll_plan *p = victims_plan();
	struct gantry_coll_step t = p->steps[0];

	p->steps[0] = p->steps[p->nsteps - 1];
	p->steps[p->nsteps - 1] = t;
}

static void late_for_ever(void)
{
	struct coll_plan *p = victims_plan();

	p->steps[p->nsteps - 1].delay = 60;
	w.ranks[victim].share.delay = 60;
}

/* In place, the output is the input: a partial result is not there yet. */
static void partial_result(void)
{
	struct coll_plan *p = victims_plan();

	for (uint32_t i = 0; i < p->nsteps; i++)
		if (p->steps[i].what & PRIM_OUT)
			p->steps[i].what |= PRIM_ACC;
}

static void wrong_order(void)
{
	struct coll_plan *p = victims_plan();

	p->steps[p->nsteps - 1].in_at = 0;
}

/* Everything that the victim sends leaves with the last message to the same rank. */
static void join_all(void)
{
	struct coll_plan *p = victims_plan();

	for (uint32_t i = 0; i + 1 < p->nsteps; i++)
		p->steps[i].joins = 0xff;
}

static const char *spoilt(enum coll_algo_id algo, enum coll_kind kind, uint32_t chunk_steps, spoil_fn *spoil)
{
	set_hosts(5, 5, 0);
	w.algo = algo;
	w.kind = kind;
	w.count = spoilt_count;
	w.in_place = 1;
	w.ptr = spoilt_ptr;
	set_choice(1, chunk_steps, GANTRY_PROTO_SIMPLE);
	return simulate(spoil);
}

#define FINDS(part, ...)                                                                                               \
	do {                                                                                                           \
		const char *fault_ = spoilt(__VA_ARGS__);                                                              \
		CHECK_HAS(fault_ ? fault_ : "no fault", part);                                                         \
	} while (0)

TEST(planted_faults)
{
	CHECK(!spoilt(COLL_RING, COLL_ALL_REDUCE, 4, NULL));
	/* A ring of chunks that fill the FIFO. */
	FINDS("deadlock", COLL_RING, COLL_ALL_REDUCE, 8, NULL);
	FINDS("deadlock", COLL_RING, COLL_BROADCAST, 4, drop_step);
	victim = 4;
	spoilt_count = 30; /* all of it fits into the FIFO */
	FINDS("does not take", COLL_RING, COLL_BROADCAST, 4, drop_step);
	spoilt_count = 4;
	all_join = true;
	CHECK(!spoilt(COLL_RING, COLL_ALL_GATHER, 4, NULL));
	FINDS("deadlock", COLL_RING, COLL_ALL_GATHER, 4, join_all);
	all_join = false;
	victim = 2;
	spoilt_count = 800;
	FINDS("expects", COLL_RING, COLL_ALL_REDUCE, 4, late_for_ever);
	FINDS("expects", COLL_RING, COLL_ALL_REDUCE, 4, drop_first_step);
	FINDS("expects", COLL_RING, COLL_ALL_GATHER, 4, drop_step);
	FINDS("expects", COLL_RING, COLL_ALL_REDUCE, 4, wrong_part);
	FINDS("expects", COLL_RING, COLL_ALL_REDUCE, 4, other_way_round);
	FINDS("is no result", COLL_RING, COLL_REDUCE_SCATTER, 4, not_last);
	FINDS("is no result", COLL_RING, COLL_REDUCE_SCATTER, 4, input_never);
	FINDS("reduces a result", COLL_RING, COLL_ALL_REDUCE, 4, all_last);
	FINDS("reduces a result", COLL_RING, COLL_ALL_REDUCE, 4, input_twice);
	FINDS("overwritten", COLL_DIRECT, COLL_ALL_REDUCE, 4, other_way_round);
	FINDS("twice", COLL_DIRECT, COLL_ALL_REDUCE, 4, partial_result);
	FINDS("another order", COLL_DIRECT, COLL_ALL_REDUCE, 4, wrong_order);
	FINDS("expects", COLL_DIRECT, COLL_ALL_TO_ALL, 4, wrong_part);
	/* What it `overwrites`. */
	spoilt_ptr = GANTRY_COLL_PTR_IN;
	FINDS("overwritten", COLL_DIRECT, COLL_ALL_REDUCE, 4, NULL);
}

/* `chunks` is the least: with half of it, some collective waits for ever. */
TEST(fewest_chunks)
{
	for (int algo = 0; algo < COLL_ALGOS; algo++) {
		int deadlocks = 0;

		CASE("%s", coll_algos[algo]->name);
		for (int kind = 0; kind < COLL_KINDS; kind++) {
			const char *fault;

			set_hosts(10, 5, 0);
			if (!supported((enum coll_algo_id)algo, (enum coll_kind)kind))
				continue;
			w.algo = (enum coll_algo_id)algo;
			w.kind = (enum coll_kind)kind;
			w.count = 1000;
			set_choice(1, 2 * GANTRY_STEPS / coll_algos[algo]->chunks, GANTRY_PROTO_SIMPLE);
			fault = coll_algos[algo]->chunks > 1 ? simulate(NULL) : NULL;
			deadlocks += fault && strstr(fault, "deadlock");
		}
		CHECK_EQ(deadlocks > 0, coll_algos[algo]->chunks > 1);
	}
}

/* ---- order ---- */

/* Ranks of a host, of its NUMA nodes and of a GPU there have places next to each other; equal ones go by rank. */
TEST(order_by_host_node_and_gpu)
{
	struct coll_where where[] = {{0, 0, 2, "b"}, {1, 1, 0, ""},  {2, 0, 1, "a"}, {3, 1, 0, ""},
				     {4, 0, 2, "a"}, {5, 0, 1, "a"}, {6, 0, 2, "b"}, {7, 0, 2, "a"}};
	static const int expected[] = {2, 5, 4, 7, 0, 6, 1, 3};

	coll_order(where, (int)TEST_COUNT(where));
	for (size_t i = 0; i < TEST_COUNT(where); i++)
		CHECK_EQ(where[i].rank, expected[i]);
}

/* Eight ranks that a launcher has spread over two hosts in turns: a ring by place crosses the network twice, one by rank
 * eight times. */
TEST(rings_enter_a_host_once)
{
	int crosses = 0;

	set_hosts(8, 4, 1);
	struct coll_where where[8];
	for (int i = 0; i < 8; i++)
		where[i] = (struct coll_where){i, w.host[i], 0, ""};
	coll_order(where, 8);
	for (int i = 0; i < 8; i++)
		w.host_at[i] = where[i].host;
	for (int i = 0; i < 8; i++) {
		const struct coll_topo topo = {i, 8, w.nhosts, w.host_at, false};
		struct coll_plan *plan;

		CHECK_OK(coll_plan_make(&topo, COLL_RING, COLL_ALL_REDUCE, 0, 0, &plan));
		for (uint32_t k = 0; k < plan->npeers; k++)
			crosses += plan->peers[k].send && w.host_at[plan->peers[k].rank] != w.host_at[i];
		coll_plan_free(plan);
	}
	CHECK_EQ(crosses, 2);
	const struct coll_topo by_rank = {0, 8, w.nhosts, w.host, false}, by_place = {0, 8, w.nhosts, w.host_at, false};
	CHECK_EQ(coll_algos[COLL_RING]->hops(&by_rank, COLL_ALL_REDUCE).net, 14u);
	CHECK_EQ(coll_algos[COLL_RING]->hops(&by_place, COLL_ALL_REDUCE).net, 3u);
}

/* ---- choices ---- */

static const struct coll_limits some_limits[] = {
	{1, {131072, 8192, 15360}, COLL_LINK_CPU, COLL_LINK_CPU_NET, COLL_CROWD, 1, 0, 0, false, false},
	{4, {131072, 8192, 0}, COLL_LINK_CPU_NET, COLL_LINK_CPU_NET, 4 * COLL_CROWD, 1, 0, 0, false, false},
	{4, {524288, 8192, 15360}, COLL_LINK_GPU, COLL_LINK_GPU_NET, COLL_CROWD, 8, 0, 0, false, false},
	{32, {131072, 0, 0}, COLL_LINK_GPU_HOST, COLL_LINK_GPU_NET, COLL_CROWD, 8, 0, 0, false, false},
	{8, {524288, 8192, 0}, COLL_LINK_GPU_NET, COLL_LINK_GPU_NET, COLL_CROWD, 8, 0, 0, false, false},
};

static void check_choice(const struct coll_limits *l, enum coll_kind kind, const struct coll_choice *c)
{
	CHECK(supported(c->algo, kind));
	CHECK(c->step_bytes >= 4096 && c->step_bytes <= l->step_bytes[c->proto]);
	CHECK(c->channels >= 1 && c->channels <= l->channels);
	CHECK_EQ(c->chunk_steps % c->slice_steps, 0u);
	CHECK(c->slice_steps <= 2); /* every network takes two steps as a message */
	CHECK_EQ(GANTRY_STEPS % c->chunk_steps, 0u);
	CHECK(GANTRY_STEPS / c->chunk_steps >= coll_algos[c->algo]->chunks);
}

/* Every rank for itself. Answers what they all choose. */
static struct coll_choice choose(const struct coll_limits *l, enum coll_kind kind, uint64_t bytes)
{
	struct coll_choice first = {0}, c;

	for (int i = 0; i < w.n; i++) {
		const struct coll_topo topo = {i, w.n, w.nhosts, w.host, network};
		const struct coll_ask ask = {kind, refused, bytes}, other = {kind, refused, bytes / 2 + 1},
				      opposite = {kind, !refused, bytes};
		struct coll_model m;

		coll_model_init(&topo, l, &m);
		CHECK_OK(coll_choose(&m, &opposite, &c)); /* of other calls, which make no difference either */
		if (i % 2)				  /* what it has chosen before makes no difference */
			CHECK_OK(coll_choose(&m, &other, &c));
		CHECK_OK(coll_choose(&m, &ask, &c));
		check_choice(l, kind, &c);
		if (i == 0)
			first = c;
		CHECK(memcmp(&first, &c, sizeof(c)) == 0);
		CHECK_OK(coll_choose(&m, &ask, &c));
		CHECK(memcmp(&first, &c, sizeof(c)) == 0);
	}
	return first;
}

TEST(all_ranks_choose_alike)
{
	for (int i = 0; i < (SANITIZED ? 20 : 100); i++) {
		const struct coll_limits *l = &some_limits[random_below(TEST_COUNT(some_limits))];
		uint64_t bytes = 1ull << random_below(42);

		set_random_hosts((int)random_between(1, 20));
		CASE("%d ranks on %d hosts, %llu bytes", w.n, w.nhosts, (unsigned long long)bytes);
		choose(l, (enum coll_kind)random_below(COLL_KINDS), bytes + random_below(100));
	}
}

static bool plans_exchange(const struct coll_limits *l, uint64_t part)
{
	const struct coll_topo topo = {0, w.n, w.nhosts, w.host, network};
	struct coll_model m;

	coll_model_init(&topo, l, &m);
	return coll_plans_exchange(&m, part);
}

/* What the model is for, where there is no doubt. */
TEST(choices_are_sane)
{
	const struct coll_limits *cpu = &some_limits[0], *net = &some_limits[1];

	network = false;
	set_hosts(4, 4, 0);
	CHECK_EQ(choose(cpu, COLL_ALL_REDUCE, 8).algo, COLL_DIRECT);
	CHECK(choose(net, COLL_ALL_REDUCE, 64 << 20).algo != COLL_DIRECT); /* three times the bytes */
	CHECK_EQ(choose(net, COLL_ALL_REDUCE, 8).algo, COLL_DIRECT2); /* one rank for all: six messages, not twelve */
	CHECK(choose(net, COLL_ALL_REDUCE, 8).part_bytes > 8);
	CHECK_EQ(choose(cpu, COLL_ALL_REDUCE, 64 << 20).proto, GANTRY_PROTO_SIMPLE);
	CHECK_EQ(choose(&some_limits[2], COLL_ALL_REDUCE, 8).proto, GANTRY_PROTO_LL);
	CHECK_EQ(choose(&some_limits[2], COLL_ALL_REDUCE, 64 << 20).channels, 4u);
	/* Twelve messages, of which four leave together with others; not if they are too large for that. */
	CHECK_EQ(choose(net, COLL_ALL_GATHER, 4096).algo, COLL_PAT);
	CHECK_EQ(choose(net, COLL_REDUCE_SCATTER, 64 << 10).algo, COLL_PAT);
	CHECK(choose(net, COLL_ALL_GATHER, 64 << 20).algo != COLL_PAT);
	CHECK(plans_exchange(net, 4096) && !plans_exchange(net, 1 << 20) && !plans_exchange(&some_limits[2], 8));
	set_hosts(64, 1, 0);
	CHECK_EQ(choose(cpu, COLL_ALL_REDUCE, 8).algo, COLL_TREE);
	CHECK_EQ(choose(cpu, COLL_ALL_GATHER, 64 * 8).algo, COLL_PAT);
	CHECK(!plans_exchange(cpu, 8)); /* of more ranks than direct takes */
	set_hosts(32, 8, 0);
	CHECK_EQ(choose(cpu, COLL_ALL_REDUCE, 64 << 20).algo, COLL_HIER);
	set_hosts(31, 8, 0); /* 8, 8, 8 and 7 */
	CHECK_EQ(choose(cpu, COLL_ALL_REDUCE, 64 << 20).algo, COLL_HIER);
	network = true;
}

/* us of an all_reduce of 64 MiB with NICs that need so many ps for a byte. */
static double estimate_by_nics(uint32_t nics, const char *algo)
{
	struct coll_limits l = some_limits[0];
	const struct coll_ask ask = {COLL_ALL_REDUCE, false, 64 << 20};
	struct coll_choice c;
	struct coll_model m;

	l.nics = nics;
	set_params("GANTRY_ALGO", algo, NULL, NULL);
	const struct coll_topo topo = {0, w.n, w.nhosts, w.host, false};

	coll_model_init(&topo, &l, &m);
	CHECK_OK(coll_choose(&m, &ask, &c));
	set_params("GANTRY_ALGO", NULL, NULL, NULL);
	return (double)m.kinds[COLL_ALL_REDUCE].cost / 1e6;
}

/* A host's NICs carry the bytes of all its ranks: with rings through all ranks those of one, by direct2 those of each. */
TEST(nics_are_a_bound)
{
	const double bytes = 64 << 20;

	set_hosts(8, 4, 0);
	CHECK(estimate_by_nics(0, "ring") < bytes * 800e-6); /* as if packets passed no NIC */
	/* 10 Gbit/s: 800 ps. A ring sends 14 of 8 parts from each host, direct2 4 ranks x 4 parts, twice. */
	CHECK(estimate_by_nics(800, "ring") > bytes * 14 / 8 * 800e-6);
	CHECK(estimate_by_nics(800, "ring") < bytes * 14 / 8 * 800e-6 * 1.1);
	CHECK(estimate_by_nics(800, "direct2") > bytes * 32 / 8 * 800e-6);
	CHECK(estimate_by_nics(800, "direct2") < bytes * 32 / 8 * 800e-6 * 1.1);
	/* 4 carriers, of whose 8 parts each sends half of those that are not its host's. */
	CHECK(estimate_by_nics(800, "hier") > bytes * 800e-6);
	CHECK(estimate_by_nics(800, "hier") < bytes * 800e-6 * 1.1);
	CHECK(estimate_by_nics(8000, NULL) > 9 * estimate_by_nics(800, NULL));
}

/* Between a GPU and the network four slices are on their way, in messages that are worth a system call. */
TEST(gpus_over_the_network)
{
	const struct coll_limits *l = &some_limits[4];
	struct coll_choice c;

	network = false;
	set_hosts(2, 1, 0);
	CHECK_EQ(choose(l, COLL_ALL_REDUCE, 1024).proto, GANTRY_PROTO_LL);
	CHECK_EQ(choose(l, COLL_ALL_REDUCE, 256 << 10).channels, 1u);
	CHECK_EQ(choose(l, COLL_ALL_REDUCE, 1 << 20).channels, 4u);
	c = choose(l, COLL_ALL_REDUCE, 128 << 20);
	CHECK_EQ(c.algo, COLL_DIRECT);
	CHECK_EQ(c.channels, 8u);
	CHECK_EQ(c.slice_steps * c.step_bytes, 512u << 10);
	CHECK_EQ(c.chunk_steps * c.step_bytes, 2u << 20);
	set_hosts(4, 1, 0); /* three times the bytes */
	CHECK_EQ(choose(l, COLL_ALL_REDUCE, 64 << 20).algo, COLL_RING);
	network = true;
}

/* us that the model gives a call by this algorithm on ranks of a host each, with so many cores. */
static double estimate(int ranks, uint32_t cores, const char *algo, const char *proto, uint64_t bytes)
{
	struct coll_limits l = some_limits[4];
	const struct coll_ask ask = {COLL_ALL_REDUCE, false, bytes};
	struct coll_choice c;
	struct coll_model m;

	l.cores = cores;
	set_hosts(ranks, 1, 0);
	set_params("GANTRY_ALGO", algo, "GANTRY_PROTO", proto);
	const struct coll_topo topo = {0, w.n, w.nhosts, w.host, false};

	coll_model_init(&topo, &l, &m);
	CHECK_OK(coll_choose(&m, &ask, &c));
	set_params("GANTRY_ALGO", NULL, "GANTRY_PROTO", NULL);
	return (double)m.kinds[COLL_ALL_REDUCE].cost / 1e6;
}

/* Fewer channels with longer slices, until a part has enough for all of them (bench/results/2026-11-20-h200.md). */
TEST(gpus_with_few_cores)
{
	struct coll_limits few = some_limits[4];

	few.cores = 4;
	network = false;
	set_hosts(4, 1, 0);
	CHECK_EQ(choose(&few, COLL_ALL_REDUCE, 16 << 20).channels, 2u);
	CHECK_EQ(choose(&few, COLL_ALL_REDUCE, 32 << 20).channels, 4u);
	CHECK_EQ(choose(&few, COLL_ALL_REDUCE, 128 << 20).channels, 8u);
	CHECK(choose(&some_limits[4], COLL_ALL_REDUCE, 16 << 20).channels > 2); /* with enough of them */
	network = true;
}

/* Two ranks on one GPU are as fast by rings, four are not, whatever the steps. */
TEST(ranks_on_one_gpu)
{
	struct coll_limits one = some_limits[2];

	network = false;
	for (uint32_t step = 131072; step <= 524288; step *= 2) {
		one.step_bytes[GANTRY_PROTO_SIMPLE] = step;
		one.channels = 64;
		set_hosts(2, 2, 0);
		CHECK_EQ(choose(&one, COLL_ALL_REDUCE, 128 << 20).algo, COLL_RING);
		one.channels = 32;
		set_hosts(4, 4, 0);
		CHECK_EQ(choose(&one, COLL_ALL_REDUCE, 128 << 20).algo, COLL_DIRECT2);
	}
	network = true;
}

/* What an H200 with 16 cores has measured (bench/results/2026-11-18-h200-engine.md), us: the model is within a factor. */
TEST(model_of_gpus_over_the_network)
{
	enum { SIZES = 7 };
	static const uint64_t sizes[SIZES] = {1 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
	static const struct {
		int ranks;
		const char *algo, *proto;
		int us[SIZES];
	} measured[] = {
		{2, "direct", "simple", {55, 74, 120, 202, 536, 1600, 4891}},
		{2, "direct2", "simple", {89, 101, 212, 300, 608, 1567, 5080}},
		{2, "ring", "simple", {84, 105, 188, 313, 646, 1704, 5292}},
		{2, "direct", "ll", {36, 175, 663, 1885, 8493, 31713, 128671}},
		{4, "direct", "simple", {101, 150, 328, 772, 2599, 8356, 28703}},
		{4, "direct2", "simple", {199, 250, 307, 651, 1427, 4054, 17957}},
		{4, "ring", "simple", {207, 274, 377, 647, 1381, 4491, 12037}},
	};

	network = false;
	for (size_t i = 0; i < TEST_COUNT(measured); i++)
		for (int k = 0; k < SIZES; k++) {
			double us = estimate(measured[i].ranks, 16u / (uint32_t)measured[i].ranks, measured[i].algo,
					     measured[i].proto, sizes[k]);

			CASE("%d ranks, %s, %s, %llu bytes: %d us, estimated %.0f", measured[i].ranks, measured[i].algo,
			     measured[i].proto, (unsigned long long)sizes[k], measured[i].us[k], us);
			CHECK(us < 1.5 * measured[i].us[k] && measured[i].us[k] < 1.5 * us);
		}
	network = true;
}

TEST(forced_choices)
{
	static const char *const names[] = {"ring", "direct", "direct2", "tree", "hier", "pat", "collnet"};

	_Static_assert(TEST_COUNT(names) == COLL_ALGOS, "all of GANTRY_ALGO's words");
	for (int algo = 0; algo < COLL_ALGOS; algo++) {
		CHECK_STR(coll_algos[algo]->name, names[algo]);
		set_params("GANTRY_ALGO", names[algo], "GANTRY_PROTO", "ll");
		set_hosts(8, 4, 0);
		for (int kind = 0; kind < COLL_KINDS && !coll_algos[algo]->network; kind++) {
			struct coll_choice c = choose(&some_limits[0], (enum coll_kind)kind, 1 << 20);

			CASE("%s by %s", coll_kind_name((enum coll_kind)kind), names[algo]);
			CHECK_EQ(c.algo, supported((enum coll_algo_id)algo, (enum coll_kind)kind) ? algo
					 : kind == COLL_ALL_TO_ALL ? COLL_DIRECT
								   : COLL_RING);
			CHECK_EQ(c.proto, GANTRY_PROTO_LL);
			CHECK_EQ(choose(&some_limits[3], (enum coll_kind)kind, 8).proto, GANTRY_PROTO_SIMPLE);
		}
	}
	set_params("GANTRY_ALGO", NULL, "GANTRY_PROTO", NULL);
}

/* ---- reducers ---- */

/* Where they are: reductions by Simple, whatever else is asked for; all else as without them. */
TEST(reducers_when_asked_for)
{
	struct coll_limits forced = some_limits[2];

	set_hosts(8, 4, 0);
	set_params("GANTRY_ALGO", "collnet", "GANTRY_PROTO", "ll");
	CHECK_EQ(choose(&some_limits[2], COLL_ALL_REDUCE, 64 << 20).algo, COLL_COLLNET);
	CHECK_EQ(choose(&some_limits[2], COLL_ALL_REDUCE, 64 << 20).proto, GANTRY_PROTO_SIMPLE);
	CHECK_EQ(choose(&some_limits[2], COLL_ALL_REDUCE, 64 << 20).channels, 4u);
	CHECK_EQ(choose(&some_limits[0], COLL_ALL_GATHER, 64).proto, GANTRY_PROTO_LL);
	set_params("GANTRY_ALGO", "ring", "GANTRY_PROTO", NULL);
	CHECK_EQ(choose(&some_limits[2], COLL_ALL_REDUCE, 8).algo, COLL_RING);
	forced.network = true; /* the transport of that name */
	CHECK_EQ(choose(&forced, COLL_ALL_REDUCE, 8).algo, COLL_COLLNET);
	set_params("GANTRY_ALGO", NULL, "GANTRY_PROTO", NULL);
	refused = true; /* a type or an operation that they do not have */
	CHECK(choose(&forced, COLL_ALL_REDUCE, 8).algo != COLL_COLLNET);
	refused = false;
	struct coll_choice with = choose(&forced, COLL_BROADCAST, 1 << 20);
	network = false;
	struct coll_choice without = choose(&some_limits[2], COLL_BROADCAST, 1 << 20);
	CHECK(memcmp(&with, &without, sizeof(with)) == 0);
	CHECK(choose(&forced, COLL_ALL_REDUCE, 8).algo != COLL_COLLNET);
	network = true;
}

/* By the cost model: 64 hosts in two hops, where everything else takes more of them or 63 connections. */
TEST(reducers_where_they_pay)
{
	struct coll_limits elsewhere = some_limits[0];

	set_hosts(64, 1, 0);
	CHECK_EQ(choose(&some_limits[0], COLL_ALL_REDUCE, 4096).algo, COLL_COLLNET);
	CHECK(choose(&some_limits[0], COLL_ALL_GATHER, 64 * 4096).algo != COLL_COLLNET);
	set_hosts(4, 2, 0);
	CHECK(choose(&some_limits[0], COLL_ALL_REDUCE, 64 << 20).algo != COLL_COLLNET);
	/* Other machines reduce: 1 of the buffer each way, where a ring moves 1.5. */
	set_hosts(4, 1, 0);
	CHECK(choose(&some_limits[0], COLL_ALL_REDUCE, 64 << 20).algo != COLL_COLLNET);
	elsewhere.reducers = true;
	CHECK_EQ(choose(&elsewhere, COLL_ALL_REDUCE, 64 << 20).algo, COLL_COLLNET);
}

/* Parts of an all_gather that the ranks of a host receive from other hosts, and those that they send there. */
static void count_between_hosts(enum coll_algo_id algo, int host, uint32_t ret[2])
{
	ret[0] = ret[1] = 0;
	for (int i = 0; i < w.n; i++) {
		const struct coll_topo topo = {i, w.n, w.nhosts, w.host, network};
		struct coll_plan *plan;

		if (w.host[i] != host)
			continue;
		CHECK_OK(coll_plan_make(&topo, algo, COLL_ALL_GATHER, 0, 0, &plan));
		for (uint32_t s = 0; s < plan->nsteps; s++) {
			const struct gantry_coll_step *t = &plan->steps[s];

			for (uint32_t k = 0; k < t->nrecv; k++)
				ret[0] += w.host[plan->peers[t->recv + k].rank] != host;
			for (uint32_t k = 0; k < t->nsend; k++)
				ret[1] += w.host[plan->peers[t->send + k].rank] != host;
		}
		coll_plan_free(plan);
	}
}

/* By the algorithm that burdens the busiest host least, in one direction. No host receives less than it has to. */
static uint32_t fewest_between_hosts(void)
{
	uint32_t fewest = UINT32_MAX;

	for (int algo = 0; algo < COLL_ALGOS; algo++) {
		uint32_t most = 0;

		if (!supported((enum coll_algo_id)algo, COLL_ALL_GATHER))
			continue;
		for (int h = 0; h < w.nhosts; h++) {
			uint32_t parts[2], others = 0;

			for (int i = 0; i < w.n; i++)
				others += w.host[i] != h;
			count_between_hosts((enum coll_algo_id)algo, h, parts);
			CHECK(parts[0] >= others);
			for (int sends = 0; sends < 2; sends++)
				most = parts[sends] > most ? parts[sends] : most;
		}
		fewest = most < fewest ? most : fewest;
	}
	return fewest;
}

/*
 * Why reducers are not used for an all_gather (docs/reducer.md): between hosts of the same size an algorithm takes, in either
 * direction, what a host has to receive whatever sends it. If this fails, the refusal has lost its reason.
 */
TEST(all_gather_is_at_its_bound)
{
	for (int hosts = 2; hosts <= 9; hosts++)
		for (int per = 1; per <= 8 && hosts * per <= (SANITIZED ? 24 : RANKS_MAX); per++) {
			set_hosts(hosts * per, per, 0);
			CASE("%d hosts of %d ranks", hosts, per);
			CHECK_EQ(fewest_between_hosts(), (uint32_t)((hosts - 1) * per));
		}
}

/* Forced or offered, an all_gather goes as without reducers, wherever these are. */
TEST(reducers_leave_all_gather_alone)
{
	for (int i = 0; i < (SANITIZED ? 20 : 100); i++) {
		struct coll_limits l = some_limits[random_below(TEST_COUNT(some_limits))];
		uint64_t bytes = random_between(1, 100) << random_below(24);
		struct coll_choice without, with;

		set_random_hosts((int)random_between(2, 20));
		CASE("%d ranks on %d hosts, %llu bytes", w.n, w.nhosts, (unsigned long long)bytes);
		network = false;
		without = choose(&l, COLL_ALL_GATHER, bytes);
		network = true;
		l.reducers = random_below(2);
		with = choose(&l, COLL_ALL_GATHER, bytes);
		CHECK(memcmp(&with, &without, sizeof(with)) == 0);
		set_params("GANTRY_ALGO", "collnet", NULL, NULL);
		with = choose(&l, COLL_ALL_GATHER, bytes);
		CHECK(memcmp(&with, &without, sizeof(with)) == 0);
		set_params("GANTRY_ALGO", NULL, NULL, NULL);
		l.network = true; /* the transport of that name */
		with = choose(&l, COLL_ALL_GATHER, bytes);
		CHECK(memcmp(&with, &without, sizeof(with)) == 0);
	}
}

static const char *explain(const struct coll_model *model, enum coll_kind kind)
{
	static char text[4096];
	struct coll_model m = *model;
	const struct coll_ask ask = {.kind = kind, .bytes = 4096};
	FILE *f = fmemopen(text, sizeof(text), "w");

	CHECK(f != NULL);
	CHECK_OK(coll_explain(&m, &ask, f));
	fclose(f);
	return text;
}

TEST(reasons_without_reducers)
{
	struct coll_topo topo = {0, 8, 1, w.host, false};
	struct coll_model m;

	set_hosts(8, 8, 0);
	CHECK_STR(coll_network_refuses(&topo), "all ranks are on one host");
	set_hosts(11, 10, 0);
	topo = (struct coll_topo){0, w.n, w.nhosts, w.host, false};
	CHECK_STR(coll_network_refuses(&topo), "a host has more than 9 ranks");
	set_hosts(11, 9, 0);
	CHECK(!coll_network_refuses(&topo));
	coll_model_init(&topo, &some_limits[0], &m);
	CHECK_HAS(explain(&m, COLL_ALL_REDUCE), "not for this: not enabled (GANTRY_COLLNET)");
	m.no_network = "rank 3: nobody listens";
	CHECK_HAS(explain(&m, COLL_ALL_REDUCE), "not for this: rank 3: nobody listens");
	/* What no reducer changes, with and without them. */
	CHECK_HAS(explain(&m, COLL_ALL_GATHER), "not for this: reducers do not lower the bytes that a host receives");
	CHECK_HAS(explain(&m, COLL_BROADCAST), "not for this: reducers do reductions only");
	topo.network = true;
	coll_model_init(&topo, &some_limits[0], &m);
	CHECK_HAS(explain(&m, COLL_ALL_GATHER), "not for this: reducers do not lower the bytes that a host receives");
	CHECK(!strstr(explain(&m, COLL_REDUCE_SCATTER), "not for this: reducers"));
}
