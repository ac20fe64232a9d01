/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is alive: heartbeats, silence, and seeing closed links off. lane_alive.c looks at the single lanes.
 *
 * A link on which nothing was said for 1/32 of GANTRY_TIMEOUT carries a heartbeat, from this thread, whatever the
 * user's threads do. A peer that was not heard of for GANTRY_TIMEOUT is dead: stopped, unreachable or gone. A peer that
 * merely has nothing to send keeps its heartbeats coming and never counts as dead. If this thread itself was held up
 * (a starved or suspended machine) the time lost is not held against anybody. A peer that is given up is told: by a
 * frame, and by a reset where that would not arrive.
 *
 * An outage of up to 0.9 of GANTRY_TIMEOUT is survived. The last that was heard before it may be 1/32 old. What waits
 * in TCP's back-off goes out at 0.91 and a tick of 1/64, or a second after the outage where that is 1/25 at most
 * (sock.h); finding the peer's hardware address again may take another second. What is missing for that, and what
 * comes late on a loaded machine, is added before silence counts as death: 1/16, half a second at most.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/log.h"
#include "base/param.h"
#include "net/tcp/engine.h"
#include "net/tcp/worker.h"

static const uint64_t linger_max_ns = 10000000000, linger_failed_ns = 100000000, slack_max_ns = 500000000;

uint64_t tcp_alive_interval(void)
{
	uint64_t tick = sock_backoff_interval(gantry_params()->timeout);

	if (tick < 20000000)
		tick = 20000000;
	return tick > 500000000 ? 500000000 : tick;
}

/* Other threads move these on while we look: an age may be negative. */
static int64_t age(uint64_t now, const uint64_t *since)
{
	return (int64_t)(now - load_relaxed(since));
}

