/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to Linux outside the data path: one table, so that tests can stand in for the kernel and every verdict,
 * quirk and undo can be tested without such a NIC. The real one is generic netlink to the families "netdev" and
 * "ethtool", over libmnl, and ioctls.
 *
 * All calls return 0 or a positive errno; 524 and 525 are the kernel's own and have no name in libc. `said` holds the
 * kernel's text for the last refusal, or "". One thread at a time. Built without libmnl every netlink request returns
 * ENOSYS, and `said` gives the reason.
 */
#ifndef GANTRY_NET_DEVMEM_SYS_H
#define GANTRY_NET_DEVMEM_SYS_H

#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inet/nic.h"

#ifndef GANTRY_HAVE_LIBMNL
#define GANTRY_HAVE_LIBMNL 0
#endif

/* Numbers of the kernel's interface that older headers lack. */
enum {
	NETDEV_QUEUE_GET = 10,
	NETDEV_BIND_RX = 13, /* since 6.12 */
	NETDEV_BIND_TX = 15, /* since 6.16 */
	ETHNL_FEATURES_GET = 11,
	ETHNL_FEATURES_SET = 12,
	ETHNL_RINGS_GET = 15,
	ETHNL_RINGS_SET = 16,
	ETHNL_CHANNELS_GET = 17,
};
enum devmem_split { DEVMEM_SPLIT_AUTO = 0, DEVMEM_SPLIT_OFF = 1, DEVMEM_SPLIT_ON = 2 };
enum { DEVMEM_SAID_MAX = 160, DEVMEM_QUEUES_MAX = 64, DEVMEM_NIC_QUEUES = 512, DEVMEM_RSS_MAX = 4096 };

struct devmem_rings {
	int has_split; /* the driver knows header split */
	uint8_t split; /* enum devmem_split */
	int has_hds;   /* it knows the threshold, too */
	uint32_t hds;  /* payload below this stays with the header */
};

struct devmem_queue {
	uint32_t id, napi, dmabuf; /* 0: none */
	int taken;		   /* by another provider of memory: io_uring, AF_XDP */
};
struct devmem_queues {
	uint32_t ifindex; /* whose */
	uint32_t n;	  /* receive queues; those beyond the table are left out */
	struct devmem_queue q[DEVMEM_NIC_QUEUES];
};

struct devmem_feature {
	char name[32]; /* "rx-ntuple-filter": set by the caller */
	int known;     /* the kernel lists it */
	int on;
	int fixed; /* it cannot be changed on this NIC */
};

/* The way of received packets: both ends of one family. */
struct devmem_tuple {
	struct gantry_addr src, dst;
};
/* A rule that sends TCP packets of this way to a queue. */
struct devmem_rule {
	struct devmem_tuple tuple;
	int narrow; /* all four of addresses and ports; else only where they go to, for NICs that refuse the former */
	uint32_t queue;
};

struct devmem_rss {
	uint32_t n; /* entries of the table; 0: the NIC has none */
	uint32_t queue[DEVMEM_RSS_MAX];
};

/* Memory that queues of a NIC are bound to. */
struct devmem_bind {
	int fd; /* of the dma-buf */
	const uint32_t *queues;
	uint32_t nqueues;
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
	int (*feature_set)(struct devmem_sys *s, const char *nic, const struct devmem_feature *feature); /* name, on */
	int (*rss_get)(struct devmem_sys *s, const char *nic, struct devmem_rss *ret_rss);
	int (*rss_set)(struct devmem_sys *s, const char *nic, const struct devmem_rss *rss); /* NULL: the default */
	int (*rule_add)(struct devmem_sys *s, const char *nic, const struct devmem_rule *rule, uint32_t *ret_location);
	int (*rule_del)(struct devmem_sys *s, const char *nic, uint32_t location);
	/* Bindings end with unbind, or when s is closed; s can be used again after either. */
	int (*bind_rx)(struct devmem_sys *s, const char *nic, const struct devmem_bind *bind, uint32_t *ret_id);
	int (*bind_tx)(struct devmem_sys *s, const char *nic, int fd, uint32_t *ret_id);
	void (*unbind)(struct devmem_sys *s);
};

struct devmem_family {
	uint16_t id;	   /* 0: not asked yet */
	uint64_t commands; /* bit n: command n is there */
};

struct devmem_sys {
	const struct devmem_sys_ops *ops; /* borrowed, const */
	char said[DEVMEM_SAID_MAX];
	/* The real one's. */
	struct mnl_socket *netlink; /* owned; NULL: not open */
	uint32_t seq;		    /* of the last request */
	struct devmem_family netdev, ethtool;
	int fd; /* a socket for ioctls, -1: none yet */
};

/* Opens nothing yet; sockets are made when first needed. */
void devmem_sys_init(struct devmem_sys *s);
/* Ends the bindings. Half-built and never used ones are fine. */
void devmem_sys_close(struct devmem_sys *s);
/* On the heap: the real one, or what a test has put in its place. NULL: no memory. */
struct devmem_sys *devmem_sys_new(void);
void devmem_sys_free(struct devmem_sys *s); /* NULL is fine */
extern struct devmem_sys *(*devmem_sys_for_tests)(void);

/* sendmsg of memory that a NIC reads by itself. `from` is an offset in it, not an address. (kernel.c) */
ssize_t devmem_sendmsg(int fd, uint32_t dmabuf_id, void *from, size_t len, int flags);

#endif
