/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A membership on the service thread, from an id to its end.
 *
 * Joining: what may pass (nothing listens there yet, a network that comes up, a hub that was crowded by strangers) is
 * tried again with growing, jittered pauses until GANTRY_CONNECT_TIMEOUT; what will not pass, and what the hub refuses,
 * ends it at once.
 *
 * Dialling again, where the connection outlives its sockets: after its socket broke, or beside it when nothing was heard for a
 * quarter of the deadline, because something on the way may have forgotten the connection. A hub that does not know the
 * rank any more, and an address at which nothing listens, are the end; anything else is tried until the hub counts as silent.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/ctl_member.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "comm/hub.h"
#include "inet/sock.h"

static const uint64_t linger_ns = 2000000000;
enum { TRIPS = 5, INBOX_MAX = 256 << 20 };
enum { ATTEMPT_MS = 5000, CANDIDATE_MS = 1000, MS = 1000000 };
enum { STALLS = 4, ATTEMPTS = 8, ATTEMPT_MIN_MS = 100 }; /* in GANTRY_TIMEOUT, dialling again */

static void redial(struct gantry_ctl *m) REQUIRES(loop_mu);

/*
 * ---- callbacks into the user's code ----
 *
 * They are queued while a pass goes on and run at its end, without any lock: the user may hold one of his own that he
 * also holds when he calls us. gantry_ctl_leave waits for the one that runs.
 */

struct callback {
	struct gantry_list node; /* in the service's events */
	struct gantry_ctl *member;
	struct ctl_head head; /* LOST or CALL */
	uint8_t bytes[];      /* a text with its end, or what the call brings */
};

static void tell_news(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	m->arrivals++;
	gantry_cond_broadcast(&m->news);
}

static void queue_callback(struct gantry_ctl *m, const struct ctl_head *h, const void *bytes, size_t n)
	REQUIRES(loop_mu)
{
	struct callback *cb = malloc(sizeof(*cb) + n);

	if (!cb) {
		LOG_ERROR(COMM, "no memory to tell rank %d of a %s of rank %d", m->config.rank, ctl_kind_name(h->kind),
			  h->from);
		return;
	}
	m->callbacks++;
	cb->member = m;
	cb->head = *h;
	if (n)
		memcpy(cb->bytes, bytes, n);
	gantry_list_append(&ctl_service.events, &cb->node);
}

static void callback_lost(struct gantry_ctl *m, int rank, gantry_result why, const char *text) REQUIRES(loop_mu)
{
	const struct ctl_head h = {.kind = CTL_LOST, .from = rank, .result = why};

	if (m->leaving)
		return;
	LOG_INFO(COMM, "rank %d: lost %s", m->config.rank, text);
	if (m->config.on_lost)
		queue_callback(m, &h, text, strlen(text) + 1);
}

static void answer_call(struct callback *cb) REQUIRES(loop_mu)
{
	static uint8_t reply[GANTRY_CTL_MESSAGE_MAX]; /* the service thread's */
	struct gantry_ctl *m = cb->member;
	struct ctl_head h = {.kind = CTL_REPLY, .from = m->config.rank, .to = cb->head.from, .tag = cb->head.tag};
	gantry_result r = GANTRY_ERR_UNSUPPORTED;
	size_t size = sizeof(reply);

	inet_loop_unlock();
	if (m->config.on_call)
		r = m->config.on_call(m->config.ctx, cb->head.from, cb->head.result, cb->bytes, cb->head.size, reply,
				      &size);
	inet_loop_lock();
	if (r == GANTRY_OK && size > sizeof(reply))
		r = GANTRY_ERR_SIZE;
	if (r != GANTRY_OK)
		size = 0; /* whoever fails need not have said how much he wrote */
	h.size = (uint32_t)size;
	h.result = (uint32_t)r;
	if (m->conn)
		ctl_conn_send(m->conn, &h, reply);
}

