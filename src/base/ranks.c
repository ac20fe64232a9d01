/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ranks.h"

#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/mutex.h"

static const char *const func_names[GANTRY_NCCL_FUNCS] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
							  "AllReduce", "SendRecv", "Send",	"Recv",
							  "AlltoAll",  "Scatter",  "Gather",	"?"};
static const char *const type_names[GANTRY_NCCL_TYPES] = {
	"ncclInt8",    "ncclUint8",   "ncclInt32",    "ncclUint32",	"ncclInt64",	  "ncclUint64", "ncclFloat16",
	"ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2", "nccl?"};
static const uint8_t type_sizes[GANTRY_NCCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 0};
static const char *const algo_names[GANTRY_NCCL_ALGOS] = {
	"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT", "?"};
/* In small letters, as Gantry's own. */
static const char *const proto_names[GANTRY_NCCL_PROTOS] = {"ll", "ll128", "simple", "?"};
static const struct {
	const char *const *names;
	uint32_t n;
} tables[] = {
	[GANTRY_NCCL_FUNC] = {func_names, GANTRY_NCCL_FUNCS},
	[GANTRY_NCCL_TYPE] = {type_names, GANTRY_NCCL_TYPES},
	[GANTRY_NCCL_ALGO] = {algo_names, GANTRY_NCCL_ALGOS},
	[GANTRY_NCCL_PROTO] = {proto_names, GANTRY_NCCL_PROTOS},
};
const char *const gantry_nccl_state_names[GANTRY_NCCL_STATES] = {"kernel", "room", "network", "flush", "end"};

MUTEX_KIND(ranks_mu);
static struct {
	struct ranks_mu mu;
	struct entry {
		int used, over;
		uint64_t comm;
		int rank, nranks;
		char name[48];
		uint32_t collectives, transfers; /* atomic; called so far */
		uint64_t b, c;			 /* atomic: the last collective, as its event has it */
	} entries[GANTRY_RANKS];
	int next; /* where a place is looked for first */
} ranks;

uint32_t gantry_nccl_number(enum gantry_nccl_names of, const char *name)
{
	uint32_t last = tables[of].n - 1;

	for (uint32_t i = 0; name && i < last; i++)
		if (strcasecmp(tables[of].names[i], name) == 0)
			return i;
	return last;
}

uint32_t gantry_nccl_type_size(uint32_t type)
{
	return type < GANTRY_NCCL_TYPES ? type_sizes[type] : 0;
}

int gantry_rank_add(uint64_t comm, int rank, int nranks, const char *name)
{
	int at = -1;

	ranks_mu_lock(&ranks.mu);
	for (int pass = 0; at < 0 && pass < 2; pass++) { /* places that were never used first */
		for (int i = 0; at < 0 && i < GANTRY_RANKS; i++) {
			struct entry *e = &ranks.entries[(ranks.next + i) % GANTRY_RANKS];

			if (!e->used || (pass && e->over))
				at = (int)(e - ranks.entries);
		}
	}
	if (at >= 0) {
		struct entry *e = &ranks.entries[at];

		*e = (struct entry){.used = 1, .comm = comm, .rank = rank, .nranks = nranks};
		snprintf(e->name, sizeof(e->name), "%s", name ? name : "");
		ranks.next = (at + 1) % GANTRY_RANKS;
	}
	ranks_mu_unlock(&ranks.mu);
	return at;
}

void gantry_rank_learn(int entry, uint64_t comm, int rank)
{
	struct entry *e = &ranks.entries[entry];

	if (load_relaxed(&e->rank) >= 0)
		return;
	ranks_mu_lock(&ranks.mu);
	e->comm = comm;
	store_relaxed(&e->rank, rank);
	ranks_mu_unlock(&ranks.mu);
}

void gantry_rank_end(int entry)
{
	ranks_mu_lock(&ranks.mu);
	ranks.entries[entry].over = 1;
	ranks_mu_unlock(&ranks.mu);
}

uint64_t gantry_rank_call_b(uint32_t number, const struct gantry_rank_call *call)
{
	uint32_t what = call->func | call->type << 4 | call->algo << 8 | call->proto << 12 | call->channels << 16;

	return number | (uint64_t)what << 32;
}

uint64_t gantry_rank_call_c(const struct gantry_rank_call *call)
{
	uint64_t bytes = call->bytes < 1ull << 40 ? call->bytes : (1ull << 40) - 1;
	uint64_t root = call->root >= 0 && call->root < (1 << 20) ? (uint64_t)call->root + 1 : 0;

	return bytes | root << 40;
}

uint32_t gantry_rank_called(int entry, const struct gantry_rank_call *call)
{
	struct entry *e = &ranks.entries[entry];
	uint32_t number;

	if (call->p2p)
		return GANTRY_RANK_P2P | (fetch_add_relaxed(&e->transfers, 1) + 1);
	number = fetch_add_relaxed(&e->collectives, 1) + 1;
	store_relaxed(&e->b, gantry_rank_call_b(number, call));
	store_relaxed(&e->c, gantry_rank_call_c(call));
	return number;
}

