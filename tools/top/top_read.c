/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry top`: asking processes, and reading what they say. top.h has the rest. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "common/array.h"
#include "inet/stats.h"
#include "top/top.h"

enum { ANSWER_MAX = 64 << 20, LABELS = 12 };
static const uint64_t answer_ns = 1000000000; /* for all of them together */

/* ---- a line of the text ---- */

/* One line of the text: a metric with its labels. All texts are borrowed from the line, which is changed. */
struct sample {
	const char *metric;
	struct {
		const char *name, *value;
	} labels[LABELS];
	int nlabels;
	double value;
};

/* The value in quotes that begins at *at, without its escapes. NULL: it does not end. */
static const char *read_value(char **at)
{
	char *to = ++*at, *value = to;

	for (; **at && **at != '"'; (*at)++) {
		int escaped = **at == '\\';

		if (escaped && !*++*at)
			return NULL;
		*to++ = escaped && **at == 'n' ? '\n' : **at;
	}
	if (!**at)
		return NULL;
	(*at)++;
	*to = 0;
	return value;
}

/* Behind the brace that opens. */
static int read_labels(char **at, struct sample *s)
{
	while (**at != '}') {
		char *name = *at;
		const char *value;

		*at = strchr(name, '=');
		if (!*at || (*at)[1] != '"' || s->nlabels == LABELS)
			return 0;
		*(*at)++ = 0;
		value = read_value(at);
		if (!value)
			return 0;
		s->labels[s->nlabels].name = name;
		s->labels[s->nlabels++].value = value;
		if (**at == ',')
			(*at)++;
		else if (**at != '}')
			return 0;
	}
	*(*at)++ = 0;
	return 1;
}

/* 1: a sample. 0: a comment or an empty line. -1: it is no such text. */
static int parse_line(char *line, struct sample *ret)
{
	char *at = line + strcspn(line, "{ "), *end;

	*ret = (struct sample){.metric = line};
	if (*line == '#' || !*line)
		return 0;
	if (*at == '{') {
		*at++ = 0;
		if (!read_labels(&at, ret))
			return -1;
	}
	if (*at != ' ')
		return -1;
	*at++ = 0;
	ret->value = strtod(at, &end);
	return end == at || *end ? -1 : 1;
}

static const char *label(const struct sample *s, const char *name)
{
	for (int i = 0; i < s->nlabels; i++)
		if (strcmp(s->labels[i].name, name) == 0)
			return s->labels[i].value;
	return "";
}

/* ---- rows ---- */

static struct top_row *row_of(struct top_process *p, enum top_kind kind, const char *id, const char *peer)
{
	struct top_row *r;

	for (size_t i = p->nrows; i-- > 0;) /* the newest is the most likely */
		if (p->rows[i].kind == kind && strcmp(p->rows[i].id, id) == 0 && strcmp(p->rows[i].peer, peer) == 0)
			return &p->rows[i];
	r = ARRAY_ADD(p->rows, p->nrows);
	if (r) {
		r->kind = kind;
		snprintf(r->id, sizeof(r->id), "%s", id);
		snprintf(r->peer, sizeof(r->peer), "%s", peer);
	}
	return r;
}

static void add_cause(struct top_row *r, const char *name, double seconds)
{
	int i = 0;

	while (i < r->ncauses && strcmp(r->causes[i].name, name) != 0)
		i++;
	if (i == TOP_CAUSES)
		return;
	if (i == r->ncauses)
		snprintf(r->causes[r->ncauses++].name, sizeof(r->causes[0].name), "%s", name);
	r->causes[i].seconds += seconds;
}

static void add_flying(struct top_row *r, const struct sample *s)
{
	const char *waits = label(s, "waits_for");

	if (r->kind != TOP_JOB) /* a reducer's are its ranks, not requests */
		r->flying[strcmp(label(s, "dir"), "send") == 0] += s->value;
	if (s->value > 0 && strcmp(waits, "none") != 0)
		snprintf(r->waits_for, sizeof(r->waits_for), "%s", waits);
}

/* What a metric of a kind of row adds to it: names mean the same in all that have them. */
static void add_metric(struct top_row *r, const char *what, const struct sample *s)
{
	int send = strcmp(label(s, "dir"), "send") == 0;

	if (!r)
		return;
	if (strcmp(what, "sent_bytes_total") == 0 || (strcmp(what, "bytes_total") == 0 && send))
		r->sent += s->value;
	else if (strcmp(what, "received_bytes_total") == 0 || strcmp(what, "bytes_total") == 0)
		r->received += s->value;
	else if (strcmp(what, "retransmits_total") == 0)
		r->retransmits += s->value;
	else if (strcmp(what, "limited_seconds_total") == 0 || strcmp(what, "wait_seconds_total") == 0)
		add_cause(r, label(s, "cause"), s->value);
	else if (strcmp(what, "credit_wait_seconds_total") == 0)
		add_cause(r, "credit", s->value);
	else if (strcmp(what, "requests") == 0 || strcmp(what, "waiting") == 0)
		add_flying(r, s);
}

static void take_lane(struct top_process *p, const char *what, const struct sample *s)
{
	struct top_row *r = row_of(p, TOP_LINK, label(s, "link"), label(s, "peer"));
	char id[64];

	if (r)
		r->lanes += strcmp(what, "sent_bytes_total") == 0;
	add_metric(r, what, s);
	snprintf(id, sizeof(id), "%.30s.%.30s", label(s, "link"), label(s, "lane"));
	add_metric(row_of(p, TOP_LANE, id, label(s, "peer")), what, s);
}

static void take_comm(struct top_process *p, const char *what, const struct sample *s)
{
	char id[64], peer[64];

	if (!*label(s, "peer"))
		return;
	snprintf(id, sizeof(id), "%.8s/%.20s", label(s, "comm"), label(s, "rank"));
	snprintf(peer, sizeof(peer), "rank %.20s, %.30s", label(s, "peer"), label(s, "transport"));
	add_metric(row_of(p, TOP_COMM, id, peer), what, s);
}

static void take_reducer(struct top_process *p, const char *what, const struct sample *s)
{
	char id[64], peer[64];

	if (!*label(s, "job"))
		return;
	snprintf(id, sizeof(id), "%.8s", label(s, "job"));
	snprintf(peer, sizeof(peer), "%.20s ranks", label(s, "ranks"));
	add_metric(row_of(p, TOP_JOB, id, peer), what, s);
}

static void take_process(struct top_process *p, const struct sample *s)
{
	const char *rank = label(s, "rank");

	p->pid = atol(label(s, "pid"));
	p->rank = *rank ? atoi(rank) : -1;
	snprintf(p->program, sizeof(p->program), "%s", label(s, "program"));
	snprintf(p->host, sizeof(p->host), "%s", label(s, "host"));
	snprintf(p->version, sizeof(p->version), "%s", label(s, "version"));
}

int top_take(struct top_process *p, char *text)
{
	struct sample s;

	for (char *line; (line = strsep(&text, "\n"));) {
		int found = parse_line(line, &s);

		if (found < 0)
			return -1;
		if (!found)
			continue;
		if (strcmp(s.metric, "gantry_process_info") == 0)
			take_process(p, &s);
		else if (strncmp(s.metric, "gantry_link_", 12) == 0 && *label(&s, "link"))
			add_metric(row_of(p, TOP_LINK, label(&s, "link"), label(&s, "peer")), s.metric + 12, &s);
		else if (strncmp(s.metric, "gantry_lane_", 12) == 0)
			take_lane(p, s.metric + 12, &s);
		else if (strncmp(s.metric, "gantry_comm_", 12) == 0)
			take_comm(p, s.metric + 12, &s);
		else if (strncmp(s.metric, "gantry_reducer_", 15) == 0)
			take_reducer(p, s.metric + 15, &s);
		else if (strcmp(s.metric, "gantry_rx_bytes_total") == 0)
			add_metric(row_of(p, TOP_RX, label(&s, "rx"), ""), s.metric + 10, &s);
	}
	return 0;
}

/* ---- asking ---- */

/* -1: there is no socket: its process is gone, or belongs to another user. */
static int ask(const char *dir, const char *name)
{
	static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
	char path[4096];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (lstat(path, &st) || !S_ISSOCK(st.st_mode) || (st.st_uid != geteuid() && geteuid() != 0))
		return -1;
	fd = inet_stats_connect(path);
	if (fd >= 0 && send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* All of the answer, in memory of its own; NULL: it did not come in time, or is no answer. */
static char *hear(int fd, uint64_t deadline)
{
	size_t n = 0, room = 0;
	char *text = NULL, *grown;
	ssize_t got = 1;

	while (got) {
		uint64_t now = gantry_now_ns();
		struct pollfd p = {.fd = fd, .events = POLLIN};

		if (room - n < 2) {
			room = 2 * room + 65536;
			grown = room < ANSWER_MAX ? realloc(text, room) : NULL;
			if (!grown)
				break;
			text = grown;
		}
		if (poll(&p, 1, now < deadline ? (int)((deadline - now) / 1000000) + 1 : 0) <= 0)
			break;
		got = recv(fd, text + n, room - 1 - n, MSG_DONTWAIT);
		if (got < 0 && errno != EAGAIN)
			break;
		n += got > 0 ? (size_t)got : 0;
	}
	if (got || !text) {
		free(text);
		return NULL;
	}
	text[n] = 0;
	return text;
}

static void take_answer(struct top_process *p, int fd, uint64_t deadline)
{
	char *text = hear(fd, deadline), *body = text ? strstr(text, "\r\n\r\n") : NULL;

	p->time_ns = gantry_now_ns();
	p->answered = body && strncmp(text, "HTTP/1.0 200", 12) == 0 && top_take(p, body + 4) == 0;
	free(text);
}

static int by_pid(const void *a, const void *b)
{
	const struct top_process *x = a, *y = b;

	return x->pid != y->pid ? (x->pid > y->pid ? 1 : -1) : strcmp(x->name, y->name);
}

int top_read(const char *dir, struct top_look *ret)
{
	struct top_look l = {0};
	DIR *d = opendir(dir);
	int *fds = NULL;
	size_t n = 0;
	uint64_t deadline;

	if (!d)
		return -1;
	for (const struct dirent *e; (e = readdir(d));) {
		const char *dot = strrchr(e->d_name, '.');
		int fd = dot && dot != e->d_name && strcmp(dot, ".sock") == 0 ? ask(dir, e->d_name) : -1, *place;
		struct top_process *p;

		if (fd < 0)
			continue;
		place = ARRAY_ADD(fds, n);
		p = place ? ARRAY_ADD(l.processes, l.n) : NULL;
		if (!p) {
			n = l.n;
			close(fd);
			continue;
		}
		*place = fd;
		p->pid = atol(e->d_name);
		p->rank = -1;
		snprintf(p->name, sizeof(p->name), "%.63s", e->d_name);
	}
	closedir(d);
	deadline = gantry_now_ns() + answer_ns;
	for (size_t i = 0; i < n; i++) {
		take_answer(&l.processes[i], fds[i], deadline);
		close(fds[i]);
	}
	free(fds);
	if (l.n)
		qsort(l.processes, l.n, sizeof(*l.processes), by_pid);
	*ret = l;
	return 0;
}

void top_free(struct top_look *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->processes[i].rows);
	free(l->processes);
	*l = (struct top_look){0};
}
