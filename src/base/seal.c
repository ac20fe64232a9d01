/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_BASE
#include "base/seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/openssl.h"

enum { MAGIC = 0x5347, IV_SIZE = 12, KEY_MAX = 32 };
enum { AT_MAGIC = 0, AT_DIRECTION = 2, AT_LENGTH = 4, AT_NUMBER = 8 };

static const struct {
	const char *name;
	size_t key_size;
} ciphers[GANTRY_CIPHERS] = {
	[GANTRY_CIPHER_NONE] = {"no encryption", 0},
	[GANTRY_CIPHER_AES_128_GCM] = {"AES-128-GCM", 16},
	[GANTRY_CIPHER_CHACHA20_POLY1305] = {"ChaCha20-Poly1305", 32},
};

const char *gantry_cipher_name(enum gantry_cipher c)
{
	return ciphers[c].name;
}

enum gantry_cipher gantry_cipher_preferred(void)
{
#if defined(__aarch64__)
	return getauxval(AT_HWCAP) & HWCAP_AES ? GANTRY_CIPHER_AES_128_GCM : GANTRY_CIPHER_CHACHA20_POLY1305;
#elif defined(__x86_64__)
	return __builtin_cpu_supports("aes") ? GANTRY_CIPHER_AES_128_GCM : GANTRY_CIPHER_CHACHA20_POLY1305;
#else
	return GANTRY_CIPHER_CHACHA20_POLY1305;
#endif
}

#if GANTRY_HAVE_OPENSSL

struct gantry_seal {
	EVP_CIPHER_CTX *ctx; /* owned; has the key */
	enum gantry_cipher cipher;
	uint8_t direction;
	bool sealing;
	uint64_t number, rekey;
	uint8_t iv[IV_SIZE];
	uint8_t secret[GANTRY_SEAL_SECRET]; /* from which the next keys are made */
};

/* HKDF-Expand-Label of RFC 8446, 7.1, with no context, for up to one block. */
static gantry_result expand(const uint8_t secret[GANTRY_SEAL_SECRET], const char *label, uint8_t *out, size_t size)
{
	uint8_t info[64], block[GANTRY_MAC_SIZE];
	int n = snprintf((char *)info + 3, sizeof(info) - 5, "tls13 %s", label);
	gantry_result r;

	info[0] = 0;
	info[1] = (uint8_t)size;
	info[2] = (uint8_t)n;
	info[n + 3] = 0; /* the context's length */
	info[n + 4] = 1; /* the first block */
	r = gantry_hmac_sha256(secret, GANTRY_SEAL_SECRET, info, (size_t)n + 5, block);
	memcpy(out, block, size);
	explicit_bzero(block, sizeof(block));
	return r;
}

static gantry_result set_keys(struct gantry_seal *s)
{
	const EVP_CIPHER *type = s->cipher == GANTRY_CIPHER_AES_128_GCM ? gantry_openssl->EVP_aes_128_gcm()
									: gantry_openssl->EVP_chacha20_poly1305();
	uint8_t key[KEY_MAX];
	gantry_result r = GANTRY_OK;

	TRY(expand(s->secret, "key", key, ciphers[s->cipher].key_size));
	TRY(expand(s->secret, "iv", s->iv, sizeof(s->iv)));
	if (!gantry_openssl->EVP_CipherInit_ex(s->ctx, type, NULL, key, NULL, s->sealing))
		FAIL(GANTRY_ERR_UNSUPPORTED, "OpenSSL has no %s here", ciphers[s->cipher].name);
out:
	explicit_bzero(key, sizeof(key));
	return r;
}

gantry_result gantry_seal_new(enum gantry_cipher cipher, const uint8_t secret[GANTRY_SEAL_SECRET], uint8_t direction,
			      bool sealing, uint32_t rekey, struct gantry_seal **ret_seal)
{
	struct gantry_seal *s = calloc(1, sizeof(*s));
	gantry_result r = GANTRY_OK;

	ASSERT(gantry_openssl && cipher > GANTRY_CIPHER_NONE && cipher < GANTRY_CIPHERS);
	if (!s)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a key");
	s->cipher = cipher;
	s->direction = direction;
	s->sealing = sealing;
	s->rekey = rekey;
	memcpy(s->secret, secret, sizeof(s->secret));
	s->ctx = gantry_openssl->EVP_CIPHER_CTX_new();
	if (!s->ctx)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a key");
	TRY(set_keys(s));
	*ret_seal = s;
	s = NULL;
out:
	gantry_seal_free(s);
	return r;
}

void gantry_seal_free(struct gantry_seal *s)
{
	if (!s)
		return;
	gantry_openssl->EVP_CIPHER_CTX_free(s->ctx); /* wipes the key */
	explicit_bzero(s, sizeof(*s));
	free(s);
}

