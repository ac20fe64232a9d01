/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry check`: conformance of a net plugin library, rule by rule and version by version. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/param.h"
#include "cmd.h"
#include "options.h"

enum { EXIT_FINE = 0, EXIT_NOT_FINE = 1, EXIT_USAGE = 2, DEFAULT_TIMEOUT_S = 10, RULES_MAX = 128 };

static const struct check_rule *const tables[] = {check_rules_table, check_rules_connect, check_rules_flight,
						  check_rules_data, check_rules_end};
static const char *const verdict_names[] = {"none", "pass", "fail", "skip"};

struct request {
	struct check_options opt;
	int version; /* 0: every one that is exported */
	const char *rule;
	int json, list;
};

struct tally {
	int verdicts[4], versions;
};

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_INT, "version", AT(version), GANTRY_NET_VERSION_MIN, GANTRY_NET_VERSION_MAX, NULL, "N", "this version only (every one that is exported)"},
	{0, OPTION_TEXT, "rule", AT(rule), 0, 0, NULL, "NAME", "this rule only (all)"},
	{0, OPTION_TIME, "timeout", AT(opt.timeout_ns), 1000000000, 0, NULL, "S", "the longest that a rule may take (10s)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line"},
	{0, OPTION_FLAG, "verbose", AT(opt.verbose), 0, 0, NULL, NULL, "show what the plugin prints, also where it passes"},
	{0, OPTION_FLAG, "list", AT(list), 0, 0, NULL, NULL, "only list the rules"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry check",
	.usage = "PLUGIN [--version N] [--rule NAME] [--timeout S] [--json] [--verbose]\n"
		 "       gantry check --list",
	.about =
		"Runs NCCL's side of the net plugin interface against PLUGIN, in two processes with two threads each,\n"
		"at every version it exports. PLUGIN is a path or what NCCL_NET_PLUGIN would hold. See "
		"gantry-check(1).\n",
	.notes = "",
	OPTION_SPECS(specs),
	.operand = "PLUGIN",
	.operand_at = AT(opt.plugin),
	.keep_params = 1,
};

static const struct check_rule *rule_next(size_t *table, size_t *at)
{
	while (*table < sizeof(tables) / sizeof(tables[0])) {
		const struct check_rule *r = &tables[*table][(*at)++];

		if (r->name)
			return r;
		++*table;
		*at = 0;
	}
	return NULL;
}

/* 0, or 2 after a line on stderr: there is no such rule. */
static int check_rule(const char *name)
{
	const char *names[RULES_MAX];
	const struct check_rule *r;
	size_t table = 0, at = 0, n = 0;

	while (n < RULES_MAX && (r = rule_next(&table, &at))) {
		if (strcmp(r->name, name) == 0)
			return 0;
		names[n++] = r->name;
	}
	return options_unknown("gantry check: there is no rule", name, names, n, "gantry check --list");
}

static void list_rules(int json)
{
	const struct check_rule *r;
	size_t table = 0, at = 0;

	while ((r = rule_next(&table, &at))) {
		struct gantry_json j;

		if (!json) {
			printf("%-16s  %s\n", r->name, r->says);
			continue;
		}
		gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
		gantry_json_str(&j, "rule", r->name);
		gantry_json_str(&j, "says", r->says);
		gantry_json_end(&j);
	}
}

static void report(const struct request *q, const char *rule, int version, enum check_verdict v, const char *detail)
{
	struct gantry_json j;

	if (!q->json) {
		printf("%-16s  v%-6d  %-7s  %s\n", rule, version, verdict_names[v], detail);
		fflush(stdout);
		return;
	}
	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "rule", rule);
	gantry_json_int(&j, "version", version);
	gantry_json_str(&j, "verdict", verdict_names[v]);
	gantry_json_str(&j, "detail", detail);
	gantry_json_end(&j);
}

static void run_version(const struct request *q, int version, struct tally *t)
{
	const struct check_rule *r;
	size_t table = 0, at = 0;

	t->versions++;
	while ((r = rule_next(&table, &at))) {
		char detail[CHECK_DETAIL] = "";
		enum check_verdict v;

		if (q->rule && strcmp(q->rule, r->name) != 0)
			continue;
		v = check_run(&q->opt, version, r, detail);
		t->verdicts[v]++;
		report(q, r->name, version, v, detail);
	}
}

static int run_all(const struct request *q)
{
	char detail[CHECK_DETAIL] = "";
	unsigned versions = check_probe(&q->opt, detail);
	uint64_t since = gantry_now_ns();
	struct tally t = {0};

	if (!versions) {
		fprintf(stderr, "gantry check: %s: %s\n", q->opt.plugin, detail);
		return EXIT_USAGE;
	}
	if (!q->json)
		printf("%-16s  %-7s  %-7s  %s\n", "rule", "version", "verdict", "detail");
	if (q->version && !(versions & 1u << q->version)) {
		snprintf(detail, sizeof(detail), "ncclNetPlugin_v%d is not exported", q->version);
		report(q, "symbols", q->version, CHECK_FAIL, detail);
		t.verdicts[CHECK_FAIL]++;
	}
	for (int v = GANTRY_NET_VERSION_MIN; v <= GANTRY_NET_VERSION_MAX; v++)
		if (versions & 1u << v && (!q->version || q->version == v))
			run_version(q, v, &t);
	if (!q->json)
		printf("%s: %d passed, %d failed, %d skipped over %d version%s in %.0f s\n", q->opt.plugin,
		       t.verdicts[CHECK_PASS], t.verdicts[CHECK_FAIL], t.verdicts[CHECK_SKIP], t.versions,
		       t.versions == 1 ? "" : "s", (double)(gantry_now_ns() - since) / 1e9);
	return t.verdicts[CHECK_FAIL] ? EXIT_NOT_FINE : EXIT_FINE;
}

int cmd_check(int argc, char **argv)
{
	struct request q = {.opt.timeout_ns = DEFAULT_TIMEOUT_S * 1000 * (uint64_t)CHECK_MS};
	int status = options_parse(&set, argc, argv, &q);

	if (status)
		return status - 1;
	if (q.rule && check_rule(q.rule))
		return EXIT_USAGE;
	if (q.list) {
		list_rules(q.json);
		return EXIT_FINE;
	}
	if (!q.opt.plugin)
		return options_wrong(&set, "a PLUGIN is missing; gantry check --help says more");
	/* A plugin whose deadline is longer than a rule's would look as if it never reported a dead peer. */
	setenv("GANTRY_TIMEOUT", "3s", 0);
	if (gantry_params_load(0) != GANTRY_OK)
		return EXIT_USAGE;
	return run_all(&q);
}
