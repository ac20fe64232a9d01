/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The picture, in Chrome's trace format: a process per rank, a track per connection or link.
 *
 * What has a beginning and an end is one complete event ("X"): operations of the proxy, transfers of kernels, messages
 * of a link. Several of a track are in flight at once, and viewers want what overlaps on a track to nest; they end in
 * order, so each is drawn from where the one before ended, and "posted_us" tells when it truly began. The rest are
 * instants.
 *
 * The ring has the newest events only: an end without its beginning is an instant, a beginning without its end lasts to
 * the end of the trace and is marked "open".
 *
 * What Perfetto wants beyond that; tests/chrome_trace.py checks all of it:
 *   - Bars that touch must not overlap by a nanosecond, or one of them is dropped. All times are whole nanoseconds,
 *     and what a bar lasts is the difference of its rounded ends. Some versions cut off `microseconds * 1000` where
 *     others round it, so a number that a double would put below its nanosecond gets another digit: put_us.
 *   - 0 is the idle process and the idle thread, whatever they are called. Processes are numbered from 1.
 *   - Versions before 2025 name a thread by its number alone. No two tracks have the same number, and none that of a
 *     process, but for the track of a process itself: that is its main thread.
 *   - displayTimeUnit would change what some versions take the times for. It is left out.
 */

#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "base/ranks.h"
#include "base/trace.h"
#include "trace/trace_draw.h"
#include "trace/trace_set.h"

enum { OTHER_PROCESSES = 1 << 20, FIRST_TRACK = 1 << 22 }; /* ranks are below the first */

/* One row of the picture. */
struct track {
	const struct trace_conn *conn;	/* or */
	const struct trace_track *coll; /* or */
	int64_t link;			/* -1: none */
	int64_t rma, peer;		/* remote memory access, and the rank; -1: none */
	int recv;			/* of a link; of remote memory: signals from the peer */
	int plugin;			/* of a connection: what its plugin recorded */
	int lane;			/* of a link; -1: the link's messages */
	int64_t number;
	int64_t drawn_to; /* ns: where its last bar ended */
};

struct open {
	const struct trace_event *begin;
	struct track *track;
	int mode; /* of its steps, as far as seen */
};

/* NULL: not known. */
static const char *trace_peer_of_link(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->nlinks; i++) {
		if (f->links[i].id == id)
			return f->links[i].peer;
	}
	return NULL;
}

/* The same for collectives. */
static const struct trace_track *trace_track_of(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->ntracks; i++) {
		if (f->tracks[i].id == id)
			return &f->tracks[i];
	}
	return NULL;
}

/* NULL: it belongs to another communicator of the process. */
static const struct trace_conn *trace_conn_of(const struct trace_file *f, int64_t id)
{
	for (size_t i = 0; i < f->nconns; i++) {
		if (f->conns[i].id == id)
			return &f->conns[i];
	}
	return NULL;
}

void trace_begin_event(struct gantry_json *j, const char *ph, const char *name, int process, int64_t track)
{
	putc('\n', j->out);
	gantry_json_open(j, NULL, '{');
	gantry_json_str(j, "ph", ph);
	gantry_json_str(j, "name", name);
	gantry_json_int(j, "pid", process);
	gantry_json_int(j, "tid", track);
}

void trace_put_name(struct gantry_json *j, const char *what, int process, int64_t track, const char *name)
{
	trace_begin_event(j, "M", what, process, track);
	gantry_json_open(j, "args", '{');
	gantry_json_str(j, "name", name);
	gantry_json_close(j, '}');
	gantry_json_close(j, '}');
}

void trace_put_us(struct gantry_json *j, const char *key, int64_t ns)
{
	char text[40];

	snprintf(text, sizeof(text), "%lld.%03lld", (long long)(ns / 1000), (long long)(ns % 1000));
	if ((int64_t)(strtod(text, NULL) * 1000) < ns)
		strcat(text, "01");
	gantry_json_raw(j, key, text);
}

static int is_of_conn(uint32_t kind)
{
	return kind == GANTRY_EV_PROXY_OP || kind == GANTRY_EV_PROXY_POST || kind == GANTRY_EV_PROXY_MOVE ||
	       kind == GANTRY_EV_PROXY_DONE || kind == GANTRY_EV_XFER || kind == GANTRY_EV_KERNEL_OP ||
	       kind == GANTRY_EV_PLUGIN;
}

static int is_of_link(uint32_t kind)
{
	return strcmp(gantry_event_field((enum gantry_event_kind)kind, 0), "link") == 0;
}

