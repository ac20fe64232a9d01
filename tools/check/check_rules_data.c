/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on what arrives (order, tags, sizes and bytes) and on how things end. */
#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "check/check.h"

/* Sanitizers make every byte ten times as dear. */
#ifdef GANTRY_SANITIZED
enum { LARGE_ODD = (8 << 20) + 3 };
#else
enum { LARGE_ODD = (64 << 20) + 3 };
#endif
enum { ORDER_MESSAGES = 400, GROUPS = 60 };

/* 1 to 2^max_bits, every power of two as often as any other. */
static size_t random_size(uint64_t *rng, int max_bits)
{
	size_t top = (size_t)1 << check_random(rng) % (uint64_t)(max_bits + 1), limit = (size_t)1 << max_bits;
	size_t size = top + check_random(rng) % top;

	return size < limit ? size : limit;
}

static void rule_ordering(struct check_side *s)
{
	uint64_t rng = 1, bytes = 0;
	struct check_plan p;

	check_plan_make(s, &p, ORDER_MESSAGES);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].send[0] = p.groups[i].recv[0] = random_size(&rng, 17);
		bytes += p.groups[i].send[0];
	}
	p.misalign = 1;
	check_flow_once(s, &p);
	check_note(s, "%d messages of random sizes, %.1f MB, in posting order", p.count, (double)bytes / 1e6);
}

/*
 * Distinct tags within a group, from a small set so that groups reuse them; sends in another order than buffers. NCCL's
 * tags are ranks: some differ only beyond 8, 16 or 20 bits.
 */
static void shuffle_group(struct check_group *g, uint64_t *rng)
{
	static const int high[] = {0, 1 << 8, 1 << 16, 1 << 20};
	int tags[2 * GANTRY_NET_MAX_RECVS];

	for (int i = 0; i < 2 * GANTRY_NET_MAX_RECVS; i++)
		tags[i] = 100 + 7 * (i / 4) + high[i % 4];
	for (int k = 0; k < g->n; k++) {
		int pick = k + (int)(check_random(rng) % (uint64_t)(2 * GANTRY_NET_MAX_RECVS - k));
		int t = tags[pick];

		tags[pick] = tags[k];
		tags[k] = t;
		g->tag[k] = t;
	}
	for (int k = g->n - 1; k > 0; k--) {
		int pick = (int)(check_random(rng) % (uint64_t)(k + 1));
		int t = g->order[pick];

		g->order[pick] = g->order[k];
		g->order[k] = t;
	}
}

static void rule_grouped_tags(struct check_side *s)
{
	uint64_t rng = 2;
	struct check_plan p;
	int max = s->props.max_recvs;

	if (max == 1)
		check_skip(s, "maxRecvs is 1: no grouped receives");
	check_plan_make(s, &p, GROUPS);
	for (int i = 0; i < p.count; i++) {
		struct check_group *g = &p.groups[i];

		g->n = i % 3 ? 1 + (int)(check_random(&rng) % (uint64_t)max) : max;
		for (int k = 0; k < g->n; k++)
			g->send[k] = g->recv[k] = i % 4 == 3 ? random_size(&rng, 16) : 1000;
		shuffle_group(g, &rng);
	}
	check_flow_once(s, &p);
	check_note(s, "%d groups of 1 to %d buffers, sends in shuffled order", p.count, max);
}

static void rule_recv_larger(struct check_side *s)
{
	uint64_t rng = 3;
	struct check_plan p;

	check_plan_make(s, &p, 80);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].send[0] = random_size(&rng, i % 10 ? 14 : 18);
		p.groups[i].recv[0] = p.groups[i].send[0] + 1 + random_size(&rng, i % 5 ? 12 : 17);
	}
	check_flow_once(s, &p);
	check_note(s, "%d messages into larger buffers: the rest untouched", p.count);
}

