/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gantry's communicator: point to point between ranks, on GPUs or on the host, over peer access, shared memory or the
 * network. C99-clean, no CUDA headers.
 *
 *   rank 0: gantry_unique_id_create(&id), and the id travels to all ranks by whatever way there is
 *   all:    gantry_comm_init(&config, &comm)
 *           gantry_group_start(); gantry_send(...); gantry_recv(...); gantry_group_end();
 *           gantry_stream_sync(dev, stream)
 *           gantry_comm_destroy(comm)
 *
 * Ranks may be processes or threads; several may share one GPU. Sends and receives between two ranks match in the order
 * in which they are called. Outside a group a call is a group of its own.
 *
 * THREADS. Calls for one communicator come from one thread at a time, but for gantry_comm_abort, gantry_comm_error,
 * gantry_comm_get_counters, gantry_comm_report, gantry_comm_rank and gantry_comm_size, which any thread may call until
 * gantry_comm_destroy is called. Different communicators are independent. A group is the calling thread's own, and ends
 * on the thread that began it. gantry_unique_id_create may be called by any thread.
 *
 * TIMEOUTS. None of these calls takes one: those that wait end by GANTRY_CONNECT_TIMEOUT or GANTRY_TIMEOUT.
 */
#ifndef GANTRY_COMM_H
#define GANTRY_COMM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gantry/api.h"
#include "gantry/device.h"
#include "gantry/result.h"
#include "gantry/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gantry_unique_id {
	unsigned char bytes[128];
};
struct gantry_comm;

/*
 * Starts a small service in this process through which the ranks meet. Nobody has to end it: it ends when the last rank
 * of the communicator has left, or when no rank came within GANTRY_CONNECT_TIMEOUT; and with the process.
 */
GANTRY_API gantry_result gantry_unique_id_create(struct gantry_unique_id *ret_id);

/* Zero or NULL where the default is right. */
struct gantry_comm_config {
	size_t struct_size;
	struct gantry_unique_id id;
	int rank, nranks;
	struct gantry_device *device; /* borrowed until destroy */
	const char *transport;	      /* "auto", or a comma-separated list of those allowed; NULL: GANTRY_TRANSPORT */
	int channels;		      /* 0: GANTRY_CHANNELS */
};
#define GANTRY_COMM_CONFIG_INIT GANTRY_STRUCT_INIT(struct gantry_comm_config)
/* Returns when all ranks are there; fails by GANTRY_CONNECT_TIMEOUT, naming who is missing. The cause of a failure is
 * in gantry_last_error(). */
GANTRY_API gantry_result gantry_comm_init(const struct gantry_comm_config *config, struct gantry_comm **ret_comm);
/* Waits for what was enqueued, then frees. After an error or abort it waits for nothing. Bounded. */
GANTRY_API gantry_result gantry_comm_destroy(struct gantry_comm *comm);
/* Ends everything in flight on this rank, from any thread. The communicator can only be destroyed afterwards. */
GANTRY_API gantry_result gantry_comm_abort(struct gantry_comm *comm);
/* The first error of the communicator, OK if none; from any thread. text: one line with cause and peer, may be NULL.
 * ret_rank: who it is about, -1 if that is not known; may be NULL. */
GANTRY_API gantry_result gantry_comm_error(struct gantry_comm *comm, int *ret_rank, char *text, size_t len);

GANTRY_API gantry_result gantry_send(const void *buf, size_t count, enum gantry_type type, int peer,
				     struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_recv(void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
				     struct gantry_stream *stream);
GANTRY_API gantry_result gantry_group_start(void);
GANTRY_API gantry_result gantry_group_end(void);

/* Transfers within registered memory go without an intermediate copy where the transport can (PTR). The memory must
 * stay until it is deregistered. */
GANTRY_API gantry_result gantry_comm_register(struct gantry_comm *comm, void *ptr, size_t size, void **ret_handle);
GANTRY_API gantry_result gantry_comm_deregister(struct gantry_comm *comm, void *handle);

GANTRY_API int gantry_comm_rank(const struct gantry_comm *comm);
GANTRY_API int gantry_comm_size(const struct gantry_comm *comm);
/* Which transport carries data to or from a peer: "shm", ...; "" before the first transfer. */
GANTRY_API const char *gantry_comm_transport(const struct gantry_comm *comm, int peer);

/* What a communicator has done on its connections. */
struct gantry_comm_counters {
	size_t struct_size;
	uint64_t send_bytes, recv_bytes;
	uint64_t send_copies, recv_copies; /* copies of payload made by kernels and by the proxy, in steps */
	uint64_t send_copied, recv_copied; /* the same in bytes */
	uint64_t steps[3][3];		   /* by protocol (Simple, LL, LL128) and mode (NORMAL, OFFSET, PTR) */
};
#define GANTRY_COMM_COUNTERS_INIT GANTRY_STRUCT_INIT(struct gantry_comm_counters)
GANTRY_API gantry_result gantry_comm_get_counters(struct gantry_comm *comm, struct gantry_comm_counters *ret);

/* Who waits for whom, as JSON lines: see gantry-stall(5). */
GANTRY_API gantry_result gantry_comm_report(struct gantry_comm *comm, FILE *f);

#ifdef __cplusplus
}
#endif
#endif
