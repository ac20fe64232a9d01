/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC: devmem TCP's behaviour in user space, over ordinary TCP sockets. Private to this folder and its
 * tests; others see struct devmem_source_ops.
 *
 *   emulated_nic.c   bindings: their memory, its pages, starving, ids; the table of the source
 *   flow.c           flows: how the stream is cut, tokens, the plan that a receive follows, receive
 *   tx.c             sending from memory
 *   library.c        the entry of libgantry-emulated.so, and what the NIC needs from the library that opens it
 *   emulated_open.c  how libgantry.so and the plugin open that library
 *
 * Programs of ours (the tool, tests) link the NIC itself: devmem_emulated_open is then emulated_nic.c's.
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
#ifndef GANTRY_NET_EMULATED_H
#define GANTRY_NET_EMULATED_H

#include <stdint.h>

#include "base/atomic.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mutex.h"
#include "inet/nic.h"
#include "net/devmem.h"

/*
 * The tests' build of the NIC has faults that a test switches on, to show that its checks find them. 10 * n + k: the
 * k-th way to break invariant n.
 */
#ifdef EMU_FOR_TESTS
extern int emu_fault; /* 0: none */
#define EMU_FAULT(n) (emu_fault == (n))
#else
#define EMU_FAULT(n) 0
#endif

/* Order: a flow's, then its binding's; tx_mu, then a socket's. */
MUTEX_KIND(emu_binding_mu);
MUTEX_KIND(emu_flow_mu);

enum {
	EMU_FRAGS_MAX = 1024,  /* of one receive: IOV_MAX */
	EMU_PLAN = 2048,       /* pieces; a power of two */
	EMU_UNIT_PIECES = 128, /* of one unit, at most */
	EMU_UNIT_PAGES = 4,    /* the same */
	EMU_CMSG_SPACE = 40,   /* of one fragment in a control buffer */
	EMU_POISON = 0xDB,
	EMU_GROUP = 64, /* pages of a mirrored binding that are next to each other in the order */
};
#define EMU_NO_PAGE UINT32_MAX

struct emu_counts { /* added to with relaxed atomics, by any thread */
	uint64_t receives, frags, page_bytes, linear_bytes, plain_bytes;
	uint64_t returned, bad_returns; /* tokens; those that were not out */
	uint64_t starved;		/* times */
	uint64_t written_after;		/* pages that were written to after they were returned */
	uint64_t copies;		/* from the mirror to the memory */
};

struct emu_id { /* while it is in use */
	struct gantry_list link;
	uint32_t id; /* 0: none */
};

struct emu_binding {
	struct devmem_binding pub;
	struct emu_id own;
	char nic[IFNAMSIZ];
	uint32_t page_size; /* bytes of a page */
	uint32_t npages;    /* the arrays below are indexed by page number */
	/* The parameters, as they were at bind. */
	int shape; /* PARAM_EMU_SHAPE_* */
	uint64_t seed, rto_ns;
	uint32_t linear, plain; /* packets of 1000 */
	int toosmall;		/* errno of a control buffer without room */

	uint8_t *bytes;	   /* borrowed: memory.host; or owned: a pinned mirror of it, where the CPU cannot write */
	int mirrored;	   /* it is */
	uint32_t *users;   /* owned: tokens and planned pieces of each; the lock of the flow that has the page */
	uint8_t *poisoned; /* owned; by page */
	int unbound;	   /* atomic: what comes from now on is ordinary data */

	struct emu_binding_mu mu;
	/* Free pages. free: a stack of pages; mirrored: the order of groups, and `at` is the next one that a flow takes
	 * (emulated_nic.c). */
	uint32_t *free GUARDED_BY(emu_binding_mu); /* owned */
	uint64_t *bits GUARDED_BY(emu_binding_mu); /* owned: mirrored: free pages of each group; else NULL */
	uint32_t nfree GUARDED_BY(emu_binding_mu);
	uint32_t at GUARDED_BY(emu_binding_mu);
	int starved GUARDED_BY(emu_binding_mu); /* until resume_ns and a page is free, for all flows */
	int said GUARDED_BY(emu_binding_mu);	/* that it starves: then also that it is over */
	uint64_t starved_ns GUARDED_BY(emu_binding_mu), resume_ns GUARDED_BY(emu_binding_mu);
	uint32_t flows_ever GUARDED_BY(emu_binding_mu);
	int refs GUARDED_BY(emu_binding_mu); /* the binding's own and its flows' */
	struct gantry_list flows GUARDED_BY(emu_binding_mu);
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
	uint32_t at;	    /* in its page */
	uint32_t page;	    /* EMU_NO_SLOT: none yet */
	uint8_t kind;
	uint8_t fresh;	/* SPLIT: the first in its page; otherwise in that of the SPLIT before */
	uint8_t starts; /* a unit */
};

struct emu_flow {
	struct devmem_flow pub;
	struct emu_binding *binding; /* a counted reference */
	struct gantry_list link;     /* of the binding's flows */
	uint32_t number;	     /* from 1 */
	char peer[GANTRY_ADDR_TEXT];
	uint32_t held; /* atomic: pages */
	/* mirrored: which group it takes pages of, and how many of them it is past */
	uint32_t group GUARDED_BY(emu_binding_mu), passed GUARDED_BY(emu_binding_mu);

