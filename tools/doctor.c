/*
 * `gantry doctor`: options, parameters and printing.
 *
 * Lines that the core logs while it is being examined become findings: warnings
 * anywhere (an unknown GANTRY_ variable), errors while the parameters are read.
 * Later errors are found in gantry_last_error() by whoever called the core, and
 * would be said twice.
 */
#include "doctor.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "cmd.h"
#include "json.h"
#include "suggest.h"

enum { CAPTURED_MAX = 16, NAME_WIDTH = 24, VALUE_WIDTH = 22 };

static const char *const level_names[DOCTOR_LEVELS] = {"ok", "note", "warn", "fail"};

/* Lines caught by capture(). The doctor has one thread, and it starts none of the core's. */
static struct {
	int count;
	struct {
		enum gantry_log_level level;
		char text[1024];
	} lines[CAPTURED_MAX];
} captured;

static void capture(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		    const char *text)
{
	(void)subsys;
	if (level > GANTRY_LOG_WARN) {
		fprintf(stderr, "gantry %s:%d %s\n", file, line, text);
	} else if (captured.count < CAPTURED_MAX) {
		captured.lines[captured.count].level = level;
		snprintf(captured.lines[captured.count++].text, sizeof(captured.lines[0].text), "%s", text);
	}
}

static void say_captured(struct doctor *d, const char *section, const char *name, int with_errors, const char *advice)
{
	for (int i = 0; i < captured.count; i++) {
		int error = captured.lines[i].level == GANTRY_LOG_ERROR;

		if (!error || with_errors)
			doctor_say(d, section, name, error ? DOCTOR_FAIL : DOCTOR_WARN, "", captured.lines[i].text,
				   advice);
	}
	captured.count = 0;
}

static void say_json(const char *section, const char *name, enum doctor_level level, const char *value,
		     const char *detail, const char *advice)
{
	struct json_line j;

	json_begin(&j, stdout);
	json_str(&j, "section", section);
	json_str(&j, "name", name);
	json_str(&j, "level", level_names[level]);
	json_str(&j, "value", value);
	json_str(&j, "detail", detail);
	json_str(&j, "advice", advice);
	json_end(&j);
}

void doctor_say(struct doctor *d, const char *section, const char *name, enum doctor_level level, const char *value,
		const char *detail, const char *advice)
{
	d->counts[level]++;
	if (d->json) {
		say_json(section, name, level, value, detail, advice);
		return;
	}
	if (!d->section || strcmp(d->section, section) != 0)
		printf("%s%s\n", d->section ? "\n" : "", section);
	d->section = section;
	printf("  %-4s  %-*s", level_names[level], NAME_WIDTH, name);
	if (!*detail)
		printf("  %s\n", value);
	else if (strlen(value) <= VALUE_WIDTH)
		printf("  %-*s  %s\n", VALUE_WIDTH, value, detail);
	else /* keeps the details in one column */
		printf("  %s\n%*s%s\n", value, 2 + 4 + 2 + NAME_WIDTH + 2 + VALUE_WIDTH + 2, "", detail);
	if (*advice)
		printf("  %4s  -> %s\n", "", advice);
}

const char *doctor_read_line(const char *path, char *buf, size_t size)
{
	FILE *f = fopen(path, "re");
	const char *got;

	if (!f)
		return NULL;
	got = fgets(buf, (int)size, f);
	fclose(f);
	if (got)
		buf[strcspn(buf, "\n")] = 0;
	return got;
}

static void say_parameters(struct doctor *d)
{
	struct gantry_param_info p;
	char detail[256];

	for (size_t i = 0; i < gantry_param_count(); i++) {
		gantry_param_describe(i, &p);
		snprintf(detail, sizeof(detail), "%s, %s%s%s",
			 p.origin == GANTRY_ORIGIN_ENV ? "environment" : "default", p.type, *p.range ? " " : "",
			 p.range);
		doctor_say(d, "parameters", p.env, DOCTOR_OK, p.value, detail, "");
	}
}

