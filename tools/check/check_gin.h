/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules on GIN (v11 to v13) and RMA (v13 to v17): what their files share.
 *
 *   check_gin_table.c  every version behind one table without a version
 *   check_gin.c        ranks: threads, memory, requests, barriers
 *   check_gin_data.c   rules on what requests do
 *   check_rules_gin.c  the others, and the list of all
 *
 * Four ranks, two in each process, and three threads for each rank, as in NCCL: one that connects and registers, one that posts,
 * tests and calls ginProgress from connect to close, and the user's, which deregisters and closes. Memory is the host's.
 */
#ifndef GANTRY_TOOLS_CHECK_GIN_H
#define GANTRY_TOOLS_CHECK_GIN_H

#include <stdbool.h>

#include "abi/rma_v17.h"
#include "check/check.h"

enum {
	GIN_RANKS = 4,
	GIN_PER = GIN_RANKS / 2, /* ranks of a process */
	GIN_CONTEXTS = 3,	 /* of a collComm, where it can have more than one */
	GIN_COMMS = 2,		 /* collComms at once */
	GIN_WORDS = 64,		 /* signals of a rank */
	GIN_SLOT = (1 << 20) + 65536,
	GIN_GUARD = 4096,
	GIN_OPEN = 32, /* requests per peer and context, times maxRecvs */
	GIN_SIGNAL_NONE = 0,
	GIN_LATE_MS = 1500,
	GIN_V_CONTEXTS = 12, /* from this version on a collComm has several */
	GIN_V_CREATE = 13,   /* createContext is called */
	GIN_V_WEAK = 14,
	GIN_V_MORE = 15,
	GIN_V_PROMISES = 16, /* getRmaProperties */
};

/* ---- tables ---- */

struct gin_properties {
	const char *name;
	int ptr_support, max_comms, max_recvs;
	ncclNetDeviceType type;
};

/* One iput, iputSignal (op is not GIN_SIGNAL_NONE) or iget. */
struct gin_request {
	int context;
	uint32_t rank;
	void *from, *to; /* handles of memory */
	uint64_t from_at, to_at;
	size_t size;
	uint32_t op;
	void *signal; /* handle */
	uint64_t signal_at, value;
	bool weak; /* v14 and up: the signal is ordered with its own put alone */
	bool more; /* v15 and up: others follow at once */
};

/* Entries that are NULL in the library are NULL here. Those behind `raw` have one type in all versions. */
struct gin_table {
	const void *raw; /* ncclGin_vN_t or ncclRma_vN_t, borrowed */
	int version;
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t comm, ncclDebugLogger_t log);
	ncclResult_t (*devices)(int *n);
	ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listen);
	ncclResult_t (*dereg)(void *coll, void *mhandle);
	ncclResult_t (*destroy)(void *gin);
	ncclResult_t (*close_coll)(void *coll);
	ncclResult_t (*close_listen)(void *listen);
	ncclResult_t (*flush)(void *gin, int context, void *mhandle, uint32_t rank, void **request);
	ncclResult_t (*test)(void *coll, void *request, int *done);
	ncclResult_t (*progress)(void *of); /* the collComm; from v13 on the context */
	ncclResult_t (*finalize)(void *ctx);
	/* Adapted. */
	ncclResult_t (*properties)(const void *raw, int dev, struct gin_properties *ret);
	ncclResult_t (*connect)(const void *raw, void *ctx, void **handles, int rank, void *listen, void **coll);
	ncclResult_t (*create)(const void *raw, void *coll, void **gin);
	ncclResult_t (*reg)(const void *raw, void *coll, void *data, size_t size, uint64_t flags, void **mh, void **gh);
	/* of: the collComm; from v13 on the context. */
	ncclResult_t (*put)(const void *raw, void *of, const struct gin_request *q, void **request);
	ncclResult_t (*get)(const void *raw, void *of, const struct gin_request *q, void **request);
	ncclResult_t (*promises)(const void *raw, void *coll, bool *flushes_all);
	unsigned missing; /* bits of enum gin_missing: entries that are called above and are NULL */
};
enum gin_missing {
	GIN_NO_PROPERTIES = 1,
	GIN_NO_CONNECT = 2,
	GIN_NO_CREATE = 4,
	GIN_NO_REG = 8,
	GIN_NO_PUT = 16,
	GIN_NO_PUT_SIGNAL = 32,
	GIN_NO_PROMISES = 64,
	GIN_NO_DMABUF = 128,
};
/* 11 to 17; 13 is the same of both. */
void gin_table_read(struct gin_table *t, const void *raw, int version);

