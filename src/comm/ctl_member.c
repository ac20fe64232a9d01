/* SPDX-License-Identifier: Apache-2.0 */
/* What a membership hears from the hub, once it is accepted. The service's mu is held throughout. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/ctl_member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

enum { TRIPS = 5, INBOX_MAX = 256 << 20 };

static void maybe_joined(struct gantry_ctl *m)
{
	if (!m->ready || m->trips || m->step != STEP_WAITING)
		return;
	m->step = STEP_JOINED;
	pthread_mutex_lock(&m->mu);
	m->joined = 1;
	ctl_member_news(m);
	pthread_mutex_unlock(&m->mu);
}

static void ask_time(struct gantry_ctl *m)
{
	const struct ctl_head h = {.kind = CTL_TIME, .from = m->config.rank, .to = -1, .tag = gantry_now_ns()};

	ctl_conn_send(m->conn, &h, NULL);
}

static void on_time(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body)
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
	struct ctl_message *msg = malloc(sizeof(*msg) + h->size);
	size_t waiting;
	int fits = 0;

	pthread_mutex_lock(&m->mu);
	waiting = m->inbox_bytes;
	if (msg && waiting <= INBOX_MAX) {
		msg->tag = h->tag;
		msg->size = h->size;
		if (h->size)
			memcpy(msg->bytes, body, h->size);
		m->inbox_bytes += sizeof(*msg) + h->size;
		gantry_list_append(&m->peers[h->from].inbox, &msg->node);
		ctl_member_news(m);
		fits = 1;
	}
	pthread_mutex_unlock(&m->mu);
	if (fits)
		return;
	ctl_member_over(m, msg ? GANTRY_ERR_LIMIT : GANTRY_ERR_NOMEM,
			"rank %d: no room for a message of rank %d, %zu bytes of messages wait to be received",
			m->config.rank, h->from, waiting);
	free(msg);
	ctl_callback_lost(m, -1, m->over, m->over_text);
}

static void on_reply(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body)
{
	pthread_mutex_lock(&m->mu);
	gantry_list_each_safe (pos, &m->calls) {
		struct ctl_call *call = gantry_container(pos, struct ctl_call, node);

		if (call->tag != h->tag || call->to != h->from)
			continue;
		call->size = h->size;
		if (h->size && h->size <= call->room)
			memcpy(call->reply, body, h->size);
		ctl_call_done(call, (gantry_result)h->result);
		break;
	}
	ctl_member_news(m);
	pthread_mutex_unlock(&m->mu);
}

static void on_gathered(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body)
{
	pthread_mutex_lock(&m->mu);
	if (m->gather_into && h->tag == m->last_gather) {
		m->gather_result = (gantry_result)h->result;
		if (h->result != GANTRY_OK)
			ctl_get_text(m->gather_text, sizeof(m->gather_text), body, h->size);
		else if (h->size == m->gather_size * (size_t)m->config.nranks)
			memcpy(m->gather_into, body, h->size);
		else
			m->gather_result = GANTRY_ERR_PROTOCOL;
		m->gather_into = NULL;
		ctl_member_news(m);
	}
	pthread_mutex_unlock(&m->mu);
}

static void on_gone(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body)
{
	char text[CTL_TEXT_MAX];
	int lost = h->kind == CTL_LOST;

	if (lost)
		ctl_get_text(text, sizeof(text), body, h->size);
	else
		snprintf(text, sizeof(text), "rank %d has left", h->from);
	if (m->peers[h->from].gone != GANTRY_OK)
		return;
	pthread_mutex_lock(&m->mu);
	ctl_peer_gone(m, h->from, lost ? (gantry_result)h->result : GANTRY_ERR_PEER_CLOSED, text);
	pthread_mutex_unlock(&m->mu);
	if (lost)
		ctl_callback_lost(m, h->from, (gantry_result)h->result, text);
	else if (m->config.tell_left)
		ctl_callback_lost(m, h->from, GANTRY_ERR_PEER_CLOSED, text);
}

static int on_ready(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body)
{
	if (h->size != ((uint32_t)m->config.nranks + 7) / 8 || m->ready)
		return 0;
	for (int i = 0; i < m->config.nranks; i++)
		m->peers[i].with_hub = body[i / 8] >> i % 8 & 1;
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
		ctl_callback_call(m, h, body);
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
			ctl_self_lost(m, (gantry_result)h->result, text);
		} else {
			on_gone(m, h, body);
		}
		return 1;
	case CTL_LEFT:
		if (h->from == m->config.rank)
			return 0; /* who has left is not told */
		on_gone(m, h, body);
		return 1;
	default:
		return 0;
	}
}

static int on_frame(struct ctl_conn *c, const struct ctl_head *h, const uint8_t *body) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = c->owner;
	const struct ctl_head life = {.kind = CTL_LIFE, .from = m->config.rank, .to = -1};
	char text[CTL_TEXT_MAX];
	int right = 1;

	switch (h->kind) {
	case CTL_LIFE:
		ctl_conn_send(c, &life, NULL);
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
				"rank %d: refused by the hub at %s: %s", m->config.rank, m->hub, text);
		break;
	case CTL_GATHERED:
		on_gathered(m, h, body);
		break;
	case CTL_BYE:
		ctl_hub_gone(m, GANTRY_ERR_PEER_LOST, "its process ended", 1);
		break;
	default:
		right = on_rank_frame(m, h, body);
	}
	if (!right)
		ctl_hub_gone(m, GANTRY_ERR_PROTOCOL, "it broke the protocol", 0);
	return m->step == STEP_OVER;
}

static void on_broken(struct ctl_conn *c, gantry_result why, const char *cause) REQUIRES(loop_mu)
{
	ctl_hub_gone(c->owner, why, cause, 0);
}

static const struct ctl_conn_ops member_ops = {.frame = on_frame, .broken = on_broken};

gantry_result ctl_member_accepted(struct gantry_ctl *m, int fd, const struct ctl_accepted *a)
{
	gantry_result r = ctl_conn_make(fd, &m->addrs[m->tries % (uint32_t)m->naddrs], &member_ops, m, &m->conn);

	if (r != GANTRY_OK)
		return r;
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
