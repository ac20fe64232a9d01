/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "reducer/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/eventcount.h"
#include "base/log.h"
#include "base/param.h"
#include "base/stall.h"
#include "base/text.h"
#include "inet/asked.h"
#include "inet/listen.h"
#include "inet/settings.h"
#include "inet/stats.h"
#include "reducer/reducer_mesh.h"

#define NET(op, ...) gantry_net_tcp()->ops->op(gantry_net_tcp(), __VA_ARGS__)

enum { PART_NS = 1000000000 };
enum { IDLE_NS = 1000000, BUSY_NS = 250000 }; /* naps of a server with jobs: between messages, and within one */

struct job {
	struct gantry_list node; /* changed by the server's thread under loop_mu */
	uint64_t id;
	uint32_t ranks, reducer, reducers;
	void *ctx, *listen; /* of the network, owned */
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	struct reducer_mesh *mesh;   /* owned */
	struct reducer_group *group; /* owned */
	int works;		     /* all ranks are connected */
	int failed;		     /* its ranks are notified, and have until the deadline to read that and close */
	uint64_t deadline;	     /* ns: of gathering, and of this */
	uint64_t begun;		     /* ns */
	size_t memory;
	/* What it waits for, since when, and whether that was reported as a stall. */
	uint64_t since;
	int stalled;
	/* Other threads read these, relaxed. */
	uint64_t pieces, waited[REDUCER_WAITS]; /* waited: ns */
	uint32_t waits, waits_rank;		/* enum reducer_wait */
};

struct reducer_server {
	struct reducer_server_config config;
	struct inet_key key;
	struct inet_port *port;
	struct gantry_addr advertised;
	void *ctx; /* of the network, owned: for its devices */
	int dev;
	struct gantry_list jobs;
	struct reducer_server_status status; /* of jobs that are over; memory and counts of all. Read relaxed */
	uint64_t asks, looked;		     /* looked: ns, when jobs were last looked at for waiting */
	struct gantry_eventcount eventcount;
	struct gantry_waiter waiter;
	/* Stalls. */
	uint64_t stall_looked;
	uint32_t signals;
	struct gantry_stall_request request;
};

static struct reducer_server *serving GUARDED_BY(loop_mu);

/* ---- joining ranks ---- */

/* Without a secret an address proves nothing, and it may be translated on the way. */
static bool is_for_us(const struct inet_conn *c, const struct reducer_ask *ask) REQUIRES(loop_mu)
{
	return serving->key.auth != INET_AUTH_SECRET ||
	       inet_target_is_here(&ask->to, c->source.fd, &serving->advertised);
}

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	const bool known = c->shake.peer_version == REDUCER_VERSION; /* the hand-shake refuses other versions */
	struct reducer_ask ask;

	if (known && reducer_ask_decode(c->shake.payload, c->shake.payload_size, &ask) != GANTRY_OK)
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "not a valid job for a reducer");
	else if (known && !is_for_us(c, &ask))
		inet_conn_refuse(c, GANTRY_ERR_REFUSED,
				 "the rank connected to an address that does not belong to this reducer: with address "
				 "translation in between, set GANTRY_ADVERTISE at the reducer");
	else
		inet_conn_challenge(c, &serving->key);
}

static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	c->tag = 0; /* the server's thread has not seen it */
	gantry_eventcount_notify(&serving->eventcount);
}

static struct inet_service service = {.hello = on_hello, .proved = on_proved, .warns = true};

static void tell_event(const struct reducer_server *s, const struct job *j, enum reducer_event_kind kind,
		       const char *text)
{
	struct reducer_event e = {.kind = kind, .job = j->id, .ranks = j->ranks, .text = text};

	if (j->works) {
		e.pieces = j->pieces;
		e.received = j->group->received;
		e.sent = j->group->sent;
		e.ns = gantry_now_ns() - j->begun;
	}
	if (s->config.tell)
		s->config.tell(&e);
}

