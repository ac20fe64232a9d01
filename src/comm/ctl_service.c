/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's client. ctl_service.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/ctl_service.h"

#include <stdio.h>

#include "base/identity.h"
#include "base/log.h"
#include "comm/ctl_member.h"
#include "comm/hub.h"

enum { HUBS_WAIT_MS = 500 };
static const uint64_t slack_max_ns = 500000000;

struct ctl_service ctl_service;
static struct inet_client client;

const char *ctl_seconds(uint64_t ns, char buf[16])
{
	snprintf(buf, 16, "%.3g s", (double)ns / 1e9);
	return buf;
}

void ctl_service_due(uint64_t when)
{
	if (when < ctl_service.due)
		ctl_service.due = when;
}

uint64_t ctl_patience(uint64_t timeout)
{
	uint64_t slack = timeout / 16;

	return timeout + (slack < slack_max_ns ? slack : slack_max_ns);
}

int ctl_silent(uint64_t *heard, uint64_t timeout)
{
	uint64_t now = inet_loop.now;

	/* We were away: what peers said meanwhile may be on its way, what they were not asked they could not answer. */
	if (ctl_service.late > timeout / 8 && now - *heard > timeout / 2)
		*heard = now - timeout / 2;
	return now - *heard >= ctl_patience(timeout);
}

/* ---- the loop's client ---- */

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	return ctl_service.due;
}

static void tick(void) REQUIRES(loop_mu)
{
	ctl_service.due = UINT64_MAX;
	hub_tick();
	ctl_members_tick();
	ctl_conns_tick();
}

static void pass(void) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;

	s->late = inet_loop.now > client.planned ? inet_loop.now - client.planned : 0;
	if (s->exiting)
		hub_bye();
	ctl_members_take();
	if (inet_due(s->due))
		tick();
	do {
		ctl_conns_flush();
	} while (ctl_members_call_back());
	ctl_conns_reap();
}

static int busy(void)
{
	const struct ctl_service *s = &ctl_service;

	return !gantry_list_empty(&s->hubs) || !gantry_list_empty(&s->members) || !gantry_list_empty(&s->finishing);
}

static void stop(void) REQUIRES(loop_mu)
{
	ctl_conns_reap();
}

/* What was queued for peers that read; otherwise they would find a broken connection where somebody has just left. In
 * the end the hubs say goodbye, after the ranks here. */
static int leaving(int last, int ms) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;
	int ranks = s->nleaving || !gantry_list_empty(&s->finishing);

	if (last && !s->exiting && !gantry_list_empty(&s->hubs) && (!ranks || ms > HUBS_WAIT_MS)) {
		s->exiting = 1;
		inet_loop_wake();
	}
	return ranks || (last && !gantry_list_empty(&s->hubs));
}

static void init_lists(struct ctl_service *s)
{
	gantry_list_init(&s->conns);
	gantry_list_init(&s->finishing);
	gantry_list_init(&s->dead);
	gantry_list_init(&s->dirty);
	gantry_list_init(&s->hubs);
	gantry_list_init(&s->members);
	gantry_list_init(&s->events);
}

static void in_child(void) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;

	inet_abandon(&s->conns);
	inet_abandon(&s->finishing);
	inet_abandon(&s->dead);
	inet_abandon(&s->hubs);
	inet_abandon(&s->members);
	inet_abandon(&s->events);
	s->nleaving = s->exiting = s->initialised = 0;
}

static struct inet_client client = {
	.due = next_due,
	.pass = pass,
	.busy = busy,
	.stop = stop,
	.leaving = leaving,
	.in_child = in_child,
};

gantry_result ctl_service_start(void)
{
	struct ctl_service *s = &ctl_service;

	if (!s->initialised) {
		s->process = gantry_process_id();
		snprintf(s->who, sizeof(s->who), "%s", gantry_self());
		init_lists(s);
		inet_loop_uses_hmac();
		s->initialised = 1;
	}
	if (!client.active)
		s->due = UINT64_MAX;
	return inet_loop_start(&client);
}
