/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `gantry perf` shows: header, columns, rows and closing line, for people and as JSON; and when the rest of the
 * machine makes the figures worthless.
 */
#include <math.h>

#include "json_read.h"
#include "perf_table.h"
#include "perf_util.h"
#include "test.h"

struct row {
	uint64_t bytes, wrong;
	struct perf_spread bw;
	double cpu;
	char word[16];
	const char *name;
};

#define FIELD(field) offsetof(struct row, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 8, FIELD(bytes)},
	{"bandwidth", "(GB/s)", "bw_gbs", PERF_SPREAD, 7, FIELD(bw)},
	{"cpu", "(s/GB)", "cpu_s_per_gb", PERF_FIGURE, 8, FIELD(cpu)},
	{"via", "", "transport", PERF_WORD, -6, FIELD(word)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(name)},
	{"only", "", NULL, PERF_NAME, 5, FIELD(name)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(wrong)},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]) };

static const struct row right = {64, 0, {0.0123456, 1.5, 12.3456}, NAN, "shm", "host"};
static const struct row wrong = {1048576, 3, {NAN, NAN, NAN}, 123.456, "net", "cuda"};

/* Everything that a table with these rows prints; owned by the caller. */
static char *print(int json, int unchecked, const struct row *rows, int n, int failed, int *ret_status)
{
	struct perf_table t = {.op = "net", .json = json, .unchecked = unchecked};
	char *text = NULL;
	size_t len;

	t.out = open_memstream(&text, &len);
	CHECK(t.out);
	perf_table_begin(&t, "gantry perf net -b 64", "what is measured");
	perf_fact_text(&t, "device_name", "lo");
	perf_fact_int(&t, "depth", 8);
	perf_fact_bool(&t, "registered", 1);
	perf_table_note(&t, "a note");
	perf_table_columns(&t, columns, COLUMNS);
	/* Whoever waits for the first row sees the heads. */
	CHECK_HAS(text, json ? "\"depth\": 8" : "bandwidth");
	for (int i = 0; i < n; i++)
		perf_table_row(&t, &rows[i]);
	*ret_status = perf_table_end(&t, failed, NULL);
	CHECK_EQ(perf_table_end(&t, failed, NULL), *ret_status); /* and prints nothing more */
	fclose(t.out);
	return text;
}

static const char *line(const char *text, int number)
{
	while (number-- > 0) {
		text = strchr(text, '\n');
		CHECK(text);
		text++;
	}
	return text;
}

static void starts_with(const char *text, const char *want)
{
	char got[512];

	snprintf(got, sizeof(got), "%.*s", (int)strlen(want), text);
	CHECK_STR(got, want);
}

static void line_is(const char *text, int number, const char *want)
{
	char got[512];
	const char *p = line(text, number);

	snprintf(got, sizeof(got), "%.*s", (int)strcspn(p, "\n"), p);
	CHECK_STR(got, want);
}

static const char *last_line(const char *text)
{
	const char *last = text;

	for (const char *p = text; *p; p++)
		if (*p == '\n' && p[1])
			last = p + 1;
	return last;
}

