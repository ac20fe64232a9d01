/* SPDX-License-Identifier: Apache-2.0 */
/* Loading from the environment: values, ranges, refusals, unknown names, secrets, reloads beside readers. */
#include "base/param.h"

#include "base/text.h"
#include "test.h"

/* Only what a check sets is set: the caller's environment does not matter. */
static void clear_environment(void)
{
	char name[256];

	for (char **e = environ; *e;) {
		if (strncmp(*e, "GANTRY_", 7) == 0) {
			snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
			unsetenv(name);
			e = environ;
		} else {
			e++;
		}
	}
	logs_forget();
}

static struct gantry_param_info describe(const char *env)
{
	struct gantry_param_info info;

	for (size_t i = 0; i < gantry_param_count(); i++) {
		gantry_param_describe(i, &info);
		if (!strcmp(info.env, env))
			return info;
	}
	TEST_FAIL("no parameter %s", env);
}

TEST(check_defaults)
{
	const struct gantry_params *p = gantry_params();

	CHECK_EQ(p->lanes, 0);
	CHECK_EQ(p->helpers, -1);
	CHECK_EQ(p->eager_max, 64 << 10);
	CHECK_EQ(p->timeout, 30000000000);
	CHECK_EQ(p->bind_device, 1);
	CHECK_EQ(p->zerocopy, 0);
	CHECK_EQ(p->log_level, GANTRY_LOG_WARN);
	CHECK_STR(p->ifname, "");
	CHECK_STR(p->congestion, "auto");
}

/* 0 means "chosen", and what is asked for has a least value all the same. */
TEST(check_least_or_zero)
{
	static const char *const good[] = {"0", "4096", "4k", "64M"}, *const bad[] = {"1", "4095", "65M"};
	static const uint64_t values[] = {0, 4096, 4096, 64 << 20};

	EACH_ROW (i, good) {
		clear_environment();
		set_params("GANTRY_NET_STEP", good[i]);
		CHECK_EQ(gantry_params()->net_step, values[i]);
	}
	EACH_ROW (i, bad) {
		clear_environment();
		setenv("GANTRY_NET_STEP", bad[i], 1);
		CHECK_EQ(gantry_params_load(1), GANTRY_ERR_CONFIG);
		CHECK_HAS(logs_text(), "GANTRY_NET_STEP=");
		CHECK_HAS(logs_text(), "0, 4k .. 64M");
	}
	CHECK_STR(describe("GANTRY_NET_STEP").range, "0, 4k .. 64M");
}

TEST(check_values)
{
	const struct gantry_params *p;

	clear_environment();
	set_params("GANTRY_LANES", "16", "GANTRY_HELPERS", "-1", "GANTRY_EAGER_MAX", "128KiB", "GANTRY_TIMEOUT", "1m",
		   "GANTRY_BIND_DEVICE", "Off", "GANTRY_ZEROCOPY", "MSG", "GANTRY_IFNAME", "^docker0,lo",
		   "GANTRY_CONGESTION", "", "GANTRY_LOG", "info");
	p = gantry_params();
	CHECK_EQ(p->lanes, 16);
	CHECK_EQ(p->helpers, -1);
	CHECK_EQ(p->eager_max, 131072);
	CHECK_EQ(p->timeout, 60000000000);
	CHECK_EQ(p->bind_device, 0);
	CHECK_EQ(p->zerocopy, 2); /* auto|splice|msg|off */
	CHECK_STR(p->ifname, "^docker0,lo");
	CHECK(p->ifname != getenv("GANTRY_IFNAME"));
	CHECK_STR(p->congestion, "auto"); /* empty counts as not set */
	CHECK_EQ(gantry_log_level_now, GANTRY_LOG_INFO);
	CHECK_EQ(logs_count(""), 0);

	/* Idempotent unless reload; an old set stays readable. */
	setenv("GANTRY_LANES", "3", 1);
	setenv("GANTRY_IFNAME", "eth", 1);
	CHECK_OK(gantry_params_load(0));
	CHECK(gantry_params() == p);
	CHECK_OK(gantry_params_load(1));
	CHECK_EQ(gantry_params()->lanes, 3);
	CHECK_STR(gantry_params()->ifname, "eth");
	CHECK_STR(p->ifname, "^docker0,lo");
	CHECK_EQ(p->lanes, 16);
}

