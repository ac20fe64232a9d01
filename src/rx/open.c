/* SPDX-License-Identifier: Apache-2.0 */
/* An rx: its parameters, its NICs, its path, and its memory. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/param.h"
#include "base/stall.h"
#include "base/text.h"
#include "net/devmem.h"
#include "rx/rx.h"

/* GANTRY_NET_DEVICE: this one alone. */
static gantry_result take_device(struct gantry_rx *rx, int asked)
{
	struct gantry_net_properties p;
	int n = 0;
	char known[256] = "";

	TRY_NOW(rx->net->ops->devices(rx->net, &n));
	for (int i = 0; i < n; i++) {
		TRY_NOW(rx->net->ops->get_properties(rx->net, i, &p));
		if (i == asked)
			return gantry_rails_named(p.name, &rx->rails);
		gantry_text_add(known, sizeof(known), "%s%s", i ? ", " : "", p.name);
	}
	FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_NET_DEVICE=%d does not exist; there are %d devices: %s", asked, n, known);
}

/* By name, else GANTRY_NET_DEVICE, else all that are worth it, the nearest to the device first. */
static gantry_result pick_nics(struct gantry_rx *rx, const char *names)
{
	const struct gantry_params *p = gantry_params();

	if (names)
		return gantry_rails_named(names, &rx->rails);
	if (p->net_device >= 0)
		return take_device(rx, (int)p->net_device);
	TRY_NOW(gantry_rails_find(rx->device, (int)p->net_rails, &rx->rails));
	if (!rx->rails.n)
		FAIL_NOW(GANTRY_ERR_CONFIG, "no interface is usable (GANTRY_IFNAME)");
	return GANTRY_OK;
}

static gantry_result configure_rx(struct gantry_rx *rx, const struct gantry_rx_config *config)
{
	const struct gantry_params *p = gantry_params();

	rx->message = config->message ? config->message : p->rx_message;
	rx->depth = (uint32_t)(config->depth ? config->depth : p->rx_depth);
	rx->stage_limit = config->stage ? config->stage : p->rx_stage;
	rx->max_descs = (uint32_t)(config->max_frags ? config->max_frags : p->rx_max_frags);
	rx->debug = config->debug || p->rx_debug;
	rx->recv_sync = p->rx_recv_sync != 0;
	if (rx->message < RX_MESSAGE_MIN || rx->message > RX_MESSAGE_MAX)
		FAIL_NOW(GANTRY_ERR_CONFIG, "message size %s is invalid: expected %s to %s (GANTRY_RX_MESSAGE)",
			 SIZE_TEXT(rx->message), SIZE_TEXT(RX_MESSAGE_MIN), SIZE_TEXT(RX_MESSAGE_MAX));
	if (rx->depth < 1 || rx->depth > RX_DEPTH_MAX)
		FAIL_NOW(GANTRY_ERR_CONFIG, "depth %d is invalid: expected 1 to %d", config->depth, RX_DEPTH_MAX);
	if (rx->max_descs < 16 || rx->max_descs > 1 << 20)
		FAIL_NOW(GANTRY_ERR_CONFIG, "%d fragments per launch is invalid: expected 16 to %d (GANTRY_RX_MAX_FRAGS)",
			 config->max_frags, 1 << 20);
	if ((unsigned)config->path > GANTRY_RX_PATH_HOST)
		FAIL_NOW(GANTRY_ERR_CONFIG, "path %d does not exist", (int)config->path);
	return GANTRY_OK;
}

/* Which way bytes come to device memory, and why. Here: why devmem TCP cannot be used by this NIC; "" if it can. */
static void find_objection(struct gantry_rx *rx, const char *nic, char *why, size_t len)
{
	why[0] = 0;
	if (gantry_traits(rx->device)->cpu_reads_memory)
		snprintf(why, len, "the device is the host, whose memory every NIC can reach");
	else if (!devmem_kernel_usable(nic, rx->device, why, len) && !why[0])
		snprintf(why, len, "devmem TCP cannot be used on %s", nic);
}

/* Of the NICs those that can: a lane to device memory through any other would fail the connection. If none can, all stay
 * and the nearest one's reason is kept. */
