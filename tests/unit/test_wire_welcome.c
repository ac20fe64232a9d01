/* The bytes on the wire, as in test_wire.c: the welcome, MACs and the proof. */
#include "wire_util.h"

static struct wire_welcome a_welcome(void)
{
	struct wire_welcome w;

	memset(&w, 0, sizeof(w));
	w.version = WIRE_VERSION;
	w.verdict = WIRE_USE_SESSION;
	w.unpack = WIRE_UNPACK_YES;
	memset(w.session, 0x5e, sizeof(w.session));
	memset(w.nonce, 0x70, sizeof(w.nonce));
	w.process = 0x1112131415161718;
	w.host = 0x2122232425262728;
	w.window = 0x01020304;
	w.eager_max = 0x05060708;
	memset(w.mac, 0xac, sizeof(w.mac));
	strcpy(w.text, "node8 pid 9");
	w.naddrs = 2;
	w.addrs[0] = addr6("::1", 0x4142);
	w.addrs[1] = addr4("192.168.0.1", 0x5152);
	return w;
}

static void check_welcome_layout(void)
{
	struct wire_welcome w = a_welcome(), back;
	uint8_t b[WIRE_WELCOME_SIZE];

	CHECK_EQ(WIRE_WELCOME_SIZE, 384);
	CHECK_EQ(WIRE_MAC_OFFSET, 72);
	memset(b, 0xee, sizeof(b));
	wire_welcome_encode(&w, b);
	CHECK_BYTES(b, "GANTRY\x02\n\x03\0\x01\x01\0\0\0\0");
	for (int i = 0; i < 16; i++) {
		CHECK_EQ(b[16 + i], 0x5e);
		CHECK_EQ(b[32 + i], 0x70);
		CHECK_EQ(b[72 + i], 0xac);
		CHECK_EQ(b[88 + i], 0xac);
	}
	CHECK_BYTES(b + 48,
		    "\x18\x17\x16\x15\x14\x13\x12\x11\x28\x27\x26\x25\x24\x23\x22\x21\x04\x03\x02\x01\x08\x07\x06\x05");
	CHECK_BYTES(b + 104, "node8 pid 9\0");
	check_zero(b + 116, b + 200);
	CHECK_BYTES(b + 200, "\x02\0\0\0\0\0\0\0\x06\0\x42\x41\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"
			     "\x04\0\x52\x51\xc0\xa8\0\x01");
	check_zero(b + 236, b + 384);
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_welcome_decode(b, &back));
	CHECK(memcmp(&back, &w, sizeof(w)) == 0);

	/* Eight addresses of either family fit. */
	w.naddrs = 8;
	for (int i = 0; i < 8; i++)
		w.addrs[i] = addr6("2001:db8::1", (uint16_t)(1 + i));
	wire_welcome_encode(&w, b);
	CHECK_OK(wire_welcome_decode(b, &back));
	CHECK(memcmp(&back, &w, sizeof(w)) == 0);
}

static void refused_welcome(const uint8_t *good, size_t at, uint8_t value)
{
	struct wire_welcome back;
	uint8_t b[WIRE_WELCOME_SIZE];

	memcpy(b, good, sizeof(b));
	b[at] = value;
	CHECK_EQ(wire_welcome_decode(b, &back), GANTRY_ERR_PROTOCOL);
}

