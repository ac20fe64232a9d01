/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's C API over gantry/comm.h: conversions and checks. What NCCL has and gantry/comm.h does not is here, too:
 *
 *   nccl_comm.c    ncclComm: which there are, ending and asking them
 *   comm_make.c    making them: init, split, shrink, grow; ncclConfig_t
 *   nccl_group.c   groups that hold whole communicators' beginnings and ends as well as transfers
 *   nccl_coll.c    collectives, send and receive, operations of the caller's own
 *   nccl_memory.c  the device and stream of a call; ncclMemAlloc, registered memory
 *   nccl_window.c  windows, for calls and for kernels
 *   nccl_device.c  device communicators, for kernels of the program that start network operations; teams and properties
 *   nccl_queue.c   the queues that such kernels write
 *   error.c        results, their texts, the last error
 *   env.c          NCCL's environment variables
 *   nccl_param.c   ncclParam*
 *   refused.c      what is always refused, from api.def
 *   lazy.c         libraries that are opened when something of theirs is first called
 *
 * WAITING. On a GPU a collective is enqueued on the caller's stream, as in NCCL. On the host device there is no stream
 * that the caller could wait for: each communicator has its own, whatever is passed, and a call (a group: its end)
 * returns when the results are there. A non-blocking communicator returns at once, and ncclCommGetAsyncError says
 * ncclInProgress until they are.
 *
 * NOTHING EARLY. The library is preloaded into programs that never call it, so it has no constructors, starts no
 * threads and opens no files before the first call that needs a communicator (tests/system/nccl_preload.sh).
 */
#ifndef GANTRY_NCCL_NCCL_H
#define GANTRY_NCCL_NCCL_H

#include "abi/nccl_api.h"
#include "base/list.h"
#include "base/mutex.h"
#include "device/device.h"
#include "gantry/comm.h"

#define NCCL_EXPORT __attribute__((visibility("default")))
#define API(kind, type, name, params)                                                                                  \
	NCCL_EXPORT type nccl##name params;                                                                            \
	NCCL_EXPORT type pnccl##name params;
#include "nccl/api.def"