/* Each refusal names the variable, the value and what is allowed, and leaves what was in force. */
static const char *stand_in(size_t i, const char *env)
{
	CHECK(i < gantry_param_count());
	return !strcmp(env, "GANTRY_LANES") ? "5" : !strcmp(env, "GANTRY_CONGESTION") ? "cubic" : NULL;
}

/* What another set of variables says counts where ours are not set. */
TEST(check_fallback)
{
	clear_environment();
	gantry_params_set_fallback(stand_in);
	set_params("GANTRY_IFNAME", "eth");
	CHECK_EQ(gantry_params()->lanes, 5);
	CHECK_STR(gantry_params()->congestion, "cubic");
	CHECK_STR(gantry_params()->ifname, "eth");
	CHECK_EQ(gantry_params()->helpers, -1);
	set_params("GANTRY_LANES", "3", "GANTRY_CONGESTION", "");
	CHECK_EQ(gantry_params()->lanes, 3);
	CHECK_STR(gantry_params()->congestion, "cubic");
	gantry_params_set_fallback(NULL);
	clear_environment();
	CHECK_OK(gantry_params_load(1));
	CHECK_EQ(gantry_params()->lanes, 0);
}

static void refuse(const char *name, const char *value, const char *allowed)
{
	const struct gantry_params *before = gantry_params();
	char setting[128];

	clear_environment();
	setenv(name, value, 1);
	CHECK_EQ(gantry_params_load(1), GANTRY_ERR_CONFIG);
	CHECK(gantry_params() == before);
	CHECK_EQ(logs_count(""), 1);
	snprintf(setting, sizeof(setting), "ERROR param.c %s=%s ", name, value);
	CHECK_HAS(logs_text(), setting);
	CHECK_HAS(logs_text(), allowed);
	CHECK_HAS(gantry_last_error(), name);
}

TEST(check_refusals)
{
	refuse("GANTRY_LANES", "17", "0 .. 16");
	refuse("GANTRY_LANES", "-1", "0 .. 16");
	refuse("GANTRY_LANES", "many", "int, 0 .. 16");
	refuse("GANTRY_HELPERS", "-2", "-1 .. 32");
	refuse("GANTRY_EAGER_MAX", "255", "256 .. 1M");
	refuse("GANTRY_EAGER_MAX", "2M", "256 .. 1M");
	refuse("GANTRY_CHUNK_MAX", "1Q", "size, 64k .. 1G");
	refuse("GANTRY_TIMEOUT", "99ms", "100ms .. 24h");
	refuse("GANTRY_TIMEOUT", "25h", "100ms .. 24h");
	refuse("GANTRY_TIMEOUT", "soon", "duration, 100ms .. 24h");
	refuse("GANTRY_CRC", "maybe", "on|off");
	refuse("GANTRY_ZEROCOPY", "splic", "auto|splice|msg|off");
	refuse("GANTRY_LOG_SUBSYS", "net,nat", "all, or some of base, net, data,");
	refuse("GANTRY_LOG_SUBSYS", "net,nat", "comm, rx,");
	refuse("GANTRY_PORT_RANGE", "abc", "a port, or first-last, from 1 to 65535");
	refuse("GANTRY_PORT_RANGE", "0", "from 1 to 65535");
	refuse("GANTRY_PORT_RANGE", "70000", "from 1 to 65535");
	refuse("GANTRY_PORT_RANGE", "9-8", "first-last");
	refuse("GANTRY_PORT_RANGE", "100-", "first-last");
	refuse("GANTRY_PORT_RANGE", "-100", "first-last");
	refuse("GANTRY_PORT_RANGE", "4000,4001", "first-last");
	refuse("GANTRY_ADVERTISE", "nowhere", "expected 10.0.0.2, 10.0.0.2:4000,");
	refuse("GANTRY_ADVERTISE", "10.0.0.2:0", "10.0.0.2:4000");
	refuse("GANTRY_STALL_SIGNAL", "KILL", "USR1, USR2, HUP");

	/* Bounds themselves are allowed. */
	clear_environment();
	set_params("GANTRY_EAGER_MAX", "1M", "GANTRY_TIMEOUT", "100ms", "GANTRY_LOG_SUBSYS", "NET,,data",
		   "GANTRY_PORT_RANGE", "1-65535", "GANTRY_ADVERTISE", "[fe80::1%lo]:65535", "GANTRY_STALL_SIGNAL",
		   "sigusr1");
	CHECK_EQ(logs_count(""), 0);

	/* Two mistakes, two lines. */
	clear_environment();
	setenv("GANTRY_LANES", "x", 1);
	setenv("GANTRY_CRC", "y", 1);
	CHECK_EQ(gantry_params_load(1), GANTRY_ERR_CONFIG);
	CHECK_EQ(logs_count(""), 2);
}

