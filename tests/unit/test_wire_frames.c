/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes on the wire, as in test_wire.c: frames. */
#include "link_pair.h"
#include "wire_util.h"

TEST(check_frame_layout)
{
	struct wire_frame f, back;
	uint8_t b[WIRE_FRAME_SIZE];

	memset(&f, 0, sizeof(f));
	f.kind = WIRE_DATA;
	f.piece.ack = true;
	f.piece.length = 0x01020304;
	f.piece.seq = 0x1112131415161718;
	f.piece.offset = 0x2122232425262728;
	f.piece.total = 0x3132333435363738;
	f.piece.tag = 0x41424344;
	f.piece.index = 0x51525354;
	f.piece.payload_crc = 0x71727374;
	CHECK_EQ(WIRE_FRAME_SIZE, 48);
	memset(b, 0xee, sizeof(b));
	wire_frame_encode(&f, 0, b);
	CHECK_BYTES(b, "\x01\x08GT\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x28\x27\x26\x25\x24\x23\x22\x21"
		       "\x38\x37\x36\x35\x34\x33\x32\x31\x44\x43\x42\x41\x54\x53\x52\x51\0\0\0\0\x74\x73\x72\x71");
	memset(&back, 0, sizeof(back));
	CHECK_OK(wire_frame_decode(b, 0, &back));
	CHECK_EQ(back.kind, 1);
	CHECK(back.piece.ack && !back.piece.eager && !back.piece.deep);
	CHECK_EQ(back.piece.length, 0x01020304);
	CHECK_EQ(back.piece.seq, 0x1112131415161718);
	CHECK_EQ(back.piece.offset, 0x2122232425262728);
	CHECK_EQ(back.piece.total, 0x3132333435363738);
	CHECK_EQ(back.piece.tag, 0x41424344);
	CHECK_EQ(back.piece.index, 0x51525354);
	CHECK_EQ(back.piece.payload_crc, 0x71727374);
	CHECK_EQ(back.piece.lane, 0);
	/* The numbers of kinds and flags are part of the format. */
	CHECK_EQ(WIRE_DATA, 1);
	CHECK_EQ(WIRE_STATE, 2);
	CHECK_EQ(WIRE_RTS, 3);
	CHECK_EQ(WIRE_CLOSE, 4);
	CHECK_EQ(WIRE_ERROR, 5);
	CHECK_EQ(WIRE_DESCRIPTOR, 6);
	CHECK_EQ(WIRE_ARRIVED, 7);
	CHECK_EQ(WIRE_EAGER, 8);
	CHECK_EQ(WIRE_FLAG_CRC, 1);
	CHECK_EQ(WIRE_FLAG_RECEIVER, 4);
	CHECK_EQ(WIRE_FLAG_ACK, 8);
	CHECK_EQ(WIRE_FLAG_DEEP, 16);
}

/* The short header. */
TEST(check_eager_layout)
{
	struct wire_frame f = {.kind = WIRE_EAGER,
			       .piece = {.length = 0x01020304,
					 .tag = 0x41424344,
					 .index = 0x51525354,
					 .payload_crc = 0x71727374}},
			  back;
	uint8_t b[WIRE_FRAME_SIZE];

	CHECK_EQ(WIRE_EAGER_SIZE, 24);
	for (int kind = 0; kind < 256; kind++)
		CHECK_EQ(wire_header_size((uint8_t)kind), kind >= 1 && kind <= 7 ? 48 : 24);
	memset(b, 0xee, sizeof(b));
	wire_frame_encode(&f, 0, b);
	CHECK_BYTES(b, "\x08\0GT\x04\x03\x02\x01\x44\x43\x42\x41\x54\x53\x52\x51\0\0\0\0\x74\x73\x72\x71");
	for (size_t i = WIRE_EAGER_SIZE; i < sizeof(b); i++)
		CHECK_EQ(b[i], 0xee);
	CHECK_OK(wire_frame_decode(b, 0, &back));
	CHECK_EQ(back.kind, WIRE_EAGER);
	CHECK(back.piece.eager && !back.piece.ack && !back.piece.deep);
	CHECK_EQ(back.piece.length, 0x01020304);
	CHECK_EQ(back.piece.total, 0x01020304);
	CHECK_EQ(back.piece.offset, 0);
	CHECK_EQ(back.piece.seq, 0);
	CHECK_EQ(back.piece.tag, 0x41424344);
	CHECK_EQ(back.piece.index, 0x51525354);
	CHECK_EQ(back.piece.payload_crc, 0x71727374);
}