TEST(for_people)
{
	const struct row rows[] = {right, wrong};
	int status, at = 5;
	char *text = print(0, 0, rows, 2, 0, &status);

	line_is(text, 0, "# gantry perf net -b 64");
	line_is(text, 1, "# what is measured");
	starts_with(line(text, 2), "# host: ");
	CHECK_HAS(text, "; machine: ");
	CHECK_HAS(text, "commit: ");
	CHECK_HAS(text, "date: 2");
	CHECK_HAS(text, "\n# device name: lo; depth: 8; registered: yes\n# a note\n#\n");
	/* A long name of the machine takes a line more. */
	while (strncmp(line(text, at), "#\n", 2) != 0)
		at++;
	line_is(text, at + 1, "#    size      bandwidth (GB/s)        cpu via     only  #wrong");
	line_is(text, at + 2, "#     (B)     min  median     max   (s/GB)                  (B)");
	line_is(text, at + 3, "       64 0.01235   1.500   12.35        - shm     host       0");
	line_is(text, at + 4, "  1048576       -       -       -    123.5 net     cuda       3");
	CHECK_STR(last_line(text), "# wrong bytes: 3; FAILED\n");
	CHECK_EQ(status, 1);
	free(text);

	text = print(0, 0, rows, 1, 0, &status);
	CHECK_STR(last_line(text), "# wrong bytes: 0; OK\n");
	CHECK_EQ(status, 0);
	free(text);
	text = print(0, 0, rows, 1, 1, &status);
	CHECK_STR(last_line(text), "# wrong bytes: 0; FAILED\n");
	CHECK_EQ(status, 1);
	free(text);
	text = print(0, 1, rows, 1, 0, &status);
	CHECK_STR(last_line(text), "# wrong bytes: not checked; OK\n");
	CHECK_HAS(text, "N/A");
	CHECK_EQ(status, 0);
	free(text);
}

/* The number-th line is an object. Parsing writes into its text. */
static void check_object(const char *text, int number)
{
	const char *p = line(text, number);
	char *copy = strndup(p, strcspn(p, "\n"));
	struct json_doc doc = {0};

	CHECK(copy);
	CHECK_EQ(json_parse(copy, strlen(copy), &doc), 0);
	CHECK_EQ(doc.values[0].type, JSON_OBJECT);
	json_free(&doc);
	free(copy);
}

TEST(as_json)
{
	const struct row rows[] = {right, wrong};
	int status;
	char *text = print(1, 0, rows, 2, 0, &status);

	for (int i = 0; i < 4; i++)
		check_object(text, i);
	CHECK_EQ(status, 1);
	starts_with(text, "{\"op\": \"net\", \"command\": \"gantry perf net -b 64\", ");
	CHECK_HAS(text, "\"machine\": \"");
	CHECK_HAS(text, "\"device_name\": \"lo\", \"depth\": 8, \"registered\": true}\n");
	line_is(text, 1,
		"{\"bytes\": 64, \"bw_gbs\": 1.5, \"bw_gbs_min\": 0.0123456, \"bw_gbs_max\": 12.3456, "
		"\"cpu_s_per_gb\": null, "
		"\"transport\": \"shm\", \"device\": \"host\", \"wrong\": 0}");
	line_is(text, 2,
		"{\"bytes\": 1048576, \"bw_gbs\": null, \"bw_gbs_min\": null, \"bw_gbs_max\": null, \"cpu_s_per_gb\": "
		"123.456, "
		"\"transport\": \"net\", \"device\": \"cuda\", \"wrong\": 3}");
	starts_with(last_line(text), "{\"wrong_bytes\": 3, \"ok\": false, \"cpus\": ");
	CHECK_HAS(last_line(text), "\"warning\": ");
	free(text);
	text = print(1, 1, rows, 1, 0, &status);
	starts_with(last_line(text), "{\"wrong_bytes\": null, \"ok\": true, ");
	CHECK_EQ(status, 0);
	free(text);
}

/* An operation that fails before its header has said why on stderr: nothing follows. */
TEST(without_header)
{
	struct perf_table t = {.op = "net"};
	char *text = NULL;
	size_t len;

	t.out = open_memstream(&text, &len);
	CHECK(t.out);
	CHECK_EQ(perf_table_end(&t, 1, NULL), 1);
	fclose(t.out);
	CHECK_STR(text, "");
	free(text);
}

TEST(spreads)
{
	double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7}, bad[] = {1, NAN, 2};
	struct perf_spread s = perf_spread_of(odd, 3);

	CHECK(s.min == 1 && s.median == 3 && s.max == 5);
	s = perf_spread_scale(s, 2);
	CHECK(s.min == 2 && s.median == 6 && s.max == 10);
	s = perf_spread_of(even, 4);
	CHECK(s.min == 1 && s.median == 2.5 && s.max == 4);
	s = perf_spread_of(one, 1);
	CHECK(s.min == 7 && s.median == 7 && s.max == 7);
	s = perf_spread_of(bad, 3);
	CHECK(isnan(s.min) && isnan(s.median) && isnan(s.max));
	s = perf_spread_of(one, 0);
	CHECK(isnan(s.min) && isnan(s.median) && isnan(s.max));
}