/* What the refusals rest on, and doctor asks before it loads anything. */
TEST(check_allows)
{
	static const struct {
		const char *env, *text;
		int allowed;
	} cases[] = {{"GANTRY_PORT_RANGE", "abc", 0},	{"GANTRY_PORT_RANGE", "4000", 1}, {"GANTRY_PORT_RANGE", "", 1},
		     {"GANTRY_PORT_RANGE", "1-9", 1},	{"GANTRY_LANES", "17", 0},	  {"GANTRY_CRC", "on", 1},
		     {"GANTRY_IFNAME", "anything", 1},	{"GANTRY_SECRET", "x", 1},	  {"GANTRY_LOG", "loud", 0},
		     {"GANTRY_STALL_SIGNAL", "x", 0},	{"GANTRY_TIMEOUT", "1m", 1},	  {"GANTRY_TIMEOUT", "1", 1},
		     {"GANTRY_STALL_SIGNAL", "USR2", 1}};
	struct gantry_param_info info;

	clear_environment();
	EACH_ROW (k, cases)
		for (size_t i = 0; i < gantry_param_count(); i++) {
			gantry_param_describe(i, &info);
			if (!strcmp(info.env, cases[k].env))
				CHECK_EQ(gantry_param_allows(i, cases[k].text), cases[k].allowed);
		}
	CHECK_EQ(logs_count(""), 0);
}

TEST(check_signals)
{
	static const char *const bad[] = {"KILL", "11", "-1", "0", "x"};
	int number = -1;

	CHECK_OK(gantry_parse_signal("USR2", &number));
	CHECK_EQ(number, SIGUSR2);
	CHECK_OK(gantry_parse_signal("sigusr1", &number));
	CHECK_EQ(number, SIGUSR1);
	CHECK_OK(gantry_parse_signal("40", &number));
	CHECK_EQ(number, 40);
	EACH_ROW (i, bad)
		CHECK_EQ(gantry_parse_signal(bad[i], &number), GANTRY_ERR_INVALID);
	CHECK_EQ(number, 40);
}

TEST(check_unknown)
{
	clear_environment();
	set_params("GANTRY_TIMOUT", "5s");
	CHECK_EQ(logs_count(""), 1);
	CHECK_EQ(logs_count("ERROR"), 0);
	CHECK_HAS(logs_text(), "unknown variable GANTRY_TIMOUT is set; did you mean GANTRY_TIMEOUT?\n");
	CHECK_EQ(gantry_params()->timeout, 30000000000);

	clear_environment();
	set_params("GANTRY_LANE", "5", "GANTRY_SECERT", "hunter2");
	CHECK_EQ(logs_count(""), 2);
	CHECK_HAS(logs_text(), "GANTRY_LANES?\n");
	CHECK_HAS(logs_text(), "GANTRY_SECRET?\n");
	CHECK_EQ(logs_count("hunter2"), 0);

	/* What the build and the tests set for themselves. */
	clear_environment();
	set_params("GANTRY_SANITIZED", "thread", "GANTRY_TEST_SEED", "5");
	CHECK_EQ(logs_count(""), 0);
	set_params("GANTRY_TESTING", "5");
	CHECK_EQ(logs_count(""), 1);
}

TEST(check_listing)
{
	struct gantry_param_info info;

	clear_environment();
	set_params("GANTRY_SECRET", "correct horse", "GANTRY_POLL_PACE", "7500ns", "GANTRY_ZEROCOPY", "splice");
	CHECK_STR(gantry_params()->secret, "correct horse");
	info = describe("GANTRY_SECRET");
	CHECK_STR(info.value, "(set)");
	CHECK_STR(info.type, "string");
	CHECK_STR(info.range, "");
	CHECK_EQ(info.origin, GANTRY_ORIGIN_ENV);
	for (size_t i = 0; i < gantry_param_count(); i++) {
		gantry_param_describe(i, &info);
		CHECK(!strstr(info.value, "horse"));
		CHECK(*info.doc && info.env);
	}

	info = describe("GANTRY_POLL_PACE");
	CHECK_STR(info.value, "7500ns");
	CHECK_STR(info.def, "5us");
	CHECK_STR(info.range, "0 .. 1ms");
	CHECK_STR(info.type, "duration");
	info = describe("GANTRY_ZEROCOPY");
	CHECK_STR(info.value, "splice");
	CHECK_STR(info.def, "auto");
	CHECK_STR(info.range, "auto|splice|msg|off");
	info = describe("GANTRY_CHUNK_MAX");
	CHECK_STR(info.value, "16M");
	CHECK_STR(info.def, "16M");
	CHECK_EQ(info.origin, GANTRY_ORIGIN_DEFAULT);
	info = describe("GANTRY_BIND_DEVICE");
	CHECK_STR(info.value, "on");
}