static void check_welcome_refusals(void)
{
	struct wire_welcome w = a_welcome(), back;
	uint8_t b[WIRE_WELCOME_SIZE];

	wire_welcome_encode(&w, b);
	for (size_t i = 0; i < 8; i++)
		refused_welcome(b, i, b[i] ^ 1);
	refused_welcome(b, 10, 9);
	refused_welcome(b, 10, 255);
	refused_welcome(b, 11, 3);
	refused_welcome(b, 11, 255);
	refused_welcome(b, 200, 9);
	refused_welcome(b, 200, 255);
	refused_welcome(b, 200, 3);
	refused_welcome(b, 208, 0);
	refused_welcome(b, 228, 3);
	/* More addresses than there may be, though the bytes have room for 22 of them. */
	for (int i = 0; i < 22; i++)
		memcpy(b + 208 + 8 * i, "\x04\0\x01\x02\x7f\0\0\x01", 8);
	b[200] = 8;
	CHECK_OK(wire_welcome_decode(b, &back));
	for (int n = 9; n <= 22; n++)
		refused_welcome(b, 200, (uint8_t)n);
	/* A refusal needs no address. */
	w.naddrs = 0;
	w.verdict = WIRE_REFUSED_LIMIT;
	wire_welcome_encode(&w, b);
	CHECK_OK(wire_welcome_decode(b, &back));
	CHECK_EQ(back.verdict, 6);
	CHECK_EQ(back.naddrs, 0);
	/* Another version may mean something else by all that: its number is what the caller needs. */
	b[8] = 9;
	b[10] = 200;
	b[200] = 255;
	CHECK_OK(wire_welcome_decode(b, &back));
	CHECK_EQ(back.version, 9);
	CHECK_EQ(back.naddrs, 0);
	b[8] = 3;
	b[10] = 6;
	b[200] = 0;
	/* The text ends and is printable. */
	memset(b + 104, 0x01, 96);
	CHECK_OK(wire_welcome_decode(b, &back));
	CHECK_EQ(strlen(back.text), 95);
	for (int i = 0; i < 95; i++)
		CHECK_EQ(back.text[i], '?');
}

static void check_macs(void)
{
	uint8_t hello[WIRE_HELLO_SIZE], welcome[WIRE_WELCOME_SIZE], server[32], client[32], mac[32];

	for (int i = 0; i < WIRE_HELLO_SIZE; i++)
		hello[i] = (uint8_t)(i * 7);
	for (int i = 0; i < WIRE_WELCOME_SIZE; i++)
		welcome[i] = (uint8_t)(i * 11 + 3);
	if (!GANTRY_HAVE_OPENSSL) {
		CHECK(wire_mac("secret", 0, hello, welcome, server) != GANTRY_OK);
		return;
	}
	CHECK_OK(wire_mac("secret", 0, hello, welcome, server));
	CHECK_OK(wire_mac("secret", 1, hello, welcome, client));
	CHECK(memcmp(server, client, 32) != 0);
	CHECK_OK(wire_mac("secreT", 0, hello, welcome, mac));
	CHECK(memcmp(server, mac, 32) != 0);
	/* Every byte counts, but for the server's own MAC in what the server signs. */
	for (int i = 0; i < WIRE_HELLO_SIZE; i++) {
		hello[i] ^= 0x80;
		CHECK_OK(wire_mac("secret", 0, hello, welcome, mac));
		CHECK(memcmp(server, mac, 32) != 0);
		hello[i] ^= 0x80;
	}
	for (int i = 0; i < WIRE_WELCOME_SIZE; i++) {
		int own = i >= 72 && i < 104;

		welcome[i] ^= 0x80;
		CHECK_OK(wire_mac("secret", 0, hello, welcome, mac));
		CHECK_EQ(memcmp(server, mac, 32) == 0, own);
		CHECK_OK(wire_mac("secret", 1, hello, welcome, mac));
		CHECK(memcmp(client, mac, 32) != 0);
		welcome[i] ^= 0x80;
	}
}

static void check_proof(void)
{
	uint8_t mac[32], back[32], b[WIRE_PROOF_SIZE];

	CHECK_EQ(WIRE_PROOF_SIZE, 40);
	for (int i = 0; i < 32; i++)
		mac[i] = (uint8_t)(i + 1);
	wire_proof_encode(mac, b);
	CHECK_BYTES(b, "GANTRY\x03\n\x01\x02\x03");
	CHECK_EQ(b[39], 32);
	CHECK_OK(wire_proof_decode(b, back));
	CHECK(memcmp(mac, back, 32) == 0);
	for (int i = 0; i < 8; i++) {
		b[i] ^= 1;
		CHECK_EQ(wire_proof_decode(b, back), GANTRY_ERR_PROTOCOL);
		b[i] ^= 1;
	}
}

int main(void)
{
	RUN(check_welcome_layout());
	RUN(check_welcome_refusals());
	RUN(check_macs());
	RUN(check_proof());
	printf("ok\n");
	return 0;
}
