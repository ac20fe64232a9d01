/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads other than the caller's see of a communicator: an end of a connection at a moment, sums over all of
 * them, and the report, which rank waits for which, as JSON lines. The first line is the communicator, each other one
 * an end. docs/stall.md has the fields; `gantry stall` merges the reports of all ranks.
 *
 * What an end waits for, by where its kernel and its proxy are:
 *
 *   kernel \ proxy      none          waits for X       busy, says nothing
 *   not in a wait       none          X                 none
 *   in a wait           peer          X                 proxy
 *
 * X "kernel" beside a kernel that waits is a contradiction: a progress pass looks at several things in turn and the
 * last one that was not there stays. Then the counters decide: what is on its way waits for the peer.
 *
 * After an error the proxy has dropped its operations and kernels have ended, but where they stood can still be seen:
 * a kernel's last phase, the proxy's counters and its last cause. A report tells that.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/api.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/launches.h"
#include "comm/report.h"
#include "transport/transport.h"

#define READ(x) load_relaxed(&(x))

static int kernel_in_wait(uint32_t phase)
{
	return phase == GANTRY_KERNEL_WAIT_HEAD || phase == GANTRY_KERNEL_WAIT_OFFER ||
	       phase == GANTRY_KERNEL_WAIT_DONE || phase == GANTRY_KERNEL_WAIT_DATA;
}

static enum comm_waits waits_of(const struct comm_end *e)
{
	const struct gantry_proxy_conn_view *v = &e->proxy;
	int kernel = kernel_in_wait(e->phase), cut = e->pending && !v->busy;
	enum comm_waits w;

	if (e->connecting)
		return COMM_WAITS_PEER;
	if (!e->proxied)
		return kernel ? COMM_WAITS_PEER : COMM_WAITS_NONE;
	if (!e->pending || !(v->waits || cut))
		return kernel ? COMM_WAITS_PROXY : COMM_WAITS_NONE;
	w = (enum comm_waits)(COMM_WAITS_KERNEL + v->waits_for);
	if (w == COMM_WAITS_KERNEL && kernel)
		return (e->send ? v->moved > v->done : v->posted > v->moved) ? COMM_WAITS_PEER : COMM_WAITS_PROXY;
	return w;
}

static void look_kernel(const struct gantry_conn_state *s, struct comm_end *e)
{
	uint64_t doing = READ(s->doing);

	e->phase = GANTRY_DOING_PHASE(doing);
	e->coll = GANTRY_DOING_COLL(doing);
	e->coll_at = READ(s->at);
	e->step = READ(s->step);
	e->bytes = READ(s->counts.bytes);
	e->copies = READ(s->counts.copies);
	e->copied = READ(s->counts.copied);
	e->unpacked = READ(s->counts.unpacked);
	e->reduced = READ(s->counts.reduced);
	for (int p = 0; p < GANTRY_PROTOS; p++) {
		for (int m = 0; m < GANTRY_MODES; m++)
			e->by[p][m] = READ(s->counts.steps[p][m]);
	}
}

static void look_proxy(const struct gantry_proxy_conn *pc, struct comm_end *e)
{
	struct gantry_proxy_conn_view *v = &e->proxy;

	ASSERT(!e->proxied);
	e->proxied = 1;
	gantry_proxy_conn_look(pc, v);
	e->pending = v->busy || v->done < v->end;
	/* The proxy counts its copies in steps only; where it copies, it copies all of them. */
	e->copies += v->copies;
	e->copied +=
		v->copies >= v->steps ? v->bytes : (uint64_t)((double)v->bytes * (double)v->copies / (double)v->steps);
}

_Static_assert((int)GANTRY_COMM_WAITS - (int)GANTRY_COMM_WAIT_KERNEL == (int)GANTRY_WAIT_CAUSES,
	       "the proxy's causes follow those of kernels, in its order");

static uint64_t ns_of(uint64_t ticks)
{
	return (uint64_t)(gantry_us_of_ticks(ticks) * 1e3);
}

