/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A membership on the service thread: messages of the hub, their delivery to the callers' threads and the user's
 * callbacks, and the end, by leaving or by the hub's loss. Connecting to the hub, and reconnecting, changes for other
 * reasons: ctl_dial.c.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "ctl/ctl_member.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "ctl/hub.h"

static const uint64_t linger_ns = 2000000000;
enum { TRIPS = 5, INBOX_MAX = 256 << 20 };
enum { STALLS = 4 }; /* in GANTRY_TIMEOUT: after one without a word the hub is dialled again */

/*
 * ---- callbacks into the user's code ----
 *
 * They are queued during a pass and run at its end, without any lock: the user may hold a lock of its own that it also
 * holds when it calls us. gantry_ctl_leave waits for the one that runs.
 */

struct callback {
	struct gantry_list node; /* in the service's events */
	struct gantry_ctl *member;
	struct inet_header head; /* LOST or CALL */
	uint8_t bytes[];	 /* a text with its end, or what the call brings */
};

static void tell_news(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	m->arrivals++;
	gantry_cond_broadcast(&m->news);
}

static void queue_callback(struct gantry_ctl *m, const struct inet_header *h, const void *bytes, size_t n)
	REQUIRES(loop_mu)
{
	struct callback *cb = malloc(sizeof(*cb) + n);

	if (!cb) {
		LOG_ERROR(COMM, "no memory to report to rank %d a %s from rank %d", m->config.rank,
			  ctl_kind_name(h->kind), h->from);
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
	const struct inet_header h = {.kind = CTL_LOST, .from = rank, .result = why};

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
	struct inet_header h = {.kind = CTL_REPLY, .from = m->config.rank, .to = cb->head.from, .tag = cb->head.tag};
	gantry_result r = GANTRY_ERR_UNSUPPORTED;
	size_t size = sizeof(reply);

	inet_loop_unlock();
	if (m->config.on_call)
		r = m->config.on_call(m->config.ctx, cb->head.from, cb->head.result, cb->bytes, cb->head.size, reply,
				      &size);
	inet_loop_lock();
	ASSERT(r != GANTRY_AGAIN);
	if (r == GANTRY_OK && size > sizeof(reply))
		r = GANTRY_ERR_SIZE;
	if (r != GANTRY_OK)
		size = 0; /* a failed callback need not have set the size */
	h.size = (uint32_t)size;
	h.result = (uint32_t)r;
	if (m->conn)
		inet_stream_send(m->conn, &h, reply);
}

static void run_callback(struct callback *cb) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = cb->member;

	ASSERT(!m->calling && !m->leaving);
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
		ASSERT(cb->member->callbacks > 0);
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
	ASSERT(!call->done);
	call->result = result;
	call->done = 1;
	gantry_list_remove(&call->node);
}

static void peer_gone(struct gantry_ctl *m, int rank, gantry_result why, const char *text) REQUIRES(loop_mu)
{
	struct ctl_peer *peer = &m->peers[rank];

	ASSERT(rank >= 0 && rank < m->config.nranks && why != GANTRY_OK);
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

/* Where connections outlive their sockets an end alone means nothing: the hub would wait for this rank. */
static void hang_up(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct inet_header h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1, .result = GANTRY_ERR_PEER_LOST};

	if (m->conn && m->conn->session.on && !m->conn->session.parting) {
		h.size = (uint32_t)strlen(m->over_text);
		inet_stream_send(m->conn, &h, m->over_text);
		inet_stream_finish(m->conn, CTL_ANSWER_NS);
	} else {
		inet_stream_close(m->conn);
	}
	m->conn = NULL;
}

void ctl_member_over(struct gantry_ctl *m, gantry_result why, const char *fmt, ...)
{
	va_list ap;

	m->step = STEP_OVER;
	inet_dial_stop(&m->dial->to_hub);
	if (m->over == GANTRY_OK) {
		m->over = why;
		va_start(ap, fmt);
		vsnprintf(m->over_text, sizeof(m->over_text), fmt, ap);
		va_end(ap);
	}
	hang_up(m);
	gantry_list_each_entry_safe (call, &m->calls, struct ctl_call, node) {
		const struct ctl_peer *lost = m->first_lost && call->to < 0 ? &m->peers[m->first_lost - 1] : NULL;

		snprintf(call->text, sizeof(call->text), "%s", lost && lost->text ? lost->text : m->over_text);
		call_done(call, lost ? lost->gone : why);
	}
	tell_news(m);
}

/*
 * The hub is gone, and with it the ranks of its process, unless they had left before: then its end was orderly, and the
 * others continue without it. If no rank lives there, the lost rank is -1. properly: it has sent a goodbye message.
 */
