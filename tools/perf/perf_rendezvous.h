/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes on several hosts find each other at a port: one of them serves it, the others come there. It is the control
 * plane's hub and hand-shake (ctl/ctl.h) with an id that each of them makes for itself; authentication is
 * GANTRY_SECRET's.
 */
#ifndef GANTRY_TOOLS_PERF_RENDEZVOUS_H
#define GANTRY_TOOLS_PERF_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

#include "ctl/ctl.h"
#include "gantry/comm.h"
#include "inet/nic.h"

enum { PERF_PORT = 18520 };

/* A thread that looks what a join waits for. It calls `say` after a second, and when that has changed; after each line
 * that `say` has written (it returns 1) at the earliest two seconds later, four, and so on. `awaits` is what
 * gantry_ctl_awaits says. */
struct perf_announcer;
/* NULL if no thread can be started: then nothing is printed. The id is copied. */
struct perf_announcer *perf_announce_start(const struct gantry_unique_id *id, int (*say)(void *ctx, const char *awaits),
					   void *ctx);
void perf_announce_stop(struct perf_announcer *a);

struct perf_rendezvous {
	const char *name; /* of the job: the same for all of them */
	int rank, nranks;
	int serve;		   /* this one has the hub, on all addresses of the host or on addrs[0] */
	int only_there;		   /* the latter */
	struct gantry_addr *addrs; /* where the hub is; with ports */
	int naddrs;
	uint64_t patience_ns;	   /* 0: GANTRY_CONNECT_TIMEOUT */
	void (*served)(void *ctx); /* the port is open; may be NULL */
	int (*say)(void *ctx, const char *awaits);
	void *ctx;
};
/* Returns when all are there. */
gantry_result perf_rendezvous_join(const struct perf_rendezvous *r, struct gantry_ctl **ret_ctl);

/*
 * ---- ranks that a launcher started ----
 *
 * Ranks that a launcher started: mpirun, srun, torchrun. They find their number in the environment, and the
 * communicator's id either in a file that all of them see or at a port of rank 0's host, whose address is in the
 * environment too.
 */

struct perf_launcher {
	const char *program; /* "gantry perf sendrecv": what is started, for messages; set by the caller */
	const char *name;    /* NULL: no launcher, or it started a single rank */
	int rank, size;
	int one_host; /* it says that all ranks are on this host */
};
/* 0; or -1 and a sentence in `why` if the environment contradicts itself. */
int perf_launcher_find(struct perf_launcher *ret_launcher, char *why, size_t len);

/* Where the ranks meet; the same on all of them. */
struct perf_root {
	char hosts[512];  /* for gantry_addr_resolve */
	uint16_t port;	  /* where hosts has none */
	char job[256];	  /* tells this job from others */
	const char *from; /* its origin: "MASTER_ADDR" */
	int local;	  /* all ranks are on this host */
	int guessed;	  /* rank 0 is most likely there, but need not be */
};
/* option: of --root, or NULL. 0; or -1 and a sentence in `why` if nothing says where rank 0 is. */
int perf_launcher_root(const struct perf_launcher *l, const char *option, struct perf_root *ret_root, char *why,
		       size_t len);
/* The first host of Slurm's "node[01-04,7],gpu1": "node01". */
void perf_launcher_first_host(const char *list, char *buf, size_t len);

/* All ranks meet at the root, and all get rank 0's id. */
gantry_result perf_id_exchange(const struct perf_launcher *l, const struct perf_root *root,
			       struct gantry_unique_id *ret_id);

/* Rank 0: puts the id into the file, whole or not at all. */
gantry_result perf_id_publish(const char *path, const struct gantry_unique_id *id);
/* The others: wait until it is there. */
gantry_result perf_id_await(const struct perf_launcher *l, const char *path, uint64_t timeout_ns,
			    struct gantry_unique_id *ret_id);
/* Removes the file if it is still the one with that id. */
void perf_id_remove(const char *path, const struct gantry_unique_id *id);

#endif