static void rule_zero_bytes(struct check_side *s)
{
	struct check_plan p;

	check_plan_make(s, &p, 60);
	for (int i = 0; i < p.count; i++) {
		p.groups[i].send[0] = i % 3 == 1 ? 500 : 0;
		p.groups[i].recv[0] = i % 3 == 0 ? 0 : 500;
	}
	check_flow_once(s, &p);
	check_note(s, "%d messages, two thirds of them empty", p.count);
}

static void rule_test_sizes(struct check_side *s)
{
	uint64_t rng = 4;
	struct check_plan p;

	check_plan_make(s, &p, 40);
	for (int i = 0; i < p.count; i++) {
		struct check_group *g = &p.groups[i];

		g->n = 1 + i % s->props.max_recvs;
		for (int k = 0; k < g->n; k++) {
			g->send[k] = random_size(&rng, i % 8 ? 10 : 17);
			g->recv[k] = i % 2 ? g->send[k] : g->send[k] + 100;
		}
		shuffle_group(g, &rng); /* arrival is not the order of the buffers */
	}
	p.sizes = p.null_sizes = 1;
	check_flow_once(s, &p);
	check_note(s, "receives of groups of 1 to %d report what was sent", s->props.max_recvs);
}

/* The receiver of a message that does not fit: an error, soon, and not a byte past the buffer. */
static gantry_result misfit_receive(struct check_side *s, void *comm, size_t send, size_t recv)
{
	uint8_t *buf = check_alloc(s, 1, send + CHECK_GUARD);
	void *data = buf, *mr, *request = NULL;
	int tag = 0, done = 0, size = -1;
	gantry_result r = GANTRY_OK;
	struct gantry_net *net = s->net;
	size_t at;

	memset(buf, CHECK_POISON, send + CHECK_GUARD);
	mr = check_reg(s, comm, buf, recv);
	check_phase(s, "receiving %zu bytes into %zu", send, recv);
	while (r == GANTRY_OK && !done && check_left_ns(s)) {
		if (!request)
			r = CHECK_CALL(s, CHECK_PROGRESS, "irecv",
				       net->ops->irecv(net, comm, 1, &data, &recv, &tag, &mr, &request));
		else
			r = CHECK_CALL(s, CHECK_PROGRESS, "test", net->ops->test(net, request, &done, &size));
		sched_yield();
	}
	at = check_untouched(buf + recv, send - recv + CHECK_GUARD);
	if (at < send - recv + CHECK_GUARD)
		check_fail(s, "a send of %zu bytes wrote byte %zu of a receive of %zu", send, recv + at, recv);
	if (done)
		check_fail(s, "a send of %zu bytes into a receive of %zu was reported done, %d bytes", send, recv,
			   size);
	if (r == GANTRY_OK)
		check_fail(s, "no error for a send of %zu bytes into a receive of %zu", send, recv);
	check_dereg(s, comm, mr);
	check_close(s, CHECK_RECV_COMM, comm);
	at = check_untouched(buf + recv, send - recv + CHECK_GUARD);
	if (at < send - recv + CHECK_GUARD)
		check_fail(s, "a send of %zu bytes wrote byte %zu of a receive of %zu", send, recv + at, recv);
	free(buf);
	return r;
}

/* The sender goes on testing until the receiver has seen the error: it may learn of it, or have completed. */
static void misfit_send(struct check_side *s, void *comm, size_t send)
{
	struct gantry_net *net = s->net;
	uint8_t *buf = check_alloc(s, 1, send);
	void *request = NULL, *mr;
	int done = 0;
	gantry_result r = GANTRY_OK;

	mr = check_reg(s, comm, buf, send);
	check_phase(s, "sending %zu bytes that do not fit", send);
	while (!check_heard(s)) {
		if (r == GANTRY_OK && !request)
			r = CHECK_CALL(s, CHECK_PROGRESS, "isend",
				       net->ops->isend(net, comm, buf, send, 0, mr, &request));
		else if (r == GANTRY_OK && !done)
			r = CHECK_CALL(s, CHECK_PROGRESS, "test", net->ops->test(net, request, &done, NULL));
		if (!check_left_ns(s))
			break; /* the receiver says what is wrong */
		sched_yield();
	}
	check_meet(s);
	check_dereg(s, comm, mr);
	check_close(s, CHECK_SEND_COMM, comm);
	free(buf);
}

