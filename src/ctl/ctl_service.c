/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane's part of the loop. ctl_service.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "ctl/ctl_service.h"

#include <stdio.h>

#include "base/identity.h"
#include "base/log.h"
#include "ctl/ctl_member.h"
#include "ctl/hub.h"

enum { HUBS_WAIT_MS = 500 };
static const uint64_t slack_max_ns = 500000000;

#define LIST_OF(name) .name = {&ctl_service.name, &ctl_service.name}
struct ctl_service ctl_service = {.streams.allows = ctl_allows,
				  .streams.max_body = GANTRY_CTL_MESSAGE_MAX,
				  .streams.due = ctl_service_due,
				  LIST_OF(streams.open),
				  LIST_OF(streams.finishing),
				  LIST_OF(streams.dead),
				  LIST_OF(streams.dirty),
				  LIST_OF(hubs),
				  LIST_OF(members),
				  LIST_OF(events)};
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

int ctl_silent(uint64_t *last_seen, uint64_t timeout)
{
	uint64_t now = inet_loop.now;

	/* This thread was delayed: messages of peers may still be in the socket, and peers could not answer requests
	 * that were not sent. */
	if (ctl_service.late > timeout / 8 && now - *last_seen > timeout / 2)
		*last_seen = now - timeout / 2;
	return now - *last_seen >= ctl_patience(timeout);
}

static uint64_t next_due(void) REQUIRES(loop_mu)
{
	return ctl_service.due;
}

static void ctl_pass(void) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;

	s->late = inet_loop.now > client.planned ? inet_loop.now - client.planned : 0;
	if (s->exiting)
		hub_bye();
	ctl_members_take();
	if (inet_due(s->due)) {
		s->due = UINT64_MAX;
		hub_tick();
		ctl_members_tick();
		inet_streams_tick(&s->streams);
	}
	do {
		inet_streams_flush(&s->streams);
	} while (ctl_members_call_back());
	inet_streams_reap(&s->streams);
}

static int ctl_busy(void)
{
	const struct ctl_service *s = &ctl_service;

	return !gantry_list_empty(&s->hubs) || !gantry_list_empty(&s->members) ||
	       !gantry_list_empty(&s->streams.finishing);
}

/* Flushes what was queued for peers that read; otherwise they would find a broken connection where a rank has just
 * left. In the end the hubs send their goodbye messages, after the ranks here. */
static int ctl_leaving(int last, int ms) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;
	int ranks = s->nleaving || !gantry_list_empty(&s->streams.finishing);

	if (last && !s->exiting && !gantry_list_empty(&s->hubs) && (!ranks || ms > HUBS_WAIT_MS)) {
		s->exiting = 1;
		inet_loop_wake();
	}
	return ranks || (last && !gantry_list_empty(&s->hubs));
}

static void in_child(void) REQUIRES(loop_mu)
{
	struct ctl_service *s = &ctl_service;

	inet_streams_in_child(&s->streams);
	inet_abandon(&s->hubs);
	inet_abandon(&s->members);
	inet_abandon(&s->events);
	s->nleaving = s->exiting = s->initialised = 0;
}

static struct inet_client client = {
	.due = next_due,
	.pass = ctl_pass,
	.busy = ctl_busy,
	.leaving = ctl_leaving,
	.in_child = in_child,
};

gantry_result ctl_service_start(void)
{
	struct ctl_service *s = &ctl_service;

	if (!s->initialised) {
		s->process = gantry_process_id();
		inet_loop_uses_hmac();
		s->initialised = 1;
	}
	if (!client.active)
		s->due = UINT64_MAX;
	return inet_loop_start(&client);
}