/* Each field of the other kinds at its place, after docs/wire.md. */
TEST(check_kind_layouts)
{
	const struct {
		struct wire_frame f;
		struct pair_frame bytes;
	} kinds[] = {
		{{.kind = WIRE_DESCRIPTOR,
		  .piece = {.deep = true,
			    .length = 2,
			    .seq = 3,
			    .offset = 4,
			    .total = 6,
			    .tag = 7,
			    .index = 8,
			    .lane = 9}},
		 {.kind = 6,
		  .flags = 16,
		  .length = 2,
		  .seq = 3,
		  .offset = 4,
		  .total = 6,
		  .tag = 7,
		  .index = 8,
		  .lane = 9}},
		{{.kind = WIRE_STATE,
		  .state = {.done = 3, .done_bits = 9, .consumed = 4, .has_tag = true, .tag = 7, .posted = 8}},
		 {.kind = 2, .seq = 3, .offset = 4, .total = 1, .tag = 7, .index = 8, .done_bits = 9}},
		{{.kind = WIRE_RTS, .rts = {.seq = 3, .total = 6, .tag = 7, .index = 8}},
		 {.kind = 3, .seq = 3, .total = 6, .tag = 7, .index = 8}},
		{{.kind = WIRE_CLOSE, .close = {.bulk_sent = 3}}, {.kind = 4, .seq = 3}},
		{{.kind = WIRE_CLOSE, .close = {.by_receiver = true}}, {.kind = 4, .flags = 4}},
		{{.kind = WIRE_ERROR,
		  .error = {.result = 7, .length = 2, .payload_crc = 9, .sent_bytes = 4, .recv_bytes = 6}},
		 {.kind = 5, .length = 2, .offset = 4, .total = 6, .tag = 7, .payload_crc = 9}},
		{{.kind = WIRE_ARRIVED, .arrived = {.lane = 8, .bytes = 30, .unread = 4}},
		 {.kind = 7, .seq = 30, .offset = 4, .index = 8}},
	};

	EACH_ROW (i, kinds) {
		uint8_t b[WIRE_FRAME_SIZE], expected[WIRE_FRAME_SIZE], again[WIRE_FRAME_SIZE];
		struct wire_frame back;

		memset(b, 0xee, sizeof(b));
		wire_frame_encode(&kinds[i].f, 0, b);
		pair_frame_put(expected, &kinds[i].bytes);
		CHECK(memcmp(b, expected, sizeof(b)) == 0);
		CHECK_OK(wire_frame_decode(expected, 0, &back));
		wire_frame_encode(&back, 0, again);
		CHECK(memcmp(again, expected, sizeof(b)) == 0);
	}
}

