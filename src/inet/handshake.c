/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/handshake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/build.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/openssl.h"
#include "gantry/version.h"
#include "inet/tls.h"

static const uint64_t starved_max_ns = 1000000000;
enum { MAGIC_SIZE = 8 };
static const uint8_t hello_magic[MAGIC_SIZE] = "GANTRY\x01\n";
static const uint8_t answer_magic[MAGIC_SIZE] = "GANTRY\x02\n"; /* and of challenges */
static const uint8_t proof_magic[MAGIC_SIZE] = "GANTRY\x03\n";

/* Where things stand in a message. Hello and answer begin alike. */
enum {
	AT_VERSION = 8,
	AT_AUTH = 10,	 /* hello */
	AT_VERDICT = 10, /* answer */
	AT_OFFER = 11,	 /* hello */
	AT_CIPHER = 11,	 /* challenge */
	AT_PAYLOAD_SIZE = 12,
	HEAD_SIZE = 16,
	AT_NAME = 16, /* hello */
	AT_NONCE = 24,
	AT_BUILD = 40,
	AT_SELF = 64,
	AT_SETTINGS = 112,
	AT_CHALLENGE_NONCE = 16, /* challenge */
	AT_MAC = 16,		 /* answer */
	AT_TEXT = 104,
};

/* Numbers, size and text of an answer are those of the welcome of former versions, which so can read a refusal. */
enum verdict { OK = 0, REFUSED_VERSION = 2, REFUSED_SETTING, REFUSED_AUTH, REFUSED, REFUSED_LIMIT, CHALLENGE };
static const struct {
	enum verdict verdict;
	gantry_result sent, heard;
} refusals[] = {
	{REFUSED_VERSION, GANTRY_ERR_VERSION, GANTRY_ERR_VERSION},
	{REFUSED_SETTING, GANTRY_ERR_SETTING, GANTRY_ERR_SETTING},
	{REFUSED_AUTH, GANTRY_ERR_AUTH, GANTRY_ERR_AUTH},
	{REFUSED, GANTRY_ERR_REFUSED, GANTRY_ERR_REFUSED},
	{REFUSED_LIMIT, GANTRY_ERR_LIMIT, GANTRY_ERR_REFUSED}, /* the limit is the peer's */
};

__attribute__((format(printf, 3, 4))) static enum inet_event fail(struct inet_handshake *h, gantry_result r,
								  const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(h->text, sizeof(h->text), fmt, ap);
	va_end(ap);
	h->error = r;
	h->state = INET_OVER_FAILED;
	return INET_FAILED;
}

/* ---- proofs ---- */

/* Over the whole transcript up to `end`. The label separates the MACs by purpose. */
static gantry_result make_labelled(struct inet_handshake *h, const char *label, size_t end,
				   uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	put_text(h->said, INET_LABEL_SIZE, label);
	return gantry_hmac_sha256(h->key.bytes, h->key.size, h->said, end, ret_mac);
}

static gantry_result make_mac(struct inet_handshake *h, bool client, size_t end, uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	if (h->key.auth == INET_AUTH_SHOWN) {
		memset(ret_mac, 0, GANTRY_MAC_SIZE);
		memcpy(ret_mac, (const uint8_t *)h->key.bytes + (client ? INET_SHOWN_SIZE / 2 : 0),
		       INET_SHOWN_SIZE / 2);
		return GANTRY_OK;
	}
	return make_labelled(h, client ? "gantry client" : "gantry server", end, ret_mac);
}

static bool is_mac(struct inet_handshake *h, bool client, size_t end, const uint8_t mac[GANTRY_MAC_SIZE])
{
	uint8_t expected[GANTRY_MAC_SIZE];

	return make_mac(h, client, end, expected) == GANTRY_OK && gantry_equal_secret(mac, expected, GANTRY_MAC_SIZE);
}

/* ---- encryption ---- */

/* In hello: the cipher that this side prefers, and a bit if it insists. */
enum { OFFER_CIPHERS = 3, OFFER_REQUIRES = 4 };

/* While TLS runs, and until its last bytes are sent. */
struct inet_exchange {
	struct inet_tls *tls; /* owned; NULL: over */
	uint8_t in[INET_TLS_RECORD_MAX];
	uint8_t out[INET_PROOF_SIZE + 2 * INET_TLS_RECORD_MAX];
};

