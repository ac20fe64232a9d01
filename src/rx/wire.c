/* SPDX-License-Identifier: Apache-2.0 */
#include "rx/wire.h"

#include <string.h>

#include "base/bytes.h"

static const uint8_t hello_magic[8] = {'G', 'A', 'N', 'T', 'R', 'Y', 'r', 'x'};
enum { HEAD_MAGIC = 0x31787267 }; /* "grx1" */
enum { HELLO_NONCE = 32, HELLO_MAC = 48, HELLO_HANDLE = 80, LABEL_SIZE = 16 };

void rx_hello_encode(const struct rx_hello *h, uint8_t out[RX_HELLO_SIZE])
{
	memset(out, 0, RX_HELLO_SIZE);
	memcpy(out, hello_magic, sizeof(hello_magic));
	put16(out + 8, h->version);
	put16(out + 10, h->kind);
	out[12] = h->auth;
	out[13] = h->why;
	put64(out + 16, h->epoch);
	put64(out + 24, h->id);
	memcpy(out + HELLO_NONCE, h->nonce, sizeof(h->nonce));
	memcpy(out + HELLO_MAC, h->mac, sizeof(h->mac));
	memcpy(out + HELLO_HANDLE, h->handle, sizeof(h->handle));
}

gantry_result rx_hello_may_be(const uint8_t *in, size_t n)
{
	if (memcmp(in, hello_magic, n < sizeof(hello_magic) ? n : sizeof(hello_magic)) != 0)
		return GANTRY_ERR_PROTOCOL;
	return n >= 10 && get16(in + 8) != RX_VERSION ? GANTRY_ERR_VERSION : GANTRY_OK;
}

static int is_zero(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return 0;
	return 1;
}

/* What each kind has: values of auth as a set of bits, and fields. */
static const struct {
	uint8_t auths, why, epoch, nonce, mac, handle;
} kinds[RX_HELLO_KINDS] = {
	[RX_HELLO_CONNECT] = {.auths = 1 | 2, .epoch = 1, .nonce = 1, .handle = 1},
	[RX_HELLO_ACCEPT] = {.auths = 1 | 2, .epoch = 1, .mac = 1, .handle = 1},
	[RX_HELLO_CHALLENGE] = {.auths = 2, .nonce = 1},
	[RX_HELLO_PROOF] = {.auths = 2, .mac = 1},
	[RX_HELLO_REFUSED] = {.auths = 1, .why = 1},
};

static int fits_kind(const struct rx_hello *h)
{
	if (h->kind >= RX_HELLO_KINDS || h->auth > 1 || !(kinds[h->kind].auths & 1 << h->auth) || h->why >= RX_WHYS)
		return 0;
	return kinds[h->kind].why == (h->why != 0) && kinds[h->kind].epoch == (h->epoch != 0) &&
	       (kinds[h->kind].nonce || is_zero(h->nonce, sizeof(h->nonce))) &&
	       ((kinds[h->kind].mac && h->auth) || is_zero(h->mac, sizeof(h->mac))) &&
	       (kinds[h->kind].handle || is_zero(h->handle, sizeof(h->handle)));
}

gantry_result rx_hello_decode(const uint8_t in[RX_HELLO_SIZE], struct rx_hello *ret_hello)
{
	struct rx_hello h = {
		.version = get16(in + 8),
		.kind = get16(in + 10),
		.auth = in[12],
		.why = in[13],
		.epoch = get64(in + 16),
		.id = get64(in + 24),
	};
	gantry_result r = rx_hello_may_be(in, RX_HELLO_SIZE);

	if (r != GANTRY_OK)
		return r;
	memcpy(h.nonce, in + HELLO_NONCE, sizeof(h.nonce));
	memcpy(h.mac, in + HELLO_MAC, sizeof(h.mac));
	memcpy(h.handle, in + HELLO_HANDLE, sizeof(h.handle));
	if (!fits_kind(&h) || get16(in + 14))
		return GANTRY_ERR_PROTOCOL;
	*ret_hello = h;
	return GANTRY_OK;
}

gantry_result rx_hello_mac(const char *secret, const uint8_t hello[RX_HELLO_SIZE],
			   const uint8_t challenge[RX_HELLO_SIZE], const uint8_t *answer,
			   uint8_t ret_mac[GANTRY_MAC_SIZE])
{
	uint8_t message[LABEL_SIZE + 3 * RX_HELLO_SIZE], *at = message;

	memcpy(at, answer ? "gantry rx server" : "gantry rx client", LABEL_SIZE);
	at += LABEL_SIZE;
	memcpy(at, hello, RX_HELLO_SIZE);
	at += RX_HELLO_SIZE;
	memcpy(at, challenge, RX_HELLO_SIZE);
	at += RX_HELLO_SIZE;
	if (answer) {
		memcpy(at, answer, RX_HELLO_SIZE);
		memset(at + HELLO_MAC, 0, GANTRY_MAC_SIZE); /* it cannot cover itself */
		at += RX_HELLO_SIZE;
	}
	return gantry_hmac_sha256(secret, strlen(secret), message, (size_t)(at - message), ret_mac);
}

void rx_head_encode(const struct rx_head *h, uint8_t out[RX_HEAD_SIZE])
{
	memset(out, 0, RX_HEAD_SIZE);
	put32(out, HEAD_MAGIC);
	put16(out + 4, h->kind);
	put16(out + 6, h->flags);
	put64(out + 8, h->transfer);
	put64(out + 16, h->tag);
	put64(out + 24, h->bytes);
	put64(out + 32, h->arg);
}

gantry_result rx_head_decode(const uint8_t *in, size_t size, struct rx_head *ret_head)
{
	struct rx_head h;

	if (size < RX_HEAD_SIZE || get32(in) != HEAD_MAGIC || get64(in + 40))
		return GANTRY_ERR_PROTOCOL;
	h = (struct rx_head){
		.kind = get16(in + 4),
		.flags = get16(in + 6),
		.transfer = get64(in + 8),
		.tag = get64(in + 16),
		.bytes = get64(in + 24),
		.arg = get64(in + 32),
	};
	if (h.kind < RX_SEND || h.kind >= RX_KINDS || h.flags > (h.kind == RX_SEND ? RX_INLINE : 0))
		return GANTRY_ERR_PROTOCOL;
	if (size - RX_HEAD_SIZE != (h.flags & RX_INLINE ? h.bytes : 0))
		return GANTRY_ERR_PROTOCOL;
	if ((h.kind == RX_SEND || h.kind == RX_GRANT) && (!h.arg || h.arg > UINT32_MAX))
		return GANTRY_ERR_PROTOCOL;
	*ret_head = h;
	return GANTRY_OK;
}