int gantry_nccl_is_event(uint32_t kind)
{
	return kind >= GANTRY_EV_NCCL_CALL && kind <= GANTRY_EV_NCCL_REQUEST;
}

static void put_call(struct gantry_json *j, uint64_t b, uint64_t c)
{
	uint32_t what = (uint32_t)(b >> 32), type = what >> 4 & 15, func = what & 15;
	int64_t root = (int64_t)(c >> 40 & 0xfffff) - 1;

	gantry_json_uint(j, "number", (uint32_t)b);
	gantry_json_uint(j, "bytes", c & ((1ull << 40) - 1));
	gantry_json_str(j, "collective", func_names[func < GANTRY_NCCL_FUNCS ? func : GANTRY_NCCL_FUNCS - 1]);
	gantry_json_str(j, "type", type_names[type < GANTRY_NCCL_TYPES ? type : GANTRY_NCCL_TYPES - 1] + 4);
	if (root >= 0)
		gantry_json_int(j, "root", root);
	gantry_json_str(j, "algo", algo_names[what >> 8 & 7]);
	gantry_json_str(j, "proto", proto_names[what >> 12 & 3]);
	gantry_json_uint(j, "channels", what >> 16);
}

static void put_op(struct gantry_json *j, const struct gantry_event *e)
{
	gantry_json_uint(j, "op", e->a);
	gantry_json_uint(j, "number", (uint32_t)e->b);
	gantry_json_uint(j, "peer", (uint32_t)e->c);
	gantry_json_uint(j, "channel", e->b >> 32 & 255);
	gantry_json_uint(j, "nccl", e->b >> 40 & 255);
	gantry_json_str(j, "dir", e->b >> 48 & 1 ? "send" : "recv");
	gantry_json_uint(j, "steps", e->c >> 32 & 0x3fffffff);
}

void gantry_nccl_put_event(struct gantry_json *j, const struct gantry_event *e)
{
	uint32_t state = (uint32_t)(e->b >> 32);

	switch (e->kind) {
	case GANTRY_EV_NCCL_CALL:
		gantry_json_uint(j, "nccl", e->a);
		if (e->c & GANTRY_EV_OP_END) /* it has no more */
			gantry_json_uint(j, "number", (uint32_t)e->b);
		else
			put_call(j, e->b, e->c);
		break;
	case GANTRY_EV_NCCL_OP:
		put_op(j, e);
		break;
	case GANTRY_EV_NCCL_STEP:
		gantry_json_uint(j, "op", e->a);
		gantry_json_uint(j, "step", (uint32_t)e->b);
		gantry_json_uint(j, "bytes", e->c);
		gantry_json_str(j, "state", state < GANTRY_NCCL_STATES ? gantry_nccl_state_names[state] : "?");
		break;
	default: /* NCCL_REQUEST */
		gantry_json_uint(j, "link", e->a);
		gantry_json_uint(j, "msg", (uint32_t)e->b);
		gantry_json_uint(j, "op", (uint32_t)e->c);
		gantry_json_uint(j, "tag", e->b >> 32);
		gantry_json_uint(j, "step", e->c >> 32 & 0x3fffffff);
		gantry_json_str(j, "dir", e->c >> 62 & 1 ? "send" : "recv");
		return;
	}
	if (e->kind != GANTRY_EV_NCCL_STEP)
		gantry_json_int(j, "end", e->c & GANTRY_EV_OP_END ? 1 : 0);
}

static void put_line(FILE *f, int at, struct entry *e, const char *host)
{
	uint64_t b = load_relaxed(&e->b);
	struct gantry_json j;
	char id[20];

	snprintf(id, sizeof(id), "%016llx", (unsigned long long)e->comm);
	gantry_json_begin(&j, f, GANTRY_JSON_TIGHT);
	gantry_json_str(&j, "kind", "rank");
	gantry_json_int(&j, "nccl", at);
	gantry_json_str(&j, "comm", id);
	gantry_json_int(&j, "rank", e->rank);
	gantry_json_int(&j, "nranks", e->nranks);
	gantry_json_str(&j, "name", e->name);
	gantry_json_str(&j, "host", host);
	gantry_json_int(&j, "pid", getpid());
	gantry_json_int(&j, "over", e->over);
	gantry_json_uint(&j, "collectives", load_relaxed(&e->collectives));
	if (b) {
		gantry_json_open(&j, "last", '{');
		put_call(&j, b, load_relaxed(&e->c));
		gantry_json_close(&j, '}');
	}
	gantry_json_end(&j);
}

void gantry_rank_put_lines(FILE *f, int all)
{
	char host[64] = "";

	gethostname(host, sizeof(host) - 1);
	ranks_mu_lock(&ranks.mu);
	for (int i = 0; i < GANTRY_RANKS; i++) {
		struct entry *e = &ranks.entries[i];

		if (e->used && e->rank >= 0 && (all || !e->over))
			put_line(f, i, e, host);
	}
	ranks_mu_unlock(&ranks.mu);
}
