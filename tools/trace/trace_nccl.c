/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's calls and the steps of its proxy, of a process whose plugin has recorded them (base/ranks.h).
 *
 * A call ends for its program when it is enqueued; the bar lasts until the last operation of the proxy that belongs to
 * it has ended. A step is a bar on a row of its connection (up to eight are in flight, so there are several rows), and
 * on top of it what it waits for:
 *
 *   kernel   send: to fill the step. recv: to consume it
 *   room     the network takes no further request
 *   peer     the network has it; nothing of it has moved: the other side has not come to it
 *   network  from its first chunk on
 *   flush    NCCL's flush
 */
#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "base/ranks.h"
#include "base/trace.h"
#include "common/array.h"
#include "trace/trace_draw.h"
#include "trace/trace_set.h"

enum cause { KERNEL, ROOM, PEER, NETWORK, FLUSH, CAUSES };
static const char *const cause_names[CAUSES] = {"kernel", "room", "peer", "network", "flush"};
enum { MARKS = 16, LOOK_BACK = 256 };

struct op {
	int64_t id, number, peer;
	int nccl, channel, send;
};

struct call {
	const struct trace_event *begin;
	int64_t end;
};

struct message {
	const struct trace_event *request;
};

struct nccl_view {
	const struct trace_file *f; /* borrowed */
	struct op *ops;		    /* owned: by id */
	size_t nops;
	struct call *calls; /* owned: by nccl and number */
	size_t ncalls;
	struct message *messages; /* owned: by link, direction, tag and msg */
	size_t nmessages;
};

static int order(int64_t a, int64_t b)
{
	return a < b ? -1 : a > b;
}

static int by_id(const void *a, const void *b)
{
	return order(((const struct op *)a)->id, ((const struct op *)b)->id);
}

static int by_number(const void *a, const void *b)
{
	const struct trace_event *x = ((const struct call *)a)->begin, *y = ((const struct call *)b)->begin;

	return x->nccl != y->nccl ? order(x->nccl, y->nccl) : order(x->v[1], y->v[1]);
}

static int compare_messages(const struct trace_event *x, int x_send, const struct trace_event *y, int y_send)
{
	if (x->v[0] != y->v[0])
		return order(x->v[0], y->v[0]);
	if (x_send != y_send)
		return order(x_send, y_send);
	return x->more != y->more ? order(x->more, y->more) : order(x->v[1], y->v[1]);
}

static int by_message(const void *a, const void *b)
{
	const struct trace_event *x = ((const struct message *)a)->request, *y = ((const struct message *)b)->request;

	return compare_messages(x, x->send, y, y->send);
}

static struct op *op_of(const struct nccl_view *v, int64_t id)
{
	struct op key = {.id = id};

	return v->nops ? bsearch(&key, v->ops, v->nops, sizeof(key), by_id) : NULL;
}

static struct call *call_of(const struct nccl_view *v, int nccl, int64_t number)
{
	struct trace_event e = {.nccl = nccl, .v = {nccl, number, 0}};
	struct call key = {.begin = &e};

	return v->ncalls ? bsearch(&key, v->calls, v->ncalls, sizeof(key), by_number) : NULL;
}

static int add_event(struct nccl_view *v, const struct trace_event *e)
{
	if (e->kind == GANTRY_EV_NCCL_OP && !e->end) {
		struct op *o = ARRAY_ADD(v->ops, v->nops);

		if (o)
			*o = (struct op){e->v[0], e->v[1], e->v[2], e->nccl, e->channel, e->send};
		return o != NULL;
	}
	if (e->kind == GANTRY_EV_NCCL_CALL && !e->end) {
		struct call *c = ARRAY_ADD(v->calls, v->ncalls);

		if (c)
			*c = (struct call){e, e->ns};
		return c != NULL;
	}
	if (e->kind == GANTRY_EV_NCCL_REQUEST) {
		struct message *m = ARRAY_ADD(v->messages, v->nmessages);

		if (m)
			m->request = e;
		return m != NULL;
	}
	return 1;
}

static void sort(void *items, size_t n, size_t size, int (*by)(const void *, const void *))
{
	if (n)
		qsort(items, n, size, by);
}

