/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as text and in comparison. Interfaces are nic.c's business, except for "does this address live here". */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "inet/nic.h"

socklen_t gantry_addr_len(const struct gantry_addr *a)
{
	return a->sa.sa_family == AF_INET6 ? sizeof(a->in6) : sizeof(a->in);
}

uint16_t gantry_addr_port(const struct gantry_addr *a)
{
	return ntohs(a->sa.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port);
}

void gantry_addr_set_port(struct gantry_addr *a, uint16_t port)
{
	if (a->sa.sa_family == AF_INET6)
		a->in6.sin6_port = htons(port);
	else
		a->in.sin_port = htons(port);
}

int gantry_addr_same_host(const struct gantry_addr *a, const struct gantry_addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family)
		return 0;
	if (a->sa.sa_family == AF_INET)
		return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
	if (a->sa.sa_family != AF_INET6)
		return 0;
	if (memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof(a->in6.sin6_addr)) != 0)
		return 0;
	return !IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr) || a->in6.sin6_scope_id == b->in6.sin6_scope_id;
}

int gantry_addr_is_link_local(const struct gantry_addr *a)
{
	if (a->sa.sa_family == AF_INET)
		return ntohl(a->in.sin_addr.s_addr) >> 16 == 0xa9fe;
	return a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr);
}

struct gantry_addr gantry_addr_of(const struct sockaddr *sa)
{
	struct gantry_addr a;

	memset(&a, 0, sizeof(a));
	if (sa && sa->sa_family == AF_INET)
		memcpy(&a.in, sa, sizeof(a.in));
	else if (sa && sa->sa_family == AF_INET6)
		memcpy(&a.in6, sa, sizeof(a.in6));
	return a;
}

void gantry_addr_unmap(struct gantry_addr *a)
{
	struct gantry_addr v4 = {.in = {.sin_family = AF_INET, .sin_port = a->in6.sin6_port}};

	if (a->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
		return;
	memcpy(&v4.in.sin_addr, &a->in6.sin6_addr.s6_addr[12], 4);
	*a = v4;
}

const char *gantry_addr_text(const struct gantry_addr *a, char buf[GANTRY_ADDR_TEXT])
{
	char host[INET6_ADDRSTRLEN], name[IFNAMSIZ], scope[IFNAMSIZ + 2] = "";
	int v6 = a->sa.sa_family == AF_INET6, saved = errno;
	uint16_t port = gantry_addr_port(a);

	if (!v6 && a->sa.sa_family != AF_INET) {
		snprintf(buf, GANTRY_ADDR_TEXT, "(no address)");
		return buf;
	}
	inet_ntop(a->sa.sa_family, v6 ? (const void *)&a->in6.sin6_addr : (const void *)&a->in.sin_addr, host,
		  sizeof(host));
	if (v6 && a->in6.sin6_scope_id && IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr)) {
		if (if_indextoname(a->in6.sin6_scope_id, name))
			snprintf(scope, sizeof(scope), "%%%s", name);
		else /* an interface that is gone, or a peer's number */
			snprintf(scope, sizeof(scope), "%%%u", a->in6.sin6_scope_id);
	}
	if (!port)
		snprintf(buf, GANTRY_ADDR_TEXT, "%s%s", host, scope);
	else
		snprintf(buf, GANTRY_ADDR_TEXT, v6 ? "[%s%s]:%u" : "%s%s:%u", host, scope, port);
	errno = saved;
	return buf;
}

gantry_result gantry_addr_parse(const char *text, struct gantry_addr *ret_addr)
{
	struct sockaddr_storage parsed;

	if (strlen(text) >= GANTRY_ADDR_TEXT)
		FAIL_NOW(GANTRY_ERR_INVALID, "'%.40s...' is too long for an address", text);
	if (gantry_parse_addr(text, &parsed) != GANTRY_OK)
		FAIL_NOW(GANTRY_ERR_INVALID,
			 "'%s' is not an address: expected 10.0.0.2, 10.0.0.2:4000, fe80::1%%eth0 or "
			 "[fe80::1%%eth0]:4000 with an interface of this machine and a port from 1 to 65535",
			 text);
	*ret_addr = gantry_addr_of((const struct sockaddr *)&parsed);
	return GANTRY_OK;
}

static int add_host(const char *host, uint16_t port, struct gantry_addr *addrs, int *n, char *why, size_t len)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
	struct addrinfo *list = NULL;
	int e = getaddrinfo(host, NULL, &numeric, &list);

	if (e)
		e = getaddrinfo(host, NULL, &hints, &list);
	if (e) {
		snprintf(why, len, "%s: %s", host, gai_strerror(e));
		return -1;
	}
	for (const struct addrinfo *i = list; i && *n < GANTRY_ADDRS_MAX; i = i->ai_next) {
		struct gantry_addr a = gantry_addr_of(i->ai_addr);

		if (a.sa.sa_family == AF_UNSPEC)
			continue;
		gantry_addr_set_port(&a, port);
		addrs[(*n)++] = a;
	}
	freeaddrinfo(list);
	return 0;
}

int gantry_addr_resolve(const char *text, uint16_t port, struct gantry_addr ret_addrs[GANTRY_ADDRS_MAX], int *ret_n,
			char *why, size_t len)
{
	char copy[512], *rest = copy, *one, *host;
	int n = 0;

	if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy)) {
		snprintf(why, len, "%.40s...: host name is too long", text);
		return -1;
	}
	while ((one = strsep(&rest, ","))) {
		uint16_t own = 0;

		if (gantry_split_host(one, &host, &own) < 0 || !*host) {
			snprintf(why, len, "%s: expected HOST or HOST:PORT, with a port from 1 to 65535", text);
			return -1;
		}
		if (add_host(host, own ? own : port, ret_addrs, &n, why, len) < 0)
			return -1;
	}
	if (!n) {
		snprintf(why, len, "%s: no address", text);
		return -1;
	}
	*ret_n = n;
	return 0;
}

static int same_as_local(const struct gantry_addr *a, struct gantry_addr b)
{
	if (b.sa.sa_family == AF_INET6 && !a->in6.sin6_scope_id)
		b.in6.sin6_scope_id = 0; /* a without a scope: any interface will do */
	return gantry_addr_same_host(a, &b);
}

int gantry_addr_is_loopback(const struct gantry_addr *a)
{
	return (a->sa.sa_family == AF_INET && ntohl(a->in.sin_addr.s_addr) >> 24 == 127) ||
	       (a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr));
}

int gantry_addr_is_local(const struct gantry_addr *a)
{
	struct ifaddrs *all = NULL, *i;
	int found = 0;

	if (gantry_addr_is_loopback(a))
		return 1;
	if (a->sa.sa_family != AF_INET && a->sa.sa_family != AF_INET6)
		return 0;
	if (getifaddrs(&all) != 0) {
		LOG_WARN(NET, "getifaddrs: %s", strerror(errno));
		return 0;
	}
	for (i = all; i && !found; i = i->ifa_next)
		found = same_as_local(a, gantry_addr_of(i->ifa_addr));
	freeifaddrs(all);
	return found;
}