static void run_callback(struct callback *cb) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = cb->member;

	m->calling = 1;
	if (cb->head.kind == CTL_CALL) {
		answer_call(cb);
	} else {
		inet_loop_unlock();
		m->config.on_lost(m->config.ctx, cb->head.from, (gantry_result)cb->head.result,
				  (const char *)cb->bytes);
		inet_loop_lock();
	}
	m->calling = 0;
	gantry_cond_broadcast(&ctl_service.quiet);
}

int ctl_members_call_back(void)
{
	int ran = 0;

	while (!gantry_list_empty(&ctl_service.events)) {
		struct callback *cb = gantry_container(ctl_service.events.next, struct callback, node);

		gantry_list_remove(&cb->node);
		if (!cb->member->leaving)
			run_callback(cb);
		if (--cb->member->callbacks == 0)
			tell_news(cb->member);
		free(cb);
		ran = 1;
	}
	return ran;
}

static void drop_callbacks(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	gantry_list_each_entry_safe (cb, &ctl_service.events, struct callback, node) {
		if (cb->member == m) {
			gantry_list_remove(&cb->node);
			free(cb);
		}
	}
}

/* ---- news for the callers ---- */

static void call_done(struct ctl_call *call, gantry_result result) REQUIRES(loop_mu)
{
	call->result = result;
	call->done = 1;
	gantry_list_remove(&call->node);
}

static void peer_gone(struct gantry_ctl *m, int rank, gantry_result why, const char *text) REQUIRES(loop_mu)
{
	struct ctl_peer *peer = &m->peers[rank];

	if (peer->gone != GANTRY_OK)
		return;
	peer->gone = why;
	peer->text = strdup(text); /* NULL: the code alone has to do */
	if (why != GANTRY_ERR_PEER_CLOSED && !m->first_lost)
		m->first_lost = rank + 1;
	gantry_list_each_entry_safe (call, &m->calls, struct ctl_call, node) {
		if (call->to == rank)
			call_done(call, why);
	}
	tell_news(m);
}

/* No control plane for this rank any more: everybody who waits hears it. Closes the connection. */
static void member_over(struct gantry_ctl *m, gantry_result why, const char *fmt, ...) REQUIRES(loop_mu)
	__attribute__((format(printf, 3, 4)));
static void member_over(struct gantry_ctl *m, gantry_result why, const char *fmt, ...) REQUIRES(loop_mu)
{
	va_list ap;

	m->step = STEP_OVER;
	m->dial.step = DIAL_IDLE;
	inet_source_close(&m->dial.source);
	ctl_conn_close(m->conn);
	m->conn = NULL;
	if (m->over == GANTRY_OK) {
		m->over = why;
		va_start(ap, fmt);
		vsnprintf(m->over_text, sizeof(m->over_text), fmt, ap);
		va_end(ap);
	}
	gantry_list_each_entry_safe (call, &m->calls, struct ctl_call, node) {
		const struct ctl_peer *lost = m->first_lost && call->to < 0 ? &m->peers[m->first_lost - 1] : NULL;

		snprintf(call->text, sizeof(call->text), "%s", lost && lost->text ? lost->text : m->over_text);
		call_done(call, lost ? lost->gone : why);
	}
	tell_news(m);
}

/*
 * The hub is gone. With it are the ranks of its process, unless they had left before: then it went as it should, and
 * the others do without. If no rank lives there, it is nobody (-1) who is lost. properly: it has said goodbye.
 */