/* Behind look_proxy. */
static void look_waits(const struct gantry_comm *comm, const struct gantry_conn_state *s, struct comm_end *e)
{
	int own_clock = gantry_traits(comm->device)->has_own_clock;

	for (int i = 0; i < GANTRY_KERNEL_WAITS; i++) {
		uint64_t t = READ(s->counts.waited[i]);
		int cause = e->proxied			       ? GANTRY_COMM_WAIT_PROXY
			    : i + 1 == GANTRY_KERNEL_WAIT_DATA ? GANTRY_COMM_WAIT_DATA
							       : GANTRY_COMM_WAIT_ROOM;

		e->waited_ns[cause] += own_clock ? t : ns_of(t);
	}
	for (int i = 0; i < GANTRY_WAIT_CAUSES; i++)
		e->waited_ns[GANTRY_COMM_WAIT_KERNEL + i] = ns_of(e->proxy.wait_ticks[i]);
}

/* Only where the CPU can read them: conn has the device's addresses. */
static void look_words(const struct gantry_comm *comm, struct comm_end *e)
{
	const struct gantry_connector *c = &e->conn->c;
	const struct gantry_fifo *f = c->proxy ? c->proxy->fifo : NULL;
	const uint64_t *head = f ? &f->head : NULL, *tail = f ? &f->tail : NULL;

	if (!c->proxy && gantry_traits(comm->device)->cpu_reads_memory) {
		head = c->conn.head;
		tail = c->conn.tail;
	}
	e->has_words = head && tail;
	if (!e->has_words)
		return;
	e->head = load_relaxed(head);
	e->tail = load_relaxed(tail);
}

/* When something last moved: of a proxied end the progress thread knows, of others the watchdog. */
static uint64_t time_waited(struct gantry_comm *comm, const struct comm_end *e)
{
	uint64_t since = e->proxied && e->pending ? e->proxy.progress_ns : READ(comm->watch.stall_since),
		 now = gantry_now_ns();

	return since && since < now ? now - since : 0;
}

/* 0: there is nothing to see yet. */
static int look_end(struct gantry_comm *comm, const struct comm_conn *cc, int peer, int send, int channel,
		    struct comm_end *e)
{
	int stage = (int)load_acquire(&cc->stage);

	*e = (struct comm_end){.peer = peer, .send = send, .channel = channel};
	if (stage == CONN_NONE)
		return 0;
	e->transport = comm->peers[peer].transport; /* chosen before the array was published */
	e->calls = READ(cc->turns);
	if (stage == CONN_READY) {
		e->conn = cc;
		look_kernel(comm_state_host(comm, peer, send, channel), e);
		look_words(comm, e);
		if (cc->c.proxy)
			look_proxy(cc->c.proxy, e);
		look_waits(comm, comm_state_host(comm, peer, send, channel), e);
		e->pending |= e->phase != GANTRY_KERNEL_IDLE;
	} else {
		e->pending = e->connecting = 1;
	}
	e->waits = waits_of(e);
	if (e->pending)
		e->wait_ns = time_waited(comm, e);
	return 1;
}

int comm_next_end(struct gantry_comm *comm, struct comm_end *e)
{
	int ready = !load_acquire(&comm->life.starting) && comm->peers;
	int n = ready ? 2 * comm->nranks * comm->nchannels : 0;

	for (int at = e->at; at < n; at++) {
		int direction = at / comm->nchannels, channel = at % comm->nchannels;
		struct comm_conn *all = load_acquire(&comm->peers[direction / 2].conns[direction % 2]);

		if (!all) {
			at += comm->nchannels - 1;
		} else if (look_end(comm, &all[channel], direction / 2, direction % 2, channel, e)) {
			e->at = at + 1;
			return 1;
		}
	}
	return 0;
}

