/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry top`: what the processes of this user move and wait for, live. Rates are differences of two looks; a row that
 * was not there at the first one begins with nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "common/cmd.h"
#include "common/options.h"
#include "inet/stats.h"
#include "top/top.h"

struct request {
	const char *dir;
	uint64_t interval; /* ns */
	int once, json, lanes;
};

#define AT(field) offsetof(struct request, field)
/* clang-format off */
static const struct option_spec specs[] = {
	{'i', OPTION_TIME, "interval", AT(interval), 10000000, 0, NULL, "TIME", "between two looks, over which rates are taken (default 1s)"},
	{0, OPTION_FLAG, "once", AT(once), 0, 0, NULL, NULL, "one picture, after one interval"},
	{0, OPTION_FLAG, "lanes", AT(lanes), 0, 0, NULL, NULL, "each lane by itself, too"},
	{0, OPTION_TEXT, "dir", AT(dir), 0, 0, NULL, "FOLDER", "where the sockets are (default GANTRY_STATS_DIR)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per process, link, communicator's peer, pipeline and job of a reducer"},
};
/* clang-format on */

static const struct option_set command = {
	.program = "gantry top",
	.about = "What the processes of this user on this machine move and wait for: NCCL with the plugin, "
		 "communicators,\n"
		 "pipelines of gantry/rx.h, reducers. It goes on until it is interrupted; on a terminal in place.\n",
	.notes = "Exit status: 0 there was a process; 1 there was none; 2 wrong usage.\n",
	OPTION_SPECS(specs),
};

/* ---- two looks ---- */

static const struct top_process *find_process(const struct top_look *l, const struct top_process *like)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->processes[i].name, like->name) == 0)
			return &l->processes[i];
	return NULL;
}

static const struct top_row *find_row(const struct top_process *p, const struct top_row *like)
{
	for (size_t i = 0; p && i < p->nrows; i++)
		if (p->rows[i].kind == like->kind && strcmp(p->rows[i].id, like->id) == 0 &&
		    strcmp(p->rows[i].peer, like->peer) == 0)
			return &p->rows[i];
	return NULL;
}

/* What a row did between the looks. */
struct change {
	double seconds, sent, received; /* per second */
	double causes[TOP_CAUSES];	/* seconds of waiting, per second */
};

static double cause_before(const struct top_row *before, const char *name)
{
	for (int i = 0; before && i < before->ncauses; i++)
		if (strcmp(before->causes[i].name, name) == 0)
			return before->causes[i].seconds;
	return 0;
}

/* A row that is new, or a process: nothing to compare with. */
static struct change change_of(const struct top_row *now, const struct top_row *before, double seconds)
{
	struct change c = {.seconds = seconds};

	if (!before || seconds <= 0)
		return c;
	c.sent = (now->sent - before->sent) / seconds;
	c.received = (now->received - before->received) / seconds;
	for (int i = 0; i < now->ncauses; i++)
		c.causes[i] = (now->causes[i].seconds - cause_before(before, now->causes[i].name)) / seconds;
	return c;
}

static double between(const struct top_process *now, const struct top_process *before)
{
	return before && before->answered ? (double)(now->time_ns - before->time_ns) / 1e9 : 0;
}

/* ---- for people ---- */

static const char *rate_text(double rate, char *buf, size_t len)
{
	static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
	size_t i = 0;

	while (rate >= 999.5 && i + 1 < sizeof(units) / sizeof(*units)) {
		rate /= 1000;
		i++;
	}
	snprintf(buf, len, "%.*f %s", i && rate < 99.95 ? rate < 9.995 ? 2 : 1 : 0, rate < 0 ? 0 : rate, units[i]);
	return buf;
}
#define RATE_TEXT(rate) rate_text((rate), (char[32]){0}, 32)

/* "network 40%, credit 3%": what was waited for at least a hundredth of the time. Sockets and connections wait at the same
 * time, so it may be more than all of it. */
static const char *causes_text(const struct top_row *r, const struct change *c, char *buf, size_t len)
{
	size_t at = 0;

	buf[0] = 0;
	for (int i = 0; i < r->ncauses; i++) {
		if (c->causes[i] < 0.01 || at >= len)
			continue;
		at += (size_t)snprintf(buf + at, len - at, "%s%s %.0f%%", at ? ", " : "", r->causes[i].name,
				       100 * c->causes[i]);
	}
	return buf;
}

static const char *const kind_names[] = {"link", "lane", "comm", "rx", "job"};

static void print_row(const struct top_row *r, const struct change *c)
{
	char what[80], flying[32] = "", lanes[16] = "", causes[160];

	snprintf(what, sizeof(what), "%s %s", kind_names[r->kind], r->id);
	if (r->kind == TOP_LINK)
		snprintf(lanes, sizeof(lanes), "1+%d", r->lanes > 0 ? r->lanes - 1 : 0);
	if (r->kind == TOP_LINK || r->kind == TOP_COMM)
		snprintf(flying, sizeof(flying), "%.0f/%.0f", r->flying[1], r->flying[0]);
	printf("  %-14s %-34s %5s %10s %10s %9s %-7s %7.0f  %s\n", what, r->peer, lanes, RATE_TEXT(c->sent),
	       RATE_TEXT(c->received), flying, r->waits_for, r->retransmits, causes_text(r, c, causes, sizeof(causes)));
}

static void print_process(const struct request *q, const struct top_process *p, const struct top_process *before)
{
	char rank[24] = "";

	if (!p->answered) {
		printf("pid %ld does not answer: it is stopped, or very busy\n", p->pid);
		return;
	}
	if (p->rank >= 0)
		snprintf(rank, sizeof(rank), " rank %d", p->rank);
	printf("pid %ld  %s%s  gantry %s\n", p->pid, p->program, rank, p->version);
	for (size_t i = 0; i < p->nrows; i++) {
		struct change c = change_of(&p->rows[i], find_row(before, &p->rows[i]), between(p, before));

		if (p->rows[i].kind != TOP_LANE || q->lanes)
			print_row(&p->rows[i], &c);
	}
}

static void print_look(const struct request *q, const char *dir, const struct top_look *now,
		       const struct top_look *before)
{
	char host[64] = "", at[16] = "";
	time_t t = time(NULL);
	struct tm tm;

	if (!now->n) {
		printf("no process shows its counters in %s: none of this user has a connection, or GANTRY_STATS_DIR "
		       "differs\n",
		       dir);
		return;
	}
	gethostname(host, sizeof(host) - 1);
	if (localtime_r(&t, &tm))
		strftime(at, sizeof(at), "%H:%M:%S", &tm);
	printf("%s  %s  %zu process%s\n", host, at, now->n, now->n == 1 ? "" : "es");
	printf("  %-14s %-34s %5s %10s %10s %9s %-7s %7s  %s\n", "", "peer", "lanes", "sent", "received", "in flight",
	       "waits", "retrans", "waited for, of the time");
	for (size_t i = 0; i < now->n; i++)
		print_process(q, &now->processes[i], find_process(before, &now->processes[i]));
}

/* ---- for programs ---- */

static void json_row(const struct top_process *p, const struct top_row *r, const struct change *c)
{
	struct gantry_json j;

	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "kind", kind_names[r->kind]);
	gantry_json_int(&j, "pid", p->pid);
	gantry_json_str(&j, "id", r->id);
	gantry_json_str(&j, "peer", r->peer);
	gantry_json_int(&j, "lanes", r->lanes);
	gantry_json_num(&j, "seconds", c->seconds);
	gantry_json_uint(&j, "sent_bytes", (uint64_t)r->sent);
	gantry_json_uint(&j, "received_bytes", (uint64_t)r->received);
	gantry_json_num(&j, "sent_per_s", c->sent);
	gantry_json_num(&j, "received_per_s", c->received);
	gantry_json_uint(&j, "sends", (uint64_t)r->flying[1]);
	gantry_json_uint(&j, "receives", (uint64_t)r->flying[0]);
	gantry_json_str(&j, "waits_for", r->waits_for);
	gantry_json_uint(&j, "retransmits", (uint64_t)r->retransmits);
	gantry_json_open(&j, "waited_s", '{');
	for (int i = 0; i < r->ncauses; i++)
		gantry_json_num(&j, r->causes[i].name, r->causes[i].seconds);
	gantry_json_close(&j, '}');
	gantry_json_end(&j);
}

static void json_process(const struct request *q, const struct top_process *p, const struct top_process *before)
{
	struct gantry_json j;

	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "kind", "process");
	gantry_json_int(&j, "pid", p->pid);
	gantry_json_bool(&j, "answers", p->answered);
	gantry_json_str(&j, "host", p->host);
	gantry_json_str(&j, "program", p->program);
	gantry_json_int(&j, "rank", p->rank);
	gantry_json_str(&j, "version", p->version);
	gantry_json_end(&j);
	for (size_t i = 0; i < p->nrows; i++) {
		struct change c = change_of(&p->rows[i], find_row(before, &p->rows[i]), between(p, before));

		if (p->rows[i].kind != TOP_LANE || q->lanes)
			json_row(p, &p->rows[i], &c);
	}
}

static void show(const struct request *q, const char *dir, const struct top_look *now, const struct top_look *before)
{
	if (!q->json) {
		if (!q->once && isatty(STDOUT_FILENO))
			printf("\033[H\033[2J");
		print_look(q, dir, now, before);
	}
	for (size_t i = 0; q->json && i < now->n; i++)
		json_process(q, &now->processes[i], find_process(before, &now->processes[i]));
	fflush(stdout);
}

/* A folder that is not there yet has no process in it. */
static int look(const char *dir, struct top_look *ret)
{
	*ret = (struct top_look){0};
	if (top_read(dir, ret) == 0 || errno == ENOENT)
		return 1;
	fprintf(stderr, "gantry top: %s: %s\n", dir, strerror(errno));
	return 0;
}

static int run(const struct request *q, const char *dir)
{
	const struct timespec nap = {(time_t)(q->interval / 1000000000), (long)(q->interval % 1000000000)};
	struct top_look before, now;
	int any = 0, go_on = look(dir, &before);

	if (go_on && q->once && !before.n) { /* there will be no rates to wait for */
		show(q, dir, &before, &before);
		go_on = 0;
	}
	while (go_on) {
		nanosleep(&nap, NULL);
		go_on = look(dir, &now);
		if (go_on)
			show(q, dir, &now, &before);
		any |= now.n > 0;
		top_free(&before);
		before = now;
		go_on &= !q->once && !ferror(stdout);
	}
	top_free(&before);
	return !any;
}

int cmd_top(int argc, char **argv)
{
	struct request q = {.interval = 1000000000};
	int status = options_parse(&command, argc, argv, &q);
	char dir[256];

	if (status)
		return status - 1;
	if (q.dir)
		snprintf(dir, sizeof(dir), "%s", q.dir);
	else if (!inet_stats_dir(dir, sizeof(dir)))
		return options_wrong(&command, "GANTRY_STATS_DIR is off, and no --dir is given");
	return run(&q, dir);
}