static void hub_gone(struct gantry_ctl *m, gantry_result why, const char *cause, int properly) REQUIRES(loop_mu)
{
	int was_joined = m->step == STEP_JOINED, lived = 0, lost = 0;
	char text[CTL_TEXT_MAX];

	if (!was_joined) {
		member_over(m, why, "rank %d: the hub at %s was lost while the ranks were joining: %s", m->config.rank,
			    m->hub, cause);
		return;
	}
	for (int i = 0; i < m->config.nranks; i++) {
		struct ctl_peer *peer = &m->peers[i];

		if (!peer->with_hub || i == m->config.rank)
			continue;
		lived = 1;
		if (peer->gone != GANTRY_OK)
			continue;
		lost = 1;
		snprintf(text, sizeof(text), "rank %d (with the hub at %s): %s", i, m->hub, cause);
		peer_gone(m, i, why, text);
		callback_lost(m, i, why, text);
	}
	properly |= lived && !lost;
	member_over(m, properly && !lost ? GANTRY_ERR_PEER_CLOSED : why, "the hub at %s is gone: %s", m->hub, cause);
	if (!lived && !properly) {
		snprintf(text, sizeof(text), "the control plane (hub at %s): %s", m->hub, cause);
		callback_lost(m, -1, why, text);
	}
}

/* ---- what the hub says ---- */

static void maybe_joined(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	if (!m->ready || m->trips || m->step != STEP_WAITING)
		return;
	m->step = STEP_JOINED;
	m->joined = 1;
	tell_news(m);
}

static void ask_time(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct ctl_head h = {.kind = CTL_TIME, .from = m->config.rank, .to = -1, .tag = gantry_now_ns()};

	ctl_conn_send(m->conn, &h, NULL);
}

static void on_time(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	uint64_t now = gantry_now_ns(), trip = now - h->tag;

	if (h->size != 8 || !m->trips)
		return;
	/* Of the shortest trip the two ways differ least, and by no more than it took. */
	if (trip < m->best_trip) {
		m->best_trip = trip;
		m->clock_offset = (int64_t)(get64(body) - (h->tag + trip / 2));
	}
	if (--m->trips)
		ask_time(m);
	maybe_joined(m);
}

static void on_message(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct ctl_message *msg = m->inbox_bytes <= INBOX_MAX ? malloc(sizeof(*msg) + h->size) : NULL;

	if (!msg) {
		member_over(m, m->inbox_bytes > INBOX_MAX ? GANTRY_ERR_LIMIT : GANTRY_ERR_NOMEM,
			    "rank %d: no room for a message of rank %d, %zu bytes of messages wait to be received",
			    m->config.rank, h->from, m->inbox_bytes);
		callback_lost(m, -1, m->over, m->over_text);
		return;
	}
	msg->tag = h->tag;
	msg->size = h->size;
	if (h->size)
		memcpy(msg->bytes, body, h->size);
	m->inbox_bytes += sizeof(*msg) + h->size;
	gantry_list_append(&m->peers[h->from].inbox, &msg->node);
	tell_news(m);
}

/* Of another rank to a call, or of the hub to an allgather. */
static void on_reply(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	gantry_list_each_entry_safe (call, &m->calls, struct ctl_call, node) {
		if (call->tag != h->tag || call->to != h->from)
			continue;
		call->size = h->size;
		if (h->kind == CTL_GATHERED && h->result != GANTRY_OK)
			ctl_get_text(call->text, sizeof(call->text), body, h->size);
		else if (h->size && h->size <= call->room)
			memcpy(call->reply, body, h->size);
		call_done(call, (gantry_result)h->result);
		break;
	}
	tell_news(m);
}

static void on_lost_peer(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	char text[CTL_TEXT_MAX];

	if (m->peers[h->from].gone != GANTRY_OK)
		return;
	ctl_get_text(text, sizeof(text), body, h->size);
	peer_gone(m, h->from, (gantry_result)h->result, text);
	callback_lost(m, h->from, (gantry_result)h->result, text);
}

static void has_left(void *ctx, int rank) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = ctx;
	char text[32];

	if (rank == m->config.rank || m->peers[rank].gone != GANTRY_OK)
		return;
	snprintf(text, sizeof(text), "rank %d has left", rank);
	peer_gone(m, rank, GANTRY_ERR_PEER_CLOSED, text);
	if (m->config.tell_left)
		callback_lost(m, rank, GANTRY_ERR_PEER_CLOSED, text);
}

