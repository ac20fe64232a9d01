/* SPDX-License-Identifier: Apache-2.0 */
#include "inet/target.h"

#include <string.h>
#include <sys/socket.h>

#include "base/bytes.h"

struct inet_target inet_target_of(const struct gantry_addr *a)
{
	struct gantry_addr own = *a;
	struct inet_target t = {0};

	gantry_addr_unmap(&own);
	t.family = own.sa.sa_family == AF_INET ? 4 : 6;
	t.port = gantry_addr_port(&own);
	if (t.family == 4)
		memcpy(t.addr, &own.in.sin_addr, 4);
	else
		memcpy(t.addr, &own.in6.sin6_addr, 16);
	return t;
}

void inet_target_encode(const struct inet_target *t, uint8_t out[INET_TARGET_SIZE])
{
	put16(out, t->family);
	put16(out + 2, t->port);
	memcpy(out + 4, t->addr, sizeof(t->addr));
}

void inet_target_decode(const uint8_t in[INET_TARGET_SIZE], struct inet_target *ret_target)
{
	ret_target->family = get16(in);
	ret_target->port = get16(in + 2);
	memcpy(ret_target->addr, in + 4, sizeof(ret_target->addr));
}

static bool is_at(const struct inet_target *t, const struct gantry_addr *a)
{
	struct inet_target own = inet_target_of(a);

	return t->family == own.family && t->port == own.port && memcmp(t->addr, own.addr, sizeof(own.addr)) == 0;
}

bool inet_target_is_here(const struct inet_target *t, int fd, const struct gantry_addr *advertised)
{
	struct gantry_addr own;
	socklen_t len = sizeof(own);

	memset(&own, 0, sizeof(own));
	return is_at(t, advertised) || (!getsockname(fd, &own.sa, &len) && is_at(t, &own));
}
