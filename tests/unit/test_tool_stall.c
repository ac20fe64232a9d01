/* The verdict of `gantry stall`, rule by rule, on reports written by hand. */
#include <signal.h>
#include <unistd.h>

#include "cmd.h"
#include "comm/report.h"
#include "stall.h"
#include "test.h"

/* ---- reports by hand ---- */

struct hand {
	struct stall_set set;
	int nranks;
	const char *comm;
};

static const char *take(struct hand *h, const char *line)
{
	struct json_doc doc = {0};
	char text[1024];
	const char *bad;

	snprintf(text, sizeof(text), "%s", line);
	CHECK_EQ(json_parse(text, strlen(text), &doc), 0);
	bad = stall_take(&h->set, &doc);
	json_free(&doc);
	return bad;
}

/* A rank's first line; error NULL: none. */
static void rank_says(struct hand *h, int rank, const char *error, int about, int launches)
{
	char line[1024];

	snprintf(line, sizeof(line),
		 "{\"kind\":\"comm\",\"comm\":\"%s\",\"rank\":%d,\"nranks\":%d,\"host\":\"node%d\",\"pid\":%d,\"time_"
		 "ns\":%d,"
		 "\"clock_offset_ns\":-5,\"error\":\"%s\",\"error_rank\":%d,\"error_host\":\"node%d\",\"text\":"
		 "\"because\","
		 "\"launches_running\":%d,\"proxy_pending\":0}",
		 h->comm ? h->comm : "00000000000000c0", rank, h->nranks, rank, 1000 + rank, 100 + rank,
		 error ? error : "OK", about, about, launches);
	CHECK(take(h, line) == NULL);
}

/* One of its connections: "send 1" or "recv 0", what it waits for ("" for nothing in flight), its kernel, its calls. */
static void conn(struct hand *h, const char *dir, int peer, const char *waits, const char *phase, int calls)
{
	char line[1024];

	snprintf(line, sizeof(line),
		 "{\"kind\":\"conn\",\"comm\":\"c0\",\"rank\":0,\"peer\":%d,\"peer_host\":\"node%d\",\"peer_pid\":%d,"
		 "\"dir\":\"%s\","
		 "\"channel\":0,\"transport\":\"net\",\"stage\":\"%s\",\"proxied\":1,\"pending\":%d,\"waits_for\":\"%"
		 "s\","
		 "\"wait_ms\":31000,\"calls\":%d,\"kernel\":{\"phase\":\"%s\",\"step\":7},\"head\":null,\"tail\":null,"
		 "\"steps\":null,"
		 "\"bytes\":0,\"copies\":0,\"by\":{}}",
		 peer, peer, 1000 + peer, dir, strcmp(phase, "connecting") ? "ready" : "connecting", *waits != 0,
		 *waits ? waits : "none", calls, strcmp(phase, "connecting") ? phase : "idle");
	CHECK(take(h, line) == NULL);
}

static void expect(struct hand *h, const char *cause, int rank, int votes, const char *part)
{
	struct stall_verdict v;

	stall_judge(&h->set, 0, &v);
	printf("%s: %s\n", v.cause, v.text);
	CHECK_STR(v.cause, cause);
	CHECK_EQ(v.rank, rank);
	CHECK_EQ(v.votes, votes);
	CHECK_EQ(v.reports, h->set.comms[0].nreports);
	CHECK_HAS(v.text, part);
	stall_free(&h->set);
}

/* ---- rules ---- */

static void ranks_that_are_gone(void)
{
	struct hand h = {.nranks = 4};

	rank_says(&h, 0, "ERR_PEER_LOST", 2, 0);
	rank_says(&h, 1, "ERR_PEER_LOST", 2, 0);
	rank_says(&h, 3, "ERR_PEER_SILENT", 2, 0);
	conn(&h, "send", 2, "peer", "wait head", 1);
	expect(&h, "died", 2, 3,
	       "rank 2 (node2, pid 1002): no report; others say: ERR_PEER_LOST (2 ranks), ERR_PEER_SILENT (1 rank)");

	rank_says(&h, 0, "ERR_PEER_SILENT", 3, 0);
	rank_says(&h, 1, "ERR_PEER_SILENT", 3, 0);
	expect(&h, "stopped", 3, 2,
	       "rank 3 (node3): no report; others say: ERR_PEER_SILENT (2 ranks): its process is stopped");

	rank_says(&h, 1, "ERR_UNREACHABLE", 0, 0);
	expect(&h, "unreachable", 0, 1, "rank 0 (node0): no report");
}