static void is_with_hub(void *ctx, int rank)
{
	struct gantry_ctl *m = ctx;

	m->peers[rank].with_hub = 1;
}

static int on_ready(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	if (m->ready || ctl_ready_decode(body, h->size, m->config.nranks, is_with_hub, m, m->direct.addrs,
					 &m->direct.naddrs) != GANTRY_OK)
		return 0;
	m->ready = 1;
	maybe_joined(m);
	return 1;
}

/* From or about another rank. 1 if that is right at this time. */
static int on_rank_frame(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	if (h->from < 0 || h->from >= m->config.nranks || !m->ready)
		return 0;
	switch (h->kind) {
	case CTL_MESSAGE:
		on_message(m, h, body);
		return 1;
	case CTL_CALL:
		queue_callback(m, h, body, h->size);
		return 1;
	case CTL_REPLY:
		on_reply(m, h, body);
		return 1;
	case CTL_LOST:
		if (h->result <= GANTRY_AGAIN)
			return 0; /* a loss without a cause would end nothing */
		if (h->from == m->config.rank) {
			char text[CTL_TEXT_MAX];

			ctl_get_text(text, sizeof(text), body, h->size);
			/* All others count this rank as lost too: it was stopped, or cut off. */
			member_over(m, (gantry_result)h->result, "the hub at %s counts this rank as lost: %s", m->hub,
				    text);
			callback_lost(m, m->config.rank, m->over, m->over_text);
		} else {
			on_lost_peer(m, h, body);
		}
		return 1;
	default:
		return 0;
	}
}

static int on_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	char text[CTL_TEXT_MAX];
	int right = 1;

	switch (h->kind) {
	case CTL_LIFE:
		ctl_conn_send_life(c);
		break;
	case CTL_TIME:
		on_time(m, h, body);
		break;
	case CTL_READY:
		right = on_ready(m, h, body);
		break;
	case CTL_REFUSED:
		ctl_get_text(text, sizeof(text), body, h->size);
		member_over(m, h->result > GANTRY_AGAIN ? (gantry_result)h->result : GANTRY_ERR_REFUSED,
			    "rank %d: refused by the hub at %s: %s", m->config.rank, m->hub, text);
		break;
	case CTL_GATHERED:
		on_reply(m, h, body);
		break;
	case CTL_LEFT:
		right = m->ready && ctl_ranges_decode(body, h->size, m->config.nranks, has_left, m) == GANTRY_OK;
		break;
	case CTL_BYE:
		hub_gone(m, GANTRY_ERR_PEER_LOST, "its process ended", 1);
		break;
	default:
		right = on_rank_frame(m, h, body);
	}
	if (!right)
		hub_gone(m, GANTRY_ERR_PROTOCOL, "it broke the protocol", 0);
	return m->step == STEP_OVER;
}

static void on_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	hub_gone(c->owner, why, cause, 0);
}

static void on_cut(struct ctl_conn *c, const char *cause) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;

	LOG_INFO(COMM, "rank %d: the connection to the hub at %s broke (%s), dialling again", m->config.rank, m->hub,
		 cause);
	snprintf(m->dial.cause, sizeof(m->dial.cause), "%s", cause);
	redial(m);
}

static const struct ctl_conn_ops member_ops = {.frame = on_frame, .broken = on_broken, .cut = on_cut};

/* Where it is dialled now. */
static const struct gantry_addr *candidate(const struct gantry_ctl *m) REQUIRES(loop_mu)
{
	return &m->addrs[(m->dial.way + m->dial.tries) % (uint32_t)m->naddrs];
}

static void dial_done(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	m->dial.step = DIAL_IDLE;
	m->dial.way = (m->dial.way + m->dial.tries) % (uint32_t)m->naddrs;
	m->dial.tries = 0;
}

