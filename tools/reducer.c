/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry reducer`: reduces for the ranks of any jobs that name it in GANTRY_REDUCERS. The work is in src/reducer/server.c. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/param.h"
#include "base/text.h"
#include "common/cmd.h"
#include "common/options.h"
#include "inet/settings.h"
#include "reducer/server.h"

static int stop; /* atomic */

static void on_signal(int number)
{
	(void)number;
	store_relaxed(&stop, 1);
}

struct request {
	const char *listen;
	uint64_t memory, job_memory;
	uint64_t every; /* ns; 0: no status lines */
	int json;
};

enum { MEMORY = 1 << 30, JOB_MEMORY = 256 << 20 };
static const uint64_t look_ns = 100000000; /* how often to look for a signal while there is no job */

/* clang-format off */
#define AT(field) offsetof(struct request, field)
static const struct option_spec specs[] = {
	{0, OPTION_TEXT, "listen", AT(listen), 0, 0, NULL, "ADDR[:PORT]", "address to listen on, port 18521 if none is given (default: the first address of the interfaces in use)"},
	{0, OPTION_SIZE, "memory", AT(memory), 1 << 20, 1ull << 50, NULL, "SIZE", "buffers of all jobs together; a job beyond it is refused (default 1G)"},
	{0, OPTION_SIZE, "job-memory", AT(job_memory), 1 << 20, 1ull << 50, NULL, "SIZE", "the same of one job; jobs of up to 1024 ranks take 33M at most (default 256M)"},
	{0, OPTION_TIME, "every", AT(every), 10000000, 0, NULL, "TIME", "a line with the state of all jobs so often (default: none)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "one JSON object per line: what happens to jobs, and the state"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry reducer",
	.about = "Adds up what the ranks of jobs send and sends it back (collNet), for all jobs whose ranks have\n"
		 "GANTRY_REDUCERS=ADDR:PORT,... Runs in the foreground.\n",
	.notes =
		"\nGANTRY_SECRET and GANTRY_ENCRYPT are those of the ranks. Counters: gantry top. Exit status: 0 after "
		"SIGINT or\nSIGTERM, 1 it cannot serve, 2 wrong usage.\n",
	OPTION_SPECS(specs),
};

/* ---- output ---- */

static int in_json; /* --json */

static const char *const event_names[] = {[REDUCER_EVENT_ASKED] = "asked",
					  [REDUCER_EVENT_BEGUN] = "begun",
					  [REDUCER_EVENT_ENDED] = "ended",
					  [REDUCER_EVENT_FAILED] = "failed",
					  [REDUCER_EVENT_REFUSED] = "refused"};

static void tell_json(const struct reducer_event *e)
{
	struct gantry_json j;
	char job[24];

	snprintf(job, sizeof(job), "%016llx", (unsigned long long)e->job);
	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "event", event_names[e->kind]);
	gantry_json_str(&j, "job", job);
	gantry_json_uint(&j, "ranks", e->ranks);
	gantry_json_uint(&j, "pieces", e->pieces);
	gantry_json_uint(&j, "received_bytes", e->received);
	gantry_json_uint(&j, "sent_bytes", e->sent);
	gantry_json_num(&j, "seconds", (double)e->ns / 1e9);
	gantry_json_str(&j, "text", e->text);
	gantry_json_end(&j);
}

static void tell_event(const struct reducer_event *e)
{
	if (in_json) {
		tell_json(e);
		return;
	}
	if (e->kind == REDUCER_EVENT_ASKED)
		return;
	printf("job %016llx of %u ranks: %s", (unsigned long long)e->job, e->ranks, event_names[e->kind]);
	if (e->kind == REDUCER_EVENT_ENDED || e->kind == REDUCER_EVENT_FAILED)
		printf(" after %.1f s, %llu pieces, %s in, %s out", (double)e->ns / 1e9, (unsigned long long)e->pieces,
		       SIZE_TEXT(e->received), SIZE_TEXT(e->sent));
	printf("%s%s\n", *e->text ? ": " : "", e->text);
	fflush(stdout);
}

static void tell_listening(const struct gantry_addr *a)
{
	struct gantry_json j;
	char text[GANTRY_ADDR_TEXT];

	gantry_addr_text(a, text);
	if (in_json) {
		gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
		gantry_json_str(&j, "event", "listening");
		gantry_json_str(&j, "address", text);
		gantry_json_end(&j);
		return;
	}
	printf("gantry reducer: listening, for ranks with GANTRY_REDUCERS=%s\n", text);
	fflush(stdout);
}

static void tell_status(const struct reducer_server *s)
{
	struct reducer_server_status t;
	struct gantry_json j;

	reducer_server_status(s, &t);
	if (!in_json) {
		printf("%s (%u incomplete), %s; %llu pieces, %s in, %s out\n", COUNT_TEXT(t.jobs, "job"), t.gathering,
		       SIZE_TEXT(t.memory), (unsigned long long)t.pieces, SIZE_TEXT(t.received), SIZE_TEXT(t.sent));
		fflush(stdout);
		return;
	}
	gantry_json_begin(&j, stdout, GANTRY_JSON_PEOPLE);
	gantry_json_str(&j, "event", "status");
	gantry_json_uint(&j, "jobs", t.jobs);
	gantry_json_uint(&j, "gathering", t.gathering);
	gantry_json_uint(&j, "memory_bytes", t.memory);
	gantry_json_uint(&j, "begun", t.begun);
	gantry_json_uint(&j, "failed", t.failed);
	gantry_json_uint(&j, "refused", t.refused);
	gantry_json_uint(&j, "pieces", t.pieces);
	gantry_json_uint(&j, "received_bytes", t.received);
	gantry_json_uint(&j, "sent_bytes", t.sent);
	gantry_json_end(&j);
}

/* ---- serving ---- */

/* Where to listen. The network is that of the address, unless the user has named interfaces. Returns an exit status; the log says
 * why it is 1. */
static int choose_address(const struct request *q, struct gantry_addr *ret_addr)
{
	struct gantry_addr addrs[GANTRY_ADDRS_MAX];
	char why[256], name[IFNAMSIZ], pattern[IFNAMSIZ + 1];
	int n;

	if (!q->listen) {
		if (inet_listen_addr(ret_addr) != GANTRY_OK)
			return 1;
		gantry_addr_set_port(ret_addr, REDUCER_PORT);
		return 0;
	}
	if (strchr(q->listen, ','))
		return options_wrong(&set, "--listen %s: a reducer listens at one address", q->listen);
	if (gantry_addr_resolve(q->listen, REDUCER_PORT, addrs, &n, why, sizeof(why)) < 0)
		return options_wrong(&set, "--listen %s", why);
	*ret_addr = addrs[0];
	gantry_nic_of_addr(&addrs[0], name);
	snprintf(pattern, sizeof(pattern), "=%s", name);
	if (*inet_wanted_interfaces() || !name[0])
		return 0;
	setenv("GANTRY_IFNAME", pattern, 1);
	return gantry_params_load(1) != GANTRY_OK;
}

static void serve(struct reducer_server *s, const struct request *q)
{
	uint64_t told = gantry_now_ns();

	while (!load_relaxed(&stop)) {
		reducer_server_wait(s, reducer_server_step(s), look_ns);
		if (q->every && gantry_now_ns() - told >= q->every) {
			tell_status(s);
			told = gantry_now_ns(); /* a process that stood still says it once */
		}
	}
}

int cmd_reducer(int argc, char **argv)
{
	struct request q = {.memory = MEMORY, .job_memory = JOB_MEMORY};
	int status = options_parse(&set, argc, argv, &q);
	struct sigaction action = {.sa_handler = on_signal};
	struct reducer_server_config config = {.tell = tell_event};
	struct reducer_server *s = NULL;

	if (status)
		return status - 1;
	in_json = q.json;
	config.memory = q.memory;
	config.job_memory = q.job_memory;
	status = choose_address(&q, &config.listen);
	if (status)
		return status;
	if (reducer_server_open(&config, &s) != GANTRY_OK)
		return 1; /* the log says why */
	store_relaxed(&stop, 0);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	tell_listening(&config.listen);
	serve(s, &q);
	tell_status(s);
	reducer_server_close(s);
	return 0;
}
