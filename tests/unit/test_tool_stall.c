/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict of `gantry stall`, rule by rule, on reports written by hand. */
#include "comm/report.h"
#include "common/cmd.h"
#include "stall/stall_set.h"
#include "tool_folder.h"

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

/*
 * ---- rules ----
 *
 * Reports with ";" between, each line of a connection after its rank's:
 *
 *   2:1             rank 2 has no error, and 1 launch that has not ended; +2:1: in another communicator
 *   2!ERR_X 0       it has this error, about rank 0
 *   >1 peer, p, 3   a send to rank 1 waits for its peer ("-": nothing is in flight), its kernel is in phase p, 3 calls
 *   <1 peer, p, 3   a receive from rank 1
 */
static const struct rule {
	int nranks;
	const char *reports;
	const char *cause;
	int rank, votes;
	const char *part; /* of the verdict */
} rules[] = {
	/* Ranks that are gone. */
	{4, "0!ERR_PEER_LOST 2; 1!ERR_PEER_LOST 2; 3!ERR_PEER_SILENT 2; >2 peer, wait head, 1", "died", 2, 3,
	 "rank 2 (node2, pid 1002): no report; others say: ERR_PEER_LOST (2 ranks), ERR_PEER_SILENT (1 rank)"},
	{4, "0!ERR_PEER_SILENT 3; 1!ERR_PEER_SILENT 3", "stopped", 3, 2,
	 "rank 3 (node3): no report; others say: ERR_PEER_SILENT (2 ranks): its process is stopped"},
	{4, "1!ERR_UNREACHABLE 0", "unreachable", 0, 1, "rank 0 (node0): no report"},
	/* They write a report, so they live. */
	{4, "0!ERR_PEER_SILENT 2; 1!ERR_PEER_SILENT 2; 2!ERR_PEER_SILENT 0", "unreachable", 2, 2,
	 "it lives, but could not be reached"},
	{4, "0!ERR_PEER_LOST 1; 1!ERR_PEER_SILENT 0", "network", 0, 2,
	 "network between rank 0 (node0, pid 1000) and rank 1 (node1, pid 1001)"},
	{4, "0!ERR_PEER_LOST 1; 1:0", "died", 1, 1, "its own report knows of no error"},
	/* Ranks that failed. */
	{3, "0!ERR_PEER_LOST 1; 1!ERR_NOMEM 1; 2!ERR_PEER_LOST 1", "failed", 1, 3,
	 "rank 1 (node1, pid 1001) failed by itself: ERR_NOMEM: because"},
	/* Two of them: the first by the common clock. */
	{3, "2!ERR_SIZE 0; 1!ERR_CORRUPT -1; 0:1; <2 peer, wait data, 1", "failed", 1, 1, "ERR_CORRUPT"},
	/* Somebody aborts, or a deadline passes: symptoms. */
	{3, "0!ERR_TIMEOUT 2; >2 peer, connecting, 0; 1!ERR_ABORTED 1; 2:0", "missing call", 2, 1,
	 "rank 2 (node2, pid 1002) has not called recv from rank 0"},
	/* Calls that are missing. */
	/* 0 waits for 1, 1 waits for 2, and 2 does nothing there. */
	{4, "0:1; <1 peer, wait data, 3; 1:2; >0 -, idle, 3; >2 peer, wait head, 3; 2:0; <1 -, idle, 2", "missing call",
	 2, 2, "has not called recv from rank 1 (its matching call is missing)"},
	/* The same without a word from 2. */
	{4, "0:1; <1 peer, wait data, 3; 1:2; >2 socket, wait head, 3", "missing call", 2, 2,
	 "rank 2 (node2, pid 1002): no report; others wait for it and none has lost it"},
	/* 1 has no such connection at all. */
	{4, "0:1; <1 peer, connecting, 0; 1:0", "missing call", 1, 1, "has not called send to rank 0"},
	/* Its process is stuck elsewhere, and the verdict says where. */
	{2, "0:1; <1 peer, wait data, 1; 1:0; +1:1; <0 peer, wait data, 1", "missing call", 1, 1,
	 "its process waits as rank 1 of communicator 00000000000000c1"},
	/* Deadlocks. */
	/* 3 stands behind them and 4 behind 3. */
	{5,
	 "2:2; >0 peer, wait head, 1; <1 kernel, idle, 1; 1:2; >2 peer, wait head, 1; 0:2; >1 peer, wait head, 1; 3:1; "
	 "<2 peer, wait data, 1; 4:1; <3 peer, wait data, 1",
	 "deadlock", 0, 5,
	 "deadlock: 0 -> 1 -> 2 -> 0 (rank 0 is in send to rank 1, rank 1 is in send to rank 2, rank 2 is in send to "
	 "rank 0)"},
	/* Two ranks, each in a call that the other one answers only afterwards. */
	{5, "0:1; <1 peer, wait data, 1; 1:1; <0 peer, wait data, 1", "deadlock", 0, 2, "0 -> 1 -> 0"},
	/* The network. */
	{3, "0:1; >1 socket, wait head, 1; 1:1; <0 peer, wait data, 1", "network", 0, 2,
	 "network between rank 0 (node0, pid 1000) and rank 1 (node1, pid 1001)"},
	/* The call was made and counts as done there. */
	{3, "0:1; <1 peer, wait data, 4; 1:0; >0 -, idle, 4", "network", 1, 1, "counts them as done"},
	/* Slow ones. */
	/* The proxy of 1 has its operation, its kernel has not come to it. */
	{3, "0:1; <1 peer, wait data, 1; 1:3; >0 kernel, idle, 1", "slow", 1, 2,
	 "the kernel of rank 1 (node1, pid 1001) has not started: 3 launches have not ended"},
	/* The same without a proxy. */
	{3, "0:1; <1 peer, wait data, 1; 1:2; >0 -, idle, 1", "slow", 1, 2, "has not started: 2 launches"},
	{3, "0:1; <1 peer, wait data, 1; 1:1; >0 space, wait offer, 1", "slow", 1, 2,
	 "waits for its own space (sending to rank 0"},
	{3, "0:1; <1 peer, wait data, 1; 1:1; >0 none, copy, 1", "slow", 1, 2,
	 "is at it: kernel in phase copy at step 7"},
	/* Its own kernel stands at another end: the chain goes on there. */
	{3, "0:1; <1 peer, wait data, 1; 1:2; >0 kernel, idle, 1; <2 peer, wait data, 1; 2:0", "missing call", 2, 2,
	 "has not called send to rank 1"},
	/* Nothing is wrong. */
	{2, "0:0; >1 -, idle, 9; 1:0", "none", -1, 0, "nothing waits"},
};

