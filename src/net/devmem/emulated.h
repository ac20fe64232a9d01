/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC: devmem TCP's behaviour in user space, over ordinary TCP sockets. Private to emulated*.c and its
 * tests.
 *
 *   emulated.c         bindings: memory, ids, what they say about themselves; the table devmem_emulated
 *   emulated_slots.c   pages of a binding: taken, put back, poisoned; what happens when there is none
 *   emulated_shapes.c  how the stream is cut into packets and fragments
 *   emulated_tokens.c  tokens of a flow and giving them back
 *   emulated_flow.c    flows, and the plan that a receive follows
 *   emulated_rx.c      receive
 *   emulated_tx.c      sending from memory
 *
 * How it receives. A flow has a plan: pieces of the stream to come, each with its kind and length, and, once it is
 * needed, its place. What has arrived is first counted (the kernel is asked, nothing is copied), then pieces for so
 * many bytes get pages, then one recvmsg brings the bytes straight to their places: they are copied once, as they are
 * without an emulator. So nothing is ever read that is not reported in the same call: the real socket's readiness is
 * the flow's, except that a starved flow says EAGAIN although its socket polls readable.
 *
 * A piece that was reported in part (too little arrived, or iov or control were too small) stays in the plan with its
 * page and goes on there, with another token. A page is free when no token and no piece of a plan uses it.
 *
 * Reproducible: what the plan says depends on seed and flow number alone. Where fragments are cut depends on arrivals.
 *
 * Differences from the kernel: a starved flow does not block but says EAGAIN; MSG_WAITALL is ignored (returns are short
 * anyway); MSG_TRUNC, MSG_OOB and MSG_ERRQUEUE are refused with EOPNOTSUPP; what is sent moves only within calls.
 */
#ifndef GANTRY_NET_DEVMEM_EMULATED_H
#define GANTRY_NET_DEVMEM_EMULATED_H

#include <pthread.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/list.h"
#include "base/log.h"
#include "inet/nic.h"
#include "net/devmem.h"

/*
 * tests/unit/emulated_faults.h includes these files once more, in one file, with faults that it can switch on, to show
 * that its checks find them. 10 * n + k: the k-th way to break invariant n.
 */
#ifdef EMU_WITH_FAULTS
#define EMU static __attribute__((unused))
static int emu_fault;
#define EMU_FAULT(n) (emu_fault == (n))
#else
#define EMU
#define EMU_FAULT(n) 0
#endif

enum {
	EMU_FRAGS_MAX = 1024,  /* of one receive: IOV_MAX */
	EMU_PLAN = 2048,       /* pieces; a power of two */
	EMU_UNIT_PIECES = 128, /* of one unit, at most */
	EMU_UNIT_SLOTS = 4,    /* the same */
	EMU_CMSG_SPACE = 40,   /* of one fragment in a control buffer */
	EMU_POISON = 0xDB,
	EMU_GROUP = 64, /* slots of a mirrored binding that are next to each other in the order */
};
#define EMU_NO_SLOT UINT32_MAX

/* Choices of GANTRY_EMU_SHAPE, in its order. */
enum emu_shape { EMU_PAGES, EMU_MTU1500, EMU_MTU9000, EMU_ODD, EMU_RANDOM, EMU_BYTES };

struct emu_counts { /* added to with relaxed atomics, by any thread */
	uint64_t receives, frags, page_bytes, linear_bytes, plain_bytes;
	uint64_t returned, bad_returns; /* tokens; those that were not out */
	uint64_t starved;		/* times */
	uint64_t written_after;		/* pages that somebody wrote to after giving them back */
	uint64_t copies;		/* from the mirror to the memory */
};

struct emu_binding {
	struct devmem_binding pub;
	char nic[IFNAMSIZ];
	uint32_t page;	 /* bytes of a slot */
	uint32_t nslots; /* what is said about a slot below is by its number */
	/* The parameters, as they were at bind. */
	enum emu_shape shape;
	uint64_t seed, rto_ns;
	uint32_t linear, plain; /* packets of 1000 */
	int toosmall;		/* errno of a control buffer without room */

	uint8_t *bytes;	   /* borrowed: memory.host; or owned: a pinned mirror of it, where the CPU cannot write */
	int mirrored;	   /* it is */
	uint32_t *users;   /* owned: tokens and planned pieces; of the flow that has the slot, under its lock */
	uint8_t *poisoned; /* owned; whoever has the slot */
	int unbound;	   /* atomic: what comes from now on is ordinary data */

	pthread_mutex_t lock; /* of everything below; inside a flow's */
	uint32_t *free;	      /* owned: stack of slots; mirrored: the order of groups, see emulated_slots.c */
	uint64_t *bits;	      /* owned: mirrored: free slots of each group; else NULL */
	uint32_t nfree, at;   /* at: mirrored: which group in the order is the next that a flow takes */
	int starved;	      /* until resume_ns and a page is free, for all flows */
	int said;	      /* that it starves: then also that it is over */
	uint64_t starved_ns, resume_ns;
	uint32_t flows_ever;
	int refs; /* the binding's own and its flows' */
	struct gantry_list flows;
	struct gantry_ratelimit warned; /* atomics */
	struct emu_counts counts;
};

enum emu_kind {
	EMU_SPLIT, /* in a page */
	EMU_HEAD,  /* linear: to the iov, before split pieces of the same packet */
	EMU_PLAIN, /* a packet that was not split */
};
/*
 * A unit is one packet, or several that share a page. The pages of a unit are taken all at once, as a NIC has all of a
 * packet or nothing, and no page is shared by two units.
 */