static void hub_gone(struct gantry_ctl *m, gantry_result why, const char *cause, bool properly) REQUIRES(loop_mu)
{
	bool lived = false, lost = false;
	char text[CTL_TEXT_MAX];

	if (m->step != STEP_JOINED) {
		const struct ctl_peer *first = m->first_lost ? &m->peers[m->first_lost - 1] : NULL;

		/* The hub may have ended because of a rank that this one has been given as lost: that is the cause. */
		if (first && first->text)
			ctl_member_over(m, first->gone, "%s", first->text);
		else
			ctl_member_over(m, why,
					"rank %d: the bootstrap root at %s was lost while the ranks were joining: %s",
					m->config.rank, m->hub, cause);
		return;
	}
	for (int i = 0; i < m->config.nranks; i++) {
		struct ctl_peer *peer = &m->peers[i];

		if (!peer->with_hub || i == m->config.rank)
			continue;
		lived = true;
		if (peer->gone != GANTRY_OK)
			continue;
		lost = true;
		snprintf(text, sizeof(text), "rank %d (in the process of the bootstrap root at %s): %s", i, m->hub,
			 cause);
		peer_gone(m, i, why, text);
		callback_lost(m, i, why, text);
	}
	properly |= lived && !lost;
	ctl_member_over(m, properly && !lost ? GANTRY_ERR_PEER_CLOSED : why, "the bootstrap root at %s is gone: %s",
			m->hub, cause);
	if (!lived && !properly) {
		snprintf(text, sizeof(text), "the control plane (bootstrap root at %s): %s", m->hub, cause);
		callback_lost(m, -1, why, text);
	}
}

void ctl_member_hub_lost(struct gantry_ctl *m, gantry_result why, const char *cause)
{
	hub_gone(m, why, cause, false);
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
	const struct inet_header h = {.kind = CTL_TIME, .from = m->config.rank, .to = -1, .tag = gantry_now_ns()};

	ASSERT(m->conn && m->trips > 0);
	inet_stream_send(m->conn, &h, NULL);
}

static void on_time(struct gantry_ctl *m, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
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

static void on_message(struct gantry_ctl *m, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct ctl_message *msg = m->inbox_bytes <= INBOX_MAX ? malloc(sizeof(*msg) + h->size) : NULL;

	if (!msg) {
		ctl_member_over(
			m, m->inbox_bytes > INBOX_MAX ? GANTRY_ERR_LIMIT : GANTRY_ERR_NOMEM,
			"rank %d: no room for a message from rank %d: %zu bytes of messages are waiting to be received",
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
static void on_reply(struct gantry_ctl *m, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
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

static void on_lost_peer(struct gantry_ctl *m, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
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

static int on_ready(struct gantry_ctl *m, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	if (m->ready || ctl_ready_decode(body, h->size, m->config.nranks, is_with_hub, m, m->direct.addrs,
					 &m->direct.naddrs) != GANTRY_OK)
		return 0;
	m->ready = 1;
	maybe_joined(m);
	return 1;
}

/* From or about another rank. 1 if that is right at this time. */
static int on_rank_frame(struct gantry_ctl *m, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
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
			ctl_member_over(m, (gantry_result)h->result,
					"the bootstrap root at %s counts this rank as lost: %s", m->hub, text);
			callback_lost(m, m->config.rank, m->over, m->over_text);
		} else {
			on_lost_peer(m, h, body);
		}
		return 1;
	default:
		return 0;
	}
}

static int on_frame(struct inet_stream *c, const struct inet_header *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	char text[CTL_TEXT_MAX];
	int right = 1;

	switch (h->kind) {
	case CTL_LIFE:
		inet_stream_send_life(c);
		break;
	case CTL_TIME:
		on_time(m, h, body);
		break;
	case CTL_READY:
		right = on_ready(m, h, body);
		break;
	case CTL_REFUSED:
		ctl_get_text(text, sizeof(text), body, h->size);
		ctl_member_over(m, h->result > GANTRY_AGAIN ? (gantry_result)h->result : GANTRY_ERR_REFUSED,
				"rank %d: refused by the bootstrap root at %s: %s", m->config.rank, m->hub, text);
		break;
	case CTL_GATHERED:
		right = h->from == -1; /* or it would answer a call */
		if (right)
			on_reply(m, h, body);
		break;
	case CTL_LEFT:
		right = m->ready && ctl_ranges_decode(body, h->size, m->config.nranks, has_left, m) == GANTRY_OK;
		break;
	case CTL_BYE:
		hub_gone(m, GANTRY_ERR_PEER_LOST, "its process ended", true);
		break;
	default:
		right = on_rank_frame(m, h, body);
	}
	if (!right)
		ctl_member_hub_lost(m, GANTRY_ERR_PROTOCOL, "protocol error");
	return m->step == STEP_OVER;
}

static void on_broken(struct inet_stream *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	ctl_member_hub_lost(c->owner, why, cause);
}

static void on_cut(struct inet_stream *c, const char *cause) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;

	LOG_INFO(COMM, "rank %d: the connection to the bootstrap root at %s broke (%s); reconnecting", m->config.rank,
		 m->hub, cause);
	snprintf(m->dial->to_hub.text, sizeof(m->dial->to_hub.text), "%s", cause);
	ctl_dial_again(m);
}

const struct inet_stream_ops ctl_member_ops = {.frame = on_frame, .broken = on_broken, .cut = on_cut};

void ctl_member_accepted(struct gantry_ctl *m, const struct ctl_accepted *a)
{
	m->conn->session.on = a->resumes;
	m->conn->in.max_grown = (uint32_t)m->config.nranks * GANTRY_CTL_MESSAGE_MAX;
	m->step = STEP_WAITING;
	m->best_trip = UINT64_MAX;
	/* In one process there is one clock. */
	m->trips = a->same_process ? 0 : TRIPS;
	if (m->trips)
		ask_time(m);
	/* The hub knows our deadline, if there is one, and which ranks are missing by then: give it time to report
	 * them. */
	m->deadline = m->wait_by == UINT64_MAX ? UINT64_MAX : m->wait_by + CTL_ANSWER_NS;
	ctl_service_due(m->deadline);
	ctl_service_due(m->conn->received_at + m->timeout);
}

/* ---- the callers' wishes, and the clock ---- */

/* False: there is no receiver for it, or none that would miss it. */
static bool say_leave(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct inet_header h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1};

	if (m->step == STEP_WAITING && *m->gave_up) { /* the others shall know why, not only that it is gone */
		h.result = GANTRY_ERR_PEER_LOST;
		h.size = (uint32_t)strlen(m->gave_up);
	}
	if (!m->conn || (m->step != STEP_JOINED && !h.size))
		return false;
	inet_stream_send(m->conn, &h, m->gave_up);
	m->conn->session.parting = true;
	return true;
}

/* The hub ends the connection when it knows that the rank leaves. Until then it is dialled again if it breaks: else a rank
 * that left would be counted as lost. */
static bool waits_for_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	if (!m->conn || !m->conn->session.on || inet_loop.now >= m->leave_by)
		return false;
	ctl_service_due(m->leave_by);
	return m->conn && m->conn->session.on;
}

static void member_leave(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	uint64_t linger = m->timeout < linger_ns ? m->timeout : linger_ns;

	if (!m->leave_by) {
		m->leave_by = inet_loop.now + linger;
		if (!say_leave(m)) {
			inet_stream_close(m->conn);
			m->conn = NULL;
		}
	}
	if (waits_for_hub(m))
		return;
	inet_dial_stop(&m->dial->to_hub);
	inet_stream_finish(m->conn, linger);
	ASSERT(ctl_service.nleaving > 0);
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
		if (m->direct.exchange && !m->direct.exchange->begun)
			ctl_exchange_tick(m);
	}
}