static void rule_size_mismatch(struct check_side *s)
{
	static const size_t sizes[][2] = {{4096, 1000}, {1 << 20, 1 << 16}};
	gantry_result r = GANTRY_OK;

	/* A connection each: after such an error it may be unusable. */
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		void *comm = check_link(s, s->role);

		if (s->role == 0) {
			r = misfit_receive(s, comm, sizes[i][0], sizes[i][1]);
			check_meet(s);
		} else {
			misfit_send(s, comm, sizes[i][0]);
		}
	}
	check_note(s, "the receiver got %s and nothing was written past its buffer", gantry_result_name(r));
}

/* One message from and to odd addresses, both directions at once, and then a larger one that is a round number. */
static void rule_large(struct check_side *s)
{
	size_t most = s->props.max_p2p_bytes, large = s->extent.large < most ? s->extent.large : most;
	struct check_flow *f[2];
	struct check_plan p;

	check_plan_uniform(s, &p, 1, LARGE_ODD, LARGE_ODD);
	p.misalign = 1;
	p.window = 1;
	for (int i = 0; i < 2; i++)
		f[i] = check_flow_open(s, &p, check_link(s, s->role != i), s->role != i);
	check_phase(s, "sending and receiving %d bytes", LARGE_ODD);
	check_flows_finish(f, 2);
	check_plan_uniform(s, &p, 1, large, large);
	p.window = 1;
	f[0] = check_flow_open(s, &p, check_link(s, s->role), s->role);
	check_phase(s, s->role ? "sending %zu bytes" : "receiving %zu bytes", large);
	check_flows_finish(f, 1);
	check_note(s, "%d bytes from and to odd addresses, both ways at once; then %zu bytes", LARGE_ODD, large);
}

static void rule_optional_recv(struct check_side *s)
{
	uint64_t rng = 5;
	struct check_plan p;

	check_plan_make(s, &p, 60);
	for (int i = 0; i < p.count; i++)
		p.groups[i].send[0] = p.groups[i].recv[0] = random_size(&rng, i % 10 ? 12 : 17);
	p.optional = 1;
	check_flow_once(s, &p);
	check_note(s, "%d receives as for LL and LL128: the bytes arrive in the buffer given", p.count);
}

/* ---- how things end: closing, the death of a peer, and what is left behind ---- */

enum {
	BIG = 4 << 20,
	POSTS = 8,
	DEATH_POSTS = 64,
	DEATH_BEFORE = 12, /* messages that a connection carries before */
	IDLE_ROUNDS = 2,
	CYCLES = 36,
	CYCLES_MIN = 12,
	WARMUP = 4,
	PERIODS = 3, /* of rounds: what grows in each of them has not merely settled later */
	REGISTERED = 8,
	SETTLE_MS = 2000,
	LEAK_SLACK_KB = 2048,
	LEAK_ROUND_BYTES = 512 /* of malloc, in each round */
};

/* NCCL's ranks do not wait for each other in the end: a send that was reported as done must arrive. */
static void rule_close_after_done(struct check_side *s)
{
	int sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;

	check_plan_uniform(s, &p, 24, 30000, 30000);
	f = check_flow_open(s, &p, comm, sending);
	if (!sending)
		check_sleep_ms(100);
	check_phase(s, sending ? "sending, then closing at once" : "receiving from a sender that closes");
	check_flow_run(f);
	check_flow_close(f);
	check_meet(s);
	check_note(s, "%d messages arrived though the sender closed as soon as it was done", p.count);
}

/*
 * After its last send is done NCCL may have nothing to call for: its progress thread sleeps. What is on its way has to
 * arrive without it. The receiver is there first, and then late.
 */