	/* The receiving thread's. */
	uint64_t random;
	uint32_t head, n;	/* of the plan: pieces [head, head + n) */
	uint32_t assigned;	/* so many of the first have their places */
	uint32_t peeked;	/* so many of the first were shown by MSG_PEEK: they keep their places */
	struct emu_piece *plan; /* owned: EMU_PLAN */
	struct iovec *iov;	/* owned: EMU_FRAGS_MAX */

	struct emu_flow_mu mu;			   /* of the tokens, and of `users` of the pages that the flow has */
	uint64_t *out GUARDED_BY(emu_flow_mu);	   /* owned: bit t - 1: token t is out */
	uint32_t *page_of GUARDED_BY(emu_flow_mu); /* owned: by token - 1 */
	uint32_t words GUARDED_BY(emu_flow_mu);	   /* of out */
	uint32_t hint GUARDED_BY(emu_flow_mu);	   /* all words below are full */
	uint32_t nout GUARDED_BY(emu_flow_mu);
};

#define EMU_COUNT(b, what, n) fetch_add_relaxed(&(b)->counts.what, (uint64_t)(n))
#define EMU_COUNTED(b, what) load_relaxed(&(b)->counts.what)

extern const struct devmem_source_ops emulated_ops;

/* emulated_nic.c. ids are shared by bindings for receiving and for sending. Each is released once. */
uint32_t emu_id_take(struct emu_id *own);
void emu_id_release(struct emu_id *own);
uint64_t emu_random(uint64_t *state);
void emu_binding_put(struct emu_binding *b);
/* Up to `want` pages; fewer than `least` are none: then the binding starves. */
uint32_t emu_pages_take(struct emu_flow *f, uint32_t least, uint32_t want, uint32_t *ret_pages);
/* Mirrored: the flow goes on with the group that comes next in the order. */
void emu_pages_group(struct emu_flow *f) REQUIRES(emu_binding_mu);
void emu_pages_put(struct emu_flow *f, const uint32_t *pages, uint32_t n);

/* flow.c */
gantry_result emu_attach(struct devmem_binding *pub, int fd, struct devmem_flow **ret_flow);
void emu_detach(struct devmem_flow *pub);
ssize_t emu_receive(struct devmem_flow *pub, struct msghdr *msg, int flags);
int emu_give_back(struct devmem_flow *pub, const struct devmem_token *ranges, size_t n);

/* tx.c */
gantry_result emu_bind_tx(const struct devmem_memory *memory, const char *nic, struct devmem_tx **ret_tx);
void emu_unbind_tx(struct devmem_tx *t);
ssize_t emu_send(struct devmem_tx *t, int fd, uint64_t offset, size_t len, int flags);
int emu_completed(struct devmem_tx *t, int fd, uint32_t *ret_lo, uint32_t *ret_hi);
void emu_forget(struct devmem_tx *t, int fd);

#ifdef EMU_FOR_TESTS
void emu_next_id(uint32_t id); /* the id that is tried next */
/* Pages are filled with a pattern when they become free, and looked at when they are taken again: of bindings made from
 * now on, or what they free from now on. */
void emu_set_poison(int on);
/* recvmsg without MSG_SOCK_DEVMEM. */
ssize_t emu_receive_plain(struct devmem_flow *pub, struct msghdr *msg, int flags);
#endif

/* library.c and emulated_open.c: what the library needs of its opener, as X(type, name, parameters, arguments). */
/* clang-format off */
#define EMULATED_NEEDS(X)                                                                                              \
	X(int, gantry_ratelimit_pass, (struct gantry_ratelimit *rl, uint32_t *ret_suppressed), (rl, ret_suppressed))   \
	X(const char *, gantry_result_name, (gantry_result r), (r))                                                    \
	X(const struct gantry_params *, gantry_params, (void), ())                                                     \
	X(struct gantry_addr, gantry_addr_of, (const struct sockaddr *sa), (sa))                                       \
	X(const char *, gantry_addr_text, (const struct gantry_addr *a, char buf[GANTRY_ADDR_TEXT]), (a, buf))         \
	X(gantry_result, devmem_settle, (const struct devmem_binding *b), (b))
#define EMULATED_MEMBER(type, name, parameters, arguments) type (*name) parameters;
/* clang-format on */
struct emulated_opener {
	size_t size; /* of this struct */
	const char *build;
	const int *log_level;
	void (*log)(enum gantry_log_level level, enum gantry_log_subsys subsys, const char *file, int line,
		    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
	gantry_result (*fail)(gantry_result r, enum gantry_log_subsys subsys, const char *file, int line,
			      const char *fmt, ...) __attribute__((format(printf, 5, 6)));
	EMULATED_NEEDS(EMULATED_MEMBER)
};
#define EMULATED_LIBRARY "libgantry-emulated.so"
/* The library's only export. NULL: it is of another build than the opener; *ret_build says of which. */
__attribute__((visibility("default"))) const struct devmem_source_ops *
gantry_emulated_v1(const struct emulated_opener *opener, const char **ret_build);

#endif
