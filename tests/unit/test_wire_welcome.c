/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes on the wire, as in test_wire.c: the payload of the answer. */
#include "wire_util.h"

static struct wire_welcome a_welcome(void)
{
	struct wire_welcome w;

	memset(&w, 0, sizeof(w));
	w.verdict = WIRE_USE_SESSION;
	w.unpack = WIRE_UNPACK_YES;
	memset(w.session, 0x5e, sizeof(w.session));
	w.host = 0x2122232425262728;
	w.window = 0x01020304;
	w.eager_max = 0x05060708;
	w.naddrs = 2;
	w.addrs[0] = addr6("::1", 0x4142);
	w.addrs[1] = addr4("192.168.0.1", 0x5152);
	return w;
}

TEST(check_welcome_layout)
{
	struct wire_welcome w = a_welcome(), back;
	uint8_t b[WIRE_WELCOME_SIZE];

	CHECK_EQ(WIRE_WELCOME_SIZE, 224);
	memset(b, 0xee, sizeof(b));
	wire_welcome_encode(&w, b);
	CHECK_BYTES(b, "\x01\x01\x02\0\0\0\0\0");
	for (int i = 0; i < 16; i++)
		CHECK_EQ(b[8 + i], 0x5e);
	CHECK_BYTES(b + 24, "\x28\x27\x26\x25\x24\x23\x22\x21\x04\x03\x02\x01\x08\x07\x06\x05\0\0\0\0\0\0\0\0");
	CHECK_BYTES(b + 48, "\x06\0\x42\x41\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"
			    "\x04\0\x52\x51\xc0\xa8\0\x01");
	check_zero(b + 76, b + 224);
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_welcome_decode(b, sizeof(b), &back));
	CHECK(memcmp(&back, &w, sizeof(w)) == 0);

	/* Eight addresses of either family fit. */
	w.naddrs = 8;
	for (int i = 0; i < 8; i++)
		w.addrs[i] = addr6("2001:db8::1", (uint16_t)(1 + i));
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
