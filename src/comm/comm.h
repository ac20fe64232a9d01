/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's insides.
 *
 *   comm.c          how it is made, with what all ranks must have alike; init, destroy, abort, errors
 *   life.c          communicators made from others: split, shrink, grow; finalize, revoke; what goes on in the background
 *   probe.c         whether GPUs reach each other's memory, tried when it is made
 *   peer.c          connections: made lazily, all channels of a peer at once
 *   enqueue.c       gantry_send, gantry_recv
 *   launches.c      argument memory of launches, launching
 *   group.c         groups of calls, later.c those that would wait
 *   graph.c         launches on streams that are captured
 *   coll.c          collectives: calls, the plans that they follow, operations for the proxy
 *   coll_model.c    what ranks agree on for them when the communicator is made
 *   comm_fit.c      the cost model fitted to connections that are timed at init
 *   comm_collnet.c  reducers: which ranks send to them, and whether all can
 *   small.c         small collectives, done by the thread that runs the stream
 *   note.c          what collectives are, for reports
 *   memory.c        registered buffers
 *   window.c        one-sided: windows
 *   reach.c         one-sided: how this rank reaches windows of the others
 *   put.c           one-sided: put, signal, wait; notifications
 *   gin.c           queues of kernels that put and signal
 *   cause.c         which rank caused an error
 *   report.h        which rank waits for which: reports, the watchdog, traces
 *
 * Threads: the caller's (one at a time), the progress thread (on_proxy_error), the service thread (on_lost, on_call,
 * reports), and of a non-blocking communicator the one that makes or ends it (life.c). What the progress and the service
 * thread touch is atomic or guarded by `mu`; what life.c's thread makes is published by life.starting and life.running.
 */
#ifndef GANTRY_COMM_COMM_H
#define GANTRY_COMM_COMM_H

#include <pthread.h>

#include "base/atomic.h"
#include "base/list.h"
#include "base/mutex.h"
#include "coll/coll.h"
#include "ctl/ctl.h"
#include "device/device.h"
#include "device/failure.h"
#include "device/help.h"
#include "device/work.h"
#include "gantry/comm.h"
#include "proxy/proxy.h"
#include "transport/transport.h"

enum {
	COMM_CHANNELS_MAX = 64,
	COMM_ERROR_TEXT = 256,
};

enum comm_stage { CONN_NONE, CONN_SETUP, CONN_HAVE_INFO, CONN_READY };

/* One end of one channel to one peer, and what belongs to it. */
struct comm_conn {
	struct gantry_connector c;
	struct gantry_connect_info peer_info;
	struct gantry_conn *dev; /* the device's copy of c.conn */
	uint64_t turns;		 /* transfers and collectives planned so far */
	enum comm_stage stage;
	uint64_t since;		 /* ns: when the peer's info came, and connecting began */
	uint32_t id;		 /* for the trace */
	uint8_t filled, messages, taken; /* of a call that small.c does: ready to be sent, posted, received or gone */
};

struct comm_peer {
	const struct gantry_transport *transport; /* NULL: not chosen yet */
	struct comm_conn *conns[2];		  /* [send]: arrays of nchannels; NULL: not connected */
	int ready[2];
	int no_p2p; /* it was tried between the two, and does not work: probe.c */
};

struct comm_reg {
	struct gantry_list node;
	char *base;
	size_t size;
	struct gantry_mem_info info;
	struct gantry_ipc_handle ipc;
	int exported;
	uint64_t freed_seen; /* gantry_freed_count when it was made, or made anew */
	void **handles;	     /* by connection: 2 * nchannels per peer; what proxy_register gave */
	uint64_t *peer_base; /* by rank: where the peer has mapped it; 0: not asked, UINT64_MAX: it cannot */
};

struct comm_shrink {
	uint64_t members; /* a hash of the participating ranks */
	uint64_t count;	  /* how often */
};