static uint8_t offer_of(const struct inet_key *key)
{
	if (key->auth != INET_AUTH_SECRET || key->encrypt == INET_ENCRYPT_OFF)
		return 0;
	return (uint8_t)(gantry_cipher_preferred() | (key->encrypt == INET_ENCRYPT_REQUIRE ? OFFER_REQUIRES : 0));
}

/* AES where it is the faster one on both CPUs. */
static enum gantry_cipher choose_cipher(uint8_t mine, uint8_t theirs)
{
	int a = mine & OFFER_CIPHERS, b = theirs & OFFER_CIPHERS;

	if (!a || !b || a >= GANTRY_CIPHERS || b >= GANTRY_CIPHERS)
		return GANTRY_CIPHER_NONE;
	return a == GANTRY_CIPHER_AES_128_GCM ? (enum gantry_cipher)b : (enum gantry_cipher)a;
}

void inet_seals_free(struct inet_seals *s)
{
	gantry_seal_free(s->tx);
	gantry_seal_free(s->rx);
	*s = (struct inet_seals){0};
}

void inet_handshake_end(struct inet_handshake *h)
{
	inet_seals_free(&h->seals);
	if (!h->exchange)
		return;
	inet_tls_free(h->exchange->tls);
	free(h->exchange);
	h->exchange = NULL;
	h->out_size = 0;
}

/* Both have proved themselves, or the client is about to. The pre-shared key is bound to hello and challenge. */
static bool start_tls(struct inet_handshake *h, bool client)
{
	struct inet_exchange *x = h->exchange = calloc(1, sizeof(*x));
	uint8_t psk[GANTRY_MAC_SIZE];

	if (!x || gantry_openssl_load() != GANTRY_OK || make_labelled(h, "gantry tls", h->at, psk) != GANTRY_OK)
		return false;
	x->tls = inet_tls_new(client, psk);
	explicit_bzero(psk, sizeof(psk));
	h->got = 0;
	h->state = INET_HEAR_TLS;
	return x->tls != NULL;
}

/* TLS is over: the seals of both directions. The context names hello and challenge, and so protocol, session and lane. */
static bool make_seals(struct inet_handshake *h, bool client)
{
	uint8_t secrets[2][GANTRY_SEAL_SECRET];
	uint8_t mine = client ? 0 : 1;
	bool made =
		inet_tls_export(h->exchange->tls, h->said + INET_LABEL_SIZE, h->at - INET_LABEL_SIZE, secrets) &&
		gantry_seal_new(h->cipher, secrets[mine], mine, true, GANTRY_SEAL_REKEY, &h->seals.tx) == GANTRY_OK &&
		gantry_seal_new(h->cipher, secrets[!mine], !mine, false, GANTRY_SEAL_REKEY, &h->seals.rx) == GANTRY_OK;

	explicit_bzero(secrets, sizeof(secrets));
	inet_tls_free(h->exchange->tls);
	h->exchange->tls = NULL;
	return made;
}

/* ---- outgoing messages ---- */

static void put_head(uint8_t *at, const uint8_t magic[MAGIC_SIZE], uint16_t version, uint8_t kind, size_t payload_size)
{
	memcpy(at, magic, MAGIC_SIZE);
	put16(at + AT_VERSION, version);
	at[AT_VERDICT] = kind;
	put32(at + AT_PAYLOAD_SIZE, (uint32_t)payload_size);
}

static void queue_message(struct inet_handshake *h, const uint8_t *bytes, size_t size)
{
	h->out = bytes;
	h->out_size = size;
}

static void put_settings(const struct inet_protocol *p, char out[INET_SETTINGS_SIZE])
{
	memset(out, 0, INET_SETTINGS_SIZE);
	if (p->settings)
		p->settings(out);
}