/* Counters that only grow, so a sum that is the same says that none of them moved. */
uint64_t comm_look_sum(struct gantry_comm *comm, int *ret_connecting)
{
	struct gantry_comm_counters puts = {0};
	uint64_t sum = 0;

	*ret_connecting = 0;
	COMM_EACH_END (comm, e) {
		*ret_connecting += e.connecting;
		sum += e.bytes + e.calls + !e.connecting;
		sum += e.proxy.posted + e.proxy.moved + e.proxy.flushed + e.proxy.done + e.proxy.end;
		for (int i = 0; i < GANTRY_PROTOS * GANTRY_MODES; i++)
			sum += e.by[i / GANTRY_MODES][i % GANTRY_MODES];
	}
	comm_onesided_count(comm, &puts);
	return sum + puts.send_bytes;
}

/* Under mu: the caller's thread may be replacing the memory that is looked at. */
int comm_look_launches(struct gantry_comm *comm)
{
	int n;

	comm_mu_lock(&comm->mu);
	n = comm_works_busy(comm);
	comm_mu_unlock(&comm->mu);
	return n;
}

gantry_result gantry_comm_get_counters(struct gantry_comm *comm, struct gantry_comm_counters *ret)
{
	struct gantry_comm_counters own = {0}, *c = &own;

	if (!comm)
		return STRUCT_GIVE(ret, &own, gantry_comm_counters);
	COMM_EACH_END (comm, e) {
		*(e.send ? &c->send_bytes : &c->recv_bytes) += e.bytes;
		*(e.send ? &c->send_copies : &c->recv_copies) += e.copies;
		*(e.send ? &c->send_copied : &c->recv_copied) += e.copied;
		c->recv_unpacked += e.unpacked;
		c->recv_unpack_reduced += e.reduced;
		for (int i = 0; i < GANTRY_PROTOS * GANTRY_MODES; i++)
			c->steps[i / GANTRY_MODES][i % GANTRY_MODES] += e.by[i / GANTRY_MODES][i % GANTRY_MODES];
		for (int i = 0; i < GANTRY_COMM_WAITS; i++)
			c->wait_ns[i] += e.waited_ns[i];
	}
	comm_onesided_count(comm, c);
	return STRUCT_GIVE(ret, &own, gantry_comm_counters);
}

void comm_paths(const struct gantry_comm *comm, uint64_t ret[COMM_PATHS])
{
	struct gantry_net_counts net;

	for (int i = 0; i < COMM_PATHS_OF_COMM; i++)
		ret[i] = READ(comm->coll->paths[i]);
	gantry_transport_net_counts(&net);
	ret[COMM_PATH_POOL] = net.pool_pieces;
	ret[COMM_PATH_POOL_MIXED] = net.pool_mixed;
	ret[COMM_PATH_GROUPED] = net.grouped;
	ret[COMM_PATH_RAILS] = net.rails;
}

const char *comm_path_name(int path)
{
	static const char *const names[COMM_PATHS] = {
		[COMM_PATH_SLICES] = "slices",	  [COMM_PATH_CHUNKS] = "chunks",   [COMM_PATH_POOL] = "pool",
		[COMM_PATH_POOL_MIXED] = "mixed", [COMM_PATH_GROUPED] = "grouped", [COMM_PATH_RAILS] = "rails",
		[COMM_PATH_CALLER] = "caller",
	};

	return path < COLL_ALGOS ? coll_algos[path]->name : names[path];
}

/* ---- the report ---- */

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
	static const char *const names[COMM_WAITS_COUNT] = {"none",   "proxy", "kernel", "peer",
							    "socket", "flush", "space"};

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

const char *comm_wait_cause_name(int cause)
{
	static const char *const names[GANTRY_COMM_WAITS] = {"data", "room",	"proxy", "kernel",
							     "peer", "network", "flush", "space"};

	return names[cause];
}

