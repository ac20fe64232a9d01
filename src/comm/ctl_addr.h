/* SPDX-License-Identifier: Apache-2.0 */
/* Where the hub listens, and where a rank looks for it. */
#ifndef GANTRY_COMM_CTL_ADDR_H
#define GANTRY_COMM_CTL_ADDR_H

#include "inet/nic.h"

/* The first address of the interfaces that GANTRY_IFNAME and GANTRY_FAMILY leave; no port. */
gantry_result ctl_listen_addr(struct gantry_addr *ret_addr);

/* The addresses to try for one in an id: itself, or, if it is link-local, itself on each interface that may be meant,
 * those that carry it first. At least one. */
enum { CTL_CANDIDATES = 8 };
gantry_result ctl_candidates(const struct gantry_addr *to, struct gantry_addr ret_addrs[CTL_CANDIDATES], int *ret_n);

#endif