static void keep_unpacking(struct gantry_rx *rx, char *why, size_t len)
{
	struct gantry_rails able = {0};
	char other[160];

	find_objection(rx, rx->rails.rail[0].name, why, len);
	if (!why[0])
		able.rail[able.n++] = rx->rails.rail[0];
	for (int i = 1; i < rx->rails.n; i++) {
		find_objection(rx, rx->rails.rail[i].name, other, sizeof(other));
		if (!other[0])
			able.rail[able.n++] = rx->rails.rail[i];
		else if (able.n)
			LOG_INFO(RX, "%s is not used: %s", rx->rails.rail[i].name, other);
	}
	if (!able.n)
		return;
	why[0] = 0;
	rx->rails = able;
}

/* Pages of device memory are shared out among this many NICs at most. */
static void limit_unpacking(struct gantry_rx *rx)
{
	int most = (int)gantry_params()->unpack_nics;

	if (rx->path == GANTRY_RX_PATH_HOST || rx->rails.n <= most)
		return;
	LOG_INFO(RX, "%s of %d are used to receive into device memory (GANTRY_UNPACK_NICS)",
		 COUNT_TEXT(most, "interface"), rx->rails.n);
	rx->rails.n = most;
}

static gantry_result choose_path(struct gantry_rx *rx, enum gantry_rx_path asked)
{
	const char *origin = "requested by the program";
	char why[160] = "";

	if (asked == GANTRY_RX_PATH_DEFAULT) {
		asked = (enum gantry_rx_path)(GANTRY_RX_PATH_AUTO + (int)gantry_params()->rx_path);
		origin = "requested by GANTRY_RX_PATH";
	}
	rx->path = asked;
	snprintf(rx->path_reason, sizeof(rx->path_reason), "%s", origin);
	if (asked != GANTRY_RX_PATH_AUTO && asked != GANTRY_RX_PATH_UNPACK)
		return GANTRY_OK;
	keep_unpacking(rx, why, sizeof(why));
	if (asked == GANTRY_RX_PATH_UNPACK && why[0])
		FAIL_NOW(GANTRY_ERR_UNSUPPORTED, "path unpack was %s, but %s", origin, why);
	rx->path = why[0] ? GANTRY_RX_PATH_HOST : GANTRY_RX_PATH_UNPACK;
	if (asked == GANTRY_RX_PATH_AUTO)
		snprintf(rx->path_reason, sizeof(rx->path_reason), "%s",
			 why[0] ? why : "NIC, kernel and device can do it");
	return GANTRY_OK;
}

/*
 * ---- staging ----
 *
 * Staging buffers and descriptor buffers: pinned, made when a connection starts (allocating pinned memory later may
 * wait for the program's kernels), more of them when they are needed, kept, and bounded.
 *
 * All connections share the staging memory, but each side of each connection may have one buffer whatever the others
 * hold. Otherwise the sends of one process could hold all of its buffers while they wait for receives of another whose
 * buffers are all held by sends to the first.
 */
enum { DESCS_MAX = 4 * RX_DEPTH_MAX };

static size_t descs_size(const struct gantry_rx *rx)
{
	return rx->max_descs * sizeof(struct gantry_unpack_desc);
}

static gantry_result add_stage(struct gantry_rx *rx) REQUIRES(rx_mu)
{
	gantry_result r = gantry_pinned_grow(&rx->stages, rx->message, 1);

	store_relaxed(&rx->counters.stage_memory, rx->stages.memory);
	return r;
}

void rx_stages_reserve(struct gantry_rx *rx)
{
	uint64_t wanted = 0;

	gantry_list_each (pos, &rx->conns)
		wanted += 2 * rx->depth;
	/* A user that needs one for which there is no memory finds out whether it can do without. */
	while (rx->stages.memory < wanted * rx->message && rx->stages.memory + rx->message <= rx->stage_limit)
		if (add_stage(rx) != GANTRY_OK)
			return;
	wanted = wanted < DESCS_MAX ? wanted : DESCS_MAX;
	while (rx->descs.memory < wanted * descs_size(rx))
		if (gantry_pinned_grow(&rx->descs, descs_size(rx), 1) != GANTRY_OK)
			return;
}

