/* SPDX-License-Identifier: Apache-2.0 */
/* The one hand-shake: its bytes at literal places, both roles against each other, and everything that must not work. */
#include "base/bytes.h"
#include "base/hmac.h"
#include "inet/handshake.h"
#include "test.h"

static int crc;

static void settings(char out[INET_SETTINGS_SIZE])
{
	snprintf(out, INET_SETTINGS_SIZE, "GANTRY_ONE=a GANTRY_CRC=%d", crc);
}

static const struct inet_protocol test = {"test", 7, "accepting side", "connecting side", settings};
static const struct inet_protocol later = {"test", 8, "accepting side", "connecting side", settings};
static const struct inet_key none, secret = {INET_AUTH_SECRET, "alpha", 5, INET_ENCRYPT_OFF},
				   other = {INET_AUTH_SECRET, "beta", 4, INET_ENCRYPT_OFF},
				   key = {INET_AUTH_KEY, "0123456789abcdef0123456789ABCDEF", 32, INET_ENCRYPT_OFF},
				   shown = {INET_AUTH_SHOWN, "0123456789abcdef0123456789ABCDEF", 32, INET_ENCRYPT_OFF};

/* A byte at a time from one to the other; what it came to there. *ret_said: what was said, if somebody wants it. */
static enum inet_event carry(struct inet_handshake *from, struct inet_handshake *to, uint8_t *ret_said)
{
	enum inet_event event = INET_AGAIN;

	for (size_t i = 0; from->out_size; i++, from->out++, from->out_size--) {
		uint8_t *at;

		CHECK_EQ(event, INET_AGAIN);
		if (ret_said)
			ret_said[i] = *from->out;
		CHECK(inet_handshake_room(to, &at) > 0);
		*at = *from->out;
		event = inet_handshake_input(to, 1);
	}
	return event;
}

/* Literal bytes, cut off when the other side has made up its mind. */
static enum inet_event feed(struct inet_handshake *to, const void *bytes, size_t n)
{
	enum inet_event event = INET_AGAIN;

	for (size_t i = 0; i < n && event == INET_AGAIN; i++) {
		uint8_t *at;

		CHECK(inet_handshake_room(to, &at) > 0);
		*at = ((const uint8_t *)bytes)[i];
		event = inet_handshake_input(to, 1);
	}
	return event;
}

struct pair {
	struct inet_handshake client, server;
	uint8_t hello[INET_HELLO_SIZE + 3], challenge[INET_CHALLENGE_SIZE], proof[INET_PROOF_SIZE],
		answer[INET_ANSWER_SIZE + 2];
};

/* Up to the server's look at the hello. */
static void say_hello(struct pair *p, const struct inet_key *k)
{
	CHECK_OK(inet_handshake_start_client(&p->client, &test, k, "abc", 3));
	inet_handshake_start_server(&p->server);
	CHECK_EQ(carry(&p->client, &p->server, p->hello), INET_HELLO);
	CHECK_STR(p->server.name, "test");
	CHECK_EQ(p->server.payload_size, 3);
	CHECK(memcmp(p->server.payload, "abc", 3) == 0);
	p->server.protocol = &test;
}

/* Up to the server's answer. */
static enum inet_event prove(struct pair *p, const struct inet_key *k, const struct inet_key *servers)
{
	enum inet_event event;

	say_hello(p, k);
	event = inet_handshake_challenge(&p->server, servers);
	if (servers->auth == INET_AUTH_NONE || event != INET_AGAIN)
		return event;
	CHECK_EQ(carry(&p->server, &p->client, p->challenge), INET_AGAIN);
	return carry(&p->client, &p->server, p->proof);
}

