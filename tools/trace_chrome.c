/*
 * Chrome's trace format: a process per rank, a track per connection or link.
 *
 * What has a beginning and an end is one complete event ("X"): operations of the proxy, messages of a link. Several of
 * a track are in flight at once, and viewers want what overlaps on a track to nest; they end in order, so each is drawn
 * from where the one before ended, and "posted_us" tells when it truly began. The rest are instants.
 *
 * The ring has the newest events only: an end without its beginning is an instant, a beginning without its end lasts to
 * the end of the trace and is marked "open".
 */
#include <stdlib.h>
#include <string.h>

#include "base/event.h"
#include "trace.h"

enum { LINK_TRACKS = 1000000, PROCESS_TRACK = 0, LINKS_NAMED = 4096 };

struct open {
	const struct trace_event *begin;
	int64_t track;
	int mode; /* of its steps, as far as seen */
};

/* One file being drawn. */
struct draw {
	FILE *out;
	const struct trace_file *f;
	int process;
	int links;	   /* no other file has drawn the links of this process */
	double zero;	   /* where the picture begins */
	struct open *open; /* owned: room for all events */
	size_t nopen;
	struct drawn_to {
		int64_t track;
		double us;
	} * ends; /* owned: the same; where the last one of a track ended */
	size_t nends;
};

static void put_text(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\' || c < 0x20 || c > 0x7e)
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static void put_name(FILE *out, const char *what, int process, int64_t track, const char *name)
{
	fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%lld,\"args\":{\"name\":", what, process,
		(long long)track);
	put_text(out, name);
	fputs("}}", out);
}

static int is_of_conn(uint32_t kind)
{
	return kind == GANTRY_EV_PROXY_OP || kind == GANTRY_EV_PROXY_POST || kind == GANTRY_EV_PROXY_MOVE ||
	       kind == GANTRY_EV_PROXY_DONE || kind == GANTRY_EV_XFER;
}

static int is_of_link(uint32_t kind)
{
	return strcmp(gantry_event_field((enum gantry_event_kind)kind, 0), "link") == 0;
}

static int64_t track_of(const struct trace_file *f, const struct trace_event *e)
{
	if (is_of_conn(e->kind))
		return (int64_t)(trace_conn_of(f, e->v[0]) - f->conns) + 1;
	if (!is_of_link(e->kind))
		return PROCESS_TRACK;
	return LINK_TRACKS + 2 * e->v[0] + (e->kind == GANTRY_EV_RECV_POST || e->kind == GANTRY_EV_RECV_DONE);
}

/* 0: of another communicator of the process, or drawn with another file of the same process. */
static int is_ours(const struct draw *d, const struct trace_event *e)
{
	return is_of_conn(e->kind) ? trace_conn_of(d->f, e->v[0]) != NULL : d->links;
}

static void put_args(const struct draw *d, const struct trace_event *e, int mode)
{
	const struct trace_conn *c = is_of_conn(e->kind) ? trace_conn_of(d->f, e->v[0]) : NULL;
	const char *comma = "";

	fputs(",\"args\":{", d->out);
	for (int i = c ? 1 : 0; i < 3; i++) {
		const char *field = gantry_event_field((enum gantry_event_kind)e->kind, i);

		if (!*field)
			continue;
		fprintf(d->out, "%s\"%s\":%lld", comma, field, (long long)e->v[i]);
		comma = ",";
	}
	if (mode >= 0)
		fprintf(d->out, "%s\"mode\":\"%s\"", comma, trace_mode_names[mode]);
	if (e->proto >= 0)
		fprintf(d->out, ",\"protocol\":\"%s\"", trace_proto_names[e->proto]);
	if (c) {
		fputs(",\"transport\":", d->out);
		put_text(d->out, c->transport);
		fprintf(d->out, ",\"peer\":%d,\"channel\":%d", c->peer, c->channel);
	}
}

static void put_instant(const struct draw *d, const struct trace_event *e)
{
	fprintf(d->out, ",\n{\"ph\":\"i\",\"s\":\"t\",\"name\":\"%s\",\"pid\":%d,\"tid\":%lld,\"ts\":%.3f",
		gantry_event_name((enum gantry_event_kind)e->kind), d->process, (long long)track_of(d->f, e),
		e->us - d->zero);
	put_args(d, e, e->mode);
	fputs("}}", d->out);
}

static double *end_of_track(struct draw *d, int64_t track)
{
	for (size_t i = 0; i < d->nends; i++) {
		if (d->ends[i].track == track)
			return &d->ends[i].us;
	}
	d->ends[d->nends] = (struct drawn_to){track, d->zero};
	return &d->ends[d->nends++].us;
}

/* end: NULL if it is open. */
static void put_complete(struct draw *d, const struct open *o, const struct trace_event *end, double until)
{
	const struct trace_event *b = o->begin;
	double *last = end_of_track(d, o->track), from = b->us > *last ? b->us : *last;
	const char *name = b->kind == GANTRY_EV_SEND_POST	? "send message"
			   : b->kind == GANTRY_EV_RECV_POST	? "receive message"
			   : trace_conn_of(d->f, b->v[0])->send ? "send"
								: "recv";

	until = until > from ? until : from;
	*last = until;
	fprintf(d->out, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%lld,\"ts\":%.3f,\"dur\":%.3f", name,
		d->process, (long long)o->track, from - d->zero, until - from);
	put_args(d, b, o->mode);
	fprintf(d->out, ",\"posted_us\":%.3f", b->us - d->zero);
	if (!end)
		fputs(",\"open\":1", d->out);
	else if (end->cut)
		fputs(",\"cut\":1", d->out);
	fputs("}}", d->out);
}

