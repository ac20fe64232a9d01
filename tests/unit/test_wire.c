/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes on the wire: handle, hello, its answer, frames. The format is frozen: layouts are written here as literal
 * bytes at literal places, not taken from the encoder, and everything that a decoder must turn down is handed to it.
 */
#include "inet/settings.h"
#include "link_pair.h"
#include "net/tcp/hello.h"

static struct gantry_addr addr(const char *text, uint16_t port)
{
	int family = strchr(text, ':') ? AF_INET6 : AF_INET;
	struct gantry_addr a;

	memset(&a, 0, sizeof(a)); /* addresses are compared as bytes */
	a.sa.sa_family = (sa_family_t)family;
	CHECK_EQ(inet_pton(family, text, family == AF_INET ? (void *)&a.in.sin_addr : &a.in6.sin6_addr), 1);
	gantry_addr_set_port(&a, port);
	return a;
}

static void check_bytes(const uint8_t *at, size_t n, const char *expected, const char *file, int line)
{
	if (memcmp(at, expected, n) == 0)
		return;
	fprintf(stderr, "%s:%d: bytes differ:", file, line);
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " %02x/%02x", at[i], (uint8_t)expected[i]);
	TEST_FAIL(" (is/expected)");
}
/* The literal's terminating zero does not count. */
#define CHECK_BYTES(at, literal) check_bytes((at), sizeof(literal) - 1, literal, __FILE__, __LINE__)

static void check_zero(const uint8_t *from, const uint8_t *end)
{
	for (; from < end; from++)
		CHECK_EQ(*from, 0);
}

/* ---- handle ---- */

static struct wire_handle a_handle(void)
{
	struct wire_handle h;

	memset(&h, 0, sizeof(h));
	h.version = 0x0102;
	h.process = 0x1112131415161718;
	h.listener = 0x2122232425262728;
	for (int i = 0; i < 16; i++)
		h.cookie[i] = (uint8_t)(0xa0 + i);
	h.comm_id = 0x3132333435363738;
	h.dev = 0x0405;
	h.naddrs = 2;
	h.addrs[0] = addr("10.1.2.3", 0x4142);
	h.addrs[1] = addr("fe80::1234", 0x5152);
	return h;
}

TEST(check_handle_layout)
{
	struct wire_handle h = a_handle(), back;
	uint8_t b[GANTRY_NET_HANDLE_SIZE];

	CHECK_EQ(GANTRY_NET_HANDLE_SIZE, 128);
	memset(b, 0xee, sizeof(b));
	wire_handle_encode(&h, b);
	CHECK_BYTES(b, "GTRY\x02\x01\x05\x04\x18\x17\x16\x15\x14\x13\x12\x11\x28\x27\x26\x25\x24\x23\x22\x21");
	CHECK_BYTES(b + 24, "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf");
	CHECK_BYTES(b + 40, "\x38\x37\x36\x35\x34\x33\x32\x31\x02\0\0\0\0\0\0\0");
	CHECK_BYTES(b + 56, "\x04\0\x42\x41\x0a\x01\x02\x03"
			    "\x06\0\x52\x51\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\x12\x34");
	check_zero(b + 84, b + 128);

	CHECK_EQ(wire_handle_local(b), 0);
	wire_handle_set_local(b, 0x6162636465666768);
	CHECK_BYTES(b + 112, "\0\0\0\0\0\0\0\0\x68\x67\x66\x65\x64\x63\x62\x61");
	CHECK_EQ(wire_handle_local(b), 0x6162636465666768);

	/* What the connecting side keeps in it does not change what it says. */
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_handle_decode(b, &back));
	CHECK(memcmp(&back, &h, sizeof(h)) == 0);
}