gantry_result rx_stage_get(struct gantry_rx *rx, struct rx_side *side, struct gantry_piece **ret_stage)
{
	struct gantry_piece *s = gantry_pinned_take(&rx->stages, rx->message);

	if (!s && (rx->stages.memory + rx->message <= rx->stage_limit || !side->staged) && add_stage(rx) == GANTRY_OK)
		s = gantry_pinned_take(&rx->stages, rx->message);
	if (!s)
		return side->staged ? GANTRY_AGAIN : GANTRY_ERR_NOMEM;
	side->staged++;
	*ret_stage = s;
	return GANTRY_OK;
}

void rx_stage_put(struct gantry_rx *rx, struct rx_side *side, struct gantry_piece *s)
{
	ASSERT(!s || side->staged > 0);
	if (s)
		side->staged--;
	gantry_pinned_give(&rx->stages, s);
}

uint32_t rx_lists_most(const struct gantry_rx *rx)
{
	uint32_t two_messages = 2 * GANTRY_UNPACK_MAX_DESCS / rx->max_descs;

	return two_messages > DESCS_MAX ? two_messages : DESCS_MAX;
}

void rx_lists_reserve(struct gantry_rx *rx)
{
	while (rx->lists.memory < rx->depth * descs_size(rx))
		if (gantry_pinned_grow(&rx->lists, descs_size(rx), 1) != GANTRY_OK)
			return;
}

struct gantry_piece *rx_descs_get(struct gantry_rx *rx, struct gantry_pinned *pool)
{
	const uint64_t most = pool == &rx->lists ? rx_lists_most(rx) : DESCS_MAX;
	struct gantry_piece *d = gantry_pinned_take(pool, descs_size(rx));

	if (!d && pool->memory < most * descs_size(rx) && gantry_pinned_grow(pool, descs_size(rx), 1) == GANTRY_OK)
		d = gantry_pinned_take(pool, descs_size(rx));
	return d;
}

void rx_descs_put(struct gantry_pinned *pool, struct gantry_piece *d)
{
	for (struct gantry_piece *next; d; d = next) {
		next = d->next;
		gantry_pinned_give(pool, d);
	}
}

/* ---- life ---- */

gantry_result gantry_rx_open(const struct gantry_rx_config *config, struct gantry_rx **ret_rx)
{
	struct gantry_rx_config own = {0};
	gantry_result r = GANTRY_OK;
	struct gantry_rx *rx = NULL;
	void *ctx = NULL;

	TRY(gantry_params_load(0));
	if (config)
		TRY(STRUCT_TAKE(&own, config, gantry_rx_config));
	config = &own;
	rx = calloc(1, sizeof(*rx));
	if (!rx)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a pipeline");
	gantry_list_init(&rx->regions);
	gantry_list_init(&rx->conns);
	gantry_list_init(&rx->listeners);
	gantry_list_init(&rx->unpacks);
	rx->net = gantry_net_tcp();
	TRY(gantry_random_bytes(&rx->epoch, sizeof(rx->epoch)));
	rx->epoch |= !rx->epoch; /* never 0 */
	/* A reference of our own, so that it stays. */
	if (config->device)
		TRY(gantry_device_open(config->device->kind, config->device->index, &rx->device));
	else
		TRY(gantry_device_open(GANTRY_DEVICE_HOST, 0, &rx->device));
	TRY(configure_rx(rx, config));
	gantry_pinned_init(&rx->stages, rx->device, rx->message);
	gantry_pinned_init(&rx->descs, rx->device, descs_size(rx));
	gantry_pinned_init(&rx->lists, rx->device, descs_size(rx));
	TRY(rx->net->ops->init(rx->net, 0, NULL, &ctx)); /* the network learns its devices */
	TRY(inet_secret_key(&rx->key));
	TRY(pick_nics(rx, config->nic));
	TRY(choose_path(rx, config->path));
	limit_unpacking(rx);
	TRY(gantry_rails_fuse(&rx->rails, &rx->listen_dev));
	LOG_INFO(RX, "pipeline on %s, the nearest to %s first",
		 gantry_rails_text(&rx->rails, rx->nics, sizeof(rx->nics)), rx->device->name);
	rx->stall.after = gantry_stall_after() ? gantry_ticks_of_ns(gantry_stall_after()) : 0;
	rx_stats_add(rx);
	*ret_rx = rx;
	rx = NULL;
out:
	if (ctx)
		gantry_net_tcp()->ops->finalize(gantry_net_tcp(), ctx);
	gantry_rx_close(rx);
	return r;
}

