/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a member reaches the hub, for the first time and again, by inet/dial.h: the addresses, the hello, and which failures
 * are retried.
 *
 * Joining. Transient failures (nothing listens yet, the network is coming up, strangers crowd the hub) are retried with
 * growing, jittered pauses until GANTRY_CONNECT_TIMEOUT; permanent ones end the join at once. A refusal or a wrong proof
 * ends it after INET_TRIES, because a flipped bit looks the same. A process that answers while its rank has not made the hub
 * yet (hub_comes) is not silent: each such answer restarts the timeout.
 *
 * Reconnecting, where the connection outlives its sockets (m->conn is set). The member dials after its socket broke, or beside
 * the old socket after a quarter of the deadline without a frame, because a middlebox may have dropped the connection. It gives
 * up when the hub no longer knows the rank or nothing listens at its address; every other failure is retried until the hub
 * counts as silent.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "ctl/ctl_member.h"
#include "ctl/hub.h"
#include "inet/sock.h"

enum { ATTEMPT_MS = 5000, CANDIDATE_MS = 1000, MS = 1000000 };
enum { ATTEMPTS = 8, ATTEMPT_MIN_MS = 100 }; /* in GANTRY_TIMEOUT, dialling again */

static struct gantry_ctl *member_of(struct inet_dial *d)
{
	return gantry_container(d, struct ctl_dial, to_hub)->member;
}

/* Of the addresses, the one for the next attempt. */
static uint32_t candidate(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	return (m->dial->way + m->dial->to_hub.failures) % (uint32_t)m->naddrs;
}

static void dial_done(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	m->dial->way = candidate(m);
	inet_dial_reset(&m->dial->to_hub);
}

void ctl_dial_again(struct gantry_ctl *m)
{
	if (m->dial->to_hub.state == INET_DIAL_IDLE)
		inet_dial_start(&m->dial->to_hub, 0);
}

static void retry_later(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	static struct gantry_ratelimit limit;
	struct inet_dial *d = &m->dial->to_hub;
	uint32_t more;

	inet_dial_start(d, inet_dial_retry_at(d));
	if (d->failures > 6 && gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(COMM, "rank %d: still trying to reach the bootstrap root at %s: %s", m->config.rank, m->hub,
			 d->text);
}

static void connect_failed(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_dial *d = &m->dial->to_hub;
	enum sock_errno_class class = sock_errno_class(d->error);

	if (m->conn && inet_dial_is_deserted(d, m->timeout))
		ctl_member_hub_lost(m, GANTRY_ERR_PEER_LOST,
				    "the connection broke, and nothing is listening there any more: its process ended");
	else if (m->conn || class == SOCK_RETRY ||
		 (class == SOCK_FATAL && m->naddrs > 1)) /* another interface may lead there */
		retry_later(m);
	else
		ctl_member_over(m, class == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE,
				"rank %d: connect to the bootstrap root at %s: %s", m->config.rank, m->hub, d->text);
}

/* For one attempt. Dialling again there must be time for several; joining, its end is the end of the last attempt. */
static uint64_t attempt_ns(const struct gantry_ctl *m, uint64_t most_ms) REQUIRES(loop_mu)
{
	uint64_t now = gantry_now_ns(), some = m->timeout / ATTEMPTS;
	uint64_t end = m->deadline < m->wait_by ? m->deadline : m->wait_by;

	if (!m->conn)
		some = end > now ? end - now : 0;
	else if (some < (uint64_t)ATTEMPT_MIN_MS * MS)
		some = (uint64_t)ATTEMPT_MIN_MS * MS;
	return some < most_ms * MS ? some : most_ms * MS;
}

static uint32_t wait_ms(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint64_t ms = m->wait_by > inet_loop.now ? (m->wait_by - inet_loop.now) / MS : 0;

	return m->wait_by == UINT64_MAX || ms >= CTL_WAIT_FOREVER ? CTL_WAIT_FOREVER : (uint32_t)ms;
}

static bool aim_at_hub(struct inet_dial *d, struct inet_dial_aim *ret) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);

	/* The hub may have a socket that is given up, and would take its end for that of this process. */
	d->resets = m->conn != NULL;
	ret->to = m->addrs[candidate(m)];
	ret->patience = attempt_ns(m, m->naddrs > 1 ? CANDIDATE_MS : ATTEMPT_MS);
	return true;
}

static void fill_hello(struct inet_dial *d, struct inet_dial_hello *ret) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);
	const struct ctl_hello h = {
		.comm_id = m->id.comm_id,
		.process = ctl_service.process,
		.rank = m->config.rank,
		.nranks = m->config.nranks,
		.timeout_ms = (uint32_t)(m->timeout / MS),
		.wait_ms = wait_ms(m),
		.addr = m->direct.addr,
		.resume = inet_resume_says(),
		.generation = m->conn ? ++m->dial->generation : 0,
		.host = gantry_host_id(),
		.received = m->conn ? m->conn->session.received : 0,
		.to = inet_target_of(&d->to),
	};

	m->dial->reached = 1;
	ctl_hello_encode(&h, ret->payload);
	ret->size = CTL_HELLO_SIZE;
	ret->protocol = &hub_service.protocol;
	ret->key = &m->key;
	ret->patience = attempt_ns(m, ATTEMPT_MS);
}