/* Before a record: the key and the nonce of its number. The numbers go on, so no nonce is ever used twice. */
static bool begin_record(struct gantry_seal *s, const uint8_t header[GANTRY_SEAL_HEADER])
{
	uint8_t nonce[IV_SIZE];
	int n;

	if (s->number && s->number % s->rekey == 0 &&
	    (expand(s->secret, "traffic upd", s->secret, sizeof(s->secret)) != GANTRY_OK || set_keys(s) != GANTRY_OK))
		return false;
	memcpy(nonce, s->iv, sizeof(nonce));
	for (int i = 0; i < 8; i++)
		nonce[IV_SIZE - 1 - i] ^= (uint8_t)(s->number >> 8 * i);
	return gantry_openssl->EVP_CipherInit_ex(s->ctx, NULL, NULL, NULL, nonce, s->sealing) &&
	       gantry_openssl->EVP_CipherUpdate(s->ctx, NULL, &n, header, GANTRY_SEAL_HEADER);
}

size_t gantry_seal_close(struct gantry_seal *s, const struct iovec *iov, int n, uint8_t *out)
{
	uint8_t *at = out + GANTRY_SEAL_HEADER;
	size_t length = 0;
	int done;

	for (int i = 0; i < n; i++)
		length += iov[i].iov_len;
	ASSERT(s->sealing && length > 0 && length <= GANTRY_SEAL_MAX);
	memset(out, 0, GANTRY_SEAL_HEADER);
	put16(out + AT_MAGIC, MAGIC);
	out[AT_DIRECTION] = s->direction;
	put32(out + AT_LENGTH, (uint32_t)length);
	put64(out + AT_NUMBER, s->number);
	if (!begin_record(s, out))
		return 0;
	for (int i = 0; i < n; at += iov[i++].iov_len)
		if (!gantry_openssl->EVP_CipherUpdate(s->ctx, at, &done, iov[i].iov_base, (int)iov[i].iov_len))
			return 0;
	if (!gantry_openssl->EVP_CipherFinal_ex(s->ctx, at, &done) ||
	    !gantry_openssl->EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_GET_TAG, GANTRY_SEAL_TAG, at))
		return 0;
	s->number++;
	return length + GANTRY_SEAL_EXTRA;
}

uint32_t gantry_seal_length(const struct gantry_seal *s, const uint8_t header[GANTRY_SEAL_HEADER],
			    char why[GANTRY_SEAL_WHY])
{
	uint32_t length = get32(header + AT_LENGTH);
	uint64_t number = get64(header + AT_NUMBER);

	if (get16(header + AT_MAGIC) != MAGIC || header[AT_DIRECTION] > 1 || header[3] || !length ||
	    length > GANTRY_SEAL_MAX)
		snprintf(why, GANTRY_SEAL_WHY, "record %llu is not encrypted", (unsigned long long)s->number);
	else if (header[AT_DIRECTION] != s->direction)
		snprintf(why, GANTRY_SEAL_WHY, "record %llu is one of our own, reflected back",
			 (unsigned long long)number);
	else if (number != s->number)
		snprintf(why, GANTRY_SEAL_WHY, "received record %llu, expected %llu: %s", (unsigned long long)number,
			 (unsigned long long)s->number,
			 number < s->number ? "replayed" : "records were dropped or reordered");
	else
		return length;
	return 0;
}

bool gantry_seal_open(struct gantry_seal *s, const uint8_t *record, const struct iovec *iov, int n)
{
	uint32_t length = get32(record + AT_LENGTH);
	const uint8_t *at = record + GANTRY_SEAL_HEADER;
	uint8_t rest[16];
	int done;

	ASSERT(!s->sealing && get64(record + AT_NUMBER) == s->number);
	if (!begin_record(s, record))
		return false;
	for (int i = 0; i < n; at += iov[i++].iov_len)
		if (iov[i].iov_len &&
		    !gantry_openssl->EVP_CipherUpdate(s->ctx, iov[i].iov_base, &done, at, (int)iov[i].iov_len))
			return false;
	ASSERT(at == record + GANTRY_SEAL_HEADER + length);
	if (!gantry_openssl->EVP_CIPHER_CTX_ctrl(s->ctx, EVP_CTRL_AEAD_SET_TAG, GANTRY_SEAL_TAG,
						 (void *)(uintptr_t)(record + GANTRY_SEAL_HEADER + length)) ||
	    gantry_openssl->EVP_CipherFinal_ex(s->ctx, rest, &done) <= 0)
		return false;
	s->number++;
	return true;
}

#else

/* Without OpenSSL no connection agrees on a cipher. */
gantry_result gantry_seal_new(enum gantry_cipher cipher, const uint8_t secret[GANTRY_SEAL_SECRET], uint8_t direction,
			      bool sealing, uint32_t rekey, struct gantry_seal **ret_seal)
{
	(void)cipher, (void)secret, (void)direction, (void)sealing, (void)rekey, (void)ret_seal;
	return gantry_openssl_load();
}

void gantry_seal_free(struct gantry_seal *s)
{
	ASSERT(!s);
	(void)s;
}

size_t gantry_seal_close(struct gantry_seal *s, const struct iovec *iov, int n, uint8_t *out)
{
	(void)s, (void)iov, (void)n, (void)out;
	return 0;
}

uint32_t gantry_seal_length(const struct gantry_seal *s, const uint8_t header[GANTRY_SEAL_HEADER],
			    char why[GANTRY_SEAL_WHY])
{
	(void)s, (void)header;
	why[0] = 0;
	return 0;
}

bool gantry_seal_open(struct gantry_seal *s, const uint8_t *record, const struct iovec *iov, int n)
{
	(void)s, (void)record, (void)iov, (void)n;
	return false;
}

#endif
