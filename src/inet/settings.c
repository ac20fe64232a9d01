/* SPDX-License-Identifier: Apache-2.0 */
#define LOG_SUBSYS GANTRY_SUBSYS_NET
#include "inet/settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/hmac.h"
#include "base/log.h"
#include "base/openssl.h"
#include "base/param.h"
#include "base/secret.h"

/* ---- keys ---- */

_Static_assert((int)PARAM_ENCRYPT_OFF == INET_ENCRYPT_OFF && (int)PARAM_ENCRYPT_ON == INET_ENCRYPT_ON &&
		       (int)PARAM_ENCRYPT_REQUIRE == INET_ENCRYPT_REQUIRE,
	       "the parameter's words are the hand-shake's");

/* If encryption is enabled but impossible, the result must be an error, not an unencrypted connection. */
static gantry_result check_encryption(const char *secret)
{
	if (gantry_params()->encrypt == PARAM_ENCRYPT_OFF)
		return GANTRY_OK;
	if (!secret)
		FAIL_NOW(GANTRY_ERR_CONFIG, "GANTRY_ENCRYPT needs a secret: set GANTRY_SECRET_FILE or GANTRY_SECRET");
	return gantry_openssl_load();
}

gantry_result inet_secret_key(struct inet_key *ret_key)
{
	const char *secret;

	TRY_NOW(gantry_secret(&secret));
	TRY_NOW(check_encryption(secret));
	*ret_key = (struct inet_key){.auth = secret ? INET_AUTH_SECRET : INET_AUTH_NONE,
				     .encrypt = (enum inet_encrypt)gantry_params()->encrypt,
				     .bytes = secret,
				     .size = secret ? strlen(secret) : 0};
	return GANTRY_OK;
}

gantry_result inet_mixed_key(const uint8_t id_key[INET_KEY_SIZE], uint8_t room[INET_KEY_SIZE], struct inet_key *ret_key)
{
	struct inet_key secret;

	TRY_NOW(inet_secret_key(&secret));
	if (secret.auth == INET_AUTH_SECRET)
		TRY_NOW(gantry_hmac_sha256(secret.bytes, secret.size, id_key, INET_KEY_SIZE, room));
	else
		memcpy(room, id_key, INET_KEY_SIZE);
	*ret_key = (struct inet_key){.auth = secret.auth == INET_AUTH_SECRET ? INET_AUTH_SECRET
					     : GANTRY_HAVE_OPENSSL	     ? INET_AUTH_KEY
									     : INET_AUTH_SHOWN,
				     .encrypt = secret.encrypt,
				     .bytes = room,
				     .size = INET_KEY_SIZE};
	return GANTRY_OK;
}

/* ---- ports and the address given to peers ---- */

enum inet_resume inet_resume_says(void)
{
	enum param_resume p = gantry_params()->resume;

	return p == PARAM_RESUME_OFF  ? INET_RESUME_NO
	       : p == PARAM_RESUME_ON ? INET_RESUME_YES
				      : INET_RESUME_BETWEEN_HOSTS;
}

bool inet_resume_wanted(enum inet_resume setting, bool same_host)
{
	return setting == INET_RESUME_YES || (setting == INET_RESUME_BETWEEN_HOSTS && !same_host);
}

gantry_result inet_advertised(const struct gantry_addr *bound, struct gantry_addr *ret_addr)
{
	const char *text = gantry_params()->advertise;
	struct gantry_addr a = *bound;

	if (*text)
		TRY_NOW(gantry_addr_parse(text, &a));
	if (!gantry_addr_port(&a))
		gantry_addr_set_port(&a, gantry_addr_port(bound));
	*ret_addr = a;
	return GANTRY_OK;
}

/* ---- interfaces ---- */

const char *inet_wanted_interfaces(void)
{
	const char *own = gantry_params()->ifname, *nccl = getenv("NCCL_SOCKET_IFNAME");

	if (own && *own)
		return own;
	return nccl ? nccl : "";
}

int inet_wanted_family(void)
{
	const char *nccl = getenv("NCCL_SOCKET_FAMILY");
	enum param_family own = gantry_params()->family;

	if (own != PARAM_FAMILY_AUTO)
		return own == PARAM_FAMILY_INET ? AF_INET : AF_INET6;
	if (nccl && strcmp(nccl, "AF_INET") == 0)
		return AF_INET;
	if (nccl && strcmp(nccl, "AF_INET6") == 0)
		return AF_INET6;
	return AF_UNSPEC;
}

gantry_result inet_wanted_nics(struct gantry_nic_list **ret_list)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *list = NULL;

	TRY(gantry_nic_scan(&list));
	TRY(gantry_nic_select(list, inet_wanted_interfaces(), inet_wanted_family()));
	*ret_list = list;
	list = NULL;
out:
	gantry_nic_list_free(list);
	return r;
}

gantry_result inet_listen_addr(struct gantry_addr *ret_addr)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *list = NULL;

	TRY(inet_wanted_nics(&list));
	*ret_addr = list->nics[0].addrs[0];
out:
	gantry_nic_list_free(list);
	return r;
}

static void add_candidate(const struct gantry_addr *to, unsigned ifindex, struct gantry_addr *addrs, int *n)
{
	for (int i = 0; i < *n; i++)
		if (addrs[i].in6.sin6_scope_id == ifindex)
			return;
	if (*n == INET_CANDIDATES)
		return;
	addrs[*n] = *to;
	addrs[(*n)++].in6.sin6_scope_id = ifindex;
}

gantry_result inet_candidates(const struct gantry_addr *to, struct gantry_addr ret_addrs[INET_CANDIDATES], int *ret_n)
{
	gantry_result r = GANTRY_OK;
	struct gantry_nic_list *all = NULL, *list = NULL;
	int n = 0;

	if (to->sa.sa_family != AF_INET6 || !gantry_addr_is_link_local(to)) {
		ret_addrs[0] = *to;
		*ret_n = 1;
		return GANTRY_OK;
	}
	/* The peer may be on this very host: then only the interface that carries the address leads there. */
	TRY(gantry_nic_scan(&all));
	for (int i = 0; i < all->count; i++)
		for (int k = 0; k < all->nics[i].naddrs; k++) {
			struct gantry_addr own = all->nics[i].addrs[k];

			own.in6.sin6_scope_id = to->in6.sin6_scope_id;
			if (own.sa.sa_family == AF_INET6 && gantry_addr_same_host(&own, to))
				add_candidate(to, all->nics[i].ifindex, ret_addrs, &n);
		}
	TRY(inet_wanted_nics(&list));
	for (int i = 0; i < list->count; i++)
		add_candidate(to, list->nics[i].ifindex, ret_addrs, &n);
	*ret_n = n;
out:
	gantry_nic_list_free(all);
	gantry_nic_list_free(list);
	return r;
}