static void test_agree(void)
{
	const struct inet_key *keys[] = {&none, &shown, &key, &secret};

	for (size_t i = 0; i < (GANTRY_HAVE_OPENSSL ? 4 : 2); i++) {
		struct pair p;

		CHECK_EQ(prove(&p, keys[i], keys[i]), INET_PROVED);
		CHECK(p.server.proved);
		CHECK_HAS(p.server.peer, " pid ");
		CHECK_EQ(inet_handshake_accept(&p.server, "xy", 2), INET_DONE);
		CHECK_EQ(carry(&p.server, &p.client, p.answer), INET_DONE);
		CHECK_HAS(p.client.peer, " pid ");
		CHECK_EQ(p.client.payload_size, 2);
		CHECK(memcmp(p.client.payload, "xy", 2) == 0);
	}
}

/* The MAC as docs/wire.md describes it. */
static void check_mac(const char *label, const struct pair *p, const uint8_t *answer, size_t n, const uint8_t *mac)
{
	uint8_t all[16 + sizeof(p->hello) + sizeof(p->challenge) + sizeof(p->answer)] = {0}, expected[32];
	size_t size = 16 + sizeof(p->hello) + sizeof(p->challenge);

	memcpy(all, label, strlen(label));
	memcpy(all + 16, p->hello, sizeof(p->hello));
	memcpy(all + 16 + sizeof(p->hello), p->challenge, sizeof(p->challenge));
	if (n)
		memcpy(all + size, answer, n);
	CHECK_OK(gantry_hmac_sha256("alpha", 5, all, size + n, expected));
	CHECK(memcmp(mac, expected, 32) == 0);
}

static void test_bytes(void)
{
	struct pair p;
	uint8_t answer[sizeof(p.answer)];

	crc = 1;
	CHECK_EQ(prove(&p, &secret, &secret), INET_PROVED);
	inet_handshake_accept(&p.server, "xy", 2);
	CHECK_EQ(carry(&p.server, &p.client, p.answer), INET_DONE);
	CHECK(memcmp(p.hello, "GANTRY\x01\n\x07\0\x03\0\x03\0\0\0test\0\0\0\0", 24) == 0);
	CHECK_HAS((char *)p.hello + 64, " pid ");
	CHECK_STR((char *)p.hello + 112, "GANTRY_ONE=a GANTRY_CRC=1");
	CHECK(memcmp(p.hello + 192, "abc", 3) == 0);
	CHECK(memcmp(p.challenge, "GANTRY\x02\n\x07\0\x07\0\0\0\0\0", 16) == 0);
	CHECK(memcmp(p.proof, "GANTRY\x03\n", 8) == 0);
	CHECK(memcmp(p.answer, "GANTRY\x02\n\x07\0\0\0\x02\0\0\0", 16) == 0);
	CHECK_HAS((char *)p.answer + 104, " pid ");
	CHECK(memcmp(p.answer + 384, "xy", 2) == 0);
	check_mac("gantry client", &p, NULL, 0, p.proof + 8);
	memcpy(answer, p.answer, sizeof(answer));
	memset(answer + 16, 0, 32);
	check_mac("gantry server", &p, answer, sizeof(answer), p.answer + 16);
	crc = 0;
}

static void check_refused(struct pair *p, gantry_result r, const char *text)
{
	CHECK_EQ(p->server.error, r);
	CHECK_HAS(p->server.text, text);
	CHECK_EQ(carry(&p->server, &p->client, NULL), INET_FAILED);
	CHECK(p->client.refused);
	CHECK_EQ(p->client.error, r == GANTRY_ERR_LIMIT ? GANTRY_ERR_REFUSED : r);
	CHECK_STR(p->client.text, p->server.text);
}