TEST(check_handle_addresses)
{
	struct wire_handle h = a_handle(), back;
	uint8_t b[GANTRY_NET_HANDLE_SIZE];

	/* 60 bytes: seven IPv4 addresses of 8, or three IPv6 of 20. What does not fit is left out, in order. */
	h.naddrs = 8;
	for (int i = 0; i < 8; i++)
		h.addrs[i] = addr("10.0.0.9", (uint16_t)(100 + i));
	wire_handle_encode(&h, b);
	CHECK_EQ(b[48], 7);
	check_zero(b + 112, b + 128);
	CHECK_OK(wire_handle_decode(b, &back));
	CHECK_EQ(back.naddrs, 7);
	CHECK_EQ(ntohs(back.addrs[6].in.sin_port), 106);

	h.naddrs = 4;
	for (int i = 0; i < 4; i++)
		h.addrs[i] = addr("2001:db8::7", (uint16_t)(200 + i));
	wire_handle_encode(&h, b);
	CHECK_EQ(b[48], 3);
	check_zero(b + 116, b + 128);
	CHECK_OK(wire_handle_decode(b, &back));
	CHECK_EQ(ntohs(back.addrs[2].in6.sin6_port), 202);

	/* Scope ids are local to a host and do not travel. */
	h.naddrs = 1;
	h.addrs[0] = addr("fe80::1", 1);
	h.addrs[0].in6.sin6_scope_id = 7;
	wire_handle_encode(&h, b);
	CHECK_OK(wire_handle_decode(b, &back));
	CHECK_EQ(back.addrs[0].in6.sin6_scope_id, 0);
}

static void refused_handle(const uint8_t *good, size_t at, uint8_t value)
{
	struct wire_handle back, untouched;
	uint8_t b[GANTRY_NET_HANDLE_SIZE];

	memcpy(b, good, sizeof(b));
	b[at] = value;
	memset(&back, 0x5a, sizeof(back));
	memset(&untouched, 0x5a, sizeof(untouched));
	CHECK_EQ(wire_handle_decode(b, &back), GANTRY_ERR_PROTOCOL);
	CHECK(memcmp(&back, &untouched, sizeof(back)) == 0);
}

TEST(check_handle_refusals)
{
	struct wire_handle h = a_handle();
	uint8_t b[GANTRY_NET_HANDLE_SIZE];

	wire_handle_encode(&h, b);
	for (size_t i = 0; i < 4; i++)
		refused_handle(b, i, b[i] ^ 0x20);
	refused_handle(b, 48, 0);
	refused_handle(b, 48, 9);
	refused_handle(b, 48, 255);
	refused_handle(b, 56, 0);
	refused_handle(b, 56, 5);
	refused_handle(b, 64, 2);
	/* A third address where there is none: family 0. */
	refused_handle(b, 48, 3);
	/* A fourth IPv6 address would end behind the room for addresses, and so would an eighth IPv4 one. */
	h.naddrs = 3;
	for (int i = 0; i < 3; i++)
		h.addrs[i] = addr("::1", 1);
	wire_handle_encode(&h, b);
	refused_handle(b, 48, 4);
	h.naddrs = 7;
	for (int i = 0; i < 7; i++)
		h.addrs[i] = addr("1.2.3.4", 1);
	wire_handle_encode(&h, b);
	b[112] = 4;
	refused_handle(b, 48, 8);
	/* Six IPv4 addresses take 48 bytes: an IPv6 one behind them is cut off. */
	refused_handle(b, 56 + 6 * 8, 6);
}

/* ---- the payload of hello ---- */

static struct wire_hello a_hello(void)
{
	struct wire_hello h;

	memset(&h, 0, sizeof(h));
	h.listener = 0x1112131415161718;
	memset(h.cookie, 0xc0, sizeof(h.cookie));
	memset(h.session, 0x5e, sizeof(h.session));
	h.process = 0x2122232425262728;
	h.comm_id = 0x3132333435363738;
	h.host = 0x4142434445464748;
	h.window = 0x00100000;
	h.eager_max = 0x00010000;
	h.lane = 3;
	h.lanes = 4;
	h.unpack = WIRE_UNPACK_BETWEEN_HOSTS;
	h.resume = INET_RESUME_YES;
	h.dev = 0x0607;
	h.generation = 0x51525354;
	h.received = 0x6162636465666768;
	return h;
}

