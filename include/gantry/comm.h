/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gantry's communicator: collectives and point to point between ranks, on GPUs or on the host, over peer access, shared
 * memory or the network. C99-clean, no CUDA headers.
 *
 *   rank 0: gantry_unique_id_create(&id), and the id travels to all ranks by whatever way there is
 *   all:    gantry_comm_init(&config, &comm)
 *           gantry_all_reduce(in, out, count, GANTRY_TYPE_FLOAT32, GANTRY_OP_SUM, comm, stream)
 *           gantry_group_start(); gantry_send(...); gantry_recv(...); gantry_group_end();
 *           gantry_stream_sync(dev, stream)
 *           gantry_comm_destroy(comm)
 *
 * Ranks may be processes or threads; several may share one GPU. Sends and receives between two ranks match in the order
 * in which they are called; collectives match in the order in which each rank calls them, and all ranks call the same
 * ones. Outside a group a call is a group of its own.
 *
 * THREADS. Calls for one communicator come from one thread at a time, but for gantry_comm_abort, gantry_comm_error,
 * gantry_comm_get_counters, gantry_comm_report, gantry_comm_rank and gantry_comm_size, which any thread may call until
 * gantry_comm_destroy is called. Different communicators are independent. A group is the calling thread's own, and ends
 * on the thread that began it. gantry_unique_id_create may be called by any thread.
 *
 * TIMEOUTS. None of these calls takes one. A call waits for the calls of other ranks as long as those ranks are alive, or for
 * GANTRY_CALL_TIMEOUT if that is set. Connecting, once both ranks have called, ends by GANTRY_CONNECT_TIMEOUT; a rank that dies
 * or falls silent ends the wait within GANTRY_TIMEOUT.
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
 * Starts a small bootstrap service in this process, through which the ranks meet. It needs no explicit stop: it ends
 * when the last rank of the communicator has left, or with the process. An id does not expire (but see
 * GANTRY_CALL_TIMEOUT).
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
	const char *name;	      /* for logs, reports and traces; NULL: none */
	int nonblocking;	      /* 1: see gantry_comm_error; 2: only until the communicator is made */
	int traffic_class;	      /* of its connections, as IP_TOS has it */
	/* Several ids for one communicator, the same list on all ranks: `id` is not looked at then. Those that are not needed
	 * are given back by the processes that made them. */
	const struct gantry_unique_id *ids;
	int nids; /* 0: `id` */
	/* The network of its connections, as GANTRY_NET names it, which goes before this; NULL: GANTRY_NET_PLUGIN says it.
	 * Alike on all ranks. */
	const char *network;
};
#define GANTRY_COMM_CONFIG_INIT GANTRY_STRUCT_INIT(struct gantry_comm_config)
/* Returns when all ranks have joined, however late; fails after GANTRY_CALL_TIMEOUT and names the missing ranks. The
 * cause of a failure is in gantry_last_error(). */
GANTRY_API gantry_result gantry_comm_init(const struct gantry_comm_config *config, struct gantry_comm **ret_comm);
/* Waits for what was enqueued, then frees. After an error, which it returns, or an abort it waits for nothing, and ends
 * kernels that are still waiting. Bounded. */
GANTRY_API gantry_result gantry_comm_destroy(struct gantry_comm *comm);
/* Ends everything in flight on this rank, from any thread, after an error too: until then streams with work of a failed
 * communicator do not get on (gantry_stream_sync). The communicator can only be destroyed afterwards. */
GANTRY_API gantry_result gantry_comm_abort(struct gantry_comm *comm);
/* The first error of the communicator, OK if none; from any thread. text: one line with cause and peer, may be NULL.
 * ret_rank: the rank that caused it, -1 if unknown; may be NULL. Never blocks.
 * Of a non-blocking communicator: init, split, shrink, grow and finalize return GANTRY_AGAIN and go on by themselves; so
 * does this, of the new communicator and of the one that it is made from, until they are done. A failure is then the
 * error of the new one. The handle is written at once. Until then other calls on either of them are ERR_USAGE, but for
 * gantry_comm_abort, which ends it, and gantry_comm_destroy, which waits for it. The end of a group, and a transfer or
 * collective outside one, does so too if ranks have to be connected first and all communicators in it are such: what was
 * called is on its stream when this says OK. */