/* With checksums: the flag, and the sum of the other bytes; every bit of the header is covered. */
TEST(check_sums)
{
	uint8_t plain[WIRE_FRAME_SIZE], b[WIRE_FRAME_SIZE];

	for (uint8_t kind = WIRE_DATA; kind < WIRE_KINDS; kind++) {
		struct wire_frame f = {.kind = kind}, back;
		size_t size = wire_header_size(kind), sum = size - 8;

		if (kind == WIRE_DATA || kind == WIRE_DESCRIPTOR || kind == WIRE_EAGER)
			f.piece = (struct wire_piece){.length = 100,
						      .seq = 0x0102030405060708,
						      .total = 100,
						      .tag = 0xfffffffe,
						      .payload_crc = 3,
						      .lane = 3};
		if (kind == WIRE_STATE)
			f.state = (struct wire_state){.done = 0x0102030405060708, .done_bits = 3};
		if (kind == WIRE_ARRIVED)
			f.arrived = (struct wire_arrived){.lane = 7, .bytes = 0x0102030405060708};
		wire_frame_encode(&f, 0, plain);
		wire_frame_encode(&f, 1, b);
		CHECK_EQ(plain[1], 0);
		CHECK_EQ(b[1], 1);
		plain[1] = 1;
		CHECK_EQ(le_get(plain + sum, 4), 0);
		CHECK_EQ(le_get(b + sum, 4), pair_header_crc(b));
		memcpy(plain + sum, b + sum, 4);
		CHECK(memcmp(plain, b, size) == 0); /* nothing else differs */
		memset(&back, 0, sizeof(back));
		CHECK_OK(wire_frame_decode(b, 1, &back));
		CHECK_EQ(back.kind, kind);
		/* With a sum where none was agreed on; without one where it was; a right sum, but no flag. */
		CHECK_EQ(wire_frame_decode(b, 0, &back), GANTRY_ERR_PROTOCOL);
		wire_frame_encode(&f, 0, plain);
		CHECK_EQ(wire_frame_decode(plain, 1, &back), GANTRY_ERR_CORRUPT);
		le_put(plain + sum, pair_header_crc(plain), 4);
		CHECK_EQ(wire_frame_decode(plain, 1, &back), GANTRY_ERR_PROTOCOL);
		for (size_t bit = 0; bit < 8 * size; bit++) {
			b[bit / 8] ^= (uint8_t)(1 << bit % 8);
			CHECK_EQ(wire_frame_decode(b, 1, &back), GANTRY_ERR_CORRUPT);
			b[bit / 8] ^= (uint8_t)(1 << bit % 8);
		}
	}
}

/* Frames that no encoder makes are put together by hand. */
static gantry_result decoded_bytes(const struct pair_frame *f)
{
	struct wire_frame back;
	uint8_t b[WIRE_FRAME_SIZE];

	pair_frame_put(b, f);
	return wire_frame_decode(b, 0, &back);
}

static gantry_result decoded(uint8_t kind, uint32_t length, uint64_t offset, uint64_t total)
{
	return decoded_bytes(&(struct pair_frame){.kind = kind, .length = length, .offset = offset, .total = total});
}

/* The header of a piece that travels alone: never empty, always of a bulk lane. */
static gantry_result decoded_descriptor(uint8_t flags, uint32_t lane, uint32_t length, uint64_t offset, uint64_t total)
{
	return decoded_bytes(&(struct pair_frame){.kind = WIRE_DESCRIPTOR,
						  .flags = flags,
						  .lane = lane,
						  .length = length,
						  .offset = offset,
						  .total = total});
}

TEST(check_descriptor)
{
	for (uint32_t lane = 0; lane < 20; lane++)
		CHECK_EQ(decoded_descriptor(0, lane, 1, 0, 1),
			 lane >= 1 && lane <= 16 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, UINT32_MAX, 1, 0, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, 256, 1, 0, 1), GANTRY_ERR_PROTOCOL);
	CHECK_OK(decoded_descriptor(WIRE_FLAG_ACK | WIRE_FLAG_DEEP, 1, 5, 5, 10));
	CHECK_OK(decoded_descriptor(0, 1, 1, UINT64_MAX - 1, UINT64_MAX));
	CHECK_EQ(decoded_descriptor(2, 1, 5, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, 1, 0, 0, 0), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, 1, 0, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, 1, 6, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, 1, 1, 11, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_descriptor(0, 1, 2, UINT64_MAX, UINT64_MAX), GANTRY_ERR_PROTOCOL);
}

