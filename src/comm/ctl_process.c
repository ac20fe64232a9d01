/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service and its process: what becomes of it in a forked child, and when the process exits.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/hmac.h"
#include "comm/ctl_service.h"
#include "comm/hub.h"

enum { EXIT_WAIT_MS = 1000 };

/* ---- a fork ---- */

/* Descriptors of the parent: closed without a word to its epoll instance, which both processes share. */
static void close_copies(struct gantry_list *conns)
{
	gantry_list_each (pos, conns) {
		struct ctl_conn *c = gantry_container(pos, struct ctl_conn, node);

		close(c->source.fd);
		c->source.fd = -1;
	}
}

static void abandon(struct gantry_list *list)
{
	if (gantry_list_empty(list))
		return;
	list->next->prev = ctl_service.abandoned.prev;
	ctl_service.abandoned.prev->next = list->next;
	list->prev->next = &ctl_service.abandoned;
	ctl_service.abandoned.prev = list->prev;
}

static void before_fork(void)
{
	pthread_mutex_lock(&ctl_service.mu);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&ctl_service.mu);
}

static void in_child(void)
{
	struct ctl_service *s = &ctl_service;

	if (s->initialised) {
		close_copies(&s->conns);
		close_copies(&s->finishing);
		hub_listeners_forget();
		/* Kept, though of no use: the program has pointers to its memberships. */
		abandon(&s->conns);
		abandon(&s->finishing);
		abandon(&s->dead);
		abandon(&s->hubs);
		abandon(&s->listeners);
		abandon(&s->strangers);
		abandon(&s->members);
		abandon(&s->events);
	}
	if (s->epoll_fd >= 0) {
		close(s->epoll_fd);
		close(s->wake.fd);
	}
	s->epoll_fd = s->wake.fd = -1;
	s->nstrangers = s->nleaving = 0;
	s->forks++;
	s->running = s->ended = s->exiting = s->parting = s->initialised = s->woken = 0;
	pthread_cond_init(&s->quiet, NULL);
	pthread_mutex_unlock(&s->mu);
}

/* ---- the process ends ---- */

static int leaving(void)
{
	return ctl_service.nleaving || !gantry_list_empty(&ctl_service.finishing);
}

/* Until `wanting` has what it wants, asked under mu, but not longer. */
static void wait_for(int (*wanting)(int ms), int limit_ms)
{
	int waits = 1;

	for (int ms = 0; waits && ms < limit_ms; ms++) {
		struct timespec pause = {0, 1000000};

		if (pthread_mutex_trylock(&ctl_service.mu) == 0) {
			waits = ctl_service.running && ctl_service.owner == getpid() && wanting(ms);
			pthread_mutex_unlock(&ctl_service.mu);
		}
		if (waits)
			nanosleep(&pause, NULL);
	}
}

static int leavers(int ms)
{
	(void)ms;
	return leaving();
}

static int hubs_too(int ms)
{
	struct ctl_service *s = &ctl_service;

	/* The hubs' goodbye comes after that of the ranks here. */
	if (!s->exiting && !gantry_list_empty(&s->hubs) && (!leaving() || ms > EXIT_WAIT_MS / 2)) {
		s->exiting = 1;
		ctl_service_wake();
	}
	return leaving() || !gantry_list_empty(&s->hubs);
}

/*
 * A program that exits. What was queued for peers that read gets out, within microseconds if they do; otherwise the
 * others would find a broken connection where somebody has just left. From here on the thread keeps away from OpenSSL,
 * whose own exit handler comes next.
 */
static void part(void)
{
	struct timespec limit;

	wait_for(leavers, EXIT_WAIT_MS);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec++;
	if (pthread_mutex_timedlock(&ctl_service.mu, &limit)) /* exit from a strange place must not hang */
		return;
	ctl_service.parting = 1;
	if (ctl_service.ended && ctl_service.owner == getpid())
		pthread_join(ctl_service.thread, NULL);
	ctl_service.ended = 0;
	pthread_mutex_unlock(&ctl_service.mu);
}

/* Last of all, after destructors of the program that may have left communicators: the hubs say goodbye. */
__attribute__((destructor)) static void see_off(void)
{
	wait_for(hubs_too, EXIT_WAIT_MS);
}

void ctl_process_watch(void)
{
	uint8_t mac[GANTRY_MAC_SIZE];

	gantry_list_init(&ctl_service.abandoned);
	pthread_atfork(before_fork, in_parent, in_child);
	/* Exit handlers run last first, and OpenSSL registers one on its first use: ours has to come before that. */
	if (GANTRY_HAVE_OPENSSL)
		gantry_hmac_sha256("", 0, "", 0, mac);
	atexit(part);
}
