/*
 * `gantry perf net`: what its files share.
 *
 *   perf_net.c      options, table and JSON          (the parent)
 *   perf_net_run.c  forks the two ranks, watches them; the phases of a rank
 *   perf_net_row.c  a size's repeats become a row
 *   perf_peer.c     moves messages over a struct gantry_net
 *   perf_raw.c      moves the same messages over plain sockets: the limit
 *   perf_remote.h   two machines instead of two processes
 *
 * The parent forks rank 0 and rank 1 before any network object exists and then
 * only sleeps, prints rows and watches. The ranks run the same program of phases
 * in step: everything they agree on (iteration counts, message numbers) is
 * computed by both from the same numbers in shared memory. On two machines each
 * parent forks one of them, the barriers carry these numbers (perf_sync), and rank 0
 * sends its rows, so that both parents print the same.
 *
 * Streams flow from rank 0 to rank 1; ping-pongs use both directions.
 */
#ifndef GANTRY_TOOLS_PERF_NET_H
#define GANTRY_TOOLS_PERF_NET_H

#include <stddef.h>
#include <stdint.h>

#include "count_calls.h"
#include "net/net.h"
#include "perf_remote.h"
#include "perf_util.h"

enum { PERF_DEPTH_MAX = GANTRY_NET_MAX_REQUESTS, PERF_REPEATS_MAX = 101, PERF_SIZES_MAX = 128, PERF_RAW_SOCKETS = 4 };

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
	int pad;	 /* it is sent and compared as bytes */
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
	uint64_t arrived __attribute__((aligned(128)));	 /* release/acquire: barriers this rank has reached */
	uint64_t progress __attribute__((aligned(128))); /* relaxed: messages completed, for the watchdog */
	const char *phase; /* relaxed; a literal, so its address means the same in every process */
	uint64_t phase_bytes;
	/* Below: plain fields, ordered by the barriers, or by the end of the process for the parent. */
	struct perf_sample sample;
	uint64_t wrong;
	char first_wrong[256]; /* where the first of them was */
	char handle[GANTRY_NET_HANDLE_SIZE];
	uint16_t raw_port;
	struct call_counts calls; /* over the life of the rank */
	int calls_counted;
	char error[512];
	uint64_t error_ns; /* release by the rank, acquire by the parent: when error was written; 0: there is none */
};

struct perf_shared {
	struct perf_slot rank[2];
	uint64_t nrows; /* release by rank 0, acquire by the parent: rows (and what stands below) that can be printed */
	struct perf_row rows[PERF_SIZES_MAX];
	int info_ready; /* the same, for the strings */
	char net_name[64], net_from[256], dev_name[64];
	int net_version, dev_speed, ndevs;
	struct perf_opts opts; /* the parent's; on two machines then, before info_ready, as the client wants them */
	/* On two machines, by the one rank here, before that too. */
	char peer[256], ifname[64];
	int met, served; /* the other side is there; the port was open */
};

struct perf_peer;
struct perf_raw;

/* One rank's process. */
struct perf_rank {
	int rank;
	const struct perf_opts *opts; /* borrowed */
	struct perf_shared *shared;   /* borrowed */
	struct perf_slot *me, *other; /* in shared */
	unsigned char *memory;	      /* owned: nbufs buffers */
	size_t stride;		      /* between buffers; room for the largest message, offsets and a guard */
	size_t memory_size;
	int nbufs;
	uint64_t round; /* phases begun; both ranks count alike, message numbers are made of it */
	struct perf_peer *peer;
	struct perf_raw *raw;
	struct perf_remote *remote; /* borrowed; NULL: the other rank is on this host */
};

/* Keeps offset and guard of the verified phase within the buffer. */
enum { PERF_BUF_PAD = 256 };

static inline unsigned char *perf_buf(const struct perf_rank *rk, uint64_t i)
{
	return rk->memory + rk->stride * (size_t)(i % (uint64_t)rk->nbufs);
}
static inline uint64_t perf_seq(const struct perf_rank *rk, uint64_t i)
{
	return (rk->round << 32) + i;
}
static inline void perf_progress(struct perf_rank *rk)
{
	__atomic_store_n(&rk->me->progress, rk->me->progress + 1, __ATOMIC_RELAXED);
}

/* Waits until the other rank is here too, and then sees what it has in its slot. The parent ends this process if that
 * never happens; fails only if the other one is on another host and is lost. */
gantry_result perf_sync(struct perf_rank *rk);

/* Of a rank's buffers. */
double perf_net_bytes(const struct perf_opts *o);

/* Its --lanes, for whatever network is opened later. */
void perf_net_set_lanes(const struct perf_opts *o);
/* 0 if that is what a client may say; then it is in *o. */
int perf_net_take(const struct perf_net_work *told, struct perf_opts *o);

/* A way to move messages. All functions are called by both ranks at the same time. */
struct perf_mover {
	const char *name;
	gantry_result (*stream)(struct perf_rank *rk, size_t size, uint64_t iters);
	gantry_result (*pingpong)(struct perf_rank *rk, size_t size, uint64_t iters); /* may be NULL */
};
extern const struct perf_mover perf_mover_peer, perf_mover_raw_spin, perf_mover_raw_block;

gantry_result perf_peer_open(struct perf_rank *rk);
void perf_peer_close(struct perf_rank *rk); /* accepts what open left half-built */
/* Full windows of messages, every byte compared, odd addresses and receives larger than their sends included. */
gantry_result perf_peer_verify(struct perf_rank *rk, size_t size);

gantry_result perf_raw_open(struct perf_rank *rk);
void perf_raw_close(struct perf_rank *rk);

/* Measures one size; rank 0 fills *ret_row. */
gantry_result perf_net_measure(struct perf_rank *rk, size_t size, struct perf_row *ret_row);

/* Called in the parent: once before the first row, then for each row. */
struct perf_printer {
	void (*header)(const struct perf_opts *opts, const struct perf_shared *shared);
	void (*row)(const struct perf_opts *opts, const struct perf_row *row);
};
/* Forks, watches, reaps. Returns 0, or 1 after a line on stderr about the first failure. *ret_shared can be read
 * until the process ends. */
int perf_net_run(const struct perf_opts *opts, const struct perf_printer *print, const struct perf_shared **ret_shared);

#endif