gantry_result inet_handshake_start_client(struct inet_handshake *h, const struct inet_protocol *protocol,
					  const struct inet_key *key, const void *payload, size_t payload_size)
{
	uint8_t *m = h->said + INET_LABEL_SIZE;
	char settings[INET_SETTINGS_SIZE];
	gantry_result r;

	ASSERT(payload_size <= INET_PAYLOAD_MAX && protocol->version >= INET_FIRST_VERSION);
	memset(h, 0, sizeof(*h));
	h->protocol = protocol;
	h->key = *key;
	h->state = INET_HEAR_ANSWER;
	put_head(m, hello_magic, protocol->version, (uint8_t)key->auth, payload_size);
	m[AT_OFFER] = offer_of(key);
	memcpy(m + AT_NAME, protocol->name, INET_NAME_SIZE);
	r = gantry_random_bytes(m + AT_NONCE, INET_NONCE_SIZE);
	if (r != GANTRY_OK)
		return r;
	snprintf((char *)m + AT_BUILD, INET_BUILD_SIZE, "%s %.12s", GANTRY_VERSION, gantry_commit);
	put_text(m + AT_SELF, INET_SELF_SIZE, gantry_self());
	put_settings(protocol, settings);
	memcpy(m + AT_SETTINGS, settings, INET_SETTINGS_SIZE);
	if (payload_size)
		memcpy(m + INET_HELLO_SIZE, payload, payload_size);
	h->at = INET_LABEL_SIZE + INET_HELLO_SIZE + payload_size;
	queue_message(h, m, INET_HELLO_SIZE + payload_size);
	return GANTRY_OK;
}

void inet_handshake_start_server(struct inet_handshake *h)
{
	memset(h, 0, sizeof(*h));
	h->state = INET_HEAR_HELLO;
	h->at = INET_LABEL_SIZE;
}

static enum inet_event put_refusal(struct inet_handshake *h, gantry_result r)
{
	enum verdict verdict = REFUSED;
	uint8_t *m = h->said + h->at;

	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++)
		if (refusals[i].sent == r)
			verdict = refusals[i].verdict;
	memset(m, 0, INET_ANSWER_SIZE);
	put_head(m, answer_magic, h->protocol ? h->protocol->version : INET_FIRST_VERSION, (uint8_t)verdict, 0);
	put_text(m + AT_TEXT, INET_TEXT_SIZE, h->text);
	queue_message(h, m, INET_ANSWER_SIZE);
	return INET_FAILED;
}

enum inet_event inet_handshake_refuse(struct inet_handshake *h, gantry_result r, const char *fmt, ...)
{
	char text[INET_TEXT_SIZE];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fail(h, r, "%s", text);
	return put_refusal(h, r);
}

enum inet_event inet_handshake_accept(struct inet_handshake *h, const void *payload, size_t payload_size)
{
	uint8_t *m = h->said + h->at;
	size_t size = INET_ANSWER_SIZE + payload_size;
	uint8_t mac[GANTRY_MAC_SIZE];

	ASSERT(h->state == INET_OWES_ANSWER && payload_size <= INET_PAYLOAD_MAX);
	memset(m, 0, INET_ANSWER_SIZE);
	put_head(m, answer_magic, h->protocol->version, OK, payload_size);
	put_text(m + AT_TEXT, INET_TEXT_SIZE, gantry_self());
	if (payload_size)
		memcpy(m + INET_ANSWER_SIZE, payload, payload_size);
	if (h->key.auth != INET_AUTH_NONE) {
		if (make_mac(h, false, h->at + size, mac) != GANTRY_OK)
			return fail(h, GANTRY_ERR_UNSUPPORTED, "no common authentication method");
		memcpy(m + AT_MAC, mac, sizeof(mac));
	}
	queue_message(h, m, size);
	h->state = INET_OVER_DONE;
	return INET_DONE;
}

/* ---- former versions ---- */

/*
 * Before this handshake the control plane and the pipeline had hellos of their own. Such builds get a refusal in their
 * own format, which reports the version difference; those of the data network understand our refusals.
 */
static size_t refuse_ctl(uint8_t *out, const char *text)
{
	uint8_t head[32] = "GCTL";

	put32(head + 4, 5); /* REFUSED */
	put32(head + 8, UINT32_MAX);
	put32(head + 12, UINT32_MAX);
	put32(head + 24, (uint32_t)strlen(text));
	put32(head + 28, GANTRY_ERR_VERSION);
	memcpy(out, head, sizeof(head));
	memcpy(out + sizeof(head), text, strlen(text));
	return sizeof(head) + strlen(text);
}

