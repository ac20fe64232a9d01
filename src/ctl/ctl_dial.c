/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a membership gets to the hub, for the first time and again: the states of struct ctl_dial (ctl_member.h), and what is
 * tried again after which failure.
 *
 * Joining: what may pass (nothing listens there yet, a network that comes up, a hub that was crowded by strangers) is
 * tried again with growing, jittered pauses until GANTRY_CONNECT_TIMEOUT; what will not pass ends it at once, and what the hub
 * refuses, or a proof that is wrong, after INET_TRIES: a bit may have been flipped on the way. A process that answers, but in which the rank that makes the hub has not called yet (hub_comes), is not
 * silent: from each such answer the time runs anew.
 *
 * Dialling again, where the connection outlives its sockets: after its socket broke, or beside it when nothing was heard for a
 * quarter of the deadline, because something on the way may have forgotten the connection. A hub that does not know the
 * rank any more, and an address at which nothing listens, are the end; anything else is tried until the hub counts as silent.
 * That there is a connection already (m->conn) is what tells the two apart.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/identity.h"
#include "base/log.h"
#include "ctl/ctl_member.h"
#include "ctl/hub.h"
#include "inet/sock.h"

enum { ATTEMPT_MS = 5000, CANDIDATE_MS = 1000, MS = 1000000 };
enum { ATTEMPTS = 8, ATTEMPT_MIN_MS = 100 }; /* in GANTRY_TIMEOUT, dialling again */

/* Where it is dialled now. */
static const struct gantry_addr *candidate(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	return &m->addrs[(m->dial.way + m->dial.tries) % (uint32_t)m->naddrs];
}

static void dial_done(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	m->dial.step = DIAL_IDLE;
	m->dial.way = (m->dial.way + m->dial.tries) % (uint32_t)m->naddrs;
	m->dial.tries = m->dial.misshakes = 0;
}

void ctl_dial_again(struct gantry_ctl *m)
{
	if (m->dial.step != DIAL_IDLE)
		return;
	m->dial.step = DIAL_PAUSE;
	m->dial.retry_at = inet_loop.now;
	m->dial.refused_since = 0;
	ctl_service_due(m->dial.retry_at);
}

/* An attempt is given up. The hub may have the socket already, and would take its end for that of this process: where the connection
 * outlives sockets it is reset. */
static void hang_up(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	if (m->conn)
		inet_source_reset(&m->dial.source);
	else
		inet_source_close(&m->dial.source);
}

