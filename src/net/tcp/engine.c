/* SPDX-License-Identifier: Apache-2.0 */
/* The service thread and the process's identity. engine.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/secret.h"
#include "base/trace.h"
#include "net/tcp/helper.h"
#include "net/tcp/stall.h"

enum { EXIT_WAIT_MS = 1000 };

struct tcp_engine tcp_engine = {
	.mu = PTHREAD_MUTEX_INITIALIZER,
	.epoll_fd = -1,
	.wake_fd = -1,
};

gantry_result tcp_engine_init(void)
{
	struct tcp_engine *e = &tcp_engine;
	gantry_result r = GANTRY_OK;

	pthread_mutex_lock(&e->mu);
	if (e->initialised)
		goto out;
	gantry_list_init(&e->ports);
	gantry_list_init(&e->incoming);
	gantry_list_init(&e->connectors);
	gantry_list_init(&e->opening);
	gantry_list_init(&e->shareable);
	for (int i = 0; i < TCP_BUCKETS; i++) {
		gantry_list_init(&e->sessions[i]);
		gantry_list_init(&e->listeners[i]);
		gantry_list_init(&e->connectors_by_id[i]);
	}
	gantry_list_init(&e->links);
	gantry_list_init(&e->lingering);
	gantry_list_init(&e->buried);
	e->process = gantry_process_id();
	TRY(gantry_secret(&e->secret));
	e->host = gantry_host_id();
	snprintf(e->self, sizeof(e->self), "%s", gantry_self());
	TRY(tcp_devices_scan());
	e->initialised = 1;
out:
	pthread_mutex_unlock(&e->mu);
	return r;
}

gantry_result tcp_source_add(struct tcp_source *s, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	if (epoll_ctl(tcp_engine.epoll_fd, EPOLL_CTL_ADD, s->fd, &ev))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "epoll_ctl: %s", strerror(errno));
	return GANTRY_OK;
}

void tcp_source_set(struct tcp_source *s, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	epoll_ctl(tcp_engine.epoll_fd, EPOLL_CTL_MOD, s->fd, &ev);
}

void tcp_source_close(struct tcp_source *s)
{
	if (s->fd < 0)
		return;
	/* Explicitly: a forked child may hold a copy, and then close alone would leave it watched. */
	epoll_ctl(tcp_engine.epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
	close(s->fd);
	s->fd = -1;
}

void tcp_engine_wake(void)
{
	uint64_t one = 1;

	if (tcp_engine.wake_fd >= 0 && write(tcp_engine.wake_fd, &one, sizeof(one)) < 0)
		LOG_DEBUG(NET, "wake: %s", strerror(errno));
}

static void on_wake(struct tcp_source *s, uint32_t events)
{
	uint64_t n;

	(void)events;
	while (read(s->fd, &n, sizeof(n)) > 0)
		;
	tcp_ports_take();
}

/* How long the thread may sleep: short while connections are being set up or seen off, a heartbeat's tick otherwise. */
static int sleep_ms(const struct tcp_engine *e)
{
	if (tcp_connectors_busy() || !gantry_list_empty(&e->lingering) || !gantry_list_empty(&e->incoming))
		return 10;
	if (!gantry_list_empty(&e->links))
		return (int)(tcp_alive_interval() / 1000000) +
		       1; /* not a moment too early: that would be one tick late */
	return 500;
}

static void tick(uint64_t now)
{
	tcp_connector_tick(now);
	tcp_incoming_tick(now);
	tcp_alive_tick(now);
	tcp_linger_tick(now, 0);
}

void tcp_link_bury(struct tcp_link *l)
{
	gantry_list_append(&tcp_engine.buried, &l->node);
	tcp_engine.nburied++;
	tcp_engine_wake();
}

/* mu is held before and after, not meanwhile. */
static void free_buried(struct tcp_engine *e)
{
	struct tcp_link *l;

	while (!gantry_list_empty(&e->buried)) {
		l = gantry_container(e->buried.next, struct tcp_link, node);
		gantry_list_remove(&l->node);
		pthread_mutex_unlock(&e->mu);
		tcp_link_free(l);
		pthread_mutex_lock(&e->mu);
		e->nburied--;
	}
}