/* The page is about defaults: it is the same whatever is set, and it tells no secret. */
TEST(check_markdown)
{
	char *with = NULL, *without = NULL;
	size_t n;
	FILE *f = open_memstream(&with, &n);

	gantry_params_write_markdown(f);
	fclose(f);
	clear_environment();
	CHECK_OK(gantry_params_load(1));
	f = open_memstream(&without, &n);
	gantry_params_write_markdown(f);
	fclose(f);
	CHECK_STR(with, without);
	CHECK_HAS(with, "# Parameters\n");
	CHECK_HAS(with, "\n## `GANTRY_CHUNK_MAX`\n\nsize, default `16M`, allowed `64k .. 1G`\n\nLargest piece");
	CHECK_HAS(with, "\n## `GANTRY_SECRET`\n\nstring, default empty\n\n");
	free(with);
	free(without);
}

static int stop;

static void *read_params(void *arg)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		const struct gantry_params *p = gantry_params();

		/* Both values of a set come from one load. */
		CHECK_EQ(p->lanes, strtol(p->ifname, NULL, 10));
	}
	return arg;
}

static void *load_params(void *arg)
{
	for (int i = 0; i < 20; i++)
		CHECK_OK(gantry_params_load(i % 2));
	return arg;
}

TEST(check_threads)
{
	pthread_t readers[2], loaders[2];

	clear_environment();
	set_params("GANTRY_LANES", "5", "GANTRY_IFNAME", "5");
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(pthread_create(&readers[i], NULL, read_params, NULL), 0);
		CHECK_EQ(pthread_create(&loaders[i], NULL, load_params, NULL), 0);
	}
	threads_join(loaders, 2);
	for (long i = 0; i < 17; i++) {
		char text[24];

		snprintf(text, sizeof(text), "%ld", i);
		set_params("GANTRY_LANES", text, "GANTRY_IFNAME", text);
		CHECK_EQ(gantry_params()->lanes, i);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	threads_join(readers, 2);
}

/* Parsers, their counterparts, and the measure of misspelling. */

struct parsed {
	const char *text;
	uint64_t value;
};

static void check_parser(gantry_result (*parse)(const char *text, uint64_t *ret), const struct parsed *good,
			 size_t ngood, const char *const *bad, size_t nbad)
{
	uint64_t v;

	for (size_t i = 0; i < ngood; i++) {
		CASE("%s", good[i].text);
		CHECK_OK(parse(good[i].text, &v));
		CHECK_EQ(v, good[i].value);
	}
	for (size_t i = 0; i < nbad; i++) {
		CASE("%s", bad[i]);
		v = 42;
		CHECK_EQ(parse(bad[i], &v), GANTRY_ERR_INVALID);
		CHECK_EQ(v, 42);
	}
}

TEST(check_size)
{
	static const struct parsed good[] = {
		{"0", 0},
		{"1", 1},
		{"64k", 65536},
		{"64K", 65536},
		{"64kB", 65536},
		{"64KiB", 65536},
		{"7B", 7},
		{"1M", 1048576},
		{"2GiB", 2147483648},
		{"3T", 3298534883328},
		{"18446744073709551615", UINT64_MAX},
	};
	static const char *const bad[] = {
		"",	     " 1",   "1 ",  "-1",   "+1",     "k",  "1.5M", "1kk",
		"1Ki",	     "1kib", "1 k", "0x10", "1bytes", "BB", "1BB",  "18446744073709551616",
		"16777216T",
	};

	check_parser(gantry_parse_size, good, TEST_COUNT(good), bad, TEST_COUNT(bad));
}

