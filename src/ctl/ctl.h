/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane of a communicator: a star of TCP connections. It carries little and always works, also while the
 * data's way is stuck: joining, the exchange of infos, connecting lazily, mapping a peer's memory, signs of life, and
 * the news that a rank is gone.
 *
 *        rank 1 ---.
 *        rank 2 ----+--- hub (a thread in the process that made the unique id)
 *        rank 0 ---'
 *
 * Every rank has one connection to the hub, its own included. Messages between ranks go through the hub; only the parts
 * of an allgather of many ranks go from rank to rank (ctl_exchange.h). One service
 * thread per process reads and writes the connections of all communicators of that process; nothing there depends on
 * the callers' threads or on kernels.
 *
 * Life. Ranks and hub send each other a sign of life every timeout/32. The hub counts a rank as lost when its
 * connection breaks (PEER_LOST), or is silent for the timeout (PEER_SILENT), and tells all others once: rank, cause,
 * text. A rank that hears nothing from the hub for the timeout counts the hub's rank as lost. A rank that leaves says
 * so first and is not lost. If the hub's process leaves properly, the others go on without a control plane. With
 * GANTRY_RESUME a connection that breaks, and was not ended, is no loss: the rank dials again until the timeout, and
 * every frame still comes once and in order (inet/stream.h, docs/design/0031).
 *
 * Trust. The unique id carries a random key: only a holder of the id can join; with GANTRY_SECRET set the key is mixed
 * with it. Both directions prove it by HMAC-SHA256 over nonces (without OpenSSL: by the key itself). Connections
 * without the key are refused and can neither stall nor crash a process.
 */
#ifndef GANTRY_CTL_CTL_H
#define GANTRY_CTL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gantry/comm.h"
#include "gantry/result.h"

struct gantry_ctl;

/* Makes an id and starts the hub in this process. It ends by itself when all ranks have left. */
gantry_result gantry_ctl_create_id(struct gantry_unique_id *ret_id);
/*
 * An id that every rank makes for itself, of what all of them know: where the hub is, with its port, and a name that
 * tells this communicator from others. The address may differ from rank to rank, as long as it leads there. The key in
 * it is no secret: GANTRY_SECRET alone keeps strangers out. One process then serves it, at the id's port: on all
 * addresses of the host, or on `at` if that is not NULL.
 */
struct gantry_addr;
void gantry_ctl_fixed_id(const struct gantry_addr *addr, const char *name, struct gantry_unique_id *ret_id);
gantry_result gantry_ctl_serve(const struct gantry_unique_id *id, const struct gantry_addr *at);
/* The same on all ranks: what net plugins and names of shared things are given. */
uint64_t gantry_ctl_comm_id(const struct gantry_unique_id *id);

struct gantry_ctl_config {
	const struct gantry_unique_id *id;
	int rank, nranks;
	/* Where to look for the hub, if not at the id's address; borrowed until it has joined. Of several it is found
	 * at one. NULL: that of the id. */
	const struct gantry_addr *addrs;
	int naddrs;
	/* On the service thread, once per lost rank; must not block or call back into the control plane. rank -1: the
	 * control plane itself is gone without a word. */
	void (*on_lost)(void *ctx, int rank, gantry_result why, const char *text);
	/* How long joining may take; 0: GANTRY_CONNECT_TIMEOUT to reach the hub, then GANTRY_CALL_TIMEOUT for the others. */
	uint64_t patience_ns;
	int hub_comes; /* the hub may be created late: a process that does not have it yet is dialled again */
	int listens;   /* this process can have hubs of further communicators: gantry_ctl_address */
	/* Asked now and then, without a lock, by a thread that waits in gantry_ctl_join or gantry_ctl_allgather: other
	 * than OK ends the wait with it, and with gantry_last_error(). NULL: nothing ends it early. */
	gantry_result (*stop)(void *ctx);
	int tell_left; /* on_lost also for ranks that leave properly: PEER_CLOSED */
	/* On the service thread: a call from another rank. Writes at most *reply_size bytes and the true size; its
	 * result travels to the caller. Must not block. */
	gantry_result (*on_call)(void *ctx, int from, uint32_t kind, const void *data, size_t size, void *reply,
				 size_t *reply_size);
	void *ctx;
};
enum { GANTRY_CTL_MESSAGE_MAX = 65536 };