static void retry_later(struct gantry_ctl *m, const char *cause) REQUIRES(loop_mu)
{
	static struct gantry_ratelimit limit;
	uint32_t more;

	m->dial.retry_at = inet_retry_at(inet_loop.now, m->dial.tries);
	ctl_service_due(m->dial.retry_at);
	if (cause != m->dial.cause)
		snprintf(m->dial.cause, sizeof(m->dial.cause), "%s", cause);
	m->dial.tries++;
	m->dial.step = DIAL_PAUSE;
	hang_up(m);
	if (m->dial.tries > 6 && gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(COMM, "rank %d: still trying to reach the hub at %s: %s", m->config.rank, m->hub,
			 m->dial.cause);
}

static void attempt_failed(struct gantry_ctl *m, int e) REQUIRES(loop_mu)
{
	enum sock_errno_class class = sock_errno_class(e);

	snprintf(m->dial.cause, sizeof(m->dial.cause), "%s (%s)", strerror(e), sock_errno_hint(e));
	if (m->conn && ctl_refused(&m->dial.refused_since, e, m->timeout))
		ctl_member_hub_lost(m, GANTRY_ERR_PEER_LOST,
				    "the connection broke, and nothing listens there any more: its process ended");
	else if (m->conn || class == SOCK_RETRY ||
		 (class == SOCK_FATAL && m->naddrs > 1)) /* another interface may lead there */
		retry_later(m, m->dial.cause);
	else
		ctl_member_over(m, class == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE,
				"rank %d: connect to the hub at %s: %s", m->config.rank, m->hub, m->dial.cause);
}

/* For one attempt. Dialling again there must be time for several. */
static uint64_t attempt_ns(const struct gantry_ctl *m, uint64_t most_ms) REQUIRES(loop_mu)
{
	uint64_t some = m->timeout / ATTEMPTS;

	if (some < (uint64_t)ATTEMPT_MIN_MS * MS)
		some = (uint64_t)ATTEMPT_MIN_MS * MS;
	return m->conn && some < most_ms * MS ? some : most_ms * MS;
}

static uint32_t wait_ms(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint64_t ms = m->wait_by > inet_loop.now ? (m->wait_by - inet_loop.now) / MS : 0;

	return m->wait_by == UINT64_MAX || ms >= CTL_WAIT_FOREVER ? CTL_WAIT_FOREVER : (uint32_t)ms;
}

static void start_hello(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint8_t out[CTL_HELLO_SIZE];
	const struct ctl_hello h = {
		.comm_id = m->id.comm_id,
		.process = ctl_service.process,
		.rank = m->config.rank,
		.nranks = m->config.nranks,
		.timeout_ms = (uint32_t)(m->timeout / MS),
		.wait_ms = wait_ms(m),
		.addr = m->direct.addr,
		.resume = inet_resume_says(),
		.generation = m->conn ? ++m->dial.generation : 0,
		.host = gantry_host_id(),
		.received = m->conn ? m->conn->session.received : 0,
		.to = inet_target_of(candidate(m)),
	};

	ctl_hello_encode(&h, out);
	inet_handshake_end(&m->dial.shake); /* of an attempt before */
	if (inet_handshake_start_client(&m->dial.shake, &hub_service.protocol, &m->key, out, sizeof(out)) !=
	    GANTRY_OK) {
		if (m->conn)
			retry_later(m, gantry_last_error());
		else
			ctl_member_over(m, GANTRY_ERR_SYSTEM, "rank %d: %s", m->config.rank, gantry_last_error());
		return;
	}
	m->dial.step = DIAL_SHAKING;
	m->dial.attempt_by = inet_loop.now + attempt_ns(m, ATTEMPT_MS);
	ctl_service_due(m->dial.attempt_by);
}

/* The hub has the new socket. If it says that nothing outlives sockets any more, it is about to tell why. */
static void resume_conn(struct gantry_ctl *m, const struct ctl_accepted *a) REQUIRES(loop_mu)
{
	struct ctl_conn *c = m->conn;
	uint64_t received = a->resumes ? a->received : c->session.acked;

	if (!ctl_conn_counts(c, received) || a->first > c->session.received) {
		ctl_member_hub_lost(m, GANTRY_ERR_PROTOCOL, "it counts other frames than were sent");
		return;
	}
	if (ctl_conn_resume(c, inet_source_release(&m->dial.source), &m->dial.shake.seals, candidate(m), received,
			    a->first) != GANTRY_OK) {
		retry_later(m, gantry_last_error());
		return;
	}
	c->session.on = a->resumes;
	dial_done(m);
	LOG_INFO(COMM, "rank %d: back at the hub at %s with socket %u; %llu frames come twice", m->config.rank, m->hub,
		 m->dial.generation, (unsigned long long)c->session.twice);
}

static void begin_conn(struct gantry_ctl *m, const struct ctl_accepted *a) REQUIRES(loop_mu)
{
	if (ctl_conn_make(inet_source_release(&m->dial.source), &m->dial.shake.seals, candidate(m), &ctl_member_ops, m,
			  &m->conn) != GANTRY_OK) {
		ctl_member_over(m, GANTRY_ERR_NOMEM, "rank %d: %s", m->config.rank, gantry_last_error());
		return;
	}
	dial_done(m);
	ctl_member_accepted(m, a);
}

static void shake_done(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_accepted a;
	bool understood = ctl_accepted_decode(m->dial.shake.payload, m->dial.shake.payload_size, &a) == GANTRY_OK;

	if (understood && m->conn)
		resume_conn(m, &a);
	else if (understood)
		begin_conn(m, &a);
	else if (m->conn)
		ctl_member_hub_lost(m, GANTRY_ERR_PROTOCOL, "it does not speak our protocol");
	else
		ctl_member_over(m, GANTRY_ERR_PROTOCOL, "rank %d: the hub at %s does not speak our protocol",
				m->config.rank, m->hub);
}

/* Whether another attempt may do better. */
static bool may_pass(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_handshake *h = &m->dial.shake;

	return h->refused &&
	       (m->conn ? h->error == GANTRY_ERR_LIMIT : h->error == GANTRY_ERR_REFUSED && m->config.hub_comes);
}

static void shake_failed(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_handshake *h = &m->dial.shake;
	char cause[128];

	if (may_pass(m)) {
		if (!m->conn)
			m->deadline = inet_loop.now + m->connect_timeout;
		retry_later(m, h->text);
		return;
	}
	if (!h->broken && ++m->dial.misshakes < INET_TRIES) {
		retry_later(m, h->text);
		return;
	}
	if (!h->broken && m->conn) {
		ctl_member_hub_lost(m, h->refused && h->error == GANTRY_ERR_REFUSED ? GANTRY_ERR_PEER_LOST : h->error,
				    h->text);
		return;
	}
	if (!h->broken) {
		ctl_member_over(m, h->error,
				h->refused ? "rank %d: refused by the hub at %s: %s" : "rank %d: the hub at %s: %s",
				m->config.rank, m->hub, h->text);
		return;
	}
	if (h->broken_errno)
		snprintf(cause, sizeof(cause), "the connection broke: %s", strerror(h->broken_errno));
	else
		snprintf(cause, sizeof(cause), "the connection was closed without a goodbye");
	retry_later(m, cause);
}

static void dial_ready(struct inet_source *s, uint32_t events) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = gantry_container(s, struct gantry_ctl, dial.source);
	enum inet_event event;
	socklen_t len = sizeof(int);
	int e = 0;

	if (m->dial.step == DIAL_CONNECTING) {
		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &len);
		if (e) {
			attempt_failed(m, e);
			return;
		}
		m->dial.reached = 1;
		m->dial.refused_since = 0;
		start_hello(m);
	}
	if (inet_loop.parting && m->dial.step == DIAL_SHAKING)
		ctl_member_over(m, GANTRY_ERR_ABORTED, "rank %d: the process exits", m->config.rank);
	if (m->dial.step != DIAL_SHAKING)
		return;
	event = inet_handshake_move(&m->dial.shake, s->fd);
	inet_source_set(s, inet_handshake_events(&m->dial.shake));
	if (event == INET_DONE)
		shake_done(m);
	else if (event == INET_FAILED)
		shake_failed(m);
}

