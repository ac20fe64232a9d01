/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/thread.h"

enum { EVENTS = 64, EXIT_WAIT_MS = 1000, RETRY_MIN_MS = 10, RETRY_MAX_MS = 250 };
static const uint64_t backlog_ns = 20000000;

struct inet_loop inet_loop = {
	.epoll_fd = -1,
	.wake.fd = -1,
	.clients = {&inet_loop.clients, &inet_loop.clients},
	.abandoned = {&inet_loop.abandoned, &inet_loop.abandoned},
};
int inet_forks;

uint64_t inet_retry_at(uint64_t now, uint32_t failures)
{
	uint64_t pause = (uint64_t)RETRY_MIN_MS << (failures < 6 ? failures : 6);
	uint16_t jitter = 0;

	if (pause > RETRY_MAX_MS)
		pause = RETRY_MAX_MS;
	gantry_random_bytes(&jitter, sizeof(jitter));
	return now + pause * 1000000 + pause * 1000000 / 2 * jitter / 65536;
}

/* ---- sources ---- */

static struct gantry_list *bucket_of(uint64_t id) REQUIRES(loop_mu)
{
	return &inet_loop.sources[id % INET_BUCKETS];
}

static struct inet_source *find_source(uint64_t id) REQUIRES(loop_mu)
{
	gantry_list_each_entry (s, bucket_of(id), struct inet_source, by_id)
		if (s->id == id)
			return s;
	return NULL;
}

gantry_result inet_source_add(struct inet_source *s, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.u64 = inet_loop.last_id + 1};

	ASSERT_HELD(&inet_loop.mu);
	if (epoll_ctl(inet_loop.epoll_fd, EPOLL_CTL_ADD, s->fd, &ev))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "epoll_ctl: %s", strerror(errno));
	s->events = events;
	s->id = ++inet_loop.last_id;
	gantry_list_append(bucket_of(s->id), &s->by_id);
	return GANTRY_OK;
}

void inet_source_set(struct inet_source *s, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.u64 = s->id};

	ASSERT_HELD(&inet_loop.mu);
	if (!s->id || s->events == events)
		return;
	s->events = events;
	epoll_ctl(inet_loop.epoll_fd, EPOLL_CTL_MOD, s->fd, &ev);
}