TEST(check_duration)
{
	static const struct parsed good[] = {
		{"0", 0},
		{"3", 3000000000},
		{"3s", 3000000000},
		{"500ms", 500000000},
		{"5us", 5000},
		{"7ns", 7},
		{"1m", 60000000000},
		{"24h", 86400000000000},
		{"0.5", 500000000},
		{"1.25ms", 1250000},
		{"0.000000001", 1},
		{"1.5h", 5400000000000},
		{"18446744073709551615ns", UINT64_MAX},
	};
	static const char *const bad[] = {
		"",
		"s",
		"-1s",
		"1 s",
		"1S",
		"1min",
		"1.s",
		".5",
		"1.5.5",
		"1d",
		"0.0000000001",
		"18446744074",
		"18446744073709551615.5h",
		"1e3",
	};

	check_parser(gantry_parse_duration, good, TEST_COUNT(good), bad, TEST_COUNT(bad));
}

TEST(check_int_and_bool)
{
	static const char *const bad_ints[] = {"", "-", "+1", " 1", "1 ", "1x", "0x10", "--1", "9223372036854775808"};
	static const char *const bad_bools[] = {"", "2", "o", "yess", " 1", "10"};
	static const char *const yes[] = {"1", "on", "ON", "yes", "True"}, *const no[] = {"0", "off", "No", "false"};
	int64_t v = 42;
	int b = 42;

	CHECK_OK(gantry_parse_int("-9223372036854775808", &v));
	CHECK_EQ(v, INT64_MIN);
	CHECK_OK(gantry_parse_int("010", &v));
	CHECK_EQ(v, 10); /* decimal, not octal */
	EACH_ROW (i, bad_ints)
		CHECK_EQ(gantry_parse_int(bad_ints[i], &v), GANTRY_ERR_INVALID);
	CHECK_EQ(v, 10);
	EACH_ROW (i, bad_bools)
		CHECK_EQ(gantry_parse_bool(bad_bools[i], &b), GANTRY_ERR_INVALID);
	CHECK_EQ(b, 42);
	EACH_ROW (i, yes) {
		CHECK_OK(gantry_parse_bool(yes[i], &b));
		CHECK_EQ(b, 1);
	}
	EACH_ROW (i, no) {
		CHECK_OK(gantry_parse_bool(no[i], &b));
		CHECK_EQ(b, 0);
	}
}

TEST(check_format)
{
	static const uint64_t values[] = {0,	   1,	       1000,	   1024,	  1025,		  65536,
					  1500000, 1000000000, 1073741824, 3600000000000, 86400000000000, UINT64_MAX};
	char text[32];
	uint64_t back;

	gantry_format_size(65536, text, sizeof(text));
	CHECK_STR(text, "64k");
	gantry_format_size(1536, text, sizeof(text));
	CHECK_STR(text, "1536");
	gantry_format_size(3ull << 30, text, sizeof(text));
	CHECK_STR(text, "3G");
	gantry_format_duration(0, text, sizeof(text));
	CHECK_STR(text, "0");
	gantry_format_duration(90000000000, text, sizeof(text));
	CHECK_STR(text, "90s");
	gantry_format_duration(1500000, text, sizeof(text));
	CHECK_STR(text, "1500us");
	gantry_format_duration(7200000000000, text, sizeof(text));
	CHECK_STR(text, "2h");
	EACH_ROW (i, values) {
		gantry_format_size(values[i], text, sizeof(text));
		CHECK_OK(gantry_parse_size(text, &back));
		CHECK_EQ(back, values[i]);
		gantry_format_duration(values[i], text, sizeof(text));
		CHECK_OK(gantry_parse_duration(text, &back));
		CHECK_EQ(back, values[i]);
	}
}

TEST(check_distance)
{
	char giant[300];

	CHECK_EQ(gantry_edit_distance("", ""), 0);
	CHECK_EQ(gantry_edit_distance("same", "same"), 0);
	CHECK_EQ(gantry_edit_distance("", "abc"), 3);
	CHECK_EQ(gantry_edit_distance("abc", ""), 3);
	CHECK_EQ(gantry_edit_distance("kitten", "sitting"), 3);
	CHECK_EQ(gantry_edit_distance("sunday", "saturday"), 3);
	memset(giant, 'x', sizeof(giant) - 1);
	giant[sizeof(giant) - 1] = 0;
	CHECK_EQ(gantry_edit_distance(giant, ""), 63); /* cut, not overrun */
	CHECK_EQ(gantry_edit_distance("x", giant), 62);
}

void tests_begin(void)
{
	logs_keep();
}
