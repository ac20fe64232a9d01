/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a connection as kernels see it, and what they show of it. The words that both ends share: gantry/fifo.h. */
#ifndef GANTRY_DEVICE_CONN_H
#define GANTRY_DEVICE_CONN_H

#include "abi/unpack.h"
#include "gantry/fifo.h"

/* What a kernel last did on a connection: written by the kernel (relaxed), read by reports. In host memory. */
enum gantry_kernel_phase {
	GANTRY_KERNEL_IDLE = 0,
	GANTRY_KERNEL_WAIT_HEAD = 1,  /* send: no free step, waits for the consumer */
	GANTRY_KERNEL_WAIT_OFFER = 2, /* send, OFFSET: waits for the proxy's space */
	GANTRY_KERNEL_WAIT_DONE = 3,  /* send, PTR: posted all, waits until the buffer is no longer needed */
	GANTRY_KERNEL_WAIT_DATA = 4,  /* recv: waits for the producer */
	GANTRY_KERNEL_COPY = 5,
};
enum { GANTRY_KERNEL_WAITS = 4 }; /* the first phases behind IDLE */
struct gantry_conn_counts {
	uint64_t bytes;				     /* payload moved since the connection was made */
	uint64_t copies;			     /* copies of payload that the kernel made, in steps */
	uint64_t copied;			     /* the same in bytes */
	uint64_t steps[GANTRY_PROTOS][GANTRY_MODES]; /* steps by protocol and mode */
	uint64_t unpacked;			     /* steps received whose fragments the kernel gathered */
	uint64_t reduced;			     /* of these: straight into a reduction */
	uint64_t waited[GANTRY_KERNEL_WAITS];	     /* dev_clock, by phase - 1: in waits that were not short */
};
struct gantry_conn_state {
	uint64_t step;	/* the step that is worked on or waited for */
	uint64_t doing; /* GANTRY_DOING */
	uint64_t at;	/* GANTRY_COLL_AT, of a collective's last wait */
	/* Set by the kernel before it sleeps: no notification is needed before head, or the number of steps that have
	 * arrived, reaches this value; 0: notify on any change. Read by a thread that saw `waiting`. */
	uint64_t wake;
	struct gantry_conn_counts counts;
	char pad[80];
};

/* A phase, and which collective it is in: the lower half of its number, or 0. One word, so one store shows both. */
#define GANTRY_DOING(phase, coll) ((uint64_t)(phase) | (uint64_t)(coll) << 32)
#define GANTRY_DOING_PHASE(d) ((uint32_t)(d))
#define GANTRY_DOING_COLL(d) ((uint32_t)((d) >> 32))
/* Where a collective is: a step of its plan, counted from 1, of how many, and the chunk that steps without a delay work
 * on. */
#define GANTRY_COLL_AT(step, of, chunk) ((uint64_t)(step) | (uint64_t)(of) << 16 | (uint64_t)(chunk) << 32)
#define GANTRY_COLL_AT_STEP(at) ((uint32_t)(at)&0xffff)
#define GANTRY_COLL_AT_OF(at) ((uint32_t)((at) >> 16) & 0xffff)
#define GANTRY_COLL_AT_CHUNK(at) ((uint32_t)((at) >> 32))

#define GANTRY_CONN_PROXIED 1u /* the other end is a proxy */
#define GANTRY_CONN_OFFSET 2u  /* Simple steps that are not PTR live in the pool */
#define GANTRY_CONN_SEND 4u    /* this end produces */
#define GANTRY_CONN_POINTS 8u  /* the proxy moves steps from and to registered memory */
#define GANTRY_CONN_UNPACK 16u /* receiving: steps of Simple have lists of fragments: k_gather.h */
#define GANTRY_CONN_LENDS 32u  /* sending: the kernel at the other end has mapped memory of this rank, and reads it */

/*
 * One end of a connection as a kernel sees it. Pointers are valid on the device. Filled in by the transport's connect,
 * then constant, but for `step` and what follows, which belongs to the kernels of this communicator (one at a time).
 */
struct gantry_conn {
	uint64_t *head;
	uint64_t *tail;
	struct gantry_slot *slots;
	struct gantry_slot *offers;	  /* NULL: this connection has none (no OFFSET; on a receiving end no PTR) */
	char *buffs[GANTRY_PROTOS];	  /* rings of GANTRY_STEPS steps; NULL: the protocol is not there */
	char *pool;			  /* base of the offsets */
	struct gantry_unpack_meta *lists; /* UNPACK: of the network's device handle, as the next two */
	char *pages;			  /* base of what lists say */
	uint64_t *list_head;		  /* where kernels save which list they have come to */
	struct gantry_eventcount *eventcount; /* of the other end; NULL: it never sleeps */
	struct gantry_conn_state *state;
	uint32_t step_bytes[GANTRY_PROTOS]; /* payload bytes a step holds (LL, LL128: data, not lines) */
	uint32_t flags;
	uint64_t step;	  /* next step */
	uint64_t turn;	  /* transfers that have begun all their steps; the next one is number `turn` */
	uint64_t given;	  /* transfers that kernels were given: the number of the next one of a launch */
	uint64_t seen;	  /* sending: head as last read. That line is the consumer's; a look at it costs a quarter of a
			     round trip */
	uint64_t offered; /* receiving: steps offered that have not arrived; head is this much behind step */
	uint64_t coll;	  /* the collective that uses it, 0: none. k_prim.h */
	uint64_t ended;	  /* step at which the operation before that one ended */
	uint64_t base;	  /* step at which that one began */
	uint64_t ahead;	  /* receiving: the next step to offer a buffer for */
	uint64_t lent;	  /* sending: head must have come here before user memory is no longer read */
	uint64_t list;	  /* UNPACK: the last list that was taken; its number modulo GANTRY_UNPACK_DEPTH is its place */
	struct gantry_conn_counts
		shown; /* what `state` counts: counted here, stored there. Adding there takes a GPU 0.8 us */
};

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(struct gantry_conn_state) == 256, "lines of its own");
#endif

#endif
