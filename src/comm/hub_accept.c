/* SPDX-License-Identifier: Apache-2.0 */
/* From a connection whose hello names a hub here to one of its ranks. Until it is proved no hub hears of it. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/hub.h"

static void on_hello(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct ctl_hello h;
	struct hub *hub;

	if (ctl_hello_decode(c->shake.payload, c->shake.payload_size, c->shake.peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_PROTOCOL, "not a hello");
		return;
	}
	hub = hub_find(h.comm_id);
	if (!hub) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED,
				 "no communicator of this id here: it has ended, or its process was started anew");
		return;
	}
	c->tag = h.comm_id;
	inet_conn_challenge(c, &hub->key);
}

static void on_proved(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = hub_find(c->tag);
	uint8_t answer[CTL_ACCEPTED_SIZE];
	struct ctl_hello h;

	if (!hub || ctl_hello_decode(c->shake.payload, c->shake.payload_size, c->shake.peer_version, &h) != GANTRY_OK) {
		inet_conn_refuse(c, GANTRY_ERR_REFUSED, "the communicator has just ended");
		return;
	}
	ctl_accepted_encode(&(struct ctl_accepted){.timeout_ms = (uint32_t)(hub->timeout / 1000000),
						   .same_process = h.process == ctl_service.process},
			    answer);
	if (inet_conn_accept(c, answer, sizeof(answer)))
		hub_admit(hub, c, &h);
}

/* The hub's own ranks will want to know. */
static void on_lost(struct inet_conn *c) REQUIRES(loop_mu)
{
	struct hub *hub = c->tag && !c->shake.proved && c->shake.error != GANTRY_ERR_VERSION ? hub_find(c->tag) : NULL;

	if (!hub)
		return;
	hub->refused++;
	hub->secrets |= c->shake.peer_auth == INET_AUTH_SECRET;
}

struct inet_service hub_service = {
	.protocol = {"ctl", CTL_VERSION, "hub's side", "rank's side", NULL},
	.hello = on_hello,
	.proved = on_proved,
	.lost = on_lost,
};
