/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the messages of a listener or connector are at home: in memory of a device, whose pool payload lands in, or
 * (kind NONE) in host memory.
 */
#ifndef GANTRY_NET_TCP_HOME_H
#define GANTRY_NET_TCP_HOME_H

#include "gantry/device.h"
#include "net/devmem_rx.h"
#include "net/net.h"
#include "net/tcp/hello.h"

struct tcp_context;

struct tcp_home {
	enum devmem_kind kind;
	struct gantry_device *device; /* owned reference; NULL for NONE */
	struct devmem_pool *pool;     /* the same */
};

/* How this context receives: ctx->unpack is OFF, EMULATED or KERNEL, PARAM resolved against all NICs; ctx->why says why
 * it is OFF. */
gantry_result tcp_home_resolve(const struct gantry_net_config *config, struct tcp_context *ctx);
/* The context's device, or the current one, and its pool. Slow the first time: no lock held. */
gantry_result tcp_home_open(const struct tcp_context *ctx, struct tcp_home *ret_home);
/* Both leave it empty. close: the last reference to a pool waits for the device, so no lock held; those who have one
 * take it out and close it later. */
struct tcp_home tcp_home_take(struct tcp_home *h);
void tcp_home_close(struct tcp_home *h);
enum wire_unpack tcp_home_says(const struct tcp_home *h);

#endif
