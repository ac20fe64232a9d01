/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "net/tcp/hello.h"

#include <string.h>

#include "base/bytes.h"
#include "base/hmac.h"

static const uint8_t hello_magic[] = WIRE_HELLO_MAGIC;
static const uint8_t welcome_magic[WIRE_MAGIC_SIZE] = {'G', 'A', 'N', 'T', 'R', 'Y', 0x02, '\n'};
static const uint8_t proof_magic[WIRE_MAGIC_SIZE] = {'G', 'A', 'N', 'T', 'R', 'Y', 0x03, '\n'};
enum { HANDLE_MAGIC = 0x59525447, HANDLE_ADDRS = 56, HANDLE_ADDRS_END = 116, HANDLE_LOCAL = 120 };

/* An address is {family 4|6, 0, port, 4 or 16 bytes}. Scope ids are local to a host and do not travel. */
static size_t addr_size(const struct gantry_addr *a)
{
	return a->sa.sa_family == AF_INET6 ? 20 : 8;
}

static int put_addrs(uint8_t *out, size_t room, const struct gantry_addr *addrs, int n)
{
	size_t at = 0;
	int i;

	for (i = 0; i < n; i++) {
		const struct gantry_addr *a = &addrs[i];

		if (at + addr_size(a) > room)
			break;
		out[at] = a->sa.sa_family == AF_INET6 ? 6 : 4;
		out[at + 1] = 0;
		put16(out + at + 2, gantry_addr_port(a));
		if (a->sa.sa_family == AF_INET6)
			memcpy(out + at + 4, &a->in6.sin6_addr, 16);
		else
			memcpy(out + at + 4, &a->in.sin_addr, 4);
		at += addr_size(a);
	}
	return i;
}

static gantry_result get_addrs(const uint8_t *in, size_t room, int n, struct gantry_addr *addrs)
{
	size_t at = 0;

	if (n > GANTRY_NET_MAX_RAILS)
		return GANTRY_ERR_PROTOCOL;
	for (int i = 0; i < n; i++) {
		struct gantry_addr a;

		memset(&a, 0, sizeof(a));
		if (at + 8 > room || (in[at] != 4 && in[at] != 6))
			return GANTRY_ERR_PROTOCOL;
		a.sa.sa_family = in[at] == 6 ? AF_INET6 : AF_INET;
		if (at + addr_size(&a) > room)
			return GANTRY_ERR_PROTOCOL;
		if (in[at] == 6)
			memcpy(&a.in6.sin6_addr, in + at + 4, 16);
		else
			memcpy(&a.in.sin_addr, in + at + 4, 4);
		gantry_addr_set_port(&a, get16(in + at + 2));
		at += addr_size(&a);
		addrs[i] = a;
	}
	return GANTRY_OK;
}

uint64_t wire_handle_local(const void *handle)
{
	return get64((const uint8_t *)handle + HANDLE_LOCAL);
}

void wire_handle_set_local(void *handle, uint64_t value)
{
	put64((uint8_t *)handle + HANDLE_LOCAL, value);
}

void wire_handle_encode(const struct wire_handle *h, uint8_t out[GANTRY_NET_HANDLE_SIZE])
{
	memset(out, 0, GANTRY_NET_HANDLE_SIZE);
	put32(out, HANDLE_MAGIC);
	put16(out + 4, h->version);
	put16(out + 6, (uint16_t)h->dev);
	put64(out + 8, h->process);
	put64(out + 16, h->listener);
	memcpy(out + 24, h->cookie, WIRE_COOKIE_SIZE);
	put64(out + 40, h->comm_id);
	out[48] = (uint8_t)put_addrs(out + HANDLE_ADDRS, HANDLE_ADDRS_END - HANDLE_ADDRS, h->addrs, h->naddrs);
}