/* The hub has accepted us. Takes the descriptor. */
static gantry_result member_accepted(struct gantry_ctl *m, int fd, const struct ctl_accepted *a) REQUIRES(loop_mu)
{
	gantry_result r = ctl_conn_make(fd, &m->dial.shake.seals, candidate(m), &member_ops, m, &m->conn);

	if (r != GANTRY_OK)
		return r;
	dial_done(m);
	m->conn->session.on = a->resumes;
	m->conn->in.max_gathered = (uint32_t)m->config.nranks * GANTRY_CTL_MESSAGE_MAX;
	m->step = STEP_WAITING;
	m->best_trip = UINT64_MAX;
	/* In one process there is one clock. */
	m->trips = a->same_process ? 0 : TRIPS;
	if (m->trips)
		ask_time(m);
	/* The hub knows our deadline and who is missing by then: give it time to say so. */
	m->deadline += CTL_ANSWER_NS;
	ctl_service_due(m->deadline);
	ctl_service_due(m->conn->heard + m->timeout);
	return GANTRY_OK;
}

/* ---- dialling, to join and again ---- */

static void redial(struct gantry_ctl *m)
{
	if (m->dial.step != DIAL_IDLE)
		return;
	m->dial.step = DIAL_PAUSE;
	m->dial.retry_at = inet_loop.now;
	m->dial.refused_since = 0;
	ctl_service_due(m->dial.retry_at);
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
	inet_source_close(&m->dial.source);
	if (m->dial.tries > 6 && gantry_ratelimit_pass(&limit, &more))
		LOG_INFO(COMM, "rank %d: still trying to reach the hub at %s: %s", m->config.rank, m->hub,
			 m->dial.cause);
}

static void attempt_failed(struct gantry_ctl *m, int e) REQUIRES(loop_mu)
{
	enum sock_errno_class class = sock_errno_class(e);

	snprintf(m->dial.cause, sizeof(m->dial.cause), "%s (%s)", strerror(e), sock_errno_hint(e));
	if (m->conn && ctl_refused(&m->dial.refused_since, e, m->timeout))
		hub_gone(m, GANTRY_ERR_PEER_LOST,
			 "the connection broke, and nothing listens there any more: its process ended", 0);
	else if (m->conn)
		retry_later(m, m->dial.cause);
	else if (class == SOCK_RETRY || (class == SOCK_FATAL && m->naddrs > 1)) /* another interface may lead there */
		retry_later(m, m->dial.cause);
	else
		member_over(m, class == SOCK_LIMIT ? GANTRY_ERR_LIMIT : GANTRY_ERR_UNREACHABLE,
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
		.addr = m->direct.addr,
		.resume = inet_resume_says(),
		.generation = m->conn ? ++m->dial.generation : 0,
		.host = gantry_host_id(),
		.received = m->conn ? m->conn->session.received : 0,
	};

	ctl_hello_encode(&h, out);
	inet_handshake_end(&m->dial.shake); /* of an attempt before */
	if (inet_handshake_start_client(&m->dial.shake, &hub_service.protocol, &m->key, out, sizeof(out)) !=
	    GANTRY_OK) {
		if (m->conn)
			retry_later(m, gantry_last_error());
		else
			member_over(m, GANTRY_ERR_SYSTEM, "rank %d: %s", m->config.rank, gantry_last_error());
		return;
	}
	m->dial.step = DIAL_SHAKING;
	m->dial.attempt_by = inet_loop.now + attempt_ns(m, ATTEMPT_MS);
	ctl_service_due(m->dial.attempt_by);
}