static void start_attempt(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	int e;

	m->dial.source = (struct inet_source){.fd = -1, .ready = dial_ready};
	e = sock_connect(NULL, NULL, candidate(m), &m->dial.source.fd);
	if (!e && inet_source_add(&m->dial.source, EPOLLOUT) != GANTRY_OK)
		e = ENOMEM;
	if (e) {
		attempt_failed(m, e);
		return;
	}
	m->dial.step = DIAL_CONNECTING;
	m->dial.attempt_by = inet_loop.now + attempt_ns(m, m->naddrs > 1 ? CANDIDATE_MS : ATTEMPT_MS);
	ctl_service_due(m->dial.attempt_by);
}

void ctl_dial_stop(struct gantry_ctl *m)
{
	m->dial.step = DIAL_IDLE;
	hang_up(m);
}

/*
 * The time of an attempt is over; but it may be this thread that comes late, with events from before it was held up. What has
 * arrived counts: a rank that hung up after the hub had accepted it would end the join for all.
 */
static void look_again(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct pollfd p = {.fd = m->dial.source.fd, .events = m->dial.step == DIAL_CONNECTING ? POLLOUT : POLLIN};

	if (poll(&p, 1, 0) <= 0)
		return;
	m->dial.attempt_by = inet_loop.now + attempt_ns(m, ATTEMPT_MS);
	dial_ready(&m->dial.source, (uint32_t)p.revents);
}

static bool is_over(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	return inet_loop.now >= m->dial.attempt_by || (m->step == STEP_JOINING && inet_loop.now >= m->deadline);
}

/* Joining, before the hub has accepted it: whether a deadline has passed, which ends it. */
static bool join_is_over(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	bool silent = inet_loop.now >= m->deadline; /* else the rank that makes the hub lives, and has not called */
	char seconds[16];

	if (m->step != STEP_JOINING || (!silent && inet_loop.now < m->wait_by))
		return false;
	ctl_member_over(m, m->dial.reached ? GANTRY_ERR_TIMEOUT : GANTRY_ERR_UNREACHABLE,
			"rank %d: %s the hub at %s within %s (%s) and %u tries: %s", m->config.rank,
			m->dial.reached ? "no agreement with" : "no connection to", m->hub,
			ctl_seconds(silent ? m->connect_timeout : m->patience, seconds),
			silent ? "GANTRY_CONNECT_TIMEOUT" : "GANTRY_CALL_TIMEOUT", m->dial.tries + 1,
			*m->dial.cause ? m->dial.cause : "no answer: a firewall may drop the packets");
	return true;
}

void ctl_dial_tick(struct gantry_ctl *m)
{
	uint64_t now = inet_loop.now;

	if ((m->dial.step == DIAL_CONNECTING || m->dial.step == DIAL_SHAKING) && is_over(m))
		look_again(m);
	if (m->dial.step == DIAL_IDLE || join_is_over(m))
		return;
	if (m->dial.step != DIAL_PAUSE && now >= m->dial.attempt_by)
		retry_later(m, m->dial.step == DIAL_CONNECTING ? "no answer: a firewall may drop the packets"
							       : "it takes connections but says nothing");
	if (m->dial.step == DIAL_PAUSE && now >= m->dial.retry_at)
		start_attempt(m);
	if (m->step == STEP_OVER)
		return;
	if (m->step == STEP_JOINING)
		ctl_service_due(m->deadline < m->wait_by ? m->deadline : m->wait_by);
	ctl_service_due(m->dial.step == DIAL_PAUSE ? m->dial.retry_at : m->dial.attempt_by);
}
