/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/worker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/thread.h"
#include "net/tcp/link.h"
#include "net/tcp/network.h"
#include "net/tcp/stage.h"
#include "net/tcp/tcp_unpack.h"

/*
 * One pass over a link's lanes, made by the thread that calls test.
 *
 * Which sockets are worth a system call? The control lane always, at full rate while a small message may come; while
 * only large messages are outstanding, at most every GANTRY_POLL_PACE. A bulk lane only while a large receive is posted
 * or the peer has announced one, paced too once it was found empty. So a spinning caller costs few system calls.
 */

enum { SELDOM = 200, PATIENCE = 100 }; /* paces */

/* Is it worth a call to look at this socket? */
static bool is_due(const struct tcp_lane *lane, uint64_t now)
{
	return (int64_t)(now - load_relaxed(&lane->rx.next_poll)) >= 0;
}

/*
 * While workers move bulk bytes, the user's thread keeps its hands free: it has other connections and a GPU to look after,
 * which wait for what it copies here. If nothing has moved for a while although something should, it does not rely on them.
 */
static bool is_helped(const struct tcp_link *l, uint64_t now)
{
	return tcp_workers_awake() &&
	       (int64_t)(now - load_relaxed(&l->last.bulk_moved)) < (int64_t)(PATIENCE * l->session.pace_ticks);
}

/* A lane has ended: what the others still hold is taken before the link fails. */
static void progress_ending(struct tcp_link *l)
{
	for (int i = 0; i < l->nlanes; i++)
		tcp_lane_rx(&l->lanes[i], true);
	tcp_link_check_ending(l);
}

static void progress_bulk(struct tcp_link *l, uint64_t now, bool sending, bool large)
{
	bool hands_off = is_helped(l, now); /* for all lanes: what one of them sends may leave something to others */

	for (int i = 1; i < l->nlanes; i++) {
		if (sending && !hands_off)
			tcp_bulk_tx(&l->lanes[i]);
		/* Without a large receive nothing should come, but a send that is too large must be noticed. */
		if ((!hands_off || !large) && is_due(&l->lanes[i], large ? now : now - SELDOM * l->session.pace_ticks))
			tcp_lane_rx(&l->lanes[i], false);
	}
}

