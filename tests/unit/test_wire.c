/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes on the wire: handle and hello. The format is frozen: layouts are written here as literal bytes at literal
 * places, not taken from the encoder, and everything that a decoder must turn down is handed to it.
 */
#include "wire_util.h"

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
	h.addrs[0] = addr4("10.1.2.3", 0x4142);
	h.addrs[1] = addr6("fe80::1234", 0x5152);
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
		h.addrs[i] = addr4("10.0.0.9", (uint16_t)(100 + i));
	wire_handle_encode(&h, b);
	CHECK_EQ(b[48], 7);
	check_zero(b + 112, b + 128);
	CHECK_OK(wire_handle_decode(b, &back));
	CHECK_EQ(back.naddrs, 7);
	CHECK_EQ(ntohs(back.addrs[6].in.sin_port), 106);

	h.naddrs = 4;
	for (int i = 0; i < 4; i++)
		h.addrs[i] = addr6("2001:db8::7", (uint16_t)(200 + i));
	wire_handle_encode(&h, b);
	CHECK_EQ(b[48], 3);
	check_zero(b + 116, b + 128);
	CHECK_OK(wire_handle_decode(b, &back));
	CHECK_EQ(ntohs(back.addrs[2].in6.sin6_port), 202);

	/* Scope ids are local to a host and do not travel. */
	h.naddrs = 1;
	h.addrs[0] = addr6("fe80::1", 1);
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
		h.addrs[i] = addr6("::1", 1);
	wire_handle_encode(&h, b);
	refused_handle(b, 48, 4);
	h.naddrs = 7;
	for (int i = 0; i < 7; i++)
		h.addrs[i] = addr4("1.2.3.4", 1);
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
	h.dev = 0x0607;
	return h;
}

TEST(check_hello_layout)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE];

	CHECK_EQ(WIRE_HELLO_SIZE, 80);
	CHECK_EQ(WIRE_VERSION, 5);
	memset(b, 0xee, sizeof(b));
	wire_hello_encode(&h, b);
	CHECK_BYTES(b, "\x18\x17\x16\x15\x14\x13\x12\x11");
	for (int i = 0; i < 16; i++) {
		CHECK_EQ(b[8 + i], 0xc0);
		CHECK_EQ(b[24 + i], 0x5e);
	}
	CHECK_BYTES(b + 40, "\x28\x27\x26\x25\x24\x23\x22\x21\x38\x37\x36\x35\x34\x33\x32\x31"
			    "\x48\x47\x46\x45\x44\x43\x42\x41\0\0\x10\0\0\0\x01\0\x03\x04\x02\0\x07\x06\0\0");
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_hello_decode(b, sizeof(b), 5, &back));
	CHECK(memcmp(&back, &h, sizeof(h)) == 0);
}

TEST(check_hello_refusals)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE + 1] = {0};

	wire_hello_encode(&h, b);
	for (size_t n = 0; n <= sizeof(b); n++)
		CHECK_EQ(wire_hello_decode(b, n, 5, &back), n == 80 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);

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
		CHECK_EQ(wire_hello_decode(b, 80, 5, &back), lanes[i].good ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	/* Where payload lands: in host memory, in the device's, or there if it comes from another host. */
	h = a_hello();
	for (int unpack = 0; unpack < 256; unpack++) {
		h.unpack = (uint8_t)unpack;
		wire_hello_encode(&h, b);
		CHECK_EQ(wire_hello_decode(b, 80, 5, &back), unpack <= 2 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	CHECK_EQ(WIRE_UNPACK_NO, 0);
	CHECK_EQ(WIRE_UNPACK_YES, 1);
	CHECK_EQ(WIRE_UNPACK_BETWEEN_HOSTS, 2);
	/* Another version may mean something else by them: listener and cookie stay where they are. */
	h = a_hello();
	h.lanes = 0;
	h.unpack = 99;
	wire_hello_encode(&h, b);
	for (size_t n = 0; n <= sizeof(b); n++)
		CHECK_EQ(wire_hello_decode(b, n, 6, &back), n >= 24 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	CHECK_EQ(back.listener, h.listener);
	CHECK(memcmp(back.cookie, h.cookie, sizeof(h.cookie)) == 0);
	CHECK_EQ(back.lanes, 0);
}
