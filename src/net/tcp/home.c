/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/home.h"

#include <stdio.h>

#include "base/log.h"
#include "base/param.h"
#include "device/device.h"
#include "net/devmem.h"
#include "net/tcp/engine.h"

static gantry_result device_of(struct gantry_device *wanted, struct gantry_device **ret_dev)
{
	return wanted ? gantry_device_open(wanted->kind, wanted->index, ret_dev) : gantry_device_current(ret_dev);
}

gantry_result tcp_home_resolve(const struct gantry_net_config *config, struct tcp_context *ctx)
{
	static const int unpack_of[] = {
		[DEVMEM_NONE] = GANTRY_NET_UNPACK_OFF,
		[DEVMEM_EMULATED] = GANTRY_NET_UNPACK_EMULATED,
		[DEVMEM_KERNEL] = GANTRY_NET_UNPACK_KERNEL,
	};
	gantry_result r = GANTRY_OK;
	struct gantry_device *dev = NULL;
	enum devmem_kind kind = DEVMEM_NONE;

	ctx->unpack = GANTRY_NET_UNPACK_OFF;
	snprintf(ctx->why, sizeof(ctx->why), "it was not asked for");
	if (config->unpack == GANTRY_NET_UNPACK_OFF)
		return GANTRY_OK;
	TRY(device_of(config->device, &dev));
	/* One answer for all NICs: NCCL asks only the first device for its type. */
	for (int i = 0; i < tcp_engine.nics->count; i++) {
		TRY(devmem_choose((enum gantry_net_unpack)config->unpack, tcp_engine.nics->nics[i].name, dev, &kind,
				  ctx->why));
		if (kind != DEVMEM_KERNEL)
			break;
	}
	if (ctx->why[0])
		LOG_INFO(NET, "GANTRY_UNPACK=auto: messages go through host memory, no devmem TCP: %s", ctx->why);
	else if (kind == DEVMEM_NONE)
		snprintf(ctx->why, sizeof(ctx->why), "GANTRY_UNPACK=off");
	ctx->unpack = unpack_of[kind];
out:
	gantry_device_close(dev);
	return r;
}

int gantry_net_tcp_unpack(const void *ctx, char *text, size_t len)
{
	const struct tcp_context *c = ctx;
	const struct gantry_params *p = gantry_params();

	if (c->unpack == GANTRY_NET_UNPACK_EMULATED)
		snprintf(text, len, "emulated NIC (memory %s, shape %s, seed %lld)",
			 param_unpack_memory_words[p->unpack_memory], param_emu_shape_words[p->emu_shape],
			 (long long)p->emu_seed);
	else if (c->unpack == GANTRY_NET_UNPACK_KERNEL)
		snprintf(text, len, "devmem TCP of the kernel");
	else
		snprintf(text, len, "off: %s", c->why);
	return c->unpack;
}

gantry_result tcp_home_open(const struct tcp_context *ctx, struct tcp_home *ret_home)
{
	gantry_result r = GANTRY_OK;
	struct tcp_home h = {.kind = DEVMEM_NONE};

	if (ctx->unpack != GANTRY_NET_UNPACK_OFF) {
		h.kind = ctx->unpack == GANTRY_NET_UNPACK_KERNEL ? DEVMEM_KERNEL : DEVMEM_EMULATED;
		TRY(device_of(ctx->device, &h.device));
		TRY(devmem_pool_get(h.device, h.kind, &h.pool));
	}
	*ret_home = h;
	h = (struct tcp_home){.kind = DEVMEM_NONE};
out:
	tcp_home_close(&h);
	return r;
}

struct tcp_home tcp_home_take(struct tcp_home *h)
{
	struct tcp_home taken = *h;

	*h = (struct tcp_home){.kind = DEVMEM_NONE};
	return taken;
}

void tcp_home_close(struct tcp_home *h)
{
	devmem_pool_put(h->pool);
	gantry_device_close(h->device);
	*h = (struct tcp_home){.kind = DEVMEM_NONE};
}

enum wire_unpack tcp_home_says(const struct tcp_home *h)
{
	switch (h->kind) {
	case DEVMEM_EMULATED:
		return WIRE_UNPACK_YES;
	case DEVMEM_KERNEL:
		return WIRE_UNPACK_BETWEEN_HOSTS;
	case DEVMEM_NONE:
		break;
	}
	return WIRE_UNPACK_NO;
}