/* ---- ranks ---- */

struct gin_memory {
	uint8_t *arena; /* owned: guard, what is registered, guard */
	uint8_t *base;
	size_t size;
	void *mh, *gh; /* from v14 on the same */
};

enum gin_place { GIN_SIGNALS, GIN_INLINES, GIN_SOURCE, GIN_TARGET, GIN_PLACES };

struct gin_rank;
struct gin_world {
	struct check_side *s;
	const struct gin_table *t;
	int number; /* of the collComm in this process: which barrier */
	int max_recvs;
	struct gin_rank *rank; /* GIN_PER of them */
	uint8_t handles[GIN_RANKS][GANTRY_NET_HANDLE_SIZE];
};

struct gin_rank {
	struct gin_world *w;
	int rank, contexts;
	void *ctx, *connect_ctx, *listen, *coll, *gin;
	unsigned late_ms;
	uint64_t rng;
	ncclResult_t result; /* of connect, where a rule looks at it */
	int returned;	     /* connect has; store-released after result */
	struct gin_memory memory[GIN_PLACES];
	/* The thread that makes progress. */
	pthread_t thread, job;
	void (*body)(struct gin_rank *r);
	void *arg; /* of the body */
};

enum gin_thread { GIN_JOB, GIN_PROGRESS };
/* Brackets a call of the plugin by a thread of a rank. */
#define GIN_CALL(r, thread, name, expr)                                                                                \
	__extension__({                                                                                                \
		uint64_t call_since_ = gin_enter(r, thread, name);                                                     \
		ncclResult_t call_r_ = (expr);                                                                         \
		gin_leave(r, thread, call_since_);                                                                     \
		call_r_;                                                                                               \
	})
#define GIN_MUST(r, thread, name, expr) gin_must(r, GIN_CALL(r, thread, name, expr), name)
uint64_t gin_enter(struct gin_rank *r, enum gin_thread thread, const char *call);
void gin_leave(struct gin_rank *r, enum gin_thread thread, uint64_t since);
void gin_must(struct gin_rank *r, ncclResult_t result, const char *call);

/* init of each rank, the table as it is then, and the first device: a refusal ends the rule as skipped. */
void gin_init(struct check_side *s, struct gin_world *w, struct gin_table *t);
/* The same, and skips the rule where the rules cannot have data: no host memory, another type of device. */
void gin_init_data(struct check_side *s, struct gin_world *w, struct gin_table *t);
/* Another collComm of the same ranks. */
void gin_beside(struct gin_world *w, const struct gin_world *first, int number);
/* listen, the exchange of handles, connect by all ranks together, createContext, memory. late_ms: of the last rank. */
void gin_connect(struct gin_world *w, unsigned late_ms);
void gin_listen(struct gin_world *w);
/* connect and what follows it, of one rank; as a thread's body. */
void *gin_connect_rank(void *rank);
/* gin_init_data and gin_connect. */
void gin_open(struct check_side *s, struct gin_world *w, struct gin_table *t);
/* body on the progress thread of each rank, which makes progress until all ranks are through. */
void gin_run(struct gin_world *w, void (*body)(struct gin_rank *r), void *arg);
void gin_start(struct gin_world *w, void (*body)(struct gin_rank *r), void *arg);
void gin_join(struct gin_world *w);
/* fn in a thread for each rank, until all have returned; without progress, and without the other process. */
void gin_threads(struct gin_world *w, void *(*fn)(void *rank));
/* The same beside gin_start: for what the job thread does. */
void gin_jobs(struct gin_world *w, void *(*fn)(void *rank));
/* Deregisters, destroys the context and closes, by the user's thread. */
void gin_close_rank(struct gin_rank *r);
void gin_close(struct gin_world *w);
void gin_finalize(struct gin_world *w);
/* gin_close and gin_finalize. */
void gin_end(struct gin_world *w);

