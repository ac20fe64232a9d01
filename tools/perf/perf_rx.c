/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf rx`: the pipeline of gantry/rx.h between two processes of this host, or between two hosts (perf_remote.h),
 * beside plain TCP and, on a GPU, beside the bus. Rank 0 sends, rank 1 receives. Ways to move the same number of bytes
 * follow one another in each repeat, so that whatever else the machine does hits them alike; every byte that the pipeline
 * moved is checked.
 */
#define LOG_SUBSYS GANTRY_SUBSYS_TOOL
#include "perf/perf_rx.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "common/cmd.h"
#include "common/figures.h"
#include "common/options.h"
#include "common/raw_tcp.h"
#include "device/device.h"
#include "gantry/rx.h"
#include "net/net.h"
#include "perf/perf_table.h"

enum { STREAMS_MAX = 16, GUARD = 0xa5, PINNED = 64 << 20, PIECES_MAX = 1 << 26, PIECE_MAX = 1 << 30 };
#define END_MAX ((uint64_t)1 << 36)
#define STRIDE_MAX ((uint64_t)1 << 32)
#define PATHS "auto|unpack|emulated|host" /* in the order of enum gantry_rx_path, without DEFAULT */
#define MEMORY "auto|host|device"
enum memory { MEMORY_AUTO, MEMORY_HOST, MEMORY_DEVICE };
enum way { RX, PIECES, RAW, WAYS };

/* What the two ranks and the parent share. */
struct prx_shared {
	struct perf_pair pair;
	uint16_t raw_port; /* ordered by barriers, as all that follows */
	char address[128];
	double gbs[WAYS][PRX_REPEATS_MAX]; /* by rank 1 */
	double pcie[2][PRX_REPEATS_MAX];   /* by each; the smaller one counts */
	uint64_t wrong;
	char first_wrong[256]; /* where the first of them was */
	int streams;
	char path[256], device[64];
	struct prx_opts opts; /* the parent's; on two machines then, before info_ready, as the client wants them */
};

/* clang-format off */
#define AT(field) offsetof(struct prx_opts, field)
static const struct option_spec specs[] = {
	{0, OPTION_CHOICE, "device", AT(work.device), 0, 0, "host|cuda", NULL, "whose memory (host)"},
	{0, OPTION_INT, "gpu", AT(gpu), 0, 1023, NULL, "N", "which GPU (0)"},
	{0, OPTION_CHOICE, "path", AT(work.path), 0, 0, PATHS, NULL, "how bytes come to device memory (GANTRY_RX_PATH)"},
	{0, OPTION_CHOICE, "memory", AT(work.memory), 0, 0, MEMORY, NULL, "auto: host memory on the host's own path, else the device's"},
	{'e', OPTION_SIZE, "end", AT(work.end), 1, END_MAX, NULL, "SIZE", "bytes of a transfer (256M); with --pieces their sum counts"},
	{0, OPTION_COUNT, "pieces", AT(work.pieces), 1, PIECES_MAX, NULL, "N", "also as so many pieces"},
	{0, OPTION_SIZE, "piece-bytes", AT(work.piece_bytes), 1, PIECE_MAX, NULL, "SIZE", "bytes of a piece (8k)"},
	{0, OPTION_SIZE, "stride", AT(work.stride), 1, STRIDE_MAX, NULL, "SIZE", "from piece to piece (twice their size)"},
	{0, OPTION_INT, "repeats", AT(work.repeats), 1, PRX_REPEATS_MAX, NULL, "R", "repeats: min, median and max are shown (5)"},
	{0, OPTION_TIME, "timeout", AT(work.timeout_ns), 0, 0, NULL, "TIME", "the longest that a repeat may take (120s)"},
	{0, OPTION_FLAG, "listen", AT(remote.listen), 0, 0, NULL, NULL, "wait for a client on another machine, measure with it, and end"},
	{0, OPTION_FLAG, "forever", AT(remote.forever), 0, 0, NULL, NULL, "with --listen: client after client, until it is ended"},
	{0, OPTION_INT, "port", AT(remote.port), 1, 65535, NULL, "N", "where to listen, or to look for the listener (18520)"},
	{0, OPTION_FLAG, "json", AT(json), 0, 0, NULL, NULL, "a JSON object"},
};
/* clang-format on */

static const struct option_set set = {
	.program = "gantry perf rx",
	.about = "The pipeline of gantry/rx.h between two processes of this machine, or two machines: --listen on one, "
		 "its\n"
		 "HOST on the other, whose options count. Every byte is checked.\n",
	.notes = "\nSee gantry-perf(1) and gantry-rx(3).\n",
	OPTION_SPECS(specs),
	.operand = "HOST[:PORT]",
	.operand_at = AT(remote.host),
};

static const struct prx_opts defaults = {
	.work = {.path = -1, .end = 256 << 20, .piece_bytes = 8192, .repeats = 5, .timeout_ns = 120000000000}};
static int within(int64_t v, int64_t min, int64_t max)
{
	return v >= min && v <= max;
}

int prx_take(const struct prx_work *t, struct prx_opts *o)
{
	if (t->end < 1 || t->end > END_MAX || t->pieces > PIECES_MAX || t->piece_bytes < 1 ||
	    t->piece_bytes > PIECE_MAX || t->stride < t->piece_bytes || t->stride > STRIDE_MAX || !t->timeout_ns ||
	    !within(t->device, 0, 1) || !within(t->path, -1, 3) || !within(t->memory, 0, MEMORY_DEVICE) ||
	    !within(t->repeats, 1, PRX_REPEATS_MAX))
		return -1;
	o->work = *t;
	return 0;
}

/* Of a rank's buffers: contiguous and, with --pieces, with gaps; and an image of each, to fill and to check it. */
static double buffer_bytes(const struct prx_opts *o)
{
	if (!o->work.pieces)
		return 2 * (double)o->work.end;
	return 2 * (double)o->work.pieces * ((double)o->work.piece_bytes + (double)o->work.stride);
}

/* 0, or the exit status plus 1 after a line on stderr. */
static int parse(int argc, char **argv, struct prx_opts *o)
{
	int status = options_parse(&set, argc, argv, o);

	if (status)
		return status;
	if (perf_remote_check(set.program, &o->remote) < 0)
		return 1 + 2;
	if (o->remote.listen && memcmp(&o->work, &defaults.work, sizeof(o->work)) != 0)
		return 1 + options_wrong(&set, "with --listen the client says what is measured: only --port, "
					       "--forever, --gpu and --json go with it");
	if (!o->work.stride)
		o->work.stride = 2 * o->work.piece_bytes;
	if (o->work.stride < o->work.piece_bytes)
		return 1 + options_wrong(&set, "--stride %s is less than --piece-bytes %s", SIZE_TEXT(o->work.stride),
					 SIZE_TEXT(o->work.piece_bytes));
	return 0;
}

/* ---- a rank ---- */

struct prx_rank {
	int rank;
	const struct prx_opts *opts;   /* borrowed */
	struct prx_shared *shared;     /* borrowed */
	struct perf_state *me, *other; /* in shared */
	uint64_t bytes, deadline;
	struct gantry_device *dev;
	struct gantry_rx *rx;
	struct gantry_rx_conn *conn;
	int device_memory;
	unsigned char *plain, *strided, *image; /* contiguous, in pieces; host memory of the larger one's size */
	uint64_t span;
	struct raw_tcp raw;
	void *pinned;
	struct perf_remote *remote; /* borrowed; NULL: the other rank is on this host */
};

/* While a rank waits it must not hold up what it waits for: the other one may need its answers. */
static void poll_rx(void *arg)
{
	struct prx_rank *rk = arg;

	if (rk->rx)
		gantry_rx_poll(rk->rx, NULL, 0);
}

/* What rank 1 has to say on the way, for a rank 0 on another host. */
struct far_word {
	char address[128], path[256], device[64];
	uint64_t raw_port, streams;
};

static gantry_result barrier_far(struct prx_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct prx_shared *s = rk->shared;
	struct far_word mine = {.raw_port = s->raw_port, .streams = (uint64_t)s->streams}, other;

	memcpy(mine.address, s->address, sizeof(mine.address));
	memcpy(mine.path, s->path, sizeof(mine.path));
	memcpy(mine.device, s->device, sizeof(mine.device));
	TRY(perf_remote_swap(rk->remote, &mine, &other, sizeof(mine), poll_rx, rk));
	if (rk->rank == 1)
		goto out;
	if (other.streams > STREAMS_MAX || other.raw_port > UINT16_MAX)
		FAIL(GANTRY_ERR_PROTOCOL, "the other side wants %llu raw streams", (unsigned long long)other.streams);
	s->raw_port = (uint16_t)other.raw_port;
	s->streams = (int)other.streams;
	perf_remote_words(s->address, other.address, sizeof(s->address));
	perf_remote_words(s->path, other.path, sizeof(s->path));
	perf_remote_words(s->device, other.device, sizeof(s->device));
	if (s->path[0])
		store_release(&s->pair.info_ready, 1);
out:
	return r;
}

/* Waits for the other rank, and then sees what that has put into the shared memory so far. Fails if it has given up, or
 * the time is over. */
static gantry_result barrier(struct prx_rank *rk)
{
	if (rk->remote)
		return barrier_far(rk);
	store_release(&rk->me->arrived, rk->me->arrived + 1);
	while (load_acquire(&rk->other->arrived) < rk->me->arrived) {
		if (load_acquire(&rk->other->error_ns) || gantry_now_ns() > rk->deadline)
			FAIL_NOW(GANTRY_ERR_ABORTED, "the other rank has given up");
		poll_rx(rk);
		sched_yield();
	}
	return GANTRY_OK;
}

/* ---- plain TCP: as many streams as the pipeline has bulk lanes ---- */

static gantry_result raw_open(struct prx_rank *rk)
{
	struct gantry_addr a = perf_remote_address(rk->remote);
	const uint64_t limit = rk->opts->work.timeout_ns;
	char text[GANTRY_ADDR_TEXT];

	if (rk->rank == 1 && raw_tcp_listen(&rk->raw, &a.sa, gantry_addr_len(&a), limit, &rk->shared->raw_port))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "raw streams: listening on %s: %s", gantry_addr_text(&a, text),
			 strerror(errno));
	TRY_NOW(barrier(rk));
	gantry_addr_set_port(&a, rk->shared->raw_port);
	if (raw_tcp_join(&rk->raw, rk->shared->streams, rk->rank == 0 ? &a.sa : NULL, gantry_addr_len(&a), limit))
		FAIL_NOW(GANTRY_ERR_SYSTEM, "raw streams: connecting to %s: %s", gantry_addr_text(&a, text),
			 strerror(errno));
	return GANTRY_OK;
}

static gantry_result raw_run(struct prx_rank *rk, uint64_t *ret_ns)
{
	struct raw_tcp_stream s[RAW_TCP_MAX];
	uint64_t start, left = rk->bytes;
	int bad;

	for (int i = 0; i < rk->raw.n; i++) {
		uint64_t part = left / (uint64_t)(rk->raw.n - i);

		s[i] = (struct raw_tcp_stream){.fd = rk->raw.fd[i], .sending = rk->rank == 0, .bytes = part};
		left -= part;
	}
	TRY_NOW(barrier(rk));
	start = gantry_now_ns();
	bad = raw_tcp_run(s, rk->raw.n);
	*ret_ns = gantry_now_ns() - start;
	if (bad)
		FAIL_NOW(GANTRY_ERR_SYSTEM, "raw streams: %s", strerror(errno));
	return GANTRY_OK;
}

/* ---- the pipeline ---- */

static gantry_result meet(struct prx_rank *rk)
{
	gantry_result r = GANTRY_OK;
	struct gantry_rx_listener *l = NULL;

	if (rk->rank == 1) {
		TRY(gantry_rx_listen(rk->rx, NULL, &l));
		snprintf(rk->shared->address, sizeof(rk->shared->address), "%s", gantry_rx_listener_address(l));
		rk->shared->streams = gantry_net_tcp_lanes(0, 0);
		if (rk->shared->streams > STREAMS_MAX)
			rk->shared->streams = STREAMS_MAX;
	}
	TRY(barrier(rk));
	if (rk->rank == 1)
		TRY(gantry_rx_accept(l, GANTRY_WAIT_DEFAULT, &rk->conn));
	else
		TRY(gantry_rx_connect(rk->rx, rk->shared->address, GANTRY_WAIT_DEFAULT, &rk->conn));
	if (rk->rank == 1) {
		snprintf(rk->shared->path, sizeof(rk->shared->path), "%s", gantry_rx_conn_path(rk->conn));
		snprintf(rk->shared->device, sizeof(rk->shared->device), "%s", gantry_device_name(rk->dev));
		store_release(&rk->shared->pair.info_ready, 1);
	}
out:
	gantry_rx_listener_close(l);
	return r;
}

static gantry_result alloc(struct prx_rank *rk, uint64_t size, unsigned char **ret)
{
	void *p = NULL;

	if (rk->device_memory)
		TRY_NOW(gantry_mem_alloc(rk->dev, size, &p));
	else
		p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
	if (!p)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory for %s", SIZE_TEXT(size));
	*ret = p;
	return gantry_rx_register(rk->rx, p, size);
}

static gantry_result open_all(struct prx_rank *rk)
{
	const struct prx_opts *o = rk->opts;
	struct gantry_rx_config config = {.struct_size = sizeof(config),
					  .path = (enum gantry_rx_path)(o->work.path + 1)};
	void *dev;

	TRY_NOW(gantry_params_load(0));
	TRY_NOW(gantry_device_open((enum gantry_device_kind)o->work.device, o->gpu, &rk->dev));
	config.device = rk->dev;
	TRY_NOW(gantry_rx_open(&config, &rk->rx));
	TRY_NOW(meet(rk));
	rk->device_memory =
		o->work.memory == MEMORY_DEVICE ||
		(o->work.memory == MEMORY_AUTO &&
		 (o->work.device == GANTRY_DEVICE_CUDA || strncmp(gantry_rx_conn_path(rk->conn), "unpack", 6) == 0));
	rk->bytes = o->work.pieces ? o->work.pieces * o->work.piece_bytes : o->work.end;
	rk->span = o->work.pieces ? (o->work.pieces - 1) * o->work.stride + o->work.piece_bytes : 0;
	TRY_NOW(alloc(rk, rk->bytes, &rk->plain));
	if (rk->span)
		TRY_NOW(alloc(rk, rk->span, &rk->strided));
	rk->image = malloc(rk->span + rk->bytes);
	if (!rk->image)
		FAIL_NOW(GANTRY_ERR_NOMEM, "no memory to check %s", SIZE_TEXT(rk->bytes));
	if (o->work.device == GANTRY_DEVICE_CUDA)
		TRY_NOW(rk->dev->ops->alloc_mapped(rk->dev, PINNED, &rk->pinned, &dev));
	return raw_open(rk);
}

static void release(struct prx_rank *rk, unsigned char *p)
{
	if (p && rk->device_memory)
		gantry_mem_free(rk->dev, p);
	else
		free(p);
}

static void close_all(struct prx_rank *rk)
{
	raw_tcp_close(&rk->raw);
	gantry_rx_conn_close(rk->conn);
	gantry_rx_close(rk->rx);
	release(rk, rk->plain);
	release(rk, rk->strided);
	free(rk->image);
	if (rk->pinned)
		rk->dev->ops->free_mapped(rk->dev, rk->pinned);
	if (rk->dev)
		gantry_device_close(rk->dev);
}

/* The image of what is to be sent, or of what is to be overwritten. `flat` is behind it. */
static gantry_result prepare(struct prx_rank *rk, int pieces, uint64_t seq)
{
	const struct prx_opts *o = rk->opts;
	unsigned char *flat = rk->image + rk->span;
	uint64_t size = pieces ? rk->span : rk->bytes;

	if (rk->rank == 1) {
		memset(rk->image, GUARD, size);
	} else if (pieces) {
		perf_fill(flat, rk->bytes, seq);
		memset(rk->image, 0, rk->span);
		for (uint64_t i = 0; i < o->work.pieces; i++)
			memcpy(rk->image + i * o->work.stride, flat + i * o->work.piece_bytes, o->work.piece_bytes);
	} else {
		perf_fill(rk->image, rk->bytes, seq);
	}
	return gantry_mem_copy(rk->dev, pieces ? rk->strided : rk->plain, rk->image, size);
}

/* wrong bytes were found, the first of them there: in the transfer, or in a gap after a piece. */
static void count_wrong(struct prx_rank *rk, uint64_t wrong, uint64_t offset, const char *where)
{
	struct prx_shared *s = rk->shared;

	if (wrong && !s->wrong)
		snprintf(s->first_wrong, sizeof(s->first_wrong), "%s %llu of a transfer of %s", where,
			 (unsigned long long)offset, SIZE_TEXT(rk->bytes));
	s->wrong += wrong;
}

static gantry_result check(struct prx_rank *rk, int pieces, uint64_t seq)
{
	const struct prx_opts *o = rk->opts;
	unsigned char *flat = pieces ? rk->image + rk->span : rk->image;
	uint64_t wrong;

	TRY_NOW(gantry_mem_copy(rk->dev, rk->image, pieces ? rk->strided : rk->plain, pieces ? rk->span : rk->bytes));
	for (uint64_t i = 0; pieces && i < o->work.pieces; i++) {
		memcpy(flat + i * o->work.piece_bytes, rk->image + i * o->work.stride, o->work.piece_bytes);
		wrong = 0;
		for (uint64_t k = o->work.piece_bytes; i + 1 < o->work.pieces && k < o->work.stride; k++)
			wrong += rk->image[i * o->work.stride + k] != GUARD;
		count_wrong(rk, wrong, i, "behind piece");
	}
	wrong = perf_check(flat, rk->bytes, seq);
	count_wrong(rk, wrong, wrong ? perf_first_wrong(flat, rk->bytes, seq) : 0, "at offset");
	return GANTRY_OK;
}

static gantry_result move(struct prx_rank *rk, int pieces, uint64_t seq, uint64_t *ret_ns)
{
	gantry_result r = GANTRY_OK;
	const struct prx_opts *o = rk->opts;
	struct gantry_rx_piece p = {rk->plain, rk->bytes, 0, 1};
	struct gantry_rx_op *op = NULL;
	struct gantry_rx_result result = GANTRY_RX_RESULT_INIT;
	uint64_t start;

	if (pieces)
		p = (struct gantry_rx_piece){rk->strided, o->work.piece_bytes, o->work.stride, o->work.pieces};
	TRY(prepare(rk, pieces, seq));
	TRY(barrier(rk));
	start = gantry_now_ns();
	TRY(rk->rank == 0 ? gantry_rx_send(rk->conn, &p, 1, seq, &op) : gantry_rx_recv(rk->conn, &p, 1, seq, &op));
	r = gantry_rx_wait(op, (int64_t)o->work.timeout_ns);
	*ret_ns = gantry_now_ns() - start;
	if (r != GANTRY_OK) {
		gantry_rx_op_result(op, &result);
		FAIL(r, "%s", result.text[0] ? result.text : "the transfer did not end in time");
	}
	if (rk->rank == 1)
		TRY(check(rk, pieces, seq));
	/* A sender that goes on alone would stop moving what its peer still waits for. */
	TRY(barrier(rk));
out:
	gantry_rx_op_free(op);
	return r;
}

/* This rank's direction over the bus: from device memory when it sends, to it when it receives. */
static gantry_result pcie(struct prx_rank *rk, uint64_t *ret_ns)
{
	gantry_result r = GANTRY_OK;
	uint64_t start, at = 0;
	struct gantry_stream *s = NULL;

	TRY(rk->dev->ops->stream_create(rk->dev, &s));
	TRY(barrier(rk));
	start = gantry_now_ns();
	for (; at < rk->bytes; at += PINNED) {
		uint64_t n = rk->bytes - at < PINNED ? rk->bytes - at : PINNED;
		void *dst = rk->rank == 0 ? rk->pinned : rk->plain + at,
		     *src = rk->rank == 0 ? rk->plain + at : rk->pinned;

		TRY(rk->dev->ops->copy_async(rk->dev, s, dst, src, n));
	}
	TRY(rk->dev->ops->stream_sync(rk->dev, s));
	*ret_ns = gantry_now_ns() - start;
out:
	if (s)
		rk->dev->ops->stream_destroy(rk->dev, s);
	return r;
}

static double gbs(const struct prx_rank *rk, uint64_t ns)
{
	return (double)rk->bytes / (double)(ns ? ns : 1);
}

/* k < 0: to warm up. */
static gantry_result round_of(struct prx_rank *rk, int k)
{
	double(*out)[PRX_REPEATS_MAX] = rk->shared->gbs;
	uint64_t ns = 1, seq = (uint64_t)(k + 1) * 2;
	int at = k < 0 ? 0 : k, says = rk->rank == 1;

	TRY_NOW(move(rk, 0, seq, &ns));
	if (says)
		out[RX][at] = gbs(rk, ns);
	if (rk->span) {
		TRY_NOW(move(rk, 1, seq + 1, &ns));
		if (says)
			out[PIECES][at] = gbs(rk, ns);
	}
	TRY_NOW(raw_run(rk, &ns));
	if (says)
		out[RAW][at] = gbs(rk, ns);
	if (rk->pinned) {
		TRY_NOW(pcie(rk, &ns));
		rk->shared->pcie[rk->rank][at] = gbs(rk, ns);
	}
	return GANTRY_OK;
}

/* The other machine, and what its user or this one wants to have measured. */
static gantry_result meet_far(struct prx_rank *rk, struct perf_remote *rm)
{
	struct prx_shared *s = rk->shared;
	struct prx_work other;
	char why[256];

	TRY_NOW(perf_pair_meet(&s->pair, rm, set.program, &rk->opts->remote, &rk->opts->work, &other, sizeof(other)));
	rk->remote = rm;
	if (rk->rank == 1 && prx_take(&other, &s->opts) < 0)
		FAIL_NOW(GANTRY_ERR_PROTOCOL, "the client's options make no sense here");
	if (rk->rank == 1 && s->opts.work.device == GANTRY_DEVICE_HOST &&
	    !perf_memory_fits(1, buffer_bytes(&s->opts), why, sizeof(why)))
		FAIL_NOW(GANTRY_ERR_NOMEM, "%s", why);
	store_relaxed(&rk->me->alone, 0);
	return GANTRY_OK;
}

/* What each has measured, for both to print. */
struct far_result {
	double gbs[WAYS][PRX_REPEATS_MAX], pcie[PRX_REPEATS_MAX];
	uint64_t wrong;
	char first_wrong[256];
};

static gantry_result share_results(struct prx_rank *rk)
{
	static struct far_result mine, other;
	struct prx_shared *s = rk->shared;

	memcpy(mine.gbs, s->gbs, sizeof(mine.gbs));
	memcpy(mine.pcie, s->pcie[rk->rank], sizeof(mine.pcie));
	mine.wrong = s->wrong;
	memcpy(mine.first_wrong, s->first_wrong, sizeof(mine.first_wrong));
	TRY_NOW(perf_remote_swap(rk->remote, &mine, &other, sizeof(mine), poll_rx, rk));
	memcpy(s->pcie[!rk->rank], other.pcie, sizeof(other.pcie));
	if (rk->rank == 0) {
		memcpy(s->gbs, other.gbs, sizeof(other.gbs));
		s->wrong = other.wrong;
		perf_remote_words(s->first_wrong, other.first_wrong, sizeof(other.first_wrong));
	}
	return GANTRY_OK;
}

static gantry_result work(struct prx_rank *rk)
{
	perf_phase(rk->me, "connecting", 0);
	TRY_NOW(open_all(rk));
	perf_phase(rk->me, "transfers", rk->bytes);
	for (int k = -1; k < rk->opts->work.repeats; k++) {
		rk->deadline = gantry_now_ns() + rk->opts->work.timeout_ns;
		TRY_NOW(round_of(rk, k));
	}
	if (rk->remote) {
		TRY_NOW(share_results(rk));
		TRY_NOW(perf_remote_load(rk->remote, &rk->shared->pair.others_cpu));
	}
	TRY_NOW(barrier(rk)); /* neither rank closes while the other still reads */
	return GANTRY_OK;
}

/* In a process of its own. */
static int run_rank(void *ctx, int rank, int n)
{
	struct prx_shared *shared = ctx;
	struct prx_rank rk = {.rank = rank,
			      .opts = &shared->opts,
			      .shared = shared,
			      .me = &shared->pair.state[rank],
			      .other = &shared->pair.state[!rank],
			      .deadline = UINT64_MAX};
	struct perf_remote remote = {.ctl = NULL};
	gantry_result r = GANTRY_OK;

	(void)n;
	gantry_set_last_error("");
	if (perf_remote_wanted(&rk.opts->remote))
		r = meet_far(&rk, &remote);
	if (r == GANTRY_OK)
		r = work(&rk);
	if (r != GANTRY_OK)
		perf_pair_failed(&shared->pair, rank, &remote, r);
	close_all(&rk);
	perf_remote_close(&remote);
	return r != GANTRY_OK;
}

/* ---- the parent ---- */

/* The one line of the table. NAN: not measured. */
struct row {
	uint64_t bytes, wrong, pieces, streams, repeats;
	struct perf_spread gbs;
	double raw, pcie, ratio, piece_ratio;
	const char *path, *device;
};

/* clang-format off */
#define FIELD(field) offsetof(struct row, field)
static const struct perf_column columns[] = {
	{"size", "(B)", "bytes", PERF_COUNT, 13, FIELD(bytes)},
	{NULL, "", "path", PERF_NAME, 0, FIELD(path)},
	{"bandwidth", "(GB/s)", "gbs", PERF_SPREAD, 7, FIELD(gbs)},
	{"raw", "(GB/s)", "raw_gbs", PERF_FIGURE, 8, FIELD(raw)},
	{"bus", "(GB/s)", "pcie_gbs", PERF_FIGURE, 8, FIELD(pcie)},
	{"ratio", "", "ratio", PERF_FIGURE, 7, FIELD(ratio)},
	{"#wrong", "(B)", "wrong", PERF_WRONG, 7, FIELD(wrong)},
	{"pieces", "", "pieces", PERF_COUNT, 9, FIELD(pieces)},
	{"ratio", "", "piece_ratio", PERF_FIGURE, 7, FIELD(piece_ratio)},
	{NULL, "", "streams", PERF_COUNT, 0, FIELD(streams)},
	{NULL, "", "device", PERF_NAME, 0, FIELD(device)},
	{NULL, "", "repeats", PERF_COUNT, 0, FIELD(repeats)},
};
/* clang-format on */

static struct perf_table table;

static struct row row_of(const struct prx_opts *o, struct prx_shared *s)
{
	struct row r = {.bytes = o->work.pieces ? o->work.pieces * o->work.piece_bytes : o->work.end,
			.wrong = s->wrong,
			.pieces = o->work.pieces,
			.streams = (uint64_t)s->streams,
			.repeats = (uint64_t)o->work.repeats,
			.pcie = NAN,
			.piece_ratio = NAN,
			.path = s->path,
			.device = s->device};
	size_t n = (size_t)o->work.repeats;
	double limit, down, up;

	r.gbs = perf_spread_of(s->gbs[RX], n);
	r.raw = perf_median(s->gbs[RAW], n);
	limit = r.raw;
	if (o->work.device == GANTRY_DEVICE_CUDA) {
		down = perf_median(s->pcie[0], n);
		up = perf_median(s->pcie[1], n);
		r.pcie = down < up ? down : up;
		limit = r.pcie < limit ? r.pcie : limit;
	}
	r.ratio = r.gbs.median / limit;
	if (o->work.pieces)
		r.piece_ratio = perf_median(s->gbs[PIECES], n) / r.gbs.median;
	return r;
}

/* As soon as the ranks know what it says. */
static void print_header(void *ctx, struct perf_ranks *p)
{
	const struct prx_shared *s = ctx;

	(void)p;
	if (table.open || !load_acquire(&s->pair.info_ready))
		return;
	perf_table_begin(&table, options_command(),
			 s->pair.peer[0]
				 ? "the pipeline of gantry/rx.h between two machines, beside plain TCP and the bus"
				 : "the pipeline of gantry/rx.h between two processes, beside plain TCP and the bus");
	if (s->pair.peer[0])
		perf_fact_text(&table, "peer", s->pair.peer);
	perf_fact_text(&table, "device", s->device);
	perf_fact_text(&table, "path", s->path);
	perf_fact_int(&table, "streams", s->streams);
	perf_fact_int(&table, "repeats", s->opts.work.repeats);
	perf_table_note(&table, "raw: plain TCP; ratio: bandwidth by the smaller of raw and bus, pieces by contiguous");
	perf_table_columns(&table, columns, sizeof(columns) / sizeof(columns[0]));
}

/* Ranks have deadlines of their own. */
static uint64_t no_timeout(void *shared)
{
	(void)shared;
	return 0;
}

static int run_once(void *arg)
{
	const struct prx_opts *o = arg;
	struct prx_shared *s = perf_ranks_map(set.program, sizeof(*s));
	struct perf_ranks ranks = {
		.program = set.program, .ctx = s, .run = run_rank, .print = print_header, .timeout = no_timeout};
	int status;

	if (!s)
		return 1;
	s->opts = *o;
	table = (struct perf_table){.op = "rx", .out = stdout, .json = o->json, .whole = 1};
	status = perf_pair_run(&s->pair, &o->remote, &ranks);
	if (status == PERF_REMOTE_CANNOT)
		return status;
	table.ours = s->pair.others_cpu;
	if (!status) {
		struct row row = row_of(&s->opts, s);

		perf_table_row(&table, &row);
	}
	return perf_table_end(&table, status, s->wrong ? s->first_wrong : NULL);
}

int cmd_perf_rx(int argc, char **argv)
{
	struct prx_opts o = defaults;
	int status = parse(argc, argv, &o);

	if (status)
		return status - 1;
	if (perf_preflight(set.program, NULL, NULL) < 0)
		return 2;
	if (!o.remote.listen && o.work.device == GANTRY_DEVICE_HOST &&
	    perf_memory_check("rx", perf_remote_wanted(&o.remote) ? 1 : 2, buffer_bytes(&o)) < 0)
		return 1;
	return perf_remote_main(&o.remote, run_once, &o);
}
