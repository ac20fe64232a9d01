/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network interfaces: which exist, which may be used, and why.
 *
 * gantry_nic_scan reads all interfaces (getifaddrs, /sys/class/net) of the
 * process's network namespace; gantry_nic_select narrows them down by the
 * user's pattern and family and says the choice and its reason in one line.
 */
#ifndef GANTRY_INET_NIC_H
#define GANTRY_INET_NIC_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include "gantry/result.h"

enum { GANTRY_NIC_MAX = 32, GANTRY_NIC_ADDRS = 4 };

/* Big enough for "[fe80::1234:5678:9abc:def0%averylongname0]:65535". */
enum { GANTRY_ADDR_TEXT = 96 };

struct gantry_addr {
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6; /* scope id set for link-local addresses */
	};
};

socklen_t gantry_addr_len(const struct gantry_addr *a);
uint16_t gantry_addr_port(const struct gantry_addr *a);
void gantry_addr_set_port(struct gantry_addr *a, uint16_t port);
/* Same family and host address (ports and, for global addresses, scopes are ignored). */
int gantry_addr_same_host(const struct gantry_addr *a, const struct gantry_addr *b);
/* 169.254/16 or fe80::/10: reaches the neighbours on one link only. */
int gantry_addr_is_link_local(const struct gantry_addr *a);
/* An IPv4 or IPv6 sockaddr, else family AF_UNSPEC. NULL is allowed. */
struct gantry_addr gantry_addr_of(const struct sockaddr *sa);
/* 10.0.0.2 for ::ffff:10.0.0.2, which is how a socket of both families shows peers of IPv4. */
void gantry_addr_unmap(struct gantry_addr *a);
/* "10.0.0.2:4000", "[fe80::1%eth0]:4000"; without a port if it is 0. Returns buf. */
const char *gantry_addr_text(const struct gantry_addr *a, char buf[GANTRY_ADDR_TEXT]);
/* "10.0.0.2", "10.0.0.2:4000", "fe80::1%eth0", "[::1]:4000". */
gantry_result gantry_addr_parse(const char *text, struct gantry_addr *ret_addr);
/*
 * Hosts as people name them, with commas between (gantry_split_host has the form of one): their addresses with their
 * ports, `port` where there is none. Asks the resolver and may block. 0, or -1 and half a sentence in `why`.
 */
enum { GANTRY_ADDRS_MAX = 8 };
int gantry_addr_resolve(const char *text, uint16_t port, struct gantry_addr ret_addrs[GANTRY_ADDRS_MAX], int *ret_n,
			char *why, size_t len);

struct gantry_nic {
	char name[IFNAMSIZ];
	unsigned ifindex;
	unsigned flags; /* IFF_* */
	int is_loopback;
	int is_bridge_like; /* docker0, virbr0, br-*, cni0 and the like */
	int is_point_to_point_or_tunnel;
	int is_port;	 /* of a bridge or bond: its traffic belongs to the master */
	int speed_mbps;	 /* /sys/class/net/X/speed; 10000 when the kernel does not say */
	int speed_known; /* 0: speed_mbps is that assumption */
	int mtu;
	int numa_node;	/* -1: unknown */
	int arp_flux;	/* other interfaces answer for its IPv4 addresses: traffic for it may arrive there */
	char *pci_path; /* owned; resolved /sys path, NULL for virtual interfaces */
	int naddrs;
	struct gantry_addr addrs[GANTRY_NIC_ADDRS]; /* preferred first: IPv4, global IPv6, link-local */
	uint8_t prefix_len[GANTRY_NIC_ADDRS];
};

struct gantry_nic_list {
	int count;
	struct gantry_nic nics[GANTRY_NIC_MAX];
	char reason[256]; /* after select: why these */
};

/* On the heap: the list is large. */
gantry_result gantry_nic_scan(struct gantry_nic_list **ret_list);
void gantry_nic_list_free(struct gantry_nic_list *list); /* NULL is fine */

/*
 * Keeps in `list` only what may be used. pattern: NCCL_SOCKET_IFNAME's syntax, "" for automatic; family: AF_UNSPEC,
 * AF_INET or AF_INET6. Automatic choice leaves out interfaces that are down or have no address, and takes loopback and
 * docker-like bridges only when nothing else is there. Link-local IPv6 counts as an address of last resort. A pattern
 * that matches nothing is ERR_CONFIG, with a message that lists what exists. Sets list->reason.
 */
gantry_result gantry_nic_select(struct gantry_nic_list *list, const char *pattern, int family);

/* Why select passes over `nic` for better ones ("loopback", "down", "no IPv4 address"), or "" if nothing speaks
 * against it. Static text. */
const char *gantry_nic_objection(const struct gantry_nic *nic, const char *pattern, int family);

/* 1 if `name` matches the pattern. Exposed for tests. */
int gantry_nic_pattern_match(const char *pattern, const char *name);

/* The interface that carries the address, "" if none does: behind NAT it is another host's. */
void gantry_nic_of_addr(const struct gantry_addr *a, char ret_name[IFNAMSIZ]);

/* 1 if the address belongs to this host (any interface of this network namespace, or 127/8, ::1). */
int gantry_addr_is_local(const struct gantry_addr *a);
int gantry_addr_is_loopback(const struct gantry_addr *a); /* one of the latter */

/* Should a connection to `peer` be bound to this device? If the kernel would send by another one; not if packets for
 * this one may come in through another, because the socket would never see them. */
int gantry_nic_should_bind(const struct gantry_nic *nic, const struct gantry_addr *peer);

/* Do both addresses lie in one subnet, seen from nic's address i? */
int gantry_nic_same_subnet(const struct gantry_nic *nic, int i, const struct gantry_addr *peer);

#endif