/* Memory of `size` bytes between guards, registered as the next. */
void gin_register(struct gin_rank *r, struct gin_memory *m, size_t size, uint64_t flags);
void gin_deregister(struct gin_rank *r, struct gin_memory *m);
/* Fails the rule if a byte outside was written. */
void gin_guards(struct gin_rank *r, const struct gin_memory *m);

/* Calls of the progress thread. */
void gin_progress(struct gin_rank *r);
/* Fails the rule on an error and if there is no request. */
void *gin_post(struct gin_rank *r, const struct gin_request *q);
void *gin_get(struct gin_rank *r, const struct gin_request *q);
int gin_test(struct gin_rank *r, void *request);
void gin_wait(struct gin_rank *r, void *request);	      /* tests and makes progress */
void gin_do(struct gin_rank *r, const struct gin_request *q); /* gin_post and gin_wait */
void gin_idle(struct gin_rank *r, const char *what);	      /* progress; fails the rule at its deadline */
/* All ranks of all processes, making progress meanwhile. */
void gin_barrier(struct gin_rank *r);

/* Word `word` of a rank's own signals; gin_until: waits until it is at least that. */
uint64_t gin_signal(const struct gin_rank *r, int word);
void gin_until(struct gin_rank *r, int word, uint64_t value, const char *what);
/* Waits until the word has this value, for two seconds at most. */
void gin_settle(struct gin_rank *r, int word, uint64_t value);
/* A signal alone. */
struct gin_request gin_only(const struct gin_rank *r, int rank, int word, uint32_t op, uint64_t value);
/* A put from the source to the target's memory, without a signal. */
struct gin_request gin_put(const struct gin_rank *r, int rank, size_t from, size_t to, size_t size);
/* Where what `from` puts goes, in every rank's target memory. */
size_t gin_slot(int from);
/* The bytes that `from` puts to `to`: the seed of check_fill. */
uint64_t gin_seed(const struct gin_world *w, int from, int to);
/* Byte `at` of what rank r got from `from` is wrong. */
void gin_wrong(struct gin_rank *r, int from, size_t at, size_t size, const char *what) __attribute__((noreturn));

/* ---- traffic ---- */

enum { STREAM_CELLS = 4, STREAM_PARTS = 3 };
/* Messages from each rank to each, in each of the first `contexts` contexts: puts in pieces and a signal, compared as soon as the
 * signal is there, which a signal in the other direction answers. */
struct gin_stream {
	int count, contexts;
	size_t least;  /* bytes of a message; 0: small ones mostly */
	bool scribble; /* over the source as soon as a request is done */
};
void gin_stream(struct gin_rank *r); /* a body; its argument is a struct gin_stream */

/* check_gin_data.c */
void gin_rule_put(struct check_side *s);
void gin_rule_order(struct check_side *s);
void gin_rule_source(struct check_side *s);
void gin_rule_contexts(struct check_side *s);
void gin_rule_signals(struct check_side *s);
void gin_rule_shared(struct check_side *s);
void gin_rule_reset(struct check_side *s);
void gin_rule_self(struct check_side *s);
void gin_rule_in_flight(struct check_side *s);
void gin_rule_nonblocking(struct check_side *s);
void gin_rule_get(struct check_side *s);
void gin_rule_flush(struct check_side *s);

#endif
