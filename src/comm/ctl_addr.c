/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_COMM
#include "comm/ctl_addr.h"

#include <stdlib.h>

#include "base/log.h"

static void nics_free(struct gantry_nic_list *list)
{
	gantry_nic_list_free(list);
	free(list);
}

/* The interfaces that may be used, on the heap: the list is large. */
static gantry_result nics(struct gantry_nic_list **ret_list)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *list = calloc(1, sizeof(*list));

	if (!list)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of interfaces");
	TRY(gantry_nic_scan(list));
	TRY(gantry_nic_select(list, gantry_nic_wanted_pattern(), gantry_nic_wanted_family()));
	*ret_list = list;
	list = NULL;
out:
	nics_free(list);
	return r;
}

gantry_result ctl_listen_addr(struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *list = NULL;

	TRY(nics(&list));
	*ret_addr = list->nics[0].addrs[0];
out:
	nics_free(list);
	return r;
}

static void candidate(const struct gantry_addr *to, unsigned ifindex, struct gantry_addr *addrs, int *n)
{
	for (int i = 0; i < *n; i++)
		if (addrs[i].in6.sin6_scope_id == ifindex)
			return;
	if (*n == CTL_CANDIDATES)
		return;
	addrs[*n] = *to;
	addrs[(*n)++].in6.sin6_scope_id = ifindex;
}

gantry_result ctl_candidates(const struct gantry_addr *to, struct gantry_addr ret_addrs[CTL_CANDIDATES], int *ret_n)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *all = NULL, *list = NULL;
	int n = 0;

	if (to->sa.sa_family != AF_INET6 || !gantry_addr_is_link_local(to)) {
		ret_addrs[0] = *to;
		*ret_n = 1;
		return GANTRY_OK;
	}
	all = calloc(1, sizeof(*all));
	if (!all)
		FAIL(GANTRY_ERR_NOMEM, "no memory for a list of interfaces");
	/* The hub may be on this very host: then only the interface that carries the address leads there. */
	TRY(gantry_nic_scan(all));
	for (int i = 0; i < all->count; i++)
		for (int k = 0; k < all->nics[i].naddrs; k++) {
			struct gantry_addr own = all->nics[i].addrs[k];

			own.in6.sin6_scope_id = to->in6.sin6_scope_id;
			if (own.sa.sa_family == AF_INET6 && gantry_addr_same_host(&own, to))
				candidate(to, all->nics[i].ifindex, ret_addrs, &n);
		}
	TRY(nics(&list));
	for (int i = 0; i < list->count; i++)
		candidate(to, list->nics[i].ifindex, ret_addrs, &n);
	*ret_n = n;
out:
	nics_free(all);
	nics_free(list);
	return r;
}
