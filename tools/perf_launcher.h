/*
 * Ranks that somebody else started: mpirun, srun, torchrun. They find their number in the environment, and the
 * communicator's id either in a file that all of them see or at a port of rank 0's host, whose address is in the
 * environment too.
 */
#ifndef GANTRY_TOOLS_PERF_LAUNCHER_H
#define GANTRY_TOOLS_PERF_LAUNCHER_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/comm.h"

struct perf_launcher {
	const char *name; /* NULL: nobody started this process, or as a single rank */
	int rank, size;
	int one_host; /* it says that all ranks are on this host */
};
/* 0; or -1 and a sentence in `why` if the environment contradicts itself. */
int perf_launcher_find(struct perf_launcher *ret_launcher, char *why, size_t len);

/* Where the ranks meet; the same on all of them. */
struct perf_root {
	char hosts[512];  /* for perf_resolve */
	uint16_t port;	  /* where hosts has none */
	char job[256];	  /* tells this job from others */
	const char *from; /* who said so: "MASTER_ADDR" */
	int local;	  /* all ranks are on this host */
	int guessed;	  /* rank 0 is most likely there, but need not be */
};
/* option: of --root, or NULL. 0; or -1 and a sentence in `why` if nothing says where rank 0 is. */
int perf_launcher_root(const struct perf_launcher *l, const char *option, struct perf_root *ret_root, char *why,
		       size_t len);
/* The first host of Slurm's "node[01-04,7],gpu1": "node01". */
void perf_launcher_first_host(const char *list, char *buf, size_t len);

/* All ranks meet at the root, and rank 0's id becomes everybody's. */
gantry_result perf_id_exchange(const struct perf_launcher *l, const struct perf_root *root,
			       struct gantry_unique_id *ret_id);

/* Rank 0: puts the id into the file, whole or not at all. */
gantry_result perf_id_publish(const char *path, const struct gantry_unique_id *id);
/* The others: wait until it is there. */
gantry_result perf_id_await(const char *path, int rank, uint64_t timeout_ns, struct gantry_unique_id *ret_id);
/* Removes the file if it is still the one with that id. */
void perf_id_remove(const char *path, const struct gantry_unique_id *id);

#endif