/* Where operations and calls end. */
static void find_ends(struct nccl_view *v)
{
	struct call *c;
	struct op *o;

	for (size_t i = 0; i < v->f->nevents; i++) {
		const struct trace_event *e = &v->f->events[i];

		if (e->kind == GANTRY_EV_NCCL_OP && e->end) {
			o = op_of(v, e->v[0]);
			c = o ? call_of(v, o->nccl, o->number) : NULL;
		} else if (e->kind == GANTRY_EV_NCCL_CALL && e->end) {
			c = call_of(v, e->nccl, e->v[1]);
		} else {
			continue;
		}
		if (c && e->ns > c->end)
			c->end = e->ns;
	}
}

struct nccl_view *trace_nccl_open(const struct trace_file *f)
{
	struct nccl_view *v = calloc(1, sizeof(*v));
	int good = v != NULL;

	if (v)
		v->f = f;
	for (size_t i = 0; good && i < f->nevents; i++)
		good = add_event(v, &f->events[i]);
	if (!good || !v->nops + !v->ncalls == 2) {
		trace_nccl_free(v);
		return NULL;
	}
	sort(v->ops, v->nops, sizeof(*v->ops), by_id);
	sort(v->calls, v->ncalls, sizeof(*v->calls), by_number);
	sort(v->messages, v->nmessages, sizeof(*v->messages), by_message);
	find_ends(v);
	return v;
}

void trace_nccl_free(struct nccl_view *v)
{
	if (!v)
		return;
	free(v->ops);
	free(v->calls);
	free(v->messages);
	free(v);
}

const struct trace_rank *trace_nccl_rank(const struct trace_file *f)
{
	const struct trace_rank *best = NULL;

	for (size_t i = 0; i < f->nranks_of; i++) {
		if (!best || f->ranks[i].nranks > best->nranks)
			best = &f->ranks[i];
	}
	return best;
}

/* Which rank of a communicator of NCCL's the process is; NULL: not known. */
static const struct trace_rank *rank_in(const struct trace_file *f, int nccl)
{
	const struct trace_rank *r = NULL;

	for (size_t i = 0; i < f->nranks_of; i++)
		r = f->ranks[i].nccl == nccl ? &f->ranks[i] : r;
	return r;
}

/* ---- steps ---- */

struct step {
	const struct op *op;
	int64_t step, bytes, chunk_bytes;
	const struct trace_event *request; /* NULL: none was recorded */
	int moved;			   /* its first chunk was seen */
	int nmarks;
	struct {
		int64_t ns;
		enum cause cause;
	} marks[MARKS];
	int64_t end;
};

struct walk {
	const struct nccl_view *v;
	struct step *open; /* owned */
	size_t nopen;
	void (*take)(void *ctx, const struct step *s);
	void *ctx;
};

static struct step *step_of(struct walk *w, int64_t op, int64_t step)
{
	const struct op *o;
	struct step *s;

	for (size_t i = 0; i < w->nopen; i++) {
		if (w->open[i].op->id == op && w->open[i].step == step)
			return &w->open[i];
	}
	o = op_of(w->v, op);
	s = o ? ARRAY_ADD(w->open, w->nopen) : NULL;
	if (s) {
		memset(s, 0, sizeof(*s));
		s->op = o;
		s->step = step;
	}
	return s;
}

static void mark(struct step *s, int64_t ns, enum cause cause)
{
	if (s->nmarks == MARKS || (s->nmarks && s->marks[s->nmarks - 1].cause == cause))
		return;
	s->marks[s->nmarks].ns = ns;
	s->marks[s->nmarks++].cause = cause;
}

/* A chunk of its message. */
static void see_chunk(struct step *s, const struct trace_event *e)
{
	s->chunk_bytes += e->v[2];
	if (!s->moved && s->nmarks && s->marks[s->nmarks - 1].cause == PEER)
		mark(s, e->ns > s->request->ns ? e->ns : s->request->ns, NETWORK);
	s->moved = 1;
}

