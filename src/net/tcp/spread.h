/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small messages beside the control lane.
 *
 * Eager messages go over lane 0, and so by one NIC. Where the lanes of a link leave by several and that NIC is full, a
 * small message goes as a bulk message of one piece over a lane of another NIC instead: numbered, matched, acknowledged
 * and sent again like any other bulk message, so order and exactly-once need nothing new. What it costs is its receive:
 * it waits until that is posted, and asks for it (RTS). docs/design/0044 has the reasons.
 *
 * "Full" is judged from lane 0's socket: at least SPREAD_FULL bytes are not acknowledged, or the socket takes no more; and the
 * other NICs would be through with what they hold sooner than lane 0. The thread that posts looks, once for every
 * SPREAD_BYTES given to lane 0, and while the NIC is full, or its socket takes no more, every SPREAD_PACES.
 */
#ifndef GANTRY_NET_TCP_SPREAD_H
#define GANTRY_NET_TCP_SPREAD_H

#include <stdbool.h>
#include <stdint.h>

struct tcp_lane;
struct tcp_link;
struct tcp_send;
struct tcp_tag;

enum {
	SPREAD_LEAST = 1 << 10,	 /* smaller messages stay: three headers would be as large */
	SPREAD_FULL = 256 << 10, /* a quarter of the window */
	SPREAD_BYTES = 64 << 10,
	SPREAD_PACES = 8,
	SPREAD_SEEN_PACES = 1000, /* a receiver that got such a message looks for others for so long */
};

/* Of a link. Relaxed words. */
struct tcp_spread {
	uint32_t elsewhere; /* a bit for each lane that leaves by another NIC than lane 0; 0: none does */
	uint32_t full;	    /* the control lane's NIC is */
	uint32_t blocked;   /* its socket took no more, since the last look */
	uint64_t looked;    /* ticks: when that was found */
	uint64_t given;	    /* bytes that lane 0 had been given by then */
	uint64_t messages;  /* that went by other NICs; written under link_mu */
	uint64_t seen;	    /* ticks: when one came; 0: never */
};

/* Which lanes leave by which NIC: once all are there, and when one has a new socket. */
void tcp_spread_survey(struct tcp_link *l);
/* Before a message is posted: looks whether the NIC is full, if that is due. */
void tcp_spread_look(struct tcp_link *l);
/* Lane 0's socket takes no more. */
void tcp_spread_blocked(struct tcp_link *l);

#endif
