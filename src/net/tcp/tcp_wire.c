/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp/tcp_wire.h"

#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"

enum { FRAME_MAGIC = 0x5447 };
/* Where the fields of a frame's header stand. What they mean depends on the kind; FRAME_SUM is the header's own CRC. */
enum {
	FRAME_KIND = 0,
	FRAME_FLAGS = 1,
	FRAME_MARK = 2,
	FRAME_LENGTH = 4,
	FRAME_SEQ = 8,
	FRAME_OFFSET = 16,
	FRAME_TOTAL = 24,
	FRAME_TAG = 32,
	FRAME_INDEX = 36,
	FRAME_SUM = 40,
	FRAME_LAST = 44,
	/* EAGER */
	EAGER_TAG = 8,
	EAGER_INDEX = 12,
	EAGER_SUM = 16,
	EAGER_PAYLOAD_CRC = 20,
};

/* Of all bytes of a header but the four of the sum itself. */
static uint32_t header_sum(const uint8_t *header, size_t sum, size_t size)
{
	return gantry_crc32c(gantry_crc32c(0, header, sum), header + sum + 4, size - sum - 4);
}

static void put_piece(const struct wire_piece *p, bool data, uint8_t out[WIRE_FRAME_SIZE])
{
	out[FRAME_FLAGS] = (uint8_t)((p->ack ? WIRE_FLAG_ACK : 0) | (p->deep ? WIRE_FLAG_DEEP : 0));
	put32(out + FRAME_LENGTH, p->length);
	put64(out + FRAME_SEQ, p->seq);
	put64(out + FRAME_OFFSET, p->offset);
	put64(out + FRAME_TOTAL, p->total);
	put32(out + FRAME_TAG, p->tag);
	put32(out + FRAME_INDEX, p->index);
	put32(out + FRAME_SUM, 0);
	put32(out + FRAME_LAST, data ? p->payload_crc : p->lane);
}

static void put_state(const struct wire_state *s, uint8_t out[WIRE_FRAME_SIZE])
{
	put64(out + FRAME_SEQ, s->done);
	put64(out + FRAME_OFFSET, s->consumed);
	out[FRAME_FLAGS] = (uint8_t)((s->has_tag ? WIRE_FLAG_TAG : 0) | (s->sends ? WIRE_FLAG_SENDS : 0));
	put64(out + FRAME_TOTAL, s->received);
	put32(out + FRAME_TAG, s->tag);
	put32(out + FRAME_INDEX, s->posted);
	put32(out + FRAME_LAST, s->done_bits);
}

static void put_error(const struct wire_error *e, uint8_t out[WIRE_FRAME_SIZE])
{
	put32(out + FRAME_LENGTH, e->length);
	put64(out + FRAME_OFFSET, e->sent_bytes);
	put64(out + FRAME_TOTAL, e->recv_bytes);
	put32(out + FRAME_TAG, e->result);
	put32(out + FRAME_LAST, e->payload_crc);
}

/* All but pieces, which fill the whole header: the rest of it is zero. */
static void put_fields(const struct wire_frame *f, uint8_t out[WIRE_FRAME_SIZE])
{
	switch (f->kind) {
	case WIRE_STATE:
		put_state(&f->state, out);
		break;
	case WIRE_RTS:
		put64(out + FRAME_SEQ, f->rts.seq);
		put64(out + FRAME_TOTAL, f->rts.total);
		put32(out + FRAME_TAG, f->rts.tag);
		put32(out + FRAME_INDEX, f->rts.index);
		break;
	case WIRE_CLOSE:
		out[FRAME_FLAGS] = f->close.by_receiver ? WIRE_FLAG_RECEIVER : 0;
		put64(out + FRAME_SEQ, f->close.bulk_sent);
		break;
	case WIRE_ERROR:
		put_error(&f->error, out);
		break;
	case WIRE_ARRIVED:
		put64(out + FRAME_SEQ, f->arrived.bytes);
		put64(out + FRAME_OFFSET, f->arrived.unread);
		put64(out + FRAME_TOTAL, f->arrived.pieces);
		put32(out + FRAME_TAG, f->arrived.generation);
		put32(out + FRAME_INDEX, f->arrived.lane);
		break;
	case WIRE_STOPPED:
		put64(out + FRAME_TOTAL, f->stopped.pieces);
		put32(out + FRAME_TAG, f->stopped.generation);
		put32(out + FRAME_INDEX, f->stopped.lane);
		break;
	case WIRE_DATA:
	case WIRE_DESCRIPTOR:
	case WIRE_EAGER:
	case WIRE_KINDS:
		break;
	}
}

void wire_eager_encode(const struct wire_piece *p, bool crc, uint8_t out[WIRE_EAGER_SIZE])
{
	out[FRAME_KIND] = WIRE_EAGER;
	out[FRAME_FLAGS] = crc ? WIRE_FLAG_CRC : 0;
	put16(out + FRAME_MARK, FRAME_MAGIC);
	put32(out + FRAME_LENGTH, p->length);
	put32(out + EAGER_TAG, p->tag);
	put32(out + EAGER_INDEX, p->index);
	put32(out + EAGER_PAYLOAD_CRC, p->payload_crc);
	put32(out + EAGER_SUM, crc ? header_sum(out, EAGER_SUM, WIRE_EAGER_SIZE) : 0);
}

