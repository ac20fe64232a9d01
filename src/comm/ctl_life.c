/* SPDX-License-Identifier: Apache-2.0 */
/* How memberships end: ranks that are gone, a hub that is gone, leaving; and the clock. The service's mu is held. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/ctl_member.h"

static const uint64_t see_off_ns = 2000000000;

/* ---- news for the callers ---- */

void ctl_member_news(struct gantry_ctl *m)
{
	m->arrivals++;
	pthread_cond_broadcast(&m->news);
}

void ctl_call_done(struct ctl_call *call, gantry_result result)
{
	call->result = result;
	call->done = 1;
	gantry_list_remove(&call->node);
}

void ctl_peer_gone(struct gantry_ctl *m, int rank, gantry_result why, const char *text)
{
	struct ctl_peer *peer = &m->peers[rank];

	if (peer->gone != GANTRY_OK)
		return;
	peer->gone = why;
	peer->text = strdup(text); /* NULL: the code alone has to do */
	gantry_list_each_safe (pos, &m->calls) {
		struct ctl_call *call = gantry_container(pos, struct ctl_call, node);

		if (call->to == rank)
			ctl_call_done(call, why);
	}
	ctl_member_news(m);
}

void ctl_member_over(struct gantry_ctl *m, gantry_result why, const char *fmt, ...)
{
	va_list ap;

	m->step = STEP_OVER;
	inet_source_close(&m->dial);
	ctl_conn_close(m->conn);
	m->conn = NULL;
	pthread_mutex_lock(&m->mu);
	if (m->over == GANTRY_OK) {
		m->over = why;
		va_start(ap, fmt);
		vsnprintf(m->over_text, sizeof(m->over_text), fmt, ap);
		va_end(ap);
	}
	gantry_list_each_safe (pos, &m->calls) {
		ctl_call_done(gantry_container(pos, struct ctl_call, node), why);
	}
	if (m->gather_into) {
		m->gather_into = NULL;
		m->gather_result = m->over;
		memcpy(m->gather_text, m->over_text, sizeof(m->gather_text));
	}
	ctl_member_news(m);
	pthread_mutex_unlock(&m->mu);
}

void ctl_hub_gone(struct gantry_ctl *m, gantry_result why, const char *cause, int properly)
{
	int was_joined = m->step == STEP_JOINED, lived = 0, lost = 0;
	char text[CTL_TEXT_MAX];

	if (!was_joined) {
		ctl_member_over(m, why, "rank %d: the hub at %s was lost while the ranks were joining: %s",
				m->config.rank, m->hub, cause);
		return;
	}
	for (int i = 0; i < m->config.nranks; i++) {
		struct ctl_peer *peer = &m->peers[i];

		if (!peer->with_hub || i == m->config.rank)
			continue;
		lived = 1;
		if (peer->gone != GANTRY_OK) /* only this thread writes it */
			continue;
		lost = 1;
		snprintf(text, sizeof(text), "rank %d (with the hub at %s): %s", i, m->hub, cause);
		pthread_mutex_lock(&m->mu);
		ctl_peer_gone(m, i, why, text);
		pthread_mutex_unlock(&m->mu);
		ctl_callback_lost(m, i, why, text);
	}
	properly |= lived && !lost;
	ctl_member_over(m, properly && !lost ? GANTRY_ERR_PEER_CLOSED : why, "the hub at %s is gone: %s", m->hub,
			cause);
	if (!lived && !properly) {
		snprintf(text, sizeof(text), "the control plane (hub at %s): %s", m->hub, cause);
		ctl_callback_lost(m, -1, why, text);
	}
}

void ctl_self_lost(struct gantry_ctl *m, gantry_result why, const char *text)
{
	ctl_member_over(m, why, "the hub at %s counts this rank as lost: %s", m->hub, text);
	ctl_callback_lost(m, m->config.rank, why, m->over_text);
}

/* ---- the callers' wishes, and the clock ---- */

static void farewell(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	const struct ctl_head h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1};

	if (m->conn && m->step == STEP_JOINED) {
		ctl_conn_send(m->conn, &h, NULL);
		ctl_conn_finish(m->conn, m->timeout < see_off_ns ? m->timeout : see_off_ns);
	} else {
		inet_source_close(&m->dial);
		ctl_conn_close(m->conn);
	}
	ctl_service.nleaving--;
	ctl_callbacks_drop(m);
	gantry_list_remove(&m->node);
	ctl_member_free(m);
}

void ctl_members_take(void)
{
	gantry_list_each_safe (pos, &ctl_service.members) {
		struct gantry_ctl *m = gantry_container(pos, struct gantry_ctl, node);

		pthread_mutex_lock(&m->mu);
		gantry_list_each_safe (o, &m->outbox) {
			struct ctl_out *out = gantry_container(o, struct ctl_out, node);

			gantry_list_remove(&out->node);
			if (m->conn)
				ctl_conn_write(m->conn, out);
			else
				ctl_out_free(out);
		}
		m->outbox_bytes = m->conn ? m->conn->out_bytes : 0;
		pthread_mutex_unlock(&m->mu);
		if (m->leaving)
			farewell(m);
		else if (m->step < STEP_WAITING)
			ctl_join_tick(m); /* a new one */
	}
}

static void give_up_hub(struct gantry_ctl *m) REQUIRES(loop_mu)
{
	struct ctl_head h = {.kind = CTL_LEAVE, .from = m->config.rank, .to = -1, .result = GANTRY_ERR_PEER_SILENT};
	char seconds[16], cause[96], word[128];

	snprintf(cause, sizeof(cause), "no sign of life for %s (GANTRY_TIMEOUT)", ctl_seconds(m->timeout, seconds));
	/* If it was only stopped, it shall know when it comes back. */
	snprintf(word, sizeof(word), "it gave up the hub: %s", cause);
	h.size = (uint32_t)strlen(word);
	if (m->step == STEP_JOINED) {
		ctl_conn_send(m->conn, &h, word);
		ctl_conn_finish(m->conn, CTL_ANSWER_NS);
		m->conn = NULL;
	}
	ctl_hub_gone(m, GANTRY_ERR_PEER_SILENT, cause, 0);
}

void ctl_members_tick(void)
{
	gantry_list_each (pos, &ctl_service.members) {
		struct gantry_ctl *m = gantry_container(pos, struct gantry_ctl, node);
		char seconds[16];

		if (m->step < STEP_WAITING) {
			ctl_join_tick(m);
		} else if (m->step == STEP_WAITING && inet_loop.now >= m->deadline) {
			ctl_member_over(m, GANTRY_ERR_TIMEOUT, "rank %d: not all ranks came to the hub at %s within %s",
					m->config.rank, m->hub, ctl_seconds(m->connect_timeout, seconds));
		} else if (m->step < STEP_OVER) {
			if (m->step == STEP_WAITING)
				ctl_service_due(m->deadline);
			if (ctl_silent(&m->conn->heard, m->timeout))
				give_up_hub(m);
			else
				ctl_service_due(m->conn->heard + ctl_patience(m->timeout));
		}
	}
}
