/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts over a network: a connection of its own per peer and direction, beside those of the net transport and made of the
 * same parts (net_priv.h). The sending end is a FIFO like that of any proxied connection: the kernel posts steps, PTR or in
 * a ring, and k_p2p.h knows nothing of windows. A request that precedes the operation describes what its steps are for.
 * The receiving end has no kernel: its proxy keeps receives posted and puts the data where it belongs.
 *
 * On the wire, in order: a header with window, offset, size and signal, which a small put's data follows in the same
 * message; else messages of `step` bytes, the last one shorter.
 */
#ifndef GANTRY_TRANSPORT_PUT_H
#define GANTRY_TRANSPORT_PUT_H

#include "proxy/proxy_conn.h"

struct gantry_put_request {
	uint32_t window;
	int32_t signal; /* -1: none */
	uint64_t offset, bytes;
};

/* The target's side; called by the progress thread. */
struct gantry_put_target {
	/* Where it goes; cpu_writes: the CPU can. Fails if it does not fit, naming the rank. */
	gantry_result (*find)(void *ctx, int from, const struct gantry_put_request *put, char **ret_at,
			      int *ret_cpu_writes);
	/* All of it is in place. window: the one that find was asked for; 0: it had no data. */
	void (*arrived)(void *ctx, int from, uint32_t window, int signal);
	void *ctx;
};

enum { GANTRY_PUT_REQUESTS = 512 };

/* Of a connector with its proxy half, in the place of a transport's setup; target: of a receiving end, borrowed. */
gantry_result gantry_put_setup(struct gantry_connector *c, const struct gantry_put_target *target,
			       struct gantry_connect_info *ret_info);
/* The next step of a receiving end: its operation may be appended, and connects it first. */
void gantry_put_accept(struct gantry_connector *c, const struct gantry_connect_info *peer);
/* Of a sending end. AGAIN: not yet. Fills in c->conn, c->max_step and c->any_memory. */
gantry_result gantry_put_connect(struct gantry_connector *c, const struct gantry_connect_info *peer);
/* Before the operation is appended, and if there is room: for as many as a launch has, up to half of GANTRY_PUT_REQUESTS. */
int gantry_put_has_room(const struct gantry_connector *c);
void gantry_put_give(struct gantry_connector *c, const struct gantry_put_request *put);
/* Once no thread makes progress on it. */
void gantry_put_close(struct gantry_connector *c);

#endif
