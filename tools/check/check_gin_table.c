/* SPDX-License-Identifier: Apache-2.0 */
/* GIN v11 to v13 and RMA v13 to v17 as one table without a version. What NCCL leaves uninitialised is handed over as garbage. */
#include <string.h>

#include "check/check_gin.h"

enum { QUEUE_DEPTH = 128 };

#define PROPERTIES(v, type_, props)                                                                                    \
	static ncclResult_t properties_##v(const void *raw, int dev, struct gin_properties *ret)                       \
	{                                                                                                              \
		props p;                                                                                               \
		ncclResult_t r;                                                                                        \
                                                                                                                       \
		memset(&p, GANTRY_NET_UNWRITTEN, sizeof(p));                                                           \
		r = ((const type_ *)raw)->getProperties(dev, &p);                                                      \
		*ret = (struct gin_properties){.name = p.name,                                                         \
					       .ptr_support = p.ptrSupport,                                            \
					       .max_comms = p.maxComms,                                                \
					       .max_recvs = p.maxRecvs,                                                \
					       .type = p.netDeviceType};                                               \
		return r;                                                                                              \
	}
PROPERTIES(g11, ncclGin_v11_t, ncclNetProperties_v11_t)
PROPERTIES(g12, ncclGin_v12_t, ncclNetProperties_v11_t)
PROPERTIES(g13, ncclGin_v13_t, ncclNetProperties_v12_t)
PROPERTIES(r14, ncclRma_v14_t, ncclNetProperties_v12_t)
PROPERTIES(r15, ncclRma_v15_t, ncclNetProperties_v12_t)
PROPERTIES(r16, ncclRma_v16_t, ncclNetProperties_v12_t)
PROPERTIES(r17, ncclRma_v17_t, ncclNetProperties_v12_t)

#define NO_NUMBERS
#define NUMBERS GIN_CONTEXTS, QUEUE_DEPTH,
#define CONNECT(v, type_, numbers)                                                                                     \
	static ncclResult_t connect_##v(const void *raw, void *ctx, void **handles, int rank, void *listen,            \
					void **coll)                                                                   \
	{                                                                                                              \
		return ((const type_ *)raw)->connect(ctx, handles, GIN_RANKS, rank, numbers listen, coll);             \
	}
CONNECT(g11, ncclGin_v11_t, NO_NUMBERS)
CONNECT(g12, ncclGin_v12_t, NUMBERS)
CONNECT(g13, ncclGin_v13_t, NO_NUMBERS)
CONNECT(r14, ncclRma_v14_t, NO_NUMBERS)
CONNECT(r15, ncclRma_v15_t, NO_NUMBERS)
CONNECT(r16, ncclRma_v16_t, NO_NUMBERS)
CONNECT(r17, ncclRma_v17_t, NO_NUMBERS)

static ncclResult_t create_g13(const void *raw, void *coll, void **gin)
{
	ncclGinConfig_v13_t config = {
		.nSignals = GIN_WORDS, .nContexts = GIN_CONTEXTS, .queueDepth = QUEUE_DEPTH, .trafficClass = -1};
	ncclNetDeviceHandle_v11_t *device = NULL;

	return ((const ncclGin_v13_t *)raw)->createContext(coll, &config, gin, &device);
}

#define CREATE(v, type_, config_, ...)                                                                                 \
	static ncclResult_t create_##v(const void *raw, void *coll, void **gin)                                        \
	{                                                                                                              \
		config_ config = {.nContexts = GIN_CONTEXTS, .trafficClass = -1, __VA_ARGS__};                         \
                                                                                                                       \
		return ((const type_ *)raw)->createContext(coll, &config, gin);                                        \
	}
CREATE(r14, ncclRma_v14_t, ncclRmaConfig_v14_t, .rankStride = 1)
CREATE(r15, ncclRma_v15_t, ncclRmaConfig_v15_t, .rankStride = 1)
CREATE(r16, ncclRma_v16_t, ncclRmaConfig_v16_t, .rankStride = 1)
CREATE(r17, ncclRma_v17_t, ncclRmaConfig_v17_t, .peerArray = NULL)

