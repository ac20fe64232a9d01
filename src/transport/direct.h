/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages in the place of steps: a thread that has a communicator's connections to itself
 * (gantry_proxy_group_config.held) sends and receives by them without kernel, FIFO and progress thread. On the wire these
 * are the messages of a collective's steps, so the other end need not do likewise.
 */
#ifndef GANTRY_TRANSPORT_DIRECT_H
#define GANTRY_TRANSPORT_DIRECT_H

#include "proxy/proxy_conn.h"

enum {
	GANTRY_DIRECT_BYTES = 131072,	       /* of a connection's memory for messages */
	GANTRY_DIRECT_MESSAGES = GANTRY_STEPS, /* at once */
};

/* Bytes that the steps of a call may have on a connected end if they are to go this way; 0: it cannot. */
uint64_t gantry_direct_room(const struct gantry_connector *c);
/* GANTRY_DIRECT_BYTES, which outlive requests that are cut short. */
char *gantry_direct_memory(const struct gantry_proxy_conn *pc);
/* Messages of an end keep the order in which they are posted. AGAIN: not now. */
gantry_result gantry_direct_recv(struct gantry_proxy_conn *pc, uint32_t i, void *data, size_t bytes);
/* Messages i to i + n - 1 of `bytes` each, which follow each other at `data`: in one system call, as a rule. The first
 * *ret_posted of them are posted. */
gantry_result gantry_direct_send(struct gantry_proxy_conn *pc, uint32_t i, uint32_t n, char *data, size_t bytes,
				 uint32_t *ret_posted);
/* As a network's test. */
gantry_result gantry_direct_test(struct gantry_proxy_conn *pc, uint32_t i, int *ret_done, int *ret_bytes);

#endif
