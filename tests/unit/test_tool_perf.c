/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of `gantry perf`: sizes, medians, iteration counts, message contents. */
#include <math.h>

#include "base/text.h"
#include "common/figures.h"
#include "common/json_read.h"
#include "perf/perf_net.h"
#include "perf/perf_rendezvous.h"
#include "perf/perf_rx.h"
#include "perf/perf_table.h"
#include "test.h"

TEST(sizes)
{
	uint64_t s[8];

	CHECK_EQ(perf_sizes(64, 64 << 20, 4, s, 8), 8); /* there are eleven: cut at the room */
	CHECK_EQ(s[7], 64 << 14);
	CHECK_EQ(perf_sizes(1, 1000, 10, s, 8), 4);
	CHECK_EQ(s[3], 1000);
	CHECK_EQ(perf_sizes(7, 7, 2, s, 8), 1);
	CHECK_EQ(s[0], 7);
	CHECK_EQ(perf_sizes(3, 10, 2, s, 8), 2);
	CHECK_EQ(s[1], 6);
	CHECK_EQ(perf_sizes(8, 7, 2, s, 8), 0);
	/* The largest sizes must not wrap around. */
	CHECK_EQ(perf_sizes(UINT64_MAX / 2, UINT64_MAX, 4, s, 8), 1);
}

TEST(medians)
{
	double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, one[] = {7}, bad[] = {1, NAN, 2};

	CHECK(perf_median(odd, 3) == 3);
	CHECK(perf_median(even, 4) == 2.5);
	CHECK(perf_median(one, 1) == 7);
	CHECK(isnan(perf_median(bad, 3)));
	CHECK(isnan(perf_median(one, 0)));
}

TEST(iterations)
{
	CHECK_EQ(perf_next_iters(100, 1000, 2000, 1, 1000), 200);
	CHECK_EQ(perf_next_iters(100, 1000, 500, 1, 1000), 50);
	CHECK_EQ(perf_next_iters(100, 1000, 1000000, 1, 100000), 800); /* at most eightfold */
	CHECK_EQ(perf_next_iters(100, 0, 1000, 1, 100000), 800);
	CHECK_EQ(perf_next_iters(100, 1000000, 1000, 16, 1000), 16);
	CHECK_EQ(perf_next_iters(100, 1000, 8000, 1, 300), 300);
}

/* Every single wrong byte is one, whatever the size and the address. */
TEST(contents)
{
	unsigned char buf[128 + 16];

	for (size_t size = 0; size <= 128; size++) {
		unsigned char *p = buf + size % 9;

		memset(buf, 0xa5, sizeof(buf));
		perf_fill(p, size, 42);
		CHECK_EQ(perf_check(p, size, 42), 0);
		CHECK_EQ(perf_first_wrong(p, size, 42), size);
		CHECK_EQ(p[size], 0xa5); /* nothing beyond the end */
		for (size_t i = 0; i < size; i++) {
			p[i] ^= 1;
			CHECK_EQ(perf_check(p, size, 42), 1);
			CHECK_EQ(perf_first_wrong(p, size, 42), i);
			p[i] ^= 1;
		}
	}
}

/* A message in another's place, an old one and a shifted one are seen as almost all wrong. */
TEST(confusion)
{
	static unsigned char buf[4096 + 8], other[4096];

	perf_fill(buf, 4096, 1);
	CHECK(perf_check(buf, 4096, 2) > 4000);
	CHECK(perf_check(buf, 4088, 1) > 4000);
	memmove(other, buf + 8, 4088);
	CHECK(perf_check(other, 4088, 1) > 4000);
	/* Two words swapped: at most 16 bytes differ, and all of them are likely to. */
	perf_fill(buf, 64, 3);
	memcpy(other, buf + 8, 8);
	memmove(buf + 8, buf + 16, 8);
	memcpy(buf + 16, other, 8);
	CHECK(perf_check(buf, 64, 3) >= 8);
}