#define REG(v, type_)                                                                                                  \
	static ncclResult_t reg_##v(const void *raw, void *coll, void *data, size_t size, uint64_t flags, void **mh,   \
				    void **gh)                                                                         \
	{                                                                                                              \
		return ((const type_ *)raw)->regMrSym(coll, data, size, NCCL_PTR_HOST, flags, mh, gh);                 \
	}
REG(g11, ncclGin_v11_t)
REG(g12, ncclGin_v12_t)
REG(g13, ncclGin_v13_t)

#define REG_ONE(v, type_)                                                                                              \
	static ncclResult_t reg_##v(const void *raw, void *coll, void *data, size_t size, uint64_t flags, void **mh,   \
				    void **gh)                                                                         \
	{                                                                                                              \
		ncclResult_t r = ((const type_ *)raw)->regMrSym(coll, data, size, NCCL_PTR_HOST, flags, mh);           \
                                                                                                                       \
		*gh = *mh;                                                                                             \
		return r;                                                                                              \
	}
REG_ONE(r14, ncclRma_v14_t)
REG_ONE(r15, ncclRma_v15_t)
REG_ONE(r16, ncclRma_v16_t)
REG_ONE(r17, ncclRma_v17_t)

/* The arguments that differ: in front of all others, behind the rank, and behind the signal. */
#define PLACE q->from_at, q->from, q->size, q->to_at, q->to, q->rank
#define SIGNAL q->signal_at, q->signal, q->value, q->op
#define OF of,
#define OF_CONTEXT of, q->context,
#define NOTHING
#define CONNECTION q->context,
#define STRONG !q->weak,
#define MORE (q->more ? NCCL_RMA_OPT_MORE : 0),
#define PUT(v, type_, first, behind_rank, behind_signal)                                                               \
	static ncclResult_t put_##v(const void *raw, void *of, const struct gin_request *q, void **request)            \
	{                                                                                                              \
		const type_ *t = raw;                                                                                  \
                                                                                                                       \
		if (q->op == GIN_SIGNAL_NONE)                                                                          \
			return t->iput(first PLACE, behind_rank request);                                              \
		return t->iputSignal(first PLACE, SIGNAL, behind_signal request);                                      \
	}
PUT(g11, ncclGin_v11_t, OF, NOTHING, NOTHING)
PUT(g12, ncclGin_v12_t, OF, CONNECTION, CONNECTION)
PUT(g13, ncclGin_v13_t, OF_CONTEXT, NOTHING, NOTHING)
PUT(r14, ncclRma_v14_t, OF_CONTEXT, NOTHING, STRONG)
PUT(r15, ncclRma_v15_t, OF_CONTEXT, MORE, STRONG MORE)
PUT(r16, ncclRma_v16_t, OF_CONTEXT, MORE, STRONG MORE)
PUT(r17, ncclRma_v17_t, OF_CONTEXT, MORE, STRONG MORE)

#define GET(v, type_, behind_rank)                                                                                     \
	static ncclResult_t get_##v(const void *raw, void *of, const struct gin_request *q, void **request)            \
	{                                                                                                              \
		return ((const type_ *)raw)->iget(OF_CONTEXT PLACE, behind_rank request);                              \
	}
GET(g13, ncclGin_v13_t, NOTHING)
GET(r14, ncclRma_v14_t, NOTHING)
GET(r15, ncclRma_v15_t, MORE)
GET(r16, ncclRma_v16_t, MORE)
GET(r17, ncclRma_v17_t, MORE)

#define PROMISES(v, type_, props)                                                                                      \
	static ncclResult_t promises_##v(const void *raw, void *coll, bool *flushes_all)                               \
	{                                                                                                              \
		props p = {0};                                                                                         \
		ncclResult_t r = ((const type_ *)raw)->getRmaProperties(coll, &p);                                     \
                                                                                                                       \
		*flushes_all = p.flushesAllPutsOnAnySignal;                                                            \
		return r;                                                                                              \
	}