void wire_frame_encode(const struct wire_frame *f, bool crc, uint8_t out[WIRE_FRAME_SIZE])
{
	bool piece = f->kind == WIRE_DATA || f->kind == WIRE_DESCRIPTOR;

	if (f->kind == WIRE_EAGER) {
		wire_eager_encode(&f->piece, crc, out);
		return;
	}
	if (!piece)
		memset(out, 0, WIRE_FRAME_SIZE);
	out[FRAME_KIND] = (uint8_t)f->kind;
	put16(out + FRAME_MARK, FRAME_MAGIC);
	if (piece)
		put_piece(&f->piece, f->kind == WIRE_DATA, out);
	else
		put_fields(f, out);
	if (crc) {
		out[FRAME_FLAGS] |= WIRE_FLAG_CRC;
		put32(out + FRAME_SUM, header_sum(out, FRAME_SUM, WIRE_FRAME_SIZE));
	}
}

/* A piece lies within its message, written so that no sum can wrap, and is not empty. */
static bool get_piece(const uint8_t in[WIRE_FRAME_SIZE], struct wire_piece *p)
{
	uint8_t flags = in[FRAME_FLAGS];
	bool data = in[FRAME_KIND] == WIRE_DATA;
	uint32_t last = get32(in + FRAME_LAST);

	p->eager = false;
	p->ack = flags & WIRE_FLAG_ACK;
	p->deep = flags & WIRE_FLAG_DEEP;
	p->length = get32(in + FRAME_LENGTH);
	p->seq = get64(in + FRAME_SEQ);
	p->offset = get64(in + FRAME_OFFSET);
	p->total = get64(in + FRAME_TOTAL);
	p->tag = get32(in + FRAME_TAG);
	p->index = get32(in + FRAME_INDEX);
	p->payload_crc = data ? last : 0;
	p->lane = data ? 0 : last;
	if (p->offset > p->total || p->length > p->total - p->offset || !p->length)
		return false;
	return data || (p->lane > 0 && p->lane < WIRE_MAX_LANES);
}

static void get_eager(const uint8_t *in, struct wire_piece *p)
{
	uint32_t length = get32(in + FRAME_LENGTH);

	*p = (struct wire_piece){.eager = true,
				 .length = length,
				 .total = length,
				 .tag = get32(in + EAGER_TAG),
				 .index = get32(in + EAGER_INDEX),
				 .payload_crc = get32(in + EAGER_PAYLOAD_CRC)};
}

static bool is_bulk_lane(uint32_t index)
{
	return index > 0 && index < WIRE_MAX_LANES;
}

/* The fields of the other kinds. False: this version does not send that. */
static bool get_fields(const uint8_t in[WIRE_FRAME_SIZE], struct wire_frame *f)
{
	uint32_t length = get32(in + FRAME_LENGTH), tag = get32(in + FRAME_TAG), index = get32(in + FRAME_INDEX);
	uint64_t seq = get64(in + FRAME_SEQ), offset = get64(in + FRAME_OFFSET), total = get64(in + FRAME_TOTAL);
	uint32_t last = get32(in + FRAME_LAST);

	switch (f->kind) {
	case WIRE_DATA: /* not here: get_piece, get_eager */
	case WIRE_DESCRIPTOR:
	case WIRE_EAGER:
		break;
	case WIRE_STATE:
		f->state = (struct wire_state){.done = seq,
					       .done_bits = last,
					       .consumed = offset,
					       .received = total,
					       .sends = in[FRAME_FLAGS] & WIRE_FLAG_SENDS,
					       .has_tag = in[FRAME_FLAGS] & WIRE_FLAG_TAG,
					       .tag = tag,
					       .posted = index};
		return length == 0;
	case WIRE_RTS:
		f->rts = (struct wire_rts){.seq = seq, .total = total, .tag = tag, .index = index};
		return length == 0;
	case WIRE_CLOSE:
		f->close = (struct wire_close){.by_receiver = in[FRAME_FLAGS] & WIRE_FLAG_RECEIVER, .bulk_sent = seq};
		return length == 0;
	case WIRE_ERROR:
		f->error = (struct wire_error){.result = tag,
					       .length = length,
					       .payload_crc = last,
					       .sent_bytes = offset,
					       .recv_bytes = total};
		return length <= WIRE_ERROR_TEXT_MAX;
	case WIRE_ARRIVED:
		f->arrived = (struct wire_arrived){
			.lane = index, .generation = tag, .bytes = seq, .unread = offset, .pieces = total};
		return length == 0 && is_bulk_lane(index) && offset <= seq;
	case WIRE_STOPPED:
		f->stopped = (struct wire_stopped){.lane = index, .generation = tag, .pieces = total};
		return length == 0 && is_bulk_lane(index);
	case WIRE_KINDS:
		break;
	}
	return false;
}

gantry_result wire_frame_decode(const uint8_t *in, bool crc, struct wire_frame *ret)
{
	size_t size = wire_header_size(in[FRAME_KIND]), sum = size == WIRE_EAGER_SIZE ? EAGER_SUM : FRAME_SUM;

	if (crc && get32(in + sum) != header_sum(in, sum, size))
		return GANTRY_ERR_CORRUPT;
	if (get16(in + FRAME_MARK) != FRAME_MAGIC || (in[FRAME_FLAGS] & ~WIRE_FLAGS) ||
	    !(in[FRAME_FLAGS] & WIRE_FLAG_CRC) != !crc)
		return GANTRY_ERR_PROTOCOL;
	ret->kind = (enum wire_kind)in[FRAME_KIND];
	switch (ret->kind) {
	case WIRE_EAGER:
		get_eager(in, &ret->piece);
		return GANTRY_OK;
	case WIRE_DATA:
	case WIRE_DESCRIPTOR:
		return get_piece(in, &ret->piece) ? GANTRY_OK : GANTRY_ERR_PROTOCOL;
	default:
		return size == WIRE_FRAME_SIZE && get_fields(in, ret) ? GANTRY_OK : GANTRY_ERR_PROTOCOL;
	}
}