/* user nice system idle iowait irq softirq steal guest guest_nice, in ticks of 10 ms. */
static const char stat_text[] = "cpu  100000 0 0 0 0 0 0 0 0 0\n"
				"cpu0 100 20 30 4000 5 600 700 8 9 9\n"
				"cpu1 1000 200 300 4000 5 600 700 80 9 9\n"
				"cpu2 7 7 7 7\n" /* as an old kernel has it */
				"intr 12345 100 200\n";

TEST(readings)
{
	struct perf_cpu_times t;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(1, &cpus);
	perf_load_parse(stat_text, &cpus, 100, &t);
	CHECK_EQ(t.cpus, 1);
	CHECK(t.busy == 15 && t.steal == 0.8);
	CPU_SET(0, &cpus);
	CPU_SET(7, &cpus); /* offline */
	perf_load_parse(stat_text, &cpus, 100, &t);
	CHECK_EQ(t.cpus, 2);
	CHECK(t.busy == 16.5 && fabs(t.steal - 0.88) < 1e-9);
	CPU_SET(2, &cpus);
	perf_load_parse(stat_text, &cpus, 100, &t);
	CHECK_EQ(t.cpus, 3);
	CHECK(fabs(t.busy - 16.71) < 1e-9 && fabs(t.steal - 0.88) < 1e-9);
	perf_load_parse("", &cpus, 100, &t);
	CHECK_EQ(t.cpus, 0);
	/* The real one. */
	perf_load_read(&t);
	CHECK(t.cpus >= 1 && t.busy > 0 && t.wall > 0);
}

static struct perf_load load_of(double busy, double steal, double ours, double wall)
{
	const struct perf_cpu_times from = {.busy = 1000, .steal = 50, .ours = 3, .wall = 77, .cpus = 2};
	struct perf_cpu_times to = from;

	to.busy += busy;
	to.steal += steal;
	to.ours += ours;
	to.wall += wall;
	return perf_load_between(&from, &to);
}

static void warns(double busy, double steal, double ours, double wall, const char *want)
{
	struct perf_load load = load_of(busy, steal, ours, wall);
	char text[256];

	CHECK_EQ(perf_load_warning(&load, text, sizeof(text)), want[0] != 0);
	CHECK_STR(text, want);
}

TEST(loads)
{
	struct perf_load load = load_of(20, 1, 15, 10);

	CHECK_EQ(load.cpus, 2);
	CHECK(fabs(load.others - 0.5) < 1e-9 && fabs(load.steal - 0.1) < 1e-9);
	load = load_of(14.9, 0, 15, 10); /* rounded */
	CHECK(load.others == 0 && load.steal == 0);
	load = load_of(1, 0, 0, 0.1); /* too short for ticks */
	CHECK(isnan(load.others) && isnan(load.steal));

	warns(20, 0, 20, 10, "");
	warns(20, 0, 16.1, 10, "");
	warns(20, 0.9, 20, 10, "");
	warns(1, 1, 0, 0.1, "");
	warns(20, 0, 3, 10, "other processes used 1.7 of 2 CPUs while this was measured: the figures mean little");
	warns(20, 0, 16, 10, "other processes used 0.4 of 2 CPUs while this was measured: the figures mean little");
	warns(15, 6, 15, 10, "the hypervisor took 0.6 of 2 CPUs while this was measured: the figures mean little");
	warns(15, 5, 5, 10,
	      "other processes used 1.0 and the hypervisor took 0.5 of 2 CPUs while this was measured: the figures "
	      "mean "
	      "little");
}