GANTRY_API gantry_result gantry_comm_error(struct gantry_comm *comm, int *ret_rank, char *text, size_t len);

/*
 * ---- the life of a communicator ----
 *
 * config (all of these): transport, channels, name, nonblocking, traffic_class and network are taken from it; NULL: as in the
 * communicator that the new one is made from. All its ranks call these, in the same order, but for shrink.
 */
/* One new communicator for each color >= 0, its ranks ordered by key, then by their rank here. A negative color takes
 * part and gets NULL. */
GANTRY_API gantry_result gantry_comm_split(struct gantry_comm *comm, int color, int key,
					   const struct gantry_comm_config *config, struct gantry_comm **ret_comm);
/* A new communicator without the ranks of `exclude`, which do not call; all others give the same ones. abort: what is in
 * flight here is ended first, and this communicator with it (ERR_ABORTED, unless it has failed before); ranks of
 * `exclude` may be dead. 0: it is waited for. */
GANTRY_API gantry_result gantry_comm_shrink(struct gantry_comm *comm, const int *exclude, int nexclude, int abort,
					    const struct gantry_comm_config *config, struct gantry_comm **ret_comm);
/* For one rank of a communicator that will grow: the id by which the newcomers join. */
GANTRY_API gantry_result gantry_comm_grow_id(struct gantry_comm *comm, struct gantry_unique_id *ret_id);
/* A new communicator of nranks > the old number. Ranks of the old one keep theirs: comm, id (the one rank that made it;
 * NULL on the others), rank -1. Newcomers: comm NULL, the id, their rank, and config with a device. */
GANTRY_API gantry_result gantry_comm_grow(struct gantry_comm *comm, int nranks, const struct gantry_unique_id *id,
					  int rank, const struct gantry_comm_config *config,
					  struct gantry_comm **ret_comm);
/* Waits for what was enqueued, with all ranks; no calls but destroy and abort afterwards. Once: then ERR_INVALID. */
GANTRY_API gantry_result gantry_comm_finalize(struct gantry_comm *comm);
/* Ends what is in flight, here: also sends whose buffer is free already and that are on their way. Afterwards only split,
 * shrink, destroy and abort are right; all else is ERR_USAGE. gantry_comm_error: GANTRY_AGAIN until its kernels have
 * ended, then OK again, if nothing was wrong before. */
GANTRY_API gantry_result gantry_comm_revoke(struct gantry_comm *comm);

/*
 * ---- collectives ----
 *
 * count: elements of `in` (all_reduce, reduce, broadcast), or of one rank's part (the others). In place: `in` and `out`
 * are the same, or the part of this rank in the larger one of them; not for all_to_all, which then sends what it has
 * received already. Where a rank has no use for a buffer, NULL is fine
 * (`out` of reduce and gather, `in` of broadcast and scatter, on ranks that are not the root). op: enum gantry_op, or
 * what gantry_op_create_premul gave. Results of all ranks are equal bit by bit, and from run to run.
 */
