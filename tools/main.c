/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry`: finds the command, and the operation of `gantry perf`, and hands over. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/build.h"
#include "base/log.h"
#include "common/cmd.h"
#include "common/options.h"

enum { ARGS_MAX = 16, NAMES_MAX = 24 };

static int cmd_help(int argc, char **argv);
static int cmd_perf(int argc, char **argv);

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *text;
};

/* What can be named at one place of the command line. */
struct menu {
	const char *head, *tail; /* of the help, around the list */
	int width;
	const char *unknown, *lister; /* error text for an unknown word, and the command that lists them */
	struct command commands[NAMES_MAX];
};

static const struct menu top = {
	.head = "usage: gantry COMMAND [OPTION]...\n"
		"GPU-driven networking over plain TCP.\n\n",
	.tail = "\n"
		"  --version      the version\n"
		"  --help         this text\n\n"
		"Parameters are environment variables: gantry doctor --params lists them.\n"
		"Exit status: 0 fine, 1 the thing examined is not fine, 2 wrong usage.\n",
	.width = 13,
	.unknown = "gantry: unknown command",
	.lister = "gantry help",
	.commands = {{"perf", cmd_perf, "measure: bandwidth, latency, CPU time; checks every byte"},
		     {"check", cmd_check, "conformance of a net plugin library, rule by rule"},
		     {"doctor", cmd_doctor, "what this machine can do, and what to do about the rest"},
		     {"run", cmd_run, "a program that uses NCCL, on Gantry's libnccl.so.2"},
		     {"reducer", cmd_reducer, "adds up what ranks send, for jobs with GANTRY_REDUCERS (collNet)"},
		     {"top", cmd_top, "what running processes move and wait for, live"},
		     {"stall", cmd_stall, "find the rank that a hung job waits for"},
		     {"trace", cmd_trace, "what a job did, as one Chrome or Perfetto picture"},
		     {"report", cmd_report, "figures of perf and bench as one page with plots"},
		     {"devmem-helper", cmd_devmem_helper, "privileged: binds NICs to GPU memory for other processes"},
		     {"help", cmd_help, "this text, or that of a command: gantry help COMMAND"}},
};

static const struct menu perf = {
	.head = "usage: gantry perf OP [OPTION]...\n\n",
	.tail = "\ngantry perf OP --help lists the options of an OP.\n",
	.width = 14,
	.unknown = "gantry perf: unknown OP",
	.lister = "gantry perf --help",
	.commands = {{"net", cmd_perf_net, "isend and irecv of a net plugin between two processes"},
		     {"sendrecv", cmd_perf_sendrecv,
		      "sends and receives of Gantry's own communicator, over any of its transports"},
		     {"all_reduce", cmd_perf_coll, "collectives of the communicator, with nccl-tests' columns:"},
		     {"reduce", cmd_perf_coll, "to one rank"},
		     {"broadcast", cmd_perf_coll, "from one rank"},
		     {"all_gather", cmd_perf_coll, "every rank's part, to all"},
		     {"reduce_scatter", cmd_perf_coll, "a part of the result to each rank"},
		     {"all_to_all", cmd_perf_coll, "a part from each rank to each"},
		     {"gather", cmd_perf_coll, "every rank's part, to one rank"},
		     {"scatter", cmd_perf_coll, "a part to each rank, from one rank"},
		     {"barrier", cmd_perf_coll, "nothing but waiting for all ranks"},
		     {"collectives", cmd_perf_coll, "all of these, one after the other"},
		     {"put", cmd_perf_coll, "one-sided: each rank into the next one's window"},
		     {"gin", cmd_perf_gin, "puts and signals by kernels themselves (gantry/kernel.h)"},
		     {"fifo", cmd_perf_fifo, "what a kernel and the progress thread cost each other, without payload"},
		     {"rx", cmd_perf_rx, "the pipeline of gantry/rx.h, beside plain TCP and the bus"},
		     {"unpack", cmd_perf_unpack,
		      "fragments of received pages to where they belong, beside NCCL's loop and a copy"}},
};

static int show(const struct menu *m, FILE *f)
{
	fputs(m->head, f);
	for (const struct command *c = m->commands; c->name; c++)
		fprintf(f, "  %-*s %s\n", m->width, c->name, c->text);
	fputs(m->tail, f);
	return f == stdout ? 0 : 2;
}

static int is_help(const char *word)
{
	return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* argv[0] names it. */
static int run_named(const struct menu *m, int argc, char **argv)
{
	const char *names[NAMES_MAX] = {"help"};
	size_t n = 1;

	for (const struct command *c = m->commands; c->name; c++) {
		if (strcmp(c->name, argv[0]) == 0)
			return c->run(argc, argv);
		names[n++] = c->name;
	}
	return options_unknown(m->unknown, argv[0], names, n, m->lister);
}

/* `help perf net` becomes `perf net --help`: argv[0] is "help". */
static int run_help(const struct menu *m, int argc, char **argv)
{
	static char option[] = "--help";
	char *args[ARGS_MAX + 1];
	int n = 0;

	if (argc < 2 || argv[1][0] == '-' || strcmp(argv[1], "help") == 0)
		return show(m, stdout);
	for (int i = 1; i < argc && n < ARGS_MAX - 1; i++)
		args[n++] = argv[i];
	args[n++] = option;
	args[n] = NULL;
	return run_named(m, n, args);
}

static int cmd_help(int argc, char **argv)
{
	return run_help(&top, argc, argv);
}

static int cmd_perf(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "gantry perf: no OP given\n");
		return show(&perf, stderr);
	}
	gantry_log_failures_are_told(1); /* each of them prints its failure itself */
	if (is_help(argv[1]))
		return show(&perf, stdout);
	if (strcmp(argv[1], "help") == 0)
		return run_help(&perf, argc - 1, argv + 1);
	return run_named(&perf, argc - 1, argv + 1);
}

/*
 * Output that was lost, on a full disk say, is an error of every command: a script must not take half a table for a
 * whole one. An earlier write may have failed, so errno is known only if it is the last one. A standard output that was
 * closed from the beginning is no error for those that print nothing.
 */
static int finish(int status)
{
	int why = fflush(stdout) ? errno : 0, lost = why || ferror(stdout);

	if (fclose(stdout) && errno != EBADF) {
		lost = 1;
		why = why ? why : errno;
	}
	if (!lost)
		return status;
	fprintf(stderr, "gantry: the output is not complete: standard output: %s\n",
		why ? strerror(why) : "a write failed; is the disk full?");
	return status ? status : 1;
}

static int run(int argc, char **argv)
{
	if (argc < 2)
		return show(&top, stderr);
	if (is_help(argv[1]))
		return show(&top, stdout);
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		printf("gantry %s\n", gantry_build);
		return 0;
	}
	return run_named(&top, argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
	return finish(run(argc, argv));
}
