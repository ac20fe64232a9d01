/*
 * The bytes on the wire. The format is frozen: layouts are written here as literal bytes at literal places, not taken
 * from the encoder, and everything that a decoder must turn down is handed to it.
 */
#include <arpa/inet.h>

#include "base/log.h"
#include "net/tcp/wire.h"
#include "test.h"

static struct gantry_addr addr4(const char *text, uint16_t port)
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	a.in.sin_family = AF_INET;
	a.in.sin_port = htons(port);
	CHECK_EQ(inet_pton(AF_INET, text, &a.in.sin_addr), 1);
	return a;
}

static struct gantry_addr addr6(const char *text, uint16_t port)
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	a.in6.sin6_family = AF_INET6;
	a.in6.sin6_port = htons(port);
	CHECK_EQ(inet_pton(AF_INET6, text, &a.in6.sin6_addr), 1);
	return a;
}

static void check_bytes(const uint8_t *at, size_t n, const char *expected, int line)
{
	if (memcmp(at, expected, n) == 0)
		return;
	fprintf(stderr, "%s:%d: bytes differ:", __FILE__, line);
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " %02x/%02x", at[i], (uint8_t)expected[i]);
	fprintf(stderr, " (is/expected)\n");
	exit(1);
}
/* The literal's terminating zero does not count. */
#define CHECK_BYTES(at, literal) check_bytes((at), sizeof(literal) - 1, literal, __LINE__)

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
	h.addrs[0] = addr4("10.1.2.3", 0x4142);
	h.addrs[1] = addr6("fe80::1234", 0x5152);
	return h;
}

static void check_handle_layout(void)
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

static void check_handle_addresses(void)
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

static void check_handle_refusals(void)
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

/* ---- hello ---- */

static struct wire_hello a_hello(void)
{
	struct wire_hello h;

	memset(&h, 0, sizeof(h));
	h.version = WIRE_VERSION;
	h.auth = WIRE_AUTH_HMAC;
	h.lane = 3;
	h.lanes = 4;
	h.crc = 1;
	h.dev = 0x0607;
	h.listener = 0x1112131415161718;
	memset(h.cookie, 0xc0, sizeof(h.cookie));
	memset(h.session, 0x5e, sizeof(h.session));
	memset(h.nonce, 0x70, sizeof(h.nonce));
	h.process = 0x2122232425262728;
	h.comm_id = 0x3132333435363738;
	h.host = 0x4142434445464748;
	h.window = 0x00100000;
	h.eager_max = 0x00010000;
	strcpy(h.build, "1.2.3 abcdef");
	strcpy(h.peer, "node7 pid 123");
	h.unpack = WIRE_UNPACK_BETWEEN_HOSTS;
	return h;
}

static void check_hello_layout(void)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE];

	CHECK_EQ(WIRE_HELLO_SIZE, 192);
	memset(b, 0xee, sizeof(b));
	wire_hello_encode(&h, b);
	CHECK_BYTES(b, "GANTRY\x01\n\x02\0\x01\x03\x04\x01\x07\x06\x18\x17\x16\x15\x14\x13\x12\x11");
	for (int i = 0; i < 16; i++) {
		CHECK_EQ(b[24 + i], 0xc0);
		CHECK_EQ(b[40 + i], 0x5e);
		CHECK_EQ(b[56 + i], 0x70);
	}
	CHECK_BYTES(b + 72, "\x28\x27\x26\x25\x24\x23\x22\x21\x38\x37\x36\x35\x34\x33\x32\x31"
			    "\x48\x47\x46\x45\x44\x43\x42\x41\0\0\x10\0\0\0\x01\0"
			    "1.2.3 abcdef\0\0\0\0\0\0\0\0\0\0\0\0node7 pid 123\0");
	check_zero(b + 142, b + 168);
	CHECK_EQ(b[168], 2);
	check_zero(b + 169, b + 192);
	memset(&back, 0xee, sizeof(back));
	CHECK_OK(wire_hello_decode(b, &back));
	CHECK(memcmp(&back, &h, sizeof(h)) == 0);
}