static void rule_idle_sender(struct check_side *s)
{
	static const size_t sizes[] = {64, 1 << 16, 1 << 20};
	enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };
	int sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;

	check_plan_make(s, &p, SIZES * IDLE_ROUNDS);
	for (int i = 0; i < p.count; i++)
		p.groups[i].send[0] = p.groups[i].recv[0] = sizes[i % SIZES];
	f = check_flow_open(s, &p, comm, sending);
	for (int i = 0; i < p.count; i++) {
		check_phase(s,
			    sending ? "sending %zu bytes, then nothing"
				    : "receiving %zu bytes from a sender that is idle",
			    sizes[i % SIZES]);
		if (!sending && i >= SIZES)
			check_sleep_ms(50);
		f->total = i + 1;
		check_flow_run(f);
		check_meet(s);
	}
	check_flow_close(f);
	check_note(s, "%d messages arrived though the sender made no call after they were done", p.count);
}

/* A comm that is busy: posts, a little progress, nothing completed on purpose. */
static struct check_flow *busy_flow(struct check_side *s, const struct check_plan *p, void *comm, int sending)
{
	struct check_flow *f = check_flow_open(s, p, comm, sending);

	for (int i = 0; i < p->count && check_flow_post(f); i++)
		;
	return f;
}

/* Deregisters and closes under way, then looks for a while whether anything still writes to the buffers. */
static uint64_t close_busy(struct check_side *s, struct check_flow *f)
{
	size_t at;
	uint64_t took;

	check_dereg(s, f->comm, f->mr);
	took = check_close(s, f->sending ? CHECK_SEND_COMM : CHECK_RECV_COMM, f->comm);
	memset(f->arena, CHECK_POISON, f->arena_size);
	check_sleep_ms(30);
	at = check_untouched(f->arena, f->arena_size);
	if (at < f->arena_size)
		check_fail(s, "byte %zu of a buffer was written after %s had returned", at,
			   f->sending ? "closeSend" : "closeRecv");
	check_flow_free(f);
	return took;
}

static void rule_close_in_flight(struct check_side *s)
{
	struct check_flow *f[2];
	struct check_plan p;
	void *abandoned = NULL;
	uint64_t took, worst = 0;

	check_plan_uniform(s, &p, POSTS, BIG, BIG);
	/* Both have sends and receives outstanding; the sends towards A may be on their way into its buffers. */
	for (int i = 0; i < 2; i++) {
		void *comm = check_link(s, s->role != i);

		check_phase(s, "posting");
		f[i] = busy_flow(s, &p, comm, s->role != i);
		check_meet(s);
	}
	check_service(s, check_abandoned_job, &abandoned);
	check_meet(s);
	/* A closes while B does nothing, then B, whose peer has gone. */
	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < 2 && s->role == turn; i++) {
			check_phase(s, "closing with %d requests in flight", f[i]->posted - f[i]->done);
			took = close_busy(s, f[i]);
			worst = took > worst ? took : worst;
		}
		if (s->role == turn && abandoned)
			check_close(s, s->role ? CHECK_SEND_COMM : CHECK_LISTEN_COMM, abandoned);
		check_meet(s);
	}
	check_note(s, "closed within %.1f ms with sends, receives and a connection under way",
		   (double)worst / CHECK_MS);
}

/*
 * After the peer's death NCCL looks at the oldest request of each connection; its first error ends the communicator, and
 * nothing else is asked. So does this: tests the oldest, posts what there is to post, until an error. `sent`: receives
 * that the dead peer had sent to. Returns the error; ends the rule if there is none.
 */