/* Joins; returns when all ranks have joined (then all know it), however late, or fails after GANTRY_CALL_TIMEOUT and
 * names the missing ranks. A hub that is not reached, or falls silent, and a rank that joined and is lost end it at
 * once. Two ranks with the same number, or with different counts, are refused on all sides by name. */
gantry_result gantry_ctl_join(const struct gantry_ctl_config *config, struct gantry_ctl **ret_ctl);
/* What a join in this process still waits for, asked by another thread: "ranks 1, 3-5" if the hub is here,
 * "10.0.0.1:4711: Connection refused" while it is not reached; "" if for nothing that is known here. */
void gantry_ctl_awaits(const struct gantry_unique_id *id, char *buf, size_t len);
/* A process that makes several ids for one communicator calls this for those that are not used: ends the hub of the id,
 * if it is here and no rank has connected to it. */
void gantry_ctl_drop_id(const struct gantry_unique_id *id);
/* The ranks of the id, whose hub is here, will never be complete: those that came and those that come hear why. */
void gantry_ctl_fail_id(const struct gantry_unique_id *id, gantry_result why, const char *text);
/* Says goodbye and closes; bounded, never waits for a peer. NULL is fine. */
void gantry_ctl_leave(struct gantry_ctl *ctl);

/* all: nranks * size bytes, in rank order. Every rank calls it with the same size, in the same order. Ranks that are here and
 * have not called are waited for (GANTRY_CALL_TIMEOUT). */
gantry_result gantry_ctl_allgather(struct gantry_ctl *ctl, const void *mine, size_t size, void *all);
/* One-way messages are kept for the receiver until it asks; matched by sender and tag, in order. */
gantry_result gantry_ctl_send(struct gantry_ctl *ctl, int to, uint64_t tag, const void *data, size_t size);
/* AGAIN when it is not there yet. A sender that is lost or has left: its error. size must match. */
gantry_result gantry_ctl_try_recv(struct gantry_ctl *ctl, int from, uint64_t tag, void *data, size_t size);
/* Of whichever rank has sent one. GANTRY_AGAIN if none has, also when ranks or the hub are gone. */
gantry_result gantry_ctl_try_recv_any(struct gantry_ctl *ctl, uint64_t tag, void *data, size_t size);
/* Waits until any message, reply or loss arrives since the last call, at most timeout_ns. */
void gantry_ctl_wait(struct gantry_ctl *ctl, uint64_t timeout_ns);
/* Asks another rank's on_call and waits for the answer, at most GANTRY_TIMEOUT. */
gantry_result gantry_ctl_call(struct gantry_ctl *ctl, int to, uint32_t kind, const void *data, size_t size, void *reply,
			      size_t *reply_size);
/* Both addresses of this rank's connection to the hub. ERR_PEER_CLOSED: there is none any more. */
gantry_result gantry_ctl_ends(struct gantry_ctl *ctl, struct gantry_addr *ret_local, struct gantry_addr *ret_hub);
/* OK, or why that rank is here no more: PEER_CLOSED if it has left, else its loss. Also when the hub is gone. */
gantry_result gantry_ctl_peer(struct gantry_ctl *ctl, int rank);
/* Whether the hub is gone: nothing is known of the other ranks from then on. */
bool gantry_ctl_is_over(struct gantry_ctl *ctl);

/*
 * ---- communicators made from this one ----
 *
 * Every rank of a communicator that listens has an address, which the other ranks get in the exchange. An id for some
 * of them then needs no message: all derive the same one from this communicator's key, from the operation (`what`, the
 * same bytes on all) and from the address of the rank that serves it. So it works without the hub of this one, too.
 */
/* Where hubs of this process are reached. ERR_UNREACHABLE: nowhere, it does not listen. */
gantry_result gantry_ctl_address(struct gantry_ctl *ctl, struct gantry_addr *ret_addr);
gantry_result gantry_ctl_derive_id(const struct gantry_ctl *ctl, const struct gantry_addr *at, const void *what,
				   size_t size, struct gantry_unique_id *ret_id);
/* By the rank at whose address it is. */
gantry_result gantry_ctl_serve_derived(struct gantry_ctl *ctl, const struct gantry_unique_id *id);
/* Difference of the hub's clock to this one's (gantry_now_ns), measured at joining by the shortest of several trips. */
int64_t gantry_ctl_clock_offset(const struct gantry_ctl *ctl);

#endif