static int is_chunk(const struct trace_event *e, int send)
{
	return e->kind == (send ? GANTRY_EV_CHUNK_TX : GANTRY_EV_CHUNK_RX);
}

/* The request follows its post, and what left within that call. */
static void look_back(struct walk *w, struct step *s, const struct trace_event *e)
{
	const struct trace_event *first = w->v->f->events;

	for (int i = 1; i <= LOOK_BACK && e - i >= first; i++) {
		const struct trace_event *b = e - i;
		int post = b->kind == (e->send ? GANTRY_EV_SEND_POST : GANTRY_EV_RECV_POST);

		if ((!post && !is_chunk(b, e->send)) || compare_messages(b, e->send, e, e->send) != 0)
			continue;
		if (is_chunk(b, e->send))
			see_chunk(s, b);
		else if (e->send)
			s->bytes = b->v[2];
	}
}

static void end_step(struct walk *w, struct step *s, int64_t ns)
{
	s->end = ns;
	if (!s->bytes)
		s->bytes = s->chunk_bytes;
	if (s->nmarks)
		w->take(w->ctx, s);
	*s = w->open[--w->nopen];
}

static void walk_state(struct walk *w, const struct trace_event *e)
{
	static const enum cause causes[GANTRY_NCCL_STATES] = {KERNEL, ROOM, NETWORK, FLUSH, CAUSES};
	struct step *s = step_of(w, e->v[0], e->v[1]);

	if (!s || e->state < 0)
		return;
	if (e->v[2] > 0)
		s->bytes = e->v[2];
	if (e->state == GANTRY_NCCL_END)
		end_step(w, s, e->ns);
	else
		mark(s, e->ns, causes[e->state]);
}

static void walk_event(struct walk *w, const struct trace_event *e)
{
	struct step *s;

	if (e->kind == GANTRY_EV_NCCL_STEP) {
		walk_state(w, e);
	} else if (e->kind == GANTRY_EV_NCCL_REQUEST) {
		s = step_of(w, e->v[2], e->step);
		if (!s)
			return;
		s->request = e;
		mark(s, e->ns, PEER);
		look_back(w, s, e);
	} else if (e->kind == GANTRY_EV_CHUNK_TX || e->kind == GANTRY_EV_CHUNK_RX) {
		int send = e->kind == GANTRY_EV_CHUNK_TX;

		for (size_t i = 0; i < w->nopen; i++) {
			const struct trace_event *r = w->open[i].request;

			if (r && r->send == send && compare_messages(r, send, e, send) == 0)
				see_chunk(&w->open[i], e);
		}
	}
}

/* Calls take for each step, as they end. */
static void walk_steps(const struct nccl_view *v, void (*take)(void *ctx, const struct step *s), void *ctx)
{
	struct walk w = {.v = v, .take = take, .ctx = ctx};

	for (size_t i = 0; i < v->f->nevents; i++)
		walk_event(&w, &v->f->events[i]);
	free(w.open);
}

/* How long it was in its i-th state. */
static int64_t span(const struct step *s, int i, int64_t *ret_until)
{
	int64_t until = i + 1 < s->nmarks ? s->marks[i + 1].ns : s->end;

	until = until < s->marks[i].ns ? s->marks[i].ns : until > s->end ? s->end : until;
	*ret_until = until;
	return until > s->marks[i].ns ? until - s->marks[i].ns : 0;
}

/* ---- the picture ---- */

/* One row of a connection. */
struct row {
	int nccl, send, channel;
	int64_t peer, number, drawn_to;
};

struct picture {
	struct draw *d;
	struct row *rows; /* owned */
	size_t nrows;
};

static struct row *row_of(struct picture *p, const struct op *o, int64_t from)
{
	struct row *r;
	char name[96];
	int nth = 0;

