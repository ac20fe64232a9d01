/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses that an rx listens on and connects to: from the user's text, and from its interface. */
#define LOG_SUBSYS GANTRY_SUBSYS_RX
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "inet/settings.h"
#include "rx/rx.h"

gantry_result rx_address_parse(const char *text, int listening, struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (listening ? AI_PASSIVE : 0)};
	struct addrinfo *found = NULL;
	const char *colon = strrchr(text, ':');
	char host[256];
	int e;

	if (!colon || !colon[1] || (size_t)(colon - text) >= sizeof(host) || (colon == text && !listening))
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an address: host:port, or [v6]:port", text);
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = 0;
		memmove(host, host + 1, strlen(host));
	} else if (strchr(host, ':')) {
		FAIL(GANTRY_ERR_INVALID, "\"%s\" is not an address: write [v6]:port", text);
	}
	e = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
	if (e)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s: %s", text, gai_strerror(e));
	*ret_addr = gantry_addr_of(found->ai_addr);
	if (ret_addr->sa.sa_family == AF_UNSPEC)
		FAIL(GANTRY_ERR_UNREACHABLE, "%s is neither an IPv4 nor an IPv6 address", text);
out:
	if (found)
		freeaddrinfo(found);
	return r;
}

gantry_result rx_address_epoch(const char *address, char *room, size_t size, uint64_t *ret_epoch)
{
	size_t n = strcspn(address, "#");
	const char *mark = address[n] ? address + n : NULL;
	char *end = NULL;

	*ret_epoch = 0;
	if (n >= size)
		FAIL_NOW(GANTRY_ERR_INVALID, "\"%s\" is not an address: it is too long", address);
	memcpy(room, address, n);
	room[n] = 0;
	if (!mark)
		return GANTRY_OK;
	*ret_epoch = strtoull(mark + 1, &end, 16);
	if (!*ret_epoch || *end || strspn(mark + 1, "0123456789abcdefABCDEF") > 16)
		FAIL_NOW(GANTRY_ERR_INVALID, "\"%s\" is not an address: an epoch has 1 to 16 hexadecimal digits",
			 address);
	return GANTRY_OK;
}

gantry_result rx_address_own(struct gantry_rx *rx, struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *list = NULL;
	const char *nearest = rx->rails.rail[0].name;
	int found = 0, family = inet_wanted_family();

	TRY(gantry_nic_scan(&list));
	for (int i = 0; i < list->count && !found; i++)
		for (int k = 0; k < list->nics[i].naddrs && !found; k++) {
			const struct gantry_addr *a = &list->nics[i].addrs[k];

			found = strcmp(list->nics[i].name, nearest) == 0 &&
				(family == AF_UNSPEC || family == a->sa.sa_family);
			if (found)
				*ret_addr = *a;
		}
	gantry_addr_set_port(ret_addr, 0);
	if (!found)
		FAIL(GANTRY_ERR_CONFIG, "interface %s has no address to listen on", nearest);
out:
	gantry_nic_list_free(list);
	return r;
}