/* Unchecked: no other thread uses the rx any more, and what is closed takes the mutex itself. */
void gantry_rx_close(struct gantry_rx *rx) UNCHECKED
{
	if (!rx)
		return;
	rx_stats_remove(rx);
	while (!gantry_list_empty(&rx->listeners))
		gantry_rx_listener_close(gantry_container(rx->listeners.next, struct gantry_rx_listener, node));
	while (!gantry_list_empty(&rx->conns))
		gantry_rx_conn_close(gantry_container(rx->conns.next, struct gantry_rx_conn, node));
	rx_unpacks_await(rx);
	gantry_list_each_safe (pos, &rx->regions)
		free(gantry_container(pos, struct rx_region, node));
	if (rx->in_stream)
		rx->device->ops->stream_destroy(rx->device, rx->in_stream);
	if (rx->out_stream)
		rx->device->ops->stream_destroy(rx->device, rx->out_stream);
	if (rx->device) {
		gantry_pinned_free(&rx->stages);
		gantry_pinned_free(&rx->descs);
		gantry_pinned_free(&rx->lists);
		gantry_device_close(rx->device);
	}
	free(rx);
}

uint64_t gantry_rx_epoch(const struct gantry_rx *rx)
{
	return rx->epoch;
}

gantry_result gantry_rx_get_counters(struct gantry_rx *rx, struct gantry_rx_counters *ret)
{
	gantry_result r;

	rx_mu_lock(&rx->mu);
	store_relaxed(&rx->counters.strangers, load_relaxed(&rx->strangers));
	r = STRUCT_GIVE(ret, &rx->counters, gantry_rx_counters);
	rx_mu_unlock(&rx->mu);
	return r;
}

/* ---- memory ---- */

/* On the host device all memory is host memory; what it allocated plays the part of a GPU's. */
static int is_device(const struct gantry_rx *rx, const struct gantry_mem_info *info)
{
	return info->kind == GANTRY_MEM_DEVICE || (gantry_traits(rx->device)->cpu_reads_memory && info->exportable);
}

gantry_result gantry_rx_register(struct gantry_rx *rx, void *ptr, size_t size)
{
	gantry_result r = GANTRY_OK;
	struct gantry_mem_info info;
	struct rx_region *g = NULL;

	rx_mu_lock(&rx->mu);
	if (!ptr || !size || (uintptr_t)ptr + size < (uintptr_t)ptr)
		FAIL(GANTRY_ERR_INVALID, "invalid registration: %zu bytes at %p", size, ptr);
	TRY(rx->device->ops->pointer(rx->device, ptr, &info));
	if (info.kind == GANTRY_MEM_DEVICE && info.device >= 0 && info.device != rx->device->index)
		FAIL(GANTRY_ERR_INVALID, "%p is memory of GPU %d, but this pipeline uses GPU %d", ptr, info.device,
		     rx->device->index);
	g = calloc(1, sizeof(*g));
	if (!g)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a registration");
	g->base = ptr;
	g->size = size;
	g->id = ++rx->next_region;
	g->device = is_device(rx, &info);
	gantry_list_append(&rx->regions, &g->node);
out:
	rx_mu_unlock(&rx->mu);
	return r;
}

gantry_result gantry_rx_deregister(struct gantry_rx *rx, void *ptr)
{
	gantry_result r = GANTRY_OK;
	struct rx_region *g = NULL;

	rx_mu_lock(&rx->mu);
	gantry_list_each (pos, &rx->regions) {
		g = gantry_container(pos, struct rx_region, node);
		if (g->base == ptr)
			break;
		g = NULL;
	}
	if (!g)
		FAIL(GANTRY_ERR_INVALID, "%p is not the start of a registration", ptr);
	if (g->users)
		FAIL(GANTRY_ERR_USAGE, "%p is still used by unfinished operations", ptr);
	gantry_list_each (pos, &rx->conns)
		rx_conn_forget_region(gantry_container(pos, struct gantry_rx_conn, node), g->id);
	gantry_list_remove(&g->node);
	free(g);
out:
	rx_mu_unlock(&rx->mu);
	return r;
}
