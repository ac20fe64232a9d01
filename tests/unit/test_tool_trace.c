/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry trace`: files written by hand, whose picture can be told beforehand, and those of a real communicator. */
#include "base/file.h"
#include "base/trace.h"
#include "comm/launches.h"
#include "comm/report.h"
#include "common/cmd.h"
#include "stall_world.h"
#include "tool_folder.h"
#include "trace/trace_set.h"

#define COMMAND(...) command(cmd_trace, (const char *const[]){"trace", __VA_ARGS__, NULL})

/* What Perfetto would make of it; see tests/chrome_trace.py. Where there is no python3 only this test's reader looks.
 */
static int perfetto_takes(const char *name)
{
	const char *root = getenv("SOURCE_DIR");
	char path[256], line[1024];
	int status;

	snprintf(line, sizeof(line),
		 "command -v python3 >/dev/null || exit 77; exec python3 %s/tests/chrome_trace.py %s",
		 root ? root : ".", in_dir(name, path));
	status = system(line);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status) == 77 ? -1 : WEXITSTATUS(status) == 0;
}

struct picture {
	char *text;
	struct json_doc doc;
	const struct json_value *events;
};

static void load(const char *name, struct picture *p)
{
	memset(p, 0, sizeof(*p));
	p->text = slurp(name);
	if (json_parse(p->text, strlen(p->text), &p->doc))
		TEST_FAIL("%s at byte %zu", p->doc.why, p->doc.at);
	p->events = json_get(&p->doc, &p->doc.values[0], "traceEvents");
	CHECK(p->events && p->events->type == JSON_ARRAY);
	CHECK(perfetto_takes(name) != 0);
}

static void unload(struct picture *p)
{
	json_free(&p->doc);
	free(p->text);
}

static const struct json_value *field(const struct picture *p, const struct json_value *e, const char *key)
{
	const struct json_value *v = json_get(&p->doc, e, key);

	return v ? v : json_get(&p->doc, json_get(&p->doc, e, "args"), key);
}

static int has(const struct picture *p, const struct json_value *e, const char *key, const char *text)
{
	const struct json_value *v = field(p, e, key);

	return v && v->type == JSON_STRING && !strcmp(v->text, text);
}

static int count(const struct picture *p, const char *ph, const char *name)
{
	int n = 0;

	for (const struct json_value *e = json_first(&p->doc, p->events); e; e = json_next(&p->doc, e))
		n += has(p, e, "ph", ph) && (!name || has(p, e, "name", name));
	return n;
}

/* The n-th of a name, from 0. */
static const struct json_value *find(const struct picture *p, const char *ph, const char *name, int n)
{
	for (const struct json_value *e = json_first(&p->doc, p->events); e; e = json_next(&p->doc, e)) {
		if (has(p, e, "ph", ph) && has(p, e, "name", name) && !n--)
			return e;
	}
	TEST_FAIL("no %s %s", ph, name);
}

static double number(const struct picture *p, const struct json_value *e, const char *key)
{
	const struct json_value *v = field(p, e, key);

	CHECK(v && v->type == JSON_NUMBER);
	return v->number;
}

/*
 * Rank 0: 2 ticks a nanosecond. Two sends in flight at once, a third without its end, and one whose beginning is lost;
 * a message of a link; an event of somebody else's connection and one of a kind that nobody knows. Rank 1: its clock is
 * 1 ms ahead of the hub's, 1 tick a nanosecond.
 */
static const char rank0[] =
	"{\"kind\":\"trace\",\"version\":1,\"comm\":\"c0\",\"rank\":0,\"nranks\":2,\"pid\":7,\"host\":\"a\\\"b\","
	"\"clock_offset_ns\":0,"
	"\"ns\":[1000000,2000000],\"ticks\":[5000000,7000000],\"events\":9}\n"
	"{\"kind\":\"conn\",\"conn\":3,\"peer\":1,\"dir\":\"send\",\"channel\":0,\"transport\":\"net\",\"proxied\":1,"
	"\"calls\":4,"
	"\"bytes\":900,\"copies\":2,\"by\":{\"simple ptr\":5,\"ll128 normal\":2}}\n"
	"{\"kind\":\"event\",\"ticks\":5000000,\"name\":\"proxy "
	"op\",\"conn\":3,\"op\":1,\"bytes\":99,\"proto\":\"simple\",\"end\":1,\"cut\":0}\n"
	"{\"kind\":\"event\",\"ticks\":5002000,\"name\":\"proxy "
	"op\",\"conn\":3,\"op\":2,\"bytes\":100,\"proto\":\"simple\",\"end\":0,\"cut\":0}\n"
	"{\"kind\":\"event\",\"ticks\":5004000,\"name\":\"proxy "
	"op\",\"conn\":3,\"op\":3,\"bytes\":200,\"proto\":\"ll\",\"end\":0,\"cut\":0}\n"
	"{\"kind\":\"event\",\"ticks\":5006000,\"name\":\"proxy "
	"moved\",\"conn\":3,\"step\":0,\"bytes\":100,\"proto\":\"simple\",\"mode\":\"ptr\"}\n"
	"{\"kind\":\"event\",\"ticks\":5008000,\"name\":\"proxy "
	"op\",\"conn\":3,\"op\":2,\"bytes\":100,\"proto\":\"simple\",\"end\":1,\"cut\":0}\n"
	"{\"kind\":\"event\",\"ticks\":5008100,\"name\":\"proxy "
	"moved\",\"conn\":99,\"step\":0,\"bytes\":1,\"proto\":\"simple\",\"mode\":\"ptr\"}\n"
	"{\"kind\":\"event\",\"ticks\":5008200,\"name\":\"from the future\",\"x\":1}\n"
	"{\"kind\":\"event\",\"ticks\":5010000,\"name\":\"proxy "
	"op\",\"conn\":3,\"op\":3,\"bytes\":200,\"proto\":\"ll\",\"end\":1,\"cut\":1}\n"
	"{\"kind\":\"event\",\"ticks\":5010000,\"name\":\"proxy "
	"op\",\"conn\":3,\"op\":4,\"bytes\":300,\"proto\":\"simple\",\"end\":0,\"cut\":0}\n"
	"{\"kind\":\"event\",\"ticks\":5010000,\"name\":\"send posted\",\"link\":2,\"msg\":8,\"bytes\":64}\n"
	"{\"kind\":\"event\",\"ticks\":5012000,\"name\":\"send done\",\"link\":2,\"msg\":8,\"bytes\":64}\n"
	"{\"kind\":\"event\",\"ticks\":5014000,\"name\":\"stranger\",\"count\":1}\n";
static const char rank1[] = "{\"kind\":\"trace\",\"version\":1,\"comm\":\"c0\",\"rank\":1,\"nranks\":2,\"pid\":7,"
			    "\"host\":\"b\",\"clock_offset_ns\":-1000000,"
			    "\"ns\":[2000000,3000000],\"ticks\":[0,1000000],\"events\":1}\n"
			    "{\"kind\":\"conn\",\"conn\":2147483649,\"peer\":0,\"dir\":\"recv\",\"channel\":1,"
			    "\"transport\":\"shm\",\"proxied\":0,\"calls\":1,"
			    "\"bytes\":10,\"copies\":1,\"by\":{}}\n"
			    "{\"kind\":\"event\",\"ticks\":500,\"name\":\"transfer\",\"conn\":2147483649,\"op\":1,"
			    "\"bytes\":10,\"proto\":\"simple\",\"mode\":\"normal\"}\n"
			    "{\"kind\":\"event\",\"ticks\":700,\"name\":\"kernel op\",\"conn\":2147483649,\"op\":1,"
			    "\"bytes\":10,\"proto\":\"ll\",\"step\":17,\"end\":0,\"cut\":0}\n"
			    "{\"kind\":\"event\",\"ticks\":1950,\"name\":\"kernel op\",\"conn\":2147483649,\"op\":1,"
			    "\"bytes\":10,\"proto\":\"ll\",\"step\":17,\"end\":1,\"cut\":0}\n";

TEST(by_hand)
{
	struct picture p;
	const struct json_value *e;

	put("0", rank0);
	put("1", rank1);
	CHECK_EQ(COMMAND("-o", "%out", "%0", "%1"), 0);
	load("out", &p);

	/* Operation 2: from 1 us to 4 us after the first event. 3 began meanwhile, is drawn from there and was cut. */
	CHECK_EQ(count(&p, "X", "send"), 3);
	e = find(&p, "X", "send", 0);
	CHECK(number(&p, e, "ts") == 1 && number(&p, e, "dur") == 3);
	CHECK(number(&p, e, "bytes") == 100 && number(&p, e, "op") == 2 && number(&p, e, "pid") == 1);
	CHECK(has(&p, e, "mode", "ptr") && has(&p, e, "protocol", "simple") && has(&p, e, "transport", "net"));
	e = find(&p, "X", "send", 1);
	CHECK(number(&p, e, "ts") == 4 && number(&p, e, "dur") == 1 && number(&p, e, "posted_us") == 2);
	CHECK(number(&p, e, "cut") == 1 && has(&p, e, "protocol", "ll") && !field(&p, e, "mode"));
	e = find(&p, "X", "send", 2);
	CHECK(number(&p, e, "ts") == 5 && number(&p, e, "dur") == 2 && number(&p, e, "open") == 1);

	e = find(&p, "X", "send message", 0);
	CHECK(number(&p, e, "ts") == 5 && number(&p, e, "dur") == 1 && number(&p, e, "msg") == 8);
	/* Instants: the end without its beginning, the step, the stranger, the transfer of rank 1. */
	CHECK_EQ(count(&p, "i", NULL), 4);
	CHECK_EQ(count(&p, "i", "proxy moved"), 1);
	CHECK(number(&p, find(&p, "i", "proxy op", 0), "op") == 1);
	e = find(&p, "i", "transfer", 0);
	CHECK(number(&p, e, "ts") == 0.5 && number(&p, e, "pid") == 2 && has(&p, e, "transport", "shm"));
	/* A transfer that kernels move alone: from 0.7 us to 1.95 us. */
	e = find(&p, "X", "recv", 0);
	CHECK(number(&p, e, "ts") == 0.7 && number(&p, e, "dur") == 1.25 && number(&p, e, "step") == 17);
	CHECK(number(&p, e, "bytes") == 10 && number(&p, e, "peer") == 0 && has(&p, e, "protocol", "ll"));
	CHECK_EQ(count(&p, "M", "process_name"), 2);
	CHECK_EQ(count(&p, "M", "thread_name"), 4); /* two connections, a link, and rank 0 itself for the stranger */
	unload(&p);
}

static void put_op(FILE *f, int64_t ticks, int op, int end)
{
	fprintf(f,
		"{\"kind\":\"event\",\"ticks\":%lld,\"name\":\"proxy op\",\"conn\":3,\"op\":%d,\"bytes\":1,\"proto\":"
		"\"simple\",\"end\":%d,\"cut\":0}\n",
		(long long)ticks, op, end);
}

/*
 * 500 operations begin at once and end one after the other, at times that are no whole nanoseconds (3 ticks each) and
 * hours after the machine started: 500 bars, each of which begins where the one before ends, to the nanosecond.
 */
TEST(bars_touch)
{
	enum { OPS = 500 };
	struct picture p;
	char path[256];
	FILE *f = fopen(in_dir("touch", path), "w");
	double last = 0;

	CHECK(f != NULL);
	fputs("{\"kind\":\"trace\",\"version\":1,\"comm\":\"c0\",\"rank\":0,\"nranks\":2,\"pid\":7,\"host\":\"h\","
	      "\"clock_offset_ns\":-77,\"ns\":[98765432100001,98765433100001],\"ticks\":[5000000,8000000]}\n"
	      "{\"kind\":\"conn\",\"conn\":3,\"peer\":1,\"dir\":\"send\",\"channel\":0,\"transport\":\"net\","
	      "\"proxied\":1}\n",
	      f);
	for (int i = 0; i < OPS; i++)
		put_op(f, 5000000, i, 0);
	for (int i = 0; i < OPS; i++)
		put_op(f, 5000000 + 9001 * (i + 1) + i % 3, i, 1);
	fclose(f);
	CHECK_EQ(COMMAND("-o", "%touching", "%touch"), 0);
	load("touching", &p);
	CHECK_EQ(count(&p, "X", "send"), OPS);
	for (int i = 0; i < OPS; i++) {
		const struct json_value *e = find(&p, "X", "send", i);
		double ts = number(&p, e, "ts") * 1000, end = ts + number(&p, e, "dur") * 1000;

		CHECK(ts - last < 0.01 && last - ts < 0.01);
		last = end;
	}
	unload(&p);
}

/* The judge is no rubber stamp. */
TEST(judged)
{
	static const char names[] =
		"{\"traceEvents\":["
		"{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"tid\":1,\"args\":{\"name\":\"p\"}},"
		"{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":9,\"args\":{\"name\":\"t\"}},";
	static const struct {
		const char *events;
		int good;
	} cases[] = {
		{"{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":1.000,\"dur\":2.000},"
		 "{\"ph\":\"X\",\"name\":\"b\",\"pid\":1,\"tid\":9,\"ts\":3.000,\"dur\":2.000}]}",
		 1},
		/* By a nanosecond; nested; by a nanosecond only where a double times 1000 is cut off: 4.007 * 1000. */
		{"{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":1.000,\"dur\":2.001},"
		 "{\"ph\":\"X\",\"name\":\"b\",\"pid\":1,\"tid\":9,\"ts\":3.000,\"dur\":2.000}]}",
		 0},
		{"{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":1.000,\"dur\":4.000},"
		 "{\"ph\":\"X\",\"name\":\"b\",\"pid\":1,\"tid\":9,\"ts\":3.000,\"dur\":2.000}]}",
		 1},
		{"{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":0,\"dur\":4.007}]}", 0},
		{"{\"ph\":\"i\",\"s\":\"t\",\"name\":\"a\",\"pid\":0,\"tid\":9,\"ts\":1}]}", 0},
		{"{\"ph\":\"i\",\"s\":\"t\",\"name\":\"a\",\"pid\":1,\"tid\":8,\"ts\":1}]}", 0},
		{"{\"ph\":\"i\",\"s\":\"t\",\"name\":\"a\",\"pid\":2,\"tid\":9,\"ts\":1}]}", 0},
		{"{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":1}]}", 0},
		{"{\"ph\":\"X\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":1,\"dur\":-1}]}", 0},
		{"{\"ph\":\"s\",\"name\":\"a\",\"pid\":1,\"tid\":9,\"ts\":1,\"id\":7}]}", 0},
	};
	char text[1024];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int said;

		snprintf(text, sizeof(text), "%s%s", names, cases[i].events);
		put("judged", text);
		said = perfetto_takes("judged");
		if (said >= 0)
			CHECK_EQ(said, cases[i].good);
	}
}

TEST(summaries)
{
	char path[256], text[4096] = "";
	FILE *f = fopen(in_dir("summary", path), "w+");
	struct trace_set set = {0};
	char why[256];

	CHECK(f != NULL);
	CHECK_EQ(trace_read(&set, in_dir("0", path), why, sizeof(why)), 0);
	trace_write_summary(&set, 0, f);
	trace_write_summary(&set, 1, f);
	trace_free(&set);
	rewind(f);
	CHECK(fread(text, 1, sizeof(text) - 1, f) > 0);
	fclose(f);
	CHECK_HAS(text, "communicator c0");
	CHECK_HAS(text, "send to         1        0  net                 4             900           2  5 simple ptr, "
			"2 ll128 normal");
	CHECK_HAS(text, "\"simple ptr\": 5");
}

TEST(bad_files)
{
#define TRACE(ns)                                                                                                      \
	"{\"kind\":\"trace\",\"version\":1,\"comm\":\"c0\",\"rank\":0,\"nranks\":2,\"ns\":" ns ",\"ticks\":[1,2]}\n"
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"", "bad: the file is empty"},
		{TRACE("[1,2]") "{\"kind\":\"ev", "/bad:2: a string that does not end"},
		{"\n{\"kind\":\"event\",\"ticks\":1,\"name\":\"stranger\"}\n", "/bad:2: a line before the head"},
		{TRACE("[1,1]"), "/bad:1: the head of a trace without two points"},
		{"{\"kind\":\"trace\",\"version\":2}\n", "version"},
		{TRACE("[1,2]") "{\"kind\":\"event\",\"ticks\":1,\"name\":\"send "
				"posted\",\"link\":9000000000000000000}\n",
		 "/bad:2: an event of something with an impossible number"},
	};
	struct trace_set set = {0};
	char path[256], why[256];

	CHECK_EQ(COMMAND("--summary"), 2);
	CHECK_EQ(COMMAND("--output"), 2);
	CHECK_EQ(COMMAND("--sumary", "%0"), 2);
	CHECK_EQ(COMMAND("--help"), 0);
	CHECK_EQ(COMMAND("%none"), 1);
	CHECK_EQ(COMMAND("-o", "/nowhere/at/all", "%0"), 1);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put("bad", bad[i].text);
		CHECK_EQ(trace_read(&set, in_dir("bad", path), why, sizeof(why)), -1);
		CHECK_HAS(why, bad[i].says);
	}
	trace_free(&set);
}

/* ---- a real one: what the ranks say they sent is in the picture ---- */

static int rounds;

static void talk(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		 struct gantry_stream *s)
{
	FREED char *buf = calloc(4, WORLD_BYTES);

	CHECK(buf != NULL);
	for (int i = 0; i < rounds; i++)
		world_warm_up(rank, buf, comm, dev, s);
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	comm_trace_write(comm);
	CHECK_OK(gantry_comm_destroy(comm));
}

/* Rank 0 waits for what nobody sends, until all give up. */
static void give_up(struct world *w, int rank, struct gantry_comm *comm, struct gantry_device *dev,
		    struct gantry_stream *s)
{
	FREED char *buf = calloc(4, WORLD_BYTES);

	CHECK(buf != NULL);
	world_warm_up(rank, buf, comm, dev, s);
	if (rank == 0) {
		world_move(0, buf, 1, comm, s);
		UNTIL(GANTRY_DOING_PHASE(load_relaxed(&comm_state_host(comm, 1, 0, 0)->doing)) ==
		      GANTRY_KERNEL_WAIT_DATA);
	}
	pthread_barrier_wait(&w->all);
	pthread_barrier_wait(&w->over);
	CHECK_OK(gantry_comm_abort(comm));
	CHECK_OK(gantry_comm_destroy(comm));
}

static void nothing(struct world *w)
{
}

/* Runs a world and loads the picture of its three ranks. */
static void live(struct world *w, struct picture *p)
{
	char path[256];

	set_params("GANTRY_TRACE", in_dir("live-%r-%p%%", path));
	world_threads(w, nothing);
	for (int r = 0; r < WORLD_RANKS; r++) {
		char name[64], plain[64], to[256], from[256];

		snprintf(name, sizeof(name), "live-%d-%d%%", r, (int)getpid());
		snprintf(plain, sizeof(plain), "live-%d", r);
		CHECK_EQ(rename(in_dir(name, from), in_dir(plain, to)), 0);
	}
	CHECK_EQ(COMMAND("--output", "%live", "--summary", "%live-0", "%live-1", "%live-2"), 0);
	load("live", p);
	CHECK_EQ(count(p, "M", "process_name"), WORLD_RANKS);
}

/* A bar for every transfer, whoever moves it: the progress thread, or the kernels by themselves. */
static void live_bars(const char *transport)
{
	struct world w = {.nranks = WORLD_RANKS, .transport = transport, .body = talk};
	struct picture p;
	double last = 0;

	rounds = 5;
	live(&w, &p);
	/* Five rounds with two others, by each of three ranks. */
	CHECK_EQ(count(&p, "X", "send"), 30);
	CHECK_EQ(count(&p, "X", "recv"), 30);
	for (int i = 0; i < 30; i++) {
		const struct json_value *e = find(&p, "X", i % 2 ? "send" : "recv", i);

		CHECK(number(&p, e, "bytes") == WORLD_BYTES && has(&p, e, "transport", transport));
		CHECK(has(&p, e, "protocol", "simple") && number(&p, e, "channel") >= 0 && number(&p, e, "op") > 0);
		CHECK(number(&p, e, "peer") >= 0 && number(&p, e, "peer") != number(&p, e, "pid") - 1);
		CHECK(number(&p, e, "ts") >= 0 && number(&p, e, "dur") > 0);
		CHECK(!field(&p, e, "open") && !field(&p, e, "cut"));
		if (strcmp(transport, "net") == 0)
			CHECK(field(&p, e, "mode") && !field(&p, e, "step"));
		else
			CHECK(number(&p, e, "step") >= 0 && !field(&p, e, "mode") == !(i % 2));
		last = number(&p, e, "ts") > last ? number(&p, e, "ts") : last;
	}
	CHECK(last < 600e6); /* microseconds since the first event */
	unload(&p);
}
TEST_CALL(live_bars_net, live_bars("net"))
TEST_CALL(live_bars_p2p, live_bars("p2p"))
TEST_CALL(live_bars_shm, live_bars("shm"))

/* Both ends of a transfer say the same step, and a receive does not end before its send has begun. */
TEST(ends_agree)
{
	struct world w = {.nranks = WORLD_RANKS, .transport = "p2p", .body = talk};
	struct picture p;
	int pairs = 0;

	rounds = 3;
	live(&w, &p);
	for (int i = 0; i < 18; i++) {
		const struct json_value *s = find(&p, "X", "send", i);

		for (int k = 0; k < 18; k++) {
			const struct json_value *r = find(&p, "X", "recv", k);

			if (number(&p, r, "pid") - 1 != number(&p, s, "peer") ||
			    number(&p, s, "pid") - 1 != number(&p, r, "peer") ||
			    number(&p, r, "channel") != number(&p, s, "channel") ||
			    number(&p, r, "step") != number(&p, s, "step"))
				continue;
			pairs++;
			CHECK(number(&p, r, "ts") + number(&p, r, "dur") >= number(&p, s, "posted_us"));
		}
	}
	CHECK_EQ(pairs, 18);
	unload(&p);
}

/* More launches than a communicator has memory for, so their times are collected on the way. */
TEST(many_launches)
{
	struct world w = {.nranks = WORLD_RANKS, .transport = "p2p", .body = talk};
	struct picture p;

	rounds = COMM_WORKS + 20;
	live(&w, &p);
	/* The ring holds 8192; a transfer takes three. */
	CHECK(count(&p, "X", "send") > 1000 && count(&p, "X", "recv") > 1000);
	for (const struct json_value *e = json_first(&p.doc, p.events); e; e = json_next(&p.doc, e))
		CHECK(!field(&p, e, "cut"));
	unload(&p);
}

TEST(cut_off)
{
	struct world w = {.nranks = WORLD_RANKS, .transport = "p2p", .body = give_up};
	struct picture p;
	const struct json_value *e;

	live(&w, &p);
	CHECK_EQ(count(&p, "X", "send"), 6);
	CHECK_EQ(count(&p, "X", "recv"), 7);
	for (int i = 0, cut = 0; i < 7; i++) {
		e = find(&p, "X", "recv", i);
		cut += field(&p, e, "cut") != NULL;
		CHECK(i < 6 || cut == 1);
	}
	unload(&p);
}

TEST(paths)
{
	struct gantry_trace_who who = {.rank = 5, .nranks = 6, .comm = 0xabc, .host = "node"},
				none = {.rank = -1, .host = "node"};
	char path[256], expected[64];

	set_params("GANTRY_TRACE", in_dir("%r-%c%%q%z%", path));
	gantry_trace_write(&who);
	CHECK_EQ(access(in_dir("5-0000000000000abc%q%z%", path), R_OK), 0);
	set_params("GANTRY_TRACE", in_dir("%r-%h", path));
	gantry_trace_write(&none);
	snprintf(expected, sizeof(expected), "node-%d-node", getpid());
	CHECK_EQ(access(in_dir(expected, path), R_OK), 0);
	set_params("GANTRY_TRACE", NULL);
	gantry_path_expand("%p%p%p%p%p%p%p%p", NULL, path, 6);
	snprintf(expected, sizeof(expected), "%d%d%d%d%d", getpid(), getpid(), getpid(), getpid(), getpid());
	expected[5] = 0;
	CHECK_STR(path, expected);
}

void tests_begin(void)
{
	setenv("GANTRY_IFNAME", "lo", 0);
}