static gantry_result await_error(struct check_side *s, struct check_flow *f, int sent, const char *when)
{
	uint64_t since = gantry_now_ns();
	struct gantry_net *net = s->net;

	check_phase(s, "waiting for an error of a %s %s", f->sending ? "send" : "receive", when);
	while (check_left_ns(s)) {
		struct check_post *p = &f->ring[f->done % CHECK_WINDOW_MAX];
		int sizes[CHECK_TEST_SIZES] = {0}, done = 0;
		gantry_result r = GANTRY_OK;

		if (f->posted < f->total && f->posted - f->done < CHECK_STEPS)
			r = check_flow_try(f);
		if (r == GANTRY_OK && f->done < f->posted)
			r = CHECK_CALL(s, CHECK_PROGRESS, "test", net->ops->test(net, p->request, &done, sizes));
		if (r != GANTRY_OK)
			return r;
		if (done && !f->sending && p->index >= sent)
			check_fail(s, "receive %d was reported done, %d bytes, although no send was posted", p->index,
				   sizes[0]);
		if (done && !f->sending)
			check_flow_received(f, p, sizes);
		f->done += done;
		if (f->done == f->total)
			check_fail(s, "%d sends were reported done %s, and no error", f->total, when);
		usleep(100);
	}
	check_fail(s, "%.1f s after the peer was killed there is no error of a %s %s",
		   (double)(gantry_now_ns() - since) / 1e9, f->sending ? "send" : "receive", when);
}

/* B: two sends half on their way, then nothing; it is killed in its sleep. */
static void victim(struct check_side *s, struct check_flow *f)
{
	pid_t pid = getpid();

	for (int i = 0; i < 2; i++)
		check_flow_post(f);
	check_tell(s, &pid, sizeof(pid));
	check_phase(s, "waiting to be killed");
	for (;;)
		pause();
}

enum { BUSY_RECV, BUSY_SEND, IDLE_RECV, IDLE_SEND, DEATH_FLOWS };

static void survivor(struct check_side *s, struct check_flow *const *f)
{
	gantry_result r[DEATH_FLOWS];
	uint64_t since;
	pid_t pid;

	check_phase(s, "posting");
	for (int i = 0; i < POSTS; i++) {
		check_flow_post(f[BUSY_RECV]);
		check_flow_post(f[BUSY_SEND]);
	}
	check_hear(s, &pid, sizeof(pid));
	check_flow_test(f[BUSY_RECV]); /* some bytes move */
	s->shared->expect_death = 1;
	kill(pid, SIGKILL);
	since = gantry_now_ns();
	for (int i = 0; i < DEATH_FLOWS; i++)
		r[i] = await_error(s, f[i], DEATH_BEFORE + (i == BUSY_RECV ? 2 : 0),
				   i < IDLE_RECV ? "that was pending" : "posted afterwards");
	check_note(s, "receives ended in %s, sends in %s, posted afterwards in %s and %s; after %.0f ms",
		   gantry_result_name(r[BUSY_RECV]), gantry_result_name(r[BUSY_SEND]), gantry_result_name(r[IDLE_RECV]),
		   gantry_result_name(r[IDLE_SEND]), (double)(gantry_now_ns() - since) / CHECK_MS);
}

static void rule_peer_death(struct check_side *s)
{
	struct check_flow *f[DEATH_FLOWS];
	struct check_plan p;

	/* More than any plugin's and the kernel's buffers hold. */
	check_plan_uniform(s, &p, DEATH_POSTS, BIG, BIG);
	for (int i = 0; i < DEATH_BEFORE; i++)
		p.groups[i].send[0] = p.groups[i].recv[0] = 1000;
	for (int i = 0; i < DEATH_FLOWS; i++)
		f[i] = check_flow_open(s, &p, check_link(s, s->role != i % 2), s->role != i % 2);
	/* Messages on each: some plugins connect with the first, and others know only the first requests of a comm. */
	for (int i = 0; i < DEATH_FLOWS; i++)
		f[i]->total = DEATH_BEFORE;
	check_phase(s, "%d messages on each connection", DEATH_BEFORE);
	check_flows_run(f, DEATH_FLOWS);
	for (int i = 0; i < DEATH_FLOWS; i++)
		f[i]->total = p.count;
	check_meet(s);
	if (s->role == 1)
		victim(s, f[BUSY_RECV]);
	survivor(s, f);
	check_phase(s, "closing what led to the dead peer");
	for (int i = 0; i < DEATH_FLOWS; i++)
		check_flow_close(f[i]);
}

struct usage {
	int fds, threads;
};

static int count_entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void usage_now(struct usage *u)
{
	u->fds = count_entries("/proc/self/fd");
	u->threads = count_entries("/proc/self/task");
}

