/* `gantry trace`: the traces of all ranks as one picture for Chrome or Perfetto, or as a summary. */
#include "trace.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/json.h"
#include "base/trace.h"
#include "cmd.h"
#include "options.h"

enum { EXIT_FINE = 0, EXIT_BAD_FILE = 1 };

struct request {
	const char *output;
	int summary, json;
	struct option_words files;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{'o', OPTION_TEXT, "output", AT(output), 0, 0, NULL, "FILE", "write it there instead of to standard output"},
	{0, OPTION_FLAG, "summary", AT(summary), 0, 0, NULL, NULL, "per connection: transfers, bytes, steps by protocol and mode; no trace unless -o is given"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "the summary as one JSON object per connection"},
};
/* clang-format on */

static const struct option_set command = {
	.program = "gantry trace",
	.usage = "[OPTION]... FILE...",
	.about = "Makes one Chrome trace (chrome://tracing, ui.perfetto.dev) of the files that ranks write to "
		 "GANTRY_TRACE.\n",
	.notes = "\nExit status: 0, 1 if a file cannot be read or written, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.operand_at = AT(files),
	.many = 1,
	.keep_params = 1,
};

static void summary_json(const struct trace_file *f, const struct trace_conn *c, FILE *out)
{
	struct gantry_json j;
	char key[32];

	gantry_json_begin(&j, out, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "comm", f->comm);
	gantry_json_int(&j, "rank", f->rank);
	gantry_json_str(&j, "dir", c->send ? "send" : "recv");
	gantry_json_int(&j, "peer", c->peer);
	gantry_json_int(&j, "channel", c->channel);
	gantry_json_str(&j, "transport", c->transport);
	gantry_json_int(&j, "ops", c->calls);
	gantry_json_int(&j, "bytes", c->bytes);
	gantry_json_int(&j, "copies", c->copies);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			snprintf(key, sizeof(key), "%s %s", gantry_trace_proto_names[p], gantry_trace_mode_names[m]);
			if (c->by[p][m])
				gantry_json_int(&j, key, c->by[p][m]);
		}
	}
	gantry_json_end(&j);
}

static void summary_text(const struct trace_file *f, const struct trace_conn *c, FILE *out)
{
	const char *comma = "";

	fprintf(out, "%6d  %-9s  %6d  %7d  %-9s  %10lld  %14lld  %10lld  ", f->rank, c->send ? "send to" : "recv from",
		c->peer, c->channel, c->transport, (long long)c->calls, (long long)c->bytes, (long long)c->copies);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			if (!c->by[p][m])
				continue;
			fprintf(out, "%s%lld %s %s", comma, (long long)c->by[p][m], gantry_trace_proto_names[p],
				gantry_trace_mode_names[m]);
			comma = ", ";
		}
	}
	fputs(*comma ? "\n" : "-\n", out);
}

void trace_write_summary(const struct trace_set *set, int json, FILE *out)
{
	const char *comm = "";

	for (size_t i = 0; i < set->nfiles; i++) {
		const struct trace_file *f = &set->files[i];

		if (f->rank < 0) {
			if (!json)
				fprintf(out, "%s, pid %lld: no communicator, %zu links, %zu events\n", f->host,
					(long long)f->pid, f->nlinks, f->nevents);
			continue;
		}
		if (!json && strcmp(comm, f->comm) != 0)
			fprintf(out, "communicator %s\n%6s  %-9s  %6s  %7s  %-9s  %10s  %14s  %10s  %s\n", f->comm,
				"rank", "", "peer", "channel", "transport", "ops", "bytes", "copies", "steps");
		comm = f->comm;
		for (size_t k = 0; k < f->nconns; k++) {
			if (json)
				summary_json(f, &f->conns[k], out);
			else
				summary_text(f, &f->conns[k], out);
		}
	}
}

/* 1: written. */
static int write_output(const struct trace_set *set, const char *path)
{
	FILE *f = path ? fopen(path, "we") : stdout;
	int bad;

	if (!f) {
		fprintf(stderr, "gantry trace: %s: %s\n", path, strerror(errno));
		return 0;
	}
	trace_write_chrome(set, f);
	if (!path)
		return 1; /* main sees to standard output */
	errno = 0;
	bad = fflush(f) || ferror(f);
	if (fclose(f))
		bad = 1;
	if (bad)
		fprintf(stderr, "gantry trace: %s: %s\n", path, errno ? strerror(errno) : "a write failed");
	return !bad;
}

/* Ranks of a communicator share its clock, processes without one have the time of day. 1: all files are of a kind. */
static int one_clock(const struct trace_set *set)
{
	for (size_t i = 1; i < set->nfiles; i++) {
		if ((set->files[i].rank < 0) == (set->files[0].rank < 0))
			continue;
		fprintf(stderr,
			"gantry trace: some files are of ranks and some of processes without a communicator, by "
			"different clocks: draw them apart\n");
		return 0;
	}
	return 1;
}

static int run(const struct request *q)
{
	struct trace_set set = {0};
	char why[PATH_MAX + 256];
	int good = 1;

	for (int i = 0; i < q->files.n; i++) {
		if (trace_read(&set, q->files.word[i], why, sizeof(why))) {
			fprintf(stderr, "gantry trace: %s\n", why);
			good = 0;
		}
	}
	if (set.unknown)
		fprintf(stderr, "gantry trace: %zu events of kinds that this version does not know are left out\n",
			set.unknown);
	/* A picture with a rank missing misleads; better none. */
	if (good && (q->output || !(q->summary || q->json)))
		good = one_clock(&set) && write_output(&set, q->output);
	if (good && (q->summary || q->json))
		trace_write_summary(&set, q->json, stdout);
	trace_free(&set);
	return good ? EXIT_FINE : EXIT_BAD_FILE;
}

int cmd_trace(int argc, char **argv)
{
	struct request q = {0};
	int status = options_parse(&command, argc, argv, &q);

	if (status)
		return status - 1;
	if (!q.files.n)
		return options_wrong(&command, "a FILE is missing; gantry trace --help says more");
	return run(&q);
}