TEST(stamps)
{
	unsigned char buf[65];

	for (size_t size = 0; size <= 64; size++) {
		size_t stamped = size < 8 ? size : size < 16 ? 8 : 16;

		memset(buf, 0, sizeof(buf));
		perf_stamp(buf, size, 9);
		CHECK_EQ(perf_stamp_check(buf, size, 9), 0);
		CHECK_EQ(perf_stamp_first_wrong(buf, size, 9), size);
		CHECK_EQ(buf[size], 0);
		for (size_t i = 0; i < size; i++) {
			int seen = i < 8 || (size >= 16 && i >= size - 8);

			buf[i] ^= 1;
			CHECK_EQ(perf_stamp_first_wrong(buf, size, 9), seen ? i : size);
			buf[i] ^= 1;
		}
		memset(buf, 0, sizeof(buf));
		perf_stamp(buf, size, 9);
		for (size_t i = 0; i < size; i++)
			buf[i] = (unsigned char)~buf[i];
		CHECK_EQ(perf_stamp_check(buf, size, 9), stamped);
	}
	perf_stamp(buf, 64, 1);
	CHECK(perf_stamp_check(buf, 64, 2) > 8);
}

TEST(machine)
{
	char text[256];

	perf_machine(text, sizeof(text));
	CHECK_HAS(text, "Linux");
	printf("%s\n", text);
}

/*
 * What `gantry perf` shows: header, columns, rows and closing line, for people and as JSON; and when the rest of the
 * machine makes the figures worthless.
 */

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
	warns(20, 0, 3, 10,
	      "other processes used 1.7 of 2 CPUs during the measurement: these figures are unreliable (the machine is "
	      "busy)");
	warns(20, 0, 16, 10,
	      "other processes used 0.4 of 2 CPUs during the measurement: these figures are unreliable (the machine is "
	      "busy)");
	warns(15, 6, 15, 10,
	      "the hypervisor took 0.6 of 2 CPUs during the measurement: these figures are unreliable (the machine is "
	      "busy)");
	warns(15, 5, 5, 10,
	      "other processes used 1.0 and the hypervisor took 0.5 of 2 CPUs during the measurement: "
	      "these figures are unreliable (the machine is busy)");
}

/*
 * `gantry perf` between two machines: hosts as users write them, options that a client tells, and two sides that do not
 * fit. Catches: a port that is cut off wrongly, options out of range that a listener would believe, a difference of
 * versions or operations that is not told.
 */

/* "10.0.0.2:4000", of the first address; or why not. */
static const char *resolved(const char *text, int *ret_n)
{
	static char out[256];
	struct gantry_addr addrs[GANTRY_ADDRS_MAX];
	char address[GANTRY_ADDR_TEXT];

	*ret_n = 0;
	if (gantry_addr_resolve(text, 77, addrs, ret_n, out, sizeof(out)) == 0)
		snprintf(out, sizeof(out), "%s", gantry_addr_text(&addrs[0], address));
	return out;
}

TEST(hosts)
{
	int n;

	CHECK_STR(resolved("10.0.0.2", &n), "10.0.0.2:77");
	CHECK_EQ(n, 1);
	CHECK_STR(resolved("10.0.0.2:4000", &n), "10.0.0.2:4000");
	CHECK_STR(resolved("fd00::2", &n), "[fd00::2]:77");
	CHECK_STR(resolved("[fd00::2]", &n), "[fd00::2]:77");
	CHECK_STR(resolved("[fd00::2]:4000", &n), "[fd00::2]:4000");
	CHECK_STR(resolved("10.0.0.2,10.1.0.2:5,fd00::2", &n), "10.0.0.2:77");
	CHECK_EQ(n, 3);
	CHECK_HAS(resolved("no-such-host.invalid", &n), "no-such-host.invalid: ");
	CHECK_EQ(n, 0);
	CHECK(gantry_check_host("node7:1"));
	CHECK(!gantry_check_host(""));
	CHECK(!gantry_check_host(":80"));
	CHECK(!gantry_check_host("node7:0"));
	CHECK(!gantry_check_host("node7:65536"));
	CHECK(!gantry_check_host("[::1"));
	CHECK(!gantry_check_host("[::1]80"));
}

/* With one field changed it is not taken. */
#define REFUSED(take, field, value)                                                                                    \
	do {                                                                                                           \
		t = o;                                                                                                 \
		t.field = (value);                                                                                     \
		CHECK_EQ(take(&t, &got), -1);                                                                          \
	} while (0)