static int begins(const struct trace_event *e)
{
	return (e->kind == GANTRY_EV_PROXY_OP && !e->end) || e->kind == GANTRY_EV_SEND_POST ||
	       e->kind == GANTRY_EV_RECV_POST;
}

static int ends(const struct trace_event *e)
{
	return (e->kind == GANTRY_EV_PROXY_OP && e->end) || e->kind == GANTRY_EV_SEND_DONE ||
	       e->kind == GANTRY_EV_RECV_DONE;
}

static int belong(const struct trace_event *b, const struct trace_event *e)
{
	uint32_t wanted = b->kind == GANTRY_EV_SEND_POST   ? GANTRY_EV_SEND_DONE
			  : b->kind == GANTRY_EV_RECV_POST ? GANTRY_EV_RECV_DONE
							   : GANTRY_EV_PROXY_OP;

	return e->kind == wanted && b->v[0] == e->v[0] && b->v[1] == e->v[1];
}

static void draw_end(struct draw *d, const struct trace_event *e)
{
	for (size_t i = 0; i < d->nopen; i++) {
		if (!belong(d->open[i].begin, e))
			continue;
		put_complete(d, &d->open[i], e, e->us);
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
	if (!is_ours(d, e))
		return;
	learn_mode(d, e);
	if (begins(e))
		d->open[d->nopen++] = (struct open){e, track_of(d->f, e), e->mode};
	else if (ends(e))
		draw_end(d, e);
	else
		put_instant(d, e);
}

static void name_links(const struct draw *d)
{
	unsigned char named[LINKS_NAMED][2] = {{0}};
	char name[64];

	for (size_t i = 0; i < d->f->nevents; i++) {
		const struct trace_event *e = &d->f->events[i];
		int64_t track = track_of(d->f, e);
		int recv = track & 1;

		if (!is_of_link(e->kind) || e->v[0] >= LINKS_NAMED || named[e->v[0]][recv])
			continue;
		named[e->v[0]][recv] = 1;
		snprintf(name, sizeof(name), "link %lld, %s", (long long)e->v[0], recv ? "receives" : "sends");
		put_name(d->out, "thread_name", d->process, track, name);
	}
}

static void draw_names(const struct draw *d)
{
	const struct trace_file *f = d->f;
	char name[160];

	snprintf(name, sizeof(name), "rank %d of %d, communicator %s (%s, pid %lld)", f->rank, f->nranks, f->comm,
		 f->host, (long long)f->pid);
	put_name(d->out, "process_name", d->process, PROCESS_TRACK, name);
	for (size_t i = 0; i < f->nconns; i++) {
		const struct trace_conn *c = &f->conns[i];

		snprintf(name, sizeof(name), "%s rank %d, channel %d (%s)", c->send ? "send to" : "recv from", c->peer,
			 c->channel, c->transport);
		put_name(d->out, "thread_name", d->process, (int64_t)i + 1, name);
	}
	if (d->links)
		name_links(d);
}

/* The rank, unless another file has drawn as that. */
static int process_number(const struct trace_set *set, size_t at)
{
	for (size_t i = 0; i < at; i++) {
		if (set->files[i].rank == set->files[at].rank)
			return 1 << 20 | (int)at;
	}
	return set->files[at].rank;
}

static int first_of_process(const struct trace_set *set, size_t at)
{
	for (size_t i = 0; i < at; i++) {
		if (set->files[i].pid == set->files[at].pid && strcmp(set->files[i].host, set->files[at].host) == 0)
			return 0;
	}
	return 1;
}

static void draw_file(const struct trace_set *set, size_t at, double zero, FILE *out)
{
	const struct trace_file *f = &set->files[at];
	struct draw d = {.out = out,
			 .f = f,
			 .process = process_number(set, at),
			 .links = first_of_process(set, at),
			 .zero = zero};

	d.open = malloc((f->nevents + 1) * sizeof(*d.open));
	d.ends = malloc((f->nevents + 1) * sizeof(*d.ends));
	draw_names(&d);
	for (size_t i = 0; d.open && d.ends && i < f->nevents; i++)
		draw_event(&d, &f->events[i]);
	for (size_t i = 0; i < d.nopen; i++)
		put_complete(&d, &d.open[i], NULL, f->events[f->nevents - 1].us);
	free(d.open);
	free(d.ends);
}

void trace_write_chrome(const struct trace_set *set, FILE *out)
{
	double zero = 0;
	int any = 0;

	for (size_t i = 0; i < set->nfiles; i++) {
		for (size_t k = 0; k < set->files[i].nevents; k++) {
			double us = set->files[i].events[k].us;

			zero = !any++ || us < zero ? us : zero;
		}
	}
	fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"made_by\":\"gantry trace\"},\"traceEvents\":[\n"
	      "{\"ph\":\"M\",\"name\":\"gantry\",\"pid\":0,\"tid\":0,\"args\":{}}",
	      out);
	for (size_t i = 0; i < set->nfiles; i++)
		draw_file(set, i, zero, out);
	fputs("\n]}\n", out);
}