/* The hub has the new socket. If it says that nothing outlives sockets any more, it is about to tell why. */
static void resume_conn(struct gantry_ctl *m, const struct ctl_accepted *a) REQUIRES(loop_mu)
{
	struct inet_stream *c = m->conn;
	uint64_t received = a->resumes ? a->received : c->session.acked;
	struct inet_seals seals;
	int fd;

	if (!inet_stream_counts(c, received) || a->first > c->session.received) {
		ctl_member_hub_lost(m, GANTRY_ERR_PROTOCOL, "its frame count does not match what was sent");
		return;
	}
	fd = inet_dial_take(&m->dial->to_hub, &seals);
	if (inet_stream_resume(c, fd, &seals, &m->dial->to_hub.to, received, a->first) != GANTRY_OK) {
		retry_later(m);
		return;
	}
	c->session.on = a->resumes;
	dial_done(m);
	LOG_INFO(COMM, "rank %d: reconnected to the bootstrap root at %s (socket %u); dropped %llu duplicate frames",
		 m->config.rank, m->hub, m->dial->generation, (unsigned long long)c->session.twice);
}

static void begin_conn(struct gantry_ctl *m, const struct ctl_accepted *a) REQUIRES(loop_mu)
{
	struct inet_seals seals;
	int fd = inet_dial_take(&m->dial->to_hub, &seals);

	if (inet_stream_make(&ctl_service.streams, fd, &seals, &m->dial->to_hub.to, &ctl_member_ops, m, &m->conn) !=
	    GANTRY_OK) {
		ctl_member_over(m, GANTRY_ERR_NOMEM, "rank %d: %s", m->config.rank, gantry_last_error());
		return;
	}
	dial_done(m);
	ctl_member_accepted(m, a);
}

static void hub_answered(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);
	struct ctl_accepted a;
	bool understood = ctl_accepted_decode(d->shake.payload, d->shake.payload_size, &a) == GANTRY_OK;

	if (understood && m->conn)
		resume_conn(m, &a);
	else if (understood)
		begin_conn(m, &a);
	else if (m->conn)
		ctl_member_hub_lost(m, GANTRY_ERR_PROTOCOL, "it does not speak this protocol");
	else
		ctl_member_over(m, GANTRY_ERR_PROTOCOL,
				"rank %d: the bootstrap root at %s does not speak this protocol", m->config.rank,
				m->hub);
}

/* Whether another attempt may do better. */
static bool may_pass(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_handshake *h = &m->dial->to_hub.shake;

	return h->refused &&
	       (m->conn ? h->error == GANTRY_ERR_LIMIT : h->error == GANTRY_ERR_REFUSED && m->config.hub_comes);
}

static void shake_failed(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_handshake *h = &m->dial->to_hub.shake;

	if (may_pass(m)) {
		if (!m->conn)
			m->deadline = inet_loop.now + m->connect_timeout;
		m->dial->to_hub.misshakes = 0;
		retry_later(m);
	} else if (m->dial->to_hub.misshakes < INET_TRIES) {
		retry_later(m);
	} else if (m->conn) {
		ctl_member_hub_lost(m, h->refused && h->error == GANTRY_ERR_REFUSED ? GANTRY_ERR_PEER_LOST : h->error,
				    h->text);
	} else {
		ctl_member_over(m, h->error,
				h->refused ? "rank %d: refused by the bootstrap root at %s: %s"
					   : "rank %d: the bootstrap root at %s: %s",
				m->config.rank, m->hub, h->text);
	}
}

static void attempt_failed(struct inet_dial *d) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = member_of(d);

	if (d->cause == INET_DIAL_CONNECT)
		connect_failed(m);
	else if (d->cause == INET_DIAL_REFUSED)
		shake_failed(m);
	else if (d->cause == INET_DIAL_EXIT)
		ctl_member_over(m, GANTRY_ERR_ABORTED, "rank %d: %s", m->config.rank, d->text);
	else if (d->cause == INET_DIAL_OWN && !m->conn)
		ctl_member_over(m, GANTRY_ERR_SYSTEM, "rank %d: %s", m->config.rank, d->text);
	else
		retry_later(m);
}

const struct inet_dial_ops ctl_dial_ops = {
	.aim = aim_at_hub,
	.hello = fill_hello,
	.done = hub_answered,
	.failed = attempt_failed,
};

void ctl_join_watch(struct gantry_ctl *m)
{
	const struct inet_dial *d = &m->dial->to_hub;
	bool silent = inet_loop.now >= m->deadline; /* else the rank that makes the hub lives, and has not called */
	char seconds[16];

	/* An attempt ends by the deadline, and what has arrived by then counts: a rank that hung up after the hub had accepted it
	 * would end the join for all. */
	if (d->state != INET_DIAL_PAUSE || (!silent && inet_loop.now < m->wait_by)) {
		ctl_service_due(m->deadline < m->wait_by ? m->deadline : m->wait_by);
		return;
	}
	ctl_member_over(m, m->dial->reached ? GANTRY_ERR_TIMEOUT : GANTRY_ERR_UNREACHABLE,
			"rank %d: %s the bootstrap root at %s within %s (%s) and %u tries: %s", m->config.rank,
			m->dial->reached ? "no agreement with" : "no connection to", m->hub,
			ctl_seconds(silent ? m->connect_timeout : m->patience, seconds),
			silent ? "GANTRY_CONNECT_TIMEOUT" : "GANTRY_CALL_TIMEOUT", d->failures + 1,
			*d->text ? d->text : "no answer: a firewall may drop the packets");
}
