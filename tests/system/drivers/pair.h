/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the drivers of the system tests share: two processes, a piece of shared memory between them, and the calls of
 * net.h in forms that wait. A side forks before it touches the network, so each has an engine, an environment and, if
 * asked, a network namespace of its own.
 */
#ifndef GANTRY_TESTS_PAIR_H
#define GANTRY_TESTS_PAIR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "base/atomic.h"
#include "net/net.h"
#include "test.h"

enum { PAIR_HANDLES = 80 };

/*
 * Only a hang reaches these: on a loaded machine a process that is well may not run for seconds, and what has ended may
 * still be listed.
 */
enum { PAIR_PATIENCE_MS = 60000, PAIR_ALARM_S = 240 };

/* Both sides write their own entries and read the other's: index 0 is side A, 1 is side B. */
struct pair_shared {
	uint32_t step[2];	    /* how far each side is; release, acquire */
	uint32_t event;		    /* the parent has done what the test is about */
	uint64_t event_ms;	    /* when */
	uint64_t number[2][8];	    /* results */
	int ready[2][PAIR_HANDLES]; /* release, acquire */
	uint8_t handle[2][PAIR_HANDLES][GANTRY_NET_HANDLE_SIZE];
	pid_t pid[2];
};

struct pair_side {
	int self, other;
	struct pair_shared *shared;
	struct gantry_net *net;
	void *ctx;
	int dev; /* on which it listens and connects; 0 unless it is set */
};

/*
 * When silence must have been noticed: GANTRY_TIMEOUT + 1 s is what is asked for. A second try gives more
 * (lib.sh): that is for machines on which the one who notices may not run for seconds.
 */
static inline uint64_t pair_silence_ms(uint64_t timeout_ms)
{
	const char *late = getenv("LATE_MS");

	return timeout_ms + (late ? strtoull(late, NULL, 10) : 1000);
}

/* Zeroed, for this process and those that it forks. */
static inline void *share_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	alarm(PAIR_ALARM_S + 20); /* this process; the others have one of their own, and say more */
	return p;
}

static inline struct pair_shared *pair_share(void)
{
	return share_memory(sizeof(struct pair_shared));
}

static inline int pair_fds(void)
{
	return held(HELD_FDS) - 1; /* without the one for looking */
}

/* ThreadSanitizer has threads of its own, some of which come later: there the count says nothing. */
static inline int pair_threads(void)
{
#ifdef __SANITIZE_THREAD__
	return 1;
#else
	return held(HELD_THREADS);
#endif
}

/*
 * The end of a side. With sanitizers the service thread is waited for: what it owns would look like a leak if the
 * process ended under it.
 */
static inline void pair_finish(struct pair_side *s)
{
	const char *sanitized = getenv("GANTRY_SANITIZED"), *asan = getenv("ASAN_OPTIONS");
	int leaks = !(asan && strstr(asan, "detect_leaks=0")); /* are looked for: then it must have ended */
	uint64_t end = now_ms() + (leaks ? PAIR_PATIENCE_MS : 3000);

	if (s->ctx)
		CHECK_OK(s->net->ops->finalize(s->net, s->ctx));
	s->ctx = NULL;
	while (sanitized && *sanitized && pair_threads() > 1 && now_ms() < end)
		sleep_ms(5);
}

/*
 * Until fds and threads are what they were; what was closed is seen off in the background, and a thread that was joined
 * may still be listed. Only what never goes reaches the deadline.
 */
static inline void settle(int fds, int threads, const char *when)
{
	uint64_t end = now_ms() + PAIR_PATIENCE_MS;

	while ((pair_fds() != fds || pair_threads() != threads) && now_ms() < end)
		sleep_ms(5);
	if (pair_fds() != fds || pair_threads() != threads)
		fprintf(stderr, "%s: %d fds (%d before), %d threads (%d before)\n", when, pair_fds(), fds,
			pair_threads(), threads);
	CHECK_EQ(pair_fds(), fds);
	CHECK_EQ(pair_threads(), threads);
}

/* User and system time of this process, in microseconds. */
static inline uint64_t cpu_us(void)
{
	struct rusage u;

	CHECK_EQ(getrusage(RUSAGE_SELF, &u), 0);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* This thread goes on in the network namespace of that name. */
static inline void enter_netns(const char *name)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "/run/netns/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK_EQ(setns(fd, CLONE_NEWNET), 0);
	close(fd);
}

/* fork: every test ends by itself, also when the code under test hangs. */
static inline pid_t pair_child(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		alarm(PAIR_ALARM_S);
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left behind, least of all one that is stopped */
	}
	return pid;
}

