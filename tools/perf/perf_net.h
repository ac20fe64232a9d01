/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf net`: what its files share.
 *
 *   perf_net.c       options, the parent, table and JSON; a rank: its phases, and a size's repeats that become a row
 *   perf_net_move.c  moves messages over a struct gantry_net, and over plain sockets: the limit
 *   perf_ranks.h     processes, and the parent that watches them
 *   perf_remote.h    two machines instead of two processes
 *
 * The ranks run the same program of phases in step: everything they agree on (iteration counts, message numbers) is
 * computed by both from the same numbers in shared memory. On two machines each parent forks one of them, the barriers
 * carry these numbers (perf_sync), and rank 0 sends its rows, so that both parents print the same.
 *
 * Streams flow from rank 0 to rank 1; ping-pongs use both directions. With channels everything flows both ways at once.
 */
#ifndef GANTRY_TOOLS_PERF_NET_H
#define GANTRY_TOOLS_PERF_NET_H

#include <stddef.h>
#include <stdint.h>

#include "common/count_calls.h"
#include "common/figures.h"
#include "common/raw_tcp.h"
#include "net/net.h"
#include "perf/perf_ranks.h"
#include "perf/perf_remote.h"

enum { PERF_DEPTH_MAX = GANTRY_NET_MAX_REQUESTS, PERF_REPEATS_MAX = 101, PERF_SIZES_MAX = 128, PERF_CHANNELS_MAX = 16 };

/* Which messages, and how often: what the client tells the side that listens. */
struct perf_net_work {
	uint64_t sizes[PERF_SIZES_MAX], nsizes;
	uint64_t iters;	     /* 0: as many as fill a repeat of about 0.2 s */
	uint64_t warmup;     /* 0: until the rate is known */
	uint64_t timeout_ns; /* without progress this is a hang */
	int repeats, depth, check;
	int raw;
	int raw_nodelay; /* TCP_NODELAY on raw's streams too */
	int huge;	 /* buffers on huge pages, where the system has them */
	int lanes;	 /* -1: not given */
	int channels;	 /* 0: one connection, one direction at a time; else so many, all busy in both directions */
};

struct perf_opts {
	struct perf_net_work work;
	uint64_t begin, end, factor; /* of the sizes */
	int pin;		     /* each rank's thread keeps to its half of the CPUs */
	int json;
	int calls;	    /* list every rank's system calls at the end */
	const char *plugin; /* NULL: Gantry's own network */
	const char *ifname;
	struct perf_remote_opts remote;
};

/* One line of the table. NAN: not measured. */
struct perf_row {
	uint64_t bytes, wrong;
	struct perf_spread bw, lat;	/* GB/s, us */
	double rate, cpu;		/* messages/s, s/GB */
	double moved_tx, moved_rx, all; /* calls per MiB */
	double raw_bw, raw_lat, raw_cpu;
	double bw_ratio, lat_ratio, cpu_ratio; /* to raw */
};

/* What one rank measured over one repeat. */
struct perf_sample {
	uint64_t start_ns, end_ns, cpu_ns;
	uint64_t moved, all; /* system calls */
	int counted;	     /* whether the last two mean anything */
};

/* One rank's part of the shared memory: written by that rank only, read by the other one and by the parent. */
struct perf_slot {
	/* Plain fields, ordered by the barriers, or by the end of the process for the parent. */
	struct perf_sample sample;
	uint64_t wrong;
	char first_wrong[256]; /* where the first of them was */
	char handle[GANTRY_NET_HANDLE_SIZE];
	uint16_t raw_port;
	struct call_counts calls; /* over the life of the rank */
	int calls_counted;
};

struct perf_shared {
	struct perf_pair pair;
	struct perf_slot rank[2];
	uint64_t nrows; /* release by rank 0, acquire by the parent: rows (and what stands below) that can be printed */
	struct perf_row rows[PERF_SIZES_MAX];
	char net_name[64], net_from[256], dev_name[64];
	int net_version;
	struct perf_opts opts; /* the parent's; on two machines then, before info_ready, as the client wants them */
	char ifname[64];       /* on two machines, before that too */
};

struct perf_peer;

/* One rank's process. */
struct perf_net_rank {
	int rank;
	const struct perf_opts *opts; /* borrowed */
	struct perf_shared *shared;   /* borrowed */
	struct perf_state *state;     /* in shared, as the next two */
	struct perf_slot *me, *other;
	unsigned char *memory; /* owned: nbufs buffers */
	size_t stride;	       /* between buffers; room for the largest message, offsets and a guard */
	size_t memory_size;
	int nbufs;
	int nslots;	/* buffers of one direction of a connection */
	uint64_t round; /* phases begun; both ranks count alike, message numbers are made of it */
	struct perf_peer *peer;
	struct raw_tcp raw;
	struct perf_remote *remote; /* borrowed; NULL: the other rank is on this host */
};

/* Keeps offset and guard of the verified phase within the buffer. */
enum { PERF_BUF_PAD = 256 };

static inline unsigned char *perf_buf(const struct perf_net_rank *rk, uint64_t i)
{
	return rk->memory + rk->stride * (size_t)(i % (uint64_t)rk->nbufs);
}
static inline uint64_t perf_seq(const struct perf_net_rank *rk, uint64_t i)
{
	return (rk->round << 32) + i;
}
/* Waits until the other rank is here too, and then sees what it has in its slot. The parent ends this process if that
 * never happens; fails only if the other one is on another host and is lost. */
gantry_result perf_sync(struct perf_net_rank *rk);

/* 0 if that is what a client may say; then it is in *o. */
int perf_net_take(const struct perf_net_work *told, struct perf_opts *o);

/* A way to move messages. All functions are called by both ranks at the same time. */
struct perf_mover {
	const char *name;
	gantry_result (*stream)(struct perf_net_rank *rk, size_t size, uint64_t iters);
	gantry_result (*pingpong)(struct perf_net_rank *rk, size_t size, uint64_t iters); /* may be NULL */
};
extern const struct perf_mover perf_mover_peer, perf_mover_channels, perf_mover_raw_spin, perf_mover_raw_block;

gantry_result perf_peer_open(struct perf_net_rank *rk);
void perf_peer_close(struct perf_net_rank *rk); /* accepts what open left half-built */
/* Full windows of messages, every byte compared, odd addresses and receives larger than their sends included. */
gantry_result perf_peer_verify(struct perf_net_rank *rk, size_t size);

gantry_result perf_raw_open(struct perf_net_rank *rk);

#endif