/* What malloc has handed out, in bytes; 0 where it does not say. */
static long check_allocated(void)
{
#ifdef __GLIBC__
	struct mallinfo2 m = mallinfo2();

	return (long)(m.uordblks + m.hblkhd);
#else
	return 0;
#endif
}

void check_memory_now(struct check_memory *m)
{
	long page_kb = sysconf(_SC_PAGESIZE) / 1024;
	FILE *f;

	*m = (struct check_memory){0};
#ifdef __GLIBC__
	malloc_trim(0); /* what malloc merely keeps for later is no leak */
	m->allocated = check_allocated();
#endif
	f = fopen("/proc/self/statm", "r");
	if (f && fscanf(f, "%ld %ld", &m->mapped, &m->resident) != 2)
		m->mapped = m->resident = 0;
	if (f)
		fclose(f);
	m->mapped *= page_kb;
	m->resident *= page_kb;
}

long check_grown_kb(const struct check_memory *before)
{
	struct check_memory now;
	long taken, resident, allocated;

	check_memory_now(&now);
	resident = now.resident - before->resident;
	taken = now.mapped - before->mapped; /* an arena's pages are mapped long before malloc hands them out */
	allocated = (now.allocated - before->allocated) / 1024;
	taken = allocated > taken ? allocated : taken;
	return resident < taken ? resident : taken;
}

static void init_job(struct check_side *s, void *arg)
{
	(void)arg;
	check_init(s, &s->ctx);
}

static void finalize_job(struct check_side *s, void *arg)
{
	void *ctx = s->ctx;

	(void)arg;
	s->ctx = NULL;
	CHECK_MUST(s, CHECK_SERVICE, "finalize", s->net->ops->finalize(s->net, ctx));
}

/* A listener to which nothing connects, as in a communicator that is aborted early. */
static void lonely_listen_job(struct check_side *s, void *arg)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *comm = NULL, *listen = check_listen(s, 0, handle);

	(void)arg;
	CHECK_MUST(s, CHECK_SERVICE, "accept", s->net->ops->accept(s->net, listen, &comm, &none));
	CHECK_MUST(s, CHECK_SERVICE, "closeListen", s->net->ops->close_listen(s->net, listen));
}

static void cycle(struct check_side *s, const struct check_plan *p)
{
	int more = s->props.device_type == GANTRY_NET_DEVICE_UNPACK ? 0 : REGISTERED; /* which refuses those of users */
	void *mr[REGISTERED];
	struct check_flow *f;

	check_service(s, init_job, NULL);
	check_service(s, lonely_listen_job, NULL);
	f = check_flow_open(s, p, check_link(s, s->role), s->role);
	for (int i = 0; i < more; i++)
		mr[i] = check_reg(s, f->comm, f->arena, f->arena_size);
	check_flow_run(f);
	check_meet(s);
	for (int i = 0; i < more; i++)
		check_dereg(s, f->comm, mr[i]);
	check_flow_close(f);
	check_service(s, finalize_job, NULL);
}

/* What grows in every third of the rounds: pools, caches and pages that are touched late stop growing sooner or later. */
static void steady_growth(struct check_side *s, const struct check_memory *m, int rounds)
{
	long allocated = LONG_MAX, mapped = LONG_MAX;
	int n = rounds / PERIODS;

	for (int i = 0; i < PERIODS; i++) {
		const struct check_memory *from = &m[rounds - (PERIODS - i) * n], *to = from + n;
		long taken = to->mapped - from->mapped, resident = to->resident - from->resident;
		long bytes = (to->allocated - from->allocated) / n;

		taken = (resident < taken ? resident : taken) * 1024 / n;
		allocated = bytes < allocated ? bytes : allocated;
		mapped = taken < mapped ? taken : mapped;
	}
#ifndef GANTRY_SANITIZED /* sanitizers hold back freed memory */
	if (allocated >= LEAK_ROUND_BYTES)
		check_fail(s, "each round leaves %ld bytes of malloc behind, over %d rounds", allocated, rounds);
	if (mapped >= sysconf(_SC_PAGESIZE))
		check_fail(s, "each round leaves %ld bytes of mapped memory behind, over %d rounds", mapped, rounds);
#else
	(void)s;
#endif
}

