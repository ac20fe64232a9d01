/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on how things end: closing, the death of a peer, and what is left behind. */
#include "check.h"

#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { BIG = 4 << 20, POSTS = 8, CYCLES = 30, CYCLES_MIN = 10, WARMUP = 4, SETTLE_MS = 2000, RSS_SLACK_KB = 2048 };

/* NCCL's ranks do not wait for each other in the end: what a sender has been told is done must arrive. */
static void rule_close_after_done(struct check_side *s)
{
	int sending = s->role == 1;
	void *comm = check_link(s, sending);
	struct check_flow *f;
	struct check_plan p;

	check_plan_uniform(s, &p, 24, 30000, 30000);
	p.window = p.count;
	f = check_flow_open(s, &p, comm, sending);
	if (!sending)
		check_sleep_ms(100);
	check_phase(s, sending ? "sending, then closing at once" : "receiving from a sender that closes");
	check_flow_run(f, NULL);
	check_flow_close(f);
	check_meet(s);
	check_note(s, "%d messages arrived though the sender closed as soon as it was done", p.count);
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

static void abandoned_listen_job(struct check_side *s, void *arg)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];

	*(void **)arg = check_listen(s, handle);
	check_tell(s, handle, sizeof(handle));
}

static void abandoned_connect_job(struct check_side *s, void *arg)
{
	struct gantry_net_device_handle *none = NULL;
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void **comm = arg;

	check_hear(s, handle, sizeof(handle));
	for (int i = 0; i < 10 && !*comm; i++) {
		CHECK_MUST(s, CHECK_SERVICE, "connect", s->net->ops->connect(s->net, s->ctx, 0, handle, comm, &none));
		check_sleep_ms(1);
	}
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
	check_service(s, s->role ? abandoned_connect_job : abandoned_listen_job, &abandoned);
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

/* How one flow's requests ended after the peer's death. */
struct endings {
	int errors, done, pending;
	gantry_result first;
};

static void look_once(struct check_side *s, struct check_flow *f, int sent, struct endings *e)
{
	e->pending = 0;
	for (int i = f->done; i < f->posted; i++) {
		struct check_post *p = &f->ring[i % CHECK_WINDOW_MAX];
		int sizes[GANTRY_NET_MAX_RECVS] = {0}, done = 0;
		gantry_result r;

		if (!p->request)
			continue;
		r = CHECK_CALL(s, CHECK_PROGRESS, "test", s->net->ops->test(s->net, p->request, &done, sizes));
		if (r != GANTRY_OK) {
			e->first = e->errors++ ? e->first : r;
		} else if (done) {
			e->done++;
			if (!f->sending && p->index >= sent)
				check_fail(s, "receive %d was reported done, %d bytes, though nobody sent to it",
					   p->index, sizes[0]);
			if (!f->sending)
				check_flow_received(f, p, sizes);
		} else {
			e->pending++;
			continue;
		}
		p->request = NULL;
	}
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

static void survivor(struct check_side *s, struct check_flow *recv, struct check_flow *send)
{
	struct endings er = {0}, es = {0};
	uint64_t since;
	pid_t pid;

	for (int i = 0; i < POSTS; i++)
		check_flow_post(send);
	check_hear(s, &pid, sizeof(pid));
	look_once(s, recv, 2, &er); /* some bytes move */
	s->shared->expect_death = 1;
	kill(pid, SIGKILL);
	check_phase(s, "waiting for errors after the peer's death");
	since = gantry_now_ns();
	do {
		look_once(s, recv, 2, &er);
		look_once(s, send, 0, &es);
		usleep(100);
	} while ((er.pending || es.pending) && check_left_ns(s));
	if (er.pending || es.pending)
		check_fail(s, "%d of %d receives and %d of %d sends still pend %.1f s after the peer was killed",
			   er.pending, recv->posted, es.pending, send->posted, (double)(gantry_now_ns() - since) / 1e9);
	if (!er.errors)
		check_fail(s, "no receive ended in an error after the peer was killed");
	check_note(s, "%d receives ended in %s, %d sends in %s, %d had completed; after %.0f ms", er.errors,
		   gantry_result_name(er.first), es.errors, es.errors ? gantry_result_name(es.first) : "an error",
		   er.done + es.done, (double)(gantry_now_ns() - since) / CHECK_MS);
}

static void rule_peer_death(struct check_side *s)
{
	struct check_flow *f[2];
	struct check_plan p;

	check_plan_uniform(s, &p, POSTS, BIG, BIG);
	for (int i = 0; i < 2; i++)
		f[i] = check_flow_open(s, &p, check_link(s, s->role != i), s->role != i);
	check_phase(s, "posting");
	if (s->role == 0)
		for (int i = 0; i < POSTS; i++)
			check_flow_post(f[0]);
	check_meet(s);
	if (s->role == 1)
		victim(s, f[0]);
	survivor(s, f[0], f[1]);
	check_phase(s, "closing what led to the dead peer");
	for (int i = 0; i < 2; i++)
		check_flow_close(f[i]);
}

struct usage {
	int fds, threads;
	long rss_kb;
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
	FILE *f;
	long size = 0, rss = 0;

#ifdef __GLIBC__
	malloc_trim(0); /* what malloc merely keeps for later is no leak */
#endif
	f = fopen("/proc/self/statm", "r");
	if (f && fscanf(f, "%ld %ld", &size, &rss) != 2)
		rss = 0;
	if (f)
		fclose(f);
	u->rss_kb = rss * (sysconf(_SC_PAGESIZE) / 1024);
	u->fds = count_entries("/proc/self/fd");
	u->threads = count_entries("/proc/self/task");
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

static void cycle(struct check_side *s, const struct check_plan *p)
{
	check_service(s, init_job, NULL);
	check_flow_once(s, p);
	check_service(s, finalize_job, NULL);
}

static void rule_leaks(struct check_side *s)
{
	uint64_t half = check_left_ns(s) / 2, since;
	struct usage before, after;
	struct check_plan p;
	int n = 0, more = 1;

	check_plan_uniform(s, &p, 4, 100000, 100000);
	for (int i = 0; i < WARMUP; i++)
		cycle(s, &p);
	usage_now(&before);
	for (; more; n++) {
		int want;

		cycle(s, &p);
		/* A slow plugin gets fewer rounds; both sides must agree on that. */
		more = n + 1 < CYCLES && (n + 1 < CYCLES_MIN || check_left_ns(s) > half);
		check_tell(s, &more, sizeof(more));
		check_hear(s, &want, sizeof(want));
		more = more && want;
	}
	check_phase(s, "waiting for fds, threads and memory to go");
	since = gantry_now_ns();
	do {
		usage_now(&after);
		if (after.fds <= before.fds && after.threads <= before.threads &&
		    after.rss_kb - before.rss_kb <= RSS_SLACK_KB)
			break;
		check_sleep_ms(20);
	} while (gantry_now_ns() - since < SETTLE_MS * (uint64_t)CHECK_MS);
	if (after.fds > before.fds)
		check_fail(s, "%d more fds after %d connections", after.fds - before.fds, n);
	if (after.threads > before.threads)
		check_fail(s, "%d more threads after %d connections", after.threads - before.threads, n);
#ifndef GANTRY_SANITIZED /* sanitizers hold back freed memory */
	if (after.rss_kb - before.rss_kb > RSS_SLACK_KB)
		check_fail(s, "%ld KiB more memory after %d connections", after.rss_kb - before.rss_kb, n);
#endif
	check_note(s, "%d rounds of init, connect, transfer, close: fds %+d, threads %+d, memory %+ld KiB", n,
		   after.fds - before.fds, after.threads - before.threads, after.rss_kb - before.rss_kb);
	check_meet(s);
}

const struct check_rule check_rules_end[] = {
	{"close-after-done", "what was reported sent arrives though the sender closes at once", rule_close_after_done,
	 0, 0},
	{"close-in-flight", "closing with requests in flight returns within a second", rule_close_in_flight, 0, 3000},
	{"peer-death", "when the peer is killed, every request ends in an error or had completed", rule_peer_death, 0,
	 0},
	{"leaks", "connections leave no fd, no thread and no memory behind", rule_leaks, 0, 0},
	{0},
};
