/* SPDX-License-Identifier: Apache-2.0 */
/* The thread itself: starting, its turns, ending. ctl_service.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/ctl_service.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "comm/ctl_member.h"
#include "comm/hub.h"

enum { EVENTS = 64 };
static const uint64_t backlog_ns = 20000000, slack_max_ns = 500000000;

struct ctl_service ctl_service = {
	.mu = PTHREAD_MUTEX_INITIALIZER,
	.quiet = PTHREAD_COND_INITIALIZER,
	.epoll_fd = -1,
	.wake.fd = -1,
};

const char *ctl_seconds(uint64_t ns, char buf[16])
{
	snprintf(buf, 16, "%.3g s", (double)ns / 1e9);
	return buf;
}

void ctl_service_due(uint64_t when)
{
	if (when < ctl_service.due)
		ctl_service.due = when;
}

uint64_t ctl_patience(uint64_t timeout)
{
	uint64_t slack = timeout / 16;

	return timeout + (slack < slack_max_ns ? slack : slack_max_ns);
}

int ctl_silent(uint64_t *heard, uint64_t timeout)
{
	const struct ctl_service *s = &ctl_service;

	/* We were away: what peers said meanwhile may be on its way, what they were not asked they could not answer. */
	if (s->late > timeout / 8 && s->now - *heard > timeout / 2)
		*heard = s->now - timeout / 2;
	return s->now - *heard >= ctl_patience(timeout);
}

void ctl_service_wake(void)
{
	uint64_t one = 1;

	if (exchange_acq_rel(&ctl_service.woken, 1))
		return;
	if (write(ctl_service.wake.fd, &one, sizeof(one)) < 0)
		LOG_DEBUG(COMM, "wake: %s", strerror(errno));
}

static void on_wake(struct ctl_source *s, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(s->fd, &n, sizeof(n)) < 0)
		LOG_DEBUG(COMM, "wake: %s", strerror(errno));
}

static int busy(void)
{
	const struct ctl_service *s = &ctl_service;

	return !gantry_list_empty(&s->hubs) || !gantry_list_empty(&s->members) || !gantry_list_empty(&s->finishing);
}

/* In milliseconds, rounded up: too early would be a turn for nothing. */
static int sleep_ms(uint64_t due)
{
	uint64_t now = gantry_now_ns(), ms;

	if (due <= now)
		return 0;
	ms = due == UINT64_MAX ? 3600000 : (due - now + 999999) / 1000000;
	return ms > 3600000 ? 3600000 : (int)ms;
}

static void tick(void)
{
	ctl_service.due = UINT64_MAX;
	hub_tick();
	hub_strangers_tick();
	ctl_members_tick();
	ctl_conns_tick();
}

void ctl_service_turn(void)
{
	struct ctl_service *s = &ctl_service;
	struct epoll_event ev[EVENTS];
	int n, ms = sleep_ms(s->due);
	uint64_t planned = s->due;

	pthread_mutex_unlock(&s->mu);
	n = epoll_wait(s->epoll_fd, ev, EVENTS, ms);
	pthread_mutex_lock(&s->mu);
	s->turns++;
	s->now = gantry_now_ns();
	s->late = s->now > planned ? s->now - planned : 0;
	/* First the flag, then the queues: whoever queues after this look writes a new wake-up. */
	store_seq(&s->woken, 0);
	if (s->exiting)
		hub_bye();
	ctl_members_take();
	hub_take_given();
	for (int i = 0; i < n; i++) {
		struct ctl_source *source = ev[i].data.ptr;

		if (source->fd >= 0) /* not closed by an event before this one */
			source->ready(source, ev[i].events);
	}
	/* Nobody is judged while there may be something left to read; but a flood must not stop the clock. */
	if (s->now >= s->due && (n < EVENTS || s->now - s->due > backlog_ns))
		tick();
	do {
		ctl_conns_flush();
	} while (ctl_members_call_back());
	ctl_conns_reap();
}

static void *serve(void *arg)
{
	struct ctl_service *s = &ctl_service;
	int parting;

	(void)arg;
	pthread_mutex_lock(&s->mu);
	s->now = gantry_now_ns();
	while (busy())
		ctl_service_turn();
	hub_strangers_drop();
	ctl_conns_reap();
	close(s->epoll_fd);
	close(s->wake.fd);
	s->epoll_fd = s->wake.fd = -1;
	s->running = 0;
	parting = s->parting;
	s->ended = !parting;
	pthread_mutex_unlock(&s->mu);
	while (parting)
		pause(); /* the process ends: rather with it than beside the exit handlers of libraries we have used */
	return NULL;
}

/* ---- starting ---- */

static void lists_init(struct ctl_service *s)
{
	gantry_list_init(&s->conns);
	gantry_list_init(&s->finishing);
	gantry_list_init(&s->dead);
	gantry_list_init(&s->dirty);
	gantry_list_init(&s->hubs);
	gantry_list_init(&s->listeners);
	gantry_list_init(&s->strangers);
	gantry_list_init(&s->members);
	gantry_list_init(&s->events);
}

static void init(void)
{
	struct ctl_service *s = &ctl_service;

	if (s->initialised)
		return;
	s->process = gantry_process_id();
	snprintf(s->who, sizeof(s->who), "%s", gantry_self());
	lists_init(s);
	s->initialised = 1;
}

static gantry_result start(void)
{
	struct ctl_service *s = &ctl_service;
	gantry_result r = GANTRY_OK;
	sigset_t all, old;
	int rc;

	if (s->ended)
		pthread_join(s->thread, NULL);
	s->ended = 0;
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->wake = (struct ctl_source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_wake};
	if (s->epoll_fd < 0 || s->wake.fd < 0)
		FAIL(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM, "epoll or eventfd: %s",
		     strerror(errno));
	TRY(ctl_source_add(&s->wake, EPOLLIN));
	s->due = UINT64_MAX;
	s->woken = 0;
	s->now = gantry_now_ns();
	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&s->thread, NULL, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		FAIL(GANTRY_ERR_LIMIT, "cannot start the service thread: %s", strerror(rc));
	pthread_setname_np(s->thread, "gantry-ctl");
	s->running = 1;
	s->owner = getpid();
out:
	if (r != GANTRY_OK) {
		if (s->epoll_fd >= 0)
			close(s->epoll_fd);
		if (s->wake.fd >= 0)
			close(s->wake.fd);
		s->epoll_fd = s->wake.fd = -1;
	}
	return r;
}

gantry_result ctl_service_enter(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	gantry_result r = GANTRY_OK;

	pthread_once(&once, ctl_process_watch);
	pthread_mutex_lock(&ctl_service.mu);
	init();
	if (!ctl_service.running)
		TRY(start());
out:
	if (r != GANTRY_OK)
		pthread_mutex_unlock(&ctl_service.mu);
	return r;
}

void ctl_service_done(void)
{
	ctl_service_wake();
	pthread_mutex_unlock(&ctl_service.mu);
}