static struct job *find_job(const struct reducer_server *s, uint64_t id)
{
	gantry_list_each_entry (j, &s->jobs, struct job, node)
		if (j->id == id)
			return j;
	return NULL;
}

static void destroy_job(struct reducer_server *s, struct job *j)
{
	inet_loop_lock();
	gantry_list_remove(&j->node);
	inet_loop_unlock();
	if (j->group) {
		s->status.received += j->group->received;
		s->status.sent += j->group->sent;
		s->status.pieces += j->pieces;
	}
	reducer_mesh_destroy(j->mesh); /* first: the network has the group's buffers */
	reducer_group_destroy(j->group);
	NET(close_listen, j->listen);
	if (j->ctx)
		NET(finalize, j->ctx);
	store_relaxed(&s->status.memory, s->status.memory - j->memory);
	free(j);
}

static gantry_result create_job(struct reducer_server *s, const struct reducer_ask *ask, struct job **ret_job)
{
	gantry_result r = GANTRY_OK;
	/* Receives wait for pieces at all times; and which rank a job waits for is known here alone. */
	struct gantry_net_config config = {.traffic_class = GANTRY_NET_UNDEF, .standing_receives = 1, .own_reports = 1};
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for a job");
	gantry_list_init(&j->node);
	j->id = ask->job;
	j->ranks = ask->ranks;
	j->reducer = ask->reducer;
	j->reducers = ask->reducers;
	j->memory = reducer_group_bytes(ask->ranks);
	j->deadline = gantry_now_ns() + gantry_params()->connect_timeout;
	store_relaxed(&s->status.memory, s->status.memory + j->memory);
	TRY(NET(init, ask->comm_id, &config, &j->ctx));
	TRY(NET(listen, j->ctx, s->dev, j->handle, &j->listen));
	TRY(reducer_mesh_create(&(struct reducer_mesh_config){.ctx = j->ctx,
							      .listen = j->listen,
							      .dev = s->dev,
							      .ranks = j->ranks,
							      .reducers = j->reducers,
							      .own = j->ranks + j->reducer,
							      .job = j->id},
				&j->mesh));
	for (uint32_t i = 0; i < j->ranks; i++)
		j->mesh->dials[i].wanted = 1;
	TRY(reducer_group_create(j->ranks, REDUCER_NO_RANK, j->mesh->ends, &j->group));
	snprintf(j->group->name, sizeof(j->group->name), "job %016llx", (unsigned long long)j->id);
	inet_loop_lock();
	gantry_list_append(&s->jobs, &j->node);
	inet_loop_unlock();
	tell_event(s, j, REDUCER_EVENT_ASKED, "");
	*ret_job = j;
	j = NULL;
out:
	if (j)
		destroy_job(s, j);
	return r;
}

/* LIMIT: there is no room for it; why says so. */
static gantry_result check_room(const struct reducer_server *s, const struct reducer_ask *ask, char *why, size_t len)
{
	size_t need = reducer_group_bytes(ask->ranks);

	if (need > s->config.job_memory)
		snprintf(why, len,
			 "a job of %u ranks needs %s here, which exceeds the limit per job of %s (--job-memory)",
			 ask->ranks, SIZE_TEXT(need), SIZE_TEXT(s->config.job_memory));
	else if (s->status.memory + need > s->config.memory)
		snprintf(why, len, "a job of %u ranks needs %s here, but of %s (--memory) other jobs use %s",
			 ask->ranks, SIZE_TEXT(need), SIZE_TEXT(s->config.memory), SIZE_TEXT(s->status.memory));
	else
		return GANTRY_OK;
	return GANTRY_ERR_LIMIT;
}

