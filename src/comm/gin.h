/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of kernels and the thread that serves them (gin.c), whatever format kernels write: that of gantry/kernel.h, and NCCL's
 * (src/nccl/nccl_queue.c). A format is a table of functions and the memory that it shares with kernels.
 *
 * Numbers of memory: 1 is the signals', then what the format registers for itself, then the program's.
 */
#ifndef GANTRY_COMM_GIN_H
#define GANTRY_COMM_GIN_H

#include "comm/comm.h"
#include "gantry/kernel.h"
#include "rma/rma.h"

enum { GIN_SIGNAL_MEMORY = 1 }; /* the first registration */

/* What a kernel asks for. */
struct gin_put {
	struct rma_place from, at;
	uint64_t bytes;
	uint32_t signal, counter; /* places in the arrays of this rank and of the peer; GANTRY_GIN_NONE */
	uint64_t add;
};

/* What is under way of one queue, by number % depth. */
struct gin_queue {
	struct rma_request **requests;
	uint32_t *counters;
	uint64_t begun, over;
};

struct gin_offer;

struct gantry_gin {
	struct gantry_list node;  /* of the communicator */
	struct gantry_comm *comm; /* borrowed; NULL: it has ended, and all but this struct with it */
	const struct gin_format *format;
	struct gantry_gin_view view; /* sizes; pointers are the device's, and only of gantry/kernel.h's format */
	void *block;		     /* owned: mapped memory of queues, signals, counters */
	uint64_t *counter, *signal;  /* in it */
	struct gin_queue *queues;    /* owned: [context][rank] */
	struct gin_offer *offers;    /* owned: of all ranks */
	struct rma_comm *rma;	     /* owned */
	uint64_t moves;		     /* of the former, when the thread last looked */
	void *ctx;		     /* owned: the network's */
	pthread_t thread;
	bool has_thread;
	uint32_t users;		  /* the caller's thread: kernels that may run without the communicator's knowledge */
	uint32_t ends;		  /* seq: close has been called */
	uint32_t asked, answered; /* seq: comm_gin_flush */
	uint32_t releases;	  /* seq: the thread uses nothing any more but what it shares with kernels */
	uint64_t gone;		  /* seq, ns: nothing waits for the thread any more, which ends then; 0: not so */
};

/* at: context * ranks + rank. Called by the queues' thread, but for choose, make, add_own and free. */
struct gin_format {
	const char *opens, *closes; /* the calls, for texts */
	size_t size;		    /* of the struct that begins with a gantry_gin */
	gantry_result (*choose)(struct gantry_gin *k, const void *config); /* sizes */
	gantry_result (*make)(struct gantry_gin *k);			   /* block, counter, signal */
	gantry_result (*add_own)(struct gantry_gin *k);			   /* NULL: registers no memory of its own */
	/* What make has made, but for the block, which is freed behind it. kernels: they may run, so what they look at stays. */
	void (*free)(struct gantry_gin *k, bool kernels); /* NULL: nothing */
	/* The request of that number. AGAIN: it has not come. An error is the kernel's. */
	gantry_result (*read)(struct gantry_gin *k, uint64_t at, uint64_t number, struct gin_put *ret_put);
	void (*done)(struct gantry_gin *k, uint64_t at, uint64_t over); /* the first `over` are */
	/* A kernel is about to write a request. NULL: that cannot be seen. */
	bool (*has_holes)(const struct gantry_gin *k);
	/*
	 * The communicator has failed: ends waits of kernels, again and again. true: some kernel asks for more. NULL: kernels look at
	 * a word for that, `stop`, of which the other formats have none.
	 */
	bool (*release)(struct gantry_gin *k);
	uint32_t *(*stop)(const struct gantry_gin *k);
};

/* By all ranks. config: the format's. */
gantry_result comm_gin_open(struct gantry_comm *comm, const struct gin_format *format, const void *config,
			    struct gantry_gin **ret_gin);
/* Registers on this rank alone: the number is in force on all when comm_gin_agree returns, which all ranks call with the
 * number of their last registration. No bytes, or an error: a number is used up, and nothing can be put there. */
gantry_result comm_gin_add(struct gantry_gin *k, void *ptr, size_t size, uint32_t *ret_memory);
/* All ranks meet, with numbers that must be the same on all. mine: why this rank cannot; all ranks learn that. */
enum { GIN_SIZES = 6 };
gantry_result comm_gin_agree(struct gantry_comm *comm, const char *what, gantry_result mine,
			     const uint32_t sizes[GIN_SIZES]);

#endif
