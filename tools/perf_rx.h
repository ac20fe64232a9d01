/* SPDX-License-Identifier: Apache-2.0 */
/* `gantry perf rx`: parts. Two forked ranks, or one on each of two machines (perf_remote.h); rank 0 sends, rank 1
 * receives. */
#ifndef GANTRY_TOOLS_PERF_RX_H
#define GANTRY_TOOLS_PERF_RX_H

#include <stdint.h>

#include "gantry/rx.h"
#include "perf_ranks.h"
#include "perf_remote.h"

enum { PRX_REPEATS_MAX = 101, PRX_STREAMS_MAX = 16 };
#define PRX_PATHS "auto|unpack|emulated|host" /* in the order of enum gantry_rx_path, without DEFAULT */
#define PRX_MEMORY "auto|host|device"
enum prx_memory { PRX_MEMORY_AUTO, PRX_MEMORY_HOST, PRX_MEMORY_DEVICE };
enum prx_way { PRX_RX, PRX_PIECES, PRX_RAW, PRX_PCIE, PRX_WAYS };

/* What is measured: what the client tells the side that listens. */
struct prx_work {
	uint64_t end, pieces, piece_bytes, stride, timeout_ns;
	int device, path, memory, repeats; /* path -1: GANTRY_RX_PATH */
};

struct prx_opts {
	struct prx_work work;
	int gpu, json;
	struct perf_remote_opts remote;
};

/* Of a rank's buffers: contiguous and, with --pieces, with gaps; and an image of each, to fill and to check it. */
double prx_bytes(const struct prx_opts *o);

/* 0 if that is what a client may say; then it is in *o. */
int prx_take(const struct prx_work *told, struct prx_opts *o);

/* What the two ranks and the parent share. */
struct prx_shared {
	struct perf_state state[2];
	uint16_t raw_port; /* ordered by barriers, as all that follows */
	char address[128];
	double gbs[PRX_WAYS][PRX_REPEATS_MAX]; /* by rank 1; PCIE by both, the smaller one counts */
	double pcie[2][PRX_REPEATS_MAX];
	uint64_t wrong;
	char first_wrong[256]; /* where the first of them was */
	int streams;
	int info_ready; /* release by a rank, acquire by the parent: streams, path and device are known */
	char path[256], device[64];
	struct prx_opts opts; /* the parent's; on two machines then, before info_ready, as the client wants them */
	/* On two machines, by the one rank here, before that too. */
	char peer[256];
	int served;	   /* the port was open */
	double others_cpu; /* CPU seconds of the other rank, if it is on this machine */
};

/* perf_rx_rank.c: a rank's whole life, in a process of its own. 0: it went well; else its state says why not. */
int prx_rank_run(int rank, struct prx_shared *shared);

#endif