/* It writes a report, so it lives. */
static void ranks_that_live_but_are_lost(void)
{
	struct hand h = {.nranks = 4};

	rank_says(&h, 0, "ERR_PEER_SILENT", 2, 0);
	rank_says(&h, 1, "ERR_PEER_SILENT", 2, 0);
	rank_says(&h, 2, "ERR_PEER_SILENT", 0, 0);
	expect(&h, "unreachable", 2, 2, "it lives, but could not be reached");

	rank_says(&h, 0, "ERR_PEER_LOST", 1, 0);
	rank_says(&h, 1, "ERR_PEER_SILENT", 0, 0);
	expect(&h, "network", 0, 2, "network between rank 0 (node0, pid 1000) and rank 1 (node1, pid 1001)");

	rank_says(&h, 0, "ERR_PEER_LOST", 1, 0);
	rank_says(&h, 1, NULL, -1, 0);
	expect(&h, "died", 1, 1, "its own report knows of no error");
}

static void ranks_that_failed(void)
{
	struct hand h = {.nranks = 3};

	rank_says(&h, 0, "ERR_PEER_LOST", 1, 0);
	rank_says(&h, 1, "ERR_NOMEM", 1, 0);
	rank_says(&h, 2, "ERR_PEER_LOST", 1, 0);
	expect(&h, "failed", 1, 3, "rank 1 (node1, pid 1001) failed by itself: ERR_NOMEM: because");

	/* Two of them: the first by the common clock. */
	rank_says(&h, 2, "ERR_SIZE", 0, 0);
	rank_says(&h, 1, "ERR_CORRUPT", -1, 0);
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 2, "peer", "wait data", 1);
	expect(&h, "failed", 1, 1, "ERR_CORRUPT");

	/* Somebody aborts, or a deadline passes: symptoms. */
	rank_says(&h, 0, "ERR_TIMEOUT", 2, 0);
	conn(&h, "send", 2, "peer", "connecting", 0);
	rank_says(&h, 1, "ERR_ABORTED", 1, 0);
	rank_says(&h, 2, NULL, -1, 0);
	expect(&h, "missing call", 2, 1, "rank 2 (node2, pid 1002) has not called recv from rank 0");
}

static void calls_that_are_missing(void)
{
	struct hand h = {.nranks = 4};

	/* 0 waits for 1, 1 waits for 2, and 2 does nothing there. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 3);
	rank_says(&h, 1, NULL, -1, 2);
	conn(&h, "send", 0, "", "idle", 3);
	conn(&h, "send", 2, "peer", "wait head", 3);
	rank_says(&h, 2, NULL, -1, 0);
	conn(&h, "recv", 1, "", "idle", 2);
	expect(&h, "missing call", 2, 2, "has not called recv from rank 1 (its matching call is missing)");

	/* The same without a word from 2. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 3);
	rank_says(&h, 1, NULL, -1, 2);
	conn(&h, "send", 2, "socket", "wait head", 3);
	expect(&h, "missing call", 2, 2,
	       "rank 2 (node2, pid 1002): no report; others wait for it and none has lost it");

	/* 1 has no such connection at all. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "connecting", 0);
	rank_says(&h, 1, NULL, -1, 0);
	expect(&h, "missing call", 1, 1, "has not called send to rank 0");
}

/* Its process is stuck elsewhere, and the verdict says where. */
static void another_communicator(void)
{
	struct hand h = {.nranks = 2};

	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 0);
	h.comm = "00000000000000c1";
	rank_says(&h, 1, NULL, -1, 1);
	conn(&h, "recv", 0, "peer", "wait data", 1);
	expect(&h, "missing call", 1, 1, "its process waits as rank 1 of communicator 00000000000000c1");
}