static inline pid_t pair_fork(void (*run)(struct pair_side *), struct pair_shared *shared, int self, const char *netns)
{
	pid_t pid = pair_child();

	if (pid == 0) {
		struct pair_side side = {.self = self, .other = !self, .shared = shared, .net = gantry_net_tcp()};

		if (netns)
			enter_netns(netns);
		run(&side);
		pair_finish(&side);
		exit(0);
	}
	shared->pid[self] = pid;
	return pid;
}

/* 0 if it ended well; a signal counts as such if it is the expected one. */
static inline int pair_reap(pid_t pid, int expected_signal)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	if (expected_signal && WIFSIGNALED(status) && WTERMSIG(status) == expected_signal)
		return 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	fprintf(stderr, "process %d ended with status 0x%x\n", (int)pid, (unsigned)status);
	return 1;
}

/* Both sides, their pids in shared; and their ends: 0 if both ended well. */
static inline void pair_fork_both(struct pair_shared *shared, void (*a)(struct pair_side *),
				  void (*b)(struct pair_side *))
{
	pair_fork(a, shared, 0, NULL);
	pair_fork(b, shared, 1, NULL);
}

static inline int pair_reap_both(const struct pair_shared *shared)
{
	return pair_reap(shared->pid[0], 0) | pair_reap(shared->pid[1], 0);
}

/* n processes, one for each rank. */
static inline void ranks_fork(int n, void (*run)(int rank), pid_t *ret_pids)
{
	for (int i = 0; i < n; i++) {
		ret_pids[i] = pair_child();
		if (ret_pids[i] == 0) {
			run(i);
			exit(0);
		}
	}
}

static inline int ranks_reap(int n, const pid_t *pids)
{
	int failed = 0;

	for (int i = 0; i < n; i++)
		failed |= pair_reap(pids[i], 0);
	return failed;
}

static inline void pair_init(struct pair_side *s)
{
	CHECK_OK(s->net->ops->init(s->net, 42, NULL, &s->ctx));
}

static inline void pair_step(struct pair_side *s, uint32_t step)
{
	store_release(&s->shared->step[s->self], step);
}

static inline void pair_wait_step(const struct pair_shared *shared, int side, uint32_t step)
{
	while (load_acquire(&shared->step[side]) < step)
		sleep_ms(1);
}

/* Neither goes on before both are here. */
static inline void pair_meet(struct pair_side *s, uint32_t step)
{
	pair_step(s, step);
	pair_wait_step(s->shared, s->other, step);
}

/*
 * Both sides leave their connections alone for ms at a time: each may use 1 % of a CPU at most, in one of a few
 * measurements. Others on this machine can only make it more: the other side may have come late, or page faults cost
 * extra. A line for each.
 */
static inline void pair_measure_idle(struct pair_side *s, const char *what, unsigned ms)
{
	enum { TIMES = 6, SPIN_MS = 500 }; /* by then spinning and yielding are over */
	uint64_t cpu, begun, used, took, (*good)[8] = s->shared->number;

	for (uint32_t i = 0; i < TIMES && !(i && good[0][0] && good[1][0]); i++) {
		pair_meet(s, 2 * i + 1);
		sleep_ms(SPIN_MS);
		cpu = cpu_us();
		begun = now_ms();
		sleep_ms(ms);
		used = cpu_us() - cpu;
		took = now_ms() - begun;
		printf("%s, side %c: idle for %d ms, %d us of CPU (%.3f %%), %d threads, %d fds\n", what, 'A' + s->self,
		       (int)took, (int)used, (double)used / (double)took / 10, pair_threads(), pair_fds());
		fflush(stdout);
		if (used * 100 < took * 1000)
			good[s->self][0] = 1;
		pair_meet(s, 2 * i + 2);
	}
	CHECK(good[s->self][0]);
}

static inline void *pair_listen(struct pair_side *s, int i)
{
	void *l = NULL;

	CHECK_OK(s->net->ops->listen(s->net, s->ctx, s->dev, s->shared->handle[s->self][i], &l));
	store_release(&s->shared->ready[s->self][i], 1);
	return l;
}

static inline void pair_wait_handle(struct pair_side *s, int i)
{
	while (!load_acquire(&s->shared->ready[s->other][i]))
		sleep_ms(1);
}