TEST(net_options)
{
	static const struct perf_net_work o = {.sizes = {1, 4096},
					       .nsizes = 2,
					       .iters = 9,
					       .timeout_ns = 5,
					       .repeats = 3,
					       .depth = 7,
					       .raw = 1,
					       .check = 1,
					       .lanes = 4};
	static struct perf_opts got;
	struct perf_net_work t = o;

	CHECK_EQ(perf_net_take(&t, &got), 0);
	CHECK_EQ(memcmp(&got.work, &o, sizeof(o)), 0);
	REFUSED(perf_net_take, nsizes, 0);
	REFUSED(perf_net_take, nsizes, PERF_SIZES_MAX + 1);
	REFUSED(perf_net_take, sizes[1], 0);
	REFUSED(perf_net_take, sizes[1], (uint64_t)2 << 40);
	REFUSED(perf_net_take, repeats, 0);
	REFUSED(perf_net_take, repeats, PERF_REPEATS_MAX + 1);
	REFUSED(perf_net_take, depth, PERF_DEPTH_MAX + 1);
	REFUSED(perf_net_take, lanes, 17);
	REFUSED(perf_net_take, timeout_ns, 0);
}

TEST(rx_options)
{
	const struct prx_work o = {.path = -1, .end = 5, .piece_bytes = 8, .stride = 16, .repeats = 2, .timeout_ns = 1};
	struct prx_work t = o;
	struct prx_opts got;

	memset(&got, 0, sizeof(got));
	CHECK_EQ(prx_take(&t, &got), 0);
	CHECK_EQ(memcmp(&got.work, &o, sizeof(o)), 0);
	REFUSED(prx_take, end, 0);
	REFUSED(prx_take, end, (uint64_t)1 << 40);
	REFUSED(prx_take, stride, 7);
	REFUSED(prx_take, piece_bytes, 0);
	REFUSED(prx_take, device, 2);
	REFUSED(prx_take, path, 4);
	REFUSED(prx_take, memory, 3);
	REFUSED(prx_take, repeats, PRX_REPEATS_MAX + 1);
}

/* What a listener makes of a client's card. */
TEST(cards)
{
	const struct perf_remote_opts client = {.host = "10.0.0.1"}, listener = {.listen = 1};
	struct perf_remote c = {.program = "gantry perf net", .opts = &client},
			   l = {.program = "gantry perf net", .opts = &listener};
	struct perf_card card;
	char text[GANTRY_ADDR_TEXT];

	CHECK_OK(gantry_addr_parse("10.0.0.2:999", &c.local));
	CHECK_OK(gantry_addr_parse("10.0.0.1:18520", &c.other));
	perf_remote_make_card(&c, &card);
	CHECK_OK(perf_remote_read_card(&l, &card));
	CHECK_STR(gantry_addr_text(&l.local, text),
		  "10.0.0.1"); /* the ends of the client's connection, from this side */
	CHECK_STR(gantry_addr_text(&l.other, text), "10.0.0.2");
	CHECK_HAS(l.peer, "(10.0.0.2); ");
	snprintf(card.version, sizeof(card.version), "0.0.9");
	CHECK_ERROR(perf_remote_read_card(&l, &card), GANTRY_ERR_VERSION, "has gantry 0.0.9, this side ");
	CHECK_HAS(gantry_last_error(), "install the same version on both");
	perf_remote_make_card(&c, &card);
	snprintf(card.operation, sizeof(card.operation), "gantry perf rx");
	CHECK_ERROR(perf_remote_read_card(&l, &card), GANTRY_ERR_SETTING,
		    "runs gantry perf rx, this side gantry perf net: run the same on both");
	/* Nothing of the other side's words reaches the terminal as it came. */
	perf_remote_make_card(&c, &card);
	snprintf(card.host, sizeof(card.host), "a\033[2Jb\nc");
	CHECK_OK(perf_remote_read_card(&l, &card));
	CHECK(!strchr(l.peer, '\033') && !strchr(l.peer, '\n'));
	memset(card.machine, 'y', sizeof(card.machine)); /* without an end */
	CHECK_OK(perf_remote_read_card(&l, &card));
	memset(&card, 'x', sizeof(card));
	CHECK_EQ(perf_remote_read_card(&l, &card), GANTRY_ERR_PROTOCOL);
}
