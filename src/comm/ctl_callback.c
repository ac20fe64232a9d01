/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks into the user's code. They are queued while a turn goes on and run at its end, without any lock: the user
 * may hold one of his own that he also holds when he calls us. gantry_ctl_leave waits for the one that runs.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/ctl_member.h"

struct callback {
	struct gantry_list node; /* in the service's events */
	struct gantry_ctl *member;
	struct ctl_head head; /* LOST or CALL */
	uint8_t bytes[];      /* a text with its end, or what the call brings */
};

static void queue(struct gantry_ctl *m, const struct ctl_head *h, const void *bytes, size_t n)
{
	struct callback *cb = malloc(sizeof(*cb) + n);

	if (!cb) {
		LOG_ERROR(COMM, "no memory to tell rank %d of a %s of rank %d", m->config.rank, ctl_kind_name(h->kind),
			  h->from);
		return;
	}
	cb->member = m;
	cb->head = *h;
	if (n)
		memcpy(cb->bytes, bytes, n);
	gantry_list_append(&ctl_service.events, &cb->node);
}

void ctl_callback_lost(struct gantry_ctl *m, int rank, gantry_result why, const char *text)
{
	const struct ctl_head h = {.kind = CTL_LOST, .from = rank, .result = why};

	LOG_INFO(COMM, "rank %d: lost %s", m->config.rank, text);
	if (m->config.on_lost)
		queue(m, &h, text, strlen(text) + 1);
}

void ctl_callback_call(struct gantry_ctl *m, const struct ctl_head *h, const uint8_t *body)
{
	queue(m, h, body, h->size);
}

static void answer(struct callback *cb) REQUIRES(loop_mu)
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

static void run(struct callback *cb) REQUIRES(loop_mu)
{
	struct gantry_ctl *m = cb->member;

	m->calling = 1;
	if (cb->head.kind == CTL_CALL) {
		answer(cb);
	} else {
		inet_loop_unlock();
		m->config.on_lost(m->config.ctx, cb->head.from, (gantry_result)cb->head.result,
				  (const char *)cb->bytes);
		inet_loop_lock();
	}
	m->calling = 0;
	pthread_cond_broadcast(&ctl_service.quiet);
}

int ctl_members_call_back(void)
{
	int ran = 0;

	while (!gantry_list_empty(&ctl_service.events)) {
		struct callback *cb = gantry_container(ctl_service.events.next, struct callback, node);

		gantry_list_remove(&cb->node);
		if (!cb->member->leaving)
			run(cb);
		free(cb);
		ran = 1;
	}
	return ran;
}

void ctl_callbacks_drop(const struct gantry_ctl *m)
{
	gantry_list_each_safe (pos, &ctl_service.events) {
		struct callback *cb = gantry_container(pos, struct callback, node);

		if (cb->member == m) {
			gantry_list_remove(&cb->node);
			free(cb);
		}
	}
}