static size_t refuse_rx(uint8_t *out, const char *text)
{
	(void)text; /* it goes by the number */
	memset(out, 0, 208);
	memcpy(out, "GANTRYrx", 8);
	put16(out + 8, INET_FIRST_VERSION);
	put16(out + 10, 5); /* REFUSED: the version */
	out[13] = 1;
	return 208;
}

static const struct former {
	const char *magic;
	size_t magic_size, hello_size;
	size_t (*refuse)(uint8_t *out, const char *text);
} formers[] = {{"GCTL", 4, 160, refuse_ctl}, {"GANTRYrx", 8, 208, refuse_rx}};

static const struct former *former_of(const uint8_t *m, size_t n)
{
	for (size_t i = 0; i < sizeof(formers) / sizeof(*formers); i++)
		if (n >= formers[i].magic_size && memcmp(m, formers[i].magic, formers[i].magic_size) == 0)
			return &formers[i];
	return NULL;
}

/* Whether the bytes so far may begin a hello: a stranger need not fill one to be known. */
static bool may_be_hello(const uint8_t *m, size_t n)
{
	if (memcmp(m, hello_magic, n < MAGIC_SIZE ? n : MAGIC_SIZE) == 0)
		return true;
	for (size_t i = 0; i < sizeof(formers) / sizeof(*formers); i++)
		if (memcmp(m, formers[i].magic, n < formers[i].magic_size ? n : formers[i].magic_size) == 0)
			return true;
	return false;
}

/* ---- the accepting side hears ---- */

/* Sizes of messages, as far as what is there tells; 0: no such message. */
static size_t hello_size(const uint8_t *m, size_t got)
{
	const struct former *f = former_of(m, got);
	size_t payload;

	if (f)
		return f->hello_size;
	if (!may_be_hello(m, got))
		return 0;
	if (got < HEAD_SIZE)
		return HEAD_SIZE;
	payload = get16(m + AT_VERSION) < INET_FIRST_VERSION ? 0 : get32(m + AT_PAYLOAD_SIZE);
	return payload > INET_PAYLOAD_MAX ? 0 : INET_HELLO_SIZE + payload;
}

static enum inet_event refuse_version(struct inet_handshake *h, int ours)
{
	const struct inet_protocol *p = h->protocol;

	return inet_handshake_refuse(h, GANTRY_ERR_VERSION,
				     "protocol version differs: %d (%s) and %d (%s); gantry %s here", ours,
				     p ? p->accepting : "accepting side", h->peer_version,
				     p ? p->connecting : "connecting side", GANTRY_VERSION);
}

static enum inet_event refuse_former(struct inet_handshake *h, const struct former *f)
{
	refuse_version(h, INET_FIRST_VERSION);
	queue_message(h, h->said + h->at, f->refuse(h->said + h->at, h->text));
	return INET_FAILED;
}

static enum inet_event heard_hello(struct inet_handshake *h, const uint8_t *m)
{
	const struct former *f = former_of(m, h->got);

	if (f) {
		h->peer_version = get16(f->refuse == refuse_ctl ? m + 32 : m + AT_VERSION);
		return refuse_former(h, f);
	}
	h->peer_version = get16(m + AT_VERSION);
	h->at += h->got;
	if (h->peer_version < INET_FIRST_VERSION)
		return refuse_version(h, INET_FIRST_VERSION);
	h->peer_auth = (enum inet_auth)m[AT_AUTH];
	get_text(h->name, sizeof(h->name), m + AT_NAME);
	get_text(h->build, sizeof(h->build), m + AT_BUILD);
	get_text(h->peer, sizeof(h->peer), m + AT_SELF);
	get_text(h->settings, sizeof(h->settings), m + AT_SETTINGS);
	h->payload = m + INET_HELLO_SIZE;
	h->payload_size = h->got - INET_HELLO_SIZE;
	h->state = INET_ASKED;
	return INET_HELLO;
}

static enum inet_event refuse_auth(struct inet_handshake *h)
{
	bool ours = h->key.auth > h->peer_auth; /* the stronger one */

	if (h->peer_auth == INET_AUTH_SECRET || h->key.auth == INET_AUTH_SECRET)
		return inet_handshake_refuse(h, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the %s",
					     ours ? h->protocol->accepting : h->protocol->connecting);
	if (h->peer_auth == INET_AUTH_SHOWN || h->key.auth == INET_AUTH_SHOWN)
		return inet_handshake_refuse(h, GANTRY_ERR_AUTH, "only the build of the %s has OpenSSL",
					     ours ? h->protocol->accepting : h->protocol->connecting);
	return inet_handshake_refuse(h, GANTRY_ERR_AUTH, "the two sides use different authentication methods");
}

