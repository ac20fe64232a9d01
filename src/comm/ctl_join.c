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

#include "base/build.h"
#include "base/hmac.h"
#include "base/log.h"
#include "comm/ctl_member.h"
#include "gantry/version.h"
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
	ctl_conn_close(m->conn);
	m->conn = NULL;
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

static void say_hello(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct ctl_head head = {.kind = CTL_HELLO, .from = m->config.rank, .to = -1, .size = CTL_HELLO_SIZE};
	uint64_t wait = m->deadline > inet_loop.now ? m->deadline - inet_loop.now : 0;
	struct ctl_hello h = {
		.version = CTL_VERSION,
		.auth = m->auth,
		.comm_id = m->id.comm_id,
		.process = ctl_service.process,
		.rank = m->config.rank,
		.nranks = m->config.nranks,
		.timeout_ms = (uint32_t)(m->timeout / MS),
		.wait_ms = (uint32_t)(wait / MS),
	};

	if (gantry_random_bytes(h.nonce, sizeof(h.nonce)) != GANTRY_OK) {
		ctl_member_over(m, GANTRY_ERR_SYSTEM, "rank %d: no random bytes", m->config.rank);
		return;
	}
	snprintf(h.build, sizeof(h.build), "%s %.12s", GANTRY_VERSION, gantry_commit);
	memcpy(h.who, ctl_service.who, sizeof(h.who));
	ctl_hello_encode(&h, m->raw_hello);
	ctl_conn_send(m->conn, &head, m->raw_hello);
	m->step = STEP_SAID_HELLO;
	m->attempt_by = inet_loop.now + (uint64_t)ATTEMPT_MS * MS;
	ctl_service_due(m->attempt_by);
}

static void on_challenge(struct gantry_ctl *m, const uint8_t *body, size_t n) REQUIRES(loop_mu)
{
	const struct ctl_head head = {.kind = CTL_PROOF, .from = m->config.rank, .to = -1, .size = CTL_MAC_SIZE};
	struct ctl_challenge c;
	uint8_t mac[CTL_MAC_SIZE];

	if (inet_loop.parting) {
		ctl_member_over(m, GANTRY_ERR_ABORTED, "rank %d: the process exits", m->config.rank);
		return;
	}
	if (ctl_challenge_decode(body, n, &c) != GANTRY_OK) {
		ctl_member_over(m, GANTRY_ERR_PROTOCOL, "rank %d: the hub at %s does not speak our protocol",
				m->config.rank, m->hub);
		return;
	}
	if (ctl_prove(m->key, 1, m->raw_hello, body, mac) != GANTRY_OK ||
	    !gantry_equal_secret(mac, c.mac, CTL_MAC_SIZE)) {
		ctl_member_over(m, GANTRY_ERR_AUTH,
				"rank %d: the hub at %s does not know the key: GANTRY_SECRET differs, or it is not the "
				"id's hub",
				m->config.rank, m->hub);
		return;
	}
	if (ctl_prove(m->key, 0, m->raw_hello, body, mac) != GANTRY_OK) {
		ctl_member_over(m, GANTRY_ERR_UNSUPPORTED, "rank %d: no way to authenticate", m->config.rank);
		return;
	}
	ctl_conn_send(m->conn, &head, mac);
	m->step = STEP_PROVED;
}

static int on_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	struct ctl_accepted a;
	char text[CTL_TEXT_MAX];

	if (h->kind == CTL_REFUSED) {
		ctl_get_text(text, sizeof(text), body, h->size);
		ctl_member_over(m, h->result > GANTRY_AGAIN ? (gantry_result)h->result : GANTRY_ERR_REFUSED,
				"rank %d: refused by the hub at %s: %s", m->config.rank, m->hub, text);
	} else if (h->kind == CTL_CHALLENGE && m->step == STEP_SAID_HELLO) {
		on_challenge(m, body, h->size);
	} else if (h->kind == CTL_ACCEPTED && m->step == STEP_PROVED &&
		   ctl_accepted_decode(body, h->size, &a) == GANTRY_OK) {
		ctl_member_accepted(m, &a);
	} else {
		ctl_member_over(m, GANTRY_ERR_PROTOCOL, "rank %d: the hub at %s does not speak our protocol (%s)",
				m->config.rank, m->hub, ctl_kind_name(h->kind));
	}
	return m->step == STEP_OVER;
}

static void on_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	(void)why;
	retry_later(c->owner, cause);
}

static void on_connected(struct ctl_conn *c, int e) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;

	if (e) {
		attempt_failed(m, e);
		return;
	}
	m->reached = 1;
	inet_source_set(&c->source, EPOLLIN);
	say_hello(m);
}

/* ---- the clock ---- */

static void start(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	static const struct ctl_conn_ops join_ops = {.frame = on_frame, .broken = on_broken, .connected = on_connected};
	const struct gantry_addr *to = &m->addrs[m->tries % (uint32_t)m->naddrs];
	int e = ctl_conn_connect(to, &join_ops, m, &m->conn);

	if (e) {
		attempt_failed(m, e);
		return;
	}
	m->conn->in.max_body = CTL_TEXT_MAX; /* of a refusal */
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