/* The definition of a function: a strong pncclX, and ncclX as a weak name of it, which a profiler may replace. */
#define NCCL_FUNCTION(type, name, params)                                                                              \
	__attribute__((weak, alias("pnccl" #name))) NCCL_EXPORT type nccl##name params;                                \
	type pnccl##name params

struct nccl_windows;

enum nccl_ending { NCCL_LIVES, NCCL_FINALIZES, NCCL_FINALIZED, NCCL_ENDS };

MUTEX_KIND(nccl_comms_mu); /* of the process's communicators: which there are, and which of them end */

#define NCCL_COMM_MAGIC 0x6e63636c67616e74u

struct ncclComm {
	uint64_t magic;					   /* NCCL_COMM_MAGIC, or the handle is not one */
	struct gantry_list node GUARDED_BY(nccl_comms_mu); /* of all of the process */
	struct gantry_comm *comm;			   /* atomic; NULL: not begun yet */
	struct gantry_device *device;			   /* a reference */
	bool blocking;
	bool revoked;
	enum nccl_ending ending GUARDED_BY(nccl_comms_mu);
	uint32_t calls;		   /* atomic: threads that are in a call of it */
	struct gantry_stream *own; /* of the host device; owned */
	cudaStream_t native;	   /* the last one, and what stands for it */
	struct gantry_stream *stream;
	struct nccl_windows *windows; /* owned: nccl_device.h */
	struct ncclComm *next_used;   /* nccl_group.c: of those that the group of a thread has used */
	bool used;
};

/* ---- error.c ---- */

/* NCCL's code; of an error the text is kept for ncclGetLastError. */
ncclResult_t nccl_result(gantry_result r);
/* An argument is NULL, or a struct that was not initialised: ERR_INVALID, with a text that names the function. */
gantry_result nccl_missing(const char *function);
/* Without keeping anything. */
ncclResult_t nccl_code(gantry_result r);
void nccl_keep_error(const char *text);

/* ---- env.c ---- */

/* The first thing in every call that reads parameters: NCCL's variables stand in for ours that are not set. */
gantry_result nccl_begin(void);
/* One line about variables that are set and mean nothing here; once. */
void nccl_env_tell(int rank);
/* From now on the secret is in use. */
void nccl_env_begun(void);
/* -1: NCCL_COMM_BLOCKING is not set. */
int nccl_env_blocking(void);
/* Variables of NCCL that are listed by ncclParamGetAllParameterKeys; NULL behind the last. */
const char *nccl_env_name(size_t i);

/* ---- nccl_memory.c ---- */

/* The device of the calling thread; or, of ncclCommInitAll, the index-th one. A reference. */
gantry_result nccl_device_here(struct gantry_device **ret_device);
gantry_result nccl_device_numbered(int index, struct gantry_device **ret_device);
gantry_result nccl_stream_for(struct ncclComm *c, cudaStream_t native, struct gantry_stream **ret_stream);

/* ---- nccl_config.c ---- */

/* The caller's, which may be shorter or longer than ours, or NULL: what it lacks is not set. Names what has no effect once, as a
 * warning on rank 0. Its texts stay the caller's. */
gantry_result nccl_config_read(const ncclConfig_t *theirs, int rank, ncclConfig_t *ret);

/* ---- nccl_comm.c ---- */

/* NULL, after a line in the log, if it is no communicator that can be used. */
struct ncclComm *nccl_comm_of(ncclComm_t comm, const char *function);
/* One that is still to be made, among those of the process. Takes the device over, also if it fails. */
gantry_result nccl_comm_new(struct gantry_device *device, struct ncclComm **ret);
/* It could not be made. The caller has entered it and leaves it here. Frees it, unless another thread has aborted it: that
 * one does. */
void nccl_comm_drop(struct ncclComm *c);
static inline void nccl_enter(struct ncclComm *c)
{
	fetch_add_seq(&c->calls, 1);
}
static inline void nccl_leave(struct ncclComm *c)
{
	fetch_sub_seq(&c->calls, 1);
}

/* ---- comm_make.c ---- */

/* Until it is made, or another one from it is, or that has failed. */
gantry_result nccl_await_made(struct gantry_comm *comm);

/* ---- nccl_group.c ---- */

/* Something that waits for other ranks. In a group it is kept until the group's end, where those of different communicators
 * run at the same time; else it runs at once. */
struct nccl_job {
	struct nccl_job *next;
	struct nccl_job *then; /* the next one of its communicator, which waits for it */
	bool waits, late;      /* late: that communicator ends before it */
	bool entered;
	bool uses; /* its communicator, which exists before and after it */
	/* Of all that do not wait, before the first one runs; must not wait for other ranks. NULL: none. */
	gantry_result (*begin)(struct nccl_job *job);
	gantry_result (*run)(struct nccl_job *job);
	gantry_result r;
	char error[256];
	bool dropped;	    /* the group has failed: run only cleans up */
	struct ncclComm *c; /* that it makes or ends; NULL: a rank that gets none */
	/* Of those that make one. */
	gantry_result (*make)(struct nccl_job *job, struct gantry_comm **ret);
	struct ncclComm *parent; /* that it is made from, entered; NULL: none */
	ncclComm_t *made;	 /* the caller's */
	struct gantry_comm_config config;
	struct gantry_unique_id *ids; /* owned */
	char name[64], network[128];
	int color, key;			 /* split */
	int *exclude, nexclude, abort;	 /* shrink; owned */
	int nranks, rank;		 /* grow */
	struct gantry_unique_id id, *by; /* grow: by is the id, or NULL */
	/* Of those that end one. */
	bool ends, destroy, aborted; /* of the last two none: it finalizes */
	/* Of windows. */
	void *buf; /* or the window that ends */
	size_t size;
	ncclWindow_t *window; /* the caller's; NULL: none is made */
	void *owned;	      /* nccl_device.c: what a device communicator is to have */
};
/* Takes the job over. Its result; OK: it is kept. */
gantry_result nccl_group_run(struct nccl_job *job);
void nccl_job_free(struct nccl_job *job);
/* Those of different communicators at once, if need be on threads of their own. Frees them. The first error. */
gantry_result nccl_jobs_run(struct nccl_job *jobs);

gantry_result nccl_group_finish(void);
/* What the thread's open group has to end it with; NULL: nothing. */
struct nccl_job *nccl_group_ending(const struct ncclComm *c);
/* The group, or a call that is in none, has transfers of the communicator. */
void nccl_group_uses(struct ncclComm *c);
/* The transfers are enqueued, with this result. Of communicators that block on the host, waits for them. */
gantry_result nccl_group_settle(gantry_result r);
/* What was enqueued is forgotten. */
gantry_result nccl_group_drop(void);

#endif
