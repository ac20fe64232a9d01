/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the user has set about this host's part in the network, read in one place: keys (GANTRY_SECRET,
 * GANTRY_SECRET_FILE), ports (GANTRY_PORT_RANGE), the address given to peers (GANTRY_ADVERTISE), interfaces and family
 * (GANTRY_IFNAME, GANTRY_FAMILY, and NCCL's names for them).
 */
#ifndef GANTRY_INET_SETTINGS_H
#define GANTRY_INET_SETTINGS_H

#include "inet/handshake.h"
#include "inet/nic.h"

/* The secret as a key: INET_AUTH_SECRET, or INET_AUTH_NONE if none is set. Its bytes stay until the process exits. */
gantry_result inet_secret_key(struct inet_key *ret_key);
/* The key that came with an id, mixed with the secret if there is one, in memory of the caller's. */
enum { INET_KEY_SIZE = 32 };
gantry_result inet_mixed_key(const uint8_t id_key[INET_KEY_SIZE], uint8_t room[INET_KEY_SIZE],
			     struct inet_key *ret_key);

/* GANTRY_RESUME, as a hello says it: whether this side's connections are to outlive their sockets. Both sides must want it. */
enum inet_resume { INET_RESUME_NO, INET_RESUME_YES, INET_RESUME_BETWEEN_HOSTS, INET_RESUMES };
enum inet_resume inet_resume_says(void);
bool inet_resume_wanted(enum inet_resume setting, bool same_host);

/* The address that peers connect to: the bound address, or GANTRY_ADVERTISE with, if that has none, the bound port. */
gantry_result inet_advertised(const struct gantry_addr *bound, struct gantry_addr *ret_addr);

/* GANTRY_IFNAME, else NCCL_SOCKET_IFNAME, else "" (borrowed); GANTRY_FAMILY, else NCCL_SOCKET_FAMILY, else AF_UNSPEC. */
const char *inet_wanted_interfaces(void);
int inet_wanted_family(void);
/* The interfaces that these leave, the best first; at least one, with at least one address. */
gantry_result inet_wanted_nics(struct gantry_nic_list **ret_list);
/* The first address of the first of them; no port. */
gantry_result inet_listen_addr(struct gantry_addr *ret_addr);
/* The addresses to try for one that came with an id: itself, or, if it is link-local, itself on each interface that may
 * be meant, those that carry it first. At least one. */
enum { INET_CANDIDATES = 8 };
gantry_result inet_candidates(const struct gantry_addr *to, struct gantry_addr ret_addrs[INET_CANDIDATES], int *ret_n);

#endif
