/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked of Linux and what it is told, outside the data path: one table, so that tests answer in the kernel's
 * place and every verdict, quirk and undo can be tried without such a NIC. The real one (sys.c) is netlink and ioctls.
 *
 * All calls return 0 or a positive errno; 524 and 525 are the kernel's own and have no name in libc. `said` holds what
 * the kernel added in words to the last refusal, or "". One thread at a time.
 */
#ifndef GANTRY_NET_DEVMEM_SYS_H
#define GANTRY_NET_DEVMEM_SYS_H

#include <net/if.h>
#include <stddef.h>
#include <stdint.h>

#include "net/devmem/netlink.h"

enum { DEVMEM_RSS_MAX = 4096 };

/* The way of received packets, addresses and ports in network order. IPv4 uses the first four bytes. */
struct devmem_tuple {
	uint32_t family; /* AF_INET or AF_INET6 */
	uint8_t src[16], dst[16];
	uint16_t src_port, dst_port;
};

struct devmem_rss {
	uint32_t n; /* entries of the table; 0: the NIC has none */
	uint32_t queue[DEVMEM_RSS_MAX];
};

struct devmem_sys;
struct devmem_sys_ops {
	/* The kernel itself. */
	int (*dontneed)(struct devmem_sys *s);			     /* SO_DEVMEM_DONTNEED of nothing */
	int (*family)(struct devmem_sys *s, uint64_t *ret_commands); /* of netdev: bit n: command n is there */
	int (*sendmsg)(struct devmem_sys *s); /* MSG_ZEROCOPY of an unknown dma-buf: the errno tells */
	/* A NIC. */
	int (*driver)(struct devmem_sys *s, const char *nic, char *ret_name, size_t len);
	int (*rings_get)(struct devmem_sys *s, const char *nic, struct devmem_rings *ret_rings);
	int (*rings_set)(struct devmem_sys *s, const char *nic, const struct devmem_rings *rings);
	int (*channels)(struct devmem_sys *s, const char *nic, uint32_t *ret_rx_queues);
	int (*queues)(struct devmem_sys *s, const char *nic, struct devmem_queues *ret_queues);
	int (*feature_get)(struct devmem_sys *s, const char *nic, struct devmem_feature *feature);
	int (*feature_set)(struct devmem_sys *s, const char *nic, const char *name, int on);
	int (*rss_get)(struct devmem_sys *s, const char *nic, struct devmem_rss *ret_rss);
	int (*rss_set)(struct devmem_sys *s, const char *nic, const struct devmem_rss *rss); /* NULL: the default */
	/* narrow: all five; else destination address and port only. */
	int (*rule_add)(struct devmem_sys *s, const char *nic, const struct devmem_tuple *t, int narrow, uint32_t queue,
			uint32_t *ret_location);
	int (*rule_del)(struct devmem_sys *s, const char *nic, uint32_t location);
	/* Bindings end with unbind, or when s is closed; s can be used again after either. */
	int (*bind_rx)(struct devmem_sys *s, const char *nic, int fd, const uint32_t *queues, uint32_t n,
		       uint32_t *ret_id);
	int (*bind_tx)(struct devmem_sys *s, const char *nic, int fd, uint32_t *ret_id);
	void (*unbind)(struct devmem_sys *s);
};

struct devmem_sys {
	const struct devmem_sys_ops *ops; /* borrowed, const */
	struct devmem_nl nl;		  /* the real one's */
	int fd;				  /* the same: a socket for ioctls, -1: none yet */
	char said[DEVMEM_SAID_MAX];
};

/* Opens nothing yet; sockets are made when first needed. */
void devmem_sys_init(struct devmem_sys *s);
/* Ends the bindings. Half-built and never used ones are fine. */
void devmem_sys_close(struct devmem_sys *s);
/* On the heap: the real one, or what a test has put in its place. NULL: no memory. */
struct devmem_sys *devmem_sys_new(void);
void devmem_sys_free(struct devmem_sys *s); /* NULL is fine */
extern struct devmem_sys *(*devmem_sys_for_tests)(void);

#endif