/* The job of a joining rank; else the reason of the refusal. */
static gantry_result take_ask(struct reducer_server *s, const struct reducer_ask *ask, struct job **ret_job, char *why,
			      size_t len)
{
	struct job *j = find_job(s, ask->job);
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	gantry_result r = GANTRY_OK;

	*ret_job = NULL;
	memcpy(handle, ask->handle, sizeof(handle));
	if (NET(take_handle, handle) != GANTRY_OK) { /* before a job is made of it */
		snprintf(why, len, "the handle of rank %u is invalid", ask->rank);
		return GANTRY_ERR_REFUSED;
	}
	if (!j) {
		r = check_room(s, ask, why, len);
		if (r == GANTRY_OK && create_job(s, ask, &j) != GANTRY_OK) {
			snprintf(why, len, "the reducer failed: %s", gantry_last_error());
			r = GANTRY_ERR_LIMIT;
		}
	} else if (j->works) {
		snprintf(why, len, "all ranks of this job have already joined");
		r = GANTRY_ERR_REFUSED;
	} else if (j->ranks != ask->ranks || j->reducer != ask->reducer || j->reducers != ask->reducers) {
		snprintf(why, len,
			 "rank %u has this as reducer %u of %u, other ranks as %u of %u: GANTRY_REDUCERS must be the "
			 "same on all ranks and name each reducer once",
			 ask->rank, ask->reducer, ask->reducers, j->reducer, j->reducers);
		r = GANTRY_ERR_SETTING;
	}
	/* It may ask again, when the answer was lost. */
	if (r == GANTRY_OK && !j->mesh->dials[ask->rank].known)
		r = reducer_mesh_dial(j->mesh, ask->rank, ask->handle);
	*ret_job = j;
	return r;
}

static void refuse_job(struct reducer_server *s, const struct reducer_ask *ask, const char *why)
{
	const struct job j = {.id = ask->job, .ranks = ask->ranks};

	LOG_WARN(NET, "job %016llx: refused rank %u of %u: %s", (unsigned long long)ask->job, ask->rank, ask->ranks,
		 why);
	store_relaxed(&s->status.refused, s->status.refused + 1);
	tell_event(s, &j, REDUCER_EVENT_REFUSED, why);
}

/* One that has proved itself and was not answered. 0: there is none. The lock is let go in between, for what a job needs
 * of the network: by the tag it is found again, if it is still there. */
static int next_ask(struct reducer_server *s, struct reducer_ask *ret_ask)
{
	struct inet_conn *c;
	int found = 0;

	inet_loop_lock();
	c = inet_conn_waiting(&service, NULL);
	if (c && reducer_ask_decode(c->shake.payload, c->shake.payload_size, ret_ask) == GANTRY_OK) {
		c->tag = ++s->asks;
		found = 1;
	} else if (c) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "not a valid job for a reducer");
	}
	inet_loop_unlock();
	return found;
}

static void answer_ask(const struct reducer_server *s, gantry_result r, const struct job *j, const char *why)
{
	struct inet_conn *c;

	inet_loop_lock();
	c = inet_conn_tagged(&service, s->asks);
	if (c && r != GANTRY_OK)
		inet_conn_refuse(c, r, "%s", why);
	else if (c && inet_conn_accept(c, j->handle, sizeof(j->handle)))
		close(inet_conn_take(c, NULL));
	inet_loop_unlock();
}

static uint32_t answer_asks(struct reducer_server *s)
{
	struct reducer_ask ask;
	char why[256];
	uint32_t n = 0;

	for (; next_ask(s, &ask); n++) {
		struct job *j = NULL;
		gantry_result r = take_ask(s, &ask, &j, why, sizeof(why));

		if (r != GANTRY_OK)
			refuse_job(s, &ask, why);
		answer_ask(s, r, j, why);
	}
	return n;
}

/* ---- jobs ---- */

static void tell_failed(struct reducer_server *s, const struct job *j, const char *why)
{
	store_relaxed(&s->status.failed, s->status.failed + 1);
	tell_event(s, j, REDUCER_EVENT_FAILED, why);
}

/* It never worked. */
static void fail_job(struct reducer_server *s, struct job *j, const char *why)
{
	LOG_WARN(NET, "job %016llx of %u ranks has failed: %s", (unsigned long long)j->id, j->ranks, why);
	tell_failed(s, j, why);
	destroy_job(s, j);
}

