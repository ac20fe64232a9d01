/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf net` and `perf rx` between two machines, as iperf3 has it: one listens, the other names its host. The
 * client is rank 0 and sends; it says what is measured. The side that listens is rank 1 and has the rendezvous
 * (perf_rendezvous.h); what both need to know of each other while they measure goes through that connection.
 */
#ifndef GANTRY_TOOLS_PERF_REMOTE_H
#define GANTRY_TOOLS_PERF_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include "gantry/result.h"
#include "inet/nic.h"
#include "perf/perf_ranks.h"

/* Options of both operations. All 0: both ranks are here. */
struct perf_remote_opts {
	const char *host; /* of the side that listens; NULL: not given */
	int listen, forever;
	int port; /* 0: PERF_PORT, or what host says */
};
/* 0; or -1 after a line on stderr: they contradict each other. */
int perf_remote_check(const char *program, const struct perf_remote_opts *o);
static inline int perf_remote_wanted(const struct perf_remote_opts *o)
{
	return o->listen || o->host != NULL;
}
static inline int perf_remote_rank(const struct perf_remote_opts *o)
{
	return o->listen ? 1 : 0;
}
/* Calls `once`; with --forever in a process of its own, client after client, until its exit status says that it cannot
 * listen, or this process is ended. Returns the exit status. */
enum { PERF_REMOTE_CANNOT = 3 };
int perf_remote_main(const struct perf_remote_opts *o, int (*once)(void *ctx), void *ctx);

struct perf_remote {
	const char *program; /* "gantry perf net" */
	const struct perf_remote_opts *opts;
	struct gantry_ctl *ctl;
	struct gantry_addr local, other; /* ends of the connection between the two hosts, as this side sees them */
	char peer[256];			 /* "node7 (10.0.0.7); aarch64, 2 x ..." */
	uint64_t swaps;
	int served; /* the port was open */
	int differ; /* the two do not fit, which both have found out */
};

/* Gives `size` bytes, gets as many; returns when the other side has come to the same call. `idle` is called meanwhile,
 * if it is not NULL. A failure of the other side is one here, with its reason. */
gantry_result perf_remote_swap(struct perf_remote *rm, const void *mine, void *ret_other, size_t size,
			       void (*idle)(void *ctx), void *ctx);
/* *ret_seconds: CPU seconds of the other side's process, if it is on this machine, where two namespaces may play two
 * hosts; else 0. Both sides call it at the end. */
gantry_result perf_remote_load(struct perf_remote *rm, double *ret_seconds);
/* A text of the other side's, at most 512 bytes, before it is shown: ended, one line, nothing that a terminal would
 * obey. */
void perf_remote_words(char *to, const char *from, size_t size);
/* Where rank 1 opens a further port: as rank 0 reaches it, or to be bound by rank 1. Its port is 0. NULL: both are on
 * this host. */
struct gantry_addr perf_remote_address(const struct perf_remote *rm);
/* The other side's failure, while this one waits for something else. */
gantry_result perf_remote_alive(struct perf_remote *rm);
void perf_remote_close(struct perf_remote *rm);

/*
 * ---- both ranks ----
 *
 * What the two ranks share with their parent, whether both are here or one on each of two machines.
 */
struct perf_pair {
	struct perf_state state[2];
	int info_ready; /* release by a rank, acquire by the parent: what the header says is known */
	/* On two machines, by the one rank here, before that. */
	char peer[256];
	int served;	   /* the port was open */
	double others_cpu; /* CPU seconds of the other rank, if it is on this machine */
};

/* perf_ranks_run of those ranks that are here. Returns its status, or PERF_REMOTE_CANNOT. */
int perf_pair_run(struct perf_pair *pair, const struct perf_remote_opts *o, struct perf_ranks *p);
/* In a rank: waits for the other machine, says so on stderr, and gives its user's wishes for this one's; both have `size`
 * bytes. Until the caller has taken back the rank's `alone`, what fails is no failure of a rank. */
gantry_result perf_pair_meet(struct perf_pair *pair, struct perf_remote *rm, const char *program,
			     const struct perf_remote_opts *o, const void *work, void *ret_other, size_t size);
/* In a rank that has failed: keeps the reason, and tells the other one. */
void perf_pair_failed(struct perf_pair *pair, int rank, struct perf_remote *rm, gantry_result r);

/* What the two sides tell each other first. Its size never changes, so that any two versions understand each other this
 * far. */
struct perf_card {
	char magic[16];
	char version[32];   /* of gantry */
	char operation[32]; /* "gantry perf net" */
	char host[64];
	char machine[256];
	/* The client's: both ends of its connection. */
	uint8_t family; /* 4, 6 */
	uint8_t local[16], other[16];
	char pad[79];
};
_Static_assert(sizeof(struct perf_card) == 512, "two versions must agree on it");
/* Exposed for tests. ERR_VERSION, ERR_SETTING: the two sides do not fit, and the text says why. */
void perf_remote_make_card(const struct perf_remote *rm, struct perf_card *ret_card);
gantry_result perf_remote_read_card(struct perf_remote *rm, struct perf_card *card);

#endif
