/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has no netlink form, or not on every kernel: flow rules and the RSS table, by SIOCETHTOOL. Builders are pure.
 * Calls return 0 or a positive errno; fd is any socket.
 */
#ifndef GANTRY_NET_DEVMEM_ETHTOOL_H
#define GANTRY_NET_DEVMEM_ETHTOOL_H

#include <linux/ethtool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/devmem/sys.h"

/* A rule that sends TCP packets of this way to a queue. narrow: all four of addresses and ports; else only where they
 * go to, for NICs that refuse the former. */
void devmem_rule_build(const struct devmem_tuple *t, int narrow, uint32_t queue, struct ethtool_rxnfc *ret_rule);
void devmem_rule_build_delete(uint32_t location, struct ethtool_rxnfc *ret_rule);
/* The table that spreads n entries over the first `queues` queues. */
void devmem_rss_equal(uint32_t n, uint32_t queues, struct devmem_rss *ret_rss);

/* The way of what a connected TCP socket receives: 0 or errno. IPv4 in IPv6 is IPv4. */
int devmem_tuple_of(int fd, struct devmem_tuple *ret_tuple);

int devmem_rule_add(int fd, const char *nic, const struct devmem_tuple *t, int narrow, uint32_t queue,
		    uint32_t *ret_location);
int devmem_rule_del(int fd, const char *nic, uint32_t location);
int devmem_rss_get(int fd, const char *nic, struct devmem_rss *ret_rss);
int devmem_rss_set(int fd, const char *nic, const struct devmem_rss *rss); /* NULL: the driver's default */
int devmem_driver_name(int fd, const char *nic, char *ret_name, size_t len);

#endif