/* The value of the setting whose name ends at `end`; NULL: it is not among these. */
static const char *find_setting(const char *settings, const char *name, size_t name_size, size_t *ret_size)
{
	for (const char *s = settings; *s; s += strcspn(s, " "), s += strspn(s, " "))
		if (strncmp(s, name, name_size) == 0 && s[name_size] == '=') {
			*ret_size = strcspn(s + name_size + 1, " ");
			return s + name_size + 1;
		}
	return NULL;
}

/* One side insists on encryption, the other does not have it. */
static enum inet_event refuse_plain(struct inet_handshake *h, uint8_t mine)
{
	return inet_handshake_refuse(h, GANTRY_ERR_AUTH,
				     "GANTRY_ENCRYPT=require on the %s, but the %s does not encrypt",
				     mine & OFFER_REQUIRES ? h->protocol->accepting : h->protocol->connecting,
				     mine & OFFER_REQUIRES ? h->protocol->connecting : h->protocol->accepting);
}

/* The peer is authenticated. Settings that must agree are compared now, so that both sides report a mismatch. */
static enum inet_event compare_settings(struct inet_handshake *h)
{
	char ours[INET_SETTINGS_SIZE];
	uint8_t offer = offer_of(&h->key);

	h->proved = true;
	if (!h->cipher && ((offer | h->said[INET_LABEL_SIZE + AT_OFFER]) & OFFER_REQUIRES))
		return refuse_plain(h, offer);
	put_settings(h->protocol, ours);
	for (const char *s = ours; *s; s += strcspn(s, " "), s += strspn(s, " ")) {
		size_t name = strcspn(s, "= "), n, m = 0;
		const char *mine = find_setting(ours, s, name, &n), *theirs = find_setting(h->settings, s, name, &m);

		if (mine && (!theirs || n != m || memcmp(mine, theirs, n) != 0))
			return inet_handshake_refuse(h, GANTRY_ERR_SETTING, "%.*s differs: %.*s (%s) and %.*s (%s)",
						     (int)name, s, (int)n, mine, h->protocol->accepting,
						     theirs ? (int)m : 7, theirs ? theirs : "nothing",
						     h->protocol->connecting);
	}
	h->state = INET_OWES_ANSWER;
	return INET_PROVED;
}

enum inet_event inet_handshake_challenge(struct inet_handshake *h, const struct inet_key *key)
{
	uint8_t *m = h->said + h->at;

	ASSERT(h->state == INET_ASKED && h->protocol);
	h->key = *key;
	h->proved = key->auth == INET_AUTH_NONE;
	if (h->peer_version != h->protocol->version)
		return refuse_version(h, h->protocol->version);
	if (h->peer_auth != key->auth)
		return refuse_auth(h);
	if (h->proved)
		return compare_settings(h);
	memset(m, 0, INET_CHALLENGE_SIZE);
	put_head(m, answer_magic, h->protocol->version, CHALLENGE, 0);
	h->cipher = choose_cipher(offer_of(key), h->said[INET_LABEL_SIZE + AT_OFFER]);
	m[AT_CIPHER] = (uint8_t)h->cipher;
	if (gantry_random_bytes(m + AT_CHALLENGE_NONCE, INET_NONCE_SIZE) != GANTRY_OK)
		return fail(h, GANTRY_ERR_SYSTEM, "no random bytes");
	queue_message(h, m, INET_CHALLENGE_SIZE);
	h->at += INET_CHALLENGE_SIZE;
	h->got = 0;
	h->state = INET_HEAR_PROOF;
	return INET_AGAIN;
}

static size_t proof_size(const uint8_t *m, size_t got)
{
	return memcmp(m, proof_magic, got < MAGIC_SIZE ? got : MAGIC_SIZE) == 0 ? INET_PROOF_SIZE : 0;
}

static enum inet_event heard_proof(struct inet_handshake *h, const uint8_t *m)
{
	enum inet_event event;

