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
#include "base/file.h"
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

void comm_json_steps(FILE *f, const uint64_t by[GANTRY_PROTOS][GANTRY_MODES])
{
	const char *comma = "";

	putc('{', f);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++) {
			if (!by[p][m])
				continue;
			fprintf(f, "%s\"%s %s\":%llu", comma, gantry_trace_proto_names[p], gantry_trace_mode_names[m],
				(unsigned long long)by[p][m]);
			comma = ",";
		}
	}
	putc('}', f);
}

static void put_number(FILE *f, const char *key, uint64_t value)
{
	fprintf(f, ",\"%s\":%llu", key, (unsigned long long)value);
}

static void put_text(FILE *f, const char *key, const char *value)
{
	fprintf(f, ",\"%s\":", key);
	gantry_json_string(f, value);
}

static const char *host_of(const struct gantry_comm *comm, int rank)
{
	return comm->infos && rank >= 0 && rank < comm->nranks ? comm->infos[rank].host_name : "";
}

static void put_comm(struct gantry_comm *comm, FILE *f)
{
	char text[COMM_ERROR_TEXT] = "";
	int rank = -1;
	gantry_result error = gantry_comm_error(comm, &rank, text, sizeof(text));

	fprintf(f, "{\"kind\":\"comm\",\"comm\":\"%016llx\",\"rank\":%d,\"nranks\":%d", (unsigned long long)comm->id,
		comm->rank, comm->nranks);
	put_text(f, "host", host_of(comm, comm->rank));
	put_number(f, "pid", (uint64_t)getpid());
	put_number(f, "time_ns", gantry_now_ns());
	fprintf(f, ",\"clock_offset_ns\":%lld", comm->ctl ? (long long)gantry_ctl_clock_offset(comm->ctl) : 0);
	put_text(f, "error", gantry_result_name(error));
	fprintf(f, ",\"error_rank\":%d", rank);
	put_text(f, "error_host", host_of(comm, rank));
	put_text(f, "text", text);
	put_number(f, "launches_running", (uint64_t)comm_look_launches(comm));
	put_number(f, "proxy_pending", comm->group ? gantry_proxy_group_pending(comm->group) : 0);
	fputs("}\n", f);
}

static void put_words(FILE *f, const struct comm_end *e)
{
	if (!e->has_words) {
		fputs(",\"head\":null,\"tail\":null", f);
		return;
	}
	put_number(f, "head", e->head);
	put_number(f, "tail", e->tail);
}

static void put_steps(FILE *f, const struct comm_end *e)
{
	const struct gantry_proxy_conn_view *v = &e->proxy;

	if (!e->proxied) {
		fputs(",\"steps\":null", f);
		return;
	}
	fprintf(f, ",\"steps\":{\"posted\":%llu,\"moved\":%llu,\"flushed\":%llu,\"done\":%llu,\"end\":%llu}",
		(unsigned long long)v->posted, (unsigned long long)v->moved, (unsigned long long)v->flushed,
		(unsigned long long)v->done, (unsigned long long)v->end);
}

struct to {
	struct gantry_comm *comm;
	FILE *f;
};

static void put_end(void *ctx, const struct comm_end *e)
{
	const struct to *to = ctx;
	FILE *f = to->f;

	fprintf(f, "{\"kind\":\"conn\",\"comm\":\"%016llx\",\"rank\":%d,\"peer\":%d", (unsigned long long)to->comm->id,
		to->comm->rank, e->peer);
	put_text(f, "peer_host", host_of(to->comm, e->peer));
	put_number(f, "peer_pid", to->comm->infos ? to->comm->infos[e->peer].pid : 0);
	fprintf(f, ",\"dir\":\"%s\",\"channel\":%d", e->send ? "send" : "recv", e->channel);
	put_text(f, "transport", e->transport ? e->transport->name : "");
	fprintf(f, ",\"stage\":\"%s\",\"proxied\":%d,\"pending\":%d,\"waits_for\":\"%s\"",
		e->connecting ? "connecting" : "ready", e->proxied, e->pending, comm_waits_name(e->waits));
	put_number(f, "wait_ms", e->wait_ns / 1000000);
	put_number(f, "calls", e->calls);
	fprintf(f, ",\"kernel\":{\"phase\":\"%s\",\"step\":%llu}", e->phase < PHASES ? phase_names[e->phase] : "?",
		(unsigned long long)e->step);
	put_words(f, e);
	put_steps(f, e);
	put_number(f, "bytes", e->bytes);
	put_number(f, "copies", e->copies);
	fputs(",\"by\":", f);
	comm_json_steps(f, e->by);
	fputs("}\n", f);
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