	for (size_t i = 0; i < p->nrows; i++) {
		r = &p->rows[i];
		if (r->nccl != o->nccl || r->send != o->send || r->channel != o->channel || r->peer != o->peer)
			continue;
		if (r->drawn_to <= from)
			return r;
		nth++;
	}
	r = ARRAY_ADD(p->rows, p->nrows);
	if (!r)
		return NULL;
	*r = (struct row){o->nccl, o->send, o->channel, o->peer, (*p->d->next_track)++, 0};
	snprintf(name, sizeof(name), "NCCL %s rank %lld, channel %d, row %d", o->send ? "send to" : "recv from",
		 (long long)o->peer, o->channel, nth);
	trace_put_name(p->d->j, "thread_name", p->d->process, r->number, name);
	return r;
}

static void begin_bar(const struct draw *d, const char *name, int64_t track, int64_t from, int64_t until)
{
	trace_begin_event(d->j, "X", name, d->process, track);
	trace_put_us(d->j, "ts", from - d->zero);
	trace_put_us(d->j, "dur", until - from);
	gantry_json_open(d->j, "args", '{');
}

static void put_op_args(const struct draw *d, const struct op *o)
{
	gantry_json_int(d->j, "nccl", o->nccl);
	gantry_json_int(d->j, "number", o->number);
	gantry_json_int(d->j, "peer", o->peer);
	gantry_json_int(d->j, "channel", o->channel);
	gantry_json_str(d->j, "transport", "net");
}

static void draw_step(void *ctx, const struct step *s)
{
	struct picture *p = ctx;
	const struct draw *d = p->d;
	int64_t from = s->marks[0].ns, until;
	struct row *r = row_of(p, s->op, from);

	if (!r || s->end < from)
		return;
	r->drawn_to = s->end;
	begin_bar(d, s->op->send ? "send step" : "recv step", r->number, from, s->end);
	put_op_args(d, s->op);
	gantry_json_int(d->j, "step", s->step);
	gantry_json_int(d->j, "bytes", s->bytes);
	trace_end_event(d);
	for (int i = 0; i < s->nmarks; i++) {
		if (!span(s, i, &until))
			continue;
		begin_bar(d, cause_names[s->marks[i].cause], r->number, s->marks[i].ns, until);
		trace_end_event(d);
	}
}

static void draw_call(const struct draw *d, const struct call *c, int64_t track, int64_t *drawn_to)
{
	const struct trace_event *b = c->begin;
	int64_t from = b->ns > *drawn_to ? b->ns : *drawn_to, until = c->end > from ? c->end : from;

	*drawn_to = until;
	begin_bar(d, *b->coll ? b->coll : "?", track, from, until);
	gantry_json_int(d->j, "nccl", b->nccl);
	gantry_json_int(d->j, "number", b->v[1]);
	gantry_json_int(d->j, "bytes", b->v[2]);
	gantry_json_str(d->j, "type", b->type);
	gantry_json_str(d->j, "algorithm", b->algo);
	if (b->proto >= 0)
		gantry_json_str(d->j, "protocol", gantry_trace_proto_names[b->proto]);
	if (b->root >= 0)
		gantry_json_int(d->j, "root", b->root);
	trace_put_us(d->j, "posted_us", b->ns - d->zero);
	trace_end_event(d);
}

static void name_calls(const struct draw *d, int64_t track, int nccl, int p2p)
{
	const struct trace_rank *r = rank_in(d->f, nccl);
	char name[128];

	snprintf(name, sizeof(name), "NCCL %s, communicator %s (rank %d of %d)",
		 p2p ? "sends and receives" : "collectives", r ? r->comm : "?", r ? r->rank : -1, r ? r->nranks : 0);
	trace_put_name(d->j, "thread_name", d->process, track, name);
}

/* They are sorted: those of one communicator stand together, its transfers behind its collectives. */
static void draw_calls(struct draw *d)
{
	int64_t track = 0, drawn_to = 0;
	int nccl = 0, p2p = 0;

	for (size_t i = 0; i < d->nccl->ncalls; i++) {
		const struct call *c = &d->nccl->calls[i];
		int is_p2p = c->begin->v[1] >= (int64_t)GANTRY_RANK_P2P;

		if (!i || nccl != c->begin->nccl || p2p != is_p2p) {
			nccl = c->begin->nccl;
			p2p = is_p2p;
			track = (*d->next_track)++;
			drawn_to = d->zero;
			name_calls(d, track, nccl, p2p);
		}
		draw_call(d, c, track, &drawn_to);
	}
}