/* One that has come and left again; REDUCER_NO_RANK: none has. */
static uint32_t find_gone(const struct job *j)
{
	for (uint32_t i = 0; i < j->ranks; i++)
		if (j->group->members[i].gone != GANTRY_OK)
			return i;
	return REDUCER_NO_RANK;
}

static uint32_t gather_job(struct reducer_server *s, struct job *j)
{
	gantry_result r = reducer_mesh_step(j->mesh);
	uint32_t moved = reducer_group_progress(j->group), gone = find_gone(j);
	char missing[128], why[192];

	if (r != GANTRY_OK && r != GANTRY_AGAIN)
		snprintf(why, sizeof(why), "%.180s", gantry_last_error());
	else if (gone != REDUCER_NO_RANK)
		snprintf(why, sizeof(why), "rank %u left before all ranks had joined", gone);
	else if (r == GANTRY_AGAIN && gantry_now_ns() >= j->deadline)
		snprintf(why, sizeof(why), "could not connect to %s in time",
			 reducer_mesh_missing(j->mesh, missing, sizeof(missing)));
	else if (r == GANTRY_AGAIN)
		return moved;
	else
		why[0] = 0;
	if (why[0]) {
		fail_job(s, j, why);
		return 1;
	}
	j->begun = j->since = gantry_now_ns();
	j->works = 1;
	store_relaxed(&s->status.begun, s->status.begun + 1);
	tell_event(s, j, REDUCER_EVENT_BEGUN, "");
	return 1;
}

/* What it waits for, and for how long it has. */
static void watch_job(struct job *j, uint64_t now, uint64_t passed)
{
	uint32_t rank;
	enum reducer_wait waits = reducer_group_waits(j->group, &rank);

	store_relaxed(&j->waited[j->waits], j->waited[j->waits] + passed);
	if (j->pieces != j->group->reduced || waits != j->waits || rank != j->waits_rank) {
		j->since = now;
		j->stalled = 0;
	}
	store_relaxed(&j->pieces, j->group->reduced);
	store_relaxed(&j->waits, (uint32_t)waits);
	store_relaxed(&j->waits_rank, rank);
}

static uint32_t work_job(struct reducer_server *s, struct job *j, uint64_t now, uint64_t passed)
{
	uint32_t moved = reducer_group_progress(j->group);
	char text[REDUCER_TEXT];

	if (j->group->error != GANTRY_OK && !j->failed) {
		tell_failed(s, j, reducer_failed_text(&j->group->failed, text));
		j->failed = 1;
		j->deadline = now + gantry_params()->timeout;
	}
	if (!j->failed)
		watch_job(j, now, passed);
	if (!reducer_group_is_over(j->group) && (!j->failed || now < j->deadline))
		return moved;
	if (!j->failed) {
		LOG_INFO(NET, "job %016llx of %u ranks has ended", (unsigned long long)j->id, j->ranks);
		tell_event(s, j, REDUCER_EVENT_ENDED, "");
	}
	destroy_job(s, j);
	return 1;
}

/* ---- stalls ---- */

/* 1: it is to be reported. */
static int describe_wait(struct job *j, uint64_t now, int asked, struct gantry_stall_wait *ret)
{
	uint32_t rank = j->waits_rank;
	uint64_t since = now - j->since;
	const struct reducer_member *m;

	if (!j->works || j->failed || j->waits == REDUCER_WAIT_NONE || (!asked && since < gantry_stall_after()))
		return 0;
	m = &j->group->members[rank];
	*ret = (struct gantry_stall_wait){
		.waits_for = "peer", .send = j->waits == REDUCER_WAIT_RESULT, .requests = 1, .wait_ns = since};
	ret->bytes = ret->send ? j->group->done[m->confirmed % REDUCER_WINDOW].bytes : j->group->piece;
	snprintf(ret->peer, sizeof(ret->peer), "rank %u of %u of job %016llx (%s)", rank, j->ranks,
		 (unsigned long long)j->id, gantry_net_tcp_peer(ret->send ? m->end->out : m->end->in));
	return asked || !j->stalled++;
}