GANTRY_API gantry_result gantry_all_reduce(const void *in, void *out, size_t count, enum gantry_type type, int op,
					   struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_reduce(const void *in, void *out, size_t count, enum gantry_type type, int op, int root,
				       struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_broadcast(const void *in, void *out, size_t count, enum gantry_type type, int root,
					  struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_all_gather(const void *in, void *out, size_t count, enum gantry_type type,
					   struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_reduce_scatter(const void *in, void *out, size_t count, enum gantry_type type, int op,
					       struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_all_to_all(const void *in, void *out, size_t count, enum gantry_type type,
					   struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_gather(const void *in, void *out, size_t count, enum gantry_type type, int root,
				       struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_scatter(const void *in, void *out, size_t count, enum gantry_type type, int root,
					struct gantry_comm *comm, struct gantry_stream *stream);
/* What follows on the stream begins when all ranks have come to it. */
GANTRY_API gantry_result gantry_barrier(struct gantry_comm *comm, struct gantry_stream *stream);

/* Each input is multiplied by the scalar, then summed. scalar: one element of the type, read now (on_device 0) or by the
 * kernels of each collective that uses it. The op belongs to this communicator, and may be destroyed before collectives
 * that use it have run. */
GANTRY_API gantry_result gantry_op_create_premul(struct gantry_comm *comm, enum gantry_type type, const void *scalar,
						 int on_device, int *ret_op);
GANTRY_API gantry_result gantry_op_destroy(struct gantry_comm *comm, int op);

/* Which algorithm, protocol, channels and chunk a collective of this size would take, and the costs of the others, as
 * lines of text. what: "all_reduce", ... */
GANTRY_API gantry_result gantry_comm_explain(struct gantry_comm *comm, const char *what, size_t count,
					     enum gantry_type type, FILE *f);

/* ---- point to point ---- */

GANTRY_API gantry_result gantry_send(const void *buf, size_t count, enum gantry_type type, int peer,
				     struct gantry_comm *comm, struct gantry_stream *stream);
GANTRY_API gantry_result gantry_recv(void *buf, size_t count, enum gantry_type type, int peer, struct gantry_comm *comm,
				     struct gantry_stream *stream);
/* Calls of a group may name several streams: then what a communicator does for the group waits for all streams that its calls
 * name, and all of them wait for it. */
GANTRY_API gantry_result gantry_group_start(void);
GANTRY_API gantry_result gantry_group_end(void);

/* Transfers within registered memory go without an intermediate copy where the transport can (PTR). The memory must
 * stay until it is deregistered. */
GANTRY_API gantry_result gantry_comm_register(struct gantry_comm *comm, void *ptr, size_t size, void **ret_handle);
GANTRY_API gantry_result gantry_comm_deregister(struct gantry_comm *comm, void *handle);

/*
 * ---- one-sided ----
 *
 * A window is memory of each rank that the others put into; its owner calls nothing. A put is over, for its stream, when
 * `local` may be used again. Its signal is raised at the target after its data is there, and so are later signals of
 * this rank to that target. A wait lets its stream go on when so many more signals of each kind have come than earlier
 * waits have taken. In a group puts and signals go before all else, waits come last.
 */
struct gantry_window;
enum { GANTRY_SIGNALS = 16, GANTRY_NO_SIGNAL = -1, GANTRY_NOTIFY_MAX = 112 };
/* All ranks call it, in the same order, and it waits for all of them. Any memory of the rank's device; sizes may differ, and
 * a rank that offers nothing gives NULL and 0. Memory from gantry_mem_alloc is reached without a copy in between. If it fails
 * on one rank it fails on all of them, and the communicator goes on. */
GANTRY_API gantry_result gantry_window_register(struct gantry_comm *comm, void *ptr, size_t size,
						struct gantry_window **ret_window);
/* Local: waits for no other rank. The memory is the caller's again at once; puts into it must have arrived, which their
 * signals tell. One that has not, or that comes later, writes nothing and ends the communicator with ERR_USAGE (the copy
 * engine of a GPU, for puts of more than 64 KiB within a host, does not look). ERR_INVALID: it is no window of this
 * communicator. NULL is fine. */
GANTRY_API gantry_result gantry_window_deregister(struct gantry_comm *comm, struct gantry_window *window);
/* What was registered here. */
GANTRY_API void *gantry_window_ptr(const struct gantry_window *window);
/* To `offset` of the peer's window, and then raises signal number `signal` there, unless it is GANTRY_NO_SIGNAL. ERR_SIZE,
 * naming the peer: it does not fit there. */
GANTRY_API gantry_result gantry_put(const void *local, size_t bytes, int peer, struct gantry_window *window,
				    size_t offset, int signal, struct gantry_comm *comm, struct gantry_stream *stream);
/* Without data. Ranks reach each other once they have registered a window. */
GANTRY_API gantry_result gantry_signal(int peer, int signal, struct gantry_comm *comm, struct gantry_stream *stream);
struct gantry_signal_wait {
	int count, peer, signal;
};
GANTRY_API gantry_result gantry_wait_signals(const struct gantry_signal_wait *waits, int n, struct gantry_comm *comm,
					     struct gantry_stream *stream);
/* A small message without a stream, at most GANTRY_NOTIFY_MAX bytes. Those of one rank to another come in order. */
GANTRY_API gantry_result gantry_notify(struct gantry_comm *comm, int peer, const void *data, size_t size);
/* The next one of that rank; *size: the room at `data`, and then the message's size. Never waits: GANTRY_AGAIN if none is
 * here, or the peer's error if it is gone. */
GANTRY_API gantry_result gantry_notified(struct gantry_comm *comm, int peer, void *data, size_t *size);

/* -1 and 0 of a non-blocking split until it has asked the others. */
GANTRY_API int gantry_comm_rank(const struct gantry_comm *comm);
GANTRY_API int gantry_comm_size(const struct gantry_comm *comm);
/* Which transport carries data to or from a peer: "shm", ...; "" before the first transfer. Of the rank itself: "collnet"
 * if it sends to reducers for its host, else "". */
GANTRY_API const char *gantry_comm_transport(const struct gantry_comm *comm, int peer);

/*
 * What the ends of connections have waited for: kernels for the peer, or for the proxy where that moves the data, and
 * the proxy for all else. Kernels do not count what is over within microseconds.
 */
enum gantry_comm_wait {
	GANTRY_COMM_WAIT_DATA,	  /* a kernel, for the peer's data */
	GANTRY_COMM_WAIT_ROOM,	  /* a kernel, until the peer has taken what it has sent */
	GANTRY_COMM_WAIT_PROXY,	  /* a kernel, for the proxy to bring data, or to take it */
	GANTRY_COMM_WAIT_KERNEL,  /* the proxy, for this rank's kernel */
	GANTRY_COMM_WAIT_PEER,	  /* the proxy, for the peer to send or to receive */
	GANTRY_COMM_WAIT_NETWORK, /* the proxy, for the network to take more */
	GANTRY_COMM_WAIT_FLUSH,	  /* the proxy, until the GPU sees what was received */
	GANTRY_COMM_WAIT_SPACE,	  /* the proxy, for memory of its pool */
	GANTRY_COMM_WAITS
};

/* What a communicator has done on its connections. */
struct gantry_comm_counters {
	size_t struct_size;
	uint64_t send_bytes, recv_bytes;
	uint64_t send_copies, recv_copies; /* copies of payload made by kernels and by the proxy, in steps */
	uint64_t send_copied, recv_copied; /* the same in bytes */
	uint64_t steps[3][3];		   /* by protocol (Simple, LL, LL128) and mode (NORMAL, OFFSET, PTR) */
	/* Steps whose fragments a receiving kernel gathered (GANTRY_UNPACK), and those of them that it read straight into
	 * a reduction. */
	uint64_t recv_unpacked, recv_unpack_reduced;
	/* By enum gantry_comm_wait. Ends wait at the same time, so all of them may be more than the time that has passed. */
	uint64_t wait_ns[8];
};
#define GANTRY_COMM_COUNTERS_INIT GANTRY_STRUCT_INIT(struct gantry_comm_counters)
GANTRY_API gantry_result gantry_comm_get_counters(struct gantry_comm *comm, struct gantry_comm_counters *ret);

/* Stall report: which rank waits for which, as JSON lines; see gantry-stall(5). */
GANTRY_API gantry_result gantry_comm_report(struct gantry_comm *comm, FILE *f);

#ifdef __cplusplus
}
#endif
#endif
