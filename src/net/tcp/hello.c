/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp/hello.h"

#include <string.h>

#include "base/bytes.h"
#include "inet/settings.h"

enum { HANDLE_MAGIC = 0x59525447, HANDLE_ADDRS = 56, HANDLE_ADDRS_END = 116, HANDLE_LOCAL = 120 };
enum { WELCOME_ADDRS = 48 };

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

void wire_hello_encode(const struct wire_hello *h, uint8_t out[WIRE_HELLO_SIZE])
{
	memset(out, 0, WIRE_HELLO_SIZE);
	put64(out, h->listener);
	memcpy(out + 8, h->cookie, WIRE_COOKIE_SIZE);
	memcpy(out + 24, h->session, WIRE_SESSION_SIZE);
	put64(out + 40, h->process);
	put64(out + 48, h->comm_id);
	put64(out + 56, h->host);
	put32(out + 64, h->window);
	put32(out + 68, h->eager_max);
	out[72] = h->lane;
	out[73] = h->lanes;
	out[74] = h->unpack;
	out[75] = h->resume;
	put16(out + 76, h->dev);
	put32(out + 80, h->generation);
	put64(out + 88, h->received);
}

gantry_result wire_hello_decode(const uint8_t *in, size_t size, int version, struct wire_hello *ret)
{
	struct wire_hello h;

	memset(&h, 0, sizeof(h));
	if (size < 8 + WIRE_COOKIE_SIZE || (version == WIRE_VERSION && size != WIRE_HELLO_SIZE))
		return GANTRY_ERR_PROTOCOL;
	h.listener = get64(in);
	memcpy(h.cookie, in + 8, WIRE_COOKIE_SIZE);
	if (version != WIRE_VERSION)
		goto out;
	memcpy(h.session, in + 24, WIRE_SESSION_SIZE);
	h.process = get64(in + 40);
	h.comm_id = get64(in + 48);
	h.host = get64(in + 56);
	h.window = get32(in + 64);
	h.eager_max = get32(in + 68);
	h.lane = in[72];
	h.lanes = in[73];
	h.unpack = in[74];
	h.resume = in[75];
	h.dev = get16(in + 76);
	h.generation = get32(in + 80);
	h.received = get64(in + 88);
	if (h.unpack >= WIRE_UNPACKS || h.resume >= INET_RESUMES || h.lanes < 2 || h.lanes > WIRE_MAX_LANES ||
	    h.lane >= h.lanes)
		return GANTRY_ERR_PROTOCOL;
out:
	*ret = h;
	return GANTRY_OK;
}

void wire_welcome_encode(const struct wire_welcome *w, uint8_t out[WIRE_WELCOME_SIZE])
{
	memset(out, 0, WIRE_WELCOME_SIZE);
	out[0] = w->verdict;
	out[1] = w->unpack;
	out[3] = w->resume;
	memcpy(out + 8, w->session, WIRE_SESSION_SIZE);
	put64(out + 24, w->host);
	put32(out + 32, w->window);
	put32(out + 36, w->eager_max);
	put64(out + 40, w->received);
	out[2] = (uint8_t)put_addrs(out + WELCOME_ADDRS, WIRE_WELCOME_SIZE - WELCOME_ADDRS, w->addrs, w->naddrs);
}

gantry_result wire_welcome_decode(const uint8_t *in, size_t size, struct wire_welcome *ret)
{
	struct wire_welcome w;

	memset(&w, 0, sizeof(w));
	if (size != WIRE_WELCOME_SIZE)
		return GANTRY_ERR_PROTOCOL;
	w.verdict = in[0];
	w.unpack = in[1];
	w.naddrs = in[2];
	w.resume = in[3];
	memcpy(w.session, in + 8, WIRE_SESSION_SIZE);
	w.host = get64(in + 24);
	w.window = get32(in + 32);
	w.eager_max = get32(in + 36);
	w.received = get64(in + 40);
	if (w.verdict >= WIRE_VERDICTS || w.unpack >= WIRE_UNPACKS || w.resume >= INET_RESUMES ||
	    get_addrs(in + WELCOME_ADDRS, WIRE_WELCOME_SIZE - WELCOME_ADDRS, w.naddrs, w.addrs) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	*ret = w;
	return GANTRY_OK;
}