static void look_for_stalls(struct reducer_server *s, uint64_t now)
{
	struct gantry_stall_wait *waits;
	size_t n = 0, room = 0;
	int asked = inet_asked() != s->signals, fresh;

	if (!gantry_stall_after() || (!asked && now - s->stall_looked < gantry_stall_interval()))
		return;
	s->signals = inet_asked();
	s->stall_looked = now;
	asked |= gantry_stall_requested(&s->request);
	fresh = asked;
	gantry_list_each (pos, &s->jobs)
		room++;
	waits = calloc(room + 1, sizeof(*waits));
	if (!waits)
		return;
	gantry_list_each_entry (j, &s->jobs, struct job, node) {
		fresh |= describe_wait(j, now, asked, &waits[n]);
		n += waits[n].requests != 0;
	}
	if (fresh)
		gantry_stall_tell("reducer", waits, n, asked);
	free(waits);
}

/* ---- counters ---- */

static void put_job(struct gantry_metrics *m, const struct job *j)
{
	static const char *const causes[] = {[REDUCER_WAIT_RANK] = "rank", [REDUCER_WAIT_RESULT] = "result"};
	char text[20];
	uint32_t labels, waits = load_relaxed(&j->waits), rank = load_relaxed(&j->waits_rank);

	snprintf(text, sizeof(text), "%016llx", (unsigned long long)j->id);
	labels = gantry_metrics_label_int(m, gantry_metrics_label(m, 0, "job", text), "ranks", j->ranks);
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_PIECES, labels, load_relaxed(&j->pieces));
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_BYTES, gantry_metrics_label(m, labels, "dir", "recv"),
			   load_relaxed(&j->group->received));
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_BYTES, gantry_metrics_label(m, labels, "dir", "send"),
			   load_relaxed(&j->group->sent));
	for (size_t i = REDUCER_WAIT_RANK; i < REDUCER_WAITS; i++)
		gantry_metrics_put(m, GANTRY_METRIC_REDUCER_WAIT, gantry_metrics_label(m, labels, "cause", causes[i]),
				   load_relaxed(&j->waited[i]));
	snprintf(text, sizeof(text), "none");
	if (waits != REDUCER_WAIT_NONE)
		snprintf(text, sizeof(text), "rank %u", rank);
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_WAITING, gantry_metrics_label(m, labels, "waits_for", text),
			   waits != REDUCER_WAIT_NONE);
}

static void collect_jobs(struct gantry_metrics *m) REQUIRES(loop_mu)
{
	const struct reducer_server_status *t = &serving->status;
	uint32_t jobs = 0;

	gantry_list_each_entry (j, &serving->jobs, struct job, node) {
		jobs++;
		put_job(m, j);
	}
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_JOBS, 0, jobs);
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_MEMORY, 0, load_relaxed(&t->memory));
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_BEGUN, 0, load_relaxed(&t->begun));
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_FAILED, 0, load_relaxed(&t->failed));
	gantry_metrics_put(m, GANTRY_METRIC_REDUCER_REFUSED, 0, load_relaxed(&t->refused));
}

static struct inet_stats_source source = {.collect = collect_jobs};

/* ---- the server ---- */

/* The network's device on which the address is; the first one where that is not known. */
static int device_of(const struct gantry_addr *a)
{
	struct gantry_net_properties p;
	char name[IFNAMSIZ];
	int n = 0;

	gantry_nic_of_addr(a, name);
	NET(devices, &n);
	for (int i = 0; i < n; i++)
		if (NET(get_properties, i, &p) == GANTRY_OK && strcmp(p.name, name) == 0)
			return i;
	return 0;
}