int inet_source_release(struct inet_source *s)
{
	int fd = s->fd;

	ASSERT_HELD(&inet_loop.mu);
	/* Explicitly: a forked child may hold a copy, and then close alone would leave it watched. */
	if (s->id) {
		epoll_ctl(inet_loop.epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		gantry_list_remove(&s->by_id);
	}
	s->id = 0;
	s->fd = -1;
	return fd;
}

void inet_source_close(struct inet_source *s)
{
	int fd = inet_source_release(s);

	if (fd >= 0)
		close(fd);
}

void inet_source_reset(struct inet_source *s)
{
	const struct linger hard = {1, 0};

	if (s->fd >= 0)
		setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
	inet_source_close(s);
}

/* ---- the thread ---- */

void inet_loop_wake(void)
{
	uint64_t one = 1;

	if (exchange_seq(&inet_loop.woken, 1))
		return;
	if (write(inet_loop.wake.fd, &one, sizeof(one)) < 0)
		LOG_DEBUG(NET, "wake: %s", strerror(errno));
}

static void on_wake(struct inet_source *s, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(s->fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		LOG_DEBUG(NET, "wake: %s", strerror(errno));
}

/* In milliseconds, rounded up: too early would be a pass for nothing. */
static int sleep_ms(uint64_t due)
{
	uint64_t now = gantry_now_ns(), ms;

	if (due <= now)
		return 0;
	ms = due == UINT64_MAX ? 3600000 : (due - now + 999999) / 1000000;
	return ms > 3600000 ? 3600000 : (int)ms;
}

static uint64_t plan_pass(void) REQUIRES(loop_mu)
{
	uint64_t due = UINT64_MAX;

	gantry_list_each_entry (c, &inet_loop.clients, struct inet_client, node) {
		c->planned = c->active ? c->due() : UINT64_MAX;
		if (c->planned < due)
			due = c->planned;
	}
	return due;
}

int inet_due(uint64_t when)
{
	const struct inet_loop *l = &inet_loop;

	return l->now >= when && (!l->crowded || l->now - when > backlog_ns);
}

/* Clients are only ever appended, so the list may be walked while one of them has let go of the lock. */
static void serve_clients(void) REQUIRES(loop_mu)
{
	gantry_list_each_entry (c, &inet_loop.clients, struct inet_client, node) {
		if (c->active)
			c->pass();
		ASSERT_HELD(&inet_loop.mu);
		if (!c->active || c->busy())
			continue;
		if (c->stop)
			c->stop();
		c->active = c->busy();
	}
}

int inet_loop_pass(void)
{
	struct inet_loop *l = &inet_loop;
	struct epoll_event ev[EVENTS];
	int n, epoll_fd = l->epoll_fd;
	uint64_t due = plan_pass();

	inet_loop_unlock();
	n = epoll_wait(epoll_fd, ev, EVENTS, sleep_ms(due));
	inet_loop_lock();
	l->passes++;
	l->now = gantry_now_ns();
	l->crowded = n == EVENTS;
	for (int i = 0; i < n; i++) {
		struct inet_source *s = find_source(ev[i].data.u64);

		if (s)
			s->ready(s, ev[i].events);
	}
	/* After the eventfd was read and before any queue is looked at: see loop.h. */
	exchange_seq(&l->woken, 0);
	serve_clients();
	return n;
}

static int any_active(void) REQUIRES(loop_mu)
{
	gantry_list_each (pos, &inet_loop.clients)
		if (gantry_container(pos, struct inet_client, node)->active)
			return 1;
	return 0;
}

static void close_epoll(void) REQUIRES(loop_mu)
{
	inet_source_close(&inet_loop.wake);
	if (inet_loop.epoll_fd >= 0)
		close(inet_loop.epoll_fd);
	inet_loop.epoll_fd = -1;
}

static void *run_loop(void *arg)
{
	struct inet_loop *l = &inet_loop;
	int parting;

	(void)arg;
	inet_loop_lock();
	while (any_active())
		inet_loop_pass();
	close_epoll();
	l->running = 0;
	parting = l->parting;
	l->ended = parting ? 0 : gettid();
	inet_loop_unlock();
	while (parting)
		pause(); /* the process ends: rather with it than beside the exit handlers of libraries we have used */
	return NULL;
}

static gantry_result start_thread(void) REQUIRES(loop_mu)
{
	struct inet_loop *l = &inet_loop;
	gantry_result r = GANTRY_OK;

	for (int i = 0; i < INET_BUCKETS; i++)
		gantry_list_init(&l->sources[i]);
	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	l->wake = (struct inet_source){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = on_wake};
	if (l->epoll_fd < 0 || l->wake.fd < 0)
		FAIL(errno == EMFILE || errno == ENFILE ? GANTRY_ERR_LIMIT : GANTRY_ERR_SYSTEM, "epoll or eventfd: %s",
		     strerror(errno));
	TRY(inet_source_add(&l->wake, EPOLLIN));
	store_seq(&l->woken, 0);
	l->now = gantry_now_ns();
	TRY(gantry_thread_start("gantry-service", run_loop, NULL, &l->thread));
	pthread_detach(l->thread); /* no thread waits for its end, except exit */
	l->running = 1;
	l->owner = getpid();
out:
	if (r != GANTRY_OK)
		close_epoll();
	return r;
}

/* ---- a fork ---- */

gantry_result inet_refuse_forked(const char *what)
{
	FAIL_NOW(GANTRY_ERR_USAGE, "%s was created before this process was forked: create another one here, or exec",
		 what);
}

void inet_abandon(struct gantry_list *list)
{
	struct gantry_list *to = &inet_loop.abandoned;

	if (gantry_list_empty(list))
		return;
	list->next->prev = to->prev;
	to->prev->next = list->next;
	list->prev->next = to;
	to->prev = list->prev;
	gantry_list_init(list);
}

static void sleep_a_moment(void)
{
	const struct timespec ms = {0, 1000000};

	nanosleep(&ms, NULL);
}

/* A thread that has ended may still be giving OpenSSL's memory of threads back, with one of its locks. */
static bool thread_is_gone(void) REQUIRES(loop_mu)
{
	const struct inet_loop *l = &inet_loop;

	return !l->ended || l->owner != getpid() || syscall(SYS_tgkill, getpid(), l->ended, 0);
}

/* A lock of OpenSSL's that is copied while it is taken would stay so in the child. */
static void before_fork(void) ACQUIRES(loop_mu)
{
	inet_loop_lock();
	for (int ms = 0; !thread_is_gone() && ms < EXIT_WAIT_MS; ms++)
		sleep_a_moment();
	inet_loop.ended = 0; /* waited for once: another thread may have its number later */
}

static void in_parent(void) RELEASES(loop_mu)
{
	inet_loop_unlock();
}

/* Of the parent's descriptors: closed without a word to its epoll instance, which both processes share. */
static void close_copies(void) REQUIRES(loop_mu)
{
	struct inet_loop *l = &inet_loop;

	for (int i = 0; l->epoll_fd >= 0 && i < INET_BUCKETS; i++) {
		gantry_list_each_entry_safe (s, &l->sources[i], struct inet_source, by_id) {
			gantry_list_remove(&s->by_id);
			close(s->fd);
			s->fd = -1;
			s->id = 0;
		}
	}
	if (l->epoll_fd >= 0)
		close(l->epoll_fd);
	l->epoll_fd = -1;
}

static void in_child(void) RELEASES(loop_mu)
{
	struct inet_loop *l = &inet_loop;

	close_copies();
	gantry_list_each_entry (c, &l->clients, struct inet_client, node) {
		c->active = 0;
		c->in_child();
	}
	inet_forks++;
	l->running = l->ended = l->parting = 0;
	store_seq(&l->woken, 0);
	inet_loop_unlock();
}

/* ---- the process ends ---- */

static int anybody_leaves(int last, int ms) REQUIRES(loop_mu)
{
	int leaves = 0;

	if (!inet_loop.running || inet_loop.owner != getpid())
		return 0;
	gantry_list_each_entry (c, &inet_loop.clients, struct inet_client, node)
		leaves |= c->active && c->leaving && c->leaving(last, ms);
	return leaves;
}

/* The lock is only tried: exit from a strange place must not hang. */
static void see_off(int last)
{
	int leaves = 1;

	for (int ms = 0; leaves && ms < EXIT_WAIT_MS; ms++) {
		if (loop_mu_trylock(&inet_loop.mu)) {
			leaves = anybody_leaves(last, ms);
			inet_loop_unlock();
		}
		if (leaves)
			sleep_a_moment();
	}
}

/* From here on the thread keeps away from OpenSSL, whose own exit handler comes next. */
static void end_at_exit(void)
{
	struct inet_loop *l = &inet_loop;
	static int done; /* it may be registered more than once */

	if (!done)
		see_off(0);
	for (int ms = 0; !done && ms < EXIT_WAIT_MS; ms++) {
		if (loop_mu_trylock(&l->mu)) {
			l->parting = 1;
			done = thread_is_gone();
			inet_loop_unlock();
		}
		if (!done)
			sleep_a_moment();
	}
}

/* Last of all, after destructors of the program that may have closed things. */
__attribute__((destructor)) static void see_off_last(void)
{
	see_off(1);
}

/* Exit handlers run last first, and OpenSSL registers one on its first use: ours has to come before that. */
void inet_loop_uses_hmac(void)
{
	uint8_t mac[GANTRY_MAC_SIZE];

	if (GANTRY_HAVE_OPENSSL && gantry_hmac_sha256("", 0, "", 0, mac) == GANTRY_OK)
		atexit(end_at_exit);
}

gantry_result inet_loop_start(struct inet_client *c)
{
	struct inet_loop *l = &inet_loop;

	ASSERT_HELD(&l->mu);
	if (!l->watched) {
		pthread_atfork(before_fork, in_parent, in_child);
		atexit(end_at_exit);
		l->watched = 1;
	}
	if (!l->running)
		TRY_NOW(start_thread());
	if (!c->node.next)
		gantry_list_append(&l->clients, &c->node);
	c->active = 1;
	return GANTRY_OK;
}