static void take_report(struct hand *h, const char *report)
{
	char dir, error[32] = "", waits[16], phase[16];
	int rank, about = -1, launches = 0, calls;

	if (sscanf(report, "%c%d %15[^,], %15[^,], %d", &dir, &rank, waits, phase, &calls) == 5) {
		conn(h, dir == '>' ? "send" : "recv", rank, strcmp(waits, "-") ? waits : "", phase, calls);
		return;
	}
	h->comm = *report == '+' ? "00000000000000c1" : NULL;
	report += *report == '+';
	CHECK(sscanf(report, "%d!%31s %d", &rank, error, &about) == 3 ||
	      sscanf(report, "%d:%d", &rank, &launches) == 2);
	rank_says(h, rank, *error ? error : NULL, about, launches);
}

TEST(judge_rules)
{
	for (const struct rule *r = rules; r < rules + sizeof(rules) / sizeof(rules[0]); r++) {
		struct hand h = {.nranks = r->nranks};
		char text[1024], *rest = text, *report;

		printf("%s\n", r->reports);
		snprintf(text, sizeof(text), "%s", r->reports);
		while ((report = strsep(&rest, ";")))
			take_report(&h, report + strspn(report, " "));
		expect(&h, r->cause, r->rank, r->votes, r->part);
	}
}

