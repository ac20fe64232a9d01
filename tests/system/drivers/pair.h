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
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bytes.h"
#include "held.h"
#include "net/net.h"

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
};

/*
 * When silence must have been noticed: GANTRY_TIMEOUT + 1 s is what is asked for. A second try gives more
 * (lib_tries.sh): that is for machines on which the one who notices may not run for seconds.
 */
static inline uint64_t pair_silence_ms(uint64_t timeout_ms)
{
	const char *late = getenv("LATE_MS");

	return timeout_ms + (late ? strtoull(late, NULL, 10) : 1000);
}

static inline struct pair_shared *pair_share(void)
{
	void *p = mmap(NULL, sizeof(struct pair_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	alarm(PAIR_ALARM_S + 20); /* this process; the sides have one of their own, and say more */
	return p;
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

		if (netns) {
			char path[256];
			int fd;

			snprintf(path, sizeof(path), "/run/netns/%s", netns);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			CHECK(fd >= 0);
			CHECK(setns(fd, CLONE_NEWNET) == 0);
			close(fd);
		}
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

static inline void pair_init(struct pair_side *s)
{
	CHECK_OK(s->net->ops->init(s->net, 42, NULL, &s->ctx));
}

static inline void pair_step(struct pair_side *s, uint32_t step)
{
	__atomic_store_n(&s->shared->step[s->self], step, __ATOMIC_RELEASE);
}

static inline void pair_wait_step(const struct pair_shared *shared, int side, uint32_t step)
{
	while (__atomic_load_n(&shared->step[side], __ATOMIC_ACQUIRE) < step)
		sleep_ms(1);
}

static inline void *pair_listen(struct pair_side *s, int i)
{
	void *l = NULL;

	CHECK_OK(s->net->ops->listen(s->net, s->ctx, 0, s->shared->handle[s->self][i], &l));
	__atomic_store_n(&s->shared->ready[s->self][i], 1, __ATOMIC_RELEASE);
	return l;
}

static inline void pair_wait_handle(struct pair_side *s, int i)
{
	while (!__atomic_load_n(&s->shared->ready[s->other][i], __ATOMIC_ACQUIRE))
		sleep_ms(1);
}

static inline gantry_result pair_try_connect(struct pair_side *s, void *handle, void **ret_comm)
{
	gantry_result r = GANTRY_OK;

	*ret_comm = NULL;
	while (r == GANTRY_OK && !*ret_comm) {
		r = s->net->ops->connect(s->net, s->ctx, 0, handle, ret_comm, NULL);
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