static void test_refusals(void)
{
	static const gantry_result all[] = {GANTRY_ERR_VERSION, GANTRY_ERR_SETTING, GANTRY_ERR_AUTH, GANTRY_ERR_REFUSED,
					    GANTRY_ERR_LIMIT};
	struct pair p;

	EACH_ROW (i, all) {
		say_hello(&p, &none);
		CHECK_EQ(inet_handshake_refuse(&p.server, all[i], "because %zu", i), INET_FAILED);
		CHECK(!p.server.proved);
		check_refused(&p, all[i], "because");
	}
	if (!GANTRY_HAVE_OPENSSL)
		return;
	CHECK_EQ(prove(&p, &secret, &other), INET_FAILED);
	CHECK(!p.server.proved);
	check_refused(&p, GANTRY_ERR_AUTH, "GANTRY_SECRET differs between the two sides");
	CHECK_EQ(prove(&p, &none, &secret), INET_FAILED);
	CHECK(!p.server.proved);
	check_refused(&p, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the accepting side");
	CHECK_EQ(prove(&p, &secret, &none), INET_FAILED);
	check_refused(&p, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the connecting side");
	CHECK_EQ(prove(&p, &secret, &key), INET_FAILED);
	check_refused(&p, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the connecting side");
	CHECK_EQ(prove(&p, &shown, &key), INET_FAILED);
	check_refused(&p, GANTRY_ERR_AUTH, "only the build of the accepting side has OpenSSL");
}

static void test_versions(void)
{
	struct pair p;

	say_hello(&p, &secret);
	p.server.protocol = &later;
	CHECK_EQ(inet_handshake_challenge(&p.server, &secret), INET_FAILED);
	CHECK(!p.server.proved);
	check_refused(&p, GANTRY_ERR_VERSION, "protocol version differs: 8 (accepting side");
	/* Where there is no key the caller knows it for a peer: both users hear. */
	say_hello(&p, &none);
	p.server.protocol = &later;
	CHECK_EQ(inet_handshake_challenge(&p.server, &none), INET_FAILED);
	CHECK(p.server.proved);
	/* What answers may not know that it should refuse. */
	CHECK_EQ(prove(&p, &none, &none), INET_PROVED);
	p.server.protocol = &later;
	inet_handshake_accept(&p.server, NULL, 0);
	CHECK_EQ(carry(&p.server, &p.client, NULL), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_VERSION);
	CHECK(!p.client.refused);
	CHECK_STR(p.client.text, "protocol version differs: 7 (connecting side) and 8 (accepting side)");
}

static void test_settings(void)
{
	const struct inet_key *keys[] = {&none, &secret};

	for (int i = 0; i < 2; i++) {
		struct pair p;
		enum inet_event event;

		say_hello(&p, keys[i]);
		crc = 1;
		event = inet_handshake_challenge(&p.server, keys[i]);
		if (i) {
			CHECK_EQ(event, INET_AGAIN); /* not before the proof */
			CHECK_EQ(carry(&p.server, &p.client, NULL), INET_AGAIN);
			event = carry(&p.client, &p.server, NULL);
		}
		CHECK_EQ(event, INET_FAILED);
		CHECK(p.server.proved);
		check_refused(&p, GANTRY_ERR_SETTING, "GANTRY_CRC differs: 1 (accepting side) and 0 (connecting side)");
		crc = 0;
	}
}

/* Everything that was said before is worth nothing now. */
static void test_replay(void)
{
	struct pair old, p;
	uint8_t challenge[INET_CHALLENGE_SIZE];

	CHECK_EQ(prove(&old, &secret, &secret), INET_PROVED);
	inet_handshake_accept(&old.server, "xy", 2);
	CHECK_EQ(carry(&old.server, &old.client, old.answer), INET_DONE);
	/* To the server: the same hello and the same proof. */
	inet_handshake_start_server(&p.server);
	CHECK_EQ(feed(&p.server, old.hello, sizeof(old.hello)), INET_HELLO);
	p.server.protocol = &test;
	CHECK_EQ(inet_handshake_challenge(&p.server, &secret), INET_AGAIN);
	CHECK_EQ(feed(&p.server, old.proof, sizeof(old.proof)), INET_FAILED);
	CHECK_EQ(p.server.error, GANTRY_ERR_AUTH);
	/* To the client: the same challenge and the same answer; the answer at once; its own proof as a MAC. */
	say_hello(&p, &secret);
	CHECK_EQ(feed(&p.client, old.challenge, sizeof(old.challenge)), INET_AGAIN);
	CHECK_EQ(feed(&p.client, old.answer, sizeof(old.answer)), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_AUTH);
	CHECK_HAS(p.client.text, "does not have the same GANTRY_SECRET");
	say_hello(&p, &secret);
	CHECK_EQ(feed(&p.client, old.answer, sizeof(old.answer)), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_AUTH);
	say_hello(&p, &secret);
	CHECK_EQ(inet_handshake_challenge(&p.server, &secret), INET_AGAIN);
	CHECK_EQ(carry(&p.server, &p.client, challenge), INET_AGAIN);
	memcpy(old.answer + 16, p.client.out + 8, 32);
	CHECK_EQ(feed(&p.client, old.answer, sizeof(old.answer)), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_AUTH);
	/* A second challenge is no answer, and a challenge to one without a key neither. */
	say_hello(&p, &secret);
	CHECK_EQ(feed(&p.client, old.challenge, sizeof(old.challenge)), INET_AGAIN);
	CHECK_EQ(feed(&p.client, old.challenge, sizeof(old.challenge)), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_PROTOCOL);
	say_hello(&p, &none);
	CHECK_EQ(feed(&p.client, old.challenge, sizeof(old.challenge)), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_AUTH);
}

/* One bit wrong anywhere, in each of the four messages: nobody is taken in. */
static void test_tampering(void)
{
	for (size_t bit = 0; bit < sizeof(((struct pair *)0)->answer) * 8; bit += 5) {
		struct pair p;
		enum inet_event event;
		size_t byte = bit / 8;
		uint8_t flip = (uint8_t)(1 << bit % 8);

		say_hello(&p, &secret);
		if (byte < sizeof(p.hello)) {
			p.hello[byte] ^= flip;
			inet_handshake_start_server(&p.server);
			event = feed(&p.server, p.hello, sizeof(p.hello));
			p.server.protocol = &test;
			if (event == INET_HELLO && inet_handshake_challenge(&p.server, &secret) == INET_AGAIN) {
				CHECK_EQ(carry(&p.server, &p.client, NULL), INET_AGAIN);
				CHECK_EQ(carry(&p.client, &p.server, NULL), INET_FAILED);
			}
		}
		CHECK_EQ(prove(&p, &secret, &secret), INET_PROVED);
		inet_handshake_accept(&p.server, "xy", 2);
		((uint8_t *)p.server.out)[byte] ^= flip;
		event = feed(&p.client, p.server.out, sizeof(p.answer));
		CHECK(event == INET_FAILED || (event == INET_AGAIN && byte >= 12 && byte < 16)); /* it waits for more */
	}
}

/* The largest of everything, and what is larger: a challenge has no payload. */
static void test_sizes(void)
{
	static const uint8_t payload[INET_PAYLOAD_MAX];
	uint8_t challenge[INET_CHALLENGE_SIZE] = "GANTRY\x02\n\x07\0\x07\0\x01";
	struct inet_handshake c, s;

	CHECK_OK(inet_handshake_start_client(&c, &test, &secret, payload, sizeof(payload)));
	inet_handshake_start_server(&s);
	CHECK_EQ(carry(&c, &s, NULL), INET_HELLO);
	s.protocol = &test;
	CHECK_EQ(inet_handshake_challenge(&s, &secret), INET_AGAIN);
	CHECK_EQ(carry(&s, &c, NULL), INET_AGAIN);
	CHECK_EQ(carry(&c, &s, NULL), INET_PROVED);
	CHECK_EQ(inet_handshake_accept(&s, payload, sizeof(payload)), INET_DONE);
	CHECK(s.out + s.out_size <= s.said + sizeof(s.said));
	CHECK_EQ(carry(&s, &c, NULL), INET_DONE);
	CHECK_EQ(c.payload_size, INET_PAYLOAD_MAX);
	CHECK_OK(inet_handshake_start_client(&c, &test, &secret, payload, sizeof(payload)));
	CHECK_EQ(feed(&c, challenge, sizeof(challenge)), INET_FAILED);
	CHECK_EQ(c.error, GANTRY_ERR_PROTOCOL);
}

static void test_strangers(void)
{
	static const char *const texts[] = {"GET / HTTP/1.0\r\n\r\n", "SSH-2.0-", "\x16\x03\x01", "GANTRY\x02\n",
					    "gantry"};
	uint8_t large[16] = "GANTRY\x01\n\x07\0\0\0\x01\x01\0";
	struct inet_handshake h;
	uint8_t *at;

	EACH_ROW (i, texts) {
		inet_handshake_start_server(&h);
		CHECK_EQ(feed(&h, texts[i], strlen(texts[i])), INET_FAILED);
		CHECK_EQ(h.error, GANTRY_ERR_PROTOCOL);
		CHECK_EQ(h.out_size, 0); /* not a word */
	}
	inet_handshake_start_server(&h);
	CHECK_EQ(feed(&h, large, sizeof(large)), INET_FAILED);
	inet_handshake_start_server(&h);
	CHECK_STR(inet_handshake_owes(&h), "no hello message in time");
	CHECK_EQ(inet_handshake_room(&h, &at), 16);
}

/* Builds from before this hand-shake hear a refusal that they understand. */
static void test_formers(void)
{
	uint8_t tcp[192] = "GANTRY\x01\n\x03\0\x01\x04\x05", rx[208] = "GANTRYrx\x03\0\x01", ctl[160] = "GCTL\x01";
	struct inet_handshake h;

	inet_handshake_start_server(&h);
	CHECK_EQ(feed(&h, tcp, sizeof(tcp)), INET_FAILED);
	CHECK_EQ(h.error, GANTRY_ERR_VERSION);
	CHECK_EQ(h.out_size, 384);
	CHECK(memcmp(h.out, "GANTRY\x02\n\x04\0\x02", 11) == 0);
	CHECK_HAS((const char *)h.out + 104, "protocol version differs: 4 (accepting side");
	CHECK_HAS((const char *)h.out + 104, "and 3 (connecting side)");
	CHECK(strlen((const char *)h.out + 104) < 96);
	inet_handshake_start_server(&h);
	CHECK_EQ(feed(&h, rx, sizeof(rx)), INET_FAILED);
	CHECK_EQ(h.error, GANTRY_ERR_VERSION);
	CHECK_EQ(h.out_size, 208);
	CHECK(memcmp(h.out, "GANTRYrx\x04\0\x05\0\0\x01", 14) == 0);
	inet_handshake_start_server(&h);
	ctl[32] = 1;
	CHECK_EQ(feed(&h, ctl, sizeof(ctl)), INET_FAILED);
	CHECK_EQ(h.error, GANTRY_ERR_VERSION);
	CHECK(memcmp(h.out, "GCTL\x05\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 16) == 0);
	CHECK_EQ(get32(h.out + 24), h.out_size - 32);
	CHECK_EQ(get32(h.out + 28), GANTRY_ERR_VERSION);
	CHECK(memcmp(h.out + 32, h.text, h.out_size - 32) == 0);
	CHECK_HAS(h.text, "and 1 (connecting side)");
}

/* ---- encryption ---- */

static const struct inet_key on = {INET_AUTH_SECRET, "alpha", 5, INET_ENCRYPT_ON},
			     must = {INET_AUTH_SECRET, "alpha", 5, INET_ENCRYPT_REQUIRE};

/* As carry, but the other side may make up its mind before all of it is there. */
static enum inet_event carry_some(struct inet_handshake *from, struct inet_handshake *to)
{
	enum inet_event event = feed(to, from->out, from->out_size);

	from->out_size = 0;
	return event;
}

/* Up to the server's answer. */
static enum inet_event encrypt(struct pair *p, const struct inet_key *k, const struct inet_key *servers)
{
	enum inet_event event;

	say_hello(p, k);
	CHECK_EQ(inet_handshake_challenge(&p->server, servers), INET_AGAIN);
	CHECK_EQ(carry(&p->server, &p->client, p->challenge), INET_AGAIN);
	event = carry_some(&p->client, &p->server);
	for (int i = 0; i < 2 && event == INET_AGAIN;
	     i++) { /* hello and finished of the server, finished of the client */
		CHECK_EQ(carry(&p->server, &p->client, NULL), INET_AGAIN);
		event = carry(&p->client, &p->server, NULL);
	}
	return event;
}

static void end(struct pair *p)
{
	inet_handshake_end(&p->client);
	inet_handshake_end(&p->server);
}

static void seal(struct gantry_seal *s, uint8_t out[64])
{
	char text[] = "the marked payload";

	CHECK_EQ(gantry_seal_close(s, &(struct iovec){text, 18}, 1, out), 18 + GANTRY_SEAL_EXTRA);
}

static void check_opens(struct gantry_seal *s, const uint8_t record[64])
{
	char text[19] = "", why[GANTRY_SEAL_WHY];

	CHECK_EQ(gantry_seal_length(s, record, why), 18);
	CHECK(gantry_seal_open(s, record, &(struct iovec){text, 18}, 1));
	CHECK_STR(text, "the marked payload");
}

/* Whoever wants it gets it, and every session and direction has keys of its own. */
static void test_encrypt(void)
{
	uint8_t records[4][64];

	for (int i = 0; i < 2; i++) {
		struct pair p;

		CHECK_EQ(encrypt(&p, i ? &must : &on, &on), INET_PROVED);
		CHECK_EQ(p.hello[11], gantry_cipher_preferred() | (i ? 4 : 0));
		CHECK_EQ(p.challenge[11], gantry_cipher_preferred());
		CHECK_EQ(inet_handshake_accept(&p.server, "xy", 2), INET_DONE);
		CHECK_EQ(carry(&p.server, &p.client, p.answer), INET_DONE);
		CHECK(memcmp(p.client.payload, "xy", 2) == 0);
		seal(p.client.seals.tx, records[2 * i]);
		seal(p.server.seals.tx, records[2 * i + 1]);
		check_opens(p.server.seals.rx, records[2 * i]);
		check_opens(p.client.seals.rx, records[2 * i + 1]);
		end(&p);
	}
	for (int a = 0; a < 4; a++)
		for (int b = 0; b < a; b++)
			CHECK(memcmp(records[a] + GANTRY_SEAL_HEADER, records[b] + GANTRY_SEAL_HEADER, 18) != 0);
}

static void test_unwilling(void)
{
	struct pair p;
	uint8_t all[16 + sizeof(p.hello) + INET_CHALLENGE_SIZE + INET_ANSWER_SIZE] = "gantry server", mac[32];
	uint8_t *answer = all + 16 + sizeof(p.hello) + INET_CHALLENGE_SIZE;

	CHECK_EQ(encrypt(&p, &on, &secret), INET_PROVED);
	CHECK(!p.server.seals.tx);
	CHECK_EQ(inet_handshake_accept(&p.server, NULL, 0), INET_DONE);
	CHECK_EQ(carry(&p.server, &p.client, NULL), INET_DONE);
	CHECK(!p.client.seals.tx);
	CHECK_EQ(encrypt(&p, &secret, &on), INET_PROVED);
	CHECK_EQ(encrypt(&p, &secret, &must), INET_FAILED);
	CHECK(p.server.proved);
	check_refused(&p, GANTRY_ERR_AUTH,
		      "GANTRY_ENCRYPT=require on the accepting side, but the connecting side does not encrypt");
	CHECK_EQ(encrypt(&p, &must, &secret), INET_FAILED);
	CHECK(p.server.proved);
	check_refused(&p, GANTRY_ERR_AUTH,
		      "GANTRY_ENCRYPT=require on the connecting side, but the accepting side does not encrypt");
	/* A build that knows nothing of it does not refuse: then the connecting side does. */
	say_hello(&p, &must);
	CHECK_EQ(inet_handshake_challenge(&p.server, &secret), INET_AGAIN);
	CHECK_EQ(carry(&p.server, &p.client, p.challenge), INET_AGAIN);
	memcpy(all + 16, p.hello, sizeof(p.hello));
	memcpy(all + 16 + sizeof(p.hello), p.challenge, sizeof(p.challenge));
	memcpy(answer, "GANTRY\x02\n\x07", 9);
	CHECK_OK(gantry_hmac_sha256("alpha", 5, all, sizeof(all), mac));
	memcpy(answer + 16, mac, sizeof(mac));
	p.client.out_size = 0;
	CHECK_EQ(feed(&p.client, answer, INET_ANSWER_SIZE), INET_FAILED);
	CHECK(!p.client.refused);
	CHECK_EQ(p.client.error, GANTRY_ERR_AUTH);
	CHECK_STR(p.client.text,
		  "GANTRY_ENCRYPT=require on the connecting side, but the accepting side does not encrypt");
}

/* A stranger with another secret; nobody on the way talks them out of it; TLS of one connection is not that of another. */
static void test_downgrade(void)
{
	static const struct inet_key others = {INET_AUTH_SECRET, "beta", 4, INET_ENCRYPT_REQUIRE};
	struct pair p, q;
	uint8_t *hello, record[2048];
	size_t n;

	CHECK_EQ(encrypt(&p, &others, &must), INET_FAILED);
	CHECK(!p.server.proved);
	check_refused(&p, GANTRY_ERR_AUTH, "GANTRY_SECRET differs between the two sides");
	end(&p);
	/* The offer is taken out of the hello. */
	CHECK_OK(inet_handshake_start_client(&p.client, &test, &on, "abc", 3));
	inet_handshake_start_server(&p.server);
	hello = (uint8_t *)(uintptr_t)p.client.out;
	memcpy(p.hello, hello, sizeof(p.hello));
	p.hello[11] = 0;
	CHECK_EQ(feed(&p.server, p.hello, sizeof(p.hello)), INET_HELLO);
	p.client.out_size = 0;
	p.server.protocol = &test;
	CHECK_EQ(inet_handshake_challenge(&p.server, &on), INET_AGAIN);
	CHECK_EQ(carry(&p.server, &p.client, NULL), INET_AGAIN);
	CHECK_EQ(carry_some(&p.client, &p.server), INET_FAILED);
	CHECK_HAS(p.server.text, "GANTRY_SECRET differs");
	CHECK(!p.server.proved);
	/* The cipher is taken out of the challenge. */
	say_hello(&p, &on);
	CHECK_EQ(inet_handshake_challenge(&p.server, &on), INET_AGAIN);
	memcpy(p.challenge, p.server.out, sizeof(p.challenge));
	p.challenge[11] = 0;
	p.server.out_size = 0;
	CHECK_EQ(feed(&p.client, p.challenge, sizeof(p.challenge)), INET_AGAIN);
	CHECK_EQ(carry_some(&p.client, &p.server), INET_FAILED);
	CHECK(!p.server.proved);
	/* A cipher that was not offered. */
	say_hello(&p, &secret);
	p.challenge[11] = 1;
	CHECK_EQ(feed(&p.client, p.challenge, sizeof(p.challenge)), INET_FAILED);
	CHECK_EQ(p.client.error, GANTRY_ERR_PROTOCOL);
	/* Two connections at once: the client's TLS of one behind the proof of the other. */
	say_hello(&p, &on);
	say_hello(&q, &on);
	CHECK_EQ(inet_handshake_challenge(&p.server, &on), INET_AGAIN);
	CHECK_EQ(inet_handshake_challenge(&q.server, &on), INET_AGAIN);
	CHECK_EQ(carry(&p.server, &p.client, NULL), INET_AGAIN);
	CHECK_EQ(carry(&q.server, &q.client, NULL), INET_AGAIN);
	n = q.client.out_size;
	CHECK(n <= sizeof(record));
	memcpy(record, q.client.out, n);
	memcpy(record, p.client.out, INET_PROOF_SIZE);
	CHECK_EQ(feed(&p.server, record, n), INET_FAILED);
	CHECK_EQ(p.server.error, GANTRY_ERR_AUTH);
	CHECK_HAS(p.server.text, "TLS with the connecting side: ");
	p.client.out_size = 0;
	CHECK_EQ(carry(&p.server, &p.client, NULL), INET_FAILED);
	CHECK(p.client.refused);
	end(&p);
	end(&q);
}

/* A record that is changed anywhere but in its header, where TLS ignores a version. */
static void test_tls_tampering(void)
{
	for (int i = 0; i < 40; i++) {
		struct pair p;
		enum inet_event event;
		uint8_t said[2048];
		size_t n;

		CASE("%d", i);
		say_hello(&p, &must);
		CHECK_EQ(inet_handshake_challenge(&p.server, &must), INET_AGAIN);
		CHECK_EQ(carry(&p.server, &p.client, NULL), INET_AGAIN);
		if (i % 2) { /* what the server says */
			CHECK_EQ(carry(&p.client, &p.server, NULL), INET_AGAIN);
			n = p.server.out_size;
			memcpy(said, p.server.out, n);
			said[5 + (size_t)i * 331 % (n - 5)] ^= 4;
			event = feed(&p.client, said, n);
		} else {
			n = p.client.out_size;
			memcpy(said, p.client.out, n);
			said[INET_PROOF_SIZE + 5 + (size_t)i * 331 % (n - INET_PROOF_SIZE - 5)] ^= 4;
			event = feed(&p.server, said, n);
		}
		/* A length that is now larger waits for more. */
		CHECK(event == INET_FAILED || event == INET_AGAIN);
		CHECK(!p.client.seals.tx && !p.server.seals.tx);
		end(&p);
	}
}

/* Over sockets: what follows the hand-shake is not touched, and an end in the middle is told from a refusal. */
static void test_sockets(void)
{
	struct inet_handshake c, s;
	char rest[8] = "";
	int fd[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	CHECK_OK(inet_handshake_start_client(&c, &test, &secret, "abc", 3));
	inet_handshake_start_server(&s);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_AGAIN);
	CHECK_EQ(inet_handshake_move(&c, fd[0]), INET_AGAIN);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_HELLO);
	s.protocol = &test;
	CHECK_EQ(inet_handshake_challenge(&s, &secret), INET_AGAIN);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_AGAIN);
	CHECK_EQ(inet_handshake_move(&c, fd[0]), INET_AGAIN);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_PROVED);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_AGAIN); /* owes an answer */
	CHECK_EQ(inet_handshake_accept(&s, "xy", 2), INET_DONE);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_DONE);
	CHECK_EQ(send(fd[1], "frame", 5, 0), 5);
	CHECK_EQ(inet_handshake_move(&c, fd[0]), INET_DONE);
	CHECK_EQ(recv(fd[0], rest, sizeof(rest), MSG_DONTWAIT), 5);
	CHECK_STR(rest, "frame");
	close(fd[0]);
	inet_handshake_start_server(&s);
	CHECK_EQ(inet_handshake_move(&s, fd[1]), INET_FAILED);
	CHECK(s.broken);
	CHECK_STR(s.text, "it left");
	close(fd[1]);
}

int main(void)
{
	test_agree();
	test_refusals();
	test_versions();
	test_strangers();
	test_formers();
	if (GANTRY_HAVE_OPENSSL) {
		test_bytes();
		test_settings();
		test_replay();
		test_tampering();
		test_sockets();
		test_sizes();
		test_encrypt();
		test_unwilling();
		test_downgrade();
		test_tls_tampering();
	}
	return 0;
}