/* What it came from and what may be made of it: life.c. The caller's thread has it, but for what is atomic. */
struct comm_life {
	struct gantry_unique_id unique;
	char *name;	   /* owned; "" if it has none */
	int nonblocking;   /* calls on it do not wait */
	int channels;	   /* as asked for; 0: automatic */
	int traffic_class; /* as config has it */
	char *network;	   /* its name, as config has it; owned; "" if there is none */
	uint32_t starting; /* atomic, release: it is being made; what follows it is not there yet */
	uint32_t running;  /* atomic, release: a thread works for it, or on one that is made from it */
	uint32_t cancel;   /* atomic: it was aborted; threads that wait for other ranks leave */
	/* It has failed, or the caller has ended it: the proxy and calls that wait stop. Kernels go on waiting on a device whose
	 * streams cannot report an error, until the caller ends it (comm_end_kernels). Atomic, seq_cst. */
	uint32_t stop;
	struct gantry_failure *failure; /* of a device whose streams can; else NULL */
	uint32_t revoked;		/* atomic: 1, and 2 if that is its first error */
	int made;			/* it was: others may be made from it, whatever has happened since */
	int finalized;
	int has_thread; /* one was started that has not been joined */
	int forks;	/* of the process that made it */
	pthread_t thread;
	/* While it is being made from another one, which outlives that. */
	struct gantry_comm *parent;
	const int *members; /* by rank, their ranks there; borrowed */
	int nmembers;
	uint64_t blind_since;	   /* ns: meeting without the control plane of the parent; 0: not */
	int blamed;		   /* the one whose loss ended it, by its rank here; -1: none */
	struct gantry_addr *addrs; /* by rank: where its process can be reached; of no family: nowhere */
	uint64_t splits;
	struct comm_shrink *shrinks;
	size_t nshrinks;
};

MUTEX_KIND(comm_mu);

struct gantry_comm {
	struct gantry_list node; /* of all communicators of the process: watch.c */
	int rank, nranks;	 /* -1 and 0 while a split has not found out; relaxed, until life.starting is over */
	int nchannels;
	uint64_t id;
	struct comm_life life;
	char *transport;	      /* owned: which may be used */
	struct gantry_device *device; /* borrowed */
	struct gantry_ctl *ctl;
	struct gantry_peer_info *infos;
	struct comm_peer *peers;
	struct { /* probe.c */
		struct gantry_p2p_probe memory;
		int failed; /* between some two ranks */
	} probe;
	struct gantry_proxy *proxy;
	struct gantry_proxy_group *group;
	struct gantry_help help; /* of kernels on CPU threads, unless */
	int bound;		 /* the proxy's work is its thread's alone */
	/* Shared with kernels: two mapped blocks. */
	uint32_t *abort_host, *abort_dev, *result_host, *result_dev;
	struct gantry_conn_state *states_host, *states_dev; /* 2 * nchannels per rank */
	struct gantry_conn *conns_dev;			    /* likewise; device memory */
	struct gantry_eventcount *eventcounts;		    /* COMM_CHANNELS_MAX; NULL: the device does not sleep */
	struct gantry_ipc_handle eventcounts_handle;
	int all_notify;			/* every connected peer wakes this rank's eventcounts */
	struct comm_launches *launches; /* launches.h */
	struct gantry_list regs;	/* the caller's thread, as the next two */
	uint64_t freed_seen;		/* gantry_freed_count when all regs were looked at last */
	struct gantry_list gins;
	struct {	       /* memory of peers: memory.c */
		void **mapped; /* the service thread's */
		size_t nmapped;
		struct gantry_list retired GUARDED_BY(comm_mu); /* to be unmapped */
		uint32_t nretired;				/* atomic: of them */
	} peer_memory;
	struct comm_mu mu;
	struct { /* the first error */
		gantry_result result;
		int rank; /* that it is about; -1: not known */
		char text[COMM_ERROR_TEXT];
	} error GUARDED_BY(comm_mu);
	uint32_t error_seen;		/* atomic copy of error.result, for the fast path */
	int closing;			/* atomic: in the last meeting of all ranks */
	struct comm_cause *cause;	/* cause.c */
	struct comm_coll *coll;		/* comm_coll.h */
	struct comm_onesided *onesided; /* window.c; NULL: no window was registered yet */
	struct comm_graphs *graphs;	/* atomic; NULL: nothing was ever captured. graph.c */
	struct {			/* watch.c */
		int report_wanted, report_written;
		uint64_t stall_sum, stall_since; /* progress as last seen */
	} watch;
};

static inline const struct gantry_transport_side *comm_side_of(const struct gantry_connector *c)
{
	return c->send ? c->transport->send : c->transport->recv;
}

