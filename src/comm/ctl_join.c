/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an id to an accepted connection, on the service thread. What may pass (nothing listens there yet, a network that
 * comes up, a hub that was crowded by strangers) is tried again with growing, jittered pauses until
 * GANTRY_CONNECT_TIMEOUT; what will not pass, and what the hub refuses, ends it at once.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "comm/ctl_member.h"
#include "comm/hub.h"
#include "inet/sock.h"

enum { ATTEMPT_MS = 5000, CANDIDATE_MS = 1000, MS = 1000000 };

static void retry_later(struct gantry_ctl *m, const char *cause) REQUIRES(loop_mu)
{
	static struct gantry_ratelimit limit;
	uint32_t more;

	m->retry_at = inet_retry_at(inet_loop.now, m->tries);
	ctl_service_due(m->retry_at);
	if (cause != m->cause)
		snprintf(m->cause, sizeof(m->cause), "%s", cause);
	m->tries++;
	m->step = STEP_PAUSE;
	inet_source_close(&m->dial);
	if (m->tries > 6 && gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(COMM, "rank %d: still trying to reach the hub at %s: %s", m->config.rank, m->hub, m->cause);
}

static void attempt_failed(struct gantry_ctl *m, int e) REQUIRES(loop_mu)
{
	enum sock_errno_class class = sock_errno_class(e);

	snprintf(m->cause, sizeof(m->cause), "%s (%s)", strerror(e), sock_errno_hint(e));
	if (class == SOCK_RETRY || (class == SOCK_FATAL && m->naddrs > 1)) /* another interface may lead there */
		retry_later(m, m->cause);
	else
		ctl_member_over(m, class == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE,
				"rank %d: connect to the hub at %s: %s", m->config.rank, m->hub, m->cause);
}

/* ---- the hand-shake ---- */

static void start_hello(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint64_t wait = m->deadline > inet_loop.now ? m->deadline - inet_loop.now : 0;
	uint8_t out[CTL_HELLO_SIZE];
	const struct ctl_hello h = {
		.comm_id = m->id.comm_id,
		.process = ctl_service.process,
		.rank = m->config.rank,
		.nranks = m->config.nranks,
		.timeout_ms = (uint32_t)(m->timeout / MS),
		.wait_ms = (uint32_t)(wait / MS),
	};

	ctl_hello_encode(&h, out);
	if (inet_handshake_start_client(&m->shake, &hub_service.protocol, &m->key, out, sizeof(out)) != GANTRY_OK) {
		ctl_member_over(m, GANTRY_ERR_SYSTEM, "rank %d: %s", m->config.rank, gantry_last_error());
		return;
	}
	m->step = STEP_SHAKING;
	m->attempt_by = inet_loop.now + (uint64_t)ATTEMPT_MS * MS;
	ctl_service_due(m->attempt_by);
	inet_source_set(&m->dial, EPOLLIN);
}

static void shake_done(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_accepted a;

	if (ctl_accepted_decode(m->shake.payload, m->shake.payload_size, &a) != GANTRY_OK)
		ctl_member_over(m, GANTRY_ERR_PROTOCOL, "rank %d: the hub at %s does not speak our protocol",
				m->config.rank, m->hub);
	else if (ctl_member_accepted(m, inet_source_release(&m->dial), &a) != GANTRY_OK)
		ctl_member_over(m, GANTRY_ERR_NOMEM, "rank %d: %s", m->config.rank, gantry_last_error());
}

static void shake_failed(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_handshake *h = &m->shake;
	char cause[128];

	if (!h->broken) {
		ctl_member_over(m, h->error,
				h->refused ? "rank %d: refused by the hub at %s: %s" : "rank %d: the hub at %s: %s",
				m->config.rank, m->hub, h->text);
		return;
	}
	if (h->broken_errno)
		snprintf(cause, sizeof(cause), "the connection broke: %s", strerror(h->broken_errno));
	else
		snprintf(cause, sizeof(cause), "the connection was closed without a word");
	retry_later(m, cause);
}

static void dial_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = gantry_container(s, struct gantry_ctl, dial);
	enum inet_event event;
	socklen_t len = sizeof(int);
	int e = 0;

	if (m->step == STEP_CONNECTING) {
		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &len);
		if (e) {
			attempt_failed(m, e);
			return;
		}
		m->reached = 1;
		start_hello(m);
	}
	if (inet_loop.parting && m->step == STEP_SHAKING)
		ctl_member_over(m, GANTRY_ERR_ABORTED, "rank %d: the process exits", m->config.rank);
	if (m->step != STEP_SHAKING)
		return;
	event = inet_handshake_move(&m->shake, s->fd);
	if (event == INET_DONE)
		shake_done(m);
	else if (event == INET_FAILED)
		shake_failed(m);
}

/* ---- the clock ---- */

static void start(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct gantry_addr *to = &m->addrs[m->tries % (uint32_t)m->naddrs];
	int e;

	m->dial = (struct inet_source){.fd = -1, .ready = dial_ready};
	e = sock_connect(NULL, NULL, to, &m->dial.fd);
	if (!e && inet_source_add(&m->dial, EPOLLOUT) != GANTRY_OK)
		e = ENOMEM;
	if (e) {
		attempt_failed(m, e);
		return;
	}
	m->step = STEP_CONNECTING;
	m->attempt_by = inet_loop.now + (uint64_t)(m->naddrs > 1 ? CANDIDATE_MS : ATTEMPT_MS) * MS;
	ctl_service_due(m->attempt_by);
}

void ctl_join_tick(struct gantry_ctl *m)
{
	uint64_t now = inet_loop.now;
	char seconds[16];

	if (now >= m->deadline) {
		ctl_member_over(m, m->reached ? GANTRY_ERR_TIMEOUT : GANTRY_ERR_UNREACHABLE,
				"rank %d: %s the hub at %s within %s (GANTRY_CONNECT_TIMEOUT) and %u tries: %s",
				m->config.rank, m->reached ? "no agreement with" : "no connection to", m->hub,
				ctl_seconds(m->connect_timeout, seconds), m->tries + 1,
				*m->cause ? m->cause : "no answer: a firewall may drop the packets");
		return;
	}
	if (m->step != STEP_PAUSE && now >= m->attempt_by)
		retry_later(m, m->step == STEP_CONNECTING ? "no answer: a firewall may drop the packets"
							  : "it takes connections but says nothing");
	if (m->step == STEP_PAUSE && now >= m->retry_at)
		start(m);
	if (m->step == STEP_OVER)
		return;
	ctl_service_due(m->deadline);
	ctl_service_due(m->step == STEP_PAUSE ? m->retry_at : m->attempt_by);
}
