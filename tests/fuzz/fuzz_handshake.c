/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Foreign bytes to either side of the hand-shake, in pieces of foreign sizes. The first byte picks the side, how it
 * authenticates and whether it encrypts (a client then speaks TLS with whoever challenges it), the second the size of the
 * pieces. Whoever does not know the key comes to nothing; texts are fit for a
 * log line; no more is taken than belongs to the hand-shake.
 */
#include "base/log.h"
#include "inet/handshake.h"
#include "script.h"

static void settings(char out[INET_SETTINGS_SIZE])
{
	strcpy(out, "GANTRY_CRC=1");
}

static const struct inet_protocol test = {"test", 4, "accepting side", "connecting side", settings};
static const struct inet_key keys[] = {
	{INET_AUTH_NONE, NULL, 0, INET_ENCRYPT_OFF},
	{INET_AUTH_SHOWN, "0123456789abcdef0123456789ABCDEF", 32, INET_ENCRYPT_OFF},
	{INET_AUTH_KEY, "0123456789abcdef0123456789ABCDEF", 32, INET_ENCRYPT_OFF},
	{INET_AUTH_SECRET, "alpha", 5, INET_ENCRYPT_OFF},
};
static const struct inet_key encrypts = {INET_AUTH_SECRET, "alpha", 5, INET_ENCRYPT_REQUIRE};

static void must_be_printable(const char *text, size_t room)
{
	size_t n = strnlen(text, room);

	MUST(n < room);
	for (size_t i = 0; i < n; i++)
		MUST(text[i] >= 0x20 && text[i] < 0x7f);
}

static void look(const struct inet_handshake *h)
{
	must_be_printable(h->build, sizeof(h->build));
	must_be_printable(h->peer, sizeof(h->peer));
	must_be_printable(h->settings, sizeof(h->settings));
	must_be_printable(h->text, sizeof(h->text));
	MUST(h->payload_size <= INET_PAYLOAD_MAX);
	MUST(!h->payload_size || (h->payload >= h->said && h->payload + h->payload_size <= h->said + sizeof(h->said)));
	MUST(!h->out_size || (h->out >= h->said && h->out + h->out_size <= h->said + sizeof(h->said)) ||
	     (h->out >= h->proof && h->out + h->out_size <= h->proof + sizeof(h->proof)) || h->exchange);
	MUST(!h->seals.tx && !h->seals.rx);
}

static enum inet_event decide(struct inet_handshake *h, enum inet_event event, const struct inet_key *key)
{
	if (event == INET_HELLO) {
		h->protocol = &test;
		event = inet_handshake_challenge(h, key);
	}
	if (event == INET_PROVED) {
		MUST(h->proved && h->peer_version == test.version);
		/* The half of a key that is shown can be guessed, by one who has its bytes in his corpus. */
		MUST(key->auth <= INET_AUTH_SHOWN);
		event = inet_handshake_accept(h, "answer", 6);
	}
	return event;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct inet_handshake h;
	const struct inet_key *key;
	enum inet_event event = INET_AGAIN;
	size_t piece;

	if (size < 2)
		return 0;
	key = &keys[(data[0] >> 1) % 4];
	if (GANTRY_HAVE_OPENSSL && key->auth == INET_AUTH_SECRET && data[0] & 8)
		key = &encrypts;
	piece = data[1] ? data[1] : 1000;
	if (data[0] & 1)
		inet_handshake_start_server(&h);
	else if (inet_handshake_start_client(&h, &test, key, "hello", 5) != GANTRY_OK)
		return 0;
	for (data += 2, size -= 2; size && event == INET_AGAIN;) {
		uint8_t *at;
		size_t n = inet_handshake_room(&h, &at);

		MUST(n > 0 && (at + n <= (uint8_t *)(&h + 1) || h.state == INET_HEAR_TLS));
		n = n < size ? n : size;
		n = n < piece ? n : piece;
		memcpy(at, data, n);
		event = decide(&h, inet_handshake_input(&h, n), key);
		data += n;
		size -= n;
		look(&h);
	}
	MUST(event != INET_DONE || key->auth <= INET_AUTH_SHOWN);
	MUST(event != INET_FAILED || (h.error > GANTRY_AGAIN && *h.text) || h.refused);
	inet_handshake_end(&h);
	return 0;
}
