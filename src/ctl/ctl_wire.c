/* SPDX-License-Identifier: Apache-2.0 */
/* The unique id, the hand-shake's payloads, and what a frame may say. */
#include "ctl/ctl_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "ctl/ctl_bruck.h"

enum { ID_MAGIC = 0x44494e47 }; /* "GNID" */

static const struct {
	const char *name;
	uint32_t max;
} kinds[CTL_KIND_COUNT] = {
#define KIND_ROW(name, max) [CTL_##name] = {#name, max},
	CTL_KINDS(KIND_ROW)
#undef KIND_ROW
};

const char *ctl_kind_name(uint32_t kind)
{
	return kind > CTL_NONE && kind < CTL_KIND_COUNT ? kinds[kind].name : "?";
}

bool ctl_allows(const struct inet_header *h, const struct inet_parser *p)
{
	/* Frames that grow with the number of ranks. */
	bool grows = h->kind == CTL_GATHERED || h->kind == CTL_READY || h->kind == CTL_LEFT || h->kind == CTL_BLOCK;

	if (h->kind <= CTL_NONE || h->kind >= CTL_KIND_COUNT || h->size > kinds[h->kind].max)
		return false;
	if (h->from < -1 || h->from >= CTL_RANKS_MAX || h->to < -1 || h->to >= CTL_RANKS_MAX)
		return false;
	/* AGAIN is no outcome of anything that a frame reports. */
	if (h->kind != CTL_CALL && (h->result >= GANTRY_RESULT_COUNT || h->result == GANTRY_AGAIN))
		return false;
	return h->size <= (grows ? p->max_grown : p->max_body);
}

void ctl_get_text(char *out, size_t room, const uint8_t *in, size_t n)
{
	if (n > room - 1)
		n = room - 1;
	memcpy(out, in, n);
	out[n] = 0;
	for (char *c = out; *c; c++)
		if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
			*c = '?';
}

/* ---- the unique id, and the hand-shake's payloads ---- */

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
	memcpy(p + 40, id->key, INET_KEY_SIZE);
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
	memcpy(id.key, p + 40, INET_KEY_SIZE);
	*ret = id;
	return GANTRY_OK;
}

static void put_addr(uint8_t *out, const struct gantry_addr *a)
{
	memset(out, 0, CTL_ADDR_SIZE);
	if (a->sa.sa_family != AF_INET && a->sa.sa_family != AF_INET6)
		return;
	out[0] = a->sa.sa_family == AF_INET6 ? 6 : 4;
	put16(out + 2, gantry_addr_port(a));
	if (out[0] == 6)
		memcpy(out + 4, &a->in6.sin6_addr, 16);
	else
		memcpy(out + 4, &a->in.sin_addr, 4);
}

/* Family 0: there is none. */
static gantry_result get_addr(const uint8_t *in, struct gantry_addr *ret)
{
	uint8_t again[CTL_ADDR_SIZE];

	memset(ret, 0, sizeof(*ret));
	if (in[0] && ((in[0] != 4 && in[0] != 6) || !get16(in + 2)))
		return GANTRY_ERR_PROTOCOL;
	if (!in[0])
		goto out;
	ret->sa.sa_family = in[0] == 6 ? AF_INET6 : AF_INET;
	if (in[0] == 6)
		memcpy(&ret->in6.sin6_addr, in + 4, 16);
	else
		memcpy(&ret->in.sin_addr, in + 4, 4);
	gantry_addr_set_port(ret, get16(in + 2));
out:
	put_addr(again, ret); /* one spelling for each */
	return memcmp(again, in, sizeof(again)) ? GANTRY_ERR_PROTOCOL : GANTRY_OK;
}

bool ctl_id_is_fixed(const struct ctl_id *id)
{
	static const uint8_t none[INET_KEY_SIZE];

	return memcmp(id->key, none, sizeof(none)) == 0;
}

void ctl_hello_encode(const struct ctl_hello *h, uint8_t out[CTL_HELLO_SIZE])
{
	put64(out, h->comm_id);
	put64(out + 8, h->process);
	put32(out + 16, (uint32_t)h->rank);
	put32(out + 20, (uint32_t)h->nranks);
	put32(out + 24, h->timeout_ms);
	put32(out + 28, h->wait_ms);
	put_addr(out + 32, &h->addr);
	put32(out + 52, h->resume);
	put32(out + 56, h->generation);
	put64(out + 60, h->host);
	put64(out + 68, h->received);
	inet_target_encode(&h->to, out + 76);
}

gantry_result ctl_hello_decode(const uint8_t *in, size_t n, int version, struct ctl_hello *ret)
{
	struct ctl_hello h;

	memset(&h, 0, sizeof(h));
	if (n < 8 || (version == CTL_VERSION && n != CTL_HELLO_SIZE))
		return GANTRY_ERR_PROTOCOL;
	h.comm_id = get64(in);
	if (version == CTL_VERSION) {
		h.process = get64(in + 8);
		h.timeout_ms = get32(in + 24);
		h.wait_ms = get32(in + 28);
		if (get32(in + 20) < 1 || get32(in + 20) > CTL_RANKS_MAX || get32(in + 16) >= get32(in + 20))
			return GANTRY_ERR_PROTOCOL;
		h.rank = (int)get32(in + 16);
		h.nranks = (int)get32(in + 20);
		if (get_addr(in + 32, &h.addr) != GANTRY_OK || get32(in + 52) >= INET_RESUMES)
			return GANTRY_ERR_PROTOCOL;
		h.resume = (enum inet_resume)get32(in + 52);
		h.generation = get32(in + 56);
		h.host = get64(in + 60);
		h.received = get64(in + 68);
		inet_target_decode(in + 76, &h.to);
	}
	*ret = h;
	return GANTRY_OK;
}