static void deadlocks(void)
{
	struct hand h = {.nranks = 5};

	rank_says(&h, 2, NULL, -1, 2);
	conn(&h, "send", 0, "peer", "wait head", 1);
	conn(&h, "recv", 1, "kernel", "idle", 1);
	rank_says(&h, 1, NULL, -1, 2);
	conn(&h, "send", 2, "peer", "wait head", 1);
	rank_says(&h, 0, NULL, -1, 2);
	conn(&h, "send", 1, "peer", "wait head", 1);
	/* 3 stands behind them and 4 behind 3. */
	rank_says(&h, 3, NULL, -1, 1);
	conn(&h, "recv", 2, "peer", "wait data", 1);
	rank_says(&h, 4, NULL, -1, 1);
	conn(&h, "recv", 3, "peer", "wait data", 1);
	expect(&h, "deadlock", 0, 5,
	       "deadlock: 0 -> 1 -> 2 -> 0 (rank 0 is in send to rank 1, rank 1 is in send to rank 2, rank 2 is in "
	       "send to rank 0)");

	/* Two ranks, each in a call that the other one answers only afterwards. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 1);
	conn(&h, "recv", 0, "peer", "wait data", 1);
	expect(&h, "deadlock", 0, 2, "0 -> 1 -> 0");
}

static void networks(void)
{
	struct hand h = {.nranks = 3};

	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "send", 1, "socket", "wait head", 1);
	rank_says(&h, 1, NULL, -1, 1);
	conn(&h, "recv", 0, "peer", "wait data", 1);
	expect(&h, "network", 0, 2, "network between rank 0 (node0, pid 1000) and rank 1 (node1, pid 1001)");

	/* The call was made and counts as done there. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 4);
	rank_says(&h, 1, NULL, -1, 0);
	conn(&h, "send", 0, "", "idle", 4);
	expect(&h, "network", 1, 1, "counts them as done");
}

static void slow_ones(void)
{
	struct hand h = {.nranks = 3};

	/* The proxy of 1 has its operation, its kernel has not come to it. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 3);
	conn(&h, "send", 0, "kernel", "idle", 1);
	expect(&h, "slow", 1, 2, "the kernel of rank 1 (node1, pid 1001) has not started: 3 launches have not ended");

	/* The same without a proxy. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 2);
	conn(&h, "send", 0, "", "idle", 1);
	expect(&h, "slow", 1, 2, "has not started: 2 launches");

	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 1);
	conn(&h, "send", 0, "space", "wait offer", 1);
	expect(&h, "slow", 1, 2, "waits for its own space (sending to rank 0");

	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 1);
	conn(&h, "send", 0, "none", "copy", 1);
	expect(&h, "slow", 1, 2, "is at it: kernel in phase copy at step 7");

	/* Its own kernel stands at another end: the chain goes on there. */
	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", 1);
	rank_says(&h, 1, NULL, -1, 2);
	conn(&h, "send", 0, "kernel", "idle", 1);
	conn(&h, "recv", 2, "peer", "wait data", 1);
	rank_says(&h, 2, NULL, -1, 0);
	expect(&h, "missing call", 2, 2, "has not called send to rank 1");
}

static void nothing_wrong(void)
{
	struct hand h = {.nranks = 2};

	rank_says(&h, 0, NULL, -1, 0);
	conn(&h, "send", 1, "", "idle", 9);
	rank_says(&h, 1, NULL, -1, 0);
	expect(&h, "none", -1, 0, "nothing waits");
}

/* Of two reports of a rank the newer one counts, in whatever order they come. */
static void the_newer_report(void)
{
	static const char old[] =
		"{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":1,\"nranks\":2,\"time_ns\":50,\"clock_offset_ns\":0}";
	static const char new[] =
		"{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":1,\"nranks\":2,\"time_ns\":10,\"clock_offset_ns\":60}";
	struct hand h = {.nranks = 2};

	CHECK(take(&h, new) == NULL);
	conn(&h, "recv", 0, "peer", "wait data", 1);
	CHECK(take(&h, old) == NULL);
	conn(&h, "recv", 0, "", "idle", 1);
	CHECK_EQ(h.set.comms[0].nreports, 1);
	CHECK_EQ(h.set.comms[0].ranks[0].nconns, 1);
	expect(&h, "missing call", 0, 1, "no report");
	CHECK(take(&h, old) == NULL);
	conn(&h, "recv", 0, "", "idle", 1);
	CHECK(take(&h, new) == NULL);
	conn(&h, "recv", 0, "peer", "wait data", 1);
	expect(&h, "missing call", 0, 1, "no report");
}

