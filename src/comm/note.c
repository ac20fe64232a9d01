/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the collectives of a communicator are, for reports and traces: kernels show the number of the one that they are
 * at, and the newest COMM_NOTES of them are known by number. The caller's thread writes notes and others read them, with
 * no lock: one that is just written anew, for a collective so much later, may be read half and half.
 */
#include <string.h>

#include "base/atomic.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/report.h"

static const char *const type_names[GANTRY_TYPE_COUNT] = {
#define TYPE_NAME(name, number, size, text) [number] = text,
	GANTRY_TYPES(TYPE_NAME)
#undef TYPE_NAME
};
static const char *const op_names[] = {
#define OP_NAME(name, number, text) [number] = text,
	GANTRY_OPS(OP_NAME)
#undef OP_NAME
};
enum { OPS = sizeof(op_names) / sizeof(op_names[0]), NOTHING = 0xff };

const char *comm_kind_name(unsigned kind)
{
	static const char *const more[COMM_KINDS - COLL_KINDS] = {"gather", "scatter", "barrier"};

	if (kind < COLL_KINDS)
		return coll_kind_name((enum coll_kind)kind);
	return kind < COMM_KINDS ? more[kind - COLL_KINDS] : "?";
}

static uint64_t pack_note(const struct comm_collective *coll, unsigned kind)
{
	int reduces = kind < COLL_KINDS && coll_reduces((enum coll_kind)kind);
	uint64_t what = kind | (uint64_t)coll->type << 8 | (uint64_t)(reduces ? coll->op : NOTHING) << 16;

	what |= (uint64_t)(coll->plan ? coll->choice.algo : NOTHING) << 24;
	what |= (uint64_t)(coll->plan ? coll->choice.proto : NOTHING) << 32;
	return what | (uint64_t)(uint16_t)coll->root << 48;
}

uint32_t comm_note(struct gantry_comm *comm, const struct comm_collective *coll, uint32_t op)
{
	struct comm_coll *c = comm->coll;
	uint64_t number = c->calls + 1;
	struct comm_note *n = &c->notes[number % COMM_NOTES];
	unsigned kind = coll->kind;

	if (kind == COLL_ALL_REDUCE && coll->in == c->word)
		kind = COMM_BARRIER;
	store_relaxed(&n->bytes, coll->count * coll_type_bytes(coll->type));
	store_relaxed(&n->what, pack_note(coll, kind));
	store_relaxed(&n->op, op);
	store_release(&n->number, number);
	store_relaxed(&c->calls, number);
	return (uint32_t)number;
}

const char *comm_type_name(unsigned type)
{
	return type < GANTRY_TYPE_COUNT ? type_names[type] : "";
}

static const char *name_at(const char *const *names, unsigned n, unsigned at)
{
	return at < n ? names[at] : "";
}

uint32_t comm_note_what(const struct comm_note *n)
{
	return (uint32_t)n->what;
}

void comm_put_what(struct gantry_json *j, uint32_t what)
{
	const char *op = name_at(op_names, OPS, what >> 16 & 0xff);
	uint32_t algo = what >> 24;

	gantry_json_str(j, "collective", comm_kind_name(what & 0xff));
	gantry_json_str(j, "type", comm_type_name(what >> 8 & 0xff));
	if (*op)
		gantry_json_str(j, "redop", op);
	if (algo < COLL_ALGOS)
		gantry_json_str(j, "algo", coll_algos[algo]->name);
}

/* 1: there is one. */
static int read_note(const struct comm_note *n, struct comm_coll_view *ret)
{
	uint64_t number = load_acquire(&n->number), what = load_relaxed(&n->what), algo = what >> 24 & 0xff;

	*ret = (struct comm_coll_view){
		.number = number, .bytes = load_relaxed(&n->bytes), .op_id = load_relaxed(&n->op), .root = -1};
	ret->kind = what & 0xff;
	ret->name = comm_kind_name(ret->kind);
	ret->type = comm_type_name(what >> 8 & 0xff);
	ret->op = name_at(op_names, OPS, what >> 16 & 0xff);
	ret->algo = algo < COLL_ALGOS ? coll_algos[algo]->name : "";
	ret->proto = name_at(gantry_trace_proto_names, GANTRY_PROTOS, what >> 32 & 0xff);
	if (ret->kind == COLL_REDUCE || ret->kind == COLL_BROADCAST || ret->kind == COMM_GATHER ||
	    ret->kind == COMM_SCATTER)
		ret->root = (int)(what >> 48);
	return number != 0;
}

int comm_coll_find(const struct gantry_comm *comm, uint32_t number, struct comm_coll_view *ret)
{
	return number && read_note(&comm->coll->notes[number % COMM_NOTES], ret) && (uint32_t)ret->number == number;
}

/* By what the proxy is at, which may be ahead of the kernel or behind it; else by what the kernel shows. */
int comm_coll_look(const struct gantry_comm *comm, const struct comm_end *e, struct comm_coll_view *ret)
{
	if (!e->pending)
		return 0;
	for (int i = 0; e->proxied && e->proxy.busy && i < COMM_NOTES; i++)
		if (read_note(&comm->coll->notes[i], ret) && ret->op_id && ret->op_id == e->proxy.op)
			goto found;
	if (!comm_coll_find(comm, e->coll, ret))
		return 0;
found:
	if ((uint32_t)ret->number == e->coll && *ret->algo && e->phase && e->phase <= GANTRY_KERNEL_WAITS)
		ret->at = e->coll_at;
	return 1;
}

const char *comm_coll_text(const struct comm_coll_view *v, char buf[COMM_COLL_TEXT])
{
	snprintf(buf, COMM_COLL_TEXT, "%s #%llu (%s %s%s%s", v->name, (unsigned long long)v->number,
		 SIZE_TEXT(v->bytes), v->type, *v->op ? " " : "", v->op);
	if (v->root >= 0)
		gantry_text_add(buf, COMM_COLL_TEXT, ", root %d", v->root);
	if (*v->algo)
		gantry_text_add(buf, COMM_COLL_TEXT, ", %s, %s", v->algo, v->proto);
	gantry_text_add(buf, COMM_COLL_TEXT, ")");
	if (v->at)
		gantry_text_add(buf, COMM_COLL_TEXT, ", step %u of %u, chunk %u", GANTRY_COLL_AT_STEP(v->at),
				GANTRY_COLL_AT_OF(v->at), GANTRY_COLL_AT_CHUNK(v->at) + 1);
	return buf;
}