	if (!is_mac(h, true, h->at, m + MAGIC_SIZE))
		return inet_handshake_refuse(
			h, GANTRY_ERR_AUTH,
			h->key.auth == INET_AUTH_SECRET ? "GANTRY_SECRET differs between the two sides" : "wrong key");
	event = compare_settings(h);
	if (event != INET_PROVED || !h->cipher)
		return event;
	if (!start_tls(h, false))
		return inet_handshake_refuse(h, GANTRY_ERR_UNSUPPORTED, "no TLS on the %s", h->protocol->accepting);
	return INET_AGAIN;
}

/* ---- the connecting side hears ---- */

/* Of another version nothing is known but where a refusal has its text. */
static size_t answer_size(const uint8_t *m, size_t got)
{
	size_t payload;

	if (memcmp(m, answer_magic, got < MAGIC_SIZE ? got : MAGIC_SIZE) != 0)
		return 0;
	if (got < HEAD_SIZE)
		return HEAD_SIZE;
	if (get16(m + AT_VERSION) < INET_FIRST_VERSION)
		return INET_ANSWER_SIZE;
	payload = get32(m + AT_PAYLOAD_SIZE);
	if (m[AT_VERDICT] == CHALLENGE) /* `said` has room for a challenge without payload */
		return payload ? 0 : INET_CHALLENGE_SIZE;
	return payload > INET_PAYLOAD_MAX ? 0 : INET_ANSWER_SIZE + payload;
}

/* The client's first words of TLS go with its proof. */
static enum inet_event prove_and_begin(struct inet_handshake *h)
{
	struct inet_exchange *x;
	char why[64] = "no libssl";

	if (!start_tls(h, true) || inet_tls_input(h->exchange->tls, NULL, 0, why, sizeof(why)) != 0)
		return fail(h, GANTRY_ERR_UNSUPPORTED, "TLS on the %s: %s", h->protocol->connecting, why);
	x = h->exchange;
	memcpy(x->out, h->proof, INET_PROOF_SIZE);
	queue_message(h, x->out,
		      INET_PROOF_SIZE +
			      inet_tls_output(x->tls, x->out + INET_PROOF_SIZE, sizeof(x->out) - INET_PROOF_SIZE));
	return INET_AGAIN;
}

/* A cipher that was not offered is nothing that a peer of ours says. */
static enum inet_event prove_key(struct inet_handshake *h, uint8_t cipher)
{
	uint8_t offer = h->said[INET_LABEL_SIZE + AT_OFFER];

	if (h->key.auth == INET_AUTH_NONE)
		return fail(h, GANTRY_ERR_AUTH, "GANTRY_SECRET is set only on the %s", h->protocol->accepting);
	if (cipher >= GANTRY_CIPHERS || (cipher && !offer))
		return fail(h, GANTRY_ERR_PROTOCOL, "peer chose a cipher that is not available here");
	h->cipher = (enum gantry_cipher)cipher;
	h->at += h->got;
	h->got = 0;
	memcpy(h->proof, proof_magic, MAGIC_SIZE);
	if (make_mac(h, true, h->at, h->proof + MAGIC_SIZE) != GANTRY_OK)
		return fail(h, GANTRY_ERR_UNSUPPORTED, "no common authentication method");
	if (h->cipher)
		return prove_and_begin(h);
	queue_message(h, h->proof, INET_PROOF_SIZE);
	h->state = INET_HEAR_LAST;
	return INET_AGAIN;
}

/* Without a key there is nothing to know it by. */
static bool is_from_peer(struct inet_handshake *h, uint8_t *m)
{
	uint8_t mac[GANTRY_MAC_SIZE];

	if (h->key.auth == INET_AUTH_NONE)
		return true;
	memcpy(mac, m + AT_MAC, sizeof(mac));
	memset(m + AT_MAC, 0, sizeof(mac)); /* it cannot cover itself */
	return h->state == INET_HEAR_LAST && is_mac(h, false, h->at + h->got, mac);
}

static enum inet_event heard_refusal(struct inet_handshake *h, const uint8_t *m)
{
	char text[INET_TEXT_SIZE];

	get_text(text, sizeof(text), m + AT_TEXT);
	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++)
		if (refusals[i].verdict == m[AT_VERDICT]) {
			h->refused = true;
			return fail(h, refusals[i].heard, "%s", text);
		}
	return fail(h, GANTRY_ERR_PROTOCOL, "peer is not a Gantry endpoint");
}

