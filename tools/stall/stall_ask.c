/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry stall --ask`: the reports of a job that runs. Ranks write them at moments of their own, up to a second apart, and in
 * a healthy job a rank waits for data that its peer, by the time of its own report, has sent and forgotten. So there
 * are three looks, each a request and the answers to it, and a look ends before the next request is written:
 *
 *   look 1: A  B    look 2: B  A    look 3: A  B
 *
 * An end that waits in all three and has not moved has waited at every moment of look 2, whenever other ranks reported in it.
 * Look 2 is judged, and only such waits count there. Reports from before the request are those of ranks that cannot
 * answer, or of communicators that have ended: they count only for their errors, or if no process answers at all.
 */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "common/array.h"
#include "stall/stall_set.h"

enum { LOOKS = 3, JUDGED = 1 };
enum { FIRST_MS = 3000, LEAST_MS = 1000, MOST_MS = 10000, NAP_MS = 50 }; /* processes look about once a second */

/* A report file at a moment; each report is a new file. */
struct stamp {
	char path[PATH_MAX];
	ino_t ino;
	struct timespec changed;
};

struct stamps {
	struct stamp *all; /* owned */
	size_t n;
};

/* What came of a request. */
struct look {
	struct stall_set set;
	struct stamps answers, old;
};

static const struct stamp *find_stamp(const struct stamps *s, const char *path)
{
	for (size_t i = 0; i < s->n; i++) {
		if (strcmp(s->all[i].path, path) == 0)
			return &s->all[i];
	}
	return NULL;
}

static int is_rank_file(const struct stamp *s)
{
	return fnmatch("*/rank-*.jsonl", s->path, 0) == 0;
}

static void add_stamp(struct stamps *s, const struct stamp *one)
{
	struct stamp *to = ARRAY_ADD(s->all, s->n);

	if (to)
		*to = *one;
}

/* All report files of the folders, as they are now. */
static struct stamps stamp_folders(const struct option_words *folders)
{
	struct stamps s = {0};

	for (int i = 0; i < folders->n; i++) {
		struct dirent **names = NULL;
		int n = scandir(folders->word[i], &names, stall_is_report, alphasort);

		for (int k = 0; k < n; k++) {
			struct stamp one;
			struct stat st;

			snprintf(one.path, sizeof(one.path), "%s/%s", folders->word[i], names[k]->d_name);
			if (stat(one.path, &st) == 0) {
				one.ino = st.st_ino;
				one.changed = st.st_mtim;
				add_stamp(&s, &one);
			}
			free(names[k]);
		}
		free(names);
	}
	return s;
}

/* Whether it was written since `before`. */
static int is_answer(const struct stamps *before, const struct stamp *now)
{
	const struct stamp *was = find_stamp(before, now->path);

	return !was || was->ino != now->ino || was->changed.tv_sec != now->changed.tv_sec ||
	       was->changed.tv_nsec != now->changed.tv_nsec;
}

static int write_request(const struct option_words *folders)
{
	char path[PATH_MAX];
	FILE *f;

	for (int i = 0; i < folders->n; i++) {
		snprintf(path, sizeof(path), "%s/request", folders->word[i]);
		f = fopen(path, "we");
		if (!f || fputs("report\n", f) < 0 || fclose(f)) {
			fprintf(stderr, "gantry stall: %s: %s\n", path, strerror(errno));
			return 0;
		}
	}
	return 1;
}

/* Those of `expected` that have not answered. */
static size_t count_missing(const struct stamps *expected, const struct stamps *before, const struct stamps *now)
{
	size_t n = 0;

	for (size_t i = 0; i < expected->n; i++) {
		const struct stamp *s = find_stamp(now, expected->all[i].path);

		n += !s || !is_answer(before, s);
	}
	return n;
}

/* Waits until the files that changed after the previous request have changed again. Before the first request there are none to
 * expect, so that one waits for as long as a process may take. */
static struct stamps wait_for_answers(const struct option_words *folders, const struct stamps *expected,
				      const struct stamps *before)
{
	uint64_t began = gantry_now_ns(), least = expected ? LEAST_MS : FIRST_MS, ms;
	struct stamps now = {0};

	do {
		nanosleep(&(struct timespec){0, NAP_MS * 1000000}, NULL);
		free(now.all);
		now = stamp_folders(folders);
		ms = (gantry_now_ns() - began) / 1000000;
	} while (ms < least || (expected && ms < MOST_MS && count_missing(expected, before, &now)));
	return now;
}

/* 1: asked, and all answers could be read. expected: the answers to the request before; NULL: this is the first. */
static int take_look(const struct option_words *folders, const struct stamps *expected, struct look *ret)
{
	struct stamps before = stamp_folders(folders), now;
	int good = write_request(folders);

	if (!good) {
		free(before.all);
		return 0;
	}
	now = wait_for_answers(folders, expected, &before);
	for (size_t i = 0; i < now.n; i++) {
		const struct stamp *s = &now.all[i];

		if (is_rank_file(s)) { /* written once, when a rank begins */
			good &= stall_read(&ret->set, s->path);
		} else if (is_answer(&before, s)) {
			add_stamp(&ret->answers, s);
			good &= stall_read(&ret->set, s->path);
		} else {
			add_stamp(&ret->old, s);
		}
	}
	free(before.all);
	free(now.all);
	return good;
}

/* ---- what has moved ---- */

static const struct stall_rank *find_rank(const struct stall_set *set, const char *id, int rank)
{
	const struct stall_comm *c = stall_find_comm(set, id);

	return c ? stall_find(c, rank) : NULL;
}

/* It waits there too, at the same place. */
static int waits_there(const struct stall_rank *r, const struct stall_conn *e)
{
	for (size_t i = 0; r && i < r->nconns; i++) {
		const struct stall_conn *o = &r->conns[i];

		if (o->peer == e->peer && o->send == e->send && o->channel == e->channel)
			return o->waits != STALL_NONE && o->moved == e->moved && o->coll.number == e->coll.number;
	}
	return 0;
}

static uint64_t moved_by(const struct stall_rank *r)
{
	uint64_t sum = (uint64_t)r->collectives;

	for (size_t i = 0; i < r->nconns; i++)
		sum += r->conns[i].moved;
	return sum;
}

static void settle_rank(struct stall_comm *c, struct stall_rank *r, const struct stall_rank *first,
			const struct stall_rank *last)
{
	if (strcmp(r->error, "OK") != 0)
		return; /* it stays as the error found it */
	for (size_t i = 0; i < r->nconns; i++) {
		struct stall_conn *e = &r->conns[i];

		if (!waits_there(first, e) || !waits_there(last, e))
			e->waits = STALL_NONE;
	}
	if (first && last && moved_by(first) == moved_by(last))
		return;
	r->launches = 0; /* they end, and others begin */
	c->moved++;
}

static const struct stall_wait *find_wait(const struct stall_process *p, const struct stall_wait *w)
{
	for (size_t i = 0; p && i < p->nwaits; i++) {
		if (p->waits[i].send == w->send && strcmp(p->waits[i].peer, w->peer) == 0)
			return &p->waits[i];
	}
	return NULL;
}

static void settle_process(struct stall_process *p, const struct stall_process *first, const struct stall_process *last)
{
	size_t kept = 0;

	for (size_t i = 0; i < p->nwaits; i++) {
		const struct stall_wait *end = find_wait(last, &p->waits[i]);

		/* Since before the first report: to the millisecond, which is what there is of it. */
		if (first && end && (double)end->wait_ms + 1 >= ((double)last->time_ns - (double)first->time_ns) / 1e6)
			p->waits[kept++] = p->waits[i];
	}
	p->nwaits = kept;
}

void stall_settle(struct stall_set *set, const struct stall_set *first, const struct stall_set *last)
{
	set->asked = 1;
	for (size_t i = 0; i < set->ncomms; i++) {
		struct stall_comm *c = &set->comms[i];

		for (size_t k = 0; k < c->nreports; k++)
			settle_rank(c, &c->ranks[k], find_rank(first, c->id, c->ranks[k].rank),
				    find_rank(last, c->id, c->ranks[k].rank));
	}
	for (size_t i = 0; i < set->nprocesses; i++) {
		struct stall_process *p = &set->processes[i];

		settle_process(p, stall_find_process(first, p->host, p->pid),
			       stall_find_process(last, p->host, p->pid));
	}
}

/* ---- the command ---- */

static int has_error(const char *path)
{
	struct stall_set one = {0};
	int found = 0;

	if (stall_read(&one, path))
		for (size_t i = 0; i < one.ncomms; i++)
			for (size_t k = 0; k < one.comms[i].nreports; k++)
				found |= strcmp(one.comms[i].ranks[k].error, "OK") != 0;
	stall_free(&one);
	return found;
}

/* Reports from before the request. */
static int take_old(struct look *l)
{
	size_t left = 0;
	int good = 1;

	if (!l->answers.n && l->old.n)
		fprintf(stderr, "gantry stall: no process has answered; this is from reports that were there before\n");
	for (size_t i = 0; i < l->old.n; i++) {
		if (!l->answers.n || has_error(l->old.all[i].path))
			good &= stall_read(&l->set, l->old.all[i].path);
		else
			left++;
	}
	if (left)
		fprintf(stderr, "gantry stall: %s older than the request %s not count\n", COUNT_TEXT(left, "report"),
			left == 1 ? "does" : "do");
	return good;
}

int stall_ask(const struct option_words *folders, struct stall_set *ret)
{
	struct look looks[LOOKS] = {0};
	int good = 1;

	for (int i = 0; i < LOOKS && good; i++)
		good = take_look(folders, i ? &looks[i - 1].answers : NULL, &looks[i]);
	stall_settle(&looks[JUDGED].set, &looks[0].set, &looks[LOOKS - 1].set);
	good &= take_old(&looks[JUDGED]);
	if (good && !looks[JUDGED].answers.n && !looks[JUDGED].old.n) {
		fprintf(stderr, "gantry stall: %s has no files stall-*.jsonl\n", folders->word[0]);
		good = 0;
	}
	*ret = looks[JUDGED].set;
	for (int i = 0; i < LOOKS; i++) {
		if (i != JUDGED)
			stall_free(&looks[i].set);
		free(looks[i].answers.all);
		free(looks[i].old.all);
	}
	return good;
}