static gantry_result decoded_arrived(uint32_t lane, uint32_t length, uint64_t bytes, uint64_t unread)
{
	return decoded_bytes(&(struct pair_frame){
		.kind = WIRE_ARRIVED, .index = lane, .length = length, .seq = bytes, .offset = unread});
}

TEST(check_arrived)
{
	for (uint32_t lane = 0; lane < 20; lane++)
		CHECK_EQ(decoded_arrived(lane, 0, 5, 5), lane >= 1 && lane <= 16 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_arrived(257, 0, 5, 5), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_arrived(1, 1, 5, 5), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_arrived(1, 0, 5, 6), GANTRY_ERR_PROTOCOL);
	CHECK_OK(decoded_arrived(1, 0, UINT64_MAX, UINT64_MAX));
	CHECK_OK(decoded_arrived(1, 0, 0, 0));
}

TEST(check_frame_refusals)
{
	struct wire_frame f = {.kind = WIRE_STATE}, back;
	uint8_t b[WIRE_FRAME_SIZE];

	wire_frame_encode(&f, 0, b);
	CHECK_OK(wire_frame_decode(b, 0, &back));
	for (int kind = 0; kind < 256; kind++) {
		b[0] = (uint8_t)kind;
		CHECK_EQ(wire_frame_decode(b, 0, &back) == GANTRY_OK,
			 (kind >= 2 && kind <= 5) || kind == 8); /* DATA, DESCRIPTOR and ARRIVED need more */
	}
	b[0] = WIRE_STATE;
	for (int bit = 1; bit < 8; bit += bit == 1 ? 4 : 1) { /* 2 to 4 are flags */
		b[1] = (uint8_t)(1 << bit);
		CHECK_EQ(wire_frame_decode(b, 0, &back), GANTRY_ERR_PROTOCOL);
	}
	b[1] = 0;
	for (int bit = 0; bit < 16; bit++) {
		b[2 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		CHECK_EQ(wire_frame_decode(b, 0, &back), GANTRY_ERR_PROTOCOL);
		b[2 + bit / 8] ^= (uint8_t)(1 << bit % 8);
	}

	/* A piece lies within its message; sums must not wrap. */
	CHECK_EQ(decoded(WIRE_DATA, 0, 0, 0), GANTRY_ERR_PROTOCOL);
	CHECK_OK(decoded(WIRE_DATA, 1, 0, 1));
	CHECK_OK(decoded(WIRE_DATA, 5, 5, 10));
	CHECK_OK(decoded(WIRE_DATA, 0xffffffff, 0x100000000, 0x1ffffffff));
	CHECK_OK(decoded(WIRE_DATA, 1, UINT64_MAX - 1, UINT64_MAX));
	CHECK_EQ(decoded(WIRE_DATA, 6, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 1, 10, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 1, 11, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 1, 0, 0), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 1, UINT64_MAX, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 2, UINT64_MAX, UINT64_MAX), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 0xffffffff, UINT64_MAX - 5, UINT64_MAX), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 0, 0, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_DATA, 0, 1, 0), GANTRY_ERR_PROTOCOL);

	CHECK_OK(decoded(WIRE_ERROR, 0, 0, 0));
	CHECK_OK(decoded(WIRE_ERROR, 512, 7, 3));
	CHECK_EQ(decoded(WIRE_ERROR, 513, 0, 0), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded(WIRE_ERROR, UINT32_MAX, 0, 0), GANTRY_ERR_PROTOCOL);
	for (uint8_t kind = WIRE_STATE; kind <= WIRE_CLOSE; kind++) {
		CHECK_OK(decoded(kind, 0, 5, 3));
		CHECK_EQ(decoded(kind, 1, 0, 9), GANTRY_ERR_PROTOCOL);
		CHECK_EQ(decoded(kind, UINT32_MAX, 0, UINT64_MAX), GANTRY_ERR_PROTOCOL);
	}
}
