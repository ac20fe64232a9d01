/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry check`: what its files share.
 *
 * The tool itself never runs a line of the plugin. For each version and rule it
 * forks one or two processes ("A" and "B"); each opens the library anew and has
 * two threads, as NCCL has:
 *
 *   service thread   (the main one) init, listen, connect, accept, regMr, deregMr, close*, finalize
 *   progress thread  runs the rule's function: isend, irecv, test, irecvConsumed; it hands everything
 *                    else to the service thread and waits for it
 *
 * That is a communicator of NCCL. A process may have more of them (check_communicator), each with a pair of threads and,
 * from v11 on, a context of its own.
 *
 * A and B talk to each other over a socket pair, and to the tool through a page
 * of shared memory that outlives a crash: it names the phase of the rule and the
 * plugin call each thread is in, so the tool can say where a process died or hung.
 * A rule that has seen enough calls check_fail, which ends the process at once:
 * every rule has its own processes, so there is nothing to unwind.
 */
#ifndef GANTRY_TOOLS_CHECK_H
#define GANTRY_TOOLS_CHECK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "net/loader.h"
#include "net/net.h"

enum check_verdict { CHECK_NONE, CHECK_PASS, CHECK_FAIL, CHECK_SKIP, CHECK_REFUSED };
/* CHECK_COMMUNICATORS of a process, at most. */
enum check_thread {
	CHECK_SERVICE,
	CHECK_PROGRESS,
	CHECK_OF_ONE,
	CHECK_COMMUNICATORS = 4,
	CHECK_THREADS = CHECK_COMMUNICATORS * CHECK_OF_ONE
};
enum {
	CHECK_DETAIL = 256,
	CHECK_MS = 1000000,	/* nanoseconds */
	CHECK_GUARD = 64,	/* bytes behind each receive buffer that must stay as they were */
	CHECK_POISON = 0xE7,	/* what receive buffers and guards hold before a message arrives */
	CHECK_WINDOW_MAX = 256, /* GANTRY_NET_MAX_REQUESTS * GANTRY_NET_MAX_RECVS */
	CHECK_STEPS = 8,	/* requests that NCCL keeps in flight for an operation on a connection */
	CHECK_SHARED = 16,	/* sends, where operations share a connection (maxRecvs > 1) */
	CHECK_HEAVY_TIMES = 4,
	CHECK_TEST_SIZES = 32, /* room that NCCL gives to test for the sizes of a receive */
};
/* Exit statuses of a process before its end; what it had to say is in shared memory. */
/* Whose memory the rules on GPU memory use. */
enum check_device { CHECK_DEVICE_AUTO, CHECK_DEVICE_CUDA, CHECK_DEVICE_HOST };
enum { CHECK_EXIT_SAID = 3, CHECK_EXIT_PEER_GONE = 4 };

/* How a rule wants its processes. */
enum check_flags {
	CHECK_ALONE = 1 << 0,	/* one process, not two */
	CHECK_RAW = 1 << 1,	/* neither adapted nor initialised: the rule looks at the table itself */
	CHECK_NO_INIT = 1 << 2, /* adapted; the rule calls init itself */
	CHECK_HEAVY = 1 << 3,	/* moves so much that its deadline is CHECK_HEAVY_TIMES as long */
};

/* What NCCL looks for in a net plugin's library. */
enum check_table { CHECK_NET, CHECK_COLLNET, CHECK_TUNER, CHECK_PROFILER, CHECK_GIN, CHECK_RMA, CHECK_TABLES };
enum { CHECK_VERSION_MAX = 17 /* of any table */ };

struct check_side;
struct check_rule {
	const char *name;
	const char *says; /* one sentence for --list */
	void (*run)(struct check_side *s);
	unsigned flags;
	unsigned call_limit_ms; /* a single plugin call that takes longer fails the rule; 0: only the deadline counts */
};
/* Each ends with an entry without a name. */
extern const struct check_rule check_rules_connect[], check_rules_data[], check_rules_nccl[], check_rules_gpu[];
extern const struct check_rule check_rules_collnet[], check_rules_tuner[], check_rules_profiler[];
extern const struct check_rule check_rules_gin[], check_rules_rma[];

/* Shared with the tool; one writer per field (a thread of that side), the tool reads. */
struct check_status {
	char phase[96];
	const char *call[CHECK_THREADS]; /* a literal of the tool, NULL when in no call; store-released after call_ns */
	uint64_t call_ns[CHECK_THREADS];
	uint64_t ready_ns; /* when init and its like were behind it; 0 before */
	int verdict;	   /* enum check_verdict; store-released after detail */
	char detail[CHECK_DETAIL];
};
struct check_shared {
	struct check_status side[2];
	int first_fail;	       /* 0, or 1 + the side that failed first */
	int expect_death;      /* side B is being killed on purpose */
	int connected;	       /* CHECK_CONNECTED, CHECK_ACCEPTED: some connect and some accept gave a comm */
	int moved;	       /* a message arrived as it should */
	uint32_t arrived[2];   /* ranks at barriers of GIN's collComms, all in all */
	uint32_t begun, ended; /* steps of a rule on GIN */
	int timed;	       /* the first failure is one of time: a second run with longer limits may pass */
};
enum { CHECK_CONNECTED = 1, CHECK_ACCEPTED = 2 };

/* How far the rules go, from the command line. */
struct check_extent {
	uint64_t late_ns; /* how late the latest peer is */
	uint64_t large;	  /* bytes of the largest message */
	int comms;	  /* connections at once */
};

/* One process of a pair, seen from inside. */
struct check_side {
	const struct check_rule *rule;
	struct gantry_loader *loader;
	struct gantry_net *net; /* NULL under CHECK_RAW, and if a rule on another table finds no net plugin */
	const char *symbol;	/* of the table that the rule is about; NULL: a net plugin */
	const void *table;	/* that table */
	void *ctx;		/* from init */
	struct gantry_net_nccl nccl;
	int devices;
	struct gantry_net_properties props;
	int version; /* of the table */
	int role;    /* 0 is A, 1 is B */
	int peer_fd; /* -1 when alone */
	enum check_device device;
	struct check_extent extent;
	int stretch;		    /* limits of time are this many times as long: more than 1 in a second run */
	int first_thread;	    /* CHECK_OF_ONE times the number of the communicator */
	uint64_t start_ns, soft_ns; /* soft_ns: when a rule should give up by itself, before the tool ends it */
	struct check_shared *shared;
	struct check_status *me;
	/* Calls longer than slow_ns, counted by check_leave; 0 switches that off. */
	uint64_t slow_ns;
	int events;	  /* of the profiler: started and not stopped */
	int calls, waits; /* of the progress thread: all of them, and those of 20 ms and more */
	/* The job for the service thread; under lock. */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	void (*job)(struct check_side *s, void *arg);
	void *job_arg;
	int job_busy, finished;
	/* Of a further communicator: its service thread, and what check_communicator_start started. */
	pthread_t service, user;
	void (*run)(struct check_side *s, void *arg);
	void *run_arg;
};

/* check_side.c: the inside of a process. */
void check_side_main(struct check_side *s, const char *plugin) __attribute__((noreturn));
/* Ends the rule, and the process with it. */
void check_end(struct check_side *s, enum check_verdict v, int timed, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 4, 5)));
#define check_fail(s, ...) check_end(s, CHECK_FAIL, 0, __VA_ARGS__)
/* A failure that a busy machine may cause, so the tool runs the rule once more. check_fail after soft_ns is one too. */
#define check_late(s, ...) check_end(s, CHECK_FAIL, 1, __VA_ARGS__)
#define check_skip(s, ...) check_end(s, CHECK_SKIP, 0, __VA_ARGS__)
/* The plugin does not want this machine: no verdict on it. */
#define check_refused(s, ...) check_end(s, CHECK_REFUSED, 0, __VA_ARGS__)
/* What a pass says; A's text wins over B's. */
void check_note(struct check_side *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void check_phase(struct check_side *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void check_sleep_ms(unsigned ms);
/* Zeroed, for free; without memory the rule fails. */
void *check_alloc(struct check_side *s, size_t n, size_t size);
uint64_t check_left_ns(const struct check_side *s); /* until soft_ns, 0 when past */

/* Brackets one call of the plugin, so that the tool knows where a thread is. */
uint64_t check_enter(struct check_side *s, enum check_thread thread, const char *call);
void check_leave(struct check_side *s, enum check_thread thread, uint64_t since);
/* In a long run: a busy machine stops a call of the progress thread as well, but not one of every few hundred. */
void check_waits(struct check_side *s, const char *calls);
#define CHECK_CALL(s, thread, name, expr)                                                                              \
	__extension__({                                                                                                \
		uint64_t call_since_ = check_enter(s, thread, name);                                                   \
		gantry_result call_r_ = (expr);                                                                        \
		check_leave(s, thread, call_since_);                                                                   \
		call_r_;                                                                                               \
	})
/* The same, and anything but success fails the rule. */
void check_ok(struct check_side *s, gantry_result r, const char *call);
#define CHECK_MUST(s, thread, name, expr) check_ok(s, CHECK_CALL(s, thread, name, expr), name)

/* The other process: exact lengths; when it has ended, so does this one, without a verdict. */
void check_tell(struct check_side *s, const void *data, size_t size);
void check_hear(struct check_side *s, void *data, size_t size);
int check_heard(struct check_side *s); /* something is there to hear */
void check_meet(struct check_side *s); /* both arrive before either goes on */

/* Hands a job to the service thread; check_service waits for its end. */
void check_service(struct check_side *s, void (*job)(struct check_side *, void *), void *arg);
void check_service_start(struct check_side *s, void (*job)(struct check_side *, void *), void *arg);
void check_service_wait(struct check_side *s);

/*
 * Communicator `number` (1 and up) of the process, as NCCL makes it: init comes from the thread that calls this (before v11
 * there was one for the library), connections from a service thread of its own. A job runs beside the first communicator:
 * as its progress thread, or as the thread of the user that ends it, with check_communicator_end.
 */
struct check_side *check_communicator(struct check_side *s, int number);
void check_communicator_start(struct check_side *other, void (*run)(struct check_side *, void *), void *arg);
void check_communicator_wait(struct check_side *other);
void check_communicator_end(struct check_side *other); /* the service thread ends, and then the context */

/* check_flow.c: what NCCL's service thread does. Unless noted otherwise, called on the progress thread. */
/* A handle between guard bytes: the plugin owns the 128 in the middle. */
struct check_handle {
	uint8_t before[CHECK_GUARD], bytes[GANTRY_NET_HANDLE_SIZE], after[2 * GANTRY_NET_HANDLE_SIZE];
};
struct check_link {
	int sending; /* this side has the send comm, the other one the receive comm */
	int dev;
	struct check_handle handle;		     /* of the sending side, the same place in every call of connect */
	void *listen;				     /* of the receiving side, while it is open */
	void *comm;				     /* result */
	struct gantry_net_device_handle *dev_handle; /* result, of a receiver of device type UNPACK; else NULL */
};
/* On the service thread. An error of init and no devices are a refusal: NCCL goes on without the plugin. */
void check_init(struct check_side *s, void **ret_ctx);
/* The two halves of making a connection, on the service thread: the handle reaches the other process, and both get a
 * comm. Handles of several can go across before either side connects, and then several threads can. */
void check_link_begin(struct check_side *s, void *link);
void check_link_end(struct check_side *s, void *link);
void check_link_job(struct check_side *s, void *link); /* both */
/* One call of connect or accept; 1 when it has given the comm. */
int check_link_try(struct check_side *s, struct check_link *link);
void *check_link(struct check_side *s, int sending);
/* Listens with guard bytes behind the handle; on the service thread. */
void *check_listen(struct check_side *s, int dev, uint8_t handle[GANTRY_NET_HANDLE_SIZE]);
void *check_reg(struct check_side *s, void *comm, void *data, size_t size);
void check_dereg(struct check_side *s, void *comm, void *mr);
enum check_kind { CHECK_RECV_COMM, CHECK_SEND_COMM, CHECK_LISTEN_COMM };
/* Fails the rule on an error or when it takes longer than a second; returns what it took. */
uint64_t check_close(struct check_side *s, enum check_kind kind, void *comm);
/* A connection that B makes and A never accepts, on the service thread. *comm: A's listener; B's comm, if there is one
 * after some calls. */
void check_abandoned_job(struct check_side *s, void *comm);

/* Traffic. Both processes make the same plan; one sends it, the other receives and checks it. */
struct check_group {
	int n; /* buffers in this grouped receive */
	size_t send[GANTRY_NET_MAX_RECVS], recv[GANTRY_NET_MAX_RECVS];
	int tag[GANTRY_NET_MAX_RECVS];
	int order[GANTRY_NET_MAX_RECVS]; /* order[k]: the buffer that the k-th send is for */
};
struct check_plan {
	struct check_group *groups; /* as long as the process lives, which is one rule long */
	int count;
	uint64_t seed;	 /* of the contents */
	int window;	 /* groups a receiver has in flight */
	int send_window; /* sends in flight; 0: window times the largest group */
	size_t misalign; /* added to every buffer's address */
	int optional;	 /* enter irecv with OPTIONAL_RECV_COMPLETION and wait for the bytes instead */
	int sizes;	 /* judge what test reports */
	int null_sizes;	 /* test gets no place for sizes: of every second send, and in NCCL's bootstrap */
	int by_tag;	 /* sends run ahead tag by tag: a group's last send comes after other groups' first */
	int seeds;	 /* flows beside this one have seeds from 0 up to this: for the report */
};
void check_plan_make(struct check_side *s, struct check_plan *p, int count); /* groups of one buffer, size 0, tag 0 */
/* One buffer per group, sizes as given. */
void check_plan_uniform(struct check_side *s, struct check_plan *p, int count, size_t send, size_t recv);

struct check_post {
	void *request; /* NULL: done */
	int index;     /* group, or group * MAX_RECVS + buffer for a send */
	int n;
	void *data[GANTRY_NET_MAX_RECVS];
	size_t sizes[GANTRY_NET_MAX_RECVS];
	int tags[GANTRY_NET_MAX_RECVS];
	void *mrs[GANTRY_NET_MAX_RECVS];
};
struct check_flow {
	struct check_side *s;
	const struct check_plan *plan;
	int sending;
	void *comm, *mr;
	uint8_t *arena; /* owned: window slots */
	size_t slot, arena_size;
	int slots, window;	 /* window: requests in flight */
	int total, posted, done; /* receives count groups, sends count messages */
	int prepared;		 /* posts whose buffers are filled; one ahead of posted after a NULL request */
	int nulls;		 /* NULL requests seen */
	int most;		 /* requests in flight at the same time */
	int next_group, next_in_group;
	int sent[GANTRY_NET_MAX_RECVS]; /* by_tag: how many of each buffer */
	int first_tag;			/* of a sender: whose request is tested first */
	uint64_t rng;
	struct check_post ring[CHECK_WINDOW_MAX];
};
struct check_flow *check_flow_open(struct check_side *s, const struct check_plan *p, void *comm, int sending);
void check_flow_close(struct check_flow *f); /* deregisters, closes the comm and frees */
void check_flow_free(struct check_flow *f);  /* after the comm is gone */
/* Posts one more if the window allows it; 1 when it was taken. */
int check_flow_post(struct check_flow *f);
/* Posts one more, and returns what the plugin says. */
gantry_result check_flow_try(struct check_flow *f);
/* Tests the oldest receive or each tag's oldest send, as NCCL does; 1 when one was done (and its contents were right). */
int check_flow_test(struct check_flow *f);
/* Compares a receive that is done with the plan; check_flow_test does it too. */
void check_flow_received(struct check_flow *f, const struct check_post *p, const int *sizes);
/* Flows to their end, side by side. */
void check_flows_run(struct check_flow *const *flows, int n);
void check_flow_run(struct check_flow *f);
/* The same, and closes them when the other process is there too. */
void check_flows_finish(struct check_flow *const *flows, int n);
/* Link, one plan in the direction A receives, everything closed: what most rules are. */
void check_flow_once(struct check_side *s, const struct check_plan *p);

/* The bytes of message `message`; compare: the first position that differs, or size. */
void check_fill(uint8_t *data, size_t size, uint64_t seed, uint64_t message);
size_t check_compare(const uint8_t *data, size_t size, uint64_t seed, uint64_t message);
int check_unwritten(const void *value, size_t size);	  /* as NCCL left it: the plugin wrote nothing */
size_t check_untouched(const uint8_t *data, size_t size); /* first byte that is not CHECK_POISON, or size */
uint64_t check_random(uint64_t *state);
/* Memory of this process in KiB, and what malloc has handed out in bytes. What it takes more of than before, and has not merely touched for the first time: a ring
 * that was made at connect fills page by page. */
struct check_memory {
	long resident, mapped, allocated;
};
void check_memory_now(struct check_memory *m);
long check_grown_kb(const struct check_memory *before);
/* The entry of the table is there, as init left it. */
enum check_entry { CHECK_GET_DEVICE_MR = 17, CHECK_MAKE_VDEVICE = 19 };
int check_has(const struct check_side *s, enum check_entry entry);

#endif