struct emu_piece {
	uint32_t len, done; /* done: reported already */
	uint32_t at;	    /* in its slot */
	uint32_t slot;	    /* EMU_NO_SLOT: none yet */
	uint8_t kind;
	uint8_t fresh;	/* SPLIT: the first in its slot; otherwise in that of the SPLIT before */
	uint8_t starts; /* a unit */
};

struct emu_flow {
	struct devmem_flow pub;
	struct emu_binding *binding; /* a counted reference */
	struct gantry_list link;     /* of the binding's flows, under its lock */
	uint32_t number;	     /* from 1 */
	char peer[GANTRY_ADDR_TEXT];
	uint32_t held;		/* atomic: slots */
	uint32_t group, passed; /* mirrored: that it takes slots of, and how many it is past; the binding's lock */

	/* The receiving thread's. */
	uint64_t random;
	uint32_t head, n;	/* of the plan: pieces [head, head + n) */
	uint32_t assigned;	/* so many of the first have their places */
	uint32_t peeked;	/* so many of the first were shown by MSG_PEEK: they keep their places */
	struct emu_piece *plan; /* owned: EMU_PLAN */
	struct iovec *iov;	/* owned: EMU_FRAGS_MAX */

	pthread_mutex_t lock; /* of the tokens */
	uint64_t *out;	      /* owned: bit t - 1: token t is out */
	uint32_t *slot_of;    /* owned: by token - 1 */
	uint32_t words;	      /* of out */
	uint32_t hint;	      /* all words below are full */
	uint32_t nout;
};

static inline struct emu_piece *emu_piece(struct emu_flow *f, uint32_t i)
{
	return &f->plan[(f->head + i) & (EMU_PLAN - 1)];
}
#define EMU_COUNT(b, what, n) fetch_add_relaxed(&(b)->counts.what, (uint64_t)(n))
#define EMU_COUNTED(b, what) load_relaxed(&(b)->counts.what)

/* emulated.c. ids are shared by bindings for receiving and for sending. Each is released once. */
EMU uint32_t emu_id_take(void);
EMU void emu_id_release(uint32_t id);
EMU void emu_binding_put(struct emu_binding *b);
/* For tests: the id that is tried next. */
EMU void devmem_emulated_next_id(uint32_t id);
/* For tests: pages are filled with a pattern when they become free, and looked at when they are taken again. It costs
 * memory bandwidth: off unless said. Of bindings made from now on, or what they free from now on. */
EMU void devmem_emulated_set_poison(int on);
EMU int emu_poison_on(void);

/* emulated_slots.c */
EMU gantry_result emu_slots_init(struct emu_binding *b); /* all are free, in an order of the seed's choosing */
/* Up to `want` slots; fewer than `least` are none: then the binding starves. */
EMU uint32_t emu_slots_take(struct emu_flow *f, uint32_t least, uint32_t want, uint32_t *ret_slots);
EMU void emu_slots_group(struct emu_flow *f); /* the flow takes the next from another group; the binding's lock */
EMU void emu_slots_put(struct emu_flow *f, const uint32_t *slots, uint32_t n);

/* emulated_shapes.c */
EMU uint32_t emu_shape_slots(enum emu_shape shape); /* that a unit may need */
EMU void emu_shape_more(struct emu_flow *f);	    /* one unit more at the end of the plan */
EMU uint64_t emu_random(uint64_t *state);

/* emulated_tokens.c: the caller has the flow's lock, except where it says so. */
EMU int emu_tokens_reserve(struct emu_flow *f, uint32_t n); /* 0, or -1: no memory; takes the lock */
EMU uint32_t emu_tokens_take(struct emu_flow *f, uint32_t slot);
EMU void emu_tokens_free_all(struct emu_flow *f); /* takes the lock */
EMU int emu_give_back(struct devmem_flow *pub, const struct devmem_token *ranges, size_t n);

/* emulated_flow.c */
EMU gantry_result emu_attach(struct devmem_binding *pub, int fd, struct devmem_flow **ret_flow);
EMU void emu_detach(struct devmem_flow *pub);
/* Gives places to the first pieces of the plan, as far as bytes and fragments reach: how many fragments. 0: starved. */
EMU uint32_t emu_plan(struct emu_flow *f, uint64_t bytes, uint32_t frags);
/* Makes sure that piece i is decided. 0: there is none, all that follows is ordinary. */
EMU int emu_plan_has(struct emu_flow *f, uint32_t i);
/* The first `pieces` are done with; those after them that were not begun lose their places. */
EMU void emu_plan_drop(struct emu_flow *f, uint32_t pieces, uint32_t begun);

/* emulated_rx.c */
EMU ssize_t emu_receive(struct devmem_flow *pub, struct msghdr *msg, int flags);
/* For tests: recvmsg without MSG_SOCK_DEVMEM. */
EMU ssize_t devmem_emulated_receive_plain(struct devmem_flow *pub, struct msghdr *msg, int flags);

/* emulated_tx.c */
EMU gantry_result emu_bind_tx(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx);
EMU void emu_unbind_tx(struct devmem_tx *t);
EMU ssize_t emu_send(struct devmem_tx *t, int fd, uint64_t offset, size_t len, int flags);
EMU int emu_completed(struct devmem_tx *t, int fd, uint32_t *ret_lo, uint32_t *ret_hi);
EMU void emu_forget(struct devmem_tx *t, int fd);

#endif
