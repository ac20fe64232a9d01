/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving steps with the device's copy engine, driven by the proxy: what p2p and shm have in common when they do that.
 *
 *   send    kernel --> staging ring --copy--> the far ring, and the far FIFO is told
 *   recv    the far ring --copy--> staging ring --> kernel
 *
 * The kernel's end is a FIFO in host memory that the device maps, and a staging ring in device memory; a PTR step takes
 * the user's buffer in place of the ring. The far side is words that the CPU reads and writes and a ring that the copy
 * engine reaches; who is at its other end, a kernel or another copy engine, makes no difference.
 *
 * Steps keep their numbers on the way, so both ends agree about max_step, and about Simple alone: a copy engine copies
 * no words whole, which the lines of LL depend on.
 */
#ifndef GANTRY_TRANSPORT_COPY_ENGINE_H
#define GANTRY_TRANSPORT_COPY_ENGINE_H

#include "device/device.h"
#include "proxy/conn.h"

/* The far side, as this process addresses it. Borrowed; outlives the engine. */
struct gantry_copy_far {
	uint64_t *head, *tail;
	struct gantry_slot *slots;
	char *ring;			      /* as the device addresses it */
	struct gantry_eventcount *eventcount; /* NULL: nobody sleeps there */
	int takes_pointers;		      /* recv: the far producer posts addresses of this process */
};

struct gantry_copy_engine;

/* For proxy_setup: makes the kernel's FIFO. It is c->proxy's resources from here on. */
gantry_result gantry_copy_engine_create(struct gantry_connector *c, struct gantry_copy_engine **ret_engine);
/* For connect: makes the staging ring, fills in c->conn and the connector's results. */
gantry_result gantry_copy_engine_connect(struct gantry_copy_engine *e, struct gantry_connector *c, uint64_t step_bytes,
					 const struct gantry_copy_far *far);
/* For proxy_connect: a stream of its own. */
gantry_result gantry_copy_engine_start(struct gantry_copy_engine *e);
/* Waits for copies that have begun, not for the peer. NULL is fine. */
void gantry_copy_engine_free(struct gantry_copy_engine *e);

gantry_result gantry_copy_engine_send(struct gantry_proxy_conn *pc, int *ret_worked);
gantry_result gantry_copy_engine_recv(struct gantry_proxy_conn *pc, int *ret_worked);

#endif
