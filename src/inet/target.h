/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address that a connecting side has dialled, as part of its hello's payload: with a secret the accepting side refuses a hello
 * for another address, so that a hello cannot be passed on to another listener with the same secret.
 *
 *   0 family(2), 4 or 6; 0: none is named  2 port(2)  4 address(16)
 */
#ifndef GANTRY_INET_TARGET_H
#define GANTRY_INET_TARGET_H

#include <stdbool.h>
#include <stdint.h>

#include "inet/nic.h"

enum { INET_TARGET_SIZE = 20 };

struct inet_target {
	uint16_t family, port;
	uint8_t addr[16];
};

/* An IPv4 address within IPv6 is one of IPv4. */
struct inet_target inet_target_of(const struct gantry_addr *a);
void inet_target_encode(const struct inet_target *t, uint8_t out[INET_TARGET_SIZE]);
void inet_target_decode(const uint8_t in[INET_TARGET_SIZE], struct inet_target *ret_target);
/* Whether it is the address at which the socket was accepted, or the one that is advertised. */
bool inet_target_is_here(const struct inet_target *t, int fd, const struct gantry_addr *advertised);

#endif
