/*
 * Processes on several hosts find each other at a port: one of them serves it, the others come there. It is the control
 * plane's hub and hand-shake (comm/ctl.h) with an id that each of them makes for itself; authentication is
 * GANTRY_SECRET's.
 */
#ifndef GANTRY_TOOLS_PERF_RENDEZVOUS_H
#define GANTRY_TOOLS_PERF_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

#include "comm/ctl.h"
#include "inet/nic.h"

enum { PERF_PORT = 18520, PERF_ADDRS_MAX = 8 };

/*
 * "10.0.0.2", "10.0.0.2:4000", "node7", "node7:4000", "fd00::2", "[fd00::2]:4000", or several of them with commas
 * between: their addresses with their ports, `port` where there is none. 0, or -1 and half a sentence in `why`.
 */
int perf_host_valid(const char *text); /* whether it has that form */
int perf_resolve(const char *text, uint16_t port, struct gantry_addr ret_addrs[PERF_ADDRS_MAX], int *ret_n, char *why,
		 size_t len);

/* A thread that looks what a join waits for. It calls `say` after a second, and when that has changed; after each line
 * that `say` has written (it returns 1) at the earliest two seconds later, four, and so on. `awaits` is what
 * gantry_ctl_awaits says. */
struct perf_announcer;
/* NULL if there is no thread to be had: then nothing is said. The id is copied. */
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

#endif