static void *service(void *arg)
{
	struct tcp_engine *e = &tcp_engine;
	struct tcp_source wake = {.fd = e->wake_fd, .ready = on_wake};
	uint64_t ticked = 0;

	(void)arg;
	pthread_mutex_lock(&e->mu);
	tcp_source_add(&wake, EPOLLIN);
	while (e->users || !gantry_list_empty(&e->lingering) || !gantry_list_empty(&e->buried)) {
		struct epoll_event ev;
		int timeout, n;
		uint64_t now;

		free_buried(e);
		timeout = sleep_ms(e);
		pthread_mutex_unlock(&e->mu);
		n = epoll_wait(e->epoll_fd, &ev, 1, timeout);
		pthread_mutex_lock(&e->mu);
		/*
		 * Asked again under mu: what an event names may have been freed before we got the lock, but not now.
		 * One event a turn, because handling it may free what others name.
		 */
		if (n == 1)
			n = epoll_wait(e->epoll_fd, &ev, 1, 0);
		if (n == 1) {
			struct tcp_source *s = ev.data.ptr;

			s->ready(s, ev.events);
		}
		now = gantry_now_ns();
		if (n != 1 || now - ticked > 10000000) {
			ticked = now;
			tick(now);
			if (tcp_stall_tick(now)) {
				pthread_mutex_unlock(&e->mu);
				tcp_stall_tell();
				pthread_mutex_lock(&e->mu);
			}
		}
	}
	tcp_linger_tick(gantry_now_ns(), 1);
	tcp_incoming_drop_all();
	tcp_helpers_stop();
	close(e->epoll_fd);
	close(e->wake_fd);
	e->epoll_fd = e->wake_fd = -1;
	e->running = 0;
	free_buried(e);
	pthread_mutex_unlock(&e->mu);
	return NULL;
}

static gantry_result start(void)
{
	struct tcp_engine *e = &tcp_engine;
	gantry_result r = GANTRY_OK;
	pthread_t thread;
	sigset_t all, old;
	int rc;

	e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->epoll_fd < 0 || e->wake_fd < 0)
		FAIL(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM, "epoll or eventfd: %s",
		     strerror(errno));
	e->last_tick = 0;
	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, NULL, service, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		FAIL(GANTRY_ERR_LIMIT, "cannot start the service thread: %s", strerror(rc));
	pthread_setname_np(thread, "gantry-service");
	if (gantry_trace_on())
		LOG_INFO(NET, "events are recorded for GANTRY_TRACE=%s", gantry_params()->trace);
	pthread_detach(thread);
	e->running = 1;
	e->owner = getpid();
out:
	if (r != GANTRY_OK) {
		if (e->epoll_fd >= 0)
			close(e->epoll_fd);
		if (e->wake_fd >= 0)
			close(e->wake_fd);
		e->epoll_fd = e->wake_fd = -1;
	}
	return r;
}

gantry_result tcp_engine_hold(void)
{
	struct tcp_engine *e = &tcp_engine;
	gantry_result r = GANTRY_OK;

	pthread_mutex_lock(&e->mu);
	if (e->running && e->owner != getpid())
		r = gantry_fail(
			GANTRY_ERR_USAGE, LOG_SUBSYS, __FILE__, __LINE__,
			"this process was forked from one that uses the network: exec, or fork before the first use");
	else if (!e->running)
		r = start();
	if (r == GANTRY_OK)
		e->users++;
	pthread_mutex_unlock(&e->mu);
	return r;
}

void tcp_engine_release(void)
{
	int last;

	pthread_mutex_lock(&tcp_engine.mu);
	last = --tcp_engine.users == 0;
	tcp_engine_wake();
	pthread_mutex_unlock(&tcp_engine.mu);
	if (last)
		gantry_trace_write_process();
}

/*
 * A program that exits right after it closed its comms: what the kernel has not delivered yet would be lost if the peer
 * answered a process that is gone. Give the thread a moment to see the links off; peers that read take microseconds.
 */
__attribute__((destructor)) static void see_off(void)
{
	struct tcp_engine *e = &tcp_engine;
	int busy = 1;

	/* NCCL closes nothing of some communicators. */
	if (e->owner == getpid() && load_relaxed(&e->users))
		gantry_trace_write_process();

	for (int ms = 0; busy && ms < EXIT_WAIT_MS; ms++) {
		struct timespec pause = {0, 1000000};

		if (pthread_mutex_trylock(&e->mu) == 0) {
			busy = e->owner == getpid() &&
			       (e->nburied || (e->running && !gantry_list_empty(&e->lingering)));
			pthread_mutex_unlock(&e->mu);
		}
		if (busy)
			nanosleep(&pause, NULL);
	}
}