static void damaged_lines(void)
{
	struct hand h = {.nranks = 2};

	CHECK_HAS(take(&h, "{\"kind\":\"conn\",\"peer\":1}"), "before the communicator");
	CHECK_HAS(take(&h, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":5,\"nranks\":2}"), "rank or nranks");
	CHECK_HAS(take(&h, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":0,\"nranks\":9999999}"), "rank or nranks");
	CHECK_HAS(take(&h, "{\"other\":1}"), "kind is none of comm, conn, process and wait");
	CHECK(take(&h, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":0,\"nranks\":2}") == NULL);
	CHECK_HAS(take(&h, "{\"kind\":\"conn\",\"peer\":2}"), "no rank");
	CHECK_HAS(take(&h, "{\"kind\":\"conn\",\"peer\":1,\"waits_for\":\"godot\"}"), "unknown");
	CHECK_HAS(take(&h, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":1,\"nranks\":3}"), "another number of ranks");
	stall_free(&h.set);
}

/* ---- the reader of JSON ---- */

static void json_good(const char *text, const char *key, int64_t number, const char *string)
{
	struct json_doc doc = {0};
	char copy[256];

	snprintf(copy, sizeof(copy), "%s", text);
	CHECK_EQ(json_parse(copy, strlen(copy), &doc), 0);
	if (string)
		CHECK_STR(json_get_text(&doc, key, "?"), string);
	else
		CHECK_EQ(json_get_int(&doc, key, -77), number);
	json_free(&doc);
}

static void json_bad(const char *text, const char *why)
{
	struct json_doc doc = {0};
	char copy[256];

	snprintf(copy, sizeof(copy), "%s", text);
	CHECK_EQ(json_parse(copy, strlen(copy), &doc), -1);
	CHECK_HAS(doc.why, why);
	CHECK(doc.at <= strlen(text) + 1);
	json_free(&doc);
}

static void json(void)
{
	char deep[128];

	json_good("{\"a\":1,\"b\":[1,{\"a\":2}],\"c\":-3}", "c", -3, NULL);
	json_good(" { \"a\" : 9223372036854775807 } ", "a", INT64_MAX, NULL);
	json_good("{\"a\":1e3}", "a", 1000, NULL);
	json_good("{\"a\":1e300}", "a", INT64_MAX, NULL);
	json_good("{\"a\":true}", "a", -77, NULL);
	json_good("{\"a\":\"x\\n\\\"\\\\\\u00e9\\u20ac\\u0041\"}", "a", 0,
		  "x\n\"\\\xc3\xa9\xe2\x82\xac"
		  "A");
	json_good("{\"a\":\"\\u0000\\ud800\"}", "a", 0, "??");
	json_good("{\"a\":null,\"a\":5}", "b", -77, NULL);
	json_bad("", "cut off");
	json_bad("{\"a\":1", "cut off");
	json_bad("{\"a\":1]", "comma");
	json_bad("{\"a\" 1}", "colon");
	json_bad("{1:1}", "key");
	json_bad("{\"a\":1}x", "after the end");
	json_bad("{\"a\":\"x", "does not end");
	json_bad("{\"a\":\"\\q\"}", "escape");
	json_bad("{\"a\":\"\\u12\"}", "escape");
	json_bad("{\"a\":1.2.3}", "number");
	json_bad("{\"a\":nul}", "value");
	json_bad("{\"a\":inf}", "value");
	memset(deep, '[', sizeof(deep) - 1);
	deep[sizeof(deep) - 1] = 0;
	json_bad(deep, "deeply");
}

/* ---- the command ---- */

static int command(const char *a, const char *b)
{
	char words[3][64];
	char *argv[] = {words[0], words[1], words[2], NULL};

	snprintf(words[0], sizeof(words[0]), "stall");
	snprintf(words[1], sizeof(words[1]), "%s", a ? a : "");
	snprintf(words[2], sizeof(words[2]), "%s", b ? b : "");
	argv[1 + (a != NULL) + (b != NULL)] = NULL;
	return cmd_stall(1 + (a != NULL) + (b != NULL), argv);
}

static void put(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f != NULL);
	fputs(text, f);
	fclose(f);
}