void comm_json_waited(struct gantry_json *j, const uint64_t ns[GANTRY_COMM_WAITS])
{
	gantry_json_open(j, "waited_us", '{');
	for (int i = 0; i < GANTRY_COMM_WAITS; i++)
		if (ns[i])
			gantry_json_uint(j, comm_wait_cause_name(i), ns[i] / 1000);
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

static void put_counts(struct gantry_comm *comm, struct gantry_json *j)
{
	struct gantry_proxy_stats stats = {0};
	uint64_t paths[COMM_PATHS];

	comm_paths(comm, paths);
	gantry_json_open(j, "paths", '{');
	for (int i = 0; i < COMM_PATHS; i++)
		if (paths[i])
			gantry_json_uint(j, comm_path_name(i), paths[i]);
	gantry_json_close(j, '}');
	if (comm->proxy)
		gantry_proxy_get_stats(comm->proxy, &stats);
	gantry_json_open(j, "progress", '{');
	gantry_json_uint(j, "passes", stats.passes);
	gantry_json_uint(j, "worked", stats.worked);
	gantry_json_uint(j, "sleeps", stats.sleeps);
	gantry_json_uint(j, "wakes", stats.wakes);
	gantry_json_uint(j, "batches", stats.batches);
	gantry_json_uint(j, "ops", stats.ops);
	gantry_json_close(j, '}');
}

static void put_comm(struct gantry_comm *comm, FILE *f)
{
	char text[COMM_ERROR_TEXT] = "";
	int rank = -1;
	gantry_result error = gantry_comm_error(comm, &rank, text, sizeof(text));
	struct gantry_json j;

	begin_line(&j, comm, "comm", f);
	gantry_json_str(&j, "name", comm->life.name);
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
	gantry_json_uint(&j, "collectives", READ(comm->coll->calls));
	gantry_json_uint(&j, "proxy_pending", comm->group ? gantry_proxy_group_pending(comm->group) : 0);
	put_counts(comm, &j);
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

static void put_coll(struct gantry_json *j, const struct gantry_comm *comm, const struct comm_end *e)
{
	struct comm_coll_view v;

	if (!comm_coll_look(comm, e, &v))
		return;
	gantry_json_open(j, "coll", '{');
	gantry_json_uint(j, "number", v.number);
	gantry_json_str(j, "name", v.name);
	gantry_json_uint(j, "bytes", v.bytes);
	gantry_json_str(j, "type", v.type);
	gantry_json_str(j, "op", v.op);
	gantry_json_int(j, "root", v.root);
	gantry_json_str(j, "algo", v.algo);
	gantry_json_str(j, "proto", v.proto);
	if (v.at) {
		gantry_json_uint(j, "step", GANTRY_COLL_AT_STEP(v.at));
		gantry_json_uint(j, "of", GANTRY_COLL_AT_OF(v.at));
		gantry_json_uint(j, "chunk", GANTRY_COLL_AT_CHUNK(v.at) + 1);
	}
	gantry_json_close(j, '}');
}

static void put_end(struct gantry_comm *comm, FILE *f, const struct comm_end *e)
{
	struct gantry_json j;

	begin_line(&j, comm, "conn", f);
	gantry_json_int(&j, "peer", e->peer);
	gantry_json_str(&j, "peer_host", host_of(comm, e->peer));
	gantry_json_uint(&j, "peer_pid", comm->infos ? comm->infos[e->peer].pid : 0);
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
	comm_json_waited(&j, e->waited_ns);
	put_coll(&j, comm, e);
	gantry_json_end(&j);
}

void comm_report_put(void *comm, FILE *f)
{
	put_comm(comm, f);
	COMM_EACH_END (comm, e)
		put_end(comm, f, &e);
}

gantry_result gantry_comm_report(struct gantry_comm *comm, FILE *f)
{
	if (!comm || !f)
		FAIL_NOW(GANTRY_ERR_INVALID, "gantry_comm_report: no communicator or no file");
	if (load_acquire(&comm->life.starting))
		FAIL_NOW(GANTRY_ERR_USAGE, "gantry_comm_report: the communicator is not ready yet");
	comm_report_put(comm, f);
	if (fflush(f) || ferror(f))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "writing a report: %s", strerror(errno));
	return GANTRY_OK;
}