static inline struct gantry_conn_state *comm_state_host(const struct gantry_comm *comm, int peer, int send, int channel)
{
	ASSERT(peer >= 0 && peer < comm->nranks && channel >= 0 && channel < comm->nchannels);
	return &comm->states_host[(peer * 2 + send) * comm->nchannels + channel];
}

/* ---- making one ---- */

/*
 * First half, which does not wait for other ranks: what comm_fail needs, so that from here on it can be aborted.
 * config: a copy of our own; rank -1 and nranks 0 if they are not known yet. Second half: joins the other ranks at
 * life.unique. The hub may be one that is created later: hub_comes.
 */
gantry_result comm_make(const struct gantry_comm_config *config, struct gantry_comm **ret_comm);
gantry_result comm_start(struct gantry_comm *comm, int hub_comes);
void comm_free(struct gantry_comm *comm); /* also a half-made one */
/* Of a program's config; ERR_INVALID with a line. NULL if it is none. */
gantry_result comm_take_config(const struct gantry_comm_config *config, struct gantry_comm_config *ret_own);
/* Until kernels and proxy are done with what was enqueued, or an error, or nothing has moved for the timeout. */
gantry_result comm_drain(struct gantry_comm *comm);
/* comm_end_kernels, and waits for that, but not for ever. */
void comm_end(struct gantry_comm *comm);
/* All ranks are here: none of them uses memory of another any more. */
gantry_result comm_last_meeting(struct gantry_comm *comm);
/* "communicator 0123456789abcdef (name)" */
enum { COMM_NAME_MAX = 64, COMM_TEXT = 40 + COMM_NAME_MAX };
const char *comm_text(const struct gantry_comm *comm, char buf[COMM_TEXT]);
#define COMM_TEXT_OF(comm) comm_text((comm), (char[COMM_TEXT]){0})

/* ---- life.c ---- */

/* Makes the communicator, here or, if it does not block, in a thread: AGAIN. Blocking: frees it if that fails. */
gantry_result comm_init_run(struct gantry_comm *comm, int nonblocking, struct gantry_comm **ret_comm);
/* gantry_ctl_config.stop. */
gantry_result comm_stopped(void *comm);
/* How long a new communicator may take to meet, ns, when the control plane of its parent is gone; 0: it is not. */
uint64_t comm_blind_patience(const struct gantry_comm *comm);
/* Until nothing works for it in the background. */
void comm_life_wait(struct gantry_comm *comm);
/* May a call use it? ERR_USAGE: it is not ready yet, or finalized, or revoked. Else its error. what: the call. */
gantry_result comm_ready(struct gantry_comm *comm, const char *what);
/* The first error is that it was revoked. */
static inline int comm_is_revoked(const struct gantry_comm *comm)
{
	return load_acquire(&comm->life.revoked) == 2;
}

/* ---- errors ---- */

/* Ends it as an error does, but intentionally: no rank is notified, and split and shrink may follow. */
void comm_revoke(struct gantry_comm *comm);
/* Latches the first error, ends operations, and kernels where streams report the error; wakes all waiters. Any
 * thread. */
void comm_fail(struct gantry_comm *comm, gantry_result r, int rank, const char *text);
/* The caller has asked for its end: kernels end now, and streams get on. Any thread. */
void comm_end_kernels(struct gantry_comm *comm);
/* The rank responsible for an error that came up while working with this peer: the peer, or this rank. */
int comm_error_about(const struct gantry_comm *comm, gantry_result r, int peer);
/* comm_fail for an error that may be a symptom, once its cause is known or a moment has passed. comm_suspect returns at
 * once; comm_fail_for_cause waits, and so does not run on the threads of the proxy and the control plane. */
void comm_suspect(struct gantry_comm *comm, gantry_result r, int rank, const char *text);
void comm_fail_for_cause(struct gantry_comm *comm, gantry_result r, int rank, const char *text);
gantry_result comm_cause_make(struct gantry_comm *comm);
void comm_cause_free(struct gantry_comm *comm);
/* The first error, which comes next, is the control plane's news: the other ranks have it too. */
void comm_cause_from_ctl(struct gantry_comm *comm);
/* Before the communicator is freed: stops the search for causes, and sends the peers the reason why it goes. */
void comm_cause_end(struct gantry_comm *comm);
void comm_cause_tell(struct gantry_comm *comm);
/* The watchdog's: is there a symptom whose cause is waited for? Looks for it; until when at the latest, ns, or 0: no more. */
int comm_cause_waits(const struct gantry_comm *comm);
uint64_t comm_cause_look(struct gantry_comm *comm);
/* The latched error, or what a kernel has reported meanwhile. */
gantry_result comm_check(struct gantry_comm *comm);