static void give_up_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct inet_header h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1, .result = GANTRY_ERR_PEER_SILENT};
	char seconds[16], cause[400], word[450];

	ctl_seconds(m->timeout, seconds);
	if (m->dial->to_hub.state == INET_DIAL_IDLE)
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT)", seconds);
	else
		snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT), and reconnecting failed: %s",
			 seconds, *m->dial->to_hub.text ? m->dial->to_hub.text : "no answer");
	/* If it was only stopped, it shall know when it comes back. */
	snprintf(word, sizeof(word), "gave up on the bootstrap root: %s", cause);
	h.size = (uint32_t)strlen(word);
	if (m->step == STEP_JOINED) {
		inet_stream_send(m->conn, &h, word);
		inet_stream_finish(m->conn, CTL_ANSWER_NS);
		m->conn = NULL;
	}
	ctl_member_hub_lost(m, GANTRY_ERR_PEER_SILENT, cause);
}

static void watch_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct inet_stream *c = m->conn;
	uint64_t stall = m->timeout / STALLS;

	ASSERT(c);
	if (ctl_silent(&m->conn->received_at, m->timeout)) {
		give_up_hub(m);
		return;
	}
	ctl_service_due(c->received_at + ctl_patience(m->timeout));
	if (c->session.on && inet_loop.now - c->received_at >= stall)
		ctl_dial_again(m);
	else if (c->session.on)
		ctl_service_due(c->received_at + stall);
	if (m->dial->to_hub.state == INET_DIAL_PAUSE && !inet_stream_is_cut(c) &&
	    inet_loop.now - c->received_at < stall)
		inet_dial_stop(&m->dial->to_hub); /* its answer came after all */
}

void ctl_members_tick(void)
{
	gantry_list_each_entry (m, &ctl_service.members, struct gantry_ctl, node) {
		char seconds[16];

		if (m->step == STEP_JOINING) {
			ctl_join_watch(m);
		} else if (m->step == STEP_WAITING && inet_loop.now >= m->deadline) {
			ctl_member_over(m, GANTRY_ERR_TIMEOUT,
					"rank %d: not all ranks joined at the bootstrap root %s within %s",
					m->config.rank, m->hub, ctl_seconds(m->patience, seconds));
		} else if (m->step < STEP_OVER) {
			if (m->step == STEP_WAITING)
				ctl_service_due(m->deadline);
			ctl_exchange_tick(m);
			watch_hub(m);
		}
	}
}