static void check_hello_refusals(void)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE];

	/* Every prefix of the magic may be one; a wrong byte at any place shows at once. */
	wire_hello_encode(&h, b);
	for (size_t have = 0; have <= 192; have++)
		CHECK(wire_hello_may_be(b, have));
	for (size_t i = 0; i < 8; i++) {
		uint8_t c[WIRE_HELLO_SIZE];

		memcpy(c, b, sizeof(c));
		c[i] ^= 1;
		CHECK(wire_hello_may_be(c, i));
		for (size_t have = i + 1; have < 12; have++)
			CHECK(!wire_hello_may_be(c, have));
		CHECK_EQ(wire_hello_decode(c, &back), GANTRY_ERR_PROTOCOL);
	}
	CHECK(!wire_hello_may_be((const uint8_t *)"GET / HTTP/1.1\r\n", 2));

	/* Lanes: at least control and one bulk lane, at most 17, and this one among them. */
	static const struct {
		uint8_t lane, lanes;
		int good;
	} lanes[] = {{0, 2, 1},	  {1, 2, 1},  {2, 2, 0},   {0, 0, 0},	{0, 1, 0},    {16, 17, 1},
		     {17, 17, 0}, {0, 18, 0}, {17, 18, 0}, {0, 255, 0}, {255, 255, 0}};

	for (size_t i = 0; i < sizeof(lanes) / sizeof(*lanes); i++) {
		h.lane = lanes[i].lane;
		h.lanes = lanes[i].lanes;
		wire_hello_encode(&h, b);
		CHECK_EQ(wire_hello_decode(b, &back), lanes[i].good ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	/* Where payload lands: in host memory, in the device's, or there if it comes from another host. */
	h = a_hello();
	for (int unpack = 0; unpack < 256; unpack++) {
		h.unpack = (uint8_t)unpack;
		wire_hello_encode(&h, b);
		CHECK_EQ(wire_hello_decode(b, &back), unpack <= 2 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	}
	CHECK_EQ(WIRE_UNPACK_NO, 0);
	CHECK_EQ(WIRE_UNPACK_YES, 1);
	CHECK_EQ(WIRE_UNPACK_BETWEEN_HOSTS, 2);
	/* Another version may mean something else by them: the caller compares versions and says so. */
	h = a_hello();
	h.version = 0x7fff;
	h.lanes = 0;
	h.unpack = 99;
	wire_hello_encode(&h, b);
	CHECK_OK(wire_hello_decode(b, &back));
	CHECK_EQ(back.version, 0x7fff);
}

/* Foreign texts end and cannot forge log lines. */
static void check_hello_texts(void)
{
	struct wire_hello h = a_hello(), back;
	uint8_t b[WIRE_HELLO_SIZE];

	wire_hello_encode(&h, b);
	memset(b + 104, 'x', 24);
	memset(b + 128, 'y', 40);
	memcpy(b + 128, "a\nb\rc\x1b[0m\x7f\x80\xff~ ", 14);
	CHECK_OK(wire_hello_decode(b, &back));
	CHECK_EQ(strlen(back.build), 23);
	CHECK_EQ(strlen(back.peer), 39);
	back.peer[14] = 0;
	CHECK_STR(back.peer, "a?b?c?[0m???~ ");

	/* Too long a text is cut when it is written. */
	memset(h.build, 'z', sizeof(h.build));
	memset(h.peer, 'w', sizeof(h.peer));
	wire_hello_encode(&h, b);
	CHECK_EQ(b[104 + 22], 'z');
	CHECK_EQ(b[104 + 23], 0);
	CHECK_EQ(b[128 + 38], 'w');
	CHECK_EQ(b[128 + 39], 0);
}

/* ---- welcome, MACs, proof ---- */

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
	CHECK_BYTES(b, "GANTRY\x02\n\x02\0\x01\x01\0\0\0\0");
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
	refused_welcome(b, 10, 7);
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
	b[8] = 2;
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
	int ok = -1;

	CHECK_EQ(WIRE_PROOF_SIZE, 40);
	for (int i = 0; i < 32; i++)
		mac[i] = (uint8_t)(i + 1);
	wire_proof_encode(17, mac, b);
	CHECK_BYTES(b, "GANTRY\x03\x01\x01\x02\x03");
	CHECK_EQ(b[39], 32);
	CHECK_OK(wire_proof_decode(b, &ok, back));
	CHECK_EQ(ok, 1);
	CHECK(memcmp(mac, back, 32) == 0);
	wire_proof_encode(0, mac, b);
	CHECK_EQ(b[7], 0);
	CHECK_OK(wire_proof_decode(b, &ok, back));
	CHECK_EQ(ok, 0);
	ok = 5;
	for (int i = 0; i < 7; i++) {
		b[i] ^= 1;
		CHECK_EQ(wire_proof_decode(b, &ok, back), GANTRY_ERR_PROTOCOL);
		b[i] ^= 1;
	}
	b[7] = 2;
	CHECK_EQ(wire_proof_decode(b, &ok, back), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(ok, 5);
}

/* ---- frames ---- */

static void check_frame_layout(void)
{
	struct wire_frame f, back;
	uint8_t b[WIRE_FRAME_SIZE];

	memset(&f, 0, sizeof(f));
	f.kind = WIRE_DATA;
	f.flags = WIRE_FLAG_CRC | WIRE_FLAG_ACK;
	f.length = 0x01020304;
	f.seq = 0x1112131415161718;
	f.offset = 0x2122232425262728;
	f.total = 0x3132333435363738;
	f.tag = 0x41424344;
	f.index = 0x51525354;
	f.crc = 0x61626364;
	f.lane = 0x71727374;
	CHECK_EQ(WIRE_FRAME_SIZE, 48);
	memset(b, 0xee, sizeof(b));
	wire_frame_encode(&f, b);
	CHECK_BYTES(b,
		    "\x01\x09GT\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11\x28\x27\x26\x25\x24\x23\x22\x21"
		    "\x38\x37\x36\x35\x34\x33\x32\x31\x44\x43\x42\x41\x54\x53\x52\x51\x64\x63\x62\x61\x74\x73\x72\x71");
	memset(&back, 0, sizeof(back));
	CHECK_OK(wire_frame_decode(b, &back));
	CHECK_EQ(back.kind, 1);
	CHECK_EQ(back.flags, 9);
	CHECK_EQ(back.length, 0x01020304);
	CHECK_EQ(back.seq, 0x1112131415161718);
	CHECK_EQ(back.offset, 0x2122232425262728);
	CHECK_EQ(back.total, 0x3132333435363738);
	CHECK_EQ(back.tag, 0x41424344);
	CHECK_EQ(back.index, 0x51525354);
	CHECK_EQ(back.crc, 0x61626364);
	CHECK_EQ(back.lane, 0x71727374);
	/* The numbers of kinds and flags are part of the format. */
	CHECK_EQ(WIRE_DATA, 1);
	CHECK_EQ(WIRE_STATE, 2);
	CHECK_EQ(WIRE_RTS, 3);
	CHECK_EQ(WIRE_CLOSE, 4);
	CHECK_EQ(WIRE_ERROR, 5);
	CHECK_EQ(WIRE_AHEAD, 6);
	CHECK_EQ(WIRE_FLAG_CRC, 1);
	CHECK_EQ(WIRE_FLAG_EAGER, 2);
	CHECK_EQ(WIRE_FLAG_RECEIVER, 4);
	CHECK_EQ(WIRE_FLAG_ACK, 8);
	CHECK_EQ(WIRE_FLAG_DEEP, 16);
}

static gantry_result decoded(uint8_t kind, uint32_t length, uint64_t offset, uint64_t total)
{
	struct wire_frame f = {.kind = kind, .length = length, .offset = offset, .total = total}, back;
	uint8_t b[WIRE_FRAME_SIZE];

	wire_frame_encode(&f, b);
	return wire_frame_decode(b, &back);
}

/* The header of a piece that travels alone: never empty, never eager, always of a bulk lane. */
static gantry_result decoded_ahead(uint8_t flags, uint32_t lane, uint32_t length, uint64_t offset, uint64_t total)
{
	struct wire_frame f = {
		.kind = WIRE_AHEAD, .flags = flags, .lane = lane, .length = length, .offset = offset, .total = total};
	struct wire_frame back;
	uint8_t b[WIRE_FRAME_SIZE];

	wire_frame_encode(&f, b);
	return wire_frame_decode(b, &back);
}

static void check_ahead(void)
{
	for (uint32_t lane = 0; lane < 20; lane++)
		CHECK_EQ(decoded_ahead(0, lane, 1, 0, 1), lane >= 1 && lane <= 16 ? GANTRY_OK : GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, UINT32_MAX, 1, 0, 1), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, 256, 1, 0, 1), GANTRY_ERR_PROTOCOL);
	CHECK_OK(decoded_ahead(WIRE_FLAG_ACK | WIRE_FLAG_DEEP, 1, 5, 5, 10));
	CHECK_OK(decoded_ahead(0, 1, 1, UINT64_MAX - 1, UINT64_MAX));
	CHECK_EQ(decoded_ahead(WIRE_FLAG_EAGER, 1, 5, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(WIRE_FLAG_CRC, 1, 5, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, 1, 0, 0, 0), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, 1, 0, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, 1, 6, 5, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, 1, 1, 11, 10), GANTRY_ERR_PROTOCOL);
	CHECK_EQ(decoded_ahead(0, 1, 2, UINT64_MAX, UINT64_MAX), GANTRY_ERR_PROTOCOL);
}