static void memory_settled(struct check_side *s, const struct usage *before, const struct check_memory *memory, int n)
{
	uint64_t since = gantry_now_ns();
	struct usage after;
	long grown;

	check_phase(s, "waiting for fds, threads and memory to go");
	do {
		usage_now(&after);
		grown = check_grown_kb(memory);
		if (after.fds <= before->fds && after.threads <= before->threads && grown <= LEAK_SLACK_KB)
			break;
		check_sleep_ms(20);
	} while (gantry_now_ns() - since < SETTLE_MS * (uint64_t)CHECK_MS);
	if (after.fds > before->fds)
		check_fail(s, "%d more fds after %d rounds", after.fds - before->fds, n);
	if (after.threads > before->threads)
		check_fail(s, "%d more threads after %d rounds", after.threads - before->threads, n);
#ifndef GANTRY_SANITIZED
	if (grown > LEAK_SLACK_KB)
		check_fail(s, "%ld KiB more memory after %d rounds", grown, n);
#endif
	check_note(s, "%d rounds of init, connect, transfer, close: fds %+d, threads %+d, memory %+ld KiB", n,
		   after.fds - before->fds, after.threads - before->threads, grown);
}

static void rule_leaks(struct check_side *s)
{
	static struct check_memory memory[CYCLES + 1];
	uint64_t half = check_left_ns(s) / 2;
	struct usage before;
	struct check_plan p;
	int n = 0, more = 1;

	check_plan_uniform(s, &p, 4, 100000, 100000);
	for (int i = 0; i < WARMUP; i++)
		cycle(s, &p);
	usage_now(&before);
	check_memory_now(&memory[0]);
	while (more) {
		int want;

		cycle(s, &p);
		check_memory_now(&memory[++n]);
		/* A slow plugin gets fewer rounds; both sides must agree on that. */
		more = n < CYCLES && (n < CYCLES_MIN || check_left_ns(s) > half);
		check_tell(s, &more, sizeof(more));
		check_hear(s, &want, sizeof(want));
		more = more && want;
	}
	memory_settled(s, &before, memory, n);
	steady_growth(s, memory, n);
	check_meet(s);
}

const struct check_rule check_rules_data[] = {
	{"ordering", "messages arrive in the order they were posted, byte for byte", rule_ordering, 0, 0},
	{"grouped-tags", "tags pick the buffer within a grouped receive", rule_grouped_tags, 0, 0},
	{"recv-larger", "a receive may be larger than its send", rule_recv_larger, 0, 0},
	{"size-mismatch", "a send larger than its receive is an error and overwrites nothing", rule_size_mismatch, 0,
	 0},
	{"zero-bytes", "empty messages are messages", rule_zero_bytes, 0, 0},
	{"test-sizes", "test reports the bytes that were received, in the order of the buffers", rule_test_sizes, 0, 0},
	{"optional-recv", "irecv entered with *request = 1 (LL, LL128) delivers into the buffer given",
	 rule_optional_recv, 0, 0},
	{"large", "64 MiB + 3 bytes at odd addresses, both directions at once, and a message of 256 MiB", rule_large,
	 CHECK_HEAVY, 0},
	{"close-after-done", "what was reported sent arrives though the sender closes at once", rule_close_after_done,
	 0, 0},
	{"idle-sender", "what was reported sent arrives though the sender makes no further call", rule_idle_sender, 0,
	 0},
	{"close-in-flight", "closing with requests in flight returns within a second", rule_close_in_flight, 0, 3000},
	{"peer-death", "when the peer is killed, the oldest request and what is posted afterwards end in an error",
	 rule_peer_death, 0, 0},
	{"leaks", "connections leave no fd, no thread and no memory behind", rule_leaks, 0, 0},
	{0},
};
