/* SPDX-License-Identifier: Apache-2.0 */
/* The unique id and the hand-shake: what they say and how they are proved. */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include <string.h>

#include "base/bytes.h"
#include "base/hmac.h"
#include "base/log.h"
#include "comm/ctl_wire.h"

enum { ID_MAGIC = 0x44494e47 }; /* "GNID" */

void ctl_id_encode(const struct ctl_id *id, struct gantry_unique_id *out)
{
	uint8_t *p = out->bytes;

	memset(out, 0, sizeof(*out));
	put32(p, ID_MAGIC);
	put16(p + 4, id->version);
	p[6] = id->addr.sa.sa_family == AF_INET6 ? 6 : 4;
	put64(p + 8, id->comm_id);
	put16(p + 16, gantry_addr_port(&id->addr));
	if (p[6] == 6)
		memcpy(p + 24, &id->addr.in6.sin6_addr, 16);
	else
		memcpy(p + 24, &id->addr.in.sin_addr, 4);
	memcpy(p + 40, id->key, CTL_KEY_SIZE);
}

gantry_result ctl_id_decode(const struct gantry_unique_id *in, struct ctl_id *ret)
{
	const uint8_t *p = in->bytes;
	struct ctl_id id;

	memset(&id, 0, sizeof(id));
	if (get32(p) != ID_MAGIC || (p[6] != 4 && p[6] != 6) || !get16(p + 16))
		return GANTRY_ERR_INVALID;
	id.version = get16(p + 4);
	id.comm_id = get64(p + 8);
	id.addr.sa.sa_family = p[6] == 6 ? AF_INET6 : AF_INET;
	if (p[6] == 6)
		memcpy(&id.addr.in6.sin6_addr, p + 24, 16);
	else
		memcpy(&id.addr.in.sin_addr, p + 24, 4);
	gantry_addr_set_port(&id.addr, get16(p + 16));
	memcpy(id.key, p + 40, CTL_KEY_SIZE);
	*ret = id;
	return GANTRY_OK;
}

void ctl_hello_encode(const struct ctl_hello *h, uint8_t out[CTL_HELLO_SIZE])
{
	put32(out, h->version);
	put32(out + 4, h->auth);
	put64(out + 8, h->comm_id);
	memcpy(out + 16, h->nonce, CTL_NONCE_SIZE);
	put64(out + 32, h->process);
	put32(out + 40, (uint32_t)h->rank);
	put32(out + 44, (uint32_t)h->nranks);
	put32(out + 48, h->timeout_ms);
	put32(out + 52, h->wait_ms);
	put_text(out + 56, CTL_BUILD_SIZE, h->build);
	put_text(out + 80, CTL_WHO_SIZE, h->who);
}

gantry_result ctl_hello_decode(const uint8_t *in, size_t n, struct ctl_hello *ret)
{
	struct ctl_hello h;

	if (n < 4)
		return GANTRY_ERR_PROTOCOL;
	memset(&h, 0, sizeof(h));
	h.version = get32(in);
	if (h.version != CTL_VERSION) {
		*ret = h;
		return GANTRY_OK;
	}
	if (n != CTL_HELLO_SIZE)
		return GANTRY_ERR_PROTOCOL;
	h.auth = get32(in + 4);
	h.comm_id = get64(in + 8);
	memcpy(h.nonce, in + 16, CTL_NONCE_SIZE);
	h.process = get64(in + 32);
	h.timeout_ms = get32(in + 48);
	h.wait_ms = get32(in + 52);
	ctl_get_text(h.build, sizeof(h.build), in + 56, CTL_BUILD_SIZE);
	ctl_get_text(h.who, sizeof(h.who), in + 80, CTL_WHO_SIZE);
	if (h.auth >= CTL_AUTHS || get32(in + 44) < 1 || get32(in + 44) > CTL_RANKS_MAX ||
	    get32(in + 40) >= get32(in + 44))
		return GANTRY_ERR_PROTOCOL;
	h.rank = (int)get32(in + 40);
	h.nranks = (int)get32(in + 44);
	*ret = h;
	return GANTRY_OK;
}

void ctl_challenge_encode(const struct ctl_challenge *c, uint8_t out[CTL_CHALLENGE_SIZE])
{
	memset(out, 0, CTL_CHALLENGE_SIZE);
	put32(out, c->version);
	memcpy(out + 8, c->nonce, CTL_NONCE_SIZE);
	memcpy(out + CTL_CHALLENGE_MAC, c->mac, CTL_MAC_SIZE);
}

gantry_result ctl_challenge_decode(const uint8_t *in, size_t n, struct ctl_challenge *ret)
{
	struct ctl_challenge c;

	if (n != CTL_CHALLENGE_SIZE || get32(in) != CTL_VERSION)
		return GANTRY_ERR_PROTOCOL;
	c.version = get32(in);
	memcpy(c.nonce, in + 8, CTL_NONCE_SIZE);
	memcpy(c.mac, in + CTL_CHALLENGE_MAC, CTL_MAC_SIZE);
	*ret = c;
	return GANTRY_OK;
}

void ctl_accepted_encode(const struct ctl_accepted *a, uint8_t out[CTL_ACCEPTED_SIZE])
{
	put32(out, a->timeout_ms);
	put32(out + 4, a->same_process ? 1 : 0);
}

gantry_result ctl_accepted_decode(const uint8_t *in, size_t n, struct ctl_accepted *ret)
{
	if (n != CTL_ACCEPTED_SIZE || get32(in + 4) > 1)
		return GANTRY_ERR_PROTOCOL;
	*ret = (struct ctl_accepted){.timeout_ms = get32(in), .same_process = (int)get32(in + 4)};
	return GANTRY_OK;
}

gantry_result ctl_key_mix(const uint8_t key[CTL_KEY_SIZE], const char *secret, uint8_t ret_key[CTL_KEY_SIZE])
{
	if (secret)
		return gantry_hmac_sha256(secret, strlen(secret), key, CTL_KEY_SIZE, ret_key);
	memcpy(ret_key, key, CTL_KEY_SIZE);
	return GANTRY_OK;
}

gantry_result ctl_prove(const uint8_t key[CTL_KEY_SIZE], int hub, const uint8_t hello[CTL_HELLO_SIZE],
			const uint8_t challenge[CTL_CHALLENGE_SIZE], uint8_t ret_mac[CTL_MAC_SIZE])
{
	uint8_t message[16 + CTL_HELLO_SIZE + CTL_CHALLENGE_SIZE];

	if (!GANTRY_HAVE_OPENSSL) {
		memset(ret_mac, 0, CTL_MAC_SIZE);
		memcpy(ret_mac, key + (hub ? 0 : CTL_KEY_SIZE / 2), CTL_KEY_SIZE / 2);
		return GANTRY_OK;
	}
	memset(message, 0, 16);
	strcpy((char *)message, hub ? "gantry ctl hub" : "gantry ctl rank");
	memcpy(message + 16, hello, CTL_HELLO_SIZE);
	memcpy(message + 16 + CTL_HELLO_SIZE, challenge, CTL_CHALLENGE_SIZE);
	/* The hub's MAC cannot cover itself; the rank's covers it like everything else. */
	if (hub)
		memset(message + 16 + CTL_HELLO_SIZE + CTL_CHALLENGE_MAC, 0, CTL_MAC_SIZE);
	return gantry_hmac_sha256(key, CTL_KEY_SIZE, message, sizeof(message), ret_mac);
}
