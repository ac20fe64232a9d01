/* SPDX-License-Identifier: Apache-2.0 */
/* An rx: its parameters, its network device, and its registered memory. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/api.h"
#include "base/clock.h"
#include "base/param.h"
#include "base/param_text.h"
#include "rx/meet.h"
#include "rx/rx.h"

uint64_t rx_random(void)
{
	uint64_t v = 0;

	if (getrandom(&v, sizeof(v), 0) != sizeof(v))
		v = gantry_now_ns() ^ (uint64_t)getpid() << 40;
	return v ? v : 1;
}

/* The device of the network: by name, else GANTRY_NET_DEVICE, else the fastest. */
static gantry_result pick_nic(struct gantry_rx *rx, const char *name)
{
	struct gantry_net_properties p;
	int n = 0, asked = (int)gantry_params()->net_device, speed = -1;
	char known[256] = "";

	TRY_NOW(rx->net->ops->devices(rx->net, &n));
	rx->net_dev = -1;
	for (int i = 0; i < n; i++) {
		TRY_NOW(rx->net->ops->get_properties(rx->net, i, &p));
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i ? ", " : "", p.name);
		if (name ? strcmp(name, p.name) != 0 : asked >= 0 ? asked != i : p.speed <= speed)
			continue;
		rx->net_dev = i;
		speed = p.speed;
		snprintf(rx->nic, sizeof(rx->nic), "%s", p.name);
	}
	if (rx->net_dev < 0 && name)
		FAIL_NOW(GANTRY_ERR_CONFIG, "there is no interface %s to use; there is %s", name,
			 known[0] ? known : "none");
	if (rx->net_dev < 0)
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_NET_DEVICE=%d does not exist; there are %d: %s", asked, n, known);
	return GANTRY_OK;
}

static gantry_result configure(struct gantry_rx *rx, const struct gantry_rx_config *config)
{
	const struct gantry_params *p = gantry_params();

	rx->message = config->message ? config->message : p->rx_message;
	rx->depth = (uint32_t)(config->depth ? config->depth : p->rx_depth);
	rx->stage_limit = config->stage ? config->stage : p->rx_stage;
	rx->max_descs = (uint32_t)(config->max_frags ? config->max_frags : RX_DESCS);
	rx->debug = config->debug || p->rx_debug;
	if (rx->message < RX_MESSAGE_MIN || rx->message > RX_MESSAGE_MAX)
		FAIL_NOW(GANTRY_ERR_CONFIG, "messages of %s: allowed are %s to %s (GANTRY_RX_MESSAGE)",
			 SIZE_TEXT(rx->message), SIZE_TEXT(RX_MESSAGE_MIN), SIZE_TEXT(RX_MESSAGE_MAX));
	if (rx->depth < 1 || rx->depth > RX_DEPTH_MAX)
		FAIL_NOW(GANTRY_ERR_CONFIG, "a depth of %d: allowed is 1 to %d", config->depth, RX_DEPTH_MAX);
	if (rx->max_descs < 16 || rx->max_descs > 1 << 20)
		FAIL_NOW(GANTRY_ERR_CONFIG, "%d descriptors per launch: allowed are 16 to %d", config->max_frags,
			 1 << 20);
	if ((unsigned)config->path > GANTRY_RX_PATH_HOST)
		FAIL_NOW(GANTRY_ERR_CONFIG, "path %d does not exist", (int)config->path);
	return GANTRY_OK;
}

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
	mutex_init(&rx->mu);
	gantry_list_init(&rx->regions);
	gantry_list_init(&rx->conns);
	gantry_list_init(&rx->listeners);
	rx->net = gantry_net_tcp();
	rx->epoch = rx_random();
	/* A reference of our own, so that it stays. */
	if (config->device)
		TRY(gantry_device_open(config->device->kind, config->device->index, &rx->device));
	else
		TRY(gantry_device_open(GANTRY_DEVICE_HOST, 0, &rx->device));
	TRY(configure(rx, config));
	rx_stages_init(rx);
	TRY(rx->net->ops->init(rx->net, 0, NULL, &ctx)); /* the network learns its devices */
	TRY(inet_secret_key(&rx->key));
	TRY(pick_nic(rx, config->nic));
	TRY(rx_path_choose(rx, config->path));
	rx_stall_init(rx);
	*ret_rx = rx;
	rx = NULL;
out:
	if (ctx)
		gantry_net_tcp()->ops->finalize(gantry_net_tcp(), ctx);
	gantry_rx_close(rx);
	return r;
}

/* Unchecked: nobody else uses the rx any more, and what is closed takes the mutex itself. */
void gantry_rx_close(struct gantry_rx *rx) UNCHECKED
{
	if (!rx)
		return;
	while (!gantry_list_empty(&rx->listeners))
		gantry_rx_listener_close(gantry_container(rx->listeners.next, struct gantry_rx_listener, node));
	while (!gantry_list_empty(&rx->conns))
		gantry_rx_conn_close(gantry_container(rx->conns.next, struct gantry_rx_conn, node));
	gantry_list_each_safe (pos, &rx->regions)
		free(gantry_container(pos, struct rx_region, node));
	if (rx->in_stream)
		rx->device->ops->stream_destroy(rx->device, rx->in_stream);
	if (rx->out_stream)
		rx->device->ops->stream_destroy(rx->device, rx->out_stream);
	if (rx->device) {
		rx_stages_free(rx);
		gantry_device_close(rx->device);
	}
	mutex_destroy(&rx->mu);
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
		FAIL(GANTRY_ERR_INVALID, "a registration of %zu bytes at %p", size, ptr);
	TRY(rx->device->ops->pointer(rx->device, ptr, &info));
	if (info.kind == GANTRY_MEM_DEVICE && info.device >= 0 && info.device != rx->device->index)
		FAIL(GANTRY_ERR_INVALID, "%p is memory of GPU %d, this pipeline uses GPU %d", ptr, info.device,
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
		FAIL(GANTRY_ERR_USAGE, "%p is used by ops that are not done", ptr);
	gantry_list_each (pos, &rx->conns)
		rx_conn_forget_region(gantry_container(pos, struct gantry_rx_conn, node), g->id);
	gantry_list_remove(&g->node);
	free(g);
out:
	rx_mu_unlock(&rx->mu);
	return r;
}