static void statuses(void)
{
	char dir[] = "/tmp/gantry-test-stall-XXXXXX", file[64];

	CHECK(mkdtemp(dir) != NULL);
	CHECK_EQ(command(NULL, NULL), 2);
	CHECK_EQ(command("--jsn", dir), 2);
	CHECK_EQ(command("--help", NULL), 0);
	CHECK_EQ(command(dir, NULL), 1); /* empty */
	CHECK_EQ(command("/nowhere", NULL), 1);
	snprintf(file, sizeof(file), "%s/stall-c0-0.jsonl", dir);
	put(file, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":0,\"nranks\":2,\"error\":\"OK\"}\n\n"
		  "{\"kind\":\"conn\",\"peer\":1,\"dir\":\"send\",\"pending\":1,\"waits_for\":\"peer\"}\n");
	CHECK_EQ(command("--json", dir), 0);
	CHECK_EQ(command(file, NULL), 0);
	CHECK_EQ(command(file, "/nowhere"), 1);
	put(file, "{\"kind\":\"comm\",\"comm\":\"c0\",\"ra");
	CHECK_EQ(command(dir, NULL), 1);
	CHECK_EQ(unlink(file), 0);
	CHECK_EQ(rmdir(dir), 0);
}

/* ---- processes without a communicator ---- */

static void process_says(struct hand *h, int pid, int64_t time)
{
	char line[256];

	snprintf(line, sizeof(line),
		 "{\"kind\":\"process\",\"user\":\"net\",\"host\":\"node\",\"pid\":%d,\"time_ns\":%lld}", pid,
		 (long long)time);
	CHECK(take(h, line) == NULL);
}

static void waits_for_process(struct hand *h, int pid)
{
	char line[512];

	snprintf(
		line, sizeof(line),
		"{\"kind\":\"wait\",\"peer\":\"10.0.0.2:4000 (node pid %d)\",\"dir\":\"recv\",\"requests\":3,\"tag\":7,"
		"\"bytes\":64,\"waits_for\":\"peer\",\"wait_ms\":31000}",
		pid);
	CHECK(take(h, line) == NULL);
}

static void processes(void)
{
	struct hand h = {.nranks = 1};
	struct stall_verdict v;

	stall_judge_processes(&h.set, &v);
	CHECK_STR(v.cause, "none");
	/* 1 and 2 wait for 3 and for each other, 1 also for 4: 3 has the most votes of those without a report. */
	process_says(&h, 1, 5);
	waits_for_process(&h, 2);
	waits_for_process(&h, 4);
	waits_for_process(&h, 3);
	process_says(&h, 2, 5);
	waits_for_process(&h, 1);
	waits_for_process(&h, 3);
	stall_judge_processes(&h.set, &v);
	CHECK_STR(v.cause, "no report");
	CHECK_HAS(v.text, "node pid 3 is waited for");
	CHECK_EQ(v.votes, 2);
	CHECK_EQ(v.reports, 2);
	CHECK_EQ(v.rank, -1);
	CHECK_EQ(h.set.processes[0].waits[0].requests, 3);
	CHECK_EQ(h.set.processes[0].waits[0].wait_ms, 31000);
	/* An older report of 2 does not count, a newer one does: it waits for 1 alone, and 3 and 4 have one vote each.
	 */
	process_says(&h, 2, 4);
	waits_for_process(&h, 5);
	process_says(&h, 2, 6);
	waits_for_process(&h, 1);
	stall_judge_processes(&h.set, &v);
	CHECK_HAS(v.text, "node pid 4 is waited for");
	CHECK_EQ(v.votes, 1);
	/* Then both have reports: nobody is missing. */
	process_says(&h, 3, 6);
	process_says(&h, 4, 6);
	stall_judge_processes(&h.set, &v);
	CHECK_STR(v.cause, "none");
	CHECK_HAS(v.text, "has a report too");
	stall_free(&h.set);

	CHECK_HAS(take(&h, "{\"kind\":\"wait\",\"waits_for\":\"peer\"}"), "before the process");
	CHECK_HAS(take(&h, "{\"kind\":\"process\",\"host\":\"x\"}"), "without its number");
	process_says(&h, 1, 1);
	CHECK_HAS(take(&h, "{\"kind\":\"wait\",\"waits_for\":\"love\"}"), "unknown");
	stall_free(&h.set);
}

int main(void)
{
	ranks_that_are_gone();
	ranks_that_live_but_are_lost();
	ranks_that_failed();
	calls_that_are_missing();
	another_communicator();
	deadlocks();
	networks();
	slow_ones();
	nothing_wrong();
	the_newer_report();
	processes();
	damaged_lines();
	json();
	statuses();
	return 0;
}