/* The hub has the new socket. If it says that nothing outlives sockets any more, it is about to tell why. */
static void resume(struct gantry_ctl *m, const struct ctl_accepted *a) REQUIRES(loop_mu)
{
	struct ctl_conn *c = m->conn;
	uint64_t received = a->resumes ? a->received : c->session.acked;

	if (!ctl_conn_counts(c, received) || a->first > c->session.received) {
		hub_gone(m, GANTRY_ERR_PROTOCOL, "it counts other frames than were sent", 0);
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

static void shake_done(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_accepted a;

	if (m->conn && ctl_accepted_decode(m->dial.shake.payload, m->dial.shake.payload_size, &a) == GANTRY_OK)
		resume(m, &a);
	else if (m->conn)
		hub_gone(m, GANTRY_ERR_PROTOCOL, "it does not speak our protocol", 0);
	else if (ctl_accepted_decode(m->dial.shake.payload, m->dial.shake.payload_size, &a) != GANTRY_OK)
		member_over(m, GANTRY_ERR_PROTOCOL, "rank %d: the hub at %s does not speak our protocol",
			    m->config.rank, m->hub);
	else if (member_accepted(m, inet_source_release(&m->dial.source), &a) != GANTRY_OK)
		member_over(m, GANTRY_ERR_NOMEM, "rank %d: %s", m->config.rank, gantry_last_error());
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
		retry_later(m, h->text);
		return;
	}
	if (!h->broken && m->conn) {
		hub_gone(m, h->refused && h->error == GANTRY_ERR_REFUSED ? GANTRY_ERR_PEER_LOST : h->error, h->text, 0);
		return;
	}
	if (!h->broken) {
		member_over(m, h->error,
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
		member_over(m, GANTRY_ERR_ABORTED, "rank %d: the process exits", m->config.rank);
	if (m->dial.step != DIAL_SHAKING)
		return;
	event = inet_handshake_move(&m->dial.shake, s->fd);
	inet_source_set(s, inet_handshake_events(&m->dial.shake));
	if (event == INET_DONE)
		shake_done(m);
	else if (event == INET_FAILED)
		shake_failed(m);
}

static void start(struct gantry_ctl *m) REQUIRES(loop_mu)
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

/* Until it is accepted. */
static void dial_tick(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint64_t now = inet_loop.now;
	char seconds[16];

	if (m->step == STEP_JOINING && now >= m->deadline) {
		member_over(m, m->dial.reached ? GANTRY_ERR_TIMEOUT : GANTRY_ERR_UNREACHABLE,
			    "rank %d: %s the hub at %s within %s (GANTRY_CONNECT_TIMEOUT) and %u tries: %s",
			    m->config.rank, m->dial.reached ? "no agreement with" : "no connection to", m->hub,
			    ctl_seconds(m->connect_timeout, seconds), m->dial.tries + 1,
			    *m->dial.cause ? m->dial.cause : "no answer: a firewall may drop the packets");
		return;
	}
	if (m->dial.step != DIAL_PAUSE && now >= m->dial.attempt_by)
		retry_later(m, m->dial.step == DIAL_CONNECTING ? "no answer: a firewall may drop the packets"
							       : "it takes connections but says nothing");
	if (m->dial.step == DIAL_PAUSE && now >= m->dial.retry_at)
		start(m);
	if (m->step == STEP_OVER)
		return;
	if (m->step == STEP_JOINING)
		ctl_service_due(m->deadline);
	ctl_service_due(m->dial.step == DIAL_PAUSE ? m->dial.retry_at : m->dial.attempt_by);
}

/* ---- the callers' wishes, and the clock ---- */

/* False: there is nobody who could hear it, or who would miss it. */
static bool say_leave(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1};

	if (m->step == STEP_WAITING && *m->gave_up) { /* the others shall know why, not only that it is gone */
		h.result = GANTRY_ERR_PEER_LOST;
		h.size = (uint32_t)strlen(m->gave_up);
	}
	if (!m->conn || (m->step != STEP_JOINED && !h.size))
		return false;
	ctl_conn_send(m->conn, &h, m->gave_up);
	return true;
}

/* The hub ends the connection when it knows that the rank leaves. Until then it is dialled again if it breaks: else a rank
 * that left would be counted as lost. */
static bool waits_for_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	if (!m->conn || !m->conn->session.on || inet_loop.now >= m->leave_by)
		return false;
	if (m->dial.step != DIAL_IDLE)
		dial_tick(m);
	ctl_service_due(m->leave_by);
	return m->conn && m->conn->session.on;
}

static void member_leave(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint64_t linger = m->timeout < linger_ns ? m->timeout : linger_ns;

	if (!m->leave_by) {
		m->leave_by = inet_loop.now + linger;
		if (!say_leave(m)) {
			ctl_conn_close(m->conn);
			m->conn = NULL;
		}
	}
	if (waits_for_hub(m))
		return;
	inet_source_close(&m->dial.source);
	ctl_conn_finish(m->conn, linger);
	ctl_service.nleaving--;
	ctl_exchange_forget(m);
	inet_port_put(&exchange_service, m->direct.port);
	inet_port_put(&hub_service, m->port);
	drop_callbacks(m);
	gantry_list_remove(&m->node);
	ctl_member_free(m);
}

void ctl_members_take(void)
{
	gantry_list_each_entry_safe (m, &ctl_service.members, struct gantry_ctl, node) {
		if (m->leaving) {
			member_leave(m);
			continue;
		}
		if (m->dial.step != DIAL_IDLE)
			dial_tick(m); /* a new one, or one that has just lost its socket */
		if (m->direct.exchange && !m->direct.exchange->begun)
			ctl_exchange_tick(m);
	}
}

static void give_up_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1, .result = GANTRY_ERR_PEER_SILENT};
	char seconds[16], cause[300], word[400];

	ctl_seconds(m->timeout, seconds);
	if (m->dial.step == DIAL_IDLE)
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT)", seconds);
	else
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT), nor another connection: %s",
			 seconds, *m->dial.cause ? m->dial.cause : "no answer");
	/* If it was only stopped, it shall know when it comes back. */
	snprintf(word, sizeof(word), "it gave up the hub: %s", cause);
	h.size = (uint32_t)strlen(word);
	if (m->step == STEP_JOINED) {
		ctl_conn_send(m->conn, &h, word);
		ctl_conn_finish(m->conn, CTL_ANSWER_NS);
		m->conn = NULL;
	}
	hub_gone(m, GANTRY_ERR_PEER_SILENT, cause, 0);
}