static enum inet_event heard_answer(struct inet_handshake *h, const uint8_t *m)
{
	uint8_t verdict = m[AT_VERDICT];

	h->peer_version = get16(m + AT_VERSION);
	if (verdict >= REFUSED_VERSION && verdict <= REFUSED_LIMIT)
		return heard_refusal(h, m);
	if (h->peer_version != h->protocol->version)
		return fail(h, GANTRY_ERR_VERSION, "protocol version differs: %d (%s) and %d (%s)",
			    h->protocol->version, h->protocol->connecting, h->peer_version, h->protocol->accepting);
	if (verdict == CHALLENGE && h->state == INET_HEAR_ANSWER)
		return prove_key(h, m[AT_CIPHER]);
	if (verdict != OK)
		return heard_refusal(h, m);
	if (!is_from_peer(h, h->said + h->at))
		return fail(h, GANTRY_ERR_AUTH,
			    h->key.auth == INET_AUTH_SECRET ? "peer does not have the same GANTRY_SECRET"
							    : "peer does not have the key");
	if (!h->cipher && h->key.encrypt == INET_ENCRYPT_REQUIRE)
		return fail(h, GANTRY_ERR_AUTH, "GANTRY_ENCRYPT=require on the %s, but the %s does not encrypt",
			    h->protocol->connecting, h->protocol->accepting);
	get_text(h->peer, sizeof(h->peer), m + AT_TEXT);
	h->payload = m + INET_ANSWER_SIZE;
	h->payload_size = h->got - INET_ANSWER_SIZE;
	h->state = INET_OVER_DONE;
	return INET_DONE;
}

/* ---- both sides hear TLS ---- */

/* Instead of a record the client may hear why it is refused. */
static size_t tls_size(const uint8_t *m, size_t got)
{
	return got && m[0] == answer_magic[0] ? answer_size(m, got) : inet_tls_record_size(m, got);
}

static enum inet_event tls_failed(struct inet_handshake *h, bool client, const char *why)
{
	if (client)
		return fail(h, GANTRY_ERR_AUTH, "TLS with the %s: %s", h->protocol->accepting, why);
	return inet_handshake_refuse(h, GANTRY_ERR_AUTH, "TLS with the %s: %s", h->protocol->connecting, why);
}

static enum inet_event heard_tls(struct inet_handshake *h, const uint8_t *m)
{
	struct inet_exchange *x = h->exchange;
	bool client = !h->proved;
	char why[128];
	int rc;

	if (m[0] == answer_magic[0])
		return client ? heard_refusal(h, m) : fail(h, GANTRY_ERR_PROTOCOL, "peer sent data before the reply");
	rc = inet_tls_input(x->tls, m, h->got, why, sizeof(why));
	h->got = 0;
	queue_message(h, x->out, inet_tls_output(x->tls, x->out, sizeof(x->out)));
	if (rc < 0)
		return tls_failed(h, client, why);
	if (!rc)
		return INET_AGAIN;
	if (!make_seals(h, client))
		return tls_failed(h, client, "no keys");
	h->state = client ? INET_HEAR_LAST : INET_OWES_ANSWER;
	return client ? INET_AGAIN : INET_PROVED;
}

/* ---- the machine ---- */

/* Incoming message of a state: its size as far as it is known, and the action when it is complete. */
static const struct {
	size_t (*size)(const uint8_t *m, size_t got);
	enum inet_event (*heard)(struct inet_handshake *h, const uint8_t *m);
	const char *not_that, *owes;
} states[INET_STATES] = {
	[INET_HEAR_HELLO] = {hello_size, heard_hello, "not a Gantry endpoint", "no hello message in time"},
	[INET_ASKED] = {.owes = "hello message was not processed in time"},
	[INET_HEAR_PROOF] = {proof_size, heard_proof, "not a proof", "no proof of the secret in time"},
	[INET_HEAR_TLS] = {tls_size, heard_tls, "not TLS", "TLS handshake did not finish in time"},
	[INET_OWES_ANSWER] = {.owes = "reply was not decided in time"},
	[INET_HEAR_ANSWER] = {answer_size, heard_answer, "peer is not a Gantry endpoint", "no answer"},
	[INET_HEAR_LAST] = {answer_size, heard_answer, "peer is not a Gantry endpoint", "no answer"},
	[INET_OVER_DONE] = {.owes = ""},
	[INET_OVER_FAILED] = {.owes = ""},
};