static int is_rma(uint32_t kind)
{
	return kind == GANTRY_EV_RMA || kind == GANTRY_EV_RMA_SIGNAL;
}

/* 0: of another communicator of the process, or drawn with another file of the same process. */
static int is_ours(const struct draw *d, const struct trace_event *e)
{
	if (e->kind == GANTRY_EV_COLL)
		return trace_track_of(d->f, e->v[0]) != NULL;
	return is_of_conn(e->kind) ? trace_conn_of(d->f, e->v[0]) != NULL : d->links;
}

/* Leaves them open. */
static void put_args(const struct draw *d, const struct trace_event *e, int mode)
{
	const struct trace_conn *c = is_of_conn(e->kind) ? trace_conn_of(d->f, e->v[0]) : NULL;

	gantry_json_open(d->j, "args", '{');
	for (int i = c || *e->coll || is_rma(e->kind) ? 1 : 0; i < 3; i++) {
		const char *field = gantry_event_field((enum gantry_event_kind)e->kind, i);

		if (*field)
			gantry_json_int(d->j, field, e->v[i]);
	}
	if (e->more >= 0)
		gantry_json_int(d->j, gantry_trace_upper(e->kind), e->more);
	if (e->lane >= 0)
		gantry_json_int(d->j, "lane", e->lane);
	if (e->kind == GANTRY_EV_RMA)
		gantry_json_int(d->j, "context", e->context);
	if (e->kind == GANTRY_EV_SEND_POST || e->kind == GANTRY_EV_RECV_POST)
		trace_nccl_args(d, e);
	if (mode >= 0)
		gantry_json_str(d->j, "mode", gantry_trace_mode_names[mode]);
	if (e->proto >= 0)
		gantry_json_str(d->j, "protocol", gantry_trace_proto_names[e->proto]);
	if (*e->coll) {
		gantry_json_str(d->j, "type", e->type);
		if (*e->redop)
			gantry_json_str(d->j, "redop", e->redop);
		gantry_json_str(d->j, "algorithm", e->algo);
	}
	if (c) {
		gantry_json_str(d->j, "transport", c->transport);
		gantry_json_int(d->j, "peer", c->peer);
		gantry_json_int(d->j, "channel", c->channel);
	}
}

void trace_end_event(const struct draw *d)
{
	gantry_json_close(d->j, '}');
	gantry_json_close(d->j, '}');
}

static void name_track(const struct draw *d, const struct track *t, char *buf, size_t len)
{
	const char *peer = t->link >= 0 ? trace_peer_of_link(d->f, t->link) : NULL;

	if (t->conn)
		snprintf(buf, len, "%s rank %d, channel %d (%s)", t->conn->send ? "send to" : "recv from",
			 t->conn->peer, t->conn->channel, t->plugin ? "plugin" : t->conn->transport);
	else if (t->coll)
		snprintf(buf, len, "collectives, channel %d", t->coll->channel);
	else if (t->rma >= 0)
		snprintf(buf, len, "remote memory %lld, %s rank %lld", (long long)t->rma,
			 t->recv ? "signals from" : "requests to", (long long)t->peer);
	else if (t->lane >= 0)
		snprintf(buf, len, "link %lld, lane %d, %s", (long long)t->link, t->lane,
			 t->recv ? "received" : "sent");
	else if (peer)
		snprintf(buf, len, "link %lld, %s %s", (long long)t->link, t->recv ? "recv from" : "send to", peer);
	else if (t->link >= 0)
		snprintf(buf, len, "link %lld, %s", (long long)t->link, t->recv ? "receives" : "sends");
	else
		snprintf(buf, len, "process");
}

/* The row of an event, which is ours; made and named when it is first needed. */
static struct track *track_of(struct draw *d, const struct trace_event *e)
{
	struct track t = {.link = -1, .rma = -1, .peer = -1, .lane = -1, .number = d->process, .drawn_to = d->zero};
	char name[200];