static gantry_result open_port(struct reducer_server *s)
{
	gantry_result r;

	inet_loop_lock();
	if (serving) {
		r = gantry_fail(GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__, "this process already has a reducer");
	} else {
		serving = s;
		service.protocol = reducer_protocol;
		r = inet_port_get(&service, &s->config.listen, &s->port);
		if (r != GANTRY_OK)
			serving = NULL;
	}
	if (r == GANTRY_OK) {
		inet_stats_add(&source);
		s->signals = inet_asked();
		inet_asked_start(INET_ASKED_REDUCER);
	}
	inet_loop_unlock();
	return r;
}

gantry_result reducer_server_open(const struct reducer_server_config *config, struct reducer_server **ret_server)
{
	gantry_result r = GANTRY_OK;
	struct reducer_server *s = calloc(1, sizeof(*s));

	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a reducer");
	gantry_list_init(&s->jobs);
	s->config = *config;
	gantry_waiter_init(&s->waiter, &s->eventcount);
	TRY(inet_secret_key(&s->key));
	TRY(inet_advertised(&config->listen, &s->advertised));
	TRY(NET(init, 0, NULL, &s->ctx));
	s->dev = device_of(&config->listen);
	TRY(open_port(s));
	*ret_server = s;
	s = NULL;
out:
	reducer_server_close(s);
	return r;
}

/* Ranks between two operations hear why at their next one: they have PART_NS for that, and to close. Those of a job that gathers
 * may count it as begun already: its connections are taken first. */
static void part_jobs(struct reducer_server *s)
{
	const struct timespec nap = {.tv_nsec = 1000000};
	uint64_t now = gantry_now_ns(), until = now + PART_NS;

	for (; !gantry_list_empty(&s->jobs) && now < until; now = gantry_now_ns()) {
		gantry_list_each_entry_safe (j, &s->jobs, struct job, node) {
			if (!j->works) {
				gather_job(s, j);
				continue;
			}
			reducer_group_end(j->group); /* once */
			work_job(s, j, now, 0);
		}
		nanosleep(&nap, NULL);
	}
	gantry_list_each_entry_safe (j, &s->jobs, struct job, node)
		destroy_job(s, j);
}

void reducer_server_close(struct reducer_server *s)
{
	if (!s)
		return;
	part_jobs(s);
	inet_loop_lock();
	if (s->port) {
		inet_asked_stop(INET_ASKED_REDUCER);
		inet_stats_remove(&source);
		inet_port_put(&service, s->port);
		serving = NULL;
	}
	inet_loop_unlock();
	if (s->ctx)
		NET(finalize, s->ctx);
	free(s);
}

uint32_t reducer_server_step(struct reducer_server *s)
{
	uint64_t now = gantry_now_ns(), passed = s->looked ? now - s->looked : 0;
	uint32_t moved = answer_asks(s);

	s->looked = now;
	gantry_list_each_entry_safe (j, &s->jobs, struct job, node)
		moved += j->works ? work_job(s, j, now, passed) : gather_job(s, j);
	look_for_stalls(s, now);
	return moved;
}

void reducer_server_wait(struct reducer_server *s, uint32_t moved, uint64_t max_ns)
{
	uint64_t ns = max_ns;

	if (moved) {
		gantry_waiter_done(&s->waiter);
		return;
	}
	gantry_list_each_entry (j, &s->jobs, struct job, node) {
		uint64_t nap = j->waits == REDUCER_WAIT_NONE ? IDLE_NS : BUSY_NS;

		ns = nap < ns ? nap : ns;
	}
	gantry_waiter_idle(&s->waiter, ns);
}

void reducer_server_status(const struct reducer_server *s, struct reducer_server_status *ret)
{
	*ret = s->status;
	gantry_list_each_entry (j, &s->jobs, struct job, node) {
		ret->jobs++;
		ret->gathering += !j->works;
		ret->pieces += j->pieces;
		ret->received += j->group->received;
		ret->sent += j->group->sent;
	}
}