gantry_result wire_handle_decode(const uint8_t in[GANTRY_NET_HANDLE_SIZE], struct wire_handle *ret)
{
	struct wire_handle h;

	memset(&h, 0, sizeof(h));
	if (get32(in) != HANDLE_MAGIC)
		return GANTRY_ERR_PROTOCOL;
	h.version = get16(in + 4);
	h.dev = get16(in + 6);
	h.process = get64(in + 8);
	h.listener = get64(in + 16);
	memcpy(h.cookie, in + 24, WIRE_COOKIE_SIZE);
	h.comm_id = get64(in + 40);
	h.naddrs = in[48];
	if (h.naddrs < 1 ||
	    get_addrs(in + HANDLE_ADDRS, HANDLE_ADDRS_END - HANDLE_ADDRS, h.naddrs, h.addrs) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	*ret = h;
	return GANTRY_OK;
}

int wire_hello_may_be(const uint8_t *in, size_t have)
{
	return memcmp(in, hello_magic, have < WIRE_MAGIC_SIZE ? have : WIRE_MAGIC_SIZE) == 0;
}

void wire_hello_encode(const struct wire_hello *h, uint8_t out[WIRE_HELLO_SIZE])
{
	memset(out, 0, WIRE_HELLO_SIZE);
	memcpy(out, hello_magic, WIRE_MAGIC_SIZE);
	put16(out + 8, h->version);
	out[10] = h->auth;
	out[11] = h->lane;
	out[12] = h->lanes;
	out[13] = h->crc;
	put16(out + 14, h->dev);
	put64(out + 16, h->listener);
	memcpy(out + 24, h->cookie, WIRE_COOKIE_SIZE);
	memcpy(out + 40, h->session, WIRE_SESSION_SIZE);
	memcpy(out + 56, h->nonce, WIRE_NONCE_SIZE);
	put64(out + 72, h->process);
	put64(out + 80, h->comm_id);
	put64(out + 88, h->host);
	put32(out + 96, h->window);
	put32(out + 100, h->eager_max);
	put_text(out + 104, sizeof(h->build), h->build);
	put_text(out + 128, sizeof(h->peer), h->peer);
	out[168] = h->unpack;
}

gantry_result wire_hello_decode(const uint8_t in[WIRE_HELLO_SIZE], struct wire_hello *ret)
{
	struct wire_hello h;

	if (!wire_hello_may_be(in, WIRE_MAGIC_SIZE))
		return GANTRY_ERR_PROTOCOL;
	memset(&h, 0, sizeof(h));
	h.version = get16(in + 8);
	h.auth = in[10];
	h.lane = in[11];
	h.lanes = in[12];
	h.crc = in[13];
	h.dev = get16(in + 14);
	h.listener = get64(in + 16);
	memcpy(h.cookie, in + 24, WIRE_COOKIE_SIZE);
	memcpy(h.session, in + 40, WIRE_SESSION_SIZE);
	memcpy(h.nonce, in + 56, WIRE_NONCE_SIZE);
	h.process = get64(in + 72);
	h.comm_id = get64(in + 80);
	h.host = get64(in + 88);
	h.window = get32(in + 96);
	h.eager_max = get32(in + 100);
	get_text(h.build, sizeof(h.build), in + 104);
	get_text(h.peer, sizeof(h.peer), in + 128);
	h.unpack = in[168];
	if (h.version == WIRE_VERSION &&
	    (h.unpack >= WIRE_UNPACKS || h.lanes < 2 || h.lanes > WIRE_MAX_LANES || h.lane >= h.lanes))
		return GANTRY_ERR_PROTOCOL;
	*ret = h;
	return GANTRY_OK;
}

void wire_welcome_encode(const struct wire_welcome *w, uint8_t out[WIRE_WELCOME_SIZE])
{
	memset(out, 0, WIRE_WELCOME_SIZE);
	memcpy(out, welcome_magic, WIRE_MAGIC_SIZE);
	put16(out + 8, w->version);
	out[10] = w->verdict;
	out[11] = w->unpack;
	memcpy(out + 16, w->session, WIRE_SESSION_SIZE);
	memcpy(out + 32, w->nonce, WIRE_NONCE_SIZE);
	put64(out + 48, w->process);
	put64(out + 56, w->host);
	put32(out + 64, w->window);
	put32(out + 68, w->eager_max);
	memcpy(out + WIRE_MAC_OFFSET, w->mac, WIRE_MAC_SIZE);
	put_text(out + 104, WIRE_TEXT_SIZE, w->text);
	out[200] = (uint8_t)put_addrs(out + 208, WIRE_WELCOME_SIZE - 208, w->addrs, w->naddrs);
}

gantry_result wire_welcome_decode(const uint8_t in[WIRE_WELCOME_SIZE], struct wire_welcome *ret)
{
	struct wire_welcome w;

	if (memcmp(in, welcome_magic, WIRE_MAGIC_SIZE) != 0)
		return GANTRY_ERR_PROTOCOL;
	memset(&w, 0, sizeof(w));
	w.version = get16(in + 8);
	w.verdict = in[10];
	w.unpack = in[11];
	memcpy(w.session, in + 16, WIRE_SESSION_SIZE);
	memcpy(w.nonce, in + 32, WIRE_NONCE_SIZE);
	w.process = get64(in + 48);
	w.host = get64(in + 56);
	w.window = get32(in + 64);
	w.eager_max = get32(in + 68);
	memcpy(w.mac, in + WIRE_MAC_OFFSET, WIRE_MAC_SIZE);
	get_text(w.text, WIRE_TEXT_SIZE, in + 104);
	w.naddrs = in[200];
	/* Another version may have more verdicts and other addresses: its number alone is what counts then. */
	if (w.version != WIRE_VERSION) {
		w.naddrs = 0;
	} else if (w.verdict >= WIRE_VERDICTS || w.unpack >= WIRE_UNPACKS ||
		   get_addrs(in + 208, WIRE_WELCOME_SIZE - 208, w.naddrs, w.addrs) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	*ret = w;
	return GANTRY_OK;
}

gantry_result wire_mac(const char *secret, int client, const uint8_t hello[WIRE_HELLO_SIZE],
		       const uint8_t welcome[WIRE_WELCOME_SIZE], uint8_t ret_mac[WIRE_MAC_SIZE])
{
	uint8_t message[16 + WIRE_HELLO_SIZE + WIRE_WELCOME_SIZE];

	memset(message, 0, 16);
	memcpy(message, client ? "gantry client" : "gantry server", 13);
	memcpy(message + 16, hello, WIRE_HELLO_SIZE);
	memcpy(message + 16 + WIRE_HELLO_SIZE, welcome, WIRE_WELCOME_SIZE);
	/* The server's MAC cannot cover itself; the client's covers it like everything else. */
	if (!client)
		memset(message + 16 + WIRE_HELLO_SIZE + WIRE_MAC_OFFSET, 0, WIRE_MAC_SIZE);
	return gantry_hmac_sha256(secret, strlen(secret), message, sizeof(message), ret_mac);
}

void wire_proof_encode(const uint8_t mac[WIRE_MAC_SIZE], uint8_t out[WIRE_PROOF_SIZE])
{
	memcpy(out, proof_magic, WIRE_MAGIC_SIZE);
	memcpy(out + WIRE_MAGIC_SIZE, mac, WIRE_MAC_SIZE);
}

gantry_result wire_proof_decode(const uint8_t in[WIRE_PROOF_SIZE], uint8_t ret_mac[WIRE_MAC_SIZE])
{
	if (memcmp(in, proof_magic, WIRE_MAGIC_SIZE) != 0)
		return GANTRY_ERR_PROTOCOL;
	memcpy(ret_mac, in + WIRE_MAGIC_SIZE, WIRE_MAC_SIZE);
	return GANTRY_OK;
}
