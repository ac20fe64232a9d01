/* SPDX-License-Identifier: Apache-2.0 */
/* Which way the kernel would send packets, asked over rtnetlink. */
#ifndef GANTRY_INET_ROUTE_H
#define GANTRY_INET_ROUTE_H

#include "inet/nic.h"

/* Index of the device that packets from `from` (NULL: any) to `to` leave by; 0 if there is no route or no answer. */
unsigned gantry_route_device(const struct gantry_addr *from, const struct gantry_addr *to);

#endif
