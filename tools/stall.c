/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry stall`: who waits for whom, and who is to blame, from the reports of several ranks. */
#include "stall.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/param_text.h"
#include "cmd.h"
#include "options.h"

enum { EXIT_FINE = 0, EXIT_UNREADABLE = 1 };

struct request {
	int json;
	struct option_words paths;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per communicator, and one for the processes without: verdict rank cause votes reports comm nranks"},
};
/* clang-format on */

static const struct option_set command = {
	.program = "gantry stall",
	.usage = "[OPTION]... FILE|FOLDER...",
	.about = "Puts the reports of the ranks of a hung job together: who waits for whom, and who is to blame.\n"
		 "Of a folder, the files stall-*.jsonl are read, which ranks write to GANTRY_STALL_DIR, and processes "
		 "without one.\n",
	.notes = "\nExit status: 0, 1 if a file cannot be read, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.operand_at = AT(paths),
	.many = 1,
	.keep_params = 1,
};

/* 1: read. */
static int read_file(struct stall_set *set, const char *path)
{
	char why[PATH_MAX + 256];

	stall_next_file(set);
	if (!json_read_lines(path, stall_take, set, why, sizeof(why)))
		return 1;
	fprintf(stderr, "gantry stall: %s\n", why);
	return 0;
}

static int is_report(const struct dirent *e)
{
	return fnmatch("stall-*.jsonl", e->d_name, 0) == 0;
}

/* 1: all of its files were read, and there were some. */
static int read_folder(struct stall_set *set, const char *folder)
{
	struct dirent **names = NULL;
	int n = scandir(folder, &names, is_report, alphasort), good = 1;
	char path[PATH_MAX];

	if (n < 0)
		fprintf(stderr, "gantry stall: %s: %s\n", folder, strerror(errno));
	else if (!n)
		fprintf(stderr, "gantry stall: %s has no files stall-*.jsonl\n", folder);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);
		good &= read_file(set, path);
		free(names[i]);
	}
	free(names);
	return good && n > 0;
}

static int read_any(struct stall_set *set, const char *path)
{
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return read_folder(set, path);
	return read_file(set, path);
}

static int by_rank(const void *a, const void *b)
{
	const struct stall_rank *x = a, *y = b;

	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void print_wait(const struct stall_rank *r, const struct stall_conn *e, FILE *f)
{
	char wait[24] = "-";

	if (e->wait_ms > 0)
		snprintf(wait, sizeof(wait), "%.1f", (double)e->wait_ms / 1e3);
	fprintf(f, "  %6d  %-9s  %4d  %7d  %-9s  %-7s  %-10s  %10lld  %7s\n", r->rank,
		e->send ? "send to" : "recv from", e->peer, e->channel, e->transport, stall_waits_names[e->waits],
		e->connecting ? "connecting" : e->phase, (long long)e->step, wait);
}

void stall_print_waits(const struct stall_comm *c, FILE *f)
{
	int any = 0;

	for (size_t i = 0; i < c->nreports; i++) {
		const struct stall_rank *r = &c->ranks[i];

		for (size_t k = 0; k < r->nconns; k++) {
			if (r->conns[k].waits == STALL_NONE)
				continue;
			if (!any++)
				fprintf(f, "  %6s  %-9s  %4s  %7s  %-9s  %-7s  %-10s  %10s  %7s\n", "rank", "call",
					"peer", "channel", "transport", "waits", "kernel", "step", "since s");
			print_wait(r, &r->conns[k], f);
		}
	}
	for (size_t i = 0; i < c->nreports; i++) {
		if (strcmp(c->ranks[i].error, "OK") != 0)
			fprintf(f, "  rank %d: %s (about rank %d): %s\n", c->ranks[i].rank, c->ranks[i].error,
				c->ranks[i].error_rank, c->ranks[i].text);
	}
}

static void print_verdict(const struct stall_comm *c, const struct stall_verdict *v)
{
	printf("communicator %s: %zu of %s %s a report\n", c->id, c->nreports, COUNT_TEXT(c->nranks, "rank"),
	       c->nreports == 1 ? "has" : "have");
	stall_print_waits(c, stdout);
	printf("verdict (%s, %d of %s %s so): %s\n", v->cause, v->votes, COUNT_TEXT(v->reports, "report"),
	       v->votes == 1 ? "says" : "say", v->text);
}

static void print_verdict_json(const char *comm, int nranks, const struct stall_verdict *v)
{
	struct gantry_json j;

	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "verdict", v->text);
	gantry_json_int(&j, "rank", v->rank);
	gantry_json_str(&j, "cause", v->cause);
	gantry_json_int(&j, "votes", v->votes);
	gantry_json_int(&j, "reports", v->reports);
	gantry_json_str(&j, "comm", comm);
	gantry_json_int(&j, "nranks", nranks);
	gantry_json_end(&j);
}

static void judge_processes(const struct stall_set *set, int json)
{
	struct stall_verdict v;

	stall_judge_processes(set, &v);
	if (json) {
		print_verdict_json("", 0, &v);
		return;
	}
	printf("processes without a communicator: %zu have a report\n", set->nprocesses);
	stall_print_processes(set, stdout);
	printf("verdict (%s, %d of %d reports say so): %s\n", v.cause, v.votes, v.reports, v.text);
}

static int run(const struct request *q)
{
	struct stall_set set = {0};
	struct stall_verdict v;
	int good = 1;

	for (int i = 0; i < q->paths.n; i++)
		good &= read_any(&set, q->paths.word[i]);
	for (size_t i = 0; i < set.ncomms; i++) {
		if (!set.comms[i].nreports)
			continue;
		qsort(set.comms[i].ranks, set.comms[i].nreports, sizeof(set.comms[i].ranks[0]), by_rank);
		stall_judge(&set, i, &v);
		if (q->json)
			print_verdict_json(set.comms[i].id, set.comms[i].nranks, &v);
		else
			print_verdict(&set.comms[i], &v);
	}
	if (set.nprocesses)
		judge_processes(&set, q->json);
	stall_free(&set);
	return good ? EXIT_FINE : EXIT_UNREADABLE;
}

int cmd_stall(int argc, char **argv)
{
	struct request q = {0};
	int status = options_parse(&command, argc, argv, &q);

	if (status)
		return status - 1;
	if (!q.paths.n)
		return options_wrong(&command, "a FILE or FOLDER is missing; gantry stall --help says more");
	return run(&q);
}