	t.plugin = e->kind == GANTRY_EV_PLUGIN;
	if (is_of_conn(e->kind))
		t.conn = trace_conn_of(d->f, e->v[0]);
	else if (e->kind == GANTRY_EV_COLL)
		t.coll = trace_track_of(d->f, e->v[0]);
	else if (is_of_link(e->kind))
		t.link = e->v[0];
	if (is_rma(e->kind)) {
		t.rma = e->v[0];
		t.peer = e->more;
		t.recv = e->kind == GANTRY_EV_RMA_SIGNAL;
	}
	t.recv |= t.link >= 0 &&
		  (e->kind == GANTRY_EV_RECV_POST || e->kind == GANTRY_EV_RECV_DONE || e->kind == GANTRY_EV_CHUNK_RX);
	if (e->kind == GANTRY_EV_CHUNK_TX || e->kind == GANTRY_EV_CHUNK_RX)
		t.lane = e->lane < 0 ? 0 : e->lane;
	for (size_t i = 0; i < d->ntracks; i++) {
		struct track *k = &d->tracks[i];

		if (k->conn == t.conn && k->coll == t.coll && k->link == t.link && k->rma == t.rma &&
		    k->peer == t.peer && k->recv == t.recv && k->lane == t.lane && k->plugin == t.plugin)
			return k;
	}
	name_track(d, &t, name, sizeof(name));
	if (t.conn || t.coll || t.link >= 0 || t.rma >= 0)
		t.number = (*d->next_track)++;
	trace_put_name(d->j, "thread_name", d->process, t.number, name);
	d->tracks[d->ntracks] = t;
	return &d->tracks[d->ntracks++];
}

static void put_instant(struct draw *d, const struct trace_event *e)
{
	const struct track *t = track_of(d, e);

	trace_begin_event(d->j, "i", gantry_event_name((enum gantry_event_kind)e->kind), d->process, t->number);
	gantry_json_str(d->j, "s", "t");
	trace_put_us(d->j, "ts", e->ns - d->zero);
	put_args(d, e, e->mode);
	trace_end_event(d);
}

/* end: NULL if it is open. */
static void put_complete(struct draw *d, const struct open *o, const struct trace_event *end, int64_t until)
{
	const struct trace_event *b = o->begin;
	struct track *t = o->track;
	int64_t from = b->ns > t->drawn_to ? b->ns : t->drawn_to;
	const char *name = b->kind == GANTRY_EV_SEND_POST   ? "send message"
			   : b->kind == GANTRY_EV_RECV_POST ? "receive message"
			   : t->coll			    ? b->coll
			   : t->plugin			    ? "plugin event"
			   : t->rma >= 0		    ? b->what
			   : t->conn->send		    ? "send"
							    : "recv";

	until = until > from ? until : from;
	t->drawn_to = until;
	trace_begin_event(d->j, "X", name, d->process, t->number);
	trace_put_us(d->j, "ts", from - d->zero);
	trace_put_us(d->j, "dur", until - from);
	put_args(d, b, o->mode);
	trace_put_us(d->j, "posted_us", b->ns - d->zero);
	if (!end || end->cut)
		gantry_json_int(d->j, end ? "cut" : "open", 1);
	trace_end_event(d);
}

static int is_op(const struct trace_event *e)
{
	return e->kind == GANTRY_EV_PROXY_OP || e->kind == GANTRY_EV_KERNEL_OP || e->kind == GANTRY_EV_COLL ||
	       e->kind == GANTRY_EV_RMA || (e->kind == GANTRY_EV_PLUGIN && !e->cut);
}

static int begins(const struct trace_event *e)
{
	return (is_op(e) && !e->end) || e->kind == GANTRY_EV_SEND_POST || e->kind == GANTRY_EV_RECV_POST;
}

static int ends(const struct trace_event *e)
{
	return (is_op(e) && e->end) || e->kind == GANTRY_EV_SEND_DONE || e->kind == GANTRY_EV_RECV_DONE;
}

static int belong(const struct trace_event *b, const struct trace_event *e)
{
	uint32_t wanted = b->kind == GANTRY_EV_SEND_POST   ? GANTRY_EV_SEND_DONE
			  : b->kind == GANTRY_EV_RECV_POST ? GANTRY_EV_RECV_DONE
							   : b->kind;

	return e->kind == wanted && b->v[0] == e->v[0] && b->v[1] == e->v[1] &&
	       (b->more == e->more || b->kind == GANTRY_EV_PLUGIN);
}

static void draw_end(struct draw *d, const struct trace_event *e)
{
	for (size_t i = 0; i < d->nopen; i++) {
		if (!belong(d->open[i].begin, e))
			continue;
		put_complete(d, &d->open[i], e, e->ns);
		memmove(&d->open[i], &d->open[i + 1], (d->nopen - i - 1) * sizeof(d->open[0]));
		d->nopen--;
		return;
	}
	put_instant(d, e);
}

