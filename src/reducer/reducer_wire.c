/* SPDX-License-Identifier: Apache-2.0 */
#include "reducer/reducer_wire.h"

#include <string.h>

#include "base/bytes.h"
#include "inet/handshake.h"
#include "reducer/sum.h"

enum { MAGIC = 0x52645247 /* "GRdR" */ };

const struct inet_protocol reducer_protocol = {"reducer", REDUCER_VERSION, "reducer", "rank", NULL};

uint32_t reducer_piece_max(uint32_t ranks)
{
	uint32_t fair = (uint32_t)REDUCER_BUFFERS / REDUCER_WINDOW / (ranks ? ranks : 1) & ~63u;

	if (fair > REDUCER_PIECE_MAX)
		return REDUCER_PIECE_MAX;
	return fair < REDUCER_PIECE_MIN ? (uint32_t)REDUCER_PIECE_MIN : fair;
}

void reducer_encode(const struct reducer_message *m, uint8_t out[REDUCER_HEADER])
{
	memset(out, 0, REDUCER_HEADER);
	put32(out, MAGIC);
	out[4] = (uint8_t)m->kind;
	switch (m->kind) {
	case REDUCER_HELLO:
		out[5] = REDUCER_VERSION;
		put32(out + 8, m->hello.index);
		put32(out + 12, m->hello.count);
		put64(out + 16, m->hello.job);
		break;
	case REDUCER_PIECE:
	case REDUCER_RESULT:
		out[5] = m->piece.coll;
		out[6] = m->piece.type;
		out[7] = m->piece.op;
		put32(out + 8, m->piece.owner);
		put64(out + 16, m->piece.seq);
		put64(out + 24, m->piece.offset);
		put64(out + 32, m->piece.bytes);
		put64(out + 40, m->piece.total);
		break;
	case REDUCER_FAILED:
		out[5] = m->failed.why;
		put16(out + 6, (uint16_t)m->failed.result);
		put32(out + 8, m->failed.rank);
		put32(out + 12, m->failed.other);
		put64(out + 16, m->failed.seq);
		put64(out + 24, m->failed.value);
		put64(out + 32, m->failed.other_value);
		break;
	case REDUCER_REACHED:
		put32(out + 8, m->reached.lost);
		put32(out + 12, m->reached.by);
		memcpy(out + 16, m->reached.reached, sizeof(m->reached.reached));
		break;
	case REDUCER_KINDS:
		break;
	}
}

static int piece_possible(const struct reducer_piece *p)
{
	size_t unit = reducer_type_bytes(p->type);

	return p->coll < REDUCER_COLLS && unit && reducer_op_known(p->op) && p->owner < REDUCER_RANKS_MAX && p->bytes &&
	       p->bytes <= REDUCER_PIECE_MAX && p->bytes % unit == 0 && p->bytes <= p->total &&
	       p->offset <= p->total - p->bytes;
}

static int failure_possible(const struct reducer_failed *f)
{
	return f->why < REDUCER_WHYS && f->result > GANTRY_AGAIN && f->result < GANTRY_RESULT_COUNT;
}

gantry_result reducer_decode(const uint8_t *in, size_t size, struct reducer_message *ret)
{
	struct reducer_message m = {0};

	if (size < REDUCER_HEADER || get32(in) != MAGIC)
		return GANTRY_ERR_PROTOCOL;
	m.kind = in[4];
	switch (m.kind) {
	case REDUCER_HELLO:
		m.hello = (struct reducer_hello){get32(in + 8), get32(in + 12), get64(in + 16)};
		if (in[5] != REDUCER_VERSION || m.hello.index >= m.hello.count ||
		    m.hello.count > REDUCER_RANKS_MAX + REDUCER_COUNT_MAX)
			return GANTRY_ERR_PROTOCOL;
		break;
	case REDUCER_PIECE:
	case REDUCER_RESULT:
		m.piece = (struct reducer_piece){.coll = in[5],
						 .type = in[6],
						 .op = in[7],
						 .owner = get32(in + 8),
						 .seq = get64(in + 16),
						 .offset = get64(in + 24),
						 .bytes = get64(in + 32),
						 .total = get64(in + 40)};
		if (!piece_possible(&m.piece) || (size != REDUCER_HEADER && size != REDUCER_HEADER + m.piece.bytes))
			return GANTRY_ERR_PROTOCOL;
		break;
	case REDUCER_FAILED:
		m.failed = (struct reducer_failed){in[5],	   (gantry_result)get16(in + 6),
						   get32(in + 8),  get32(in + 12),
						   get64(in + 16), get64(in + 24),
						   get64(in + 32)};
		if (!failure_possible(&m.failed))
			return GANTRY_ERR_PROTOCOL;
		break;
	case REDUCER_REACHED:
		m.reached = (struct reducer_reached){.lost = get32(in + 8), .by = get32(in + 12)};
		memcpy(m.reached.reached, in + 16, sizeof(m.reached.reached));
		break;
	default:
		return GANTRY_ERR_PROTOCOL;
	}
	*ret = m;
	return GANTRY_OK;
}

void reducer_ask_encode(const struct reducer_ask *a, uint8_t out[REDUCER_ASK_SIZE])
{
	put64(out, a->job);
	put64(out + 8, a->comm_id);
	put32(out + 16, a->rank);
	put32(out + 20, a->ranks);
	put32(out + 24, a->reducer);
	put32(out + 28, a->reducers);
	memcpy(out + 32, a->handle, sizeof(a->handle));
	inet_target_encode(&a->to, out + 32 + sizeof(a->handle));
}

gantry_result reducer_ask_decode(const uint8_t *in, size_t size, struct reducer_ask *ret)
{
	struct reducer_ask a;

	if (size != REDUCER_ASK_SIZE)
		return GANTRY_ERR_PROTOCOL;
	a = (struct reducer_ask){.job = get64(in),
				 .comm_id = get64(in + 8),
				 .rank = get32(in + 16),
				 .ranks = get32(in + 20),
				 .reducer = get32(in + 24),
				 .reducers = get32(in + 28)};
	if (a.rank >= a.ranks || a.ranks > REDUCER_RANKS_MAX || a.reducer >= a.reducers ||
	    a.reducers > REDUCER_COUNT_MAX)
		return GANTRY_ERR_PROTOCOL;
	memcpy(a.handle, in + 32, sizeof(a.handle));
	inet_target_decode(in + 32 + sizeof(a.handle), &a.to);
	*ret = a;
	return GANTRY_OK;
}
