/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry doctor`: options, the verdict and printing.
 *
 * Lines that the core logs while it is being examined become findings if they are warnings. Errors are taken from
 * gantry_last_error() by the caller of the core, and would be reported twice.
 */
#include "doctor/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/param.h"
#include "common/array.h"
#include "common/cmd.h"
#include "common/options.h"

enum { CAPTURED_MAX = 16, NAME_WIDTH = 24, VALUE_WIDTH = 22 };

static const char *const level_names[DOCTOR_LEVELS] = {"ok", "note", "warn", "fail"};
static const char *const level_colours[DOCTOR_LEVELS] = {"\033[32m", "\033[36m", "\033[33m", "\033[31m"};
static const char bold[] = "\033[1m", plain[] = "\033[0m";

static const char *const use_names[DOCTOR_USES] = {
	[DOCTOR_LOOPBACK] = "loopback", [DOCTOR_HOSTS] = "other hosts", [DOCTOR_PLUGIN] = "NCCL plugin",
	[DOCTOR_GPU] = "GPU",		[DOCTOR_DEVMEM] = "devmem",	[DOCTOR_AUTH] = "authentication",
};

/* Lines caught by capture(). The doctor has one thread, and it starts none of the core's. */
static struct {
	int count;
	char lines[CAPTURED_MAX][1024];
} captured;

static void capture(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		    const char *text)
{
	(void)file, (void)line;
	if (level > GANTRY_LOG_WARN)
		fprintf(stderr, "gantry %s: %s\n", gantry_log_subsys_name(subsys), text);
	else if (level == GANTRY_LOG_WARN && captured.count < CAPTURED_MAX)
		snprintf(captured.lines[captured.count++], sizeof(captured.lines[0]), "%s", text);
}

static void say_captured(struct doctor *d, const char *section, const char *name, const char *advice)
{
	for (int i = 0; i < captured.count; i++)
		doctor_say(d, section, name, DOCTOR_WARN, "", captured.lines[i], advice);
	captured.count = 0;
}

char *doctor_copy(const char *text)
{
	char *c = strdup(text);

	if (!c) {
		fprintf(stderr, "gantry doctor: out of memory\n");
		exit(1);
	}
	return c;
}

void doctor_say(struct doctor *d, const char *section, const char *name, enum doctor_level level, const char *value,
		const char *detail, const char *advice)
{
	struct doctor_finding *f = ARRAY_ADD(d->findings, d->count);

	if (!f) {
		fprintf(stderr, "gantry doctor: out of memory\n");
		exit(1);
	}
	*f = (struct doctor_finding){
		.level = level,
		.section = section,
		.name = doctor_copy(name),
		.value = doctor_copy(value),
		.detail = doctor_copy(detail),
		.advice = doctor_copy(advice),
	};
	d->counts[level]++;
}

void doctor_can(struct doctor *d, enum doctor_use use, int ready, const char *why)
{
	if (d->uses[use].asked && (d->uses[use].ready || !ready))
		return;
	d->uses[use].asked = 1;
	d->uses[use].ready = ready;
	snprintf(d->uses[use].why, sizeof(d->uses[use].why), "%s", why);
}

void doctor_block(struct doctor *d, const char *why)
{
	if (!*d->blocked)
		snprintf(d->blocked, sizeof(d->blocked), "%s", why);
}

const char *doctor_text(char buf[DOCTOR_TEXT], const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(buf, DOCTOR_TEXT, fmt, args);
	va_end(args);
	return buf;
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

/* ---- printing ---- */

static int wants_colour(void)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

static void print_json_line(const char *section, const char *name, enum doctor_level level, const char *value,
			    const char *detail, const char *advice)
{
	struct gantry_json j;

	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "section", section);
	gantry_json_str(&j, "name", name);
	gantry_json_str(&j, "level", level_names[level]);
	gantry_json_str(&j, "value", value);
	gantry_json_str(&j, "detail", detail);
	gantry_json_str(&j, "advice", advice);
	gantry_json_end(&j);
}

static void print_json(const struct doctor *d)
{
	for (int u = 0; u < DOCTOR_USES; u++)
		if (d->uses[u].asked)
			print_json_line("verdict", use_names[u], d->uses[u].ready ? DOCTOR_OK : DOCTOR_NOTE,
					d->uses[u].ready ? "ready" : "not ready", d->uses[u].why, "");
	for (size_t i = 0; i < d->count; i++) {
		const struct doctor_finding *f = &d->findings[i];

		print_json_line(f->section, f->name, f->level, f->value, f->detail, f->advice);
	}
}

/* Uses that lack the same thing share a line. */
static void print_not_ready(const struct doctor *d, int colour)
{
	int said[DOCTOR_USES] = {0}, lines = 0;

	for (int u = 0; u < DOCTOR_USES; u++) {
		if (!d->uses[u].asked || d->uses[u].ready || said[u])
			continue;
		printf("%s%-10s%s %s", colour ? level_colours[DOCTOR_WARN] : "",
		       lines++ ? "" : "not for:", colour ? plain : "", use_names[u]);
		for (int v = u + 1; v < DOCTOR_USES; v++)
			if (d->uses[v].asked && !d->uses[v].ready && strcmp(d->uses[u].why, d->uses[v].why) == 0) {
				said[v] = 1;
				printf(", %s", use_names[v]);
			}
		printf(", because %s\n", d->uses[u].why);
	}
}

static void print_verdict(const struct doctor *d, int colour)
{
	int n = 0;

	printf("%s%-10s%s", colour ? level_colours[DOCTOR_OK] : "", "ready for:", colour ? plain : "");
	for (int u = 0; u < DOCTOR_USES; u++)
		if (d->uses[u].asked && d->uses[u].ready)
			printf("%s%s%s%s%s", n++ ? ", " : " ", use_names[u], *d->uses[u].why ? " (" : "",
			       d->uses[u].why, *d->uses[u].why ? ")" : "");
	printf("%s\n", n ? "" : " nothing");
	print_not_ready(d, colour);
	printf("\n");
}

static void print_finding(const struct doctor_finding *f, int colour)
{
	printf("  %s%-4s%s  %-*s", colour ? level_colours[f->level] : "", level_names[f->level], colour ? plain : "",
	       NAME_WIDTH, f->name);
	if (!*f->detail)
		printf("  %s\n", f->value);
	else if (strlen(f->value) <= VALUE_WIDTH)
		printf("  %-*s  %s\n", VALUE_WIDTH, f->value, f->detail);
	else /* keeps the details in one column */
		printf("  %s\n%*s%s\n", f->value, 2 + 4 + 2 + NAME_WIDTH + 2 + VALUE_WIDTH + 2, "", f->detail);
	if (*f->advice)
		printf("  %4s  -> %s\n", "", f->advice);
}

static void print_text(const struct doctor *d, int verdict)
{
	const char *section = NULL;
	int colour = wants_colour();

	if (verdict)
		print_verdict(d, colour);
	for (size_t i = 0; i < d->count; i++) {
		const struct doctor_finding *f = &d->findings[i];

		if (!section || strcmp(section, f->section) != 0)
			printf("%s%s%s%s\n", section ? "\n" : "", colour ? bold : "", f->section, colour ? plain : "");
		section = f->section;
		print_finding(f, colour);
	}
	if (verdict)
		printf("\n%d ok, %d to note, %d to improve, %d failed\n", d->counts[DOCTOR_OK], d->counts[DOCTOR_NOTE],
		       d->counts[DOCTOR_WARN], d->counts[DOCTOR_FAIL]);
}

static void free_findings(struct doctor *d)
{
	for (size_t i = 0; i < d->count; i++) {
		struct doctor_finding *f = &d->findings[i];

		free(f->name);
		free(f->value);
		free(f->detail);
		free(f->advice);
	}
	free(d->findings);
	for (size_t i = 0; d->bad && i < gantry_param_count(); i++)
		free(d->bad[i]);
	free(d->bad);
}

/* ---- the command ---- */

struct request {
	int json, only_params, markdown, man, undo;
	const char *ifname, *plugin;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line: section name level value detail advice"},
	{0, OPTION_FLAG, "params", AT(only_params), 0, 0, NULL, NULL, "only the parameters, all of them, with value and origin"},
	{0, OPTION_FLAG, "params-markdown", AT(markdown), 0, 0, NULL, NULL, "the parameters as the page docs/params.md"},
	{0, OPTION_FLAG, "params-man", AT(man), 0, 0, NULL, NULL, "the parameters as the man page gantry-params(7)"},
	{0, OPTION_TEXT, "ifname", AT(ifname), 0, 0, NULL, "PATTERN", "choose interfaces by this instead of GANTRY_IFNAME"},
	{0, OPTION_TEXT, "plugin", AT(plugin), 0, 0, NULL, "SPEC", "look for this plugin instead of NCCL_NET_PLUGIN"},
	{0, OPTION_FLAG, "undo-devmem", AT(undo), 0, 0, NULL, NULL, "only: put back what crashed processes have changed on NICs (needs root)"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry doctor",
	.about = "What this machine is ready for, what it is not and why, and what to do about it.\n",
	.notes = "\nLevels: ok, note (good to know), warn (slower or weaker than need be), fail (will not work).\n"
		 "Coloured on a terminal, unless NO_COLOR is set.\n"
		 "Exit status: 0, 1 if anything fails, 2 on wrong usage.\n",
	OPTION_SPECS(specs),
	.keep_params = 1, /* those that are wrong are findings */
};

static void examine(struct doctor *d)
{
	doctor_interfaces(d);
	doctor_gpu(d);
	doctor_build(d);
	doctor_plugin(d);
	doctor_limits(d);
	doctor_kernel(d);
	doctor_devmem(d);
	say_captured(d, "log", "warning", "");
}

static int run(struct doctor *d, const struct request *q)
{
	int status;

	gantry_log_set_sink(capture);
	doctor_load_params(d);
	say_captured(d, "environment", "variable", "correct or unset it");
	if (q->undo) {
		doctor_undo_devmem(d);
		say_captured(d, "log", "warning", "");
	} else {
		if (!q->only_params)
			examine(d);
		doctor_params(d, q->only_params);
	}
	gantry_log_set_sink(NULL);
	for (int u = 0; *d->blocked && u < DOCTOR_USES; u++) {
		d->uses[u].ready = 0;
		memcpy(d->uses[u].why, d->blocked, sizeof(d->blocked));
	}
	if (q->json)
		print_json(d);
	else
		print_text(d, !q->undo && !q->only_params);
	status = d->counts[DOCTOR_FAIL] ? 1 : 0;
	free_findings(d);
	return status;
}

int cmd_doctor(int argc, char **argv)
{
	struct request q = {.plugin = getenv("NCCL_NET_PLUGIN")};
	int status = options_parse(&set, argc, argv, &q);
	struct doctor d = {.ifname = q.ifname, .plugin = q.plugin};

	if (status)
		return status - 1;
	if (q.markdown)
		gantry_params_write_markdown(stdout);
	else if (q.man)
		gantry_params_write_man(stdout);
	else
		status = run(&d, &q);
	return status;
}