/* Whether not even the peer's kernel has answered us lately; that of a process which is merely stopped does. */
static int unanswered(const struct tcp_link *l)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);

	if (getsockopt(l->lanes[0].fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	return info.tcpi_last_ack_recv > gantry_params()->timeout / 2000000;
}

/*
 * Where only the way from the peer to us is cut, the peer may still be told. But what we write waits in the kernel
 * behind what was not acknowledged; a reset does not, and this is how to send one without closing under threads that
 * are busy with the socket.
 */
static void reset(struct tcp_link *l)
{
	static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

	for (int i = 0; i < l->nlanes; i++)
		if (l->lanes[i].fd >= 0 && connect(l->lanes[i].fd, &nobody, sizeof(nobody)))
			LOG_DEBUG(NET, "%s: lane %d: reset: %s", l->session.peer, i, strerror(errno));
}

static void bound_backoff(struct tcp_link *l, uint64_t now_ns)
{
	for (int i = 0; i < l->nlanes; i++)
		if (i == 0 || load_relaxed(&l->lanes[i].tx.given))
			sock_backoff_tick(&l->lanes[i].tx.backoff, l->lanes[i].fd, now_ns, gantry_params()->timeout);
}

static void check(struct tcp_link *l, uint64_t now, uint64_t grace)
{
	uint64_t slack = gantry_params()->timeout / 16 < slack_max_ns ? gantry_params()->timeout / 16 : slack_max_ns;
	uint64_t timeout = gantry_ticks_of_ns(gantry_params()->timeout), quiet = timeout / 16;
	int idle = age(now, &l->last.progressed) > (int64_t)quiet;
	/* Now, if it would be too late at the next tick. */
	int beat = age(now, &l->last.told) + (int64_t)gantry_ticks_of_ns(tcp_alive_interval()) > (int64_t)timeout / 32;

	if (tcp_link_failed(l)) {
		tcp_link_service(l, 0); /* an ERROR frame may still wait */
		return;
	}
	if (grace)
		fetch_add_relaxed(&l->last.heard, grace);
	/* While the user's threads are at it, they read the peer's heartbeats themselves. */
	if (idle || beat || age(now, &l->last.heard) > (int64_t)quiet)
		tcp_link_service(l, beat);
	if (tcp_lanes_report(l))
		tcp_control_flush(l);
	tcp_lanes_check(l, now, grace);
	/* By the clock of before: if this thread was held up since then, the peer had no chance to be heard. */
	if (age(now, &l->last.heard) > (int64_t)(timeout + gantry_ticks_of_ns(slack))) {
		int cut = unanswered(l);

		gantry_event_put(GANTRY_EV_HEARTBEAT_LATE, l->session.id, gantry_params()->timeout, 0);
		tcp_link_fail(l, 1, GANTRY_ERR_PEER_SILENT,
			      "no sign of life for %.3g s (GANTRY_TIMEOUT): the peer is stopped or unreachable",
			      (double)gantry_params()->timeout / 1e9);
		tcp_link_service(l, 0);
		if (cut)
			reset(l);
	}
}

void tcp_alive_tick(uint64_t now_ns)
{
	struct tcp_engine *e = &tcp_engine;
	uint64_t interval = tcp_alive_interval(), grace = 0, now = gantry_ticks();

	if (e->last_tick && now_ns - e->last_tick < interval)
		return;
	if (e->last_tick && now_ns - e->last_tick > gantry_params()->timeout / 8 + interval)
		grace = gantry_ticks_of_ns(now_ns - e->last_tick - interval);
	e->last_tick = now_ns;
	gantry_list_each_entry (l, &e->links, struct tcp_link, node) {
		if (l->up) {
			bound_backoff(l, now_ns);
			check(l, now, grace);
		}
	}
}

/* Our side of the sockets is shut only when the last frame is out: goodbye, and what was reported sent before it. */
static void shut_when_said(struct tcp_link *l, int now)
{
	if (l->shut)
		return;
	tcp_control_flush(l);
	if (!now && !tcp_control_idle(l))
		return;
	l->shut = 1;
	for (int i = 0; i < l->nlanes; i++)
		if (l->lanes[i].fd >= 0) {
			shutdown(l->lanes[i].fd, SHUT_WR);
			sock_backoff_leave(l->lanes[i].fd, gantry_params()->timeout);
		}
}

void tcp_link_put_down(struct tcp_link *l)
{
	uint64_t tx = 0, rx = 0;

	tcp_workers_forget(l);
	for (int i = 0; i < l->nlanes; i++) {
		tx += l->lanes[i].tx.bytes;
		rx += l->lanes[i].rx.bytes;
	}
	LOG_INFO(NET, "link %u to %s closed: %llu bytes sent, %llu received%s%s", l->session.id, l->session.peer,
		 (unsigned long long)tx, (unsigned long long)rx, tcp_link_failed(l) ? ", after " : "",
		 tcp_link_failed(l) ? gantry_result_name(load_relaxed(&l->end.error)) : "");
	tcp_link_forget(l);
	gantry_list_append(&tcp_engine.lingering, &l->node);
	l->linger_until = gantry_params()->timeout < linger_max_ns ? gantry_params()->timeout : linger_max_ns;
	if (tcp_link_failed(l)) /* just long enough to say why */
		l->linger_until = linger_failed_ns;
	l->linger_until += gantry_now_ns();
	shut_when_said(l, 0);
	inet_loop_wake();
}

/* Reads and drops what the peer still sends, so that closing does not turn into a reset that destroys what it has not
 * read yet. 1: the peer is done too. */
static int drained(struct tcp_link *l)
{
	char nowhere[16 << 10];
	int all = 1;

	for (int i = 0; i < l->nlanes; i++) {
		ssize_t n = 1;

		for (int k = 0; k < 64 && n > 0; k++)
			n = recv(l->lanes[i].fd, nowhere, sizeof(nowhere), MSG_DONTWAIT);
		if (n > 0 || (n < 0 && errno == EAGAIN))
			all = 0;
	}
	return all;
}

void tcp_linger_tick(uint64_t now)
{
	gantry_list_each_entry_safe (l, &tcp_engine.lingering, struct tcp_link, node) {
		shut_when_said(l, now >= l->linger_until);
		if (drained(l) || now >= l->linger_until) {
			gantry_list_remove(&l->node);
			tcp_link_bury(l);
		}
	}
}
