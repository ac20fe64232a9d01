/* SPDX-License-Identifier: Apache-2.0 */
/* The network's part of the loop, and the process's identity. network.h has the why. */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/network.h"

#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/param.h"
#include "base/stall.h"
#include "base/trace.h"
#include "inet/asked.h"
#include "inet/settings.h"
#include "net/tcp/worker.h"

struct tcp_network tcp_network;

static const uint64_t busy_tick_ns = 10000000, idle_tick_ns = 500000000;

static void init_lists(struct tcp_network *e)
{
	gantry_list_init(&e->connectors);
	gantry_list_init(&e->opening);
	gantry_list_init(&e->shareable);
	gantry_list_init(&e->promised);
	for (int i = 0; i < TCP_BUCKETS; i++) {
		gantry_list_init(&e->sessions[i]);
		gantry_list_init(&e->listeners[i]);
		gantry_list_init(&e->connectors_by_id[i]);
	}
	gantry_list_init(&e->links);
	gantry_list_init(&e->lingering);
	gantry_list_init(&e->buried);
}

static void identify_process(struct tcp_network *e)
{
	e->process = gantry_process_id();
	e->host = gantry_host_id();
}

gantry_result tcp_network_init(void)
{
	struct tcp_network *e = &tcp_network;
	gantry_result r = GANTRY_OK;

	inet_loop_lock();
	if (e->initialised)
		goto out;
	init_lists(e);
	identify_process(e);
	TRY(inet_secret_key(&e->key));
	if (e->key.auth != INET_AUTH_NONE)
		inet_loop_uses_hmac();
	TRY(tcp_devices_scan());
	e->initialised = 1;
out:
	inet_loop_unlock();
	return r;
}

/* ---- the loop's client ---- */

/* Soon while connections are being set up or seen off, for a heartbeat's tick otherwise. */
static uint64_t next_due(void) REQUIRES(loop_mu)
{
	const struct tcp_network *e = &tcp_network;
	uint64_t resume = tcp_resume_due(), due;

	if (tcp_connectors_busy() || !gantry_list_empty(&e->lingering) || !gantry_list_empty(&e->promised) ||
	    inet_conn_waiting(&tcp_service, NULL))
		due = e->ticked + busy_tick_ns;
	else
		due = e->ticked + (gantry_list_empty(&e->links) ? idle_tick_ns : tcp_alive_interval());
	return due < resume ? due : resume;
}

void tcp_link_bury(struct tcp_link *l)
{
	gantry_list_append(&tcp_network.buried, &l->node);
	tcp_network.nburied++;
	inet_loop_wake();
}

/* Lets go of the lock while it frees: that takes as long as devices and NICs want. */
static void free_buried(struct tcp_network *e) REQUIRES(loop_mu)
{
	struct tcp_link *l;

	while (!gantry_list_empty(&e->buried)) {
		l = gantry_container(e->buried.next, struct tcp_link, node);
		gantry_list_remove(&l->node);
		inet_loop_unlock();
		tcp_link_free(l);
		inet_loop_lock();
		e->nburied--;
	}
}

static void network_pass(void) REQUIRES(loop_mu)
{
	struct tcp_network *e = &tcp_network;
	uint64_t now = gantry_now_ns();
	int asked = inet_asked() != e->asked;

	e->asked = inet_asked();
	tcp_resume_pass(now);
	if (asked || inet_due(next_due())) {
		e->ticked = now;
		tcp_connector_tick(now);
		tcp_accept_tick(now);
		tcp_alive_tick(now);
		tcp_linger_tick(now);
		if (tcp_stall_tick(now, asked)) {
			inet_loop_unlock();
			tcp_stall_tell();
			inet_loop_lock();
		}
	}
	free_buried(e);
}

static int network_busy(void) REQUIRES(loop_mu)
{
	return tcp_network.users || tcp_network.nburied || !gantry_list_empty(&tcp_network.lingering);
}

static void network_stop(void) REQUIRES(loop_mu)
{
	tcp_accept_tick(UINT64_MAX);
	tcp_workers_stop();
	inet_stats_remove(&tcp_stats);
	inet_asked_stop(INET_ASKED_NET);
}

static int network_leaving(int last, int ms) REQUIRES(loop_mu)
{
	(void)ms;
	return last && (tcp_network.nburied || !gantry_list_empty(&tcp_network.lingering));
}

static void close_lanes(const struct gantry_list *links) REQUIRES(loop_mu)
{
	gantry_list_each_entry (l, links, struct tcp_link, node)
		for (int i = 0; i < l->nlanes; i++)
			l->lanes[i].io.ops->close(&l->lanes[i].io);
}

/* What the parent has open, and its identity. */
static void in_child(void) REQUIRES(loop_mu)
{
	struct tcp_network *e = &tcp_network;

	close_lanes(&e->links);
	close_lanes(&e->lingering);
	inet_abandon(&e->connectors);
	inet_abandon(&e->links);
	inet_abandon(&e->lingering);
	inet_abandon(&e->buried);
	for (int i = 0; i < TCP_BUCKETS; i++)
		inet_abandon(&e->listeners[i]);
	init_lists(e);
	tcp_workers_abandon();
	inet_asked_in_child();
	e->users = e->nburied = 0;
	e->process = 0;
}

static struct inet_client client = {
	.due = next_due,
	.pass = network_pass,
	.busy = network_busy,
	.stop = network_stop,
	.leaving = network_leaving,
	.in_child = in_child,
};

gantry_result tcp_network_start(void)
{
	struct tcp_network *e = &tcp_network;
	int began = !client.active;

	TRY_NOW(inet_loop_start(&client));
	if (!began)
		return GANTRY_OK;
	if (!e->process)
		identify_process(e);
	e->ticked = e->last_tick = 0;
	inet_stats_add(&tcp_stats);
	if (gantry_stall_after()) {
		e->asked = inet_asked();
		inet_asked_start(INET_ASKED_NET);
	}
	if (gantry_trace_on())
		LOG_INFO(NET, "events are recorded for GANTRY_TRACE=%s", gantry_params()->trace);
	return GANTRY_OK;
}

void tcp_network_release(void)
{
	int last;

	inet_loop_lock();
	last = --tcp_network.users == 0;
	inet_loop_wake();
	inet_loop_unlock();
	if (last)
		gantry_trace_write_process();
}

/* NCCL closes nothing of some communicators. */
__attribute__((destructor)) static void write_trace(void) UNCHECKED
{
	if (load_relaxed(&tcp_network.users))
		gantry_trace_write_process();
}
