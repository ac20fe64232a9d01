/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report: who waits for whom, as JSON lines. The first line is the communicator, each other one an end of a
 * connection. docs/stall.md has the fields; `gantry stall` puts the reports of all ranks together.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/report.h"

static const char *const phase_names[] = {
	[GANTRY_KERNEL_IDLE] = "idle",
	[GANTRY_KERNEL_WAIT_HEAD] = "wait head",
	[GANTRY_KERNEL_WAIT_OFFER] = "wait offer",
	[GANTRY_KERNEL_WAIT_DONE] = "wait done",
	[GANTRY_KERNEL_WAIT_DATA] = "wait data",
	[GANTRY_KERNEL_COPY] = "copy",
};
enum { PHASES = sizeof(phase_names) / sizeof(phase_names[0]) };

const char *comm_waits_name(enum comm_waits w)
{
	static const char *const names[COMM_WAITS_COUNT] = {"none",   "kernel", "proxy", "peer",
							    "socket", "flush",	"space"};

	return (unsigned)w < COMM_WAITS_COUNT ? names[w] : "?";
}

void comm_json_steps(struct gantry_json *j, const uint64_t by[GANTRY_PROTOS][GANTRY_MODES])
{
	char key[32];

	gantry_json_open(j, "by", '{');
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			if (!by[p][m])
				continue;
			snprintf(key, sizeof(key), "%s %s", gantry_trace_proto_names[p], gantry_trace_mode_names[m]);
			gantry_json_uint(j, key, by[p][m]);
		}
	}
	gantry_json_close(j, '}');
}

static const char *host_of(const struct gantry_comm *comm, int rank)
{
	return comm->infos && rank >= 0 && rank < comm->nranks ? comm->infos[rank].host_name : "";
}

static void begin_line(struct gantry_json *j, const struct gantry_comm *comm, const char *kind, FILE *f)
{
	char id[20];

	snprintf(id, sizeof(id), "%016llx", (unsigned long long)comm->id);
	gantry_json_begin(j, f, GANTRY_JSON_TIGHT);
	gantry_json_str(j, "kind", kind);
	gantry_json_str(j, "comm", id);
	gantry_json_int(j, "rank", comm->rank);
}

static void put_comm(struct gantry_comm *comm, FILE *f)
{
	char text[COMM_ERROR_TEXT] = "";
	int rank = -1;
	gantry_result error = gantry_comm_error(comm, &rank, text, sizeof(text));
	struct gantry_json j;

	begin_line(&j, comm, "comm", f);
	gantry_json_int(&j, "nranks", comm->nranks);
	gantry_json_str(&j, "host", host_of(comm, comm->rank));
	gantry_json_int(&j, "pid", getpid());
	gantry_json_uint(&j, "time_ns", gantry_now_ns());
	gantry_json_int(&j, "clock_offset_ns", comm->ctl ? gantry_ctl_clock_offset(comm->ctl) : 0);
	gantry_json_str(&j, "error", gantry_result_name(error));
	gantry_json_int(&j, "error_rank", rank);
	gantry_json_str(&j, "error_host", host_of(comm, rank));
	gantry_json_str(&j, "text", text);
	gantry_json_int(&j, "launches_running", comm_look_launches(comm));
	gantry_json_uint(&j, "proxy_pending", comm->group ? gantry_proxy_group_pending(comm->group) : 0);
	gantry_json_end(&j);
}

static void put_steps(struct gantry_json *j, const struct comm_end *e)
{
	const struct gantry_proxy_conn_view *v = &e->proxy;

	if (!e->proxied) {
		gantry_json_str(j, "steps", NULL);
		return;
	}
	gantry_json_open(j, "steps", '{');
	gantry_json_uint(j, "posted", v->posted);
	gantry_json_uint(j, "moved", v->moved);
	gantry_json_uint(j, "flushed", v->flushed);
	gantry_json_uint(j, "done", v->done);
	gantry_json_uint(j, "end", v->end);
	gantry_json_close(j, '}');
}

struct to {
	struct gantry_comm *comm;
	FILE *f;
};

static void put_end(void *ctx, const struct comm_end *e)
{
	const struct to *to = ctx;
	struct gantry_json j;

	begin_line(&j, to->comm, "conn", to->f);
	gantry_json_int(&j, "peer", e->peer);
	gantry_json_str(&j, "peer_host", host_of(to->comm, e->peer));
	gantry_json_uint(&j, "peer_pid", to->comm->infos ? to->comm->infos[e->peer].pid : 0);
	gantry_json_str(&j, "dir", e->send ? "send" : "recv");
	gantry_json_int(&j, "channel", e->channel);
	gantry_json_str(&j, "transport", e->transport ? e->transport->name : "");
	gantry_json_str(&j, "stage", e->connecting ? "connecting" : "ready");
	gantry_json_int(&j, "proxied", e->proxied);
	gantry_json_int(&j, "pending", e->pending);
	gantry_json_str(&j, "waits_for", comm_waits_name(e->waits));
	gantry_json_uint(&j, "wait_ms", e->wait_ns / 1000000);
	gantry_json_uint(&j, "calls", e->calls);
	gantry_json_open(&j, "kernel", '{');
	gantry_json_str(&j, "phase", e->phase < PHASES ? phase_names[e->phase] : "?");
	gantry_json_uint(&j, "step", e->step);
	gantry_json_close(&j, '}');
	if (e->has_words) {
		gantry_json_uint(&j, "head", e->head);
		gantry_json_uint(&j, "tail", e->tail);
	} else {
		gantry_json_str(&j, "head", NULL);
		gantry_json_str(&j, "tail", NULL);
	}
	put_steps(&j, e);
	gantry_json_uint(&j, "bytes", e->bytes);
	gantry_json_uint(&j, "copies", e->copies);
	comm_json_steps(&j, e->by);
	gantry_json_end(&j);
}

void comm_report_put(void *comm, FILE *f)
{
	struct to to = {comm, f};

	put_comm(comm, f);
	comm_ends_each(comm, put_end, &to);
}

gantry_result gantry_comm_report(struct gantry_comm *comm, FILE *f)
{
	gantry_result r = GANTRY_OK;

	if (!comm || !f)
		FAIL(GANTRY_ERR_INVALID, "gantry_comm_report: no communicator or no file");
	comm_report_put(comm, f);
	if (fflush(f) || ferror(f))
		FAIL(GANTRY_ERR_SYSTEM, "writing a report: %s", strerror(errno));
out:
	return r;
}