static const char help[] =
	"usage: gantry doctor [OPTION]...\n"
	"What this machine can do, and what to do about the rest.\n\n"
	"  --json             one JSON object per line: section name level value detail advice\n"
	"  --params           only the parameters, with value and origin\n"
	"  --params-markdown  the parameters as the page docs/params.md\n"
	"  --params-man       the parameters as the man page gantry-params(7)\n"
	"  --ifname PATTERN   choose interfaces by this instead of GANTRY_IFNAME\n"
	"  --plugin SPEC      look for this plugin instead of NCCL_NET_PLUGIN\n"
	"  --undo-devmem      only: put back what crashed processes have changed on NICs (needs root)\n"
	"  --help             this text\n\n"
	"Levels: ok, note (good to know), warn (slower or weaker than need be), fail (will not work).\n"
	"Exit status: 0, 1 if anything fails, 2 on wrong usage.\n";

enum { OPT_JSON = 256, OPT_PARAMS, OPT_MARKDOWN, OPT_MAN, OPT_IFNAME, OPT_PLUGIN, OPT_UNDO, OPT_HELP };
static const struct option options[] = {
	{"json", no_argument, NULL, OPT_JSON},
	{"params", no_argument, NULL, OPT_PARAMS},
	{"params-markdown", no_argument, NULL, OPT_MARKDOWN},
	{"params-man", no_argument, NULL, OPT_MAN},
	{"ifname", required_argument, NULL, OPT_IFNAME},
	{"plugin", required_argument, NULL, OPT_PLUGIN},
	{"undo-devmem", no_argument, NULL, OPT_UNDO},
	{"help", no_argument, NULL, OPT_HELP},
	{NULL, 0, NULL, 0},
};

static void examine(struct doctor *d, int only_params)
{
	/* A value that does not parse is the first thing to know; the rest is then examined with the defaults. */
	gantry_params_load(0);
	say_captured(d, "environment", "variable", 1, "correct or unset it");
	if (!only_params) {
		doctor_interfaces(d);
		doctor_limits(d);
		doctor_kernel(d);
		doctor_devmem(d);
		doctor_build(d);
		say_captured(d, "log", "warning", 0, "");
	}
	say_parameters(d);
	if (!d->json)
		printf("\n%d ok, %d to note, %d to improve, %d failed\n", d->counts[DOCTOR_OK], d->counts[DOCTOR_NOTE],
		       d->counts[DOCTOR_WARN], d->counts[DOCTOR_FAIL]);
}

int cmd_doctor(int argc, char **argv)
{
	struct doctor d = {.plugin = getenv("NCCL_NET_PLUGIN")};
	int c, only_params = 0, undo = 0;

	opterr = 0;
	optind = 0;
	while ((c = getopt_long(argc, argv, "+:h", options, NULL)) != -1) {
		switch (c) {
		case OPT_JSON:
			d.json = 1;
			break;
		case OPT_PARAMS:
			only_params = 1;
			break;
		case OPT_MARKDOWN:
			gantry_params_write_markdown(stdout);
			return 0;
		case OPT_MAN:
			gantry_params_write_man(stdout);
			return 0;
		case OPT_IFNAME:
			d.ifname = optarg;
			break;
		case OPT_PLUGIN:
			d.plugin = optarg;
			break;
		case OPT_UNDO:
			undo = 1;
			break;
		case OPT_HELP:
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			return suggest_usage("gantry doctor", options, c, argv[optind - 1]);
		}
	}
	if (optind < argc)
		return suggest_usage("gantry doctor", options, '?', argv[optind]);
	gantry_log_set_sink(capture);
	if (undo) {
		gantry_params_load(0);
		doctor_undo_devmem(&d);
		say_captured(&d, "log", "warning", 0, "");
	} else {
		examine(&d, only_params);
	}
	gantry_log_set_sink(NULL);
	return d.counts[DOCTOR_FAIL] ? 1 : 0;
}