void trace_nccl_draw(struct draw *d)
{
	struct picture p = {.d = d};

	if (!d->nccl)
		return;
	draw_calls(d);
	walk_steps(d->nccl, draw_step, &p);
	free(p.rows);
}

void trace_nccl_args(const struct draw *d, const struct trace_event *post)
{
	struct trace_event e = *post;
	struct message key = {.request = &e}, *m;
	const struct op *o;

	e.send = post->kind == GANTRY_EV_SEND_POST;
	m = d->nccl && d->nccl->nmessages
		    ? bsearch(&key, d->nccl->messages, d->nccl->nmessages, sizeof(key), by_message)
		    : NULL;
	o = m ? op_of(d->nccl, m->request->v[2]) : NULL;
	if (!o)
		return;
	put_op_args(d, o);
	gantry_json_int(d->j, "step", m->request->step);
}

/* ---- the summary ---- */

struct conn {
	int nccl, send, channel;
	int64_t peer, steps, bytes, ns[CAUSES];
};

struct summary {
	struct conn *conns; /* owned */
	size_t n;
};

static void sum_step(void *ctx, const struct step *s)
{
	struct summary *sum = ctx;
	const struct op *o = s->op;
	struct conn *c = NULL;
	int64_t until;

	for (size_t i = 0; i < sum->n && !c; i++) {
		struct conn *k = &sum->conns[i];

		if (k->nccl == o->nccl && k->send == o->send && k->channel == o->channel && k->peer == o->peer)
			c = k;
	}
	if (!c) {
		c = ARRAY_ADD(sum->conns, sum->n);
		if (!c)
			return;
		*c = (struct conn){o->nccl, o->send, o->channel, o->peer, 0, 0, {0}};
	}
	c->steps++;
	c->bytes += s->bytes;
	for (int i = 0; i < s->nmarks; i++)
		c->ns[s->marks[i].cause] += span(s, i, &until);
}

static void print_conn(const struct trace_rank *r, const struct conn *c, int json, FILE *out)
{
	struct gantry_json j;

	if (!json) {
		fprintf(out, "%6d  %-9s  %6lld  %7d  %10lld  %14lld", r ? r->rank : -1,
			c->send ? "send to" : "recv from", (long long)c->peer, c->channel, (long long)c->steps,
			(long long)c->bytes);
		for (int i = 0; i < CAUSES; i++)
			fprintf(out, "  %10.3f", (double)c->ns[i] / 1e6);
		putc('\n', out);
		return;
	}
	gantry_json_begin(&j, out, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "comm", r ? r->comm : "");
	gantry_json_int(&j, "rank", r ? r->rank : -1);
	gantry_json_str(&j, "dir", c->send ? "send" : "recv");
	gantry_json_int(&j, "peer", c->peer);
	gantry_json_int(&j, "channel", c->channel);
	gantry_json_str(&j, "transport", "net");
	gantry_json_int(&j, "steps", c->steps);
	gantry_json_int(&j, "bytes", c->bytes);
	for (int i = 0; i < CAUSES; i++) {
		char key[32];

		snprintf(key, sizeof(key), "%s_us", cause_names[i]);
		gantry_json_int(&j, key, c->ns[i] / 1000);
	}
	gantry_json_end(&j);
}

void trace_nccl_summary(const struct trace_file *f, int json, FILE *out)
{
	struct nccl_view *v = trace_nccl_open(f);
	struct summary sum = {0};

	if (!v)
		return;
	walk_steps(v, sum_step, &sum);
	if (!json && sum.n) {
		fprintf(out, "%6s  %-9s  %6s  %7s  %10s  %14s", "rank", "", "peer", "channel", "steps", "bytes");
		for (int i = 0; i < CAUSES; i++)
			fprintf(out, "  %7s ms", cause_names[i]);
		putc('\n', out);
	}
	for (size_t i = 0; i < sum.n; i++)
		print_conn(rank_in(f, sum.conns[i].nccl), &sum.conns[i], json, out);
	free(sum.conns);
	trace_nccl_free(v);
}