PROMISES(r16, ncclRma_v16_t, ncclRmaProperties_v16_t)
PROMISES(r17, ncclRma_v17_t, ncclRmaProperties_v17_t)

#define GIN_ENTRY ginProgress
#define RMA_ENTRY rmaProgress
#define READ(v, type_, progress_)                                                                                      \
	static void read_##v(struct gin_table *t)                                                                      \
	{                                                                                                              \
		const type_ *of = t->raw;                                                                              \
                                                                                                                       \
		t->name = of->name;                                                                                    \
		t->init = of->init;                                                                                    \
		t->devices = of->devices;                                                                              \
		t->listen = of->listen;                                                                                \
		t->dereg = of->deregMrSym;                                                                             \
		t->destroy = of->destroyContext;                                                                       \
		t->close_coll = of->closeColl;                                                                         \
		t->close_listen = of->closeListen;                                                                     \
		t->test = of->test;                                                                                    \
		t->progress = of->progress_;                                                                           \
		t->finalize = of->finalize;                                                                            \
		t->properties = properties_##v;                                                                        \
		t->connect = connect_##v;                                                                              \
		t->reg = reg_##v;                                                                                      \
		t->put = put_##v;                                                                                      \
		t->missing = (of->getProperties ? 0 : GIN_NO_PROPERTIES) | (of->connect ? 0 : GIN_NO_CONNECT) |        \
			     (of->regMrSym ? 0 : GIN_NO_REG) | (of->iput ? 0 : GIN_NO_PUT) |                           \
			     (of->iputSignal ? 0 : GIN_NO_PUT_SIGNAL) | (of->regMrSymDmaBuf ? 0 : GIN_NO_DMABUF);      \
	}
READ(g11, ncclGin_v11_t, GIN_ENTRY)
READ(g12, ncclGin_v12_t, GIN_ENTRY)
READ(g13, ncclGin_v13_t, GIN_ENTRY)
READ(r14, ncclRma_v14_t, RMA_ENTRY)
READ(r15, ncclRma_v15_t, RMA_ENTRY)
READ(r16, ncclRma_v16_t, RMA_ENTRY)
READ(r17, ncclRma_v17_t, RMA_ENTRY)

#define READ_CONTEXTS(v, type_)                                                                                        \
	static void contexts_##v(struct gin_table *t)                                                                  \
	{                                                                                                              \
		const type_ *of = t->raw;                                                                              \
                                                                                                                       \
		read_##v(t);                                                                                           \
		t->create = create_##v;                                                                                \
		t->missing |= of->createContext ? 0 : GIN_NO_CREATE;                                                   \
		t->get = of->iget ? get_##v : NULL;                                                                    \
		t->flush = of->iflush;                                                                                 \
	}
READ_CONTEXTS(g13, ncclGin_v13_t)
READ_CONTEXTS(r14, ncclRma_v14_t)
READ_CONTEXTS(r15, ncclRma_v15_t)
READ_CONTEXTS(r16, ncclRma_v16_t)
READ_CONTEXTS(r17, ncclRma_v17_t)

static void promising_r16(struct gin_table *t)
{
	contexts_r16(t);
	t->promises = promises_r16;
	t->missing |= ((const ncclRma_v16_t *)t->raw)->getRmaProperties ? 0 : GIN_NO_PROMISES;
}

static void promising_r17(struct gin_table *t)
{
	contexts_r17(t);
	t->promises = promises_r17;
	t->missing |= ((const ncclRma_v17_t *)t->raw)->getRmaProperties ? 0 : GIN_NO_PROMISES;
}

void gin_table_read(struct gin_table *t, const void *raw, int version)
{
	static void (*const of[])(struct gin_table *) = {
		[11] = read_g11,     [12] = read_g12,	   [13] = contexts_g13,	 [14] = contexts_r14,
		[15] = contexts_r15, [16] = promising_r16, [17] = promising_r17,
	};

	memset(t, 0, sizeof(*t));
	t->raw = raw;
	t->version = version;
	of[version](t);
}