/* A rank that has called so many collectives and waits in this one, as "number":17,"name":..., for a peer; -1: does not. */
static void in_coll(struct hand *h, int rank, const char *error, int called, int peer, const char *coll)
{
	char line[1024];

	snprintf(line, sizeof(line),
		 "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":%d,\"nranks\":3,\"host\":\"node%d\",\"pid\":%d,"
		 "\"error\":\"%s\",\"error_rank\":%d,\"collectives\":%d}",
		 rank, rank, 1000 + rank, *error ? error : "OK", *error ? peer : -1, called);
	CHECK(take(h, line) == NULL);
	if (peer < 0)
		return;
	snprintf(
		line, sizeof(line),
		"{\"kind\":\"conn\",\"comm\":\"c0\",\"rank\":%d,\"peer\":%d,\"peer_host\":\"node%d\",\"peer_pid\":%d,"
		"\"dir\":\"recv\",\"channel\":2,\"transport\":\"net\",\"pending\":1,\"waits_for\":\"peer\",\"calls\":0,"
		"\"kernel\":{\"phase\":\"wait data\",\"step\":7},\"coll\":{%s}}",
		rank, peer, peer, 1000 + peer, coll);
	CHECK(take(h, line) == NULL);
}

#define ALL_REDUCE                                                                                                     \
	"\"number\":17,\"name\":\"all_reduce\",\"bytes\":1048576,\"type\":\"float\",\"op\":\"sum\",\"root\":-1,"       \
	"\"algo\":\"ring\",\"proto\":\"simple\",\"step\":3,\"of\":6,\"chunk\":1"
#define BROADCAST                                                                                                      \
	"\"number\":17,\"name\":\"broadcast\",\"bytes\":8,\"type\":\"int8\",\"op\":\"\",\"root\":2,\"algo\":\"tree\"," \
	"\"proto\":\"ll\""

TEST(collectives)
{
	struct hand h = {.nranks = 3};

	/* Who waits for the dead, and where. */
	in_coll(&h, 0, "ERR_PEER_LOST", 17, 2, ALL_REDUCE);
	in_coll(&h, 1, "ERR_PEER_LOST", 17, 2, ALL_REDUCE);
	expect(&h, "died", 2, 2,
	       "rank 0 waits for data of rank 2 in all_reduce #17 (1 MiB float sum, ring, simple), step 3 of 6, chunk "
	       "1, "
	       "by net, channel 2");
	/* 1 has not called it. */
	in_coll(&h, 0, "", 17, 1, ALL_REDUCE);
	in_coll(&h, 1, "", 16, -1, "");
	in_coll(&h, 2, "", 17, 0, ALL_REDUCE);
	expect(&h, "missing call", 1, 2,
	       "rank 1 (node1, pid 1001) has not called all_reduce #17 (1 MiB float sum, ring, simple): it has called "
	       "16 collectives, and rank 0 waits for it");
	/* It has called another one. */
	in_coll(&h, 0, "", 17, 1, ALL_REDUCE);
	in_coll(&h, 1, "", 17, 0, BROADCAST);
	in_coll(&h, 2, "", 17, 1, ALL_REDUCE);
	expect(&h, "mismatch", 1, 2,
	       "rank 1 (node1, pid 1001) has called broadcast #17 (8 B int8, root 2, tree, ll), where rank 0 has "
	       "called "
	       "all_reduce #17");
}

/* Of two reports of a rank the newer one counts, in whatever order they come. */
TEST(the_newer_report)
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