TEST(check_hello_layout)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE];

	CHECK_EQ(WIRE_HELLO_SIZE, 96);
	CHECK_EQ(WIRE_VERSION, 7);
	memset(b, 0xee, sizeof(b));
	wire_hello_encode(&h, b);
	CHECK_BYTES(b, "\x18\x17\x16\x15\x14\x13\x12\x11");
	for (int i = 0; i < 16; i++) {
		CHECK_EQ(b[8 + i], 0xc0);
		CHECK_EQ(b[24 + i], 0x5e);
	}
	CHECK_BYTES(b + 40, "\x28\x27\x26\x25\x24\x23\x22\x21\x38\x37\x36\x35\x34\x33\x32\x31"
			    "\x48\x47\x46\x45\x44\x43\x42\x41\0\0\x10\0\0\0\x01\0\x03\x04\x02\x01\x07\x06\0\0"
			    "\x54\x53\x52\x51\0\0\0\0\x68\x67\x66\x65\x64\x63\x62\x61");
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_hello_decode(b, sizeof(b), WIRE_VERSION, &back));
	CHECK(memcmp(&back, &h, sizeof(h)) == 0);
}

TEST(check_hello_refusals)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE + 1] = {0};

	wire_hello_encode(&h, b);
	for (size_t n = 0; n <= sizeof(b); n++)
		CHECK_EQ(wire_hello_decode(b, n, WIRE_VERSION, &back), n == 96 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);

	/* Lanes: at least control and one bulk lane, at most 17, and this one among them. */
	static const struct {
		uint8_t lane, lanes;
		int good;
	} lanes[] = {{0, 2, 1},	  {1, 2, 1},  {2, 2, 0},   {0, 0, 0},	{0, 1, 0},    {16, 17, 1},
		     {17, 17, 0}, {0, 18, 0}, {17, 18, 0}, {0, 255, 0}, {255, 255, 0}};

	EACH_ROW (i, lanes) {
		h.lane = lanes[i].lane;
		h.lanes = lanes[i].lanes;
		wire_hello_encode(&h, b);
		CHECK_EQ(wire_hello_decode(b, 96, WIRE_VERSION, &back),
			 lanes[i].good ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	/* Where payload lands: in host memory, in the device's, or there if it comes from another host. */
	h = a_hello();
	for (int unpack = 0; unpack < 256; unpack++) {
		h.unpack = (uint8_t)unpack;
		wire_hello_encode(&h, b);
		CHECK_EQ(wire_hello_decode(b, 96, WIRE_VERSION, &back), unpack <= 2 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	CHECK_EQ(WIRE_UNPACK_NO, 0);
	CHECK_EQ(WIRE_UNPACK_YES, 1);
	CHECK_EQ(WIRE_UNPACK_BETWEEN_HOSTS, 2);
	/* Whether the session outlives its sockets: no, yes, or if the other side is on another host. */
	h = a_hello();
	for (int resume = 0; resume < 256; resume++) {
		h.resume = (uint8_t)resume;
		wire_hello_encode(&h, b);
		CHECK_EQ(wire_hello_decode(b, 96, WIRE_VERSION, &back), resume <= 2 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	CHECK_EQ(INET_RESUME_NO, 0);
	CHECK_EQ(INET_RESUME_YES, 1);
	CHECK_EQ(INET_RESUME_BETWEEN_HOSTS, 2);
	/* Another version may mean something else by them: listener and cookie stay where they are. */
	h = a_hello();
	h.lanes = 0;
	h.unpack = 99;
	wire_hello_encode(&h, b);
	for (size_t n = 0; n <= sizeof(b); n++)
		CHECK_EQ(wire_hello_decode(b, n, WIRE_VERSION + 1, &back), n >= 24 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	CHECK_EQ(back.listener, h.listener);
	CHECK(memcmp(back.cookie, h.cookie, sizeof(h.cookie)) == 0);
	CHECK_EQ(back.lanes, 0);
}

/* ---- the payload of the answer ---- */

static struct wire_welcome a_welcome(void)
{
	struct wire_welcome w;

	memset(&w, 0, sizeof(w));
	w.verdict = WIRE_USE_SESSION;
	w.unpack = WIRE_UNPACK_YES;
	w.resume = INET_RESUME_BETWEEN_HOSTS;
	w.received = 0x3132333435363738;
	memset(w.session, 0x5e, sizeof(w.session));
	w.host = 0x2122232425262728;
	w.window = 0x01020304;
	w.eager_max = 0x05060708;
	w.naddrs = 2;
	w.addrs[0] = addr("::1", 0x4142);
	w.addrs[1] = addr("192.168.0.1", 0x5152);
	return w;
}

TEST(check_welcome_layout)
{
	struct wire_welcome w = a_welcome(), back;
	uint8_t b[WIRE_WELCOME_SIZE];

	CHECK_EQ(WIRE_WELCOME_SIZE, 224);
	memset(b, 0xee, sizeof(b));
	wire_welcome_encode(&w, b);
	CHECK_BYTES(b, "\x01\x01\x02\x02\0\0\0\0");
	CHECK_FILLED(b + 8, 16, 0x5e);
	CHECK_BYTES(b + 24, "\x28\x27\x26\x25\x24\x23\x22\x21\x04\x03\x02\x01\x08\x07\x06\x05"
			    "\x38\x37\x36\x35\x34\x33\x32\x31");
	CHECK_BYTES(b + 48, "\x06\0\x42\x41\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"
			    "\x04\0\x52\x51\xc0\xa8\0\x01");
	check_zero(b + 76, b + 224);
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_welcome_decode(b, sizeof(b), &back));
	CHECK(memcmp(&back, &w, sizeof(w)) == 0);

	/* Eight addresses of either family fit. */
	w.naddrs = 8;
	for (int i = 0; i < 8; i++)
		w.addrs[i] = addr("2001:db8::1", (uint16_t)(1 + i));
	wire_welcome_encode(&w, b);
	CHECK_OK(wire_welcome_decode(b, sizeof(b), &back));
	CHECK(memcmp(&back, &w, sizeof(w)) == 0);
}

static void refused_welcome(const uint8_t *good, size_t at, uint8_t value)
{
	struct wire_welcome back;
	uint8_t b[WIRE_WELCOME_SIZE];

	memcpy(b, good, sizeof(b));
	b[at] = value;
	CHECK_EQ(wire_welcome_decode(b, sizeof(b), &back), GANTRY_ERR_PROTOCOL);
}

TEST(check_welcome_refusals)
{
	struct wire_welcome w = a_welcome(), back;
	uint8_t b[WIRE_WELCOME_SIZE + 1] = {0};

	wire_welcome_encode(&w, b);
	for (size_t n = 0; n <= sizeof(b); n++)
		CHECK_EQ(wire_welcome_decode(b, n, &back), n == 224 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	refused_welcome(b, 0, 3);
	refused_welcome(b, 0, 255);
	refused_welcome(b, 1, 3);
	refused_welcome(b, 1, 255);
	refused_welcome(b, 2, 9);
	refused_welcome(b, 2, 255);
	refused_welcome(b, 2, 3);
	refused_welcome(b, 48, 0);
	refused_welcome(b, 68, 3);
	/* More addresses than there may be, though the bytes have room for 22 of them. */
	for (int i = 0; i < 22; i++)
		memcpy(b + 48 + 8 * i, "\x04\0\x01\x02\x7f\0\0\x01", 8);
	b[2] = 8;
	CHECK_OK(wire_welcome_decode(b, 224, &back));
	for (int n = 9; n <= 22; n++)
		refused_welcome(b, 2, (uint8_t)n);
	/* One that sends the peer elsewhere needs no address. */
	b[2] = 0;
	CHECK_OK(wire_welcome_decode(b, 224, &back));
	CHECK_EQ(back.naddrs, 0);
}

/* ---- frames ---- */

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
	CHECK_EQ(WIRE_STOPPED, 11);
	CHECK_EQ(WIRE_FLAG_CRC, 1);
	CHECK_EQ(WIRE_FLAG_TAG, 2);
	CHECK_EQ(WIRE_FLAG_RECEIVER, 4);
	CHECK_EQ(WIRE_FLAG_ACK, 8);
	CHECK_EQ(WIRE_FLAG_DEEP, 16);
	CHECK_EQ(WIRE_FLAG_SENDS, 32);
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
		CHECK_EQ(wire_header_size((uint8_t)kind), (kind >= 1 && kind <= 7) || kind == 11 ? 48 : 24);
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
		  .state = {.done = 3,
			    .done_bits = 9,
			    .consumed = 4,
			    .received = 5,
			    .sends = true,
			    .has_tag = true,
			    .tag = 7,
			    .posted = 8}},
		 {.kind = 2, .flags = 2 + 32, .seq = 3, .offset = 4, .total = 5, .tag = 7, .index = 8, .done_bits = 9}},
		{{.kind = WIRE_RTS, .rts = {.seq = 3, .total = 6, .tag = 7, .index = 8}},
		 {.kind = 3, .seq = 3, .total = 6, .tag = 7, .index = 8}},
		{{.kind = WIRE_CLOSE, .close = {.bulk_sent = 3}}, {.kind = 4, .seq = 3}},
		{{.kind = WIRE_CLOSE, .close = {.by_receiver = true}}, {.kind = 4, .flags = 4}},
		{{.kind = WIRE_ERROR,
		  .error = {.result = 7, .length = 2, .payload_crc = 9, .sent_bytes = 4, .recv_bytes = 6}},
		 {.kind = 5, .length = 2, .offset = 4, .total = 6, .tag = 7, .payload_crc = 9}},
		{{.kind = WIRE_ARRIVED, .arrived = {.lane = 8, .generation = 7, .bytes = 30, .unread = 4, .pieces = 6}},
		 {.kind = 7, .seq = 30, .offset = 4, .total = 6, .tag = 7, .index = 8}},
		{{.kind = WIRE_STOPPED, .stopped = {.lane = 8, .generation = 7, .pieces = 6}},
		 {.kind = 11, .total = 6, .tag = 7, .index = 8}},
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

		if (kind > WIRE_EAGER && kind < WIRE_STOPPED)
			continue;
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
		if (kind == WIRE_STOPPED)
			f.stopped = (struct wire_stopped){.lane = 7, .generation = 3, .pieces = 0x0102030405060708};
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
	CHECK_EQ(decoded_descriptor(64, 1, 5, 5, 10), GANTRY_ERR_PROTOCOL);
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

TEST(check_stopped)
{
	for (uint32_t lane = 0; lane < 20; lane++)
		for (uint32_t length = 0; length < 2; length++) {
			struct pair_frame f = {
				.kind = WIRE_STOPPED, .index = lane, .length = length, .total = UINT64_MAX};
			uint8_t b[WIRE_FRAME_SIZE];
			struct wire_frame back;

			pair_frame_put(b, &f);
			CHECK_EQ(wire_frame_decode(b, 0, &back),
				 lane >= 1 && lane <= 16 && !length ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
		}
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
			 (kind >= 2 && kind <= 5) || kind == 8); /* DATA, DESCRIPTOR, ARRIVED and STOPPED need more */
	}
	b[0] = WIRE_STATE;
	for (int bit = 6; bit < 8; bit++) { /* 0 to 5 are flags */
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
