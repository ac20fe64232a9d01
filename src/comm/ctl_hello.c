/* SPDX-License-Identifier: Apache-2.0 */
/* The unique id, and what hub and rank say in the hand-shake. */
#include <string.h>

#include "base/bytes.h"
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

void ctl_hello_encode(const struct ctl_hello *h, uint8_t out[CTL_HELLO_SIZE])
{
	put64(out, h->comm_id);
	put64(out + 8, h->process);
	put32(out + 16, (uint32_t)h->rank);
	put32(out + 20, (uint32_t)h->nranks);
	put32(out + 24, h->timeout_ms);
	put32(out + 28, h->wait_ms);
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
	}
	*ret = h;
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
