/* `gantry`: finds the subcommand and hands over. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/build.h"
#include "cmd.h"
#include "suggest.h"

enum { ARGS_MAX = 16 };

static int cmd_help(int argc, char **argv);

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *text;
};

static const struct command commands[] = {
	{"perf", cmd_perf, "measure: bandwidth, latency, CPU time; checks every byte"},
	{"check", cmd_check, "conformance of a net plugin library, rule by rule"},
	{"doctor", cmd_doctor, "what this machine can do, and what to do about the rest"},
	{"stall", cmd_stall, "who waits for whom in a hung job, and who is to blame"},
	{"trace", cmd_trace, "what a job did, as one Chrome or Perfetto picture"},
	{"report", cmd_report, "figures of perf and bench as one page with plots"},
	{"devmem-helper", cmd_devmem_helper, "privileged: binds NICs to GPU memory for other processes"},
	{"help", cmd_help, "this text, or that of a command: gantry help COMMAND"},
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void usage(FILE *f)
{
	fprintf(f, "usage: gantry COMMAND [OPTION]...\n"
		   "GPU-driven networking over plain TCP.\n\n");
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(f, "  %-13s %s\n", commands[i].name, commands[i].text);
	fprintf(f, "\n"
		   "  --version      the version\n"
		   "  --help         this text\n\n"
		   "Parameters are environment variables: gantry doctor --params lists them.\n"
		   "Exit status: 0 fine, 1 the thing examined is not fine, 2 wrong usage.\n");
}

static const struct command *find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int unknown(const char *name)
{
	const char *names[COMMANDS], *near;

	for (size_t i = 0; i < COMMANDS; i++)
		names[i] = commands[i].name;
	near = suggest(name, names, COMMANDS);
	fprintf(stderr, "gantry: unknown command '%s'", name);
	if (near)
		fprintf(stderr, ", did you mean '%s'?\n", near);
	else
		fprintf(stderr, "; gantry help lists them\n");
	return 2;
}

/* `help perf net` becomes `perf net --help`. */
static int cmd_help(int argc, char **argv)
{
	static char help_option[] = "--help";
	const struct command *c;
	char *args[ARGS_MAX + 1];
	int n = 0;

	if (argc < 2 || argv[1][0] == '-' || strcmp(argv[1], "help") == 0) {
		usage(stdout);
		return 0;
	}
	c = find(argv[1]);
	if (!c)
		return unknown(argv[1]);
	for (int i = 1; i < argc && n < ARGS_MAX - 1; i++)
		args[n++] = argv[i];
	args[n++] = help_option;
	args[n] = NULL;
	return c->run(n, args);
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
	const struct command *c;

	if (argc < 2) {
		usage(stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		usage(stdout);
		return 0;
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		printf("gantry %s\n", gantry_build);
		return 0;
	}
	c = find(argv[1]);
	return c ? c->run(argc - 1, argv + 1) : unknown(argv[1]);
}

int main(int argc, char **argv)
{
	return finish(run(argc, argv));
}