void tcp_link_progress(struct tcp_link *l)
{
	uint64_t now = gantry_ticks();
	bool sending = load_relaxed(&l->tx.bulk_pending) != 0;
	bool large = tcp_bulk_expected(l, now);
	bool small = load_relaxed(&l->rx.small_posted) || !(sending || large);

	store_relaxed(&l->last.progressed, now);
	tcp_unpack_progress(l);
	if (load_acquire(&l->end.ending)) {
		progress_ending(l);
		return;
	}
	tcp_stage_progress(l);
	if (load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
	if (small || is_due(&l->lanes[0], now))
		tcp_lane_rx(&l->lanes[0], false);
	progress_bulk(l, now, sending, large);
	if (load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
}

void tcp_link_service(struct tcp_link *l, int heartbeat)
{
	for (int i = 0; i < l->nlanes; i++)
		tcp_lane_rx(&l->lanes[i], true);
	if (load_acquire(&l->end.ending))
		tcp_link_check_ending(l);
	if (heartbeat) {
		tcp_unpack_flush(l); /* an idle link keeps nothing back */
		link_mu_lock(&l->mu);
		l->rx.heartbeat_due = true;
		link_mu_unlock(&l->mu);
	}
	if (heartbeat || load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
}

/* ---- worker threads ---- */

enum { MAX_WORKERS = 32, MAX_LINKS = 4096, SPIN_NS = 200000, SLEEP_MS = 100, MAX_POLL = 256 };
/*
 * Where CPUs are short, as many are awake as here, or two for each link with large messages outstanding if that is more: what else
 * spins takes time from those that work. That they are short is seen by a worker that yields and does not come back soon.
 */
enum { MIN_AWAKE = 4, PER_LINK = 2, AWAY_NS = 100000, CROWDED_NS = 200000000 };

static struct {
	int n; /* running */
	int wake_fd;
	int more_fd; /* wakes those that were more than needed */
	pthread_t threads[MAX_WORKERS];
	uint32_t stopping;
	uint32_t sleeping;		   /* workers in poll, or about to be, to be woken by a message */
	uint32_t resting;		   /* the same, more than needed: by more links with messages */
	uint32_t active;		   /* links with large messages outstanding, as last counted; seq_cst */
	uint64_t crowded;		   /* ticks: until then CPUs count as short; relaxed */
	uint32_t nlinks;		   /* upper bound of used table entries */
	struct tcp_link *links[MAX_LINKS]; /* written with loop_mu, read by workers; seq_cst */
	struct {			   /* hazard: written by its worker, read by forget; seq_cst */
		_Alignas(64) struct tcp_link *link;
	} working[MAX_WORKERS];
} workers = {.wake_fd = -1, .more_fd = -1};

static int is_active(const struct tcp_link *l)
{
	return !tcp_link_failed(l) && (load_relaxed(&l->tx.bulk_pending) || tcp_bulk_expected(l, gantry_ticks()));
}

/* Takes link i of the table for this worker, or NULL. */
static struct tcp_link *grab_link(int self, uint32_t i)
{
	struct tcp_link *l = load_seq(&workers.links[i]);

	ASSERT(self >= 0 && self < MAX_WORKERS && i < MAX_LINKS);
	if (!l)
		return NULL;
	store_seq(&workers.working[self].link, l);
	if (load_seq(&workers.links[i]) == l)
		return l;
	store_seq(&workers.working[self].link, NULL);
	return NULL;
}

static void drop_link(int self)
{
	store_seq(&workers.working[self].link, NULL);
}

/* CPUs are short, more workers are awake than the links keep busy, and this is one of them. */
static bool is_surplus(int self)
{
	return self >= MIN_AWAKE && (uint32_t)self >= PER_LINK * load_seq(&workers.active) &&
	       (int64_t)(load_relaxed(&workers.crowded) - gantry_ticks()) > 0;
}

/* Where CPUs are short after all, some other thread has use for this one. */
static void yield_cpu(void)
{
	uint64_t before = gantry_ticks(), now;

	sched_yield();
	now = gantry_ticks();
	if (now - before > gantry_ticks_of_ns(AWAY_NS))
		store_relaxed(&workers.crowded, now + gantry_ticks_of_ns(CROWDED_NS));
}

static void write_one(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) < 0)
		LOG_DEBUG(NET, "wake: %s", strerror(errno));
}

/* So many links have large messages outstanding. */
static void note_active(uint32_t links)
{
	if (load_relaxed(&workers.active) == links)
		return;
	/* The count before this and a worker's look after it announced its rest: one of the two sees the other. */
	store_seq(&workers.active, links);
	if (PER_LINK * links > MIN_AWAKE && load_seq(&workers.resting))
		write_one(workers.more_fd);
}

/*
 * Lanes on which bytes are expected and none are known to be. A round asks for all of them in one system call: with a link for
 * each of a GPU's channels there are dozens, and six workers that read each of them every few microseconds did little else.
 * Between two grabs of its link a lane may go away and its descriptor be another's. Then the answer is wrong, and a lane is
 * read once too often or too seldom.
 */
enum { MAX_ASKED = 128, READ_AT_ONCE = 2 };
struct asked {
	int n;
	struct pollfd fds[MAX_ASKED];
	struct {
		uint32_t link; /* of the table */
		int lane;
	} of[MAX_ASKED];
};

/* Bytes that were read may be buffered, or poll does not show what has come. */
static bool is_worth_reading(const struct tcp_lane *lane)
{
	return !load_relaxed(&lane->rx.next_poll) || load_relaxed(&lane->rx.stalled) || lane->sealed || lane->flow;
}

/* 1: bytes moved. */
static int read_or_ask(struct tcp_lane *lane, uint32_t link, struct asked *asked)
{
	if (is_worth_reading(lane) || asked->n == MAX_ASKED)
		return tcp_lane_rx(lane, false);
	asked->fds[asked->n] = (struct pollfd){.fd = lane->io.fd, .events = POLLIN};
	asked->of[asked->n].link = link;
	asked->of[asked->n].lane = lane->index;
	asked->n++;
	return 0;
}

/* 1: bytes moved. */
static int serve_link(struct tcp_link *l, uint32_t link, int self, struct asked *asked)
{
	uint64_t now = gantry_ticks();
	bool sending = load_relaxed(&l->tx.bulk_pending) != 0, receiving = tcp_bulk_expected(l, now);
	int moved = 0, lanes = l->nlanes - 1;

	tcp_stage_progress(l);
	/* What comes on lanes to device memory is announced on the control lane. */
	if (receiving && l->session.device_rx && is_due(&l->lanes[0], now))
		moved |= tcp_lane_rx(&l->lanes[0], false);
	/* Each worker starts at a lane of its own, so that they rarely meet. */
	for (int k = 0; k < lanes; k++) {
		struct tcp_lane *lane = &l->lanes[1 + (self + k) % lanes];

		if (receiving && is_due(lane, now))
			moved |= read_or_ask(lane, link, asked);
		if (sending)
			moved |= tcp_bulk_tx(lane);
	}
	if (moved && load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
	return moved;
}

/* 1: bytes moved. */
static int read_asked(struct tcp_link *l, int lane, bool readable)
{
	int moved;

	if (lane >= l->nlanes)
		return 0;
	if (!readable) {
		store_relaxed(&l->lanes[lane].rx.next_poll, gantry_ticks() + l->session.pace_ticks);
		return 0;
	}
	moved = tcp_lane_rx(&l->lanes[lane], false);
	if (moved && load_relaxed(&l->tx.pending))
		tcp_control_flush(l);
	return moved;
}

/* 1: bytes moved. */
static int read_readable(int self, struct asked *asked)
{
	bool all = asked->n <= READ_AT_ONCE;
	int moved = 0;

	if (!all && poll(asked->fds, (nfds_t)asked->n, 0) < 0)
		return 0;
	for (int i = 0; i < asked->n; i++) {
		struct tcp_link *l = grab_link(self, asked->of[i].link);

		if (!l)
			continue;
		moved |= read_asked(l, asked->of[i].lane, all || asked->fds[i].revents);
		drop_link(self);
	}
	return moved;
}

/* One round over all links. Returns 2 if bytes moved, 1 if large messages are outstanding, 0 if there is nothing. */
static int look_around(int self)
{
	uint32_t n = load_acquire(&workers.nlinks), active = 0;
	struct asked asked;
	int moved = 0;

	asked.n = 0;

	for (uint32_t k = 0; k < n; k++) {
		uint32_t i = (k + (uint32_t)self) % n;
		struct tcp_link *l = grab_link(self, i);

		if (!l)
			continue;
		if (is_active(l)) {
			active++;
			moved |= serve_link(l, i, self, &asked);
		}
		drop_link(self);
	}
	moved |= read_readable(self, &asked);
	note_active(active);
	return moved ? 2 : active ? 1 : 0;
}

static void sleep_until_needed(int self)
{
	struct pollfd fds[MAX_POLL] = {{.fd = workers.wake_fd, .events = POLLIN}};
	uint32_t n = load_acquire(&workers.nlinks);
	uint64_t count;
	nfds_t nfds = 1;

	fetch_add_seq(&workers.sleeping, 1);
	for (uint32_t i = 0; i < n; i++) {
		struct tcp_link *l = grab_link(self, i);

		if (!l)
			continue;
		if (load_relaxed(&l->rx.large_posted) && !tcp_link_failed(l))
			for (int k = 1; k < l->nlanes && nfds < MAX_POLL; k++) {
				/* Unread completions would end the poll at once, and so would an end. */
				if (!tcp_lane_busy(&l->lanes[k]) && !load_relaxed(&l->lanes[k].rx.eof))
					fds[nfds++] = (struct pollfd){.fd = l->lanes[k].io.fd, .events = POLLIN};
			}
		drop_link(self);
	}
	if (!load_acquire(&workers.stopping) && poll(fds, nfds, SLEEP_MS) < 0 && errno != EINTR)
		LOG_DEBUG(NET, "poll: %s", strerror(errno));
	fetch_sub_seq(&workers.sleeping, 1);
	if ((fds[0].revents & POLLIN) && read(workers.wake_fd, &count, sizeof(count)) < 0)
		return; /* another worker took it */
}

/* Until there are more links to look after. */
static void rest_until_needed(int self)
{
	struct pollfd more = {.fd = workers.more_fd, .events = POLLIN};
	uint64_t count;

	fetch_add_seq(&workers.resting, 1);
	if (!load_seq(&workers.stopping) && is_surplus(self) && poll(&more, 1, SLEEP_MS) < 0 && errno != EINTR)
		LOG_DEBUG(NET, "poll: %s", strerror(errno));
	fetch_sub_seq(&workers.resting, 1);
	if ((more.revents & POLLIN) && read(workers.more_fd, &count, sizeof(count)) < 0)
		return; /* another worker took it */
}

static void *run_worker(void *arg)
{
	int self = (int)(intptr_t)arg;
	uint64_t spin = gantry_ticks_of_ns(SPIN_NS), last = gantry_ticks();

	while (!load_acquire(&workers.stopping)) {
		bool surplus = is_surplus(self);
		int found = surplus ? 0 : look_around(self);

		if (found == 2) {
			last = gantry_ticks();
		} else if (gantry_ticks() - last > spin) {
			surplus ? rest_until_needed(self) : sleep_until_needed(self);
			last = gantry_ticks();
		} else {
			yield_cpu();
		}
	}
	return NULL;
}

void tcp_workers_notify(void)
{
	/* The post before this and the worker's look after it announced its sleep: one of the two sees the other. */
	if (load_relaxed(&workers.n) && fetch_add_seq(&workers.sleeping, 0))
		write_one(workers.wake_fd);
}

bool tcp_workers_exist(void)
{
	return load_relaxed(&workers.n) != 0;
}

int tcp_workers_awake(void)
{
	return load_relaxed(&workers.n) > (int)(load_relaxed(&workers.sleeping) + load_relaxed(&workers.resting));
}

/* How many this process should have. */
static int workers_wanted(void)
{
	int n = (int)gantry_params()->helpers, cpus = tcp_cpus_usable();

	/* They spin, so some CPUs are left to others. Two ranks on 16 CPUs were faster with 6 each than with 2, 4 or 8, four
	   ranks with 2 than with 1, and as fast as with 6. */
	if (n < 0)
		n = cpus < 4 ? 0 : cpus < 8 ? cpus / 2 : 6;
	return n < MAX_WORKERS ? n : MAX_WORKERS;
}

static void close_events(void)
{
	if (workers.wake_fd >= 0)
		close(workers.wake_fd);
	if (workers.more_fd >= 0)
		close(workers.more_fd);
	workers.wake_fd = workers.more_fd = -1;
}

static void start_workers(void)
{
	int wanted = workers_wanted();

	if (workers.n || !wanted)
		return;
	workers.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	workers.more_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (workers.wake_fd < 0 || workers.more_fd < 0) {
		LOG_WARN(NET, "no worker threads: eventfd: %s", strerror(errno));
		close_events();
		return;
	}
	ASSERT(wanted <= MAX_WORKERS);
	workers.stopping = 0;
	for (int i = 0; i < wanted; i++) {
		if (gantry_thread_start("gantry-helper", run_worker, (void *)(intptr_t)i, &workers.threads[i]) !=
		    GANTRY_OK)
			break; /* the reason was logged; fewer workers will do */
		store_release(&workers.n, i + 1);
	}
}

void tcp_workers_stop(void)
{
	if (workers.wake_fd < 0)
		return;
	store_seq(&workers.stopping, 1);
	for (int i = 0; i < workers.n; i++) {
		write_one(workers.wake_fd);
		write_one(workers.more_fd);
		pthread_join(workers.threads[i], NULL);
	}
	store_release(&workers.n, 0);
	close_events();
}

void tcp_workers_abandon(void)
{
	close_events();
	memset(&workers, 0, sizeof(workers));
	workers.wake_fd = workers.more_fd = -1;
}

void tcp_workers_know(struct tcp_link *l)
{
	start_workers();
	if (!workers.n)
		return;
	for (uint32_t i = 0; i < MAX_LINKS; i++) {
		if (workers.links[i])
			continue;
		store_seq(&workers.links[i], l);
		if (i >= workers.nlinks)
			store_release(&workers.nlinks, i + 1);
		return;
	}
	LOG_DEBUG(NET, "more than %d links: no worker threads for this one", MAX_LINKS);
}

void tcp_workers_forget(struct tcp_link *l)
{
	for (uint32_t i = 0; i < workers.nlinks; i++)
		if (workers.links[i] == l)
			store_seq(&workers.links[i], NULL);
	for (int i = 0; i < workers.n; i++)
		while (load_seq(&workers.working[i].link) == l)
			sched_yield();
}