struct comm_transfer {
	char *buf;
	uint64_t bytes;
	int peer, send;
	uint32_t number; /* gantry_xfer.coll */
	uint8_t func;	 /* enum gantry_net_func: the collective that it is a part of; 0: none */
};

/* Kinds of collectives that have no plan of their own. */
enum { COMM_GATHER = COLL_KINDS, COMM_SCATTER, COMM_BARRIER, COMM_KINDS };

struct comm_collective {
	unsigned kind; /* enum coll_kind; or COMM_GATHER, COMM_SCATTER, which become transfers */
	int root;
	const char *in;
	char *out;
	uint64_t count, bytes; /* bytes: of count elements */
	uint8_t type, op;
	uint64_t scalar;
	const void *scalar_at;
	struct comm_plan *plan; /* NULL: it becomes transfers */
	struct coll_choice choice;
};

/* A put, with a signal or without, or a signal alone. */
struct comm_put {
	char *buf;
	uint64_t bytes;
	int peer, signal;
	struct gantry_window *window; /* NULL: a signal alone */
	uint64_t offset;
};

struct comm_wait {
	int peer, signal;
	uint64_t count; /* signals to be waited for */
};

/* A call of a group. */
enum comm_call_kind { COMM_IS_TRANSFER, COMM_IS_COLL, COMM_IS_PUT, COMM_IS_WAIT };
struct comm_call {
	struct gantry_comm *comm;
	struct gantry_stream *stream;
	enum comm_call_kind kind;
	union {
		struct comm_transfer transfer;
		struct comm_collective coll;
		struct comm_put put;
		struct comm_wait wait;
	};
};

/* A direction to or from a peer that has to be connected. */
struct comm_need {
	struct gantry_comm *comm;
	int peer, send;
};

/* Tries p2p between ranks on GPUs; all ranks learn what has failed. Then the transport to a peer, if it is not chosen yet. */
gantry_result comm_probe(struct gantry_comm *comm);
gantry_result comm_choose_transport(struct gantry_comm *comm, int peer);
/* The directions that a call needs and that are not known to be connected: answers how many. ret: NULL, or room for all. */
/* gin.c: those that the program has not closed. */
void comm_gin_stop(struct gantry_comm *comm);
/* Until what kernels have asked for has left, which have ended. */
gantry_result comm_gin_flush(struct gantry_comm *comm);

size_t comm_needs(const struct comm_call *call, struct comm_need *ret);
/* Connects them, of all communicators among them at the same time. */
gantry_result comm_connect(const struct comm_need *needs, size_t n);
void comm_peers_free(struct gantry_comm *comm);
/* The parts of it for ends that are made in another way (comm_collnet.c): before and after the transport has connected. */
gantry_result comm_end_begin(struct gantry_comm *comm, struct comm_conn *cc, int peer, int send, int channel);
gantry_result comm_end_finish(struct gantry_comm *comm, struct comm_conn *cc);
void comm_peer_free(struct gantry_comm *comm, int peer);

/* Whether all connections that the calls need are made. */
int comm_connected(const struct comm_call *calls, size_t n);
/* The transfers among the calls of one communicator. */
gantry_result comm_enqueue_transfers(struct gantry_comm *comm, const struct comm_call *calls, size_t n);
/* Connects what a group needs and enqueues its calls. */
gantry_result comm_group_run(struct comm_call *calls, size_t n);
/* later.c: whether a group's communicators do not block, and it would; then does it in a thread: AGAIN. */
int comm_group_is_later(const struct comm_call *calls, size_t n);
gantry_result comm_group_later(const struct comm_call *calls, size_t n);

/* Adds a call to this thread's group; runs it if there is none. r: what was wrong with it. */
gantry_result comm_group_add(gantry_result r, struct comm_call *call);
/* Of this thread's group: how deep it is nested (0: there is none), and its first error, with which it ends. */
int comm_group_depth(void);
gantry_result comm_group_error(void);
/* If r is an error, the group, if there is one, fails with it: nothing of it is enqueued. Returns r. */
gantry_result comm_group_fail(gantry_result r);
/* What becomes of the communicator when a call was right but could not be enqueued. r: also that it could. */
void comm_enqueue_failed(struct gantry_comm *comm, gantry_result r);
/* Ends the group, with all that it is nested in, and enqueues nothing of it. Returns its error. */
gantry_result comm_group_drop(void);

