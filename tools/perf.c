/* `gantry perf OP`: one file per OP. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cmd.h"
#include "suggest.h"

struct op {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *text;
};

static const struct op ops[] = {
	{"net", cmd_perf_net, "isend and irecv of a net plugin between two processes"},
	{"sendrecv", cmd_perf_sendrecv, "sends and receives of Gantry's own communicator, over any of its transports"},
	{"fifo", cmd_perf_fifo, "what a kernel and the progress thread cost each other, without payload"},
	{"rx", cmd_perf_rx, "the pipeline of gantry/rx.h, beside plain TCP and the bus"},
	{"unpack", cmd_perf_unpack, "fragments of received pages to where they belong, beside NCCL's loop and a copy"},
};
enum { OPS = sizeof(ops) / sizeof(ops[0]) };

static void usage(FILE *f)
{
	fprintf(f, "usage: gantry perf OP [OPTION]...\n\n");
	for (size_t i = 0; i < OPS; i++)
		fprintf(f, "  %-8s %s\n", ops[i].name, ops[i].text);
	fprintf(f, "\ngantry perf OP --help lists the options of an OP.\n");
}

static int unknown(const char *name)
{
	const char *names[OPS + 1] = {"help"}, *near;

	for (size_t i = 0; i < OPS; i++)
		names[i + 1] = ops[i].name;
	near = suggest(name, names, OPS + 1);
	fprintf(stderr, "gantry perf: unknown OP '%s'", name);
	if (near)
		fprintf(stderr, ", did you mean '%s'?\n", near);
	else
		fprintf(stderr, "; gantry perf --help lists them\n");
	return 2;
}

static int run_op(int argc, char **argv)
{
	gantry_log_failures_are_told(1); /* each of them prints its failure itself */
	for (size_t i = 0; i < OPS; i++)
		if (strcmp(argv[0], ops[i].name) == 0)
			return ops[i].run(argc, argv);
	return unknown(argv[0]);
}

/* `perf help net` is `perf net --help`. */
static int help(char *op)
{
	static char option[] = "--help";
	char *args[] = {op, option, NULL};

	if (op[0] != '-')
		return run_op(2, args);
	usage(stdout);
	return 0;
}

int cmd_perf(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "gantry perf: an OP is missing\n");
		usage(stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
	    (strcmp(argv[1], "help") == 0 && argc == 2)) {
		usage(stdout);
		return 0;
	}
	if (strcmp(argv[1], "help") == 0)
		return help(argv[2]);
	return run_op(argc - 1, argv + 1);
}