TEST(remote_memory_requests)
{
	static const char line[] =
		"{\"kind\":\"rma\",\"rank\":0,\"peer\":3,\"context\":2,\"what\":\"put with signal\",\"bytes\":4096,"
		"\"signal\":24,\"wait_ms\":31000}";
	struct hand h = {.nranks = 1};
	char text[2048] = "";
	FILE *f = fmemopen(text, sizeof(text), "w");

	CHECK_HAS(take(&h, line), "before the process");
	CHECK(take(&h, "{\"kind\":\"process\",\"user\":\"rma\",\"host\":\"node\",\"pid\":7,\"time_ns\":5}") == NULL);
	CHECK(take(&h, line) == NULL);
	stall_print_processes(&h.set, f);
	fclose(f);
	CHECK_HAS(text, "put with signal of rank 0 to rank 3, context 2, 4096 bytes, signal at 24, for 31.0 s");
	stall_free(&h.set);
}

TEST(damaged_lines)
{
	struct hand h = {.nranks = 2};

	CHECK_HAS(take(&h, "{\"kind\":\"conn\",\"peer\":1}"), "before the communicator");
	CHECK_HAS(take(&h, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":5,\"nranks\":2}"), "rank or nranks");
	CHECK_HAS(take(&h, "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":0,\"nranks\":9999999}"), "rank or nranks");
	CHECK_HAS(take(&h, "{\"other\":1}"), "kind is none of comm, conn, process, rank, rma and wait");
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

TEST(json)
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

#define COMMAND(...) command(cmd_stall, (const char *const[]){"stall", __VA_ARGS__})

TEST(statuses)
{
	const char *folder = test_folder();

	CHECK_EQ(COMMAND(NULL), 2);
	CHECK_EQ(COMMAND("--jsn", folder, NULL), 2);
	CHECK_EQ(COMMAND("--help", NULL), 0);
	CHECK_EQ(COMMAND(folder, NULL), 1); /* empty */
	CHECK_EQ(COMMAND("/nowhere", NULL), 1);
	put("stall-c0-0.jsonl",
	    "{\"kind\":\"comm\",\"comm\":\"c0\",\"rank\":0,\"nranks\":2,\"error\":\"OK\"}\n\n"
	    "{\"kind\":\"conn\",\"peer\":1,\"dir\":\"send\",\"pending\":1,\"waits_for\":\"peer\"}\n");
	CHECK_EQ(COMMAND("--json", folder, NULL), 0);
	CHECK_EQ(COMMAND("%stall-c0-0.jsonl", NULL), 0);
	CHECK_EQ(COMMAND("%stall-c0-0.jsonl", "/nowhere", NULL), 1);
	put("stall-c0-0.jsonl", "{\"kind\":\"comm\",\"comm\":\"c0\",\"ra");
	CHECK_EQ(COMMAND(folder, NULL), 1);
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

static void is_rank(struct hand *h, int pid, int rank, int calls)
{
	char line[512];

	snprintf(line, sizeof(line),
		 "{\"kind\":\"rank\",\"nccl\":0,\"comm\":\"c7\",\"rank\":%d,\"nranks\":3,\"name\":\"\",\"host\":"
		 "\"node\","
		 "\"pid\":%d,\"over\":0,\"collectives\":%d,\"last\":{\"bytes\":1024,\"collective\":\"AllReduce\","
		 "\"type\":\"Int8\",\"algo\":\"TREE\",\"proto\":\"ll\"}}",
		 rank, pid, calls);
	CHECK(take(h, line) == NULL);
}

/* Ranks of NCCL's: one that has called less is missed, one without a report sooner, a silent one first. */
TEST(ranks_of_processes)
{
	struct hand h = {.nranks = 1};
	struct stall_verdict v;

	is_rank(&h, 3, 2, 0);
	process_says(&h, 1, 5);
	is_rank(&h, 1, 0, 8);
	waits_for_process(&h, 2);
	process_says(&h, 2, 5);
	is_rank(&h, 2, 1, 7);
	is_rank(&h, 2, 1, 6); /* older */
	stall_judge_processes(&h.set, &v);
	CHECK_STR(v.cause, "missing call");
	CHECK_HAS(v.text,
		  "rank 1 of 3 (node, pid 2) has called 7 collectives of communicator c7, and rank 0 8: its call of "
		  "AllReduce #8 (1 KiB Int8, TREE, ll) is missing; rank 0 of 3 (node, pid 1) waits for data of it");
	CHECK_EQ(v.rank, 1);
	CHECK_STR(v.comm, "c7");
	CHECK_EQ(v.nranks, 3);
	waits_for_process(&h, 3);
	stall_judge_processes(&h.set, &v);
	CHECK_STR(v.cause, "no report");
	CHECK_EQ(v.rank, 2);
	CHECK(take(&h, "{\"kind\":\"wait\",\"peer\":\"10.0.0.2:4000 (node pid "
		       "2)\",\"dir\":\"send\",\"requests\":1,\"tag\":7,"
		       "\"bytes\":64,\"waits_for\":\"peer\",\"wait_ms\":100,\"heard_ms\":2500,\"silent\":1}") == NULL);
	stall_judge_processes(&h.set, &v);
	CHECK_STR(v.cause, "stopped");
	CHECK_HAS(v.text, "rank 1 of 3 (node, pid 2) gave no sign of life for 2.5 s");
	CHECK_HAS(take(&h, "{\"kind\":\"rank\",\"pid\":1}"), "without its number");
	stall_free(&h.set);
}

/* Rank 0 receives from rank 1, which has nothing in flight: `calls` are those of rank 0, so far. */
static struct hand one_look(int calls, int with_peer)
{
	struct hand h = {.nranks = 2};

	rank_says(&h, 0, NULL, -1, 1);
	conn(&h, "recv", 1, "peer", "wait data", calls);
	if (with_peer) {
		rank_says(&h, 1, NULL, -1, 0);
		conn(&h, "send", 0, "", "idle", 3);
	}
	return h;
}

/* Three looks at a job: what moved between them is not to blame, what did not is, and who did not answer is not said to have
 * made no call. */
TEST(three_looks)
{
	static const struct {
		int calls[3], with_peer, rank, votes;
		const char *cause, *part;
	} table[] = {
		{{4, 5, 6}, 1, -1, 0, "none", "nothing hangs: 1 of 2 ranks moved"},
		{{4, 4, 5}, 1, -1, 0, "none", "nothing hangs: 1 of 2 ranks moved"},
		{{4, 5, 5}, 1, -1, 0, "none", "nothing hangs: 1 of 2 ranks moved"},
		{{4, 4, 4}, 1, 1, 1, "missing call", "rank 1 (node1, pid 1001) has not called send to rank 0"},
		{{4, 4, 4}, 0, 1, 1, "no report", "rank 1 (node1, pid 1001) has not answered: its process is stopped"},
		{{4, 5, 6}, 0, -1, 0, "none", "nothing hangs: 1 of 1 rank moved"},
	};

	EACH_ROW (i, table) {
		struct hand looks[3];

		for (int k = 0; k < 3; k++)
			looks[k] = one_look(table[i].calls[k], table[i].with_peer);
		stall_settle(&looks[1].set, &looks[0].set, &looks[2].set);
		expect(&looks[1], table[i].cause, table[i].rank, table[i].votes, table[i].part);
		stall_free(&looks[0].set);
		stall_free(&looks[2].set);
	}
}

/* The same of processes: a wait counts if it is older than the first look. */
TEST(three_looks_at_processes)
{
	for (int later = 0; later < 2; later++) {
		struct hand looks[3] = {{.nranks = 1}, {.nranks = 1}, {.nranks = 1}};
		struct stall_verdict v;

		for (int k = 0; k < 3; k++) { /* 2 s or 62 s from the first to the last; it waits for 31 s in each */
			process_says(&looks[k], 1, k * (later ? 31000000000 : 1000000000));
			waits_for_process(&looks[k], 2);
		}
		stall_settle(&looks[1].set, &looks[0].set, &looks[2].set);
		stall_judge_processes(&looks[1].set, &v);
		CHECK_STR(v.cause, later ? "none" : "no report");
		for (int k = 0; k < 3; k++)
			stall_free(&looks[k].set);
	}
}

TEST(processes)
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