static inline gantry_result pair_try_connect(struct pair_side *s, void *handle, void **ret_comm)
{
	gantry_result r = GANTRY_OK;

	*ret_comm = NULL;
	while (r == GANTRY_OK && !*ret_comm) {
		r = s->net->ops->connect(s->net, s->ctx, s->dev, handle, ret_comm, NULL);
		if (!*ret_comm)
			sleep_ms(1);
	}
	return r;
}

static inline gantry_result pair_try_accept(struct pair_side *s, void *listen, unsigned limit_ms, void **ret_comm)
{
	gantry_result r = GANTRY_OK;
	uint64_t end = now_ms() + limit_ms;

	*ret_comm = NULL;
	while (r == GANTRY_OK && !*ret_comm && now_ms() < end) {
		r = s->net->ops->accept(s->net, listen, ret_comm, NULL);
		if (!*ret_comm)
			sleep_ms(1);
	}
	return r == GANTRY_OK && !*ret_comm ? GANTRY_ERR_TIMEOUT : r;
}

/* Connects to the other side's listener i, which must be there or come. */
static inline void *pair_connect(struct pair_side *s, int i)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	void *comm;

	pair_wait_handle(s, i);
	memcpy(handle, s->shared->handle[s->other][i], sizeof(handle));
	CHECK_OK(pair_try_connect(s, handle, &comm));
	return comm;
}

static inline void *pair_accept(struct pair_side *s, void *listen)
{
	void *comm;

	CHECK_OK(pair_try_accept(s, listen, PAIR_PATIENCE_MS, &comm));
	return comm;
}

/* What one side has of a connection in each direction. */
struct pair_ends {
	void *listen, *send, *recv;
};

/* A first, so that the two directions share their links in a way that is the same each time. */
static inline struct pair_ends pair_open_ends(struct pair_side *s, int i)
{
	struct pair_ends e = {.listen = pair_listen(s, i)};

	if (s->self == 0)
		e.send = pair_connect(s, i);
	e.recv = pair_accept(s, e.listen);
	if (s->self == 1)
		e.send = pair_connect(s, i);
	return e;
}

/* Both ends in this process. */
static inline gantry_result pair_open_self(struct pair_side *s, struct pair_ends *e)
{
	uint8_t handle[GANTRY_NET_HANDLE_SIZE];
	gantry_result r = s->net->ops->listen(s->net, s->ctx, 0, handle, &e->listen);

	e->send = e->recv = NULL;
	while (r == GANTRY_OK && (!e->send || !e->recv)) {
		if (!e->send)
			r = s->net->ops->connect(s->net, s->ctx, 0, handle, &e->send, NULL);
		if (r == GANTRY_OK && !e->recv)
			r = s->net->ops->accept(s->net, e->listen, &e->recv, NULL);
		if (!e->send || !e->recv)
			sleep_ms(1);
	}
	return r;
}

/* What is NULL is not there. */
static inline void pair_close_ends(struct pair_side *s, const struct pair_ends *e)
{
	CHECK_OK(s->net->ops->close_send(s->net, e->send));
	CHECK_OK(s->net->ops->close_recv(s->net, e->recv));
	CHECK_OK(s->net->ops->close_listen(s->net, e->listen));
}

static inline void *pair_isend(struct pair_side *s, void *comm, void *data, size_t size, int tag)
{
	void *req = NULL;

	while (!req) {
		CHECK_OK(s->net->ops->isend(s->net, comm, data, size, tag, NULL, &req));
		if (!req)
			sleep_ms(1);
	}
	return req;
}

static inline void *pair_irecv(struct pair_side *s, void *comm, void *data, size_t size, int tag)
{
	void *req = NULL;

	while (!req) {
		CHECK_OK(s->net->ops->irecv(s->net, comm, 1, &data, &size, &tag, NULL, &req));
		if (!req)
			sleep_ms(1);
	}
	return req;
}

/* Until the request is done, fails, or limit_ms passes (ERR_TIMEOUT). */
static inline gantry_result pair_try_wait(struct pair_side *s, void *req, unsigned limit_ms, int *ret_size)
{
	uint64_t end = now_ms() + limit_ms;
	int spins = 0;

	for (;;) {
		int done = 0;
		gantry_result r = s->net->ops->test(s->net, req, &done, ret_size);

		if (r != GANTRY_OK || done)
			return r;
		if (now_ms() >= end)
			return GANTRY_ERR_TIMEOUT;
		if (++spins > 1000)
			sleep_ms(1);
	}
}

static inline void pair_wait(struct pair_side *s, void *req)
{
	CHECK_OK(pair_try_wait(s, req, PAIR_PATIENCE_MS, NULL));
}

#endif