/* How far ranks on GPUs reach each other by loads and stores: from what all ranks know, so all answer alike. */
enum comm_reach {
	COMM_REACH_NOT,	  /* not all of each host do, or some are on CPUs */
	COMM_REACH_HOSTS, /* those of each host, of which there are several */
	COMM_REACH_HOST,  /* all, on several GPUs */
	COMM_REACH_GPU,	  /* all, on one */
};
enum comm_reach comm_reach(const struct gantry_comm *comm);

/* ---- graph.c ---- */

/* Captured launches that run. */
int comm_graphs_busy(const struct gantry_comm *comm);
/* Graphs that are left do nothing any more; then, when no kernel runs, their memory if none is left. */
void comm_graphs_end(struct gantry_comm *comm);
void comm_graphs_free(struct gantry_comm *comm);

/* gantry_comm_register, also while the communicator is being made. */
gantry_result comm_memory_register(struct gantry_comm *comm, void *ptr, size_t size, void **ret_handle);
/* PTR: may the buffer be handed over on this connection? 1, with the address as the other end needs it. */
int comm_memory_place(struct gantry_comm *comm, struct comm_conn *cc, const char *buf, uint64_t bytes,
		      uint64_t *ret_place);
/* GANTRY_COLL_PTR_*: which of a collective's buffers its connections read and write in place. ret_shifts: gantry_coll's, of
 * all channels one after the other. */
uint8_t comm_memory_ptr(struct gantry_comm *comm, const struct comm_collective *coll, uint64_t *ret_shifts);
void comm_memory_free(struct gantry_comm *comm);
/* A peer's memory (ipc_open) that nothing uses any more but kernels that were launched: it is closed when none of them runs.
 * Any thread. comm_memory_reap looks whether that is so: at each call on the communicator, by the caller's thread. */
void comm_memory_retire(struct gantry_comm *comm, void *opened);
void comm_memory_reap(struct gantry_comm *comm);
/* The peer's half: calls that arrive on the service thread. */
enum { COMM_CALL_MAP = 1, COMM_CALL_UNMAP = 2, COMM_CALL_PUT = 3 };
gantry_result comm_memory_call(void *ctx, int from, uint32_t kind, const void *data, size_t size, void *reply,
			       size_t *reply_size);

/* reach.c. Whether a put or signal can go without waiting for anything; makes it so: maps memory of the peer, or connects to
 * it, which takes no call of its program. The peer's half, on the service thread. */
int comm_onesided_reached(const struct gantry_comm *comm, const struct comm_put *put);
gantry_result comm_onesided_reach(struct gantry_comm *comm, const struct comm_put *put);
gantry_result comm_onesided_call(struct gantry_comm *comm, int from, const void *data, size_t size, void *reply,
				 size_t *reply_size);
/* The one-sided calls among those of a group: puts and signals, or waits. */
gantry_result comm_onesided_enqueue(struct gantry_comm *comm, const struct comm_call *calls, size_t n,
				    enum comm_call_kind what);
/* Until what all ranks have put has arrived, once all of them have come here with nothing in flight. */
gantry_result comm_onesided_flush(struct gantry_comm *comm);
/* Adds what was put over the network. Any thread. */
void comm_onesided_count(const struct gantry_comm *comm, struct gantry_comm_counters *c);
void comm_onesided_wake(struct gantry_comm *comm); /* wakes waiters for signals; any thread */
/* The end: its standing receives, with the communicator's operations; then, with connections, all of it. */
void comm_onesided_stop(struct gantry_comm *comm);
void comm_onesided_free(struct gantry_comm *comm);

void comm_watch_add(struct gantry_comm *comm);
void comm_watch_remove(struct gantry_comm *comm);
/* Whether a communicator of the process has launches on the device that have not ended. */
bool comm_watch_busy(const struct gantry_device *device);
/* A report should be written soon. Any thread, async-signal-unsafe. */
void comm_watch_want(struct gantry_comm *comm);
/* A communicator waits for the cause of a symptom. Any thread. */
void comm_watch_cause(void);

#endif