static void check_frame_refusals(void)
{
	struct wire_frame f = {.kind = WIRE_STATE}, back = {.tag = 77};
	uint8_t b[WIRE_FRAME_SIZE];

	wire_frame_encode(&f, b);
	CHECK_OK(wire_frame_decode(b, &back));
	back.tag = 77;
	for (int kind = 0; kind < 256; kind++) {
		b[0] = (uint8_t)kind;
		CHECK_EQ(wire_frame_decode(b, &back) == GANTRY_OK, kind >= 1 && kind <= 5); /* AHEAD needs more */
	}
	b[0] = WIRE_STATE;
	back.tag = 77;
	for (int bit = 5; bit < 8; bit++) {
		b[1] = (uint8_t)(1 << bit);
		CHECK_EQ(wire_frame_decode(b, &back), GANTRY_ERR_PROTOCOL);
	}
	b[1] = 0;
	for (int bit = 0; bit < 16; bit++) {
		b[2 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		CHECK_EQ(wire_frame_decode(b, &back), GANTRY_ERR_PROTOCOL);
		b[2 + bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	CHECK_EQ(back.tag, 77); /* outputs are written only on success */

	/* A piece lies within its message; sums must not wrap. */
	CHECK_OK(decoded(WIRE_DATA, 0, 0, 0));
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

int main(void)
{
	check_handle_layout();
	check_handle_addresses();
	check_handle_refusals();
	check_hello_layout();
	check_hello_refusals();
	check_hello_texts();
	check_welcome_layout();
	check_welcome_refusals();
	check_macs();
	check_proof();
	check_frame_layout();
	check_frame_refusals();
	check_ahead();
	printf("ok\n");
	return 0;
}