void ctl_accepted_encode(const struct ctl_accepted *a, uint8_t out[CTL_ACCEPTED_SIZE])
{
	put32(out, a->timeout_ms);
	put32(out + 4, (a->same_process ? 1 : 0) | (a->resumes ? 2 : 0));
	put64(out + 8, a->received);
	put64(out + 16, a->first);
}

gantry_result ctl_accepted_decode(const uint8_t *in, size_t n, struct ctl_accepted *ret)
{
	if (n != CTL_ACCEPTED_SIZE || get32(in + 4) > 3)
		return GANTRY_ERR_PROTOCOL;
	*ret = (struct ctl_accepted){.timeout_ms = get32(in),
				     .same_process = (int)(get32(in + 4) & 1),
				     .resumes = (int)(get32(in + 4) >> 1),
				     .received = get64(in + 8),
				     .first = get64(in + 16)};
	return GANTRY_OK;
}

/* ---- ranges, READY ---- */

void ctl_ranges_encode(const struct ctl_range *ranges, int n, uint8_t *out)
{
	for (int i = 0; i < n; i++, out += 8) {
		put32(out, (uint32_t)ranges[i].first);
		put32(out + 4, (uint32_t)ranges[i].count);
	}
}

/* In order, not empty, within the ranks. */
static int ranges_hold(const uint8_t *in, size_t n, uint32_t nranks)
{
	uint32_t end = 0;

	for (size_t i = 0; i < n; i++, in += 8) {
		uint32_t first = get32(in), count = get32(in + 4);

		if (first < end || first >= nranks || count < 1 || count > nranks - first)
			return 0;
		end = first + count;
	}
	return 1;
}

gantry_result ctl_ranges_decode(const uint8_t *in, size_t size, int nranks, void (*each)(void *ctx, int rank),
				void *ctx)
{
	if (size % 8 || !ranges_hold(in, size / 8, (uint32_t)nranks))
		return GANTRY_ERR_PROTOCOL;
	for (const uint8_t *at = in; at < in + size; at += 8)
		for (uint32_t k = 0; k < get32(at + 4); k++)
			each(ctx, (int)(get32(at) + k));
	return GANTRY_OK;
}

size_t ctl_ready_size(int nranges, const struct gantry_addr *addrs, int nranks)
{
	return 8 + 8 * (size_t)nranges + (addrs ? CTL_ADDR_SIZE * (size_t)ctl_bruck_rounds(nranks) : 0);
}

void ctl_ready_encode(int rank, int nranks, const struct ctl_range *ranges, int nranges,
		      const struct gantry_addr *addrs, uint8_t *out)
{
	int naddrs = addrs ? ctl_bruck_rounds(nranks) : 0;

	put32(out, (uint32_t)nranges);
	put32(out + 4, (uint32_t)naddrs);
	out += 8;
	ctl_ranges_encode(ranges, nranges, out);
	out += 8 * (size_t)nranges;
	for (int i = 0; i < naddrs; i++, out += CTL_ADDR_SIZE)
		put_addr(out, &addrs[ctl_bruck_to(rank, nranks, i)]);
}

gantry_result ctl_ready_decode(const uint8_t *in, size_t n, int nranks, void (*with_hub)(void *ctx, int rank),
			       void *ctx, struct gantry_addr ret_addrs[CTL_ROUNDS_MAX], int *ret_naddrs)
{
	uint32_t nranges = n >= 8 ? get32(in) : UINT32_MAX, naddrs = n >= 8 ? get32(in + 4) : 0;

	if (nranges > (uint32_t)nranks || (naddrs && naddrs != (uint32_t)ctl_bruck_rounds(nranks)) ||
	    n != 8 + 8 * (size_t)nranges + CTL_ADDR_SIZE * (size_t)naddrs)
		return GANTRY_ERR_PROTOCOL;
	for (uint32_t i = 0; i < naddrs; i++)
		if (get_addr(in + 8 + 8 * nranges + CTL_ADDR_SIZE * i, &ret_addrs[i]) != GANTRY_OK ||
		    !ret_addrs[i].sa.sa_family)
			return GANTRY_ERR_PROTOCOL;
	if (ctl_ranges_decode(in + 8, 8 * (size_t)nranges, nranks, with_hub, ctx) != GANTRY_OK)
		return GANTRY_ERR_PROTOCOL;
	*ret_naddrs = (int)naddrs;
	return GANTRY_OK;
}

/* ---- between two ranks ---- */

void ctl_exchange_hello_encode(const struct ctl_exchange_hello *h, uint8_t out[CTL_EXCHANGE_SIZE])
{
	put64(out, h->comm_id);
	put64(out + 8, h->number);
	put32(out + 16, (uint32_t)h->from);
	put32(out + 20, (uint32_t)h->to);
}

gantry_result ctl_exchange_hello_decode(const uint8_t *in, size_t n, struct ctl_exchange_hello *ret)
{
	if (n != CTL_EXCHANGE_SIZE || get32(in + 16) >= CTL_RANKS_MAX || get32(in + 20) >= CTL_RANKS_MAX)
		return GANTRY_ERR_PROTOCOL;
	*ret = (struct ctl_exchange_hello){get64(in), get64(in + 8), (int)get32(in + 16), (int)get32(in + 20)};
	return GANTRY_OK;
}