/* Operations do not know their mode; the first step of theirs that was moved does. */
static void learn_mode(struct draw *d, const struct trace_event *e)
{
	if (e->mode < 0 || (e->kind != GANTRY_EV_PROXY_MOVE && e->kind != GANTRY_EV_PROXY_DONE))
		return;
	for (size_t i = 0; i < d->nopen; i++) {
		if (d->open[i].begin->kind == GANTRY_EV_PROXY_OP && d->open[i].begin->v[0] == e->v[0]) {
			if (d->open[i].mode < 0)
				d->open[i].mode = e->mode;
			return;
		}
	}
}

static void draw_event(struct draw *d, const struct trace_event *e)
{
	if (gantry_nccl_is_event(e->kind) || !is_ours(d, e))
		return; /* the former: trace_nccl.c */
	learn_mode(d, e);
	if (begins(e))
		d->open[d->nopen++] = (struct open){e, track_of(d, e), e->mode};
	else if (ends(e))
		draw_end(d, e);
	else
		put_instant(d, e);
}

/* The rank, unless there is none or another file has drawn as that. */
static int process_number(const struct trace_set *set, size_t at)
{
	if (set->files[at].rank < 0)
		return OTHER_PROCESSES + (int)at + 1;
	for (size_t i = 0; i < at; i++) {
		if (set->files[i].rank == set->files[at].rank)
			return OTHER_PROCESSES + (int)at + 1;
	}
	return set->files[at].rank + 1;
}

static int first_of_process(const struct trace_set *set, size_t at)
{
	for (size_t i = 0; i < at; i++) {
		if (set->files[i].pid == set->files[at].pid && strcmp(set->files[i].host, set->files[at].host) == 0)
			return 0;
	}
	return 1;
}

static void name_process(const struct trace_set *set, size_t at, struct gantry_json *j)
{
	const struct trace_file *f = &set->files[at];
	const struct trace_rank *r = trace_nccl_rank(f);
	int process = process_number(set, at);
	char name[160];

	if (f->rank < 0 && r)
		snprintf(name, sizeof(name), "rank %d of %d, NCCL's communicator %s (%s, pid %lld)", r->rank, r->nranks,
			 r->comm, f->host, (long long)f->pid);
	else if (f->rank < 0)
		snprintf(name, sizeof(name), "%s, pid %lld", f->host, (long long)f->pid);
	else
		snprintf(name, sizeof(name), "rank %d of %d, communicator %s (%s, pid %lld)", f->rank, f->nranks,
			 f->comm, f->host, (long long)f->pid);
	trace_put_name(j, "process_name", process, process, name);
}

static void draw_file(const struct trace_set *set, size_t at, int64_t zero, int64_t *next_track, struct gantry_json *j)
{
	const struct trace_file *f = &set->files[at];
	struct draw d = {.j = j,
			 .f = f,
			 .process = process_number(set, at),
			 .links = first_of_process(set, at),
			 .zero = zero,
			 .next_track = next_track};

	d.nccl = trace_nccl_open(f);
	d.open = malloc((f->nevents + 1) * sizeof(*d.open));
	d.tracks = malloc((f->nevents + 1) * sizeof(*d.tracks));
	for (size_t i = 0; d.open && d.tracks && i < f->nevents; i++)
		draw_event(&d, &f->events[i]);
	for (size_t i = 0; i < d.nopen; i++)
		put_complete(&d, &d.open[i], NULL, f->events[f->nevents - 1].ns);
	trace_nccl_draw(&d);
	trace_nccl_free(d.nccl);
	free(d.open);
	free(d.tracks);
}

void trace_write_chrome(const struct trace_set *set, FILE *out)
{
	int64_t zero = 0, next_track = FIRST_TRACK;
	struct gantry_json j;
	int any = 0;

	for (size_t i = 0; i < set->nfiles; i++) {
		for (size_t k = 0; k < set->files[i].nevents; k++) {
			int64_t ns = set->files[i].events[k].ns;

			zero = !any++ || ns < zero ? ns : zero;
		}
	}
	gantry_json_begin(&j, out, GANTRY_JSON_TIGHT);
	gantry_json_open(&j, "otherData", '{');
	gantry_json_str(&j, "made_by", "gantry trace");
	gantry_json_close(&j, '}');
	gantry_json_open(&j, "traceEvents", '[');
	for (size_t i = 0; i < set->nfiles; i++)
		name_process(set, i, &j);
	for (size_t i = 0; i < set->nfiles; i++)
		draw_file(set, i, zero, &next_track, &j);
	putc('\n', out);
	gantry_json_close(&j, ']');
	gantry_json_end(&j);
}
