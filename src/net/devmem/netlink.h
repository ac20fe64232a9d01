/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generic netlink to the families "netdev" and "ethtool", over libmnl.
 *
 * Builders are pure: they write one message into a buffer and return its length, or 0 if it does not fit. Parsers are
 * pure as well and trust no length. devmem_nl_ask sends one message and hands each reply to a function; every wait has
 * a deadline. The kernel's reason for a refusal (extended acknowledgement) is kept in `said`.
 *
 * Built without libmnl every request answers ENOSYS and says so.
 */
#ifndef GANTRY_NET_DEVMEM_NETLINK_H
#define GANTRY_NET_DEVMEM_NETLINK_H

#include <stddef.h>
#include <stdint.h>

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
enum { DEVMEM_NL_MESSAGE = 4096, DEVMEM_SAID_MAX = 160, DEVMEM_QUEUES_MAX = 64, DEVMEM_NIC_QUEUES = 512 };

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
	uint32_t n; /* receive queues; those beyond the table are left out */
	struct devmem_queue q[DEVMEM_NIC_QUEUES];
};

struct devmem_feature {
	char name[32]; /* "rx-ntuple-filter": set by the caller */
	int known;     /* the kernel lists it */
	int on;
	int fixed; /* it cannot be changed on this NIC */
};

struct devmem_family {
	uint16_t id;
	uint64_t commands; /* bit n: command n is there */
};

/* Where a message goes: the family's number, the request's, and the interface. */
struct devmem_nl_to {
	uint16_t family;
	uint32_t seq, ifindex;
};
size_t devmem_nl_family_get(void *buf, size_t size, uint32_t seq, const char *name);
size_t devmem_nl_bind_rx(void *buf, size_t size, struct devmem_nl_to to, uint32_t fd, const uint32_t *queues,
			 uint32_t n);
size_t devmem_nl_bind_tx(void *buf, size_t size, struct devmem_nl_to to, uint32_t fd);
size_t devmem_nl_queue_get(void *buf, size_t size, struct devmem_nl_to to);
/* FEATURES_GET, RINGS_GET, CHANNELS_GET: they differ by the command. */
size_t devmem_nl_ethtool_get(void *buf, size_t size, struct devmem_nl_to to, uint8_t command);
size_t devmem_nl_rings_set(void *buf, size_t size, struct devmem_nl_to to, const struct devmem_rings *rings);
size_t devmem_nl_feature_set(void *buf, size_t size, struct devmem_nl_to to, const char *name, int on);

struct nlmsghdr;
/* 0, or -1: malformed. Replies to other requests leave the result as it was. */
int devmem_nl_read_family(const struct nlmsghdr *m, struct devmem_family *ret_family);
int devmem_nl_read_dmabuf(const struct nlmsghdr *m, uint32_t *ret_id);
int devmem_nl_read_queue(const struct nlmsghdr *m, uint32_t ifindex, struct devmem_queues *queues);
int devmem_nl_read_rings(const struct nlmsghdr *m, struct devmem_rings *ret_rings);
int devmem_nl_read_channels(const struct nlmsghdr *m, uint32_t *ret_rx_queues);
int devmem_nl_read_features(const struct nlmsghdr *m, struct devmem_feature *feature);
/* An acknowledgement or refusal: its errno, and the kernel's words. */
int devmem_nl_read_error(const struct nlmsghdr *m, char said[DEVMEM_SAID_MAX]);

struct mnl_socket;
struct devmem_nl {
	struct mnl_socket *sock; /* owned; NULL: not open */
	uint32_t seq;
	struct devmem_family netdev, ethtool; /* id 0: not asked yet */
	char said[DEVMEM_SAID_MAX];
};

/* Called for each reply; a result other than 0 makes the request EPROTO. */
typedef int (*devmem_nl_reply)(const struct nlmsghdr *m, void *arg);

void devmem_nl_close(struct devmem_nl *nl); /* ends what was bound through it; never opened is fine */
/* Sends a message that was built with nl->seq and waits for its end. 0 or errno. Opens the socket if need be. */
int devmem_nl_ask(struct devmem_nl *nl, const void *message, size_t len, devmem_nl_reply on_reply, void *arg);
/* The family's number and commands, asked for once. ENOENT: this kernel has no such family. */
int devmem_nl_family(struct devmem_nl *nl, const char *name, struct devmem_family *family);

#endif