uint32_t inet_handshake_events(const struct inet_handshake *h)
{
	return h->out_size ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

const char *inet_handshake_owes(const struct inet_handshake *h)
{
	return states[h->state].owes;
}

static uint8_t *message_buffer(struct inet_handshake *h)
{
	if (h->state == INET_HEAR_TLS)
		return h->exchange->in;
	return h->state == INET_HEAR_PROOF ? h->proof : h->said + h->at;
}

size_t inet_handshake_room(struct inet_handshake *h, uint8_t **ret_at)
{
	uint8_t *m = message_buffer(h);
	size_t size = states[h->state].size ? states[h->state].size(m, h->got) : h->got;

	ASSERT(m + size <= (m == h->proof		? h->proof + sizeof(h->proof)
			    : h->state == INET_HEAR_TLS ? m + INET_TLS_RECORD_MAX
							: h->said + sizeof(h->said)));
	*ret_at = m + h->got;
	return size - h->got;
}

enum inet_event inet_handshake_input(struct inet_handshake *h, size_t n)
{
	uint8_t *m = message_buffer(h);
	size_t size;

	ASSERT(states[h->state].size);
	h->got += n;
	size = states[h->state].size(m, h->got);
	if (!size)
		return fail(h, GANTRY_ERR_PROTOCOL, "%s", states[h->state].not_that);
	return h->got < size ? INET_AGAIN : states[h->state].heard(h, m);
}

/* ---- over a socket ---- */

static enum inet_event fail_broken(struct inet_handshake *h, int e)
{
	h->broken = true;
	h->broken_errno = e;
	return fail(h, GANTRY_ERR_PEER_LOST, "%s", e ? strerror(e) : "it left");
}

/* The kernel has no memory for packets: that passes, or the connection is given up. 0, or errno. */
static int wait_for_memory(struct inet_handshake *h)
{
	uint64_t now = gantry_now_ns();

	if (!h->starved_since)
		h->starved_since = now;
	return now - h->starved_since < starved_max_ns ? 0 : ENOBUFS;
}

/* 0, or errno. */
static int flush_output(struct inet_handshake *h, int fd)
{
	while (h->out_size) {
		ssize_t n = send(fd, h->out, h->out_size, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == ENOBUFS)
			return wait_for_memory(h);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : errno;
		h->starved_since = 0;
		h->out += n;
		h->out_size -= (size_t)n;
	}
	return 0;
}

/* While its answer is due, a peer has nothing to say. */
static enum inet_event hear_nothing(struct inet_handshake *h, int fd)
{
	uint8_t extra;
	ssize_t n = recv(fd, &extra, 1, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return INET_AGAIN;
	return n > 0 ? fail(h, GANTRY_ERR_PROTOCOL, "peer sent data before the reply") : fail_broken(h, n ? errno : 0);
}

static enum inet_event receive_messages(struct inet_handshake *h, int fd)
{
	enum inet_event event = INET_AGAIN;

	while (event == INET_AGAIN && states[h->state].size) {
		uint8_t *at;
		size_t room = inet_handshake_room(h, &at);
		ssize_t n = recv(fd, at, room, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return INET_AGAIN;
		if (n <= 0)
			return fail_broken(h, n ? errno : 0);
		event = inet_handshake_input(h, (size_t)n);
	}
	return event;
}

enum inet_event inet_handshake_move(struct inet_handshake *h, int fd)
{
	enum inet_event event = INET_AGAIN;
	int e = flush_output(h, fd);

	if (h->state == INET_OVER_FAILED)
		return INET_FAILED;
	if (e)
		return fail_broken(h, e);
	if (h->out_size) /* also while it is connecting */
		return INET_AGAIN;
	if (h->state == INET_OVER_DONE)
		return INET_DONE;
	event = states[h->state].size ? receive_messages(h, fd) : hear_nothing(h, fd);
	e = flush_output(h, fd);
	return e && event != INET_FAILED ? fail_broken(h, e) : event;
}