static void watch_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct ctl_conn *c = m->conn;
	uint64_t stall = m->timeout / STALLS;

	if (ctl_silent(&m->conn->heard, m->timeout)) {
		give_up_hub(m);
		return;
	}
	ctl_service_due(c->heard + ctl_patience(m->timeout));
	if (c->session.on && inet_loop.now - c->heard >= stall)
		redial(m);
	else if (c->session.on)
		ctl_service_due(c->heard + stall);
	if (m->dial.step == DIAL_PAUSE && !ctl_conn_is_cut(c) && inet_loop.now - c->heard < stall)
		m->dial.step = DIAL_IDLE; /* it was heard after all */
	if (m->dial.step != DIAL_IDLE)
		dial_tick(m);
}

void ctl_members_tick(void)
{
	gantry_list_each_entry (m, &ctl_service.members, struct gantry_ctl, node) {
		char seconds[16];

		if (m->step == STEP_JOINING) {
			dial_tick(m);
		} else if (m->step == STEP_WAITING && inet_loop.now >= m->deadline) {
			member_over(m, GANTRY_ERR_TIMEOUT, "rank %d: not all ranks came to the hub at %s within %s",
				    m->config.rank, m->hub, ctl_seconds(m->connect_timeout, seconds));
		} else if (m->step < STEP_OVER) {
			if (m->step == STEP_WAITING)
				ctl_service_due(m->deadline);
			ctl_exchange_tick(m);
			watch_hub(m);
		}
	}
}
